//! Promise: a worker that logs in with a bearer token renews the token in time. If it cannot renew the token, it loses no record. The
//! worker never shows a token.

use crate::harness::{
    KEY_ID, Msk, OwnBroker, PATIENCE, REGION, SCOPE, SUBJECT, SecureBroker, Setup, TokenProvider, front, secure_broker, unique, wait_until,
};
use crate::observed::{address, ask};
use crate::security::{TELL_ALL, allow, hold_nothing, listener};
use crate::stream::{LIMIT, Stream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const USER: &str = "User:unseen";

fn provider(broker: &SecureBroker, lifetime: Duration) -> TokenProvider {
    TokenProvider::start(&broker.read("issuer.key"), lifetime)
}

fn stream(hint: &str, count: usize, properties: &[(&str, &str)]) -> Stream {
    let broker = secure_broker();
    let (address, _) = listener(broker, "sasl_plaintext");
    let common = [("security.protocol", "sasl_plaintext"), ("sasl.mechanism", "OAUTHBEARER")];
    let add = |setup: Setup, (name, value): &(&str, &str)| setup.properties(&format!("{name:?} = {value:?}"));
    Stream::remembered(broker.address(), hint, count).with(|setup| common.iter().chain(properties).fold(setup, add).servers(&address))
}

fn stream_of(provider: &TokenProvider, hint: &str, count: usize) -> Stream {
    let properties = [
        ("sasl.oauthbearer.method", "oidc"),
        ("sasl.oauthbearer.token.endpoint.url", provider.url()),
        ("sasl.oauthbearer.client.id", SUBJECT),
        ("sasl.oauthbearer.client.secret", "${CLIENT_SECRET}"),
        ("sasl.oauthbearer.scope", SCOPE),
        ("sasl.oauthbearer.extensions", "logicalCluster=lkc-1,identityPoolId=pool-1"),
    ];
    stream(hint, count, &properties).with(|setup| setup.environment("CLIENT_SECRET", provider.secret()))
}

fn secrets(provider: &TokenProvider) -> Vec<String> {
    // The parts of each token that are secret: its claims and its signature.
    let tokens = provider.tokens();
    let parts = tokens.iter().flat_map(|token| token.split('.').skip(1)).map(str::to_owned);
    parts.chain([provider.secret().to_owned()]).collect()
}

#[test]
fn tokens_are_renewed_for_idle_clients_and_never_shown() {
    let provider = provider(secure_broker(), Duration::from_secs(20));
    let stream = stream_of(&provider, "oauth", 5_000);
    allow(&stream, USER, None);
    let mut worker = stream.setup.start_with("a", &TELL_ALL);
    let before = provider.tokens().len();
    wait_until("tokens are renewed while no record arrives", PATIENCE, || {
        assert!(worker.runs(), "the worker ended");
        (provider.tokens().len() > before + 1).then_some(())
    });
    let feed = stream.feed(8);
    feed.join();
    let log = stream.check(worker);
    assert!(!log.contains("the broker rejects the token"), "a token was used for too long:\n{log}");
    hold_nothing([("the log", log)], &secrets(&provider));
}

#[test]
fn no_record_is_lost_without_a_token() {
    let provider = provider(secure_broker(), Duration::from_secs(20));
    let stream = stream_of(&provider, "oauth-down", 20_000);
    allow(&stream, USER, None);
    stream.produce(..10_000);
    let mut worker = stream.setup.start("a");
    stream.wait_until_read(10_000, &mut worker);
    provider.set_down(true);
    let address = address(&mut worker);
    stream.produce(10_000..);
    wait_until("the reason is shown", LIMIT, || {
        assert!(worker.runs(), "the worker ended");
        let (status, _, body) = ask(&address, "/readyz");
        (status == 503 && body.contains("the token for the login cannot be renewed: ") && body.contains(provider.url())).then_some(())
    });
    provider.set_down(false);
    stream.wait_until_read(20_000, &mut worker);
    let log = stream.check(worker);
    assert!(log.contains("failed to renew the token for the login; retrying: "), "{log}");
    hold_nothing([("the log", log)], &secrets(&provider));
}

/// Replaces a file atomically, as Kubernetes does.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).expect("a file");
    std::fs::rename(new, file).expect("a file that can be renamed");
}

#[test]
fn a_token_in_a_file_is_read_again() {
    let provider = provider(secure_broker(), Duration::ZERO);
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let file = dir.path().join("token");
    let url = format!("file://{}", file.display());
    let stream = stream("oauth-file", 5_000, &[("sasl.oauthbearer.token.endpoint.url", &url)]);
    let lifetime = Duration::from_secs(25);
    replace(&file, &provider.issue(lifetime));
    let issued = Instant::now();
    allow(&stream, USER, None);
    let mut worker = stream.setup.start("a");
    stream.produce(..2_500);
    stream.wait_until_read(2_500, &mut worker);
    replace(&file, &format!("{}\n", provider.issue(Duration::from_secs(3600))));
    wait_until("the first token has expired", LIMIT, || (issued.elapsed() > lifetime).then_some(()));
    stream.produce(2_500..);
    let log = stream.check(worker);
    assert!(!log.contains("the broker rejects the token"), "the token was not renewed:\n{log}");
    hold_nothing([("the log", log)], &secrets(&provider));
}

