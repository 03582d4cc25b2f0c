//! What a deployment needs, as text for a terminal of 80 columns.

use super::Scale;
use super::costs::{self, Basis, UnitCost};
use crate::plan::kinds::{float, many};
use crate::plan::text::{columns, count, duration, percent, size};
use std::fmt::Write as _;

type Rows = Vec<Vec<String>>;

impl Scale {
    /// What was asked, what it needs, and what breaks first.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.asked();
        for table in [self.members(), self.of_brokers(), self.times()] {
            text += &(columns(&table, true) + "\n");
        }
        text += &(columns(&self.broken(), true) + "\n");
        text + &self.first() + &self.unknown()
    }

    fn asked(&self) -> String {
        let ask = &self.ask;
        let mut text = format!(
            "{} records/s of {} bytes, {} % of them repeats: {} new ones a second\n",
            count(ask.records_per_second),
            count(ask.record_bytes),
            percent(ask.repeats),
            number(self.load.unseen_per_second)
        );
        let window = ask.window_ms.map_or_else(|| "a window".to_owned(), |window| format!("a window of {}", duration(window)));
        _ = writeln!(text, "{} keys in {window}, kind {}", count(ask.keys), ask.kind);
        let members = format!("{} of {} and {}", many(ask.members, "member"), many(ask.workers, "worker"), many(ask.cores, "core"));
        _ = writeln!(text, "{}, {members}", many(ask.partitions, "partition"));
        let commit = format!("a commit each {}", duration(ask.commit_interval_ms));
        _ = writeln!(text, "{}, {}, {commit}", many(ask.brokers, "broker"), many(ask.replication, "replica"));
        _ = writeln!(text, "bytes on the wire: {} of a record's\n", ask.compression);
        if self.load.idle_workers > 0.0 {
            _ = writeln!(text, "! {} worker threads have no partition\n", number(self.load.idle_workers));
        }
        text
    }

    fn members(&self) -> Rows {
        let (need, members) = (&self.processor, float(self.ask.members));
        let mut rows = head(["members", "one", "all", "known"]);
        let mut row = |name: &str, one: String, all: String, costs: &[&UnitCost]| rows.push(row(name, one, all, costs));
        row(
            "busy cores",
            number(need.member_cores),
            number(need.members_cores),
            &[&costs::AWAKE, &costs::READ, &costs::COMMIT, &costs::CHECKPOINT_BYTE],
        );
        row("  to be awake", String::new(), number(need.awake_cores), &[&costs::AWAKE, &costs::AWAKE_PARTITION]);
        let of_kind = if self.is_exact() { &costs::EXACT } else { &costs::TENFOLD };
        row("  by record", String::new(), number(need.records_cores), &[&costs::READ, &costs::WRITTEN, of_kind]);
        row("  by commit", String::new(), number(need.commits_cores), &[&costs::COMMIT, &costs::CHECKPOINT_BYTE]);
        let memory = &self.memory;
        row("memory, brokers keep up", size(memory.member_bytes), String::new(), &[&costs::PROCESS, &costs::BUSY, &costs::WATCHED]);
        row("  at most", size(memory.member_most_bytes), String::new(), &[&costs::WORKER_MOST, &costs::WATCHED]);
        row("  at most, one member lost", size(memory.member_most_one_lost_bytes), String::new(), &[&costs::WORKER_MOST, &costs::WATCHED]);
        row("  a partition", size(memory.partition_bytes), String::new(), &[&costs::PARTITION, &costs::WATCHED]);
        row("  of which its filter", size(memory.filter_bytes), String::new(), &[]);
        row("disk", size(self.disk.member_bytes), String::new(), &[&costs::WATCHED_STORED]);
        row("disk written a second", size(self.disk.member_write_bytes), String::new(), &[&costs::WATCHED_STORED]);
        let network = &self.network;
        let mut flow = |name: &str, bytes: u64, costs: &[&UnitCost]| {
            row(name, size(super::whole(float(bytes) / members)), size(bytes), costs);
        };
        flow("read a second", network.in_bytes, &[&costs::RECORD]);
        flow("written a second, output", network.out_bytes, &[&costs::RECORD, &costs::BATCH]);
        flow("  changelog", network.changelog_bytes, &[&costs::CHANGELOG_RECORD]);
        flow("  of which no keys", network.changelog_overhead_bytes, &[&costs::CHANGELOG_RECORD]);
        rows
    }

    fn of_brokers(&self) -> Rows {
        let (need, brokers) = (&self.brokers, float(self.ask.brokers));
        let mut rows = head(["brokers", "one", "all", "known"]);
        let mut row = |name: &str, one: String, all: String, costs: &[&UnitCost]| rows.push(row(name, one, all, costs));
        let share = |all: f64| number(all / brokers);
        let records = self.processor.broker_records_cores;
        row("busy cores, by record", share(records), number(records), &[&costs::BROKER_RECORD]);
        let commits = self.processor.broker_commits_cores;
        let cell = |value: Option<String>| value.unwrap_or_else(|| "?".to_owned());
        row("  by commit", cell(commits.map(share)), cell(commits.map(number)), &[&costs::BROKER_COMMIT]);
        row("replicas of partitions", number(need.replicas_per_broker), number(need.replicas), &[]);
        row("connections", number(need.connections_per_broker), number(need.connections_per_broker * brokers), &[]);
        row("transactions a second", share(need.transactions), number(need.transactions), &[&costs::COMMIT_TIME]);
        row("  markers that end them", share(need.markers), number(need.markers), &[&costs::COMMIT_TIME]);
        row("  their requests, at least", share(need.transaction_requests), number(need.transaction_requests), &[&costs::COMMIT_TIME]);
        // One partition of __consumer_offsets has all offsets of a group.
        row("  offsets, all at one broker", number(need.offsets), number(need.offsets), &[&costs::COMMIT_TIME]);
        row(
            "requests with records, at most",
            share(need.produce_requests_most),
            number(need.produce_requests_most),
            &[&costs::COMMIT_TIME],
        );
        row("records of the changelog", share(need.changelog_records), number(need.changelog_records), &[&costs::COMMIT_TIME]);
        let held = self.disk.changelog_bytes;
        let one = held.map(|bytes| size(super::whole(float(bytes) / brokers)));
        row("disk, changelog", cell(one), cell(held.map(size)), &[&costs::CHANGELOG_RECORD]);
        let replication = self.network.replication_bytes;
        row("copied a second", size(super::whole(float(replication) / brokers)), size(replication), &[&costs::CHANGELOG_RECORD]);
        rows
    }

    fn times(&self) -> Rows {
        let time = &self.time;
        let mut rows = vec![["times", "", "known"].map(str::to_owned).to_vec()];
        let mut row = |name: &str, cell: String, costs: &[&UnitCost]| rows.push(vec![name.to_owned(), cell, known(costs)]);
        let seconds = |value: Option<f64>| value.map_or_else(|| "no changelog".to_owned(), |value| number(value) + " s");
        row("half of the records visible", number(time.visible_half_ms) + " ms", &[&costs::HALF, &costs::COMMIT_TIME]);
        row("99 % of them", number(time.visible_99_ms) + " ms", &[&costs::MOST, &costs::COMMIT_TIME]);
        row("from checkpoint to checkpoint", seconds(Some(time.checkpoint_seconds)), &[&costs::WATCHED_STORED]);
        row("a partition, from its checkpoint", seconds(Some(time.load_partition_seconds)), &[&costs::LOAD_KEYS]);
        let rebuild = [&costs::REBUILD_KEYS, &costs::REBUILD_RECORD];
        row("a partition, from its changelog", seconds(time.rebuild_partition_seconds), &rebuild);
        row("a killed member's go on after", seconds(time.lost_member_seconds), &rebuild);
        rows
    }

    fn broken(&self) -> Rows {
        let mut rows = head(["limit", "used", "breaks at", "known"]);
        for limit in &self.limits {
            let at = limit.breaks_at.map_or_else(|| "no number".to_owned(), |at| format!("{} {}", number(at), limit.of));
            let used = if limit.used < 0.001 { "< 0.1 %".to_owned() } else { format!("{:.1} %", limit.used * 100.0) };
            rows.push(vec![limit.name.to_owned(), used, at, word(limit.basis).to_owned()]);
        }
        rows
    }

    fn is_exact(&self) -> bool {
        self.ask.filter_partition_disk_bytes > 0
    }

    /// Costs that are in no sum.
    fn unknown(&self) -> String {
        let is_asked = |cost: &&UnitCost| cost.basis == Basis::Unknown && (self.is_exact() || cost.name != costs::EXACT.name);
        let unknown: Vec<_> = costs::ALL.into_iter().filter(is_asked).collect();
        let mut text = if unknown.is_empty() { "" } else { "not known, so left out of all of this:\n" }.to_owned();
        for cost in unknown {
            _ = writeln!(text, "  {}", cost.unit);
        }
        text
    }

    fn first(&self) -> String {
        let Some(first) = self.limits.first() else { return String::new() };
        let is_past = first.used >= 1.0;
        let verb = if is_past { "is past" } else { "breaks first" };
        let at = first.breaks_at.map_or_else(String::new, |at| format!(", at {} {}", number(at), first.of));
        format!("{} {verb}{at}:\n{}\n\n", first.name, first.then)
    }
}

