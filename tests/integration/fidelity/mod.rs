//! Promise: a client of the simulated cluster observes the same as a client of a real Kafka cluster.
//!
//! A seed determines calls through the traits of `unseen::broker` (`plan`). The calls run on the simulated cluster and on a real broker
//! (`play`). All observations must be the same: records and their offsets, the ends of logs, committed offsets, and the error of each
//! failed call.

mod plan;
mod play;

use crate::harness::{add_partitions, broker, client, delete_topic, make_topic_with, unique};
use plan::{Op, draw};
use play::play;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use std::sync::Arc;
use std::time::{Duration, Instant};
use unseen::broker::Broker;
use unseen::config::Config;
use unseen::kafka::KafkaBroker;
use unseen::record::{Offset, TopicPartition};
use unseen::runtime;
use unseen::sim::{Options, SimBroker, Simulation, TopicOptions};
use unseen::stats::Stats;

/// The maximum wait for an asynchronous effect in a cluster.
const LIMIT: Duration = Duration::from_secs(10);

struct Names {
    prefix: String,
}

impl Names {
    /// The name and the number of partitions of each topic: a plain topic, a compacted topic that accepts only small batches, and a topic
    /// whose brokers set the timestamps.
    const TOPICS: [(&'static str, u32); 3] = [("plain", 2), ("strict", 1), ("stamped", 1)];

    fn topic(&self, at: usize) -> String {
        format!("{}-{}", self.prefix, Self::TOPICS[at].0)
    }

    fn config(&self, servers: &str, delivery: &str) -> Arc<Config> {
        let (dir, prefix) = (tempfile::tempdir().expect("a directory"), &self.prefix);
        let file = dir.path().join("unseen.toml");
        let text = format!(
            "[kafka]\nbootstrap_servers = \"{servers}\"\ngroup_id = \"{prefix}\"\n[kafka.properties]\n\"fetch.wait.max.ms\" = \"20\"\n\
             [worker]\ndelivery = \"{delivery}\"\ncommit_interval = \"1s\"\ntransaction_timeout = \"60s\"\n[[topics]]\ninput = \"{}\"\noutput = \"{}\"\n\
             space = \"space\"\nkey = {{ record = \"key\" }}\nwindow = \"1h\"\nfilter = {{ kind = \"exact\" }}\n",
            self.topic(0),
            self.topic(1)
        );
        std::fs::write(&file, text).expect("a configuration file");
        Arc::new(Config::load(&file, &[]).unwrap_or_else(|errors| panic!("{errors}")))
    }
}

trait Side {
    type Broker: Broker;

    fn broker(&self) -> Self::Broker;
    fn servers(&self) -> String;
    fn create_topic(&self, name: &str, partitions: u32, kind: &str);
    fn delete_topic(&self, name: &str);
    fn add_partitions(&self, name: &str, count: u32);
    /// The high watermark. `None` if the cluster does not report it.
    fn end(&self, of: &TopicPartition) -> Option<Offset>;

    /// Waits until `ready` returns `true`, but not longer than [`LIMIT`]. Does not fail after that time, because the next observation then
    /// differs between the clusters.
    fn wait(&self, ready: &mut dyn FnMut() -> bool) {
        let began = runtime::now();
        while !ready() && runtime::since(began) < LIMIT {
            runtime::sleep(Duration::from_millis(10));
        }
    }
}

struct Real {
    stats: Arc<Stats>,
    uncommitted: BaseConsumer,
}

impl Side for Real {
    type Broker = KafkaBroker;

    fn broker(&self) -> KafkaBroker {
        KafkaBroker::new(Arc::clone(&self.stats))
    }

    fn servers(&self) -> String {
        broker().to_owned()
    }

    fn create_topic(&self, name: &str, partitions: u32, kind: &str) {
        let properties: &[_] = match kind {
            "strict" => &[("cleanup.policy", "compact"), ("max.message.bytes", "2000"), ("message.timestamp.before.max.ms", "86400000")],
            "stamped" => &[("message.timestamp.type", "LogAppendTime")],
            _ => &[],
        };
        make_topic_with(broker(), name, partitions, properties);
    }

    fn delete_topic(&self, name: &str) {
        delete_topic(broker(), name);
    }

    fn add_partitions(&self, name: &str, count: u32) {
        add_partitions(broker(), name, count);
    }

    fn end(&self, of: &TopicPartition) -> Option<Offset> {
        self.uncommitted.fetch_watermarks(&of.topic, of.partition, LIMIT).ok().map(|(_, end)| end)
    }
}

struct Simulated(Simulation);

impl Side for Simulated {
    type Broker = SimBroker;

    fn broker(&self) -> SimBroker {
        self.0.broker()
    }

    fn servers(&self) -> String {
        "simulated:1".to_owned()
    }

    fn create_topic(&self, name: &str, partitions: u32, kind: &str) {
        let plain = TopicOptions::default();
        let options = match kind {
            "strict" => TopicOptions { is_compacted: true, max_message_bytes: 2000, before_max_ms: 86_400_000, ..plain },
            "stamped" => TopicOptions { log_append_time: true, ..plain },
            _ => plain,
        };
        assert!(self.0.create_topic(name, partitions, options));
    }

    fn delete_topic(&self, name: &str) {
        self.0.delete_topic(name);
    }

    fn add_partitions(&self, name: &str, count: u32) {
        self.0.add_partitions(name, count);
    }

    fn end(&self, of: &TopicPartition) -> Option<Offset> {
        self.0.offsets(of).map(|[.., end]| end)
    }
}

/// Plays a plan on the simulated cluster and on a real broker. Returns the first difference, with up to 30 observations before it.
fn compare(names: &Names, plan: &[Op], seed: u64) -> Result<(), String> {
    let options = Options { brokers: 1, epoch_ms: runtime::wall_clock(), ..Options::default() };
    let simulated = Simulation::run(seed, options, |simulation| play(&Simulated(simulation.clone()), names, plan));
    let stats = Arc::new(Stats::new(&names.config(broker(), "exactly_once")));
    let uncommitted = client(broker()).set("isolation.level", "read_uncommitted").create().expect("a consumer");
    let real = play(&Real { stats, uncommitted }, names, plan);
    println!("seed {seed}: {} calls", simulated.len());
    let Some(at) = simulated.iter().zip(&real).position(|(simulated, real)| simulated != real) else {
        assert_eq!(simulated.len(), real.len());
        return Ok(());
    };
    Err(format!("seed {seed}\n{}\nsimulated: {}\nreal:      {}", simulated[at.saturating_sub(30)..at].join("\n"), simulated[at], real[at]))
}

/// Plays the plans of consecutive seeds: seeds 0 and 1 by default. `UNSEEN_FIDELITY_SEED` sets the first seed, and `UNSEEN_FIDELITY_PLANS`
/// sets the number of plans.
#[test]
fn simulated_cluster_behaves_like_a_real_one() {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let first = number("UNSEEN_FIDELITY_SEED", 0);
    let plans = number("UNSEEN_FIDELITY_PLANS", 2);
    let began = Instant::now();
    let differs = |seed| compare(&Names { prefix: unique("fidelity") }, &draw(seed), seed).err();
    let differences: Vec<_> = (first..first + plans).filter_map(differs).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
    println!("{plans} plans in {:.1} s", began.elapsed().as_secs_f64());
}
