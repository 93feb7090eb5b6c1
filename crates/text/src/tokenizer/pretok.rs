//! The pre-tokenizer: cuts text into the pieces that the model merges within.
//!
//! The library keeps, for every byte of every piece, where it came from. Nobody asks for that here, and it takes most
//! of the time on text of short pieces: a megabyte of base64 takes 0.8 s through the library and 0.3 s without. So the
//! shape that all byte-level and SentencePiece tokenizers have (isolating splits, then bytes) is run on plain strings;
//! any other goes through the library.

use serde_json::Value;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper,
    SplitDelimiterBehavior,
};

use super::bytes;
use super::split::SplitRegex;
use crate::TextError;
use crate::gguf::pre;

/// One span of the input after the pre-tokenizer.
pub(crate) enum Piece<'a> {
    /// First of all: the bytes of all texts that follow, at least.
    Ahead(usize),
    /// An added token, found before the pre-tokenizer ran.
    Added(u32),
    /// Text for the model, in its own alphabet, and how many of those bytes it is.
    Text(&'a str, usize),
}

/// A compiled `pre_tokenizer` definition.
#[derive(Debug)]
pub(crate) enum PreTokenizer {
    /// Optional leading space, isolating splits, optional byte alphabet: run on plain strings.
    Plain { prefix_space: bool, splits: Vec<SplitRegex>, bytes: bool },
    /// Anything else.
    Stages(Vec<Stage>),
}

#[derive(Debug)]
pub(crate) enum Stage {
    PrefixSpace,
    Split { regex: SplitRegex, behavior: SplitDelimiterBehavior, invert: bool },
    Bytes,
    Library(Box<PreTokenizerWrapper>),
}

impl PreTokenizer {
    /// Compiles the `pre_tokenizer` value of a `tokenizer.json`; `null` is one piece.
    pub(crate) fn new(definition: &Value) -> Result<Self, TextError> {
        let mut stages = Vec::new();
        compile(definition, &mut stages)?;
        Ok(Self::plain(stages))
    }

    fn plain(mut stages: Vec<Stage>) -> Self {
        let prefix_space = matches!(stages.first(), Some(Stage::PrefixSpace));
        let bytes = matches!(stages.last(), Some(Stage::Bytes));
        let splits = usize::from(prefix_space)..stages.len() - usize::from(bytes);
        let isolating = |stage: &Stage| {
            matches!(stage, Stage::Split { behavior: SplitDelimiterBehavior::Isolated, invert: false, .. })
        };
        if !stages[splits.clone()].iter().all(isolating) {
            return Self::Stages(stages);
        }
        let splits = stages.drain(splits).filter_map(|stage| match stage {
            Stage::Split { regex, .. } => Some(regex),
            _ => None,
        });
        Self::Plain { prefix_space, splits: splits.collect(), bytes }
    }

    /// Whether the model's bytes are those of the text, and not of its own alphabet.
    pub(crate) fn is_bytes(&self) -> bool {
        matches!(self, Self::Plain { bytes: true, .. })
    }

