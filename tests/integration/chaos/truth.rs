//! The expected output, from a model that is a simple list, and from the promises of the plan.

use super::options::{ENCODED, EVENT_TIMES, ON_CHANGE, Options, RULE_SLICES, RULES, WHEN};
use super::table::Promise;
use crate::harness::{RETRACT, SplitMix, TestRecord, assert_same, show};
use data_encoding::BASE64;
use flate2::Compression;
use flate2::read::{GzDecoder, GzEncoder};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

/// The max timestamp, 2027-01-01: record times after it do not advance stream time.
pub const MAX_TIMESTAMP: i64 = 1_798_761_600_000;
/// The record size limit of the output, in bytes.
pub const LIMIT_BYTES: usize = 20_000;

/// The id of a record, from its header, because its key may be missing. Each entry of an input has its own ids.
pub fn id(record: &TestRecord) -> Vec<u8> {
    let mut id = record.headers.iter().find(|(name, _)| name == "id").and_then(|(_, value)| value.clone()).unwrap_or_default();
    if is_of_first_entry(record) {
        id.extend_from_slice(b" of the first entry");
    }
    id
}

/// The header of a record that belongs to the first of two entries.
const RULE: &str = "rule";

pub fn is_of_first_entry(record: &TestRecord) -> bool {
    let has = |header: &str| record.headers.iter().any(|(name, _)| name == header);
    has(RULE) && !has(WITHOUT_RULE)
}

/// Makes a third of the records belong to the first of two entries, if the options require that.
pub fn mark_rules(options: &Options, records: &mut [TestRecord], seed: u64) {
    let mut random = SplitMix(seed ^ 0x2171e);
    for record in records.iter_mut().filter(|_| options.has(RULES)) {
        if random.below(3) == 0 {
            record.headers.push((RULE.to_owned(), None));
        }
    }
}

/// The header with the event time for this model. Workers read the field.
const EVENT_TIME: &str = "event-time";
/// Maximum difference between Kafka's timestamp and the event time.
const JITTER_MS: i64 = 10 * 60 * 1_000;

/// Moves the times of records into a field of their values, and sets other timestamps, if the options require that.
pub fn move_times(options: &Options, records: &mut [TestRecord], seed: u64) {
    let mut random = SplitMix(seed ^ 0x7157);
    for record in records.iter_mut().filter(|_| options.has(EVENT_TIMES)) {
        set_event_time(record, record.timestamp, random.below(5));
        if record.timestamp > 0 {
            let jitter = (random.next() % (2 * JITTER_MS).unsigned_abs()).cast_signed() - JITTER_MS;
            record.timestamp = (record.timestamp + jitter).max(1);
        }
    }
}

/// Writes an event time into a record's value in one of five forms, or removes it if there is no time.
pub fn set_event_time(record: &mut TestRecord, time: i64, form: usize) {
    record.headers.retain(|(name, _)| name != EVENT_TIME);
    let is_encoded = record.value.as_deref().is_some_and(is_encoded);
    let Some(value) = record.value.as_deref().map(|value| if is_encoded { decoded(value) } else { text(value) }) else { return };
    let Some((before, rest)) = value.split_once(",\"ts\":") else { return };
    let after = rest.find([',', '}']).map_or("", |end| &rest[end..]);
    let written = match (form, time) {
        (_, ..=0) => String::new(),
        // Small numbers would be taken for seconds.
        (0, _) | (_, ..100_000_000_000) => {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(time.unsigned_abs());
            format!(",\"ts\":\"{}\"", humantime::format_rfc3339_millis(time))
        }
        (1, _) => format!(",\"ts\":{}.{:03}", time / 1_000, time % 1_000),
        (2, _) => format!(",\"ts\":\"{time}\""),
        (3, _) => format!(",\"ts\":{time}999"),
        _ => format!(",\"ts\":{time}000001"),
    };
    let value = format!("{before}{written}{after}");
    if time > 0 {
        record.headers.push((EVENT_TIME.to_owned(), Some(time.to_string().into_bytes())));
    }
    record.value = Some(if is_encoded { encoded(&value) } else { value.into_bytes() });
}

/// The header of an encoded record without a key.
const BROKEN: &str = "broken";

