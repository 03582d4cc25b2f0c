//! The stream of a plan: its topics, its configuration, and its records.

use super::super::options::{Memory, Options, RETRACTS};
use super::super::plan::Conditions;
use super::super::truth::{self, LIMIT_BYTES, MAX_TIMESTAMP};
use super::BEFORE;
use crate::harness::{News, Oracle, RETRACT, Setup, SplitMix, TestRecord, produce, topic_with};
use crate::stream::Stream;
use std::time::Duration;

/// Creates the topics of a plan and writes the first [`BEFORE`] records, which precede the group's start. Returns the stream, the other
/// topic of the space (if there is one), and the topics of dead letters and of duplicates.
pub(super) fn stream(address: &str, conditions: &Conditions, memory: &Memory) -> (Stream, Option<String>, [String; 2]) {
    let options = &conditions.options;
    let hint = format!("chaos-{}", conditions.seed);
    let endless = ("message.timestamp.after.max.ms", "9223372036854775807");
    let limit = LIMIT_BYTES.to_string();
    let output = match () {
        () if options.has("records that the output refuses") => vec![endless, ("cleanup.policy", "compact")],
        () if options.has("records too large for the output") => vec![endless, ("max.message.bytes", &*limit)],
        () => vec![endless],
    };
    let make = |what: &str, properties: &[(&str, &str)]| topic_with(address, &format!("{hint}-{what}"), 4, properties);
    let (input, output) = (make("in", &[endless]), make("out", &output));
    let other = options.has("a space that topics share").then(|| make("other", &[endless]));
    let (session, heartbeat) = (conditions.session_ms, conditions.session_ms / 5);
    let key = format!("{}space = \"news\"", options.key());
    let [dead, duplicates] = ["dead", "duplicates"].map(|what| make(what, &[endless]));
    let lines = options.lines(&dead, &duplicates);
    let lines = format!("{key}\n{}{lines}", memory.lines());
    let setup = Setup::new(address, &hint)
        .properties("\"fetch.wait.max.ms\" = \"20\"\n\"topic.metadata.refresh.interval.ms\" = \"500\"")
        .properties(&format!("\"session.timeout.ms\" = \"{session}\"\n\"heartbeat.interval.ms\" = \"{heartbeat}\""));
    let rule = options.rule(memory, "").map(|rule| format!("{rule}{}", options.lines(&dead, &duplicates)));
    let entries: Vec<_> = rule.iter().chain([&lines]).collect();
    let add = |setup, input: &String| entries.iter().fold(setup, |setup: Setup, lines| setup.topic(input, &output, lines));
    let setup = std::iter::once(&input).chain(&other).fold(setup, add);
    let (records, oracle) = (records(conditions), Oracle::new(Duration::from_secs(1), 1));
    produce(address, &input, &records[..BEFORE]);
    (Stream { broker: address.to_owned(), input, output, records, expected: Vec::new(), oracle, setup }, other, [dead, duplicates])
}

fn records(conditions: &Conditions) -> Vec<TestRecord> {
    let mut records = News { seed: conditions.seed, count: conditions.records + BEFORE, ..News::default() }.records();
    let mut random = SplitMix(conditions.seed);
    if conditions.options.has("retract") {
        let some = records.iter_mut().filter(|_| random.below(10) == 0);
        some.for_each(|record| record.headers.push((RETRACT.to_owned(), Some(RETRACTS.into()))));
    }
    // Oversized records are rare, because they abort transactions, and many aborts would slow the plan down.
    let rare = if conditions.options.has("records too large for the output") { 1_000 } else { 50 };
    let some = records.iter_mut().filter(|_| random.below(rare) == 0).collect::<Vec<_>>();
    let mut random = SplitMix(conditions.seed);
    for record in some {
        make_odd(&conditions.options, record, &mut random);
    }
    truth::move_times(&conditions.options, &mut records, conditions.seed);
    truth::set_states(&conditions.options, &mut records, conditions.seed);
    truth::mark_passing(&conditions.options, &mut records, conditions.seed);
    truth::mark_rules(&conditions.options, &mut records, conditions.seed);
    truth::encode(&conditions.options, &mut records);
    records
}

fn make_odd(options: &Options, record: &mut TestRecord, random: &mut SplitMix) {
    if options.has("records of time 0, or before it") {
        record.timestamp = -2 - i64::try_from(random.below(100_000_000)).unwrap_or_default();
    } else if options.has("records that are late, from the future, or without a time") {
        // Three days late, near the Unix epoch, without a time, or years ahead of any clock.
        record.timestamp = [record.timestamp - 3 * 24 * 3_600_000, 1, -1, MAX_TIMESTAMP + 1_000_000_000_000][random.below(4)];
    } else if options.has("tombstones") {
        record.value = None;
    } else if options.has("records that lack what the key is made of") {
        record.value.iter_mut().for_each(|value| value.truncate(20));
    } else if options.has("records that the output refuses") {
        record.key = None;
    } else if options.has("records too large for the output") {
        let padding: String = (0..30_000).map(|_| char::from(b'a' + u8::try_from(random.below(26)).unwrap_or_default())).collect();
        let text = record.text().trim_end_matches('}').to_owned();
        record.value = Some(format!("{text},\"padding\":\"{padding}\"}}").into_bytes());
    }
}
