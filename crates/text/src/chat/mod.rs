//! Chat templates: a conversation as the one string its model was trained on.
//!
//! Templates are Jinja programs written for transformers, which runs them in jinja2 with `trim_blocks`,
//! `lstrip_blocks`, loop controls, its own `tojson` and two functions. The same environment is built here on
//! `minijinja`. What a template refuses is refused: there is no second, simpler format to fall back to, because a model
//! prompted in a format it does not know answers badly and nobody sees why.
//!
//! [`ChatTemplate::encode`] goes all the way to token ids and keeps contents apart from the template's own words: a
//! control token (one flagged special, or one that ends a generation) comes from the template only. In a content its
//! spelling is text. Added tokens that are plain vocabulary, as Qwen's `<think>` and `<tool_call>`, are matched
//! everywhere, as in [`Tokenizer::encode`]. In assistant messages thinking and tool-call tags are matched even where a
//! vocabulary flags them as special, since templates take an answer apart at them.

mod messages;
mod plain;
mod python;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, State, Value as Jinja};
use serde_json::{Map, Value};

use crate::{Bound, TextError, Tokenizer};

/// What one rendering may cost, in `minijinja`'s units (about one per operation and per 64 bytes of output). A long
/// conversation takes some hundred thousand; this stops a template that never ends within seconds.
const FUEL: u64 = 20_000_000;

const NAME: &str = "chat";

pub(crate) use plain::ANSWER_TAGS;

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedChat {
    /// As the template wrote it.
    pub text: String,
    /// As the model reads it.
    pub ids: Vec<u32>,
}

