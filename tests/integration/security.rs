//! Promise: a worker works with TLS and SASL, with only the documented permissions. Errors explain the cause and do not show secrets.

use crate::harness::{PATIENCE, Right, SecureBroker, Setup, grant, produce, secure_broker, topic, unique, unseen, wait_until};
use crate::stream::Stream;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The address of a listener, and the properties that clients need, except for their SASL mechanism and password.
pub fn listener(broker: &SecureBroker, protocol: &str) -> (String, BTreeMap<String, String>) {
    let text = broker.read(&format!("{protocol}.properties"));
    let pairs = text.lines().map(|line| line.split_once('=').expect("name=value"));
    let mut properties: BTreeMap<_, _> = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    (properties.remove("bootstrap.servers").expect("an address"), properties)
}

#[derive(Clone, Copy)]
struct Way<'a> {
    protocol: &'a str,
    /// The SASL mechanism. Empty without SASL.
    mechanism: &'a str,
    /// Properties that override the properties from scripts/kafka. By default, the password is `${file:...}`.
    instead: &'a [(&'a str, &'a str)],
}

const SSL: Way<'_> = Way { protocol: "ssl", mechanism: "", instead: &[] };
const SCRAM: Way<'_> = Way { protocol: "sasl_ssl", mechanism: "SCRAM-SHA-512", instead: &[] };

impl Way<'_> {
    fn secure(&self, broker: &SecureBroker, mut setup: Setup) -> Setup {
        let (address, mut properties) = listener(broker, self.protocol);
        if !self.mechanism.is_empty() {
            properties.insert("sasl.mechanism".to_owned(), self.mechanism.to_owned());
            properties.insert("sasl.password".to_owned(), format!("${{file:{}}}", broker.file("password").display()));
        }
        properties.extend(self.instead.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        for (name, value) in properties {
            setup = setup.properties(&format!("{name:?} = {value:?}"));
        }
        setup.servers(&address)
    }

    const fn user(&self) -> &'static str {
        if self.mechanism.is_empty() { "User:CN=unseen" } else { "User:unseen" }
    }

    /// A stream whose workers connect in this way. Their user has no permissions yet.
    fn stream(&self, hint: &str, count: usize) -> Stream {
        let broker = secure_broker();
        Stream::remembered(broker.address(), hint, count).with(|setup| self.secure(broker, setup))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Input,
    Output,
    Group,
    Transactions,
    /// The internal topics of the group.
    Topics,
}

impl Need {
    /// The message of `unseen check --connect` if this permission is missing.
    const fn report(self) -> &'static str {
        match self {
            Self::Input => "topics[0].input: this user lacks the permission Read on topic",
            Self::Output => "topics[0].output: this user lacks the permission Write on topic",
            Self::Group => "; give this user Read on group",
            Self::Transactions => "; give this user Write on transactional ids that start with",
            Self::Topics => "; give this user Create, Read, Write, Delete, and DescribeConfigs on topics that start with",
        }
    }
}

/// Grants a user exactly the permissions that a worker needs, except for `lacking`. A user that lacks Read on the input or Write on the
/// output may still describe that topic.
pub fn allow(stream: &Stream, user: &str, lacking: Option<Need>) {
    let transactions = format!("{}-", stream.setup.group());
    let mut rights = Vec::new();
    for (need, right, instead) in [
        (Need::Topics, Right::OwnTopics(&transactions), None),
        (Need::Input, Right::ReadTopic(&stream.input), Some(Right::DescribeTopic(&stream.input))),
        (Need::Output, Right::WriteTopic(&stream.output), Some(Right::DescribeTopic(&stream.output))),
        (Need::Group, Right::ReadGroup(stream.setup.group()), None),
        (Need::Transactions, Right::WriteTransactions(&transactions), None),
    ] {
        rights.extend(if lacking == Some(need) { instead } else { Some(right) });
    }
    grant(&stream.broker, user, &rights);
    wait_until("the broker applies the permissions, and missing permissions are reported", PATIENCE, || {
        let (code, _, stderr) = stream.setup.check_with("rights", &[]);
        let lines: Vec<_> = stderr.lines().filter(|line| !line.starts_with("connecting to ")).collect();
        match lacking {
            None => code == Some(0),
            Some(lacking) => code == Some(78) && lines.iter().all(|line| line.contains(lacking.report()) || line.starts_with("warning: ")),
        }
        .then_some(())
    });
}

