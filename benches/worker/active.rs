//! A thousand partitions in one process, each of which has a few records all the time: what each commit costs is then most
//! of it.

use crate::Options;
use crate::broker::{Broker, Topic};
use crate::contender::{Contender, Unseen};
use crate::count::Count;
use crate::growth::Part;
use crate::paced::Feeder;
use crate::records::Stream;
use crate::report::named;
use crate::run::Run;
use crate::table::{Table, megabytes, thousands};
use serde::Serialize;
use serde_json::Value;
use std::net::TcpListener;
use std::time::{Duration, Instant};

pub const ACTIVE: &str = "active";
const COMMITS: [(&str, Duration); 2] =
    [("active, commit 100 ms", Duration::from_millis(100)), ("active, commit 1 s", Duration::from_secs(1))];
const PARTITIONS: i32 = 1000;
/// Records a second of each partition.
const RATE: f64 = 100.0;
/// What is gathered for a partition before it is sent, in milliseconds. The broker has 5,000 requests a second of that: with
/// more, they would be most of what this machine does.
const LINGER: &str = "200";
/// To come to an even pace, checkpoints included.
const SETTLE: Duration = Duration::from_secs(15);
/// Of the filter: more ids than come.
const CAPACITY: usize = 20_000_000;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Serialize)]
struct Figures {
    /// Records a second that were judged, and what came of them committed.
    rate: f64,
    /// Of one core, in per cent.
    cpu: f64,
    /// Microseconds of processor time a record.
    each: f64,
    memory: u64,
    /// Of one core, in per cent: what the broker takes beyond what it takes without a worker.
    broker: Option<f64>,
    /// From a transaction's begin to its commit, in milliseconds. The quantiles are interpolated in the metrics' buckets.
    mean: f64,
    p50: f64,
    p99: f64,
    /// Transactions a second.
    transactions: f64,
    /// Transactions that were aborted: where there are any, this machine cannot keep up, and the other figures are worth little.
    aborted: f64,
    /// Bytes a second that the worker had the broker write, to the output, to the changelog, and of offsets and transactions;
    /// marks included.
    output: Option<f64>,
    changelog: Option<f64>,
    group: Option<f64>,
}

/// What is read off a worker that works; differences of two of them count.
struct Sample {
    at: Instant,
    worked: Duration,
    broker: Option<Duration>,
    status: Value,
    output: Option<u64>,
    changelog: Option<u64>,
    group: Option<u64>,
}

impl Sample {
    fn take(broker: &Broker, run: &Run, http: &str) -> Self {
        let text = ureq::get(format!("http://{http}/api/v1/status")).call().and_then(|mut answer| answer.body_mut().read_to_string());
        let changelog = format!("{}-seen-changelog", run.job.name);
        Self {
            at: Instant::now(),
            worked: run.process.worked(),
            broker: broker.worked(),
            status: serde_json::from_str(&text.expect("the worker says how it is")).expect("JSON"),
            output: broker.size(&run.job.output()),
            changelog: broker.size(&changelog),
            group: broker.size("__consumer_offsets").zip(broker.size("__transaction_state")).map(|(offsets, states)| offsets + states),
        }
    }

    /// A number of the status.
    fn number(&self, path: &str) -> f64 {
        self.status.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("the status has no {path}"))
    }

    /// How many records the group has committed: the input has no marks of transactions.
    fn committed(&self) -> f64 {
        let partitions = self.status["partitions"].as_array().expect("a list");
        partitions.iter().filter_map(|partition| partition["committed"].as_f64()).sum()
    }

    /// How many transactions took no longer than a bound in seconds.
    fn buckets(&self) -> Vec<(f64, f64)> {
        serde_json::from_value(self.status["transaction_duration"]["buckets"].clone()).expect("bounds and counts")
    }

    /// `alone` is the share of a core that the broker takes without the worker.
    fn since(&self, earlier: &Self, memory: u64, alone: Option<f64>) -> Figures {
        let took = (self.at - earlier.at).as_secs_f64();
        let worked = self.worked.saturating_sub(earlier.worked).as_secs_f64();
        let grown = |path| self.number(path) - earlier.number(path);
        let records = self.committed() - earlier.committed();
        let transactions = grown("/transaction_duration/count");
        let buckets: Vec<_> = self.buckets().iter().zip(earlier.buckets()).map(|(now, then)| (now.0, now.1 - then.1)).collect();
        let quantile = |share: f64| quantile(&buckets, transactions * share) * 1e3;
        let bytes = |now: Option<u64>, then: Option<u64>| now.zip(then).map(|(now, then)| now.saturating_sub(then) as f64 / took);
        Figures {
            rate: records / took,
            cpu: worked / took * 100.0,
            each: worked * 1e6 / records,
            memory,
            broker: self
                .broker
                .zip(earlier.broker)
                .zip(alone)
                .map(|((now, then), alone)| (now.saturating_sub(then).as_secs_f64() / took - alone) * 100.0),
            mean: grown("/transaction_duration/sum_seconds") / transactions * 1e3,
            p50: quantile(0.5),
            p99: quantile(0.99),
            transactions: transactions / took,
            aborted: grown("/transactions/aborted"),
            output: bytes(self.output, earlier.output),
            changelog: bytes(self.changelog, earlier.changelog),
            group: bytes(self.group, earlier.group),
        }
    }
}

