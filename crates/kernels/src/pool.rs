//! The thread pool: created once, one job at a time, no allocation and no lock in a hot call.
//!
//! A job is a function over chunk numbers. The caller opens the job, takes chunks itself together with the workers
//! (one shared counter hands them out), closes the job and waits for the workers that are still inside. A worker that
//! wakes too late finds the job closed and goes back to waiting, so nobody waits for a sleeper. Between jobs a worker
//! spins for [`SPIN`], long enough to bridge the gaps inside a decode step, and then sleeps on a condition variable.
//!
//! Who computes a chunk never influences its result; that is the callers' part of the contract.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::os::unix::thread::JoinHandleExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{KernelError, pinning};

/// How long a waiting thread spins before it sleeps (workers) or yields (the caller).
const SPIN: Duration = Duration::from_micros(100);

/// Polls between two looks at the clock.
const POLLS: usize = 64;

/// Threads that share work. Dropping it ends them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a job, so that concurrent callers take turns.
    turn: Mutex<()>,
    /// The CPUs that the threads are bound to, the caller's first; none where they are free.
    cpus: Vec<usize>,
}

/// What all threads see.
struct Shared {
    /// Low half: workers inside the job, and [`CLOSED`]. High half: the job's number, so that it never repeats while
    /// a worker looks away.
    state: AtomicU64,
    /// The open job. Written only while no worker is inside.
    job: UnsafeCell<Job>,
    /// The next chunk to hand out.
    next: AtomicUsize,
    /// Workers asleep or about to be.
    sleepers: AtomicUsize,
    sleep: Mutex<Sleep>,
    wake: Condvar,
    /// The first panic of a job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Default)]
struct Sleep {
    shutdown: bool,
}

/// Set in [`Shared::state`] when no more workers may enter.
const CLOSED: u64 = 1 << 31;
/// One job in the high half of [`Shared::state`].
const JOB: u64 = 1 << 32;

/// Stands in the job's place before the first one.
const IDLE: &(dyn Fn(usize) + Sync) = &|_| {};

/// A borrowed function and its chunk count, with the borrow's lifetime erased.
#[derive(Clone, Copy)]
struct Job {
    function: *const (dyn Fn(usize) + Sync),
    chunks: usize,
}

// SAFETY: `job` is written only in `Pool::run`, under `turn`, while the state is closed with nobody inside, and read
// only by workers that entered an open job; the state's acquire and release operations order the two. The function it
// points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing in it is tied to a thread.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` threads, the calling one included.
    pub fn new(threads: usize) -> Result<Pool, KernelError> {
        if threads == 0 {
            return Err(KernelError::NoThreads);
        }
        let shared = Arc::new(Shared {
            state: AtomicU64::new(CLOSED),
            job: UnsafeCell::new(Job { function: IDLE, chunks: 0 }),
            next: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::default(),
            wake: Condvar::new(),
            panic: Mutex::default(),
        });
        let workers = Vec::with_capacity(threads - 1);
        let mut pool = Pool { shared, workers, turn: Mutex::new(()), cpus: Vec::new() };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("basert-{index}"));
            let worker = builder.spawn(move || shared.work());
            // On failure the pool drops and ends the workers it already has.
            pool.workers.push(worker.map_err(|source| KernelError::Spawn { threads, source })?);
        }
        Ok(pool)
    }

    /// Binds every worker to a CPU of its own, and keeps one for the caller.
    pub fn pin(&mut self) -> Result<(), KernelError> {
        let cpus = pinning::cpus(self.threads())?;
        for (worker, &cpu) in self.workers.iter().zip(&cpus[1..]) {
            pinning::bind(worker.as_pthread_t(), cpu).map_err(|source| KernelError::Pin { cpu, source })?;
        }
        self.cpus = cpus;
        Ok(())
    }

    /// Binds the calling thread, if the others are bound and it is not yet.
    pub fn pin_caller(&self) -> Result<(), KernelError> {
        thread_local! {
            static BOUND: Cell<Option<usize>> = const { Cell::new(None) };
        }
        let Some(&cpu) = self.cpus.first() else { return Ok(()) };
        if BOUND.get() == Some(cpu) {
            return Ok(());
        }
        pinning::bind(pinning::this_thread(), cpu).map_err(|source| KernelError::Pin { cpu, source })?;
        BOUND.set(Some(cpu));
        Ok(())
    }

    /// The CPUs that the threads are bound to, the caller's first.
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// Threads that share a job, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `function(0)` to `function(chunks - 1)`, each once, on any thread and in any order, and returns when all
    /// are done. Calls from several threads take turns; a call from inside `function` would wait for itself.
    ///
    /// # Panics
    /// With the panic of a chunk, after all others are done or given up.
    pub fn run(&self, chunks: usize, function: &(dyn Fn(usize) + Sync)) {
        if chunks <= 1 || self.workers.is_empty() {
            (0..chunks).for_each(function);
            return;
        }
        let turn = lock(&self.turn);
        let shared = &*self.shared;
        // SAFETY: the lifetime is erased only for the duration of this call, which outlasts every use of the pointer:
        // it returns (or unwinds) after `close`, and then no worker is inside and none can enter.
        let function: *const (dyn Fn(usize) + Sync) = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(function)
        };
        shared.open(Job { function, chunks });
        shared.take_chunks(Job { function, chunks });
        shared.close();
        let panic = lock(&shared.panic).take();
        drop(turn);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Calls `function` once on every thread.
    ///
    /// # Panics
    /// As [`Pool::run`].
    pub fn run_on_each(&self, function: &(dyn Fn() + Sync)) {
        // Whoever has a chunk waits until all have one, so nobody takes two.
        let all_here = Barrier::new(self.threads());
        self.run(self.threads(), &|_| {
            all_here.wait();
            function();
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.sleep).shutdown = true;
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches every panic of a job, so there is nothing to report.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Publishes a job and wakes those who sleep.
    fn open(&self, job: Job) {
        let state = self.state.load(Ordering::Acquire);
        // SAFETY: the previous job is closed and nobody is inside (`close` waited for that).
        unsafe { *self.job.get() = job };
        self.next.store(0, Ordering::Relaxed);
        let number = (state & !(JOB - 1)).wrapping_add(JOB);
        // Sequentially consistent together with `sleepers`: either the worker sees the new job before it sleeps or
        // this thread sees the worker.
        self.state.store(number, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.sleep));
            self.wake.notify_all();
        }
    }

    /// Lets no more workers in and waits for those inside.
    fn close(&self) {
        let mut state = self.state.fetch_or(CLOSED, Ordering::AcqRel);
        let mut spin = Spin::start();
        while state & (CLOSED - 1) != 0 {
            if !spin.again() {
                std::thread::yield_now();
            }
            state = self.state.load(Ordering::Acquire);
        }
    }

    /// Computes chunks until none is left. A panic ends the job early: the rest of the chunks is not handed out.
    fn take_chunks(&self, job: Job) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let chunk = self.next.fetch_add(1, Ordering::Relaxed);
                if chunk >= job.chunks {
                    break;
                }
                // SAFETY: the job is open, or this thread is inside, so the caller of `run` still lends the function.
                unsafe { (*job.function)(chunk) };
            }
        }));
        if let Err(panic) = result {
            self.next.store(job.chunks, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(panic);
        }
    }

    /// A worker's life.
    fn work(&self) {
        // Number 0 is the closed state before the first job.
        let mut seen = 0;
        while let Some(job) = self.enter(seen) {
            seen = job;
            // SAFETY: this worker is inside an open job, so nobody writes `job`.
            let job = unsafe { *self.job.get() };
            self.take_chunks(job);
            self.state.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Waits for an open job other than number `seen` and enters it; `None` when the pool shuts down.
    fn enter(&self, seen: u64) -> Option<u64> {
        let mut spin = Spin::start();
        loop {
            let state = self.state.load(Ordering::Acquire);
            let number = state & !(JOB - 1);
            if number != seen && state & CLOSED == 0 {
                let entered =
                    self.state.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Relaxed);
                if entered.is_ok() {
                    return Some(number);
                }
            } else if !spin.again() {
                if !self.sleep_while(state) {
                    return None;
                }
                spin = Spin::start();
            }
        }
    }

    /// Sleeps as long as the state is `state`; false when the pool shuts down.
    fn sleep_while(&self, state: u64) -> bool {
        let mut sleep = lock(&self.sleep);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !sleep.shutdown && self.state.load(Ordering::SeqCst) == state {
            sleep = self.wake.wait(sleep).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        !sleep.shutdown
    }
}

/// A bounded busy wait.
struct Spin {
    until: Option<Instant>,
    polls: usize,
}

impl Spin {
    fn start() -> Spin {
        Spin { until: None, polls: 0 }
    }

    /// Pauses shortly; false when the time is up.
    fn again(&mut self) -> bool {
        std::hint::spin_loop();
        self.polls += 1;
        if !self.polls.is_multiple_of(POLLS) {
            return true;
        }
        let now = Instant::now();
        now < *self.until.get_or_insert(now + SPIN)
    }
}

/// Locks; what the mutexes here guard stays valid across a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pool: &Pool, chunks: usize) -> Vec<usize> {
        let counts: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
        pool.run(chunks, &|chunk| {
            counts[chunk].fetch_add(1, Ordering::Relaxed);
        });
        counts.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_chunk_runs_exactly_once() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads);
            for chunks in [0, 1, 2, 3, 100] {
                assert_eq!(counts(&pool, chunks), vec![1; chunks]);
            }
        }
    }

    #[test]
    fn many_short_jobs_in_a_row_lose_no_chunk() {
        let pool = Pool::new(3).unwrap();
        for job in 0..20_000 {
            let chunks = 2 + job % 5;
            assert_eq!(counts(&pool, chunks), vec![1; chunks]);
        }
    }

    #[test]
    fn workers_that_fell_asleep_wake_up_for_the_next_job() {
        let pool = Pool::new(2).unwrap();
        for _ in 0..5 {
            while pool.shared.sleepers.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            // Both chunks wait for each other, so the job ends only if the worker takes one.
            let barrier = std::sync::Barrier::new(2);
            pool.run(2, &|_| {
                barrier.wait();
            });
        }
    }

    #[test]
    fn a_panic_in_any_thread_reaches_the_caller_and_the_pool_survives() {
        let pool = Pool::new(2).unwrap();
        for culprit in 0..2 {
            let barrier = std::sync::Barrier::new(2);
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(2, &|chunk| {
                    barrier.wait();
                    assert_ne!(chunk, culprit, "chunk {chunk} fails");
                });
            }));
            let message = *result.unwrap_err().downcast::<String>().unwrap();
            assert!(message.contains(&format!("chunk {culprit} fails")), "{message}");
            assert_eq!(counts(&pool, 10), vec![1; 10]);
        }
    }

    #[test]
    fn callers_on_several_threads_take_turns() {
        let pool = Pool::new(2).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..500).for_each(|_| assert_eq!(counts(&pool, 7), vec![1; 7])));
            }
        });
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn pinned_threads_stay_on_cpus_of_their_own() {
        // SAFETY: has no conditions.
        let here = || unsafe { libc::sched_getcpu() } as usize;
        // The caller stays bound, so it is a thread of this test's own.
        let pinned = std::thread::spawn(move || {
            let mut pool = Pool::new(crate::threads::allowed().unwrap().len().min(4)).unwrap();
            assert!(pool.cpus().is_empty());
            pool.pin().unwrap();
            let seen = Mutex::new(Vec::new());
            for _ in 0..100 {
                pool.pin_caller().unwrap();
                assert_eq!(here(), pool.cpus()[0]);
                pool.run_on_each(&|| lock(&seen).push(here()));
            }
            let (mut seen, mut cpus) = (lock(&seen).clone(), pool.cpus().to_vec());
            seen.sort_unstable();
            seen.dedup();
            cpus.sort_unstable();
            assert_eq!(seen, cpus);
        });
        pinned.join().unwrap();
    }

    #[test]
    fn no_threads_is_refused() {
        assert!(matches!(Pool::new(0), Err(KernelError::NoThreads)));
    }
}
