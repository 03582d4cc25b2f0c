//! Clients that log in with a bearer token.
//!
//! Passes each new token to librdkafka. librdkafka accepts a token at any time, from any thread, and without a poll, so idle clients get
//! their tokens too. If librdkafka rejects a token, the client reports librdkafka's message. This message cannot reveal a token: librdkafka
//! quotes a token only if the token has invalid characters, and a `Token` has none.

use crate::config::OAuth;
use crate::oauth::{Subscriber, Subscription, Token, Tokens};
use rdkafka::admin::AdminClient;
use rdkafka::bindings as rd;
use rdkafka::client::{Client, ClientContext};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::producer::{Producer, ProducerContext, ThreadedProducer};
use std::ffi::{CStr, CString, c_char};
use std::ops::Deref;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The lifetime to report to librdkafka for a token of unknown lifetime and for a token that has expired by this machine's clock.
/// librdkafka rejects an expired token, but the clock may be wrong, and the broker may still accept the token. librdkafka uses the lifetime
/// only to decide when to ask for the next token.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// A client that gets each new token if it uses OAuth. Rust drops fields in declaration order. The subscription must be before the client,
/// because the subscription calls the client.
pub(in crate::kafka) struct LoggedIn<T> {
    _subscription: Option<Subscription>,
    client: T,
}

pub(in crate::kafka) trait Native {
    /// Returns the pointer to the client, which stays the same for the client's whole life.
    fn native(&self) -> *mut rd::rd_kafka_t;
}

impl<C: ConsumerContext> Native for BaseConsumer<C> {
    fn native(&self) -> *mut rd::rd_kafka_t {
        self.client().native_ptr()
    }
}

impl<C: ClientContext> Native for AdminClient<C> {
    fn native(&self) -> *mut rd::rd_kafka_t {
        self.inner().native_ptr()
    }
}

impl<C: ProducerContext + 'static> Native for ThreadedProducer<C> {
    fn native(&self) -> *mut rd::rd_kafka_t {
        self.client().native_ptr()
    }
}

impl<C: ClientContext> Native for Client<C> {
    fn native(&self) -> *mut rd::rd_kafka_t {
        self.native_ptr()
    }
}

impl<T: Native> LoggedIn<T> {
    /// Takes ownership of a client. If `oauth` is set, subscribes the client to the tokens of that source.
    pub(in crate::kafka) fn new(client: T, oauth: Option<&OAuth>) -> Self {
        let subscription = oauth.map(|OAuth { source, extensions }| {
            let texts = extensions.iter().flat_map(|(name, value)| [name, value]);
            let extensions = texts.map(|text| CString::new(text.as_str()).unwrap_or_default()).collect();
            Tokens::of(source).subscribe(Box::new(Handle { client: client.native(), extensions }))
        });
        Self { _subscription: subscription, client }
    }

    /// A mutable reference to the client. Callers must not replace the client.
    pub(super) const fn client_mut(&mut self) -> &mut T {
        &mut self.client
    }
}

impl<T> Deref for LoggedIn<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.client
    }
}

/// A reference to the client, for the thread that renews tokens.
struct Handle {
    client: *mut rd::rd_kafka_t,
    /// Names and values of the SASL extensions, alternating.
    extensions: Vec<CString>,
}

// SAFETY: any thread may call librdkafka's functions.
unsafe impl Send for Handle {}

impl Subscriber for Handle {
    fn renewed(&self, token: &Token) {
        let lifetime = token.left().filter(|left| !left.is_zero()).unwrap_or(LIFETIME);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let expires_ms = i64::try_from((now + lifetime).as_millis()).unwrap_or(i64::MAX / 1000);
        let (Ok(value), Ok(principal)) = (CString::new(token.value()), CString::new(token.principal())) else { return };
        let mut extensions: Vec<_> = self.extensions.iter().map(|text| text.as_ptr()).collect();
        let mut words: [c_char; 512] = [0; 512];
        // SAFETY: the client is alive, because a `LoggedIn` drops its subscription before its client, and the renewal thread calls only
        // subscribers. All texts are alive during the call, and librdkafka copies them.
        let answer = unsafe {
            rd::rd_kafka_oauthbearer_set_token(
                self.client,
                value.as_ptr(),
                expires_ms,
                principal.as_ptr(),
                extensions.as_mut_ptr(),
                extensions.len(),
                words.as_mut_ptr(),
                words.len(),
            )
        };
        if answer != rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
            // SAFETY: librdkafka has written a text with a terminating zero.
            let reason = unsafe { CStr::from_ptr(words.as_ptr()) };
            self.failed(&format!("librdkafka rejects the token: {}", reason.to_string_lossy()));
        }
    }

    fn failed(&self, reason: &str) {
        let reason = CString::new(reason.replace('\0', "")).unwrap_or_default();
        // SAFETY: the client and the text are alive, as in `renewed`, and librdkafka copies the text.
        unsafe { rd::rd_kafka_oauthbearer_set_token_failure(self.client, reason.as_ptr()) };
    }
}
