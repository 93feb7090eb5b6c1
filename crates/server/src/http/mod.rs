//! HTTP: who may speak, which path leads where, and what goes over the wire.

pub(crate) mod body;
mod cors;
mod generate;
mod guard;
mod info;
pub(crate) mod listen;
pub(crate) mod rate;
pub(crate) mod reading;
mod sse;
mod texts;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::Value;

use crate::api::openapi;
use crate::app::App;
use crate::error::ApiError;
use crate::page::{CONTENT_SECURITY_POLICY, FILES, File};

/// Paths and what answers them.
pub fn router(app: Arc<App>) -> Router {
    let pages = FILES
        .iter()
        .fold(Router::new(), |router, file| router.route(file.path, get(move || async move { page(file) })));
    pages
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completions))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{id}", get(info::model))
        .route("/v1/models/load", post(info::load))
        .route("/v1/models/unload", post(info::unload))
        .route("/v1/tokenize", post(texts::tokenize))
        .route("/tokenize", post(texts::tokenize))
        .route("/v1/detokenize", post(texts::detokenize))
        .route("/detokenize", post(texts::detokenize))
        .route("/v1/apply-template", post(texts::apply_template))
        .route("/apply-template", post(texts::apply_template))
        .route("/v1/engine", get(info::engine))
        .route("/health", get(info::health))
        .route("/ready", get(info::ready))
        .route("/metrics", get(info::metrics))
        .route("/props", get(info::props))
        .route("/slots", get(info::slots))
        .route("/openapi.json", get(|| async { ok(&openapi::document()) }))
        .fallback(nowhere)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&app), guard::guard))
        .with_state(app)
}

fn page(file: &File) -> Response {
    let mut response = Response::new(Body::from(file.body));
    let fields = [
        (header::CONTENT_TYPE, file.content_type),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    for (name, value) in fields {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn nowhere() -> ApiError {
    ApiError::not_found(
        "there is nothing at this path; OpenAI's API is under /v1 (base URL http://HOST:PORT/v1), docs/api.md lists all paths",
    )
}

async fn wrong_method() -> ApiError {
    ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, "this path takes another method")
}

/// A response with a JSON body.
pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// The 200 for a value.
fn ok(value: &Value) -> Response {
    json_response(StatusCode::OK, value)
}