/// Moves the ids of records into JSON in a text field, and encodes the values, if the options require it. Values that cannot be read stay
/// unreadable, at one of the two levels.
pub fn encode(options: &Options, records: &mut [TestRecord]) {
    for (number, record) in records.iter_mut().enumerate().filter(|_| options.has(ENCODED)) {
        let Some(value) = record.value.as_deref().map(text) else { continue };
        let (is_broken, mut parts) = (is_broken(record), value.splitn(3, ','));
        let value = match (parts.next(), parts.next(), parts.next()) {
            (Some(user), Some(news), Some(rest)) if !is_broken => format!("{{\"body\":{:?},{rest}", format!("{user},{news}}}")),
            _ => value,
        };
        let mut value = encoded(&value);
        if is_broken {
            record.headers.push((BROKEN.to_owned(), None));
            if number % 2 == 0 {
                value.truncate(20);
            }
        }
        record.value = Some(value);
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

fn is_encoded(value: &[u8]) -> bool {
    !value.starts_with(b"{")
}

/// Encodes a value. A value that is too large stays too large.
fn encoded(value: &str) -> Vec<u8> {
    let level = if value.len() > LIMIT_BYTES { Compression::none() } else { Compression::fast() };
    let mut gzip = Vec::new();
    GzEncoder::new(value.as_bytes(), level).read_to_end(&mut gzip).expect("memory can be read");
    BASE64.encode(&gzip).into_bytes()
}

/// The text of a value that may have been cut off.
fn decoded(value: &[u8]) -> String {
    let mut text = String::new();
    let gzip = BASE64.decode(value).unwrap_or_default();
    let _ = GzDecoder::new(&*gzip).read_to_string(&mut text);
    text
}

/// The time that moves the window.
fn time(record: &TestRecord) -> Option<i64> {
    let header = record.headers.iter().find(|(name, _)| name == EVENT_TIME).and_then(|(_, value)| value.as_deref());
    let event = header.map(|time| std::str::from_utf8(time).ok().and_then(|time| time.parse().ok()).expect("a number"));
    event.or(Some(record.timestamp)).filter(|&time| time >= 0)
}

/// The header with the state in a record's value, for this model. Workers read the field.
const STATE: &str = "state";

/// Gives the records states that often stay the same, if the options require it. Some records get no state.
pub fn set_states(options: &Options, records: &mut [TestRecord], seed: u64) {
    let mut random = SplitMix(seed ^ 0x57a7);
    for record in records.iter_mut().filter(|_| options.has(ON_CHANGE)) {
        let state = match random.below(8) {
            0 => continue,
            1 => "off".to_owned(),
            2 => format!("{}", random.below(3)),
            _ => "on".to_owned(),
        };
        if let Some(value) = record.value.as_mut().filter(|value| value.ends_with(b"}")) {
            value.pop();
            value.extend_from_slice(format!(",\"state\":\"{state}\"}}").as_bytes());
            record.headers.push((STATE.to_owned(), Some(state.into_bytes())));
        }
    }
}

fn state(record: &TestRecord) -> Option<Vec<u8>> {
    record.headers.iter().find(|(name, _)| name == STATE).and_then(|(_, value)| value.clone())
}

/// The header of a record that passes through, regardless of its value.
const SKIP: &str = "skip";
/// The header of a record that passes through because of its value, for this model. Workers read the value.
const PASSES: &str = "passes";
/// A header that only this model adds. It marks a record that was read without a condition.
pub const WITHOUT_CONDITION: &str = "without-condition";
/// A header that only this model adds. It marks a record that was read without the first of two entries.
pub const WITHOUT_RULE: &str = "without-rule";

/// A header that only this model adds. It marks a record that was read while only the first record of each key was emitted.
pub const FIRST_ONLY: &str = "first-only";

fn has_header(record: &TestRecord, name: &str) -> bool {
    record.headers.iter().any(|(header, _)| header == name)
}

/// Marks some records to pass through, if the options require it.
pub fn mark_passing(options: &Options, records: &mut [TestRecord], seed: u64) {
    let mut random = SplitMix(seed ^ 0x9a55);
    for record in records.iter_mut().filter(|_| options.has(WHEN)) {
        let (kind, passes) = match random.below(16) {
            0 => {
                record.headers.push((SKIP.to_owned(), None));
                continue;
            }
            1 => ("\"view\"", true),
            2 => ("7", true),
            3 => ("\"7\" ", true),
            4 => ("\"article\"", false),
            _ => continue,
        };
        if let Some(value) = record.value.as_mut().filter(|value| value.ends_with(b"}")) {
            value.pop();
            value.extend_from_slice(format!(",\"kind\":{kind}}}").as_bytes());
            record.headers.extend(passes.then(|| (PASSES.to_owned(), None)));
        }
    }
}

/// True if a record is not deduplicated.
pub fn passes(record: &TestRecord) -> bool {
    let has = |name: &str| has_header(record, name);
    (has(SKIP) || has(PASSES)) && !has(WITHOUT_CONDITION)
}

/// The header that identifies a record.
fn trace(record: &TestRecord) -> Vec<u8> {
    let header = record.headers.iter().find(|(name, _)| name == "trace");
    header.and_then(|(_, value)| value.clone()).unwrap_or_else(|| panic!("no trace in {record:?}"))
}

/// The number of occurrences of each record that passes through, by its trace.
fn passing<'r>(records: impl Iterator<Item = &'r TestRecord>) -> BTreeMap<Vec<u8>, usize> {
    let mut times = BTreeMap::new();
    records.filter(|record| passes(record)).for_each(|record| *times.entry(trace(record)).or_default() += 1);
    times
}

/// The records of each partition without copies, in the order of their traces.
fn by_trace(mut output: Vec<Vec<TestRecord>>) -> Vec<Vec<TestRecord>> {
    for records in &mut output {
        records.sort_by_key(trace);
        records.dedup_by_key(|record| trace(record));
    }
    output
}

fn is_broken(record: &TestRecord) -> bool {
    let has_mark = || record.headers.iter().any(|(name, _)| name == BROKEN);
    record.value.as_deref().is_some_and(|value| if is_encoded(value) { has_mark() } else { !value.ends_with(b"}") })
}

/// True if the output rejects the record.
pub fn is_refused(options: &Options, record: &TestRecord) -> bool {
    let is_compacted = options.has("records that the output refuses");
    is_compacted && record.key.is_none() || record.value.as_ref().is_some_and(|value| value.len() > LIMIT_BYTES)
}

/// The topic of a written record, and whether it is marked there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    Output,
    /// The output, marked as a duplicate.
    Marked,
    Duplicates,
    DeadLetters,
}

