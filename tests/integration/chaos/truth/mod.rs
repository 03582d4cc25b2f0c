//! Compares the output with the expected output, which follows from a simple model and from the promises of the plan.

mod answers;
mod known;
mod model;
mod records;

pub use answers::*;
pub use known::*;
pub use records::*;

use super::options::Options;
use super::table::Promise;
use crate::harness::{TestRecord, assert_same, show};
use model::{Destination, expected};
use std::collections::{BTreeMap, BTreeSet};

/// The traces of the records that are emitted without a lookup. A trace identifies a record.
fn passing<'r>(options: &Options, records: impl IntoIterator<Item = &'r TestRecord>) -> Vec<Vec<u8>> {
    let emits_tombstones = options.has("on_tombstone = \"emit\"");
    let is_passing = |record: &&TestRecord| passes(record) || emits_tombstones && record.value.is_none();
    records.into_iter().filter(is_passing).filter(|record| !is_refused(options, record)).map(trace).collect()
}

/// Counts the records that are emitted without a lookup, by trace.
fn times_passing<'r>(options: &Options, records: impl Iterator<Item = &'r TestRecord>) -> BTreeMap<Vec<u8>, usize> {
    let mut times = BTreeMap::new();
    for trace in passing(options, records) {
        *times.entry(trace).or_default() += 1;
    }
    times
}

/// Sorts the records of each partition by trace and removes copies.
fn by_trace(mut output: Vec<Vec<TestRecord>>) -> Vec<Vec<TestRecord>> {
    for records in &mut output {
        records.sort_by_key(trace);
        records.dedup_by_key(|record| trace(record));
    }
    output
}

fn is_marked(record: &TestRecord) -> bool {
    record.headers.iter().any(|(name, value)| name == "unseen-verdict" && value.as_deref() == Some(b"duplicate"))
}

/// Removes marked duplicates from the output, and the worker's headers from the other records.
pub fn unmarked(output: &[Vec<TestRecord>]) -> Vec<Vec<TestRecord>> {
    let mut output = output.to_vec();
    for records in &mut output {
        records.retain(|record| !is_marked(record));
        for record in records {
            record.headers.retain(|(name, _)| !name.starts_with("unseen-"));
        }
    }
    output
}

/// The keys that must be emitted if each key is unseen exactly once. Excludes seeded keys and keys of records that the output rejects,
/// because such keys can count as seen although no record with them was emitted.
pub fn keys(options: &Options, seeds: &[TestRecord], inputs: &[Vec<Vec<TestRecord>>]) -> BTreeSet<Vec<u8>> {
    let judged = || inputs.iter().flatten().flatten().filter(|record| is_judged(record));
    let apart: BTreeSet<_> = judged().filter(|record| is_refused(options, record)).chain(seeds).map(id).collect();
    judged().map(id).filter(|id| !apart.contains(id)).collect()
}

pub fn lacks_nothing(keys: &BTreeSet<Vec<u8>>, output: &[Vec<TestRecord>]) -> bool {
    let came: BTreeSet<_> = output.iter().flatten().filter(|record| is_judged(record)).map(id).collect();
    keys.is_subset(&came)
}

pub struct Written {
    pub output: Vec<Vec<TestRecord>>,
    pub duplicates: Vec<Vec<TestRecord>>,
    pub dead_letters: Vec<Vec<TestRecord>>,
}

