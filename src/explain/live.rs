//! An explanation from brokers: of a record by its offset, or of a key.
//!
//! Owns the order of questions: how far the group has read comes first, so that the changelog has what that says.

use super::Error;
use super::asker::{Asker, FoundRecord, Scanned, Waiting};
use super::fate::{Fate, Occurrence, Occurrences};
use super::history::{self, Commit, Memory, Target, Wanted};
use super::judge::{Judgement, Repeated, judge};
use super::report::{
    Cause, ChangelogReach, Emission, ExplainedRecord, Explanation, Forgetting, InputRange, InputStart, KeyPart, VerdictName,
};
use super::state::StateView;
use super::words;
use crate::config::{Config, Topic};
use crate::dedup::Late;
use crate::format::{NoSchemas, Schemas};
use crate::key::{self, Fingerprint, Part, Scratch};
use crate::record::{Offset, TopicPartition, Verdict, log_topic};

const NO_CHANGELOG: &str = "state.changelog is false, so nothing says which records came out; capture the topic, and ask with --capture";

/// Says what became of the record at an offset of a topic.
///
/// # Errors
/// When the record is not there, or the brokers do not answer.
pub fn record(
    config: &Config,
    schemas: &dyn Schemas,
    topic: &Topic,
    partition: i32,
    offset: Offset,
    waiting: Waiting<'_>,
) -> Result<Explanation, Error> {
    let asker = Asker::connect(config, schemas, waiting)?;
    let place = TopicPartition { topic: topic.input.clone(), partition };
    in_range(partition, asker.partitions(&topic.input)?, &topic.input)?;
    let committed = asker.committed(std::slice::from_ref(&place))?.into_iter().next().and_then(|(committed, _)| committed);
    let FoundRecord { time, keyed, texts } = asker.record(topic, &place, offset)?;
    let parts = key_parts(topic, texts);
    let record = ExplainedRecord { topic: topic.input.clone(), partition, offset, time_ms: time };
    let mut explanation = Explanation { record: Some(record), key: parts, ..empty(topic) };
    let is_pending = committed.is_none_or(|committed| committed <= offset);
    let (fingerprint, retracts) = match keyed {
        Ok(keyed) => keyed,
        Err(invalid) => {
            let verdict = match topic.verdict_without_key(invalid.reason) {
                Verdict::Tombstone => VerdictName::Tombstone,
                _ => VerdictName::Invalid,
            };
            explanation.verdict = Some(if is_pending { VerdictName::Pending } else { verdict });
            explanation.certain = is_pending;
            if !is_pending {
                explanation.limits.push("the key and the options are those of now; another configuration may have decided it".to_owned());
            }
            explanation.sentences = words::without_key(topic, verdict, &invalid, committed.filter(|_| is_pending));
            return Ok(explanation);
        }
    };
    let judged_in = match config.repartitioned(topic) {
        Some(between) => key::partition(fingerprint, asker.partitions(&between)?).cast_signed(),
        None => partition,
    };
    explanation.partition = Some(judged_in);
    let Some(changelog) = changelog(config, topic, judged_in) else {
        explanation.verdict = Some(if is_pending { VerdictName::Pending } else { VerdictName::Unknown });
        explanation.certain = is_pending;
        explanation.limits.push(NO_CHANGELOG.to_owned());
        explanation.sentences = words::sentences(&explanation, topic, committed);
        return Ok(explanation);
    };
    let state = asker.state(topic, judged_in)?;
    let log = state.input(topic).map(|input| input.log.clone());
    let wanted = Wanted { fingerprints: vec![fingerprint], record: log.map(|log| (log, offset)) };
    let scanned = asker.scan(&state, &changelog, &wanted)?;
    let view = View { asker: &asker, state: &state, changelog: &changelog, scanned: &scanned };
    view.describe(&mut explanation, 0);
    let occurrence = Occurrence { span: 0, offset, time, retracts };
    if is_pending {
        explanation.verdict = Some(VerdictName::Pending);
    } else if topic.repartition {
        view.judge_by_key(&mut explanation, retracts)?;
    } else if let Some(target) = &scanned.history.target {
        view.judge(&mut explanation, fingerprint, occurrence, target)?;
    } else {
        explanation.verdict = Some(VerdictName::Unknown);
        explanation.certain = false;
        explanation.limits.push(view.why_not_there(topic, offset));
    }
    explanation.sentences = words::sentences(&explanation, topic, committed);
    Ok(explanation)
}

