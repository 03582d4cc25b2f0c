//! Promise: a panic in any thread ends the process at once, with the panic message in the log, and another process takes over.

use crate::harness::broker;
use crate::stream::{LIMIT, Stream, short_timeouts};
use std::fs;

const RECORDS: usize = 20_000;

/// Arms the fault `error` at a point where no step can fail, which makes a thread of the worker panic. Fails unless the process ends and
/// another process takes over.
fn panics(hint: &str, point: &str) {
    let stream = Stream::remembered(broker(), hint, RECORDS).with(short_timeouts);
    stream.begin(RECORDS / 2);
    fs::remove_dir_all(stream.setup.state_dir("a")).expect("it can be deleted");
    stream.produce(RECORDS / 2..);
    let mut worker = stream.setup.start_armed("a", &["log.format=json"], &format!("{point}:1:error"));
    let status = worker.wait(LIMIT);
    assert!(!status.success(), "{status}");
    let log = worker.log();
    let line = log.lines().find(|line| line.contains("panicked: ")).unwrap_or_else(|| panic!("the log does not tell: {log}"));
    let line: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
    assert_eq!(line["level"], "ERROR");
    assert!(line["message"].as_str().is_some_and(|message| message.contains(point)), "{line}");
    stream.check(stream.setup.start("b"));
}

#[test]
fn a_panic_in_a_worker_ends_the_process() {
    panics("panic-worker", "transaction.sent");
}

#[test]
fn a_panic_in_a_rebuild_ends_the_process() {
    panics("panic-rebuild", "rebuild.record");
}

#[test]
fn a_panic_during_an_assignment_ends_the_process() {
    panics("panic-assign", "assign.restored");
}
