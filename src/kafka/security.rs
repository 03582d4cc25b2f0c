//! How connections are secured: what is found to be wrong before anybody connects, and what it
//! means when a broker does not let us in.
//!
//! Must never hold or show a secret: of `kafka.properties` only those are looked at that are none.

use crate::config::{Kafka, TokenSource};
use rdkafka::error::RDKafkaErrorCode;
use std::fs::File;

/// What librdkafka can do as it is built here.
const MECHANISMS: [&str; 5] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER, AWS];

const OAUTHBEARER: &str = "OAUTHBEARER";

/// OAUTHBEARER, with tokens that AWS credentials sign.
const AWS: &str = "AWS_MSK_IAM";

/// librdkafka would need Cyrus SASL and MIT Kerberos, which are libraries of the system and no part of the image.
const NO_GSSAPI: &str = "sasl.mechanism: GSSAPI (Kerberos) is not supported, because unseen is built without Cyrus SASL and the Kerberos libraries; let the brokers also offer SCRAM, OAUTHBEARER, or TLS with client certificates";

/// Properties that name a file. Their values are not shown: who mistakes them puts the key itself there.
const FILES: [&str; 5] = ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location", "ssl.crl.location"];

/// Who we are to the brokers, and by which way; no secrets.
#[derive(Clone, Debug)]
pub(super) struct Login {
    protocol: String,
    mechanism: String,
    user: String,
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
        Self { protocol, mechanism, user: get(&["sasl.username"]) }
    }

    /// What to do about an error of a connection, if librdkafka's words give it away.
    pub(super) fn advise(&self, code: RDKafkaErrorCode, reason: &str) -> Option<String> {
        let says = |words: &[&str]| words.iter().any(|word| reason.contains(word));
        let Self { protocol, mechanism, user } = self;
        let elsewhere = || {
            Some(format!(
                "the broker does not seem to speak {protocol} at this address; check security.protocol in kafka.properties, and the port"
            ))
        };
        // A listener of TLS cannot read the first request; one of SASL hangs up on the second.
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
                    "check sasl.oauthbearer.* in kafka.properties, and what issues the token"
                };
                Some(format!("there is no token for the login; {remedy}"))
            }
            RDKafkaErrorCode::Authentication if mechanism == AWS => Some(
                "the broker refuses the AWS credentials; check that their IAM policy allows kafka-cluster:Connect, and this machine's clock"
                    .to_owned(),
            ),
            RDKafkaErrorCode::Authentication if mechanism == OAUTHBEARER => Some(
                "the broker refuses the token; check the scope, audience, and issuer that the broker expects, and the clocks of all machines"
                    .to_owned(),
            ),
            RDKafkaErrorCode::Authentication => {
                Some(format!("the broker refuses user {user:?} by {mechanism}; check sasl.username and sasl.password in kafka.properties"))
            }
            RDKafkaErrorCode::SSL if is_distrust(reason) => {
                Some("the broker's certificate is not trusted; `unseen check --connect` says whether for its CA or for its name".to_owned())
            }
            _ if says(&["alert bad certificate", "alert certificate required", "alert unknown ca", "alert handshake failure"]) => Some(
                "the broker asks for a certificate that it trusts; check ssl.certificate.location and ssl.key.location in kafka.properties"
                    .to_owned(),
            ),
            _ if hung_up || says(&["security.protocol", "PLAINTEXT broker listener", "wrong version number"]) => elsewhere(),
            _ => None,
        }
    }
}

/// The right that a user lacks, if that is what the brokers complain of.
pub(super) const fn missing_right(code: RDKafkaErrorCode) -> Option<&'static str> {
    match code {
        RDKafkaErrorCode::TopicAuthorizationFailed => Some("Read on the inputs and Write on the outputs"),
        RDKafkaErrorCode::GroupAuthorizationFailed => Some("Read on the group"),
        RDKafkaErrorCode::TransactionalIdAuthorizationFailed => Some("Write on the transactional id"),
        RDKafkaErrorCode::ClusterAuthorizationFailed => Some("IdempotentWrite on the cluster"),
        _ => None,
    }
}

