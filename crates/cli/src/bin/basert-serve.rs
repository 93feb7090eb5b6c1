//! `basert-serve ARGS` is `basert serve ARGS`: becomes the `basert` beside it.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let failed = match std::env::current_exe() {
        // Returns only if it cannot.
        Ok(this) => {
            let basert = this.with_file_name("basert");
            let error = Command::new(&basert).arg("serve").args(std::env::args_os().skip(1)).exec();
            format!("cannot run {}: {error}", basert.display())
        }
        Err(error) => format!("cannot tell where it is: {error}"),
    };
    // Without standard error the exit status has to do.
    let _ = writeln!(io::stderr(), "basert-serve: {failed}\nhint: install `basert` beside it");
    ExitCode::FAILURE
}
