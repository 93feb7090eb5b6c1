//! Checkpoints to `.base` files.
//!
//! [`convert`] opens a Hugging Face or MLX directory ([`safetensors`]) or a GGUF file ([`gguf`]), finds the recipe
//! for every canonical tensor (`recipe`: names, row orders, norm offsets, one file per kind of source),
//! moves or quantises tensor by tensor and writes the output. Nothing is guessed and nothing dropped unsaid: a
//! tensor that no recipe knows is an error, every written tensor is decoded again and compared, and the [`Report`]
//! has a [`Verdict`] on each. [`plan`] makes the same report from headers alone, with an [`Estimate`] of the time.
//!
//! [`convert_to`] can have a [`SelfCheck`] try the result before it is published.
//!
//! [`export_gguf`] goes the other way, and [`synthesize`] makes bundles of random weights.
//!
//! Only arithmetic on bytes from files lives here, none of a model's forward pass.

mod awq;
mod check;
mod choices;
mod compat;
mod convention;
mod digest;
mod driver;
mod encode;
mod error;
mod estimate;
mod export;
pub mod gguf;
mod importance;
mod method;
mod options;
mod pipeline;
mod profile;
mod progress;
mod recipe;
mod report;
mod resume;
pub mod safetensors;
mod same_file;
mod source;
mod storage;
mod synthetic;
mod tokenizer;
mod trail;
mod values;

pub use check::{Evidence, SelfCheck};
pub use compat::Compat;
pub use convention::Convention;
pub use driver::{GENERATION_KEY, check_output, convert, convert_to, plan, resolve_goal, source_name};
pub use error::ConvertError;
pub use estimate::Estimate;
pub use export::{ExportOptions, ExportReport, Exported, Outtype, export_gguf};
pub use importance::Importance;
pub use method::Method;
pub use options::{Options, Target};
pub use profile::Profile;
pub use progress::{Progress, Silent};
pub use report::{Count, Dropped, Fallback, Report, TensorReport, Verdict};
pub use same_file::same_file;
pub use synthetic::{SYNTHETIC_KEY, StoredTensor, Synthetic, SyntheticReport, stored_tensors, synthesize};
pub use values::{SourceModel, SourceValues, with_source};