/// Panics unless the workers kept `promise`. `undisturbed` is the same promise without the delivery option. `before` has the records from
/// before the group's start. Unless the promise is exact, such records may be emitted, because the group may lose its start position.
pub fn check(
    options: &Options,
    (promise, undisturbed): (Promise, Promise),
    (seeds, before): (&[TestRecord], &[TestRecord]),
    inputs: &[Vec<Vec<TestRecord>>],
    written: &Written,
) {
    let output = unmarked(&written.output);
    if promise.exact && options.is_ordered() {
        assert_same(&expected(options, seeds, &inputs[0], Destination::Output), &output);
        return check_others(options, seeds, &inputs[0], written);
    }
    assert!(options.is_judged_by_keys(), "the output of {options:?} cannot be predicted");
    if undisturbed.exact && options.is_in_order() && options.filter().keeps_window() {
        // With `at_least_once`, records may be emitted several times and out of order, so the comparison ignores copies and the order.
        assert_same(&by_trace(expected(options, seeds, &inputs[0], Destination::Output)), &by_trace(output.clone()));
    }
    check_content(options, inputs, before, &output);
    let before = || before.iter().filter(|_| !promise.exact);
    let known: BTreeSet<_> = inputs.iter().flatten().flatten().chain(before()).filter(|record| is_judged(record)).map(id).collect();
    let mut times: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    for record in output.iter().flatten().filter(|record| is_judged(record)) {
        assert!(known.contains(&id(record)), "the output has a key that the input does not have: {record:?}");
        *times.entry(id(record)).or_default() += 1;
    }
    let is_exactly_once = promise.exact && options.has("delivery = \"exactly_once\"");
    if is_exactly_once && options.has("a space of one topic") && inputs[0].len() == output.len() {
        // Records without a lookup bypass the repartition topic, so they keep their partition and their order.
        for (partition, (input, output)) in inputs[0].iter().zip(&output).enumerate() {
            assert_eq!(passing(options, input), passing(options, output), "records without a lookup, partition {partition}");
        }
    }
    let passed = times_passing(options, output.iter().flatten());
    let came = times_passing(options, inputs.iter().flatten().flatten());
    let may_come = times_passing(options, inputs.iter().flatten().flatten().chain(before()));
    let count = |all: &BTreeMap<Vec<u8>, usize>, trace: &Vec<u8>| all.get(trace).copied().unwrap_or_default();
    let fewer = came.iter().find(|&(trace, &least)| count(&passed, trace) < least);
    let more = passed.iter().find(|&(trace, &passed)| count(&may_come, trace) < passed);
    assert!(!promise.nothing_lost || fewer.is_none(), "{fewer:?}: a record without a lookup was lost");
    assert!(!promise.nothing_twice || more.is_none(), "{more:?}: a record without a lookup was emitted several times");
    let seeded = seeds.iter().map(id).find(|id| times.contains_key(id)).map(|id| String::from_utf8_lossy(&id).into_owned());
    assert!(!promise.nothing_twice || seeded.is_none(), "key {seeded:?} was seeded, but was emitted");
    // If the group reads records from before its start, a record that the output rejects still makes its key seen.
    let refused: BTreeSet<_> = before().filter(|record| is_refused(options, record)).map(id).collect();
    let lost = keys(options, seeds, inputs).into_iter().find(|id| !times.contains_key(id) && !refused.contains(id));
    let lost = lost.map(|id| String::from_utf8_lossy(&id).into_owned());
    let twice = times.iter().find(|(_, times)| **times > 1).map(|(id, times)| (String::from_utf8_lossy(id), times));
    assert!(!promise.nothing_lost || lost.is_none(), "key {lost:?} was lost");
    assert!(!promise.nothing_twice || twice.is_none(), "{twice:?}: a key was emitted several times");
}

/// Panics unless each emitted record equals an input record with the same trace.
fn check_content(options: &Options, inputs: &[Vec<Vec<TestRecord>>], before: &[TestRecord], output: &[Vec<TestRecord>]) {
    let mut read: BTreeMap<Vec<u8>, Vec<TestRecord>> = BTreeMap::new();
    for record in inputs.iter().flatten().flatten().chain(before) {
        read.entry(trace(record)).or_default().push(as_written(record.clone()));
    }
    // If partitions were added to the input, the output has fewer partitions, so the worker does not keep the partition of each record.
    let moves = options.has("repartition = true") || inputs[0].len() > output.len();
    for record in output.iter().flatten() {
        let candidates = read.get(&trace(record)).map_or(&[][..], Vec::as_slice);
        let is_same = |candidate: &TestRecord| {
            *record == TestRecord { partition: if moves { record.partition } else { candidate.partition }, ..candidate.clone() }
        };
        let shown = || candidates.iter().map(show).collect::<Vec<_>>().join("\n  ");
        assert!(candidates.iter().any(is_same), "the output has\n  {}\nbut the input has\n  {}", show(record), shown());
    }
}

/// Panics unless the marked duplicates, the topic of duplicates, and the dead letters have the same records as in an undisturbed run.
/// Compares only the traces.
fn check_others(options: &Options, seeds: &[TestRecord], input: &[Vec<TestRecord>], written: &Written) {
    let marked: Vec<Vec<_>> =
        written.output.iter().map(|records| records.iter().filter(|record| is_marked(record)).cloned().collect()).collect();
    let others =
        [(Destination::Marked, &marked), (Destination::Duplicates, &written.duplicates), (Destination::DeadLetters, &written.dead_letters)];
    let traces =
        |records: &[TestRecord]| records.iter().map(|record| String::from_utf8_lossy(&trace(record)).into_owned()).collect::<Vec<_>>();
    for (to, written) in others {
        for (partition, (expected, written)) in expected(options, seeds, input, to).iter().zip(written).enumerate() {
            let (expected, written) = (traces(expected), traces(written));
            assert!(expected == written, "{to:?}, partition {partition}: expected {expected:?}, found {written:?}");
        }
    }
}