/// Says what is known of a key, by the texts of its parts (see [`crate::key::KeySpec::fingerprints_of_texts`]), in one
/// partition or in all that may have it.
///
/// # Errors
/// When no record has such a key, there is no changelog, or the brokers do not answer.
pub fn key(config: &Config, topic: &Topic, texts: &[&[u8]], only: Option<i32>, waiting: Waiting<'_>) -> Result<Vec<Explanation>, Error> {
    let mut fingerprints = Vec::new();
    topic.key.fingerprints_of_texts(texts.iter().copied(), &mut Scratch::default(), &mut fingerprints)?;
    let asker = Asker::connect(config, &NoSchemas, waiting)?;
    let between = config.repartitioned(topic);
    let partitions = asker.partitions(between.as_ref().unwrap_or(&topic.input))?;
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
        let state = asker.state(topic, partition)?;
        let wanted = Wanted { fingerprints: here, record: None };
        let scanned = asker.scan(&state, &changelog, &wanted)?;
        let view = View { asker: &asker, state: &state, changelog: &changelog, scanned: &scanned };
        // Of what a text may mean, what came out; where none did, one stands for all.
        let came_out = |&which: &usize| scanned.history.known[which].emissions > 0;
        let mut meant: Vec<_> = (0..wanted.fingerprints.len()).filter(came_out).collect();
        if meant.is_empty() {
            meant.push(0);
        }
        for which in meant {
            let texts = texts.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect();
            let mut explanation = Explanation { key: key_parts(topic, texts), partition: Some(partition), ..empty(topic) };
            view.describe(&mut explanation, which);
            explanation.sentences = words::sentences(&explanation, topic, None);
            explanations.push(explanation);
        }
    }
    Ok(explanations)
}

/// An explanation that says nothing yet.
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

/// The parts of a key with their names.
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
    Err(Error::Question(format!("topic {topic:?} has partitions 0 to {}, and none of number {partition}", partitions.saturating_sub(1))))
}

/// What was read of one state.
struct View<'v> {
    asker: &'v Asker<'v>,
    state: &'v StateView<'v>,
    changelog: &'v TopicPartition,
    scanned: &'v Scanned<'v>,
}