/// The documented window of one partition: each key with the slice of its last insertion.
struct Model<'o> {
    options: &'o Options,
    /// True for the first of two entries of an input.
    is_first: bool,
    stream_time: Option<i64>,
    /// The number of keys in the current slice of a window by count, and the number of that slice.
    counted: (i64, i64),
    /// `None` for keys that were inserted before any time was known.
    keys: BTreeMap<Vec<u8>, Option<i64>>,
    /// The states of the last emitted records.
    states: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    emits_changes: bool,
}

impl<'o> Model<'o> {
    /// Creates a model that has seen the partition's seeds.
    fn new(options: &'o Options, is_first: bool, seeds: &[TestRecord], partition: usize) -> Self {
        let mut model = Self {
            options,
            is_first,
            stream_time: None,
            counted: (0, 0),
            keys: BTreeMap::new(),
            states: BTreeMap::new(),
            emits_changes: options.has(ON_CHANGE) && !is_first,
        };
        let seeds = seeds.iter().filter(|seed| is_of_first_entry(seed) == is_first);
        for seed in seeds.filter(|seed| usize::try_from(seed.partition) == Ok(partition)) {
            model.pass(Some(seed.timestamp).filter(|_| options.window_keys().is_none()));
            model.put(id(seed));
        }
        model
    }

    fn slices(&self) -> i64 {
        i64::from(if self.is_first { RULE_SLICES } else { self.options.slices() })
    }

    /// The factor by which the window of this entry exceeds that of the options.
    const fn scale(&self) -> i64 {
        if self.is_first { 2 } else { 1 }
    }

    fn window_ms(&self) -> i64 {
        self.options.window_seconds() * 1_000 * self.scale()
    }

