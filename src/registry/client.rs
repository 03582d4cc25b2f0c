//! A client for the API of Confluent's schema registry, which other registries also implement.
//!
//! Limits the sizes of responses and schemas. Error messages never contain a password or a token. A failed request never makes a schema
//! count as missing.

use crate::config::{RegistryOAuth, SchemaRegistry};
use crate::format::{Body, Format, Reference, Schema, SchemaId};
use crate::oauth::{self, Tokens, escaped};
use data_encoding::BASE64;
use serde::Deserialize;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use ureq::http::StatusCode;

/// The maximum size of a response in bytes. Schemas usually have a few kilobytes.
const ANSWER_MAX: u64 = 8 << 20;

/// The maximum number of schemas that a schema references, directly or indirectly.
const REFERENCES_MAX: usize = 256;

/// The maximum size of a schema in bytes, including its references.
const SCHEMA_MAX: usize = 4 << 20;

/// The largest schema id. Registries use Java's `int` and do not answer requests for larger ids in their usual format.
const ID_MAX: u32 = i32::MAX.cast_unsigned();

/// A path that every registry answers. The client requests the path after a 404 for a GUID, to find out whether the address belongs to a
/// registry.
const TYPES: &str = "/schemas/types";

const MESSAGE_MAX: usize = 300;

const GUIDS: &str = "/schemas/guids/";

/// The error codes for a missing subject, version, or schema.
const NOT_FOUND: [u32; 3] = [40401, 40402, 40403];

#[derive(Debug)]
pub(super) enum Failure {
    /// The registry reported that the schema does not exist, or it does not support GUIDs. A registry that is starting can report every
    /// schema as missing.
    Missing(String),
    /// The schema cannot be used. A retry would not help.
    Unusable(String),
    /// The registry could not be reached, or its response was neither a schema nor a report that the schema is missing. A retry can help.
    Unavailable(String),
}

pub(super) struct Client {
    agent: ureq::Agent,
    urls: Vec<String>,
    login: Login,
    timeout: Duration,
    /// The index of the address that returned a schema last.
    current: Cell<usize>,
}

enum Login {
    None,
    /// The value of the `Authorization` header, which contains the password.
    Basic(String),
    Bearer {
        tokens: Arc<Tokens>,
        /// Headers that some registries require in addition to the token, such as `target-sr-cluster`.
        headers: Vec<(&'static str, String)>,
    },
}

#[derive(Deserialize)]
struct Answer {
    schema: String,
    #[serde(rename = "schemaType", default)]
    kind: Option<String>,
    #[serde(default)]
    references: Option<Vec<Named>>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    subject: String,
    version: u32,
}

#[derive(Deserialize)]
struct Refusal {
    error_code: u32,
    #[serde(default)]
    message: String,
}

impl Client {
    /// Returns an error message if the file in `schema_registry.ca_location` cannot be used.
    pub(super) fn new(config: &SchemaRegistry) -> Result<Self, String> {
        let agent = oauth::agent(config.ca_location.as_deref(), config.timeout);
        let agent = agent.map_err(|error| format!("schema_registry.ca_location: {error}"))?;
        let login = match (&config.oauth, &config.credentials) {
            (Some(RegistryOAuth { source, headers }), _) => Login::Bearer { tokens: Tokens::of(source), headers: headers.clone() },
            (None, Some((user, password))) => Login::Basic(format!("Basic {}", BASE64.encode(format!("{user}:{password}").as_bytes()))),
            (None, None) => Login::None,
        };
        Ok(Self { agent, urls: config.urls.clone(), login, timeout: config.timeout, current: Cell::new(0) })
    }

    pub(super) fn schema(&self, id: SchemaId) -> Result<Schema, Failure> {
        let path = match id {
            SchemaId::Number(number) if number > ID_MAX => {
                return Err(Failure::Unusable(format!("the schema id is larger than {ID_MAX}, the largest id of a registry")));
            }
            SchemaId::Number(_) => format!("/schemas/ids/{id}"),
            SchemaId::Guid(_) => format!("{GUIDS}{id}"),
        };
        let answer = self.ask(&path)?;
        self.complete(answer)
    }

    pub(super) fn latest(&self, subject: &str) -> Result<Schema, Failure> {
        let answer = self.ask(&format!("/subjects/{}/versions/latest", escaped(subject)))?;
        self.complete(answer)
    }

