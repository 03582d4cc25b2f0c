//! The API of Confluent's schema registry, which others speak, too: one question, one answer.
//!
//! Owns addresses, credentials and bounds. Must never show a password, nor take a failure for the answer that there is no
//! such schema.

use crate::config::{RegistryOAuth, SchemaRegistry};
use crate::format::{Body, Format, Reference, Schema, SchemaId};
use crate::oauth::{self, Tokens};
use data_encoding::BASE64;
use serde::Deserialize;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;
use ureq::http::StatusCode;

/// Largest answer. Schemas have some kilobytes.
const ANSWER_MAX: u64 = 8 << 20;

/// Most schemas that one names, and those name.
const REFERENCES_MAX: usize = 256;

/// Largest schema, with those that it names.
const SCHEMA_MAX: usize = 4 << 20;

/// Largest number of a schema: registries count in Java's `int`, and answer larger ones as if they were no registry.
const NUMBER_MAX: u32 = i32::MAX.cast_unsigned();

/// What every registry answers, whatever it knows.
const TYPES: &str = "/schemas/types";

/// Most characters of a registry's own words that are passed on.
const WORDS_MAX: usize = 300;

/// Where schemas are by their GUIDs.
const GUIDS: &str = "/schemas/guids/";

/// The codes by which a registry says that it has no such subject, version or schema.
const NOT_FOUND: [u32; 3] = [40401, 40402, 40403];

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The registry says that it has no such schema. One that starts says so of each.
    Missing(String),
    /// It cannot be used: another try would not help.
    Unusable(String),
    /// The registry could not be asked, or has failed: worth another try.
    Trouble(String),
}

/// What asks a registry.
pub(super) struct Client {
    agent: ureq::Agent,
    urls: Vec<String>,
    login: Login,
    timeout: Duration,
    /// The address that answered last.
    current: Cell<usize>,
}

/// What a registry is shown.
enum Login {
    None,
    /// The value of a header.
    Basic(String),
    /// A bearer token, and further headers.
    Bearer {
        tokens: Arc<Tokens>,
        headers: Vec<(&'static str, String)>,
    },
}

/// A schema as a registry writes it.
#[derive(Deserialize)]
struct Answer {
    schema: String,
    #[serde(rename = "schemaType", default)]
    kind: Option<String>,
    #[serde(default)]
    references: Option<Vec<Named>>,
}

/// A schema that another one names.
#[derive(Deserialize)]
struct Named {
    name: String,
    subject: String,
    version: u32,
}

/// What a registry says of a question that it cannot answer.
#[derive(Deserialize)]
struct Refusal {
    error_code: u32,
    #[serde(default)]
    message: String,
}

impl Client {
    /// Ready to ask.
    ///
    /// # Errors
    /// A sentence, when the file of certificates cannot be used.
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

    /// The schema that a frame names, with those that it names.
    pub(super) fn schema(&self, id: SchemaId) -> Result<Schema, Failure> {
        let path = match id {
            SchemaId::Number(number) if number > NUMBER_MAX => {
                return Err(Failure::Unusable(format!("no registry gives a number above {NUMBER_MAX}")));
            }
            SchemaId::Number(_) => format!("/schemas/ids/{id}"),
            SchemaId::Guid(_) => format!("{GUIDS}{id}"),
        };
        let answer = self.ask(&path)?;
        self.complete(answer)
    }

    /// The newest schema of a subject.
    pub(super) fn latest(&self, subject: &str) -> Result<Schema, Failure> {
        let answer = self.ask(&format!("/subjects/{}/versions/latest", escaped(subject)))?;
        self.complete(answer)
    }