fn works(way: Way<'_>, hint: &str) {
    let stream = way.stream(hint, 5_000);
    allow(&stream, way.user(), None);
    stream.produce(..);
    let worker = stream.setup.start("a");
    stream.check(worker);
}

#[test]
fn worker_and_brokers_verify_each_others_certificates() {
    works(SSL, "ssl");
}

#[test]
fn worker_logs_in_with_plain_over_ssl() {
    works(Way { mechanism: "PLAIN", ..SCRAM }, "plain");
}

#[test]
fn worker_logs_in_with_scram_sha_256_over_ssl() {
    works(Way { mechanism: "SCRAM-SHA-256", ..SCRAM }, "scram-256");
}

#[test]
fn worker_logs_in_with_scram_sha_512_over_ssl() {
    works(SCRAM, "scram-512");
}

#[test]
fn worker_logs_in_with_scram_sha_512_without_ssl() {
    works(Way { protocol: "sasl_plaintext", ..SCRAM }, "scram-open");
}

/// Panics unless `unseen check --connect` reports this error and no other.
fn refused(stream: &Stream, overrides: &[&str], sentence: &str) {
    let (code, _, stderr) = stream.setup.check_with("a", overrides);
    assert_eq!(code, Some(78), "{stderr}");
    let problems: Vec<_> =
        stderr.lines().filter(|line| !line.starts_with("connecting to ") && !line.starts_with("no broker can be used yet")).collect();
    assert!(problems.len() == 1 && problems[0].contains(sentence), "`check` does not report {sentence:?} alone:\n{stderr}");
}

/// The same as [`refused`]. Also panics unless `unseen run` waits for `kafka.connect_timeout` and then ends with the same error.
fn kept_out(stream: &Stream, overrides: &[&str], sentence: &str) {
    refused(stream, overrides, sentence);
    let log = stream.setup.start_with("a", &[overrides, &["kafka.connect_timeout=3s"]].concat()).fails(1);
    let last = log.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: ") && last.contains(sentence), "`run` does not report {sentence:?}:\n{log}");
    assert!(log.contains("no broker can be used yet; waiting"), "`run` did not wait:\n{log}");
}

#[test]
fn a_wrong_password_is_reported() {
    let wrong = ["kafka.properties.sasl.password=wrong"];
    let sentence = |by| format!("the broker rejects user \"unseen\" with {by}; check sasl.username and sasl.password in kafka.properties");
    for mechanism in ["PLAIN", "SCRAM-SHA-256"] {
        refused(&Way { mechanism, ..SCRAM }.stream("wrong", 1), &wrong, &sentence(mechanism));
    }
    kept_out(&SCRAM.stream("wrong", 1), &wrong, &sentence("SCRAM-SHA-512"));
}

#[test]
fn an_unknown_ca_is_reported() {
    let broker = secure_broker();
    // The certificate in this file does not belong to a CA, so it cannot verify the broker's certificate.
    let other = format!("kafka.properties.ssl.ca.location={}", broker.file("client.pem").display());
    kept_out(
        &SCRAM.stream("ca", 1),
        &[&other],
        "the broker's certificate has expired or is not signed by a trusted CA; renew the certificate, or set ssl.ca.location in kafka.properties",
    );
}

