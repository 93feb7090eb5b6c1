//! Files that `basert convert` reads and writes: none is written over another.

use std::path::{Path, PathBuf};

use basert_convert::same_file;
use basert_format::Output;

use super::failed;
use crate::args::ConvertArgs;
use crate::failure::{Failure, Outcome};

/// Refuses to write over a file that is read, or over another one that is written. Even --force does not mean that.
///
/// # Errors
/// Two roles of one file, and a source that cannot be opened if one of the written files exists.
pub fn check(source: &Path, output: &Path, args: &ConvertArgs) -> Outcome {
    let written = written(output, args);
    for (index, (role, path)) in written.iter().enumerate() {
        if !path.is_dir() && is_same(source, path) {
            return Err(clash(path, "source", role));
        }
        if let Some((other, _)) = written[..index].iter().find(|(_, other)| is_same(other, path)) {
            return Err(clash(path, other, role));
        }
        if let Some((other, _)) = read(args).into_iter().find(|(_, other)| is_same(other, path)) {
            return Err(clash(path, other, role));
        }
        basert_convert::check_output(source, path).map_err(|e| failed(&e))?;
    }
    Ok(())
}

fn clash(path: &Path, role: &str, other: &str) -> Failure {
    let failure = Failure::new(format!("{} is both {role} and {other}", path.display()));
    failure.hint("name two different files")
}

/// What is written, by its role. Unfinished work counts without --resume too: a later one would take what lies there for
/// its own.
fn written(output: &Path, args: &ConvertArgs) -> Vec<(&'static str, PathBuf)> {
    let mut written = vec![("output", output.to_owned())];
    if let Some(partial) = Output::new(output).keep(true).partial() {
        let mut journal = partial.clone().into_os_string();
        journal.push(".journal");
        written.push(("the output's unfinished work", partial));
        written.push(("the output's journal", journal.into()));
    }
    written.extend(args.calibration.save_importance.clone().map(|path| ("--save-importance", path)));
    written
}

/// What is read besides the source, by its role.
fn read(args: &ConvertArgs) -> Vec<(&'static str, &Path)> {
    // A built-in profile's name may be that of a file as well.
    let profile = args.profile.as_deref().filter(|path| path.exists());
    let read = [
        ("--calibration", args.calibration.calibration.as_deref()),
        ("--importance", args.calibration.importance.as_deref()),
        ("--profile", profile),
    ];
    read.into_iter().filter_map(|(role, path)| Some((role, path?))).collect()
}

/// Whether both paths lead to one file, which need not exist yet.
fn is_same(a: &Path, b: &Path) -> bool {
    if same_file(a, b) {
        return true;
    }
    let resolved = |path: &Path| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
        Some(folder.join(path.file_name()?))
    };
    a == b || matches!((resolved(a), resolved(b)), (Some(a), Some(b)) if a == b)
}
