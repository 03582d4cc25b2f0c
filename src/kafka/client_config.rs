//! Configuration of the librdkafka clients.
//!
//! Defines our defaults and the properties that `kafka.properties` cannot override.

use super::Error;
use super::ffi::{LoggedIn, Native};
use super::observer::Observer;
use super::security;
use crate::config::{Config, Delivery, Kafka, Partitioner, first_name, is_secret};
use rdkafka::ClientConfig;
use rdkafka::client::{Client, ClientContext};
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaConfRes, RDKafkaType};
use std::time::Duration;

pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of a batch in bytes: the brokers' default `max.message.bytes`, minus a margin.
pub(super) const BATCH_BYTES: usize = 1_000_000;

/// The largest `message.max.bytes` that librdkafka accepts. With this value, librdkafka does not reject large records, and the broker
/// enforces the limit of each topic.
const RECORD_BYTES_MAX: &str = "1000000000";

/// The smallest `fetch.max.bytes` that librdkafka accepts. librdkafka rejects values below the default of `message.max.bytes`.
const FETCH_BYTES_MIN: u64 = 1_000_000;

/// Creates a client. If `kafka.oauth` is set, the client logs in with tokens from that source.
pub(super) fn create<T, C>(client: &ClientConfig, kafka: &Kafka, context: C) -> Result<LoggedIn<T>, KafkaError>
where
    T: FromClientConfigAndContext<C> + Native,
    C: ClientContext,
{
    Ok(LoggedIn::new(T::from_config_and_context(client, context)?, kafka.oauth.as_ref()))
}

/// Creates a consumer that keeps its most informative error.
pub(super) fn observe(config: &Config, client: &ClientConfig) -> Result<LoggedIn<BaseConsumer<Observer>>, Error> {
    create(client, &config.kafka, Observer::new(config)).map_err(|error| property_error(&error))
}

/// Configures a client for metadata and admin requests.
pub(super) fn observer(kafka: &Kafka) -> ClientConfig {
    with_defaults(kafka, &[])
}

pub(super) fn consumer(config: &Config, instance: Option<&str>, worker: usize) -> ClientConfig {
    let mut client = with_defaults(
        &config.kafka,
        &[
            // The group notices a dead process after 10 seconds. librdkafka's default is 45.
            ("session.timeout.ms", "10000"),
            ("heartbeat.interval.ms", "2000"),
            // Prefetched records dominate a worker's memory, so `queued.min.messages` and `fetch.max.bytes` are lower than librdkafka's
            // defaults of 100,000 records and 50 MiB.
            ("queued.min.messages", "20000"),
            ("fetch.max.bytes", "8388608"),
            // librdkafka pauses fetching for `fetch.queue.backoff.ms` when its queue is full. With the default of one second, a fast
            // consumer would empty the queue and then wait.
            ("fetch.queue.backoff.ms", "5"),
        ],
    );
    client
        .set("group.id", &config.kafka.group_id)
        .set("group.protocol", "classic")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("isolation.level", "read_committed")
        // The worker decides what to do about an offset that no longer exists. A silent reset could skip records.
        .set("auto.offset.reset", "error")
        // Topics that share a key space wait until all of them have warmed up. The last offset of a warm-up may be a transaction marker
        // instead of a record. In this case, only the end-of-partition event tells the worker that the warm-up has reached its end.
        .set("enable.partition.eof", if config.shares_spaces() { "true" } else { "false" })
        // If topics share a key space, partitions with the same number share a state, and `range` assigns them to the same member. Static
        // members also need `range`. If a static member is killed between the two rounds of a cooperative rebalance, it rejoins without a
        // rebalance. The partitions that it had to release would then have no owner until the next rebalance.
        .set("partition.assignment.strategy", if instance.is_some() || config.shares_spaces() { "range" } else { "cooperative-sticky" });
    if let Some(instance) = instance {
        client.set("group.instance.id", format!("{instance}-{worker}"));
    }
    client
}

pub(super) fn changelog_reader(config: &Config, isolation: &str) -> ClientConfig {
    // Fetches are large, because a rebuild reads a partition from start to end.
    reader(config, isolation, &[("fetch.message.max.bytes", "8388608"), ("fetch.wait.max.ms", "50")])
}

pub(super) fn changelog_tail(config: &Config) -> ClientConfig {
    let defaults = [
        ("fetch.message.max.bytes", "8388608"),
        ("fetch.max.bytes", "8388608"),
        ("queued.max.messages.kbytes", "16384"),
        ("fetch.wait.max.ms", "500"),
    ];
    reader(config, "read_committed", &defaults)
}

pub(super) fn capture(config: &Config) -> ClientConfig {
    // A capture uses most of its memory for prefetched records, so limit the queue.
    let defaults = [("fetch.max.bytes", "8388608"), ("queued.max.messages.kbytes", "32768"), ("fetch.wait.max.ms", "50")];
    reader(config, "read_committed", &defaults)
}

