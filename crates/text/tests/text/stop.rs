//! Stop strings in text that arrives in pieces.

use basert_text::{StopMatcher, TextError};
use proptest::prelude::*;

/// Feeds the pieces; returns what came out and whether it stopped.
fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
    let stops: Vec<String> = stops.iter().map(|&s| s.to_owned()).collect();
    let mut matcher = StopMatcher::new(&stops).unwrap();
    let mut out = String::new();
    for piece in pieces {
        let step = matcher.push(piece);
        out += &step.text;
        if step.stopped {
            return (out, true);
        }
    }
    (out + &matcher.finish(), false)
}

/// All ways to cut a text in two, the text as one piece, and character by character.
fn cuts(text: &str) -> Vec<Vec<&str>> {
    let mut all: Vec<Vec<&str>> = text.char_indices().map(|(at, _)| vec![&text[..at], &text[at..]]).collect();
    all.push(vec![text]);
    all.push(text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect());
    all
}

#[test]
fn stops_wherever_the_text_is_cut() {
    for (stops, text, want, stopped) in [
        (&["own fox"][..], "The quick brown fox jumps", "The quick br", true),
        (&["\nUser:"], "ok\nUseful", "ok\nUseful", false),
        (&["\nUser:"], "ok\nUser: hi", "ok", true),
        (&["\nUser:"], "ok\nUse", "ok\nUse", false),
        (&["ab", "abc"], "xabcd", "x", true),
        (&["abc", "ab"], "xabcd", "x", true),
        (&["own fox", "fox"], "The quick brown fox", "The quick br", true),
        (&["bcd", "c"], "abcd", "ab", true),
        (&["b", "a"], "xaby", "x", true),
        (&["aab"], "aaab", "a", true),
        (&["ababc"], "abababc", "ab", true),
        (&["</s>"], "<</s><</s>", "<", true),
        (&["終わり"], "これで終わ終わりです", "これで終わ", true),
        (&["😀"], "a😁😀", "a😁", true),
        (&[], "anything", "anything", false),
        (&["x"], "", "", false),
    ] {
        for pieces in cuts(text) {
            assert_eq!(run(stops, &pieces), (want.to_owned(), stopped), "{stops:?} in {pieces:?}");
        }
    }
}

#[test]
fn text_that_cannot_be_a_stop_is_not_held_back() {
    let mut matcher = StopMatcher::new(&["END".to_owned()]).unwrap();
    let steps = ["aE", "N", "x", "EN"].map(|piece| matcher.push(piece).text);
    assert_eq!(steps, ["a", "", "ENx", ""]);
    assert_eq!(matcher.finish(), "EN");
}

#[test]
fn nothing_follows_a_stop() {
    let mut matcher = StopMatcher::new(&["b".to_owned()]).unwrap();
    assert!(matcher.push("ab").stopped);
    let after = matcher.push("more");
    assert_eq!((after.text.as_str(), after.stopped), ("", true));
    assert_eq!(matcher.finish(), "");
}

#[test]
fn an_empty_stop_string_is_refused() {
    let err = StopMatcher::new(&["a".to_owned(), String::new()]).unwrap_err();
    assert!(matches!(err, TextError::EmptyStop { index: 1 }));
}

proptest! {
    /// The definition: the match that ends first, the longest of those.
    #[test]
    fn stops_as_defined(stops in proptest::collection::vec("[ab]{1,3}", 0..4), text in "[abc]{0,12}") {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let ends = (1..=text.len()).find_map(|end| {
            let matching = stops.iter().filter(|stop| text[..end].ends_with(**stop));
            matching.map(|stop| stop.len()).max().map(|len| end - len)
        });
        let want = (text[..ends.unwrap_or(text.len())].to_owned(), ends.is_some());
        for pieces in cuts(&text) {
            prop_assert_eq!(run(&stops, &pieces), want.clone(), "{:?} in {:?}", stops, pieces);
        }
    }
}
