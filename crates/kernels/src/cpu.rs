//! The device object: an instruction set, a thread pool and every operation of the forward pass.
// An operation's operands are its arguments; a struct for each would only name them twice.
#![allow(clippy::too_many_arguments)]

mod attention;
mod delta;
mod elementwise;
mod limits;
mod linear;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

pub use delta::DeltaScratch;
pub use limits::Product;
pub use linear::{LinearJob, Scratch};

use crate::level::Level;
use crate::needs::ScratchNeeds;
use crate::pool::Pool;
use crate::scratch::{reserve, with_local};
use crate::{Isa, KernelError};

/// Pieces per thread that work is cut into, so that a thread which was interrupted does not hold up the others.
const PIECES_PER_THREAD: usize = 4;

/// The processor as the engine sees it. All methods are safe and parallel inside; calls from several threads take
/// turns. Shapes are row-major with the last dimension contiguous.
///
/// Methods panic when the slices they are given do not have the documented shapes: that is a bug of the caller, never
/// a matter of a file's or a user's input.
pub struct Cpu {
    isa: Isa,
    level: Level,
    pool: Pool,
    /// States of the segments of a long attention.
    segments: Mutex<Vec<f32>>,
}

impl Cpu {
    /// A device that uses `isa` on `threads` threads, the caller's included. The threads start here and end when the
    /// device is dropped.
    ///
    /// # Errors
    /// If the machine lacks the instruction set, `threads` is 0, or a thread cannot be started.
    pub fn new(isa: Isa, threads: usize) -> Result<Cpu, KernelError> {
        let level = Level::detect(isa).ok_or_else(|| isa.unavailable())?;
        Cpu::with_level(isa, level, threads)
    }

    fn with_level(isa: Isa, level: Level, threads: usize) -> Result<Cpu, KernelError> {
        Ok(Cpu { isa, level, pool: Pool::new(threads)?, segments: Mutex::default() })
    }

    /// Binds every thread to a CPU of its own: the workers now, the caller by [`pin_caller`](Self::pin_caller).
    ///
    /// # Errors
    /// If the process may use fewer CPUs than there are threads, or the system cannot bind threads.
    pub fn pin(&mut self) -> Result<(), KernelError> {
        self.pool.pin()
    }

    /// Binds the calling thread to its CPU, if the device is pinned; after the first time it makes no system call. What the
    /// thread starts later is bound with it, so only the thread that runs the steps should do this.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn pin_caller(&self) -> Result<(), KernelError> {
        self.pool.pin_caller()
    }

    /// The CPUs that the threads are bound to, the caller's first; none if they are free.
    pub fn pinned(&self) -> &[usize] {
        self.pool.cpus()
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads in use, the caller's included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Makes room in the scratch of every thread and in what they share, so that no operation up to these sizes allocates.
    /// The scratch of the calling thread stays with that thread.
    pub fn reserve(&self, needs: &ScratchNeeds) {
        let local = needs.local();
        self.pool.run_on_each(&|| with_local(|scratch| scratch.reserve(&local)));
        let mut segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        reserve(&mut segments, needs.segment_floats(self.threads()));
    }

    /// Bytes of scratch that the device's threads hold, the caller's own included, each and together.
    pub fn scratch_bytes(&self) -> u64 {
        let bytes = AtomicU64::new(0);
        let count = |held: usize| {
            bytes.fetch_add(held as u64, Ordering::Relaxed);
        };
        self.pool.run_on_each(&|| with_local(|scratch| count(scratch.held().bytes())));
        count(self.segments.lock().unwrap_or_else(PoisonError::into_inner).capacity() * size_of::<f32>());
        bytes.into_inner()
    }

    /// Calls `task` on ranges that cover `0..len`, in parallel. Ranges start at multiples of `unit` and hold at least
    /// `least` items (but for the last), so that small work is not cut finer than it is worth.
    fn split(&self, len: usize, unit: usize, least: usize, task: &(dyn Fn(Range<usize>) + Sync)) {
        let size = self.piece(len, unit, least);
        self.pool.run(len.div_ceil(size), &|piece| task(piece * size..len.min((piece + 1) * size)));
    }

    /// Items per piece of work, see [`Cpu::split`].
    fn piece(&self, len: usize, unit: usize, least: usize) -> usize {
        let pieces = if self.threads() == 1 { 1 } else { self.threads() * PIECES_PER_THREAD };
        len.div_ceil(pieces).max(least).max(1).next_multiple_of(unit)
    }
}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Cpu { isa, level, .. } = self;
        write!(f, "Cpu {{ isa: {isa}, level: {level:?}, threads: {} }}", self.threads())
    }
}
