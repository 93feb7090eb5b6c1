//! SentencePiece vocabularies from GGUF metadata, against the algorithm written out.

use crate::common;
use std::collections::HashMap;
use std::sync::LazyLock;

use basert_text::{DecodeStream, Tokenizer};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Pieces from best to worst. None repeats itself, so no two overlapping pairs join to the same piece.
const PIECES: [&str; 46] = [
    "th",
    "▁t",
    "he",
    "▁the",
    "in",
    "▁▁",
    "er",
    "ing",
    "the",
    "▁a",
    "an",
    "▁▁▁▁",
    "and",
    "▁and",
    "ed",
    "l",
    "ll",
    "o",
    "hell",
    "ello",
    "▁hello",
    "▁w",
    "or",
    "ld",
    "▁world",
    "wor",
    "▁",
    "t",
    "h",
    "e",
    "i",
    "n",
    "g",
    "a",
    "d",
    "r",
    "w",
    "é",
    "漢",
    "漢字",
    "字",
    ".",
    ",",
    "<",
    ">",
    "s",
];

fn score(rank: usize) -> f64 {
    -(f64::from(u32::try_from(rank).unwrap()) + 0.5)
}

fn metadata() -> Map<String, Value> {
    let mut tokens =
        vec![("<unk>".to_owned(), 2, 0.0), ("<s>".to_owned(), 3, 0.0), ("</s>".to_owned(), 3, 0.0)];
    tokens.extend((0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), 6, 0.0)));
    tokens.extend(PIECES.iter().enumerate().map(|(rank, piece)| ((*piece).to_owned(), 1, score(rank))));
    tokens.push(("<sep>".to_owned(), 4, 0.0));
    tokens.push(("[PAD306]".to_owned(), 5, 0.0));
    let meta = json!({
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens.iter().map(|(token, ..)| token).collect::<Vec<_>>(),
        "tokenizer.ggml.token_type": tokens.iter().map(|(_, kind, _)| kind).collect::<Vec<_>>(),
        "tokenizer.ggml.scores": tokens.iter().map(|(.., score)| score).collect::<Vec<_>>(),
    });
    meta.as_object().unwrap().clone()
}

const SEP: u32 = 259 + 46;

/// The ids of a text by the definition of the algorithm, one merge at a time.
fn brute_force(text: &str, space_prefix: bool) -> Vec<u32> {
    let ranks: HashMap<&str, usize> = PIECES.iter().enumerate().map(|(rank, piece)| (*piece, rank)).collect();
    let mut ids = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let special = [("<unk>", 0), ("<s>", 1), ("</s>", 2), ("<sep>", SEP)];
        let found = special.iter().filter_map(|(token, id)| Some((rest.find(token)?, *token, *id))).min();
        let (section, after, id) = match found {
            Some((at, token, id)) => (&rest[..at], &rest[at + token.len()..], Some(id)),
            None => (rest, "", None),
        };
        if !section.is_empty() {
            let spaced = if space_prefix { format!(" {section}") } else { section.to_owned() };
            let mut pieces: Vec<String> = spaced.replace(' ', "▁").chars().map(String::from).collect();
            loop {
                let pair = |at: usize| ranks.get(format!("{}{}", pieces[at], pieces[at + 1]).as_str());
                let best = (0..pieces.len().saturating_sub(1)).filter_map(|at| Some((*pair(at)?, at))).min();
                let Some((_, at)) = best else { break };
                let right = pieces.remove(at + 1);
                pieces[at] += &right;
            }
            for piece in pieces {
                match ranks.get(piece.as_str()) {
                    Some(&rank) => ids.push(259 + u32::try_from(rank).unwrap()),
                    None => ids.extend(piece.bytes().map(|byte| 3 + u32::from(byte))),
                }
            }
        }
        ids.extend(id);
        rest = after;
    }
    ids
}

#[test]
fn ids_are_those_of_the_algorithm() {
    let tok = Tokenizer::from_gguf(&metadata()).unwrap();
    for text in [
        "",
        " ",
        "hello world",
        " hello",
        "the  and    in",
        "hello</s>world",
        "<sep> the<sep>",
        "漢字漢 é ü 😀",
        "theing",
        "▁the",
        "ill <0x41> <unk>",
        "\n\n",
    ] {
        assert_eq!(tok.encode(text, false, true).unwrap(), brute_force(text, true), "{text:?}");
    }
    assert_eq!(tok.encode("the", true, true).unwrap(), [&[1], &brute_force("the", true)[..]].concat());
}

#[test]
fn a_text_is_refused_only_if_it_has_too_many_tokens() {
    let tok = Tokenizer::from_gguf(&metadata()).unwrap();
    for text in ["hello world 漢字 ü", "    ", "▁▁▁▁", "x", "</s>", "<sep> the"] {
        common::check_bounds(&tok, &text.repeat(30_000));
    }
}

