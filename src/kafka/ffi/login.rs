//! Clients that log in by bearer token.
//!
//! Owns the way of a token to librdkafka, which takes one at any time and by any thread. That needs no poll, so idle clients get
//! theirs, too. Must never pass librdkafka's words on: they may hold the token.

use crate::config::OAuth;
use crate::oauth::{Subscriber, Subscription, Token, Tokens};
use rdkafka::admin::AdminClient;
use rdkafka::bindings as rd;
use rdkafka::client::{Client, ClientContext};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::producer::{Producer, ProducerContext, ThreadedProducer};
use std::ffi::{CString, c_char};
use std::ops::Deref;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What librdkafka is told of the lifetime of a token that has none, or that has expired by this machine's clock, which may be
/// wrong: librdkafka refuses an expired token, and otherwise uses the time only to ask for another token.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// A client that always has the current token. Fields are dropped in this order.
pub(in crate::kafka) struct LoggedIn<T> {
    _subscription: Option<Subscription>,
    client: T,
}

/// A client of librdkafka.
pub(in crate::kafka) trait Native {
    /// The pointer to the client, which is the same for the client's whole life.
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
    /// Gives a client its tokens, if it logs in by one.
    pub(in crate::kafka) fn new(client: T, oauth: Option<&OAuth>) -> Self {
        let subscription = oauth.map(|OAuth { source, extensions }| {
            let texts = extensions.iter().flat_map(|(name, value)| [name, value]);
            let extensions = texts.map(|text| CString::new(text.as_str()).unwrap_or_default()).collect();
            Tokens::of(source).subscribe(Box::new(Handle { client: client.native(), extensions }))
        });
        Self { _subscription: subscription, client }
    }

    /// The client, to be changed but not replaced.
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

/// A client, as the thread that renews tokens knows it.
struct Handle {
    client: *mut rd::rd_kafka_t,
    /// Names and values of SASL extensions, in turns.
    extensions: Vec<CString>,
}

// SAFETY: librdkafka's functions may be called by any thread.
unsafe impl Send for Handle {}

impl Subscriber for Handle {
    fn renewed(&self, token: &Token) {
        let lifetime = token.left().filter(|left| !left.is_zero()).unwrap_or(LIFETIME);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let expires_ms = i64::try_from((now + lifetime).as_millis()).unwrap_or(i64::MAX / 1000);
        let (Ok(value), Ok(principal)) = (CString::new(token.value()), CString::new(token.principal())) else { return };
        let mut extensions: Vec<_> = self.extensions.iter().map(|text| text.as_ptr()).collect();
        let mut words: [c_char; 512] = [0; 512];
        // SAFETY: a `LoggedIn` ends its subscription before its client, and the thread calls nobody without one. All texts live,
        // and librdkafka copies them.
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
            self.failed("librdkafka does not take the token");
        }
    }

    fn failed(&self, reason: &str) {
        let reason = CString::new(reason.replace('\0', "")).unwrap_or_default();
        // SAFETY: as above.
        unsafe { rd::rd_kafka_oauthbearer_set_token_failure(self.client, reason.as_ptr()) };
    }
}
