//! Promise: a state rebuilt from its changelog equals the state that was logged.

mod batches;
mod outcomes;
mod rebuild;
mod records;

use super::*;
use crate::dedup::{Emit, Late, Rules};
use crate::filter::{AgingSizing, Demand, Exact, Growth, Kind, PageId, Spec, Window};
use crate::key::Fingerprint;
use crate::key::numbered::key;
use crate::record::{TopicId, Verdict};
use proptest::prelude::*;

const TOPICS: [&str; 2] = ["a", "b"];

#[derive(Clone, Copy, Debug)]
struct Arrival {
    topic: usize,
    number: u64,
    clock: i64,
    timed: bool,
    retract: bool,
    /// True if the transaction ends after this record.
    commit: bool,
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let clock = prop_oneof![8 => 0..20_i64, 2 => 60..700_i64];
    let (timed, retract, commit) = (prop::bool::weighted(0.95), prop::bool::weighted(0.1), prop::bool::weighted(0.25));
    (0..2_usize, 0..60_u64, clock, timed, retract, commit).prop_map(|(topic, number, clock, timed, retract, commit)| Arrival {
        topic,
        number,
        clock,
        timed,
        retract,
        commit,
    })
}

fn windows() -> impl Strategy<Value = Window> {
    prop_oneof![
        (1..=4_u32, 100..1_000_i64).prop_map(|(slices, length)| Window::time(length, slices)),
        (1..=4_u32, 4..60_u64).prop_map(|(slices, keys)| Window::keys(keys, slices)),
    ]
}

fn rules(with: impl Fn(Window) -> (Option<Spec>, bool) + Clone) -> impl Strategy<Value = Rules> {
    (windows(), any::<bool>()).prop_map(move |(window, refresh)| {
        let (filter, exact) = with(window);
        Rules { window, filter, exact, refresh, late: Late::Emit, emit: Emit::First }
    })
}

/// Rules with slices. Their state does not depend on expired keys.
fn sliced() -> impl Strategy<Value = Rules> {
    // The capacity is so small that slices overflow into chained layers. Because of `adapt`, later slices are sized from earlier slices.
    let aging = |rate: f64| {
        move |window| {
            let growth = Growth { adapt: true, ..Growth::default() };
            Some(Spec::Aging(AgingSizing::new(window, 12, rate).with_growth(growth)))
        }
    };
    prop_oneof![rules(move |window| (aging(1e-9)(window), false)), rules(move |window| (aging(0.3)(window), true)), rules(|_| (None, true)),]
}

/// Returns a filter of this kind. If the kind forgets at random, the filter forgets all keys several times in a test.
fn of_kind(kind: Kind, window: Window, keys: u64) -> Option<Spec> {
    let rate = if kind.properties().keeps_window { 1e-9 } else { 0.01 };
    kind.spec(window, &Demand { bytes: 4_000, ..Demand::new(keys, rate) })
}

fn any_kind() -> impl Strategy<Value = Rules> {
    let kinds = prop::sample::select(Kind::ALL);
    prop_oneof![sliced(), kinds.prop_flat_map(|kind| rules(move |window| (of_kind(kind, window, 16), kind.is_on_disk())))]
}

struct Live {
    dedup: Dedup,
    pending: PendingChanges,
    position: [Offset; 2],
    committed: [Offset; 2],
    log: Vec<Vec<u8>>,
    progress: Progress,
}

const ORIGIN: Origin = Origin { owner: 1, keys: 2, clock: 3, kind: 4 };

impl Live {
    fn new(rules: Rules) -> Self {
        let (dedup, pending, progress) = (Dedup::new(rules), PendingChanges::default(), Progress::default());
        Self { dedup, pending, position: [0; 2], committed: [0; 2], log: Vec::new(), progress }
    }

