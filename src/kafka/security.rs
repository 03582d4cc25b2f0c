//! Security settings: problems that can be detected without a connection and advice if a broker rejects a connection.
//!
//! No message contains the value of a property that may contain a secret.

use crate::config::{Kafka, OAuth, TokenSource};
use crate::oauth;
use rdkafka::error::RDKafkaErrorCode;
use std::fs::File;

/// The values of `sasl.mechanism` that unseen accepts.
const MECHANISMS: [&str; 5] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER, AWS];

const OAUTHBEARER: &str = "OAUTHBEARER";

/// OAUTHBEARER with tokens that are signed with AWS credentials.
const AWS: &str = "AWS_MSK_IAM";

/// The error message for GSSAPI. librdkafka would need Cyrus SASL and MIT Kerberos, system libraries that our image does not contain.
const NO_GSSAPI: &str = "sasl.mechanism: GSSAPI (Kerberos) is not supported, because unseen is built without Cyrus SASL and the Kerberos libraries; enable SCRAM, OAUTHBEARER, or TLS with client certificates on the brokers, too";

/// Properties that contain a file name. Messages do not show the values, because a user may have set a property to the key itself.
const FILES: [&str; 5] = ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location", "ssl.crl.location"];

/// The text in librdkafka's message if a broker rejects the user's credentials, such as a token.
const REJECTED: &str = "SASL authentication error: ";

/// The login settings, without the password. `Debug` shows no secret.
#[derive(Clone, Debug)]
pub(super) struct Login {
    protocol: String,
    mechanism: String,
    user: String,
    oauth: Option<OAuth>,
}

impl Login {
    pub(super) fn of(kafka: &Kafka) -> Self {
        let get = |names: &[&str]| names.iter().find_map(|name| kafka.properties.get(*name)).cloned().unwrap_or_default();
        let protocol = match get(&["security.protocol"]) {
            none if none.is_empty() => "PLAINTEXT".to_owned(),
            some => some.to_uppercase(),
        };
        let is_aws = kafka.oauth.as_ref().is_some_and(|oauth| matches!(oauth.source, TokenSource::Aws { .. }));
        let mechanism = if is_aws { AWS.to_owned() } else { get(&["sasl.mechanism", "sasl.mechanisms"]) };
        Self { protocol, mechanism, user: get(&["sasl.username"]), oauth: kafka.oauth.clone() }
    }

    pub(super) fn renew_rejected(&self, code: RDKafkaErrorCode, reason: &str) {
        if code == RDKafkaErrorCode::Authentication && reason.contains(REJECTED) {
            self.oauth.iter().for_each(oauth::reject);
        }
    }

    /// Returns advice for a connection error, if librdkafka's message reveals the cause.
    pub(super) fn advise(&self, code: RDKafkaErrorCode, reason: &str) -> Option<String> {
        let says = |words: &[&str]| words.iter().any(|word| reason.contains(word));
        let Self { protocol, mechanism, user, .. } = self;
        let elsewhere = || {
            Some(format!(
                "the broker does not seem to speak {protocol} at this address; check security.protocol in kafka.properties, and the port"
            ))
        };
        // A TLS listener cannot parse a plaintext client's first request (ApiVersions) and closes the connection. A SASL listener closes
        // the connection at the second request if the client has not logged in.
        let hung_up = says(&["Disconnected"])
            && (!protocol.ends_with("SSL") && says(&["in state APIVERSION_QUERY"])
                || !protocol.starts_with("SASL_") && says(&["in state UP"]));
        match code {
            RDKafkaErrorCode::Authentication if says(&["not valid in current SASL state"]) => elsewhere(),
            RDKafkaErrorCode::Authentication if says(&["mechanism handshake failed"]) => {
                Some(format!("the broker does not offer {mechanism}; check sasl.mechanism in kafka.properties"))
            }
            RDKafkaErrorCode::Authentication if says(&["Failed to acquire SASL OAUTHBEARER token"]) => {
                let remedy = if mechanism == AWS {
                    "check the AWS credentials of this process"
                } else {
                    "check sasl.oauthbearer.* in kafka.properties, and the token provider"
                };
                Some(format!("no token is available for the login; {remedy}"))
            }
            RDKafkaErrorCode::Authentication if mechanism == AWS => Some(
                "the broker rejects the AWS credentials; check that their IAM policy allows kafka-cluster:Connect, and this machine's clock"
                    .to_owned(),
            ),
            RDKafkaErrorCode::Authentication if mechanism == OAUTHBEARER => Some(
                "the broker rejects the token; check the scope, audience, and issuer that the broker expects, and the clocks of all machines"
                    .to_owned(),
            ),
            RDKafkaErrorCode::Authentication => {
                Some(format!("the broker rejects user {user:?} with {mechanism}; check sasl.username and sasl.password in kafka.properties"))
            }
            RDKafkaErrorCode::SSL if is_distrust(reason) => {
                Some("the broker's certificate is not trusted; `unseen check --connect` shows whether its CA or its name is the cause".to_owned())
            }
            _ if says(&["alert bad certificate", "alert certificate required", "alert unknown ca", "alert handshake failure"]) => Some(
                "the broker does not trust the client certificate or requires one; check ssl.certificate.location and ssl.key.location in kafka.properties"
                    .to_owned(),
            ),
            _ if hung_up || says(&["security.protocol", "PLAINTEXT broker listener", "wrong version number"]) => elsewhere(),
            _ => None,
        }
    }
}

