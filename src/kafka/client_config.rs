//! What all clients have in common: their configuration, and where their log lines go.

use super::Error;
use super::ffi::{LoggedIn, Native};
use super::observer::Observer;
use super::security;
use crate::config::{Config, Delivery, Kafka, Partitioner, first_name, is_secret};
use rdkafka::ClientConfig;
use rdkafka::client::{Client, ClientContext};
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaType;
use std::time::Duration;

/// How long a call to a broker may take before it is tried again or given up.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes of a batch of records that are written together; the broker's own default limit less some room.
pub(super) const BATCH_BYTES: usize = 1_000_000;

/// Largest record librdkafka can be configured to write; the real limit is the topic's, and the broker's to say.
const RECORD_BYTES_MAX: &str = "1000000000";

/// The least that librdkafka takes for `fetch.max.bytes`: its own `message.max.bytes` of a consumer.
const FETCH_BYTES_MIN: u64 = 1_000_000;

/// Creates a client that logs in as configured.
pub(super) fn create<T, C>(client: &ClientConfig, kafka: &Kafka, context: C) -> Result<LoggedIn<T>, KafkaError>
where
    T: FromClientConfigAndContext<C> + Native,
    C: ClientContext,
{
    Ok(LoggedIn::new(T::from_config_and_context(client, context)?, kafka.oauth.as_ref()))
}

/// A client without a role: for looking at the cluster.
pub(super) fn observer(kafka: &Kafka) -> ClientConfig {
    let mut client = with_defaults(kafka, &[]);
    client.set("bootstrap.servers", &kafka.bootstrap_servers);
    client
}

pub(super) fn consumer(config: &Config, instance: Option<&str>, worker: usize) -> ClientConfig {
    let mut client = with_defaults(
        &config.kafka,
        &[
            // A lost process is noticed after ten seconds; librdkafka's own default is 45.
            ("session.timeout.ms", "10000"),
            ("heartbeat.interval.ms", "2000"),
            // What is read before it is asked for is a worker's memory above all: librdkafka would keep five times as many
            // records at hand, and take what each partition may send at once, however many they are.
            ("queued.min.messages", "20000"),
            ("fetch.max.bytes", "8388608"),
            // At its default of a second, a fast consumer starves.
            ("fetch.queue.backoff.ms", "5"),
        ],
    );
    client
        .set("bootstrap.servers", &config.kafka.bootstrap_servers)
        .set("group.id", &config.kafka.group_id)
        .set("group.protocol", "classic")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("isolation.level", "read_committed")
        // A lost position is for us to judge: a silent jump could lose records.
        .set("auto.offset.reset", "error")
        // Topics that share a state wait for each other's warm-up, which may end without a record.
        .set("enable.partition.eof", if config.shares_spaces() { "true" } else { "false" })
        // A static member that is killed between the two rounds of a cooperative rebalance comes back without one:
        // what it was to give up would be nobody's until the next.
        .set("partition.assignment.strategy", if instance.is_some() || config.shares_spaces() { "range" } else { "cooperative-sticky" });
    if let Some(instance) = instance {
        client.set("group.instance.id", format!("{instance}-{worker}"));
    }
    client
}

/// A client that reads changelogs, each of which is named to it.
pub(super) fn changelog_reader(config: &Config, isolation: &str) -> ClientConfig {
    let mut client = with_defaults(
        &config.kafka,
        &[
            ("fetch.queue.backoff.ms", "5"),
            // A log is read by one partition at a time, from its beginning to its end.
            ("fetch.message.max.bytes", "8388608"),
            ("fetch.wait.max.ms", "50"),
        ],
    );
    client
        .set("bootstrap.servers", &config.kafka.bootstrap_servers)
        // librdkafka assigns nothing to a client without one; it is not joined.
        .set("group.id", &config.kafka.group_id)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "error")
        .set("isolation.level", isolation);
    client
}

/// A client that reads many changelogs for ever.
pub(super) fn changelog_tail(config: &Config) -> ClientConfig {
    let mut client = changelog_reader(config, "read_committed");
    for (name, value) in [("queued.max.messages.kbytes", "16384"), ("fetch.max.bytes", "8388608"), ("fetch.wait.max.ms", "500")] {
        if !config.kafka.properties.contains_key(name) {
            client.set(name, value);
        }
    }
    client
}