    /// Converts a response to a schema and fetches its references.
    fn complete(&self, answer: Answer) -> Result<Schema, Failure> {
        // Registries leave out the type of Avro schemas.
        let kind = answer.kind.as_deref().unwrap_or("AVRO");
        let format = Format::ALL.into_iter().find(|format| format.schema_type() == Some(kind));
        let format = format.ok_or_else(|| Failure::Unusable(format!("unseen does not support schema type {kind}")))?;
        let (mut references, mut seen) = (Vec::new(), BTreeSet::new());
        let mut room = SCHEMA_MAX.checked_sub(answer.schema.len()).ok_or_else(too_large)?;
        self.add_references(answer.references.unwrap_or_default(), &mut references, &mut seen, &mut room)?;
        Ok(Schema::new(format, Body::Text(answer.schema), references))
    }

    /// Adds the referenced schemas, each after its own references. If two references have the same name, only the first one counts, as in
    /// the registry.
    fn add_references(
        &self,
        named: Vec<Named>,
        found: &mut Vec<Reference>,
        seen: &mut BTreeSet<String>,
        room: &mut usize,
    ) -> Result<(), Failure> {
        for Named { name, subject, version } in named {
            if !seen.insert(name.clone()) {
                continue;
            }
            if seen.len() > REFERENCES_MAX {
                return Err(Failure::Unusable(format!("the schema has more than {REFERENCES_MAX} references")));
            }
            // The query has `deleted=true`, because records can still need a referenced schema that was deleted from the registry.
            let answer = self.ask(&format!("/subjects/{}/versions/{version}?deleted=true", escaped(&subject)));
            let answer = answer.map_err(|failure| match failure {
                // The referencing schema exists, so its references exist, too. The user probably has no permission to read them.
                Failure::Missing(why) => {
                    Failure::Unavailable(format!("the schema references version {version} of the subject `{subject}`, but {why}; check that unseen has permission to read this subject"))
                }
                other => other,
            })?;
            *room = room.checked_sub(answer.schema.len()).ok_or_else(too_large)?;
            self.add_references(answer.references.unwrap_or_default(), found, seen, room)?;
            found.push(Reference { name, body: Body::Text(answer.schema) });
        }
        Ok(())
    }

    /// Asks the address that returned a schema last, and then the other addresses until one returns the schema. A schema is missing only if
    /// all addresses report it as missing, because one registry can lag behind another.
    fn ask(&self, path: &str) -> Result<Answer, Failure> {
        let (mut errors, mut missing) = (Vec::new(), Vec::new());
        for turn in 0..self.urls.len() {
            let at = (self.current.get() + turn) % self.urls.len();
            match self.ask_at(&self.urls[at], path) {
                Err(Failure::Unavailable(unavailable)) => errors.push(unavailable),
                Err(Failure::Missing(why)) => missing.push(why),
                answered => {
                    self.current.set(at);
                    return answered;
                }
            }
        }
        if errors.is_empty() {
            return Err(Failure::Missing(missing.join("; ")));
        }
        errors.append(&mut missing);
        Err(Failure::Unavailable(errors.join("; ")))
    }

