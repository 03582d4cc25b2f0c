//! Tests that every explanation that is marked certain matches an exact model, for all filter kinds.

mod certainty;
mod history;

use super::history::{History, Next, Reading, Wanted};
use super::judge::{Judgment, Repeated, judge};
use super::outcome::{Occurrence, Occurrences};
use super::report::{Cause, VerdictName};
use crate::changelog::{ChangelogRecord, Origin, PendingChanges, Progress, Span};
use crate::dedup::{Dedup, Emit, Late, Rules};
use crate::filter::{AgingSizing, CuckooSizing, Slice, Spec, StableSizing, Window};
use crate::key::Fingerprint;
use crate::key::numbered::key;
use crate::record::{Offset, Timestamp, TopicId, Verdict};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};

const TOPICS: [&str; 2] = ["a", "b"];
const ORIGIN: Origin = Origin { owner: 1, keys: 2, clock: 3, kind: 4 };

/// The number of contents that each key can have with `Emit::OnChange`.
const CONTENTS: u64 = 3;

/// Returns the number of a record's key. With `Emit::OnChange`, `CONTENTS` consecutive numbers are the contents of one key.
const fn key_number(rules: &Rules, number: u64) -> u64 {
    match rules.emit {
        Emit::First => number,
        Emit::OnChange => number / CONTENTS,
    }
}

fn fingerprint(rules: &Rules, number: u64, retracts: bool) -> Fingerprint {
    let alone = key(key_number(rules, number));
    if rules.emit == Emit::OnChange && !retracts { alone.with_content(key(number)) } else { alone }
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    topic: usize,
    number: u64,
    /// Milliseconds since the previous record.
    after: i64,
    /// Milliseconds between the record's own time and the current time.
    behind: i64,
    retracts: bool,
    /// True if the transaction ends after this record.
    commits: bool,
}

fn arrivals(topics: usize, retractions: f64) -> impl Strategy<Value = Vec<Arrival>> {
    let after = prop_oneof![12 => 0..6_i64, 1 => 60..400_i64];
    let behind = prop_oneof![9 => Just(0_i64), 1 => 0..600_i64];
    let one = (0..topics, 0..80_u64, after, behind, prop::bool::weighted(retractions), prop::bool::weighted(0.2));
    let arrival =
        one.prop_map(|(topic, number, after, behind, retracts, commits)| Arrival { topic, number, after, behind, retracts, commits });
    prop::collection::vec(arrival, 1..160)
}

/// A processed record, its verdict, and the record that it duplicates according to an exact window.
#[derive(Clone, Copy, Debug)]
struct Judged {
    topic: usize,
    offset: Offset,
    number: u64,
    time: Timestamp,
    retracts: bool,
    verdict: Verdict,
    /// The emitted record with the same key within the window, if any.
    repeats: Option<(usize, Offset)>,
}

/// The index of a topic and an offset.
type Place = (usize, Offset);

/// Topic, offset, and number of the last emitted record with a key, and the slice of its emission or last renewal.
type Emitted = (usize, Offset, u64, Option<Slice>);

/// A state, its changelog, and an exact model.
struct Live {
    dedup: Dedup,
    pending: PendingChanges,
    position: [Offset; 2],
    committed: [Offset; 2],
    /// Stream time at the last commit of each topic.
    committed_at: [Option<Timestamp>; 2],
    log: Vec<Vec<u8>>,
    progress: Progress,
    emitted: HashMap<u64, Emitted>,
    judged: Vec<Judged>,
}

impl Live {
    fn run(rules: Rules, arrivals: &[Arrival]) -> Self {
        let mut live = Self {
            dedup: Dedup::new(rules),
            pending: PendingChanges::default(),
            position: [0; 2],
            committed: [0; 2],
            committed_at: [None; 2],
            log: Vec::new(),
            progress: Progress::default(),
            emitted: HashMap::new(),
            judged: Vec::new(),
        };
        let mut time = 1_000;
        for arrival in arrivals {
            time += arrival.after;
            live.take(arrival, time - arrival.behind);
            if arrival.commits {
                live.commit();
            }
        }
        live.commit();
        live
    }

