//! Measures latency at several loads and commit intervals, with and without checkpoints. Latency runs from a record's timestamp, which is
//! its scheduled send time, until a `read_committed` consumer receives the record.

use crate::Options;
use crate::broker::{Broker, Topic};
use crate::contender::{Contender, Unseen};
use crate::paced::{Feeder, Latencies, Reader};
use crate::picture::{self, Colour, Line};
use crate::records::{Load, Stream};
use crate::report::{named, publish};
use crate::run::Run;
use crate::table::{Table, median, thousands};
use serde::Serialize;
use serde_json::json;
use std::time::Duration;

/// Commit intervals, in milliseconds.
const COMMITS: [u64; 3] = [20, 100, 1000];
/// Loads, as a share of the peak.
const LOADS: [f64; 3] = [0.1, 0.5, 0.8];
const USUAL_COMMIT: Duration = Duration::from_millis(100);
/// Names of the two measurements, for `--only`.
const GRID: &str = "commit";
const CHECKPOINTS: &str = "checkpoint";
const SETTLE: Duration = Duration::from_secs(2);
/// Capacity of the filter: more ids than the stream has.
const CAPACITY: usize = 10_000_000;
/// A checkpoint interval that is longer than any run.
const NEVER: Duration = Duration::from_secs(24 * 3600);

#[derive(clap::Args)]
pub struct Arguments {
    /// Duration of each load, in seconds.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

/// Latencies, in milliseconds.
#[derive(Clone, Copy, Serialize)]
struct Figures {
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
    /// CPU time of the worker per record, in microseconds.
    cpu: f64,
}

struct Chain<'a> {
    run: Run<'a>,
    feeder: Feeder<'a>,
    reader: Reader,
    commit: Duration,
}

impl<'a> Chain<'a> {
    /// Starts a worker on its own topic and feeds it records to warm it up.
    fn start(broker: &'a Broker, topic: &'a Topic, contender: &'a Contender) -> Self {
        let Contender::Unseen(Unseen { commit, .. }) = contender else { unreachable!("only workers are measured") };
        let mut run = Run::start(broker, topic, contender);
        let reader = Reader::start(broker, &run.job.output(), topic.stream.partitions);
        let mut feeder = Feeder::new(broker, &topic.name, topic.stream, "1");
        feeder.at_rate(20_000.0, SETTLE, Duration::ZERO, &reader);
        reader.latencies(&feeder, &mut run.process, *commit);
        Self { run, feeder, reader, commit: *commit }
    }

    /// Returns the maximum number of records per second that pass through the whole chain, including feeder and reader.
    fn peak(&mut self, seconds: Duration) -> f64 {
        let peak = self.feeder.at_most(SETTLE, seconds, &self.reader);
        self.reader.latencies(&self.feeder, &mut self.run.process, self.commit);
        peak
    }

    fn at(&mut self, rate: f64, seconds: Duration) -> Figures {
        let (worked, before) = (self.run.process.worked(), self.feeder.records());
        self.feeder.at_rate(rate, SETTLE, seconds, &self.reader);
        let latencies = self.reader.latencies(&self.feeder, &mut self.run.process, self.commit);
        let worked = self.run.process.worked().saturating_sub(worked);
        let at = |share| Latencies::quantile(&latencies, share);
        let cpu = worked.as_secs_f64() * 1e6 / (self.feeder.records() - before) as f64;
        Figures { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0), cpu }
    }

    fn stop(self) {
        self.run.abandon();
    }
}

fn topic(broker: &Broker, load: Load) -> Topic {
    let topic = Topic { name: broker.new_name("in"), stream: Stream::usual(load, usize::MAX / 100, 50) };
    broker.create(&topic.name, topic.stream.partitions);
    topic
}

pub fn measure(options: &Options, arguments: &Arguments) {
    let (only, known) = (options.only.join(" or "), [GRID, CHECKPOINTS]);
    assert!(
        known.iter().any(|name| options.includes(name)),
        "no benchmark has a name that starts with {only}; available: {}",
        known.join(" and ")
    );
    let broker = Broker::start();
    let seconds = Duration::from_secs(arguments.seconds);
    let worker = |commit, checkpoint| {
        Contender::Unseen(Unseen { checkpoint, capacity: Some(CAPACITY), ..Unseen::new(options.binary.clone(), commit) })
    };
    let with_chain = |contender: &Contender, work: &mut dyn FnMut(&mut Chain)| {
        let topic = topic(&broker, options.load);
        let mut chain = Chain::start(&broker, &topic, contender);
        work(&mut chain);
        chain.stop();
        broker.delete(&topic.name);
    };

    let mut peak = 0.0;
    with_chain(&worker(USUAL_COMMIT, NEVER), &mut |chain| peak = chain.peak(seconds));
    eprintln!("peak: {} records/s", thousands(peak));
    let mut grid = vec![Vec::new(); COMMITS.len() * LOADS.len()];
    let mut checkpoints = vec![Vec::new(); 2];
    for round in 1..=options.rounds {
        for (commit, grid) in COMMITS.into_iter().zip(grid.chunks_mut(LOADS.len())).filter(|_| options.includes(GRID)) {
            with_chain(&worker(Duration::from_millis(commit), Duration::from_secs(10)), &mut |chain| {
                for (load, runs) in LOADS.into_iter().zip(&mut *grid) {
                    let figures = chain.at(peak * load, seconds);
                    eprintln!("round {round}: commit {commit} ms, load {load}: p50 {}, p99 {} ms", figures.p50, figures.p99);
                    runs.push(figures);
                }
            });
        }
        // Alternates the order, because the broker is warmer for later runs.
        let mut pair = [(Duration::from_secs(1), 0), (NEVER, 1)];
        pair.rotate_left((round - 1) % 2);
        for (interval, at) in pair.into_iter().filter(|_| options.includes(CHECKPOINTS)) {
            with_chain(&worker(USUAL_COMMIT, interval), &mut |chain| {
                // Ensures that checkpoints have state to write.
                chain.peak(SETTLE);
                let figures = chain.at(peak * 0.5, seconds * 2);
                eprintln!("round {round}: a checkpoint every {interval:?}: p50 {}, p99 {} ms", figures.p50, figures.p99);
                checkpoints[at].push(figures);
            });
        }
    }

    show(options, arguments, &Measured { peak, grid, checkpoints });
}

