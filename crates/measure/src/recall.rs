//! Passkey recall: a number hidden in a text that says nothing, asked for at its end, over lengths and depths.
//!
//! The task is that of Mohtashami and Jaggi, "Landmark Attention" (arXiv 2305.16300), section 4.2, with sentences of our
//! own around the key.

use std::ops::ControlFlow;

use serde::Serialize;
use serde_json::json;
use xxhash_rust::xxh64::xxh64;

use crate::speaker::Speaker;
use crate::stats::{Estimate, share};
use crate::{MeasureError, Progress};

/// What the key is hidden in.
const SENTENCES: [&str; 24] = [
    "The old man walked slowly to the river.",
    "A cat slept on the warm wall.",
    "In the morning the baker opened his shop.",
    "The children played behind the school.",
    "It was a quiet day in the village.",
    "A bird sang in the apple tree.",
    "The wind moved the tall grass.",
    "She carried a basket of bread to the market.",
    "The farmer looked after his sheep.",
    "Rain fell on the roof all night.",
    "He closed the window and sat down.",
    "The boat came back before it was dark.",
    "They had soup and cheese for dinner.",
    "A dog ran along the road.",
    "The teacher read a story to the class.",
    "Snow covered the hills in the winter.",
    "The two friends talked about the weather.",
    "A lamp was burning in the kitchen.",
    "The train was late again.",
    "Her brother painted the door blue.",
    "The garden was full of flowers.",
    "Nobody was in the street at that hour.",
    "The moon was bright over the field.",
    "He found an old coin under the table.",
];

/// Most tokens of an answer.
const ANSWER: usize = 32;

/// What to ask.
#[derive(Clone, Debug, PartialEq)]
pub struct RecallPlan {
    /// Tokens of the prompts, at most, and as near as whole sentences get.
    pub lengths: Vec<usize>,
    /// Where the key stands: 0 is the beginning of the text, 1 its end.
    pub depths: Vec<f64>,
    /// Questions for each length and depth, each with another key and other sentences.
    pub trials: usize,
}

impl RecallPlan {
    /// How many questions that is.
    pub fn questions(&self) -> usize {
        self.lengths.len() * self.depths.len() * self.trials
    }

    /// Context that the longest question and its answer need.
    pub fn context(&self) -> usize {
        self.lengths.iter().max().map_or(0, |longest| longest + ANSWER)
    }
}

/// What was recalled at one length and depth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RecallCell {
    /// Tokens of the prompt, at most.
    pub length: usize,
    /// 0 to 1.
    pub depth: f64,
    /// Answers with the key in them.
    pub found: usize,
    /// Questions asked.
    pub asked: usize,
}

/// Result of [`recall`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recall {
    /// Share of all questions whose answer has the key.
    pub share: Estimate,
    /// Questions asked.
    pub asked: usize,
    /// By length, then depth.
    pub cells: Vec<RecallCell>,
}

/// Asks for a pass key of five digits at every length and depth; the likeliest answer counts if it contains the key. The
/// same plan asks the same questions of every model with the same tokenizer.
///
/// # Errors
/// [`MeasureError::RecallLength`], [`MeasureError::Stopped`], and what tokenizer, chat template and engine meet.
pub fn recall(
    speaker: &mut Speaker<'_>,
    plan: &RecallPlan,
    progress: Progress,
) -> Result<Recall, MeasureError> {
    let (mut cells, mut done) = (Vec::new(), 0);
    for &length in &plan.lengths {
        for &depth in &plan.depths {
            let mut found = 0;
            for trial in 0..plan.trials {
                let puzzle = Puzzle { length, depth, trial };
                let prompt = puzzle.prompt(speaker)?;
                let answer = speaker.answer(&prompt, ANSWER)?;
                found += usize::from(has_number(&answer, &puzzle.key()));
                done += 1;
                if let ControlFlow::Break(()) = progress(done) {
                    return Err(MeasureError::Stopped);
                }
            }
            cells.push(RecallCell { length, depth, found, asked: plan.trials });
        }
    }
    let found = cells.iter().map(|cell| cell.found).sum();
    Ok(Recall { share: share(found, done), asked: done, cells })
}

