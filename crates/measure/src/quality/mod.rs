//! The quality record: evidence, kept in a `.base` file, that its conversion did not ruin the model.
//!
//! [`Check`] makes it before a converted file is published, from the file itself and from its source's own values;
//! [`replay`] repeats the file's half on another machine. The layout is in `docs/format.md`.

mod check;
mod record;
mod reference;
mod replay;

pub use check::Check;
pub use record::QualityRecord;
pub use reference::{Reference, Trace};
pub use replay::{Agreement, Replay, agreement, replay};

/// A text that every language model finds easy; new wording needs a new name in records.
pub const TEXT: &str = "\
Once upon a time there was a small village beside a river. A girl named Anna lived there with her grandfather, who \
mended clocks. Every morning she brought him bread and milk, and every evening he told her a story. One day the river \
rose and the bridge was gone. \"What shall we do?\" asked Anna. \"We wait until the water goes down,\" said her \
grandfather, \"and then we build a new bridge.\" So they waited for three days. One, two, three, four, five, six, seven. \
The sun rises in the east and sets in the west. The capital of France is Paris.";

/// Name of [`TEXT`] in a record.
const TEXT_NAME: &str = "basert-1";

/// Name in a record of a model that has no tokenizer, whose ids mean nothing.
const NO_TEXT: &str = "ids";

/// Most tokens that are replayed.
const MAX_TOKENS: usize = 128;
