//! Evaluation of test records, one by one.
//!
//! Keeps a state for each partition of each key space. As in a worker, all topics of a space share these states. This module never
//! evaluates records out of order.

use super::{ActualOutcome, FAILS, TestRecord};
use crate::config::Config;
use crate::dedup::{Dedup, Emit};
use crate::format::Schemas;
use crate::key::{self, Fingerprint, KeyedRecord, NoKey, Reader, RecordSpec, Scratch};
use crate::record::{Record, SpaceId, Timestamp, Verdict};
use crate::route::{self, AddedHeaders, Detail, Origin, Route};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

pub(super) struct Judge<'c> {
    config: &'c Config,
    partitions: u32,
    states: BTreeMap<(SpaceId, i32), State>,
    readers: Vec<Reader>,
    scratch: Scratch,
    schemas: Arc<dyn Schemas>,
    /// The names of the repartition topics, by topic. `None` for a topic without `repartition`.
    between: Vec<Option<String>>,
    /// The offset of the next record, by topic and partition. The `bool` is true for the repartition topic, which has its own offsets.
    offsets: BTreeMap<(usize, bool, i32), i64>,
}

struct State {
    dedup: Dedup,
    /// The number and the fingerprint of the last emitted record, by key.
    emitted: HashMap<Fingerprint, (u64, Fingerprint)>,
}

impl<'c> Judge<'c> {
    pub(super) fn new(config: &'c Config, partitions: u32, schemas: Arc<dyn Schemas>) -> Self {
        let readers = config.topics.iter().map(|_| Reader::default()).collect();
        let between = config.topics.iter().map(|topic| config.repartitioned(topic)).collect();
        let (states, offsets) = (BTreeMap::new(), BTreeMap::new());
        Self { config, partitions, states, readers, scratch: Scratch::default(), schemas, between, offsets }
    }

