//! What there is, how it was set up, and how it is doing.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use basert_engine::PrefixStats;
use serde_json::{Value, json};

use super::{body, json_response, ok};
use crate::app::{App, Hosted};
use crate::error::ApiError;

/// `/v1/models`.
pub(crate) async fn models(State(app): State<Arc<App>>) -> Response {
    let data: Vec<Value> = app.hosted.iter().map(describe).collect();
    ok(&json!({"object": "list", "data": data}))
}

/// `/v1/models/{id}`.
pub(crate) async fn model(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id.map_err(|_| ApiError::not_found("the model's name in the path is no text"))?;
    Ok(ok(&describe(app.model(Some(&id))?)))
}

fn describe(hosted: &Hosted) -> Value {
    let Hosted { model, worker } = hosted;
    let facts = worker.facts();
    json!({
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "basert",
        "status": if worker.is_loaded() { "loaded" } else { "unloaded" },
        "max_model_len": facts.context,
        "meta": {"n_ctx": facts.context, "n_vocab": facts.vocab},
        "capabilities": {
            "chat": model.template.is_some(),
            "thinking": model.can_think(),
            "tools": model.takes_tools(),
            "context": facts.context,
            "slots": facts.slots,
            "k_type": facts.engine["k_type"],
            "v_type": facts.engine["v_type"],
            "page_tokens": facts.engine["page_tokens"],
        },
    })
}

/// `/v1/models/load`, with `{"model": NAME}`.
pub(crate) async fn load(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let hosted = named(&app, request).await?;
    hosted.worker.load().await?;
    Ok(ok(&describe(hosted)))
}

/// `/v1/models/unload`, with `{"model": NAME}`.
pub(crate) async fn unload(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let hosted = named(&app, request).await?;
    hosted.worker.unload().await?;
    Ok(ok(&describe(hosted)))
}

async fn named(app: &App, request: Request) -> Result<&Hosted, ApiError> {
    let fields = body::read(app, request).await?;
    app.model(fields.string("model")?)
}

/// `/v1/engine`: what was selected at load, by model.
pub(crate) async fn engine(State(app): State<Arc<App>>) -> Response {
    let models = app.hosted.iter().map(|hosted| {
        let facts = hosted.worker.facts();
        json!({"model": hosted.model.id, "slots": facts.slots, "engine": facts.engine})
    });
    ok(&json!({"version": env!("CARGO_PKG_VERSION"), "models": models.collect::<Vec<_>>()}))
}

/// `/health`: whether the server lives.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    if app.hosted.iter().all(|hosted| hosted.worker.is_alive()) {
        Ok(ok(&json!({"status": "ok"})))
    } else {
        Err(ApiError::stopped())
    }
}

/// `/ready`: whether it takes requests for answers.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    if app.is_draining() {
        return Err(ApiError::unavailable("the server is shutting down", 10));
    }
    health(State(app)).await
}

/// `/metrics`, in Prometheus' format.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let slots = app.hosted.iter().flat_map(|hosted| hosted.worker.slots().active());
    let (mut running, mut all) = (0, 0);
    for slot in slots {
        all += 1;
        running += usize::from(slot.is_running());
    }
    for Hosted { model, worker } in &app.hosted {
        app.metrics.prefixes(&model.id, worker.prefix_stats());
    }
    let text = app.metrics.text(running, all - running);
    let mut response = Response::new(Body::from(text.map_err(|e| ApiError::internal(e.to_string()))?));
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// `/props`: as llama-server's users know it, and what was selected.
pub(crate) async fn props(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let hosted = app.model(None)?;
    let (model, facts) = (&hosted.model, hosted.worker.facts());
    let sampling = &model.sampling;
    Ok(ok(&json!({
        "default_generation_settings": {
            "n_ctx": facts.context,
            "params": {
                "temperature": decimal(sampling.temperature),
                "top_k": sampling.top_k,
                "top_p": decimal(sampling.top_p),
                "min_p": decimal(sampling.min_p),
                "repeat_penalty": decimal(sampling.repetition_penalty),
                "presence_penalty": decimal(sampling.presence_penalty),
                "frequency_penalty": decimal(sampling.frequency_penalty),
                "max_tokens": app.config.max_tokens,
            },
        },
        "total_slots": facts.slots,
        "model_path": model.path,
        "model_alias": model.id,
        "chat_template": model.template_source,
        "bos_token": model.tokenizer.bos().and_then(|id| model.tokenizer.id_to_token(id)),
        "eos_token": model.tokenizer.eos().and_then(|id| model.tokenizer.id_to_token(id)),
        "build_info": concat!("basert ", env!("CARGO_PKG_VERSION")),
        "k_type": facts.engine["k_type"],
        "v_type": facts.engine["v_type"],
        "prefix_cache": hosted.worker.prefix_stats().map(|stats| prefixes(&stats)),
        "engine": facts.engine,
        "capabilities": describe(hosted)["capabilities"],
        "uptime_s": app.started.elapsed().as_secs(),
        "api_key_needed": !app.config.api_keys.is_empty(),
    })))
}

/// Counters of a prefix cache.
fn prefixes(stats: &PrefixStats) -> Value {
    json!({
        "lookups": stats.lookups,
        "hits": stats.hits,
        "misses": stats.lookups - stats.hits,
        "tokens_asked": stats.asked_tokens,
        "tokens_saved": stats.hit_tokens,
        "pages": stats.pages,
        "snapshots": stats.snapshots,
        "evicted_pages": stats.evicted_pages,
        "evicted_snapshots": stats.evicted_snapshots,
        "bytes": stats.bytes,
        "limit_bytes": stats.limit_bytes,
    })
}

/// The double that prints with the digits of the float: 0.95 and not 0.949999988079071.
fn decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// `/slots`: the sequences of the default model, and what is in them.
pub(crate) async fn slots(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let Hosted { worker, .. } = app.model(None)?;
    let facts = worker.facts();
    let counters = worker.prefix_stats().map(|stats| prefixes(&stats));
    let running: Vec<_> = worker.slots().active().into_iter().filter(|slot| slot.is_running()).collect();
    let slots = (0..facts.slots).map(|id| {
        let mut slot = json!({
            "id": id,
            "n_ctx": facts.context,
            "is_processing": false,
            "k_type": facts.engine["k_type"],
            "v_type": facts.engine["v_type"],
            "page_tokens": facts.engine["page_tokens"],
            "kv_pages": facts.engine["kv_pages"],
            "kv_bytes_per_token": facts.engine["kv_bytes_per_token"],
            "state_bytes": facts.engine["state_bytes_per_sequence"],
            "prefix_cache": counters,
        });
        if let Some(request) = running.get(id) {
            slot["is_processing"] = true.into();
            slot["id_task"] = request.id.into();
            slot["n_prompt_tokens"] = request.prompt.into();
            slot["n_prompt_tokens_cache"] = request.cached().into();
            slot["n_prompt_tokens_processed"] = request.prefilled().into();
            slot["n_decoded"] = request.generated().into();
        }
        slot
    });
    Ok(json_response(StatusCode::OK, &slots.collect()))
}