    fn ask_at(&self, url: &str, path: &str) -> Result<Answer, Failure> {
        let unavailable = |what: String| Failure::Unavailable(format!("{url}{path} {what}"));
        let (status, body) = self.get(url, path)?;
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| {
                unavailable(format!("returned a response that is not from a schema registry; check schema_registry.url: {error}"))
            });
        }
        match serde_json::from_slice::<Refusal>(&body) {
            Ok(refusal) if NOT_FOUND.contains(&refusal.error_code) => {
                Err(Failure::Missing(format!("{url} does not have the schema: {}", shorten(&refusal.message))))
            }
            _ if status.as_u16() == 404 && path.starts_with(GUIDS) && self.is_registry(url) => {
                Err(Failure::Missing(format!("{url} does not support schema GUIDs")))
            }
            _ if matches!(status.as_u16(), 401 | 403) => {
                let settings = match self.login {
                    Login::Bearer { .. } => "schema_registry.oauth, and the permissions of its token",
                    _ => "schema_registry.username and .password, and that user's permissions",
                };
                Err(unavailable(format!("returned {status}; check {settings}")))
            }
            _ if status.as_u16() == 404 => {
                Err(unavailable(format!("returned {status} but did not report that the schema is missing; check schema_registry.url")))
            }
            Ok(refusal) => Err(unavailable(format!("returned {status}: {}", shorten(&refusal.message)))),
            Err(_) => Err(unavailable(format!("returned {status}"))),
        }
    }

    /// True if a schema registry answers at this address. A 404 without an error code of the registry API, for the path of a GUID, does not
    /// prove that the address is wrong: some registries without GUIDs answer all unsupported paths in this way.
    fn is_registry(&self, url: &str) -> bool {
        let answer = self.get(url, TYPES).ok().filter(|(status, _)| status.is_success());
        answer.is_some_and(|(_, body)| serde_json::from_slice::<Vec<String>>(&body).is_ok())
    }

    fn get(&self, url: &str, path: &str) -> Result<(StatusCode, Vec<u8>), Failure> {
        let unavailable = |what: String| Failure::Unavailable(format!("{url}{path} {what}"));
        let mut request = self
            .agent
            .get(format!("{url}{path}"))
            .header("Accept", "application/vnd.schemaregistry.v1+json, application/vnd.schemaregistry+json, application/json");
        let mut token = None;
        match &self.login {
            Login::None => {}
            Login::Basic(authorization) => request = request.header("Authorization", authorization),
            Login::Bearer { tokens, headers } => {
                let current = tokens
                    .get(self.timeout)
                    .map_err(|why| unavailable(format!("was not requested, because there is no bearer token: {why}")))?;
                request = request.header("Authorization", format!("Bearer {}", current.value()));
                token = Some((tokens, current));
                request = headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
            }
        }
        let mut response = request.call().map_err(|error| unavailable(format!("could not be reached: {error}")))?;
        let status = response.status();
        if let Some((tokens, token)) = token.filter(|_| status == StatusCode::UNAUTHORIZED) {
            tokens.reject(&token);
        }
        match response.body_mut().with_config().limit(ANSWER_MAX).read_to_vec() {
            Ok(body) => Ok((status, body)),
            // A response of this size is not a schema. The response can come from a proxy, so retry instead of treating the schema as
            // unusable.
            Err(ureq::Error::BodyExceedsLimit(_)) => Err(unavailable(format!("returned {status} and more than {ANSWER_MAX} bytes"))),
            Err(error) => Err(unavailable(format!("sent an incomplete response: {error}"))),
        }
    }
}

fn too_large() -> Failure {
    Failure::Unusable(format!("the schema and its references have more than {} MiB", SCHEMA_MAX >> 20))
}