    fn take(&mut self, arrival: &Arrival, time: Timestamp) {
        let &Arrival { topic, number, retracts, .. } = arrival;
        let (before, rules) = (self.dedup.clock(), *self.dedup.rules());
        let fingerprint = fingerprint(&rules, number, retracts);
        let verdict = if retracts {
            self.dedup.retract(fingerprint, Some(time), i64::MAX)
        } else {
            self.dedup.judge(fingerprint, Some(time), i64::MAX)
        };
        let verdict = verdict.unwrap();
        let offset = self.position[topic];
        self.pending.note(&self.dedup, TopicId(topic), offset, fingerprint);
        self.position[topic] += 1;
        let clock = self.dedup.clock();
        // In a count window, an insertion advances the clock after the verdict.
        let judged_at = if rules.window.length_ms().is_none() { before } else { clock };
        let is_kept = |slice: Option<Slice>| match (slice, judged_at) {
            (Some(slice), Some(clock)) if rules.is_sliced() => clock.0 - slice.0 <= i64::from(rules.window.slices()),
            _ => true,
        };
        let of_key = key_number(&rules, number);
        let emitted = self.emitted.get(&of_key).copied().filter(|&(_, _, last, slice)| is_kept(slice) && last == number);
        self.judged.push(Judged {
            topic,
            offset,
            number,
            time,
            retracts,
            verdict,
            repeats: emitted.map(|(topic, offset, ..)| (topic, offset)),
        });
        match (verdict, emitted) {
            (Verdict::Retracted, _) => drop(self.emitted.remove(&of_key)),
            (Verdict::Unseen, _) => drop(self.emitted.insert(of_key, (topic, offset, number, clock))),
            (Verdict::Duplicate, Some((topic, offset, ..))) if rules.refresh => {
                self.emitted.insert(of_key, (topic, offset, number, clock));
            }
            _ => {}
        }
    }

    fn commit(&mut self) {
        let ends = self.position;
        let span = |topic: usize| Span { topic: TOPICS[topic], start: self.committed[topic], end: ends[topic] };
        let spans: Vec<_> = (0..2).filter(|&topic| ends[topic] > self.committed[topic]).map(span).collect();
        if spans.is_empty() {
            return;
        }
        let by_number: Vec<_> = (0..).map(TopicId).zip(ends).collect();
        for (slice, record) in self.pending.records(&self.dedup, ORIGIN, 1, &spans, &by_number, self.dedup.stream_time()) {
            self.progress.logged(slice, Offset::try_from(self.log.len()).unwrap());
            self.log.push(record);
        }
        self.pending.committed(&by_number);
        for (topic, _) in (0..).zip(ends).filter(|&(topic, end)| end > self.committed[topic]) {
            self.committed_at[topic] = self.dedup.stream_time();
        }
        self.committed = ends;
    }

    fn readings(&self) -> BTreeMap<String, Reading> {
        let reading = |topic: usize| {
            let (committed, stream_time) = (Some(self.committed[topic]), self.committed_at[topic]);
            (TOPICS[topic].to_owned(), Reading { first: Some(0), committed, stream_time })
        };
        (0..2).map(reading).collect()
    }

    /// Determines the verdict on a record by reading the changelog from offset `low`. Also returns the places of all records with the same
    /// key in the record's commit. Returns `None` if this part of the changelog does not contain the record's commit.
    fn judge(&self, judged: &Judged, low: usize) -> Result<Option<(Judgment, Vec<Place>)>, TestCaseError> {
        let rules = *self.dedup.rules();
        let wanted_key = rules.emit.key_of(fingerprint(&rules, judged.number, true));
        let wanted = Wanted { fingerprints: vec![wanted_key], record: Some((TOPICS[judged.topic].to_owned(), judged.offset)) };
        let mut history = History::new(&wanted, &rules, ORIGIN, BTreeMap::new(), Offset::try_from(low).unwrap());
        for (at, bytes) in self.log.iter().enumerate().skip(low) {
            let next = history.take(Offset::try_from(at).unwrap(), None, &ChangelogRecord::decode(bytes).unwrap(), &[]);
            prop_assert_eq!(next, Next::Continue);
        }
        let Some(target) = &history.target else { return Ok(None) };
        let mut occurrences = Occurrences::default();
        for (span, (topic, offsets)) in target.commit.spans.iter().enumerate() {
            let same_key = |other: &Judged| key_number(&rules, other.number) == key_number(&rules, judged.number);
            let is_requested = |other: &&Judged| TOPICS[other.topic] == topic && offsets.contains(&other.offset) && same_key(other);
            for other in self.judged.iter().filter(is_requested) {
                let content = rules.emit.content_of(fingerprint(&rules, other.number, other.retracts));
                occurrences.push(Occurrence { span, offset: other.offset, time: Some(other.time), retracts: other.retracts, content });
            }
        }
        let place = |at: usize| {
            let occurrence = occurrences.all[at];
            let topic = &target.commit.spans[occurrence.span].0;
            (TOPICS.iter().position(|name| name == topic).unwrap(), occurrence.offset)
        };
        let places: Vec<_> = (0..occurrences.all.len()).map(place).collect();
        let at = places.iter().position(|&place| place == (judged.topic, judged.offset)).unwrap();
        let is_whole = history.is_whole(target.clock.0, &self.readings());
        let outcome = occurrences.outcome(at, target, &rules);
        Ok(Some((judge(outcome, at, &occurrences, target, is_whole, &rules), places)))
    }

