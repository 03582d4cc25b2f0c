//! HTTP endpoints: probes, metrics, status, and the dashboard.
//!
//! All endpoints are read-only. They must never block a worker or reveal a secret.
//!
//! | path | response |
//! |---|---|
//! | `/` | the dashboard, with `/dashboard.css` and `/dashboard.js` |
//! | `/livez` | 200, or 503 if a worker thread has not made progress for over half an hour |
//! | `/readyz` | 200 while records are processed or no topic matches a pattern yet, otherwise 503 with the reason |
//! | `/metrics` | Prometheus metrics |
//! | `/api/v1/status` | the complete status as JSON |
//! | `/api/v1/schema` | the JSON schema of the status |
//! | `/version` | the version |

mod encoder;
mod events;
mod metrics;
mod process;
mod server;

pub use events::Events;
pub use process::Disk;

pub(crate) use encoder::{CONTENT_TYPE, Encoder, Labels, float, render, seconds};
pub(crate) use server::{Limits, io_error, serve as serve_router};

use crate::config::Config;
use crate::oauth;
use crate::registry::Registry;
use crate::runtime;
use crate::stats::{LastTime, Stats};
use crate::status::{self, Identity, Status};
use axum::Router;
use axum::extract::{FromRef, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::SystemTime;
use tokio::net::TcpListener;

/// Maximum number of connections. A further connection ends the oldest connection, so a flood does not block probes.
const CONNECTIONS_MAX: usize = 64;

/// Content security policy: pages may load only resources from this process.
const CONTENT_POLICY: &str = "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'";

#[derive(Clone, Debug)]
pub struct View {
    pub config: Arc<Config>,
    pub stats: Arc<Stats>,
    /// The schema registry, if a topic needs one.
    pub registry: Option<Arc<Registry>>,
    pub events: Events,
    /// True once the process is shutting down.
    pub stop: Arc<AtomicBool>,
    /// Instance ID of the process, set during startup.
    pub instance: Arc<OnceLock<String>>,
    pub disk: Disk,
    pub started: SystemTime,
}

impl View {
    #[must_use]
    pub fn status(&self) -> Status {
        let identity = Identity {
            instance: self.instance.get().map(String::as_str),
            time_ms: runtime::wall_clock(),
            started_ms: runtime::millis(self.started),
            draining: self.stop.load(Ordering::Relaxed),
            login_trouble: self.config.kafka.oauth.as_ref().and_then(oauth::trouble),
        };
        let registry = self.registry.as_ref().map(|registry| registry.report());
        Status::new(&self.config, &self.stats, &identity, registry.as_ref(), process::measure(&self.disk), self.events.last())
    }
}

/// The current data of the endpoints. The process replaces the configuration and the counters when its workers start to read other topics.
#[derive(Clone, Debug)]
pub struct CurrentView(Arc<RwLock<View>>);

impl CurrentView {
    #[must_use]
    pub fn new(view: View) -> Self {
        Self(Arc::new(RwLock::new(view)))
    }

    #[must_use]
    pub fn get(&self) -> View {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn replace(&self, config: Arc<Config>, stats: Arc<Stats>) {
        let mut view = self.0.write().unwrap_or_else(PoisonError::into_inner);
        (view.config, view.stats) = (config, stats);
    }
}

impl FromRef<CurrentView> for View {
    fn from_ref(current: &CurrentView) -> Self {
        current.get()
    }
}

pub async fn listen(address: SocketAddr) -> Result<TcpListener, String> {
    let advice = "set http.listen to another address, or to \"off\"";
    TcpListener::bind(address).await.map_err(|error| format!("http.listen: cannot listen on {address}: {error}; {advice}"))
}

/// Serves requests until the future is dropped.
pub async fn serve(listener: TcpListener, view: CurrentView) {
    let limits = Limits { setting: "http.listen", connections: CONNECTIONS_MAX, max_age: None };
    server::serve(listener, None, router(view), limits, std::future::pending()).await;
}

/// Writes the start time, the resident memory, and the CPU time of this process as metrics.
pub(crate) fn process(encoder: &mut Encoder<'_>, started_ms: i64) -> Result<(), std::fmt::Error> {
    let process = process::measure(&Disk::default());
    metrics::of_process(encoder, started_ms, process.resident_bytes, process.cpu_seconds)
}

fn router(view: CurrentView) -> Router {
    Router::new()
        .route("/", get(async || page("text/html; charset=utf-8", include_str!("dashboard/index.html"))))
        .route("/dashboard.css", get(async || page("text/css; charset=utf-8", include_str!("dashboard/dashboard.css"))))
        .route("/dashboard.js", get(async || page("text/javascript; charset=utf-8", include_str!("dashboard/dashboard.js"))))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(async |State(view): State<View>| text(CONTENT_TYPE, metrics::render(view.status()))))
        .route("/api/v1/status", get(async |State(view): State<View>| json(&view.status())))
        .route("/api/v1/schema", get(async || json(&schemars::schema_for!(Status))))
        .route("/version", get(async || concat!(env!("CARGO_PKG_VERSION"), "\n")))
        .layer(from_fn_with_state(view.clone(), require_local_host))
        .with_state(view)
        .layer(map_response(forbid_caching))
}

/// Rejects requests for other hosts if `http.listen` is a loopback address. Otherwise, a web page could read the endpoints by resolving its
/// own host name to this address (DNS rebinding).
async fn require_local_host(State(view): State<View>, request: Request, next: Next) -> Response {
    if is_of_elsewhere(&request, view.config.http.listen) {
        let advice = "http.listen is a loopback address; use the host name localhost, or set http.listen to another address";
        return (StatusCode::MISDIRECTED_REQUEST, format!("{advice}\n")).into_response();
    }
    next.run(request).await
}

/// True if `listen` is a loopback address and the request's `Host` header names another machine.
pub(crate) fn is_of_elsewhere(request: &Request, listen: Option<SocketAddr>) -> bool {
    let is_loopback = listen.is_some_and(|address| address.ip().is_loopback());
    let host = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    is_loopback && host.is_some_and(|host| !is_local(host))
}

/// True if a host, with or without a port, refers to this machine.
fn is_local(host: &str) -> bool {
    let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit())).map_or(host, |(name, _)| name);
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Forbids caching of responses, because a cached probe would hide a failure.
async fn forbid_caching(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn livez(State(view): State<View>) -> Response {
    let rounds: Vec<_> = view.stats.rounds.iter().map(LastTime::age).collect();
    match status::dead(&view.config, &rounds) {
        None => "ok\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not alive: {reason}\n")).into_response(),
    }
}

async fn readyz(State(view): State<View>) -> Response {
    let status = view.status();
    match status.reason {
        // If one partition cannot be read, the process is still ready, because it processes the other partitions. The response only
        // mentions the partition.
        None => status.held_back().map_or_else(|| "ready\n".to_owned(), |held_back| format!("ready: {held_back}\n")).into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")).into_response(),
    }
}

fn page(content_type: &'static str, body: &'static str) -> Response {
    let mut response = text(content_type, body.to_owned());
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_POLICY));
    response
}

fn json(value: &impl serde::Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(body) => text("application/json", body),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn text(content_type: &'static str, body: String) -> Response {
    let headers = [(header::CONTENT_TYPE, content_type), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_hosts_are_local() {
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "127.8.8.8", "[::1]:8080", "[::1]"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1:8080", "[::2]:80"] {
            assert!(!is_local(host), "{host}");
        }
    }
}