    /// Evaluates the record at position `place` of a test, counting from 1, by the first rule of the input that selects the record.
    /// `number` is the index of a configured topic with this input. `time` is the record's Kafka timestamp. Without `read_at`, the record
    /// is read at its event time.
    pub(super) fn record(
        &mut self,
        number: usize,
        record: &TestRecord,
        place: u64,
        time: Option<Timestamp>,
        read_at: Option<Timestamp>,
    ) -> Result<ActualOutcome<'c>, String> {
        let config = self.config;
        let offset = next(&mut self.offsets, (number, false, record.partition));
        let mut origin = Origin { topic: &config.topics[number].input, partition: record.partition, offset, time };
        let (key, value) = (record.key_bytes()?, record.value_bytes()?);
        let headers: Vec<_> = record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref().map(str::as_bytes))).collect();
        let parts = Record { key: key.as_deref(), value: value.as_deref(), headers: &headers };
        let (mut keyed, mut number) = (Err(NoKey::Passes), number);
        for (id, rule) in config.rules(&config.topics[number].input) {
            (number, keyed) = (id.0, self.readers[id.0].read(rule.record_spec(), &parts, time, &mut self.scratch, &*self.schemas));
            if !matches!(keyed, Err(NoKey::Passes)) {
                break;
            }
        }
        let topic = &config.topics[number];
        let (verdict, invalid, since, why) = match keyed {
            Err(NoKey::Awaits(schema)) => {
                let why = self.schemas.trouble().unwrap_or_else(|| "the schema registry has not answered".to_owned());
                return Err(format!("value: the record needs schema {schema}, which is not available: {why}"));
            }
            Err(NoKey::Passes) => (Verdict::Passed, None, None, Some("`when` does not select the record".to_owned())),
            Err(NoKey::Invalid(invalid)) => {
                let why = invalid.to_string();
                (topic.verdict_without_key(invalid.reason), Some(*invalid), None, Some(why))
            }
            Ok(KeyedRecord { fingerprint, retracts, time: event_time }) => {
                let partition = if topic.repartition {
                    let spec = RecordSpec { content: None, ..topic.record_spec() };
                    let alone =
                        topic.on_change.as_ref().map(|_| self.readers[number].read(spec, &parts, time, &mut self.scratch, &*self.schemas));
                    let key = alone.and_then(Result::ok).map_or(fingerprint, |keyed| keyed.fingerprint);
                    key::partition(key, self.partitions).cast_signed()
                } else {
                    record.partition
                };
                if let Some(between) = &self.between[number] {
                    // A worker reads this record from the repartition topic, so the record's origin headers contain that topic.
                    origin = Origin { topic: between, partition, offset: next(&mut self.offsets, (number, true, partition)), time };
                }
                let state = self.states.entry((config.space_of(topic).id, partition));
                let begun = || State { dedup: Dedup::new(topic.rules(self.partitions)), emitted: HashMap::new() };
                let state = state.or_insert_with(begun);
                let max_timestamp = read_at.or(event_time).map_or(i64::MAX, |now| topic.max_timestamp(now));
                let verdict = if retracts {
                    state.dedup.retract(fingerprint, event_time, max_timestamp)
                } else {
                    state.dedup.judge(fingerprint, event_time, max_timestamp)
                };
                let verdict = verdict.map_err(|error| format!("key: {error}"))?;
                let is_explained = verdict == Verdict::Duplicate && route::explains(topic, verdict);
                let since = if is_explained { state.dedup.seen_since(fingerprint) } else { Ok(None) };
                let since = since.map_err(|error| format!("key: {error}"))?;
                (verdict, None, since, state.explain(verdict, fingerprint, place))
            }
        };
        let reason = if let Verdict::Invalid(reason) = verdict { Some(reason.label()) } else { None };
        let not_written =
            |output| Ok(ActualOutcome { verdict: verdict.label(), reason, output, headers: BTreeMap::new(), why: why.clone() });
        let destination = match route::of(topic, verdict) {
            Route::Write(destination) => destination,
            Route::Drop => return not_written(None),
            Route::Fail(_) => return not_written(Some(FAILS)),
        };
        let mut added = AddedHeaders::default();
        route::headers(topic, destination, verdict, invalid.as_ref(), Detail::Full(since), || origin, &mut added);
        let is_replaced = |name: &str| added.replaced().iter().any(|replaced| replaced.to_bytes() == name.as_bytes());
        let own = record.headers.clone().into_iter().filter(|(name, _)| !is_replaced(name));
        let added = added.iter().map(|(name, value)| (name.to_string_lossy().into_owned(), Some(value.to_owned())));
        let (output, headers) = (destination.name(topic), own.chain(added).collect());
        Ok(ActualOutcome { verdict: verdict.label(), reason, output, headers, why })
    }
}

fn next(offsets: &mut BTreeMap<(usize, bool, i32), i64>, of: (usize, bool, i32)) -> i64 {
    let next = offsets.entry(of).or_default();
    *next += 1;
    *next - 1
}

impl State {
    /// Explains a verdict by the previously emitted records. Then updates `emitted`.
    fn explain(&mut self, verdict: Verdict, fingerprint: Fingerprint, place: u64) -> Option<String> {
        let emit = self.dedup.rules().emit;
        let key = emit.key_of(fingerprint);
        let before = self.emitted.get(&key).copied();
        match (verdict, before) {
            (Verdict::Unseen, before) => {
                self.emitted.insert(key, (place, fingerprint));
                before.map(|(before, last)| {
                    if last == fingerprint {
                        format!("record {before} had this key, but the key has left the window or the filter has forgotten the key")
                    } else {
                        format!("its content differs from the content of record {before}, the last emitted record with this key")
                    }
                })
            }
            (Verdict::Retracted, _) => {
                self.emitted.remove(&key);
                None
            }
            (Verdict::Duplicate, Some((before, _))) if emit == Emit::OnChange => {
                Some(format!("it has the same content as record {before}"))
            }
            (Verdict::Duplicate, Some((before, _))) => Some(format!("it repeats record {before}")),
            (Verdict::Duplicate, None) => Some("no earlier record has this key: a false positive of the filter".to_owned()),
            (Verdict::Late, _) => Some("it is older than the window".to_owned()),
            _ => None,
        }
    }
}
