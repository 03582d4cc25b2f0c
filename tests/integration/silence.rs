//! Promise: a worker whose brokers are gone, or a thread of which hangs, says so, and is not ready.

use crate::harness::{OwnBroker, broker, wait_until};
use crate::observed::{address, ask};
use crate::stream::{LIMIT, Stream};

const RECORDS: usize = 40_000;

/// The value of a metric, which is there once.
fn metric(address: &str, name: &str) -> f64 {
    let text = ask(address, "/metrics").2;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
}

/// Waits until the worker is not ready, and says why.
fn wait_until_not_ready(address: &str, why: &str) {
    wait_until(&format!("it is not ready: {why}"), LIMIT, || {
        let (status, _, body) = ask(address, "/readyz");
        (status == 503 && body.contains(why)).then_some(())
    });
}

#[test]
fn a_broker_that_does_not_answer() {
    let mut broker = OwnBroker::start();
    let stream = Stream::remembered(broker.address(), "silent-broker", RECORDS);
    let mut worker = stream.setup.start("a");
    stream.produce(..RECORDS / 2);
    stream.wait_until_read(RECORDS / 2, &mut worker);
    let address = address(&mut worker);
    assert_eq!(ask(&address, "/readyz").0, 200);
    let contact = "unseen_broker_last_contact_timestamp_seconds";
    let before = metric(&address, contact);
    // Nothing is read meanwhile, and the brokers are still heard of.
    wait_until("an idle worker hears of its brokers", LIMIT, || (metric(&address, contact) > before + 15.0).then_some(()));
    assert_eq!(ask(&address, "/readyz").0, 200);
    broker.pause();
    wait_until_not_ready(&address, "no broker has answered a request for ");
    assert_eq!(metric(&address, "unseen_state{state=\"disconnected\"}").to_bits(), 1.0_f64.to_bits());
    // To start it again would not help.
    assert_eq!(ask(&address, "/livez").0, 200);
    broker.resume();
    wait_until("it is ready again", LIMIT, || (ask(&address, "/readyz").0 == 200).then_some(()));
    stream.produce(RECORDS / 2..);
    stream.check(worker);
}

#[test]
fn a_thread_that_hangs() {
    let stream = Stream::remembered(broker(), "hung", RECORDS).with(|setup| setup.worker("workers = 2\ntransaction_timeout = \"2s\""));
    let mut worker = stream.setup.start_armed("a", &[], "commit.flushed:1:hang");
    stream.produce(..);
    let address = address(&mut worker);
    wait_until_not_ready(&address, " has not gone on for ");
    assert_eq!(metric(&address, "unseen_state{state=\"hung\"}").to_bits(), 1.0_f64.to_bits());
    let age = |worker| metric(&address, &format!("unseen_worker_loop_age_seconds{{worker=\"{worker}\"}}"));
    let (shorter, longer) = (age(0).min(age(1)), age(0).max(age(1)));
    assert!(shorter < 10.0 && longer > 30.0, "one of two hangs: {shorter}, {longer}");
    assert_eq!(ask(&address, "/livez").0, 200);
    worker.kill9();
    stream.check(stream.setup.start("b"));
}
