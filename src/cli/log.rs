//! Logging: log lines on stderr, events for the dashboard, and optional spans to an OpenTelemetry collector.

use super::otlp::{self, ExportGuard};
use crate::config::{Log, LogFormat};
use crate::http::Events;
use anyhow::Context as _;
use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::{EnvFilter, Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};

/// Set to true by [`start`] if log lines are JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

pub fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// Starts logging. With `log.format = "auto"`, log lines are text if stderr is a terminal, and JSON otherwise. If an OpenTelemetry
/// collector is configured, spans are exported until the returned guard is dropped.
pub fn start(log: &Log, events: Events) -> anyhow::Result<Option<ExportGuard>> {
    let filter = EnvFilter::try_new(&log.level).with_context(|| format!("log.level: {:?} is not a level such as \"info\"", log.level))?;
    let terminal = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(terminal);
    let is_json = log.format == LogFormat::Json || (log.format == LogFormat::Auto && !terminal);
    let lines = if is_json { lines.json().flatten_event(true).boxed() } else { lines.boxed() };
    let (spans, guard) = otlp::layer()?.unzip();
    let spans = spans.map(|spans| spans.with_filter(Targets::new().with_target("unseen", LevelFilter::DEBUG)));
    tracing_subscriber::registry().with(lines.with_filter(filter)).with(events).with(spans).init();
    IS_JSON.store(is_json, Ordering::Relaxed);
    Ok(guard)
}