/// Configures a client that reads assigned partitions without joining the group.
fn reader(config: &Config, isolation: &str, defaults: &[(&str, &str)]) -> ClientConfig {
    let mut client = with_defaults(&config.kafka, &[&[("fetch.queue.backoff.ms", "5")], defaults].concat());
    client
        // librdkafka requires a group id to assign partitions. The client does not join the group.
        .set("group.id", &config.kafka.group_id)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "error")
        .set("isolation.level", isolation);
    client
}

/// Configures a worker's producer. With exactly-once delivery, `linger.ms` depends on `partitions`, the number of input partitions.
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
            // librdkafka waits for a coordinator without a timeout, until the state of any connection changes (rd_kafka_coord_req_fsm in
            // rdkafka_coord.c). If a coordinator is lost, closing an idle connection ends the wait.
            ("connections.max.idle.ms", "30000"),
        ],
    );
    client
        .set("enable.idempotence", "true")
        .set("message.max.bytes", RECORD_BYTES_MAX)
        // An idle producer must notice added and removed brokers.
        .set("topic.metadata.refresh.interval.ms", "10000")
        .set("batch.size", batch_bytes.to_string())
        // Records without an explicit partition go to the partition that a Java producer would choose.
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
        .set("enable.idempotence", "true")
        .set("acks", "all")
        // A client of `unseen serve` waits for the result, so librdkafka must not retry a write for five minutes, which is librdkafka's
        // default.
        .set(first_name("message.timeout.ms"), "10000")
        // An idle producer must notice added and removed brokers.
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

/// True if `kafka.properties` enables librdkafka's debug log.
pub(super) fn debugs(kafka: &Kafka) -> bool {
    kafka.properties.get("debug").is_some_and(|contexts| !contexts.is_empty())
}

fn with_defaults(kafka: &Kafka, defaults: &[(&str, &str)]) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", &kafka.bootstrap_servers).set("client.id", "unseen");
    client.set_log_level(if debugs(kafka) { RDKafkaLogLevel::Debug } else { RDKafkaLogLevel::Info });
    for (name, value) in defaults {
        client.set(first_name(name), *value);
    }
    for (name, value) in &kafka.properties {
        client.set(name, value);
    }
    client
}

/// Checks that librdkafka accepts each configured property, and then that the properties are valid together. Creates a consumer and a
/// producer as `run` does, but without a broker to connect to.
///
/// # Errors
/// Returns an [`Error::Property`] for each rejected property, or one for an invalid combination.
pub fn check_properties(config: &Config) -> Result<(), Vec<Error>> {
    let refused = |(name, value): (&String, &String)| ClientConfig::new().set(name, value).create_native_config().err();
    let refused: Vec<_> = config.kafka.properties.iter().filter_map(refused).map(|error| property_error(&error)).collect();
    if refused.is_empty() { check_together(config).map_err(|error| vec![error]) } else { Err(refused) }
}

fn check_together(config: &Config) -> Result<(), Error> {
    security::check(&config.kafka).map_err(Error::Property)?;
    let consumer = consumer(config, None, 0);
    let number = |name| consumer.get(name).and_then(|text| text.parse::<u64>().ok());
    if let (Some(heartbeat), Some(session)) = (number("heartbeat.interval.ms"), number("session.timeout.ms"))
        && heartbeat >= session
    {
        let message = format!(
            "heartbeat.interval.ms ({heartbeat}) must be less than session.timeout.ms ({session}); a third of session.timeout.ms is recommended"
        );
        return Err(Error::Property(message));
    }
    if let Some(fetch) = number("fetch.max.bytes").filter(|&bytes| bytes < FETCH_BYTES_MIN) {
        // `fetch.max.bytes` limits a whole fetch: brokers return a larger record anyway. The message explains this to users who want to
        // limit the size of records.
        let message =
            format!("fetch.max.bytes ({fetch}) must be at least {FETCH_BYTES_MIN}; this property does not limit the size of a record");
        return Err(Error::Property(message));
    }
    // `u32::MAX` partitions result in the longest possible linger time, which `delivery.timeout.ms` must exceed.
    let producer = producer(config, "check", u32::MAX, BATCH_BYTES, None);
    for (mut client, kind) in [(consumer, RDKafkaType::RD_KAFKA_CONSUMER), (producer, RDKafkaType::RD_KAFKA_PRODUCER)] {
        client.remove("bootstrap.servers");
        let native = client.create_native_config().map_err(|error| property_error(&error))?;
        Client::new(&client, native, kind, Observer::new(config)).map_err(|error| property_error(&error))?;
    }
    Ok(())
}

