//! Tool calls: does a model call what was declared, in a form that can be read, with arguments that fit their schema?

use std::ops::ControlFlow;

use basert_text::tools::{Declared, Dialect, ToolCall, check, parse};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::speaker::Speaker;
use crate::stats::{Estimate, share};
use crate::{MeasureError, Progress, lines};

/// Most tokens of an answer.
const ANSWER: usize = 512;

/// A request that has to be answered with calls: one line of JSON in the form of OpenAI's API.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallTask {
    /// The conversation so far.
    pub messages: Value,
    /// The functions that may be called.
    pub tools: Value,
    /// The calls that are right, in order; if absent, any valid call is.
    pub calls: Option<Vec<ExpectedCall>>,
}

/// A call that is right.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedCall {
    /// The function.
    pub name: String,
    /// All of its arguments.
    pub arguments: Map<String, Value>,
}

impl CallTask {
    /// Reads one task from each line that is not empty.
    ///
    /// # Errors
    /// [`MeasureError::Question`] with the number of a line that is not a task, [`MeasureError::NoQuestions`].
    pub fn parse_lines(text: &str) -> Result<Vec<CallTask>, MeasureError> {
        lines::parse(text, |task: &CallTask| Declared::new(&task.tools).map(drop).map_err(|e| e.to_string()))
    }
}

/// Result of [`call_tools`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolCalls {
    /// Tasks asked.
    pub asked: usize,
    /// Share of answers with at least one call, all of whose calls are well-formed and pass [`basert_text::tools::check`].
    pub valid: Estimate,
    /// Share of answers whose calls are the expected ones, among the tasks that expect some.
    pub exact: Option<Estimate>,
    /// What was wrong with the answers that are not valid.
    pub problems: Vec<CallFault>,
}

/// An answer that is not valid.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallFault {
    /// Number of the task, from 1.
    pub task: usize,
    /// The first problem.
    pub problem: String,
}

/// Puts all tasks and judges the likeliest answers.
///
/// # Errors
/// [`MeasureError::NoToolTemplate`], [`MeasureError::Stopped`], and what tokenizer, chat template and engine meet.
pub fn call_tools(
    speaker: &mut Speaker<'_>,
    tasks: &[CallTask],
    progress: Progress,
) -> Result<ToolCalls, MeasureError> {
    // A template that does not know of tools would leave them out, and the model would be blamed.
    let source = speaker.tokenizer.chat_template().filter(|source| source.contains("tools"));
    let (Some(template), Some(source)) = (speaker.template, source) else {
        return Err(MeasureError::NoToolTemplate);
    };
    let dialect = Dialect::of_template(source);
    let (mut valid, mut exact, mut expecting, mut problems) = (0, 0, 0, Vec::new());
    for (index, task) in tasks.iter().enumerate() {
        let prompt = speaker.rendered(template, &task.messages, Some(&task.tools))?;
        let answer = speaker.answer(&prompt, ANSWER)?;
        let found = judge(&answer, &Declared::new(&task.tools)?.spelled(dialect));
        expecting += usize::from(task.calls.is_some());
        match found {
            Ok(calls) => {
                valid += 1;
                exact +=
                    usize::from(task.calls.as_ref().is_some_and(|expected| are_expected(&calls, expected)));
            }
            Err(problem) => problems.push(CallFault { task: index + 1, problem }),
        }
        if let ControlFlow::Break(()) = progress(index + 1) {
            return Err(MeasureError::Stopped);
        }
    }
    let asked = tasks.len();
    let exact = (expecting > 0).then(|| share(exact, expecting));
    Ok(ToolCalls { asked, valid: share(valid, asked), exact, problems })
}

/// The calls of an answer if all are valid, else the first problem.
fn judge(answer: &str, declared: &Declared) -> Result<Vec<ToolCall>, String> {
    let mut calls = Vec::new();
    for call in parse(answer, declared).calls {
        let call = call.map_err(|bad| bad.to_string())?;
        check(&call, declared).map_err(|problem| problem.to_string())?;
        calls.push(call);
    }
    if calls.is_empty() { Err("the answer has no call".to_owned()) } else { Ok(calls) }
}

