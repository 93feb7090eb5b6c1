//! Counters for Prometheus.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use basert_engine::{PrefixStats, Speculated};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

type Labels = Vec<(&'static str, String)>;

/// Everything that `/metrics` shows.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    prompt_tokens: Counter,
    generated_tokens: Counter,
    answer_steps: Counter,
    drafted_tokens: Counter,
    accepted_tokens: Counter,
    drafting_seconds: Counter<f64, AtomicU64>,
    cancelled: Counter,
    queue_seconds: Histogram,
    first_token_seconds: Histogram,
    next_token_seconds: Histogram,
    running: Gauge,
    waiting: Gauge,
    /// Facts of the models, as gauges of their own.
    facts: Family<Labels, Gauge<f64, AtomicU64>>,
    kv_bytes: Family<Labels, Gauge<f64, AtomicU64>>,
    /// Sizes of the cache, and the prefix cache's counters and fill, in the order of [`SIZES`], [`COUNTED`] and [`HELD`].
    sizes: [Family<Labels, Gauge>; SIZES.len()],
    counted: [Family<Labels, Counter>; COUNTED.len()],
    held: [Family<Labels, Gauge>; HELD.len()],
}

/// Sizes by their key among the facts of an engine.
const SIZES: [(&str, &str, &str); 4] = [
    ("page_tokens", "basert_kv_page_tokens", "Tokens of a page of the KV cache"),
    ("kv_pages", "basert_kv_pages", "Pages of the KV cache's pools"),
    ("kv_bytes_per_token", "basert_kv_bytes_per_token", "Bytes of a token in the KV cache"),
    ("state_bytes_per_sequence", "basert_state_bytes", "Bytes of a sequence's recurrent state"),
];

const COUNTED: [(&str, &str); 6] = [
    ("basert_prefix_cache_hits", "Prompts of which something had been read before"),
    ("basert_prefix_cache_misses", "Prompts of which nothing had"),
    ("basert_prefix_cache_tokens_asked", "Tokens of all prompts"),
    ("basert_prefix_cache_tokens_saved", "Tokens of prompts that were not read again"),
    ("basert_prefix_cache_evicted_pages", "Pages of kept prompts given up for others"),
    ("basert_prefix_cache_evicted_snapshots", "Recurrent states of kept prompts given up for others"),
];

const HELD: [(&str, &str); 4] = [
    ("basert_prefix_cache_pages", "Pages of kept prompts"),
    ("basert_prefix_cache_snapshots", "Recurrent states of kept prompts"),
    ("basert_prefix_cache_bytes", "Bytes of kept prompts, recurrent states included"),
    ("basert_prefix_cache_limit_bytes", "Most bytes for kept prompts"),
];

/// Bounds of the histograms, in seconds.
const BOUNDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0];

