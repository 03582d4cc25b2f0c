//! Authenticates clients as Amazon MSK does: by a URL that is signed with AWS credentials. A proxy in front of a broker runs this code (see
//! `front`).
//!
//! The proxy computes the signature of the received URL itself, so the check is independent of the worker's code.

use super::front::{Exchange, api};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use openssl::sha::sha256;
use openssl::sign::Signer;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

pub const REGION: &str = "eu-west-1";
pub const KEY_ID: &str = "AKIDEXAMPLE";
/// The maximum difference between the broker's clock and the time of a signature. AWS has the same limit.
const SKEW_MAX: Duration = Duration::from_secs(5 * 60);

const API_VERSIONS: i16 = 18;
const SASL_HANDSHAKE: i16 = 17;
const SASL_AUTHENTICATE: i16 = 36;
const SASL_AUTHENTICATION_FAILED: i16 = 58;

pub struct Msk {
    secret: String,
    /// The time by which the broker's clock is ahead of this machine's clock.
    ahead: Duration,
    /// The session lifetime, after which clients must log in again.
    session: Duration,
    /// The signing time of each accepted login: the text of `X-Amz-Date` in the URL.
    logins: Mutex<Vec<String>>,
    /// The signing times of the tokens that [`Msk::revoke`] has revoked.
    revoked: Mutex<Vec<String>>,
}

impl Msk {
    pub fn new(secret: &str, ahead: Duration, session: Duration) -> Arc<Self> {
        Arc::new(Self { secret: secret.to_owned(), ahead, session, logins: Mutex::default(), revoked: Mutex::default() })
    }

    pub fn logins(&self) -> usize {
        lock(&self.logins).len()
    }

    /// Rejects all tokens that clients have used so far, even if they have not expired.
    pub fn revoke(&self) {
        lock(&self.revoked).clone_from(&lock(&self.logins));
    }

    /// Returns the handler of one connection. The handler panics if the client sends a request before it has logged in, except for
    /// `ApiVersions` and the requests of the login.
    pub fn connection(self: &Arc<Self>) -> Exchange {
        let (msk, mut is_in) = (Arc::clone(self), false);
        Box::new(move |request, ask| {
            let correlation = &request[4..8];
            match api(&request) {
                (API_VERSIONS, _) => ask(&request),
                // The response has no error and lists one mechanism.
                (SASL_HANDSHAKE, _) => Ok([correlation, &[0, 0], &1_i32.to_be_bytes(), &string("OAUTHBEARER")].concat()),
                (SASL_AUTHENTICATE, 1) => {
                    let answer = msk.log_in(&request);
                    is_in = answer.is_ok();
                    let (code, message) = match answer {
                        Ok(()) => (0, vec![0xff, 0xff]),
                        Err(why) => (SASL_AUTHENTICATION_FAILED, string(&why)),
                    };
                    let session = i64::try_from(msk.session.as_millis()).expect("a lifetime");
                    Ok([correlation, &code.to_be_bytes(), &message, &[0; 4], &session.to_be_bytes()].concat())
                }
                (other, version) => {
                    assert!(is_in, "a request {other} (version {version}) before the login");
                    ask(&request)
                }
            }
        })
    }

    fn log_in(&self, request: &[u8]) -> Result<(), String> {
        let client_id = usize::from(u16::from_be_bytes([request[8], request[9]]));
        let message = String::from_utf8_lossy(&request[10 + client_id + 4..]).into_owned();
        let token = message.strip_prefix("n,,\u{1}auth=Bearer ").and_then(|rest| rest.split('\u{1}').next()).ok_or("no bearer token")?;
        let url = BASE64URL_NOPAD.decode(token.as_bytes()).map_err(|error| error.to_string())?;
        let time = verify(&String::from_utf8_lossy(&url), &self.secret, SystemTime::now() + self.ahead)?;
        if lock(&self.revoked).contains(&time) {
            return Err("revoked".to_owned());
        }
        lock(&self.logins).push(time);
        Ok(())
    }
}

fn lock(times: &Mutex<Vec<String>>) -> MutexGuard<'_, Vec<String>> {
    times.lock().unwrap_or_else(PoisonError::into_inner)
}

fn string(text: &str) -> Vec<u8> {
    [&u16::try_from(text.len()).expect("a short text").to_be_bytes(), text.as_bytes()].concat()
}

/// Verifies a URL and returns its signing time.
fn verify(url: &str, secret: &str, now: SystemTime) -> Result<String, String> {
    let host = format!("kafka.{REGION}.amazonaws.com");
    let query = url.strip_prefix(&format!("https://{host}/?")).ok_or("another host")?;
    let value = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).ok_or(format!("no {name}"));
    if value("Action")? != "kafka-cluster%3AConnect" || value("X-Amz-Algorithm")? != "AWS4-HMAC-SHA256" {
        return Err("another action or algorithm".to_owned());
    }
    let time = value("X-Amz-Date")?;
    let (day, clock) = time.split_once('T').ok_or("no time")?;
    let digits = |text: &str, at: usize, count: usize| text.get(at..at + count).unwrap_or_default().to_owned();
    let signed = format!(
        "{}-{}-{}T{}:{}:{}Z",
        digits(day, 0, 4),
        digits(day, 4, 2),
        digits(day, 6, 2),
        digits(clock, 0, 2),
        digits(clock, 2, 2),
        digits(clock, 4, 2)
    );
    let signed = humantime::parse_rfc3339(&signed).map_err(|error| error.to_string())?;
    let skew = now.duration_since(signed).unwrap_or_else(|error| error.duration());
    if skew >= SKEW_MAX || value("X-Amz-Expires")? != "900" {
        return Err(format!("signature expired: {time} is too far from the time of the broker"));
    }
    let scope = format!("{day}/{REGION}/kafka-cluster/aws4_request");
    if value("X-Amz-Credential")? != format!("{KEY_ID}/{scope}").replace('/', "%2F") {
        return Err("another credential".to_owned());
    }
    let is_signed = |pair: &&str| !pair.starts_with("X-Amz-Signature=") && !pair.starts_with("User-Agent=");
    let mut pairs: Vec<_> = query.split('&').filter(is_signed).collect();
    pairs.sort_unstable();
    let canonical = format!("GET\n/\n{}\nhost:{host}\n\nhost\n{}", pairs.join("&"), HEXLOWER.encode(&sha256(b"")));
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", HEXLOWER.encode(&sha256(canonical.as_bytes())));
    let key =
        [day, REGION, "kafka-cluster", "aws4_request"].iter().fold(format!("AWS4{secret}").into_bytes(), |key, part| hmac(&key, part));
    if value("X-Amz-Signature")? == HEXLOWER.encode(&hmac(&key, &text)) { Ok(time.to_owned()) } else { Err("another signature".to_owned()) }
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let key = PKey::hmac(key).expect("a key");
    Signer::new(MessageDigest::sha256(), &key).and_then(|mut signer| signer.sign_oneshot_to_vec(text.as_bytes())).expect("a signature")
}
