//! Promise: processes may join and leave the group under load.

use crate::harness::broker;
use crate::stream::{LIMIT, RECORDS, Stream};

#[test]
fn a_second_process_joins_and_leaves() {
    let stream = Stream::new(broker(), "members", RECORDS);
    let feed = stream.feed(30);
    let mut first = stream.setup.start("a");
    first.wait_for_log("partition restored", LIMIT);
    for _ in 0..2 {
        let mut second = stream.setup.start("b");
        second.wait_for_log("partition restored", LIMIT);
        second.sigterm();
        let status = second.wait(LIMIT);
        assert!(status.success(), "the second ended with {status}");
    }
    // And one that goes without a word, so that its partitions come back by way of its session's end.
    let mut third = stream.setup.start("c");
    third.wait_for_log("partition restored", LIMIT);
    third.kill9();
    feed.join();
    stream.check(first);
}

#[test]
fn one_becomes_three_and_one_again() {
    let stream = Stream::new(broker(), "three", RECORDS / 2);
    let feed = stream.feed(25);
    let mut first = stream.setup.start("a");
    first.wait_for_log("partition restored", LIMIT);
    let mut others = ["b", "c"].map(|name| stream.setup.start(name));
    for other in &mut others {
        other.wait_for_log("partition restored", LIMIT);
    }
    for other in others {
        other.drain();
    }
    feed.join();
    stream.check(first);
}

#[test]
fn a_rolling_restart_of_lasting_members() {
    let stream = Stream::new(broker(), "rolling", RECORDS / 2);
    let start = |name: &str| stream.setup.start_with(name, &[&format!("kafka.instance_id={}-{name}", stream.setup.group())]);
    let feed = stream.feed(25);
    let mut members = ["a", "b", "c"].map(|name| (name, start(name)));
    for (_, member) in &mut members {
        member.wait_for_log("partitions assigned", LIMIT);
    }
    for (name, member) in &mut members {
        member.sigterm();
        assert!(member.wait(LIMIT).success(), "{name} did not end well");
        *member = start(name);
        member.wait_for_log("partitions assigned", LIMIT);
    }
    feed.join();
    let [(_, first), (_, second), (_, third)] = members;
    stream.check(first);
    second.drain();
    third.drain();
}
