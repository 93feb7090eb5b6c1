//! Session files: what was said, beside what the model has read of it.

use std::path::Path;

use basert_engine::{Engine, Session, session_caller};
use serde_json::{Value, json};

use crate::failure::{Failure, Outcome};
use crate::place;

const IDS: &str = "ids";
const MESSAGES: &str = "messages";

/// What a file at `path` says; `None` if there is none. A place where none can be written is refused.
fn said(path: &Path) -> Outcome<Option<Value>> {
    place::check(path, true)?;
    place::check_folder(path)?;
    if !path.exists() {
        return Ok(None);
    }
    session_caller(path).map(Some).map_err(|e| unusable(path, &e))
}

fn unusable(path: &Path, error: &dyn std::error::Error) -> Failure {
    let hint = format!("name another file, or remove {}", path.display());
    Failure::from_error(error).hint(hint)
}

fn other_kind(path: &Path, holds: &str, command: &str) -> Failure {
    let failure = Failure::new(format!("the session in {} is {holds}", path.display()));
    failure.hint(format!("it goes on with: basert {command} --session"))
}

/// The tokens of a text session, those that were not run included; empty for a new one.
pub fn ids(path: &Path) -> Outcome<Vec<u32>> {
    let Some(said) = said(path)? else { return Ok(Vec::new()) };
    let ids = said.get(IDS).and_then(Value::as_array);
    let ids = ids.ok_or_else(|| other_kind(path, "a conversation", "chat"))?;
    Ok(ids.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect())
}

/// The messages of a conversation; `None` for a new one.
pub fn messages(path: &Path) -> Outcome<Option<Vec<Value>>> {
    let Some(said) = said(path)? else { return Ok(None) };
    let messages = said.get(MESSAGES).and_then(Value::as_array);
    messages.map(|messages| Some(messages.clone())).ok_or_else(|| other_kind(path, "a text", "complete"))
}

/// The session in a file that was found to be usable, or a new one.
pub fn open(engine: &mut Engine, path: Option<&Path>) -> Outcome<Session> {
    match path.filter(|path| path.exists()) {
        None => Ok(Session::default()),
        Some(path) => Session::load(engine, path).map(|found| found.0).map_err(|e| unusable(path, &e)),
    }
}

/// Writes a text session.
pub fn save_ids(session: &Session, engine: &Engine, path: &Path, ids: &[u32]) -> Outcome {
    save(session, engine, path, json!({IDS: ids}))
}

/// Writes a conversation.
pub fn save_messages(session: &Session, engine: &Engine, path: &Path, messages: &[Value]) -> Outcome {
    save(session, engine, path, json!({MESSAGES: messages}))
}

fn save(session: &Session, engine: &Engine, path: &Path, said: Value) -> Outcome {
    session.save(engine, path, said).map(drop).map_err(|e| Failure::from_error(&e))
}