/// Panics unless `unseen check --connect` reports these errors and shows no secret.
fn refused(stream: &Stream, provider: &TokenProvider, overrides: &[&str], words: &[&str]) {
    let (code, stdout, stderr) = stream.setup.check_with("a", &[overrides, &TELL_ALL].concat());
    assert_eq!(code, Some(78), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "`check` does not report {word:?}:\n{stderr}");
    }
    hold_nothing([("stdout of `check`", stdout), ("stderr of `check`", stderr)], &secrets(provider));
}

#[test]
fn token_login_failures_are_reported() {
    let provider = provider(secure_broker(), Duration::from_secs(3600));
    let stream = stream_of(&provider, "oauth-wrong", 1);
    let no_token = "no token is available for the login; check sasl.oauthbearer.* in kafka.properties";
    let wrong = "kafka.properties.sasl.oauthbearer.client.secret=wrong";
    refused(&stream, &provider, &[wrong], &[no_token, "returned 401 Unauthorized: invalid_client as the test wants it"]);
    let wrong = "kafka.properties.sasl.oauthbearer.scope=other";
    refused(&stream, &provider, &[wrong], &[no_token, "returned 400 Bad Request: invalid_scope"]);
    let wrong = "kafka.properties.sasl.oauthbearer.token.endpoint.url=http://127.0.0.1:1/token";
    refused(&stream, &provider, &[wrong], &[no_token, "failed to request a token from http://127.0.0.1:1/token"]);
    provider.set_audience("another");
    refused(&stream, &provider, &[], &["the broker rejects the token; check the scope, audience, and issuer"]);
}

/// A stream whose workers log in to a broker that verifies AWS signatures.
fn stream_of_msk(broker: &OwnBroker, msk: &Arc<Msk>, secret: &str, count: usize) -> Stream {
    let msk = Arc::clone(msk);
    broker.way().lead_to(&front(broker.behind(), move || msk.connection()));
    let properties = "\"security.protocol\" = \"sasl_plaintext\"\n\"sasl.mechanism\" = \"AWS_MSK_IAM\"";
    Stream::remembered(broker.address(), "msk", count).with(|setup| {
        let variables = [("AWS_REGION", REGION), ("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", secret)];
        let setup = variables.iter().fold(setup, |setup, (name, value)| setup.environment(name, value));
        setup.properties(properties).servers(&broker.servers_by_way())
    })
}

#[test]
fn a_broker_that_verifies_aws_signatures_accepts_every_login() {
    let (broker, secret) = (OwnBroker::start(), unique("aws-secret"));
    let msk = Msk::new(&secret, Duration::ZERO, Duration::from_secs(2));
    let stream = stream_of_msk(&broker, &msk, &secret, 5_000);
    let mut worker = stream.setup.start_with("a", &TELL_ALL);
    stream.produce(..2_500);
    stream.wait_until_read(2_500, &mut worker);
    let before = msk.logins();
    wait_until("clients log in again after their sessions", PATIENCE, || (msk.logins() > before + 4).then_some(()));
    stream.produce(2_500..);
    let log = stream.check(worker);
    hold_nothing([("the log", log)], &[secret]);
}

/// The tokens are valid for 15 minutes, but the broker rejects them earlier, as after a rotation of the issuer's keys.
#[test]
fn a_rejected_token_is_replaced_before_it_expires() {
    let (broker, secret) = (OwnBroker::start(), unique("aws-secret"));
    let msk = Msk::new(&secret, Duration::ZERO, Duration::from_secs(2));
    let stream = stream_of_msk(&broker, &msk, &secret, 5_000);
    let mut worker = stream.setup.start("a");
    stream.produce(..2_500);
    stream.wait_until_read(2_500, &mut worker);
    msk.revoke();
    let before = msk.logins();
    wait_until("clients log in with a new token", PATIENCE, || {
        assert!(worker.runs(), "the worker ended");
        (msk.logins() > before + 4).then_some(())
    });
    stream.produce(2_500..);
    let log = stream.check(worker);
    assert!(log.contains("the broker rejects the AWS credentials"), "{log}");
}

#[test]
fn wrong_clock_or_secret_is_reported_as_rejected_aws_credentials() {
    let (broker, secret) = (OwnBroker::start(), unique("aws-secret"));
    let ahead = Msk::new(&secret, Duration::from_secs(3600), Duration::from_secs(60));
    let other = Msk::new("another secret", Duration::ZERO, Duration::from_secs(60));
    for (msk, words) in [(ahead, "signature expired"), (other, "another signature")] {
        let stream = stream_of_msk(&broker, &msk, &secret, 1);
        let (code, stdout, stderr) = stream.setup.check_with("a", &TELL_ALL);
        assert_eq!(code, Some(78), "{stderr}");
        assert!(stderr.contains("the broker rejects the AWS credentials") && stderr.contains("this machine's clock"), "{stderr}");
        assert!(stderr.contains(words), "{stderr}");
        hold_nothing([("stdout of `check`", stdout), ("stderr of `check`", stderr)], std::slice::from_ref(&secret));
    }
}
