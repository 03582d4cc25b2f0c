//! librdkafka's own properties: passed through, but for those that unseen depends on.
//!
//! Must never let a value into a message: it may be a secret.

use super::error::Diagnostics;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// librdkafka's properties as they are written. Its faults never show a value.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct Properties(pub(super) BTreeMap<String, Value>);

impl TryFrom<Value> for Properties {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        match value {
            Value::Object(table) => Ok(Self(table.into_iter().collect())),
            _ => Err("expected a table of librdkafka properties"),
        }
    }
}

/// Properties that unseen sets itself, and what to do instead. Taking them from a file would break a promise.
pub(super) const OWNED: [(&str, &str); 27] = [
    ("acks", "unseen always waits for all replicas in sync"),
    ("auto.commit.enable", "unseen commits offsets with its outputs; see worker.commit_interval"),
    ("auto.commit.interval.ms", "use worker.commit_interval"),
    ("auto.offset.reset", "use kafka.start"),
    ("batch.size", "unseen sizes batches by what the output topics take"),
    ("bootstrap.servers", "use kafka.bootstrap_servers"),
    ("delivery.diagnostics.only.error", "unseen counts every delivery"),
    ("enable.auto.commit", "unseen commits offsets with its outputs; see worker.commit_interval"),
    ("enable.auto.offset.store", "unseen commits offsets with its outputs"),
    ("enable.idempotence", "unseen always writes idempotently"),
    ("enable.partition.eof", "unseen depends on its default"),
    ("group.id", "use kafka.group_id"),
    ("group.instance.id", "use kafka.instance_id"),
    ("group.protocol", CLASSIC),
    ("group.remote.assignor", CLASSIC),
    ("isolation.level", "unseen reads only what was committed"),
    ("max.in.flight", "unseen depends on the order of records"),
    ("max.in.flight.requests.per.connection", "unseen depends on the order of records"),
    ("message.max.bytes", "unseen takes the output topic's own limit"),
    ("message.send.max.retries", "unseen never gives up a record"),
    ("metadata.broker.list", "use kafka.bootstrap_servers"),
    ("partition.assignment.strategy", "unseen chooses it by the topics' key spaces"),
    ("partitioner", "unseen keeps a record's partition, or places it by its key as Java clients do"),
    ("request.required.acks", "unseen always waits for all replicas in sync"),
    ("retries", "unseen never gives up a record"),
    ("transaction.timeout.ms", "use worker.transaction_timeout"),
    ("transactional.id", "unseen makes it from kafka.group_id and kafka.instance_id"),
];

const CLASSIC: &str = "unseen uses the classic protocol; it will support \"consumer\" (KIP-848) after its crash tests pass with librdkafka 2.15 or newer, which fixes errors in that protocol";

/// Properties that only Kafka's Java clients have, and what to do instead.
const JAVA: [(&str, &str); 40] = [
    ("auto.include.jmx.reporter", NOT_NEEDED),
    ("buffer.memory", "use queue.buffering.max.kbytes"),
    ("default.api.timeout.ms", NOT_NEEDED),
    ("exclude.internal.topics", NOT_NEEDED),
    ("fetch.max.wait.ms", "use fetch.wait.max.ms"),
    ("interceptor.classes", NOT_NEEDED),
    ("key.deserializer", BYTES),
    ("key.serializer", BYTES),
    ("max.block.ms", NOT_NEEDED),
    ("max.poll.records", "leave it out; worker.max_transaction_records limits what a transaction carries"),
    ("max.request.size", "leave it out; unseen takes the output topic's own limit, max.message.bytes"),
    ("metadata.max.idle.ms", NOT_NEEDED),
    ("metric.reporters", METRICS),
    ("metrics.num.samples", METRICS),
    ("metrics.recording.level", METRICS),
    ("metrics.sample.window.ms", METRICS),
    ("partitioner.class", "leave it out; unseen keeps a record's partition, or places it by its key as Java clients do"),
    ("receive.buffer.bytes", "use socket.receive.buffer.bytes"),
    ("sasl.client.callback.handler.class", LOGIN),
    ("sasl.jaas.config", LOGIN),
    ("sasl.login.callback.handler.class", LOGIN),
    ("sasl.login.class", LOGIN),
    ("security.providers", OPENSSL),
    ("send.buffer.bytes", "use socket.send.buffer.bytes"),
    ("ssl.enabled.protocols", OPENSSL),
    ("ssl.engine.factory.class", OPENSSL),
    ("ssl.keymanager.algorithm", OPENSSL),
    ("ssl.keystore.certificate.chain", "use ssl.certificate.pem"),
    ("ssl.keystore.key", "use ssl.key.pem"),
    (
        "ssl.keystore.type",
        "leave it out; ssl.keystore.location takes PKCS #12, which `keytool -importkeystore -deststoretype PKCS12` makes of a JKS keystore",
    ),
    ("ssl.protocol", OPENSSL),
    ("ssl.provider", OPENSSL),
    ("ssl.secure.random.implementation", OPENSSL),
    ("ssl.trustmanager.algorithm", OPENSSL),
    ("ssl.truststore.certificates", "use ssl.ca.pem"),
    ("ssl.truststore.location", "use ssl.ca.location, with the CA's certificate in PEM, as `keytool -exportcert -rfc` prints it"),
    ("ssl.truststore.password", "leave it out; the file of ssl.ca.location has no password"),
    ("ssl.truststore.type", "leave it out; the file of ssl.ca.location is in PEM"),
    ("value.deserializer", BYTES),
    ("value.serializer", BYTES),
];
const NOT_NEEDED: &str = "leave it out";
const BYTES: &str = "leave it out; unseen copies keys and values byte for byte";
const LOGIN: &str = "use sasl.mechanism with sasl.username and sasl.password, with sasl.oauthbearer.*, or sasl.mechanism AWS_MSK_IAM";
const METRICS: &str = "leave it out; http.listen serves metrics";
const OPENSSL: &str = "leave it out; unseen uses OpenSSL";

