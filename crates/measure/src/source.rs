//! A checkpoint that is not converted yet, as the engine reads it.

use std::error::Error;
use std::path::Path;

use basert_convert::SourceValues;
use basert_engine::TensorSource;

/// The converter's values as the engine reads them.
pub(crate) struct Values<'a>(pub &'a SourceValues<'a>);

impl TensorSource for Values<'_> {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.shape(name).map(<[usize]>::to_vec)
    }

    fn read(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.0.read(name, first, out)?)
    }
}
