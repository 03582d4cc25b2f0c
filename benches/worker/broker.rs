//! A broker, topics in it, and records in those.

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// What is read.
pub const TOPIC: &str = "in";
/// Of every topic.
pub const PARTITIONS: i32 = 4;
/// Of a record's value.
const BYTES: usize = 200;
/// How many records lie between a key and its repeat.
const DISTANCE: usize = 2000;

pub struct Broker {
    pub address: String,
    topics: Cell<usize>,
    /// Ends when its stdin does.
    _script: Option<Child>,
}

impl Broker {
    pub fn start() -> Self {
        if let Ok(address) = std::env::var("UNSEEN_TEST_BROKER") {
            return Self { address, topics: Cell::new(0), _script: None };
        }
        let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/kafka"))
            .arg("--until-eof")
            .env("UNSEEN_KAFKA_JVM", std::env::var("UNSEEN_KAFKA_JVM").unwrap_or_else(|_| "-Xms1g -Xmx1g".to_owned()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("scripts/kafka starts");
        let stdout = BufReader::new(script.stdout.take().expect("its stdout is a pipe"));
        let ready = stdout.lines().map_while(Result::ok).find_map(|line| Some(line.strip_prefix("ready ")?.to_owned()));
        Self { address: ready.expect("scripts/kafka says why it does not serve"), topics: Cell::new(0), _script: Some(script) }
    }

    pub fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", &self.address);
        client
    }

    /// A name that nothing has yet.
    pub fn new_name(&self, what: &str) -> String {
        self.topics.set(self.topics.get() + 1);
        format!("{what}-{}-{}", std::process::id(), self.topics.get())
    }

    /// Makes a topic.
    pub fn create(&self, topic: &str) {
        let admin: AdminClient<DefaultClientContext> = self.client().create().expect("a client");
        let new = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(30)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let made = runtime.block_on(admin.create_topics([&new], &options)).expect("an answer");
        for topic in made {
            topic.expect("the topic is made");
        }
    }

    /// Makes a topic with so many records, every second of them a repeat.
    pub fn fill(&self, topic: &str, records: usize) {
        self.create(topic);
        let mut client = self.client();
        client.set("enable.idempotence", "true").set("compression.type", "lz4").set("linger.ms", "20");
        let producer: BaseProducer = client.set("queue.buffering.max.messages", "500000").create().expect("a producer");
        for number in 0..records {
            let id = if number % 2 == 0 { number / 2 } else { (number / 2).saturating_sub(DISTANCE / 2) };
            // Noise that hardly compresses, and much that does.
            let noise = |word: u64| (number as u64 + word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let noise = format!("{:016x}{:016x}{:016x}", noise(0), noise(1), noise(2));
            let head = format!(r#"{{"user":{},"id":"{id:016x}","seen":true,"tags":["a","b"],"text":"{noise}"#, number % 1000);
            let value = format!("{head}{:x<1$}\"}}", "", BYTES - 2 - head.len());
            let partition = i32::try_from(id % 4).expect("one of four");
            let mut record = BaseRecord::<[u8], str>::to(topic).partition(partition).payload(&value);
            while let Err((error, refused)) = producer.send(record) {
                assert!(error == KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), "{error}");
                record = refused;
                producer.poll(Duration::from_millis(10));
            }
        }
        producer.flush(Duration::from_secs(120)).expect("the broker takes all records");
    }
}
