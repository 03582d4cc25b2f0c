//! The server as Prometheus reads it.
//!
//! Owns the names of these metrics: `docs/metrics.md` lists them, and a test holds one against the other.

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

/// All metrics, in the `OpenMetrics` text format.
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
        encoder.counters("unseen_serve_lookups_total", "Keys that were asked for, by answer", answers)?;
        encoder.counter("unseen_serve_commands_total", "Commands of clients of Redis", self.commands)?;
        let writes = self.writes.map(|(result, count)| ([("result", result.to_owned())], count));
        encoder.counters("unseen_serve_writes_total", "Records that clients had written to input topics, by result", writes)?;
        encoder.gauge("unseen_serve_connections", "Connections that are open", Some(float(self.connections)))?;
        encoder.counter("unseen_serve_accepted_connections_total", "Connections that were accepted", self.accepted)?;
        let refused = self.refused.map(|(reason, count)| ([("reason", reason.to_owned())], count));
        encoder.counters("unseen_serve_refused_total", "Connections and passwords that were refused, by reason", refused)?;
        let (counts, sum) = &self.answer_time;
        let buckets: Vec<_> = BUCKETS.into_iter().chain([f64::MAX]).zip(counts.iter().copied()).collect();
        let help = "Time to answer the commands that came together in one piece";
        encoder.buckets("unseen_serve_answer_duration_seconds", help, *sum, &buckets)?;
        #[expect(clippy::cast_precision_loss, reason = "numbers that are shown")]
        let count = |number: usize| number as f64;
        encoder.gauges("unseen_serve_partitions", "Partitions that are followed", self.each(|report| count(report.partitions)))?;
        encoder.gauges("unseen_serve_ready_partitions", "Partitions that can be asked", self.each(|report| count(report.ready)))?;
        let staleness = self
            .spaces
            .iter()
            .filter_map(|(name, report)| Some(([("space", name.clone())], seconds(self.now_ms.saturating_sub(report.as_of?).max(0)))));
        encoder.gauges("unseen_serve_staleness_seconds", "Since when there may be commits that are not known", staleness)?;
        encoder.gauges("unseen_serve_keys", "Keys remembered", self.each(|report| float(report.keys)))?;
        encoder.gauges("unseen_serve_capacity_keys", "Keys that the filters are made for", self.each(|report| float(report.capacity)))?;
        encoder.gauges("unseen_serve_memory_bytes", "Memory of the filters", self.each(|report| float(report.bytes)))?;
        encoder.gauges(
            "unseen_serve_estimated_fpr_ratio",
            "Share of unseen keys that are called seen, by formula",
            self.each(|report| report.rate),
        )?;
        encoder.counters(
            "unseen_serve_applied_keys_total",
            "Keys that were applied from the changelog",
            self.each(|report| report.applied),
        )?;
        encoder.counters("unseen_serve_restarts_total", "Times that a partition was loaded anew", self.each(|report| report.restarts))?;
        encoder.gauges("unseen_build_info", "Always 1", [([("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0)])?;
        process(&mut encoder, self.started_ms)
    }
}