/// The value below which so many are, where buckets say how many are below their bounds; interpolated, as Prometheus does.
fn quantile(buckets: &[(f64, f64)], rank: f64) -> f64 {
    let (mut bound_before, mut below) = (0.0, 0.0);
    for &(bound, count) in buckets {
        if count >= rank {
            return bound_before + (bound - bound_before) * (rank - below) / (count - below).max(1.0);
        }
        (bound_before, below) = (bound, count);
    }
    bound_before
}

pub fn measure(broker: &Broker, options: &Options, seconds: Duration) -> Part {
    let mut table = Table::new(&[
        "commit each",
        "records/s",
        "% of a core",
        "µs CPU a record",
        "peak RSS",
        "broker, % of a core",
        "transactions/s",
        "aborted",
        "mean ms",
        "p50",
        "p99",
        "output kB/s",
        "changelog kB/s",
        "offsets, transactions kB/s",
    ]);
    let mut raw = Vec::new();
    for (name, commit) in COMMITS.into_iter().filter(|(name, _)| options.includes(name)) {
        let figures = active(broker, options, commit, seconds);
        let Figures { rate, cpu, each, memory, broker: of_broker, mean, p50, p99, transactions, aborted, output, changelog, group } =
            figures;
        eprintln!("{name}: {} records/s, {cpu:.0} % of a core, {each:.2} us", thousands(rate));
        let bytes = |rate: Option<f64>| rate.map_or_else(|| "?".to_owned(), |rate| thousands(rate / 1e3));
        let cells = vec![format!("{commit:?}"), thousands(rate), thousands(cpu), format!("{each:.2}"), megabytes(memory as f64)];
        let of_broker = vec![of_broker.map_or_else(|| "?".to_owned(), thousands)];
        let times = [mean, p50, p99].map(thousands);
        let written = [output, changelog, group].map(bytes);
        table.row([cells, of_broker, vec![format!("{transactions:.1}"), thousands(aborted)], times.to_vec(), written.to_vec()].concat());
        raw.push(named(name, [figures]));
    }
    let page = format!(
        "## Active partitions\n\n{PARTITIONS} partitions in one process, {RATE} records of 200 bytes a second in each, half of them repeats, over {} s.\n\
         The broker's time is what it takes beyond what it takes for the writer alone. Milliseconds are of a transaction, from its\n\
         begin to its commit; kB/s are what the worker has the broker write.\n\n{table}",
        seconds.as_secs()
    );
    (page, raw.into())
}

fn active(broker: &Broker, options: &Options, commit: Duration, seconds: Duration) -> Figures {
    let stream = Stream { partitions: PARTITIONS, ..Stream::usual(options.load, usize::MAX / 100, 50) };
    let topic = Topic { name: broker.new_name("in"), stream };
    broker.create(&topic.name, PARTITIONS);
    // Nobody else takes the port in so short a time.
    let http = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").to_string();
    let mut unseen = Unseen::new(options.binary.clone(), commit);
    (unseen.http, unseen.capacity) = (http.clone(), Some(CAPACITY));
    let contender = Contender::Unseen(unseen);
    let mut run = Run::start(broker, &topic, &contender);
    let mut feeder = Feeder::new(broker, &topic.name, stream, LINGER);
    let rate = RATE * f64::from(PARTITIONS);
    // It is given its partitions, and makes their states, while there is little to do.
    feeder.pace(rate / 10.0, Duration::from_secs(1));
    wait(broker, &mut run, &http, &feeder);
    feeder.pace(rate, SETTLE);
    let before = Sample::take(broker, &run, &http);
    feeder.pace(rate, seconds);
    let after = Sample::take(broker, &run, &http);
    let memory = run.process.memory_peak();
    wait(broker, &mut run, &http, &feeder);
    run.process.stop();
    let ids = feeder.ids();
    let Count { records, ids: distinct } = Count::of(broker, &run.job.output(), &stream, usize::try_from(ids).expect("64 bits"));
    assert!(records == distinct && records as u64 + feeder.allowance() >= ids, "{records} records came out, {distinct} ids of {ids}");
    let (began, worked) = (Instant::now(), broker.worked());
    feeder.pace(rate, seconds / 2);
    let alone = broker.worked().zip(worked).map(|(now, then)| now.saturating_sub(then).as_secs_f64() / began.elapsed().as_secs_f64());
    feeder.flush();
    broker.delete(&run.job.name);
    broker.delete(&topic.name);
    after.since(&before, memory, alone)
}

/// Waits until all that was written is committed.
fn wait(broker: &Broker, run: &mut Run, http: &str, feeder: &Feeder) {
    feeder.flush();
    let (began, all) = (Instant::now(), feeder.records() as f64);
    loop {
        let committed = Sample::take(broker, run, http).committed();
        if committed >= all {
            return;
        }
        run.process.must_live();
        assert!(
            began.elapsed() < PATIENCE,
            "{committed} records of {all} are committed: it does not keep up:\n{}",
            run.process.last_words()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}
