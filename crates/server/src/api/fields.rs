//! Every field of the two generating requests, and what becomes of it. `docs/api.md` shows this table, and a test sends
//! every field.

use serde_json::Value;

use crate::error::ApiError;

/// What becomes of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handling {
    /// It has its effect.
    Honoured,
    /// 400, unless it is null or the value that changes nothing.
    Refused,
    /// Left alone, and the response says so in `warnings`.
    Warned,
    /// Not a field of this request: as [`Warned`](Self::Warned).
    Unknown,
}

use Handling::{Honoured as H, Refused as R, Unknown as U, Warned as W};

/// A field of a request.
#[derive(Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// In `/v1/chat/completions`.
    pub chat: Handling,
    /// In `/v1/completions`.
    pub completions: Handling,
    /// A value that the test sends, in JSON.
    pub sample: &'static str,
    /// The value of a refused field that changes nothing, in JSON.
    pub neutral: &'static str,
    /// Limits and remarks.
    pub note: &'static str,
}

const fn field(
    name: &'static str,
    (chat, completions): (Handling, Handling),
    sample: &'static str,
    note: &'static str,
) -> Field {
    Field { name, chat, completions, sample, neutral: "null", note }
}

const fn neutral(field: Field, neutral: &'static str) -> Field {
    Field { neutral, ..field }
}

