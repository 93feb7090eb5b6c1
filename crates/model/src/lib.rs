//! What a model is: configuration, layers as data, tensor names and shapes, bytes of its caches.
//!
//! - [`Arch`] and [`Config`]: the hyperparameters a checkpoint or a `.base` header declares, in one form;
//! - [`ModelSpec`]: the layers that follow from them, which the engine walks;
//! - [`catalog`]: geometries of published models;
//! - [`TensorSpec`]: every weight such a model has, by canonical name, with its shape and [`Role`];
//! - [`plan`] and [`footprint`]: what a sequence costs in cache memory, for models that are run here and for all others;
//! - [`record`]: that cost as a record that can be checked.
//!
//! No weights, no arithmetic on weights and no file access belong here.

mod arch;
pub mod catalog;
mod config;
mod error;
pub mod footprint;
pub mod plan;
pub mod record;
mod spec;
mod tensors;

pub use arch::Arch;
pub use config::{Config, HybridConfig, LayerType, MoeConfig};
pub use error::ModelError;
pub use spec::{
    Attention, Ffn, GatedDelta, LayerSpec, Mixer, ModelSpec, Moe, Rope, RopePairing, RopeScaling,
};
pub use tensors::{Role, Storage, TensorSpec};
