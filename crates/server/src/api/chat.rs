//! `/v1/chat/completions`: from the request to jobs.

use basert_text::tools::Declared;
use basert_text::{DecodeStream, RenderedChat, opens_thinking};
use serde_json::{Map, Value};

use super::body::{Body, wrong};
use super::sampling::{Limits, Wishes};
use super::{Asked, fields, grammar, messages};
use crate::core::{Job, Reading};
use crate::error::ApiError;
use crate::model::Model;
use crate::slots::Wants;

/// A conversation as the model reads it, and what its answer may hold.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub rendered: RenderedChat,
    /// Whose calls are looked for.
    pub tools: Option<Declared>,
    /// The grammar of calls, if the answer must consist of them.
    pub calls: Option<grammar::Asked>,
}

/// Reads a request.
///
/// # Errors
/// Names the field that is wrong.
pub(crate) fn read(mut body: Body, model: &Model, vocab: usize, limits: Limits) -> Result<Asked, ApiError> {
    let mut warnings = Vec::new();
    fields::judge(&body.0, fields::Endpoint::Chat, &mut warnings)?;
    let mut wishes = Wishes::read(&body, model, vocab, (&["max_completion_tokens", "max_tokens"], 1))?;
    wishes.logprobs = logprobs(&body)?;
    let parallel_calls = body.bool("parallel_tool_calls")?.unwrap_or(true);
    let format = grammar::read(&body)?;
    let Prompt { rendered, tools, calls } = prompt(&mut body, model)?;
    if let (Some(format), true) = (&format, tools.is_some()) {
        return Err(ApiError::unsupported(format.field, "cannot be combined with `tools` here"));
    }
    let thinks = opens_thinking(&rendered.text);
    let holder =
        format.or(calls).map(|asked| grammar::Holder::new(&asked, model, vocab, thinks)).transpose()?;
    let reading = Reading {
        decoder: DecodeStream::answering(&model.tokenizer),
        stops: wishes.stops.clone(),
        thinking: Some(thinks),
        tools,
        parallel_calls,
        echo: None,
        scored: wishes.logprobs.is_some(),
    };
    let job = |answer| {
        let request = wishes.request(&rendered.ids, answer, limits)?;
        let wants = Wants { constraint: holder.as_ref().map(grammar::Holder::constraint), prompt: None };
        Ok(Job { request, wants, reading: reading.clone(), prompt: 0 })
    };
    let jobs = (0..wishes.n).map(job).collect::<Result<_, ApiError>>()?;
    Ok(Asked { jobs, wishes, warnings })
}

/// Renders the conversation of a request; also for `/v1/apply-template`.
///
/// # Errors
/// Names the field that is wrong, or says what the template says.
pub(crate) fn prompt(body: &mut Body, model: &Model) -> Result<Prompt, ApiError> {
    let Some(template) = &model.template else {
        let message = format!("the model `{}` has no chat template; use /v1/completions", model.id);
        return Err(ApiError::invalid(message));
    };
    let kwargs = template_kwargs(body)?;
    let messages = body.take("messages").ok_or_else(|| ApiError::field("messages", "is missing"))?;
    let messages = messages::read(messages)?;
    let Tools { shown, declared, calls } = tools(body, model)?;
    let rendered = template.encode(&model.tokenizer, &messages, shown.as_ref(), &kwargs)?;
    Ok(Prompt { rendered, tools: declared, calls })
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

/// The tools of a request, as the template sees them and as calls are read; nothing if the request wants no calls.
#[derive(Default)]
struct Tools {
    shown: Option<Value>,
    declared: Option<Declared>,
    /// The grammar of calls, if there must be some.
    calls: Option<grammar::Asked>,
}

/// What `tool_choice` says.
enum Choice {
    Auto,
    None,
    Required,
    Named(String),
}

fn tools(body: &mut Body, model: &Model) -> Result<Tools, ApiError> {
    let shown = body.take("tools").filter(|tools| tools.as_array().is_none_or(|list| !list.is_empty()));
    let declared = shown.as_ref().map(Declared::new).transpose()?;
    let choice = choice(body, declared.as_ref())?;
    let (Some(tools), false) = (&shown, matches!(choice, Choice::None)) else { return Ok(Tools::default()) };
    if !model.takes_tools() {
        let problem =
            format!("cannot be given to the model `{}`: its chat template has no place for them", model.id);
        return Err(ApiError::unsupported("tools", problem));
    }
    let several = body.bool("parallel_tool_calls")?.unwrap_or(true);
    let calls = match &choice {
        Choice::Auto | Choice::None => None,
        Choice::Required => Some(grammar::calls(tools, None, several, model)),
        Choice::Named(name) => Some(grammar::calls(tools, Some(name), several, model)),
    };
    Ok(Tools { shown, declared, calls })
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
