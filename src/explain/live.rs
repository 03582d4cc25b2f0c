//! Explains a record or a key from the committed offsets of a group and its changelog. Never joins the group or writes.
//!
//! The module reads the committed offsets first. When it then reads the changelog, the changelog records of all committed input records
//! have already been written.

use super::Error;
use super::client::{Client, FoundRecord, Scanned, Waiting};
use super::history::{self, Commit, Memory, Target, Wanted};
use super::judge::{Judgment, Repeated, judge};
use super::outcome::{Occurrence, Occurrences, RecordOutcome};
use super::render;
use super::report::{
    Cause, ChangelogReach, Emission, ExplainedRecord, Explanation, Forgetting, InputRange, InputStart, KeyPart, VerdictName,
};
use super::state::StateView;
use crate::config::{Config, Topic};
use crate::dedup::Late;
use crate::format::{NoSchemas, Schemas};
use crate::key::{self, Fingerprint, NoKey, Part, Scratch};
use crate::record::{Offset, TopicPartition, Verdict, log_topic};

const NO_CHANGELOG: &str = "state.changelog is false, so emitted records are not logged; use --capture to explain a record";

/// Explains the record at an offset of an input.
///
/// # Errors
/// Fails if the input is not configured, the record does not exist, its schema is not available, or the brokers do not answer.
pub fn record(
    config: &Config,
    schemas: &dyn Schemas,
    input: &str,
    partition: i32,
    offset: Offset,
    waiting: Waiting<'_>,
) -> Result<Explanation, Error> {
    let client = Client::connect(config, schemas, waiting)?;
    let place = TopicPartition { topic: input.to_owned(), partition };
    in_range(partition, client.partitions(input)?, input)?;
    let committed = client.committed(std::slice::from_ref(&place))?.into_iter().next().and_then(|committed| committed.offset);
    let mut rules = config.rules(input).map(|(_, topic)| topic);
    let mut topic = rules
        .next()
        .ok_or_else(|| Error::Question(format!("topic {input:?} is not an input in the configuration file; check the name")))?;
    let mut found = client.record(topic, &place, offset)?;
    for rule in rules {
        if !matches!(found.keyed, Err(NoKey::Passes)) {
            break;
        }
        (topic, found) = (rule, client.record(rule, &place, offset)?);
    }
    let FoundRecord { time, keyed, key, texts } = found;
    let parts = key_parts(topic, texts);
    let record = ExplainedRecord { topic: topic.input.clone(), partition, offset, time_ms: time };
    let mut explanation = Explanation { record: Some(record), key: parts, ..empty(topic) };
    let is_pending = committed.is_none_or(|committed| committed <= offset);
    let (fingerprint, retracts) = match keyed {
        Ok(keyed) => keyed,
        Err(no_key) => {
            let verdict = verdict_without_key(topic, &no_key);
            explanation.verdict = Some(if is_pending { VerdictName::Pending } else { verdict });
            explanation.certain = is_pending;
            if !is_pending {
                explanation.limits.push(
                    "the verdict is based on the current configuration; the record may have been processed with another configuration"
                        .to_owned(),
                );
            }
            explanation.sentences = render::without_key(topic, verdict, &no_key, committed.filter(|_| is_pending));
            return Ok(explanation);
        }
    };
    let evaluated_in = match config.repartitioned(topic) {
        Some(between) => key::partition(key.unwrap_or(fingerprint), client.partitions(&between)?).cast_signed(),
        None => partition,
    };
    explanation.partition = Some(evaluated_in);
    let Some(changelog) = changelog(config, topic, evaluated_in) else {
        explanation.verdict = Some(if is_pending { VerdictName::Pending } else { VerdictName::Unknown });
        explanation.certain = is_pending;
        explanation.limits.push(NO_CHANGELOG.to_owned());
        explanation.sentences = render::sentences(&explanation, topic, committed);
        return Ok(explanation);
    };
    let state = client.state(topic, evaluated_in)?;
    let log = state.input(topic).map(|input| input.log.clone());
    let (content, fingerprint) = (topic.emit().content_of(fingerprint), topic.emit().key_of(fingerprint));
    let wanted = Wanted { fingerprints: vec![fingerprint], record: log.map(|log| (log, offset)) };
    let scanned = client.scan(&state, &changelog, &wanted)?;
    let view = View { client: &client, state: &state, changelog: &changelog, scanned: &scanned };
    view.describe(&mut explanation, 0);
    let occurrence = Occurrence { span: 0, offset, time, retracts, content };
    if is_pending {
        explanation.verdict = Some(VerdictName::Pending);
    } else if topic.repartition {
        view.judge_by_key(&mut explanation, retracts)?;
    } else if let Some(target) = &scanned.history.target {
        view.judge(&mut explanation, fingerprint, occurrence, target)?;
    } else {
        explanation.verdict = Some(VerdictName::Unknown);
        explanation.certain = false;
        explanation.limits.push(view.why_missing(topic, offset));
    }
    explanation.sentences = render::sentences(&explanation, topic, committed);
    Ok(explanation)
}

