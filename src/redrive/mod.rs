//! Redrives dead letters: writes them back to the inputs that they came from, or to the outputs (see `target`).
//!
//! The group `<group_id>-redrive` stores the position in each dead-letter topic. Every transaction writes dead letters and commits the
//! positions after them. Each dead letter is therefore redriven once, despite crashes and repeated commands. `<group_id>-redrive` is also
//! the transactional id, so a redrive fences an earlier redrive of the same group.
//!
//! If topics reject dead letters during a pass over a dead-letter topic, the pass is repeated from the committed positions without the
//! rejected dead letters. Later redrives try to write them again.
//!
//! A redrive never writes to a topic that is not in the configuration, and it never reads a dead letter that was added after the start.
//!
//! | file | content |
//! |---|---|
//! | `position` | the position in a partition, and the dead letters that were left out or rejected |
//! | `target` | the topic and partition that a dead letter is written to |
//! | `writer` | the transactions |
//! | `error` | errors |

mod error;
mod position;
mod target;
mod writer;

pub use error::{Error, Rejected};

use crate::broker::Record as _;
use crate::config::{Config, Delivery, Topic};
pub use crate::explain::Waiting;
use crate::kafka::{self, Capture, GroupView, Message, Wanted};
use crate::record::{Offset, TopicPartition, Verdict};
use crate::route::{Destination, dead_letter};
use error::Failure;
use position::{Position, is_hash};
use std::collections::{BTreeMap, BTreeSet};
use target::{Origins, is_of_output, kind, names};
use writer::Writer;

const BATCH_BYTES: usize = 1_000_000;
/// A batch size in bytes that is too small for two records, so each record gets its own batch. If a topic rejects a batch, a pass with this
/// size finds the records that the topic rejects.
const ONE_RECORD: usize = 1;
/// Maximum number of rejected dead letters that a redrive skips in a dead-letter topic. After the maximum is reached, the redrive of a
/// partition ends before its next rejected dead letter.
const REJECTED_MAX: usize = 100;

