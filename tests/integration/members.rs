//! Promise: processes can join, leave, and die under load without any effect on the output.

use crate::harness::{Setup, broker, client, topic, wait_until};
use crate::stream::{LIMIT, PARTITIONS, Stream, short_timeouts};
use rdkafka::consumer::{BaseConsumer, Consumer};
use std::time::Duration;

const RECORDS: usize = 100_000;

#[test]
fn output_is_exact_while_processes_join_leave_and_die() {
    let stream = Stream::new(broker(), "members", RECORDS).with(short_timeouts);
    let feed = stream.feed(15);
    let mut first = stream.setup.start("a");
    first.wait_for_log("partition restored", LIMIT);
    for _ in 0..2 {
        let mut second = stream.setup.start("b");
        second.wait_for_log("partition restored", LIMIT);
        second.sigterm();
        let status = second.wait(LIMIT);
        assert!(status.success(), "the second ended with {status}");
    }
    // One member is killed. Its partitions become free only when its session ends.
    let mut third = stream.setup.start("c");
    third.wait_for_log("partition restored", LIMIT);
    third.kill9();
    feed.join();
    stream.check(first);
}

#[test]
fn the_wait_for_a_killed_members_session_is_explained() {
    let stream = Stream::new(broker(), "old-session", 1_000);
    stream.produce(..);
    let mut first = stream.setup.start("a");
    first.wait_for_log("partition restored", LIMIT);
    first.kill9();
    let mut second = stream.setup.start("a");
    second.wait_for_log("waiting to join the consumer group; if a member was killed", LIMIT);
    stream.check(second);
}

/// A shared space changes the assignment strategy of a member. The group coordinator rejects a member whose strategy the other members do
/// not use.
#[test]
fn a_member_with_another_assignment_strategy_is_explained() {
    let stream = Stream::remembered(broker(), "another-way", 1_000);
    stream.produce(..);
    let mut first = stream.setup.start("a");
    first.wait_for_log("partition restored", LIMIT);
    let lines = Stream::lines(Duration::from_secs(24 * 3600), "filter = { kind = \"exact\" }");
    let other = topic(broker(), "another-way-too", 4);
    let setup = Setup::new(broker(), "another-way").of_group(stream.setup.group());
    let setup = setup.topic(&stream.input, &stream.output, &lines).topic(&other, &stream.output, &lines);
    let mut second = setup.start("b");
    second.wait_for_log(
        "because the other members use a different assignment strategy; stop all other members so that this member can join",
        LIMIT,
    );
    stream.check(first);
    second.wait_for_log("partition restored", LIMIT);
    second.drain();
}

#[test]
fn rolling_restart_of_static_members_does_not_change_the_output() {
    let stream = Stream::new(broker(), "rolling", RECORDS);
    let start = |name: &str| stream.setup.start_with(name, &[&format!("kafka.instance_id={}-{name}", stream.setup.group())]);
    let feed = stream.feed(10);
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

/// Another consumer joins with the `group.instance.id` of a member, which fences the member, and stops. The member drops its records in
/// progress, rejoins, and reads them again. It does not stop, because an outage can have the same effect as another consumer (see
/// src/worker/rejoin.rs).
#[test]
fn a_fenced_static_member_rejoins() {
    let stream = Stream::new(broker(), "fenced", RECORDS);
    let name = format!("{}-a", stream.setup.group());
    let feed = stream.feed(10);
    let mut worker = stream.setup.start_with("a", &[&format!("kafka.instance_id={name}")]);
    for time in 1..=2 {
        let assigned = |log: &str| log.matches("partitions assigned").count() >= time;
        wait_until("the worker has its partitions", LIMIT, || assigned(&worker.log()).then_some(()));
        let mut config = client(broker());
        config.set("group.id", stream.setup.group()).set("group.instance.id", format!("{name}-0"));
        let other: BaseConsumer = config.set("partition.assignment.strategy", "range").create().expect("a consumer");
        other.subscribe(&[&stream.input]).expect("a subscription");
        wait_until("the other has its partitions", LIMIT, || {
            let _ = other.poll(Duration::from_millis(100));
            (other.assignment().ok()?.count() == PARTITIONS).then_some(())
        });
        // A static member does not leave the group when it stops.
        drop(other);
        worker.wait_for_log(&format!("rejoining, because an outage can have the same effect attempt={time}"), LIMIT);
    }
    feed.join();
    stream.check(worker);
}

/// Two running processes with the same `kafka.instance_id` fence each other until one of them stops.
#[test]
fn one_of_two_processes_with_one_name_stops() {
    let stream = Stream::new(broker(), "twins", RECORDS);
    let name = format!("kafka.instance_id={}-a", stream.setup.group());
    let feed = stream.feed(15);
    let mut first = stream.setup.start_with("a", &[&name]);
    first.wait_for_log("partition restored", LIMIT);
    let mut second = stream.setup.start_with("b", &[&name]);
    wait_until("one process has exited", LIMIT, || (!first.runs() || !second.runs()).then_some(()));
    let (loser, winner) = if first.runs() { (second, first) } else { (first, second) };
    let log = loser.fails(1);
    let reasons = [
        "another process joined the group with the same kafka.instance_id",
        "another process that uses transactional id",
        "another process uses transactional id",
    ];
    assert!(reasons.iter().any(|reason| log.contains(reason)), "the process exited for another reason");
    feed.join();
    stream.check(winner);
}
