//! SentencePiece BPE (`llama`: Llama 2, Mistral up to 0.3).
//!
//! SentencePiece merges, again and again, the adjacent pair whose concatenation has the highest score. A Hugging Face
//! BPE merges the pair of lowest rank, so ranking every way to build every piece by the piece's score gives the same
//! ids. The one difference left: where two overlapping pairs build the same piece, SentencePiece takes the left pair
//! and a rank cannot say that; the longer left part is ranked first, which is the left pair when runs of one character
//! are merged from the left. Hugging Face's own conversions have the same difference.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::vocab::{self, TokenType, Vocab, flag, token_id};
use super::{Parts, UNK};
use crate::TextError;
use crate::tokenizer::fallback_byte;

/// Stands for a space in the vocabulary.
const SPACE: &str = "▁";

pub(super) fn parts(meta: &Map<String, Value>, vocab: &Vocab<'_>) -> Result<Parts, TextError> {
    // At the start of a text and after each special token.
    let prefix = flag(meta, "tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let mut normalizers = vec![spaces];
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let unk = vocab.require(token_id(meta, UNK)?.unwrap_or(0), UNK)?;
    // Bytes that are missing would turn characters into `unk`, as in SentencePiece; that is the file's choice.
    let byte_fallback = vocab.used().any(|(_, token, _)| fallback_byte(token).is_some());
    Ok(Parts {
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        pre_tokenizer: Value::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": unk,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": byte_fallback,
            "ignore_merges": false,
            "vocab": vocab.ids(),
            "merges": merges(meta, vocab)?,
        }),
    })
}

/// Every pair of pieces that joins to a piece, best first.
fn merges(meta: &Map<String, Value>, vocab: &Vocab<'_>) -> Result<Vec<[String; 2]>, TextError> {
    const KEY: &str = "tokenizer.ggml.scores";
    let scores = vocab::numbers(meta, KEY)?;
    let text =
        |(_, _, kind): &(u32, &str, TokenType)| matches!(kind, TokenType::Normal | TokenType::UserDefined);
    let mut pieces: HashMap<&str, f64> = HashMap::new();
    for (id, piece, _) in vocab.used().filter(text) {
        let score = scores.get(id as usize).copied().filter(|s| s.is_finite());
        pieces.insert(
            piece,
            score.ok_or_else(|| TextError::field(KEY, format!("has no valid score for token {id}")))?,
        );
    }
    let mut merges = Vec::new();
    for (id, piece, _) in vocab.used().filter(text) {
        for (cut, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(cut);
            if pieces.contains_key(left) && pieces.contains_key(right) {
                merges.push((pieces[piece], id, left, right));
            }
        }
    }
    merges.sort_by(|(score_a, id_a, left_a, _), (score_b, id_b, left_b, _)| {
        score_b.total_cmp(score_a).then(id_a.cmp(id_b)).then(left_b.len().cmp(&left_a.len()))
    });
    Ok(merges.into_iter().map(|(_, _, left, right)| [left.to_owned(), right.to_owned()]).collect())
}
