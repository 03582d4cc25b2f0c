//! The machine, the versions, and the machine's load during a measurement.

use serde_json::{Value, json};
use std::process::Command;

pub fn facts() -> Value {
    let version = |file: &str, before: &str, after: &str| between(file, before, after).unwrap_or("?").to_owned();
    let flink = include_str!("../peers/flink/pom.xml");
    json!({
        "machine": {
            "processor": field("/proc/cpuinfo", "model name"),
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "memory": field("/proc/meminfo", "MemTotal"),
            "system": said("uname", &["-sr"]),
        },
        "versions": {
            "unseen": said("git", &["describe", "--always", "--dirty"]),
            "rust": said("rustc", &["--version"]),
            "librdkafka": rdkafka::util::get_rdkafka_version().1,
            "kafka": std::env::var("UNSEEN_KAFKA_VERSION").unwrap_or_else(|_| version(include_str!("../../scripts/kafka"), "VERSION=", "\n")),
            "kafka_streams": version(include_str!("../peers/kafka-streams/pom.xml"), "<artifactId>kafka-streams</artifactId><version>", "<"),
            "flink": version(flink, "<flink>", "<"),
            "flink_connector": version(flink, "<artifactId>flink-connector-kafka</artifactId><version>", "<"),
            "java": said("java", &["--version"]),
        },
        "taken": said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
    })
}

pub fn sentence(facts: &Value) -> String {
    let text = |path: &str| facts.pointer(path).map_or_else(String::new, |value| value.as_str().map_or(value.to_string(), str::to_owned));
    format!(
        "{}, {} cores, {}, {}. unseen {}, {}, librdkafka {}, Kafka {}, {}. {}.",
        text("/machine/processor"),
        text("/machine/cores"),
        text("/machine/memory"),
        text("/machine/system"),
        text("/versions/unseen"),
        text("/versions/rust"),
        text("/versions/librdkafka"),
        text("/versions/kafka"),
        text("/versions/java"),
        text("/taken"),
    )
}

/// CPU time of the whole machine since it started, in ticks.
#[derive(Clone, Copy)]
pub struct Usage {
    idle: u64,
    /// Time that the hypervisor gave to other machines.
    stolen: u64,
    all: u64,
}

impl Usage {
    pub fn now() -> Self {
        let text = std::fs::read_to_string("/proc/stat").expect("Linux has /proc/stat");
        // user, nice, system, idle, iowait, irq, softirq, and steal. The two fields after these, for guests, are already included in user
        // and nice.
        let ticks: Vec<u64> = text.split_whitespace().skip(1).take(8).map(|ticks| ticks.parse().expect("a count")).collect();
        Self { idle: ticks[3] + ticks[4], stolen: ticks[7], all: ticks.iter().sum() }
    }

    /// Returns the used CPU time since an earlier reading, in seconds.
    pub fn busy_since(&self, earlier: &Self) -> f64 {
        let ticks = |usage: &Self| usage.all - usage.idle - usage.stolen;
        ticks(self).saturating_sub(ticks(earlier)) as f64 / rustix::param::clock_ticks_per_second() as f64
    }

    /// Returns the idle share of CPU time since an earlier reading. The subtractions saturate, because iowait may decrease.
    pub fn idle_since(&self, earlier: &Self) -> f64 {
        self.idle.saturating_sub(earlier.idle) as f64 / self.all.saturating_sub(earlier.all).max(1) as f64
    }
}

fn said(command: &str, arguments: &[&str]) -> String {
    let output = Command::new(command).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("?").to_owned()
}

fn field(file: &str, name: &str) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.split_once(':'));
    found.map_or_else(|| "?".to_owned(), |(_, value)| value.trim().to_owned())
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    Some(text.split_once(before)?.1.split_once(after)?.0)
}
