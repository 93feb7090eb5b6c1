//! ^C and its relatives: running work is asked to stop, or what it leaves unfinished is removed.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::failure::{Failure, Outcome};

/// Knows whether the user has pressed ^C, or the process was asked to end with SIGTERM or SIGHUP.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicU8>);

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
        let first = Arc::new(AtomicU8::new(0));
        let seen = Arc::clone(&first);
        handle(move |signal| {
            let earlier = seen.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
            if earlier.is_err() && second == Second::Exits {
                exit(signal);
            }
        })?;
        Ok(Interrupt(first))
    }

    /// Whether the work should stop.
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }

    /// How a command ends that stopped on request.
    pub fn failure(&self) -> Failure {
        Failure::Interrupted { signal: self.0.load(Ordering::SeqCst) }
    }
}

/// What ^C means in a command that converses: it stops an answer, and ends the process when there is none. SIGTERM and
/// SIGHUP always end it.
pub struct Turns {
    phase: Arc<AtomicU8>,
    /// The phase between answers.
    between: u8,
}

/// ^C ends the process.
const ENDS: u8 = 0;
/// ^C asks the answer to stop.
const ANSWERING: u8 = 1;
/// It was asked; the next ^C ends the process.
const STOPPING: u8 = 2;
/// ^C does nothing.
const EDITING: u8 = 3;

impl Turns {
    /// ^C ends the process for now.
    ///
    /// # Errors
    /// When the system refuses the handler.
    pub fn install() -> Outcome<Turns> {
        let phase = Arc::new(AtomicU8::new(ENDS));
        let now = Arc::clone(&phase);
        let terminal = Terminal::save();
        handle(move |signal| {
            let is_interrupt = c_int::from(signal) == SIGINT;
            let stops =
                || now.compare_exchange(ANSWERING, STOPPING, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            let editing = now.load(Ordering::SeqCst) == EDITING;
            if !(is_interrupt && (stops() || editing)) {
                if editing {
                    terminal.restore();
                }
                exit(signal);
            }
        })?;
        Ok(Turns { phase, between: ENDS })
    }

    /// From now on ^C between answers does nothing: the line editor reads it itself, and one that arrives as a signal came
    /// a moment too late for an answer.
    pub fn leave_to_editor(&mut self) {
        self.between = EDITING;
        self.phase.store(EDITING, Ordering::SeqCst);
    }

    /// From now on ^C stops the answer, until the value is dropped.
    pub fn answering(&self) -> Answering<'_> {
        self.phase.store(ANSWERING, Ordering::SeqCst);
        Answering(self)
    }
}

/// An answer is being made.
pub struct Answering<'a>(&'a Turns);

impl Answering<'_> {
    /// Whether the answer should stop.
    pub fn stop_requested(&self) -> bool {
        self.0.phase.load(Ordering::SeqCst) == STOPPING
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.phase.store(self.0.between, Ordering::SeqCst);
    }
}

/// How the terminal was set before a line editor changed it.
struct Terminal(Option<rustix::termios::Termios>);

impl Terminal {
    fn save() -> Terminal {
        Terminal(rustix::termios::tcgetattr(rustix::stdio::stdin()).ok())
    }

    fn restore(&self) {
        if let Some(settings) = &self.0 {
            use rustix::termios::{OptionalActions, tcsetattr};
            // The process ends; there is no one to tell.
            let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, settings);
            // The editor has pasted text bracketed; it had no time to end that, and the line is not over.
            let _ = rustix::io::write(rustix::stdio::stdout(), b"\x1b[?2004l\n");
        }
    }
}

/// From now on ^C runs `clean_up` on a thread of its own and ends the process, whatever the other threads do.
///
/// # Errors
/// When the system refuses the handler.
pub fn on_interrupt(mut clean_up: impl FnMut() + Send + 'static) -> Outcome {
    handle(move |signal| {
        clean_up();
        exit(signal);
    })
}

/// From now on a file beyond the limit of the shell (`ulimit -f`) is an error of the write, which can be reported, and
/// not the end of the process.
///
/// # Errors
/// When the system refuses the handler.
pub fn report_file_size_limit() -> Outcome {
    let registered = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
    registered.map(drop).map_err(|e| Failure::new(format!("cannot handle SIGXFSZ: {e}")))
}

fn handle(mut handler: impl FnMut(u8) + Send + 'static) -> Outcome {
    let refused = |e: std::io::Error| Failure::new(format!("cannot handle ^C: {e}"));
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(refused)?;
    let wait = move || signals.forever().for_each(|signal: c_int| handler(u8::try_from(signal).unwrap_or(0)));
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop).map_err(refused)
}

fn exit(signal: u8) {
    std::process::exit(i32::from(Failure::Interrupted { signal }.exit_code()));
}