#[test]
fn a_name_that_is_not_in_the_certificate_is_reported() {
    let (address, _) = listener(secure_broker(), SCRAM.protocol);
    // 127.1 is the same address as 127.0.0.1, but its text does not match the name in the certificate.
    let other = format!("kafka.bootstrap_servers={}", address.replace("127.0.0.1", "127.1"));
    kept_out(
        &SCRAM.stream("name", 1),
        &[&other],
        "the broker's certificate is for a different name; use names from the certificate in kafka.bootstrap_servers",
    );
}

#[test]
fn a_missing_client_certificate_is_reported() {
    let stream = SSL.stream("client", 1);
    let without = ["kafka.properties.ssl.certificate.location=", "kafka.properties.ssl.key.location="];
    kept_out(
        &stream,
        &without,
        "the broker does not trust the client certificate or requires one; check ssl.certificate.location and ssl.key.location",
    );
}

#[test]
fn wrong_protocol_is_reported() {
    let ca = format!("kafka.properties.ssl.ca.location={}", secure_broker().file("ca.pem").display());
    for listened in ["sasl_ssl", "sasl_plaintext"] {
        let with_login = Way { protocol: listened, ..SCRAM }.stream("protocol", 1);
        // Login settings for a protocol without a login would be rejected earlier, so this stream has none.
        let without = SSL.stream("protocol", 1);
        let there = format!("kafka.bootstrap_servers={}", listener(secure_broker(), listened).0);
        for spoken in ["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] {
            let stream = if spoken.starts_with("sasl") { &with_login } else { &without };
            let protocol = format!("kafka.properties.security.protocol={spoken}");
            let words = format!("the broker does not seem to speak {} at this address; check security.protocol", spoken.to_uppercase());
            if spoken != listened {
                refused(stream, &[&protocol, &ca, &there], &words);
            }
        }
    }
}

#[test]
fn missing_permission_is_reported() {
    for (lacking, delivery, sentence) in [
        (Need::Input, "exactly_once", "give this user Read on every topic that it reads and Write on every topic that it writes to"),
        (Need::Output, "exactly_once", "give this user Read on every topic that it reads and Write on every topic that it writes to"),
        (Need::Output, "at_least_once", "give this user Write on that topic"),
        (Need::Group, "exactly_once", "give this user Read on the group and on every topic that it reads"),
        (Need::Transactions, "exactly_once", "give this user Write on the transactional id"),
    ] {
        let stream = SCRAM.stream("right", 1_000);
        allow(&stream, SCRAM.user(), Some(lacking));
        stream.produce(..);
        let log = stream.setup.start_with("a", &[&format!("worker.delivery={delivery}")]).fails(1);
        assert!(log.contains(sentence), "`run` does not report {sentence:?}:\n{log}");
    }

    // This user cannot create the changelog, so the test disables it.
    let stream = SCRAM.stream("topics", 1_000);
    allow(&stream, SCRAM.user(), Some(Need::Topics));
    let (code, _, stderr) = stream.setup.check_with("a", &["state.changelog=false"]);
    assert_eq!(code, Some(0), "{stderr}");
    let words = "warning: some features of the cluster were not tested: cannot create topic";
    assert!(
        stderr.contains(words) && stderr.contains("; give this user Create, Read, Write, Delete, and DescribeConfigs on topics"),
        "{stderr}"
    );

    let stream = SCRAM.stream("blind", 1);
    let (code, _, stderr) = stream.setup.check_with("a", &[]);
    assert_eq!(code, Some(78), "{stderr}");
    for (setting, topic, right) in [("input", &stream.input, "Read"), ("output", &stream.output, "Write")] {
        let sentence = format!(
            "topics[0].{setting}: topic {topic:?} does not exist, or this user may not see it; create the topic, or give this user {right} on it"
        );
        assert!(stderr.contains(&sentence), "`check` does not report {sentence:?}:\n{stderr}");
    }
}

