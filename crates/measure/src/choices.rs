//! Multiple choice: which of several continuations does a model find likeliest?

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::speaker::Speaker;
use crate::stats::{Estimate, share};
use crate::{MeasureError, Progress, lines};

/// A question: one line of JSON such as `{"prompt": "The sky is", "choices": [" blue", " made of cheese"], "answer": 0}`.
/// A choice is appended to the prompt as it is, so it brings its own space.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// What comes before every choice.
    pub prompt: String,
    /// At least two continuations.
    pub choices: Vec<String>,
    /// Index of the right one, from 0.
    pub answer: usize,
}

impl Question {
    /// Reads one question from each line that is not empty.
    ///
    /// # Errors
    /// [`MeasureError::Question`] with the number of a line that is not a question, [`MeasureError::NoQuestions`].
    pub fn parse_lines(text: &str) -> Result<Vec<Question>, MeasureError> {
        lines::parse(text, Question::check)
    }

    fn check(&self) -> Result<(), String> {
        let count = self.choices.len();
        if count < 2 {
            Err(format!("a question needs at least 2 choices and has {count}"))
        } else if self.answer >= count {
            Err(format!("`answer` is {} and there are {count} choices, counted from 0", self.answer))
        } else if self.prompt.is_empty() || self.choices.iter().any(String::is_empty) {
            Err("prompt and choices must not be empty".to_owned())
        } else {
            Ok(())
        }
    }
}

/// Result of [`choose`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Choices {
    /// Questions asked.
    pub asked: usize,
    /// Share of questions whose right choice has the largest log-likelihood.
    pub accuracy: Estimate,
    /// The same with log-likelihoods divided by the choice's bytes of UTF-8, so that short choices have no advantage.
    pub accuracy_per_byte: Estimate,
}

/// Puts all questions. The first of equally likely choices counts as chosen.
///
/// # Errors
/// [`MeasureError::Stopped`], and what tokenizer and engine meet.
pub fn choose(
    speaker: &mut Speaker<'_>,
    questions: &[Question],
    progress: Progress,
) -> Result<Choices, MeasureError> {
    let (mut right, mut right_per_byte) = (0, 0);
    for (done, question) in questions.iter().enumerate() {
        let mut likelihoods = Vec::with_capacity(question.choices.len());
        for choice in &question.choices {
            likelihoods.push(continuation(speaker, &question.prompt, choice)?);
        }
        let per_byte = likelihoods.iter().zip(&question.choices).map(|(l, choice)| l / choice.len() as f64);
        let per_byte: Vec<f64> = per_byte.collect();
        right += usize::from(largest(&likelihoods) == question.answer);
        right_per_byte += usize::from(largest(&per_byte) == question.answer);
        if let ControlFlow::Break(()) = progress(done + 1) {
            return Err(MeasureError::Stopped);
        }
    }
    let asked = questions.len();
    Ok(Choices { asked, accuracy: share(right, asked), accuracy_per_byte: share(right_per_byte, asked) })
}

/// Log-likelihood of `choice` after `prompt`. They are tokenised together, and what differs from the prompt alone is
/// scored: a token may span their seam.
fn continuation(speaker: &mut Speaker<'_>, prompt: &str, choice: &str) -> Result<f64, MeasureError> {
    let alone = speaker.plain(prompt)?;
    let ids = speaker.plain(&format!("{prompt}{choice}"))?;
    let shared = alone.iter().zip(&ids).take_while(|(a, b)| a == b).count();
    // A choice may melt into the prompt's last token; then that token is what tells choices apart.
    let first = shared.min(ids.len().saturating_sub(1)).max(1);
    if ids.len() < 2 {
        return Err(MeasureError::TooFewTokens { found: ids.len() });
    }
    speaker.log_likelihood(&ids, first)
}

fn largest(values: &[f64]) -> usize {
    let better = |best: usize, i: usize| if values[i] > values[best] { i } else { best };
    (1..values.len()).fold(0, better)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_no_question_is_named_with_its_number() {
        let good = r#"{"prompt": "The sky is", "choices": [" blue", " red"], "answer": 0}"#;
        assert_eq!(Question::parse_lines(&format!("{good}\n\n{good}\n")).map(|q| q.len()).ok(), Some(2));
        let cases = [
            (r#"{"prompt": "a", "choices": ["b"], "answer": 0}"#, "at least 2"),
            (r#"{"prompt": "a", "choices": ["b", "c"], "answer": 2}"#, "counted from 0"),
            (r#"{"prompt": "", "choices": ["b", "c"], "answer": 0}"#, "empty"),
            (r#"{"prompt": "a", "choices": ["b", "c"], "anwser": 0}"#, "anwser"),
            ("blue", "expected value"),
        ];
        for (line, words) in cases {
            let error = Question::parse_lines(&format!("{good}\n{line}")).unwrap_err().to_string();
            assert!(error.starts_with("line 2: ") && error.contains(words), "{error}");
        }
        assert!(matches!(Question::parse_lines(" \n"), Err(MeasureError::NoQuestions)));
    }

    #[test]
    fn the_first_of_equals_is_chosen() {
        assert_eq!(largest(&[-3.0, -1.0, -1.0]), 1);
        assert_eq!(largest(&[-1.0, -1.0]), 0);
    }
}
