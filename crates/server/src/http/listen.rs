//! Connections: accepted, bounded in number and patience, and ended in order.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_io_timeout::TimeoutStream;
use tower_service::Service;

use super::guard::Peer;
use crate::app::App;

/// Time to wait after the system has refused a connection, mostly because too many files are open.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Serves connections until the server drains; returns when those that are left have ended.
pub(crate) async fn serve(app: Arc<App>, listener: TcpListener, router: Router) {
    let permits = Arc::new(Semaphore::new(app.config.connections));
    let mut drained = app.drained();
    // Dropped by the last connection.
    let (alive, mut ended) = mpsc::channel::<()>(1);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &permits) => accepted,
            _ = drained.wait_for(|drained| *drained) => break,
        };
        let Some((stream, peer, permit)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (app, router, alive) = (Arc::clone(&app), router.clone(), alive.clone());
        tokio::spawn(async move {
            connection(&app, stream, peer, router).await;
            drop((permit, alive));
        });
    }
    // New connections are refused from here on.
    drop((listener, alive));
    ended.recv().await;
}

type Permit = tokio::sync::OwnedSemaphorePermit;

async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> Option<(TcpStream, SocketAddr, Permit)> {
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    let (stream, peer) = listener.accept().await.ok()?;
    // A token should not wait for the next one.
    stream.set_nodelay(true).ok();
    Some((stream, peer, permit))
}

async fn connection(app: &App, stream: TcpStream, peer: SocketAddr, router: Router) {
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        router.clone().call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(app.config.read_timeout).max_headers(100);
    // Who reads nothing would keep the connection, and what is to be sent, for ever.
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(app.config.write_timeout));
    let connection = http.serve_connection(TokioIo::new(Box::pin(stream)), service);
    tokio::pin!(connection);
    let mut drained: watch::Receiver<bool> = app.drained();
    tokio::select! {
        // How a connection ends badly is its client's affair.
        _ = connection.as_mut() => return,
        _ = drained.wait_for(|drained| *drained) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
