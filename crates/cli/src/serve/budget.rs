//! The memory of `--fit`, which all models of a server share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What all models together may take, and have taken.
#[derive(Clone)]
pub struct Budget {
    allowed: Option<u64>,
    taken: Arc<Mutex<u64>>,
}

impl Budget {
    /// `allowed` bytes, or as many as there are.
    pub fn new(allowed: Option<u64>) -> Budget {
        Budget { allowed, taken: Arc::default() }
    }

    /// A turn to load a model: until it is over, no other one is loaded or forgotten.
    pub fn turn(&self) -> Turn<'_> {
        Turn { budget: self, taken: lock(&self.taken) }
    }
}

/// See [`Budget::turn`].
pub struct Turn<'a> {
    budget: &'a Budget,
    taken: MutexGuard<'a, u64>,
}

impl Turn<'_> {
    /// Bytes that the other models leave.
    pub fn left(&self) -> Option<u64> {
        self.budget.allowed.map(|allowed| allowed.saturating_sub(*self.taken))
    }

    /// `why` a model was not loaded, and what others have to do with it.
    pub fn refusal(&self, why: String) -> String {
        match self.budget.allowed {
            Some(allowed) if *self.taken > 0 => {
                let (taken, allowed) = (*self.taken >> 20, allowed >> 20);
                format!(
                    "{why}; other models have taken {taken} of the {allowed} MiB of --fit: unload one, or give more"
                )
            }
            _ => why,
        }
    }

    /// Notes what the model of this turn takes, until the share is dropped.
    pub fn take(mut self, bytes: u64) -> Share {
        *self.taken += bytes;
        Share { bytes, taken: Arc::clone(&self.budget.taken) }
    }
}

/// What one model takes.
pub struct Share {
    bytes: u64,
    taken: Arc<Mutex<u64>>,
}

impl Drop for Share {
    fn drop(&mut self) {
        *lock(&self.taken) -= self.bytes;
    }
}

fn lock(taken: &Mutex<u64>) -> MutexGuard<'_, u64> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_share_is_free_again_when_it_is_forgotten() {
        let budget = Budget::new(Some(100));
        let share = budget.turn().take(70);
        assert_eq!(budget.turn().left(), Some(30));
        drop(share);
        assert_eq!(budget.turn().left(), Some(100));
        assert_eq!(Budget::new(None).turn().left(), None);
    }
}
