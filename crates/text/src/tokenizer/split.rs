//! Splitting text by a pre-tokenizer's regular expression, in linear time and without silent failure.
//!
//! Nearly every byte-level tokenizer ends its expression in `|\s+(?!\S)|\s+`. The look-ahead forces a backtracking
//! engine, which is slow, remembers a state per character of a run and gives up after a million; the `tokenizers`
//! library then takes all the remaining text as one piece and reports nothing, so the ids after 1.2 million blanks are
//! wrong. Here these two branches are done by hand and the rest is left to the `regex` crate, which cannot give up.
//! Expressions with other look-around still go to the backtracking engine, but its failure is an error.

use std::ops::Range;

use tokenizers::tokenizer::pattern::Pattern;

use crate::TextError;

/// A compiled split expression.
#[derive(Debug)]
pub(crate) struct SplitRegex(Engine);

#[derive(Debug)]
enum Engine {
    Linear {
        /// Everything before the blank branches.
        head: regex::Regex,
        /// Whether the expression ends in the blank branches.
        blank_tail: bool,
    },
    Backtracking(Box<fancy_regex::Regex>),
}

/// `\s+(?!\S)` takes a run of blanks but leaves the last one to the word that follows; what it cannot take (a single
/// blank before a word) `\s+` does.
const BLANK_TAIL: &str = r"|\s+(?!\S)|\s+";

impl SplitRegex {
    /// Compiles an expression in the syntax of Hugging Face tokenizer files (Oniguruma's).
    pub(crate) fn new(pattern: &str) -> Result<Self, TextError> {
        let before_tail = pattern.strip_suffix(BLANK_TAIL);
        if let Ok(head) = regex::Regex::new(before_tail.unwrap_or(pattern))
            // The engines differ in how they go on after an empty match.
            && !head.is_match("")
        {
            return Ok(Self(Engine::Linear { head, blank_tail: before_tail.is_some() }));
        }
        let regex = fancy_regex::Regex::new(pattern).map_err(|e| TextError::tokenizer("split pattern", e))?;
        Ok(Self(Engine::Backtracking(Box::new(regex))))
    }

    /// An expression that matches just this text.
    pub(crate) fn literal(text: &str) -> Result<Self, TextError> {
        Self::new(&regex::escape(text))
    }

    /// Calls `piece` with consecutive byte ranges that cover `text`, and whether each is a match.
    pub(crate) fn split(
        &self,
        text: &str,
        piece: &mut dyn FnMut(Range<usize>, bool) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        let mut at = 0;
        let mut found = |range: Range<usize>| {
            if at < range.start {
                piece(at..range.start, false)?;
            }
            at = range.end;
            piece(range, true)
        };
        match &self.0 {
            Engine::Linear { head, blank_tail } => linear(head, *blank_tail, text, &mut found)?,
            Engine::Backtracking(regex) => {
                for m in regex.find_iter(text) {
                    found(m.map_err(|e| TextError::tokenizer("split pattern", e))?.range())?;
                }
            }
        }
        if at < text.len() {
            piece(at..text.len(), false)?;
        }
        Ok(())
    }
}

/// The leftmost match first: of `head`, or of the blank branches where `head` does not match.
fn linear(
    head: &regex::Regex,
    blank_tail: bool,
    text: &str,
    found: &mut dyn FnMut(Range<usize>) -> Result<(), TextError>,
) -> Result<(), TextError> {
    let mut at = 0;
    // The next match of `head`, kept while the blanks before it are dealt with, so that no stretch is searched twice.
    let mut next = head.find_at(text, 0);
    while at < text.len() {
        if next.is_some_and(|m| m.start() < at) {
            next = head.find_at(text, at);
        }
        let limit = next.map_or(text.len(), |m| m.start());
        let blank = if blank_tail { blank_match(text, at, limit) } else { None };
        let Some(range) = blank.or_else(|| next.map(|m| m.range())) else { break };
        at = range.end;
        found(range)?;
    }
    Ok(())
}

/// The match of `\s+(?!\S)|\s+` that starts first in `from..limit`. It may end beyond the limit.
fn blank_match(text: &str, from: usize, limit: usize) -> Option<Range<usize>> {
    let start = from + text[from..limit].find(char::is_whitespace)?;
    let run = &text[start..];
    let run = &run[..run.find(|c: char| !c.is_whitespace()).unwrap_or(run.len())];
    let last = run.chars().next_back().map_or(0, char::len_utf8);
    let to_the_end = start + run.len() == text.len();
    let len = if to_the_end || run.len() == last { run.len() } else { run.len() - last };
    Some(start..start + len)
}

