//! A call on its way: its name and what of its arguments is certain, before it is complete.
//!
//! The fragments of a call, joined, are the JSON of its arguments. The last `}` comes with the complete call only, so that
//! what was cut off or went wrong is never JSON that somebody could execute.

use serde_json::Value;

use super::judge::Judge;
use super::parser::Piece;
use super::schema::Types;
use super::value::xml_call;
use super::{Declared, ToolCall};

/// The parts of an XML call that are known.
pub(super) struct XmlSoFar<'t> {
    pub(super) name: &'t str,
    /// Keys and texts of the complete parameters.
    pub(super) parameters: Vec<(&'t str, &'t str)>,
    /// The key of the open parameter, and what of its text cannot be anything else.
    pub(super) open: Option<(&'t str, &'t str)>,
}

/// What has been told of one call.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    opened: bool,
    /// Nothing more is told before the call is complete.
    waits: bool,
    /// The JSON of the arguments, as far as it was handed out.
    told: String,
    value: Option<StringValue>,
    raw: Option<RawArguments>,
}

/// A parameter that can only be a string.
#[derive(Debug, Clone, Default)]
struct StringValue {
    /// Its place among the parameters.
    index: usize,
    /// Bytes of its text that were handed out.
    told: usize,
}

/// Arguments that are JSON, which are handed out as they were generated.
#[derive(Debug, Clone, Default)]
struct RawArguments {
    /// From the call's `{` on: where the next character is.
    at: usize,
    depth: usize,
    string: bool,
    escaped: bool,
    closed: bool,
}

impl Progress {
    /// Takes an XML call as far as it has come.
    pub(super) fn xml(&mut self, call: &XmlSoFar<'_>, declared: &Declared, pieces: &mut Vec<Piece>) {
        let Some(tool) = declared.tool(call.name).filter(|_| !self.waits) else { return };
        self.open(call.name, pieces);
        let Some((key, text)) = call.open else { return };
        let index = call.parameters.len();
        if self.value.as_ref().is_none_or(|value| value.index != index) {
            let mut judge = Judge::new(&tool.parameters);
            let schema = judge.parameter(key);
            let is_string = schema.is_some_and(|schema| judge.types(schema) == Types::STRING);
            if !is_string {
                return;
            }
            let Some(begin) = begin_of_string(call, key, declared) else {
                self.waits = true;
                return;
            };
            self.tell(&begin, pieces);
            self.value = Some(StringValue { index, told: 0 });
        }
        let body = text.strip_prefix('\n').unwrap_or(text);
        let body = body.strip_suffix('\n').unwrap_or(body);
        if let Some(value) = &mut self.value
            && let Some(news) = body.get(value.told..).filter(|news| !news.is_empty())
        {
            value.told = body.len();
            let escaped = inside_quotes(news);
            self.told.push_str(&escaped);
            pieces.push(Piece::Arguments(escaped));
        }
    }

    /// Takes the text of a JSON call as far as it has come.
    pub(super) fn json(&mut self, text: &str, declared: &Declared, pieces: &mut Vec<Piece>) {
        if self.waits {
            return;
        }
        if self.raw.is_none() {
            match header(text) {
                Header::Open => return,
                Header::Other => self.waits = true,
                Header::Call { name, .. } if declared.tool(&name).is_none() => self.waits = true,
                Header::Call { name, arguments } => {
                    self.open(&name, pieces);
                    self.raw = Some(RawArguments { at: arguments, ..RawArguments::default() });
                }
            }
        }
        let Some(raw) = &mut self.raw else { return };
        let news = raw.read(text);
        if !news.is_empty() {
            pieces.push(Piece::Arguments(news.to_owned()));
        }
    }

    /// Takes the arguments of a named function, as far as their JSON has come.
    pub(super) fn arguments(&mut self, name: &str, json: &str, declared: &Declared, pieces: &mut Vec<Piece>) {
        if declared.tool(name).is_none() {
            return;
        }
        self.open(name, pieces);
        let raw = self.raw.get_or_insert_default();
        let news = raw.read(json);
        if !news.is_empty() {
            pieces.push(Piece::Arguments(news.to_owned()));
        }
    }

    /// Ends a good call: hands out what is missing.
    pub(super) fn complete(mut self, call: &ToolCall, declared: &Declared, pieces: &mut Vec<Piece>) {
        if declared.tool(&call.name).is_none() {
            return;
        }
        self.open(&call.name, pieces);
        if self.raw.is_some() {
            pieces.push(Piece::Arguments("}".to_owned()));
        } else {
            let all = Value::Object(call.arguments.clone()).to_string();
            self.tell(&all, pieces);
        }
    }

