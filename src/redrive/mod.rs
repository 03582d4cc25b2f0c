//! Redrives dead letters: writes them back to the topics that they came from.
//!
//! The group `<group_id>-redrive` stores the position in each dead-letter topic. One transaction writes dead letters and commits the
//! positions after them, so each dead letter is redriven once, through crashes and repeated commands. The transactional id has the same
//! name, so that a redrive fences another one of the same group.
//!
//! This module must never write to a topic that is not in the configuration, or read a dead letter that was added after the start.
//!
//! | file | content |
//! |---|---|
//! | `position` | which dead letters of a partition were redriven |
//! | `target` | the topic and partition that a dead letter is written to |
//! | `writer` | the transactions |
//! | `error` | errors |

mod error;
mod position;
mod target;
mod writer;

pub use error::Error;

use crate::broker::Record as _;
use crate::config::{Config, Delivery};
pub use crate::explain::Waiting;
use crate::kafka::{Capture, GroupView, Message, Wanted};
use crate::record::{Offset, TopicPartition, Verdict};
use crate::route::{Destination, dead_letter};
use error::Failure;
use position::Position;
use std::collections::{BTreeMap, BTreeSet};
use target::{Origins, is_of_output, kind};
use writer::Writer;

/// Maximum bytes of a batch.
const BATCH_BYTES: usize = 1_000_000;
/// Batch size with one record per batch, for topics that accept only smaller batches.
const ONE_RECORD: usize = 1;

/// Selection of dead letters.
#[derive(Clone, Debug)]
pub struct Options {
    /// Inputs. Empty means all.
    pub inputs: Vec<String>,
    /// Verdicts. Empty means those whose dead letters go to the input.
    pub verdicts: Vec<Verdict>,
    pub limit: u64,
    /// True to write nothing.
    pub dry_run: bool,
}

/// Result of a redrive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redriven {
    /// Number of redriven dead letters by input, reason, and topic written to.
    pub counts: BTreeMap<(String, &'static str, String), u64>,
    /// Kinds of dead letters that were not selected, now or earlier: inputs and reasons, separated by a slash.
    pub left_out: BTreeSet<String>,
    /// Number of records that are not dead letters of an input of the configuration.
    pub skipped: u64,
    /// True if a signal ended the redrive early.
    pub is_interrupted: bool,
}

impl Redriven {
    /// Returns the number of redriven dead letters.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.values().sum()
    }
}

/// Redrives the dead letters that exist at the start. Calls `progress` with the number of offsets that were read and of all offsets.
///
/// # Errors
/// Fails if the configuration has no dead-letter topic, a topic or a permission is missing, another redrive starts, or the brokers fail.
pub fn redrive(config: &Config, options: &Options, waiting: &Waiting<'_>, progress: &dyn Fn(u64, u64)) -> Result<Redriven, Error> {
    let is_selected = |input: &String| options.inputs.is_empty() || options.inputs.contains(input);
    let selected = || config.topics.iter().filter(|topic| !topic.is_shadow() && is_selected(&topic.input));
    let topics: BTreeSet<_> = selected().filter_map(|topic| Destination::DeadLetters.name(topic)).collect();
    if topics.is_empty() {
        return Err(Error::Refused("no selected topic has a dead-letter topic; set on_invalid = { topic = \"...\" }".to_owned()));
    }
    let mut own = config.clone();
    own.kafka.group_id += "-redrive";
    own.worker.delivery = Delivery::ExactlyOnce;
    let view = GroupView::connect(&own, waiting.stop, waiting.report)?;
    let mut origins = Origins::default();
    for topic in config.topics.iter().filter(|topic| Destination::DeadLetters.name(topic).is_some_and(|name| topics.contains(name))) {
        origins.add(config, topic, |name| view.partitions(name))?;
    }
    if let Some(topic) = origins.missing_input() {
        return Err(Error::Refused(format!("topic {topic:?} does not exist; create it, or remove it from the configuration")));
    }
    let verdicts = dead_letter::verdicts().filter(|verdict| match options.verdicts.as_slice() {
        [] => !is_of_output(*verdict),
        verdicts => verdicts.contains(verdict),
    });
    let kinds = verdicts.flat_map(|verdict| selected().map(move |topic| kind(&topic.input, verdict))).collect();
    let mut redrive = Redrive { config: own, options, waiting, view, origins, kinds, redriven: Redriven::default() };
    let mut writer = redrive.connect(BATCH_BYTES)?;
    'topics: for topic in topics {
        loop {
            match redrive.topic(topic, &mut writer, progress) {
                Ok(true) => break,
                Ok(false) => break 'topics,
                Err(failure) => {
                    writer.iter().for_each(Writer::abort);
                    if let Failure::Error(error) = failure {
                        return Err(error);
                    }
                }
            }
            // With one record per batch, brokers reject only the records that they would never accept.
            drop(writer);
            writer = redrive.connect(ONE_RECORD)?;
        }
    }
    Ok(redrive.redriven)
}

