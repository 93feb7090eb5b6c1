//! Server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use http_body::Frame;
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Events that may wait for a slow reader.
const WAITING: usize = 64;

/// The writing end of a stream.
#[derive(Debug, Clone)]
pub(crate) struct Events(Sender<Bytes>);

/// The reader has gone.
#[derive(Debug)]
pub(crate) struct Gone;

impl Events {
    /// One event.
    pub async fn data(&self, value: &Value) -> Result<(), Gone> {
        self.send(format!("data: {value}\n\n")).await
    }

    /// The event that says that something went wrong.
    pub async fn error(&self, value: &Value) -> Result<(), Gone> {
        self.send(format!("event: error\ndata: {value}\n\n")).await
    }

    /// The end of a complete stream.
    pub async fn done(&self) -> Result<(), Gone> {
        self.send("data: [DONE]\n\n".to_owned()).await
    }

    /// A line that readers pass over.
    pub async fn comment(&self, text: &str) -> Result<(), Gone> {
        self.send(format!(": {text}\n\n")).await
    }

    /// Ends when the reader goes.
    pub async fn gone(&self) {
        self.0.closed().await;
    }

    async fn send(&self, text: String) -> Result<(), Gone> {
        self.0.send(Bytes::from(text)).await.map_err(|_| Gone)
    }
}

/// A response whose events are still to come; it ends when all writing ends are dropped.
pub(crate) fn stream() -> (Events, Response) {
    let (sender, receiver) = channel(WAITING);
    let mut response = Response::new(Body::new(Stream(receiver)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies such as nginx would collect events otherwise.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    (Events(sender), response)
}

struct Stream(Receiver<Bytes>);

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}
