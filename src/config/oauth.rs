//! Sources of bearer tokens, for SASL logins to brokers and for schema registries.
//!
//! For brokers, the properties have librdkafka's names, and for schema registries, the options are in `schema_registry.oauth`. As in
//! Kafka's Java clients, a `file` URL refers to a file with a token. Errors and `Debug` output never show a secret.

use super::error::Diagnostics;
use super::properties::PATH;
use super::raw;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// A source of tokens. Its `Debug` output contains no secret.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// A token endpoint that issues tokens for client credentials.
    Endpoint(TokenEndpoint),
    /// A file with a token. Another process renews the token.
    File(PathBuf),
    /// AWS credentials, which unseen uses to sign tokens for the brokers of a region.
    Aws {
        /// The AWS region of the brokers, or `None` for the region in the environment variable `AWS_REGION` or
        /// `AWS_DEFAULT_REGION`.
        region: Option<String>,
    },
}

/// A token endpoint of an OAuth 2.0 or `OpenID` Connect provider.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenEndpoint {
    /// The HTTP or HTTPS URL of the endpoint.
    pub url: String,
    /// The client ID, which the provider has issued.
    pub client_id: String,
    /// The secret of the client.
    pub client_secret: String,
    /// The requested scopes, separated by spaces.
    pub scope: Option<String>,
    /// PEM file with the CA certificates of the provider. The system's CAs by default.
    pub ca_location: Option<PathBuf>,
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenSource({self})")
    }
}

impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint(TokenEndpoint { url, .. }) => f.write_str(url),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Aws { .. } => f.write_str(AWS),
        }
    }
}

/// A login to the brokers with bearer tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OAuth {
    /// The source of the tokens.
    pub source: TokenSource,
    /// SASL extensions, as pairs of name and value (RFC 7628).
    pub extensions: Vec<(String, String)>,
}

/// The name that Amazon MSK's Java library uses for its SASL mechanism. On the wire, the mechanism is OAUTHBEARER, with tokens that are
/// signed with AWS credentials.
const AWS: &str = "AWS_MSK_IAM";

const PREFIX: &str = "sasl.oauthbearer.";
const CA: &str = "https.ca.location";
const URL: &str = "sasl.oauthbearer.token.endpoint.url";
const EXPECTED_URL: &str = "expected the URL of a token endpoint, such as \"https://idp.example/oauth2/token\", or of a token file, such as \"file:///var/run/secrets/tokens/kafka\"";

/// Resolves the login with bearer tokens, if there is one. Removes `sasl.oauthbearer.*` and `https.ca.*` from `properties`, because unseen
/// obtains the tokens itself and passes only the tokens to librdkafka.
pub(super) fn resolve(properties: &mut BTreeMap<String, String>, servers: Option<&str>, diagnostics: &mut Diagnostics) -> Option<OAuth> {
    let is_own = |name: &str| name.starts_with(PREFIX) || name.starts_with("https.ca.");
    let all = std::mem::take(properties).into_iter();
    let (mut own, others): (BTreeMap<_, _>, BTreeMap<_, _>) = all.partition(|(name, _)| is_own(name));
    *properties = others;
    let mut report = |name: &str, message: &str| diagnostics.add(&format!("{PATH}.{name}"), message);
    if let Some(mechanism) = properties.get_mut("sasl.mechanisms").filter(|mechanism| *mechanism == AWS) {
        "OAUTHBEARER".clone_into(mechanism);
        for name in own.keys() {
            report(name, "has no effect with AWS credentials, which sign the token: remove it");
        }
        return Some(OAuth { source: TokenSource::Aws { region: servers.and_then(region) }, extensions: Vec::new() });
    }
    if properties.get("sasl.mechanisms").is_none_or(|mechanism| mechanism != "OAUTHBEARER") {
        for name in own.keys() {
            report(name, "has no effect without OAUTHBEARER: set sasl.mechanism to OAUTHBEARER, or remove this property");
        }
        return None;
    }
    let mut take = |name: &str| own.remove(name).filter(|value| !value.is_empty());
    if take("sasl.oauthbearer.method").is_some_and(|method| !method.eq_ignore_ascii_case("oidc")) {
        report("sasl.oauthbearer.method", "expected \"oidc\"");
    }
    if take("sasl.oauthbearer.grant.type").is_some_and(|grant| !grant.eq_ignore_ascii_case("client_credentials")) {
        report("sasl.oauthbearer.grant.type", "expected \"client_credentials\", which is the only grant that unseen supports");
    }
    let extensions = take("sasl.oauthbearer.extensions").unwrap_or_default();
    let extensions = extensions_of(&extensions).unwrap_or_else(|message| {
        report("sasl.oauthbearer.extensions", message);
        Vec::new()
    });
    let names = [URL, "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.scope", CA];
    let values = names.map(&mut take);
    for name in own.keys() {
        report(name, "unseen does not support this property; tokens can come from a file, or from an endpoint with client credentials");
    }
    let source = source(values, names, &mut report)?;
    Some(OAuth { source, extensions })
}

