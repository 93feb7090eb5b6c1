//! The options of `basert serve`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use basert_server::ApiKey;
use clap::Args;

use crate::options::{FitOptions, RunOptions, SamplingOptions, SpeculativeOptions, positive, room};

const SERVER: &str = "Server";
const LIMITS: &str = "Limits";

pub const SERVE_HELP: &str = "\
Examples:
  basert serve qwen3
  basert serve qwen3.base --port 9000 --continuous-batching 8 --kv-bits 8
  basert serve qwen3 --host 0.0.0.0 --api-key-file keys.txt
  curl localhost:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

The chat page is at /, the API at /v1 (docs/api.md). Requests without sampling fields get the options under \"Sampling\". \
SIGTERM, SIGUSR1 and ^C let running answers end first; a second SIGTERM or a second ^C ends at once. SIGHUP opens the log file anew. The log \
has one JSON object a line and no text of prompts or answers.

Only this machine is listened to unless --host says otherwise. Without keys, requests must name the server by address, \
as localhost, or by an --allowed-host. Pages of other sites are turned away unless --cors-origin or --allowed-host names them.";

#[derive(Args, Debug)]
pub struct ServeArgs {
    /// A .base file, or several; or NAME for NAME.base here, in models/ or in $BASERT_MODELS. Requests name a model by its
    /// file's name without .base; the first is the default
    #[arg(value_name = "MODEL", required_unless_present = "model")]
    pub models: Vec<PathBuf>,

    /// The same; may be given several times
    #[arg(long, value_name = "MODEL")]
    pub model: Vec<PathBuf>,

    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "IP", help_heading = SERVER)]
    pub host: Option<IpAddr>,

    /// Port to listen on; 0 takes a free one [default: 8080]
    #[arg(long, value_name = "N", help_heading = SERVER)]
    pub port: Option<u16>,

    /// Key that requests must bring; may be given several times
    #[arg(
        long, value_name = "KEY", env = "BASERT_API_KEY", hide_env_values = true, value_parser = key,
        help_heading = SERVER
    )]
    pub api_key: Vec<ApiKey>,

    /// Keys that requests must bring, one a line; behind a key may stand name=NAME (for the log), rate=N (requests per minute)
    /// and requests=N (answers at a time: n and every prompt of a list count)
    #[arg(long, value_name = "FILE", help_heading = SERVER)]
    pub api_key_file: Option<PathBuf>,

    /// Name under which browsers may reach the server; may be given several times
    #[arg(long, value_name = "NAME", value_parser = host_name, help_heading = SERVER)]
    pub allowed_host: Vec<String>,

    /// Site whose pages may send requests, as https://name:port, or * for every site; may be given several times [default: none]
    #[arg(long, value_name = "ORIGIN", value_parser = origin, help_heading = SERVER)]
    pub cors_origin: Vec<String>,

    /// Chat template instead of the model's own
    #[arg(long, value_name = "FILE", help_heading = SERVER)]
    pub chat_template: Option<PathBuf>,

    /// Write the log to this file instead of standard error
    #[arg(long, value_name = "FILE", help_heading = SERVER)]
    pub log_file: Option<PathBuf>,

    /// The same as --context
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "context", help_heading = LIMITS)]
    pub max_context: Option<usize>,

    /// Most tokens of an answer, whatever a request asks for [default: as many as the context holds]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = LIMITS)]
    pub max_tokens: Option<usize>,

    /// Most tokens of thinking of requests that do not say; then the thinking is closed and the answer begins [default: no limit]
    #[arg(long, value_name = "N", help_heading = LIMITS)]
    pub thinking_budget: Option<usize>,

    /// Answers that are made at a time [default: 4]
    #[arg(
        long, value_name = "N", value_parser = positive, conflicts_with = "continuous_batching",
        help_heading = LIMITS
    )]
    pub max_batch_size: Option<usize>,

    /// The same; without a number 8
    #[arg(
        long, value_name = "N", value_parser = positive, num_args = 0..=1, default_missing_value = "8",
        help_heading = LIMITS
    )]
    pub continuous_batching: Option<usize>,

    /// Room for what was read of earlier prompts, so that what a prompt has in common with them is not read again (0: none)
    /// [default: what the context can use, at most 1GiB and an eighth of the free memory]
    #[arg(long, value_name = "SIZE", value_parser = room, help_heading = LIMITS)]
    pub prefix_cache: Option<u64>,

    /// Keep that in this file from one run to the next: read at the start, written at the end and whenever the model's memory is
    /// given back
    #[arg(long, value_name = "FILE", help_heading = LIMITS)]
    pub prefix_cache_file: Option<PathBuf>,

    /// Prompt tokens of a step in which answers are running: what a running answer waits for. auto: as few, from 128 down to 8, as
    /// keep its tokens coming at two fifths of their usual pace, while prompts are read more slowly [default: 128]
    #[arg(long, value_name = "N|auto", value_parser = prefill, help_heading = LIMITS)]
    pub prefill_tokens: Option<Prefill>,

    /// Requests that may wait for others to end; more are turned away with status 503 [default: 64]
    #[arg(long, value_name = "N", help_heading = LIMITS)]
    pub queue: Option<usize>,

    /// Requests per minute and key, or per address without keys; more are turned away with status 429
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = LIMITS)]
    pub rate_limit: Option<u32>,

    /// Longest time for a request
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = LIMITS)]
    pub request_timeout: Option<Duration>,

    /// Give the model's memory back after so long without requests; the next one loads it again
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = LIMITS)]
    pub idle_timeout: Option<Duration>,

    /// Longest time for running answers when the server is asked to end [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = LIMITS)]
    pub drain_timeout: Option<Duration>,

    #[command(flatten)]
    pub sampling: SamplingOptions,

    #[command(flatten)]
    pub run: RunOptions,

    #[command(flatten)]
    pub fit: FitOptions,

    #[command(flatten)]
    pub speculative: SpeculativeOptions,

    /// Show what was selected: instruction set, threads, weights, KV types, context, memory
    #[arg(short, long)]
    pub verbose: bool,
}

