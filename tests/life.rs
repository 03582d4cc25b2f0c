//! Promise: with a filter that keeps a window, a restored partition gives the same verdicts as an undisturbed one, even after kills, lost
//! checkpoints, and changes of the filter kind.
//!
//! The test needs no broker: a model of Kafka stores the changelog, and a simple list of keys determines the expected verdicts. Each run is
//! drawn from a seed. `UNSEEN_LIFE=17 cargo test --test life` runs only that seed.

#[path = "integration/harness/random.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod random;
#[path = "model/window.rs"]
#[allow(dead_code, reason = "`model` uses the rest")]
mod window;

use random::SplitMix;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use unseen::changelog::{Applier, ChangelogRecord, Origin, Outcome, PendingChanges, Progress, Span};
use unseen::dedup::{Dedup, DedupMetadata, Emit, Late, Rules};
use unseen::filter::{Archive, ArchiveError, Change, Demand, Exact, GenerationId, Kind, PageId, Slice, Window};
use unseen::key::Fingerprint;
use unseen::record::{Offset, Timestamp, TopicId, Verdict};
use window::Model;

const TOPICS: [&str; 2] = ["a", "b"];

/// One partition of a changelog, as librdkafka and Kafka present it.
#[derive(Default)]
struct Log {
    /// The committed records. Offsets of control batches and aborted records have no entry.
    records: BTreeMap<Offset, Vec<u8>>,
    low: Offset,
    end: Offset,
}

impl Log {
    fn commit(&mut self, records: Vec<Vec<u8>>) -> Vec<Offset> {
        let offsets = (self.end..).zip(&records).map(|(offset, _)| offset).collect();
        self.records.extend((self.end..).zip(records));
        self.end = self.records.last_key_value().map_or(self.end, |(last, _)| last + 2);
        offsets
    }

    /// Aborts a transaction. Its records and its control batch take offsets, but a `read_committed` reader receives none of them.
    const fn abort(&mut self, records: Offset) {
        self.end += records + 1;
    }

    fn delete_before(&mut self, offset: Offset) {
        self.low = self.low.max(offset.min(self.end));
        self.records = self.records.split_off(&self.low);
    }
}

#[derive(Clone, Debug, Default)]
struct Stored(Arc<Mutex<HashMap<(GenerationId, Fingerprint), u64>>>);

impl Archive for Stored {
    fn content(&self, generation: GenerationId, entry: Fingerprint) -> Result<Option<u64>, ArchiveError> {
        Ok(self.0.lock().unwrap().get(&(generation, entry)).copied())
    }
}

#[derive(Clone)]
struct Checkpoint {
    kind: usize,
    offsets: BTreeMap<String, Offset>,
    progress: Progress,
    metadata: String,
    pages: BTreeMap<PageId, Vec<u8>>,
    stored: HashMap<(GenerationId, Fingerprint), u64>,
}

#[derive(Clone, Copy)]
struct Input {
    key: u64,
    time: Option<Timestamp>,
    max_timestamp: Timestamp,
    is_retraction: bool,
}

