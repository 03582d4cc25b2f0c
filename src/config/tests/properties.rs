//! Tests of librdkafka properties and broker addresses.

use super::{MINIMAL, load};

#[test]
fn properties_of_java_clients_are_rejected_with_an_alternative() {
    let with = |lines: &str| load(&MINIMAL.replace("[[topics]]", &format!("[kafka.properties]\n{lines}\n[[topics]]"))).unwrap_err();
    let java = "only Kafka's Java clients have this property";
    assert_eq!(
        with("\"security.protocol\" = \"SSL\"\n\"ssl.truststore.location\" = \"/etc/t.jks\"\n\"ssl.truststore.password\" = \"s3cret\""),
        format!(
            "x.toml: kafka.properties.ssl.truststore.location: {java}; use ssl.ca.location with the CA certificate in PEM, which `keytool -exportcert -rfc` prints\n\
             x.toml: kafka.properties.ssl.truststore.password: {java}; remove it: the file in ssl.ca.location has no password"
        )
    );
    for rest in ["", "\"sasl.username\" = \"a\"\n\"sasl.password\" = \"p\""] {
        let module = "org.apache.kafka.common.security.plain.PlainLoginModule required username='a' password='s3cret';";
        let errors = with(&format!(
            "\"sasl.jaas.config\" = \"{module}\"\n\"security.protocol\" = \"SASL_SSL\"\n\"sasl.mechanism\" = \"PLAIN\"\n{rest}"
        ));
        assert_eq!(
            errors,
            format!(
                "x.toml: kafka.properties.sasl.jaas.config: {java}; use sasl.mechanism with sasl.username and sasl.password, sasl.mechanism OAUTHBEARER with sasl.oauthbearer.*, or sasl.mechanism AWS_MSK_IAM"
            )
        );
    }
    assert_eq!(
        with("\"max.request.size\" = 12000000\n\"max.partition.fetch.bytes\" = 12000000"),
        format!("x.toml: kafka.properties.max.request.size: {java}; remove it: unseen uses the output topics' max.message.bytes")
    );
}

fn refused_properties(properties: &str) -> String {
    load(&MINIMAL.replace("[[topics]]", &format!("[kafka.properties]\n{properties}\n[[topics]]"))).map(drop).unwrap_err()
}

#[test]
fn properties_are_recognized_by_all_their_names() {
    for (name, first) in [
        ("topic.auto.offset.reset", "use kafka.start"),
        ("topic.acks", "remove it: unseen always waits for all in-sync replicas"),
        ("topic.request.required.acks", "remove it: unseen always waits for all in-sync replicas"),
        ("auto.commit.enable", "remove it: unseen commits offsets together with its outputs, every worker.commit_interval"),
        ("metadata.broker.list", "use kafka.bootstrap_servers"),
        (
            "group.protocol",
            "remove it: unseen uses the classic protocol and will support \"consumer\" (KIP-848) after its crash tests pass with librdkafka 2.15 or newer, which fixes errors in that protocol",
        ),
    ] {
        let expected = format!("x.toml: kafka.properties.{name}: unseen sets this property itself; {first}");
        assert_eq!(refused_properties(&format!("\"{name}\" = \"1\"")), expected);
    }
    for (one, other) in [("linger.ms", "queue.buffering.max.ms"), ("message.timeout.ms", "topic.delivery.timeout.ms")] {
        let expected = format!("x.toml: kafka.properties.{other}: sets the same property as {one:?}; remove one of the two");
        assert_eq!(refused_properties(&format!("\"{one}\" = 1\n\"{other}\" = 1")), expected);
    }
    let config = load(&MINIMAL.replace("[[topics]]", "[kafka.properties]\n\"linger.ms\" = 3\n[[topics]]")).unwrap();
    assert_eq!(config.kafka.properties, [("queue.buffering.max.ms".to_owned(), "3".to_owned())].into());
}

#[test]
fn brokers_with_a_protocol_are_rejected() {
    for (servers, got) in
        [("http://a:9092", "http://a:9092"), ("a:9092, kafka://b:9092", "kafka://b:9092"), ("PLAINTEXT://a:9092", "PLAINTEXT://a:9092")]
    {
        let expected = format!(
            "x.toml: kafka.bootstrap_servers: expected host:port, got {got:?}; remove the part before the host: security.protocol in kafka.properties sets the protocol"
        );
        let text = MINIMAL.replace("localhost:9092", servers);
        assert_eq!(load(&text).unwrap_err(), expected);
    }
}
