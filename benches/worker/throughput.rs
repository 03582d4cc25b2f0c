//! Measures throughput: the cost of Kafka itself, the worker, and other systems, alternating over the same records.

use crate::Options;
use crate::broker::{Broker, Topic};
use crate::contender::{Allocator, Contender, DUPLICATES, Unseen, peers};
use crate::picture::{self, Bar, Colour};
use crate::records::{Load, Stream};
use crate::report::{named, publish};
use crate::run::{Cost, run};
use crate::table::{Table, median, megabytes, ratio, thousands};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Default number of records, enough for several seconds of work. The measurement starts after the first quarter of the output. At that
/// time, librdkafka has already fetched records of the measured part, so the measured part must be much longer than librdkafka's queue.
pub const RECORDS: usize = 6_000_000;
const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(1);
const DEFAULT: Duration = Duration::from_millis(200);

pub struct Row {
    pub name: &'static str,
    pub contender: Contender,
    /// Percentage of duplicates in the input.
    pub repeats: usize,
    /// Names of the two rows that measure the upper bound of this row: with the worker's allocator, and with the system's.
    ceilings: Option<Ceilings>,
    /// True if the README's picture shows this row.
    pictured: bool,
}

type Ceilings = [&'static str; 2];
const CONSUME: Ceilings = ["consume only, jemalloc", "consume only, glibc"];
const HALF_SHORT: Ceilings = ["half forwarded, jemalloc, commit 100 ms", "half forwarded, glibc, commit 100 ms"];
const HALF_LONG: Ceilings = ["half forwarded, jemalloc, commit 1 s", "half forwarded, glibc, commit 1 s"];
const ALL_LONG: Ceilings = ["all forwarded, jemalloc, commit 1 s", "all forwarded, glibc, commit 1 s"];

/// Returns all rows. `binary` is the worker's executable.
pub fn rows(binary: &Path) -> Vec<Row> {
    let row = |name, contender, repeats, ceilings| Row { name, contender, repeats, ceilings, pictured: false };
    let pictured = |name, contender, ceilings| Row { pictured: true, ..row(name, contender, 50, ceilings) };
    let (jemalloc, glibc) = (Allocator::Jemalloc, Allocator::Glibc);
    let pass_on = |allocator, every, commit| Contender::PassOn { allocator, every, commit, callgrind: None };
    let usual = |commit| Unseen::new(binary.to_owned(), commit);
    let unseen = |commit, change: fn(&mut Unseen)| {
        let mut unseen = usual(commit);
        change(&mut unseen);
        Contender::Unseen(unseen)
    };
    let record_key: fn(&mut Unseen) = |unseen| unseen.key = r#"{ record = "key" }"#;
    // A row that measures an upper bound is next to the rows that are compared with it, so they run at about the same time.
    vec![
        row(CONSUME[0], Contender::Consume { allocator: jemalloc }, 95, None),
        row(CONSUME[1], Contender::Consume { allocator: glibc }, 95, None),
        row("unseen, 95 % duplicates, commit 1 s", unseen(LONG, |_| ()), 95, Some(CONSUME)),
        row(ALL_LONG[0], pass_on(jemalloc, 1, LONG), 0, None),
        row(ALL_LONG[1], pass_on(glibc, 1, LONG), 0, None),
        row("unseen, no duplicates, commit 1 s", unseen(LONG, |_| ()), 0, Some(ALL_LONG)),
        pictured(HALF_SHORT[0], pass_on(jemalloc, 2, SHORT), None),
        pictured(HALF_SHORT[1], pass_on(glibc, 2, SHORT), None),
        pictured("unseen, commit 100 ms", unseen(SHORT, |_| ()), Some(HALF_SHORT)),
        row("unseen, record key, commit 100 ms", unseen(SHORT, record_key), 50, Some(HALF_SHORT)),
        row("unseen, at_least_once, commit 100 ms", unseen(SHORT, |unseen| unseen.delivery = "at_least_once"), 50, Some(HALF_SHORT)),
        row("unseen, 2 workers, commit 100 ms", unseen(SHORT, |unseen| unseen.workers = 2), 50, Some(HALF_SHORT)),
        row("unseen, 4 workers, commit 100 ms", unseen(SHORT, |unseen| unseen.workers = 4), 50, Some(HALF_SHORT)),
        row("unseen, no compression, commit 100 ms", unseen(SHORT, |unseen| unseen.compression = "none"), 50, None),
        row("unseen, zstd, commit 100 ms", unseen(SHORT, |unseen| unseen.compression = "zstd"), 50, None),
        row("unseen, commit 200 ms (default)", unseen(DEFAULT, |_| ()), 50, None),
        pictured("Kafka Streams, RocksDB, commit 100 ms", Contender::KafkaStreams { commit: SHORT }, Some(HALF_SHORT)),
        pictured(HALF_LONG[0], pass_on(jemalloc, 2, LONG), None),
        pictured(HALF_LONG[1], pass_on(glibc, 2, LONG), None),
        pictured("unseen, commit 1 s", unseen(LONG, |_| ()), Some(HALF_LONG)),
        row("unseen, 2 workers, commit 1 s", unseen(LONG, |unseen| unseen.workers = 2), 50, Some(HALF_LONG)),
        row("unseen, record key, commit 1 s", unseen(LONG, record_key), 50, Some(HALF_LONG)),
        row("unseen, confirm, commit 1 s", unseen(LONG, |unseen| unseen.confirm = true), 50, Some(HALF_LONG)),
        row("unseen, exact, commit 1 s", unseen(LONG, |unseen| unseen.kind = "exact"), 50, Some(HALF_LONG)),
        row("unseen, duplicates written, commit 1 s", unseen(LONG, |unseen| unseen.lines = DUPLICATES), 50, None),
        pictured("Kafka Streams, RocksDB, commit 1 s", Contender::KafkaStreams { commit: LONG }, Some(HALF_LONG)),
        pictured("Flink, RocksDB, checkpoint 1 s", Contender::Flink { commit: LONG }, Some(HALF_LONG)),
    ]
}

pub fn fill(broker: &Broker, rows: &[Row], load: Load, records: usize) -> Vec<(usize, Topic)> {
    let mut topics: Vec<(usize, Topic)> = Vec::new();
    for &Row { repeats, .. } in rows {
        if !topics.iter().any(|(other, _)| *other == repeats) {
            topics.push((repeats, broker.fill(Stream::usual(load, records, repeats))));
        }
    }
    topics
}

pub fn topic<'a>(topics: &'a [(usize, Topic)], row: &Row) -> &'a Topic {
    topics.iter().find_map(|(repeats, topic)| (*repeats == row.repeats).then_some(topic)).expect("a filled topic")
}

