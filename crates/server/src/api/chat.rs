//! `/v1/chat/completions`: from the request to jobs.

use basert_text::tools::Declared;
use basert_text::{Bound, DecodeStream, RenderedChat, opens_thinking};
use serde_json::{Map, Value};

use super::body::{Body, LARGEST, wrong};
use super::calls::Calls;
use super::grammar::Allowed;
use super::messages::{self, Messages};
use super::sampling::{Limits, Wishes};
use super::{Asked, fields, grammar};
use crate::core::{Job, Reading};
use crate::error::ApiError;
use crate::model::Model;
use crate::slots::Wants;

/// A conversation as the model reads it, and what its answer may hold.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub rendered: RenderedChat,
    /// Whose calls are looked for.
    tools: Option<Tools>,
    /// What of the conversation the model does not read.
    warnings: Vec<String>,
}

/// Reads a request.
///
/// # Errors
/// Names the field that is wrong.
pub(crate) fn read(
    mut body: Body,
    model: &Model,
    vocab: usize,
    limits: Limits,
    bound: &Bound,
) -> Result<Asked, ApiError> {
    let mut warnings = Vec::new();
    fields::judge(&body.0, fields::Endpoint::Chat, &mut warnings)?;
    let mut wishes = Wishes::read(&body, model, vocab, (&["max_completion_tokens", "max_tokens"], 1))?;
    wishes.logprobs = logprobs(&body)?;
    let parallel_calls = body.bool("parallel_tool_calls")?.unwrap_or(true);
    let format = grammar::read(&body)?;
    let budget = thinking_budget(&body)?.or(limits.thinking_budget);
    let Prompt { rendered, tools, warnings: unread } = prompt(&mut body, model, bound)?;
    warnings.extend(unread);
    let thinks = opens_thinking(&rendered.text);
    let allowed = match (&tools, format) {
        (None, None) => Allowed::Any,
        (None, Some(format)) => Allowed::Text(format),
        (Some(tools), format) => tools.allowed(format, parallel_calls, model),
    };
    let holder = grammar::Holder::new(&allowed, budget, model, vocab, thinks)?;
    let reading = Reading {
        decoder: DecodeStream::answering(&model.tokenizer),
        stops: wishes.stops.clone(),
        thinking: Some(thinks),
        tools: tools.map(|tools| tools.declared),
        parallel_calls,
        echo: None,
        scored: wishes.logprobs.is_some(),
    };
    let job = |answer| {
        let request = wishes.request(&rendered.ids, answer, limits)?;
        let wants = Wants { constraint: holder.constraint(), prompt: None };
        Ok(Job { request, wants, reading: reading.clone(), prompt: 0 })
    };
    let jobs = (0..wishes.n).map(job).collect::<Result<_, ApiError>>()?;
    Ok(Asked { jobs, wishes, warnings })
}

/// Renders the conversation of a request; also for `/v1/apply-template`.
///
/// # Errors
/// Names the field that is wrong, or says what the template says.
pub(crate) fn prompt(body: &mut Body, model: &Model, bound: &Bound) -> Result<Prompt, ApiError> {
    let Some(template) = &model.template else {
        let message = format!("the model `{}` has no chat template; use /v1/completions", model.id);
        return Err(ApiError::invalid(message));
    };
    let kwargs = template_kwargs(body)?;
    let messages = body.take("messages").ok_or_else(|| ApiError::field("messages", "is missing"))?;
    let messages = messages::read(messages)?;
    let tools = tools(body, model)?;
    let shown = tools.as_ref().map(|tools| &tools.shown);
    let rendered = template.encode_within(&model.tokenizer, &messages.list, shown, &kwargs, bound);
    let rendered = rendered.map_err(|error| messages.in_request(error))?;
    if tools.as_ref().is_some_and(|tools| !tools.are_in(&rendered.text)) {
        return Err(no_place(model, "shows none of them in this conversation"));
    }
    let warnings = unread_calls(&messages, model).into_iter().collect();
    Ok(Prompt { rendered, tools, warnings })
}

/// What to say of calls in a conversation whose template leaves them out.
fn unread_calls(messages: &Messages, model: &Model) -> Option<String> {
    let has_calls = |message: &Value| message.get("tool_calls").is_some();
    let (index, id) = (messages.list.as_array()?.iter().position(has_calls)?, &model.id);
    let index = messages.index(index);
    (!model.takes_calls()).then(|| {
        format!(
            "`messages[{index}].tool_calls` has no effect: the chat template of `{id}` has no place for calls"
        )
    })
}

/// The error for tools that the model would not see.
fn no_place(model: &Model, problem: &str) -> ApiError {
    let problem = format!(
        "cannot be given to the model `{}`: its chat template {problem}; describe them in a message, or start the server \
         with a --chat-template that shows them",
        model.id
    );
    ApiError::unsupported("tools", problem)
}