#[derive(Clone, Debug)]
pub struct Options {
    /// The inputs whose dead letters are redriven. Empty means all inputs.
    pub inputs: Vec<String>,
    /// The verdicts whose dead letters are redriven. Empty means all verdicts whose dead letters go back to the input.
    pub verdicts: Vec<Verdict>,
    pub limit: u64,
    pub dry_run: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redriven {
    /// Number of redriven dead letters, by their input, their reason, and the topic that they were written to.
    pub counts: BTreeMap<(String, &'static str, String), u64>,
    /// Kinds of dead letters that remain, because they were not selected or because their input could not be used. The form is
    /// `<input>/<reason>`.
    pub left_out: BTreeSet<String>,
    /// Left-out kinds whose input is not in the configuration, or whose reason this version does not know. If an earlier redrive stored
    /// only the hash of a kind, the form is `?/<hash>`.
    pub unknown: BTreeSet<String>,
    pub rejected: Vec<Rejected>,
    /// Selected topics that could not be used, with the reasons.
    pub unusable: BTreeMap<String, String>,
    /// Number of records that are not dead letters.
    pub skipped: u64,
    /// True if a signal ended the redrive early.
    pub is_interrupted: bool,
}

impl Redriven {
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.values().sum()
    }
}

/// Redrives the dead letters that exist at the start. Calls `progress` with the number of offsets read so far and the number of all offsets
/// of the current pass. If a topic cannot be used, or if a dead letter is rejected, reports the problem and continues with the other topics
/// and dead letters.
pub fn redrive(config: &Config, options: &Options, waiting: &Waiting<'_>, progress: &dyn Fn(u64, u64)) -> Result<Redriven, Error> {
    let is_selected = |topic: &&Topic| !topic.is_shadow() && (options.inputs.is_empty() || options.inputs.contains(&topic.input));
    let selected = config.topics.iter().filter(is_selected).filter_map(|topic| Some((topic, Destination::DeadLetters.name(topic)?)));
    let selected: Vec<_> = selected.collect();
    if selected.is_empty() {
        let has_pattern = config.patterns.iter().any(|pattern| Destination::DeadLetters.name(pattern.entry()).is_some());
        return Err(Error::Refused(if has_pattern && options.inputs.is_empty() {
            "no topic that this user may see matches the pattern of an entry that has a dead-letter topic; correct the pattern, or give this user Describe on the topics".to_owned()
        } else {
            "no selected topic has a dead-letter topic; set on_invalid = { topic = \"...\" }".to_owned()
        }));
    }
    let verdicts = dead_letter::verdicts().filter(|verdict| match options.verdicts.as_slice() {
        [] => !is_of_output(*verdict),
        verdicts => verdicts.contains(verdict),
    });
    let verdicts: Vec<_> = verdicts.collect();
    let mut own = config.clone();
    own.kafka.group_id += "-redrive";
    own.worker.delivery = Delivery::ExactlyOnce;
    let view = GroupView::connect(&own, waiting.stop, waiting.report)?;
    let (origins, kinds, rejected, redriven) = Default::default();
    let mut redrive = Redrive { config: &own, options, waiting, view, origins, kinds, names: names(config), rejected, redriven };
    redrive.find_targets(config, &selected, &verdicts)?;
    redrive.kinds = redrive.origins.kinds(&verdicts);
    let mut topics = redrive.find_letters(&selected)?;
    let mut batch_bytes = BATCH_BYTES;
    let mut writer = redrive.connect(batch_bytes)?;
    for letters in &mut topics {
        redrive.rejected.clear();
        if batch_bytes != BATCH_BYTES {
            batch_bytes = BATCH_BYTES;
            drop(writer);
            writer = redrive.connect(batch_bytes)?;
        }
        loop {
            let failure = match redrive.topic(letters, &mut writer, progress) {
                Ok(true) => break,
                Ok(false) => return Ok(redrive.redriven),
                Err(failure) => failure,
            };
            writer.iter().for_each(Writer::abort);
            let is_repeated = match failure {
                Failure::Error(error) => return Err(error),
                Failure::Topic(why) => redrive.leave_topic(&letters.name, why),
                Failure::Rejected(rejected) => redrive.leave_rejected(letters, rejected),
                Failure::Batch => {
                    // With one record per batch, brokers reject only records that they would reject in any batch.
                    batch_bytes = ONE_RECORD;
                    true
                }
            };
            drop(writer);
            writer = redrive.connect(batch_bytes)?;
            if !is_repeated {
                break;
            }
        }
    }
    Ok(redrive.redriven)
}

/// A dead-letter topic.
struct Letters {
    name: String,
    partitions: Vec<TopicPartition>,
    /// The end offset of the redrive, by partition: the partition's end at the start of the redrive, or the offset of a rejected dead
    /// letter that the redrive cannot skip.
    ends: BTreeMap<i32, Offset>,
    /// The number of passes that failed after the maximum number of rejected dead letters was reached.
    failed: usize,
}

struct Redrive<'a> {
    /// The configuration with the group of the redrive.
    config: &'a Config,
    options: &'a Options,
    waiting: &'a Waiting<'a>,
    view: GroupView,
    origins: Origins,
    /// The selected kinds and their hashes.
    kinds: BTreeSet<String>,
    /// The kinds of dead letters that the configuration can have (see [`names`]).
    names: BTreeMap<String, String>,
    /// The partitions and offsets of rejected dead letters in the current dead-letter topic, which the next pass skips.
    rejected: BTreeSet<(i32, Offset)>,
    /// The result of all committed transactions.
    redriven: Redriven,
}

