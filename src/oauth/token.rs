//! A bearer token and its claims.
//!
//! Never shows a token. The claims are not verified here: the broker verifies the token.

use data_encoding::BASE64URL_NOPAD;
use serde::Deserialize;
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A bearer token. `Debug` does not show the token itself.
pub(crate) struct Token {
    value: String,
    principal: String,
    expires: Option<Expiry>,
}

/// The expiry time on two clocks. A token expires as soon as one of the clocks reaches it. Both clocks are needed, because the monotonic
/// clock stops while a machine is suspended, and the wall clock can be set.
struct Expiry {
    monotonic: Instant,
    wall: SystemTime,
}

#[derive(Default, Deserialize)]
struct Claims {
    #[serde(default)]
    sub: Option<String>,
    #[serde(default)]
    exp: Option<f64>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("principal", &self.principal).finish_non_exhaustive()
    }
}

impl Token {
    /// Creates a token that is valid for `lifetime`. Without `lifetime`, uses the token's own expiry time and this machine's clock.
    ///
    /// # Errors
    /// Returns an error if the text cannot be a bearer token.
    pub(super) fn new(value: &str, lifetime: Option<Duration>) -> Result<Self, String> {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        if value.is_empty() || !value.bytes().all(is_token) {
            return Err("an invalid bearer token; a token consists of letters, digits, and - . _ ~ + / =".to_owned());
        }
        let claims = claims(value);
        let by_clock = || {
            let expires = UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(claims.exp?).ok()?)?;
            Some(expires.duration_since(SystemTime::now()).unwrap_or_default())
        };
        let expires = lifetime.or_else(by_clock).and_then(|lifetime| {
            Some(Expiry { monotonic: Instant::now().checked_add(lifetime)?, wall: SystemTime::now().checked_add(lifetime)? })
        });
        Ok(Self { value: value.to_owned(), principal: claims.sub.unwrap_or_default(), expires })
    }

    /// Returns the token itself, which is a secret.
    pub(crate) fn value(&self) -> &str {
        &self.value
    }

    /// Returns the claim `sub` of the token, or an empty string if the token does not have this claim.
    pub(crate) fn principal(&self) -> &str {
        &self.principal
    }

    /// Returns the remaining lifetime, which is zero if the token has expired. Returns `None` if the lifetime is unknown.
    pub(crate) fn left(&self) -> Option<Duration> {
        let Expiry { monotonic, wall } = self.expires.as_ref()?;
        let left = monotonic.saturating_duration_since(Instant::now());
        Some(left.min(wall.duration_since(SystemTime::now()).unwrap_or_default()))
    }

    pub(super) fn is_expired(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// Returns the claims of a JSON Web Token. For any other token, the claims are empty.
fn claims(token: &str) -> Claims {
    let payload = token.split('.').nth(1).and_then(|payload| BASE64URL_NOPAD.decode(payload.trim_end_matches('=').as_bytes()).ok());
    payload.and_then(|payload| serde_json::from_slice(&payload).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_and_expiry_are_read() {
        let exp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 1000;
        let jwt = |claims: String| format!("e30.{}.c2ln", BASE64URL_NOPAD.encode(claims.as_bytes()));
        let token = Token::new(&jwt(format!("{{\"sub\": \"ann\", \"exp\": {exp}}}")), None).unwrap();
        assert_eq!(token.principal(), "ann");
        let left = token.left().unwrap().as_secs();
        assert!((900..=1000).contains(&left), "{left}");
        // The lifetime from the provider takes precedence, because this machine's clock can be wrong.
        let token = Token::new(&jwt(format!("{{\"exp\": {exp}}}")), Some(Duration::from_secs(60))).unwrap();
        assert!(token.left().unwrap() <= Duration::from_secs(60));
        let expired = Token::new(&jwt("{\"exp\": 1}".to_owned()), None).unwrap();
        assert!(expired.is_expired());
        let endless = Token::new(&jwt("{\"exp\": 9223372036854775807}".to_owned()), None).unwrap();
        assert_eq!(endless.left(), None);
    }

    #[test]
    fn opaque_token_has_no_known_lifetime() {
        let token = Token::new("opaque+/~=", None).unwrap();
        assert_eq!((token.principal(), token.left()), ("", None));
        assert!(!token.is_expired());
    }

    #[test]
    fn invalid_token_is_rejected_and_not_shown() {
        for text in ["", "hunter2 hunter2", "hunter2\n", "hünter2"] {
            let error = Token::new(text, None).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert!(!format!("{:?}", Token::new("hunter2", None).unwrap()).contains("hunter2"));
    }
}