/// A compiled chat template.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: Option<String>,
    eos: Option<String>,
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts that it sees as `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// If the source is not a valid template.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|e| bad_syntax(&e))?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        python::install(&mut environment);
        environment.add_template_owned(NAME, without_generation_marks(source)).map_err(|e| bad_syntax(&e))?;
        Ok(Self { environment, bos: bos.map(str::to_owned), eos: eos.map(str::to_owned) })
    }

    /// Compiles the template that belongs to a tokenizer; `None` if the model has none.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of(tokenizer: &Tokenizer) -> Result<Option<Self>, TextError> {
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.id_to_token(id));
        let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        tokenizer.chat_template().map(|source| Self::new(source, bos.as_deref(), eos.as_deref())).transpose()
    }

    /// Renders a conversation.
    ///
    /// `messages` is an array in OpenAI's form. Tool calls whose `arguments` are a string of JSON (as that API sends
    /// them) reach the template as objects, with the order of keys kept; a string that is not an object is left as it
    /// is. `kwargs` become variables: `add_generation_prompt` (false unless given), `enable_thinking`, or whatever else
    /// the template knows; unknown ones do no harm.
    ///
    /// # Errors
    /// [`TextError::Refused`] with the template's own words if it raises an exception, and the message it was looking
    /// at where that can be told. In particular, whether a system message may come later than first is the template's
    /// decision. Other errors say what is wrong with the messages, or with the template.
    pub fn render(
        &self,
        messages: &Value,
        tools: Option<&Value>,
        kwargs: &Map<String, Value>,
    ) -> Result<String, TextError> {
        let prepared = messages::prepare(messages)?;
        self.run(prepared.messages, tools.cloned(), kwargs.clone(), prepared.odd_arguments)
    }

    /// Renders a conversation to token ids, so that nothing in `messages`, `tools` or `kwargs` becomes a control token
    /// (see the module); otherwise as [`render`](Self::render), for the tokenizer that the template belongs to.
    ///
    /// # Errors
    /// As [`render`](Self::render) and [`Tokenizer::encode`], and [`TextError::NoMark`].
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &Value,
        tools: Option<&Value>,
        kwargs: &Map<String, Value>,
    ) -> Result<RenderedChat, TextError> {
        self.encode_within(tokenizer, messages, tools, kwargs, &Bound::none())
    }

    /// Renders a conversation as [`encode`](Self::encode) does, as long as it keeps to a bound.
    ///
    /// # Errors
    /// As [`encode`](Self::encode) and [`Tokenizer::encode_within`].
    pub fn encode_within(
        &self,
        tokenizer: &Tokenizer,
        messages: &Value,
        tools: Option<&Value>,
        kwargs: &Map<String, Value>,
        bound: &Bound,
    ) -> Result<RenderedChat, TextError> {
        let prepared = messages::prepare(messages)?;
        let plain::Marked { messages, tools, kwargs, mark } =
            plain::mark(tokenizer, prepared.messages, tools, kwargs)?;
        let rendered = self.run(messages, tools, kwargs, prepared.odd_arguments);
        match mark {
            None => {
                let text = rendered?;
                Ok(RenderedChat { ids: tokenizer.encode_within(&text, false, true, bound)?, text })
            }
            Some(mark) => {
                let text = rendered.map_err(|e| e.without(mark))?;
                Ok(RenderedChat {
                    ids: tokenizer.encode_marked(&text, mark, bound)?,
                    text: text.replace(mark, ""),
                })
            }
        }
    }

    fn run(
        &self,
        messages: Value,
        tools: Option<Value>,
        kwargs: Map<String, Value>,
        odd_arguments: Option<String>,
    ) -> Result<String, TextError> {
        let mut variables = Map::new();
        for (name, token) in [("bos_token", &self.bos), ("eos_token", &self.eos)] {
            if let Some(token) = token {
                variables.insert(name.to_owned(), token.as_str().into());
            }
        }
        variables.insert("documents".to_owned(), Value::Null);
        variables.insert("add_generation_prompt".to_owned(), false.into());
        variables.extend(kwargs);
        variables.insert("messages".to_owned(), messages);
        variables.insert("tools".to_owned(), tools.unwrap_or_default());
        let template = self.environment.get_template(NAME).map_err(|e| failure(&e))?;
        template.render(Jinja::from(Serde(variables))).map_err(|e| match (failure(&e), odd_arguments) {
            (TextError::TemplateFailed { reason, .. }, Some(path)) => TextError::Message {
                path,
                problem: format!("is not a JSON object, and the chat template needs one: {reason}"),
            },
            (other, _) => other,
        })
    }
}

/// The exception of a template that refuses a conversation.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
struct Refusal {
    message: Option<usize>,
    reason: String,
}

fn raise_exception(state: &State<'_, '_>, reason: String) -> Result<Jinja, minijinja::Error> {
    let refusal = Refusal { message: current_message(state), reason: reason.clone() };
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, reason).with_source(refusal))
}

/// The index of the message that the template's loop is at. By convention the loop variable is `message`; the loop may
/// be over a tail of the conversation, or be an inner one.
fn current_message(state: &State<'_, '_>) -> Option<usize> {
    let (messages, message) = (state.lookup("messages")?, state.lookup("message")?);
    let count = messages.len()?;
    let is_it = |index: usize| messages.get_item_by_index(index).is_ok_and(|m| m == message);
    let by_loop = || {
        let this_loop = state.lookup("loop")?;
        let number = |name| usize::try_from(this_loop.get_attr(name).ok()?).ok();
        number("index0")?.checked_add(count.checked_sub(number("length")?)?).filter(|&index| is_it(index))
    };
    let by_search = || {
        let mut found = (0..count).filter(|&index| is_it(index));
        found.next().filter(|_| found.next().is_none())
    };
    by_loop().or_else(by_search)
}

fn bad_syntax(error: &minijinja::Error) -> TextError {
    TextError::TemplateSyntax { line: error.line().unwrap_or_default(), reason: reason(error) }
}

fn failure(error: &minijinja::Error) -> TextError {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(refusal) = inner.downcast_ref::<Refusal>() {
            return TextError::Refused { message: refusal.message, reason: refusal.reason.clone() };
        }
        source = inner.source();
    }
    TextError::TemplateFailed { line: error.line().unwrap_or_default(), reason: reason(error) }
}

fn reason(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// transformers marks the assistant's part with `{% generation %}` for training. The marks print nothing but open a
/// scope, so `{% with %}` stands in for them.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let Some(close) = rest[open..].find("%}").map(|at| open + at) else { break };
        let tag = &rest[open + 2..close];
        let name = tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        out.push_str(&rest[..open + 2]);
        match name {
            "generation" => out.push_str(&tag.replace("generation", "with")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endwith")),
            _ => out.push_str(tag),
        }
        rest = &rest[close..];
    }
    out + rest
}
