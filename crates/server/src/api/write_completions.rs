//! Answers of `/v1/completions`.

use std::sync::Arc;

use basert_text::DecodeStream;
use serde_json::{Map, Value, json};

use super::{Asked, Envelope, Writer, finite};
use crate::core::{Event, Folded, Part, Scored, Usage};
use crate::model::Model;

/// Writes chunks and whole answers of a completion.
#[derive(Debug)]
pub(crate) struct CompletionsWriter {
    envelope: Envelope,
    scored: bool,
    /// Where the next token of every answer begins.
    offsets: Vec<Offset>,
}

#[derive(Debug)]
struct Offset {
    decoder: DecodeStream,
    characters: usize,
}

impl CompletionsWriter {
    /// A writer for the answers to `asked`.
    pub fn new(model: Arc<Model>, asked: &Asked) -> CompletionsWriter {
        let offset = || Offset { decoder: DecodeStream::continuing(&model.tokenizer, true), characters: 0 };
        let offsets = asked.jobs.iter().map(|_| offset()).collect();
        let envelope = Envelope::new("cmpl-", "text_completion", model, asked);
        CompletionsWriter { envelope, scored: asked.wishes.logprobs.is_some(), offsets }
    }

    fn choice(&mut self, index: usize, text: &str, scores: &[Scored], finish: Option<&str>) -> Value {
        let logprobs = if self.scored { self.logprobs(index, scores) } else { Value::Null };
        json!({"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish})
    }

    /// Four lists of the same length.
    fn logprobs(&mut self, index: usize, scores: &[Scored]) -> Value {
        let model = &self.envelope.model;
        let (mut tokens, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
        let offset = &mut self.offsets[index];
        for score in scores {
            let text = model.token_text(score.id);
            offsets.push(offset.characters);
            offset.characters += offset.decoder.push(score.id).chars().count();
            tops.push(score.logprob.map(|logprob| top(model, score, &text, logprob)));
            logprobs.push(score.logprob.map(finite));
            tokens.push(text);
        }
        json!({"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets})
    }
}

/// The likeliest tokens and the token itself.
fn top(model: &Model, score: &Scored, text: &str, logprob: f32) -> Map<String, Value> {
    let mut map = Map::new();
    for (id, logprob) in &score.top {
        // Of two tokens with one spelling the likelier counts.
        map.entry(model.token_text(*id)).or_insert_with(|| finite(*logprob).into());
    }
    map.entry(text).or_insert_with(|| finite(logprob).into());
    map
}

impl Writer for CompletionsWriter {
    fn opening(&mut self) -> Vec<Value> {
        let warnings = std::mem::take(&mut self.envelope.warnings);
        if warnings.is_empty() {
            return Vec::new();
        }
        let choice = self.choice(0, "", &[], None);
        vec![self.envelope.chunk(choice, &warnings)]
    }

    fn chunk(&mut self, answer: usize, event: Event) -> Option<Value> {
        match event {
            Event::Progress { .. } => None,
            Event::Delta { part: Part::Content(text), scores } => {
                let choice = self.choice(answer, &text, &scores, None);
                Some(self.envelope.chunk(choice, &[]))
            }
            // A completion is nothing but text.
            Event::Delta { .. } => None,
            Event::Finished { reason, scores, warnings } => {
                let choice = self.choice(answer, "", &scores, Some(reason.name()));
                Some(self.envelope.chunk(choice, &warnings))
            }
        }
    }

    fn usage_chunk(&self, usage: &Usage) -> Value {
        self.envelope.usage_chunk(usage)
    }

    fn whole(&mut self, answers: Vec<Folded>, usage: &Usage) -> Value {
        let choices = answers
            .iter()
            .enumerate()
            .map(|(index, answer)| {
                let finish = answer.reason.map(|reason| reason.name());
                self.choice(index, &answer.content, &answer.scores, finish)
            })
            .collect();
        self.envelope.whole(choices, usage, &answers)
    }
}
