//! Arguments in Gemma's spelling, `{key:<escape>text<escape>,other:[1,true]}`, to JSON, as they arrive.

use serde_json::Value;

use super::progress::inside_quotes;

/// How deep values may lie in each other, as in JSON that is read.
const DEPTH: usize = 120;

/// Rewrites one object.
#[derive(Debug, Clone)]
pub(super) struct Transcoder {
    /// What stands on both sides of a string.
    quote: &'static str,
    /// JSON of what was read.
    json: String,
    /// The closing brackets of what is open, outermost first.
    open: Vec<char>,
    place: Place,
    /// The begin of a key or a word.
    word: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before a key; `first`: or before the object's end.
    Key { first: bool },
    /// In a key without quotes.
    BareKey,
    /// Behind a key in quotes.
    Colon,
    /// Before a value; `first`: or before the array's end.
    Value { first: bool },
    /// In a string; `key`: that is a key.
    String { key: bool },
    /// In a number, or one of the words of JSON.
    Word,
    /// Behind a value.
    After,
}

/// How far a piece of text was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// So many bytes; the object goes on.
    Open(usize),
    /// The object ends after so many bytes.
    Done(usize),
    /// After so many bytes something else should have come.
    Wrong(usize, &'static str),
}

/// Why reading pauses.
enum Pause {
    /// What is left may be the begin of a quote.
    Short,
    Wrong(&'static str),
}

impl Transcoder {
    /// Before the first key, behind the object's `{`.
    pub(super) fn new(quote: &'static str) -> Transcoder {
        let place = Place::Key { first: true };
        Transcoder { quote, json: "{".to_owned(), open: vec!['}'], place, word: String::new() }
    }

    /// The JSON so far.
    pub(super) fn json(&self) -> &str {
        &self.json
    }

    /// Reads on. What is not read has to come again, with more behind it.
    pub(super) fn read(&mut self, text: &str) -> Read {
        let mut at = 0;
        while at < text.len() {
            match self.step(&text[at..]) {
                Ok(read) => at += read,
                Err(Pause::Short) => break,
                Err(Pause::Wrong(expected)) => return Read::Wrong(at, expected),
            }
            if self.open.is_empty() {
                return Read::Done(at);
            }
        }
        Read::Open(at)
    }

    /// Reads a character or more; returns how many bytes.
    fn step(&mut self, text: &str) -> Result<usize, Pause> {
        let Some(c) = text.chars().next() else { return Ok(0) };
        let is_blank = c.is_ascii_whitespace();
        match self.place {
            Place::String { key } => return self.string(text, key),
            Place::BareKey => return self.bare_key(c),
            Place::Word if !is_blank && !",}]".contains(c) => self.word.push(c),
            Place::Word => {
                // The character belongs to what follows.
                self.end_word()?;
                return Ok(0);
            }
            _ if is_blank => {}
            Place::Key { first: true } | Place::Value { first: true } | Place::After
                if self.open.last() == Some(&c) =>
            {
                self.open.pop();
                self.json.push(c);
                self.place = Place::After;
            }
            Place::Key { .. } => {
                if self.is_quote(text)? {
                    return Ok(self.begin_string(true));
                }
                self.place = Place::BareKey;
                return Ok(0);
            }
            Place::Colon if c == ':' => self.end_key(),
            Place::Colon => return Err(Pause::Wrong("`:`")),
            Place::Value { .. } => return self.value(text, c),
            Place::After if c == ',' => {
                self.json.push(',');
                let in_object = self.open.last() == Some(&'}');
                self.place =
                    if in_object { Place::Key { first: false } } else { Place::Value { first: false } };
            }
            Place::After => return Err(Pause::Wrong("`,` or the end of the arguments")),
        }
        Ok(c.len_utf8())
    }

    fn value(&mut self, text: &str, c: char) -> Result<usize, Pause> {
        if self.is_quote(text)? {
            return Ok(self.begin_string(false));
        }
        let nested = match c {
            '{' => Some(('}', Place::Key { first: true })),
            '[' => Some((']', Place::Value { first: true })),
            _ => None,
        };
        match nested {
            Some(_) if self.open.len() >= DEPTH => return Err(Pause::Wrong("a value that is less deep")),
            Some((close, place)) => {
                self.open.push(close);
                self.json.push(c);
                self.place = place;
            }
            None if ",:}]<".contains(c) => return Err(Pause::Wrong("a value")),
            None => {
                self.word.push(c);
                self.place = Place::Word;
            }
        }
        Ok(c.len_utf8())
    }

    fn begin_string(&mut self, key: bool) -> usize {
        self.json.push('"');
        self.place = Place::String { key };
        self.quote.len()
    }

    fn string(&mut self, text: &str, key: bool) -> Result<usize, Pause> {
        if let Some(end) = text.find(self.quote) {
            self.json.push_str(&inside_quotes(&text[..end]));
            self.json.push('"');
            self.place = if key { Place::Colon } else { Place::After };
            return Ok(end + self.quote.len());
        }
        let begun = (1..self.quote.len()).rev().find(|n| text.ends_with(&self.quote[..*n])).unwrap_or(0);
        let sure = text.len() - begun;
        if sure == 0 {
            return Err(Pause::Short);
        }
        self.json.push_str(&inside_quotes(&text[..sure]));
        Ok(sure)
    }

    fn bare_key(&mut self, c: char) -> Result<usize, Pause> {
        match c {
            ':' if !self.word.trim_end().is_empty() => {
                let key = std::mem::take(&mut self.word);
                self.json.push('"');
                self.json.push_str(&inside_quotes(key.trim_end()));
                self.json.push('"');
                self.end_key();
            }
            ':' | '{' | '}' | '[' | ']' | ',' | '<' | '\n' => return Err(Pause::Wrong("a key, and `:`")),
            c => self.word.push(c),
        }
        Ok(c.len_utf8())
    }

    fn end_key(&mut self) {
        self.json.push(':');
        self.place = Place::Value { first: false };
    }

    fn end_word(&mut self) -> Result<(), Pause> {
        let word = std::mem::take(&mut self.word);
        let value = super::value::literal(&word).filter(|value| !value.is_string());
        self.json.push_str(&value.as_ref().map(Value::to_string).ok_or(Pause::Wrong("a value"))?);
        self.place = Place::After;
        Ok(())
    }

    fn is_quote(&self, text: &str) -> Result<bool, Pause> {
        if text.starts_with(self.quote) {
            return Ok(true);
        }
        if self.quote.starts_with(text) { Err(Pause::Short) } else { Ok(false) }
    }
}
