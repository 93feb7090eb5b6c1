//! Pages of other sites that may send requests, if the server was started so.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;

use crate::app::App;

/// Seconds for which a browser need not ask again.
const AGE: HeaderValue = HeaderValue::from_static("600");

/// The `Origin` of a request, if pages of that site may send any.
pub(super) fn allowed(app: &App, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let is_it =
        |allowed: &String| allowed == "*" || allowed.as_bytes().eq_ignore_ascii_case(origin.as_bytes());
    app.config.cors_origins.iter().any(is_it).then(|| origin.clone())
}

/// Whether a browser only asks what a page of an allowed site may send.
pub(super) fn is_preflight(request: &Request, origin: Option<&HeaderValue>) -> bool {
    let asks = request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    origin.is_some() && asks && request.method() == Method::OPTIONS
}

/// The answer to that: whatever headers it wants.
pub(super) fn preflight(asked: &HeaderMap) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, AGE);
    if let Some(wanted) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    response
}

/// Lets the page read a response.
pub(super) fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    let readable: [(HeaderName, &str); 2] =
        [(header::ACCESS_CONTROL_EXPOSE_HEADERS, "x-request-id, retry-after"), (header::VARY, "Origin")];
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    for (name, value) in readable {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
