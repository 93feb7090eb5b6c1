//! What an engine thread runs: the scheduler of a loaded model, or a script in tests.

use basert_engine::{Client, EngineError, PrefixStats, Request, Scheduler, Speculated};
use serde_json::Value;

/// Answers requests step by step.
pub trait Backend: Send {
    /// Queues a request.
    ///
    /// # Errors
    /// What could never be answered.
    fn submit(&mut self, request: Request, client: Box<dyn Client>) -> Result<(), EngineError>;

    /// Goes on by one step.
    fn step(&mut self);

    /// Whether a step would do anything.
    fn has_work(&self) -> bool;

    /// Counters of the prefix cache, if there is one.
    fn prefix_stats(&self) -> Option<PrefixStats> {
        None
    }

    /// Called before it is given back: what is to outlive it is saved now.
    fn save(&mut self) {}

    /// What was guessed since this was asked last.
    fn take_speculated(&mut self) -> Speculated {
        Speculated::default()
    }
}

impl Backend for Scheduler {
    fn submit(&mut self, request: Request, client: Box<dyn Client>) -> Result<(), EngineError> {
        Scheduler::submit(self, request, client)
    }

    fn step(&mut self) {
        Scheduler::step(self);
    }

    fn has_work(&self) -> bool {
        Scheduler::has_work(self)
    }

    fn prefix_stats(&self) -> Option<PrefixStats> {
        self.engine().prefix_stats()
    }

    fn take_speculated(&mut self) -> Speculated {
        Scheduler::take_speculated(self)
    }
}

/// Sizes of a loaded model.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Tokens that prompt and answer may take together.
    pub context: usize,
    /// Requests that run at a time.
    pub slots: usize,
    /// Rows of the embedding table: token ids are below.
    pub vocab: usize,
    /// Everything that was selected at load, for `/v1/engine`. `k_type`, `v_type`, `kv_bytes` and the like are taken from here.
    pub engine: Value,
}

/// A loaded model.
pub struct Loaded {
    /// Answers requests.
    pub backend: Box<dyn Backend>,
    /// Its sizes.
    pub facts: Facts,
}

/// Loads a model; called again after its memory was given back. An error is one sentence.
pub type Loader = Box<dyn FnMut() -> Result<Loaded, String> + Send>;
