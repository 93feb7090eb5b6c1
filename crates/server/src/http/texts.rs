//! Text to token ids and back, and conversations to prompts.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::{body, ok};
use crate::api::body::wrong;
use crate::api::chat;
use crate::app::App;
use crate::error::ApiError;

/// `{"content": TEXT, "add_special": false, "parse_special": true, "with_pieces": false}` to `{"tokens": [ID]}`; `prompt` is
/// another name of `content`.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let fields = body::read(&app, request).await?;
    let model = &app.model(fields.string("model")?)?.model;
    let content = fields.string("content")?.or(fields.string("prompt")?);
    let content = content.ok_or_else(|| ApiError::field("content", "is missing"))?;
    let add_special = fields.bool("add_special")?.unwrap_or(false);
    let parse_special = fields.bool("parse_special")?.unwrap_or(true);
    let ids = tokio::task::block_in_place(|| model.tokenizer.encode(content, add_special, parse_special))?;
    let count = ids.len();
    let tokens: Value = if fields.bool("with_pieces")?.unwrap_or(false) {
        ids.into_iter().map(|id| json!({"id": id, "piece": model.token_text(id)})).collect()
    } else {
        ids.into()
    };
    Ok(ok(&json!({"tokens": tokens, "count": count})))
}

/// `{"tokens": [ID]}` to `{"content": TEXT}`.
pub(crate) async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let fields = body::read(&app, request).await?;
    let model = &app.model(fields.string("model")?)?.model;
    let tokens = fields.get("tokens").ok_or_else(|| ApiError::field("tokens", "is missing"))?;
    let list = tokens.as_array().ok_or_else(|| wrong("tokens", "a list of token ids", tokens))?;
    let id = |(i, id): (usize, &Value)| {
        let known = id.as_u64().and_then(|id| u32::try_from(id).ok());
        known.ok_or_else(|| wrong(&format!("tokens[{i}]"), "a token id", id))
    };
    let ids: Vec<u32> = list.iter().enumerate().map(id).collect::<Result<_, _>>()?;
    Ok(ok(&json!({"content": model.tokenizer.decode(&ids, false)})))
}

/// The fields of a chat request that shape its prompt, to `{"prompt": TEXT, "tokens": [ID]}`.
pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let mut fields = body::read(&app, request).await?;
    let model = &app.model(fields.string("model")?)?.model;
    let prompt = tokio::task::block_in_place(|| chat::prompt(&mut fields, model))?;
    Ok(ok(&json!({"prompt": prompt.rendered.text, "tokens": prompt.rendered.ids})))
}