/// Prompt tokens of a step beside answers.
#[derive(Clone, Copy, Debug)]
pub enum Prefill {
    /// As many as answers can bear.
    Paced,
    /// So many.
    Most(usize),
}

fn prefill(s: &str) -> Result<Prefill, String> {
    match s {
        "auto" => Ok(Prefill::Paced),
        _ => positive(s).map(Prefill::Most).map_err(|_| "must be auto or a whole number above 0".to_owned()),
    }
}

/// A time in seconds, above 0.
fn seconds(s: &str) -> Result<Duration, String> {
    let seconds = s.parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    seconds.filter(|time| !time.is_zero()).ok_or_else(|| "must be a number of seconds above 0".to_owned())
}

/// A name as it stands in `Host`, without a port: the server's is no part of it.
fn host_name(s: &str) -> Result<String, String> {
    let is_name = !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    if is_name {
        Ok(s.to_owned())
    } else {
        Err("must be a name such as chat.example, without a port".to_owned())
    }
}

/// A site as browsers name it.
fn origin(s: &str) -> Result<String, String> {
    let site = s.strip_prefix("https://").or_else(|| s.strip_prefix("http://"));
    let is_site = site.is_some_and(|site| !site.is_empty() && !site.contains(['/', ' ', '*']));
    if s == "*" || is_site {
        Ok(s.to_owned())
    } else {
        Err("must be http(s)://NAME, http(s)://NAME:PORT or *".to_owned())
    }
}

/// A key that a header can hold.
pub fn key(s: &str) -> Result<ApiKey, String> {
    if !s.is_empty() && s.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(ApiKey::from(s))
    } else {
        Err("a key is made of printable ASCII characters without blanks".to_owned())
    }
}

/// A line of a file of keys: a key, and what it may.
pub fn key_line(line: &str) -> Result<ApiKey, String> {
    let mut words = line.split_whitespace();
    let mut found = key(words.next().unwrap_or_default())?;
    for word in words {
        let (name, value) = word.split_once('=').ok_or_else(|| format!("`{word}` is not NAME=VALUE"))?;
        if word != name && line.split_whitespace().filter(|w| w.split('=').next() == Some(name)).count() > 1 {
            return Err(format!("`{name}` is there twice"));
        }
        let number = || value.parse().ok().filter(|n: &u32| *n > 0);
        let number = || number().ok_or_else(|| format!("`{name}` must be a whole number above 0"));
        match name {
            "name" => found.name = Some(value.to_owned()),
            "rate" => found.rate_limit = Some(number()?),
            "requests" => found.requests = Some(number()? as usize),
            _ => return Err(format!("`{name}` is not `name`, `rate` or `requests`")),
        }
    }
    Ok(found)
}