    fn slice(&self) -> Option<i64> {
        let slice_ms = self.window_ms().div_euclid(self.slices());
        match self.options.window_keys() {
            Some(_) => Some(self.counted.1),
            None => self.stream_time.map(|time| time.div_euclid(slice_ms)),
        }
    }

    fn pass(&mut self, time: Option<i64>) {
        if let Some(time) = time.filter(|&time| time <= MAX_TIMESTAMP && self.stream_time.is_none_or(|now| time > now)) {
            self.stream_time = Some(time);
            let first = self.slice();
            self.keys.values_mut().filter(|slice| slice.is_none()).for_each(|slice| *slice = first);
        }
    }

    fn remembers(&self, id: &[u8]) -> bool {
        self.keys.get(id).is_some_and(|at| match (self.slice(), at) {
            (Some(now), Some(at)) => now - at <= self.slices(),
            _ => true,
        })
    }

    /// True if the key of a record is remembered at the record's time.
    fn remembers_when(&mut self, record: &TestRecord) -> bool {
        self.pass(time(record));
        self.remembers(&id(record))
    }

    fn put(&mut self, id: Vec<u8>) {
        if let Some(keys) = self.options.window_keys() {
            let keys = keys * self.scale();
            if self.counted.0 >= (keys + self.slices() - 1) / self.slices() {
                self.counted = (0, self.counted.1 + 1);
            }
            self.counted.0 += 1;
        }
        let slice = self.slice();
        self.keys.insert(id, slice);
    }

    /// Returns the destination of a record, or `None` if it is dropped.
    fn judge(&mut self, record: &TestRecord) -> Option<Destination> {
        if passes(record) {
            return self.written(record, Destination::Output);
        }
        if record.value.is_none() {
            return match () {
                () if self.options.has("on_tombstone = \"emit\"") => self.written(record, Destination::Output),
                () if self.options.has("on_tombstone = \"drop\"") => None,
                () => self.invalid(),
            };
        }
        if is_broken(record) {
            return self.invalid();
        }
        let (id, time) = (id(record), time(record));
        self.pass(time);
        if self.options.has("retract") && record.headers.iter().any(|(name, _)| name == RETRACT) {
            self.keys.remove(&id);
            return None;
        }
        let is_changed = self.emits_changes && self.states.get(&id).is_some_and(|last| *last != state(record));
        if self.remembers(&id) && !is_changed {
            if self.options.has("refresh = true") && self.keys[&id] != self.slice() {
                self.put(id);
            }
            return match () {
                () if self.options.has("on_duplicate = \"mark\"") => self.written(record, Destination::Marked),
                () if self.options.has("on_duplicate = { topic }") => Some(Destination::Duplicates),
                () => None,
            };
        }
        let is_late = match (self.options.window_keys(), self.stream_time, time) {
            (None, Some(now), Some(time)) => now - time > self.window_ms(),
            _ => false,
        };
        if is_late && !self.options.has("late = \"emit\"") {
            return Some(Destination::DeadLetters).filter(|_| self.options.has("late = \"dead_letter\""));
        }
        self.states.insert(id.clone(), state(record));
        self.put(id);
        self.written(record, Destination::Output)
    }

    fn invalid(&self) -> Option<Destination> {
        Some(Destination::DeadLetters).filter(|_| self.options.has("on_invalid = { topic }"))
    }

    /// Returns `to`, unless the output rejects the record.
    fn written(&self, record: &TestRecord, to: Destination) -> Option<Destination> {
        if is_refused(self.options, record) { self.invalid() } else { Some(to) }
    }
}

/// The records that an undisturbed run writes to one destination for these records, by partition.
fn expected(options: &Options, seeds: &[TestRecord], input: &[Vec<TestRecord>], to: Destination) -> Vec<Vec<TestRecord>> {
    let of_partition = |(partition, records): (usize, &Vec<TestRecord>)| {
        let mut models = [false, true].map(|is_first| Model::new(options, is_first, seeds, partition));
        // After a change of `emit`, the worker evaluates all records again with the other `emit`.
        let mut other = options.has(ON_CHANGE).then(|| Model { emits_changes: false, ..Model::new(options, false, seeds, partition) });
        let mut judge = |record: &TestRecord| {
            let is_first = is_of_first_entry(record);
            let own = models[usize::from(is_first)].judge(record);
            if is_first {
                return own;
            }
            let other = other.as_mut().map(|other| other.judge(record));
            other.filter(|_| has_header(record, FIRST_ONLY)).unwrap_or(own)
        };
        records.iter().filter(|record| judge(record) == Some(to)).cloned().map(as_written).collect()
    };
    input.iter().enumerate().map(of_partition).collect()
}

