//! Exports spans of batches, commits, checkpoints, and restores to an OpenTelemetry collector.
//!
//! The export is on if `OTEL_EXPORTER_OTLP_ENDPOINT` is the HTTP address of a collector, such as `http://localhost:4318`, or
//! `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is an address with a path, such as `http://localhost:4318/v1/traces`. If both variables are set,
//! the second one applies. This module has its own implementation of OTLP 1.0 (JSON over HTTP/1.1 without TLS), because the OpenTelemetry
//! libraries would add eighty packages. The export never blocks a worker: if the collector is slow, spans are dropped.

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

/// Maximum number of queued spans. Further spans are dropped.
const SPANS_MAX: usize = 2048;
const BATCH_MAX: usize = 512;
/// Time between requests. A full batch is sent earlier.
const SEND_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout for connecting to the collector, and for each read and write.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for the last spans when the process exits.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Tracing layer that queues spans for the export thread.
pub struct SpanExporter(SyncSender<Value>);

/// Flushes the queued spans on drop and waits for at most `SHUTDOWN_TIMEOUT`.
pub struct ExportGuard {
    stop: Arc<AtomicBool>,
    wake: SyncSender<Value>,
    ended: Receiver<()>,
}

/// Starts the export thread and returns the tracing layer, or returns `None` if no collector is configured.
pub fn layer() -> anyhow::Result<Option<(SpanExporter, ExportGuard)>> {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (name, url) = match (set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), set("OTEL_EXPORTER_OTLP_ENDPOINT")) {
        (Some(url), _) => ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url),
        (None, Some(url)) => ("OTEL_EXPORTER_OTLP_ENDPOINT", url.trim_end_matches('/').to_owned() + "/v1/traces"),
        (None, None) => return Ok(None),
    };
    // The error does not show the address, because it may contain a password.
    let Some((host, path)) = url.strip_prefix("http://").and_then(|rest| rest.split_once('/')) else {
        anyhow::bail!(
            "{name}: expected an address without TLS, such as \"http://localhost:4318\"; OTEL_EXPORTER_OTLP_TRACES_ENDPOINT also needs the path, such as \"http://localhost:4318/v1/traces\""
        );
    };
    anyhow::ensure!(!host.contains('@'), "{name}: a user and password in the address are not supported; remove them");
    let (host, path) = (host.to_owned(), format!("/{path}"));
    let (sender, spans) = sync_channel(SPANS_MAX);
    let service = set("OTEL_SERVICE_NAME").unwrap_or_else(|| "unseen".to_owned());
    let stop = Arc::new(AtomicBool::new(false));
    let (end, ended) = sync_channel(0);
    let stopped = Arc::clone(&stop);
    std::thread::spawn(move || {
        send_all(&spans, &stopped, &host, &path, &service);
        drop(end);
    });
    Ok(Some((SpanExporter(sender.clone()), ExportGuard { stop, wake: sender, ended })))
}

impl Drop for ExportGuard {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // If the queue is full, the thread is awake already.
        let _ = self.wake.try_send(Value::Null);
        // When the thread ends, it drops its sender, and `recv_timeout` returns. The wait has a timeout, because an unreachable collector
        // may block the thread for longer than `SHUTDOWN_TIMEOUT`.
        let _ = self.ended.recv_timeout(SHUTDOWN_TIMEOUT);
    }
}

/// Sends spans in batches. Once `stop` is set, sends the queued spans and returns. A null value is not a span and only wakes the thread.
fn send_all(spans: &Receiver<Value>, stop: &AtomicBool, host: &str, path: &str, service: &str) {
    let (mut batch, mut due, mut ended, mut is_failing) = (Vec::new(), Instant::now() + SEND_INTERVAL, false, false);
    while !ended {
        match spans.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(Value::Null) => {}
            Ok(span) => batch.push(span),
            Err(RecvTimeoutError::Timeout) => ended = stop.load(Ordering::Relaxed),
            Err(RecvTimeoutError::Disconnected) => ended = true,
        }
        if stop.load(Ordering::Relaxed) {
            batch.extend(spans.try_iter().filter(|span| !span.is_null()));
            ended = true;
        }
        if ended || batch.len() >= BATCH_MAX || Instant::now() >= due {
            let spans = std::mem::take(&mut batch);
            if !spans.is_empty() {
                let sent = post(host, path, &body(service, &spans).to_string());
                if let Err(error) = &sent
                    && !is_failing
                {
                    tracing::warn!(error = %error, host, "cannot send spans to the OpenTelemetry collector; dropping spans until it accepts them");
                }
                is_failing = sent.is_err();
            }
            due = Instant::now() + SEND_INTERVAL;
        }
    }
}

/// Returns an `ExportTraceServiceRequest`.
fn body(service: &str, spans: &[Value]) -> Value {
    let resource = json!({ "attributes": [attribute("service.name", service)] });
    let scope = json!({ "name": "unseen", "version": env!("CARGO_PKG_VERSION") });
    json!({ "resourceSpans": [{ "resource": resource, "scopeSpans": [{ "scope": scope, "spans": spans }] }] })
}

fn attribute(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Connects to the first address of the host that accepts the connection.
fn connect(host: &str) -> std::io::Result<TcpStream> {
    let mut failure = std::io::Error::other("the host name has no address");
    for address in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn post(host: &str, path: &str, body: &str) -> std::io::Result<()> {
    let mut stream = connect(host)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    let mut status = [0; 12];
    stream.read_exact(&mut status)?;
    let accepted = status.starts_with(b"HTTP/1.1 2");
    if accepted { Ok(()) } else { Err(std::io::Error::other(String::from_utf8_lossy(&status).into_owned())) }
}

struct OpenSpan {
    at: SystemTime,
    trace: u128,
    attributes: Fields,
}

#[derive(Default)]
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }
}

impl<S: Subscriber + for<'span> LookupSpan<'span>> Layer<S> for SpanExporter {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let at = SystemTime::now();
        let parent = span.parent().and_then(|parent| parent.extensions().get::<OpenSpan>().map(|open| open.trace));
        let own = || xxh3_128(format!("{} {} {:?}", std::process::id(), id.into_u64(), at).as_bytes());
        let mut open = OpenSpan { at, trace: parent.unwrap_or_else(own), attributes: Fields::default() };
        attributes.record(&mut open.attributes);
        span.extensions_mut().insert(open);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let extensions = span.extensions();
        let Some(open) = extensions.get::<OpenSpan>() else { return };
        let nanos = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string();
        let name = |id: u64, trace: u128| format!("{:016x}", id ^ (trace >> 64) as u64);
        let fields = open.attributes.0.iter().map(|(key, value)| attribute(key, value.as_str().unwrap_or_default()));
        let span = json!({
            "traceId": format!("{:032x}", open.trace),
            "spanId": name(id.into_u64(), open.trace),
            "parentSpanId": span.parent().map_or_else(String::new, |parent| name(parent.id().into_u64(), open.trace)),
            "name": span.name(),
            "kind": 1,
            "startTimeUnixNano": nanos(open.at),
            "endTimeUnixNano": nanos(SystemTime::now()),
            "attributes": fields.collect::<Vec<_>>(),
        });
        let _ = self.0.try_send(span);
    }
}