    /// Explains a record by reading the changelog from offset `low`, and checks the explanation against the actual verdict. Returns true if
    /// the explanation is certain.
    fn explain(&self, judged: &Judged, low: usize) -> Result<bool, TestCaseError> {
        let rules = *self.dedup.rules();
        let Some((judgment, places)) = self.judge(judged, low)? else { return Ok(false) };
        let verdict = match judged.verdict {
            Verdict::Unseen => VerdictName::Unseen,
            Verdict::Duplicate => VerdictName::Duplicate,
            Verdict::Late => VerdictName::Late,
            _ => VerdictName::Retracted,
        };
        let is_known = judgment.verdict != VerdictName::Unknown && (judgment.verdict != VerdictName::Late || judgment.is_certain);
        if is_known {
            prop_assert_eq!(judgment.verdict, verdict, "{:?} of {:?}", &judgment, judged);
        }
        if !judgment.is_certain {
            return Ok(false);
        }
        match (judgment.cause, judgment.repeats) {
            (Some(Cause::Repeat), Some(Repeated::Record(other))) => prop_assert_eq!(Some(places[other]), judged.repeats),
            (Some(Cause::Repeat), Some(Repeated::Emission(emission))) => {
                let Some((topic, offset)) = judged.repeats else {
                    // A filter without slices forgets keys at random, and the changelog does not show which ones.
                    prop_assert!(!rules.is_sliced(), "{:?} repeats nothing", judged);
                    return Ok(true);
                };
                let is_in = emission.commit.spans.iter().any(|(name, offsets)| name == TOPICS[topic] && offsets.contains(&offset));
                prop_assert!(is_in, "{:?} is not in {:?}", judged, emission);
            }
            (Some(Cause::FalsePositive), _) => prop_assert_eq!(judged.repeats, None, "{:?}", judged),
            (Some(Cause::First | Cause::Changed), _) => prop_assert_eq!(judged.repeats, None, "{:?}", judged),
            _ => {}
        }
        Ok(true)
    }

    /// Explains and checks all records like [`Self::explain`]. Returns the number of certain explanations.
    fn explain_all(&self, low: usize) -> Result<usize, TestCaseError> {
        self.judged.iter().try_fold(0, |certain, judged| Ok(certain + usize::from(self.explain(judged, low)?)))
    }
}

fn rules(window: Window, kind: u8, refresh: bool, late: Late) -> Rules {
    let aging = |rate| Some(Spec::Aging(AgingSizing::new(window, 12, rate)));
    let (filter, exact) = match kind {
        // A filter that is small enough for frequent false positives.
        0 => (aging(0.4), false),
        1 => (aging(1e-9), false),
        2 => (aging(0.4), true),
        3 | 6 => (None, true),
        4 => (Some(Spec::Cuckoo(CuckooSizing::new(window, 16, 0.2))), false),
        _ => (Some(Spec::Stable(StableSizing::new(64, 0.2))), false),
    };
    Rules { window, filter, exact, refresh, late, emit: if kind == 6 { Emit::OnChange } else { Emit::First } }
}

fn windows() -> impl Strategy<Value = Window> {
    prop_oneof![
        (1..=4_u32, 100..1_000_i64).prop_map(|(slices, length)| Window::time(length, slices)),
        (1..=4_u32, 8..60_u64).prop_map(|(slices, keys)| Window::keys(keys, slices)),
    ]
}
