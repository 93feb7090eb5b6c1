//! Messages and commands, from a terminal with line editing or from a pipe, line by line.

use std::io::{BufRead, IsTerminal, stdin, stdout};

use rustyline::DefaultEditor;
use rustyline::error::{ReadlineError, Signal};

use crate::failure::{Failure, Outcome};

/// What the user wants next.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    /// Something to answer.
    Message(String),
    Clear,
    Help,
    Exit,
    /// A command that does not exist.
    Unknown(String),
    /// An empty line, or one that was cleared.
    Nothing,
}

/// One line of input.
enum Line {
    Text(String),
    /// ^C: forget what was typed.
    Cleared,
    End,
}

/// Where messages come from.
pub struct Input(Source);

enum Source {
    Terminal(Box<DefaultEditor>),
    /// With the lines read so far, to name a broken one.
    Lines(usize),
}

impl Input {
    /// Standard input; with line editing if it and standard output are terminals.
    ///
    /// # Errors
    /// When the terminal cannot be used.
    pub fn new() -> Outcome<Input> {
        if stdin().is_terminal() && stdout().is_terminal() {
            let editor =
                DefaultEditor::new().map_err(|e| Failure::new(format!("cannot use the terminal: {e}")))?;
            Ok(Input(Source::Terminal(Box::new(editor))))
        } else {
            Ok(Input(Source::Lines(0)))
        }
    }

    /// Whether a person is at the other end.
    pub fn is_terminal(&self) -> bool {
        matches!(self.0, Source::Terminal(_))
    }

    /// Waits for the next entry, which takes several lines if they end in `\`.
    ///
    /// # Errors
    /// Input that cannot be read or is not UTF-8.
    pub fn next(&mut self) -> Outcome<Entry> {
        let mut text = String::new();
        loop {
            let prompt = if text.is_empty() { "> " } else { ". " };
            match self.line(prompt)? {
                Line::Text(line) => match line.strip_suffix('\\') {
                    Some(start) => text.extend([start, "\n"]),
                    None => return Ok(entry(&(text + &line))),
                },
                Line::Cleared => return Ok(Entry::Nothing),
                Line::End if text.is_empty() => return Ok(Entry::Exit),
                // The last line of a pipe has nothing to go on in.
                Line::End => return Ok(entry(text.trim_end_matches('\n'))),
            }
        }
    }

    fn line(&mut self, prompt: &str) -> Outcome<Line> {
        let failed = |e: &dyn std::error::Error| Failure::new(format!("cannot read standard input: {e}"));
        match &mut self.0 {
            Source::Terminal(editor) => match editor.readline(prompt) {
                Ok(line) => {
                    editor.add_history_entry(line.as_str()).map_err(|e| failed(&e))?;
                    Ok(Line::Text(line))
                }
                Err(ReadlineError::Interrupted | ReadlineError::Signal(Signal::Interrupt)) => {
                    Ok(Line::Cleared)
                }
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(e) => Err(failed(&e)),
            },
            Source::Lines(count) => {
                let mut bytes = Vec::new();
                let read = stdin().lock().read_until(b'\n', &mut bytes).map_err(|e| failed(&e))?;
                if read == 0 {
                    return Ok(Line::End);
                }
                *count += 1;
                let line = String::from_utf8(bytes)
                    .map_err(|_| Failure::new(format!("line {count} of standard input is not UTF-8")))?;
                let line = line.strip_suffix('\n').unwrap_or(&line);
                Ok(Line::Text(line.strip_suffix('\r').unwrap_or(line).to_owned()))
            }
        }
    }
}

/// What a typed text means.
fn entry(text: &str) -> Entry {
    match text.trim() {
        "" => Entry::Nothing,
        "/clear" => Entry::Clear,
        "/exit" => Entry::Exit,
        "/help" => Entry::Help,
        _ => match text.strip_prefix('/') {
            Some(rest) if rest.starts_with('/') => Entry::Message(rest.to_owned()),
            Some(_) => Entry::Unknown(text.split_whitespace().next().unwrap_or(text).to_owned()),
            None => Entry::Message(text.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_begin_with_a_slash_and_messages_with_two() {
        let message = |text: &str| Entry::Message(text.to_owned());
        for (text, want) in [
            ("hello", message("hello")),
            (" /clear", Entry::Clear),
            ("/clear ", Entry::Clear),
            ("/exit", Entry::Exit),
            ("/help", Entry::Help),
            ("/cleer", Entry::Unknown("/cleer".to_owned())),
            ("/clear it", Entry::Unknown("/clear".to_owned())),
            ("/", Entry::Unknown("/".to_owned())),
            ("//clear", message("/clear")),
            ("///", message("//")),
            ("a /clear", message("a /clear")),
            ("  two\nlines ", message("  two\nlines ")),
            ("", Entry::Nothing),
            (" \t", Entry::Nothing),
        ] {
            assert_eq!(entry(text), want, "{text:?}");
        }
    }
}