pub(super) const fn missing_permission(code: RDKafkaErrorCode) -> Option<&'static str> {
    match code {
        RDKafkaErrorCode::TopicAuthorizationFailed => {
            Some("Read on every topic that it reads and Write on every topic that it writes to; `unseen check --connect` lists the topics")
        }
        RDKafkaErrorCode::GroupAuthorizationFailed => Some("Read on the group"),
        RDKafkaErrorCode::TransactionalIdAuthorizationFailed => Some("Write on the transactional id"),
        RDKafkaErrorCode::ClusterAuthorizationFailed => Some("IdempotentWrite on the cluster"),
        _ => None,
    }
}

/// True if the client does not trust a broker's certificate.
pub(super) fn is_distrust(reason: &str) -> bool {
    reason.contains("certificate verify failed") || reason.contains("Failed to verify broker certificate")
}

/// Returns advice for a broker certificate that this client does not trust. `name` is true if only the name in the certificate is wrong.
pub(super) const fn advise_trust(name: bool) -> &'static str {
    if name {
        "the broker's certificate is for a different name; use names from the certificate in kafka.bootstrap_servers and in the broker's advertised.listeners"
    } else {
        "the broker's certificate has expired or is not signed by a trusted CA; renew the certificate, or set ssl.ca.location in kafka.properties to the CA's certificate"
    }
}

