//! What both generating requests say about sampling and length.

use basert_engine::{GenerateParams, Request, Reuse, SamplingParams};
use basert_text::StopMatcher;
use serde_json::Value;

use super::body::{Body, LARGEST, wrong};
use crate::error::ApiError;
use crate::model::Model;
use crate::random;

/// Most answers to one prompt.
const MOST_ANSWERS: u64 = 16;
/// Most stop strings, and most characters of one.
const MOST_STOPS: usize = 4;
const LONGEST_STOP: usize = 1000;

/// The common part of a request.
#[derive(Debug)]
pub(crate) struct Wishes {
    pub sampling: SamplingParams,
    /// Answers to every prompt.
    pub n: usize,
    pub max_tokens: Option<usize>,
    pub stops: StopMatcher,
    pub eos: Vec<u32>,
    /// Ids with which a message ends.
    pub turn_ends: Vec<u32>,
    pub stream: bool,
    pub include_usage: bool,
    /// Log-probabilities: of so many of the likeliest tokens.
    pub logprobs: Option<usize>,
}

impl Wishes {
    /// Reads everything but log-probabilities, which the two requests spell differently, as they do the number of tokens:
    /// the first of `names` that is there counts, and is at least `fewest`.
    ///
    /// # Errors
    /// Names the first field that is wrong.
    pub fn read(
        body: &Body,
        model: &Model,
        vocab: usize,
        (names, fewest): (&[&str], u64),
    ) -> Result<Wishes, ApiError> {
        let stream = body.bool("stream")?.unwrap_or(false);
        let mut max_tokens = None;
        for name in names {
            max_tokens = max_tokens.or(body.integer(name, fewest, LARGEST)?);
        }
        let eos = if body.bool("ignore_eos")? == Some(true) { Vec::new() } else { model.eos.clone() };
        Ok(Wishes {
            sampling: sampling(body, model, vocab)?,
            n: body.integer("n", 1, MOST_ANSWERS)?.unwrap_or(1),
            max_tokens,
            stops: stops(body)?,
            eos,
            turn_ends: model.eos.clone(),
            stream,
            include_usage: include_usage(body, stream)?,
            logprobs: None,
        })
    }

    /// The engine's request for one of the answers to a prompt.
    ///
    /// # Errors
    /// `context_length_exceeded` if the prompt leaves no room.
    pub fn request(&self, prompt: &[u32], answer: usize, limits: Limits) -> Result<Request, ApiError> {
        let Limits { context, max_tokens, .. } = limits;
        if prompt.is_empty() {
            return Err(ApiError::field(
                "prompt",
                "has no tokens, and this model has no token to begin with",
            ));
        }
        let nothing_wanted = self.max_tokens == Some(0) && prompt.len() <= context;
        if prompt.len() >= context && !nothing_wanted {
            return Err(ApiError::too_long(prompt.len(), context));
        }
        let asked = self.max_tokens.unwrap_or(usize::MAX).min(max_tokens.unwrap_or(usize::MAX));
        let seed = self.sampling.seed.wrapping_add(answer as u64);
        let params = GenerateParams {
            sampling: SamplingParams { seed, ..self.sampling.clone() },
            max_tokens: asked.min(context - prompt.len()),
            eos: self.eos.clone(),
            prefill_chunk: None,
        };
        // Which client asks is known where the request arrived.
        let client = String::new();
        let reuse = Reuse { namespace: String::new(), borders: self.borders(prompt) };
        Ok(Request { prompt: prompt.to_vec(), params, logprobs: self.logprobs, reuse, client })
    }

    /// Where messages end.
    fn borders(&self, prompt: &[u32]) -> Vec<usize> {
        let ends = prompt.iter().zip(1..).filter(|(id, _)| self.turn_ends.contains(id));
        ends.map(|(_, position)| position).collect()
    }
}

/// What a server allows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub context: usize,
    pub max_tokens: Option<usize>,
    /// Most tokens of thinking of requests that do not say.
    pub thinking_budget: Option<usize>,
}

