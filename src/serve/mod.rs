//! Answers which keys were seen, to Redis clients and over HTTP.
//!
//! Owns the connections of `unseen serve`, their threads, and how they end. Must never change what was seen: the stream decides
//! that, and a client's write is a record of the stream. Must never end with a command received and not answered, as long as
//! `worker.shutdown_timeout` allows.
//!
//! Each thread has connections of its own and answers them one after the other. All threads ask the same [`Follower`].

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

/// Pause after a failed accept: without a free descriptor, the next one would fail at once.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Descriptors that are for others than clients: Kafka's, the log's, and those of the endpoints.
const DESCRIPTORS: u64 = 256;

/// Answers clients from what a follower knows. `Debug` shows no secret.
pub struct Server {
    follower: Follower,
    stats: ServeStats,
    password: Option<String>,
    tls: Option<Arc<Tls>>,
    writer: Option<Writer>,
    max_connections: usize,
    shutdown_timeout: Duration,
    /// Set once the process was told to stop.
    is_stopping: AtomicBool,
    started: Instant,
    started_at: SystemTime,
    listen: SocketAddr,
    http_listen: Option<SocketAddr>,
    next_id: AtomicU64,
    /// Permits for look-ups over HTTP, one per CPU. Each holds what it parses and asks for in memory.
    lookups: Arc<Semaphore>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("follower", &self.follower).field("listen", &self.listen).finish_non_exhaustive()
    }
}

/// The sockets of a server.
#[derive(Debug)]
pub struct Listening {
    redis: TcpListener,
    http: Option<TcpListener>,
}

impl Server {
    /// Creates a server that does not listen yet.
    ///
    /// # Errors
    /// An error message if `serve.tls` cannot be used, or if librdkafka refuses a property.
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

    /// Opens the sockets.
    ///
    /// # Errors
    /// An error message if an address cannot be used.
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

    /// Answers clients until `stop`, with the given number of threads, or with one per CPU. Then finishes what clients have
    /// asked for, within `worker.shutdown_timeout`.
    pub async fn serve(self: Arc<Self>, listening: Listening, threads: Option<u16>, stop: impl Future<Output = ()>) {
        let Listening { redis, http } = listening;
        if let Ok(address) = redis.local_addr() {
            tracing::info!(address = %address, password = self.password.is_some(), tls = self.tls.is_some(), "listening for clients of Redis");
        }
        self.raise_descriptors();
        let threads = threads.map_or_else(cpus, usize::from);
        let (running, mut ended) = channel::<Infallible>(1);
        let senders: Vec<_> = (0..threads).map(|number| Self::thread(&self, number, running.clone())).collect();
        drop(running);
        let (stop_http, http_stops) = oneshot::channel::<Infallible>();
        let http = http.map(|http| {
            if let Ok(address) = http.local_addr() {
                tracing::info!(address = %address, "listening for http");
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
        // Threads that get no more clients end with their last connection.
        drop((redis, senders));
        let all_ended = async {
            ended.recv().await;
            // Until here, probes could see that the server stops.
            drop(stop_http);
            if let Some(http) = http {
                let _ = http.await;
            }
        };
        if timeout_at(deadline, all_ended).await.is_err() {
            let (connections, limit_s) = (get(&self.stats.connections), self.shutdown_timeout.as_secs_f64());
            tracing::warn!(connections, limit_s, "closing connections that did not end in time; unanswered commands must be sent again");
        }
        self.flush(deadline).await;
    }

    /// Waits until the brokers have acknowledged writes whose clients are gone.
    async fn flush(self: Arc<Self>, deadline: tokio::time::Instant) {
        let flushed = tokio::task::spawn_blocking(move || {
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            self.writer.as_ref().map_or(Ok(()), |writer| writer.flush(left))
        });
        if let Ok(Err(writes)) = flushed.await {
            tracing::warn!(writes, "the brokers have not acknowledged these writes in time; the topics may have them");
        }
    }

    /// Lets the process open as many files as it may, and says if those are too few.
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
                "too few open files are allowed for serve.max_connections; raise the limit (`ulimit -n`, LimitNOFILE=), or lower serve.max_connections"
            );
        }
    }

    /// Starts a thread that answers the clients that are sent to it. The thread holds `running` until it ends.
    fn thread(server: &Arc<Self>, number: usize, running: Sender<Infallible>) -> UnboundedSender<TcpStream> {
        let (sender, clients) = unbounded_channel();
        let server = Arc::clone(server);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let work = move || {
            let _running = running;
            match runtime {
                Ok(runtime) => LocalSet::new().block_on(&runtime, answer(server, clients)),
                Err(error) => tracing::error!(error = %error, "cannot start a thread that answers clients"),
            }
        };
        let _ = thread::Builder::new().name(format!("serve-{number}")).spawn(work);
        sender
    }

    /// Sends each client that comes to a thread, in turns.
    async fn accept(&self, listener: &TcpListener, threads: &[UnboundedSender<TcpStream>]) {
        let mut turns = threads.iter().cycle();
        loop {
            let client = match listener.accept().await {
                Ok((client, _)) => client,
                Err(error) => {
                    let error = io_error(&error);
                    tracing::warn!(error, "a connection to serve.listen is not accepted; trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            add(&self.stats.accepted, 1);
            if get(&self.stats.connections) >= self.max_connections as u64 {
                add(&self.stats.rejected, 1);
                // A client that waits to be encrypted would not understand it. Tokio does not know yet that it can be written to.
                if self.tls.is_none()
                    && let Ok(mut client) = client.into_std()
                {
                    let _ = client.write(b"-ERR max number of clients reached\r\n");
                }
                continue;
            }
            add(&self.stats.connections, 1);
            // An answer is sent once it is whole; it is not to wait for more.
            let _ = client.set_nodelay(true);
            // One that is gone without a word is noticed some time.
            let _ = rustix::net::sockopt::set_socket_keepalive(&client, true);
            // A thread that could not begin takes none; its log line says why.
            if turns.next().is_none_or(|thread| thread.send(client).is_err()) {
                self.stats.connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

fn cpus() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Answers the clients of one thread, until no more come and the last connection has ended.
async fn answer(server: Arc<Server>, mut clients: UnboundedReceiver<TcpStream>) {
    // Of the thread alone: connections of different threads share no lock.
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
    // Each connection holds a receiver.
    stop.closed().await;
}

/// Moves a connection to the runtime of this thread, encrypts it if `serve.tls` is set, and serves it.
async fn here(client: TcpStream, server: &Server, id: u64, stop: impl Future<Output = ()>) -> std::io::Result<()> {
    let client = TcpStream::from_std(client.into_std()?)?;
    let Some(tls) = &server.tls else { return connection::serve(server, client, id, stop).await };
    let mut stop = pin!(stop);
    let client = tokio::select! {
        client = tls.accept(client) => client.inspect_err(|_| add(&server.stats.unencrypted, 1))?,
        // The client has asked nothing yet.
        () = stop.as_mut() => return Ok(()),
    };
    connection::serve(server, client, id, stop).await
}