/// Whether this is of a broker's certificate.
pub(super) fn is_distrust(reason: &str) -> bool {
    reason.contains("certificate verify failed") || reason.contains("Failed to verify broker certificate")
}

/// What to do about a broker's certificate that is not trusted, for its name or for its signature.
pub(super) const fn advise_trust(name: bool) -> &'static str {
    if name {
        "the broker's certificate is for another name; give kafka.bootstrap_servers, and the broker's advertised.listeners, names that are in the certificate"
    } else {
        "the broker's certificate is not signed by a CA that is trusted here, or has expired; set ssl.ca.location in kafka.properties to the CA's certificate"
    }
}

/// What is wrong with how connections are to be secured, as far as it shows without one.
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
        return Err("sasl.* is set, but security.protocol is not SASL_SSL or SASL_PLAINTEXT: it would not be used".to_owned());
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
    fn what_is_missing_for_sasl_is_reported() {
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
    fn a_login_that_would_not_be_used_is_refused() {
        let refusal = Err("sasl.* is set, but security.protocol is not SASL_SSL or SASL_PLAINTEXT: it would not be used".to_owned());
        assert_eq!(check(&kafka(&SCRAM[1..])), refusal);
        for protocol in ["plaintext", "SSL"] {
            assert_eq!(check(&kafka(&[("security.protocol", protocol), ("sasl.mechanism", "GSSAPI")])), refusal, "{protocol}");
        }
    }

    #[test]
    fn nothing_is_asked_of_connections_that_are_not_secured() {
        assert_eq!(check(&kafka(&[])), Ok(()));
        assert_eq!(check(&kafka(&[("ssl.ca.location", "/no/such/file")])), Ok(()));
        assert_eq!(check(&kafka(&[("security.protocol", "ssl")])), Ok(()));
        assert_eq!(check(&kafka(&[("security.protocol", "ssl"), ("ssl.ca.location", "probe"), ("ssl.key.location", "")])), Ok(()));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_reported_by_its_property_alone() {
        for name in FILES {
            let error = check(&kafka(&[("security.protocol", "ssl"), (name, "/no/such/-----BEGIN PRIVATE KEY-----")])).unwrap_err();
            assert!(error.starts_with(&format!("{name}: cannot read the file: No such file")) && !error.contains("KEY---"), "{error}");
        }
    }

    #[test]
    fn errors_become_advice() {
        use RDKafkaErrorCode::{AllBrokersDown, Authentication, BrokerTransportFailure as Transport, SSL};
        let oauth = Login::of(&kafka(&[("security.protocol", "sasl_ssl"), ("sasl.mechanisms", OAUTHBEARER)]));
        for (reason, words) in [
            ("Failed to acquire SASL OAUTHBEARER token: https://idp answered 401", "there is no token for the login"),
            ("SASL OAUTHBEARER mechanism handshake failed: Broker: Unsupported", "does not offer OAUTHBEARER"),
            ("SASL authentication error: {\"status\":\"invalid_token\"}", "the broker refuses the token"),
        ] {
            let advice = oauth.advise(Authentication, reason).unwrap_or_default();
            assert!(advice.contains(words), "{reason}: {advice}");
        }
        let region = None;
        let aws = OAuth { source: TokenSource::Aws { region }, extensions: Vec::new() };
        let aws = Login::of(&Kafka { oauth: Some(aws), ..kafka(&[("security.protocol", "sasl_ssl"), ("sasl.mechanisms", OAUTHBEARER)]) });
        for (reason, words) in [
            ("Failed to acquire SASL OAUTHBEARER token: there are no AWS credentials", "check the AWS credentials of this process"),
            ("SASL authentication error: Access denied", "the broker refuses the AWS credentials"),
        ] {
            let advice = aws.advise(Authentication, reason).unwrap_or_default();
            assert!(advice.contains(words), "{reason}: {advice}");
        }
        let login =
            |protocol| Login::of(&kafka(&SCRAM.map(|(name, old)| (name, if name == "security.protocol" { protocol } else { old }))));
        for (protocol, code, reason, words) in [
            ("sasl_ssl", Authentication, "SASL authentication error: Authentication failed", "refuses user \"ann\" by SCRAM-SHA-512"),
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
