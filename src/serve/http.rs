//! What can be asked and watched over HTTP, for those without a client of Redis.
//!
//! | path | answers |
//! |---|---|
//! | `POST /api/v1/spaces/{space}/contains` | which keys were seen |
//! | `/api/v1/spaces` | how the spaces stand |
//! | `/livez` | 200 |
//! | `/readyz` | 200 once every space can be asked, else 503 with the reason |
//! | `/metrics` | Prometheus text |
//! | `/version` | the version |

use super::{Server, metrics, session};
use crate::follower::{Answer, Query, Space, SpaceReport};
use crate::http::{Limits, is_of_elsewhere, serve_router};
use crate::record::Timestamp;
use crate::stats::add;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpListener;

/// Most bytes of a question.
const BODY_BYTES_MAX: usize = 2 << 20;
/// Most keys of one question.
const KEYS_MAX: usize = 1 << 16;
/// Most connections at a time, except for those that are ending: with the largest questions, half a gigabyte.
const CONNECTIONS_MAX: usize = 256;

/// What is said of a part that is null.
const NO_NULL: &str = "a part is null: of a field that is null, write \"null\"; a record key or a header that is null cannot be asked for";

/// Which keys to ask for.
#[derive(Debug, Deserialize)]
struct ContainsRequest<'q> {
    /// Each a list of the key's parts, or its only part. A part is a JSON value, or a text, which then also stands for the
    /// number that is written so.
    #[serde(borrow)]
    keys: Vec<&'q RawValue>,
}

/// What is known of them.
#[derive(Debug, Serialize, JsonSchema)]
struct ContainsAnswer {
    /// For each key, in order: whether it was seen.
    seen: Vec<bool>,
    /// Since what time there may be commits that are not known, in milliseconds since the epoch.
    as_of_ms: Option<Timestamp>,
}

/// How a space stands.
#[derive(Debug, Serialize, JsonSchema)]
struct SpaceStatus<'s> {
    space: &'s str,
    partitions: usize,
    ready_partitions: usize,
    /// Why it cannot be asked; null if it can.
    unavailable: Option<String>,
    as_of_ms: Option<Timestamp>,
    stream_time_ms: Option<Timestamp>,
    keys: u64,
    capacity_keys: u64,
    memory_bytes: u64,
    estimated_rate: f64,
}

/// Answers until `stop`, and then finishes the requests that it has begun to answer.
pub(super) async fn serve(listener: TcpListener, server: Arc<Server>, stop: impl Future<Output = ()>) {
    let limits = Limits { setting: "serve.http_listen", connections: CONNECTIONS_MAX, idle: Some(Duration::from_secs(60)) };
    serve_router(listener, server.tls.clone(), router(server), limits, stop).await;
}

fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/api/v1/spaces", get(spaces))
        .route("/api/v1/spaces/{space}/contains", post(contains))
        // Before a question is read.
        .layer(from_fn_with_state(Arc::clone(&server), admit))
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route(
            "/metrics",
            get(async |State(server): State<Arc<Server>>| ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::render(&server))),
        )
        .route("/version", get(async || concat!(env!("CARGO_PKG_VERSION"), "\n")))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(Arc::clone(&server), local))
        .with_state(server)
}

async fn readyz(State(server): State<Arc<Server>>) -> Response {
    if server.is_stopping.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "not ready: the server was told to stop\n").into_response();
    }
    let reason = server.follower.spaces().iter().find_map(|space| Some((space.name(), space.why_unavailable()?)));
    match reason {
        None => "ready\n".into_response(),
        Some((space, reason)) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: space {space:?}: {reason}\n")).into_response(),
    }
}

async fn spaces(State(server): State<Arc<Server>>) -> Response {
    let spaces = server.follower.spaces().iter().map(|space| {
        let SpaceReport { partitions, ready, unavailable, as_of, stream_time, keys, capacity, bytes, rate, .. } = space.report();
        SpaceStatus {
            space: space.name(),
            partitions,
            ready_partitions: ready,
            unavailable: unavailable.map(|reason| reason.to_string()),
            as_of_ms: as_of,
            stream_time_ms: stream_time,
            keys,
            capacity_keys: capacity,
            memory_bytes: bytes,
            estimated_rate: rate,
        }
    });
    json(StatusCode::OK, &spaces.collect::<Vec<_>>())
}

