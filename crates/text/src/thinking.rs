//! The thinking part of an answer, apart from the answer itself.
//!
//! Reasoning models write `<think>`, their notes, `</think>`, and then the answer. Qwen3.5's template opens the part in
//! the prompt already, so that the answer begins inside it. The newlines around either part belong to the format.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// What the model tells itself.
    Thinking(String),
    /// What it tells the reader.
    Answer(String),
}

/// Whether an answer to this rendered prompt begins inside a thinking part.
pub fn opens_thinking(prompt: &str) -> bool {
    prompt.trim_end().ends_with(OPEN)
}

/// Takes a streamed answer apart. What it returns, joined by part, does not depend on how the text is cut into pieces.
///
/// Only the beginning of an answer can be a thinking part; tags further on are text. A thinking part that never ends is
/// thinking to the end.
#[derive(Debug, Clone)]
pub struct ThinkSplitter {
    state: State,
    /// Text that cannot be told yet: the beginning of a tag, or newlines that may be the last of their part.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but white space so far. `opened`: the prompt has the opening tag.
    Start {
        opened: bool,
    },
    /// Inside, with something written already.
    Thinking,
    /// Behind the closing tag, with nothing written yet.
    Closed,
    Answer,
}

impl ThinkSplitter {
    /// A splitter for one answer; `opened` says that the prompt [opens](opens_thinking) the thinking part.
    pub fn new(opened: bool) -> Self {
        Self { state: State::Start { opened }, held: String::new() }
    }

    /// Whether the thinking part has begun and not ended.
    pub fn is_thinking(&self) -> bool {
        matches!(self.state, State::Start { opened: true } | State::Thinking)
    }

    /// Whether no thinking can follow: its part has ended, or the answer has begun without one.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Closed | State::Answer)
    }

    /// Takes the next piece and returns what has become certain, in order.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        loop {
            let before = self.state;
            self.step(&mut parts);
            if self.state == before {
                return parts;
            }
        }
    }

    /// Ends the answer: what was held back is text after all.
    pub fn finish(mut self) -> Vec<Part> {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Start { opened: false } | State::Answer => part(Part::Answer, &rest),
            State::Closed => part(Part::Answer, rest.trim_start_matches('\n')),
            State::Start { opened: true } => part(Part::Thinking, rest.trim_matches('\n')),
            State::Thinking => part(Part::Thinking, rest.trim_end_matches('\n')),
        }
    }

    /// Goes as far as one state leads.
    fn step(&mut self, parts: &mut Vec<Part>) {
        match self.state {
            State::Start { opened } => self.start(opened),
            State::Thinking => match self.held.find(CLOSE) {
                Some(at) => {
                    parts.extend(part(Part::Thinking, self.held[..at].trim_end_matches('\n')));
                    self.held.drain(..at + CLOSE.len());
                    self.state = State::Closed;
                }
                None => {
                    let sure = self.held[..self.held.len() - begun(&self.held)].trim_end_matches('\n').len();
                    parts.extend(part(Part::Thinking, &self.held[..sure]));
                    self.held.drain(..sure);
                }
            },
            State::Closed => {
                let newlines = self.held.len() - self.held.trim_start_matches('\n').len();
                self.held.drain(..newlines);
                if !self.held.is_empty() {
                    self.state = State::Answer;
                }
            }
            State::Answer => parts.extend(part(Part::Answer, &std::mem::take(&mut self.held))),
        }
    }

    /// Finds out what the answer begins with.
    fn start(&mut self, opened: bool) {
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(OPEN) {
            self.held = rest.trim_start_matches('\n').to_owned();
            // The tag may be followed by newlines in later pieces.
            self.state = if self.held.is_empty() { State::Start { opened: true } } else { State::Thinking };
        } else if OPEN.starts_with(text) {
            // Too little to say.
        } else if opened {
            let newlines = self.held.len() - self.held.trim_start_matches('\n').len();
            self.held.drain(..newlines);
            self.state = State::Thinking;
        } else {
            self.state = State::Answer;
        }
    }
}

