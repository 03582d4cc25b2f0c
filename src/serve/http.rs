//! The HTTP API for lookups, probes, status, and metrics.
//!
//! | path | answers |
//! |---|---|
//! | `POST /api/v1/spaces/{space}/contains` | which keys were seen |
//! | `/api/v1/spaces` | the status of each space |
//! | `/livez` | 200 |
//! | `/readyz` | 200 while every space can answer and the server is not stopping, otherwise 503 with the reason |
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
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpListener;

const BODY_BYTES_MAX: usize = 2 << 20;
/// The maximum number of keys per request and of parts per key.
const KEYS_MAX: usize = 1 << 16;
/// The maximum number of keys per lookup. Limits the memory of a lookup: a key can have 16 fingerprints for each key definition of the
/// space, and each fingerprint uses about 50 bytes.
const BATCH_KEYS: usize = 1 << 12;
/// The maximum number of connections that accept requests. In addition, up to 64 connections may be closing. If all 320 connections hold a
/// body of the maximum size, the bodies use 640 MiB. `Server::lookups` limits the additional memory for lookups.
const CONNECTIONS_MAX: usize = 256;

const NO_NULL: &str = "a part is null; for a null field, use the string \"null\"; null record keys and null headers cannot be looked up";

#[derive(Debug, Deserialize)]
struct ContainsRequest<'q> {
    /// The keys. Each key is a list of its parts. A key with only one part can also be the part itself. A part is a JSON value. A string
    /// also matches the number with the same text.
    #[serde(borrow)]
    keys: Values<'q>,
}

/// JSON values as raw text, at most [`KEYS_MAX`].
#[derive(Debug)]
struct Values<'q>(Vec<&'q RawValue>);

impl<'de: 'q, 'q> Deserialize<'de> for Values<'q> {
    fn deserialize<D: Deserializer<'de>>(list: D) -> Result<Self, D::Error> {
        list.deserialize_seq(ValuesVisitor)
    }
}

struct ValuesVisitor;

impl<'q> Visitor<'q> for ValuesVisitor {
    type Value = Values<'q>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'q>>(self, mut list: A) -> Result<Values<'q>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            if values.len() == KEYS_MAX {
                return Err(A::Error::custom(format_args!("more than {KEYS_MAX} values in one list; send several requests")));
            }
            values.push(value);
        }
        Ok(Values(values))
    }
}

/// The response of `contains`.
#[derive(Debug, Serialize, JsonSchema)]
struct ContainsAnswer {
    /// For each key, in order: true if the key was seen.
    seen: Vec<bool>,
    /// The time of the state, in milliseconds since the epoch. The state contains all earlier commits.
    as_of_ms: Option<Timestamp>,
}

/// The status of a key space.
#[derive(Debug, Serialize, JsonSchema)]
struct SpaceStatus<'s> {
    space: &'s str,
    partitions: usize,
    ready_partitions: usize,
    /// The reason for unknown answers; null if all answers are known.
    unavailable: Option<String>,
    as_of_ms: Option<Timestamp>,
    stream_time_ms: Option<Timestamp>,
    keys: u64,
    capacity_keys: u64,
    memory_bytes: u64,
    estimated_rate: f64,
}

/// Accepts requests until `stop`, then finishes the requests that are in progress.
pub(super) async fn serve(listener: TcpListener, server: Arc<Server>, stop: impl Future<Output = ()>) {
    let limits = Limits { setting: "serve.http_listen", connections: CONNECTIONS_MAX, max_age: Some(Duration::from_secs(60)) };
    serve_router(listener, server.tls.clone(), router(server), limits, stop).await;
}

fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/api/v1/spaces", get(spaces))
        .route("/api/v1/spaces/{space}/contains", post(contains))
        // `admit` runs before the request body is read, so clients without the password cannot fill memory with bodies.
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
        return (StatusCode::SERVICE_UNAVAILABLE, "not ready: the server is stopping\n").into_response();
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
    let Ok(permit) = Arc::clone(&server.lookups).acquire_owned().await else {
        return problem(StatusCode::SERVICE_UNAVAILABLE, "the server is stopping");
    };
    // Use another thread, because a lookup of many keys is slow, and this thread also accepts clients.
    let answer = tokio::task::spawn_blocking(move || {
        // The lookup continues even if the client disconnects, so the permit is held until the lookup ends.
        let _permit = permit;
        answer(&server, &space, &body)
    });
    answer.await.unwrap_or_else(|error| problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()))
}

fn answer(server: &Server, space: &str, body: &[u8]) -> Response {
    let Some(space) = server.follower.space(space) else {
        let names: Vec<_> = server.follower.spaces().iter().map(Space::name).collect();
        return problem(StatusCode::NOT_FOUND, &format!("there is no key space {space:?}; the configuration has {}", names.join(", ")));
    };
    let seen = look_up(space, body);
    seen.map_or_else(|(status, message)| problem(status, &message), |answer| json(StatusCode::OK, &answer))
}

/// Looks up the keys of a request in batches. If a key is invalid, the error message contains its index.
fn look_up(space: &Space, body: &[u8]) -> Result<ContainsAnswer, (StatusCode, String)> {
    let expected = r#"expected {"keys": [...]}, where each key is a list of its parts, or its only part"#;
    let is_wrong = |message| (StatusCode::BAD_REQUEST, message);
    let question: ContainsRequest<'_> = serde_json::from_slice(body).map_err(|error| is_wrong(format!("{expected}: {error}")))?;
    let as_of_ms = space.as_of();
    let (mut query, mut seen, mut unknown) = (Query::default(), Vec::with_capacity(question.keys.0.len()), None);
    for (batch, keys) in question.keys.0.chunks(BATCH_KEYS).enumerate() {
        query.clear();
        for (number, key) in keys.iter().enumerate() {
            add_key(space, key, &mut query).map_err(|error| is_wrong(format!("keys[{}]: {error}", batch * BATCH_KEYS + number)))?;
        }
        let (answers, unavailable) = space.answer(&mut query);
        unknown = unknown.or(unavailable.filter(|_| answers.contains(&Answer::Unknown)));
        seen.extend(answers.iter().map(|&answer| answer == Answer::Seen));
    }
    match unknown {
        Some(reason) => Err((StatusCode::SERVICE_UNAVAILABLE, reason.to_string())),
        None => Ok(ContainsAnswer { seen, as_of_ms }),
    }
}

