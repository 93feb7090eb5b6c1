//! How a conversion tells how far it is.

/// Receives progress; all methods do nothing by default.
pub trait Progress {
    /// Called once, when it is known what will be written.
    fn start(&mut self, tensors: usize, bytes: u64) {
        let _ = (tensors, bytes);
    }

    /// A tensor is about to be converted; `bytes` is what it will take in the output.
    fn tensor(&mut self, name: &str, bytes: u64) {
        let _ = (name, bytes);
    }

    /// All tensors are written and are about to be tried.
    fn check(&mut self) {}

    /// The output is complete.
    fn finish(&mut self) {}
}

/// Progress nobody looks at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {}