/// librdkafka's second names of its properties, each with the first.
const ALIASES: [(&str, &str); 12] = [
    ("acks", "request.required.acks"),
    ("bootstrap.servers", "metadata.broker.list"),
    ("compression.type", "compression.codec"),
    ("delivery.timeout.ms", "message.timeout.ms"),
    ("enable.auto.commit", "auto.commit.enable"),
    ("linger.ms", "queue.buffering.max.ms"),
    ("max.in.flight", "max.in.flight.requests.per.connection"),
    ("max.partition.fetch.bytes", "fetch.message.max.bytes"),
    ("retries", "message.send.max.retries"),
    ("sasl.mechanism", "sasl.mechanisms"),
    ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id"),
    ("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret"),
];

/// What stands before the name of a property that is of topics.
const OF_TOPICS: &str = "topic.";

/// The first name of a property that may be named by its second one.
pub(crate) fn first_name(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, first)| first)
}

/// What a property sets: the same for all of its names.
fn target(name: &str) -> &str {
    first_name(name.strip_prefix(OF_TOPICS).unwrap_or(name))
}

/// Whether a property is text even where it looks like a number: names, passwords and the like.
fn is_text(name: &str) -> bool {
    let of_clients = ["sasl.", "ssl.", "client."].iter().any(|prefix| name.starts_with(prefix));
    // The only number among them.
    of_clients && name != "sasl.kerberos.min.time.before.relogin"
}

/// Path of the properties in the configuration.
pub(super) const PATH: &str = "kafka.properties";

/// Takes text, numbers and booleans as librdkafka would read them, and refuses what is unseen's own or the Java clients'. Each
/// property gets its first name, so that none is set twice: librdkafka takes the last, and clients set theirs in no order.
pub(super) fn resolve(raw: &BTreeMap<String, Value>, diagnostics: &mut Diagnostics) -> BTreeMap<String, String> {
    let mut properties = BTreeMap::new();
    for (name, value) in raw {
        let path = format!("{PATH}.{name}");
        if let Some((_, instead)) = OWNED.iter().find(|(owned, _)| target(owned) == target(name)) {
            diagnostics.add(&path, format!("set by unseen and not to be changed: {instead}"));
            continue;
        }
        if let Some((_, instead)) = JAVA.iter().find(|(java, _)| *java == target(name)) {
            diagnostics.add(&path, format!("only Kafka's Java clients have this property: {instead}"));
            continue;
        }
        if let Some(other) = raw.keys().take_while(|other| *other != name).find(|other| target(other) == target(name)) {
            diagnostics.add(&path, format!("sets the same as {other:?}; keep one of them"));
            continue;
        }
        let first = match name.strip_prefix(OF_TOPICS) {
            Some(of_topics) => OF_TOPICS.to_owned() + first_name(of_topics),
            None => first_name(name).to_owned(),
        };
        match value {
            Value::Number(_) | Value::Bool(_) if is_text(name) => {
                diagnostics.add(&path, "expected text in quotes: without them, 0123 becomes 123 and yes becomes true");
                None
            }
            Value::String(text) => properties.insert(first, text.clone()),
            Value::Number(number) => properties.insert(first, number.to_string()),
            Value::Bool(switch) => properties.insert(first, switch.to_string()),
            _ => {
                diagnostics.add(&path, "expected text, a number, true or false");
                None
            }
        };
    }
    properties
}
