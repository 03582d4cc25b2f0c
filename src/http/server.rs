//! The connections of the endpoints.
//!
//! Owns how many there are and how long each may take. Must never let a client keep a descriptor: Kafka
//! and the state directory need them too.

use crate::tls::Tls;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How many connections there may be, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections open at once. One more closes the oldest.
    pub(crate) connections: usize,
    /// How long a connection is kept for more requests in all. Without it, it is for one only, so that none is idle.
    pub(crate) idle: Option<Duration>,
}

/// How long a request may take, whatever the client does.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a failed accept: without a free descriptor, the next one would fail at once.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Answers until it is dropped; encrypted, where that is wanted.
pub(crate) async fn serve(listener: TcpListener, tls: Option<Arc<Tls>>, router: Router, limits: Limits) {
    let mut open: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                let error = io_error(&error);
                tracing::warn!(error, "a connection to http.listen is not accepted; trying again");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= limits.connections
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let (tls, router) = (tls.clone(), router.clone());
        open.push_back(tokio::spawn(async move {
            match tls {
                None => answer(stream, router, limits.idle).await,
                Some(tls) => match tls.accept_any(stream).await {
                    Ok(stream) => answer(stream, router, limits.idle).await,
                    Err(error) => tracing::debug!("http: a connection is not encrypted: {error}"),
                },
            }
        }));
    }
}

/// Answers one request, or those that come while a connection is kept.
async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router, idle: Option<Duration>) {
    let mut http = http1::Builder::new();
    http.keep_alive(idle.is_some()).timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = match timeout(idle.unwrap_or(REQUEST_TIMEOUT), connection.as_mut()).await {
        Err(_) if idle.is_some() => {
            // What is being asked is still answered.
            connection.as_mut().graceful_shutdown();
            timeout(REQUEST_TIMEOUT, connection).await
        }
        ended => ended,
    };
    if let Ok(Err(error)) = ended {
        tracing::debug!("http: a connection failed: {error}");
    }
}

/// If no descriptors are left, the log says what to do.
pub(crate) fn io_error(error: &std::io::Error) -> String {
    const EMFILE: i32 = 24;
    if error.raw_os_error() == Some(EMFILE) {
        format!("{error}: raise the limit of open files (`ulimit -n`, LimitNOFILE=), 4096 is ample")
    } else {
        error.to_string()
    }
}
