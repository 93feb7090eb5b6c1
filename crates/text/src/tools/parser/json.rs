//! JSON: Hermes' between tags, Llama's as the answer itself, Mistral's in an array or behind a name.

use std::ops::Range;

use super::super::dialect::{ARGUMENTS, CALL_ID, PYTHON};
use super::super::progress::{Header, header};
use super::super::value::{arguments_call, json_call};
use super::{Ahead, Piece, State, ToolParser, lost};

/// An object on its way, found by its brackets.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) start: usize,
    pub(super) what: What,
    depth: usize,
    string: bool,
    escaped: bool,
}

/// What an object is.
#[derive(Debug, Clone)]
pub(super) enum What {
    /// A call between tags.
    Tagged,
    /// A call that is a part of the answer.
    Bare,
    /// A call in an array.
    Element,
    /// The arguments of the function with this name.
    Arguments(Range<usize>),
}

impl ToolParser {
    pub(super) fn object(&self, what: What) -> State {
        State::Json(Object { start: self.at, what, depth: 0, string: false, escaped: false })
    }

    /// Finds the end of a JSON object by its brackets. Outside of strings JSON has no `<`, and inside no line break, so
    /// that a bracket or quote too few does not swallow what follows the call.
    pub(super) fn json(&mut self, mut object: Object, pieces: &mut Vec<Piece>) -> (State, bool) {
        for (offset, byte) in self.rest().bytes().enumerate() {
            match byte {
                _ if object.escaped => object.escaped = false,
                b'"' => object.string = !object.string,
                b'\\' if object.string => object.escaped = true,
                b'\n' if object.string => {
                    self.at += offset;
                    self.tell_json(&object, pieces);
                    return lost("the end of a JSON string", self.at);
                }
                _ if object.string => {}
                b'{' | b'[' => object.depth += 1,
                b'}' | b']' if object.depth > 1 => object.depth -= 1,
                b'}' | b']' => {
                    self.at += offset + 1;
                    return self.end_json(&object, pieces);
                }
                b'<' => {
                    self.at += offset;
                    self.tell_json(&object, pieces);
                    return lost("the end of a JSON object", self.at);
                }
                _ => {}
            }
        }
        self.at += self.rest().len();
        (State::Json(object), false)
    }

    fn end_json(&mut self, object: &Object, pieces: &mut Vec<Piece>) -> (State, bool) {
        self.tell_json(object, pieces);
        let text = self.part(object.start..self.at);
        let call = match &object.what {
            What::Tagged => json_call(text, false),
            What::Bare | What::Element => json_call(text, true),
            What::Arguments(name) => arguments_call(self.part(name.clone()), text),
        };
        if let What::Tagged = object.what {
            return (State::Complete(call), true);
        }
        self.end_call(call, pieces);
        let is_element = matches!(object.what, What::Element);
        (if is_element { State::Elements { any: true } } else { State::Outside }, true)
    }

    /// Tells of an object as far as it was read.
    pub(super) fn tell_json(&mut self, object: &Object, pieces: &mut Vec<Piece>) {
        let Some(mut progress) = self.progress.take() else { return };
        let text = self.part(object.start..self.at);
        match &object.what {
            What::Arguments(name) => {
                progress.arguments(self.part(name.clone()), text, &self.declared, pieces);
            }
            _ => progress.json(text, &self.declared, pieces),
        }
        self.progress = Some(progress);
    }

    /// At the begin of an answer in Llama's dialect, or behind a call, perhaps behind a `;` too.
    pub(super) fn bare_call(&mut self) -> (State, bool) {
        if self.any_text {
            return (State::Text, true);
        }
        let rest = self.rest();
        let next = rest.trim_start_matches(|c: char| c.is_whitespace() || (self.any_call && c == ';'));
        let before = rest.len() - next.len();
        match super::ahead(next, &[PYTHON, "{"]) {
            Ahead::Open => (State::Outside, false),
            Ahead::Other => (State::Text, true),
            Ahead::Tag(tag) => {
                self.at += before;
                if tag == PYTHON {
                    self.at += tag.len();
                }
                (State::Header, true)
            }
        }
    }

    /// Whether an object is a call of a declared function, or a text.
    pub(super) fn header(&mut self) -> (State, bool) {
        match self.after_blanks(&["{"]) {
            Ahead::Open => return (State::Header, false),
            Ahead::Other => return (State::Text, true),
            Ahead::Tag(_) => {}
        }
        match header(self.rest()) {
            Header::Open => (State::Header, false),
            Header::Call { name, .. } if self.declared.tool(&name).is_some() => {
                (self.object(What::Bare), true)
            }
            Header::Call { .. } | Header::Other => (State::Text, true),
        }
    }

    /// Behind `[TOOL_CALLS]`.
    pub(super) fn mistral(&mut self) -> (State, bool) {
        match self.after_blanks(&["["]) {
            Ahead::Open => (State::Opened, false),
            Ahead::Tag(bracket) => {
                self.at += bracket.len();
                (State::Elements { any: false }, true)
            }
            Ahead::Other => (State::MistralName { start: self.at }, true),
        }
    }

    /// Between the calls of an array.
    pub(super) fn elements(&mut self, any: bool) -> (State, bool) {
        match self.after_blanks(&["{", ",", "]"]) {
            Ahead::Open => (State::Elements { any }, false),
            Ahead::Tag("{") => (self.object(What::Element), true),
            Ahead::Tag("]") if any => {
                self.at += 1;
                self.from += self.at;
                self.at = 0;
                (State::Outside, true)
            }
            Ahead::Tag(",") if any => {
                self.at += 1;
                (State::Elements { any }, true)
            }
            Ahead::Tag(_) | Ahead::Other => lost("a JSON object of a call", self.at),
        }
    }

    /// In the name of a function, which ends at a tag or at the arguments.
    pub(super) fn mistral_name(&mut self, start: usize) -> (State, bool) {
        let rest = self.rest();
        let offset = rest.find(['[', '{', '\n']).unwrap_or(rest.len());
        let next = super::ahead(&rest[offset..], &[ARGUMENTS, CALL_ID, "{"]);
        self.at += offset;
        let name = start..start + self.part(start..self.at).trim_ascii_end().len();
        match next {
            Ahead::Open => (State::MistralName { start }, false),
            Ahead::Tag(_) if name.is_empty() => lost("the name of a function", self.at),
            Ahead::Tag("{") => (self.object(What::Arguments(name)), true),
            Ahead::Tag(tag) => {
                self.at += tag.len();
                (if tag == ARGUMENTS { State::Arguments { name } } else { State::CallId { name } }, true)
            }
            Ahead::Other => lost("`[ARGS]`", self.at),
        }
    }

    pub(super) fn call_id(&mut self, name: Range<usize>) -> (State, bool) {
        match self.seek(&[ARGUMENTS]) {
            None => (State::CallId { name }, false),
            Some(tag) => {
                self.at += tag.len();
                (State::Arguments { name }, true)
            }
        }
    }

    pub(super) fn arguments(&mut self, name: Range<usize>) -> (State, bool) {
        match self.after_blanks(&["{"]) {
            Ahead::Open => (State::Arguments { name }, false),
            Ahead::Tag(_) => (self.object(What::Arguments(name)), true),
            Ahead::Other => lost("a JSON object of arguments", self.at),
        }
    }
}
