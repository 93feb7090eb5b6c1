//! The grammar of calls, over text that arrives in pieces.

mod gemma;
mod json;
mod xml;

use std::ops::Range;

use super::progress::Progress;
use super::{BadCall, CallProblem, Declared, Dialect, ToolCall, excerpt};
use gemma::GemmaCall;
use json::{Object, What};

/// What a generated text consists of.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// Text outside of calls; never empty.
    Text(String),
    /// A call of a declared function has begun. Only from a [streaming](ToolParser::streaming) parser.
    Opened {
        /// The function.
        name: String,
    },
    /// More of the JSON of the opened call's arguments. Only from a streaming parser.
    Arguments(String),
    /// A call, or what should have been one, as soon as it is complete. All of a good call's arguments come before it.
    Call(Result<ToolCall, BadCall>),
}

/// Finds calls in text that arrives in pieces, by [the grammar](super).
///
/// Text is handed out as soon as it can neither be the begin of a call nor blanks before one. All text joined, and
/// the calls, do not depend on how the input is cut. The time is linear in the input's length, and what is held is at most
/// one call.
#[derive(Debug, Clone)]
pub struct ToolParser {
    declared: Declared,
    /// From `from` on: outside of a call, what has not been handed out; inside, the call from its first tag on.
    buffer: String,
    from: usize,
    /// How far `state` has read, counted from `from`, as all positions are. Nothing before it is searched again.
    at: usize,
    state: State,
    /// Blanks at the end of the text so far, which a call would drop.
    blanks: String,
    /// Whether there was text, and whether there was a call.
    any_text: bool,
    any_call: bool,
    /// What was told of the call; `None` if only complete calls are told.
    progress: Option<Progress>,
}

/// Where in the grammar the parser is.
#[derive(Debug, Clone)]
enum State {
    Outside,
    /// In a text that no call can follow.
    Text,
    /// After what opens a call.
    Opened,
    /// Before, or in, an object that may be a call of Llama's.
    Header,
    /// In a JSON object.
    Json(Object),
    /// In the name of an XML function.
    XmlName {
        start: usize,
    },
    /// Between the parameters.
    Between(Function),
    /// In a parameter's key.
    Key {
        function: Function,
        start: usize,
    },
    Value(OpenValue),
    /// After a closing tag in a value, at `end`, that counts if the right tag follows.
    Closing {
        value: OpenValue,
        end: usize,
        tag: &'static str,
    },
    /// Between the calls of Mistral's array, which has had `any`.
    Elements {
        any: bool,
    },
    MistralName {
        start: usize,
    },
    CallId {
        name: Range<usize>,
    },
    /// Before the arguments of the function with this name.
    Arguments {
        name: Range<usize>,
    },
    GemmaName {
        start: usize,
    },
    Gemma(GemmaCall),
    /// After all of a call but what closes it.
    Complete(Result<ToolCall, CallProblem>),
    /// On the way to the end of a malformed call, which went wrong at `position`.
    Lost {
        expected: &'static str,
        position: usize,
    },
}

/// A function's parts so far.
#[derive(Debug, Clone)]
struct Function {
    name: Range<usize>,
    /// Keys and the text between the tags.
    parameters: Vec<(Range<usize>, Range<usize>)>,
}

#[derive(Debug, Clone)]
struct OpenValue {
    function: Function,
    key: Range<usize>,
    start: usize,
}

impl ToolParser {
    /// A parser before the first text. Types of values follow the schemas of `declared`.
    pub fn new(declared: &Declared) -> Self {
        Self {
            declared: declared.clone(),
            buffer: String::new(),
            from: 0,
            at: 0,
            state: State::Outside,
            blanks: String::new(),
            any_text: false,
            any_call: false,
            progress: None,
        }
    }

    /// A parser that also tells of calls before they are complete: [`Piece::Opened`] as soon as a declared function is named,
    /// then [`Piece::Arguments`], which are never taken back. Joined, they are the JSON of the arguments, except that a call
    /// which turns out bad lacks its end. Strings come as they are generated, as does all of the JSON dialect; other values
    /// of the XML dialect come when they are complete.
    pub fn streaming(declared: &Declared) -> Self {
        Self { progress: Some(Progress::default()), ..Self::new(declared) }
    }

