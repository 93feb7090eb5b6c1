//! Reading a BPE model: a vocabulary and merges, each of which may have a quarter of a million entries.
//!
//! The library makes its maps in one thread and takes longer for it than all reading. What need not be done before or by
//! it is therefore done beside it.

use std::borrow::Cow;
use std::fmt;
use std::panic::resume_unwind;
use std::thread::{Builder, Scope, ScopedJoinHandle, scope};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, BpeBuilder, Merges, Vocab};

use super::definition::{Fields, field, tokens};
use super::table::{Decoder, Table};
use crate::TextError;

/// Reads the fields of a model; with the bytes of its tokens and of those that `added` brings.
///
/// # Errors
/// If the vocabulary or the merges are missing, a field is not what it must be, or a merge is of tokens, or makes one, that the
/// vocabulary lacks.
pub(crate) fn read(
    fields: &Fields<'_>,
    added: &[(u32, AddedToken)],
    decoder: &Decoder,
) -> Result<(BPE, Table), TextError> {
    let options = options(fields)?;
    let prefix: Option<String> = field(fields, "continuing_subword_prefix")?;
    let prefix = prefix.as_deref().unwrap_or_default();
    let (vocabulary, joins) = scope(|scope| {
        let vocabulary = beside(scope, || Vocabulary::read(fields))?;
        let joins = Joins::read(fields, prefix);
        Ok((wait(vocabulary)?, joins?))
    })?;
    let Vocabulary { list, map } = vocabulary;
    joins.check(list.iter().map(|(token, _)| token.0.len()).max().unwrap_or(0))?;
    scope(|scope| {
        let all = list.iter().map(|(token, id)| (&*token.0, *id));
        let table = beside(scope, move || Table::new(&tokens(all, added), decoder))?;
        let bpe = options.vocab_and_merges(map, joins.merges).build();
        Ok((bpe.map_err(|e| TextError::tokenizer("model", e))?, wait(table)?))
    })
}

/// A vocabulary twice: in the order of its text, from which most tokens are borrowed, and by token.
struct Vocabulary<'a> {
    list: Vec<(Text<'a>, u32)>,
    map: Vocab,
}

impl<'a> Vocabulary<'a> {
    fn read(fields: &Fields<'a>) -> Result<Vocabulary<'a>, TextError> {
        let List(list) = required(fields, "vocab")?;
        let map: Vocab = list.iter().map(|(token, id)| (token.0.as_ref().to_owned(), *id)).collect();
        if map.len() < list.len() {
            return Err(TextError::field("model.vocab", "has a token twice"));
        }
        Ok(Vocabulary { list, map })
    }
}

type Beside<'scope, T> = ScopedJoinHandle<'scope, Result<T, TextError>>;

fn beside<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> Result<T, TextError> + Send + 'scope,
) -> Result<Beside<'scope, T>, TextError> {
    Builder::new().spawn_scoped(scope, work).map_err(|e| TextError::tokenizer("thread", e))
}

fn wait<T>(beside: Beside<'_, T>) -> Result<T, TextError> {
    beside.join().unwrap_or_else(|panic| resume_unwind(panic))
}

fn required<'a, T: Deserialize<'a>>(fields: &Fields<'a>, key: &'static str) -> Result<T, TextError> {
    field(fields, key)?.ok_or_else(|| TextError::field(format!("model.{key}"), "is missing"))
}

fn options(fields: &Fields<'_>) -> Result<BpeBuilder, TextError> {
    let mut options = BpeBuilder::new();
    if let Some(dropout) = field(fields, "dropout")? {
        options = options.dropout(dropout);
    }
    if let Some(unknown) = field(fields, "unk_token")? {
        options = options.unk_token(unknown);
    }
    if let Some(prefix) = field(fields, "continuing_subword_prefix")? {
        options = options.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = field(fields, "end_of_word_suffix")? {
        options = options.end_of_word_suffix(suffix);
    }
    let flag = |key| Ok::<_, TextError>(field(fields, key)?.unwrap_or(false));
    Ok(options
        .fuse_unk(flag("fuse_unk")?)
        .byte_fallback(flag("byte_fallback")?)
        .ignore_merges(flag("ignore_merges")?))
}

/// A vocabulary in the order of its text, from which most tokens are borrowed.
struct List<'a>(Vec<(Text<'a>, u32)>);

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for List<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vec<(Text<'de>, u32)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("ids by token")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    list.push(entry);
                }
                Ok(list)
            }
        }
        json.deserialize_map(Entries).map(List)
    }
}

/// Merges in their order.
struct Joins {
    merges: Merges,
    /// The one that makes the longest token, by its place, and the bytes of that token.
    longest: Option<(usize, usize)>,
}

impl Joins {
    /// `prefix` is what the second side of every merge begins with and the token that it makes leaves out.
    fn read(fields: &Fields<'_>, prefix: &str) -> Result<Joins, TextError> {
        let merges: Vec<Merge> = required(fields, "merges")?;
        let merges: Merges = merges.into_iter().filter_map(Merge::pair).collect::<Result<_, _>>()?;
        let mut longest = None;
        for (place, (left, right)) in merges.iter().enumerate() {
            let Some(rest) = right.strip_prefix(prefix) else {
                let problem = format!("have `{right}`, which does not begin with `{prefix}`");
                return Err(TextError::field("model.merges", problem));
            };
            longest = longest.max(Some((left.len() + rest.len(), place)));
        }
        Ok(Joins { merges, longest: longest.map(|(bytes, place)| (place, bytes)) })
    }

    /// The library joins the two sides in a buffer as long as the longest token, unseen.
    fn check(&self, longest_token: usize) -> Result<(), TextError> {
        match self.longest {
            Some((place, bytes)) if bytes > longest_token => {
                let (left, right) = &self.merges[place];
                let problem = format!("join `{left}` and `{right}`, which makes no token of the vocabulary");
                Err(TextError::field("model.merges", problem))
            }
            _ => Ok(()),
        }
    }
}

/// A merge as files have it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    /// Two tokens and a blank between them, or the version of the file.
    Line(String),
}

impl Merge {
    fn pair(self) -> Option<Result<(String, String), TextError>> {
        let line = match self {
            Merge::Pair(left, right) => return Some(Ok((left, right))),
            Merge::Line(line) if line.starts_with("#version") => return None,
            Merge::Line(line) => line,
        };
        Some(match line.split_once(' ') {
            Some((left, right)) if !right.contains(' ') => Ok((left.to_owned(), right.to_owned())),
            _ => Err(TextError::field("model.merges", format!("have `{line}`, which is not two tokens"))),
        })
    }
}