fn sampling(body: &Body, model: &Model, vocab: usize) -> Result<SamplingParams, ApiError> {
    let base = &model.sampling;
    let top_p = body.number("top_p", 0.0, 1.0)?;
    let params = SamplingParams {
        temperature: body.number("temperature", 0.0, 2.0)?.unwrap_or(base.temperature),
        top_k: body.integer("top_k", 0, LARGEST)?.unwrap_or(base.top_k),
        // The engine's is above 0: the smallest keeps one token, as 0 means.
        top_p: top_p.map_or(base.top_p, |p| p.max(f32::MIN_POSITIVE)),
        min_p: body.number("min_p", 0.0, 1.0)?.unwrap_or(base.min_p),
        repetition_penalty: body
            .number("repetition_penalty", f32::MIN_POSITIVE, 10.0)?
            .unwrap_or(base.repetition_penalty),
        presence_penalty: body.number("presence_penalty", -2.0, 2.0)?.unwrap_or(base.presence_penalty),
        frequency_penalty: body.number("frequency_penalty", -2.0, 2.0)?.unwrap_or(base.frequency_penalty),
        logit_bias: logit_bias(body)?.unwrap_or_else(|| base.logit_bias.clone()),
        seed: seed(body)?.or(model.seed).unwrap_or_else(random::number),
    };
    params.validate(vocab).map_err(|e| ApiError::from(&e))?;
    Ok(params)
}

fn seed(body: &Body) -> Result<Option<u64>, ApiError> {
    let read = |value: &Value| {
        let signed = value.as_i64().map(i64::cast_unsigned);
        value.as_u64().or(signed).ok_or_else(|| wrong("seed", "an integer of 64 bits", value))
    };
    body.get("seed").map(read).transpose()
}

fn logit_bias(body: &Body) -> Result<Option<Vec<(u32, f32)>>, ApiError> {
    let Some(value) = body.get("logit_bias") else { return Ok(None) };
    let Some(map) = value.as_object() else {
        return Err(wrong("logit_bias", "an object of token ids and numbers", value));
    };
    map.iter()
        .map(|(id, bias)| {
            let path = format!("logit_bias.{}", id.chars().take(20).collect::<String>());
            let id = id.parse().map_err(|_| ApiError::field(&path, "is not a token id"))?;
            let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
            let bias = bias.ok_or_else(|| ApiError::field(&path, "must be a number from -100 to 100"))?;
            Ok((id, bias as f32))
        })
        .collect::<Result<_, _>>()
        .map(Some)
}

fn stops(body: &Body) -> Result<StopMatcher, ApiError> {
    let stops: Vec<String> = match body.get("stop") {
        None => Vec::new(),
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(list)) => list
            .iter()
            .enumerate()
            .map(|(i, stop)| {
                let text = stop.as_str().map(str::to_owned);
                text.ok_or_else(|| wrong(&format!("stop[{i}]"), "a string", stop))
            })
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(wrong("stop", "a string or a list of strings", other)),
    };
    if stops.len() > MOST_STOPS {
        return Err(ApiError::field(
            "stop",
            format!("has {} strings; at most {MOST_STOPS} are taken", stops.len()),
        ));
    }
    if let Some(i) = stops.iter().position(|stop| stop.len() > LONGEST_STOP) {
        return Err(ApiError::field(format!("stop[{i}]"), format!("is longer than {LONGEST_STOP} bytes")));
    }
    StopMatcher::new(&stops).map_err(ApiError::from)
}

fn include_usage(body: &Body, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = body.get("stream_options") else { return Ok(false) };
    let Some(options) = options.as_object() else {
        return Err(wrong("stream_options", "an object", options));
    };
    if !stream {
        return Err(ApiError::field("stream_options", "needs `stream`: true"));
    }
    match options.get("include_usage") {
        None | Some(Value::Null) => Ok(false),
        Some(value) => {
            value.as_bool().ok_or_else(|| wrong("stream_options.include_usage", "true or false", value))
        }
    }
}
