//! Asks the brokers, once a second, which partitions the changelogs have and how far these reach.
//!
//! Owns the questions. Must never change a state: the answers go to who applies the changelogs.

use super::space::Space;
use crate::clock;
use crate::config::Config;
use crate::kafka::{ChangelogEnds, Error};
use crate::record::{Offset, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// Between two rounds of questions.
const INTERVAL: Duration = Duration::from_secs(1);
/// How late a stop may be noticed.
const TICK: Duration = Duration::from_millis(50);
/// Least time between two lines about the same trouble.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// How far a partition reached.
#[derive(Clone, Debug)]
pub(super) struct Watermarks {
    /// Number of the space.
    pub(super) space: usize,
    pub(super) partition: i32,
    /// How many partitions there are.
    pub(super) partitions: u32,
    /// The first offset.
    pub(super) low: Offset,
    /// The one after the last that is committed.
    pub(super) end: Offset,
    /// The id of the topic, where brokers give one.
    pub(super) log: Option<Arc<str>>,
    /// When the question was asked, in milliseconds since the epoch.
    pub(super) asked: Timestamp,
}

/// Asks until told to stop, and sends what the brokers answer.
pub(super) fn run(config: &Config, spaces: &[Space], ends: &ChangelogEnds, stop: &AtomicBool, send: &Sender<Watermarks>) {
    let (mut reported, mut missing): (Option<Instant>, BTreeSet<&str>) = (None, BTreeSet::new());
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let trouble = round(spaces, ends, stop, send, &mut missing);
        if let Err(error) = trouble
            && reported.is_none_or(|at| at.elapsed() > REPORT_INTERVAL)
        {
            reported = Some(Instant::now());
            tracing::warn!(servers = config.kafka.bootstrap_servers, error = %error, "no answer from the brokers; answering as of the last, and asking again");
        }
        while began.elapsed() < INTERVAL && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(TICK);
        }
    }
}

/// Asks for all spaces once. What does not answer keeps nothing else from it; the last error is returned.
fn round<'s>(
    spaces: &'s [Space],
    ends: &ChangelogEnds,
    stop: &AtomicBool,
    send: &Sender<Watermarks>,
    missing: &mut BTreeSet<&'s str>,
) -> Result<(), Error> {
    // Before any answer: what was committed after it may be missing.
    let asked = clock::now();
    let mut trouble = Ok(());
    let mut counts = Vec::with_capacity(spaces.len());
    for (number, space) in spaces.iter().enumerate() {
        match ends.partitions(space.changelog_name()) {
            Ok(0) if missing.insert(space.name()) => tracing::warn!(
                space = space.name(),
                topic = space.changelog_name(),
                "the changelog does not exist yet; a worker makes it when it starts"
            ),
            Ok(0) => {}
            Ok(partitions) => counts.push((number, space, partitions)),
            Err(error) => trouble = Err(error),
        }
    }
    let topics: Vec<_> = counts.iter().map(|(_, space, _)| space.changelog_name()).collect();
    let logs = ends.ids(&topics);
    for (space, of, partitions) in counts {
        let log: Option<Arc<str>> = logs.get(of.changelog_name()).map(|id| id.as_str().into());
        for partition in 0..i32::try_from(partitions).unwrap_or(i32::MAX) {
            if stop.load(Ordering::Relaxed) {
                return trouble;
            }
            // Of one that is not followed, others need to know that it exists.
            match if of.wants(partition) { ends.of(&of.changelog(partition)) } else { Ok((0, 0)) } {
                Ok((low, end)) => drop(send.send(Watermarks { space, partition, partitions, low, end, log: log.clone(), asked })),
                Err(error) => trouble = Err(error),
            }
        }
    }
    trouble
}
