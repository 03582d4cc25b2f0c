//! Tests when tokens are requested, which clients get them, and what errors must not show.

use super::*;
use crate::config::TokenEndpoint;
use std::sync::mpsc;

/// Starts a token endpoint that sends these responses in order and then stops. The channel receives the requests.
fn endpoint(answers: Vec<(u16, &'static str)>) -> (TokenSource, mpsc::Receiver<String>) {
    let (sender, requests) = mpsc::channel();
    let mut answers = answers.into_iter();
    let url = stub::serve(move |request| sender.send(request.to_owned()).ok().and_then(|()| answers.next())) + "/token";
    let (client_id, client_secret) = ("ann".to_owned(), "hunter2".to_owned());
    (TokenSource::Endpoint(TokenEndpoint { url, client_id, client_secret, scope: Some("a b".to_owned()), ca_location: None }), requests)
}

const WAIT: Duration = Duration::from_secs(60);

struct Listener(mpsc::Sender<Result<String, String>>);

impl Subscriber for Listener {
    fn renewed(&self, token: &Token) {
        let _ = self.0.send(Ok(token.value().to_owned()));
    }

    fn failed(&self, reason: &str) {
        let _ = self.0.send(Err(reason.to_owned()));
    }
}

/// Moves the last attempt into the past. A rejected token is then renewed immediately.
fn age(tokens: &Tokens) {
    let mut state = tokens.lock();
    state.attempted = state.attempted.map(|at| at.checked_sub(BACKOFF.1).unwrap());
}

/// Schema registry clients use tokens in this way: they request tokens but do not subscribe to them.
#[test]
fn tokens_without_subscribers_are_renewed_when_due_or_rejected() {
    let (source, _requests) = endpoint(vec![
        (200, r#"{"access_token": "t1", "token_type": "Bearer", "expires_in": 3600}"#),
        (200, r#"{"access_token": "t2", "token_type": "Bearer", "expires_in": 3600}"#),
        (200, r#"{"access_token": "t3", "token_type": "Bearer", "expires_in": 3600}"#),
    ]);
    let tokens = Tokens::of(&source);
    let first = tokens.get(WAIT).unwrap();
    assert_eq!(first.value(), "t1");
    tokens.reject(&first);
    assert_eq!(tokens.get(WAIT).unwrap().value(), "t1", "a token that was just renewed is not renewed again");
    tokens.lock().next_attempt = Some(Instant::now());
    let second = tokens.get(WAIT).unwrap();
    assert_eq!(second.value(), "t2");
    age(&tokens);
    tokens.reject(&first);
    assert_eq!(tokens.get(WAIT).unwrap().value(), "t2", "another token was rejected");
    tokens.reject(&second);
    assert_eq!(tokens.get(WAIT).unwrap().value(), "t3");
}

#[test]
fn client_credentials_are_sent_as_rfc_6749_describes_them() {
    let (source, requests) = endpoint(vec![(200, r#"{"access_token": "t1", "token_type": "Bearer", "expires_in": 60}"#)]);
    let tokens = Tokens::of(&source);
    assert_eq!(tokens.get(WAIT).unwrap().value(), "t1");
    let request = requests.recv().unwrap();
    assert!(request.starts_with("POST /token HTTP/1.1\n"), "{request}");
    assert!(request.contains("authorization: Basic YW5uOmh1bnRlcjI=\n"), "{request}");
    assert!(request.ends_with("grant_type=client_credentials&scope=a+b"), "{request}");
    // The token is still valid, so there is no second request to the endpoint.
    assert_eq!(Tokens::of(&source).get(WAIT).unwrap().value(), "t1");
}

#[test]
fn a_client_gets_the_current_token_and_each_new_one_until_it_ends() {
    let answers =
        vec![(200, r#"{"access_token": "t1", "expires_in": 1}"#), (503, ""), (200, r#"{"access_token": "t2", "expires_in": "3600"}"#)];
    let (source, _requests) = endpoint(answers);
    let tokens = Tokens::of(&source);
    let (sender, called) = mpsc::channel();
    let subscription = tokens.subscribe(Box::new(Listener(sender.clone())));
    let next = || called.recv_timeout(WAIT).unwrap();
    assert_eq!(next(), Ok("t1".to_owned()));
    let failure = next().unwrap_err();
    assert!(failure.ends_with("/token returned 503 Service Unavailable"), "{failure}");
    assert_eq!(next(), Ok("t2".to_owned()));
    let second = tokens.subscribe(Box::new(Listener(sender)));
    assert_eq!(next(), Ok("t2".to_owned()));
    drop((subscription, second));
    assert!(tokens.lock().subscribers.is_empty());
}

#[test]
fn a_token_that_a_broker_rejects_is_renewed_at_most_every_ten_seconds() {
    let answers = vec![(200, r#"{"access_token": "t1", "expires_in": 3600}"#), (200, r#"{"access_token": "t2", "expires_in": 3600}"#)];
    let (source, _requests) = endpoint(answers);
    let (login, tokens) = (OAuth { source: source.clone(), extensions: Vec::new() }, Tokens::of(&source));
    let (sender, called) = mpsc::channel();
    let _subscription = tokens.subscribe(Box::new(Listener(sender)));
    let next = || called.recv_timeout(WAIT).unwrap();
    assert_eq!(next(), Ok("t1".to_owned()));
    // `get` waits for the lock, which the renewal thread holds until it has delivered the token and updated the schedule.
    assert_eq!(tokens.get(WAIT).unwrap().value(), "t1");
    age(&tokens);
    reject(&login);
    assert_eq!(next(), Ok("t2".to_owned()));
    assert_eq!(tokens.get(WAIT).unwrap().value(), "t2");
    let scheduled = |tokens: &Tokens| tokens.lock().next_attempt;
    let (before, attempted) = (scheduled(&tokens), tokens.lock().attempted);
    reject(&login);
    assert!(scheduled(&tokens) < before);
    assert_eq!(scheduled(&tokens), attempted.map(|at| at + BACKOFF.1));
    reject(&login);
    assert_eq!(scheduled(&tokens), attempted.map(|at| at + BACKOFF.1), "more rejections change nothing");
}

#[test]
fn the_reason_for_a_missing_token_shows_no_secret() {
    for (status, body, words) in [
        (401, r#"{"error": "invalid_client", "error_description": "no client has hunter2"}"#, "401 Unauthorized: invalid_client no client"),
        (500, "hunter2", "returned 500 Internal Server Error"),
        (200, "hunter2", "but not a token response (RFC 6749)"),
        (200, r#"{"access_token": "hunter2 hunter2"}"#, "returned an invalid bearer token"),
    ] {
        let (source, _requests) = endpoint(vec![(status, body)]);
        let reason = Tokens::of(&source).get(WAIT).unwrap_err();
        assert!(reason.contains(words) && !reason.contains("hunter2"), "{reason}");
        let login = OAuth { source, extensions: Vec::new() };
        assert_eq!(trouble(&login), Some(reason));
        assert!(!format!("{login:?}").contains("hunter2"), "{login:?}");
    }
}

#[test]
fn a_token_is_read_from_a_file_without_the_line_break() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let tokens = Tokens::of(&TokenSource::File(path.clone()));
    let reason = tokens.get(WAIT).unwrap_err();
    assert!(reason.starts_with(&format!("{}: No such file", path.display())), "{reason}");
    std::fs::write(&path, "from-a-file\n").unwrap();
    let (sender, called) = mpsc::channel();
    let _subscription = tokens.subscribe(Box::new(Listener(sender)));
    let token = std::iter::from_fn(|| called.recv_timeout(WAIT).ok()).find_map(Result::ok);
    assert_eq!(token.as_deref(), Some("from-a-file"));
}

#[test]
fn an_expired_token_is_handed_over_with_the_reason_for_a_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    // This token expired in 1970.
    let token = format!("e30.{}.c2ln", data_encoding::BASE64URL_NOPAD.encode(b"{\"exp\": 1}"));
    std::fs::write(&path, &token).unwrap();
    let tokens = Tokens::of(&TokenSource::File(path.clone()));
    let (sender, called) = mpsc::channel();
    let _subscription = tokens.subscribe(Box::new(Listener(sender)));
    let next = || called.recv_timeout(WAIT).unwrap();
    assert_eq!(next(), Ok(token));
    assert_eq!(
        next(),
        Err(format!(
            "the token of {} has expired according to this machine's clock; check the clock and whether the token is renewed",
            path.display()
        ))
    );
}

#[test]
fn tokens_are_renewed_before_they_expire() {
    let token = |seconds| Token::new("t", Some(Duration::from_secs(seconds))).unwrap();
    let about = |wait: Duration, seconds: u64| (Duration::from_secs(seconds - 1)..=Duration::from_secs(seconds)).contains(&wait);
    assert!(about(renew_in(&token(100), false), 80));
    assert_eq!(renew_in(&token(100), true), FILE_INTERVAL);
    assert_eq!(renew_in(&token(0), false), INTERVAL_MIN);
    assert_eq!(renew_in(&Token::new("opaque", None).unwrap(), false), UNKNOWN_LIFETIME.mul_f64(0.8));
}