/// All fields.
pub const FIELDS: &[Field] = &[
    field("model", (H, H), "\"toy\"", "a name of `/v1/models`; may be left out"),
    field("messages", (H, U), r#"[{"role":"user","content":"hi"}]"#, "text only; see below"),
    field("prompt", (U, H), "\"hi\"", "a string, token ids, or a list of either (at most 64)"),
    field("stream", (H, H), "false", ""),
    field("stream_options", (H, H), r#"{"include_usage":true}"#, "`include_usage`; needs `stream`"),
    field("max_tokens", (H, H), "3", "completions take 0"),
    field("max_completion_tokens", (H, U), "3", "the same as `max_tokens`"),
    field("n", (H, H), "2", "1 to 16; answer i is drawn with `seed` + i"),
    field("stop", (H, H), r#"["\n\n"]"#, "a string or up to 4"),
    field("seed", (H, H), "7", "any integer of 64 bits"),
    field("temperature", (H, H), "0.5", "0 to 2; without it the model's recommendation, else the server's"),
    field("top_p", (H, H), "0.9", "0 to 1; 0 keeps the likeliest token"),
    field("top_k", (H, H), "20", "extension; 0 keeps all"),
    field("min_p", (H, H), "0.05", "extension; 0 to 1"),
    field("presence_penalty", (H, H), "0.5", "-2 to 2"),
    field("frequency_penalty", (H, H), "0.5", "-2 to 2"),
    field("repetition_penalty", (H, H), "1.1", "extension; above 0, at most 10"),
    field("logit_bias", (H, H), r#"{"5":-100}"#, "token ids to -100 … 100"),
    field("ignore_eos", (H, H), "true", "extension; for load tests"),
    field("logprobs", (H, H), "true", "chat: a boolean; completions: 0 to 5"),
    field("top_logprobs", (H, U), "2", "0 to 20; needs `logprobs`"),
    field("echo", (U, H), "true", "the prompt comes first"),
    field("tools", (H, U), r#"[{"type":"function","function":{"name":"f"}}]"#, "functions only"),
    field("tool_choice", (H, U), "\"none\"", "see below"),
    field("parallel_tool_calls", (H, U), "false", "`false` ends the answer after its first call"),
    field("response_format", (H, H), r#"{"type":"json_object"}"#, "`text`, `json_object`, `json_schema`"),
    field("guided_json", (H, H), r#"{"type":"object"}"#, "extension; a JSON schema"),
    field("guided_regex", (H, H), "\"a+\"", "extension; a regular expression"),
    field("guided_choice", (H, H), r#"["yes","no"]"#, "extension; a list of strings"),
    field("guided_grammar", (H, H), r#""start: \"a\"""#, "extension; a grammar in Lark's form"),
    field("grammar", (H, H), r#""start: \"a\"""#, "extension; the same"),
    field(
        "reasoning_effort",
        (H, U),
        "\"none\"",
        "`none` switches thinking off; others are the template's business",
    ),
    field(
        "thinking_token_budget",
        (H, U),
        "100",
        "extension; most tokens of thinking, which is then closed; also in `chat_template_kwargs`",
    ),
    field("thinking_budget", (H, U), "100", "extension; the same"),
    field("enable_thinking", (H, U), "false", "extension; as in `chat_template_kwargs`"),
    field(
        "chat_template_kwargs",
        (H, U),
        r#"{"enable_thinking":false}"#,
        "extension; variables of the template",
    ),
    neutral(field("best_of", (U, R), "2", "only the answers that are returned are made"), "1"),
    neutral(field("suffix", (U, R), "\"x\"", "no filling in the middle"), "\"\""),
    neutral(field("functions", (R, U), "[{}]", "replaced by `tools`"), "[]"),
    neutral(field("function_call", (R, U), "\"auto\"", "replaced by `tool_choice`"), "\"none\""),
    neutral(field("modalities", (R, U), r#"["audio"]"#, "text only"), r#"["text"]"#),
    field("audio", (R, U), r#"{"voice":"x"}"#, "text only"),
    field("web_search_options", (R, U), "{}", "this server searches nothing"),
    neutral(field("store", (W, U), "true", "nothing is stored"), "false"),
    field("metadata", (W, U), r#"{"a":"b"}"#, "nothing is stored"),
    field("user", (W, W), "\"u\"", "nobody is told apart by it"),
    field("safety_identifier", (W, U), "\"u\"", "nobody is told apart by it"),
    field("prompt_cache_key", (W, U), "\"k\"", "prompts are found by their tokens"),
    field(
        "prompt_cache_options",
        (W, U),
        r#"{"mode":"explicit"}"#,
        "prompts are kept as long as there is room",
    ),
    field("prompt_cache_retention", (W, U), "\"24h\"", "prompts are kept as long as there is room"),
    neutral(field("service_tier", (W, U), "\"flex\"", "there is one tier"), "\"auto\""),
    field("moderation", (R, U), r#"{"model":"omni-moderation-latest"}"#, "no model here judges texts"),
    field("prediction", (W, U), r#"{"type":"content","content":"x"}"#, "it could only save time"),
    field("verbosity", (W, U), "\"low\"", "models here do not know it"),
];

/// Which request a field is looked up for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

impl Field {
    /// What becomes of the field in a request.
    pub fn handling(&self, endpoint: Endpoint) -> Handling {
        match endpoint {
            Endpoint::Chat => self.chat,
            Endpoint::Completions => self.completions,
        }
    }

    fn is_neutral(&self, value: &Value) -> bool {
        value.is_null() || serde_json::from_str::<Value>(self.neutral).is_ok_and(|neutral| neutral == *value)
    }
}

/// Goes through the names of a request's fields: refuses, or collects warnings.
///
/// # Errors
/// For the first field that is refused.
pub(crate) fn judge(
    body: &serde_json::Map<String, Value>,
    endpoint: Endpoint,
    warnings: &mut Vec<String>,
) -> Result<(), ApiError> {
    for (name, value) in body.iter().filter(|(_, value)| !value.is_null()) {
        let field = FIELDS.iter().find(|field| field.name == name);
        match field.map(|field| (field, field.handling(endpoint))) {
            Some((_, Handling::Honoured)) => {}
            Some((field, Handling::Refused)) if !field.is_neutral(value) => {
                return Err(ApiError::unsupported(name, format!("is not supported: {}", field.note)));
            }
            Some((field, Handling::Warned)) if !field.is_neutral(value) => {
                warnings.push(format!("`{name}` has no effect: {}", field.note));
            }
            Some((_, Handling::Refused | Handling::Warned)) => {}
            Some((_, Handling::Unknown)) | None => {
                let short: String = name.chars().take(64).collect();
                warnings.push(format!("`{short}` is not a known field and has no effect"));
            }
        }
    }
    Ok(())
}

/// The table of `docs/api.md`.
pub fn markdown() -> String {
    let word = |handling| match handling {
        Handling::Honoured => "honoured",
        Handling::Refused => "refused",
        Handling::Warned => "warning",
        Handling::Unknown => "–",
    };
    let mut table = String::from("| field | chat | completions | |\n|---|---|---|---|\n");
    for Field { name, chat, completions, note, .. } in FIELDS {
        table += &format!("| `{name}` | {} | {} | {note} |\n", word(*chat), word(*completions));
    }
    table
}
