//! `/v1/completions`: from the request to jobs.

use basert_text::{Bound, DecodeStream};
use serde_json::Value;

use super::body::{Body, wrong};
use super::grammar::Allowed;
use super::sampling::{Limits, Wishes};
use super::{Asked, fields, grammar};
use crate::core::{Job, Reading};
use crate::error::ApiError;
use crate::model::Model;
use crate::slots::Wants;

/// Most prompts of a request.
const MOST_PROMPTS: usize = 64;

/// Reads a request.
///
/// # Errors
/// Names the field that is wrong.
pub(crate) fn read(
    body: Body,
    model: &Model,
    vocab: usize,
    limits: Limits,
    bound: &Bound,
) -> Result<Asked, ApiError> {
    let mut warnings = Vec::new();
    fields::judge(&body.0, fields::Endpoint::Completions, &mut warnings)?;
    let mut wishes = Wishes::read(&body, model, vocab, (&["max_tokens"], 0))?;
    wishes.logprobs = body.integer("logprobs", 0, 5)?;
    // OpenAI's default, which is not that of chats.
    wishes.max_tokens = wishes.max_tokens.or(Some(16));
    let echo = body.bool("echo")?.unwrap_or(false);
    let prompts = prompts(&body, model, vocab, bound)?;
    let allowed = grammar::read(&body)?.map_or(Allowed::Any, Allowed::Text);
    let holder = grammar::Holder::new(&allowed, None, model, vocab, false)?;
    let mut jobs = Vec::with_capacity(prompts.len() * wishes.n);
    for (index, prompt) in prompts.iter().enumerate() {
        let text = echo.then(|| prompt.text(model));
        let text = text.zip(prompt.ids.first().copied());
        for answer in 0..wishes.n {
            let reading = Reading {
                decoder: DecodeStream::continuing(&model.tokenizer, true),
                stops: wishes.stops.clone(),
                thinking: None,
                tools: None,
                parallel_calls: true,
                echo: text.clone(),
                scored: wishes.logprobs.is_some(),
            };
            let request = wishes.request(&prompt.ids, answer, limits)?;
            let wants = Wants { constraint: holder.constraint(), prompt: wishes.logprobs.filter(|_| echo) };
            jobs.push(Job { request, wants, reading, prompt: index });
        }
    }
    Ok(Asked { jobs, wishes, warnings })
}

struct Prompt {
    /// As it was given; absent if it was ids.
    text: Option<String>,
    ids: Vec<u32>,
}

impl Prompt {
    fn text(&self, model: &Model) -> String {
        self.text.clone().unwrap_or_else(|| model.tokenizer.decode(&self.ids, false))
    }
}

fn prompts(body: &Body, model: &Model, vocab: usize, bound: &Bound) -> Result<Vec<Prompt>, ApiError> {
    let value = body.get("prompt").ok_or_else(|| ApiError::field("prompt", "is missing"))?;
    let prompts: Vec<Prompt> = match value {
        Value::String(text) => vec![of_text(text, model, bound)?],
        Value::Array(list) if list.iter().any(Value::is_number) => vec![of_ids(list, "prompt", vocab)?],
        Value::Array(list) if list.len() > MOST_PROMPTS => {
            let problem = format!("has {} prompts; at most {MOST_PROMPTS} are taken", list.len());
            return Err(ApiError::field("prompt", problem));
        }
        Value::Array(list) => list
            .iter()
            .enumerate()
            .map(|(i, one)| match one {
                Value::String(text) => of_text(text, model, bound),
                Value::Array(ids) => of_ids(ids, &format!("prompt[{i}]"), vocab),
                other => Err(wrong(&format!("prompt[{i}]"), "a string or a list of token ids", other)),
            })
            .collect::<Result<_, _>>()?,
        other => return Err(wrong("prompt", "a string, token ids, or a list of them", other)),
    };
    if prompts.is_empty() { Err(ApiError::field("prompt", "is empty")) } else { Ok(prompts) }
}

/// Control tokens in a raw prompt are read as such: who writes one writes the whole format.
fn of_text(text: &str, model: &Model, bound: &Bound) -> Result<Prompt, ApiError> {
    let ids = model.tokenizer.encode_within(text, true, true, bound)?;
    Ok(Prompt { text: Some(text.to_owned()), ids })
}

fn of_ids(list: &[Value], path: &str, vocab: usize) -> Result<Prompt, ApiError> {
    let read = |(i, id): (usize, &Value)| {
        let known = id.as_u64().filter(|id| *id < vocab as u64).and_then(|id| u32::try_from(id).ok());
        known.ok_or_else(|| wrong(&format!("{path}[{i}]"), &format!("a token id below {vocab}"), id))
    };
    let ids = list.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    Ok(Prompt { text: None, ids })
}
