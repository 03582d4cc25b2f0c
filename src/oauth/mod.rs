//! Bearer tokens. One thread per source obtains and renews tokens for all clients of the process.
//!
//! Schedules renewals and delivers tokens to subscribers. Never shows a token or a client secret. Never withdraws a token because its
//! replacement is late: only the server that gets a token knows whether it still accepts the token.

mod aws;
mod request;
mod sigv4;
#[cfg(test)]
pub(crate) mod stub;
mod token;

pub(crate) use request::agent;
pub(crate) use sigv4::escaped;
pub(crate) use token::Token;

use crate::config::{OAuth, TokenSource};
use request::Requests;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The first and the longest wait between failed attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Minimum time until the next scheduled renewal, even for very short-lived tokens.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

const FILE_INTERVAL: Duration = Duration::from_secs(10);

/// The longest time until the renewal thread compares the token's expiry with the wall clock again. A longer wait could miss the expiry,
/// because timers stop while a machine is suspended.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

const UNKNOWN_LIFETIME: Duration = Duration::from_secs(5 * 60);

/// A client that uses tokens. The renewal thread calls these methods, so they must not block.
pub(crate) trait Subscriber: Send {
    fn renewed(&self, token: &Token);
    /// Reports that the client has no valid token, with the reason.
    fn failed(&self, reason: &str);
}

/// The tokens of one source.
pub(crate) struct Tokens {
    source: TokenSource,
    state: Mutex<State>,
    /// Signals that a client wants a token, that a renewal succeeded or failed, or that the schedule changed.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    token: Option<Arc<Token>>,
    /// The error of the last attempt, or `None` if it succeeded.
    trouble: Option<Arc<str>>,
    attempts: u64,
    attempted: Option<Instant>,
    next_attempt: Option<Instant>,
    subscribers: Vec<(u64, Box<dyn Subscriber>)>,
    next_id: u64,
    /// The number of calls of [`Tokens::get`] that are waiting.
    waiting: usize,
}

impl State {
    fn valid(&self) -> Option<Arc<Token>> {
        self.token.as_ref().filter(|token| !token.is_expired()).cloned()
    }
}

/// All sources of this process. Their threads live as long as the process.
static ALL: Mutex<Vec<Arc<Tokens>>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<Arc<Tokens>>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find(login: &OAuth) -> Option<Arc<Tokens>> {
    all().iter().find(|tokens| tokens.source == login.source).cloned()
}

pub(crate) fn trouble(login: &OAuth) -> Option<String> {
    let trouble = find(login)?.lock().trouble.clone();
    trouble.map(|why| why.to_string())
}

/// Renews a login's token after a broker has rejected the token, for example because the issuer's keys were rotated.
pub(crate) fn reject(login: &OAuth) {
    if let Some(tokens) = find(login) {
        tokens.renew_early(tokens.lock());
    }
}

impl Tokens {
    /// Returns the tokens of a source. All clients of the process share them.
    pub(crate) fn of(source: &TokenSource) -> Arc<Self> {
        let mut all = all();
        if let Some(known) = all.iter().find(|tokens| tokens.source == *source) {
            return Arc::clone(known);
        }
        let tokens = Arc::new(Self { source: source.clone(), state: Mutex::default(), changed: Condvar::new() });
        let renewing = Arc::clone(&tokens);
        if let Err(error) = std::thread::Builder::new().name("tokens".to_owned()).spawn(move || renewing.renew()) {
            tokens.lock().trouble = Some(
                format!("cannot start the thread that renews tokens: {error}; raise the limit of threads, then restart the process").into(),
            );
        }
        all.push(Arc::clone(&tokens));
        tokens
    }

    /// Delivers the current token and all later tokens to `subscriber` until the subscription is dropped.
    pub(crate) fn subscribe(self: &Arc<Self>, subscriber: Box<dyn Subscriber>) -> Subscription {
        let mut state = self.lock();
        match (&state.token, &state.trouble) {
            (Some(token), _) => subscriber.renewed(token),
            (None, Some(why)) => subscriber.failed(why),
            (None, None) => {}
        }
        let id = state.next_id;
        state.next_id += 1;
        state.subscribers.push((id, subscriber));
        drop(state);
        self.changed.notify_all();
        Subscription { tokens: Arc::clone(self), id }
    }

    /// Returns the current token. If the token is missing, has expired, or is due for renewal, waits up to `timeout` for the next attempt
    /// to renew it.
    ///
    /// # Errors
    /// Returns an error message if a valid token is not available.
    pub(crate) fn get(&self, timeout: Duration) -> Result<Arc<Token>, String> {
        let mut state = self.lock();
        // Without subscribers, the renewal thread renews the token only when this method is waiting, so the renewal can be overdue.
        let is_due = state.next_attempt.is_some_and(|next| next <= Instant::now());
        if let Some(token) = state.valid().filter(|_| !is_due) {
            return Ok(token);
        }
        let before = state.attempts;
        state.waiting += 1;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(state, timeout, |state| state.attempts == before);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        let reason = || state.trouble.as_ref().map_or_else(|| format!("{} did not respond in time", self.source), ToString::to_string);
        state.valid().ok_or_else(reason)
    }

