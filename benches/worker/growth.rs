//! Growth: what more keys in the window, more partitions and larger records do to the worker; and what it costs while
//! nothing comes.

use crate::Options;
use crate::active::{self, ACTIVE};
use crate::broker::Broker;
use crate::contender::{Allocator, Contender, Unseen};
use crate::records::{Ids, Stream};
use crate::report::{named, publish};
use crate::run::{Cost, Run, run};
use crate::table::{Table, median, megabytes, ratio, thousands};
use crate::watch::Pace;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

const KEYS: [usize; 5] = [1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000];
const PARTITIONS: [i32; 4] = [1, 4, 16, 64];
/// Bytes of a record, and what part of the usual number of them is read.
const SIZES: [(usize, usize); 3] = [(100, 1), (1_000, 2), (10_000, 10)];
const IDLE_PARTITIONS: [i32; 2] = [4, 1000];
const RECORDS: usize = 2_000_000;
const COMMIT: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub struct Arguments {
    /// Most keys in the window: 100M take some five minutes and 10 GB of disk.
    #[arg(long, default_value = "100M", value_parser = crate::count)]
    keys: usize,
    /// How long idleness is measured.
    #[arg(long, default_value_t = 20)]
    idle_seconds: u64,
    /// How long each commit interval of active partitions is measured.
    #[arg(long, default_value_t = 30)]
    active_seconds: u64,
}

/// A table, and the figures that it was made of.
pub type Part = (String, Value);

pub fn measure(options: &Options, arguments: &Arguments) {
    let broker = Broker::start();
    let parts: [(&str, &dyn Fn() -> Part); 4] = [
        ("keys", &|| keys(&broker, options, arguments.keys)),
        ("partitions", &|| partitions(&broker, options)),
        ("sizes", &|| sizes(&broker, options)),
        ("idle", &|| idle(&broker, options, Duration::from_secs(arguments.idle_seconds))),
    ];
    // A cold broker is two to three times slower.
    let topic = broker.fill(Stream::usual(options.load, options.records.unwrap_or(RECORDS), 50));
    run(&broker, &topic, &worker(options, |_| ()));
    broker.delete(&topic.name);
    // A part is measured, too, where something in it is asked for.
    let is_asked_for = |part: &str| options.includes(part) || options.only.iter().any(|only| only.starts_with(part));
    let chosen = parts.into_iter().filter(|(name, _)| is_asked_for(name));
    let (pages, raw): (Vec<_>, serde_json::Map<_, _>) =
        chosen.map(|(name, part)| (name, part())).map(|(name, (page, raw))| (page, (name.to_owned(), raw))).unzip();
    if !raw.is_empty() {
        publish(options, "growth", &raw, &pages.join("\n"), &[]);
    }
    if is_asked_for(ACTIVE) {
        let (page, raw) = active::measure(&broker, options, Duration::from_secs(arguments.active_seconds));
        publish(options, ACTIVE, &raw, &page, &[]);
    }
}

fn worker(options: &Options, change: impl FnOnce(&mut Unseen)) -> Contender {
    let mut unseen = Unseen::new(options.binary.clone(), COMMIT);
    change(&mut unseen);
    Contender::Unseen(unseen)
}

/// Fills windows of several sizes, and then measures stretches in which every second record repeats any key of them.
fn keys(broker: &Broker, options: &Options, most: usize) -> Part {
    let mut table = Table::new(&["keys in the window", "records/s", "µs CPU a record", "peak RSS", "state on disk"]);
    let mut raw = Vec::new();
    for keys in KEYS.into_iter().filter(|&keys| keys <= most) {
        let stretch = options.records.unwrap_or(RECORDS);
        let stream = Stream {
            records: keys + options.rounds * stretch,
            lead: keys,
            repeats: 50,
            ids: Ids::Consecutive { reach: usize::MAX },
            bytes: 0,
            partitions: 4,
        };
        let topic = broker.fill(stream);
        let contender = worker(options, |unseen| {
            unseen.key = r#"{ record = "key" }"#;
            unseen.capacity = Some(stream.distinct());
        });
        let mut run = Run::start(broker, &topic, &contender);
        let samples = run.watch();
        // To each key that comes out belong two records.
        let at = |records: usize| (keys + records / 2) as u64;
        let of = |round| samples.between(at(round * stretch), at((round + 1) * stretch - stretch / 100), 2.0);
        let paces: Vec<Pace> = (0..options.rounds).map(of).collect();
        let cost = run.finish(&samples);
        broker.delete(&topic.name);
        let (rate, cpu) = (median(paces.iter().map(|pace| pace.rate)), median(paces.iter().map(|pace| pace.cpu)));
        let name = thousands(keys as f64);
        eprintln!("{name} keys: {} records/s, {cpu:.2} us", thousands(rate));
        raw.push(json!({ "name": name, "runs": paces, "memory": cost.memory, "state": cost.state }));
        table.row(vec![name, thousands(rate), format!("{cpu:.2}"), megabytes(cost.memory as f64), megabytes(cost.state as f64)]);
    }
    let page = format!(
        "## Keys in the window\n\nRecords of a key of 16 bytes and no value, in four partitions; the filter has room for all. Once the window is\n\
         full, half of the records repeat any key in it: the median of {} stretches of these.\n\n{table}",
        options.rounds
    );
    (page, raw.into())
}