impl Row {
    /// Records per second after warm-up. For Kafka Streams and Flink, the rate over the whole run if that rate is higher.
    pub fn rate(&self, cost: &Cost) -> f64 {
        if self.contender.is_peer() { cost.settled.rate.max(cost.whole.rate) } else { cost.settled.rate }
    }

    /// CPU time per record after warm-up, in microseconds. For Kafka Streams and Flink, the CPU time over the whole run if it is lower.
    pub fn cpu(&self, cost: &Cost) -> f64 {
        if self.contender.is_peer() { cost.settled.cpu.min(cost.whole.cpu) } else { cost.settled.cpu }
    }

    /// Returns this row's rate and CPU time relative to each of its upper bounds, as text. Returns empty text for an upper bound that was
    /// not measured.
    fn of_ceilings(&self, own: &[Cost], rows: &[Self], costs: &[Vec<Cost>]) -> Vec<String> {
        let of = |name| {
            let (ceiling, its) = rows.iter().zip(costs).find(|(row, _)| row.name == name)?;
            let rate = ratio(own, its, |cost| self.rate(cost), |cost| ceiling.rate(cost));
            let cpu = ratio(own, its, |cost| self.cpu(cost), |cost| ceiling.cpu(cost));
            Some([format!("{rate:.3}"), format!("{cpu:.2}")])
        };
        let names = self.ceilings.map_or([None; 2], |names| names.map(Some));
        names.into_iter().flat_map(|name| name.and_then(of).unwrap_or_default()).collect()
    }
}

