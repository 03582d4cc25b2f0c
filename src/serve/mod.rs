//! Answers which keys were seen, over the Redis protocol and HTTP.
//!
//! Manages the connections of `unseen serve`, their threads, and their shutdown. The server never changes dedup state: a client's write
//! only adds a record to the stream. During a shutdown, the server answers every command that it has received, within
//! `worker.shutdown_timeout`.
//!
//! Each thread has its own connections and serves them in turns. All threads query the same [`Follower`].

mod command;
mod commands;
mod connection;
mod http;
mod info;
mod metrics;
mod names;
mod pending;
mod resp;
mod session;
mod stats;
#[cfg(test)]
mod tests;
mod writer;
mod writes;

use crate::config::Config;
use crate::follower::Follower;
use crate::http::io_error;
use crate::stats::{add, get};
use crate::tls::Tls;
use stats::ServeStats;
use std::convert::Infallible;
use std::io::Write as _;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::LocalSet;
use tokio::time::timeout_at;
use writer::Writer;

/// The pause after a failed accept. If no file descriptor is free, the next accept would fail immediately.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// The number of file descriptors that the server needs for Kafka, the log, and the endpoints, in addition to one per Redis client.
const DESCRIPTORS: u64 = 256;

const NO_THREAD: &str = "cannot start a thread for clients, so its clients are disconnected; raise the limits of threads and open files, then restart the server";

/// Answers clients from a follower's state. The `Debug` output contains no secrets.
pub struct Server {
    follower: Follower,
    stats: ServeStats,
    password: Option<String>,
    tls: Option<Arc<Tls>>,
    writer: Option<Writer>,
    max_connections: usize,
    shutdown_timeout: Duration,
    is_stopping: AtomicBool,
    started: Instant,
    started_at: SystemTime,
    listen: SocketAddr,
    http_listen: Option<SocketAddr>,
    next_id: AtomicU64,
    /// Permits for HTTP lookups, one per CPU, which limit the memory for parsed requests.
    lookups: Arc<Semaphore>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("follower", &self.follower).field("listen", &self.listen).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub struct Listening {
    redis: TcpListener,
    http: Option<TcpListener>,
}

impl Server {
    /// Creates a server that does not listen yet.
    ///
    /// # Errors
    /// Returns an error message if `serve.tls` cannot be used, or if librdkafka rejects a property.
    pub fn new(config: &Config, follower: Follower) -> Result<Arc<Self>, String> {
        let serve = &config.serve;
        Ok(Arc::new(Self {
            follower,
            stats: ServeStats::default(),
            password: serve.password.clone(),
            writer: serve.writes.then(|| Writer::new(config)).transpose().map_err(|error| error.to_string())?,
            tls: serve.tls.as_ref().map(Tls::new).transpose()?.map(Arc::new),
            max_connections: serve.max_connections,
            shutdown_timeout: config.worker.shutdown_timeout,
            is_stopping: AtomicBool::new(false),
            started: Instant::now(),
            started_at: SystemTime::now(),
            listen: serve.listen,
            http_listen: serve.http_listen,
            next_id: AtomicU64::new(1),
            lookups: Arc::new(Semaphore::new(cpus())),
        }))
    }

    /// Opens the sockets of `serve.listen` and `serve.http_listen`. The error message names the option to change.
    pub async fn listen(&self) -> Result<Listening, String> {
        let bind = async |address: SocketAddr, setting: &str, or: &str| {
            let bound = TcpListener::bind(address).await;
            bound.map_err(|error| format!("{setting}: cannot listen on {address}: {error}; set {setting} to another address{or}"))
        };
        let redis = bind(self.listen, "serve.listen", "").await?;
        let http = match self.http_listen {
            Some(address) => Some(bind(address, "serve.http_listen", ", or to \"off\"").await?),
            None => None,
        };
        Ok(Listening { redis, http })
    }

    /// Serves clients until `stop`, with the given number of threads or one per CPU. Then finishes the received requests within
    /// `worker.shutdown_timeout`.
    pub async fn serve(self: Arc<Self>, listening: Listening, threads: Option<u16>, stop: impl Future<Output = ()>) {
        let Listening { redis, http } = listening;
        if let Ok(address) = redis.local_addr() {
            tracing::info!(address = %address, password = self.password.is_some(), tls = self.tls.is_some(), "listening for Redis clients");
        }
        self.raise_descriptors();
        let threads = threads.map_or_else(cpus, usize::from);
        let (running, mut ended) = channel::<Infallible>(1);
        let senders: Vec<_> = (0..threads).map(|number| Self::thread(&self, number, running.clone())).collect();
        drop(running);
        let (stop_http, http_stops) = oneshot::channel::<Infallible>();
        let http = http.map(|http| {
            if let Ok(address) = http.local_addr() {
                tracing::info!(address = %address, "listening for HTTP");
            }
            let server = Arc::clone(&self);
            tokio::spawn(http::serve(http, server, async { drop(http_stops.await) }))
        });
        if let Some(tls) = self.tls.clone() {
            tokio::spawn(async move { tls.renew().await });
        }
        tokio::select! {
            () = self.accept(&redis, &senders) => {}
            () = stop => {}
        }
        let deadline = tokio::time::Instant::now() + self.shutdown_timeout;
        self.is_stopping.store(true, Ordering::Relaxed);
        // A thread without a sender gets no more clients and ends when its last connection ends.
        drop((redis, senders));
        let all_ended = async {
            ended.recv().await;
            // HTTP stops last, so probes can see that the server is stopping.
            drop(stop_http);
            if let Some(http) = http {
                let _ = http.await;
            }
        };
        if timeout_at(deadline, all_ended).await.is_err() {
            let (connections, limit_s) = (get(&self.stats.connections), self.shutdown_timeout.as_secs_f64());
            tracing::warn!(
                connections,
                limit_s,
                "closing connections that did not end within worker.shutdown_timeout; their clients must send unanswered commands again"
            );
        }
        self.flush(deadline).await;
    }