    fn take(&mut self, arrivals: &[Arrival], clock: &mut i64) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for arrival in arrivals {
            *clock += arrival.clock;
            verdicts.push(judge(&mut self.dedup, arrival, *clock));
            self.pending.note(&self.dedup, TopicId(arrival.topic), self.position[arrival.topic], key(arrival.number));
            self.position[arrival.topic] += 1;
            if arrival.commit {
                self.commit();
            }
        }
        self.commit();
        verdicts
    }

    fn commit(&mut self) {
        let ends = self.position;
        let spans: Vec<_> = (0..2)
            .filter(|&topic| ends[topic] > self.committed[topic])
            .map(|topic| Span { topic: TOPICS[topic], start: self.committed[topic], end: ends[topic] })
            .collect();
        let by_number: Vec<_> = (0..).map(TopicId).zip(ends).collect();
        for (slice, record) in self.pending.records(&self.dedup, ORIGIN, 1, &spans, &by_number, self.dedup.stream_time()) {
            self.progress.logged(slice, Offset::try_from(self.log.len()).unwrap());
            self.log.push(record);
        }
        self.pending.committed(&by_number);
        assert!(self.pending.is_empty());
        self.committed = ends;
    }
}

fn judge(dedup: &mut Dedup, arrival: &Arrival, clock: i64) -> Verdict {
    let time = arrival.timed.then_some(clock);
    if arrival.retract { dedup.retract(key(arrival.number), time, i64::MAX) } else { dedup.judge(key(arrival.number), time, i64::MAX) }
        .unwrap()
}

fn applier_of(origin: Origin) -> Applier {
    applier_from(BTreeMap::new(), origin, BTreeMap::new())
}

fn applier_from(offsets: BTreeMap<String, Offset>, origin: Origin, bounds: BTreeMap<String, Offset>) -> Applier {
    Applier::new(offsets, origin, bounds, None, 0)
}

/// A state's metadata, pages, and fingerprints by slice.
type State = (String, Vec<(PageId, Vec<u8>)>, Vec<(Slice, Fingerprint)>);

/// Returns the whole state except for the watched keys and the ids of the exact generations.
fn state(dedup: &mut Dedup) -> State {
    dedup.mark_stale();
    let mut metadata = dedup.metadata();
    let slices: BTreeMap<_, _> = metadata.generations().collect();
    for (number, generation) in (0..).zip(metadata.exact.iter_mut().flat_map(|metadata| &mut metadata.generations)) {
        generation.id = number;
    }
    metadata.exact.iter_mut().for_each(|metadata| metadata.next_id = 0);
    // Ignore the watched keys. They do not affect verdicts, and a changelog does not contain their counts, so a rebuilt state has different
    // counts.
    metadata.watched = None;
    let page = |id| {
        let mut bytes = Vec::new();
        dedup.filter().unwrap().write_page(id, &mut bytes);
        (id, bytes)
    };
    let pages = dedup.filter().map_or_else(Vec::new, |filter| filter.dirty_pages().into_iter().map(page).collect());
    let mut keys: Vec<_> =
        dedup.exact().into_iter().flat_map(Exact::changes).map(|(id, fingerprint, _)| (slices[&id], fingerprint)).collect();
    keys.sort_unstable_by_key(|&(slice, fingerprint)| (slice, fingerprint.0));
    (serde_json::to_string(&metadata).unwrap(), pages, keys)
}

fn window() -> Rules {
    let window = Window::time(1_000, 4);
    Rules { window, filter: None, exact: true, refresh: false, late: Late::Emit, emit: Emit::First }
}

fn put(from: u64, count: i64, start: Offset) -> Vec<u8> {
    put_by(ORIGIN, 0, from, count, start)
}

fn put_by(origin: Origin, epoch: i64, from: u64, count: i64, start: Offset) -> Vec<u8> {
    put_part(origin, epoch, 0, from, count, start)
}

fn put_part(origin: Origin, epoch: i64, part: u32, from: u64, count: i64, start: Offset) -> Vec<u8> {
    let spans = vec![Span { topic: "a", start, end: start + count }];
    let mut bytes = Vec::new();
    let (time, end_time) = (Some(5), Some(5));
    record::push_head(
        &mut bytes,
        &ChangelogRecord {
            origin,
            epoch,
            part,
            slice: Some(Slice::FIRST),
            time,
            end_time,
            replay_info: None,
            spans,
            warms_up: false,
            runs: Vec::new(),
        },
    );
    record::push_run(
        &mut bytes,
        crate::dedup::Mutation::Insert,
        (from..from + count.unsigned_abs()).map(key).collect::<Vec<_>>().into_iter(),
    );
    bytes
}
