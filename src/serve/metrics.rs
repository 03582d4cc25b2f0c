//! The server's Prometheus metrics.
//!
//! Defines the names of the metrics. A test compares them with the list in `docs/reference/metrics.md`.

use super::Server;
use super::stats::BUCKETS;
use crate::follower::SpaceReport;
use crate::http::{Encoder, Labels, float, process, seconds};
use crate::runtime;
use crate::stats::get;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt::Error;

pub(super) use crate::http::CONTENT_TYPE;

pub(super) fn render(server: &Server) -> String {
    let counts = &server.stats;
    crate::http::render(Metrics {
        spaces: server.follower.spaces().iter().map(|space| (space.name().to_owned(), space.report())).collect(),
        now_ms: runtime::wall_clock(),
        connections: get(&counts.connections),
        accepted: get(&counts.accepted),
        refused: [
            ("too_many", get(&counts.rejected)),
            ("wrong_password", get(&counts.wrong_passwords)),
            ("slow", get(&counts.dropped)),
            ("tls", get(&counts.unencrypted)),
        ],
        commands: get(&counts.commands),
        writes: [("acknowledged", get(&counts.written)), ("failed", get(&counts.unwritten))],
        answer_time: counts.answer_time.read(),
        started_ms: runtime::millis(server.started_at),
    })
}

#[derive(Debug)]
struct Metrics {
    spaces: Vec<(String, SpaceReport)>,
    now_ms: i64,
    connections: u64,
    accepted: u64,
    refused: [(&'static str, u64); 4],
    commands: u64,
    writes: [(&'static str, u64); 2],
    answer_time: (Vec<u64>, f64),
    started_ms: i64,
}

impl Metrics {
    fn each<T>(&self, value: impl Fn(&SpaceReport) -> T) -> impl Iterator<Item = (Labels<1>, T)> {
        self.spaces.iter().map(move |(name, report)| ([("space", name.clone())], value(report)))
    }
}

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut encoder = Encoder::new(encoder);
        let answers = self.spaces.iter().flat_map(|(name, report)| {
            ["seen", "unseen", "unknown"]
                .into_iter()
                .zip(report.answers)
                .map(move |(answer, count)| ([("space", name.clone()), ("answer", answer.to_owned())], count))
        });
        encoder.counters("unseen_serve_lookups_total", "Looked-up keys, by answer", answers)?;
        encoder.counter("unseen_serve_commands_total", "Commands of Redis clients", self.commands)?;
        let writes = self.writes.map(|(result, count)| ([("result", result.to_owned())], count));
        encoder.counters("unseen_serve_writes_total", "Records written to input topics for clients, by result", writes)?;
        encoder.gauge("unseen_serve_connections", "Open connections", Some(float(self.connections)))?;
        encoder.counter("unseen_serve_accepted_connections_total", "Accepted connections", self.accepted)?;
        let refused = self.refused.map(|(reason, count)| ([("reason", reason.to_owned())], count));
        encoder.counters("unseen_serve_refused_total", "Rejected connections and passwords, by reason", refused)?;
        let (counts, sum) = &self.answer_time;
        let buckets: Vec<_> = BUCKETS.into_iter().chain([f64::MAX]).zip(counts.iter().copied()).collect();
        let help = "Time to answer the commands that arrived in one batch";
        encoder.buckets("unseen_serve_answer_duration_seconds", help, *sum, &buckets)?;
        #[expect(clippy::cast_precision_loss, reason = "only displayed")]
        let count = |number: usize| number as f64;
        encoder.gauges("unseen_serve_partitions", "Followed partitions", self.each(|report| count(report.partitions)))?;
        encoder.gauges(
            "unseen_serve_ready_partitions",
            "Partitions that are ready for lookups",
            self.each(|report| count(report.ready)),
        )?;
        let staleness = self
            .spaces
            .iter()
            .filter_map(|(name, report)| Some(([("space", name.clone())], seconds(self.now_ms.saturating_sub(report.as_of?).max(0)))));
        encoder.gauges("unseen_serve_staleness_seconds", "Time since the server last knew all commits", staleness)?;
        encoder.gauges("unseen_serve_keys", "Remembered keys", self.each(|report| float(report.keys)))?;
        encoder.gauges("unseen_serve_capacity_keys", "Keys that the filters are sized for", self.each(|report| float(report.capacity)))?;
        encoder.gauges("unseen_serve_memory_bytes", "Memory of the filters", self.each(|report| float(report.bytes)))?;
        encoder.gauges(
            "unseen_serve_estimated_fpr_ratio",
            "Computed share of unseen keys that are reported as seen",
            self.each(|report| report.rate),
        )?;
        encoder.counters(
            "unseen_serve_applied_keys_total",
            "Key changes applied from the changelog",
            self.each(|report| report.applied),
        )?;
        encoder.counters(
            "unseen_serve_restarts_total",
            "Number of times that a partition was loaded again",
            self.each(|report| report.restarts),
        )?;
        encoder.gauges("unseen_build_info", "Always 1", [([("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0)])?;
        process(&mut encoder, self.started_ms)
    }
}
