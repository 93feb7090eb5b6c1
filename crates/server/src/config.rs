//! What a server is told at its start.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A key, and what requests that bring it may do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApiKey {
    /// What requests bring.
    pub key: String,
    /// What the log calls it.
    pub name: Option<String>,
    /// Requests per minute, in place of those for every key.
    pub rate_limit: Option<u32>,
    /// Answers at a time, over all requests.
    pub requests: Option<usize>,
}

impl From<&str> for ApiKey {
    fn from(key: &str) -> ApiKey {
        ApiKey { key: key.to_owned(), ..ApiKey::default() }
    }
}

/// How a server behaves. [`Default`] is what the command line documents.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one.
    pub port: u16,
    /// Keys of which requests must bring one; none lets everyone in.
    pub api_keys: Vec<ApiKey>,
    /// Sites, as `https://name:port`, whose pages may send requests; `*` is every site.
    pub cors_origins: Vec<String>,
    /// Names in `Host` and `Origin` that are let in beside addresses and `localhost`.
    pub allowed_hosts: Vec<String>,
    /// Most tokens of an answer, whatever a request asks for.
    pub max_tokens: Option<usize>,
    /// Most tokens of thinking of chats that do not say; then the thinking is closed.
    pub thinking_budget: Option<usize>,
    /// Requests that may wait for a sequence before others are turned away.
    pub queue: usize,
    /// Longest time for a request.
    pub request_timeout: Option<Duration>,
    /// Time without requests after which the model's memory is given back.
    pub idle_timeout: Option<Duration>,
    /// Longest time for running requests after the server was asked to end.
    pub drain_timeout: Duration,
    /// Requests per minute and key, or address where there are no keys; a key may have its own.
    pub rate_limit: Option<u32>,
    /// Where the log goes instead of standard error.
    pub log_file: Option<PathBuf>,
    /// Largest body of a request, in bytes.
    pub body_limit: usize,
    /// Time between two signs of life in a stream that has nothing to say.
    pub heartbeat: Duration,
    /// Longest time for the head of a request, and between two pieces of its body, which must also come at a decent rate.
    pub read_timeout: Duration,
    /// Longest time in which a client takes nothing of what is sent to it.
    pub write_timeout: Duration,
    /// Connections that may be open at a time.
    pub connections: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            host: IpAddr::from([127, 0, 0, 1]),
            port: 8080,
            api_keys: Vec::new(),
            cors_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            max_tokens: None,
            thinking_budget: None,
            queue: 64,
            request_timeout: None,
            idle_timeout: None,
            drain_timeout: Duration::from_secs(30),
            rate_limit: None,
            log_file: None,
            body_limit: 32 << 20,
            heartbeat: Duration::from_secs(1),
            read_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(60),
            connections: 1024,
        }
    }
}
