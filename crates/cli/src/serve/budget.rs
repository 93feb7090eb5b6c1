//! The memory that all models of a server share: that of `--fit`, or what was free when none was loaded. Memory that is
//! reserved is taken only as it is used, so what is free beside a loaded model says too much.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use basert_engine::{MemoryPlan, Options, available_memory};

/// What all models together may take, and have taken.
#[derive(Clone)]
pub struct Budget {
    /// What `--fit` allows.
    allowed: Option<u64>,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: u64,
    /// What was free when nothing was taken.
    free: Option<u64>,
}

impl Budget {
    /// `allowed` bytes, or as many as there are.
    pub fn new(allowed: Option<u64>) -> Budget {
        Budget { allowed, taken: Arc::default() }
    }

    /// A turn to load a model: until it is over, no other one is loaded or forgotten.
    pub fn turn(&self) -> Turn<'_> {
        let mut taken = lock(&self.taken);
        if taken.bytes == 0 {
            taken.free = available_memory();
        }
        Turn { budget: self, taken }
    }
}

/// See [`Budget::turn`].
pub struct Turn<'a> {
    budget: &'a Budget,
    taken: MutexGuard<'a, Taken>,
}

impl Turn<'_> {
    /// `options` with the bytes that the other models leave.
    pub fn options(&self, options: &Options) -> Options {
        let left = |bytes: u64| bytes.saturating_sub(self.taken.bytes);
        Options { fit: self.budget.allowed.map(left), left: self.taken.free.map(left), ..options.clone() }
    }

    /// `why` a model was not loaded, and what others have to do with it.
    pub fn refusal(&self, why: String) -> String {
        let (taken, mebibytes) = (self.taken.bytes >> 20, |bytes: u64| bytes >> 20);
        match (self.taken.bytes, self.budget.allowed.map(mebibytes), self.taken.free.map(mebibytes)) {
            (1.., Some(allowed), _) => {
                format!(
                    "{why}; other models have taken {taken} of the {allowed} MiB of --fit: unload one, or give more"
                )
            }
            (1.., None, Some(free)) => {
                format!(
                    "{why}; other models have taken {taken} of the {free} MiB that were free: give each a smaller --max-context"
                )
            }
            _ => why,
        }
    }

    /// Notes what the model of this turn takes, until the share is dropped: all of its plan from `--fit`, but of free memory
    /// only what the system cannot take back.
    pub fn take(mut self, plan: &MemoryPlan) -> Share {
        let bytes = if self.budget.allowed.is_some() { plan.total() } else { plan.resident() };
        self.taken.bytes += bytes;
        Share { bytes, taken: Arc::clone(&self.budget.taken) }
    }
}

/// What one model takes.
pub struct Share {
    bytes: u64,
    taken: Arc<Mutex<Taken>>,
}

impl Drop for Share {
    fn drop(&mut self) {
        lock(&self.taken).bytes -= self.bytes;
    }
}

fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_share_is_free_again_when_it_is_forgotten() {
        let plan = MemoryPlan { weights_mapped: 30, kv: 40, ..MemoryPlan::default() };
        let options = |budget: &Budget| budget.turn().options(&Options::default());
        let budget = Budget::new(Some(100));
        let share = budget.turn().take(&plan);
        assert_eq!(options(&budget).fit, Some(30));
        drop(share);
        assert_eq!(options(&budget).fit, Some(100));

        let budget = Budget::new(None);
        let share = budget.turn().take(&plan);
        let free = lock(&budget.taken).free;
        assert_eq!((options(&budget).fit, options(&budget).left), (None, free.map(|free| free - 40)));
        drop(share);
    }
}