impl Default for Metrics {
    fn default() -> Metrics {
        let histogram = || Histogram::new(BOUNDS);
        let mut metrics = Metrics {
            registry: Registry::default(),
            requests: Family::default(),
            prompt_tokens: Counter::default(),
            generated_tokens: Counter::default(),
            answer_steps: Counter::default(),
            drafted_tokens: Counter::default(),
            accepted_tokens: Counter::default(),
            drafting_seconds: Counter::default(),
            cancelled: Counter::default(),
            queue_seconds: histogram(),
            first_token_seconds: histogram(),
            next_token_seconds: histogram(),
            running: Gauge::default(),
            waiting: Gauge::default(),
            facts: Family::default(),
            kv_bytes: Family::default(),
            sizes: Default::default(),
            counted: Default::default(),
            held: Default::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let Metrics { registry, requests, .. } = self;
        registry.register("basert_http_requests", "HTTP requests by path and status", requests.clone());
        registry.register("basert_prompt_tokens", "Prompt tokens run", self.prompt_tokens.clone());
        registry.register("basert_generated_tokens", "Tokens generated", self.generated_tokens.clone());
        let help = "Steps of answers: one token each, and the guesses that were right";
        registry.register("basert_answer_steps", help, self.answer_steps.clone());
        let help = "Tokens that were guessed";
        registry.register("basert_drafted_tokens", help, self.drafted_tokens.clone());
        let help = "Guessed tokens that were right";
        registry.register("basert_accepted_tokens", help, self.accepted_tokens.clone());
        let help = "Time that guessing took";
        registry.register("basert_drafting_seconds", help, self.drafting_seconds.clone());
        let help = "Requests whose client left or was cut off before the end";
        registry.register("basert_cancelled", help, self.cancelled.clone());
        let help = "Time from arrival to the first step";
        registry.register("basert_queue_seconds", help, self.queue_seconds.clone());
        let help = "Time from arrival to the first token";
        registry.register("basert_time_to_first_token_seconds", help, self.first_token_seconds.clone());
        let help = "Time between two tokens of an answer";
        registry.register("basert_inter_token_seconds", help, self.next_token_seconds.clone());
        registry.register("basert_requests_running", "Requests that have a sequence", self.running.clone());
        registry.register("basert_requests_waiting", "Requests that wait for one", self.waiting.clone());
        let help = "1, with what was selected at load as labels";
        registry.register("basert_engine", help, self.facts.clone());
        registry.register("basert_kv_bytes", "Bytes of the KV cache's pools", self.kv_bytes.clone());
        for ((_, name, help), size) in SIZES.iter().zip(&self.sizes) {
            registry.register(*name, *help, size.clone());
        }
        for ((name, help), counter) in COUNTED.iter().zip(&self.counted) {
            registry.register(*name, *help, counter.clone());
        }
        for ((name, help), gauge) in HELD.iter().zip(&self.held) {
            registry.register(*name, *help, gauge.clone());
        }
    }

    pub(crate) fn responded(&self, path: &str, status: u16) {
        let labels = vec![("path", path.to_owned()), ("status", status.to_string())];
        self.requests.get_or_create(&labels).inc();
    }

    pub(crate) fn queued(&self, time: Duration) {
        self.queue_seconds.observe(time.as_secs_f64());
    }

    pub(crate) fn first_token(&self, time: Duration) {
        self.first_token_seconds.observe(time.as_secs_f64());
    }

    pub(crate) fn next_token(&self, time: Duration) {
        self.next_token_seconds.observe(time.as_secs_f64());
    }

    /// A request has left the engine: tokens of prompt and answer, and whether it came to its own end.
    pub(crate) fn ended(&self, (prompt, generated): (usize, usize), complete: bool) {
        self.prompt_tokens.inc_by(prompt as u64);
        self.generated_tokens.inc_by(generated as u64);
        if !complete {
            self.cancelled.inc();
        }
    }

    /// Takes what was guessed in a step.
    pub(crate) fn speculated(&self, speculated: Speculated) {
        self.answer_steps.inc_by(speculated.steps as u64);
        self.drafted_tokens.inc_by(speculated.drafted as u64);
        self.accepted_tokens.inc_by(speculated.accepted as u64);
        self.drafting_seconds.inc_by(speculated.drafting.as_secs_f64());
    }

    /// Sets the facts of a model.
    pub(crate) fn describe(&self, model: &str, engine: &serde_json::Value) {
        let text = |key: &str| engine[key].as_str().unwrap_or_default().to_owned();
        let keys = ["isa", "arch", "k_type", "v_type"];
        let labels = keys.into_iter().map(|key| (key, text(key)));
        let labels = std::iter::once(("model", model.to_owned())).chain(labels).collect();
        self.facts.get_or_create(&labels).set(1.0);
        let bytes = engine["memory"]["kv"].as_f64().unwrap_or_default();
        let labels = vec![("model", model.to_owned())];
        self.kv_bytes.get_or_create(&labels).set(bytes);
        for ((key, ..), size) in SIZES.iter().zip(&self.sizes) {
            size.get_or_create(&labels).set(engine[key].as_i64().unwrap_or_default());
        }
    }

    /// Sets the counters of a model's prefix cache, which counts itself; zeros without one.
    pub(crate) fn prefixes(&self, model: &str, stats: Option<PrefixStats>) {
        let labels = vec![("model", model.to_owned())];
        let stats = stats.unwrap_or_default();
        let PrefixStats { lookups, hits, asked_tokens, hit_tokens, evicted_pages, evicted_snapshots, .. } =
            stats;
        let counted = [hits, lookups - hits, asked_tokens, hit_tokens, evicted_pages, evicted_snapshots];
        for (counter, value) in self.counted.iter().zip(counted) {
            counter.get_or_create(&labels).inner().store(value, Ordering::Relaxed);
        }
        let held = [stats.pages as u64, stats.snapshots as u64, stats.bytes, stats.limit_bytes];
        for (gauge, value) in self.held.iter().zip(held) {
            gauge.get_or_create(&labels).set(value as i64);
        }
    }

    /// The text that Prometheus reads.
    pub(crate) fn text(&self, running: usize, waiting: usize) -> Result<String, std::fmt::Error> {
        self.running.set(running as i64);
        self.waiting.set(waiting as i64);
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