impl Pattern for &SplitRegex {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<((usize, usize), bool)>> {
        // The library's contract: empty text is one unmatched range.
        if inside.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut ranges = Vec::new();
        self.split(inside, &mut |range, is_match| {
            ranges.push(((range.start, range.end), is_match));
            Ok(())
        })?;
        Ok(ranges)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::gguf::pre;

    fn pieces<'t>(regex: &SplitRegex, text: &'t str) -> Vec<&'t str> {
        let mut out = Vec::new();
        regex
            .split(text, &mut |range, _| {
                out.push(&text[range]);
                Ok(())
            })
            .unwrap();
        out
    }

    const PATTERNS: [&str; 5] = [pre::QWEN2, pre::QWEN35, pre::LLAMA3, pre::TEKKEN, pre::GPT2];

    /// Each pattern with what a backtracking engine makes of the whole of it, which defines the result.
    static PAIRS: LazyLock<Vec<(SplitRegex, SplitRegex)>> = LazyLock::new(|| {
        let reference = |pattern| Box::new(fancy_regex::Regex::new(pattern).unwrap());
        let pair = |p| (SplitRegex::new(p).unwrap(), SplitRegex(Engine::Backtracking(reference(p))));
        PATTERNS.into_iter().map(pair).collect()
    });

    #[test]
    fn combining_marks_stay_with_their_letters_in_qwen35_and_not_in_qwen2() {
        let qwen2 = SplitRegex::new(pre::QWEN2).unwrap();
        let qwen35 = SplitRegex::new(pre::QWEN35).unwrap();
        for (text, n2, n35) in [("नमस्ते दुनिया", 7, 2), ("e\u{301}tude", 2, 1), ("שָׁלוֹם", 4, 1), ("ไทยน้ำ", 2, 1)]
        {
            assert_eq!((pieces(&qwen2, text).len(), pieces(&qwen35, text).len()), (n2, n35), "{text}");
        }
        assert_eq!(pieces(&qwen35, "a \u{301}b"), ["a", " \u{301}b"]);
        assert_eq!(pieces(&qwen2, "a \u{301}b"), ["a", " \u{301}", "b"]);
    }

    #[test]
    fn code_numbers_and_blanks_split_alike_in_qwen2_and_qwen35() {
        let code = ["x", "->", "y", "(z", "):\n", " ", " ", "2", "0", "2", "6"];
        let blanks = ["it", "'S", " ", "1", "2", "  \n\n", " ", " ok"];
        for pattern in [pre::QWEN2, pre::QWEN35] {
            let regex = SplitRegex::new(pattern).unwrap();
            assert_eq!(pieces(&regex, "x->y(z):\n  2026"), code);
            assert_eq!(pieces(&regex, "it'S 12  \n\n  ok"), blanks);
        }
    }

    #[test]
    fn no_known_pattern_needs_the_backtracking_engine() {
        for pattern in PATTERNS {
            let SplitRegex(engine) = SplitRegex::new(pattern).unwrap();
            assert!(matches!(engine, Engine::Linear { blank_tail: true, .. }), "{pattern}");
        }
    }

    #[test]
    fn a_run_of_blanks_too_long_for_backtracking_is_still_split() {
        let regex = SplitRegex::new(pre::QWEN35).unwrap();
        let text = format!("{}x y", " ".repeat(1_200_000));
        let got = pieces(&regex, &text);
        assert_eq!((got[0].len(), &got[1..]), (1_199_999, &[" x", " y"][..]));
    }

    #[test]
    fn giving_up_is_an_error_and_not_one_big_piece() {
        let regex = SplitRegex::new(r"(?:(?=\s)\s|(?=\s)\s\s)*!|\s+").unwrap();
        let err = regex.split(&" ".repeat(200), &mut |_, _| Ok(())).unwrap_err();
        assert!(err.to_string().contains("split pattern failed"), "{err}");
    }

    #[test]
    fn literals_are_not_taken_for_expressions() {
        assert_eq!(pieces(&SplitRegex::literal(".").unwrap(), "a.b"), ["a", ".", "b"]);
    }

    proptest! {
        #[test]
        fn splits_as_the_backtracking_engine_does(
            text in r"([ \t\r\n\u{a0}\u{3000}]{0,4}|[a-zA-Z]{1,3}|'(s|LL|ſ)|[0-9٣Ⅷ]{1,4}|[!?/\\.]{1,3}|\PC|[éßñ漢字あ한\u{301}\u{323}\u{200d}😀]){0,12}"
        ) {
            for (regex, reference) in &*PAIRS {
                prop_assert_eq!(pieces(regex, &text), pieces(reference, &text), "{:?}", reference);
            }
        }
    }
}
