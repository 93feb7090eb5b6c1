//! What all connections share.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::config::{ApiKey, Config};
use crate::error::ApiError;
use crate::http::rate::RateLimit;
use crate::http::reading::Reading;
use crate::log::Log;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::worker::Worker;

/// A model with the thread that runs it.
#[derive(Debug)]
pub struct Hosted {
    /// The text side.
    pub model: Arc<Model>,
    /// The engine side.
    pub worker: Worker,
}

/// A server's state.
#[derive(Debug)]
pub struct App {
    pub(crate) config: Config,
    pub(crate) hosted: Vec<Hosted>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) log: Log,
    pub(crate) rate: RateLimit,
    pub(crate) reading: Reading,
    /// For every key that has a limit: the answers that it may still have at a time.
    at_a_time: Vec<Option<Arc<Semaphore>>>,
    pub(crate) started: Instant,
    /// Whether the server takes no new work.
    draining: watch::Sender<bool>,
}

impl App {
    /// The state of a server for these models, the first of which is the default.
    ///
    /// # Errors
    /// A log file that cannot be opened.
    pub fn new(config: Config, hosted: Vec<Hosted>, metrics: Arc<Metrics>) -> std::io::Result<App> {
        let log = Log::open(config.log_file.clone())?;
        for Hosted { model, worker } in &hosted {
            metrics.describe(&model.id, &worker.facts().engine);
        }
        let most = |key: &ApiKey| key.requests.map(|requests| Arc::new(Semaphore::new(requests)));
        let at_a_time = config.api_keys.iter().map(most).collect();
        let (rate, reading) = (RateLimit::default(), Reading::default());
        let (draining, _) = watch::channel(false);
        Ok(App { config, hosted, metrics, log, rate, reading, at_a_time, started: Instant::now(), draining })
    }

    /// From now on requests for answers are turned away; running ones go on.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Whether [`drain`](Self::drain) was called.
    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    pub(crate) fn drained(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    /// Requests in all engines.
    pub(crate) fn in_flight(&self) -> usize {
        self.hosted.iter().map(|hosted| hosted.worker.slots().count()).sum()
    }

    /// The model of this name; without one, the first. Names are only compared with those of the hosted models.
    ///
    /// # Errors
    /// 404 for a name that no model has.
    pub(crate) fn model(&self, name: Option<&str>) -> Result<&Hosted, ApiError> {
        let found = match name {
            None => self.hosted.first(),
            Some(name) => self.hosted.iter().find(|hosted| hosted.model.id == name),
        };
        found.ok_or_else(|| {
            let asked: String = name.unwrap_or_default().chars().take(64).collect();
            let known: Vec<&str> = self.hosted.iter().map(|hosted| hosted.model.id.as_str()).collect();
            let message = format!("the model {asked:?} does not exist here; there is {}", known.join(", "));
            let (param, code) = (Some("model".to_owned()), Some("model_not_found"));
            ApiError { param, code, ..ApiError::not_found(message) }
        })
    }

    /// Whether there is room for so many more requests of a client. Where there are several keys, the last quarter of the queue
    /// is for those that have no requests in the engine.
    ///
    /// # Errors
    /// 503 if not, or if the server is about to end.
    pub(crate) fn admit(&self, worker: &Worker, client: &str, requests: usize) -> Result<(), ApiError> {
        if self.is_draining() {
            return Err(ApiError::unavailable("the server is shutting down", 10));
        }
        let queue = self.config.queue;
        let others = self.config.api_keys.len() > 1 && worker.slots().has(client);
        let kept = if others { queue.div_ceil(4) } else { 0 };
        let (busy, most) = (worker.slots().count(), worker.facts().slots + queue - kept);
        if busy + requests > most.max(requests) {
            let message =
                format!("{busy} requests are running or waiting, and {most} is the most; try again later");
            return Err(ApiError::unavailable(message, 1));
        }
        Ok(())
    }

    /// Lets a key's request in before it is read, for as long as what is returned lives. It counts as one answer until
    /// [`widen`](Self::widen) knows better.
    ///
    /// # Errors
    /// 429 if as many answers are running as may.
    pub(crate) fn enter(&self, key: Option<usize>) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        let limit = key.and_then(|key| self.at_a_time.get(key)?.as_ref());
        let permit = limit.map(|limit| Arc::clone(limit).try_acquire_owned());
        permit.transpose().map_err(|_| ApiError::too_many_at_a_time())
    }

    /// Lets a request that was let in have so many answers.
    ///
    /// # Errors
    /// 429 if too many others are running, 400 if there are more than may ever be.
    pub(crate) fn widen(
        &self,
        key: Option<usize>,
        permit: &mut Option<OwnedSemaphorePermit>,
        answers: usize,
    ) -> Result<(), ApiError> {
        let most = key.and_then(|key| self.config.api_keys.get(key)?.requests);
        let (Some(permit), Some(most)) = (permit, most) else { return Ok(()) };
        if answers > most {
            return Err(ApiError::too_many_answers(answers, most));
        }
        let more = u32::try_from(answers - permit.num_permits()).unwrap_or(u32::MAX);
        let more = Arc::clone(permit.semaphore()).try_acquire_many_owned(more);
        permit.merge(more.map_err(|_| ApiError::too_many_at_a_time())?);
        Ok(())
    }

    /// Stops the engines: the requests in them end.
    pub fn stop(&self) {
        self.hosted.iter().for_each(|hosted| hosted.worker.stop());
    }
}