    /// Takes the next piece of text; returns what is decided by it.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.buffer.push_str(text);
        let mut pieces = Vec::new();
        loop {
            let state = std::mem::replace(&mut self.state, State::Outside);
            let (state, more) = self.step(state, &mut pieces);
            self.state = state;
            self.tell_progress(&mut pieces);
            if !more {
                break;
            }
        }
        // Once per piece: moving the rest forward for every call would make many calls in one piece quadratic.
        self.buffer.drain(..self.from);
        self.from = 0;
        pieces
    }

    /// Ends the text: what was held back is text after all, and a call that is not complete is cut off.
    pub fn finish(mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let state = std::mem::replace(&mut self.state, State::Outside);
        self.at = self.buffer.len();
        match state {
            State::Outside | State::Text | State::Header => {
                self.say(&mut pieces);
                if !self.any_call && !self.blanks.is_empty() {
                    pieces.push(Piece::Text(self.blanks));
                }
            }
            State::Complete(call) => self.end_call(call, &mut pieces),
            // Only the bracket is missing.
            State::Elements { any: true } => {}
            State::Lost { expected, position } => {
                let problem = self.malformed(expected, position..self.at);
                self.end_call(Err(problem), &mut pieces);
            }
            _ => self.end_call(Err(CallProblem::CutOff), &mut pieces),
        }
        pieces
    }

    /// Goes on by one tag or its like; false if that takes more text.
    fn step(&mut self, state: State, pieces: &mut Vec<Piece>) -> (State, bool) {
        match state {
            State::Outside => self.outside(pieces),
            State::Text => {
                self.at += self.rest().len();
                self.say(pieces);
                (State::Text, false)
            }
            State::Opened => self.opened(),
            State::Header => self.header(),
            State::Json(object) => self.json(object, pieces),
            State::XmlName { start } => self.xml_name(start),
            State::Between(function) => self.between(function),
            State::Key { function, start } => self.key(function, start),
            State::Value(value) => self.value(value),
            State::Closing { value, end, tag } => self.closing(value, end, tag),
            State::Elements { any } => self.elements(any),
            State::MistralName { start } => self.mistral_name(start),
            State::CallId { name } => self.call_id(name),
            State::Arguments { name } => self.arguments(name),
            State::GemmaName { start } => self.gemma_name(start),
            State::Gemma(call) => self.gemma_arguments(call, pieces),
            State::Complete(call) => self.complete(call, pieces),
            State::Lost { expected, position } => self.lose(expected, position, pieces),
        }
    }

    fn outside(&mut self, pieces: &mut Vec<Piece>) -> (State, bool) {
        let open = self.declared.dialect().open();
        if open.is_empty() {
            return self.bare_call();
        }
        let found = self.seek(&[open]);
        self.say(pieces);
        match found {
            None => (State::Outside, false),
            Some(tag) => {
                self.blanks.clear();
                self.at = tag.len();
                (State::Opened, true)
            }
        }
    }

    fn opened(&mut self) -> (State, bool) {
        match self.declared.dialect() {
            Dialect::Mistral => return self.mistral(),
            Dialect::FunctionGemma | Dialect::Gemma4 => return self.gemma(),
            Dialect::Qwen | Dialect::Llama => {}
        }
        match self.after_blanks(&[xml::FUNCTION, "{"]) {
            Ahead::Open => (State::Opened, false),
            Ahead::Tag("{") => (self.object(What::Tagged), true),
            Ahead::Tag(tag) => {
                self.at += tag.len();
                (State::XmlName { start: self.at }, true)
            }
            Ahead::Other => lost("`<function=` or a JSON object", self.at),
        }
    }

    fn complete(&mut self, call: Result<ToolCall, CallProblem>, pieces: &mut Vec<Piece>) -> (State, bool) {
        match self.after_blanks(&[self.declared.dialect().close()]) {
            Ahead::Open => (State::Complete(call), false),
            Ahead::Tag(tag) => {
                self.at += tag.len();
                self.end_call(call, pieces);
                (State::Outside, true)
            }
            Ahead::Other => lost(self.declared.dialect().close_in_words(), self.at),
        }
    }

    fn lose(&mut self, expected: &'static str, position: usize, pieces: &mut Vec<Piece>) -> (State, bool) {
        let dialect = self.declared.dialect();
        let mut ends = vec![dialect.close(), dialect.open()];
        ends.retain(|tag| !tag.is_empty());
        match self.seek(&ends) {
            None => (State::Lost { expected, position }, false),
            Some(tag) => {
                let problem = self.malformed(expected, position..self.at + tag.len());
                if tag == dialect.close() {
                    self.at += tag.len();
                }
                self.end_call(Err(problem), pieces);
                (State::Outside, true)
            }
        }
    }

    fn rest(&self) -> &str {
        &self.buffer[self.from + self.at..]
    }

    fn part(&self, range: Range<usize>) -> &str {
        &self.buffer[self.from + range.start..self.from + range.end]
    }

    /// Moves to the next of `tags`; without one, to where one may be about to begin, or to the end.
    fn seek(&mut self, tags: &[&'static str]) -> Option<&'static str> {
        loop {
            let rest = self.rest();
            let begins_tag = |c: char| tags.iter().any(|tag| tag.starts_with(c));
            let Some(offset) = rest.find(begins_tag) else {
                self.at += rest.len();
                return None;
            };
            let ahead = ahead(&rest[offset..], tags);
            self.at += offset;
            match ahead {
                Ahead::Tag(tag) => return Some(tag),
                Ahead::Open => return None,
                Ahead::Other => self.at += 1,
            }
        }
    }

    /// Moves over blanks and tells what follows.
    fn after_blanks(&mut self, tags: &[&'static str]) -> Ahead {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_ascii_start().len();
        ahead(self.rest(), tags)
    }

    /// Moves to the first of `ends`, and over it if it is the `>` that closes a label.
    fn label(&mut self, ends: &[char]) -> Label {
        let rest = self.rest();
        let Some(offset) = rest.find(ends) else {
            self.at += rest.len();
            return Label::Open;
        };
        let closed = rest[offset..].starts_with('>');
        self.at += offset;
        let end = self.at;
        if !closed {
            return Label::Broken(end);
        }
        self.at += 1;
        Label::Closed(end)
    }

    /// Hands out the text up to `at`, except for blanks at its end.
    fn say(&mut self, pieces: &mut Vec<Piece>) {
        let range = self.from..self.from + self.at;
        self.from = range.end;
        self.at = 0;
        let text = &self.buffer[range];
        let body = text.trim_end();
        if body.is_empty() {
            self.blanks.push_str(text);
            return;
        }
        let mut said = std::mem::take(&mut self.blanks);
        said.push_str(body);
        self.blanks.push_str(&text[body.len()..]);
        if self.any_call && !self.any_text {
            said.drain(..said.len() - said.trim_start().len());
        }
        self.any_text = true;
        pieces.push(Piece::Text(said));
    }

    /// Tells what is known of the open call.
    fn tell_progress(&mut self, pieces: &mut Vec<Piece>) {
        if let State::Json(object) = &self.state {
            let object = object.clone();
            return self.tell_json(&object, pieces);
        }
        let Some(mut progress) = self.progress.take() else { return };
        let (function, open) = match &self.state {
            State::Between(function) | State::Key { function, .. } => (function, None),
            State::Value(value) => (&value.function, Some((value, self.at))),
            State::Closing { value, end, .. } => (&value.function, Some((value, *end))),
            _ => {
                self.progress = Some(progress);
                return;
            }
        };
        let open = open.map(|(value, end)| (self.part(value.key.clone()), self.part(value.start..end)));
        progress.xml(&self.xml_so_far(function, open), &self.declared, pieces);
        self.progress = Some(progress);
    }

    fn end_call(&mut self, call: Result<ToolCall, CallProblem>, pieces: &mut Vec<Piece>) {
        let progress = self.progress.as_mut().map(std::mem::take);
        if let (Some(progress), Ok(call)) = (progress, &call) {
            progress.complete(call, &self.declared, pieces);
        }
        let raw = self.part(0..self.at);
        pieces.push(Piece::Call(call.map_err(|problem| BadCall { raw: raw.to_owned(), problem })));
        self.from += self.at;
        self.at = 0;
        self.any_call = true;
    }

    fn malformed(&self, expected: &'static str, found: Range<usize>) -> CallProblem {
        CallProblem::Malformed { expected, found: excerpt(self.part(found)) }
    }
}

/// The name in a tag, with where it ends.
enum Label {
    /// Not ended yet.
    Open,
    Closed(usize),
    /// By a character that it cannot hold.
    Broken(usize),
}

/// What a text begins with.
enum Ahead {
    Tag(&'static str),
    /// Too short to tell.
    Open,
    Other,
}

fn ahead(text: &str, tags: &[&'static str]) -> Ahead {
    if let Some(tag) = tags.iter().find(|tag| text.starts_with(**tag)) {
        return Ahead::Tag(tag);
    }
    if tags.iter().any(|tag| tag.starts_with(text)) { Ahead::Open } else { Ahead::Other }
}

fn lost(expected: &'static str, position: usize) -> (State, bool) {
    (State::Lost { expected, position }, true)
}