    /// Calls `piece` with the pieces of `text` in order.
    pub(crate) fn pieces(
        &self,
        mut text: PreTokenizedString,
        piece: &mut dyn FnMut(Piece<'_>) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        if let Self::Stages(stages) = self {
            for stage in stages {
                stage.run(&mut text).map_err(|e| TextError::tokenizer("pre-tokenizer", e))?;
            }
        }
        let mut spelled = String::new();
        let sections = text.get_splits(OffsetReferential::Normalized, OffsetType::None);
        let texts = sections.iter().filter(|(_, _, added)| added.is_none());
        piece(Piece::Ahead(texts.map(|(section, ..)| section.len()).sum()))?;
        for (section, _, added) in sections {
            match (added, self) {
                (Some(tokens), _) => tokens.iter().try_for_each(|t| piece(Piece::Added(t.id)))?,
                (None, Self::Stages(_)) => piece(Piece::Text(section, section.len()))?,
                (None, Self::Plain { prefix_space, splits, bytes }) => {
                    let spaced;
                    let section = if *prefix_space && !section.starts_with(' ') {
                        spaced = format!(" {section}");
                        &spaced
                    } else {
                        section
                    };
                    isolate(splits, section, &mut |text| {
                        if !bytes {
                            return piece(Piece::Text(text, text.len()));
                        }
                        spelled.clear();
                        bytes::spell(text.as_bytes(), &mut spelled);
                        piece(Piece::Text(&spelled, text.len()))
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// Splits by the first expression, each piece by the second, and so on.
fn isolate(
    splits: &[SplitRegex],
    text: &str,
    piece: &mut dyn FnMut(&str) -> Result<(), TextError>,
) -> Result<(), TextError> {
    match splits {
        [] => piece(text),
        [first, rest @ ..] => first.split(text, &mut |range, _| isolate(rest, &text[range], piece)),
    }
}

impl Stage {
    fn run(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        match self {
            Self::PrefixSpace => text.split(|_, mut section| {
                if !section.get().starts_with(' ') {
                    section.prepend(" ");
                }
                Ok(vec![section])
            }),
            Self::Split { regex, behavior, invert: false } => {
                text.split(|_, section| section.split(regex, *behavior))
            }
            Self::Split { regex, behavior, invert: true } => text
                .split(|_, section| section.split(tokenizers::tokenizer::pattern::Invert(regex), *behavior)),
            Self::Bytes => ByteLevel::new(false, false, false).pre_tokenize(text),
            Self::Library(stage) => stage.pre_tokenize(text),
        }
    }
}

fn compile(definition: &Value, stages: &mut Vec<Stage>) -> Result<(), TextError> {
    let flag = |name: &str, default: bool| definition.get(name).and_then(Value::as_bool).unwrap_or(default);
    let isolated = |pattern: &str| {
        Ok(Stage::Split {
            regex: SplitRegex::new(pattern)?,
            behavior: SplitDelimiterBehavior::Isolated,
            invert: false,
        })
    };
    if definition.is_null() {
        return Ok(());
    }
    match definition.get("type").and_then(Value::as_str) {
        Some("Sequence") => {
            let parts = definition.get("pretokenizers").and_then(Value::as_array);
            let missing = || TextError::field("pre_tokenizer.pretokenizers", "is missing");
            return parts.ok_or_else(missing)?.iter().try_for_each(|part| compile(part, stages));
        }
        Some("ByteLevel") => {
            if flag("add_prefix_space", true) {
                stages.push(Stage::PrefixSpace);
            }
            if flag("use_regex", true) {
                stages.push(isolated(pre::GPT2)?);
            }
            stages.push(Stage::Bytes);
        }
        Some("Split") => stages.push(split_stage(definition)?),
        Some("Digits") if flag("individual_digits", false) => stages.push(isolated(pre::DIGIT)?),
        _ => {
            let stage = serde_json::from_value(definition.clone());
            let stage = stage.map_err(|source| TextError::Json { what: "pre_tokenizer", source })?;
            stages.push(Stage::Library(Box::new(stage)));
        }
    }
    Ok(())
}

fn split_stage(definition: &Value) -> Result<Stage, TextError> {
    let pattern = definition.get("pattern");
    let text = |key| pattern.and_then(|p| p.get(key)).and_then(Value::as_str);
    let regex = match (text("Regex"), text("String")) {
        (Some(pattern), _) => SplitRegex::new(pattern)?,
        (None, Some(literal)) => SplitRegex::literal(literal)?,
        (None, None) => {
            return Err(TextError::field("pre_tokenizer.pattern", "is neither `Regex` nor `String`"));
        }
    };
    let behavior = definition.get("behavior").cloned().unwrap_or_default();
    let behavior = serde_json::from_value(behavior)
        .map_err(|source| TextError::Json { what: "pre_tokenizer.behavior", source })?;
    let invert = definition.get("invert").and_then(Value::as_bool).unwrap_or(false);
    Ok(Stage::Split { regex, behavior, invert })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pieces(pre: &PreTokenizer, text: &str) -> Vec<String> {
        let mut out = Vec::new();
        pre.pieces(text.into(), &mut |piece| {
            if let Piece::Text(text, _) = piece {
                out.push(text.to_owned());
            }
            Ok(())
        })
        .unwrap();
        out
    }

    fn definitions() -> Vec<Value> {
        let byte_level = |prefix, regex| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": false, "use_regex": regex});
        let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let sequence = |parts: Vec<Value>| json!({"type": "Sequence", "pretokenizers": parts});
        vec![
            Value::Null,
            byte_level(false, true),
            byte_level(true, true),
            byte_level(true, false),
            sequence(vec![split(pre::QWEN35), byte_level(false, false)]),
            sequence(vec![json!({"type": "Digits", "individual_digits": true}), byte_level(false, true)]),
            sequence(vec![
                split(r"\p{N}{1,3}"),
                split("[一-龥]+"),
                split(pre::QWEN2),
                byte_level(false, false),
            ]),
        ]
    }

    const TEXTS: [&str; 8] = [
        "Hello, world!  It's 12:30\n\n  ok",
        " leading and trailing ",
        "漢字かな交じり文 123漢4567",
        "e\u{301}a\u{323}\u{307} \u{301}x",
        "\r\n\t x \u{a0}\u{3000} y",
        "x",
        " ",
        "😀👩\u{200d}💻",
    ];

    #[test]
    fn plain_strings_give_the_library_s_pieces() {
        for definition in definitions() {
            let ours = PreTokenizer::new(&definition).unwrap();
            assert!(matches!(ours, PreTokenizer::Plain { .. }), "{definition}");
            let library: Option<PreTokenizerWrapper> = serde_json::from_value(definition.clone()).unwrap();
            for text in TEXTS {
                let mut reference = PreTokenizedString::from(text);
                if let Some(library) = &library {
                    library.pre_tokenize(&mut reference).unwrap();
                }
                let reference = reference.get_splits(OffsetReferential::Normalized, OffsetType::None);
                let reference: Vec<&str> = reference.into_iter().map(|(piece, ..)| piece).collect();
                assert_eq!(pieces(&ours, text), reference, "{definition} on {text:?}");
            }
        }
    }

    #[test]
    fn the_staged_path_gives_the_same_pieces() {
        for definition in definitions() {
            let plain = PreTokenizer::new(&definition).unwrap();
            let mut stages = Vec::new();
            compile(&definition, &mut stages).unwrap();
            let staged = PreTokenizer::Stages(stages);
            for text in TEXTS {
                assert_eq!(pieces(&staged, text), pieces(&plain, text), "{definition} on {text:?}");
            }
        }
    }

    #[test]
    fn other_shapes_go_through_the_library() {
        let metaspace =
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true});
        let gemma = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                           "invert": false});
        for (definition, want) in [(metaspace, &["▁a", "▁b.c"][..]), (gemma, &["a ", "b.c"][..])] {
            let pre = PreTokenizer::new(&definition).unwrap();
            assert!(matches!(pre, PreTokenizer::Stages(_)));
            assert_eq!(pieces(&pre, "a b.c"), want);
        }
    }

    #[test]
    fn unknown_kinds_are_refused() {
        assert!(PreTokenizer::new(&json!({"type": "Telepathy"})).is_err());
        assert!(PreTokenizer::new(&json!({"type": "Split", "pattern": {}})).is_err());
    }
}
