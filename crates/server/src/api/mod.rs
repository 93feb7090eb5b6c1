//! OpenAI's dialect: requests to jobs for the core, and events back to chunks and whole responses.

pub(crate) mod body;
mod calls;
pub(crate) mod chat;
pub(crate) mod completions;
pub mod fields;
mod grammar;
mod messages;
pub mod openapi;
pub(crate) mod sampling;
mod write_chat;
mod write_completions;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::core::{Event, Folded, Job, Usage};
use crate::model::Model;
use crate::random;

pub(crate) use grammar::asks_for_grammar;
pub(crate) use write_chat::ChatWriter;
pub(crate) use write_completions::CompletionsWriter;

/// A request, read.
#[derive(Debug)]
pub(crate) struct Asked {
    pub jobs: Vec<Job>,
    pub wishes: sampling::Wishes,
    pub warnings: Vec<String>,
}

/// How events become what a client of one endpoint reads.
pub(crate) trait Writer: Send {
    /// What comes before all events.
    fn opening(&mut self) -> Vec<Value>;

    /// The chunk for an event of an answer, if it has one.
    fn chunk(&mut self, answer: usize, event: Event) -> Option<Value>;

    /// The chunk that ends a stream whose client asked for it.
    fn usage_chunk(&self, usage: &Usage) -> Value;

    /// The response that is not streamed.
    fn whole(&mut self, answers: Vec<Folded>, usage: &Usage) -> Value;
}

/// What all chunks of a response share.
#[derive(Debug)]
pub(crate) struct Envelope {
    id: String,
    object: &'static str,
    created: u64,
    model: Arc<Model>,
    /// Chunks have `usage: null` where a chunk with usage comes at the end.
    shows_usage: bool,
    answers: usize,
    warnings: Vec<String>,
}

impl Envelope {
    /// An envelope for the answers to `asked`.
    pub fn new(prefix: &str, object: &'static str, model: Arc<Model>, asked: &Asked) -> Envelope {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Envelope {
            id: random::name(prefix),
            object,
            created,
            model,
            shows_usage: asked.wishes.include_usage,
            answers: asked.jobs.len(),
            warnings: asked.warnings.clone(),
        }
    }

    fn wrap(&self, choices: Value) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("id".to_owned(), self.id.as_str().into());
        map.insert("object".to_owned(), self.object.into());
        map.insert("created".to_owned(), self.created.into());
        map.insert("model".to_owned(), self.model.id.as_str().into());
        map.insert("system_fingerprint".to_owned(), FINGERPRINT.into());
        map.insert("choices".to_owned(), choices);
        map
    }

    /// A chunk with one choice.
    fn chunk(&self, choice: Value, warnings: &[String]) -> Value {
        let mut map = self.wrap(json!([choice]));
        if self.shows_usage {
            map.insert("usage".to_owned(), Value::Null);
        }
        add_warnings(&mut map, warnings);
        Value::Object(map)
    }

    fn usage_chunk(&self, usage: &Usage) -> Value {
        let mut map = self.wrap(json!([]));
        add_usage(&mut map, usage);
        Value::Object(map)
    }

    fn whole(&self, choices: Vec<Value>, usage: &Usage, answers: &[Folded]) -> Value {
        let mut map = self.wrap(Value::Array(choices));
        add_usage(&mut map, usage);
        let theirs = answers.iter().flat_map(|answer| &answer.warnings);
        let warnings: Vec<String> = self.warnings.iter().chain(theirs).cloned().collect();
        add_warnings(&mut map, &warnings);
        Value::Object(map)
    }
}

/// Answers depend on the version, and on the weights.
const FINGERPRINT: &str = concat!("basert-", env!("CARGO_PKG_VERSION"));

fn add_warnings(map: &mut Map<String, Value>, warnings: &[String]) {
    if !warnings.is_empty() {
        map.insert("warnings".to_owned(), json!(warnings));
    }
}

fn add_usage(map: &mut Map<String, Value>, usage: &Usage) {
    let Usage { prompt, cached, completion, reasoning, prefill, decode } = *usage;
    let usage = json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    });
    let rate = |tokens: usize, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    let (prefill, decode) = (prefill.as_secs_f64(), decode.as_secs_f64());
    let timings = json!({
        "cache_n": cached,
        "prompt_n": prompt - cached,
        "prompt_ms": prefill * 1e3,
        "prompt_per_second": rate(prompt - cached, prefill),
        "predicted_n": completion,
        "predicted_ms": decode * 1e3,
        "predicted_per_second": rate(completion.saturating_sub(1), decode),
    });
    map.insert("usage".to_owned(), usage);
    map.insert("timings".to_owned(), timings);
}

/// OpenAI's stand-in for minus infinity, which JSON has not.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
