//! The keys that a server must or may report as seen.

use super::super::options::Options;
use super::super::table::Promise;
use super::model::Model;
use super::records::{id, is_judged, is_of_first_entry};
use crate::harness::TestRecord;
use std::collections::BTreeSet;

/// The keys that a server must or may report as seen at some time between two commits of the group.
#[derive(Default)]
pub struct Known {
    /// Keys that the group remembers at all times between the two commits. The server must report these keys as seen.
    pub seen: BTreeSet<Vec<u8>>,
    /// Keys that the group may remember, or that it remembers for only a part of the time. The server may report these keys as seen.
    pub maybe: BTreeSet<Vec<u8>>,
}

/// Returns the keys for an answer from a time when the group had read at least the first `from` and at most the first `until` records of
/// each partition of the input.
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
            // The test queries the server only about the space of the last entry.
            let mut model = Model::new(options, false, seeds, partition);
            for record in early {
                model.judge(record);
            }
            let seen: BTreeSet<_> = model.keys.keys().filter(|id| model.remembers(id)).cloned().collect();
            for record in late.iter().filter(|record| is_judged(record)) {
                let was_seen = model.remembers_when(record);
                model.judge(record);
                // The key was not remembered before this record or is not remembered after it, so both answers about the key are correct.
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
    // The group's position in the other topic of the space is unknown, so the group may remember any key of that topic.
    known.maybe.extend(inputs[1..].iter().flatten().flat_map(|records| ids(records)));
    known
}

/// The keys of the records that the worker looks up. Excludes tombstones, records without a readable key, and records that pass through.
pub fn ids(records: &[TestRecord]) -> impl Iterator<Item = Vec<u8>> {
    records.iter().filter(|record| is_judged(record)).map(id)
}

/// The same as [`ids`], but only for the space of the last entry, which is the space that a server is asked about.
pub fn ids_in_space(records: &[TestRecord]) -> impl Iterator<Item = Vec<u8>> {
    records.iter().filter(|record| is_judged(record) && !is_of_first_entry(record)).map(id)
}
