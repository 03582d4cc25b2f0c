//! The librdkafka properties that a configuration can set. Properties that unseen sets itself are rejected.
//!
//! Error messages never show a value, because the value may be a secret.

use super::error::Diagnostics;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

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

/// Properties that unseen sets itself, each with advice for the error message. Another value would break a guarantee of unseen or
/// contradict one of its options.
pub(super) const OWNED: [(&str, &str); 27] = [
    ("acks", "remove it: unseen always waits for all in-sync replicas"),
    ("auto.commit.enable", "remove it: unseen commits offsets together with its outputs, every worker.commit_interval"),
    ("auto.commit.interval.ms", "use worker.commit_interval"),
    ("auto.offset.reset", "use kafka.start"),
    ("batch.size", "remove it: unseen derives the batch size from the output topics' max.message.bytes"),
    ("bootstrap.servers", "use kafka.bootstrap_servers"),
    ("delivery.report.only.error", "remove it: unseen needs reports of failed deliveries only"),
    ("enable.auto.commit", "remove it: unseen commits offsets together with its outputs, every worker.commit_interval"),
    ("enable.auto.offset.store", "remove it: unseen commits offsets together with its outputs"),
    ("enable.idempotence", "remove it: unseen always uses an idempotent producer"),
    ("enable.partition.eof", "remove it: unseen's clients need different values"),
    ("group.id", "use kafka.group_id"),
    ("group.instance.id", "use kafka.instance_id"),
    ("group.protocol", CLASSIC),
    ("group.remote.assignor", CLASSIC),
    ("isolation.level", "remove it: unseen reads only committed records"),
    ("max.in.flight", "remove it: unseen requires records in order"),
    ("max.in.flight.requests.per.connection", "remove it: unseen requires records in order"),
    ("message.max.bytes", "remove it: unseen uses the output topics' max.message.bytes"),
    ("message.send.max.retries", "remove it: unseen retries until a record is written"),
    ("metadata.broker.list", "use kafka.bootstrap_servers"),
    ("partition.assignment.strategy", "remove it: unseen chooses the strategy, depending on the topics' key spaces"),
    ("partitioner", "remove it: unseen keeps a record's partition, or chooses it by key like Java clients"),
    ("request.required.acks", "remove it: unseen always waits for all in-sync replicas"),
    ("retries", "remove it: unseen retries until a record is written"),
    ("transaction.timeout.ms", "use worker.transaction_timeout"),
    ("transactional.id", "remove it: unseen derives the id from kafka.group_id and kafka.instance_id"),
];

const CLASSIC: &str = "remove it: unseen uses the classic protocol and will support \"consumer\" (KIP-848) after its crash tests pass with librdkafka 2.15 or newer, which fixes errors in that protocol";

/// Properties that only Kafka's Java clients have, each with advice for the error message. librdkafka rejects unknown properties, too, but
/// without advice.
const JAVA: [(&str, &str); 17] = [
    ("buffer.memory", "use queue.buffering.max.kbytes"),
    ("fetch.max.wait.ms", "use fetch.wait.max.ms"),
    ("max.poll.records", "remove it: worker.max_transaction_records limits the size of a transaction"),
    ("max.request.size", "remove it: unseen uses the output topics' max.message.bytes"),
    ("receive.buffer.bytes", "use socket.receive.buffer.bytes"),
    ("sasl.client.callback.handler.class", LOGIN),
    ("sasl.jaas.config", LOGIN),
    ("sasl.login.callback.handler.class", LOGIN),
    ("sasl.login.class", LOGIN),
    ("send.buffer.bytes", "use socket.send.buffer.bytes"),
    ("ssl.keystore.certificate.chain", "use ssl.certificate.pem"),
    ("ssl.keystore.key", "use ssl.key.pem"),
    (
        "ssl.keystore.type",
        "remove it: ssl.keystore.location must be in PKCS #12, and `keytool -importkeystore -deststoretype PKCS12` converts a JKS keystore",
    ),
    ("ssl.truststore.certificates", "use ssl.ca.pem"),
    ("ssl.truststore.location", "use ssl.ca.location with the CA certificate in PEM, which `keytool -exportcert -rfc` prints"),
    ("ssl.truststore.password", "remove it: the file in ssl.ca.location has no password"),
    ("ssl.truststore.type", "remove it: the file in ssl.ca.location is in PEM"),
];
const LOGIN: &str = "use sasl.mechanism with sasl.username and sasl.password, sasl.mechanism OAUTHBEARER with sasl.oauthbearer.*, or sasl.mechanism AWS_MSK_IAM";

/// librdkafka's aliases of properties, each with its primary name.
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

/// librdkafka accepts properties of topics with or without this prefix.
const OF_TOPICS: &str = "topic.";

/// Returns the primary name of a property. `name` can be an alias or the primary name.
pub(crate) fn first_name(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, first)| first)
}

/// Returns the primary name without the prefix of topic properties. Two properties with the same result set the same value.
fn target(name: &str) -> &str {
    first_name(name.strip_prefix(OF_TOPICS).unwrap_or(name))
}

/// True if the value of a property is text, such as a name or a password, even if it looks like a number.
fn is_text(name: &str) -> bool {
    let of_clients = ["sasl.", "ssl.", "client."].iter().any(|prefix| name.starts_with(prefix));
    // This property is the only number among the properties with these prefixes that unseen passes to librdkafka.
    of_clients && name != "sasl.kerberos.min.time.before.relogin"
}

pub(super) const PATH: &str = "kafka.properties";

/// Converts values to text for librdkafka. Rejects the properties that unseen sets itself and the properties that only Java clients have.
/// Renames each property to its primary name. If two names mean the same property, rejects the second name. Otherwise, librdkafka would use
/// the last of the two values, and their order is not defined.
pub(super) fn resolve(raw: &BTreeMap<String, Value>, diagnostics: &mut Diagnostics) -> BTreeMap<String, String> {
    let mut properties = BTreeMap::new();
    for (name, value) in raw {
        let path = format!("{PATH}.{name}");
        if let Some((_, instead)) = OWNED.iter().find(|(owned, _)| target(owned) == target(name)) {
            diagnostics.add(&path, format!("unseen sets this property itself; {instead}"));
            continue;
        }
        if let Some((_, instead)) = JAVA.iter().find(|(java, _)| *java == target(name)) {
            diagnostics.add(&path, format!("only Kafka's Java clients have this property; {instead}"));
            continue;
        }
        if let Some(other) = raw.keys().take_while(|other| *other != name).find(|other| target(other) == target(name)) {
            diagnostics.add(&path, format!("sets the same property as {other:?}; remove one of the two"));
            continue;
        }
        let first = match name.strip_prefix(OF_TOPICS) {
            Some(of_topics) => OF_TOPICS.to_owned() + first_name(of_topics),
            None => first_name(name).to_owned(),
        };
        match value {
            Value::Number(_) | Value::Bool(_) if is_text(name) => {
                diagnostics.add(&path, "expected text in quotes, because YAML reads 0123 as 123");
                None
            }
            Value::String(text) => properties.insert(first, text.clone()),
            Value::Number(number) => properties.insert(first, number.to_string()),
            Value::Bool(switch) => properties.insert(first, switch.to_string()),
            _ => {
                diagnostics.add(&path, "expected text, a number, true, or false");
                None
            }
        };
    }
    properties
}
