//! A server's life: from its start to the signal that ends it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::app::App;
use crate::http::{listen, router};

/// Threads that talk to clients. They compute nothing, so few are enough.
const IO_THREADS: usize = 2;
/// Time to tell clients that their answers end here.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All requests had their answers.
    Drained,
    /// The time to drain was over.
    TimedOut,
    /// This signal told it a second time to end.
    Forced {
        /// Its number.
        signal: u8,
    },
}

impl Ended {
    /// What the log calls it.
    fn name(self) -> &'static str {
        match self {
            Ended::Drained => "drained",
            Ended::TimedOut => "timedout",
            Ended::Forced { .. } => "forced",
        }
    }
}

/// Why a server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The system refuses something else.
    #[error("cannot start the server: {0}")]
    System(#[from] io::Error),
}

/// Listens and answers until a signal ends it: SIGTERM, SIGUSR1 and SIGINT let running requests come to their end, as long as
/// the drain timeout allows; a second SIGINT, or a second SIGTERM, ends at once; SIGHUP opens the log file anew. `ready` hears the address.
///
/// # Errors
/// An address that cannot be listened on.
pub fn run(app: Arc<App>, ready: impl FnOnce(SocketAddr)) -> Result<Ended, ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(IO_THREADS)
        .thread_name("http")
        .enable_all()
        .build()?;
    let ended = runtime.block_on(async {
        let address = SocketAddr::new(app.config.host, app.config.port);
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| ServeError::Listen { address, source })?;
        let mut signals = Signals::install()?;
        let address = listener.local_addr()?;
        ready(address);
        app.log.write("start", json!({"address": address.to_string()}));
        let mut serving = tokio::spawn(serve_on(Arc::clone(&app), listener));
        let ended = signals.follow(&app, &mut serving).await;
        tokio::task::block_in_place(|| app.stop());
        if ended == Ended::TimedOut {
            // Clients whose answers are cut off are told so; who does not listen is not waited for.
            let _ = tokio::time::timeout(LAST_WORDS, serving).await;
        }
        app.log.write("end", json!({"how": ended.name()}));
        Ok(ended)
    });
    // Whatever has kept it from serving.
    app.stop();
    runtime.shutdown_background();
    ended
}

/// Answers connections of `listener` until the server drains and they have ended.
pub async fn serve_on(app: Arc<App>, listener: TcpListener) {
    let router = router(Arc::clone(&app));
    listen::serve(app, listener, router).await;
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    user: Signal,
    hangup: Signal,
}

impl Signals {
    fn install() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            user: signal(SignalKind::user_defined1())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn follow(&mut self, app: &App, serving: &mut tokio::task::JoinHandle<()>) -> Ended {
        // A drain that SIGUSR1 began, and SIGTERM goes on with, is no second wish; nor is ^C of a terminal that is told on as
        // SIGTERM.
        let (mut interrupts, mut terminates) = (0, 0);
        let mut deadline = None;
        loop {
            let patience = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = &mut *serving => return Ended::Drained,
                () = patience => return Ended::TimedOut,
                _ = self.hangup.recv() => {
                    app.log.reopen();
                    continue;
                }
                _ = self.interrupt.recv() => interrupts += 1,
                _ = self.terminate.recv() => terminates += 1,
                _ = self.user.recv() => {}
            }
            for (count, kind) in
                [(interrupts, SignalKind::interrupt()), (terminates, SignalKind::terminate())]
            {
                if count > 1 {
                    return Ended::Forced { signal: u8::try_from(kind.as_raw_value()).unwrap_or(u8::MAX) };
                }
            }
            if deadline.is_none() {
                deadline = Some(tokio::time::Instant::now() + app.config.drain_timeout);
                app.log.write("drain", json!({"requests": app.in_flight()}));
                app.drain();
            }
        }
    }
}