/// Shortens an error message of the registry, which can have any length.
fn shorten(words: &str) -> String {
    words.chars().take(MESSAGE_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TokenSource;
    use crate::oauth::stub;
    use std::sync::mpsc;

    type Answers = fn(&str) -> (u16, String);

    fn stub(answers: Answers) -> String {
        stub::serve(move |request| Some(answers(request.split(' ').nth(1).unwrap_or_default())))
    }

    fn client(stubs: &[Answers]) -> Client {
        let urls = stubs.iter().map(|&answers| stub(answers)).collect();
        Client::new(&SchemaRegistry { urls, credentials: None, oauth: None, ca_location: None, timeout: Duration::from_secs(60) }).unwrap()
    }

    #[test]
    fn a_bearer_token_goes_with_every_request() {
        let (sender, requests) = mpsc::channel();
        let url = stub::serve(move |request| sender.send(request.to_owned()).ok().map(|()| (401, "")));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "s3cret").unwrap();
        let oauth = RegistryOAuth { source: TokenSource::File(file), headers: vec![("target-sr-cluster", "lsrc-1".to_owned())] };
        let config =
            SchemaRegistry { urls: vec![url], credentials: None, oauth: Some(oauth), ca_location: None, timeout: Duration::from_secs(60) };
        let failure = format!("{:?}", Client::new(&config).unwrap().latest("news-value").unwrap_err());
        let request = requests.recv().unwrap();
        for line in ["authorization: Bearer s3cret\n", "target-sr-cluster: lsrc-1\n"] {
            assert!(request.contains(line), "{request}");
        }
        assert!(failure.contains("check schema_registry.oauth") && !failure.contains("s3cret"), "{failure}");
    }

    fn knows(_: &str) -> (u16, String) {
        (200, r#"{"schema": "\"int\""}"#.to_owned())
    }

    fn lacks(_: &str) -> (u16, String) {
        (404, r#"{"error_code": 40403, "message": "Schema not found"}"#.to_owned())
    }

    fn fails(_: &str) -> (u16, String) {
        (503, "not now".to_owned())
    }

    const ID: SchemaId = SchemaId::Number(7);

    #[test]
    fn a_subject_is_escaped_in_a_path() {
        assert_eq!(escaped("news.events-value"), "news.events-value");
        assert_eq!(escaped(":.ctx:a/b é"), "%3A.ctx%3Aa%2Fb%20%C3%A9");
    }

    #[test]
    fn ids_above_the_maximum_are_not_requested() {
        let client = client(&[|_| panic!("the registry must not be asked")]);
        let failure = client.schema(SchemaId::Number(1 << 31)).unwrap_err();
        assert!(matches!(failure, Failure::Unusable(_)), "{failure:?}");
    }

    #[test]
    fn a_schema_is_missing_only_if_all_addresses_report_it() {
        for (stubs, missing) in [([lacks as Answers, lacks], true), ([lacks, fails], false), ([fails, lacks], false)] {
            let failure = client(&stubs).schema(ID).unwrap_err();
            assert_eq!(matches!(failure, Failure::Missing(_)), missing, "{failure:?}");
            assert!(missing || matches!(failure, Failure::Unavailable(_)), "{failure:?}");
        }
        for stubs in [[knows as Answers, fails], [fails, knows], [lacks, knows]] {
            assert!(client(&stubs).schema(ID).is_ok());
        }
    }

    #[test]
    fn a_guid_is_missing_if_the_registry_does_not_support_guids() {
        let guid = SchemaId::Guid([7; 16]);
        let has_no_route = |path: &str| match path {
            TYPES => (200, r#"["JSON", "AVRO"]"#.to_owned()),
            _ => (404, "no such page".to_owned()),
        };
        let failure = client(&[has_no_route]).schema(guid).unwrap_err();
        assert!(matches!(failure, Failure::Missing(_)), "{failure:?}");
        // If `TYPES` has no response either, the 404 can come from a proxy. For a numeric id, a 404 without an error code proves nothing.
        let failure = client(&[|_| (404, "no such page".to_owned())]).schema(guid).unwrap_err();
        assert!(matches!(failure, Failure::Unavailable(_)), "{failure:?}");
        let failure = client(&[has_no_route]).schema(ID).unwrap_err();
        assert!(matches!(failure, Failure::Unavailable(_)), "{failure:?}");
    }

    #[test]
    fn of_two_references_with_the_same_name_the_first_is_used() {
        let client = client(&[|path| match path {
            "/schemas/ids/7" => {
                let references = r#"[{"name": "b", "subject": "b", "version": 1}, {"name": "c", "subject": "c", "version": 2}]"#;
                (200, format!(r#"{{"schema": "m", "schemaType": "PROTOBUF", "references": {references}}}"#))
            }
            "/subjects/b/versions/1?deleted=true" => {
                (200, r#"{"schema": "b1", "references": [{"name": "c", "subject": "c", "version": 1}]}"#.to_owned())
            }
            "/subjects/c/versions/1?deleted=true" => (200, r#"{"schema": "c1"}"#.to_owned()),
            _ => panic!("unexpected request for {path}"),
        }]);
        let schema = client.schema(ID).unwrap();
        let bodies: Vec<_> = schema.references.iter().map(|reference| (&*reference.name, &reference.body)).collect();
        assert_eq!(bodies, [("c", &Body::Text("c1".to_owned())), ("b", &Body::Text("b1".to_owned()))]);
    }

    #[test]
    fn a_missing_reference_is_retried() {
        let client = client(&[|path| match path {
            "/schemas/ids/7" => (200, r#"{"schema": "m", "references": [{"name": "b", "subject": "b", "version": 1}]}"#.to_owned()),
            path => lacks(path),
        }]);
        let failure = client.schema(ID).unwrap_err();
        assert!(matches!(&failure, Failure::Unavailable(why) if why.contains("version 1 of the subject `b`")), "{failure:?}");
    }

    #[test]
    fn a_schema_that_is_too_large_cannot_be_used() {
        let client = client(&[|_| (200, format!(r#"{{"schema": "{}"}}"#, "x".repeat(SCHEMA_MAX + 1)))]);
        let failure = client.schema(ID).unwrap_err();
        assert!(matches!(failure, Failure::Unusable(_)), "{failure:?}");
    }
}
