//! Words out: the only place that writes to standard output and standard error.
//!
//! Results go to standard output. Progress, notes and errors go to standard error. Names and texts from files
//! come from strangers and a terminal would obey them, so control characters are escaped in everything but
//! generated text.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::failure::{Failure, Outcome, from_stdout};

/// Writes the lines of a result.
pub fn print(text: &str) -> Outcome {
    let lines: Vec<String> = text.split('\n').map(escaped).collect();
    print_generated(&lines.join("\n"))
}

/// `text` with its control characters, line feeds and changes of writing direction included, as `\u{1b}`.
pub fn escaped(text: &str) -> String {
    let escape = |c: char| match c {
        c if is_control(c) => c.escape_default().to_string(),
        c => c.to_string(),
    };
    if text.chars().any(is_control) { text.chars().map(escape).collect() } else { text.to_owned() }
}

/// Characters that a terminal acts on instead of showing them.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Writes `text` as it is and flushes, so that a reader sees every piece at once.
pub fn print_generated(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(from_stdout)
}

/// Writes one JSON object on one line.
pub fn print_json(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string(value).map_err(|e| Failure::from_error(&e))?;
    // JSON itself escapes only what is below U+0020. All others stand in strings.
    let escape = |c: char| if is_control(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    let text: String = text.chars().map(escape).collect();
    print_generated(&format!("{text}\n"))
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
    write_line(&escaped(line));
}

fn write_line(line: &str) {
    // There is no one left to tell when standard error is closed.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// One line on standard error that a reader may pass over: dim on a terminal.
pub fn aside(line: &str) {
    let line = escaped(line);
    if stderr_is_terminal() && !no_color() { write_line(&dim(&line)) } else { write_line(&line) }
}

/// `text` in faint letters, for a terminal.
pub fn dim(text: &str) -> String {
    format!("\x1b[2m{text}\x1b[0m")
}

/// Whether the user wants no colours (<https://no-color.org>).
pub fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
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

/// `label: text`, the label in an ANSI colour on a terminal.
fn labelled(label: &str, colour: &str, text: &str) {
    let plain = !stderr_is_terminal() || no_color();
    let text = escaped(text);
    if plain {
        write_line(&format!("{label}: {text}"));
    } else {
        write_line(&format!("\x1b[{colour}m{label}:\x1b[0m {text}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        let cases = [
            ("plain text, \u{e9}\u{4e2d}", "plain text, \u{e9}\u{4e2d}"),
            ("\x1b[2J", "\\u{1b}[2J"),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\u{9b}31m\u{7f}", "\\u{9b}31m\\u{7f}"),
            ("gnp.\u{202e}exe", "gnp.\\u{202e}exe"),
        ];
        for (text, expected) in cases {
            assert_eq!(escaped(text), expected);
        }
    }
}
