//! Bodies of requests, of bounded size and patience.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use http_body::Body as _;
use tokio::time::Instant;

use super::reading::SHORT;
use crate::api::body::Body as Fields;
use crate::app::App;
use crate::error::ApiError;

/// How much of a body that is too large is read, and for how long.
const DRAINED: usize = 1 << 20;
const LINGER: Duration = Duration::from_millis(500);
/// Bytes a second below which a body counts as one that does not come.
const SLOWEST: usize = 1024;

/// Reads a request's body as a JSON object.
///
/// # Errors
/// 413 beyond the limit, 408 if nothing comes or next to nothing, 415 for what is compressed, 400 for what is no JSON object.
pub(crate) async fn read(app: &App, request: Request<Body>) -> Result<Fields, ApiError> {
    Ok(read_sized(app, request).await?.0)
}

/// The same, with the number of its bytes.
///
/// # Errors
/// As [`read`].
pub(crate) async fn read_sized(app: &App, request: Request<Body>) -> Result<(Fields, usize), ApiError> {
    plain(request.headers())?;
    let bytes = collect(request, app.config.body_limit, app.config.read_timeout).await?;
    let parse = || Fields::parse(&bytes);
    let fields = if bytes.len() > SHORT { tokio::task::block_in_place(parse)? } else { parse()? };
    Ok((fields, bytes.len()))
}

/// Whether a body is sent as it is.
fn plain(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(coding) if !coding.as_bytes().eq_ignore_ascii_case(b"identity") => {
            let message = "the body is compressed; send it as it is, without `Content-Encoding`";
            Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
        }
        _ => Ok(()),
    }
}

async fn collect(request: Request<Body>, limit: usize, patience: Duration) -> Result<Vec<u8>, ApiError> {
    let declared = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    if declared.and_then(|length| length.parse::<u64>().ok()).is_some_and(|length| length > limit as u64) {
        return Err(too_large(limit, request.into_body()).await);
    }
    let mut body = request.into_body();
    let mut bytes: Vec<u8> = Vec::new();
    let start = Instant::now();
    loop {
        let end = start + patience + Duration::from_secs((bytes.len() / SLOWEST) as u64);
        let end = end.min(Instant::now() + patience);
        let frame = tokio::time::timeout_at(end, poll_fn(|cx| Pin::new(&mut body).poll_frame(cx))).await;
        let late = || ApiError::refused(StatusCode::REQUEST_TIMEOUT, "the body did not come in time");
        match frame.map_err(|_| late())? {
            None => return Ok(bytes),
            Some(Err(e)) => return Err(ApiError::invalid(format!("the body cannot be read: {e}"))),
            Some(Ok(frame)) => {
                let Ok(data) = frame.into_data() else { continue };
                if bytes.len() + data.len() > limit {
                    return Err(too_large(limit, body).await);
                }
                bytes.extend_from_slice(&data);
            }
        }
    }
}

/// The error for a large body, some of which is read and dropped: a client that still writes would otherwise see a broken
/// connection and not the error.
async fn too_large(limit: usize, mut body: Body) -> ApiError {
    let drain = async {
        let mut left = DRAINED;
        while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len()));
            if left == 0 {
                break;
            }
        }
    };
    // Late is as good as never.
    let _ = tokio::time::timeout(LINGER, drain).await;
    let message = format!("the body is larger than {limit} bytes");
    ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, message)
}