    fn open(&mut self, name: &str, pieces: &mut Vec<Piece>) {
        if !self.opened {
            self.opened = true;
            pieces.push(Piece::Opened { name: name.to_owned() });
        }
    }

    /// Hands out what `json` has more than was told.
    fn tell(&mut self, json: &str, pieces: &mut Vec<Piece>) {
        match json.strip_prefix(self.told.as_str()) {
            Some("") => {}
            Some(news) => {
                pieces.push(Piece::Arguments(news.to_owned()));
                self.told = json.to_owned();
            }
            None => self.waits = true,
        }
    }
}

impl RawArguments {
    /// Reads on in the call's text, up to the arguments' last `}`, which is left for the end.
    fn read<'t>(&mut self, text: &'t str) -> &'t str {
        let from = self.at;
        for byte in text.as_bytes()[from..].iter().filter(|_| !self.closed) {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'"' => self.string = !self.string,
                b'\\' if self.string => self.escaped = true,
                _ if self.string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth > 1 => self.depth -= 1,
                b'}' | b']' => {
                    self.closed = true;
                    break;
                }
                _ => {}
            }
            self.at += 1;
        }
        &text[from..self.at]
    }
}

/// The JSON of the arguments up to the first character of the open string; `None` if it will not be a good call.
fn begin_of_string(call: &XmlSoFar<'_>, key: &str, declared: &Declared) -> Option<String> {
    if call.parameters.iter().any(|(known, _)| *known == key) {
        return None;
    }
    let before = xml_call(call.name, call.parameters.iter().copied(), declared).ok()?;
    let mut json = Value::Object(before.arguments).to_string();
    json.pop();
    if json.len() > 1 {
        json.push(',');
    }
    Some(format!("{json}\"{}\":\"", inside_quotes(key)))
}

/// A text as it stands in a JSON string.
pub(super) fn inside_quotes(text: &str) -> String {
    let quoted = Value::String(text.to_owned()).to_string();
    quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned()
}

/// The begin of a JSON call.
pub(super) enum Header {
    /// Too short to tell.
    Open,
    /// `{"name": NAME, "arguments": {`, with the position of the last `{`. `parameters` is the same as `arguments`, and the name
    /// may come behind a `"type": TEXT`.
    Call { name: String, arguments: usize },
    /// Something else, which may be a call all the same.
    Other,
}

pub(super) fn header(text: &str) -> Header {
    read_header(text).unwrap_or_else(|unread| unread)
}

fn read_header(text: &str) -> Result<Header, Header> {
    let (_, rest) = token(text, &["{"])?;
    let (key, mut rest) = token(rest, &["\"name\"", "\"type\""])?;
    if key == "\"type\"" {
        let (_, behind) = token(rest, &[":"])?;
        let (_, behind) = string(behind)?;
        let (_, behind) = token(behind, &[","])?;
        (_, rest) = token(behind, &["\"name\""])?;
    }
    let (_, rest) = token(rest, &[":"])?;
    let (name, mut rest) = string(rest)?;
    for tokens in [&[","][..], &["\"arguments\"", "\"parameters\""], &[":"], &["{"]] {
        (_, rest) = token(rest, tokens)?;
    }
    Ok(Header::Call { name, arguments: text.len() - rest.len() - 1 })
}

/// The one of `tokens` that a text begins with, behind blanks, and what follows it.
fn token<'t>(text: &'t str, tokens: &[&'static str]) -> Result<(&'static str, &'t str), Header> {
    let text = text.trim_ascii_start();
    if let Some(found) = tokens.iter().find_map(|token| Some((*token, text.strip_prefix(*token)?))) {
        return Ok(found);
    }
    Err(if tokens.iter().any(|token| token.starts_with(text)) { Header::Open } else { Header::Other })
}

/// The JSON string that a text begins with, and what follows it.
fn string(text: &str) -> Result<(String, &str), Header> {
    let text = text.trim_ascii_start();
    let mut strings = serde_json::Deserializer::from_str(text).into_iter::<String>();
    match strings.next() {
        Some(Ok(found)) => Ok((found, &text[strings.byte_offset()..])),
        Some(Err(e)) if !e.is_eof() => Err(Header::Other),
        _ => Err(Header::Open),
    }
}