/// Resolves the source of tokens from a URL, a client ID, a client secret, a scope, and a file of CA certificates. `names` are the names of
/// these options, in the same order.
fn source(values: [Option<String>; 5], names: [&str; 5], report: &mut dyn FnMut(&str, &str)) -> Option<TokenSource> {
    let [url, client_id, client_secret, scope, ca_location] = values;
    let Some(url) = url else {
        report(names[0], &format!("required: {}", EXPECTED_URL.trim_start_matches("expected ")));
        return None;
    };
    if let Some(path) = url.strip_prefix("file://") {
        if !path.starts_with('/') {
            report(names[0], "expected an absolute path, such as file:///var/run/secrets/tokens/kafka");
        }
        for (name, value) in names.iter().zip([&None, &client_id, &client_secret, &scope, &ca_location]) {
            if value.is_some() {
                report(name, "has no effect with a token from a file: remove it");
            }
        }
        return Some(TokenSource::File(path.into()));
    }
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    // The error does not show the value, because it may contain a password.
    match host.map(|rest| rest.split(['/', '?']).next().unwrap_or_default()) {
        None | Some("") => report(names[0], EXPECTED_URL),
        Some(host) if host.contains('@') => {
            report(names[0], "must not contain a user or password: set the client ID and the client secret instead");
        }
        Some(_) => {}
    }
    for (name, value) in [(names[1], &client_id), (names[2], &client_secret)] {
        if value.is_none() {
            report(name, "required for a token endpoint");
        }
    }
    let ca_location = ca_location.map(PathBuf::from);
    if let Some(Err(error)) = ca_location.as_ref().map(std::fs::File::open) {
        report(names[4], &format!("cannot read the file: {error}"));
    }
    Some(TokenSource::Endpoint(TokenEndpoint { url, client_id: client_id?, client_secret: client_secret?, scope, ca_location }))
}

/// Returns the AWS region in the host name of the first Amazon MSK broker in a list of servers: `us-east-1` for
/// `b-1.news.abc123.c2.kafka.us-east-1.amazonaws.com:9098`.
fn region(servers: &str) -> Option<String> {
    servers.split(',').find_map(|server| {
        let (host, _) = server.trim().rsplit_once(':')?;
        let host = host.strip_suffix(".cn").unwrap_or(host).strip_suffix(".amazonaws.com")?;
        let (rest, region) = host.rsplit_once('.')?;
        ["kafka", "kafka-serverless"].contains(&rest.rsplit('.').next()?).then(|| region.to_owned())
    })
}

/// Parses SASL extensions in the syntax of librdkafka, `name=value,name=value`. RFC 7628 limits the characters of names and values.
fn extensions_of(text: &str) -> Result<Vec<(String, String)>, &'static str> {
    let expected = "expected name=value pairs, separated by commas, with only letters in the names, such as \"logicalCluster=lkc-1,identityPoolId=pool-1\"";
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').ok_or(expected)?;
            let is_name = !name.is_empty() && name != "auth" && name.bytes().all(|byte| byte.is_ascii_alphabetic());
            let is_value = value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
            if is_name && is_value { Ok((name.to_owned(), value.to_owned())) } else { Err(expected) }
        })
        .collect()
}

/// A login to a schema registry with bearer tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryOAuth {
    /// The source of the tokens.
    pub source: TokenSource,
    /// Names and values of additional headers for requests to the registry.
    pub headers: Vec<(&'static str, String)>,
}

