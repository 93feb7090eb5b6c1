//! The two requests that make answers.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use basert_text::Bound;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::guard::{self, Key, RequestId};
use super::reading::Weight;
use super::sse::{Events, Gone, stream};
use super::{body, ok};
use crate::api::body::Body;
use crate::api::sampling::Limits;
use crate::api::{Asked, ChatWriter, CompletionsWriter, Writer, asks_for_grammar};
use crate::app::App;
use crate::config::Config;
use crate::core::{Event, Folded, Run};
use crate::error::ApiError;
use crate::model::Model;

/// `/v1/chat/completions`.
pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(key): Extension<Key>,
    request: Request,
) -> Response {
    let write = |model, asked: &Asked| Box::new(ChatWriter::new(model, asked)) as Box<dyn Writer>;
    answer(app, (id, key), request, crate::api::chat::read, write)
        .await
        .unwrap_or_else(ApiError::into_response)
}

/// `/v1/completions`.
pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(key): Extension<Key>,
    request: Request,
) -> Response {
    let write = |model, asked: &Asked| Box::new(CompletionsWriter::new(model, asked)) as Box<dyn Writer>;
    answer(app, (id, key), request, crate::api::completions::read, write)
        .await
        .unwrap_or_else(ApiError::into_response)
}

type Read = fn(Body, &Model, usize, Limits, &Bound) -> Result<Asked, ApiError>;

async fn answer(
    app: Arc<App>,
    (RequestId(id), key): (RequestId, Key),
    request: Request,
    read: Read,
    write: fn(Arc<Model>, &Asked) -> Box<dyn Writer>,
) -> Result<Response, ApiError> {
    let mut permit = app.enter(key.0)?;
    let client = guard::client(&request, key);
    let (fields, bytes) = body::read_sized(&app, request).await?;
    let weight = if asks_for_grammar(&fields) { Weight::Grammar } else { Weight::of(bytes) };
    let hosted = app.model(fields.string("model")?)?;
    let facts = hosted.worker.facts();
    let Config { max_tokens, thinking_budget, .. } = app.config;
    let limits = Limits { context: facts.context, max_tokens, thinking_budget };
    let (model, vocab) = (Arc::clone(&hosted.model), facts.vocab);
    let texts = Arc::clone(&model);
    let asked = move |bound: &Bound| read(fields, &texts, vocab, limits, bound);
    let asked = app.reading.read(weight, facts.context, asked).await?;
    app.widen(key.0, &mut permit, asked.jobs.len())?;
    app.admit(&hosted.worker, &client, asked.jobs.len())?;
    let writer = write(model, &asked);
    let Asked { mut jobs, wishes, .. } = asked;
    let namespace = key.namespace(&app);
    for job in &mut jobs {
        job.request.reuse.namespace.clone_from(&namespace);
        job.request.client.clone_from(&client);
    }
    let answers = jobs.len();
    let run = Run::start(&hosted.worker, jobs, app.config.request_timeout)?;
    let (start, outcome) = (Instant::now(), "cancelled");
    let teller = Teller { app, id, run, writer, start, reasons: Vec::new(), outcome, _permit: permit };
    if wishes.stream {
        let (events, response) = stream();
        tokio::spawn(teller.stream(events, wishes.include_usage));
        Ok(response)
    } else {
        Ok(ok(&teller.whole(answers).await?))
    }
}

/// Tells a client its answers, and in the end the log.
struct Teller {
    app: Arc<App>,
    id: String,
    run: Run,
    writer: Box<dyn Writer>,
    start: Instant,
    /// Why answers ended.
    reasons: Vec<&'static str>,
    /// How it ended.
    outcome: &'static str,
    /// Of a key that may have so many requests at a time.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Teller {
    async fn whole(mut self, answers: usize) -> Result<Value, ApiError> {
        let mut folded = vec![Folded::default(); answers];
        while let Some(event) = self.run.next().await {
            let (answer, event) = event.map_err(|error| self.cut_off(error))?;
            self.note(&event);
            folded[answer].take(event);
        }
        let usage = self.run.usage();
        self.outcome = "complete";
        Ok(self.writer.whole(folded, &usage))
    }

    async fn stream(mut self, events: Events, with_usage: bool) {
        let outcome = tokio::select! {
            outcome = self.tell(&events, with_usage) => outcome,
            () = events.gone() => Err(Gone),
        };
        if let Ok(outcome) = outcome {
            self.outcome = outcome;
        }
    }

    async fn tell(&mut self, events: &Events, with_usage: bool) -> Result<&'static str, Gone> {
        for chunk in self.writer.opening() {
            events.data(&chunk).await?;
        }
        let mut heartbeat = tokio::time::interval(self.app.config.heartbeat);
        heartbeat.reset();
        let mut progress = (0, 0);
        loop {
            let event = tokio::select! {
                event = self.run.next() => event,
                _ = heartbeat.tick() => {
                    let (done, total) = progress;
                    let text = if done < total { format!("prefill {done}/{total}") } else { "alive".to_owned() };
                    events.comment(&text).await?;
                    continue;
                }
            };
            match event {
                None => break,
                Some(Err(error)) => {
                    let error = self.cut_off(error);
                    events.error(&error.to_json()).await?;
                    return Ok(error.kind);
                }
                Some(Ok((answer, event))) => {
                    self.note(&event);
                    if let Event::Progress { done, total } = event {
                        progress = (done, total);
                    }
                    if let Some(chunk) = self.writer.chunk(answer, event) {
                        events.data(&chunk).await?;
                        heartbeat.reset();
                    }
                }
            }
        }
        if with_usage {
            events.data(&self.writer.usage_chunk(&self.run.usage())).await?;
        }
        events.done().await?;
        Ok("complete")
    }

    /// The error that ends it before its end.
    fn cut_off(&mut self, error: ApiError) -> ApiError {
        let is_end = self.app.is_draining() && error == ApiError::stopped();
        let ended = || ApiError::unavailable("the server has shut down before the answer was complete", 10);
        let error = if is_end { ended() } else { error };
        self.outcome = error.kind;
        error
    }

    fn note(&mut self, event: &Event) {
        if let Event::Finished { reason, .. } = event {
            self.reasons.push(reason.name());
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        let usage = self.run.usage();
        self.app.log.write(
            "answer",
            json!({
                "id": self.id,
                "outcome": self.outcome,
                "finish": self.reasons,
                "prompt_tokens": usage.prompt,
                "cached_tokens": usage.cached,
                "completion_tokens": usage.completion,
                "prefill_ms": usage.prefill.as_millis() as u64,
                "ms": self.start.elapsed().as_millis() as u64,
            }),
        );
    }
}
