//! Tool calls in an answer.

use basert_text::tools::{BadCall, Declared, Dialect, Piece, ToolCall, ToolParser};
use serde_json::json;

use super::Part;
use crate::random;

/// Finds the calls of an answer and numbers them.
///
/// A call that was opened and turns out bad keeps arguments that lack their end, so that nobody can execute it. One that was
/// not opened is text, with a warning, as is a call of a function that nobody declared.
#[derive(Debug)]
pub(crate) struct Calls {
    parser: ToolParser,
    declared: Declared,
    several: bool,
    opened: usize,
    complete: usize,
    /// Whether the last opened call is not complete.
    open: bool,
    warnings: Vec<String>,
}

impl Calls {
    pub fn new(declared: &Declared, several: bool) -> Calls {
        Calls {
            parser: ToolParser::streaming(declared),
            declared: declared.clone(),
            several,
            opened: 0,
            complete: 0,
            open: false,
            warnings: Vec::new(),
        }
    }

    /// Whether no further call is wanted.
    pub fn is_over(&self) -> bool {
        !self.several && self.complete > 0
    }

    /// Whether there are calls, all of them complete.
    pub fn are_complete(&self) -> bool {
        self.opened > 0 && self.opened == self.complete
    }

    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub fn push(&mut self, text: &str) -> Vec<Part> {
        let pieces = self.parser.push(text);
        self.take(pieces)
    }

    /// Ends the answer.
    pub fn finish(&mut self) -> Vec<Part> {
        let parser = std::mem::replace(&mut self.parser, ToolParser::new(&self.declared));
        self.take(parser.finish())
    }

    fn take(&mut self, pieces: Vec<Piece>) -> Vec<Part> {
        let mut parts = Vec::new();
        for piece in pieces {
            if self.is_over() {
                break;
            }
            parts.extend(self.part(piece));
        }
        parts
    }

    fn part(&mut self, piece: Piece) -> Option<Part> {
        match piece {
            Piece::Text(text) => Some(Part::Content(text)),
            Piece::Opened { name } => {
                let index = self.opened;
                self.opened += 1;
                self.open = true;
                let is_mistral = self.declared.dialect() == Dialect::Mistral;
                let id = if is_mistral { random::nine_characters() } else { random::name("call_") };
                Some(Part::CallOpened { index, id, name })
            }
            Piece::Arguments(text) => {
                Some(Part::CallArguments { index: self.opened.saturating_sub(1), text })
            }
            Piece::Call(call) => {
                let was_open = std::mem::take(&mut self.open);
                match call {
                    Ok(_) if was_open => {
                        self.complete += 1;
                        None
                    }
                    Ok(call) => Some(self.undeclared(&call)),
                    Err(bad) => self.bad(bad, was_open),
                }
            }
        }
    }

    fn undeclared(&mut self, call: &ToolCall) -> Part {
        self.warnings
            .push(format!("the model called `{}`, which is not declared; the call is text", call.name));
        let json = json!({"name": call.name, "arguments": call.arguments});
        let (open, close) = (self.declared.dialect().open(), self.declared.dialect().close());
        Part::Content(format!("{open}\n{json}\n{close}"))
    }

    fn bad(&mut self, call: BadCall, was_open: bool) -> Option<Part> {
        let rest = if was_open { "its arguments are incomplete" } else { "it is text" };
        self.warnings.push(format!("a tool call cannot be used ({}); {rest}", call.problem));
        (!was_open).then_some(Part::Content(call.raw))
    }
}
