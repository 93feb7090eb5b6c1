//! Prompts that an earlier run has kept in a file.

use std::path::Path;

use basert_engine::Engine;

use crate::failure::{Failure, Outcome};

/// Takes in what an earlier run has kept, if it has.
///
/// # Errors
/// No room for it, and a file that is damaged or of something else.
pub fn load(engine: &mut Engine, file: &Path) -> Outcome {
    if engine.prefix_stats().is_none() {
        let hint = "--prefix-cache says how much there is to be";
        return Err(Failure::new("there is no room for earlier states, so no file of them").hint(hint));
    }
    if file.exists() {
        let hint = format!("name another file, or remove {}", file.display());
        engine.load_prefixes(file).map_err(|e| Failure::from_error(&e).hint(hint))?;
    }
    Ok(())
}