/// Explains a key in the partition `only` or in all partitions that can contain the key. `texts` are the parts of the key (see
/// [`crate::key::KeySpec::fingerprints_of_texts`]).
///
/// # Errors
/// Fails if the key is invalid, the changelog does not exist, or the brokers do not answer.
pub fn key(config: &Config, topic: &Topic, texts: &[&[u8]], only: Option<i32>, waiting: Waiting<'_>) -> Result<Vec<Explanation>, Error> {
    let mut fingerprints = Vec::new();
    topic.key.fingerprints_of_texts(texts.iter().copied(), &mut Scratch::default(), &mut fingerprints)?;
    let client = Client::connect(config, &NoSchemas, waiting)?;
    let between = config.repartitioned(topic);
    let partitions = client.partitions(between.as_ref().unwrap_or(&topic.input))?;
    if let Some(only) = only {
        in_range(only, partitions, between.as_ref().unwrap_or(&topic.input))?;
    }
    let mut explanations = Vec::new();
    for partition in (0..partitions.cast_signed()).filter(|&partition| only.is_none_or(|only| only == partition)) {
        let here: Vec<Fingerprint> = match &between {
            Some(_) => fingerprints.iter().copied().filter(|&of| key::partition(of, partitions).cast_signed() == partition).collect(),
            None => fingerprints.clone(),
        };
        if here.is_empty() {
            continue;
        }
        let Some(changelog) = changelog(config, topic, partition) else { return Err(Error::Question(NO_CHANGELOG.to_owned())) };
        let state = client.state(topic, partition)?;
        let here = here.into_iter().map(|fingerprint| topic.emit().key_of(fingerprint)).collect();
        let wanted = Wanted { fingerprints: here, record: None };
        let scanned = client.scan(&state, &changelog, &wanted)?;
        let view = View { client: &client, state: &state, changelog: &changelog, scanned: &scanned };
        // A text can mean several keys, such as a string and a number. Explain the keys that were emitted. If none was emitted, explain the
        // first key.
        let was_emitted = |&which: &usize| scanned.history.known[which].emissions > 0;
        let mut meant: Vec<_> = (0..wanted.fingerprints.len()).filter(was_emitted).collect();
        if meant.is_empty() {
            meant.push(0);
        }
        for which in meant {
            let texts = texts.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect();
            let mut explanation = Explanation { key: key_parts(topic, texts), partition: Some(partition), ..empty(topic) };
            view.describe(&mut explanation, which);
            explanation.sentences = render::sentences(&explanation, topic, None);
            explanations.push(explanation);
        }
    }
    Ok(explanations)
}

pub(super) fn verdict_without_key(topic: &Topic, no_key: &NoKey) -> VerdictName {
    match no_key {
        NoKey::Passes => VerdictName::Passed,
        NoKey::Invalid(invalid) if topic.verdict_without_key(invalid.reason) == Verdict::Tombstone => VerdictName::Tombstone,
        NoKey::Invalid(_) => VerdictName::Invalid,
        NoKey::Awaits(_) => VerdictName::Unknown,
    }
}