    /// Adds the schemas that one names.
    fn complete(&self, answer: Answer) -> Result<Schema, Failure> {
        let format = match answer.kind.as_deref() {
            None | Some("AVRO") => Format::Avro,
            Some("PROTOBUF") => Format::Protobuf,
            Some("JSON") => Format::JsonSchema,
            Some(kind) => return Err(Failure::Unusable(format!("it is of the type {kind}, which unseen does not know"))),
        };
        let (mut references, mut seen) = (Vec::new(), BTreeSet::new());
        let mut room = SCHEMA_MAX.checked_sub(answer.schema.len()).ok_or_else(too_large)?;
        self.add_references(answer.references.unwrap_or_default(), &mut references, &mut seen, &mut room)?;
        Ok(Schema::new(format, Body::Text(answer.schema), references))
    }

    /// Adds schemas behind those that they name themselves. Of two by the same name the first counts, as in the registry.
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
                return Err(Failure::Unusable(format!("it names more than {REFERENCES_MAX} other schemas")));
            }
            // A schema may name one that was deleted since: records of it are still there.
            let answer = self.ask(&format!("/subjects/{}/versions/{version}?deleted=true", escaped(&subject)));
            let answer = answer.map_err(|failure| match failure {
                // The schema is there. So what it names is, too: perhaps this user may not read it.
                Failure::Missing(why) => Failure::Trouble(format!("it names version {version} of the subject `{subject}`, but {why}")),
                other => other,
            })?;
            *room = room.checked_sub(answer.schema.len()).ok_or_else(too_large)?;
            self.add_references(answer.references.unwrap_or_default(), found, seen, room)?;
            found.push(Reference { name, body: Body::Text(answer.schema) });
        }
        Ok(())
    }

    /// Asks the address that answered last, then the others. Only if all of them say so, there is no such schema: one of
    /// them may lag behind another.
    fn ask(&self, path: &str) -> Result<Answer, Failure> {
        let (mut troubles, mut missing) = (Vec::new(), Vec::new());
        for turn in 0..self.urls.len() {
            let at = (self.current.get() + turn) % self.urls.len();
            match self.ask_at(&self.urls[at], path) {
                Err(Failure::Trouble(trouble)) => troubles.push(trouble),
                Err(Failure::Missing(why)) => missing.push(why),
                answered => {
                    self.current.set(at);
                    return answered;
                }
            }
        }
        if troubles.is_empty() {
            return Err(Failure::Missing(missing.join("; ")));
        }
        troubles.append(&mut missing);
        Err(Failure::Trouble(troubles.join("; ")))
    }

    fn ask_at(&self, url: &str, path: &str) -> Result<Answer, Failure> {
        let trouble = |what: String| Failure::Trouble(format!("{url}{path} {what}"));
        let (status, body) = self.get(url, path)?;
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| trouble(format!("did not answer as a schema registry does: {error}")));
        }
        match serde_json::from_slice::<Refusal>(&body) {
            Ok(refusal) if NOT_FOUND.contains(&refusal.error_code) => {
                Err(Failure::Missing(format!("{url} does not know it: {}", cut(&refusal.message))))
            }
            _ if status.as_u16() == 404 && path.starts_with(GUIDS) && self.is_registry(url) => {
                Err(Failure::Missing(format!("{url} has no schemas by GUID")))
            }
            _ if matches!(status.as_u16(), 401 | 403) => {
                let settings = match self.login {
                    Login::Bearer { .. } => "schema_registry.oauth, and at the rights that come with its token",
                    _ => "schema_registry.username and .password, and at that user's rights",
                };
                Err(trouble(format!("answered {status}; look at {settings}")))
            }
            _ if status.as_u16() == 404 => {
                Err(trouble(format!("answered {status}, but not as a schema registry does; is schema_registry.url right?")))
            }
            Ok(refusal) => Err(trouble(format!("answered {status}: {}", cut(&refusal.message)))),
            Err(_) => Err(trouble(format!("answered {status}"))),
        }
    }

    /// Whether a registry answers there: one that is asked for what it does not have may not say so as a registry does.
    fn is_registry(&self, url: &str) -> bool {
        let answer = self.get(url, TYPES).ok().filter(|(status, _)| status.is_success());
        answer.is_some_and(|(_, body)| serde_json::from_slice::<Vec<String>>(&body).is_ok())
    }

    /// The status and the body of an answer, whatever they say.
    fn get(&self, url: &str, path: &str) -> Result<(StatusCode, Vec<u8>), Failure> {
        let trouble = |what: String| Failure::Trouble(format!("{url}{path} {what}"));
        let mut request = self
            .agent
            .get(format!("{url}{path}"))
            .header("Accept", "application/vnd.schemaregistry.v1+json, application/vnd.schemaregistry+json, application/json");
        match &self.login {
            Login::None => {}
            Login::Basic(authorization) => request = request.header("Authorization", authorization),
            Login::Bearer { tokens, headers } => {
                let token = tokens.get(self.timeout).map_err(|why| trouble(format!("needs a token: {why}")))?;
                request = request.header("Authorization", format!("Bearer {}", token.value()));
                request = headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
            }
        }
        let mut response = request.call().map_err(|error| trouble(format!("could not be asked: {error}")))?;
        let status = response.status();
        match response.body_mut().with_config().limit(ANSWER_MAX).read_to_vec() {
            Ok(body) => Ok((status, body)),
            // That is no schema. A page of something else in between says nothing of the schema.
            Err(ureq::Error::BodyExceedsLimit(_)) => Err(trouble(format!("answered {status} and more than {ANSWER_MAX} bytes"))),
            Err(error) => Err(trouble(format!("broke off its answer: {error}"))),
        }
    }
}

