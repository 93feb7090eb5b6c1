//! Checkpoints to `.base` files.
//!
//! [`convert`] opens a Hugging Face or MLX directory ([`safetensors`]) or a GGUF file ([`gguf`]), finds the recipe
//! for every canonical tensor (`recipe`: names, row orders, norm offsets, one file per kind of source),
//! moves or quantises tensor by tensor and writes the output. Nothing is guessed and nothing dropped unsaid: a
//! tensor that no recipe knows is an error, every written tensor is decoded again and compared, and the [`Report`]
//! has a [`Verdict`] on each. [`plan`] makes the same report from headers alone.
//!
//! [`convert_checked`] also has a [`SelfCheck`] try the result before it is published.
//!
//! Only arithmetic on bytes from files lives here, none of a model's forward pass.

mod awq;
mod check;
mod convention;
mod digest;
mod driver;
mod encode;
mod error;
pub mod gguf;
mod importance;
mod method;
mod options;
mod profile;
mod progress;
mod recipe;
mod report;
pub mod safetensors;
mod same_file;
mod source;
mod storage;
mod tokenizer;
mod values;

pub use check::{Evidence, SelfCheck};
pub use convention::Convention;
pub use driver::{GENERATION_KEY, check_output, convert, convert_checked, plan, resolve_goal};
pub use error::ConvertError;
pub use importance::Importance;
pub use method::Method;
pub use options::{Options, Target};
pub use profile::Profile;
pub use progress::{Progress, Silent};
pub use report::{Count, Dropped, Fallback, Report, TensorReport, Verdict};
pub use same_file::same_file;
pub use values::{SourceModel, SourceValues, with_source};