fn are_expected(calls: &[ToolCall], expected: &[ExpectedCall]) -> bool {
    let same = |(call, expected): (&ToolCall, &ExpectedCall)| {
        call.name == expected.name && equal_objects(&call.arguments, &expected.arguments)
    };
    calls.len() == expected.len() && calls.iter().zip(expected).all(same)
}

fn equal_objects(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| are_equal(a, b)))
}

/// Equality of JSON values in which 21 and 21.0 are the same number.
fn are_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| are_equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => equal_objects(a, b),
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(calls: &str) -> CallTask {
        let line = r#"{"messages": [{"role": "user", "content": "Heat the hall to 21 degrees."}], "tools": [{"type": "function",
            "function": {"name": "heat", "parameters": {"type": "object", "required": ["room"], "properties":
            {"room": {"type": "string"}, "degrees": {"type": "number"}, "days": {"type": "array", "items": {"type": "integer"}}}}}}],
            "calls": CALLS}"#;
        let line = line.replace('\n', " ").replace("CALLS", calls);
        CallTask::parse_lines(&line).unwrap().remove(0)
    }

    fn answer(parameters: &[(&str, &str)]) -> String {
        let parameters: String =
            parameters.iter().map(|(k, v)| format!("<parameter={k}>\n{v}\n</parameter>\n")).collect();
        format!("<tool_call>\n<function=heat>\n{parameters}</function>\n</tool_call>")
    }

    #[test]
    fn an_answer_is_valid_if_all_of_its_calls_are() {
        let task = task("null");
        let declared = Declared::new(&task.tools).unwrap();
        let good = answer(&[("room", "hall"), ("degrees", "21")]);
        let cases = [
            (good.clone(), None),
            (format!("{good}\n{good}"), None),
            (format!("{good}\n{}", answer(&[("degrees", "21")])), Some("`room` is missing")),
            (answer(&[("room", "hall"), ("degrees", "warm")]), Some("`degrees` must be")),
            (good.replace("heat", "cool"), Some("no function `cool`")),
            (good.replace("</function>\n</tool_call>", ""), Some("cut off")),
            ("I have heated the hall.".to_owned(), Some("no call")),
        ];
        for (text, problem) in cases {
            match (judge(&text, &declared), problem) {
                (Ok(calls), None) => assert!(!calls.is_empty()),
                (Err(found), Some(words)) => assert!(found.contains(words), "{found}"),
                (other, _) => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn calls_are_expected_whatever_the_order_of_keys_and_the_spelling_of_numbers() {
        let expected =
            r#"[{"name": "heat", "arguments": {"degrees": 21.0, "room": "hall", "days": [1, 2]}}]"#;
        let task = task(expected);
        let declared = Declared::new(&task.tools).unwrap();
        let cases = [
            (&[("room", "hall"), ("degrees", "21"), ("days", "[1, 2]")][..], true),
            (&[("room", "hall"), ("degrees", "21"), ("days", "[2, 1]")][..], false),
            (&[("room", "hall"), ("degrees", "21")][..], false),
            (&[("room", "hal"), ("degrees", "21"), ("days", "[1, 2]")][..], false),
        ];
        for (parameters, is_expected) in cases {
            let calls = judge(&answer(parameters), &declared).unwrap();
            assert_eq!(are_expected(&calls, task.calls.as_ref().unwrap()), is_expected, "{parameters:?}");
        }
    }

    #[test]
    fn a_tool_that_cannot_be_declared_is_named_with_its_line() {
        let error =
            CallTask::parse_lines(r#"{"messages": [], "tools": [{"type": "function"}]}"#).unwrap_err();
        assert!(error.to_string().starts_with("line 1: "), "{error}");
    }
}