fn too_large() -> Failure {
    Failure::Unusable(format!("it has more than {} MiB with the schemas that it names", SCHEMA_MAX >> 20))
}

/// The beginning of a registry's own words, which may be any.
fn cut(words: &str) -> String {
    words.chars().take(WORDS_MAX).collect()
}

/// Escapes what cannot stand in a path.
fn escaped(subject: &str) -> String {
    let mut escaped = String::new();
    for byte in subject.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(byte.into());
        } else {
            // A string takes all that is written.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TokenSource;
    use std::io::{BufRead, BufReader, Read as _, Write as _};
    use std::net::TcpListener;

    type Answers = fn(&str) -> (u16, String);

    /// A registry that answers a path so, and its address.
    fn stub(answers: Answers) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // It ends with the process.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                let request = lines.next().unwrap_or_default();
                lines.take_while(|line| !line.is_empty()).for_each(drop);
                let (status, body) = answers(request.split(' ').nth(1).unwrap_or_default());
                let head = format!("HTTP/1.1 {status} -\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                let _ = stream.write_all((head + &body).as_bytes());
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = stream.read(&mut [0]);
            }
        });
        format!("http://{address}")
    }

    fn client(stubs: &[Answers]) -> Client {
        let urls = stubs.iter().map(|&answers| stub(answers)).collect();
        Client::new(&SchemaRegistry { urls, credentials: None, oauth: None, ca_location: None, timeout: Duration::from_secs(60) }).unwrap()
    }

    #[test]
    fn a_bearer_token_goes_with_every_request() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let registry = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let head: Vec<_> = lines.take_while(|line| !line.is_empty()).map(|line| line.to_ascii_lowercase()).collect();
            stream.write_all(b"HTTP/1.1 401 -\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
            head
        });
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "s3cret").unwrap();
        let oauth = RegistryOAuth { source: TokenSource::File(file), headers: vec![("target-sr-cluster", "lsrc-1".to_owned())] };
        let config =
            SchemaRegistry { urls: vec![url], credentials: None, oauth: Some(oauth), ca_location: None, timeout: Duration::from_secs(60) };
        let failure = format!("{:?}", Client::new(&config).unwrap().latest("news-value").unwrap_err());
        let head = registry.join().unwrap();
        for line in ["authorization: bearer s3cret", "target-sr-cluster: lsrc-1"] {
            assert!(head.iter().any(|sent| sent == line), "{head:?}");
        }
        assert!(failure.contains("look at schema_registry.oauth") && !failure.contains("s3cret"), "{failure}");
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
    fn a_subject_goes_into_a_path() {
        assert_eq!(escaped("news.events-value"), "news.events-value");
        assert_eq!(escaped(":.ctx:a/b é"), "%3A.ctx%3Aa%2Fb%20%C3%A9");
    }

    #[test]
    fn a_number_that_no_registry_gives_is_not_asked_for() {
        let client = client(&[|_| panic!("it was asked")]);
        let failure = client.schema(SchemaId::Number(1 << 31)).unwrap_err();
        assert!(matches!(failure, Failure::Unusable(_)), "{failure:?}");
    }

    #[test]
    fn of_several_addresses_all_must_say_that_there_is_none() {
        for (stubs, missing) in [([lacks as Answers, lacks], true), ([lacks, fails], false), ([fails, lacks], false)] {
            let failure = client(&stubs).schema(ID).unwrap_err();
            assert_eq!(matches!(failure, Failure::Missing(_)), missing, "{failure:?}");
            assert!(missing || matches!(failure, Failure::Trouble(_)), "{failure:?}");
        }
        for stubs in [[knows as Answers, fails], [fails, knows], [lacks, knows]] {
            assert!(client(&stubs).schema(ID).is_ok());
        }
    }

    #[test]
    fn a_guid_is_missing_where_a_registry_has_none_by_guid() {
        let guid = SchemaId::Guid([7; 16]);
        let has_no_route = |path: &str| match path {
            TYPES => (200, r#"["JSON", "AVRO"]"#.to_owned()),
            _ => (404, "no such page".to_owned()),
        };
        let failure = client(&[has_no_route]).schema(guid).unwrap_err();
        assert!(matches!(failure, Failure::Missing(_)), "{failure:?}");
        // A page of something else says nothing, and neither does a number's.
        let failure = client(&[|_| (404, "no such page".to_owned())]).schema(guid).unwrap_err();
        assert!(matches!(failure, Failure::Trouble(_)), "{failure:?}");
        let failure = client(&[has_no_route]).schema(ID).unwrap_err();
        assert!(matches!(failure, Failure::Trouble(_)), "{failure:?}");
    }

    #[test]
    fn of_two_references_by_one_name_the_first_counts() {
        let client = client(&[|path| match path {
            "/schemas/ids/7" => {
                let references = r#"[{"name": "b", "subject": "b", "version": 1}, {"name": "c", "subject": "c", "version": 2}]"#;
                (200, format!(r#"{{"schema": "m", "schemaType": "PROTOBUF", "references": {references}}}"#))
            }
            "/subjects/b/versions/1?deleted=true" => {
                (200, r#"{"schema": "b1", "references": [{"name": "c", "subject": "c", "version": 1}]}"#.to_owned())
            }
            "/subjects/c/versions/1?deleted=true" => (200, r#"{"schema": "c1"}"#.to_owned()),
            _ => panic!("{path} was asked for"),
        }]);
        let schema = client.schema(ID).unwrap();
        let bodies: Vec<_> = schema.references.iter().map(|reference| (&*reference.name, &reference.body)).collect();
        assert_eq!(bodies, [("c", &Body::Text("c1".to_owned())), ("b", &Body::Text("b1".to_owned()))]);
    }

    #[test]
    fn a_reference_that_is_not_found_is_trouble() {
        let client = client(&[|path| match path {
            "/schemas/ids/7" => (200, r#"{"schema": "m", "references": [{"name": "b", "subject": "b", "version": 1}]}"#.to_owned()),
            path => lacks(path),
        }]);
        let failure = client.schema(ID).unwrap_err();
        assert!(matches!(&failure, Failure::Trouble(why) if why.contains("version 1 of the subject `b`")), "{failure:?}");
    }

    #[test]
    fn a_schema_that_is_too_large_cannot_be_used() {
        let client = client(&[|_| (200, format!(r#"{{"schema": "{}"}}"#, "x".repeat(SCHEMA_MAX + 1)))]);
        let failure = client.schema(ID).unwrap_err();
        assert!(matches!(failure, Failure::Unusable(_)), "{failure:?}");
    }
}
