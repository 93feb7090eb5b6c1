//! Token ids to text, one id at a time.

use super::Tokenizer;
use crate::chat::ANSWER_TAGS;
use crate::tools::CALL_TAGS;

/// Turns ids into text as they arrive.
///
/// Only complete characters come out: a character whose bytes are spread over tokens is held until its last byte, and
/// bytes that cannot become a character are replaced as in [`String::from_utf8_lossy`]. What all calls return, joined,
/// is exactly [`Tokenizer::decode`] of all the ids.
#[derive(Debug, Clone)]
pub struct DecodeStream {
    tokenizer: Tokenizer,
    skip_special: bool,
    keeps_tags: bool,
    strips_space: bool,
    /// An incomplete character: at most three bytes.
    pending: Vec<u8>,
}

impl DecodeStream {
    /// A stream at the beginning of a text.
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        let strips_space = tokenizer.strips_first_space();
        Self {
            tokenizer: tokenizer.clone(),
            skip_special,
            keeps_tags: false,
            strips_space,
            pending: Vec::new(),
        }
    }

    /// A stream that goes on from text already there, such as a prompt that is being completed: a SentencePiece
    /// vocabulary's first space is then a space and not the mark of the beginning.
    pub fn continuing(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        Self { strips_space: false, ..Self::new(tokenizer, skip_special) }
    }

    /// A stream for an answer in a chat: without special tokens, but with the tags of thinking and of tool calls, which
    /// some vocabularies flag as special and which the reader of an answer takes it apart at.
    pub fn answering(tokenizer: &Tokenizer) -> Self {
        Self { keeps_tags: true, ..Self::new(tokenizer, true) }
    }

    /// Takes the next id and returns the text that has become final; often one character, sometimes none.
    pub fn push(&mut self, id: u32) -> String {
        let mut out = String::new();
        self.push_to(id, &mut out);
        out
    }

    /// Like [`push`](Self::push), appending to a string.
    pub fn push_to(&mut self, id: u32, out: &mut String) {
        if self.skip_special && self.tokenizer.is_special(id) && !(self.keeps_tags && self.is_tag(id)) {
            return;
        }
        let mut bytes = self.tokenizer.bytes_of(id).unwrap_or_default();
        if self.strips_space
            && let Some(first) = bytes.first()
        {
            self.strips_space = false;
            if *first == b' ' {
                bytes = &bytes[1..];
            }
        }
        self.pending.extend_from_slice(bytes);
        let mut chunks = self.pending.utf8_chunks().peekable();
        let mut incomplete = 0;
        while let Some(chunk) = chunks.next() {
            out.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if chunks.peek().is_none() && can_go_on(invalid) {
                incomplete = invalid.len();
            } else if !invalid.is_empty() {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.pending.drain(..self.pending.len() - incomplete);
    }

    /// Whether no character is waiting for its other bytes.
    pub fn is_whole(&self) -> bool {
        self.pending.is_empty()
    }

    fn is_tag(&self, id: u32) -> bool {
        let is_one = |token: String| ANSWER_TAGS.iter().chain(&CALL_TAGS).any(|tag| *tag == token);
        self.tokenizer.id_to_token(id).is_some_and(is_one)
    }

    /// Ends the text: an incomplete character becomes one U+FFFD.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// Whether `bytes` are the beginning of a character that is cut off, and not a mistake already.
fn can_go_on(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}