#[test]
fn without_a_space_prefix_nothing_is_put_before_a_text() {
    let mut meta = metadata();
    meta.insert("tokenizer.ggml.add_space_prefix".to_owned(), false.into());
    let tok = Tokenizer::from_gguf(&meta).unwrap();
    for text in ["hello world", " the", "the<sep>the"] {
        let ids = tok.encode(text, false, true).unwrap();
        assert_eq!(ids, brute_force(text, false), "{text:?}");
        assert_eq!(tok.decode(&ids, false), text);
    }
}

#[test]
fn text_comes_back_without_the_space_that_was_put_before_it() {
    let tok = Tokenizer::from_gguf(&metadata()).unwrap();
    for text in ["hello world", " hello  ", "ü😀\n漢", "x"] {
        let ids = tok.encode(text, true, true).unwrap();
        assert_eq!(tok.decode(&ids, true), text);
    }
    let world = tok.encode("world", false, true).unwrap();
    let mut stream = DecodeStream::continuing(&tok, true);
    assert_eq!(world.iter().map(|&id| stream.push(id)).collect::<String>(), " world");
}

#[test]
fn byte_tokens_join_to_characters_and_broken_ones_are_replaced() {
    let tok = Tokenizer::from_gguf(&metadata()).unwrap();
    let bytes = |bytes: &[u8]| bytes.iter().map(|&byte| 3 + u32::from(byte)).collect::<Vec<u32>>();
    assert_eq!(tok.token_bytes(3 + 0xAD), Some(vec![0xAD]));
    for (case, want) in [
        (&[0xF0, 0x9F, 0x98, 0x80][..], "😀"),
        (&[0xE4, 0xBD], "\u{fffd}"),
        (&[0x41, 0xFF, 0x42], "A\u{fffd}B"),
    ] {
        assert_eq!(tok.decode(&bytes(case), false), want);
    }
}

#[test]
fn control_tokens_and_byte_tokens_are_not_made_from_text() {
    let tok = Tokenizer::from_gguf(&metadata()).unwrap();
    let ids = tok.encode("a</s> <s><unk> <0x41>", false, false).unwrap();
    assert!(ids.iter().all(|&id| id > 2 && id != 3 + 0x41), "{ids:?}");
    assert_eq!(tok.decode(&ids, false), "a</s> <s><unk> <0x41>");
}

#[test]
fn characters_that_a_vocabulary_without_bytes_lacks_become_unknown_and_leave_the_rest_alone() {
    let meta = json!({
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "▁", "a", "aa", "▁aa"],
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1],
        "tokenizer.ggml.scores": [0, 0, 0, -9, -8, -1, -2],
        "tokenizer.ggml.add_bos_token": false,
    });
    let tok = Tokenizer::from_gguf(meta.as_object().unwrap()).unwrap();
    for parse_special in [false, true] {
        assert_eq!(tok.encode("aaéüaa", true, parse_special).unwrap(), [6, 0, 5]);
    }
}

#[test]
fn defaults_are_sentencepiece_s() {
    let tok = Tokenizer::from_gguf(&metadata()).unwrap();
    assert_eq!((tok.bos(), tok.eos(), tok.eog_ids()), (Some(1), Some(2), &[2][..]));
}

#[test]
fn missing_or_broken_scores_are_refused() {
    for scores in [Value::Null, json!([0.0]), json!("x")] {
        let mut meta = metadata();
        meta.insert("tokenizer.ggml.scores".to_owned(), scores);
        let err = Tokenizer::from_gguf(&meta).unwrap_err().to_string();
        assert!(err.contains("tokenizer.ggml.scores"), "{err}");
    }
}

#[test]
fn a_long_text_that_is_one_piece_encodes_and_comes_back() {
    let tok = Tokenizer::from_gguf(&metadata()).unwrap();
    let text = "hello the world ".repeat(50_000);
    let ids = tok.encode(&text, false, true).unwrap();
    assert_eq!(tok.decode(&ids, false), text);
    let start = brute_force("hello the world hello the", true);
    assert_eq!(ids[..start.len()], start);
}

/// Without and with the space put before a text.
static TOKENIZERS: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| {
    [false, true].map(|prefix| {
        let mut meta = metadata();
        meta.insert("tokenizer.ggml.add_space_prefix".to_owned(), prefix.into());
        Tokenizer::from_gguf(&meta).unwrap()
    })
});

proptest! {
    #[test]
    fn random_texts_get_the_ids_of_the_algorithm(
        text in "([thelowrdinga .,é漢字<>]|the|and|ing|hello|world|    |<s>|</s>|<sep>|ü|😀){0,24}",
        prefix in any::<bool>(),
    ) {
        let tok = &TOKENIZERS[usize::from(prefix)];
        prop_assert_eq!(tok.encode(&text, false, true).unwrap(), brute_force(&text, prefix));
    }
}
