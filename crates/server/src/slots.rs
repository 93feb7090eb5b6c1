//! Requests in the engine: how far each is, and the client that tells.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use basert_engine::{Client, EngineError, Finish, News, Token};
use tokio::sync::mpsc::UnboundedSender;

use crate::core::Constraint;
use crate::metrics::Metrics;
use crate::worker::lock;

/// A request in the engine.
#[derive(Debug)]
pub struct Slot {
    /// Counted from the server's start.
    pub id: u64,
    /// Who asks.
    client: String,
    /// Tokens of the prompt.
    pub prompt: usize,
    cached: AtomicUsize,
    prefilled: AtomicUsize,
    generated: AtomicUsize,
    started: AtomicBool,
    complete: AtomicBool,
    left: AtomicBool,
}

impl Slot {
    /// Tokens of the prompt that were kept from earlier ones.
    pub fn cached(&self) -> usize {
        self.cached.load(Ordering::Relaxed)
    }

    /// Tokens of the prompt that have been run.
    pub fn prefilled(&self) -> usize {
        self.prefilled.load(Ordering::Relaxed)
    }

    /// Tokens of the answer.
    pub fn generated(&self) -> usize {
        self.generated.load(Ordering::Relaxed)
    }

    /// The answer needs nothing more of the engine, though the engine would go on.
    pub fn completes(&self) {
        self.complete.store(true, Ordering::Relaxed);
    }

    /// Nobody waits for it any more; the engine drops it before its next step.
    pub(crate) fn leaves(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    /// Whether it has a sequence and has been in a step.
    pub fn is_running(&self) -> bool {
        self.started.load(Ordering::Relaxed)
    }
}

/// All requests in an engine, in the order of arrival.
#[derive(Debug, Default)]
pub struct Slots {
    next: AtomicU64,
    active: Mutex<Vec<Arc<Slot>>>,
}

impl Slots {
    /// All that have not ended.
    pub fn active(&self) -> Vec<Arc<Slot>> {
        lock(&self.active).clone()
    }

    /// How many have not ended, and are waited for.
    pub fn count(&self) -> usize {
        lock(&self.active).iter().filter(|slot| !slot.left.load(Ordering::Relaxed)).count()
    }

    /// Whether one of them is this client's.
    pub(crate) fn has(&self, client: &str) -> bool {
        lock(&self.active).iter().any(|slot| slot.client == client && !slot.left.load(Ordering::Relaxed))
    }

    pub(crate) fn enter(&self, client: &str, prompt: usize) -> Arc<Slot> {
        let slot = Arc::new(Slot {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            client: client.to_owned(),
            prompt,
            cached: AtomicUsize::new(0),
            prefilled: AtomicUsize::new(0),
            generated: AtomicUsize::new(0),
            started: AtomicBool::new(false),
            complete: AtomicBool::new(false),
            left: AtomicBool::new(false),
        });
        lock(&self.active).push(Arc::clone(&slot));
        slot
    }

    fn leave(&self, id: u64) {
        lock(&self.active).retain(|slot| slot.id != id);
    }
}

/// What is told of a request.
#[derive(Debug)]
pub(crate) enum Heard {
    /// As the engine tells it, and when it did: whoever listens may come to it late.
    News(News, Instant),
    /// Tokens of the prompt, or the one that ends the answer, with their log-probabilities.
    Beside(Vec<Token>),
}

/// What a request wants beyond an answer.
#[derive(Debug, Default)]
pub(crate) struct Wants {
    /// What holds the answer to a grammar.
    pub constraint: Option<Constraint>,
    /// The log-probabilities of the prompt, with so many of the likeliest tokens.
    pub prompt: Option<usize>,
}

/// The engine's view of whoever waits for an answer.
pub(crate) struct Ear {
    sender: UnboundedSender<Heard>,
    wants: Wants,
    slot: Arc<Slot>,
    slots: Arc<Slots>,
    metrics: Arc<Metrics>,
    arrived: Instant,
    last: Instant,
    ended: bool,
}

impl Ear {
    pub(crate) fn new(
        sender: UnboundedSender<Heard>,
        wants: Wants,
        slot: Arc<Slot>,
        slots: Arc<Slots>,
        metrics: Arc<Metrics>,
    ) -> Ear {
        let now = Instant::now();
        Ear { sender, wants, slot, slots, metrics, arrived: now, last: now, ended: false }
    }

    /// Ends a request whose model could not be loaded.
    pub(crate) fn refuse(self, reason: String) {
        let error = EngineError::Option { option: "load", reason };
        // Whoever asked may have gone.
        let _ = self.sender.send(Heard::News(News::Failed(Arc::new(error)), Instant::now()));
    }

    /// A way to tell of a failure after the engine has taken, and dropped, the client.
    pub(crate) fn failure_handle(&self) -> UnboundedSender<Heard> {
        self.sender.clone()
    }

    fn count(&mut self, news: &News, now: Instant) {
        match news {
            News::Prefilled { done, cached, .. } => {
                self.slot.cached.store(*cached, Ordering::Relaxed);
                if !self.slot.started.swap(true, Ordering::Relaxed) {
                    self.metrics.queued(now - self.arrived);
                }
                self.slot.prefilled.store(*done, Ordering::Relaxed);
            }
            News::Token(_) => {
                if self.slot.generated.fetch_add(1, Ordering::Relaxed) == 0 {
                    self.metrics.first_token(now - self.arrived);
                } else {
                    self.metrics.next_token(now - self.last);
                }
                self.last = now;
            }
            News::Finished(Finish::Stop | Finish::Length) | News::Failed(_) => self.ended = true,
        }
    }
}

impl Client for Ear {
    fn constrain(&mut self, logits: &mut [f32]) -> Result<(), EngineError> {
        let masked = self.wants.constraint.as_mut().map_or(Ok(()), |constraint| constraint.mask(logits));
        masked.map_err(|reason| EngineError::Constraint { reason })
    }

    fn take(&mut self, mut news: News) -> ControlFlow<()> {
        if let (News::Token(token), Some(constraint)) = (&news, &mut self.wants.constraint)
            && let Err(reason) = constraint.accept(token.id)
        {
            news = News::Failed(Arc::new(EngineError::Constraint { reason }));
        }
        let now = Instant::now();
        self.count(&news, now);
        let failed = matches!(news, News::Failed(_));
        if self.sender.send(Heard::News(news, now)).is_err() || failed {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn wants_prompt(&self) -> Option<usize> {
        self.wants.prompt
    }

    fn take_prompt(&mut self, tokens: Vec<Token>) {
        // Whoever asked may have gone; the next step sees that.
        let _ = self.sender.send(Heard::Beside(tokens));
    }

    fn take_end(&mut self, token: Token) {
        // Who has prompts scored cuts the answer off the end of the lists: one token, whichever it is.
        if self.wants.prompt.is_some() {
            self.take_prompt(vec![token]);
        }
    }

    fn is_gone(&self) -> bool {
        self.sender.is_closed()
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.slots.leave(self.slot.id);
        let tokens = (self.slot.prefilled(), self.slot.generated());
        let complete = self.ended || self.slot.complete.load(Ordering::Relaxed);
        self.metrics.ended(tokens, complete);
    }
}