/// A client that reads a topic once, from where to where it is told.
pub(super) fn capture(config: &Config) -> ClientConfig {
    let mut client = with_defaults(
        &config.kafka,
        &[
            ("fetch.queue.backoff.ms", "5"),
            ("fetch.max.bytes", "8388608"),
            // What is read before it is written down is all that it holds.
            ("queued.max.messages.kbytes", "32768"),
            ("fetch.wait.max.ms", "50"),
        ],
    );
    client
        .set("bootstrap.servers", &config.kafka.bootstrap_servers)
        // librdkafka assigns nothing to a client without one; it is not joined.
        .set("group.id", &config.kafka.group_id)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "error")
        .set("isolation.level", "read_committed");
    client
}

/// A producer for the output of an input of so many partitions.
pub(super) fn producer(
    config: &Config,
    transactional_id: &str,
    partitions: u32,
    batch_bytes: usize,
    records_a_batch: Option<usize>,
) -> ClientConfig {
    let linger = config.worker.delivery.linger(config.worker.commit_interval, partitions).as_millis().to_string();
    let mut client = with_defaults(
        &config.kafka,
        &[
            ("linger.ms", &linger),
            ("compression.type", "lz4"),
            ("queue.buffering.max.messages", "1000000"),
            ("queue.buffering.max.kbytes", "262144"),
            // A request to a coordinator waits without a timeout until some connection changes its state (rd_kafka_coord_req_fsm
            // in rdkafka_coord.c). Idle connections that close end such a wait after a coordinator was lost.
            ("connections.max.idle.ms", "30000"),
        ],
    );
    client
        .set("bootstrap.servers", &config.kafka.bootstrap_servers)
        .set("enable.idempotence", "true")
        .set("message.max.bytes", RECORD_BYTES_MAX)
        // So that an idle producer still hears of its brokers, and of their loss.
        .set("topic.metadata.refresh.interval.ms", "10000")
        .set("batch.size", batch_bytes.to_string())
        // Where a record's partition is not given, it goes where a Java producer would put its key.
        .set("partitioner", "murmur2_random");
    if let Some(records) = records_a_batch {
        client.set("batch.num.messages", records.to_string());
    }
    if config.worker.delivery == Delivery::ExactlyOnce {
        client
            .set("transactional.id", transactional_id)
            .set("transaction.timeout.ms", config.worker.transaction_timeout.as_millis().to_string());
    }
    client
}

/// A client that writes to input topics for others, who wait.
pub(super) fn input_writer(config: &Config, partitioner: Partitioner) -> ClientConfig {
    let mut client = with_defaults(
        &config.kafka,
        &[
            ("linger.ms", "2"),
            ("compression.type", "lz4"),
            ("queue.buffering.max.messages", "100000"),
            ("queue.buffering.max.kbytes", "65536"),
        ],
    );
    client
        .set("bootstrap.servers", &config.kafka.bootstrap_servers)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        // Somebody waits; a worker may be told to try for longer.
        .set(first_name("message.timeout.ms"), "10000")
        // So that an idle producer still hears of its brokers, and of their loss.
        .set("topic.metadata.refresh.interval.ms", "10000")
        .set(
            "partitioner",
            match partitioner {
                Partitioner::Murmur2 => "murmur2_random",
                Partitioner::Crc32 => "consistent_random",
            },
        );
    client
}

/// Whether librdkafka is to log what it does: who sets `debug` wants to read it.
pub(super) fn debugs(kafka: &Kafka) -> bool {
    kafka.properties.get("debug").is_some_and(|contexts| !contexts.is_empty())
}

fn with_defaults(kafka: &Kafka, defaults: &[(&str, &str)]) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("client.id", "unseen").set_log_level(if debugs(kafka) { RDKafkaLogLevel::Debug } else { RDKafkaLogLevel::Info });
    for (name, value) in defaults {
        client.set(first_name(name), *value);
    }
    for (name, value) in &kafka.properties {
        client.set(name, value);
    }
    client
}