    /// Waits until the brokers have answered the remaining writes, including writes of disconnected clients, or until `deadline`.
    async fn flush(self: Arc<Self>, deadline: tokio::time::Instant) {
        let flushed = tokio::task::spawn_blocking(move || {
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            self.writer.as_ref().map_or(Ok(()), |writer| writer.flush(left))
        });
        if let Ok(Err(writes)) = flushed.await {
            tracing::warn!(
                writes,
                "the brokers did not acknowledge these writes of clients within worker.shutdown_timeout; the records may be in the topics anyway"
            );
        }
    }

    fn raise_descriptors(&self) {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        let _ = setrlimit(Resource::Nofile, limit);
        let wanted = self.max_connections as u64 + DESCRIPTORS;
        if let Some(most) = getrlimit(Resource::Nofile).current.filter(|&most| most < wanted) {
            tracing::warn!(
                most,
                wanted,
                "the limit of open files is too low for serve.max_connections, so the server may fail to accept connections or to open files; raise the limit (`ulimit -n`, LimitNOFILE=), or lower serve.max_connections"
            );
        }
    }

    /// Starts a thread that serves the clients sent to it. The thread drops `running` when it ends, and `serve` waits until all threads
    /// have done so.
    fn thread(server: &Arc<Self>, number: usize, running: Sender<Infallible>) -> UnboundedSender<TcpStream> {
        let (sender, clients) = unbounded_channel();
        let server = Arc::clone(server);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let work = move || {
            let _running = running;
            match runtime {
                Ok(runtime) => LocalSet::new().block_on(&runtime, answer(server, clients)),
                Err(error) => tracing::error!(error = %error, "{NO_THREAD}"),
            }
        };
        if let Err(error) = thread::Builder::new().name(format!("serve-{number}")).spawn(work) {
            tracing::error!(error = %error, "{NO_THREAD}");
        }
        sender
    }

    async fn accept(&self, listener: &TcpListener, threads: &[UnboundedSender<TcpStream>]) {
        let mut turns = threads.iter().cycle();
        loop {
            let client = match listener.accept().await {
                Ok((client, _)) => client,
                Err(error) => {
                    let error = io_error(&error);
                    tracing::warn!(error, "cannot accept a connection to serve.listen; retrying");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            add(&self.stats.accepted, 1);
            if get(&self.stats.connections) >= self.max_connections as u64 {
                add(&self.stats.rejected, 1);
                // Send the error only without TLS, because a client that expects TLS could not read it. Bypass Tokio, which does not know
                // yet that the socket is writable.
                if self.tls.is_none()
                    && let Ok(mut client) = client.into_std()
                {
                    let _ = client.write(b"-ERR max number of clients reached\r\n");
                }
                continue;
            }
            add(&self.stats.connections, 1);
            // Disable Nagle's algorithm, which can hold back the end of an answer until the client has acknowledged the previous bytes.
            let _ = client.set_nodelay(true);
            // TCP keepalive detects clients that have disappeared.
            let _ = rustix::net::sockopt::set_socket_keepalive(&client, true);
            // Sending fails only if the thread could not start. The client is then disconnected.
            if turns.next().is_none_or(|thread| thread.send(client).is_err()) {
                self.stats.connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

fn cpus() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Serves the clients of one thread until no more arrive and the last connection has ended.
async fn answer(server: Arc<Server>, mut clients: UnboundedReceiver<TcpStream>) {
    // Each thread has its own channel, so connections of different threads do not share a lock.
    let stop = watch::Sender::new(false);
    while let Some(client) = clients.recv().await {
        let (server, mut stopped) = (Arc::clone(&server), stop.subscribe());
        tokio::task::spawn_local(async move {
            let id = server.next_id.fetch_add(1, Ordering::Relaxed);
            let stop = async { drop(stopped.wait_for(|&is_stopped| is_stopped).await) };
            if let Err(error) = here(client, &server, id, stop).await {
                tracing::debug!(client = id, error = %error, "a connection failed");
            }
            server.stats.connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
    stop.send_replace(true);
    // Every connection holds a receiver, so `closed` waits for all connections.
    stop.closed().await;
}

/// Moves a connection to the runtime of this thread, starts TLS if `serve.tls` is set, and serves the client.
async fn here(client: TcpStream, server: &Server, id: u64, stop: impl Future<Output = ()>) -> std::io::Result<()> {
    let client = TcpStream::from_std(client.into_std()?)?;
    let address = client.peer_addr().ok();
    let Some(tls) = &server.tls else { return connection::serve(server, client, (id, address), stop).await };
    let mut stop = pin!(stop);
    let client = tokio::select! {
        client = tls.accept(client) => client.inspect_err(|_| add(&server.stats.unencrypted, 1))?,
        // The client has sent no command yet, so no command is left without an answer.
        () = stop.as_mut() => return Ok(()),
    };
    connection::serve(server, client, (id, address), stop).await
}
