//! AWS Signature Version 4, for a presigned URL.
//!
//! Never shows a secret key.

use data_encoding::HEXLOWER;
use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use openssl::sha::sha256;
use openssl::sign::Signer;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::time::{Duration, SystemTime};

pub(super) struct Credentials {
    pub(super) id: String,
    pub(super) secret: String,
    /// The session token of temporary credentials.
    pub(super) session: Option<String>,
}

/// A GET request to be signed.
pub(super) struct Presigned<'r> {
    pub(super) host: &'r str,
    pub(super) path: &'r str,
    pub(super) service: &'r str,
    pub(super) region: &'r str,
    pub(super) payload: &'r str,
    pub(super) now: SystemTime,
    pub(super) lifetime: Duration,
}

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// The payload hash of a request whose payload is not signed.
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// Returns the query of a presigned URL with these additional parameters.
pub(super) fn presign(request: &Presigned<'_>, credentials: &Credentials, parameters: &[(&str, &str)]) -> String {
    let &Presigned { host, path, service, region, payload, now, lifetime } = request;
    // AWS's time format has a resolution of one second and no punctuation.
    let time = humantime::format_rfc3339_seconds(now).to_string().replace(['-', ':'], "");
    let date = &time[..8];
    let scope = format!("{date}/{region}/{service}/aws4_request");
    let (credential, lifetime) = (format!("{}/{scope}", credentials.id), lifetime.as_secs().to_string());
    let own = [
        ("X-Amz-Algorithm", ALGORITHM),
        ("X-Amz-Credential", &credential),
        ("X-Amz-Date", &time),
        ("X-Amz-Expires", &lifetime),
        ("X-Amz-SignedHeaders", "host"),
    ];
    let session = credentials.session.as_deref().map(|session| ("X-Amz-Security-Token", session));
    let all = own.into_iter().chain(session).chain(parameters.iter().copied());
    let mut pairs: Vec<_> = all.map(|(name, value)| format!("{}={}", escaped(name), escaped(value))).collect();
    pairs.sort_unstable();
    let query = pairs.join("&");
    let payload = if payload == UNSIGNED { UNSIGNED.to_owned() } else { HEXLOWER.encode(&sha256(payload.as_bytes())) };
    let canonical = format!("GET\n{path}\n{query}\nhost:{host}\n\nhost\n{payload}");
    let text = format!("{ALGORITHM}\n{time}\n{scope}\n{}", HEXLOWER.encode(&sha256(canonical.as_bytes())));
    let signature = hmac(&signing_key(&credentials.secret, date, region, service), &text);
    format!("{query}&X-Amz-Signature={}", HEXLOWER.encode(&signature))
}

fn signing_key(secret: &str, date: &str, region: &str, service: &str) -> Vec<u8> {
    let key = hmac(format!("AWS4{secret}").as_bytes(), date);
    [region, service, "aws4_request"].iter().fold(key, |key, part| hmac(&key, part))
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let sign = || Signer::new(MessageDigest::sha256(), &*PKey::hmac(key)?)?.sign_oneshot_to_vec(text.as_bytes());
    // Signing fails only if memory is exhausted. AWS then rejects the URL.
    sign().unwrap_or_default()
}

const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes all characters except the unreserved characters of RFC 3986.
pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in Amazon S3's "Authenticating Requests: Using Query Parameters".
    #[test]
    fn the_published_example_of_a_presigned_url() {
        let credentials = Credentials {
            id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            session: None,
        };
        let request = Presigned {
            host: "examplebucket.s3.amazonaws.com",
            path: "/test.txt",
            service: "s3",
            region: "us-east-1",
            payload: UNSIGNED,
            now: humantime::parse_rfc3339("2013-05-24T00:00:00Z").unwrap(),
            lifetime: Duration::from_secs(86_400),
        };
        assert_eq!(
            presign(&request, &credentials, &[]),
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
             &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
             &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
        );
    }

    /// The example in AWS's "Derive a signing key".
    #[test]
    fn the_published_example_of_a_signing_key() {
        let key = signing_key("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "20150830", "us-east-1", "iam");
        assert_eq!(HEXLOWER.encode(&key), "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9");
    }
}