impl<'a> Redrive<'a> {
    fn connect(&self, batch_bytes: usize) -> Result<Option<Writer<'a>>, Error> {
        if self.options.dry_run {
            return Ok(None);
        }
        Ok(Some(Writer::connect(self.config, self.view.outsider()?, batch_bytes, self.waiting.stop)?))
    }

    /// Leaves out the dead letters of an input, or all dead letters in a dead-letter topic. Returns false, because the pass is not
    /// repeated.
    fn leave_topic(&mut self, topic: &str, why: String) -> bool {
        (self.waiting.report)(&format!("topic {topic:?} is left out: {why}"));
        self.redriven.unusable.insert(topic.to_owned(), why);
        false
    }

    /// Leaves rejected dead letters in the dead-letter topic. The next pass skips up to [`REJECTED_MAX`] of them. If more are rejected, the
    /// pass ends in their partitions before the first rejected dead letter that it does not skip. Returns false if the pass is not
    /// repeated, because too many passes have failed.
    fn leave_rejected(&mut self, letters: &mut Letters, rejected: Vec<Rejected>) -> bool {
        letters.failed += usize::from(self.rejected.len() == REJECTED_MAX);
        for rejected in rejected {
            let Rejected { topic, partition, offset, target, error } = &rejected;
            if self.rejected.len() < REJECTED_MAX {
                (self.waiting.report)(&format!(
                    "topic {target:?} rejects the dead letter at {topic}[{partition}] offset {offset}: {error}; later runs try it again"
                ));
                self.rejected.insert((*partition, *offset));
                self.redriven.rejected.push(rejected);
                continue;
            }
            let end = letters.ends.entry(*partition).or_insert(*offset);
            *end = (*end).min(*offset);
            if !self.redriven.unusable.contains_key(topic) {
                let why = format!(
                    "more than {REJECTED_MAX} of its dead letters were rejected, one of them by topic {target:?} ({error}), so the redrive of {topic}[{partition}] ended before offset {offset}; change the topics that reject them, or select other dead letters with --reason and --topic"
                );
                self.leave_topic(&topic.clone(), why);
            }
        }
        letters.failed <= REJECTED_MAX
    }

    fn find_targets(&mut self, config: &Config, selected: &[(&Topic, &str)], verdicts: &[Verdict]) -> Result<(), Error> {
        for (topic, _) in selected {
            let why = match self.origins.add(config, topic, verdicts, |name| self.view.partitions(name)) {
                Ok(None) => continue,
                Ok(Some(missing)) => format!("topic {missing:?} does not exist; create it, or remove it from the configuration"),
                Err(problem @ kafka::Error::Cluster(_)) => problem.to_string(),
                Err(error) => return Err(error.into()),
            };
            self.leave_topic(&topic.input, why);
        }
        if verdicts.iter().any(|&verdict| is_of_output(verdict)) {
            for input in self.origins.with_several_outputs() {
                let why = "its entries have different outputs, and dead letters do not show their entry; redrive only the dead letters that go back to the input (without --reason)";
                self.leave_topic(&input, why.to_owned());
            }
        }
        self.redriven.unusable.keys().for_each(|input| self.origins.remove(input));
        Ok(())
    }

    fn find_letters(&mut self, selected: &[(&Topic, &str)]) -> Result<Vec<Letters>, Error> {
        let usable = selected.iter().filter(|(topic, _)| !self.redriven.unusable.contains_key(&topic.input));
        let (names, mut found) = (usable.map(|(_, name)| *name).collect::<BTreeSet<_>>(), Vec::new());
        for name in names {
            let why = match self.view.partitions(name) {
                Ok(0) => format!("dead-letter topic {name:?} does not exist; create it, or correct on_invalid"),
                Ok(count) => {
                    let of = |partition: u32| TopicPartition { topic: name.to_owned(), partition: partition.cast_signed() };
                    let partitions: Vec<_> = (0..count).map(of).collect();
                    let end = |of: &TopicPartition| Ok((of.partition, self.view.watermarks(of)?.1));
                    let ends = partitions.iter().map(end).collect::<Result<_, kafka::Error>>()?;
                    found.push(Letters { name: name.to_owned(), partitions, ends, failed: 0 });
                    continue;
                }
                Err(problem @ kafka::Error::Cluster(_)) => problem.to_string(),
                Err(error) => return Err(error.into()),
            };
            self.leave_topic(name, why);
        }
        Ok(found)
    }

    /// Runs one pass over a dead-letter topic. Returns false if the limit was reached or a signal ended the redrive.
    fn topic(&mut self, letters: &Letters, writer: &mut Option<Writer<'_>>, progress: &dyn Fn(u64, u64)) -> Result<bool, Failure> {
        let Letters { name, partitions, ends, .. } = letters;
        let topic_id = self.view.topic_ids(&[name]).map_err(Error::from)?.remove(name);
        let mut positions = self.positions(partitions, topic_id.as_deref())?;
        let &Waiting { stop, report } = self.waiting;
        let Self { config, options, origins, kinds, names, rejected, redriven: committed, .. } = self;
        let is_selected = |kind: &str| kinds.contains(kind);
        let begin = (0..).zip(positions.iter().map(|position| position.begin(is_selected))).collect();
        let wanted = Wanted { topic: name.to_owned(), begin, end: ends.clone(), ..Wanted::default() };
        let mut capture = Capture::start(config, &wanted, stop, report)?;
        let (total, mut redriven, mut count) = (capture.left(), committed.clone(), committed.count());
        let mut commit = |writer: &mut Writer<'_>, positions: &[Position], redriven: &Redriven| {
            writer.commit(name, &offsets(partitions, positions, topic_id.as_deref())?)?;
            committed.clone_from(redriven);
            Ok::<(), Failure>(())
        };
        // Unselected kinds with dead letters that an earlier redrive could not write, because their target rejected them.
        let mut waiting_rejected = BTreeSet::new();
        let is_whole = capture.read(stop, report, &mut |message: &Message<'_>, left| {
            progress(total - left, total);
            let (partition, offset) = (message.partition(), message.offset());
            let Some(position) = usize::try_from(partition).ok().and_then(|at| positions.get_mut(at)) else { return Ok(true) };
            let headers: Vec<_> = message.all_headers().collect();
            if let Some(letter) = dead_letter::read(&headers) {
                let kind = kind(letter.topic, letter.reason);
                let origin = origins.of(letter.topic).zip(letter.verdict).filter(|_| is_selected(&kind));
                match origin {
                    _ if !position.is_due(&kind, offset) => {}
                    None if position.is_rejected(offset) => {
                        let _ = waiting_rejected.insert(kind);
                    }
                    None => position.leave_out(&kind, offset),
                    Some(_) if rejected.contains(&(partition, offset)) => position.reject(offset),
                    Some((origin, verdict)) => {
                        position.redrive(offset);
                        let target = origin.target(verdict, letter.partition);
                        let key = (origin.input.clone(), dead_letter::reason(verdict), target.0.to_owned());
                        *redriven.counts.entry(key).or_default() += 1;
                        count += 1;
                        if let Some(writer) = writer {
                            writer.write(message, target, letter.time.or(message.timestamp()), letter.positions)?;
                        }
                    }
                }
            } else if offset >= position.next {
                redriven.skipped += 1;
            }
            position.advance(offset, is_selected);
            if let Some(writer) = writer.as_mut().filter(|writer| writer.is_due()) {
                commit(writer, &positions, &redriven)?;
            }
            Ok::<_, Failure>(count < options.limit)
        })?;
        for kind in positions.iter().flat_map(|position| position.left_out.keys()).chain(&waiting_rejected) {
            match names.get(kind) {
                Some(kind) => redriven.left_out.insert(kind.clone()),
                None => redriven.unknown.insert(if is_hash(kind) { format!("?{kind}") } else { kind.clone() }),
            };
        }
        redriven.is_interrupted = !is_whole && count < options.limit;
        if let Some(writer) = writer {
            // Commit even if no dead letter was written, because brokers delete offsets that the group has not committed for
            // `offsets.retention.minutes`.
            commit(writer, &positions, &redriven)?;
        }
        self.redriven = redriven;
        Ok(is_whole)
    }

    fn positions(&self, partitions: &[TopicPartition], topic_id: Option<&str>) -> Result<Vec<Position>, Failure> {
        let committed = self.view.committed(partitions).map_err(Error::from)?;
        let position = |(of, committed)| {
            let mut position = Position::read(committed, topic_id);
            let (low, end) = self.view.watermarks(of).map_err(Error::from)?;
            if position.next > end {
                return Err(Failure::Topic(format!(
                    "{of} ends at offset {end}, but group {:?} has committed offset {}, so the topic was recreated or its leader lost records; to redrive the topic from its start, delete the group's offsets with kafka-consumer-groups.sh --delete-offsets",
                    self.config.kafka.group_id, position.next
                )));
            }
            position.forget_below(low);
            Ok(position)
        };
        partitions.iter().zip(&committed).map(position).collect()
    }
}

fn offsets(
    partitions: &[TopicPartition],
    positions: &[Position],
    topic_id: Option<&str>,
) -> Result<Vec<(TopicPartition, Offset, String)>, Failure> {
    let offset = |(of, position): (&TopicPartition, &Position)| {
        let metadata = position.metadata(topic_id).ok_or_else(|| {
            Failure::Topic(format!(
                "too many combinations of input and reason are left out in {of}, or too many dead letters are rejected, so its position is too large to commit; select more inputs with --topic, or more reasons with --reason"
            ))
        })?;
        Ok((of.clone(), position.next, metadata))
    };
    partitions.iter().zip(positions).map(offset).collect()
}
