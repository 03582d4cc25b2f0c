//! Tokens for Amazon MSK: presigned URLs in the format of AWS's own OAUTHBEARER signers.
//!
//! Looks up AWS credentials in this order: environment, web identity (IRSA), container, instance. An error never contains a credential.

use super::sigv4::{Credentials, Presigned, presign};
use super::token::Token;
use data_encoding::BASE64URL_NOPAD;
use serde::Deserialize;
use std::fmt::Display;
use std::time::{Duration, SystemTime};

/// Lifetime of a token. Brokers do not accept a longer lifetime.
const LIFETIME: Duration = Duration::from_secs(15 * 60);

const ANSWER_MAX: u64 = 1 << 20;

/// The address of the instance metadata service.
const METADATA: &str = "http://169.254.169.254";

/// The URL to which `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI` is relative.
const CONTAINER: &str = "http://169.254.170.2";

type Environment<'e> = &'e dyn Fn(&str) -> Option<String>;

pub(super) struct Signer<'e> {
    /// The client for STS, which can use a proxy.
    pub(super) agent: &'e ureq::Agent,
    /// The client for services on this host.
    pub(super) local_agent: &'e ureq::Agent,
    pub(super) environment: Environment<'e>,
}

/// Credentials with their expiry time. Credentials from environment variables have no known expiry time.
struct Temporary {
    credentials: Credentials,
    expires: Option<SystemTime>,
}

/// The response of container and instance credential services.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    access_key_id: String,
    secret_access_key: String,
    token: Option<String>,
    expiration: Option<String>,
}

impl Signer<'_> {
    /// Creates a token for the brokers of a region. Without a region, uses `AWS_REGION` or `AWS_DEFAULT_REGION`.
    pub(super) fn token(&self, region: Option<&str>, now: SystemTime) -> Result<Token, String> {
        let region = region.map(str::to_owned).or_else(|| self.variable("AWS_REGION")).or_else(|| self.variable("AWS_DEFAULT_REGION"));
        let region = region.ok_or("kafka.bootstrap_servers does not contain an AWS region; set the environment variable AWS_REGION")?;
        let Temporary { credentials, expires } = self.credentials(&region)?;
        let left = expires.map_or(LIFETIME, |expires| expires.duration_since(now).unwrap_or_default());
        Token::new(&token(&credentials, &region, now), Some(left.min(LIFETIME)))
    }

    /// Returns the value of an environment variable, or `None` if the variable is unset or empty.
    fn variable(&self, name: &str) -> Option<String> {
        (self.environment)(name).filter(|value| !value.is_empty())
    }

    fn credentials(&self, region: &str) -> Result<Temporary, String> {
        if let (Some(id), Some(secret)) = (self.variable("AWS_ACCESS_KEY_ID"), self.variable("AWS_SECRET_ACCESS_KEY")) {
            let credentials = Credentials { id, secret, session: self.variable("AWS_SESSION_TOKEN") };
            return Ok(Temporary { credentials, expires: None });
        }
        if let (Some(file), Some(role)) = (self.variable("AWS_WEB_IDENTITY_TOKEN_FILE"), self.variable("AWS_ROLE_ARN")) {
            return self.of_web_identity(&file, &role, region);
        }
        let relative = self.variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").map(|path| format!("{CONTAINER}{path}"));
        if let Some(url) = relative.or_else(|| self.variable("AWS_CONTAINER_CREDENTIALS_FULL_URI")) {
            return self.of_container(&url);
        }
        self.of_instance().map_err(|error| {
            format!("found no AWS credentials in the environment, a web identity, container credentials, or an instance profile ({error})")
        })
    }

    /// Assumes a role with the token in a file. Kubernetes renews the file.
    fn of_web_identity(&self, file: &str, role: &str, region: &str) -> Result<Temporary, String> {
        let identity = std::fs::read_to_string(file).map_err(|error| format!("AWS_WEB_IDENTITY_TOKEN_FILE: {file}: {error}"))?;
        let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        let url = self.variable("AWS_ENDPOINT_URL_STS").unwrap_or_else(|| format!("https://sts.{region}.{domain}/"));
        let session = self.variable("AWS_ROLE_SESSION_NAME").unwrap_or_else(|| "unseen".to_owned());
        let form = [
            ("Action", "AssumeRoleWithWebIdentity"),
            ("Version", "2011-06-15"),
            ("RoleArn", role),
            ("RoleSessionName", &session),
            ("WebIdentityToken", identity.trim()),
        ];
        let answer = read(&url, self.agent.post(&url).send_form(form)).map_err(|error| format!("cannot assume {role}: {error}"))?;
        let element = |name: &str| Some(answer.split_once(&format!("<{name}>"))?.1.split_once('<')?.0.trim().to_owned());
        let credentials = (|| {
            Some(Credentials { id: element("AccessKeyId")?, secret: element("SecretAccessKey")?, session: Some(element("SessionToken")?) })
        })();
        let credentials = credentials.ok_or_else(|| format!("cannot assume {role}: {url} returned no credentials"))?;
        Ok(Temporary { credentials, expires: element("Expiration").as_deref().and_then(time) })
    }

    /// Returns the credentials of an ECS task or of EKS Pod Identity.
    fn of_container(&self, url: &str) -> Result<Temporary, String> {
        let file = self.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
        let authorization = match file {
            Some(file) => {
                Some(std::fs::read_to_string(&file).map_err(|error| format!("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE: {file}: {error}"))?)
            }
            None => self.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
        };
        let mut request = self.local_agent.get(url);
        if let Some(authorization) = authorization {
            request = request.header("Authorization", authorization.trim());
        }
        parse(url, &read(url, request.call())?)
    }

    /// Returns the credentials of the instance profile, from version 2 of the metadata service.
    fn of_instance(&self) -> Result<Temporary, String> {
        let base = self.variable("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or_else(|| METADATA.to_owned());
        let base = base.trim_end_matches('/');
        let url = format!("{base}/latest/api/token");
        let request = self.local_agent.put(&url).header("X-aws-ec2-metadata-token-ttl-seconds", "60");
        let session = read(&url, request.send_empty())?;
        let get = |path: &str| {
            let url = format!("{base}/latest/meta-data/iam/security-credentials/{path}");
            read(&url, self.local_agent.get(&url).header("X-aws-ec2-metadata-token", session.trim()).call())
        };
        let roles = get("")?;
        let role = roles.lines().next().unwrap_or_default().trim();
        parse(base, &get(role)?)
    }
}

