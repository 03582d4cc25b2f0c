//! What the worker costs beside what Kafka costs.
//!
//!     cargo bench --bench worker -- [RECORDS] [ROUNDS]
//!
//! `UNSEEN_BENCH=unseen` leaves out the runs whose names do not begin so, for a profiler.
//!
//! Against a Kafka that `UNSEEN_TEST_BROKER` names, else one of scripts/kafka: records of 200 bytes of JSON in four
//! partitions, half of them repeats, are read through librdkafka's batch call and nothing done with them; read, and
//! every second one passed on in transactions, which is as fast as a worker can be; and read by the worker itself.
//! Rounds are interleaved, so that whatever else the machine does strikes all alike. Of the rounds' figures the median
//! is shown: records a second, microseconds of this process's processor time a record, and both as parts of the ceiling.

mod broker;
mod ceiling;
mod unseen;

use broker::{Broker, TOPIC};
use std::time::{Duration, Instant};

/// What a run took.
#[derive(Clone, Copy)]
struct Cost {
    /// Records a second.
    rate: f64,
    /// Microseconds of processor time a record.
    cpu: f64,
}

/// A clock of time and of this process's processor time.
struct Clock {
    began: Instant,
    worked: Duration,
}

impl Clock {
    fn start() -> Self {
        Self { began: Instant::now(), worked: worked() }
    }

    #[expect(clippy::cast_precision_loss, reason = "some millions")]
    fn stop(&self, records: usize) -> Cost {
        let records = records as f64;
        Cost { rate: records / self.began.elapsed().as_secs_f64(), cpu: worked().saturating_sub(self.worked).as_secs_f64() * 1e6 / records }
    }
}

/// Processor time that this process has taken, all its threads.
fn worked() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn median(costs: &[Cost], of: impl Fn(&Cost) -> f64) -> f64 {
    let mut all: Vec<_> = costs.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

type Run = (&'static str, usize, fn(&Broker, usize) -> Cost);

const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(1);

/// Each with the number of the run that is its ceiling.
const RUNS: [Run; 6] = [
    ("consume only", 0, |broker, records| ceiling::consume(broker, records)),
    ("half passed on, commit 100 ms", 1, |broker, records| ceiling::pass_on(broker, records, SHORT)),
    ("half passed on, commit 1 s", 2, |broker, records| ceiling::pass_on(broker, records, LONG)),
    ("unseen, commit 100 ms", 1, |broker, records| unseen::work(broker, records, SHORT, true)),
    ("unseen, commit 1 s", 2, |broker, records| unseen::work(broker, records, LONG, true)),
    ("unseen, commit 1 s, no changelog", 2, |broker, records| unseen::work(broker, records, LONG, false)),
];

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<usize>().ok());
    let (records, rounds) = (numbers.next().unwrap_or(1_000_000), numbers.next().unwrap_or(3));
    let broker = Broker::start();
    broker.fill(TOPIC, records);
    let mut costs = vec![Vec::new(); RUNS.len()];
    let only = std::env::var("UNSEEN_BENCH").unwrap_or_default();
    for round in 0..=rounds {
        for ((name, _, run), costs) in RUNS.iter().zip(&mut costs).filter(|((name, ..), _)| name.starts_with(&only)) {
            let cost = run(&broker, records);
            eprintln!("round {round}: {name}: {:.0} records/s, {:.2} us", cost.rate, cost.cpu);
            // The first warms up whatever there is to be warmed.
            if round > 0 {
                costs.push(cost);
            }
        }
    }
    println!("{records} records, median of {rounds}\n{:<34} {:>11} {:>10} {:>9} {:>7}", "", "records/s", "us CPU", "of rate", "of CPU");
    for (number, (name, ceiling, _)) in
        RUNS.iter().enumerate().filter(|(number, (_, ceiling, _))| !costs[*number].is_empty() && !costs[*ceiling].is_empty())
    {
        let of = |run: usize| (median(&costs[run], |cost| cost.rate), median(&costs[run], |cost| cost.cpu));
        let ((rate, cpu), (most, least)) = (of(number), of(*ceiling));
        println!("{name:<34} {rate:>11.0} {cpu:>10.2} {:>8.2}x {:>6.2}x", rate / most, cpu / least);
    }
}
