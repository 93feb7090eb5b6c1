//! The grammar of calls, over text that arrives in pieces.

use std::ops::Range;

use super::progress::{Progress, XmlSoFar};
use super::value::{json_call, xml_call};
use super::{BadCall, CallProblem, Declared, ToolCall, excerpt};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const END_FUNCTION: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";

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
/// Text is handed out as soon as it can neither be the begin of a `<tool_call>` nor blanks before one. All text joined, and
/// the calls, do not depend on how the input is cut. The time is linear in the input's length, and what is held is at most
/// one call.
#[derive(Debug, Clone)]
pub struct ToolParser {
    declared: Declared,
    /// From `from` on: outside of a call, what has not been handed out; inside, the call from its `<tool_call>` on.
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
    /// After `<tool_call>`.
    Opened,
    /// In the JSON object that begins at `start`.
    Json {
        start: usize,
        depth: usize,
        string: bool,
        escaped: bool,
    },
    /// In the function's name.
    Name {
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
    /// After all of a call but its `</tool_call>`.
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
            State::Outside => {
                self.say(&mut pieces);
                if !self.any_call && !self.blanks.is_empty() {
                    pieces.push(Piece::Text(self.blanks));
                }
            }
            State::Complete(call) => self.end_call(call, &mut pieces),
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
            State::Opened => self.opened(),
            State::Json { .. } => self.json(state, pieces),
            State::Name { start } => match self.label(&['>', '\n', '<']) {
                Label::Open => (State::Name { start }, false),
                Label::Closed(end) if end > start => {
                    (State::Between(Function { name: start..end, parameters: Vec::new() }), true)
                }
                Label::Closed(end) | Label::Broken(end) => lost("the name of a function, and `>`", end),
            },
            State::Between(function) => self.between(function),
            State::Key { function, start } => match self.label(&['>', '\n']) {
                Label::Open => (State::Key { function, start }, false),
                Label::Closed(end) if end > start => {
                    (State::Value(OpenValue { function, key: start..end, start: self.at }), true)
                }
                Label::Closed(end) | Label::Broken(end) => lost("the name of a parameter, and `>`", end),
            },
            State::Value(value) => match self.seek(&[END_PARAMETER, END_FUNCTION]) {
                None => (State::Value(value), false),
                Some(tag) => {
                    let end = self.at;
                    self.at += tag.len();
                    (State::Closing { value, end, tag }, true)
                }
            },
            State::Closing { value, end, tag } => self.closing(value, end, tag),
            State::Complete(call) => match self.after_blanks(&[CLOSE]) {
                Ahead::Open => (State::Complete(call), false),
                Ahead::Tag(tag) => {
                    self.at += tag.len();
                    self.end_call(call, pieces);
                    (State::Outside, true)
                }
                Ahead::Other => lost("`</tool_call>`", self.at),
            },
            State::Lost { expected, position } => match self.seek(&[CLOSE, OPEN]) {
                None => (State::Lost { expected, position }, false),
                Some(tag) => {
                    let problem = self.malformed(expected, position..self.at + tag.len());
                    if tag == CLOSE {
                        self.at += tag.len();
                    }
                    self.end_call(Err(problem), pieces);
                    (State::Outside, true)
                }
            },
        }
    }

    fn outside(&mut self, pieces: &mut Vec<Piece>) -> (State, bool) {
        let found = self.seek(&[OPEN]);
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
        match self.after_blanks(&[FUNCTION]) {
            Ahead::Open => (State::Opened, false),
            Ahead::Tag(tag) => {
                self.at += tag.len();
                (State::Name { start: self.at }, true)
            }
            Ahead::Other if self.rest().starts_with('{') => {
                (State::Json { start: self.at, depth: 0, string: false, escaped: false }, true)
            }
            Ahead::Other => lost("`<function=` or a JSON object", self.at),
        }
    }

    /// Finds the end of a JSON object by its brackets. Outside of strings JSON has no `<`, and inside no line break, so
    /// that a bracket or quote too few does not swallow what follows the call.
    fn json(&mut self, state: State, pieces: &mut Vec<Piece>) -> (State, bool) {
        let State::Json { start, mut depth, mut string, mut escaped } = state else { return (state, false) };
        for (offset, byte) in self.rest().bytes().enumerate() {
            match byte {
                _ if escaped => escaped = false,
                b'"' => string = !string,
                b'\\' if string => escaped = true,
                b'\n' if string => {
                    self.at += offset;
                    self.tell_json(start, pieces);
                    return lost("the end of a JSON string", self.at);
                }
                _ if string => {}
                b'{' | b'[' => depth += 1,
                b'}' | b']' if depth > 1 => depth -= 1,
                b'}' | b']' => {
                    self.at += offset + 1;
                    self.tell_json(start, pieces);
                    return (State::Complete(json_call(self.part(start..self.at))), true);
                }
                b'<' => {
                    self.at += offset;
                    self.tell_json(start, pieces);
                    return lost("the end of a JSON object", self.at);
                }
                _ => {}
            }
        }
        self.at += self.rest().len();
        (State::Json { start, depth, string, escaped }, false)
    }

    fn between(&mut self, function: Function) -> (State, bool) {
        match self.after_blanks(&[PARAMETER, END_FUNCTION]) {
            Ahead::Open => (State::Between(function), false),
            Ahead::Tag(tag) => {
                self.at += tag.len();
                if tag == PARAMETER {
                    return (State::Key { function, start: self.at }, true);
                }
                let all = self.xml_so_far(&function, None);
                let call = xml_call(all.name, all.parameters.into_iter(), &self.declared);
                (State::Complete(call), true)
            }
            Ahead::Other => lost("`<parameter=` or `</function>`", self.at),
        }
    }

    fn closing(&mut self, value: OpenValue, end: usize, tag: &'static str) -> (State, bool) {
        let closes_value = tag == END_PARAMETER;
        let followers = if closes_value { &[PARAMETER, END_FUNCTION, CLOSE][..] } else { &[CLOSE] };
        match self.after_blanks(followers) {
            Ahead::Open => (State::Closing { value, end, tag }, false),
            Ahead::Tag(CLOSE) if closes_value => lost("`</function>`", self.at),
            Ahead::Tag(CLOSE) => lost("`</parameter>`", end),
            Ahead::Tag(_) => {
                let OpenValue { mut function, key, start } = value;
                function.parameters.push((key, start..end));
                (State::Between(function), true)
            }
            Ahead::Other => (State::Value(value), true),
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
            let Some(offset) = rest.find('<') else {
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

    /// Tells of a JSON call as far as it was read.
    fn tell_json(&mut self, start: usize, pieces: &mut Vec<Piece>) {
        let Some(mut progress) = self.progress.take() else { return };
        progress.json(self.part(start..self.at), &self.declared, pieces);
        self.progress = Some(progress);
    }

    /// Tells what is known of the open call.
    fn tell_progress(&mut self, pieces: &mut Vec<Piece>) {
        let Some(mut progress) = self.progress.take() else { return };
        match &self.state {
            State::Json { start, .. } => progress.json(self.part(*start..self.at), &self.declared, pieces),
            State::Between(function) | State::Key { function, .. } => {
                progress.xml(&self.xml_so_far(function, None), &self.declared, pieces);
            }
            State::Value(OpenValue { function, key, start }) => {
                let open = Some((self.part(key.clone()), self.part(*start..self.at)));
                progress.xml(&self.xml_so_far(function, open), &self.declared, pieces);
            }
            State::Closing { value: OpenValue { function, key, start }, end, .. } => {
                let open = Some((self.part(key.clone()), self.part(*start..*end)));
                progress.xml(&self.xml_so_far(function, open), &self.declared, pieces);
            }
            State::Outside | State::Opened | State::Name { .. } | State::Complete(_) | State::Lost { .. } => {
            }
        }
        self.progress = Some(progress);
    }

    fn xml_so_far<'t>(&'t self, function: &Function, open: Option<(&'t str, &'t str)>) -> XmlSoFar<'t> {
        let texts =
            |(key, value): &(Range<usize>, Range<usize>)| (self.part(key.clone()), self.part(value.clone()));
        let parameters = function.parameters.iter().map(texts).collect();
        XmlSoFar { name: self.part(function.name.clone()), parameters, open }
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
