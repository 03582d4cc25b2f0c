//! The connections of the endpoints.
//!
//! Limits the number of connections and the time for requests. A client must not hold a file descriptor indefinitely, because Kafka and the
//! state directory need descriptors, too. A response must not be cut short if the client reads the response before the timeout.

use crate::tls::Tls;
use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The option that sets the address, for the log.
    pub(crate) setting: &'static str,
    /// Maximum number of connections. A further connection ends the oldest connection.
    pub(crate) connections: usize,
    /// Maximum age of a connection. An older connection ends after its current response, even if it is in use. If not set, a connection
    /// ends after one request.
    pub(crate) max_age: Option<Duration>,
}

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept. If no file descriptor is free, an immediate retry would fail, too.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Minimum time between two log lines about too many connections.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Up to `connections / ENDING_SHARE` connections may be sending their last response. They do not count toward the limit.
const ENDING_SHARE: usize = 4;

/// Serves requests until `stop` completes, encrypted if `tls` is set. Then finishes the requests in progress.
pub(crate) async fn serve(listener: TcpListener, tls: Option<Arc<Tls>>, router: Router, limits: Limits, stop: impl Future<Output = ()>) {
    let (mut stop, mut connections) = (pin!(stop), Connections::new(limits));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.as_mut() => break,
        };
        match accepted {
            Ok((stream, _)) => connections.add(stream, tls.clone(), router.clone()),
            Err(error) => {
                let (setting, error) = (limits.setting, io_error(&error));
                tracing::warn!(setting, error, "failed to accept a connection; retrying");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.end().await;
}

struct Connections {
    limits: Limits,
    /// Connections that accept requests, oldest first. To end a connection, drop its sender.
    open: VecDeque<(JoinHandle<()>, Sender<Infallible>)>,
    /// Connections that are sending their last response.
    ending: VecDeque<JoinHandle<()>>,
    reported: Option<Instant>,
}

impl Connections {
    const fn new(limits: Limits) -> Self {
        Self { limits, open: VecDeque::new(), ending: VecDeque::new(), reported: None }
    }

    fn add(&mut self, stream: TcpStream, tls: Option<Arc<Tls>>, router: Router) {
        self.open.retain(|(connection, _)| !connection.is_finished());
        self.ending.retain(|connection| !connection.is_finished());
        if self.open.len() >= self.limits.connections
            && let Some((oldest, _)) = self.open.pop_front()
        {
            self.report();
            self.ending.push_back(oldest);
        }
        if self.ending.len() > self.limits.connections / ENDING_SHARE
            && let Some(oldest) = self.ending.pop_front()
        {
            oldest.abort();
        }
        let (keep, end) = channel();
        let max_age = self.limits.max_age;
        self.open.push_back((tokio::spawn(connection(stream, tls, router, max_age, end)), keep));
    }

    fn report(&mut self) {
        if self.reported.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL) {
            self.reported = Some(Instant::now());
            let Limits { setting, connections, .. } = self.limits;
            tracing::warn!(
                setting,
                limit = connections,
                "too many connections; closing the oldest connections after their current responses"
            );
        }
    }

    /// Ends all connections after their current responses, by dropping their senders.
    async fn end(self) {
        let open = self.open.into_iter().map(|(connection, _)| connection);
        for connection in open.chain(self.ending).collect::<Vec<_>>() {
            let _ = connection.await;
        }
    }
}

/// Serves a connection until the client closes it, or until the sender of `end` is dropped.
async fn connection(stream: TcpStream, tls: Option<Arc<Tls>>, router: Router, max_age: Option<Duration>, mut end: Receiver<Infallible>) {
    let Some(tls) = tls else { return answer(stream, router, max_age, end).await };
    let encrypted = tokio::select! {
        encrypted = tls.accept_any(stream) => encrypted,
        _ = &mut end => return,
    };
    match encrypted {
        Ok(stream) => answer(stream, router, max_age, end).await,
        Err(error) => tracing::debug!("http: TLS handshake failed: {error}"),
    }
}

