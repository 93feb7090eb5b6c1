//! Weights, caches and the step: a `.base` file becomes logits, and logits become tokens.
//!
//! [`Engine`] binds the tensors of a file to the layers of a [`basert_model::ModelSpec`], owns the KV pages
//! and recurrent states of its sequences, and runs steps; [`generate`] is the single-user loop over it, [`Session`] keeps
//! its sequence for a next answer, and
//! [`Sampler`] picks tokens. Arithmetic lives in `basert-kernels`; there is no text, no network and no file
//! writing here. A token's logits never depend on what else is in the step.

mod admission;
mod cache;
mod engine;
mod error;
mod fill;
mod fit;
mod forward;
mod generate;
mod kept;
mod kv;
mod options;
mod pages;
mod plan;
mod prefix;
mod reader;
mod residence;
mod rope;
mod sampler;
mod scheduler;
mod session_file;
mod sizing;
mod snapshots;
mod speculate;
mod state_file;
mod step;
mod stream;
mod tensor;
mod trace;
mod weights;
mod workspace;

pub use admission::{doubled_norm_offset, model_spec};
pub use cache::SequenceId;
pub use engine::Engine;
pub use error::EngineError;
pub use fit::settled;
pub use forward::{LinearInput, Watch};
pub use generate::{Event, Finish, GenerateParams, Generation, Session, generate};
pub use kept::Opened;
pub use kv::{KvPools, KvTypes};
pub use options::{Options, Selected};
pub use plan::{MemoryPlan, available_memory};
pub use prefix::{PrefixFile, PrefixStats};
pub use reader::Reuse;
pub use residence::Residence;
pub use sampler::{Sampler, SamplingParams, argmax};
pub use scheduler::{Client, Limits, News, Request, Scheduler, Token};
pub use session_file::session_caller;
pub use sizing::{WeightBytes, least_prefix_cache, memory_plan, wanted_context};
pub use speculate::{DraftSource, Speculated, Speculation};
pub use step::{Logits, RecurrentState, TokenRun, WantLogits};
pub use stream::stream;
pub use tensor::TensorSource;
pub use trace::{Cost, Needs, Operation, Trace};