/// Returns a presigned URL for the action `kafka-cluster:Connect`, encoded in base64url.
fn token(credentials: &Credentials, region: &str, now: SystemTime) -> String {
    let host = format!("kafka.{region}.amazonaws.com");
    let request = Presigned { host: &host, path: "/", service: "kafka-cluster", region, payload: "", now, lifetime: LIFETIME };
    let query = presign(&request, credentials, &[("Action", "kafka-cluster:Connect")]);
    // The user agent is for AWS's statistics and is not signed.
    let url = format!("https://{host}/?{query}&User-Agent=unseen%2F{}", env!("CARGO_PKG_VERSION"));
    BASE64URL_NOPAD.encode(url.as_bytes())
}

fn read(url: &str, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<String, String> {
    let failed = |error: &dyn Display| format!("{url}: {error}");
    let mut response = answer.map_err(|error| failed(&error))?;
    let status = response.status();
    let body = response.body_mut().with_config().limit(ANSWER_MAX).read_to_string().map_err(|error| failed(&error))?;
    if status.is_success() {
        return Ok(body);
    }
    // Only the error code of STS is safe to show. The message after the code can contain anything.
    let code = body.split_once("<Code>").and_then(|(_, rest)| rest.split_once('<')).map(|(code, _)| format!(": {code}"));
    Err(failed(&format!("returned {status}{}", code.unwrap_or_default())))
}

fn parse(url: &str, answer: &str) -> Result<Temporary, String> {
    let answer = serde_json::from_str::<Answer>(answer).map_err(|_| format!("{url} returned no credentials"))?;
    let Answer { access_key_id, secret_access_key, token, expiration } = answer;
    let credentials = Credentials { id: access_key_id, secret: secret_access_key, session: token };
    Ok(Temporary { credentials, expires: expiration.as_deref().and_then(time) })
}

fn time(text: &str) -> Option<SystemTime> {
    humantime::parse_rfc3339(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oauth::request::{agent, local_agent};
    use crate::oauth::stub;
    use std::collections::BTreeMap;
    use std::time::UNIX_EPOCH;

    const NOW: u64 = 1_735_689_600;

    /// Starts a server that expects these requests in this order and sends these responses.
    fn serve(answers: Vec<(&'static str, u16, &'static str)>) -> String {
        let mut answers = answers.into_iter();
        stub::serve(move |request| {
            let (expected, status, body) = answers.next()?;
            let is_expected = expected.split('|').all(|part| request.contains(part));
            Some(if is_expected { (status, body) } else { (599, "") })
        })
    }

    /// Returns the token's URL and lifetime in seconds, given these environment variables.
    fn made(region: Option<&str>, variables: &[(&str, &str)]) -> Result<(String, u128), String> {
        let variables: BTreeMap<_, _> = variables.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        let environment = |name: &str| variables.get(name).cloned();
        let timeout = Duration::from_secs(60);
        let (agent, local_agent) = (agent(None, timeout).unwrap(), local_agent(timeout));
        let signer = Signer { agent: &agent, local_agent: &local_agent, environment: &environment };
        let token = signer.token(region, UNIX_EPOCH + Duration::from_secs(NOW))?;
        let url = String::from_utf8(BASE64URL_NOPAD.decode(token.value().as_bytes()).unwrap()).unwrap();
        Ok((url, token.left().unwrap().as_millis().div_ceil(1000)))
    }

    const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"), ("AWS_SECRET_ACCESS_KEY", "hunter2")];

    #[test]
    fn token_matches_aws_signers() {
        let (url, lifetime) = made(Some("us-east-1"), &[&KEYS[..], &[("AWS_SESSION_TOKEN", "a+b/c=")]].concat()).unwrap();
        assert_eq!(lifetime, 900);
        let (signed, rest) = url.split_once("&X-Amz-Signature=").unwrap();
        assert_eq!(
            signed,
            "https://kafka.us-east-1.amazonaws.com/?Action=kafka-cluster%3AConnect&X-Amz-Algorithm=AWS4-HMAC-SHA256\
             &X-Amz-Credential=AKIDEXAMPLE%2F20250101%2Fus-east-1%2Fkafka-cluster%2Faws4_request&X-Amz-Date=20250101T000000Z\
             &X-Amz-Expires=900&X-Amz-Security-Token=a%2Bb%2Fc%3D&X-Amz-SignedHeaders=host"
        );
        let (signature, agent) = rest.split_once('&').unwrap();
        assert!(signature.len() == 64 && agent.starts_with("User-Agent=unseen%2F"), "{rest}");
    }

    #[test]
    fn region_defaults_to_the_environment() {
        assert!(made(None, &KEYS).unwrap_err().ends_with("set the environment variable AWS_REGION"));
        let (url, _) = made(None, &[&KEYS[..], &[("AWS_REGION", "eu-west-1")]].concat()).unwrap();
        assert!(url.starts_with("https://kafka.eu-west-1.amazonaws.com/"), "{url}");
    }

    const JSON: &str =
        r#"{"AccessKeyId": "ASIA1", "SecretAccessKey": "hunter2", "Token": "session", "Expiration": "2025-01-01T00:05:00Z"}"#;

    #[test]
    fn web_identity_assumes_a_role() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("identity");
        std::fs::write(&file, "jwt\n").unwrap();
        let xml = "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><SessionToken>session</SessionToken>\
            <SecretAccessKey>hunter2</SecretAccessKey><Expiration>2025-01-01T01:00:00Z</Expiration><AccessKeyId>ASIA1</AccessKeyId>\
            </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>";
        let form = "POST / |Action=AssumeRoleWithWebIdentity&|RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&|WebIdentityToken=jwt";
        let refusal = "<ErrorResponse><Error><Code>AccessDenied</Code><Message>hunter2</Message></Error></ErrorResponse>";
        let sts = serve(vec![(form, 200, xml), (form, 403, refusal)]);
        let variables = [
            ("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_str().unwrap()),
            ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r"),
            ("AWS_ENDPOINT_URL_STS", &sts),
        ];
        let (url, lifetime) = made(Some("us-east-1"), &variables).unwrap();
        assert!(url.contains("Credential=ASIA1%2F") && url.contains("Security-Token=session"), "{url}");
        assert_eq!(lifetime, 900);
        let refused = made(Some("us-east-1"), &variables).unwrap_err();
        assert!(refused.ends_with("returned 403 Forbidden: AccessDenied") && !refused.contains("hunter2"), "{refused}");
    }

    #[test]
    fn container_credentials_are_used() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("authorization");
        std::fs::write(&file, "pod").unwrap();
        let agent = serve(vec![("GET /v1/credentials |authorization: pod", 200, JSON)]) + "/v1/credentials";
        let variables =
            [("AWS_CONTAINER_CREDENTIALS_FULL_URI", &*agent), ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file.to_str().unwrap())];
        let (url, lifetime) = made(Some("us-east-1"), &variables).unwrap();
        assert!(url.contains("Credential=ASIA1%2F"), "{url}");
        // A token lives no longer than its credentials.
        assert_eq!(lifetime, 300);
    }

    #[test]
    fn instance_credentials_are_used() {
        let role = "/latest/meta-data/iam/security-credentials/";
        let with_session = |path: &str| -> &'static str { format!("GET {path} |x-aws-ec2-metadata-token: imds").leak() };
        let metadata = serve(vec![
            ("PUT /latest/api/token |x-aws-ec2-metadata-token-ttl-seconds: ", 200, "imds"),
            (with_session(role), 200, "role-1\n"),
            (with_session(&format!("{role}role-1")), 200, JSON),
            ("PUT /latest/api/token", 404, ""),
        ]);
        let variables = [("AWS_EC2_METADATA_SERVICE_ENDPOINT", &*metadata)];
        let (url, lifetime) = made(Some("us-east-1"), &variables).unwrap();
        assert!(url.contains("Credential=ASIA1%2F") && lifetime == 300, "{url}");
        let none = made(Some("us-east-1"), &variables).unwrap_err();
        assert!(none.starts_with("found no AWS credentials in ") && none.contains("returned 404 Not Found"), "{none}");
    }
}