/// Checks that librdkafka knows the configured properties and takes their values, each and together: makes the clients that
/// `run` makes. They know no broker to talk to.
///
/// # Errors
/// An [`Error::Property`] for each property that librdkafka refuses, or one for what does not fit together.
pub fn check_properties(config: &Config) -> Result<(), Vec<Error>> {
    let refused = |(name, value): (&String, &String)| ClientConfig::new().set(name, value).create_native_config().err();
    let refused: Vec<_> = config.kafka.properties.iter().filter_map(refused).map(|error| property_error(&error)).collect();
    if refused.is_empty() { check_together(config).map_err(|error| vec![error]) } else { Err(refused) }
}

/// Checks what depends on more than one property.
fn check_together(config: &Config) -> Result<(), Error> {
    security::check(&config.kafka).map_err(Error::Property)?;
    let consumer = consumer(config, None, 0);
    let number = |name| consumer.get(name).and_then(|text| text.parse::<u64>().ok());
    if let (Some(heartbeat), Some(session)) = (number("heartbeat.interval.ms"), number("session.timeout.ms"))
        && heartbeat >= session
    {
        let message = format!("heartbeat.interval.ms ({heartbeat}) must be less than session.timeout.ms ({session}), best a third of it");
        return Err(Error::Property(message));
    }
    if let Some(fetch) = number("fetch.max.bytes").filter(|&bytes| bytes < FETCH_BYTES_MIN) {
        // It is a limit on what a fetch brings of all partitions, and a larger record comes all the same.
        let message = format!("fetch.max.bytes ({fetch}) must be at least {FETCH_BYTES_MIN}; it does not limit the size of a record");
        return Err(Error::Property(message));
    }
    // With as long a linger as it may have.
    let producer = producer(config, "check", u32::MAX, BATCH_BYTES, None);
    for (mut client, kind) in [(consumer, RDKafkaType::RD_KAFKA_CONSUMER), (producer, RDKafkaType::RD_KAFKA_PRODUCER)] {
        client.remove("bootstrap.servers");
        let native = client.create_native_config().map_err(|error| property_error(&error))?;
        Client::new(&client, native, kind, Observer::new(config)).map_err(|error| property_error(&error))?;
    }
    Ok(())
}

