//! Answers of `/v1/chat/completions`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Asked, Envelope, Writer, finite};
use crate::core::{Event, Folded, Part, Scored, Usage};
use crate::model::Model;

/// Writes chunks and whole answers of a chat.
#[derive(Debug)]
pub(crate) struct ChatWriter {
    envelope: Envelope,
    scored: bool,
}

impl ChatWriter {
    /// A writer for the answers to `asked`.
    pub fn new(model: Arc<Model>, asked: &Asked) -> ChatWriter {
        let object = if asked.wishes.stream { "chat.completion.chunk" } else { "chat.completion" };
        let envelope = Envelope::new("chatcmpl-", object, model, asked);
        ChatWriter { envelope, scored: asked.wishes.logprobs.is_some() }
    }

    /// `delta`: what is new, `finish`: the reason of a last chunk.
    fn choice(&self, index: usize, delta: Value, scores: &[Scored], finish: Option<&str>) -> Value {
        let logprobs = self.logprobs(scores, false);
        json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish})
    }

    fn logprobs(&self, scores: &[Scored], always: bool) -> Value {
        if !self.scored || (scores.is_empty() && !always) {
            return Value::Null;
        }
        let model = &self.envelope.model;
        let token = |id: u32, logprob: Option<f32>| {
            json!({
                "token": model.token_text(id),
                "logprob": logprob.map(finite),
                "bytes": model.tokenizer.token_bytes(id).unwrap_or_default(),
            })
        };
        let scored = |score: &Scored| {
            let mut entry = token(score.id, score.logprob);
            let top = score.top.iter().map(|(id, logprob)| token(*id, Some(*logprob)));
            entry["top_logprobs"] = top.collect();
            entry
        };
        json!({"content": scores.iter().map(scored).collect::<Vec<_>>()})
    }
}

impl Writer for ChatWriter {
    fn opening(&mut self) -> Vec<Value> {
        let warnings = std::mem::take(&mut self.envelope.warnings);
        let role = json!({"role": "assistant", "content": ""});
        (0..self.envelope.answers)
            .map(|index| {
                let warnings = if index == 0 { &warnings[..] } else { &[] };
                self.envelope.chunk(self.choice(index, role.clone(), &[], None), warnings)
            })
            .collect()
    }

    fn chunk(&mut self, answer: usize, event: Event) -> Option<Value> {
        let (part, scores) = match event {
            Event::Progress { .. } => return None,
            Event::Delta { part, scores } => (part, scores),
            Event::Finished { reason, scores, warnings } => {
                let choice = self.choice(answer, json!({}), &scores, Some(reason.name()));
                return Some(self.envelope.chunk(choice, &warnings));
            }
        };
        let call = |index: usize, rest: Value| {
            let mut call = json!({"index": index});
            if let (Value::Object(call), Value::Object(rest)) = (&mut call, rest) {
                call.extend(rest);
            }
            json!({"tool_calls": [call]})
        };
        let delta = match part {
            Part::Reasoning(text) => json!({"reasoning_content": text}),
            Part::Content(text) => json!({"content": text}),
            Part::CallOpened { index, id, name } => call(
                index,
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": ""}}),
            ),
            Part::CallArguments { index, text } => call(index, json!({"function": {"arguments": text}})),
        };
        Some(self.envelope.chunk(self.choice(answer, delta, &scores, None), &[]))
    }

    fn usage_chunk(&self, usage: &Usage) -> Value {
        self.envelope.usage_chunk(usage)
    }

    fn whole(&mut self, answers: Vec<Folded>, usage: &Usage) -> Value {
        let choice = |(index, answer): (usize, &Folded)| {
            json!({
                "index": index,
                "message": message(answer),
                "logprobs": self.logprobs(&answer.scores, true),
                "finish_reason": answer.reason.map(|reason| reason.name()),
            })
        };
        let choices = answers.iter().enumerate().map(choice).collect();
        self.envelope.whole(choices, usage, &answers)
    }
}

fn message(answer: &Folded) -> Value {
    let Folded { reasoning, content, calls, .. } = answer;
    // As OpenAI has it: null where calls are all that there is.
    let content = if content.is_empty() && !calls.is_empty() { Value::Null } else { content.as_str().into() };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.as_str().into();
    }
    if !calls.is_empty() {
        let calls = calls.iter().map(|call| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        });
        message["tool_calls"] = calls.collect();
    }
    message
}