/// Length of the longest end of `text` that is the beginning of the closing tag.
fn begun(text: &str) -> usize {
    (1..CLOSE.len()).rev().find(|&n| text.ends_with(&CLOSE[..n])).unwrap_or(0)
}

fn part(kind: fn(String) -> Part, text: &str) -> Vec<Part> {
    if text.is_empty() { Vec::new() } else { vec![kind(text.to_owned())] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(opened: bool, pieces: &[&str]) -> (String, String) {
        let mut splitter = ThinkSplitter::new(opened);
        let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| splitter.push(piece)).collect();
        parts.extend(splitter.finish());
        let (mut thinking, mut answer) = (String::new(), String::new());
        for part in parts {
            match part {
                Part::Thinking(text) => {
                    assert!(answer.is_empty(), "thinking after the answer: {pieces:?}");
                    thinking += &text;
                }
                Part::Answer(text) => answer += &text,
            }
        }
        (thinking, answer)
    }

    #[test]
    fn however_an_answer_is_cut_its_parts_are_the_same() {
        for (opened, text, thinking, answer) in [
            (false, "plain text\n", "", "plain text\n"),
            (false, "  indented", "", "  indented"),
            (false, "<think>\nhm\nhm\n</think>\n\nyes\n", "hm\nhm", "yes\n"),
            (false, "\n<think>hm</think>yes", "hm", "yes"),
            (false, "<think>\n\n</think>\n\nyes", "", "yes"),
            (false, "what <think> is", "", "what <think> is"),
            (false, "<thin", "", "<thin"),
            (false, "", "", ""),
            (true, "plan.</think>\n\n{\"a\":1}", "plan.", "{\"a\":1}"),
            (true, "\nplan. </thi nk>\n\n", "plan. </thi nk>", ""),
            (true, "<think>\nplan\n</think>\nyes", "plan", "yes"),
            (true, "</think>\n\nyes </think> no", "", "yes </think> no"),
            (true, "never ends </th", "never ends </th", ""),
            (true, "é</think>é", "é", "é"),
        ] {
            let want = (thinking.to_owned(), answer.to_owned());
            assert_eq!(split(opened, &[text]), want, "{text:?}");
            let chars: Vec<String> = text.chars().map(String::from).collect();
            let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
            assert_eq!(split(opened, &chars), want, "{text:?} by characters");
            for (at, _) in text.char_indices() {
                assert_eq!(split(opened, &[&text[..at], &text[at..]]), want, "{text:?} cut at {at}");
            }
        }
    }

    #[test]
    fn text_is_not_held_longer_than_a_tag_needs() {
        let mut splitter = ThinkSplitter::new(true);
        assert!(splitter.is_thinking() && !splitter.is_over());
        assert_eq!(splitter.push("a <"), [Part::Thinking("a ".into())]);
        assert_eq!(splitter.push("b"), [Part::Thinking("<b".into())]);
        assert_eq!(splitter.push("</think>c"), [Part::Answer("c".into())]);
        assert!(!splitter.is_thinking() && splitter.is_over());
        let mut splitter = ThinkSplitter::new(false);
        assert!(!splitter.is_thinking() && !splitter.is_over());
        splitter.push("no");
        assert!(!splitter.is_thinking() && splitter.is_over());
    }

    #[test]
    fn a_prompt_that_ends_in_the_opening_tag_opens_the_thinking() {
        for (prompt, opens) in [
            ("<|im_start|>assistant\n<think>\n", true),
            ("<|im_start|>assistant\n<think>\n\n</think>\n\n", false),
            ("<|im_start|>assistant\n", false),
        ] {
            assert_eq!(opens_thinking(prompt), opens, "{prompt:?}");
        }
    }
}
