//! Spans of batches, commits, checkpoints and restores, to an OpenTelemetry collector.
//!
//! Owns the export, where `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT` names a collector's HTTP
//! address, such as `http://localhost:4318`; nothing is done without. Written here, in the JSON of the protocol (OTLP
//! 1.0, over HTTP/1.1 without TLS, to a collector beside the worker): the libraries for it would bring eighty packages.
//! Must never hold up a worker: what the collector does not take in time is dropped.

use serde_json::{Map, Value, json};
use std::fmt::Debug;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use xxhash_rust::xxh3::xxh3_128;

/// Most spans that wait; further ones are dropped.
const SPANS_MAX: usize = 2048;
/// Most spans that are sent together.
const BATCH_MAX: usize = 512;
/// Longest that a span waits.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the collector may take to be connected to, and for each part of a request and its answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the process waits at its end for the last spans to be sent.
const END_PATIENCE: Duration = Duration::from_secs(3);

/// Takes spans, and hands them over to be sent.
pub struct Spans(SyncSender<Value>);

/// Has what is left sent when it is dropped, and waits for that, but not for long.
pub struct Sending {
    stop: Arc<AtomicBool>,
    wake: SyncSender<Value>,
    ended: Receiver<()>,
}

/// Where to send, and what to do with it; none where no collector is named.
///
/// # Errors
/// When the address is none.
pub fn layer() -> anyhow::Result<Option<(Spans, Sending)>> {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (name, url) = match (set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), set("OTEL_EXPORTER_OTLP_ENDPOINT")) {
        (Some(url), _) => ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url),
        (None, Some(url)) => ("OTEL_EXPORTER_OTLP_ENDPOINT", url.trim_end_matches('/').to_owned() + "/v1/traces"),
        (None, None) => return Ok(None),
    };
    // The address is not shown: it may hold a password.
    let Some((host, path)) = url.strip_prefix("http://").and_then(|rest| rest.split_once('/')) else {
        anyhow::bail!("{name}: expected a collector's address without TLS, such as \"http://localhost:4318\"");
    };
    anyhow::ensure!(!host.contains('@'), "{name}: a user and a password in the address are not supported; leave them out");
    let (host, path) = (host.to_owned(), format!("/{path}"));
    let (sender, spans) = sync_channel(SPANS_MAX);
    let service = set("OTEL_SERVICE_NAME").unwrap_or_else(|| "unseen".to_owned());
    let stop = Arc::new(AtomicBool::new(false));
    let (end, ended) = sync_channel(0);
    let is_over = Arc::clone(&stop);
    std::thread::spawn(move || {
        send_all(&spans, &is_over, &host, &path, &service);
        drop(end);
    });
    Ok(Some((Spans(sender.clone()), Sending { stop, wake: sender, ended })))
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A full queue wakes the thread as well.
        let _ = self.wake.try_send(Value::Null);
        // The thread says nothing: its end is heard. A collector that is not there may hold it up for longer.
        let _ = self.ended.recv_timeout(END_PATIENCE);
    }
}

/// Sends spans as they come. Once it is `over`, sends what there is, and ends; null only wakes it.
fn send_all(spans: &Receiver<Value>, over: &AtomicBool, host: &str, path: &str, service: &str) {
    let (mut batch, mut due, mut ended) = (Vec::new(), Instant::now() + PAUSE, false);
    while !ended {
        match spans.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(Value::Null) => {}
            Ok(span) => batch.push(span),
            Err(RecvTimeoutError::Timeout) => ended = over.load(Ordering::Relaxed),
            Err(RecvTimeoutError::Disconnected) => ended = true,
        }
        if over.load(Ordering::Relaxed) {
            batch.extend(spans.try_iter().filter(|span| !span.is_null()));
            ended = true;
        }
        if ended || batch.len() >= BATCH_MAX || Instant::now() >= due {
            let spans = std::mem::take(&mut batch);
            if !spans.is_empty()
                && let Err(error) = post(host, path, &body(service, &spans).to_string())
            {
                tracing::debug!(error = %error, host, "spans were not taken");
            }
            due = Instant::now() + PAUSE;
        }
    }
}

/// An `ExportTraceServiceRequest`.
fn body(service: &str, spans: &[Value]) -> Value {
    let resource = json!({ "attributes": [attribute("service.name", service)] });
    let scope = json!({ "name": "unseen", "version": env!("CARGO_PKG_VERSION") });
    json!({ "resourceSpans": [{ "resource": resource, "scopeSpans": [{ "scope": scope, "spans": spans }] }] })
}

fn attribute(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Tries the addresses of a host one after the other.
fn connect(host: &str) -> std::io::Result<TcpStream> {
    let mut failure = std::io::Error::other("the name has no address");
    for address in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn post(host: &str, path: &str, body: &str) -> std::io::Result<()> {
    let mut stream = connect(host)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    let mut status = [0; 12];
    stream.read_exact(&mut status)?;
    let taken = status.starts_with(b"HTTP/1.1 2");
    if taken { Ok(()) } else { Err(std::io::Error::other(String::from_utf8_lossy(&status).into_owned())) }
}

/// A span that is under way.
struct Begun {
    at: SystemTime,
    trace: u128,
    attributes: Fields,
}

/// Its fields.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }
}

impl<S: Subscriber + for<'span> LookupSpan<'span>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let at = SystemTime::now();
        let parent = span.parent().and_then(|parent| parent.extensions().get::<Begun>().map(|begun| begun.trace));
        let own = || xxh3_128(format!("{} {} {:?}", std::process::id(), id.into_u64(), at).as_bytes());
        let mut begun = Begun { at, trace: parent.unwrap_or_else(own), attributes: Fields::default() };
        attributes.record(&mut begun.attributes);
        span.extensions_mut().insert(begun);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let extensions = span.extensions();
        let Some(begun) = extensions.get::<Begun>() else { return };
        let nanos = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string();
        let name = |id: u64, trace: u128| format!("{:016x}", id ^ (trace >> 64) as u64);
        let fields = begun.attributes.0.iter().map(|(key, value)| attribute(key, value.as_str().unwrap_or_default()));
        let span = json!({
            "traceId": format!("{:032x}", begun.trace),
            "spanId": name(id.into_u64(), begun.trace),
            "parentSpanId": span.parent().map_or_else(String::new, |parent| name(parent.id().into_u64(), begun.trace)),
            "name": span.name(),
            "kind": 1,
            "startTimeUnixNano": nanos(begun.at),
            "endTimeUnixNano": nanos(SystemTime::now()),
            "attributes": fields.collect::<Vec<_>>(),
        });
        // A full queue is the collector's fault, and nobody waits for it.
        let _ = self.0.try_send(span);
    }
}
