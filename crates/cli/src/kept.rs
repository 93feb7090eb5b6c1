//! Prompts that an earlier run has kept in a file.

use std::path::Path;

use basert_engine::{Engine, PrefixFile};

use crate::failure::{Failure, Outcome};
use crate::output;
use crate::units::count;

/// Takes in what an earlier run has kept, if it has, and says how much that is.
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
        let read = engine.load_prefixes(file).map_err(|e| Failure::from_error(&e).hint(hint))?;
        output::note(&taken_in(&read, engine.selected().page_tokens, file));
    }
    Ok(())
}

fn taken_in(read: &PrefixFile, page_tokens: usize, file: &Path) -> String {
    let (pages, shown) = (count(read.pages as u64, "page"), file.display());
    let rest = match read.left_out {
        0 => String::new(),
        n => format!("; there is no room for {n} more, which a larger --prefix-cache would take in"),
    };
    format!("{pages} of {page_tokens} tokens of earlier prompts come from {shown}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_found_no_room_is_said() {
        let said = |left_out| {
            taken_in(&PrefixFile { pages: 1, left_out, ..PrefixFile::default() }, 64, Path::new("kept"))
        };
        assert_eq!(said(0), "1 page of 64 tokens of earlier prompts come from kept");
        assert!(said(3).contains("no room for 3 more"));
    }
}