pub fn measure(options: &Options) {
    let mut rows = rows(&options.binary);
    rows.retain(|row| options.includes(row.name));
    if peers().is_none() {
        eprintln!("skipping Kafka Streams and Flink: they need a JDK and Maven");
        rows.retain(|row| !row.contender.is_peer());
    }
    assert!(!rows.is_empty(), "no contender has a name that starts with {}", options.only.join(" or "));
    let broker = Broker::start();
    let records = options.records.unwrap_or(RECORDS);
    let topics = fill(&broker, &rows, options.load, records);
    // Warm up the broker, because a cold broker is two to three times slower. JVM contenders do not run here, because each run starts a new
    // process, which a previous run cannot warm up.
    for row in rows.iter().filter(|row| row.pictured && !row.contender.is_peer()) {
        run(&broker, topic(&topics, row), &row.contender);
    }
    let mut costs: Vec<Vec<Cost>> = vec![Vec::new(); rows.len()];
    for round in 1..=options.rounds {
        for (row, costs) in rows.iter().zip(&mut costs) {
            let cost = run(&broker, topic(&topics, row), &row.contender);
            eprintln!("round {round}: {}: {} records/s, {:.2} us", row.name, thousands(row.rate(&cost)), row.cpu(&cost));
            costs.push(cost);
        }
    }
    let raw: Vec<Value> = rows.iter().zip(&costs).map(|(row, costs)| named(row.name, costs)).collect();
    let page = format!(
        "{}, unless the row names a different share; consume only reads 95 % duplicates. The median of {} rounds. Peers have two\n\
         threads. Raw calls use the named allocator. unseen uses jemalloc.\n\n{}",
        Stream::usual(options.load, records, 50),
        options.rounds,
        table(&rows, &costs)
    );
    publish(options, "throughput", &raw, &page, &[("throughput", picture(&rows, &costs))]);
}

fn table(rows: &[Row], costs: &[Vec<Cost>]) -> Table {
    let mut table = Table::new(&[
        "",
        "records/s",
        "µs CPU per record",
        "cores idle",
        "peak RSS",
        "state on disk",
        "written to disk",
        "output topic",
        "µs CPU of others",
        "rate / ceiling (jemalloc)",
        "CPU / ceiling (jemalloc)",
        "rate / ceiling (glibc)",
        "CPU / ceiling (glibc)",
    ]);
    for (row, costs_of_row) in rows.iter().zip(costs) {
        let middle = |of: &dyn Fn(&Cost) -> f64| median(costs_of_row.iter().map(of));
        let bytes = |of: fn(&Cost) -> u64| megabytes(middle(&|cost| of(cost) as f64));
        let mut cells = vec![
            row.name.to_owned(),
            thousands(middle(&|cost| row.rate(cost))),
            format!("{:.2}", middle(&|cost| row.cpu(cost))),
            format!("{:.0} %", 100.0 * middle(&|cost| cost.settled.idle)),
            bytes(|cost| cost.memory),
            bytes(|cost| cost.state),
            bytes(|cost| cost.written),
            bytes(|cost| cost.output_bytes),
            format!("{:.2}", middle(&|cost| cost.settled.others)),
        ];
        cells.extend(row.of_ceilings(costs_of_row, rows, costs));
        table.row(cells);
    }
    table
}

fn picture(rows: &[Row], costs: &[Vec<Cost>]) -> String {
    let bar = |(row, costs): (&Row, &Vec<Cost>)| Bar {
        name: row.name.to_owned(),
        colour: match row.contender {
            Contender::Unseen(_) => Colour::A,
            Contender::Consume { .. } | Contender::PassOn { .. } => Colour::B,
            Contender::KafkaStreams { .. } | Contender::Flink { .. } => Colour::C,
        },
        values: vec![median(costs.iter().map(|cost| row.rate(cost))), median(costs.iter().map(|cost| row.cpu(cost)))],
    };
    let bars: Vec<_> = rows.iter().zip(costs).filter(|(row, _)| row.pictured).map(bar).collect();
    picture::bars(&[("records per second", thousands), ("µs of CPU time per record", |cpu| format!("{cpu:.2}"))], &bars)
}
