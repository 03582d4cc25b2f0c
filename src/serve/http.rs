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

use super::{Server, commands, metrics};
use crate::follower::{Answer, Lookup, Space, SpaceReport};
use crate::http::{Limits, serve_router};
use crate::record::Timestamp;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Most bytes of a question.
const BODY_BYTES_MAX: usize = 16 << 20;
/// Most keys of one question.
const KEYS_MAX: usize = 1 << 17;

/// Which keys to ask for.
#[derive(Debug, Deserialize)]
struct Question<'q> {
    /// Each a list of the key's parts, or its only part. A part is a JSON value, or a text, which then also stands for the
    /// number that is written so.
    #[serde(borrow)]
    keys: Vec<&'q RawValue>,
}

/// What is known of them.
#[derive(Debug, Serialize, JsonSchema)]
struct Found {
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

/// Answers until it is dropped.
pub(super) async fn serve(listener: TcpListener, server: Arc<Server>) {
    let limits = Limits { connections: 1024, idle: Some(Duration::from_secs(60)) };
    serve_router(listener, router(server), limits).await;
}

fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/api/v1/spaces", get(spaces))
        .route("/api/v1/spaces/{space}/contains", post(contains))
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route(
            "/metrics",
            get(async |State(server): State<Arc<Server>>| ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::render(&server))),
        )
        .route("/version", get(async || concat!(env!("CARGO_PKG_VERSION"), "\n")))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(server)
}

async fn readyz(State(server): State<Arc<Server>>) -> Response {
    let reason = server.follower.spaces().iter().find_map(|space| Some((space.name(), space.report().unavailable?)));
    match reason {
        None => "ready\n".into_response(),
        Some((space, reason)) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: space {space:?}: {reason}\n")).into_response(),
    }
}

async fn spaces(State(server): State<Arc<Server>>, headers: HeaderMap) -> Response {
    if let Err(refused) = admit(&server, &headers) {
        return refused;
    }
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

async fn contains(State(server): State<Arc<Server>>, Path(space): Path<String>, headers: HeaderMap, body: Bytes) -> Response {
    if let Err(refused) = admit(&server, &headers) {
        return refused;
    }
    let Some(space) = server.follower.space(&space) else {
        let names: Vec<_> = server.follower.spaces().iter().map(Space::name).collect();
        return problem(StatusCode::NOT_FOUND, &format!("there is no key space {space:?}; the configuration has {}", names.join(", ")));
    };
    let mut lookup = Lookup::default();
    if let Err(sentence) = add_all(space, &body, &mut lookup) {
        return problem(StatusCode::BAD_REQUEST, &sentence);
    }
    let as_of_ms = space.report().as_of;
    let (answers, unavailable) = space.answer(&mut lookup);
    match unavailable {
        Some(reason) if answers.contains(&Answer::Unknown) => problem(StatusCode::SERVICE_UNAVAILABLE, &reason.to_string()),
        _ => json(StatusCode::OK, &Found { seen: answers.iter().map(|&answer| answer == Answer::Seen).collect(), as_of_ms }),
    }
}

/// Adds the keys of a question; on failure, a sentence says which is wrong.
fn add_all(space: &Space, body: &[u8], lookup: &mut Lookup) -> Result<(), String> {
    let expected = r#"expected {"keys": [...]}, each key a list of its parts, or its only part"#;
    let question: Question<'_> = serde_json::from_slice(body).map_err(|error| format!("{expected}: {error}"))?;
    if question.keys.len() > KEYS_MAX {
        return Err(format!("at most {KEYS_MAX} keys are taken, got {}", question.keys.len()));
    }
    for (number, key) in question.keys.iter().enumerate() {
        let parts: Vec<&RawValue> = match serde_json::from_str(key.get()) {
            Ok(parts) => parts,
            Err(_) => vec![key],
        };
        let texts: Vec<_> = parts.iter().map(|part| text(part)).collect();
        space.add(lookup, texts.iter().map(String::as_bytes)).map_err(|error| format!("keys[{number}]: {error}"))?;
    }
    Ok(())
}

/// A text as it is without quotes, anything else as it is written.
fn text(part: &RawValue) -> String {
    serde_json::from_str(part.get()).unwrap_or_else(|_| part.get().to_owned())
}

/// Whether a question has the password, if one is wanted.
#[expect(clippy::result_large_err, reason = "it is the answer")]
fn admit(server: &Server, headers: &HeaderMap) -> Result<(), Response> {
    let Some(password) = &server.password else { return Ok(()) };
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| value.strip_prefix("Bearer "));
    if given.is_some_and(|given| commands::is_equal(password.as_bytes(), given.as_bytes())) {
        return Ok(());
    }
    if given.is_some() {
        server.stats.refused_password();
    }
    Err(problem(StatusCode::UNAUTHORIZED, "serve.password is set: send it as `Authorization: Bearer PASSWORD`"))
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
