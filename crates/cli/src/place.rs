//! Where an output file goes: what may not be written over is refused before any work, and once more at the end.

use std::io::ErrorKind;
use std::path::Path;

use tempfile::TempPath;

use crate::failure::{Failure, Outcome};

/// Refuses a place where a regular file cannot or must not appear. An existing regular file needs `force`.
///
/// # Errors
/// A directory, a symbolic link, a device or the like; a file without `force`.
pub fn check(output: &Path, force: bool) -> Outcome {
    let shown = output.display();
    // Not through links: renaming a file over one replaces the link, or a device.
    let kind = match output.symlink_metadata() {
        Ok(meta) => meta.file_type(),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Failure::new(format!("cannot write to {shown}: {e}"))),
    };
    if kind.is_dir() {
        let hint = "name a file in it";
        return Err(Failure::new(format!("the output {shown} is a directory")).hint(hint));
    }
    if kind.is_symlink() {
        let hint = "name the file that it should lead to";
        return Err(Failure::new(format!("the output {shown} is a symbolic link")).hint(hint));
    }
    if !kind.is_file() {
        return Err(Failure::new(format!("the output {shown} is not a regular file")));
    }
    if force { Ok(()) } else { Err(exists(output)) }
}

fn exists(output: &Path) -> Failure {
    Failure::new(format!("{} exists already", output.display()))
        .hint("give another name, or replace it with --force")
}

/// Renames the finished file to `output`, on the same file system. Without `force`, a file that appeared
/// meanwhile survives.
///
/// # Errors
/// As [`check`], or when the rename fails.
pub fn publish(finished: &Path, output: &Path, force: bool) -> Outcome {
    check(output, force)?;
    let finished = TempPath::try_from_path(finished).map_err(|e| refused(output, &e))?;
    let renamed = if force { finished.persist(output) } else { finished.persist_noclobber(output) };
    renamed.map_err(|e| match e.error.kind() {
        ErrorKind::AlreadyExists => exists(output),
        _ => refused(output, &e.error),
    })
}

fn refused(output: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot rename to {}: {error}", output.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_appeared_meanwhile_survives_without_force() {
        let dir = tempfile::tempdir().unwrap();
        let (finished, output) = (dir.path().join("finished"), dir.path().join("out"));
        for (force, expected) in [(false, "theirs"), (true, "ours")] {
            std::fs::write(&finished, "ours").unwrap();
            std::fs::write(&output, "theirs").unwrap();
            assert_eq!(publish(&finished, &output, force).is_ok(), force);
            assert_eq!(std::fs::read_to_string(&output).unwrap(), expected);
        }
        assert!(!finished.exists());
    }
}