/// Returns an explanation without a verdict, marked as certain.
pub(super) fn empty(topic: &Topic) -> Explanation {
    Explanation {
        space: topic.space.clone(),
        key: Vec::new(),
        record: None,
        partition: None,
        verdict: None,
        cause: None,
        certain: true,
        sentences: Vec::new(),
        repeats: None,
        first: None,
        last: None,
        emissions: 0,
        retractions: 0,
        seen: None,
        forgotten: None,
        changelog: None,
        limits: Vec::new(),
    }
}

pub(super) fn key_parts(topic: &Topic, texts: Vec<String>) -> Vec<KeyPart> {
    topic.key.parts().iter().map(Part::to_string).zip(texts).map(|(part, value)| KeyPart { part, value }).collect()
}

fn changelog(config: &Config, topic: &Topic, partition: i32) -> Option<TopicPartition> {
    config.changelog(&topic.space).map(|name| TopicPartition { topic: name, partition })
}

fn in_range(partition: i32, partitions: u32, topic: &str) -> Result<(), Error> {
    if u32::try_from(partition).is_ok_and(|partition| partition < partitions) {
        return Ok(());
    }
    Err(Error::Question(format!(
        "partition {partition} does not exist; topic {topic:?} has partitions 0 to {}",
        partitions.saturating_sub(1)
    )))
}

struct View<'v> {
    client: &'v Client<'v>,
    state: &'v StateView<'v>,
    changelog: &'v TopicPartition,
    scanned: &'v Scanned<'v>,
}