fn fingerprint(key: u64) -> Fingerprint {
    Fingerprint(u128::from(key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

const KEYS: u64 = 40;
/// Returns the rules for every kind of filter, and for the default kind with an exact store.
fn kinds(window: Window, refresh: bool, late: Late) -> Vec<Rules> {
    let spec = |kind: Kind, rate| kind.spec(window, &Demand { bytes: 4_000, ..Demand::new(64, rate) });
    let rules = |filter, exact| Rules { window, filter, exact, refresh, late, emit: Emit::First };
    let rate = |kind: Kind| if kind.properties().keeps_window { 1e-9 } else { 0.01 };
    let alone = Kind::ALL.iter().map(|&kind| rules(spec(kind, rate(kind)), kind.is_on_disk()));
    alone.chain([rules(spec(Kind::default(), 0.3), true)]).collect()
}

/// Draws a kind of filter. If `retracts` is true, draws only among the kinds that can retract. If `keeps_window` is true, draws only among
/// the kinds that keep a window.
fn drawn_kind(draw: &mut SplitMix, kinds: &[Rules], retracts: bool, keeps_window: bool) -> usize {
    let is_possible = |rules: &Rules| (rules.is_sliced() || !keeps_window) && (rules.exact || rules.retracts_by_filter() || !retracts);
    let possible: Vec<_> = (0..kinds.len()).filter(|&kind| is_possible(&kinds[kind])).collect();
    random::pick(draw, &possible)
}

struct Live {
    dedup: Dedup,
    pending: PendingChanges,
    stored: Stored,
    progress: Progress,
    trimmed: Option<Slice>,
    epoch: i64,
}

struct Life {
    draw: SplitMix,
    kinds: Vec<Rules>,
    kind: usize,
    topics: usize,
    changelog: bool,
    /// True if the run retracts keys. Such a run uses only kinds of filters that can retract.
    retracts: bool,
    log: Log,
    inputs: [Vec<Input>; 2],
    committed: [Offset; 2],
    /// The stream time in the metadata of the committed offsets.
    noted: Option<Timestamp>,
    checkpoint: Option<Checkpoint>,
    truth: Model,
    truth_committed: Model,
    clock: i64,
    timed: bool,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut draw = SplitMix(seed << 8);
        let slices = if draw.one_in(2) { 1 } else { 4 };
        let by_count = draw.one_in(2);
        let window = if by_count { Window::keys(20, slices) } else { Window::Time { slice_ms: 1_000, slices } };
        let late = if draw.one_in(3) { Late::Drop } else { Late::Emit };
        let kinds = kinds(window, draw.one_in(2), late);
        let retracts = draw.one_in(2);
        let kind = drawn_kind(&mut draw, &kinds, retracts, by_count);
        let changelog = !draw.one_in(4);
        let topics = if changelog && draw.one_in(2) { 2 } else { 1 };
        let truth = Model::new(&kinds[0]);
        Self {
            kinds,
            kind,
            topics,
            changelog,
            retracts,
            log: Log::default(),
            inputs: [Vec::new(), Vec::new()],
            committed: [0; 2],
            noted: None,
            checkpoint: None,
            truth_committed: truth.clone(),
            truth,
            // Some runs start at the Unix epoch.
            clock: if draw.one_in(4) { 0 } else { 1_000_000_000_000 },
            timed: !draw.one_in(3),
            draw,
        }
    }

    fn rules(&self) -> Rules {
        self.kinds[self.kind]
    }

    fn origin(&self) -> Origin {
        let clock = if self.rules().is_sliced() { "slices" } else { "insertions" };
        Origin::new("a group", "keys", clock, &self.kind.to_string())
    }

    fn position(&self, topic: usize) -> Offset {
        i64::try_from(self.inputs[topic].len()).unwrap()
    }

    fn is_at_rest(&self) -> bool {
        (0..2).all(|topic| self.committed[topic] == self.position(topic))
    }

    fn below(&mut self, limit: u64) -> i64 {
        (self.draw.next() % limit).cast_signed()
    }

    fn expected(&mut self, Input { key, time, max_timestamp, is_retraction }: Input) -> Verdict {
        if is_retraction { self.truth.retract(key, time, max_timestamp) } else { self.truth.judge(key, 0, time, max_timestamp) }
    }

    fn decide(&mut self, live: &mut Live) -> Result<(), String> {
        self.timed |= self.draw.one_in(20);
        self.clock += self.below(if self.draw.0.is_multiple_of(16) { 3_000 } else { 150 });
        let topic = self.draw.below(2) % self.topics;
        let late = if self.draw.one_in(20) { self.below(9_000) } else { 0 };
        let future = self.draw.one_in(30);
        let time = if future { self.clock + (1 << 50) } else { (self.clock - late).max(0) };
        let input = Input {
            key: self.draw.next() % KEYS,
            time: Some(time).filter(|_| (self.timed && !self.draw.one_in(25)) || (future && !self.timed)),
            max_timestamp: self.clock + 300_000,
            is_retraction: self.retracts && self.draw.one_in(12),
        };
        let offset = self.position(topic);
        self.inputs[topic].push(input);
        let verdict = judge(&mut live.dedup, input, input.max_timestamp);
        if self.changelog {
            live.pending.note(&live.dedup, TopicId(topic), offset, fingerprint(input.key));
        }
        if self.rules().is_sliced() {
            let expected = self.expected(input);
            if verdict != expected {
                return Err(format!("{}[{offset}] {input:?} is {verdict:?}, and should be {expected:?}", TOPICS[topic]));
            }
        } else {
            // A filter that keeps no window can have false positives and false negatives, so the model adopts its verdict.
            let before = self.truth.keys.get(&input.key).copied();
            if verdict == Verdict::Unseen {
                self.truth.keys.remove(&input.key);
            }
            if self.expected(input) == Verdict::Unseen && verdict == Verdict::Duplicate {
                self.truth.keys.remove(&input.key);
                self.truth.keys.extend(before.map(|slice| (input.key, slice)));
            }
        }
        Ok(())
    }

    fn commit(&mut self, live: &mut Live) {
        let ends = [self.position(0), self.position(1)];
        let spans: Vec<_> = (0..2)
            .filter(|&topic| ends[topic] > self.committed[topic])
            .map(|topic| Span { topic: TOPICS[topic], start: self.committed[topic], end: ends[topic] })
            .collect();
        if spans.is_empty() {
            return;
        }
        let by_number: Vec<_> = (0..).map(TopicId).zip(ends).collect();
        if self.changelog {
            let records = live.pending.records(&live.dedup, self.origin(), live.epoch, &spans, &by_number, live.dedup.stream_time());
            let (slices, records): (Vec<_>, Vec<_>) = records.into_iter().unzip();
            let written = self.log.commit(records);
            live.pending.committed(&by_number);
            live.progress.epoch = live.epoch;
            slices.into_iter().zip(written).for_each(|(slice, offset)| assert!(live.progress.logged(slice, offset)));
        }
        self.committed = ends;
        self.noted = live.dedup.stream_time();
        self.truth_committed = self.truth.clone();
        if let Some(oldest) = live.dedup.oldest().filter(|&oldest| self.changelog && live.trimmed.is_none_or(|trimmed| oldest > trimmed)) {
            live.trimmed = Some(oldest);
            live.progress.needed_from(oldest).into_iter().for_each(|before| self.log.delete_before(before));
        }
    }

    fn save(&mut self, live: &mut Live) {
        let mut pages = self.checkpoint.take().filter(|kept| kept.kind == self.kind).map(|kept| kept.pages).unwrap_or_default();
        if let Some(filter) = live.dedup.filter() {
            for id in filter.dirty_pages() {
                let mut bytes = Vec::new();
                filter.write_page(id, &mut bytes);
                pages.insert(id, bytes);
            }
        }
        let parts = live.dedup.metadata().parts();
        pages.retain(|id, _| parts.iter().any(|part| (part.slice, part.layer) == (id.slice, id.layer)));
        let mut stored = live.stored.0.lock().unwrap().clone();
        for (generation, fingerprint, change) in live.dedup.exact().into_iter().flat_map(Exact::changes) {
            match change {
                Change::Put(content) => stored.insert((generation, fingerprint), content),
                Change::Delete => stored.remove(&(generation, fingerprint)),
            };
        }
        live.stored = Stored(Arc::new(Mutex::new(stored.clone())));
        live.dedup.attach(Box::new(live.stored.clone()));
        live.dedup.mark_clean();
        let offsets = (0..self.topics).map(|topic| (TOPICS[topic].to_owned(), self.committed[topic])).collect();
        let metadata = serde_json::to_string(&live.dedup.metadata()).unwrap();
        self.checkpoint = Some(Checkpoint { kind: self.kind, offsets, progress: live.progress.clone(), metadata, pages, stored });
    }

    fn load(&self) -> (Live, BTreeMap<String, Offset>) {
        let mut live = Live {
            dedup: Dedup::new(self.rules()),
            pending: PendingChanges::default(),
            stored: Stored::default(),
            progress: Progress::default(),
            trimmed: None,
            epoch: 1,
        };
        let Some(kept) = self.checkpoint.as_ref().filter(|kept| kept.kind == self.kind) else { return (live, BTreeMap::new()) };
        let metadata: DedupMetadata = serde_json::from_str(&kept.metadata).unwrap();
        live.dedup = Dedup::from_metadata(self.rules(), &metadata).unwrap();
        kept.pages.iter().for_each(|(&id, bytes)| live.dedup.read_page(id, bytes).unwrap());
        live.stored = Stored(Arc::new(Mutex::new(kept.stored.clone())));
        live.dedup.attach(Box::new(live.stored.clone()));
        live.progress = kept.progress.clone();
        live.epoch = live.progress.epoch + 1;
        (live, kept.offsets.clone())
    }

    /// Restores from the checkpoint, the changelog, and the input, like `worker::rebuild` and `worker::restore`.
    fn restore(&mut self) -> Result<Live, String> {
        let (mut live, mut offsets) = self.load();
        if self.changelog && self.log.low < self.log.end {
            let window = self.rules().window;
            let oldest = self.noted.and_then(|time| window.slice_at(time)).map(|slice| slice.before(window.slices()));
            let oldest = oldest.filter(|_| self.rules().is_sliced());
            let kept = live.progress.end.filter(|end| (self.log.low..=self.log.end).contains(end) && !offsets.is_empty());
            if kept.is_none() {
                self.checkpoint = None;
                (live, offsets) = self.load();
            }
            let from = kept.unwrap_or(self.log.low);
            let bounds = (0..self.topics).map(|topic| (TOPICS[topic].to_owned(), self.committed[topic])).collect();
            let mut applier = Applier::new(offsets, self.origin(), bounds, oldest, live.progress.epoch);
            for (&offset, bytes) in self.log.records.range(from..) {
                let record = ChangelogRecord::decode(bytes).map_err(|error| error.to_string())?;
                let step = applier.follow(&mut live.dedup, &record).map_err(|error| error.to_string())?;
                match step {
                    Outcome::Taken => assert!(live.progress.logged(live.dedup.clock(), offset)),
                    Outcome::Passed => {}
                    other => return Err(format!("the changelog at {offset} does not continue: {other:?}")),
                }
            }
            offsets = applier.offsets;
            live.progress.end = Some(self.log.end);
            live.progress.epoch = applier.epoch;
            live.epoch = applier.epoch + 1;
        }
        for (topic, name) in TOPICS.iter().enumerate().take(self.topics) {
            let from = offsets.get(*name).copied().unwrap_or(0);
            if self.changelog && from != self.committed[topic] && offsets.contains_key(*name) {
                return Err(format!(
                    "the changelog ends at offset {from} of {name}, but the group has committed offset {}",
                    self.committed[topic]
                ));
            }
            for offset in from..if self.changelog { from } else { self.committed[topic] } {
                let input = self.inputs[topic][usize::try_from(offset).unwrap()];
                judge(&mut live.dedup, input, self.noted.unwrap_or(input.max_timestamp));
            }
        }
        Ok(live)
    }

    /// Kills the process. Another process continues from the committed offsets and the stored state.
    fn next(&mut self) -> Result<Live, String> {
        (0..2).for_each(|topic| self.inputs[topic].truncate(usize::try_from(self.committed[topic]).unwrap()));
        self.truth = self.truth_committed.clone();
        if self.draw.one_in(3) && self.changelog {
            self.checkpoint = None;
        }
        let kept_window = self.rules().is_sliced();
        if self.changelog && self.draw.one_in(3) {
            self.kind = drawn_kind(&mut self.draw, &self.kinds, self.retracts, true);
        }
        let live = self.restore()?;
        for key in 0..KEYS {
            let expected = self.truth.remembers(key);
            let found = live.dedup.would_drop(fingerprint(key)).unwrap().is_some();
            let is_wrong = if kept_window { expected != found } else { expected && !found };
            if is_wrong && self.rules().is_sliced() {
                return Err(format!("restored as kind {}, key {key} is {found} and should be {expected}", self.kind));
            }
        }
        Ok(live)
    }

    fn run(mut self) -> Result<(), String> {
        let (mut live, _) = self.load();
        let mut killed = 0;
        for _ in 0..400 {
            match self.draw.below(40) {
                0..=3 => self.commit(&mut live),
                4 if self.changelog => {
                    let records = self.below(3);
                    self.log.abort(records);
                }
                5 | 6 if self.is_at_rest() => self.save(&mut live),
                7 => {
                    killed += 1;
                    let kept_window = self.rules().is_sliced();
                    live = self.next().map_err(|what| format!("after kill {killed}: {what}"))?;
                    if !kept_window && self.rules().is_sliced() {
                        // The changelog has slices that the previous filter did not have, so the new filter may remember more keys than the
                        // model.
                        return Ok(());
                    }
                }
                _ => self.decide(&mut live)?,
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "key {} at {:?}{}", self.key, self.time, if self.is_retraction { " retracted" } else { "" })
    }
}

fn judge(dedup: &mut Dedup, input: Input, max_timestamp: Timestamp) -> Verdict {
    let key = fingerprint(input.key);
    if input.is_retraction { dedup.retract(key, input.time, max_timestamp) } else { dedup.judge(key, input.time, max_timestamp) }.unwrap()
}

#[test]
fn restored_partition_gives_the_same_verdicts() {
    let only = std::env::var("UNSEEN_LIFE").ok().map(|seed| seed.parse().expect("a number"));
    let mut failures = Vec::new();
    for seed in only.map_or(0..600, |seed: u64| seed..seed + 1) {
        let life = Life::new(seed);
        let what = format!(
            "{:?}, kind {}, {} topics, changelog {}, timed {}",
            life.truth.window, life.kind, life.topics, life.changelog, life.timed
        );
        failures.extend(life.run().err().map(|error| format!("seed {seed} ({what}): {error}")));
    }
    assert!(failures.is_empty(), "{} runs differ from the model\n{}", failures.len(), failures[..failures.len().min(40)].join("\n"));
}