#[test]
fn a_redrive_needs_only_the_documented_permissions() {
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Lacking {
        Letters,
        Input,
        Group,
        Transactions,
        Nothing,
    }
    for (lacking, sentence) in [
        (Lacking::Letters, "this user may not read topic"),
        (Lacking::Input, "Write on every topic that it writes to"),
        (Lacking::Group, "give this user Read on the group"),
        (Lacking::Transactions, "give this user Write on the transactional id"),
        (Lacking::Nothing, ""),
    ] {
        let stream = SCRAM.stream("redrive", 10);
        let letters = topic(&stream.broker, "redrive-dead", 4);
        let stream = stream.with(|setup| setup.sections(&format!("on_invalid = {{ topic = \"{letters}\" }}")));
        let group = format!("{}-redrive", stream.setup.group());
        let mut rights = vec![Right::DescribeTopic(&stream.input), Right::DescribeTopic(&letters), Right::DescribeTopic(&stream.output)];
        for (need, right) in [
            (Lacking::Letters, Right::ReadTopic(&letters)),
            (Lacking::Input, Right::WriteTopic(&stream.input)),
            (Lacking::Group, Right::ReadGroup(&group)),
            (Lacking::Transactions, Right::WriteTransactions(&group)),
        ] {
            rights.extend((need != lacking).then_some(right));
        }
        grant(&stream.broker, SCRAM.user(), &rights);
        let letter = stream.records[0].dead_letter(&stream.input, 0, "unseen.malformed", "why");
        produce(&stream.broker, &letters, [letter]);
        let config = stream.setup.write_config("a").display().to_string();
        // The broker applies changed permissions a moment later.
        wait_until("the redrive ends as expected", PATIENCE, || {
            let (code, out, error) = unseen(["dlq", "redrive", "-c", &config]);
            eprintln!("{code:?}: {out}{error}");
            let is_done = code == Some(0) && out.starts_with("redrove 1 dead letter\n");
            let is_refused = code == Some(1) && error.contains(sentence);
            assert!(!is_done || lacking == Lacking::Nothing, "{sentence}: {out}");
            (is_done || is_refused && lacking != Lacking::Nothing).then_some(())
        });
    }
}

fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries
        .flat_map(
            |path| {
                if path.is_dir() { files(&path) } else { vec![(path.display().to_string(), std::fs::read(&path).expect("a file"))] }
            },
        )
        .collect()
}

fn openssl(args: &[&str], input: &[u8]) -> String {
    let mut command = Command::new("openssl");
    let mut child = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("openssl starts");
    child.stdin.take().expect("a pipe").write_all(input).expect("it reads");
    String::from_utf8(child.wait_with_output().expect("it ends").stdout).expect("ASCII")
}

/// The forms in which a log or a file could leak a password: as text, in base64, and in a SASL/PLAIN message in base64.
fn forms(password: &str) -> Vec<String> {
    let base64 = |text: &str| openssl(&["base64", "-A"], text.as_bytes());
    vec![password.to_owned(), base64(password), base64(&format!("\0unseen\0{password}"))]
}

pub const TELL_ALL: [&str; 2] = ["log.level=trace", "kafka.properties.debug=all"];

/// Panics unless the stream is deduplicated and no secret is in the output of `unseen check`, in the worker's log, or in the state
/// directory.
fn shows_nothing(stream: &Stream, secrets: &[String]) {
    stream.produce(..);
    let (code, stdout, stderr) = stream.setup.check_with("a", &TELL_ALL);
    assert_eq!(code, Some(0), "{stderr}");
    let worker = stream.setup.start_with("a", &TELL_ALL);
    let log = stream.check(worker);
    // Without librdkafka's debug output, the log would contain too little to prove anything.
    assert!(
        log.contains(".password = [redacted]") && log.contains("Broker SSL certificate verified"),
        "the log lacks librdkafka's debug output"
    );
    let state = files(&stream.setup.state_dir("a"));
    assert!(state.iter().any(|(_, bytes)| !bytes.is_empty()), "there is no state");
    hold_nothing([("stdout of `check`", stdout), ("stderr of `check`", stderr), ("the log", log)], secrets);
    for (file, bytes) in state {
        holds_nothing(&file, &bytes, secrets);
    }
}