fn add_key(space: &Space, key: &RawValue, query: &mut Query) -> Result<(), String> {
    let parts = if key.get().starts_with('[') {
        serde_json::from_str::<Values<'_>>(key.get()).map_err(|error| error.to_string())?.0
    } else {
        vec![key]
    };
    if parts.iter().any(|part| part.get() == "null") {
        return Err(NO_NULL.to_owned());
    }
    let texts: Vec<_> = parts.iter().map(|part| text(part)).collect();
    space.add(query, texts.iter().map(String::as_bytes)).map_err(|error| error.to_string())
}

/// Returns the content of a JSON string, or the raw text of any other value.
fn text(part: &RawValue) -> String {
    serde_json::from_str(part.get()).unwrap_or_else(|_| part.get().to_owned())
}

/// Protects the paths under `/api`. If a password is configured, rejects requests without the password. If clients of `serve.listen` need a
/// certificate and no password is configured, rejects all requests, because `serve.http_listen` cannot require a certificate.
async fn admit(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let Some(password) = &server.password else {
        if server.tls.as_ref().is_some_and(|tls| tls.wants_certificates()) {
            let advice =
                "serve.tls.client_ca_location is set, but client certificates only work at serve.listen; to use HTTP, set serve.password";
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
    let advice = "the password is missing or wrong; send serve.password as `Authorization: Bearer PASSWORD`";
    ([(header::WWW_AUTHENTICATE, "Bearer")], problem(StatusCode::UNAUTHORIZED, advice)).into_response()
}

/// Returns the password in a header. The scheme is case-insensitive (RFC 9110). The password may contain any bytes, because headers are not
/// limited to ASCII.
fn bearer(authorization: &HeaderValue) -> Option<&[u8]> {
    let (scheme, password) = authorization.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(password)
}

/// If `serve.http_listen` is a loopback address, rejects requests whose `Host` header names another machine, because a web page may send
/// them (DNS rebinding). Closes connections once the server is stopping.
async fn local(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let mut response = if is_of_elsewhere(&request, server.http_listen) {
        let advice = "serve.http_listen is a loopback address; use the host name localhost, or set serve.http_listen to another address";
        problem(StatusCode::MISDIRECTED_REQUEST, advice)
    } else {
        next.run(request).await
    };
    if server.is_stopping.load(Ordering::Relaxed) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn problem(status: StatusCode, message: &str) -> Response {
    json(status, &serde_json::json!({ "error": message }))
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let headers =
        [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    match serde_json::to_string(value) {
        Ok(body) => (status, headers, body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::follower::Follower;
    use axum::body::to_bytes;
    use tokio::time::timeout;

    fn server() -> Arc<Server> {
        let topic = "input = \"in\"\noutput = \"out\"\nkey = { record = \"key\" }\nwindow = \"1h\"\nfilter = { capacity = 1000 }\n";
        let config = Config::of_text(&format!("[kafka]\nbootstrap_servers = \"localhost:1\"\n[[topics]]\n{topic}"));
        Server::new(&config, Follower::without_brokers(&config)).unwrap()
    }

    async fn ask(server: &Arc<Server>, body: String) -> (StatusCode, String) {
        let answer = contains(State(Arc::clone(server)), Path("in".to_owned()), Bytes::from(body)).await;
        let (head, body) = answer.into_parts();
        (head.status, String::from_utf8(to_bytes(body, 1 << 20).await.unwrap().into()).unwrap())
    }

    #[tokio::test]
    async fn a_request_is_read_up_to_the_first_key_over_the_limit() {
        let server = server();
        // The end of the body is not valid JSON and must not be reached.
        let keys = "1,".repeat(KEYS_MAX + 1);
        for body in [format!("{{\"keys\":[{keys}}}"), format!("{{\"keys\":[[{keys}1]]}}")] {
            let (status, answer) = ask(&server, body).await;
            assert_eq!(status, StatusCode::BAD_REQUEST);
            assert!(answer.contains("more than 65536 values in one list; send several requests"), "{answer}");
        }
        let keys = vec!["1"; KEYS_MAX].join(",");
        assert_eq!(ask(&server, format!("{{\"keys\":[{keys}]}}")).await.0, StatusCode::SERVICE_UNAVAILABLE);
        let keys = vec!["1"; BATCH_KEYS + 1].join(",");
        let (_, answer) = ask(&server, format!("{{\"keys\":[{keys},[1,2]]}}")).await;
        assert!(answer.contains("keys[4097]: the key has 1 part"), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_lookups_are_limited_to_the_number_of_cpus() {
        let (server, question) = (server(), || "{\"keys\":[1]}".to_owned());
        let all = u32::try_from(server.lookups.available_permits()).unwrap();
        let permits = Arc::clone(&server.lookups).acquire_many_owned(all).await.unwrap();
        assert!(timeout(Duration::from_secs(60), ask(&server, question())).await.is_err(), "no permit is left");
        drop(permits);
        assert_eq!(ask(&server, question()).await.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(server.lookups.available_permits(), all as usize);
    }
}