fn head(names: [&str; 4]) -> Rows {
    vec![names.map(str::to_owned).to_vec()]
}

fn row(name: &str, one: String, all: String, costs: &[&UnitCost]) -> Vec<String> {
    vec![name.to_owned(), one, all, known(costs)]
}

/// How a number is known that is made of these.
fn known(made_of: &[&UnitCost]) -> String {
    let bases = || made_of.iter().map(|cost| cost.basis);
    let worst = bases().filter(|basis| *basis != Basis::Unknown).max();
    match (worst, bases().any(|basis| basis == Basis::Unknown)) {
        (None, true) => "not known".to_owned(),
        (None, false) => "formula".to_owned(),
        (Some(worst), true) => format!("{}, at least", word(worst)),
        (Some(worst), false) => word(worst).to_owned(),
    }
}

const fn word(basis: Basis) -> &'static str {
    match basis {
        Basis::Measured => "measured",
        Basis::Advised => "advised",
        Basis::Reckoned => "reckoned",
        Basis::Unknown => "not known",
    }
}

/// A number with three digits or more: thousands apart, and large ones in millions and above.
fn number(value: f64) -> String {
    let units = [(1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e7, 1e6, "M")];
    if let Some((_, scale, unit)) = units.into_iter().find(|(least, ..)| value >= *least) {
        let scaled = value / scale;
        return if scaled < 10.0 { format!("{scaled:.2}{unit}") } else { format!("{scaled:.1}{unit}") };
    }
    match value {
        _ if value < 0.001 => "0".to_owned(),
        _ if value < 0.1 => format!("{value:.3}"),
        _ if value < 10.0 && value.fract() > 0.0 => format!("{value:.2}"),
        _ if value < 100.0 && value.fract() > 0.0 => format!("{value:.1}"),
        _ => {
            let digits = format!("{value:.0}");
            let is_thousand = |place: usize| place > 0 && (digits.len() - place).is_multiple_of(3);
            digits.chars().enumerate().fold(String::new(), |text, (place, digit)| {
                let comma = if is_thousand(place) { "," } else { "" };
                format!("{text}{comma}{digit}")
            })
        }
    }
}
