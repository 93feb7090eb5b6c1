//! What a server is told at its start.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How a server behaves. [`Default`] is what the command line documents.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one.
    pub port: u16,
    /// Keys of which requests must bring one; none lets everyone in.
    pub api_keys: Vec<String>,
    /// Names in `Host` and `Origin` that are let in beside addresses and `localhost`.
    pub allowed_hosts: Vec<String>,
    /// Most tokens of an answer, whatever a request asks for.
    pub max_tokens: Option<usize>,
    /// Requests that may wait for a sequence before others are turned away.
    pub queue: usize,
    /// Longest time for a request.
    pub request_timeout: Option<Duration>,
    /// Time without requests after which the model's memory is given back.
    pub idle_timeout: Option<Duration>,
    /// Longest time for running requests after the server was asked to end.
    pub drain_timeout: Duration,
    /// Requests per minute and key, or address where there are no keys.
    pub rate_limit: Option<u32>,
    /// Where the log goes instead of standard error.
    pub log_file: Option<PathBuf>,
    /// Largest body of a request, in bytes.
    pub body_limit: usize,
    /// Time between two signs of life in a stream that has nothing to say.
    pub heartbeat: Duration,
    /// Longest time for the head of a request, and between two pieces of its body.
    pub read_timeout: Duration,
    /// Connections that may be open at a time.
    pub connections: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            host: IpAddr::from([127, 0, 0, 1]),
            port: 8080,
            api_keys: Vec::new(),
            allowed_hosts: Vec::new(),
            max_tokens: None,
            queue: 64,
            request_timeout: None,
            idle_timeout: None,
            drain_timeout: Duration::from_secs(30),
            rate_limit: None,
            log_file: None,
            body_limit: 32 << 20,
            heartbeat: Duration::from_secs(10),
            read_timeout: Duration::from_secs(30),
            connections: 1024,
        }
    }
}