fn partitions(broker: &Broker, options: &Options) -> Part {
    let records = options.records.unwrap_or(RECORDS);
    let streams = PARTITIONS.map(|partitions| (partitions.to_string(), Stream { partitions, ..Stream::usual(options.load, records, 50) }));
    compare("## Partitions\n\nRecords of 200 bytes, half of them repeats, one worker", "partitions", broker, options, &streams)
}

fn sizes(broker: &Broker, options: &Options) -> Part {
    let records = options.records.unwrap_or(RECORDS);
    let streams = SIZES.map(|(bytes, part)| (format!("{bytes} B"), Stream { bytes, ..Stream::usual(options.load, records / part, 50) }));
    compare("## Size of records\n\nFour partitions, half of the records repeats", "value", broker, options, &streams)
}

/// The worker and the ceiling over several streams, in turns.
fn compare(title: &str, what: &str, broker: &Broker, options: &Options, streams: &[(String, Stream)]) -> Part {
    let topics: Vec<_> = streams.iter().map(|(_, stream)| broker.fill(*stream)).collect();
    let contenders =
        [("", worker(options, |_| ())), (", the ceiling", Contender::PassOn { allocator: Allocator::Jemalloc, every: 2, commit: COMMIT })];
    let mut costs = vec![contenders.each_ref().map(|_| Vec::<Cost>::new()); topics.len()];
    for round in 1..=options.rounds {
        for ((topic, costs), (name, _)) in topics.iter().zip(&mut costs).zip(streams) {
            for ((whose, contender), costs) in contenders.iter().zip(costs) {
                let cost = run(broker, topic, contender);
                let Pace { rate, cpu, .. } = cost.settled;
                eprintln!("round {round}: {what} {name}{whose}: {} records/s, {cpu:.2} us", thousands(rate));
                costs.push(cost);
            }
        }
    }
    for topic in &topics {
        broker.delete(&topic.name);
    }
    let mut table = Table::new(&[what, "records/s", "MB/s", "µs CPU a record", "peak RSS", "of the ceiling's rate", "of its CPU"]);
    for ((name, stream), costs) in streams.iter().zip(&costs) {
        let [ours, ceiling] = costs;
        let of = |figure: fn(&Cost) -> f64| (median(ours.iter().map(figure)), ratio(ours, ceiling, figure, figure));
        let ((rate, of_rate), (cpu, of_cpu)) = (of(|cost| cost.settled.rate), of(|cost| cost.settled.cpu));
        table.row(vec![
            name.clone(),
            thousands(rate),
            thousands(rate * stream.bytes as f64 / 1e6),
            format!("{cpu:.2}"),
            megabytes(of(|cost| cost.memory as f64).0),
            format!("{of_rate:.2}"),
            format!("{of_cpu:.2}"),
        ]);
    }
    let raw = streams.iter().zip(&costs).flat_map(|((name, _), costs)| {
        contenders.iter().zip(costs).map(move |((whose, _), costs)| named(&format!("{name}{whose}"), costs))
    });
    (format!("{title}; commit 100 ms, the median of {} rounds.\n\n{table}", options.rounds), raw.collect())
}

#[derive(Serialize)]
struct Idle {
    /// Of one core, in per cent.
    cpu: f64,
    memory: u64,
}

/// A worker that has nothing to do.
fn idle(broker: &Broker, options: &Options, seconds: Duration) -> Part {
    let mut table = Table::new(&["partitions", "% of a core", "RSS"]);
    let mut raw = Vec::new();
    for partitions in IDLE_PARTITIONS {
        let topic = broker.fill(Stream { partitions, ..Stream::usual(options.load, 10_000, 0) });
        let contender = worker(options, |_| ());
        let mut run = Run::start(broker, &topic, &contender);
        run.watch();
        // The checkpoint of what it has just done is none of idleness.
        std::thread::sleep(Duration::from_secs(12));
        let before = run.process.worked();
        std::thread::sleep(seconds);
        let cpu = run.process.worked().saturating_sub(before).as_secs_f64() / seconds.as_secs_f64() * 100.0;
        let memory = run.process.memory();
        run.abandon();
        broker.delete(&topic.name);
        eprintln!("{partitions} idle partitions: {cpu:.1} %, {}", megabytes(memory as f64));
        table.row(vec![partitions.to_string(), format!("{cpu:.1}"), megabytes(memory as f64)]);
        raw.push(named(&partitions.to_string(), [Idle { cpu, memory }]));
    }
    (format!("## Idle\n\nA worker whose partitions have no new records, over {} s.\n\n{table}", seconds.as_secs()), raw.into())
}
