//! Text to token ids and back, and conversations to prompts.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use basert_text::Bound;
use serde_json::{Value, json};

use super::reading::Weight;
use super::{body, ok};
use crate::api::body::wrong;
use crate::api::chat;
use crate::app::App;
use crate::error::ApiError;

/// `{"content": TEXT, "add_special": false, "parse_special": true, "with_pieces": false}` to `{"tokens": [ID]}`; `prompt` is
/// another name of `content`.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let (fields, bytes) = body::read_sized(&app, request).await?;
    let hosted = app.model(fields.string("model")?)?;
    let (model, context) = (Arc::clone(&hosted.model), hosted.worker.facts().context);
    let content = fields.string("content")?.or(fields.string("prompt")?);
    let content = content.ok_or_else(|| ApiError::field("content", "is missing"))?.to_owned();
    let add_special = fields.bool("add_special")?.unwrap_or(false);
    let parse_special = fields.bool("parse_special")?.unwrap_or(true);
    let tokenizer = model.tokenizer.clone();
    let encode =
        move |bound: &Bound| Ok(tokenizer.encode_within(&content, add_special, parse_special, bound)?);
    let ids = app.reading.read(Weight::of(bytes), context, encode).await?;
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
    let (fields, bytes) = body::read_sized(&app, request).await?;
    let hosted = app.model(fields.string("model")?)?;
    let (model, context) = (Arc::clone(&hosted.model), hosted.worker.facts().context);
    let tokens = fields.get("tokens").ok_or_else(|| ApiError::field("tokens", "is missing"))?;
    let list = tokens.as_array().ok_or_else(|| wrong("tokens", "a list of token ids", tokens))?;
    let id = |(i, id): (usize, &Value)| {
        let known = id.as_u64().and_then(|id| u32::try_from(id).ok());
        known.ok_or_else(|| wrong(&format!("tokens[{i}]"), "a token id", id))
    };
    let ids: Vec<u32> = list.iter().enumerate().map(id).collect::<Result<_, _>>()?;
    let content = app
        .reading
        .read(Weight::of(bytes), context, move |_| Ok(model.tokenizer.decode(&ids, false)))
        .await?;
    Ok(ok(&json!({"content": content})))
}

/// The fields of a chat request that shape its prompt, to `{"prompt": TEXT, "tokens": [ID]}`.
pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut fields, bytes) = body::read_sized(&app, request).await?;
    let hosted = app.model(fields.string("model")?)?;
    let (model, context) = (Arc::clone(&hosted.model), hosted.worker.facts().context);
    let render = move |bound: &Bound| chat::prompt(&mut fields, &model, bound);
    let prompt = app.reading.read(Weight::of(bytes), context, render).await?;
    Ok(ok(&json!({"prompt": prompt.rendered.text, "tokens": prompt.rendered.ids})))
}