pub(super) fn check(kafka: &Kafka) -> Result<(), String> {
    let login = Login::of(kafka);
    if login.protocol.starts_with("SASL_") {
        let expected = MECHANISMS.join(", ");
        match &*login.mechanism {
            "" => return Err(format!("sasl.mechanism is required with security.protocol {}: one of {expected}", login.protocol)),
            "GSSAPI" => return Err(NO_GSSAPI.to_owned()),
            other if !MECHANISMS.contains(&other) => return Err(format!("sasl.mechanism: expected one of {expected}")),
            _ => {}
        }
        let empty =
            |name: &&str| ![OAUTHBEARER, AWS].contains(&&*login.mechanism) && kafka.properties.get(*name).is_none_or(String::is_empty);
        if let Some(missing) = ["sasl.username", "sasl.password"].iter().find(|name| empty(name)) {
            return Err(format!("{missing} is required with security.protocol {}", login.protocol));
        }
    }
    let of_sasl = |name: &String| name.starts_with("sasl.");
    if !login.protocol.starts_with("SASL_") && kafka.properties.keys().any(of_sasl) {
        return Err(
            "sasl.* has no effect, because security.protocol is not SASL_SSL or SASL_PLAINTEXT; set security.protocol, or remove sasl.*"
                .to_owned(),
        );
    }
    for name in FILES.into_iter().filter(|_| login.protocol.ends_with("SSL")) {
        if let Some(path) = kafka.properties.get(name).filter(|path| !path.is_empty() && *path != "probe")
            && let Err(error) = File::open(path)
        {
            return Err(format!("{name}: cannot read the file: {error}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{OAuth, OnTruncation, Start};
    use std::time::Duration;

    fn kafka(properties: &[(&str, &str)]) -> Kafka {
        Kafka {
            bootstrap_servers: "a:9092".to_owned(),
            group_id: "unseen".to_owned(),
            instance_id: None,
            start: Start::Earliest,
            on_truncation: OnTruncation::Fail,
            connect_timeout: Duration::ZERO,
            properties: properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            oauth: None,
        }
    }

    const SCRAM: [(&str, &str); 4] =
        [("security.protocol", "sasl_ssl"), ("sasl.mechanism", "SCRAM-SHA-512"), ("sasl.username", "ann"), ("sasl.password", "secret")];

    #[test]
    fn missing_sasl_properties_are_reported() {
        assert_eq!(check(&kafka(&SCRAM)), Ok(()));
        for (name, value, sentence) in [
            (
                "sasl.mechanism",
                "",
                "sasl.mechanism is required with security.protocol SASL_SSL: one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS_MSK_IAM",
            ),
            ("sasl.mechanism", "plain", "sasl.mechanism: expected one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS_MSK_IAM"),
            ("sasl.mechanism", "GSSAPI", NO_GSSAPI),
            ("sasl.username", "", "sasl.username is required with security.protocol SASL_SSL"),
            ("sasl.password", "", "sasl.password is required with security.protocol SASL_SSL"),
        ] {
            let changed = SCRAM.map(|(known, old)| (known, if known == name { value } else { old }));
            assert_eq!(check(&kafka(&changed)), Err(sentence.to_owned()), "{name} = {value:?}");
        }
        assert_eq!(
            check(&kafka(&SCRAM.map(|(name, value)| (if name == "sasl.mechanism" { "sasl.mechanisms" } else { name }, value)))),
            Ok(())
        );
    }

    #[test]
    fn unused_sasl_properties_are_rejected() {
        let refusal = Err(
            "sasl.* has no effect, because security.protocol is not SASL_SSL or SASL_PLAINTEXT; set security.protocol, or remove sasl.*"
                .to_owned(),
        );
        assert_eq!(check(&kafka(&SCRAM[1..])), refusal);
        for protocol in ["plaintext", "SSL"] {
            assert_eq!(check(&kafka(&[("security.protocol", protocol), ("sasl.mechanism", "GSSAPI")])), refusal, "{protocol}");
        }
    }

    #[test]
    fn plaintext_needs_no_security_properties() {
        assert_eq!(check(&kafka(&[])), Ok(()));
        assert_eq!(check(&kafka(&[("ssl.ca.location", "/no/such/file")])), Ok(()));
        assert_eq!(check(&kafka(&[("security.protocol", "ssl")])), Ok(()));
        assert_eq!(check(&kafka(&[("security.protocol", "ssl"), ("ssl.ca.location", "probe"), ("ssl.key.location", "")])), Ok(()));
    }

    #[test]
    fn unreadable_file_is_reported_by_property_without_its_value() {
        for name in FILES {
            let error = check(&kafka(&[("security.protocol", "ssl"), (name, "/no/such/-----BEGIN PRIVATE KEY-----")])).unwrap_err();
            assert!(error.starts_with(&format!("{name}: cannot read the file: No such file")) && !error.contains("KEY---"), "{error}");
        }
    }

    #[test]
    fn connection_errors_result_in_advice() {
        use RDKafkaErrorCode::{AllBrokersDown, Authentication, BrokerTransportFailure as Transport, SSL};
        let oauth = Login::of(&kafka(&[("security.protocol", "sasl_ssl"), ("sasl.mechanisms", OAUTHBEARER)]));
        for (reason, words) in [
            ("Failed to acquire SASL OAUTHBEARER token: https://idp returned 401", "no token is available for the login"),
            ("SASL OAUTHBEARER mechanism handshake failed: Broker: Unsupported", "does not offer OAUTHBEARER"),
            ("SASL authentication error: {\"status\":\"invalid_token\"}", "the broker rejects the token"),
        ] {
            let advice = oauth.advise(Authentication, reason).unwrap_or_default();
            assert!(advice.contains(words), "{reason}: {advice}");
        }
        let region = None;
        let aws = OAuth { source: TokenSource::Aws { region }, extensions: Vec::new() };
        let aws = Login::of(&Kafka { oauth: Some(aws), ..kafka(&[("security.protocol", "sasl_ssl"), ("sasl.mechanisms", OAUTHBEARER)]) });
        for (reason, words) in [
            ("Failed to acquire SASL OAUTHBEARER token: found no AWS credentials", "check the AWS credentials of this process"),
            ("SASL authentication error: Access denied", "the broker rejects the AWS credentials"),
        ] {
            let advice = aws.advise(Authentication, reason).unwrap_or_default();
            assert!(advice.contains(words), "{reason}: {advice}");
        }
        let login =
            |protocol| Login::of(&kafka(&SCRAM.map(|(name, old)| (name, if name == "security.protocol" { protocol } else { old }))));
        for (protocol, code, reason, words) in [
            ("sasl_ssl", Authentication, "SASL authentication error: Authentication failed", "rejects user \"ann\" with SCRAM-SHA-512"),
            (
                "sasl_ssl",
                Authentication,
                "SASL SCRAM-SHA-512 mechanism handshake failed: Broker: Unsupported",
                "does not offer SCRAM-SHA-512",
            ),
            ("sasl_plaintext", Authentication, "Request not valid in current SASL state", "speak SASL_PLAINTEXT"),
            ("ssl", SSL, "SSL handshake failed: error:0A000086:SSL routines::certificate verify failed", "certificate is not trusted"),
            (
                "ssl",
                Transport,
                "Receive failed: error:0A000412:SSL routines::sslv3 alert bad certificate",
                "check ssl.certificate.location",
            ),
            ("ssl", Transport, "SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?", "speak SSL"),
            ("plaintext", Transport, "Disconnected: connection closed by peer (after 3ms in state APIVERSION_QUERY)", "speak PLAINTEXT"),
            ("plaintext", Transport, "Disconnected: connection closed by peer (after 3ms in state UP)", "speak PLAINTEXT"),
            ("sasl_ssl", Transport, "Disconnected: connection closed by peer (after 3ms in state UP)", ""),
            ("sasl_ssl", Transport, "Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)", ""),
            ("sasl_ssl", AllBrokersDown, "1/1 brokers are down", ""),
        ] {
            let advice = login(protocol).advise(code, reason).unwrap_or_default();
            assert!(advice.contains(words) && advice.is_empty() == words.is_empty(), "{reason}: {advice}");
            assert!(!advice.contains("secret"), "{advice}");
        }
    }
}
