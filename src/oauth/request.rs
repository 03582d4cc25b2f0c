//! Token requests: from a token endpoint, a file, or AWS credentials.
//!
//! Creates the HTTP clients. An error never contains a token, a client secret, or the text of an unexpected response.

use super::aws::Signer;
use super::token::Token;
use crate::config::{TokenEndpoint, TokenSource};
use data_encoding::BASE64;
use serde::Deserialize;
use std::path::Path;
use std::time::{Duration, SystemTime};
use ureq::config::ConfigBuilder;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};
use ureq::typestate::AgentScope;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of a request to a service on this host, such as the AWS metadata service. The timeout is short, because the service does not
/// answer outside AWS.
const LOCAL_TIMEOUT: Duration = Duration::from_secs(2);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of a response or a token file in bytes.
const ANSWER_MAX: u64 = 1 << 20;

const DESCRIPTION_MAX: usize = 200;

/// The response of a token endpoint (RFC 6749).
#[derive(Deserialize)]
struct Answer {
    access_token: String,
    #[serde(default)]
    expires_in: Option<serde_json::Value>,
}

/// The error response of a token endpoint (RFC 6749).
#[derive(Deserialize)]
struct Refusal {
    error: String,
    #[serde(default)]
    error_description: String,
}

/// The HTTP clients for token requests, which are created when they are first used.
#[derive(Default)]
pub(super) struct Requests {
    agent: Option<ureq::Agent>,
    local_agent: Option<ureq::Agent>,
}

impl Requests {
    pub(super) fn token(&mut self, source: &TokenSource) -> Result<Token, String> {
        match source {
            TokenSource::Endpoint(endpoint) => self.of_endpoint(endpoint),
            TokenSource::File(path) => of_file(path),
            TokenSource::Aws { region } => self.of_aws(region.as_deref()),
        }
    }

    fn of_aws(&mut self, region: Option<&str>) -> Result<Token, String> {
        let agent = match &self.agent {
            Some(agent) => agent,
            None => self.agent.insert(agent(None, TIMEOUT)?),
        };
        let local_agent = self.local_agent.get_or_insert_with(|| local_agent(LOCAL_TIMEOUT));
        Signer { agent, local_agent, environment: &|name| std::env::var(name).ok() }.token(region, SystemTime::now())
    }

    fn of_endpoint(&mut self, endpoint: &TokenEndpoint) -> Result<Token, String> {
        let TokenEndpoint { url, client_id, client_secret, scope, ca_location } = endpoint;
        let agent = match &self.agent {
            Some(agent) => agent,
            None => self.agent.insert(agent(ca_location.as_deref(), TIMEOUT)?),
        };
        let credentials = BASE64.encode(format!("{client_id}:{client_secret}").as_bytes());
        let mut form = vec![("grant_type", "client_credentials")];
        form.extend(scope.as_deref().map(|scope| ("scope", scope)));
        let request = agent.post(url).header("Accept", "application/json").header("Authorization", format!("Basic {credentials}"));
        let mut response = request.send_form(form).map_err(|error| format!("failed to request a token from {url}: {error}"))?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(ANSWER_MAX).read_to_vec();
        let body = body.map_err(|error| format!("failed to read the response of {url}: {error}"))?;
        if !status.is_success() {
            return Err(match serde_json::from_slice::<Refusal>(&body) {
                Ok(Refusal { error, error_description }) => {
                    let text = format!("{error} {error_description}").replace(client_secret, "(hidden)");
                    let text: String = text.trim().chars().filter(|letter| !letter.is_control()).take(DESCRIPTION_MAX).collect();
                    format!("{url} returned {status}: {text}")
                }
                Err(_) => format!("{url} returned {status}"),
            });
        }
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|_| format!("{url} returned {status}, but not a token response (RFC 6749)"))?;
        // Some providers send the number as a string.
        let seconds = answer.expires_in.and_then(|seconds| seconds.as_f64().or_else(|| seconds.as_str()?.parse().ok()));
        let lifetime = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Token::new(&answer.access_token, lifetime).map_err(|error| format!("{url} returned {error}"))
    }
}

fn of_file(path: &Path) -> Result<Token, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let file = std::fs::File::open(path).map_err(|error| failed(&error))?;
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::io::Read::take(file, ANSWER_MAX), &mut text).map_err(|error| failed(&error))?;
    Token::new(text.trim(), None).map_err(|error| format!("{} has {error}", path.display()))
}

/// Creates an HTTP client that trusts the CA certificates in a PEM file. Without a file, it trusts the system's CA certificates.
///
/// # Errors
/// Returns an error if the file cannot be used.
pub(crate) fn agent(ca_location: Option<&Path>, timeout: Duration) -> Result<ureq::Agent, String> {
    let roots = ca_location.map_or(Ok(RootCerts::PlatformVerifier), certificates)?;
    let tls = TlsConfig::builder().provider(TlsProvider::NativeTls).root_certs(roots).build();
    Ok(options(timeout).tls_config(tls).build().into())
}

/// Creates an HTTP client for services on this host. The client uses no proxy.
pub(super) fn local_agent(timeout: Duration) -> ureq::Agent {
    let tls = TlsConfig::builder().provider(TlsProvider::NativeTls).root_certs(RootCerts::PlatformVerifier).build();
    options(timeout).proxy(None).tls_config(tls).build().into()
}

fn options(timeout: Duration) -> ConfigBuilder<AgentScope> {
    ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .timeout_connect(Some(timeout.min(CONNECT_TIMEOUT)))
        .http_status_as_error(false)
        .user_agent(concat!("unseen/", env!("CARGO_PKG_VERSION")))
}

fn certificates(file: &Path) -> Result<RootCerts, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let pem = std::fs::read(file).map_err(|error| failed(&error))?;
    let items = parse_pem(&pem).collect::<Result<Vec<_>, _>>().map_err(|error| failed(&error))?;
    let all: Vec<Certificate<'static>> = items
        .into_iter()
        .filter_map(|item| match item {
            PemItem::Certificate(certificate) => Some(certificate),
            _ => None,
        })
        .collect();
    if all.is_empty() {
        return Err(failed(&"the file contains no certificate in PEM format"));
    }
    Ok(RootCerts::new_with_certs(&all))
}
