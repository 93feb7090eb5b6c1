//! What a conversion asks of a self-check: a last look at the finished tensors before the file gets its name.

use std::collections::BTreeMap;
use std::error::Error;

use basert_format::{BaseFile, SlotKind};
use serde_json::Value;

use crate::SourceValues;

/// Tries a converted model before it is published. This crate runs no model, so somebody else implements it.
pub trait SelfCheck {
    /// Compares `bundle`, complete but for slots, with the values of its source.
    ///
    /// # Errors
    /// Why the bundle must not be published; the conversion then fails and leaves nothing.
    fn check(
        &mut self,
        source: &SourceValues<'_>,
        bundle: BaseFile,
    ) -> Result<Evidence, Box<dyn Error + Send + Sync>>;
}

/// What a self-check leaves in the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Keys for the header's `metadata`.
    pub metadata: BTreeMap<String, Value>,
    /// Slots to append.
    pub slots: Vec<(SlotKind, Vec<u8>)>,
}
