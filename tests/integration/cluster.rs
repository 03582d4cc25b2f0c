//! Promise: `unseen check --connect` and `unseen run` report mismatches between the configuration and the cluster. `unseen run` reports
//! them before it reads any records.

use crate::harness::{Setup, TestRecord, assert_same, broker, read_committed, topic, unique, unseen};
use crate::stream::Stream;

const LINES: &str = "key = { record = \"key\" }\nwindow = \"24h\"\nfilter = { kind = \"aging\", capacity = \"10k\" }";

/// Panics unless `unseen check --connect` and `unseen run` report these errors.
fn refused(setup: &Setup, sentences: &[&str]) {
    let file = setup.write_config("a");
    let (code, _, stderr) = unseen(["check".as_ref(), "--connect".as_ref(), "-c".as_ref(), file.as_os_str()]);
    assert_eq!(code, Some(78), "{stderr}");
    let log = setup.start("a").fails(1);
    for sentence in sentences {
        assert!(stderr.contains(sentence), "`check` does not report {sentence:?}:\n{stderr}");
        assert!(log.contains(sentence), "`run` does not report {sentence:?}:\n{log}");
    }
}

#[test]
fn missing_topics_are_reported_together() {
    let (input, output, dead) = (unique("no-in"), unique("no-out"), unique("no-dead"));
    let setup = Setup::new(broker(), "missing").topic(&input, &output, &format!("{LINES}\non_invalid = {{ topic = \"{dead}\" }}"));
    refused(
        &setup,
        &[
            &format!("topics[0].input: topic {input:?} does not exist; check the name, or create the topic\n"),
            &format!(
                "topics[0].output: topic {output:?} does not exist; check the name, or create the topic with no fewer partitions than its input\n"
            ),
            &format!(
                "topics[0].on_invalid.topic: topic {dead:?} does not exist; check the name, or create the topic with no fewer partitions than its input"
            ),
        ],
    );
}

#[test]
fn topics_of_a_space_need_equal_partition_counts() {
    let (one, two, output) = (topic(broker(), "two", 2), topic(broker(), "three", 3), topic(broker(), "space-out", 3));
    let lines = format!("space = \"both\"\n{LINES}");
    let setup = Setup::new(broker(), "partitions").topic(&one, &output, &lines).topic(&two, &output, &lines);
    refused(&setup, &[&format!("topics[1].space: {two:?} has 3 partitions and {one:?} has 2, but both are in space \"both\"")]);
}

#[test]
fn fewer_output_partitions_are_reported_and_accepted() {
    let mut stream = Stream::remembered(broker(), "fewer", 20_000);
    stream.output = topic(broker(), "fewer-out", 2);
    let lines =
        "key = { record = \"key\" }\nwindow = \"24h\"\nfilter = { kind = \"aging\", capacity = \"400k\", false_positive_rate = 1e-9 }";
    stream.setup = Setup::new(broker(), "fewer").topic(&stream.input, &stream.output, lines);
    let file = stream.setup.write_config("a");
    let (code, stdout, stderr) = unseen(["check".as_ref(), "--connect".as_ref(), "-c".as_ref(), file.as_os_str()]);
    assert_eq!(code, Some(0), "{stderr}");
    let sentence =
        format!("topic {:?} has fewer partitions (2) than {:?} (4), so its records are partitioned by key", stream.output, stream.input);
    assert!(stdout.contains(&sentence) || stderr.contains(&sentence), "{stdout}{stderr}");

    stream.begin(20_000);
    // The output has fewer partitions, so the worker partitions its records by key. The comparison ignores their partition and order.
    let sorted = |records: &[Vec<TestRecord>]| {
        let mut all: Vec<_> = records.iter().flatten().map(|record| TestRecord { partition: 0, ..record.clone() }).collect();
        all.sort_by(|a, b| (a.timestamp, &a.headers).cmp(&(b.timestamp, &b.headers)));
        [all]
    };
    assert_same(&sorted(&stream.expected), &sorted(&read_committed(broker(), &stream.output, 2)));
}
