//! What every request passes: its name, who speaks, from where, and the line in the log.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::cors;
use crate::app::App;
use crate::config::ApiKey;
use crate::error::ApiError;
use crate::page::FILES;
use crate::random;

/// Who is connected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub SocketAddr);

/// The name of a request, for logs and responses.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub String);

/// The key that a request has brought, by its place among all.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Key(pub Option<usize>);

impl Key {
    /// What a client's prompts are kept under: a client never learns from response times what another one has asked.
    /// It names a key without being it, and the same way after a restart, whatever other keys there are.
    pub fn namespace(self, app: &App) -> String {
        let key = self.0.and_then(|index| app.config.api_keys.get(index));
        let digest = key.map(|key| Sha256::digest(key.key.as_bytes()));
        digest.iter().flatten().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What the log calls it.
    fn name(self, app: &App) -> Option<String> {
        let name = |index: usize| app.config.api_keys.get(index).and_then(|key| key.name.clone());
        self.0.map(|index| name(index).unwrap_or_else(|| format!("key {}", index + 1)))
    }
}

/// Whether a path needs no key: the page, which then asks for it, what load balancers look at, and the document for clients.
fn is_open(path: &str) -> bool {
    ["/health", "/ready", "/openapi.json"].contains(&path) || FILES.iter().any(|file| file.path == path)
}

/// Lets a request pass, or turns it away before anything of it is read.
pub(crate) async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = request_id(request.headers());
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().map_or("(none)", MatchedPath::as_str).to_owned();
    request.extensions_mut().insert(RequestId(id.clone()));
    let key = identify(&app, &request);
    let name = key.as_ref().ok().and_then(|key| key.name(&app));
    let checked = key.and_then(|key| limit(&app, &request, key).map(|()| key));
    let origin = cors::allowed(&app, request.headers());
    let mut response = match checked {
        Ok(_) if cors::is_preflight(&request, origin.as_ref()) => cors::preflight(request.headers()),
        Ok(key) => {
            request.extensions_mut().insert(key);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    };
    if let Some(origin) = origin {
        cors::allow(response.headers_mut(), origin);
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert("x-request-id", id);
    }
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let status = response.status().as_u16();
    app.metrics.responded(&path, status);
    let ms = start.elapsed().as_millis();
    let mut line =
        json!({"id": id, "method": method.as_str(), "path": path, "status": status, "ms": ms as u64});
    if let Some(name) = name {
        line["key"] = name.into();
    }
    app.log.write("request", line);
    response
}

/// The client's own name for a request, if it is a decent one.
fn request_id(headers: &HeaderMap) -> String {
    let theirs = headers.get("x-request-id").and_then(|id| id.to_str().ok());
    let decent = |id: &&str| !id.is_empty() && id.len() <= 128 && id.bytes().all(|b| b.is_ascii_graphic());
    theirs.filter(decent).map_or_else(|| random::name("req_"), str::to_owned)
}

/// Whose request it is, if it may speak at all.
fn identify(app: &App, request: &Request) -> Result<Key, ApiError> {
    let headers = request.headers();
    from_here(app, request)?;
    // Browsers send no key with a preflight.
    let origin = cors::allowed(app, headers);
    if is_open(request.uri().path()) || cors::is_preflight(request, origin.as_ref()) {
        return Ok(Key::default());
    }
    key(&app.config.api_keys, headers).map(Key)
}

/// Counts a request that has work in it.
fn limit(app: &App, request: &Request, Key(key): Key) -> Result<(), ApiError> {
    let own = key.and_then(|index| app.config.api_keys.get(index)?.rate_limit);
    let Some(per_minute) = own.or(app.config.rate_limit).filter(|_| request.method() == Method::POST) else {
        return Ok(());
    };
    app.rate.take(&client(request, Key(key)), per_minute, Instant::now())
}

/// Who asks: a key, or an address where there are no keys.
pub(crate) fn client(request: &Request, Key(key): Key) -> String {
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0.ip().to_string());
    key.map_or(peer.unwrap_or_default(), |index| format!("key {index}"))
}

/// Which key a request brings; `None` where none is needed.
fn key(keys: &[ApiKey], headers: &HeaderMap) -> Result<Option<usize>, ApiError> {
    if keys.is_empty() {
        return Ok(None);
    }
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
    });
    let found = bearer.or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes)).unwrap_or_default();
    // All keys are compared, whichever fits, so that the time tells nothing.
    let mut fitting = None;
    for (index, key) in keys.iter().enumerate() {
        if bool::from(key.key.as_bytes().ct_eq(found)) {
            fitting = Some(index);
        }
    }
    fitting.map(Some).ok_or_else(ApiError::unauthorized)
}

/// Turns away what a browser sends for a page from elsewhere: a name in `Host` that only DNS rebinding leads here, and an
/// `Origin` that is not this server.
fn from_here(app: &App, request: &Request) -> Result<(), ApiError> {
    let headers = request.headers();
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("?"));
    let host = text(header::HOST).or_else(|| request.uri().authority().map(Authority::as_str));
    let host = match host {
        Some(_) if headers.get_all(header::HOST).iter().count() > 1 => {
            return Err(ApiError::invalid("the header `Host` is there more than once"));
        }
        Some(host) => host,
        // Load balancers look at a server's health so; browsers never speak so.
        None if request.version() == Version::HTTP_10 => "localhost",
        None => return Err(ApiError::invalid("the header `Host` is missing")),
    };
    // A page that was led here by a false name knows no key.
    if app.config.api_keys.is_empty() && !is_ours(app, host) {
        let message = "the name in `Host` is not this server's; start it with --allowed-host to allow it";
        return Err(ApiError::forbidden(message));
    }
    let Some(origin) = text(header::ORIGIN) else { return Ok(()) };
    let authority = origin.split_once("://").map_or("?", |(_, authority)| authority);
    let is_friend = cors::allowed(app, headers).is_some();
    if authority == host || is_local(authority) || is_allowed(app, authority) || is_friend {
        return Ok(());
    }
    Err(ApiError::forbidden("requests of other sites' pages are not taken; --cors-origin allows a site"))
}

/// Whether a `host:port` is an address, the machine itself, or a name that was allowed.
fn is_ours(app: &App, authority: &str) -> bool {
    address(authority).is_some() || is_local(authority) || is_allowed(app, authority)
}

/// Whether a `host:port` is this machine's own name or address for itself.
fn is_local(authority: &str) -> bool {
    let name = host(authority).to_ascii_lowercase();
    let is_loopback = address(authority).is_some_and(|address| address.is_loopback());
    is_loopback || name == "localhost" || name.ends_with(".localhost")
}

fn is_allowed(app: &App, authority: &str) -> bool {
    app.config.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(&host(authority)))
}

fn address(authority: &str) -> Option<IpAddr> {
    host(authority).trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// The part before the port; empty if there is no such thing.
fn host(authority: &str) -> String {
    authority.parse::<Authority>().map(|authority| authority.host().to_owned()).unwrap_or_default()
}
