//! Tool calls in what a model has generated, and their judgement by the schemas that were declared.
//!
//! - [`Declared`]: the tools of a request.
//! - [`parse`], [`ToolParser`]: from text, whole or in pieces, to calls.
//! - [`check`]: a call against the declaration of its function.
//!
//! Text in, values out: what to do with a bad call is the caller's decision, and so is whether there is anything to look
//! for (no tools, or `tool_choice: "none"`). Reasoning is not looked at here; hand in what follows it.
//!
//! # Grammar
//! A call is spelled in one of five dialects, which a model's chat template [tells](Dialect::of_template). Blanks between tags
//! are free.
//!
//! ```text
//! Qwen           Qwen 3.5     <tool_call> <function=NAME> (<parameter=KEY>\nVALUE\n</parameter>)* </function> </tool_call>
//!                Hermes       <tool_call> {"name": NAME, "arguments": {...}} </tool_call>
//! Llama          Llama 3      <|python_tag|>? {"name": NAME, "parameters": {...}} (;? {...})*
//! Mistral        up to v3     [TOOL_CALLS] [{"name": NAME, "arguments": {...}, "id": ID}, ...]
//!                later        ([TOOL_CALLS] NAME ([CALL_ID] ID)? [ARGS] {...})*
//! FunctionGemma               <start_function_call> call:NAME{KEY:<escape>TEXT<escape>,KEY:3,...} <end_function_call>
//! Gemma4                      <|tool_call> call:NAME{KEY:<|"|>TEXT<|"|>,KEY:[true,{...}],...} <tool_call|>
//! ```
//!
//! The two forms of one dialect are told apart by what follows the tag.
//!
//! - A VALUE of the XML is not escaped. It ends at the first `</parameter>` that a `<parameter=` or a `</function>` follows, so
//!   it may hold any other tag. One line break at its begin and one at its end belong to the format, all others to the value.
//! - `</function></tool_call>`, or `</parameter></tool_call>`, in a VALUE end the call as a malformed one: the model forgot
//!   a closing tag, and the value would otherwise swallow the next call.
//! - NAME and KEY of the XML end at `>` and hold no line break. A parameter that is given twice makes the call a bad one.
//! - Llama's calls have no tag: they are calls where the answer begins with one, or goes on with one behind another, and the name
//!   is that of a declared function. Anything else is text, to its end.
//! - A TEXT of Gemma's ends at the next quote, whatever it holds.
//! - A malformed call reaches to what closes it, or to what opens the next one, or to the end.
//! - What is cut off before `</function>`, or before the end of the arguments, is [`CallProblem::CutOff`], even if all
//!   values so far are complete: nobody knows which parameters were to follow. A call of which only what closes it is
//!   missing counts.
//!
//! # The type of a VALUE
//! JSON and Gemma's spelling bring their types. In the XML the schema of the parameter decides:
//!
//! - Only a string: the text as it is, be it `007` or `{"a": 1}`.
//! - No string: the text must be JSON of a type that the schema admits. `True`, `False` and `None`, which chat templates
//!   make of booleans and null, are taken too. Anything else is [`CallProblem::WrongType`].
//! - A string or something else (`anyOf`, a list of types, a mixed `enum`): of the JSON value and the text, in this order,
//!   the first that satisfies the schema; if neither does, the first whose type does. So for a number or a string, `250` is
//!   the number.
//! - Anything (no schema, or one that says nothing about the type): an object or array if the text is one, else a string.
//!
//! Numbers are integers of 64 bits, or `f64`.

mod declared;
mod dialect;
mod judge;
mod parser;
mod progress;
mod schema;
mod transcode;
mod value;

use serde_json::{Map, Value};

pub use declared::Declared;
pub(crate) use dialect::CALL_TAGS;
pub use dialect::Dialect;
pub use parser::{Piece, ToolParser};

/// A call of a function, as a model made it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The function, which need not be a declared one.
    pub name: String,
    /// Its arguments, in the order in which they were generated.
    pub arguments: Map<String, Value>,
}

/// What should have been a call and is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct BadCall {
    /// All of its text, the tags included.
    pub raw: String,
    /// Why it is no call.
    pub problem: CallProblem,
}

