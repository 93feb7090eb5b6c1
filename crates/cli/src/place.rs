//! Where an output file goes: what may not be written over is refused before any work. Whatever appears meanwhile is
//! the writer's to refuse.

use std::io::{ErrorKind, Write};
use std::path::Path;

use basert_format::Output;

use crate::bundle::quoted;
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

/// Writes a file that appears whole. An existing one needs `force`.
///
/// # Errors
/// Names the file.
pub fn write(output: &Path, bytes: &[u8], force: bool) -> Outcome {
    let refuse = |e: std::io::Error| Failure::new(format!("cannot write {}: {e}", output.display()));
    let mut file = Output::new(output).replace(force).create().map_err(refuse)?;
    file.write_all(bytes).and_then(|()| file.file.sync_all()).map_err(refuse)?;
    file.publish().map_err(refuse)
}

/// Refuses a place whose folder is not there.
///
/// # Errors
/// With the command that makes it.
pub fn check_folder(output: &Path) -> Outcome {
    let folder = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if folder.is_dir() {
        return Ok(());
    }
    let failure = Failure::new(format!("the folder of {} does not exist", output.display()));
    Err(failure.hint(format!("mkdir -p {}", quoted(folder))))
}

fn exists(output: &Path) -> Failure {
    Failure::new(format!("{} exists already", output.display()))
        .hint("give another name, or replace it with --force")
}
