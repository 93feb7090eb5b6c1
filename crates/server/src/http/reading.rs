//! Reading of requests' texts where it delays nobody: not in the threads that talk to clients, and long ones one at a time, so
//! that they take one core at most, whoever sends how many. The same goes for grammars.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use basert_text::Bound;
use tokio::sync::Semaphore;

use crate::error::ApiError;

/// Bytes of a body whose texts are read at once.
pub(crate) const SHORT: usize = 64 << 10;

/// How long reading may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Next to no time.
    Short,
    /// As long as a long text takes.
    Long,
    /// As long as it takes to compile a grammar: seconds for the largest.
    Grammar,
}

impl Weight {
    /// That of the texts in a body of so many bytes.
    pub fn of(bytes: usize) -> Weight {
        if bytes > SHORT { Weight::Long } else { Weight::Short }
    }
}

/// Whose turn it is to have a long text read, or a grammar compiled.
#[derive(Debug)]
pub(crate) struct Reading {
    texts: Arc<Semaphore>,
    grammars: Arc<Semaphore>,
}

impl Default for Reading {
    fn default() -> Reading {
        let one = || Arc::new(Semaphore::new(1));
        Reading { texts: one(), grammars: one() }
    }
}

impl Reading {
    /// Does what has to be done with the texts of a body, for prompts of at most `context` tokens. If nobody waits for it any
    /// more, it ends at the next word.
    ///
    /// # Errors
    /// What `work` says.
    pub async fn read<T: Send + 'static>(
        &self,
        weight: Weight,
        context: usize,
        work: impl FnOnce(&Bound) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turns = match weight {
            Weight::Short => None,
            Weight::Long => Some(&self.texts),
            Weight::Grammar => Some(&self.grammars),
        };
        let turn = match turns {
            Some(turns) => Arc::clone(turns).acquire_owned().await.ok(),
            None => None,
        };
        let bound = Bound::of(context);
        let _waits = Waits(Arc::clone(&bound.given_up));
        let work = move || {
            let read = work(&bound);
            drop(turn);
            read
        };
        let read = tokio::task::spawn_blocking(work).await;
        read.map_err(|_| ApiError::internal("reading the request has failed"))?
    }
}

/// Someone who waits.
struct Waits(Arc<AtomicBool>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;

    use super::*;

    /// Long texts that are not read to their end before they are told to.
    struct Hostile {
        reading: Arc<Reading>,
        begun: Arc<AtomicUsize>,
    }

    impl Hostile {
        fn send(
            &self,
            weight: Weight,
        ) -> (mpsc::Sender<()>, tokio::task::JoinHandle<Result<bool, ApiError>>) {
            let (end, told) = mpsc::channel();
            let (reading, begun) = (Arc::clone(&self.reading), Arc::clone(&self.begun));
            let work = move |bound: &Bound| {
                begun.fetch_add(1, Ordering::SeqCst);
                told.recv().ok();
                Ok(bound.given_up.load(Ordering::SeqCst))
            };
            (end, tokio::spawn(async move { reading.read(weight, 10, work).await }))
        }

        async fn wait_for(&self, begun: usize) {
            while self.begun.load(Ordering::SeqCst) < begun {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn a_hostile_prompt_delays_no_other_request() {
        delays_none(Weight::of(SHORT + 1), &[Weight::of(SHORT), Weight::Grammar]).await;
    }

    #[tokio::test]
    async fn a_slow_schema_delays_no_other_request() {
        delays_none(Weight::Grammar, &[Weight::Short, Weight::Long]).await;
    }

    async fn delays_none(weight: Weight, others: &[Weight]) {
        let hostile = Hostile { reading: Arc::default(), begun: Arc::default() };
        let (end_first, first) = hostile.send(weight);
        hostile.wait_for(1).await;
        let (end_second, second) = hostile.send(weight);
        // The thread that talks to clients has time for all others meanwhile.
        for index in 0..100 {
            let other = others[index % others.len()];
            let read = hostile.reading.read(other, 10, move |_| Ok(index)).await;
            assert_eq!(read, Ok(index));
        }
        assert_eq!(hostile.begun.load(Ordering::SeqCst), 1, "one at a time");
        end_first.send(()).unwrap();
        assert_eq!(first.await.unwrap(), Ok(false));
        hostile.wait_for(2).await;
        end_second.send(()).unwrap();
        assert_eq!(second.await.unwrap(), Ok(false));
    }

    #[tokio::test]
    async fn a_text_whose_client_has_left_is_given_up() {
        let reading = Reading::default();
        let (tell, told) = mpsc::channel();
        let (begun, began) = tokio::sync::oneshot::channel();
        let work = move |bound: &Bound| {
            begun.send(()).ok();
            while !bound.given_up.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            tell.send("given up").ok();
            Ok(())
        };
        tokio::select! {
            _ = reading.read(Weight::Long, 10, work) => panic!("it has not ended"),
            _ = began => {}
        }
        assert_eq!(told.recv(), Ok("given up"));
        assert_eq!(reading.read(Weight::Long, 10, |_| Ok(())).await, Ok(()), "the next one has its turn");
    }
}
