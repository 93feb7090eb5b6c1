//! Checkpoints to `.base` files.
//!
//! [`convert`] opens a Hugging Face directory ([`safetensors`]) or a GGUF file ([`gguf`]), finds the recipe
//! for every canonical tensor (`recipe`: names, row orders, norm offsets, one file per kind of source),
//! quantises tensor by tensor and writes the output. Nothing is guessed and nothing dropped unsaid: a tensor
//! that no recipe knows is an error.
//!
//! Only arithmetic on bytes from files lives here, none of a model's forward pass.

mod digest;
mod driver;
mod encode;
mod error;
pub mod gguf;
mod options;
mod progress;
mod recipe;
mod report;
pub mod safetensors;
mod same_file;
mod source;
mod storage;
mod tokenizer;

pub use driver::{GENERATION_KEY, check_output, convert};
pub use error::ConvertError;
pub use options::{Options, Target};
pub use progress::{Progress, Silent};
pub use report::{Count, Fallback, Report};
pub use same_file::same_file;
