//! Words out: the only place that writes to standard output and standard error.
//!
//! Results go to standard output. Progress, notes and errors go to standard error.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::failure::{Failure, Outcome, from_stdout};

/// Writes `text` as it is and flushes, so that a reader sees every piece at once.
pub fn print(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(from_stdout)
}

/// Writes one JSON object on one line.
pub fn print_json(value: &impl Serialize) -> Outcome {
    let mut text = serde_json::to_string(value).map_err(|e| Failure::from_error(&e))?;
    text.push('\n');
    print(&text)
}

/// Whether a person is likely to watch standard error.
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// A remark that the user should see and that is no error.
pub fn note(text: &str) {
    labelled("note", "36", text);
}

/// One line on standard error.
pub fn say(line: &str) {
    // There is no one left to tell when standard error is closed.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// The last words of a failed command.
pub fn report(failure: &Failure) {
    if let Failure::Error { message, hint } = failure {
        labelled("error", "1;31", message);
        if let Some(hint) = hint {
            labelled("hint", "1;32", hint);
        }
    }
}

/// `label: text`, the label in an ANSI colour on a terminal (see <https://no-color.org>).
fn labelled(label: &str, colour: &str, text: &str) {
    let plain = !stderr_is_terminal() || std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    if plain {
        say(&format!("{label}: {text}"));
    } else {
        say(&format!("\x1b[{colour}m{label}:\x1b[0m {text}"));
    }
}
