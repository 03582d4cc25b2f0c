//! A broker, its topics, and their end offsets.

use crate::input::client;
use crate::records::{self, Stream};
use rdkafka::TopicPartitionList;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::Offset;
use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const PATIENCE: Duration = Duration::from_secs(60);

pub struct Broker {
    pub address: String,
    names: Cell<usize>,
    admin: AdminClient<DefaultClientContext>,
    uncommitted: BaseConsumer,
    committed: BaseConsumer,
    runtime: Runtime,
    /// The script that runs the broker, and the directory of the broker's data. The script ends when its stdin is closed. `None` if the
    /// broker was already running.
    script: Option<(Child, TempDir)>,
}

impl Broker {
    /// Connects to the broker in `UNSEEN_TEST_BROKER`. If the variable is not set, starts a broker with scripts/kafka.
    pub fn start() -> Self {
        if let Ok(address) = std::env::var("UNSEEN_TEST_BROKER") {
            return Self::at(address, None);
        }
        let dir = TempDir::new().expect("a directory");
        let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/kafka"))
            .args(["--until-eof".as_ref(), "--dir".as_ref(), dir.path().as_os_str()])
            .env("UNSEEN_KAFKA_JVM", std::env::var("UNSEEN_KAFKA_JVM").unwrap_or_else(|_| "-Xms1g -Xmx1g".to_owned()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("scripts/kafka starts");
        let stdout = BufReader::new(script.stdout.take().expect("its stdout is a pipe"));
        let ready = stdout.lines().map_while(Result::ok).find_map(|line| Some(line.strip_prefix("ready ")?.to_owned()));
        Self::at(ready.expect("scripts/kafka is ready, or has printed why it is not"), Some((script, dir)))
    }

    fn at(address: String, script: Option<(Child, TempDir)>) -> Self {
        let client = client(&address);
        let observer = |isolation| client.clone().set("isolation.level", isolation).create().expect("a client");
        Self {
            names: Cell::new(0),
            admin: client.create().expect("a client"),
            uncommitted: observer("read_uncommitted"),
            committed: observer("read_committed"),
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"),
            address,
            script,
        }
    }

    /// Returns a new name for a topic or a group. It starts with `what`.
    pub fn new_name(&self, what: &str) -> String {
        self.names.set(self.names.get() + 1);
        format!("{what}-{}-{}", std::process::id(), self.names.get())
    }

    pub fn create(&self, topic: &str, partitions: i32) {
        let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE)).request_timeout(Some(PATIENCE));
        let made = self.runtime.block_on(self.admin.create_topics([&new], &options)).expect("an answer");
        for topic in made {
            topic.expect("the topic is created");
        }
        // Waits until all partitions have leaders, because a worker that starts earlier may not find the topic.
        self.ends(topic, partitions);
    }

    pub fn fill(&self, stream: Stream) -> Topic {
        let topic = Topic { name: self.new_name("in"), stream };
        eprintln!("filling a topic: {stream}");
        self.create(&topic.name, stream.partitions);
        records::produce(&self.address, &topic.name, stream, 0..stream.records);
        topic
    }

    /// Returns the size of a topic's log files in bytes, or 0 if the broker was already running.
    pub fn log_bytes(&self, topic: &str) -> u64 {
        let Some((_, dir)) = &self.script else { return 0 };
        let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().collect::<Vec<_>>();
        let is_of_topic =
            |name: &str| name.rsplit_once('-').is_some_and(|(name, partition)| name == topic && partition.parse::<u32>().is_ok());
        let partitions = entries(dir.path()).into_iter().flat_map(|broker| entries(&broker.path()));
        let partitions = partitions.filter(|partition| partition.file_name().to_str().is_some_and(is_of_topic));
        let files = partitions.flat_map(|partition| entries(&partition.path()));
        let logs = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "log"));
        logs.filter_map(|log| log.metadata().ok()).map(|data| data.len()).sum()
    }

    /// Deletes all topics with this prefix to free disk space.
    pub fn delete(&self, prefix: &str) {
        let all = self.uncommitted.fetch_metadata(None, PATIENCE).expect("the topics");
        let names: Vec<_> =
            all.topics().iter().map(rdkafka::metadata::MetadataTopic::name).filter(|name| name.starts_with(prefix)).collect();
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
        self.runtime.block_on(self.admin.delete_topics(&names, &options)).expect("an answer");
    }

    /// Returns the sum of a topic's high watermarks and the sum of its last stable offsets. Control batches increase both sums.
    pub fn ends(&self, topic: &str, partitions: i32) -> (u64, u64) {
        let ask = |client: &BaseConsumer| {
            let mut list = TopicPartitionList::new();
            for partition in 0..partitions {
                list.add_partition_offset(topic, partition, Offset::End).expect("an offset");
            }
            let found = client.offsets_for_times(list, PATIENCE)?;
            let end = |offset: Offset| offset.to_raw().and_then(|offset| u64::try_from(offset).ok()).unwrap_or(0);
            Ok::<u64, KafkaError>(found.elements().iter().map(|element| end(element.offset())).sum())
        };
        let end = |client: &BaseConsumer| {
            let began = Instant::now();
            loop {
                match ask(client) {
                    Ok(end) => return end,
                    // The topic may be too new. The client does not ask for it again by itself, so the loop requests its metadata.
                    Err(error) => assert!(began.elapsed() < PATIENCE, "the broker does not return the end offsets of {topic}: {error}"),
                }
                std::thread::sleep(Duration::from_millis(20));
                let _ = client.fetch_metadata(Some(topic), PATIENCE);
            }
        };
        // Asks for the last stable offsets first. Otherwise, records that are written and committed between the two requests could make the
        // sum of the last stable offsets larger than the sum of the high watermarks.
        let committed = end(&self.committed);
        (end(&self.uncommitted), committed)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some((mut script, _dir)) = self.script.take() {
            drop(script.stdin.take());
            let _ = script.wait();
        }
    }
}

pub struct Topic {
    pub name: String,
    pub stream: Stream,
}