struct Measured {
    /// Records per second.
    peak: f64,
    /// Results of each round, for each commit interval and load.
    grid: Vec<Vec<Figures>>,
    /// Results of the rounds with checkpoints and of the rounds without.
    checkpoints: Vec<Vec<Figures>>,
}

fn show(options: &Options, arguments: &Arguments, Measured { peak, grid, checkpoints }: &Measured) {
    let cases: Vec<_> = COMMITS.iter().flat_map(|&commit| LOADS.map(|load| (commit, load))).collect();
    let raw = json!({
        "peak": peak,
        "loads": cases.iter().zip(grid).map(|((commit, load), runs)| named(&format!("commit {commit} ms, load {load}"), runs)).collect::<Vec<_>>(),
        "checkpoints": [named("every second", &checkpoints[0]), named("none", &checkpoints[1])],
    });
    let mut parts = vec![format!(
        "Records of 200 bytes in four partitions, half of them duplicates. Milliseconds from a record's time until a `read_committed`\n\
         consumer reads it. The median of {} rounds of {} s. The peak, {} records per second, is the throughput of writer, broker,\n\
         worker, and reader together, all on this machine, at a commit interval of 100 ms.\n",
        options.rounds,
        arguments.seconds,
        thousands(*peak),
    )];
    if options.includes(GRID) {
        let names: Vec<_> = cases.iter().map(|(commit, load)| format!("commit {commit} ms, {load} of the peak")).collect();
        parts.push(format!("\n{}", table(&names, grid)));
    }
    if options.includes(CHECKPOINTS) {
        let ratio = median(checkpoints[0].iter().zip(&checkpoints[1]).map(|(with, without)| with.p99 / without.p99));
        parts.push(format!(
            "\nWith checkpoints every second, compared with no checkpoints, at 0.5 of the peak and a commit interval of 100 ms. The median\n\
             ratio of p99 over pairs of runs is {ratio:.2}.\n\n{}",
            table(&["checkpoint every second".to_owned(), "no checkpoint".to_owned()], checkpoints),
        ));
    }
    let pictures = options.includes(GRID).then(|| ("latency", picture(grid)));
    publish(options, "latency", &raw, &parts.concat(), pictures.as_slice());
}

fn table(names: &[String], runs: &[Vec<Figures>]) -> Table {
    let mut table = Table::new(&["", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "µs CPU per record"]);
    for (name, runs) in names.iter().zip(runs) {
        let of = |figure: fn(&Figures) -> f64| median(runs.iter().map(figure));
        let milliseconds = [of(|run| run.p50), of(|run| run.p99), of(|run| run.p999), of(|run| run.max)].map(thousands);
        table.row([vec![name.clone()], milliseconds.to_vec(), vec![format!("{:.2}", of(|run| run.cpu))]].concat());
    }
    table
}

fn picture(grid: &[Vec<Figures>]) -> String {
    let line = |load: usize, name: &str, colour, figure: fn(&Figures) -> f64| Line {
        name: name.to_owned(),
        colour,
        points: COMMITS
            .iter()
            .enumerate()
            .map(|(at, &commit)| (commit as f64, median(grid[at * LOADS.len() + load].iter().map(figure))))
            .collect(),
    };
    let panel = |(number, load): (usize, f64)| {
        let lines = vec![
            line(number, "p50", Colour::B, |run| run.p50),
            line(number, "p99", Colour::A, |run| run.p99),
            line(number, "p99.9", Colour::C, |run| run.p999),
        ];
        (format!("ms to visible at {load} of the peak"), lines)
    };
    let panels: Vec<_> = LOADS.into_iter().enumerate().map(panel).collect();
    picture::lines(&panels, "commit interval, ms", (&COMMITS.map(|commit| commit as f64), &[1.0, 10.0, 100.0, 1000.0, 10000.0]), thousands)
}
