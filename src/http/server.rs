//! The connections of the endpoints.
//!
//! Owns how many there are and how long each may take. Must never let a client keep a descriptor: Kafka
//! and the state directory need them too.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Connections open at once. One more closes the oldest, so that a flood does not keep a probe out.
const CONNECTIONS_MAX: usize = 64;

/// From the accept of a connection to its end, whatever the client does.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a failed accept: without a free descriptor, the next one would fail at once.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Answers until it is dropped.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    let mut open: VecDeque<JoinHandle<()>> = VecDeque::with_capacity(CONNECTIONS_MAX);
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
        if open.len() >= CONNECTIONS_MAX
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        open.push_back(tokio::spawn(answer(stream, router.clone())));
    }
}

/// Answers one request. A connection is not kept for a second one, so none is idle.
async fn answer(stream: TcpStream, router: Router) {
    let mut http = http1::Builder::new();
    let connection = http.keep_alive(false).serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Ok(Err(error)) = timeout(CONNECTION_TIMEOUT, connection).await {
        tracing::debug!("http: a connection failed: {error}");
    }
}

/// If no descriptors are left, the log says what to do.
fn io_error(error: &std::io::Error) -> String {
    const EMFILE: i32 = 24;
    if error.raw_os_error() == Some(EMFILE) {
        format!("{error}: raise the limit of open files (`ulimit -n`, LimitNOFILE=), 4096 is ample")
    } else {
        error.to_string()
    }
}
