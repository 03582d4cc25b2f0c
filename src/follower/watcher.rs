//! Asks the brokers once per second for the partitions and the ends of the changelogs.
//!
//! Passes the answers to the applier. Only the applier changes states.

use super::space::Space;
use crate::broker::{ChangelogEnds, Error};
use crate::config::Config;
use crate::record::{Offset, Timestamp};
use crate::runtime;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time to notice a stop request between two rounds.
const TICK: Duration = Duration::from_millis(50);
/// The shortest time between two log lines about failed requests.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The timeout of a request to the leader of a partition.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of a request for a [`Failing`] partition, if another partition has answered in the same round.
const FAILING_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of [`Failing`] partitions that may fail again before the round ends.
const FAILURES_MAX: usize = 2;

/// The offsets at which a changelog partition starts and ends. If this process does not follow the partition, `low` and `end` are 0.
#[derive(Clone, Debug)]
pub(super) struct Watermarks {
    pub(super) space: usize,
    pub(super) partition: i32,
    pub(super) partitions: u32,
    pub(super) low: Offset,
    /// The last stable offset.
    pub(super) end: Offset,
    /// The high watermark, requested after the other offsets and only while the partition is loading. Loading must reach the high
    /// watermark, because a state that is loaded only to `end` can lack keys that have not expired at `end`: as soon as a worker has
    /// committed a transaction, it trims the changelog records of the keys that expired in the transaction, but the last stable offset can
    /// still be lower than the offsets of the transaction's records.
    pub(super) high: Option<Offset>,
    /// The id of the topic, if brokers report ids.
    pub(super) log: Option<Arc<str>>,
    /// Start time of the round of requests, in milliseconds since the epoch.
    pub(super) asked: Timestamp,
}

pub(super) fn run(config: &Config, spaces: &[Space], ends: &impl ChangelogEnds, stop: &AtomicBool, send: &Sender<Watermarks>) {
    let (mut reported, mut missing): (Option<Instant>, BTreeSet<&str>) = (None, BTreeSet::new());
    let mut failing = Failing::default();
    while !stop.load(Ordering::Relaxed) {
        let began = runtime::now();
        let result = round(spaces, ends, stop, send, &mut missing, &mut failing);
        if let Err(error) = result
            && reported.is_none_or(|at| runtime::since(at) > REPORT_INTERVAL)
        {
            reported = Some(runtime::now());
            tracing::warn!(servers = config.kafka.bootstrap_servers, error = %error, "cannot get the end offsets of some changelogs; serving the last known state of the affected partitions and retrying");
        }
        while runtime::since(began) < INTERVAL && !stop.load(Ordering::Relaxed) {
            runtime::sleep(TICK);
        }
    }
}

/// Requests the watermarks of every space's partitions once. Returns one of the errors, if any.
fn round<'s>(
    spaces: &'s [Space],
    ends: &impl ChangelogEnds,
    stop: &AtomicBool,
    send: &Sender<Watermarks>,
    missing: &mut BTreeSet<&'s str>,
    failing: &mut Failing,
) -> Result<(), Error> {
    // Take the time before the requests, because the answers may lack commits that happen after a request.
    let asked = runtime::wall_clock();
    let mut result = Ok(());
    // The number of partitions of each space, or 0 if it is not known.
    let mut counts = vec![0; spaces.len()];
    for (count, space) in counts.iter_mut().zip(spaces) {
        match ends.partitions(space.changelog_name()) {
            Ok(0) if missing.insert(space.name()) => tracing::warn!(
                space = space.name(),
                topic = space.changelog_name(),
                "the changelog does not exist yet, so no key of this space can be looked up; a worker creates the changelog when it starts"
            ),
            Ok(partitions) => *count = partitions,
            Err(error) => result = Err(error),
        }
    }
    let topics: Vec<_> = spaces.iter().zip(&counts).filter(|&(_, &count)| count > 0).map(|(space, _)| space.changelog_name()).collect();
    let ids = ends.ids(&topics);
    let logs: Vec<Option<Arc<str>>> = spaces.iter().map(|space| ids.get(space.changelog_name()).map(|id| id.as_str().into())).collect();
    let places = counts.iter().enumerate().flat_map(|(space, &count)| (0..count.cast_signed()).map(move |partition| (space, partition)));
    let answers = failing.ask_all(&places.collect::<Vec<_>>(), &mut |(space, partition), timeout| {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (of, partitions, log) = (&spaces[space], counts[space], logs[space].clone());
        // The applier needs to know that a partition exists, even if this process does not follow it.
        let (mut low, mut end, mut high) = (0, 0, None);
        if of.follows(partition) {
            let changelog = of.changelog(partition);
            (low, end) = ends.of(&changelog, timeout)?;
            if of.is_loading(partition) {
                high = Some(ends.high_watermark(&changelog, timeout)?);
            }
        }
        let _ = send.send(Watermarks { space, partition, partitions, low, end, high, log, asked });
        Ok(())
    });
    result.and(answers)
}