pub(super) fn resolve_registry(raw: raw::RegistryOAuth, diagnostics: &mut Diagnostics) -> Option<RegistryOAuth> {
    let mut report = |name: &str, message: &str| diagnostics.add(&format!("schema_registry.oauth.{name}"), message);
    let raw::RegistryOAuth { token_endpoint_url, client_id, client_secret, scope, ca_location, logical_cluster, identity_pool_id } = raw;
    let names = ["token_endpoint_url", "client_id", "client_secret", "scope", "ca_location"];
    let headers = [("target-sr-cluster", logical_cluster), ("Confluent-Identity-Pool-Id", identity_pool_id)];
    let headers = headers.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    Some(RegistryOAuth { source: source([token_endpoint_url, client_id, client_secret, scope, ca_location], names, &mut report)?, headers })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(properties: &[(&str, &str)]) -> (Option<OAuth>, Vec<String>) {
        let mut properties = properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut diagnostics = Diagnostics::new("x.toml".to_owned());
        let oauth = resolve(&mut properties, Some("b-1.a.c2.kafka.eu-west-1.amazonaws.com:9098"), &mut diagnostics);
        assert!(properties.keys().all(|name| !name.starts_with(PREFIX) && name != CA), "{properties:?} would go to librdkafka");
        let errors = diagnostics.finish(None::<()>).unwrap_err().0;
        (oauth, errors.iter().map(|error| format!("{}: {}", error.path.trim_start_matches("kafka.properties."), error.message)).collect())
    }

    const LOGIN: [(&str, &str); 5] = [
        ("sasl.mechanisms", "OAUTHBEARER"),
        ("sasl.oauthbearer.method", "OIDC"),
        (URL, "https://idp/token"),
        ("sasl.oauthbearer.client.id", "ann"),
        ("sasl.oauthbearer.client.secret", "hunter2"),
    ];

    #[test]
    fn properties_of_librdkafka_become_a_login() {
        let more = [("sasl.oauthbearer.scope", "a b"), ("sasl.oauthbearer.extensions", "logicalCluster=lkc-1, identityPoolId=a=b")];
        let (oauth, errors) = resolved(&[&LOGIN[..], &more].concat());
        assert_eq!(errors, [""; 0]);
        let pairs = [("logicalCluster", "lkc-1"), ("identityPoolId", "a=b")];
        let endpoint = TokenEndpoint {
            url: "https://idp/token".to_owned(),
            client_id: "ann".to_owned(),
            client_secret: "hunter2".to_owned(),
            scope: Some("a b".to_owned()),
            ca_location: None,
        };
        let wanted = OAuth {
            source: TokenSource::Endpoint(endpoint),
            extensions: pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        };
        assert_eq!(oauth.as_ref(), Some(&wanted));
        assert!(!format!("{oauth:?}").contains("hunter2"));
    }

    #[test]
    fn a_token_file_needs_no_client_credentials() {
        let (oauth, errors) = resolved(&[LOGIN[0], (URL, "file:///var/run/token")]);
        assert_eq!((oauth.map(|oauth| oauth.source), errors), (Some(TokenSource::File("/var/run/token".into())), Vec::new()));
        let (_, errors) = resolved(&[LOGIN[0], LOGIN[3], (URL, "file://token")]);
        assert_eq!(errors[0], "sasl.oauthbearer.client.id: has no effect with a token from a file: remove it");
        assert_eq!(errors[1], format!("{URL}: expected an absolute path, such as file:///var/run/secrets/tokens/kafka"));
    }

    #[test]
    fn the_region_comes_from_the_host_names_of_msk_brokers() {
        let (oauth, errors) = resolved(&[("sasl.mechanisms", AWS)]);
        assert_eq!(errors, [""; 0]);
        assert_eq!(oauth.unwrap().source, TokenSource::Aws { region: Some("eu-west-1".to_owned()) });
        let (_, errors) = resolved(&[("sasl.mechanisms", AWS), LOGIN[3]]);
        assert_eq!(errors, ["sasl.oauthbearer.client.id: has no effect with AWS credentials, which sign the token: remove it"]);
        for (servers, wanted) in [
            ("boot-1.c1.kafka-serverless.us-east-1.amazonaws.com:9098", Some("us-east-1")),
            ("other:9098, b-2.news.abc.c2.kafka.cn-north-1.amazonaws.com.cn:9098", Some("cn-north-1")),
            ("ec2-1-2-3-4.us-east-1.compute.amazonaws.com:9098", None),
            ("kafka.example:9098", None),
        ] {
            assert_eq!(region(servers).as_deref(), wanted, "{servers}");
        }
    }

    #[test]
    fn errors_of_a_login_do_not_show_secrets() {
        let changed = |name: &str, value: &'static str| {
            let mut properties: Vec<_> = LOGIN.iter().copied().filter(|(known, _)| *known != name).collect();
            properties.push((name.to_owned().leak(), value));
            resolved(&properties).1.join("\n")
        };
        for (name, value, message) in [
            (URL, "", "required: the URL of a token endpoint, such as"),
            (URL, "idp/token", "expected the URL of a token endpoint, such as"),
            (URL, "https://ann:hunter2@idp/token", "must not contain a user or password: set the client ID and the client secret instead"),
            ("sasl.oauthbearer.client.id", "", "required for a token endpoint"),
            ("sasl.oauthbearer.client.secret", "", "required for a token endpoint"),
            ("sasl.oauthbearer.method", "default", "expected \"oidc\""),
            ("sasl.oauthbearer.grant.type", "urn:ietf:params:oauth:grant-type:jwt-bearer", "expected \"client_credentials\""),
            ("sasl.oauthbearer.extensions", "auth=hunter2", "expected name=value pairs, separated by commas"),
            ("sasl.oauthbearer.config", "principal=hunter2", "unseen does not support this property"),
            ("sasl.oauthbearer.assertion.file", "hunter2", "unseen does not support this property"),
            ("https.ca.pem", "hunter2", "unseen does not support this property"),
            (CA, "/no/such/file", "cannot read the file: No such file"),
            ("sasl.mechanisms", "PLAIN", "has no effect without OAUTHBEARER: set sasl.mechanism to OAUTHBEARER, or remove this property"),
        ] {
            let errors = changed(name, value);
            assert!(errors.contains(message) && !errors.contains("hunter2"), "{name} = {value:?}: {errors}");
        }
    }
}