/// The variables of the template.
fn template_kwargs(body: &Body) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs = match body.get("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(map)) => map.clone(),
        Some(other) => return Err(wrong("chat_template_kwargs", "an object", other)),
    };
    for reserved in ["messages", "tools", "add_generation_prompt"] {
        if kwargs.contains_key(reserved) {
            let path = format!("chat_template_kwargs.{reserved}");
            return Err(ApiError::field(path, "is set by the request itself"));
        }
    }
    kwargs.insert("add_generation_prompt".to_owned(), true.into());
    if let Some(effort) = body.string("reasoning_effort")? {
        let known = ["none", "minimal", "low", "medium", "high", "xhigh"];
        if !known.contains(&effort) {
            let problem = format!("must be one of {}", known.join(", "));
            return Err(ApiError::field("reasoning_effort", problem));
        }
        kwargs.entry("enable_thinking").or_insert_with(|| (effort != "none").into());
        kwargs.entry("reasoning_effort").or_insert_with(|| effort.into());
    }
    if let Some(enable) = body.bool("enable_thinking")? {
        kwargs.insert("enable_thinking".to_owned(), enable.into());
    }
    Ok(kwargs)
}

/// Most tokens of thinking.
fn thinking_budget(body: &Body) -> Result<Option<usize>, ApiError> {
    const NAMES: [&str; 2] = ["thinking_token_budget", "thinking_budget"];
    let mut found = Vec::new();
    for name in NAMES {
        found.extend(body.integer(name, 0, LARGEST)?.map(|budget| (name.to_owned(), budget)));
    }
    if let Some(Value::Object(kwargs)) = body.get("chat_template_kwargs") {
        let kwargs = Body(kwargs.clone());
        for name in NAMES {
            let budget = kwargs.integer(name, 0, LARGEST)?;
            found.extend(budget.map(|budget| (format!("chat_template_kwargs.{name}"), budget)));
        }
    }
    let Some((first, budget)) = found.first() else { return Ok(None) };
    match found.iter().find(|(_, other)| other != budget) {
        None => Ok(Some(*budget)),
        Some((other, _)) => Err(ApiError::field(other, format!("and `{first}` differ; give one"))),
    }
}

/// The tools of a request that allows calls.
#[derive(Debug)]
struct Tools {
    /// As the template sees them.
    shown: Value,
    /// As calls are read.
    declared: Declared,
    choice: Choice,
}

impl Tools {
    /// Whether a prompt has one of them. Names that a template may spell in another way count as being there.
    fn are_in(&self, prompt: &str) -> bool {
        let is_plain = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
        self.declared.names().any(|name| !is_plain(name) || prompt.contains(name))
    }

    /// What an answer may be, with the format that a text must have.
    fn allowed(&self, format: Option<grammar::Asked>, several: bool, model: &Model) -> Allowed {
        let calls = |only| Calls::new(&self.shown, only, several, model);
        match (&self.choice, format) {
            (Choice::Required, _) => Allowed::Calls(calls(None)),
            (Choice::Named(name), _) => Allowed::Calls(calls(Some(name))),
            (Choice::Auto | Choice::None, None) => Allowed::Any,
            (Choice::Auto | Choice::None, Some(format)) => Allowed::Either(calls(None), format),
        }
    }
}

/// What `tool_choice` says.
#[derive(Debug)]
enum Choice {
    Auto,
    None,
    Required,
    Named(String),
}

fn tools(body: &mut Body, model: &Model) -> Result<Option<Tools>, ApiError> {
    let shown = body.take("tools").filter(|tools| tools.as_array().is_none_or(|list| !list.is_empty()));
    let declared = shown.as_ref().map(Declared::new).transpose()?;
    let choice = choice(body, declared.as_ref())?;
    let (Some(shown), Some(declared)) = (shown, declared) else { return Ok(None) };
    if matches!(choice, Choice::None) {
        return Ok(None);
    }
    if !model.takes_tools() {
        return Err(no_place(model, "has no place for them"));
    }
    Ok(Some(Tools { shown, declared: declared.spelled(model.dialect()), choice }))
}

fn choice(body: &Body, declared: Option<&Declared>) -> Result<Choice, ApiError> {
    let Some(value) = body.get("tool_choice") else { return Ok(Choice::Auto) };
    if let Value::Object(choice) = value {
        let name = choice.get("function").and_then(|function| function.get("name")).and_then(Value::as_str);
        let name = name.ok_or_else(|| ApiError::field("tool_choice.function.name", "is missing"))?;
        if !declared.is_some_and(|declared| declared.names().any(|known| known == name)) {
            let short: String = name.chars().take(64).collect();
            let problem = format!("is `{short}`, which `tools` does not declare");
            return Err(ApiError::field("tool_choice.function.name", problem));
        }
        return Ok(Choice::Named(name.to_owned()));
    }
    match value.as_str() {
        Some("auto") => Ok(Choice::Auto),
        Some("none") => Ok(Choice::None),
        Some("required") if declared.is_some() => Ok(Choice::Required),
        Some("required") => Err(ApiError::field("tool_choice", "is `required`, but there are no `tools`")),
        _ => Err(wrong("tool_choice", "`auto`, `none`, `required` or a function", value)),
    }
}

fn logprobs(body: &Body) -> Result<Option<usize>, ApiError> {
    let wanted = body.bool("logprobs")?.unwrap_or(false);
    let top = body.integer("top_logprobs", 0, 20)?;
    if top.is_some() && !wanted {
        return Err(ApiError::field("top_logprobs", "needs `logprobs`: true"));
    }
    Ok(wanted.then_some(top.unwrap_or(0)))
}