/// Converts librdkafka's error about a property. Leaves out librdkafka's message if the message may contain a secret.
pub(super) fn property_error(error: &KafkaError) -> Error {
    match error {
        KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, _, name, _) => Error::Property(format!(
            "librdkafka has no property {name:?}; correct the name, or remove the property if only Kafka's Java clients have it"
        )),
        KafkaError::ClientConfig(_, message, name, value) => {
            let shows_value = message.contains(value.as_str()) && value.parse::<f64>().is_err();
            if is_secret(name) || shows_value {
                Error::Property(format!(
                    "librdkafka rejects the value of {name:?} (not shown, because it may be a secret); check the value"
                ))
            } else {
                Error::Property(format!("librdkafka rejects {name:?}: {}", message.trim_end_matches('.')))
            }
        }
        KafkaError::ClientCreation(message) => Error::Property(match message.split_once(" failed: ") {
            Some((name, why)) if name.starts_with("ssl.") => {
                format!(
                    "{name}: OpenSSL cannot read the file or value ({why}); check that it is in PEM (or, for a keystore, in PKCS #12) and that the password is correct"
                )
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

    fn config(properties: &str) -> Config {
        let topic = "[[topics]]\ninput = \"in\"\noutput = \"out\"\nkey = { record = \"key\" }\nwindow = { keys = 10 }\n";
        Config::of_text(&format!("[kafka]\nbootstrap_servers = \"localhost:1\"\n[kafka.properties]\n{properties}\n{topic}"))
    }

    #[test]
    fn delivery_timeout_follows_either_property() {
        let millis = |properties| delivery_timeout(&config(properties)).as_millis();
        assert_eq!(
            [millis(""), millis("\"delivery.timeout.ms\" = 3000"), millis("\"topic.message.timeout.ms\" = 4000")],
            [10_000, 3000, 4000]
        );
    }

    #[test]
    fn property_overrides_a_default_under_either_name() {
        for name in ["queue.buffering.max.ms", "linger.ms"] {
            let config = config(&format!("\"{name}\" = 77"));
            for _ in 0..50 {
                // rdkafka passes the properties to librdkafka in the order of a hash map. This order varies, so one attempt could succeed
                // by chance.
                let native = producer(&config, "a", 4, BATCH_BYTES, None).create_native_config().unwrap();
                assert_eq!(native.get("linger.ms").unwrap(), "77", "{name}");
            }
        }
    }

    #[test]
    fn linger_depends_on_partitions_and_commit_interval_with_transactions() {
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
    fn rejected_combinations_of_properties_are_reported() {
        for (properties, what) in [
            ("\"session.timeout.ms\" = 400000", "`max.poll.interval.ms`must be >= `session.timeout.ms`"),
            ("\"session.timeout.ms\" = 2000", "heartbeat.interval.ms (2000) must be less than session.timeout.ms (2000)"),
            ("\"socket.timeout.ms\" = 60000", "`socket.timeout.ms` must be set <= `transaction.timeout.ms` + 100"),
            ("\"delivery.timeout.ms\" = 60000", "`message.timeout.ms` must be set <= `transaction.timeout.ms`"),
            ("\"topic.message.timeout.ms\" = 60000", "`message.timeout.ms` must be set <= `transaction.timeout.ms`"),
            (
                "\"fetch.max.bytes\" = 1000",
                "fetch.max.bytes (1000) must be at least 1000000; this property does not limit the size of a record",
            ),
            ("\"max.in.flight.requestz\" = 1", "librdkafka has no property \"max.in.flight.requestz\"; correct the name"),
            ("\"max.block.ms\" = 1", "remove the property if only Kafka's Java clients have it"),
            ("\"fetch.wait.max.ms\" = 400000", "\"fetch.wait.max.ms\" value 400000 is outside allowed range 0..300000"),
        ] {
            let error = refused(properties).join("\n");
            assert!(error.contains(what), "{properties}: {error}");
        }
        assert_eq!(refused("\"session.timeout.ms\" = 30000"), [""; 0]);
    }

    fn refused(properties: &str) -> Vec<String> {
        let errors = check_properties(&config(properties)).err().unwrap_or_default();
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_rejected_property_is_reported_without_secrets() {
        let all = refused("\"no.such\" = 1\n\"security.protocol\" = \"s3cret\"\n\"sasl.passwordd\" = \"s3cret\"\n\"nor.such\" = 2");
        let unknown = |name: &str| {
            format!(
                "kafka.properties: librdkafka has no property {name:?}; correct the name, or remove the property if only Kafka's Java clients have it"
            )
        };
        assert_eq!(
            all,
            [
                unknown("no.such"),
                unknown("nor.such"),
                unknown("sasl.passwordd"),
                "kafka.properties: librdkafka rejects the value of \"security.protocol\" (not shown, because it may be a secret); check the value".to_owned(),
            ]
        );
    }

    #[test]
    fn files_that_are_not_in_pem_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file.pem");
        std::fs::write(&file, "garbage").unwrap();
        for name in ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.crl.location"] {
            let properties = format!("\"security.protocol\" = \"SSL\"\n\"{name}\" = {file:?}");
            let error = refused(&properties).join("\n");
            assert!(error.contains(&format!("{name}: OpenSSL cannot read the file or value")), "{error}");
        }
    }
}