/// Serves one request. If `max_age` is set, serves all requests of a persistent connection until the connection has reached that age.
async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router, max_age: Option<Duration>, end: Receiver<Infallible>) {
    let mut http = http1::Builder::new();
    http.keep_alive(max_age.is_some()).timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
    let (router, was_asked) = (TowerToHyperService::new(router), AtomicBool::new(false));
    let service = service_fn(|request: hyper::Request<Incoming>| {
        was_asked.store(true, Ordering::Relaxed);
        router.call(request)
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let begin = Instant::now();
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = sleep_until(begin + max_age.unwrap_or(REQUEST_TIMEOUT)) => None,
        _ = end => None,
    };
    let ended = match ended {
        // A request in progress gets its response. A connection without a complete request is closed immediately.
        None if was_asked.load(Ordering::Relaxed) => {
            connection.as_mut().graceful_shutdown();
            let limit = if max_age.is_some() { Instant::now() } else { begin } + REQUEST_TIMEOUT;
            timeout_at(limit, connection).await.ok()
        }
        ended => ended,
    };
    if let Some(Err(error)) = ended {
        tracing::debug!("http: a connection failed: {error}");
    }
}

/// Formats an I/O error. If no descriptors are left, adds advice.
pub(crate) fn io_error(error: &std::io::Error) -> String {
    const EMFILE: i32 = 24;
    if error.raw_os_error() == Some(EMFILE) {
        format!("{error}: raise the limit of open files (`ulimit -n`, LimitNOFILE=)")
    } else {
        error.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::Notify;

    const LIMITS: Limits = Limits { setting: "test", connections: 4, max_age: Some(Duration::from_secs(60)) };

    /// Serves `/fast`, and `/slow`, which notifies `begun` and then waits for `go`.
    async fn start(stop: impl Future<Output = ()> + Send + 'static) -> (SocketAddr, Arc<Notify>, Arc<Notify>, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, begun, go) = (listener.local_addr().unwrap(), Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (tell, wait) = (Arc::clone(&begun), Arc::clone(&go));
        let slow = async move || {
            tell.notify_one();
            wait.notified().await;
            "slow\n"
        };
        let router = Router::new().route("/fast", get(async || "fast\n")).route("/slow", get(slow));
        (address, begun, go, tokio::spawn(serve(listener, None, router, LIMITS, stop)))
    }

    async fn ask(address: SocketAddr, path: &str) -> TcpStream {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        client
    }

    async fn fast(address: SocketAddr) -> TcpStream {
        let mut client = ask(address, "/fast").await;
        let mut answer = Vec::new();
        while !answer.ends_with(b"fast\n") {
            assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0, "the connection ended");
        }
        client
    }

    async fn rest(client: &mut TcpStream) -> String {
        let mut rest = String::new();
        client.read_to_string(&mut rest).await.unwrap();
        rest
    }

    #[tokio::test]
    async fn an_excess_connection_ends_the_oldest_after_its_answer() {
        let (address, begun, go, _serving) = start(std::future::pending()).await;
        let mut slow = ask(address, "/slow").await;
        begun.notified().await;
        let mut others = VecDeque::new();
        for _ in 0..LIMITS.connections {
            others.push_back(fast(address).await);
        }
        go.notify_one();
        let answer = rest(&mut slow).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("slow\n"), "cut short: {answer:?}");
        // The next connection is idle and ends at once.
        let _another = fast(address).await;
        assert_eq!(rest(&mut others[0]).await, "");
    }

    #[tokio::test]
    async fn a_flood_of_slow_requests_does_not_block_probes() {
        let (address, begun, ..) = start(std::future::pending()).await;
        let mut flood = VecDeque::new();
        for _ in 0..3 * LIMITS.connections {
            flood.push_back(ask(address, "/slow").await);
            begun.notified().await;
            drop(fast(address).await);
        }
        assert_eq!(rest(&mut flood[0]).await, "", "the oldest is closed");
    }

    #[tokio::test]
    async fn a_stop_finishes_answers_and_ends_idle_connections() {
        let (stop, stopped) = channel::<Infallible>();
        let (address, begun, go, serving) = start(async { drop(stopped.await) }).await;
        let mut slow = ask(address, "/slow").await;
        begun.notified().await;
        let mut idle = fast(address).await;
        drop(stop);
        assert_eq!(rest(&mut idle).await, "");
        assert!(TcpStream::connect(address).await.is_err());
        go.notify_one();
        assert!(rest(&mut slow).await.ends_with("slow\n"));
        serving.await.unwrap();
    }
}
