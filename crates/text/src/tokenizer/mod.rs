//! The tokenizer: text to ids and ids to text.
//!
//! Vocabulary, merges, normaliser and added tokens are the `tokenizers` library's; splitting (`split`, `pretok`) and
//! decoding (`table`, `stream`) are done here, where that is faster, exact for streams, or refuses what the library
//! passes over in silence. Truncation and padding that a `tokenizer.json` may ask for are not applied: a prompt
//! is never cut unsaid.

mod bound;
mod bpe;
pub(crate) mod bytes;
mod definition;
mod load;
mod pretok;
mod special;
mod split;
mod stream;
mod table;

use std::sync::Arc;

use tokenizers::{AddedVocabulary, Model as _, OffsetReferential, OffsetType};

pub use bound::Bound;
pub use stream::DecodeStream;

use crate::TextError;
use bound::Cover;
use pretok::{Piece, PreTokenizer};
use table::Table;

pub(crate) use table::fallback_byte;

/// A model's tokenizer. Immutable; cloning shares it.
#[derive(Debug, Clone)]
pub struct Tokenizer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    library: tokenizers::Tokenizer,
    /// The added tokens without the control tokens, for text in which these are only text.
    harmless: AddedVocabulary,
    pre_tokenizer: PreTokenizer,
    table: Table,
    cover: Cover,
    strips_first_space: bool,
    /// Sorted ids of the added tokens flagged special.
    special: Vec<u32>,
    /// Sorted ids that must never come from text that is only text: the special ones and the ends of generation.
    control: Vec<u32>,
    /// What the post-processor puts before and after a text.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    /// Sorted.
    ends: Vec<u32>,
    chat_template: Option<String>,
}

impl Tokenizer {
    /// Encodes a text.
    ///
    /// `add_special` puts around it what the model expects around a text (a beginning-of-sequence token, for models
    /// that have one). With `parse_special`, control tokens spelled in the text become those tokens: right for a
    /// rendered chat template. Without it they are encoded as ordinary text, so that nobody's input can end a turn or
    /// forge one; control tokens are those flagged special and those in [`eog_ids`](Self::eog_ids). Added tokens that
    /// are plain vocabulary are matched in either case.
    ///
    /// # Errors
    /// If the tokenizer's definition cannot handle the text; nothing is ever left out in silence.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>, TextError> {
        self.encode_within(text, add_special, parse_special, &Bound::none())
    }

    /// Encodes a text as [`encode`](Self::encode) does, as long as it keeps to a bound.
    ///
    /// # Errors
    /// As [`encode`](Self::encode), and [`TextError::TooLong`] as soon as the bytes that are left prove it, which for most
    /// texts that are much too long is before anything is encoded. A text that is only a little too long is encoded all the
    /// same. [`TextError::GivenUp`] if the bound says so.
    pub fn encode_within(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
        bound: &Bound,
    ) -> Result<Vec<u32>, TextError> {
        let inner = &*self.0;
        let mut ids = Vec::new();
        if add_special {
            ids.extend(&inner.prefix);
        }
        inner.encode_to(text, parse_special, bound, &mut ids)?;
        if add_special {
            ids.extend(&inner.suffix);
        }
        Ok(ids)
    }

    /// Encodes a text in which some spellings of control tokens are broken by `mark`: they, and all text between the
    /// intact ones, are encoded as ordinary text without the mark; nothing is put around.
    ///
    /// # Errors
    /// As [`encode_within`](Self::encode_within).
    pub(crate) fn encode_marked(&self, text: &str, mark: char, bound: &Bound) -> Result<Vec<u32>, TextError> {
        let inner = &*self.0;
        let library = &inner.library;
        let sections = library.get_added_vocabulary().extract_and_normalize(library.get_normalizer(), text);
        let mut ids = Vec::with_capacity(text.len() / 3);
        let plain = |range: std::ops::Range<usize>, ids: &mut Vec<u32>| {
            let torn = || TextError::tokenizer("added tokens", "a token ends inside a character");
            bound.check(ids.len(), 0, text.len().saturating_sub(range.start))?;
            let text = text.get(range).ok_or_else(torn)?.replace(mark, "");
            inner.encode_to(&text, false, bound, ids)
        };
        let mut done = 0;
        for (_, (start, end), tokens) in sections.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            let [token] = tokens.as_deref().unwrap_or_default() else { continue };
            if self.0.control.binary_search(&token.id).is_ok() {
                plain(done..start, &mut ids)?;
                ids.push(token.id);
                done = end;
            }
        }
        plain(done..text.len(), &mut ids)?;
        Ok(ids)
    }

    /// The spellings of the tokens that must not come from text that is only text.
    pub(crate) fn control_tokens(&self) -> Vec<String> {
        self.0.control.iter().filter_map(|&id| self.id_to_token(id)).collect()
    }

    /// Decodes ids to text. Never fails: bytes that are not UTF-8 become U+FFFD, ids without a token become nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut stream = DecodeStream::new(self, skip_special);
        let mut text = String::with_capacity(ids.len() * 4);
        for &id in ids {
            stream.push_to(id, &mut text);
        }
        text + &stream.finish()
    }

    /// The bytes that a token adds to a text, which need not be whole characters; `None` if no token has this id.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.bytes_of(id).map(<[u8]>::to_vec)
    }

    /// One past the highest token id. A model's logits may be wider (padding).
    pub fn vocab_size(&self) -> usize {
        self.0.table.len()
    }

    /// The id of a token, spelled as in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.library.token_to_id(token)
    }

    /// A token as spelled in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.library.id_to_token(id)
    }

    /// Whether the vocabulary flags a token as special, that is as not part of the text.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.special.binary_search(&id).is_ok()
    }

    /// The tokens that the vocabulary flags as special: id and spelling, by id.
    pub fn special_tokens(&self) -> Vec<(u32, String)> {
        self.0.special.iter().filter_map(|&id| Some((id, self.id_to_token(id)?))).collect()
    }

    /// The beginning-of-sequence token, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.0.bos
    }

    /// The end-of-sequence token, if the tokenizer's configuration names one.
    pub fn eos(&self) -> Option<u32> {
        self.0.eos
    }

    /// The ids that end a generation as far as the tokenizer knows, by id: the configured end of sequence, turn and
    /// message, and the added tokens whose text says so. The model's own list (generation config) comes on top.
    pub fn eog_ids(&self) -> &[u32] {
        &self.0.ends
    }

    /// The source of the model's chat template, if there is one.
    pub fn chat_template(&self) -> Option<&str> {
        self.0.chat_template.as_deref()
    }

    pub(crate) fn strips_first_space(&self) -> bool {
        self.0.strips_first_space
    }

    pub(crate) fn bytes_of(&self, id: u32) -> Option<&[u8]> {
        self.0.table.get(id)
    }
}