    /// Renews the token that a server has rejected, unless another token has replaced it.
    pub(crate) fn reject(&self, token: &Token) {
        let state = self.lock();
        if state.token.as_ref().is_some_and(|current| current.is_same(token)) {
            self.renew_early(state);
        }
    }

    /// Renews the token immediately, but at the earliest ten seconds after the last attempt. Without this pause, a server that rejects
    /// every token would cause a flood of requests.
    fn renew_early(&self, mut state: MutexGuard<'_, State>) {
        let Some(earliest) = state.attempted.map(|at| at + BACKOFF.1) else { return };
        if state.next_attempt.is_some_and(|next| next > earliest) {
            state.next_attempt = Some(earliest);
            drop(state);
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews the token whenever it is due, as long as the process lives. Pauses while no client uses the token.
    fn renew(&self) {
        let (mut requests, mut backoff) = (Requests::default(), BACKOFF.0);
        loop {
            self.wait_until_due();
            let answer = requests.token(&self.source);
            let mut state = self.lock();
            state.attempts += 1;
            state.attempted = Some(Instant::now());
            let answer = answer.and_then(|token| {
                let wait = renew_in(&token, matches!(self.source, TokenSource::File(_)));
                let is_expired = token.is_expired();
                self.take(&mut state, token);
                // Clients get the token even if it has expired. If this machine's clock is wrong, the broker can still accept the token.
                if is_expired {
                    Err(format!(
                        "the token of {} has expired according to this machine's clock; check the clock and whether the token is renewed",
                        self.source
                    ))
                } else {
                    Ok(wait)
                }
            });
            let wait = match answer {
                Ok(wait) => {
                    if state.trouble.take().is_some() {
                        tracing::info!(source = %self.source, "the token for the login was renewed after a failure");
                    }
                    backoff = BACKOFF.0;
                    wait
                }
                Err(why) => {
                    Self::fail(&mut state, &why);
                    let wait = backoff;
                    backoff = (wait * 2).min(BACKOFF.1);
                    wait
                }
            };
            state.next_attempt = Some(Instant::now() + wait);
            drop(state);
            self.changed.notify_all();
        }
    }

    fn wait_until_due(&self) {
        let mut state = self.lock();
        loop {
            let left = state.next_attempt.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()));
            let is_used = !state.subscribers.is_empty() || state.waiting > 0;
            let has_expired = state.trouble.is_none() && state.token.as_ref().is_some_and(|token| token.is_expired());
            if is_used && (left.is_zero() || has_expired) {
                return;
            }
            state = if is_used {
                self.changed.wait_timeout(state, left.min(LOOK_INTERVAL)).unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            };
        }
    }

    fn take(&self, state: &mut State, token: Token) {
        if state.token.as_ref().is_some_and(|current| current.is_same(&token)) {
            // The source returned the same token, for example because a file was not updated yet. Clients do not need it again, but its
            // expiry can differ if this machine's clock was set.
            state.token = Some(Arc::new(token));
            return;
        }
        tracing::debug!(source = %self.source, valid_seconds = token.left().map(|left| left.as_secs()), "token for the login renewed");
        let token = Arc::new(token);
        state.subscribers.iter().for_each(|(_, subscriber)| subscriber.renewed(&token));
        state.token = Some(token);
    }

    fn fail(state: &mut State, why: &str) {
        let left = state.token.as_ref().map(|token| token.left().unwrap_or(UNKNOWN_LIFETIME));
        if state.trouble.as_deref() != Some(why) {
            let valid_seconds = left.map(|left| left.as_secs());
            tracing::warn!(valid_seconds, "failed to renew the token for the login; retrying: {why}");
        }
        state.trouble = Some(why.into());
        if left.is_none_or(|left| left.is_zero()) {
            state.subscribers.iter().for_each(|(_, subscriber)| subscriber.failed(why));
        }
    }
}

/// Returns the time until the next renewal: 80% of the token's remaining lifetime, because librdkafka logs in again after 90%. An unknown
/// lifetime counts as [`UNKNOWN_LIFETIME`]. A file is read again after [`FILE_INTERVAL`] at the latest.
fn renew_in(token: &Token, is_file: bool) -> Duration {
    let by_lifetime = token.left().unwrap_or(UNKNOWN_LIFETIME).mul_f64(0.8);
    let wait = if is_file { by_lifetime.min(FILE_INTERVAL) } else { by_lifetime };
    wait.max(INTERVAL_MIN)
}

pub(crate) struct Subscription {
    tokens: Arc<Tokens>,
    id: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.tokens.lock().subscribers.retain(|(id, _)| *id != self.id);
    }
}

#[cfg(test)]
mod tests;
