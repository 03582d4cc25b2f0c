//! Promise: a state directory can be looked at beside its worker, and joined with another: who uses the
//! join has seen what either had.

use crate::harness::{News, Setup, Worker, broker, committed_offset, read_committed, topic, unseen, wait_until};
use crate::stream::{LIMIT, PARTITIONS, Stream};
use std::path::Path;
use std::time::Duration;

const COUNT: usize = 20_000;
const DAY: Duration = Duration::from_secs(24 * 3600);

fn inspect(args: &[&Path]) -> (Option<i32>, String, String) {
    unseen([Path::new("inspect")].iter().chain(args))
}

/// Waits until a group has read `count` records of the stream's input, all partitions together.
fn wait_until_read(stream: &Stream, group: &str, count: usize, worker: &mut Worker) {
    wait_until("the records are read", LIMIT, || {
        assert!(worker.runs(), "the worker ended");
        let offsets = (0..).take(PARTITIONS).filter_map(|partition| committed_offset(&stream.broker, group, &stream.input, partition));
        (offsets.sum::<i64>() >= i64::try_from(count).expect("few enough")).then_some(())
    });
}

fn joined(hint: &str, filter: &str) {
    let records = News { count: 2 * COUNT, ..News::default() }.records();
    let output = topic(broker(), &format!("{hint}-out"), 4);
    let stream = Stream::remembered_by(broker(), hint, output, records, DAY, filter);
    // One group reads the first half, another one the second.
    stream.begin(COUNT);
    let other_output = topic(broker(), &format!("{hint}-other"), 4);
    let other = Setup::new(broker(), hint).kafka("start = \"latest\"").topic(&stream.input, &other_output, &Stream::lines(DAY, filter));
    let mut worker = other.start("b");
    worker.wait_for_log("partitions assigned", LIMIT);
    stream.produce(COUNT..);
    wait_until_read(&stream, other.group(), 2 * COUNT, &mut worker);

    let dirs = [stream.setup.state_dir("a"), other.state_dir("b")];
    let (code, shown, error) = inspect(&[&dirs[1]]);
    assert_eq!(code, Some(0), "beside a running worker: {error}");
    assert!(shown.contains("news[0]") && shown.contains("4 slices of 21600000 ms"), "{shown}");
    worker.drain();

    let target = other.state_dir("c");
    let (code, shown, error) = inspect(&[&dirs[0], &dirs[1], Path::new("--merge"), &target, Path::new("--json")]);
    assert_eq!(code, Some(0), "{error}");
    let heads: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let offset = |partition| heads[target.to_str().expect("UTF-8")][format!("news[{partition}]")]["offsets"][&stream.input].as_i64();
    let offsets = (0..PARTITIONS).filter_map(offset);
    assert_eq!(offsets.sum::<i64>(), i64::try_from(2 * COUNT).expect("few enough"), "{shown}");
    let (code, _, error) = inspect(&[&dirs[0], Path::new("--merge"), &target]);
    assert!(code == Some(1) && error.contains("there is state in it already"), "{error}");

    // All of it again: the join has seen each of them.
    let before = read_committed(broker(), &other_output, PARTITIONS);
    assert!(before.iter().map(Vec::len).sum::<usize>() > 1_000);
    let mut worker = other.start("c");
    stream.produce(..);
    wait_until_read(&stream, other.group(), 4 * COUNT, &mut worker);
    worker.drain();
    assert!(read_committed(broker(), &other_output, PARTITIONS) == before, "something came out that one of both had seen");
}

#[test]
fn aging_filters_are_joined() {
    joined("join-aging", "filter = { kind = \"aging\", capacity = \"100k\", false_positive_rate = 1e-9, adapt = false }");
}

#[test]
fn fingerprints_are_joined() {
    joined("join-exact", "filter = { kind = \"exact\" }");
}

#[test]
fn what_is_no_state_is_said_so() {
    let setup = Setup::new("nowhere:1", "no-state");
    let (code, _, error) = inspect(&[setup.dir()]);
    assert!(code == Some(1) && error.contains("there is no state in it"), "{error}");
}
