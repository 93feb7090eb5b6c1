//! Gemma's function calls.

use std::ops::Range;

use super::super::transcode::{Read, Transcoder};
use super::super::value::arguments_call;
use super::{Ahead, Piece, State, ToolParser, lost};

const CALL: &str = "call:";

/// A call on its way.
#[derive(Debug, Clone)]
pub(super) struct GemmaCall {
    pub(super) name: Range<usize>,
    pub(super) arguments: Transcoder,
}

impl ToolParser {
    pub(super) fn gemma(&mut self) -> (State, bool) {
        match self.after_blanks(&[CALL]) {
            Ahead::Open => (State::Opened, false),
            Ahead::Tag(tag) => {
                self.at += tag.len();
                (State::GemmaName { start: self.at }, true)
            }
            Ahead::Other => lost("`call:`", self.at),
        }
    }

    pub(super) fn gemma_name(&mut self, start: usize) -> (State, bool) {
        let rest = self.rest();
        let Some(offset) = rest.find(['{', '<', '\n']) else {
            self.at += rest.len();
            return (State::GemmaName { start }, false);
        };
        let is_brace = rest[offset..].starts_with('{');
        self.at += offset;
        let name = start..start + self.part(start..self.at).trim_ascii_end().len();
        if !is_brace || name.is_empty() {
            return lost("the name of a function, and `{`", self.at);
        }
        self.at += 1;
        let arguments = Transcoder::new(self.declared.dialect().quote());
        (State::Gemma(GemmaCall { name, arguments }), true)
    }

    pub(super) fn gemma_arguments(&mut self, mut call: GemmaCall, pieces: &mut Vec<Piece>) -> (State, bool) {
        let read = call.arguments.read(self.rest());
        self.at += match read {
            Read::Open(bytes) | Read::Done(bytes) | Read::Wrong(bytes, _) => bytes,
        };
        self.tell_gemma(&call, pieces);
        match read {
            Read::Open(_) => (State::Gemma(call), false),
            Read::Wrong(_, expected) => lost(expected, self.at),
            Read::Done(_) => {
                let found = arguments_call(self.part(call.name), call.arguments.json());
                (State::Complete(found), true)
            }
        }
    }

    fn tell_gemma(&mut self, call: &GemmaCall, pieces: &mut Vec<Piece>) {
        let Some(mut progress) = self.progress.take() else { return };
        let name = self.part(call.name.clone());
        progress.arguments(name, call.arguments.json(), &self.declared, pieces);
        self.progress = Some(progress);
    }
}
