//! Answers which keys were seen, to clients of Redis and over HTTP.
//!
//! Owns the connections of `unseen serve` and their threads. Must never change what was seen: the stream decides that, and
//! a write of a client is a record of it.
//!
//! Each thread has connections of its own and answers them one after the other; all ask the same [`Follower`].

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
use std::io::Write as _;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;
use writer::Writer;

/// Pause after a failed accept: without a free descriptor, the next one would fail at once.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Descriptors that are for others than clients: Kafka's, the log's, and those of the endpoints.
const DESCRIPTORS: u64 = 256;

/// Answers clients, by what a follower knows. Its `Debug` shows no secret.
pub struct Server {
    follower: Follower,
    stats: ServeStats,
    password: Option<String>,
    tls: Option<Arc<Tls>>,
    writer: Option<Writer>,
    max_connections: usize,
    started: Instant,
    started_at: SystemTime,
    listen: SocketAddr,
    http_listen: Option<SocketAddr>,
    next_id: AtomicU64,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("follower", &self.follower).field("listen", &self.listen).finish_non_exhaustive()
    }
}

/// Where a server listens.
#[derive(Debug)]
pub struct Listening {
    redis: TcpListener,
    http: Option<TcpListener>,
}

impl Server {
    /// Has answered nothing yet.
    ///
    /// # Errors
    /// A sentence, when it cannot encrypt connections as it should, or librdkafka refuses a property.
    pub fn new(config: &Config, follower: Follower) -> Result<Arc<Self>, String> {
        let serve = &config.serve;
        Ok(Arc::new(Self {
            follower,
            stats: ServeStats::default(),
            password: serve.password.clone(),
            writer: serve.writes.then(|| Writer::new(config)).transpose().map_err(|error| error.to_string())?,
            tls: serve.tls.as_ref().map(Tls::new).transpose()?.map(Arc::new),
            max_connections: serve.max_connections,
            started: Instant::now(),
            started_at: SystemTime::now(),
            listen: serve.listen,
            http_listen: serve.http_listen,
            next_id: AtomicU64::new(1),
        }))
    }

    /// Listens for clients.
    ///
    /// # Errors
    /// A sentence, when it cannot.
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

    /// Answers until it is dropped, with so many threads; with one a processor, if it is not said.
    pub async fn serve(self: Arc<Self>, listening: Listening, threads: Option<u16>) {
        let Listening { redis, http } = listening;
        if let Ok(address) = redis.local_addr() {
            tracing::info!(address = %address, password = self.password.is_some(), tls = self.tls.is_some(), "listening for clients of Redis");
        }
        self.raise_descriptors();
        let threads = threads.map_or_else(|| thread::available_parallelism().map_or(1, NonZeroUsize::get), usize::from);
        let senders: Vec<_> = (0..threads).map(|number| Self::thread(&self, number)).collect();
        if let Some(http) = http {
            if let Ok(address) = http.local_addr() {
                tracing::info!(address = %address, "listening for http");
            }
            tokio::spawn(http::serve(http, Arc::clone(&self)));
        }
        if let Some(tls) = self.tls.clone() {
            tokio::spawn(async move { tls.renew().await });
        }
        self.accept(&redis, &senders).await;
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

    /// A thread that answers the clients that are sent to it.
    fn thread(server: &Arc<Self>, number: usize) -> UnboundedSender<TcpStream> {
        let (sender, clients) = unbounded_channel();
        let server = Arc::clone(server);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let work = move || match runtime {
            Ok(runtime) => LocalSet::new().block_on(&runtime, answer(server, clients)),
            Err(error) => tracing::error!(error = %error, "a thread that answers cannot begin"),
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

/// Answers the clients of one thread.
async fn answer(server: Arc<Server>, mut clients: UnboundedReceiver<TcpStream>) {
    while let Some(client) = clients.recv().await {
        let server = Arc::clone(&server);
        tokio::task::spawn_local(async move {
            let id = server.next_id.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = here(client, &server, id).await {
                tracing::debug!(client = id, error = %error, "a connection failed");
            }
            server.stats.connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Has the thread's own runtime watch a connection that another one accepted, encrypts it if that is wanted, and serves it.
async fn here(client: TcpStream, server: &Server, id: u64) -> std::io::Result<()> {
    let client = TcpStream::from_std(client.into_std()?)?;
    match &server.tls {
        Some(tls) => {
            let client = tls.accept(client).await.inspect_err(|_| add(&server.stats.unencrypted, 1))?;
            connection::serve(server, client, id).await
        }
        None => connection::serve(server, client, id).await,
    }
}