impl View<'_> {
    /// Says what is known of the key of that number now.
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
            (explanation.seen.is_none() && memory == Memory::Unseen, "the changelog does not have all that the state may still remember"),
            (
                history.has_other_keys,
                "a part of the changelog was written for keys that are made in another way, and says nothing of this one",
            ),
            (history.has_other_slices, "a part of the changelog was written under another window, whose slices were told by their times"),
            (known.is_wrongly_renewed, "the key was renewed though it had not come out: the filter took it for seen, and has it since"),
        ];
        explanation.limits.extend(limits.into_iter().filter(|(holds, _)| *holds).map(|(_, limit)| limit.to_owned()));
    }

    /// Says what became of a record, by the commit that decided it.
    fn judge(&self, explanation: &mut Explanation, fingerprint: Fingerprint, wanted: Occurrence, target: &Target) -> Result<(), Error> {
        let (history, rules) = (&self.scanned.history, &self.state.rules);
        let occurrences = self.occurrences(&target.commit, fingerprint, explanation, wanted)?;
        let at = occurrences.all.iter().position(|other| is_it(other, &target.commit, explanation)).unwrap_or_default();
        let is_whole = history.is_whole(target.clock.0, &self.state.readings());
        let fate = occurrences.fate(at, target, rules);
        let Judgement { verdict, cause, is_certain, repeats, limit } = judge(fate, at, &occurrences, target, is_whole, rules);
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
        if matches!(fate, Fate::Emitted(_)) {
            let exact = self.exact(&target.commit, &occurrences.all[at], target.inserted_into());
            for known in [&mut explanation.first, &mut explanation.last].into_iter().flatten() {
                if known.changelog_offset == exact.changelog_offset && target.emissions() == 1 {
                    *known = exact.clone();
                }
            }
        }
        Ok(())
    }

    /// The records of a commit with that key; the one that is asked for is one of them.
    fn occurrences(
        &self,
        commit: &Commit,
        fingerprint: Fingerprint,
        explanation: &Explanation,
        wanted: Occurrence,
    ) -> Result<Occurrences, Error> {
        let mut found = self.asker.occurrences(self.state, commit, fingerprint)?;
        if !found.all.iter().any(|other| is_it(other, commit, explanation)) {
            let topic = explanation.record.as_ref().map(|record| record.topic.as_str());
            let span = commit.spans.iter().position(|(log, _)| Some(log_topic(log)) == topic).unwrap_or_default();
            found.all.insert(0, Occurrence { span, ..wanted });
            found.may_lack_some = true;
        }
        Ok(found)
    }

    /// Says what the history of its key says of a record that was brought to another partition: which of the records there it
    /// was, nothing says.
    fn judge_by_key(&self, explanation: &mut Explanation, retracts: bool) -> Result<(), Error> {
        let (history, known) = (&self.scanned.history, &self.scanned.history.known[0]);
        let mut is_read = true;
        for input in &self.state.inputs {
            is_read &= match input.committed {
                Some(committed) => !self.asker.has_records(input, committed)?,
                None => false,
            };
        }
        let never_came_out = known.emissions == 0 && history.is_whole(None, &self.state.readings());
        (explanation.verdict, explanation.cause) = if retracts {
            (Some(VerdictName::Retracted), None)
        } else if never_came_out && is_read && !self.state.rules.exact && self.was_always_brought(explanation) {
            (Some(VerdictName::Duplicate), Some(Cause::FalsePositive))
        } else {
            (Some(VerdictName::Unknown), Some(Cause::Unknown))
        };
        // Whether it was brought there at all, nothing says.
        explanation.certain = false;
        let between = self.state.inputs.first().map_or("", |input| &input.read.topic);
        explanation.limits.push(format!(
            "it was decided in partition {} of {between:?}, which does not say which record of the input each of its own was; what is known of its key follows",
            self.state.partition
        ));
        if explanation.cause == Some(Cause::FalsePositive) {
            explanation.limits.push(
                "if `repartition`, the key or `state.changelog` was another when it was read, or the topic in between was made anew since, it may have been left out for another reason"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Whether nothing that the changelog shows would explain that it did not come out: that it was late, or was judged by another
    /// key or window, or in its own partition, before `repartition` was set.
    fn was_always_brought(&self, explanation: &Explanation) -> bool {
        let record = explanation.record.as_ref();
        let may_be_late = self.state.rules.late != Late::Emit && record.is_some_and(|record| record.time_ms.is_some());
        let is_input = |log: &String| record.is_some_and(|record| record.topic == log_topic(log));
        let history = &self.scanned.history;
        let is_alike = !history.starts.is_empty() && !history.has_other_keys && !history.has_other_slices;
        !may_be_late && is_alike && !history.starts.keys().any(is_input)
    }

    /// Why no commit has a record that the group has read.
    fn why_not_there(&self, topic: &Topic, offset: Offset) -> String {
        let log = self.state.input(topic).map(|input| &input.log);
        match log.and_then(|log| self.scanned.history.starts.get(log)) {
            Some(&start) if offset < start && self.scanned.reach.0 > 0 => format!(
                "{} was trimmed, for the window of what it had was over: it begins with offset {start} of {:?} by now; a capture can be asked instead",
                self.changelog, topic.input
            ),
            Some(&start) if offset < start => format!("{} was begun later: with offset {start} of {:?}", self.changelog, topic.input),
            Some(_) => "no commit in the changelog has it: the group was moved past it by hand, or its commit was voided by a member that had lost the partition".to_owned(),
            None => format!("{} has nothing of {:?} any more", self.changelog, topic.input),
        }
    }

    /// An emission, with the record that it was of, if that can be found out.
    fn resolve(&self, emission: &history::Emission, fingerprint: Fingerprint) -> Result<Emission, Error> {
        let ranges = self.emission(emission);
        let occurrences = self.asker.occurrences(self.state, &emission.commit, fingerprint)?;
        let judged: Vec<_> = occurrences.all.iter().filter(|other| !other.retracts).collect();
        if let ([only], false) = (&judged[..], occurrences.may_lack_some) {
            return Ok(self.exact(&emission.commit, only, emission.slice));
        }
        // Which of several it was, the order of them may say.
        let Some(first) = judged.first() else { return Ok(ranges) };
        let Some((log, _)) = emission.commit.spans.get(first.span) else { return Ok(ranges) };
        let wanted = Wanted { fingerprints: vec![fingerprint], record: Some((log.clone(), first.offset)) };
        let scanned = self.asker.scan(self.state, self.changelog, &wanted)?;
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

/// Whether a record of a commit is the one that is asked for.
fn is_it(occurrence: &Occurrence, commit: &Commit, explanation: &Explanation) -> bool {
    let topic = commit.spans.get(occurrence.span).map(|(log, _)| log_topic(log));
    explanation.record.as_ref().is_some_and(|record| Some(&*record.topic) == topic && record.offset == occurrence.offset)
}
