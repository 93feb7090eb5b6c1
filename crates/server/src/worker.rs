//! The engine thread: it alone touches the engine, so that the threads that talk to clients never compute and never wait
//! for a step. Without work it sleeps in a channel.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use basert_engine::{News, PrefixStats, Request};
use tokio::sync::{mpsc as channel, oneshot};

use crate::backend::{Backend, Facts, Loader};
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::slots::{Ear, Heard, Slot, Slots, Wants};

enum Order {
    Submit(Box<(Request, Ear)>),
    Load(oneshot::Sender<Result<(), String>>),
    Unload(oneshot::Sender<()>),
    /// Ends the thread, whatever runs.
    Stop,
}

/// Requests' way to an engine thread.
#[derive(Debug)]
pub struct Worker {
    entrance: Entrance,
    facts: Facts,
    loaded: Arc<Mutex<bool>>,
    prefixes: Arc<Mutex<Option<PrefixStats>>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// Where requests are handed to an engine thread.
#[derive(Debug, Clone)]
pub(crate) struct Entrance {
    orders: Sender<Order>,
    slots: Arc<Slots>,
    metrics: Arc<Metrics>,
}

impl Entrance {
    /// Hands a request to the engine thread.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn submit(&self, request: Request, wants: Wants) -> Result<Submitted, ApiError> {
        let (sender, news) = channel::unbounded_channel();
        let slot = self.slots.enter(&request.client, request.prompt.len());
        let (in_slot, slots, metrics) =
            (Arc::clone(&slot), Arc::clone(&self.slots), Arc::clone(&self.metrics));
        let ear = Ear::new(sender, wants, in_slot, slots, metrics);
        self.orders.send(Order::Submit(Box::new((request, ear)))).map_err(|_| ApiError::stopped())?;
        Ok(Submitted { news, slot })
    }
}

/// A submitted request: what happens to it. Dropping it ends the request.
#[derive(Debug)]
pub(crate) struct Submitted {
    /// What happens.
    pub news: channel::UnboundedReceiver<Heard>,
    /// How far it is.
    pub slot: Arc<Slot>,
}

impl Drop for Submitted {
    fn drop(&mut self) {
        self.slot.leaves();
    }
}

impl Worker {
    /// Starts a thread and loads the model in it. `idle` is the time without requests after which the model's memory is given
    /// back.
    ///
    /// # Errors
    /// What the loader says, or the system about the thread.
    pub fn start(loader: Loader, idle: Option<Duration>, metrics: Arc<Metrics>) -> Result<Worker, String> {
        let (orders, inbox) = mpsc::channel();
        let (report, reported) = mpsc::channel();
        let loaded = Arc::new(Mutex::new(true));
        let is_loaded = Arc::clone(&loaded);
        let prefixes = Arc::default();
        let counters = (Arc::clone(&prefixes), Arc::clone(&metrics));
        let run = move || {
            let (prefixes, metrics) = counters;
            let mut engine = Thread { loader, backend: None, is_loaded, prefixes, idle, metrics };
            // Nobody waits for the answer only if the server is gone already.
            if report.send(engine.load()).is_ok() {
                engine.run(&inbox);
            }
        };
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(run);
        let thread = thread.map_err(|e| format!("cannot start the engine's thread: {e}"))?;
        let facts = reported.recv().map_err(|_| "the engine's thread has ended".to_owned())??;
        let entrance = Entrance { orders, slots: Arc::default(), metrics };
        Ok(Worker { entrance, facts, loaded, prefixes, thread: Mutex::new(Some(thread)) })
    }

    /// Sizes of the model.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Requests that were submitted and have not ended.
    pub fn slots(&self) -> &Slots {
        &self.entrance.slots
    }

    /// Counters of the prefix cache after the latest step, if there is one.
    pub fn prefix_stats(&self) -> Option<PrefixStats> {
        *lock(&self.prefixes)
    }

    /// Whether the model is in memory.
    pub fn is_loaded(&self) -> bool {
        *lock(&self.loaded)
    }

    /// Where its requests are handed in.
    pub(crate) fn entrance(&self) -> &Entrance {
        &self.entrance
    }

    /// Loads the model if it is not in memory.
    ///
    /// # Errors
    /// What the loader says.
    pub async fn load(&self) -> Result<(), ApiError> {
        let (reply, replied) = oneshot::channel();
        self.entrance.orders.send(Order::Load(reply)).map_err(|_| ApiError::stopped())?;
        replied.await.map_err(|_| ApiError::stopped())?.map_err(ApiError::internal)
    }