/// The keys that a server must or may report as seen between two commits.
#[derive(Default)]
pub struct Known {
    /// Keys that are remembered the whole time.
    pub seen: BTreeSet<Vec<u8>>,
    /// Keys that are remembered part of the time, or possibly.
    pub maybe: BTreeSet<Vec<u8>>,
}

/// Returns these keys for an answer that is based on at least the first `from` records of each partition of the input, and on at most the
/// first `until` records.
pub fn known(
    options: &Options,
    promise: Promise,
    seeds: &[TestRecord],
    inputs: &[Vec<Vec<TestRecord>>],
    from: &[usize],
    until: &[usize],
) -> Known {
    let mut known = Known::default();
    for (partition, ((records, &from), &until)) in inputs[0].iter().zip(from).zip(until).enumerate() {
        let of_space = |records: &[TestRecord]| records.iter().filter(|record| !is_of_first_entry(record)).cloned().collect::<Vec<_>>();
        let (early, late) = records[..until].split_at(from.min(until));
        let (early, late) = (&*of_space(early), &*of_space(late));
        if promise.exact && options.is_ordered() {
            // A server is asked about the space of the last entry.
            let mut model = Model::new(options, false, seeds, partition);
            for record in early {
                model.judge(record);
            }
            let seen: BTreeSet<_> = model.keys.keys().filter(|id| model.remembers(id)).cloned().collect();
            for record in late.iter().filter(|record| is_judged(record)) {
                let was_seen = model.remembers_when(record);
                model.judge(record);
                // The key was forgotten before, or is forgotten now.
                if !was_seen || !model.remembers(&id(record)) {
                    known.maybe.insert(id(record));
                }
            }
            let (seen, left): (Vec<_>, Vec<_>) = seen.into_iter().partition(|id| model.remembers(id) && !known.maybe.contains(id));
            known.seen.extend(seen);
            known.maybe.extend(left);
        } else {
            known.seen.extend(ids(early).chain(ids(seeds)));
            known.maybe.extend(ids(late));
        }
    }
    // It is unknown when the other topic of a space is read.
    known.maybe.extend(inputs[1..].iter().flatten().flat_map(|records| ids(records)));
    known
}

/// The keys of records whose output is judged by key.
pub fn ids(records: &[TestRecord]) -> impl Iterator<Item = Vec<u8>> {
    records.iter().filter(|record| is_judged(record)).map(id)
}

/// Like [`ids`], for the space that a server is asked about, which is the space of the last entry.
pub fn ids_in_space(records: &[TestRecord]) -> impl Iterator<Item = Vec<u8>> {
    records.iter().filter(|record| is_judged(record) && !is_of_first_entry(record)).map(id)
}

/// The record with the time of its output. Times before 0 become "no time", and librdkafka cannot write 0.
fn as_written(mut record: TestRecord) -> TestRecord {
    record.headers.retain(|(name, _)| ![WITHOUT_CONDITION, WITHOUT_RULE, FIRST_ONLY].contains(&&**name));
    record.timestamp = match record.timestamp {
        ..0 => -1,
        0 => 1,
        time => time,
    };
    record
}

/// True if the record is marked as a duplicate.
fn is_marked(record: &TestRecord) -> bool {
    record.headers.iter().any(|(name, value)| name == "unseen-verdict" && value.as_deref() == Some(b"duplicate"))
}

/// Removes marked duplicates from the output, and the marks from the other records.
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

