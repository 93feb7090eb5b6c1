//! ^C: running work is asked to stop, or what it leaves unfinished is removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Failure, Outcome};

/// Set once the user has pressed ^C, or the process was asked to end with SIGTERM or SIGHUP.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

/// What a second ^C does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Second {
    /// Ends the process at once: nothing would be left behind.
    Exits,
    /// Nothing: the stop that was asked for must first remove a file.
    IsIgnored,
}

impl Interrupt {
    /// From now on ^C asks for a stop.
    ///
    /// # Errors
    /// When the system refuses the handler.
    pub fn install(second: Second) -> Outcome<Interrupt> {
        let requested = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&requested);
        handle(move || {
            if seen.swap(true, Ordering::SeqCst) && second == Second::Exits {
                exit();
            }
        })?;
        Ok(Interrupt(requested))
    }

    /// Whether the work should stop.
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// From now on ^C runs `clean_up` on a thread of its own and ends the process, whatever the other threads do.
///
/// # Errors
/// When the system refuses the handler.
pub fn on_interrupt(mut clean_up: impl FnMut() + Send + 'static) -> Outcome {
    handle(move || {
        clean_up();
        exit();
    })
}

fn handle(handler: impl FnMut() + Send + 'static) -> Outcome {
    ctrlc::set_handler(handler).map_err(|e| Failure::new(format!("cannot handle ^C: {e}")))
}

fn exit() {
    std::process::exit(i32::from(Failure::Interrupted.exit_code()));
}