    /// Gives the model's memory back once its requests have ended; those that come later wait for that, and load it again.
    /// A [`load`](Self::load) before then keeps it.
    ///
    /// # Errors
    /// If the thread has ended.
    pub async fn unload(&self) -> Result<(), ApiError> {
        let (reply, replied) = oneshot::channel();
        self.entrance.orders.send(Order::Unload(reply)).map_err(|_| ApiError::stopped())?;
        replied.await.map_err(|_| ApiError::stopped())
    }

    /// Whether the thread still runs.
    pub fn is_alive(&self) -> bool {
        lock(&self.thread).as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends the thread after the step that it is in, and waits for that.
    pub fn stop(&self) {
        let _ = self.entrance.orders.send(Order::Stop);
        if let Some(thread) = lock(&self.thread).take() {
            // A panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// What a panic has left is still a whole value: nothing is held across one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of a model's time in memory, which begins when its requests have ended.
#[derive(Default)]
struct Unloading {
    /// Who waits for it.
    replies: Vec<oneshot::Sender<()>>,
    /// Requests that have come since it was asked for.
    later: Vec<(Request, Ear)>,
}

impl Unloading {
    fn is_wanted(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Tells that it is over, and returns the requests that have waited for that.
    fn end(&mut self) -> Vec<(Request, Ear)> {
        for reply in self.replies.drain(..) {
            // Whoever asked may have gone.
            let _: Result<(), ()> = reply.send(());
        }
        std::mem::take(&mut self.later)
    }
}

/// The thread's own side.
struct Thread {
    loader: Loader,
    backend: Option<Box<dyn Backend>>,
    is_loaded: Arc<Mutex<bool>>,
    prefixes: Arc<Mutex<Option<PrefixStats>>>,
    idle: Option<Duration>,
    metrics: Arc<Metrics>,
}

impl Thread {
    fn load(&mut self) -> Result<Facts, String> {
        let loaded = (self.loader)()?;
        self.backend = Some(loaded.backend);
        *lock(&self.is_loaded) = true;
        self.count();
        Ok(loaded.facts)
    }

    /// Shows the counters to those who ask.
    fn count(&self) {
        *lock(&self.prefixes) = self.backend.as_ref().and_then(|backend| backend.prefix_stats());
    }

    fn unload(&mut self) {
        self.save();
        self.backend = None;
        self.count();
        *lock(&self.is_loaded) = false;
    }

    fn save(&mut self) {
        if let Some(backend) = &mut self.backend {
            backend.save();
        }
    }

    fn run(&mut self, inbox: &Receiver<Order>) {
        let mut unloading = Unloading::default();
        loop {
            let works = self.backend.as_ref().is_some_and(|backend| backend.has_work());
            if !works && unloading.is_wanted() {
                self.unload();
                self.submit_all(unloading.end());
                continue;
            }
            let order = if works { inbox.try_recv() } else { self.wait(inbox) };
            match order {
                Ok(Order::Submit(order)) if unloading.is_wanted() => unloading.later.push(*order),
                Ok(Order::Submit(order)) => self.submit(order.0, order.1),
                Ok(Order::Load(reply)) => {
                    let result = if self.backend.is_some() { Ok(()) } else { self.load().map(drop) };
                    let _ = reply.send(result);
                    self.submit_all(unloading.end());
                }
                Ok(Order::Unload(reply)) => unloading.replies.push(reply),
                Ok(Order::Stop) | Err(TryRecvError::Disconnected) => return self.save(),
                Err(TryRecvError::Empty) => {
                    if let Some(backend) = &mut self.backend {
                        backend.step();
                        self.metrics.speculated(backend.take_speculated());
                        self.count();
                    }
                }
            }
        }
    }

    /// Sleeps until there is an order. Idle for too long, the model goes.
    fn wait(&mut self, inbox: &Receiver<Order>) -> Result<Order, TryRecvError> {
        if let Some(idle) = self.idle.filter(|_| self.backend.is_some()) {
            match inbox.recv_timeout(idle) {
                Ok(order) => return Ok(order),
                Err(RecvTimeoutError::Disconnected) => return Err(TryRecvError::Disconnected),
                Err(RecvTimeoutError::Timeout) => self.unload(),
            }
        }
        inbox.recv().map_err(|_| TryRecvError::Disconnected)
    }

    fn submit_all(&mut self, requests: Vec<(Request, Ear)>) {
        requests.into_iter().for_each(|(request, ear)| self.submit(request, ear));
    }

    fn submit(&mut self, request: Request, ear: Ear) {
        if self.backend.is_none()
            && let Err(reason) = self.load()
        {
            ear.refuse(reason);
            return;
        }
        let Some(backend) = &mut self.backend else { return };
        let failure = ear.failure_handle();
        if let Err(error) = backend.submit(request, Box::new(ear)) {
            // Whoever asked may have gone.
            let _ = failure.send(Heard::News(News::Failed(Arc::new(error)), Instant::now()));
        }
    }
}