impl Inner {
    fn encode_to(
        &self,
        text: &str,
        parse_special: bool,
        bound: &Bound,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        if text.is_empty() {
            return Ok(());
        }
        let tokens = |bytes: usize, cover: Option<usize>| cover.map_or(0, |cover| bytes.div_ceil(cover));
        bound.check(ids.len(), tokens(text.len(), self.cover.raw), text.len())?;
        let added = if parse_special { self.library.get_added_vocabulary() } else { &self.harmless };
        let sections = added.extract_and_normalize(self.library.get_normalizer(), text);
        ids.reserve(text.len() / 3);
        let mut left = 0;
        self.pre_tokenizer.pieces(sections, &mut |piece| {
            match piece {
                Piece::Ahead(bytes) => left = bytes,
                Piece::Added(id) => ids.push(id),
                Piece::Text(text, bytes) => {
                    bound.check(ids.len(), tokens(left, self.cover.normalized), left)?;
                    self.encode_piece(text, parse_special, ids)?;
                    left = left.saturating_sub(bytes);
                }
            }
            Ok(())
        })
    }

    fn encode_piece(&self, piece: &str, parse_special: bool, ids: &mut Vec<u32>) -> Result<(), TextError> {
        let model = self.library.get_model();
        let tokenize = |text| model.tokenize(text).map_err(|e| TextError::tokenizer("model", e));
        let tokens = tokenize(piece)?;
        let is_control = |id: &u32| self.control.binary_search(id).is_ok();
        // A model that takes whole pieces from its vocabulary (`ignore_merges`) would take a control token's text too.
        if !parse_special && piece.chars().nth(1).is_some() && tokens.iter().any(|t| is_control(&t.id)) {
            for (at, c) in piece.char_indices() {
                ids.extend(tokenize(&piece[at..at + c.len_utf8()])?.iter().map(|t| t.id));
            }
            return Ok(());
        }
        ids.extend(tokens.iter().map(|t| t.id));
        Ok(())
    }
}