/// The index of a space and a partition of its changelog.
type Place = (usize, i32);

/// Partitions that did not answer. The next round asks them last, and with a short timeout if another partition has answered in that round.
/// So an offline topic does not delay the answers for other topics.
#[derive(Debug, Default)]
struct Failing(VecDeque<Place>);

impl Failing {
    /// Calls `ask` at most once for each partition. Partitions that failed before come last. If [`FAILURES_MAX`] of them fail again, the
    /// remaining failed partitions wait for the next round. Returns the last error.
    fn ask_all(&mut self, places: &[Place], ask: &mut dyn FnMut(Place, Duration) -> Result<(), Error>) -> Result<(), Error> {
        let (mut result, mut failed, mut timeout) = (Ok(()), VecDeque::new(), TIMEOUT);
        self.0.retain(|place| places.contains(place));
        let known: BTreeSet<Place> = self.0.iter().copied().collect();
        for &place in places.iter().filter(|place| !known.contains(place)) {
            // If one partition of a topic is offline, the other partitions of the topic usually are, too. Ask them at the end of the round.
            if failed.iter().any(|&(space, _)| space == place.0) {
                self.0.push_front(place);
                continue;
            }
            match ask(place, TIMEOUT) {
                Ok(()) => timeout = FAILING_TIMEOUT,
                Err(error) => {
                    result = Err(error);
                    failed.push_back(place);
                }
            }
        }
        // If no partition has answered, the brokers may just be slow, so `timeout` is still the full timeout.
        let mut failures = 0;
        while failures < FAILURES_MAX
            && let Some(place) = self.0.pop_front()
        {
            if let Err(error) = ask(place, timeout) {
                (result, failures) = (Err(error), failures + 1);
                failed.push_back(place);
            }
        }
        self.0.append(&mut failed);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: [Place; 8] = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 0), (1, 1)];

    /// Runs a round in which requests to the partitions in `offline` fail. Returns the requested partitions in order, each with its timeout
    /// in seconds.
    fn round(failing: &mut Failing, offline: &[Place]) -> Vec<(Place, u64)> {
        let mut questions = Vec::new();
        let answers = failing.ask_all(&PLACES, &mut |place, timeout| {
            questions.push((place, timeout.as_secs()));
            if offline.contains(&place) { Err(Error::Fatal("no leader".to_owned())) } else { Ok(()) }
        });
        assert_eq!(answers.is_err(), questions.iter().any(|(place, _)| offline.contains(place)));
        questions
    }

    /// Returns the seconds until a partition is asked, if every request to an offline partition takes its full timeout.
    fn delay(questions: &[(Place, u64)], offline: &[Place], place: Place) -> u64 {
        questions
            .iter()
            .take_while(|&&(asked, _)| asked != place)
            .filter(|(asked, _)| offline.contains(asked))
            .map(|(_, limit)| limit)
            .sum()
    }

    #[test]
    fn an_offline_topic_does_not_delay_others() {
        let (mut failing, offline) = (Failing::default(), &PLACES[..6]);
        let questions = round(&mut failing, offline);
        assert_eq!(delay(&questions, offline, (1, 1)), 10, "{questions:?}");
        let mut asked = BTreeSet::new();
        for _ in 0..3 {
            let questions = round(&mut failing, offline);
            assert_eq!(questions[..2], [((1, 0), 10), ((1, 1), 10)]);
            assert_eq!(questions[2..].iter().map(|(_, limit)| limit).sum::<u64>(), 2);
            asked.extend(questions[2..].iter().map(|&(place, _)| place));
        }
        assert_eq!(asked, offline.iter().copied().collect(), "each partition is asked in turn");
        assert_eq!(round(&mut failing, &[]).len(), PLACES.len(), "all are online again");
        assert_eq!(round(&mut failing, &[]), PLACES.map(|place| (place, 10)));
    }

    #[test]
    fn an_offline_partition_does_not_delay_others_of_its_topic() {
        let (mut failing, offline) = (Failing::default(), &PLACES[2..3]);
        for _ in 0..3 {
            let questions = round(&mut failing, offline);
            assert_eq!(questions.len(), PLACES.len());
        }
        assert_eq!(round(&mut failing, offline).pop(), Some(((0, 2), 1)), "asked last");
    }

    #[test]
    fn slow_brokers_get_the_full_timeout() {
        let mut failing = Failing::default();
        for _ in 0..5 {
            assert!(round(&mut failing, &PLACES).iter().all(|&(_, limit)| limit == 10));
        }
    }
}