impl View<'_> {
    /// Fills in the current state of the key. `which` is the index of its fingerprint in [`Wanted::fingerprints`].
    fn describe(&self, explanation: &mut Explanation, which: usize) {
        let (history, rules) = (&self.scanned.history, &self.state.rules);
        let known = &history.known[which];
        let memory = known.memory(rules, (history.clock, history.clock));
        let is_whole = history.is_whole(history.clock, &self.state.readings());
        explanation.first = known.first.as_ref().map(|emission| self.emission(emission));
        explanation.last = known.seen.as_ref().map(|seen| self.emission(&seen.emission));
        explanation.emissions = known.emissions;
        explanation.retractions = known.retractions;
        explanation.seen = match memory {
            Memory::Seen => Some(true),
            Memory::Unseen if is_whole => Some(false),
            _ => None,
        };
        let slice = known.seen.as_ref().and_then(|seen| seen.slice).filter(|_| rules.is_sliced() && memory == Memory::Seen);
        explanation.forgotten = slice.map(|slice| {
            let at = crate::filter::Slice(slice.0.saturating_add(i64::from(rules.window.slices()) + 1));
            Forgetting {
                at_slice: at,
                at_stream_time_ms: rules.window.start_of(at),
                slice: history.clock,
                stream_time_ms: history.stream_time,
            }
        });
        let inputs_from = history.starts.iter().map(|(log, &offset)| InputStart { topic: log_topic(log).to_owned(), offset });
        explanation.changelog = Some(ChangelogReach {
            topic: self.changelog.topic.clone(),
            partition: self.changelog.partition,
            first_offset: self.scanned.reach.0,
            end_offset: self.scanned.reach.1,
            inputs_from: inputs_from.collect(),
        });
        let limits = [
            (
                explanation.seen.is_none() && memory == Memory::Unseen,
                "the changelog does not have all keys that the state may still remember",
            ),
            (history.has_other_keys, "a part of the changelog was written with another definition of the key and does not cover this key"),
            (history.has_other_slices, "a part of the changelog was written with another window, so its slices come from record times"),
            (
                known.is_wrongly_renewed,
                "the key was renewed although the changelog shows no emission or renewal within the window: a false positive renewed it, or the changelog is incomplete",
            ),
        ];
        explanation.limits.extend(limits.into_iter().filter(|(holds, _)| *holds).map(|(_, limit)| limit.to_owned()));
    }

    /// Fills in the verdict on a record, from the commit that processed it.
    fn judge(&self, explanation: &mut Explanation, fingerprint: Fingerprint, wanted: Occurrence, target: &Target) -> Result<(), Error> {
        let (history, rules) = (&self.scanned.history, &self.state.rules);
        let occurrences = self.occurrences(&target.commit, fingerprint, explanation, wanted)?;
        let at = occurrences.all.iter().position(|other| is_requested(other, &target.commit, explanation)).unwrap_or_default();
        let is_whole = history.is_whole(target.clock.0, &self.state.readings());
        let outcome = occurrences.outcome(at, target, rules);
        let Judgment { verdict, cause, is_certain, repeats, limit } = judge(outcome, at, &occurrences, target, is_whole, rules);
        (explanation.verdict, explanation.cause, explanation.certain) = (Some(verdict), cause, is_certain);
        explanation.limits.extend(limit);
        explanation.repeats = match repeats {
            Some(Repeated::Record(other)) => Some(self.exact(&target.commit, &occurrences.all[other], target.inserted_into())),
            Some(Repeated::Emission(emission)) => Some(self.resolve(&emission, fingerprint)?),
            None => None,
        };
        if let Some(repeats) = explanation.repeats.clone() {
            for known in [&mut explanation.first, &mut explanation.last].into_iter().flatten() {
                if known.changelog_offset == repeats.changelog_offset {
                    *known = Emission { slice: known.slice, ..repeats.clone() };
                }
            }
        }
        if matches!(outcome, RecordOutcome::Emitted(_)) {
            let exact = self.exact(&target.commit, &occurrences.all[at], target.inserted_into());
            for known in [&mut explanation.first, &mut explanation.last].into_iter().flatten() {
                if known.changelog_offset == exact.changelog_offset && target.emissions() == 1 {
                    *known = exact.clone();
                }
            }
        }
        Ok(())
    }

    /// Returns the records in `commit` whose key has this fingerprint. If the requested record is not among them, adds it and marks the
    /// list as possibly incomplete.
    fn occurrences(
        &self,
        commit: &Commit,
        fingerprint: Fingerprint,
        explanation: &Explanation,
        wanted: Occurrence,
    ) -> Result<Occurrences, Error> {
        let mut found = self.client.occurrences(self.state, commit, fingerprint)?;
        if !found.all.iter().any(|other| is_requested(other, commit, explanation)) {
            let topic = explanation.record.as_ref().map(|record| record.topic.as_str());
            let span = commit.spans.iter().position(|(log, _)| Some(log_topic(log)) == topic).unwrap_or_default();
            found.all.insert(0, Occurrence { span, ..wanted });
            found.may_be_incomplete = true;
        }
        Ok(found)
    }

    /// Fills in the verdict on a repartitioned record. The record's offset in the repartition topic is unknown, so its commit is unknown,
    /// too, and only the history of its key can show the verdict.
    fn judge_by_key(&self, explanation: &mut Explanation, retracts: bool) -> Result<(), Error> {
        let (history, known) = (&self.scanned.history, &self.scanned.history.known[0]);
        let mut is_read = true;
        for input in &self.state.inputs {
            is_read &= match input.committed {
                Some(committed) => !self.client.has_records(input, committed)?,
                None => false,
            };
        }
        let never_emitted = known.emissions == 0 && history.is_whole(None, &self.state.readings());
        (explanation.verdict, explanation.cause) = if retracts {
            (Some(VerdictName::Retracted), None)
        } else if never_emitted && is_read && !self.state.rules.exact && self.always_repartitioned(explanation) {
            (Some(VerdictName::Duplicate), Some(Cause::FalsePositive))
        } else {
            (Some(VerdictName::Unknown), Some(Cause::Unknown))
        };
        // The worker may have processed the record when `repartition` was not yet set, so no verdict is certain.
        explanation.certain = false;
        let between = self.state.inputs.first().map_or("", |input| &input.read.topic);
        explanation.limits.push(format!(
            "the record was processed in partition {} of {between:?}, whose records do not identify their input records; only the history of the key is known",
            self.state.partition
        ));
        if explanation.cause == Some(Cause::FalsePositive) {
            explanation.limits.push(
                "if `repartition`, the key, or `state.changelog` was different at that time, or if the repartition topic was recreated, the drop may have another reason"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// True if the record cannot have been dropped as late, and the whole changelog was written with the current key, window, and
    /// `repartition`.
    fn always_repartitioned(&self, explanation: &Explanation) -> bool {
        let record = explanation.record.as_ref();
        let may_be_late = self.state.rules.late != Late::Emit && record.is_some_and(|record| record.time_ms.is_some());
        let is_input = |log: &String| record.is_some_and(|record| record.topic == log_topic(log));
        let history = &self.scanned.history;
        let same_settings = !history.starts.is_empty() && !history.has_other_keys && !history.has_other_slices;
        !may_be_late && same_settings && !history.starts.keys().any(is_input)
    }

    fn why_missing(&self, topic: &Topic, offset: Offset) -> String {
        let log = self.state.input(topic).map(|input| &input.log);
        match log.and_then(|log| self.scanned.history.starts.get(log)) {
            Some(&start) if offset < start && self.scanned.reach.0 > 0 => format!(
                "{} no longer has commits below offset {start} of {:?}; use a capture (--capture) instead",
                self.changelog, topic.input
            ),
            Some(&start) if offset < start => format!("the first commit of {1:?} in {0} starts at offset {start}, after this record", self.changelog, topic.input),
            Some(_) => "no commit in the changelog contains the record; for example, the group's offsets were moved past it, the changelog was switched off or had another definition of the key, or the commit came from a member that had lost the partition".to_owned(),
            None => format!("{} has no commits of {:?}", self.changelog, topic.input),
        }
    }

    /// Returns an emission that contains only the emitted record, if this record can be determined. Otherwise, the emission has the offset
    /// ranges of its commit.
    fn resolve(&self, emission: &history::Emission, fingerprint: Fingerprint) -> Result<Emission, Error> {
        let ranges = self.emission(emission);
        let occurrences = self.client.occurrences(self.state, &emission.commit, fingerprint)?;
        let judged: Vec<_> = occurrences.all.iter().filter(|other| !other.retracts).collect();
        if let ([only], false) = (&judged[..], occurrences.may_be_incomplete) {
            return Ok(self.exact(&emission.commit, only, emission.slice));
        }
        // The commit may have several records with the key. Their order may show which of them was emitted.
        let Some(first) = judged.first() else { return Ok(ranges) };
        let Some((log, _)) = emission.commit.spans.get(first.span) else { return Ok(ranges) };
        let wanted = Wanted { fingerprints: vec![fingerprint], record: Some((log.clone(), first.offset)) };
        let scanned = self.client.scan(self.state, self.changelog, &wanted)?;
        let Some(target) = &scanned.history.target else { return Ok(ranges) };
        let emitter = occurrences.emitter(target, &self.state.rules);
        Ok(emitter.map_or(ranges, |at| self.exact(&emission.commit, &occurrences.all[at], emission.slice)))
    }

    fn exact(&self, commit: &Commit, of: &Occurrence, slice: Option<crate::filter::Slice>) -> Emission {
        let topic = commit.spans.get(of.span).map_or("", |(log, _)| log_topic(log)).to_owned();
        let only = InputRange { topic, partition: self.state.partition, first_offset: of.offset, last_offset: of.offset };
        Emission { inputs: vec![only], ..self.emission(&history::Emission { commit: commit.clone(), slice }) }
    }

    fn emission(&self, emission: &history::Emission) -> Emission {
        let history::Emission { commit, slice } = emission;
        let range = |(log, offsets): &(String, std::ops::Range<Offset>)| InputRange {
            topic: log_topic(log).to_owned(),
            partition: self.state.partition,
            first_offset: offsets.start,
            last_offset: offsets.end - 1,
        };
        Emission {
            inputs: commit.spans.iter().map(range).collect(),
            slice: *slice,
            committed_at_ms: commit.time,
            changelog_offset: Some(commit.at),
            epoch: Some(commit.epoch),
        }
    }
}

fn is_requested(occurrence: &Occurrence, commit: &Commit, explanation: &Explanation) -> bool {
    let topic = commit.spans.get(occurrence.span).map(|(log, _)| log_topic(log));
    explanation.record.as_ref().is_some_and(|record| Some(&*record.topic) == topic && record.offset == occurrence.offset)
}
