//! Reading of requests' texts where it delays nobody: not in the threads that talk to clients, and long ones one at a time, so
//! that they take one core at most, whoever sends how many.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use basert_text::Bound;
use tokio::sync::Semaphore;

use crate::error::ApiError;

/// Bytes of a body whose texts are read at once.
pub(crate) const SHORT: usize = 64 << 10;

/// Whose turn it is to have a long text read.
#[derive(Debug)]
pub(crate) struct Reading(Arc<Semaphore>);

impl Default for Reading {
    fn default() -> Reading {
        Reading(Arc::new(Semaphore::new(1)))
    }
}

impl Reading {
    /// Does what has to be done with the texts of a body of so many bytes, for prompts of at most `context` tokens. If nobody
    /// waits for it any more, it ends at the next word.
    ///
    /// # Errors
    /// What `work` says.
    pub async fn read<T: Send + 'static>(
        &self,
        bytes: usize,
        context: usize,
        work: impl FnOnce(&Bound) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = if bytes > SHORT { Arc::clone(&self.0).acquire_owned().await.ok() } else { None };
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
        fn send(&self) -> (mpsc::Sender<()>, tokio::task::JoinHandle<Result<bool, ApiError>>) {
            let (end, told) = mpsc::channel();
            let (reading, begun) = (Arc::clone(&self.reading), Arc::clone(&self.begun));
            let work = move |bound: &Bound| {
                begun.fetch_add(1, Ordering::SeqCst);
                told.recv().ok();
                Ok(bound.given_up.load(Ordering::SeqCst))
            };
            (end, tokio::spawn(async move { reading.read(SHORT + 1, 10, work).await }))
        }

        async fn wait_for(&self, begun: usize) {
            while self.begun.load(Ordering::SeqCst) < begun {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn a_hostile_prompt_delays_no_other_request() {
        let hostile = Hostile { reading: Arc::default(), begun: Arc::default() };
        let (end_first, first) = hostile.send();
        hostile.wait_for(1).await;
        let (end_second, second) = hostile.send();
        // The thread that talks to clients has time for all others meanwhile.
        for index in 0..100 {
            let short = hostile.reading.read(SHORT, 10, move |_| Ok(index)).await;
            assert_eq!(short, Ok(index));
        }
        assert_eq!(hostile.begun.load(Ordering::SeqCst), 1, "long texts are read one at a time");
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
            _ = reading.read(SHORT + 1, 10, work) => panic!("it has not ended"),
            _ = began => {}
        }
        assert_eq!(told.recv(), Ok("given up"));
        assert_eq!(reading.read(SHORT + 1, 10, |_| Ok(())).await, Ok(()), "the next one has its turn");
    }
}