/// One question.
#[derive(Clone, Copy)]
struct Puzzle {
    length: usize,
    depth: f64,
    trial: usize,
}

impl Puzzle {
    /// A number that follows from the question and `index` alone.
    fn draw(&self, index: usize) -> u64 {
        let parts = [self.length as u64, self.depth.to_bits(), self.trial as u64, index as u64];
        xxh64(&parts.map(u64::to_le_bytes).concat(), 0)
    }

    fn key(&self) -> String {
        (10_000 + self.draw(usize::MAX) % 90_000).to_string()
    }

    /// Sentence number `index` of the text, never the one before it again.
    fn sentence(&self, index: usize) -> &'static str {
        let count = SENTENCES.len() as u64;
        // Every third comes from the same third of the list, so neighbours differ.
        let third = count / 3;
        SENTENCES[(index as u64 % 3 * third + self.draw(index) % third) as usize]
    }

    /// The ids of the longest prompt of whole sentences that is not longer than `length`.
    fn prompt(&self, speaker: &Speaker<'_>) -> Result<Vec<u32>, MeasureError> {
        let needed = self.with_sentences(speaker, 0)?.len();
        let Some(room) = self.length.checked_sub(needed) else {
            return Err(MeasureError::RecallLength { length: self.length, needed });
        };
        let mut count = self.estimate(speaker, room)?;
        loop {
            let ids = self.with_sentences(speaker, count)?;
            if ids.len() <= self.length {
                return Ok(ids);
            }
            count = count.saturating_sub(1);
        }
    }

    /// How many sentences take `room` tokens if each is tokenised alone, and one more.
    fn estimate(&self, speaker: &Speaker<'_>, room: usize) -> Result<usize, MeasureError> {
        let (mut count, mut tokens) = (0, 0);
        while tokens <= room {
            let sentence = format!(" {}", self.sentence(count));
            tokens += speaker.tokenizer.encode(&sentence, false, false)?.len().max(1);
            count += 1;
        }
        Ok(count)
    }

    fn with_sentences(&self, speaker: &Speaker<'_>, count: usize) -> Result<Vec<u32>, MeasureError> {
        let key = self.key();
        let needle = format!("The pass key is {key}. Remember it.");
        let at = (self.depth * count as f64).round() as usize;
        let mut text: Vec<&str> = (0..count).map(|index| self.sentence(index)).collect();
        text.insert(at.min(count), &needle);
        let text = format!("Read this text.\n\n{}\n\nWhat is the pass key?", text.join(" "));
        match speaker.template {
            Some(template) => speaker.rendered(template, &json!([{"role": "user", "content": text}]), None),
            None => speaker.plain(&format!("{text} The pass key is")),
        }
    }
}

/// Whether `text` contains `number` as a number of its own.
fn has_number(text: &str, number: &str) -> bool {
    text.split(|c: char| !c.is_ascii_digit()).any(|run| run == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_number_around_the_key_is_not_the_key() {
        for (text, found) in [
            ("The pass key is 48213.", true),
            ("48213", true),
            ("4821", false),
            ("148213", false),
            ("48,213", false),
            ("", false),
        ] {
            assert_eq!(has_number(text, "48213"), found, "{text}");
        }
    }

    #[test]
    fn questions_differ_and_are_the_same_every_time() {
        let puzzle = |length, depth, trial| Puzzle { length, depth, trial };
        let keys = [puzzle(512, 0.0, 0), puzzle(512, 0.0, 1), puzzle(512, 0.5, 0), puzzle(1024, 0.0, 0)]
            .map(|p| p.key());
        assert_eq!(keys, ["32911", "18523", "78810", "76225"]);
        for index in 0..200 {
            assert_ne!(puzzle(512, 0.5, 0).sentence(index), puzzle(512, 0.5, 0).sentence(index + 1));
        }
    }
}
