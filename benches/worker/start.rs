//! Measures the time from the start of a worker with existing state to its first output, while records wait in its input.

use crate::Options;
use crate::broker::{Broker, Topic};
use crate::contender::{Contender, Unseen};
use crate::paced::{Reader, now};
use crate::records::{self, Form, Ids, Stream};
use crate::report::publish;
use crate::run::Run;
use crate::table::{Table, median, thousands};
use serde::Serialize;
use serde_json::Value;
use std::time::{Duration, UNIX_EPOCH};

const KEYS: usize = 10_000_000;
const WAITING: usize = 1000;
const COMMIT: Duration = Duration::from_millis(100);

/// Times in milliseconds.
#[derive(Clone, Copy, Serialize)]
struct Figures {
    /// The time to open the state and look up the topics.
    open: f64,
    /// The time to get partitions, which depends on the brokers.
    join: f64,
    /// The time to load the state of the partitions.
    restore: f64,
    /// The time from the loaded state to the first record that a `read_committed` consumer receives.
    first: f64,
}

impl Figures {
    fn all(&self) -> f64 {
        self.open + self.join + self.restore + self.first
    }
}

pub fn measure(options: &Options) {
    let broker = Broker::start();
    let keys = options.records.unwrap_or(KEYS);
    let stream = Stream {
        records: keys,
        lead: usize::MAX,
        repeats: 0,
        ids: Ids::Consecutive { reach: 1 },
        bytes: 0,
        form: Form::Json,
        partitions: 4,
    };
    let topic = broker.fill(stream);
    let mut unseen = Unseen::new(options.binary.clone(), COMMIT);
    (unseen.key, unseen.capacity) = (r#"{ record = "key" }"#, Some(keys));
    let contender = Contender::Unseen(unseen);
    let mut run = Run::start(&broker, &topic, &contender);
    run.watch();
    let reader = Reader::start(&broker, &run.job.output(), stream.partitions);
    reader.wait_for((keys - keys / 5000 - 10) as u64, &mut run.process);
    let figures: Vec<_> = (0..options.rounds).map(|round| restart(&broker, &topic, &mut run, &reader, round)).collect();
    run.abandon();

    let mut table = Table::new(&["", "median ms", "min", "max"]);
    let mut row = |name: &str, figure: fn(&Figures) -> f64| {
        let of = |choose: fn(f64, f64) -> f64| figures.iter().map(figure).reduce(choose).unwrap_or(0.0);
        table.row(vec![name.to_owned(), thousands(median(figures.iter().map(figure))), thousands(of(f64::min)), thousands(of(f64::max))]);
    };
    row("open the state, look up topics", |run| run.open);
    row("wait for the partition assignment (brokers)", |run| run.join);
    row("load the state", |run| run.restore);
    row("read, evaluate, write, commit, until visible", |run| run.first);
    row("total", Figures::all);
    row("total without the brokers' part", |run| run.all() - run.join);
    let page = format!(
        "{} keys in four partitions, {WAITING} new records waiting, commit interval 100 ms; {} starts after clean stops.\n\n{table}",
        thousands(keys as f64),
        options.rounds
    );
    publish(options, "start", &figures, &page, &[]);
}

fn restart(broker: &Broker, topic: &Topic, run: &mut Run, reader: &Reader, round: usize) -> Figures {
    let before = reader.received();
    let first = topic.stream.records + round * WAITING;
    // The previous processes have written to the same log, so the events of the new process start after these bytes.
    let said = run.process.said().len();
    run.restart(|| records::produce(&broker.address, &topic.name, topic.stream, first..first + WAITING));
    let began = now() as f64 - run.process.started.elapsed().as_secs_f64() * 1e3;
    reader.wait_for(before + 1, &mut run.process);
    let visible = now() as f64;
    reader.wait_for(before + (WAITING - WAITING / 100) as u64, &mut run.process);

    let log = run.process.said();
    let events: Vec<Value> = log[said..].lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let named = |message: &'static str| events.iter().filter(move |event| event.pointer("/message").is_some_and(|said| said == message));
    let time = |message| named(message).next().map_or_else(|| panic!("the log does not contain \"{message}\":\n{log}"), milliseconds);
    let (started, assigned) = (time("started"), time("partitions assigned"));
    let restored =
        |event: &Value| event.pointer("/elapsed_ms").and_then(|number| number.as_f64().or_else(|| number.as_str()?.parse().ok()));
    let restore = named("partition restored").filter_map(restored).fold(0.0, f64::max);
    let figures = Figures { open: started - began, join: assigned - started - restore, restore, first: visible - assigned };
    eprintln!("start {}: {:.0} ms to the first output, {:.0} of them to join the group", round + 1, figures.all(), figures.join);
    figures
}

/// Time of a log event, in milliseconds since the epoch.
fn milliseconds(event: &Value) -> f64 {
    let time = event.get("timestamp").and_then(Value::as_str).and_then(|time| humantime::parse_rfc3339(time).ok());
    time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).expect("each line has a timestamp").as_secs_f64() * 1e3
}