/// What librdkafka refuses, in its own words unless they may hold a secret.
pub(super) fn property_error(error: &KafkaError) -> Error {
    match error {
        KafkaError::ClientConfig(_, words, name, value) => {
            let shows_value = words.contains(value.as_str()) && value.parse::<f64>().is_err();
            if is_secret(name) || shows_value {
                Error::Property(format!("librdkafka does not take this value of {name:?}"))
            } else {
                Error::Property(format!("librdkafka does not take {name:?}: {}", words.trim_end_matches('.')))
            }
        }
        KafkaError::ClientCreation(message) => Error::Property(match message.split_once(" failed: ") {
            Some((name, why)) if name.starts_with("ssl.") => {
                format!("{name}: OpenSSL does not take it ({why}); is it in PEM, a keystore in PKCS #12, and its password right?")
            }
            _ => message.clone(),
        }),
        other => Error::Property(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::delivery_timeout;

    /// With these lines for `[kafka.properties]`.
    fn config(properties: &str) -> Config {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("unseen.toml");
        let topic = "[[topics]]\ninput = \"in\"\noutput = \"out\"\nkey = { record = \"key\" }\nwindow = { keys = 10 }\n";
        let text = format!("[kafka]\nbootstrap_servers = \"localhost:1\"\n[kafka.properties]\n{properties}\n{topic}");
        std::fs::write(&file, text).unwrap();
        Config::load(&file, &[]).unwrap()
    }

    #[test]
    fn records_may_take_as_long_as_either_timeout_lets_them() {
        let millis = |properties| delivery_timeout(&config(properties)).as_millis();
        assert_eq!(
            [millis(""), millis("\"delivery.timeout.ms\" = 3000"), millis("\"topic.message.timeout.ms\" = 4000")],
            [10_000, 3000, 4000]
        );
    }

    #[test]
    fn a_property_prevails_over_a_default_by_either_name() {
        for name in ["queue.buffering.max.ms", "linger.ms"] {
            let config = config(&format!("\"{name}\" = 77"));
            for _ in 0..50 {
                // The order of its map is another one each time.
                let native = producer(&config, "a", 4, BATCH_BYTES, None).create_native_config().unwrap();
                assert_eq!(native.get("linger.ms").unwrap(), "77", "{name}");
            }
        }
    }

    #[test]
    fn records_linger_by_partitions_and_commit_interval_unless_they_can_be_read_at_once() {
        for (worker, partitions, linger) in [
            ("", 4, "5"),
            ("", 20, "20"),
            ("", 1_000, "50"),
            ("[worker]\ncommit_interval = \"10ms\"", 1_000, "5"),
            ("[worker]\ncommit_interval = \"5s\"", 100, "100"),
            ("[worker]\ncommit_interval = \"5s\"", u32::MAX, "250"),
            ("[worker]\ndelivery = \"at_least_once\"\ncommit_interval = \"5s\"", 1_000, "5"),
        ] {
            let native = producer(&config(worker), "a", partitions, BATCH_BYTES, None).create_native_config().unwrap();
            assert_eq!(native.get("linger.ms").unwrap(), linger, "{worker} {partitions}");
        }
    }

    #[test]
    fn what_librdkafka_refuses_of_a_client_is_found() {
        for (properties, what) in [
            ("\"session.timeout.ms\" = 400000", "`max.poll.interval.ms`must be >= `session.timeout.ms`"),
            ("\"session.timeout.ms\" = 2000", "heartbeat.interval.ms (2000) must be less than session.timeout.ms (2000)"),
            ("\"socket.timeout.ms\" = 60000", "`socket.timeout.ms` must be set <= `transaction.timeout.ms` + 100"),
            ("\"delivery.timeout.ms\" = 60000", "`message.timeout.ms` must be set <= `transaction.timeout.ms`"),
            ("\"topic.message.timeout.ms\" = 60000", "`message.timeout.ms` must be set <= `transaction.timeout.ms`"),
            ("\"fetch.max.bytes\" = 1000", "fetch.max.bytes (1000) must be at least 1000000; it does not limit the size of a record"),
            ("\"max.in.flight.requestz\" = 1", "No such configuration property: \"max.in.flight.requestz\""),
            ("\"fetch.wait.max.ms\" = 400000", "\"fetch.wait.max.ms\" value 400000 is outside allowed range 0..300000"),
        ] {
            let error = refused(properties).join("\n");
            assert!(error.contains(what), "{properties}: {error}");
        }
        assert_eq!(refused("\"session.timeout.ms\" = 30000"), [""; 0]);
    }

    /// All messages about these properties.
    fn refused(properties: &str) -> Vec<String> {
        let errors = check_properties(&config(properties)).err().unwrap_or_default();
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_property_that_librdkafka_refuses_is_named_and_no_secret_is_shown() {
        let all = refused("\"no.such\" = 1\n\"security.protocol\" = \"s3cret\"\n\"sasl.passwordd\" = \"s3cret\"\n\"nor.such\" = 2");
        assert_eq!(
            all,
            [
                "kafka.properties: librdkafka does not take \"no.such\": No such configuration property: \"no.such\"",
                "kafka.properties: librdkafka does not take \"nor.such\": No such configuration property: \"nor.such\"",
                "kafka.properties: librdkafka does not take this value of \"sasl.passwordd\"",
                "kafka.properties: librdkafka does not take this value of \"security.protocol\"",
            ]
        );
    }

    #[test]
    fn files_that_are_not_in_pem_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file.pem");
        std::fs::write(&file, "garbage").unwrap();
        for name in ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.crl.location"] {
            let properties = format!("\"security.protocol\" = \"SSL\"\n\"{name}\" = {file:?}");
            let error = refused(&properties).join("\n");
            assert!(error.contains(&format!("{name}: OpenSSL does not take it")), "{error}");
        }
    }
}