pub fn hold_nothing<const COUNT: usize>(texts: [(&str, String); COUNT], secrets: &[String]) {
    for (what, text) in texts {
        holds_nothing(what, text.as_bytes(), secrets);
    }
}

fn holds_nothing(what: &str, bytes: &[u8], secrets: &[String]) {
    for secret in secrets {
        assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()), "{what} contains {secret}");
    }
}

/// A password from an environment variable instead of a file.
const FROM_VARIABLE: [(&str, &str); 1] = [("sasl.password", "${KAFKA_PASSWORD}")];

/// A password that an environment variable overrides.
const FROM_SETTING: [(&str, &str); 1] = [("sasl.password", "prevailed over")];

fn password_is_not_shown(way: Way<'_>, variable: &str) {
    let secret = secure_broker().read("password");
    let stream = way.stream("secret", 2_000).with(|setup| setup.environment(variable, &secret));
    allow(&stream, way.user(), None);
    shows_nothing(&stream, &forms(&secret));
}

#[test]
fn a_password_from_a_file_is_not_shown() {
    for mechanism in ["PLAIN", "SCRAM-SHA-512"] {
        password_is_not_shown(Way { mechanism, ..SCRAM }, "NOT_ASKED_FOR");
    }
}

#[test]
fn a_password_from_the_environment_is_not_shown() {
    password_is_not_shown(Way { mechanism: "PLAIN", instead: &FROM_VARIABLE, ..SCRAM }, "KAFKA_PASSWORD");
    password_is_not_shown(Way { instead: &FROM_SETTING, ..SCRAM }, "UNSEEN__KAFKA__PROPERTIES__SASL__PASSWORD");
}

#[test]
fn rejected_password_is_not_shown() {
    let secret = unique("not-the-password");
    for mechanism in ["PLAIN", "SCRAM-SHA-512"] {
        let way = Way { mechanism, instead: &FROM_VARIABLE, ..SCRAM };
        let stream = way.stream("refused", 1).with(|setup| setup.environment("KAFKA_PASSWORD", &secret));
        let (code, stdout, stderr) = stream.setup.check_with("a", &TELL_ALL);
        assert_eq!(code, Some(78), "{stderr}");
        let log = stream.setup.start_with("a", &[&TELL_ALL[..], &["kafka.connect_timeout=3s"]].concat()).fails(1);
        hold_nothing([("stdout of `check`", stdout), ("stderr of `check`", stderr), ("the log", log)], &forms(&secret));
    }
}

#[test]
fn a_private_key_and_its_password_are_not_shown() {
    let broker = secure_broker();
    let (key, secret) = (broker.read("client.key"), unique("password-of-the-key"));
    let locked = broker.file("locked.key");
    let bytes = openssl(&["pkey", "-aes256", "-passout", &format!("pass:{secret}")], key.as_bytes());
    std::fs::write(&locked, &bytes).expect("a file");
    let instead = [("ssl.key.location", locked.to_str().expect("UTF-8")), ("ssl.key.password", "${KEY_PASSWORD}")];
    let way = Way { instead: &instead, ..SSL };
    let stream = way.stream("key", 2_000).with(|setup| setup.environment("KEY_PASSWORD", &secret));

    let wrong = ["kafka.properties.ssl.key.password=wrong", TELL_ALL[0], TELL_ALL[1]];
    let sentence = "kafka.properties: ssl.key.location: OpenSSL cannot read the file or value";
    refused(&stream, &wrong, sentence);
    // The worker finds the error before it connects.
    let log = stream.setup.start_with("a", &wrong).fails(78);
    assert!(log.contains(sentence), "{log}");

    allow(&stream, way.user(), None);
    let lines = [key, bytes].concat().lines().filter(|line| !line.starts_with('-')).map(str::to_owned).collect();
    shows_nothing(&stream, &[forms(&secret), lines].concat());
}