/// What is wrong with a call. Paths name an argument or a part of one: `days[2].name`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallProblem {
    /// The text ended inside of the call.
    #[error("the call is cut off")]
    CutOff,
    /// The text does not follow the grammar.
    #[error("the call is malformed: {expected} is missing before `{found}`")]
    Malformed {
        /// What should have come.
        expected: &'static str,
        /// The begin of what came instead.
        found: String,
    },
    /// The JSON of the call is not valid, or not that of a call.
    #[error("the call is not JSON of a name and arguments: {reason}")]
    Json {
        /// What is wrong, and where.
        reason: String,
    },
    /// An argument is given twice.
    #[error("argument `{path}` is given twice")]
    Repeated {
        /// The argument.
        path: String,
    },
    /// A value cannot be of a type that the schema admits.
    #[error("argument `{path}` must be {expected}, and is `{found}`")]
    WrongType {
        /// The argument.
        path: String,
        /// The types that are admitted.
        expected: String,
        /// The begin of the value.
        found: String,
    },
    /// No such function was declared.
    #[error("there is no function `{name}`")]
    Undeclared {
        /// The function.
        name: String,
    },
    /// A required argument is not given.
    #[error("argument `{path}` is missing")]
    Missing {
        /// The argument.
        path: String,
    },
    /// An argument is given that the schema rules out.
    #[error("there is no argument `{path}`")]
    Unexpected {
        /// The argument.
        path: String,
    },
    /// A value has the right type, and breaks another rule of its schema.
    #[error("argument `{path}` {problem}")]
    Invalid {
        /// The argument.
        path: String,
        /// The rule, as the rest of a sentence.
        problem: String,
    },
}

/// A generated text, taken apart.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Parsed {
    /// The text around the calls, without blanks directly before a call, and without those after the last one. If there
    /// is no call, all of the text.
    pub content: String,
    /// The calls, good and bad, in order.
    pub calls: Vec<Result<ToolCall, BadCall>>,
}

/// Takes a whole generated text apart. The calls have the types of their schemas as far as [the grammar](self) needs them;
/// [`check`] judges the rest.
pub fn parse(text: &str, declared: &Declared) -> Parsed {
    let mut parser = ToolParser::new(declared);
    let mut pieces = parser.push(text);
    pieces.extend(parser.finish());
    let mut parsed = Parsed::default();
    for piece in pieces {
        match piece {
            Piece::Text(text) => parsed.content.push_str(&text),
            Piece::Call(call) => parsed.calls.push(call),
            // Only from a streaming parser.
            Piece::Opened { .. } | Piece::Arguments(_) => {}
        }
    }
    parsed
}

/// Judges a call by the declaration of its function.
///
/// Judged are `type`, `enum`, `const`, `properties`, `required`, `additionalProperties`, `items`, `minimum`, `maximum`,
/// `exclusiveMinimum`, `exclusiveMaximum` (as numbers), `minLength`, `maxLength` (in characters), `minItems`, `maxItems`,
/// `anyOf`, `oneOf`, `allOf` and `$ref` within the declaration. As in JSON Schema, an argument that `properties` does not
/// name is allowed unless `additionalProperties` rules it out. A function declared without `parameters` takes none.
///
/// **Not judged**, so that a call which passes may still break them: `pattern`, `format`, `multipleOf`, `uniqueItems`,
/// `contains`, `prefixItems` (and `items` beside it, or as an array), `patternProperties` (and `additionalProperties` beside
/// it), `propertyNames`, `minProperties`, `maxProperties`, `not`, `if`, `dependent*`, `unevaluated*`.
///
/// The `jsonschema` crate would judge them all; it brings some sixty crates, among them a second `syn` and a second
/// `fancy-regex`, for a handful of comparisons.
///
/// # Errors
/// The first problem found.
pub fn check(call: &ToolCall, declared: &Declared) -> Result<(), CallProblem> {
    let Some(tool) = declared.tool(&call.name) else {
        return Err(CallProblem::Undeclared { name: call.name.clone() });
    };
    judge::Judge::new(&tool.parameters).arguments(&call.arguments)
}

/// The begin of a text, short enough for a message and on one line.
fn excerpt(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut rest = text.chars();
    let mut begin: String =
        rest.by_ref().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if rest.next().is_some() {
        begin.push('…');
    }
    begin
}