struct Redrive<'a> {
    /// The configuration with the group of the redrive.
    config: Config,
    options: &'a Options,
    waiting: &'a Waiting<'a>,
    view: GroupView,
    origins: Origins,
    /// The selected kinds.
    kinds: BTreeSet<String>,
    /// The result of all committed transactions.
    redriven: Redriven,
}

impl Redrive<'_> {
    fn connect(&self, batch_bytes: usize) -> Result<Option<Writer>, Error> {
        if self.options.dry_run {
            return Ok(None);
        }

        Ok(Some(Writer::connect(&self.config, self.view.outsider()?, batch_bytes, self.waiting.stop)?))
    }

    /// Redrives the dead letters of a topic. Returns false if the redrive ends here.
    fn topic(&mut self, name: &str, writer: &mut Option<Writer>, progress: &dyn Fn(u64, u64)) -> Result<bool, Failure> {
        let of = |partition: u32| TopicPartition { topic: name.to_owned(), partition: partition.cast_signed() };
        let partitions: Vec<_> = (0..self.view.partitions(name)?).map(of).collect();
        if partitions.is_empty() {
            return Err(Error::Refused(format!("dead-letter topic {name:?} does not exist; create it, or correct on_invalid")).into());
        }
        let topic_id = self.view.topic_ids(&[name])?.remove(name);
        let mut positions = self.positions(&partitions, topic_id.as_deref())?;
        let &Waiting { stop, report } = self.waiting;
        let Self { config, options, origins, kinds, redriven: committed, .. } = self;
        let is_selected = |kind: &str| kinds.contains(kind);
        let begin = (0..).zip(positions.iter().map(|position| position.begin(is_selected))).collect();
        let wanted = Wanted { topic: name.to_owned(), begin, ..Wanted::default() };
        let mut capture = Capture::start(config, &wanted, stop, report)?;
        let (total, mut redriven, mut count) = (capture.left(), committed.clone(), committed.count());
        let mut commit = |writer: &mut Writer, positions: &[Position], redriven: &Redriven| {
            writer.commit(name, &offsets(&partitions, positions, topic_id.as_deref())?)?;
            committed.clone_from(redriven);
            Ok::<(), Failure>(())
        };
        let is_whole = capture.read(stop, report, &mut |message: &Message<'_>, left| {
            progress(total - left, total);
            let offset = message.offset();
            let Some(position) = usize::try_from(message.partition()).ok().and_then(|at| positions.get_mut(at)) else { return Ok(true) };
            let headers: Vec<_> = message.all_headers().collect();
            let letter = dead_letter::read(&headers).and_then(|letter| Some((origins.of(&letter)?, letter)));
            if let Some((origin, letter)) = letter {
                let kind = kind(&origin.input, letter.verdict);
                if position.is_due(&kind, offset) && is_selected(&kind) {
                    let target = origin.target(&letter);
                    let key = (origin.input.clone(), dead_letter::reason(letter.verdict), target.0.to_owned());
                    *redriven.counts.entry(key).or_default() += 1;
                    count += 1;
                    if let Some(writer) = writer {
                        writer.write(message, target, letter.time.or(message.timestamp()), letter.positions)?;
                    }
                } else if position.is_due(&kind, offset) {
                    position.leave_out(&kind, offset);
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
        redriven.left_out.extend(positions.iter().flat_map(|position| position.left_out.keys().cloned()));
        redriven.is_interrupted = !is_whole && count < options.limit;
        if let Some(writer) = writer {
            // Also without new dead letters, because brokers delete offsets that a group has not committed for a while.
            commit(writer, &positions, &redriven)?;
        }
        self.redriven = redriven;
        Ok(is_whole)
    }

    /// Returns the committed position in each partition.
    fn positions(&self, partitions: &[TopicPartition], topic_id: Option<&str>) -> Result<Vec<Position>, Error> {
        let committed = self.view.committed(partitions)?;
        let position = |(of, committed)| {
            let position = Position::read(committed, topic_id);
            let (_, end) = self.view.watermarks(of)?;
            if position.next > end {
                return Err(Error::Refused(format!(
                    "{of} ends at offset {end}, but group {:?} has committed offset {}, so the topic was recreated or its leader lost records; to redrive the topic from its start, delete the group's offsets with kafka-consumer-groups.sh --delete-offsets",
                    self.config.kafka.group_id, position.next
                )));
            }
            Ok(position)
        };
        partitions.iter().zip(&committed).map(position).collect()
    }
}

/// Returns the offsets to commit, with their metadata.
fn offsets(
    partitions: &[TopicPartition],
    positions: &[Position],
    topic_id: Option<&str>,
) -> Result<Vec<(TopicPartition, Offset, String)>, Error> {
    let offset = |(of, position): (&TopicPartition, &Position)| {
        let metadata = position.metadata(topic_id).ok_or_else(|| {
            Error::Refused(format!(
                "too many combinations of input and reason are left out in {of}, so its position is too large to commit; run the command without --topic, or with more reasons in --reason"
            ))
        })?;
        Ok((of.clone(), position.next, metadata))
    };
    partitions.iter().zip(positions).map(offset).collect()
}