async fn contains(State(server): State<Arc<Server>>, Path(space): Path<String>, body: Bytes) -> Response {
    // Many keys take a while, and clients are accepted on this thread.
    let answer = tokio::task::spawn_blocking(move || answer(&server, &space, &body)).await;
    answer.unwrap_or_else(|error| problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()))
}

fn answer(server: &Server, space: &str, body: &[u8]) -> Response {
    let Some(space) = server.follower.space(space) else {
        let names: Vec<_> = server.follower.spaces().iter().map(Space::name).collect();
        return problem(StatusCode::NOT_FOUND, &format!("there is no key space {space:?}; the configuration has {}", names.join(", ")));
    };
    let mut query = Query::default();
    if let Err(sentence) = add_all(space, body, &mut query) {
        return problem(StatusCode::BAD_REQUEST, &sentence);
    }
    let as_of_ms = space.as_of();
    let (answers, unavailable) = space.answer(&mut query);
    match unavailable {
        Some(reason) if answers.contains(&Answer::Unknown) => problem(StatusCode::SERVICE_UNAVAILABLE, &reason.to_string()),
        _ => json(StatusCode::OK, &ContainsAnswer { seen: answers.iter().map(|&answer| answer == Answer::Seen).collect(), as_of_ms }),
    }
}

/// Adds the keys of a question; on failure, a sentence says which is wrong.
fn add_all(space: &Space, body: &[u8], query: &mut Query) -> Result<(), String> {
    let expected = r#"expected {"keys": [...]}, each key a list of its parts, or its only part"#;
    let question: ContainsRequest<'_> = serde_json::from_slice(body).map_err(|error| format!("{expected}: {error}"))?;
    if question.keys.len() > KEYS_MAX {
        return Err(format!("at most {KEYS_MAX} keys are taken, got {}", question.keys.len()));
    }
    for (number, key) in question.keys.iter().enumerate() {
        if key.get() == "null" {
            return Err(format!("keys[{number}]: {NO_NULL}"));
        }
        let parts: Vec<&RawValue> = match serde_json::from_str(key.get()) {
            Ok(parts) => parts,
            Err(_) => vec![key],
        };
        if parts.iter().any(|part| part.get() == "null") {
            return Err(format!("keys[{number}]: {NO_NULL}"));
        }
        let texts: Vec<_> = parts.iter().map(|part| text(part)).collect();
        space.add(query, texts.iter().map(String::as_bytes)).map_err(|error| format!("keys[{number}]: {error}"))?;
    }
    Ok(())
}

/// A text as it is without quotes, anything else as it is written.
fn text(part: &RawValue) -> String {
    serde_json::from_str(part.get()).unwrap_or_else(|_| part.get().to_owned())
}

/// Takes a question only with the password, if one is wanted.
async fn admit(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let Some(password) = &server.password else {
        if server.tls.as_ref().is_some_and(|tls| tls.wants_certificates()) {
            let advice = "serve.tls.client_ca_location is set, and certificates are shown at serve.listen only: to ask over HTTP, set serve.password";
            return problem(StatusCode::FORBIDDEN, advice);
        }
        return next.run(request).await;
    };
    let given = request.headers().get(header::AUTHORIZATION).and_then(bearer);
    if given.is_some_and(|given| session::is_equal(password.as_bytes(), given)) {
        return next.run(request).await;
    }
    if given.is_some() {
        add(&server.stats.wrong_passwords, 1);
    }
    let advice = "serve.password is set: send it as `Authorization: Bearer PASSWORD`";
    ([(header::WWW_AUTHENTICATE, "Bearer")], problem(StatusCode::UNAUTHORIZED, advice)).into_response()
}

/// Returns the password in a header. The name of the scheme is matched without regard to case (RFC 9110), and the password is
/// any bytes: a header is not limited to ASCII.
fn bearer(authorization: &HeaderValue) -> Option<&[u8]> {
    let (scheme, password) = authorization.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(password)
}

/// Refuses requests of web pages that gave their own name the address of this machine. Ends connections once the server stops.
async fn local(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let mut response = if is_of_elsewhere(&request, server.http_listen) {
        let advice = "serve.http_listen is an address of this machine only: ask for localhost, or set it to another address";
        problem(StatusCode::MISDIRECTED_REQUEST, advice)
    } else {
        next.run(request).await
    };
    if server.is_stopping.load(Ordering::Relaxed) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn problem(status: StatusCode, sentence: &str) -> Response {
    json(status, &serde_json::json!({ "error": sentence }))
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let headers =
        [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    match serde_json::to_string(value) {
        Ok(body) => (status, headers, body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