/// The keys that must be emitted, if each is unseen exactly once. Leaves out keys that the output rejects once, which may count as seen.
pub fn keys(options: &Options, seeds: &[TestRecord], inputs: &[Vec<Vec<TestRecord>>]) -> BTreeSet<Vec<u8>> {
    let judged = || inputs.iter().flatten().flatten().filter(|record| is_judged(record));
    let apart: BTreeSet<_> = judged().filter(|record| is_refused(options, record)).chain(seeds).map(id).collect();
    judged().map(id).filter(|id| !apart.contains(id)).collect()
}

/// True if all of these keys were emitted.
pub fn lacks_nothing(keys: &BTreeSet<Vec<u8>>, output: &[Vec<TestRecord>]) -> bool {
    let came: BTreeSet<_> = output.iter().flatten().filter(|record| is_judged(record)).map(id).collect();
    keys.is_subset(&came)
}

pub fn is_judged(record: &TestRecord) -> bool {
    record.value.is_some() && !is_broken(record) && !passes(record)
}

/// All written records, by partition.
pub struct Written {
    pub output: Vec<Vec<TestRecord>>,
    pub duplicates: Vec<Vec<TestRecord>>,
    pub dead_letters: Vec<Vec<TestRecord>>,
}

/// Panics unless the workers wrote what is promised. Records from `before` the group's start may be emitted if the group may forget that
/// start. `undisturbed` is the promise apart from the kind of delivery.
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
        // A record may be emitted again, and after others, but only a record that is unseen.
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
    let passed = passing(output.iter().flatten());
    let came = passing(inputs.iter().flatten().flatten().filter(|record| !is_refused(options, record)));
    let may_come = passing(inputs.iter().flatten().flatten().chain(before()));
    let count = |all: &BTreeMap<Vec<u8>, usize>, trace: &Vec<u8>| all.get(trace).copied().unwrap_or_default();
    let fewer = came.iter().find(|&(trace, &least)| count(&passed, trace) < least);
    let more = passed.iter().find(|&(trace, &passed)| count(&may_come, trace) < passed);
    assert!(!promise.nothing_lost || fewer.is_none(), "{fewer:?}: a record that passes through was lost");
    assert!(!promise.nothing_twice || more.is_none(), "{more:?}: a record that passes through came out several times");
    let seeded = seeds.iter().map(id).find(|id| times.contains_key(id)).map(|id| String::from_utf8_lossy(&id).into_owned());
    assert!(!promise.nothing_twice || seeded.is_none(), "key {seeded:?} was seeded, but was emitted");
    // A rejected record from before the group's start still makes its key seen.
    let refused: BTreeSet<_> = before().filter(|record| is_refused(options, record)).map(id).collect();
    let lost = keys(options, seeds, inputs).into_iter().find(|id| !times.contains_key(id) && !refused.contains(id));
    let lost = lost.map(|id| String::from_utf8_lossy(&id).into_owned());
    let twice = times.iter().find(|(_, times)| **times > 1).map(|(id, times)| (String::from_utf8_lossy(id), times));
    assert!(!promise.nothing_lost || lost.is_none(), "key {lost:?} was lost");
    assert!(!promise.nothing_twice || twice.is_none(), "{twice:?}: a key was emitted several times");
}

/// Panics unless each emitted record is one that was read, unchanged.
fn check_content(options: &Options, inputs: &[Vec<Vec<TestRecord>>], before: &[TestRecord], output: &[Vec<TestRecord>]) {
    let mut read: BTreeMap<Vec<u8>, Vec<TestRecord>> = BTreeMap::new();
    for record in inputs.iter().flatten().flatten().chain(before) {
        read.entry(trace(record)).or_default().push(as_written(record.clone()));
    }
    // If partitions were added to the input, the output has no partition with the same number for some records.
    let moves = options.has("repartition = true") || inputs[0].len() > output.len();
    for record in output.iter().flatten() {
        let candidates = read.get(&trace(record)).map_or(&[][..], Vec::as_slice);
        let is_same = |candidate: &TestRecord| {
            *record == TestRecord { partition: if moves { record.partition } else { candidate.partition }, ..candidate.clone() }
        };
        let shown = || candidates.iter().map(show).collect::<Vec<_>>().join("\n  ");
        assert!(candidates.iter().any(is_same), "the output has\n  {}\nbut what was read is\n  {}", show(record), shown());
    }
}

/// Panics unless duplicates and dead letters are those of an undisturbed run.
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
