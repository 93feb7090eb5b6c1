//! What a client is told when a request cannot be answered: OpenAI's shape,
//! `{"error": {"message", "type", "param", "code"}}`, with the right status.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use basert_engine::EngineError;
use basert_text::TextError;
use serde_json::{Value, json};

/// Why a request is refused, or has failed.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// One sentence: what is wrong, and what to do.
    pub message: String,
    /// The field of the request that is wrong.
    pub param: Option<String>,
    /// OpenAI's `code`, for programs.
    pub code: Option<&'static str>,
    /// Seconds after which to try again.
    pub retry_after: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, kind, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// 400: something in the request is wrong.
    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: this field of the request is wrong.
    pub fn field(name: impl Into<String>, problem: impl AsRef<str>) -> ApiError {
        let name = name.into();
        let message = format!("`{name}` {}", problem.as_ref());
        ApiError { param: Some(name), ..ApiError::invalid(message) }
    }

    /// 400: this field asks for something that is not done here.
    pub fn unsupported(name: impl Into<String>, problem: impl AsRef<str>) -> ApiError {
        ApiError { code: Some("unsupported_parameter"), ..ApiError::field(name, problem) }
    }

    /// 400: the prompt leaves no room for an answer.
    pub fn too_long(prompt: usize, context: usize) -> ApiError {
        ApiError::too_many_tokens(&prompt.to_string(), context)
    }

    fn too_many_tokens(prompt: &str, context: usize) -> ApiError {
        let message = format!(
            "the prompt has {prompt} tokens, which leaves no room for an answer in the context of {context} tokens; \
             shorten it, or start the server with a larger --max-context"
        );
        ApiError { code: Some("context_length_exceeded"), ..ApiError::invalid(message) }
    }

    /// 401: no key, or one that is not known.
    pub fn unauthorized() -> ApiError {
        let message = "a valid API key is needed: send `Authorization: Bearer KEY`";
        let error = ApiError::new(StatusCode::UNAUTHORIZED, "authentication_error", message);
        ApiError { code: Some("invalid_api_key"), ..error }
    }

    /// 403: a page or a name from elsewhere.
    pub fn forbidden(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// 404: no such thing.
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// Some other status that is the request's fault.
    pub fn refused(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError::new(status, "invalid_request_error", message)
    }

    /// 429: too many requests of one client.
    pub fn rate_limited(seconds: u64) -> ApiError {
        let message = format!("too many requests; try again in {seconds} s");
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        ApiError { code: Some("rate_limit_exceeded"), retry_after: Some(seconds), ..error }
    }

    /// 400: more answers than a key may have at a time.
    pub fn too_many_answers(answers: usize, most: usize) -> ApiError {
        let message = format!(
            "the request asks for {answers} answers (`n` for every prompt), and this key may have {most} at a time; \
             ask for fewer"
        );
        ApiError { param: Some("n".to_owned()), ..ApiError::invalid(message) }
    }

    /// 429: a key has as many answers running as it may.
    pub fn too_many_at_a_time() -> ApiError {
        let message = "this key has as many answers running as it may; try again when one has ended";
        ApiError { message: message.to_owned(), ..ApiError::rate_limited(1) }
    }

    /// 503: not now.
    pub fn unavailable(message: impl Into<String>, seconds: u64) -> ApiError {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable_error", message);
        ApiError { retry_after: Some(seconds), ..error }
    }

    /// 504: the request's time is over.
    pub fn timed_out(seconds: u64) -> ApiError {
        let message = format!("the request took longer than the {seconds} s of --request-timeout");
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message)
    }

    /// 500: the engine's thread has ended.
    pub fn stopped() -> ApiError {
        ApiError::internal("the engine has stopped; restart the server")
    }

    /// 500: the server's own fault.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The body.
    pub fn to_json(&self) -> Value {
        let ApiError { kind, message, param, code, .. } = self;
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = super::http::json_response(self.status, &self.to_json());
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<&EngineError> for ApiError {
    fn from(error: &EngineError) -> ApiError {
        match error {
            EngineError::ContextFull { needed, context } => ApiError::too_long(*needed, *context),
            EngineError::Sampling { name, range } => ApiError::field(*name, format!("must be {range}")),
            EngineError::LogitBias { .. } => {
                ApiError { param: Some("logit_bias".to_owned()), ..ApiError::invalid(error.to_string()) }
            }
            EngineError::TokenId { .. } | EngineError::EmptyPrompt => {
                ApiError { param: Some("prompt".to_owned()), ..ApiError::invalid(error.to_string()) }
            }
            EngineError::Constraint { .. } => ApiError::invalid(error.to_string()),
            _ => ApiError::internal(error.to_string()),
        }
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> ApiError {
        let message = error.to_string();
        let param = match error {
            TextError::Field { field, .. } => Some(field),
            TextError::Message { path, .. } => Some(path),
            TextError::Refused { message: Some(index), .. } => Some(format!("messages[{index}]")),
            TextError::Refused { message: None, .. } | TextError::NoMessages | TextError::NoMark => {
                Some("messages".to_owned())
            }
            TextError::TemplateFailed { .. } => Some("messages".to_owned()),
            TextError::TooLong { at_least, most } => {
                return ApiError::too_many_tokens(&format!("at least {at_least}"), most);
            }
            TextError::EmptyStop { index } => Some(format!("stop[{index}]")),
            TextError::Tokenizer { .. }
            | TextError::TemplateSyntax { .. }
            | TextError::Json { .. }
            | TextError::GivenUp
            | TextError::Unsupported { .. } => return ApiError::internal(message),
        };
        ApiError { param, ..ApiError::invalid(message) }
    }
}
