//! The connection to a schema registry.
//!
//! Errors and `Debug` output never show a password.

use super::error::Diagnostics;
use super::oauth::{self, RegistryOAuth};
use super::raw;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A schema registry. Its `Debug` output contains no secret.
#[derive(Clone)]
pub struct SchemaRegistry {
    /// The addresses of the registry, at least one, without a trailing slash.
    pub urls: Vec<String>,
    /// The user and the password for basic authentication.
    pub credentials: Option<(String, String)>,
    /// Bearer tokens, instead of basic authentication.
    pub oauth: Option<RegistryOAuth>,
    /// PEM file with the CA certificates that sign the registry's certificate. The system's CAs by default.
    pub ca_location: Option<PathBuf>,
    /// Maximum time for a response.
    pub timeout: Duration,
}

impl fmt::Debug for SchemaRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { urls, credentials, oauth, ca_location, timeout } = self;
        let user = credentials.as_ref().map(|(user, _)| user);
        f.debug_struct("SchemaRegistry")
            .field("urls", urls)
            .field("user", &user)
            .field("oauth", oauth)
            .field("ca_location", ca_location)
            .field("timeout", timeout)
            .finish()
    }
}

pub(super) fn resolve(mut raw: raw::SchemaRegistry, diagnostics: &mut Diagnostics) -> Option<SchemaRegistry> {
    let oauth = raw.oauth.take().map(|oauth| oauth::resolve_registry(oauth, diagnostics));
    let is_known = ["username", "password"].iter().any(|name| diagnostics.knows(&format!("schema_registry.{name}")));
    let mut report = |name: &str, message: &str| diagnostics.add(&format!("schema_registry.{name}"), message);
    let Some(url) = raw.url else {
        if raw.username.is_some() || raw.password.is_some() || raw.ca_location.is_some() || oauth.is_some() {
            report("url", "required: the registry's address, such as \"http://localhost:8081\"");
        }
        return None;
    };
    let urls: Vec<_> = url.split(',').map(|url| url.trim().trim_end_matches('/').to_owned()).collect();
    for url in &urls {
        let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        // The error does not show the value, because it may contain a password.
        match host {
            Some(rest) if rest.contains(['@', '?', '#']) => {
                report(
                    "url",
                    "must not contain a user, a password, or parameters: set schema_registry.username and schema_registry.password instead",
                );
            }
            Some(rest) if !rest.is_empty() && !rest.starts_with('/') => {}
            _ => report("url", "expected an address such as \"http://localhost:8081\", or several addresses separated by commas"),
        }
    }
    if raw.timeout.0 < Duration::from_millis(100) {
        report("timeout", "expected a duration of at least 100ms");
    }
    if raw.username.is_some() != raw.password.is_some() && !is_known {
        report("password", "username and password must be set together: set both, or remove both");
    }
    if oauth.is_some() && (raw.username.is_some() || raw.password.is_some()) {
        report("oauth", "cannot be combined with username and password: remove either oauth, or username and password");
    }
    let ca_location = raw.ca_location.map(PathBuf::from);
    if let Some((raw_ca, Err(error))) = ca_location.as_ref().map(|file| (file, std::fs::File::open(file))) {
        report("ca_location", &format!("cannot read {}: {error}", raw_ca.display()));
    }
    Some(SchemaRegistry { urls, credentials: raw.username.zip(raw.password), oauth: oauth.flatten(), ca_location, timeout: raw.timeout.0 })
}
