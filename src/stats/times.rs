//! Detection of record times that keep a window from moving.
//!
//! Defines the criteria and the warnings. This module never reads the wall clock itself and never changes a verdict.

use super::{Stats, TopicCounts, get, topics};
use crate::config::Config;
use crate::record::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Minimum number of new records per check. A few stray records must not cause a warning.
const RECORDS_MIN: u64 = 5;

/// Plausible times in milliseconds: the years 2000 to 2100. A time that is plausible only after scaling by a power of 1000 is in another
/// unit.
const PLAUSIBLE: std::ops::Range<Timestamp> = 946_684_800_000..4_102_444_800_000;

const UNIT_ADVICE: &str = "make the producers write milliseconds since 1970, or, if the option `time` is set, correct its unit";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecentTimes {
    /// The number of records with a verdict other than passed. For `unseen replay`, the number of all records.
    pub records: u64,
    /// Records with a time beyond `max_future`.
    pub future: u64,
    /// Time of the last record beyond `max_future`, in milliseconds since the epoch.
    pub future_time: Option<Timestamp>,
    /// The latest stream time of the topic's space.
    pub stream_time: Option<Timestamp>,
}

impl RecentTimes {
    /// True if more than one in `share` records is beyond `max_future`.
    const fn is_future(&self, share: u64) -> bool {
        self.future.saturating_mul(share) > self.records
    }

    /// True if the times look like seconds. Read as milliseconds, they are in January or February 1970.
    fn is_seconds(&self) -> bool {
        self.stream_time.is_some_and(is_seconds)
    }

    /// Returns a warning if most records are beyond `max_future`, or if the times look like seconds. `clock` describes the clock that
    /// the record times were compared with, and `now` is its time.
    #[must_use]
    pub fn warning(&self, max_future: Duration, clock: &str, now: Timestamp) -> Option<String> {
        (self.is_future(2) || self.is_seconds()).then(|| self.describe(max_future, clock, now))
    }

    fn describe(&self, max_future: Duration, clock: &str, now: Timestamp) -> String {
        let consequence = "records that should be emitted are dropped as duplicates";
        let Self { records, future, future_time, stream_time } = *self;
        if self.is_seconds() && !self.is_future(2) {
            let time = stream_time.unwrap_or_default();
            return format!(
                "record times such as {time} look like seconds, so keys stay seen 1000 times as long as the window and {consequence}; {UNIT_ADVICE}"
            );
        }
        format!(
            "{future} of the last {records} records are more than {} ahead of {clock}; such records do not move the window, so keys may stay seen for too long and {consequence}; {}",
            humantime::format_duration(max_future),
            likely_cause(future_time.unwrap_or(now), now)
        )
    }
}

/// True if a time is probably in seconds instead of milliseconds.
#[must_use]
pub fn is_seconds(time: Timestamp) -> bool {
    PLAUSIBLE.contains(&time.saturating_mul(1000))
}

/// Returns the unit that a time seems to have, or `None` if it seems to be in milliseconds.
#[must_use]
pub fn wrong_unit(time: Timestamp) -> Option<&'static str> {
    match time {
        time if PLAUSIBLE.start <= time / 1_000_000 => Some("nanoseconds"),
        time if PLAUSIBLE.start <= time / 1000 => Some("microseconds"),
        time => is_seconds(time).then_some("seconds"),
    }
}

#[must_use]
pub fn likely_cause(time: Timestamp, now: Timestamp) -> String {
    if let Some(unit) = wrong_unit(time) {
        return format!("times such as {time} look like {unit}: {UNIT_ADVICE}");
    }
    let ahead = Duration::from_secs(time.saturating_sub(now).max(0).unsigned_abs() / 1000);
    format!("the last one was {} ahead: check this machine's clock, then the producers' clocks", humantime::format_duration(ahead))
}

/// Counts and warning of a topic at the last check.
#[derive(Debug, Default)]
pub(super) struct TimeWatch {
    records: u64,
    future: u64,
    warning: Option<String>,
}

/// A topic whose record times became suspect or plausible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimesChange {
    pub topic: String,
    /// The warning, or `None` if the times are plausible again.
    pub warning: Option<String>,
}

impl TimeWatch {
    /// Compares the total counts with the counts of the last check. Returns true if the topic became suspect or stopped being suspect. A
    /// suspect topic stays suspect while more than a quarter of its recent records are beyond `max_future` or while its times look like
    /// seconds.
    fn check(&mut self, total: RecentTimes, max_future: Duration, now: Timestamp) -> bool {
        let recent = RecentTimes { records: total.records - self.records, future: total.future.saturating_sub(self.future), ..total };
        if recent.records < RECORDS_MIN {
            return false;
        }
        let was_suspect = self.warning.is_some();
        let is_suspect = recent.is_future(if was_suspect { 4 } else { 2 }) || recent.is_seconds();
        let warning = is_suspect.then(|| recent.describe(max_future, "this machine's clock", now));
        *self = Self { records: total.records, future: total.future, warning };
        was_suspect != is_suspect
    }
}

impl TopicCounts {
    #[must_use]
    pub fn time_warning(&self) -> Option<String> {
        self.time_watch().warning.clone()
    }

    fn time_watch(&self) -> MutexGuard<'_, TimeWatch> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stats {
    /// Checks the record times of all topics, if a check is due. Returns the topics that became suspect or plausible.
    pub fn check_times(&self, config: &Config, now: Timestamp) -> Vec<TimesChange> {
        if self.times_checked.age().is_some_and(|age| age < CHECK_INTERVAL) {
            return Vec::new();
        }
        self.times_checked.note();
        let (assigned, stream_times) = (self.assigned(config), self.stream_times(config));
        let mut changes = Vec::new();
        for (topic, counts) in config.topics.iter().zip(&self.topics).filter(|(topic, _)| topic.forgets_by_time()) {
            let mut watch = counts.time_watch();
            let (records, future) = (counts.records() - get(&counts.passed), get(&counts.future));
            if !assigned.contains(&*topic.input) {
                // No worker of this process has a partition of the topic now, so drop the warning.
                *watch = TimeWatch { records, future, warning: None };
                continue;
            }
            let stream_time = stream_times.get(&*topic.space).copied().flatten();
            let future_time = Some(counts.future_time.load(Ordering::Relaxed)).filter(|_| future > 0);
            if watch.check(RecentTimes { records, future, future_time, stream_time }, topic.max_future, now) {
                changes.push(TimesChange { topic: topic.input.clone(), warning: watch.warning.clone() });
            }
        }
        changes
    }

    fn assigned<'c>(&self, config: &'c Config) -> BTreeSet<&'c str> {
        let inputs: BTreeMap<_, _> = topics(config).map(|(name, topic)| (name, &*topic.input)).collect();
        let reports = self.lock();
        let read = reports.values().flat_map(|report| &report.inputs);
        read.filter_map(|report| inputs.get(&report.partition.topic).copied()).collect()
    }

    /// Returns the latest stream time of each key space. An input has no single stream time, because its rules can have different key
    /// spaces.
    fn stream_times<'c>(&self, config: &'c Config) -> BTreeMap<&'c str, Option<Timestamp>> {
        let (spaces, mut times) = (config.spaces(), BTreeMap::new());
        for report in self.lock().values().flat_map(|report| &report.states) {
            let Some(space) = spaces.get(report.space.0) else { continue };
            let time: &mut Option<Timestamp> = times.entry(space.name).or_default();
            *time = (*time).max(report.stream_time);
        }
        times
    }
}

#[cfg(test)]
mod tests {
    use super::super::{InputReport, InputState, LastTime, StateReport, WorkerReport, add};
    use super::*;
    use crate::record::{SpaceId, TopicPartition};

    const NOW: Timestamp = 1_767_268_800_000;
    const MAX_FUTURE: Duration = Duration::from_secs(300);

    /// Returns a topic's totals after more records, some of them with a future `time`.
    fn after(watch: &TimeWatch, records: u64, future: u64, time: Timestamp) -> RecentTimes {
        let [records, future] = [watch.records + records, watch.future + future];
        RecentTimes { records, future, future_time: Some(time), stream_time: Some(NOW) }
    }

    fn checked(watch: &mut TimeWatch, records: u64, future: u64) -> bool {
        watch.check(after(watch, records, future, NOW * 1000), MAX_FUTURE, NOW)
    }

    #[test]
    fn stray_future_records_raise_no_warning() {
        let mut watch = TimeWatch::default();
        for (records, future) in [(1, 1), (4, 2), (100_000, 50_000), (5, 1)] {
            assert!(!checked(&mut watch, records, future), "{future} of {records}");
            assert_eq!(watch.warning, None);
        }
    }

    #[test]
    fn a_topic_that_is_mostly_future_warns_once_and_clears_once() {
        let mut watch = TimeWatch::default();
        assert!(checked(&mut watch, 100, 51));
        assert!(!checked(&mut watch, 1000, 1000), "already warned");
        assert!(!checked(&mut watch, 100, 30), "still more than a quarter");
        assert!(watch.warning.is_some());
        assert!(checked(&mut watch, 100, 20));
        assert_eq!(watch.warning, None);
        assert!(!checked(&mut watch, 100, 40), "less than half");
    }

    #[test]
    fn few_records_are_added_to_the_next_check() {
        let mut watch = TimeWatch::default();
        let total = |records| RecentTimes { records, future: records, future_time: Some(NOW * 1000), stream_time: None };
        for records in 1..RECORDS_MIN {
            assert!(!watch.check(total(records), MAX_FUTURE, NOW));
        }
        assert!(watch.check(total(RECORDS_MIN), MAX_FUTURE, NOW));
    }

    fn input(topic: &str) -> InputReport {
        InputReport {
            partition: TopicPartition { topic: topic.to_owned(), partition: 0 },
            space: SpaceId(0),
            state: InputState::Running,
            position: 0,
            committed: 0,
            end: None,
            stream_time: None,
            open_transaction_since: None,
            unreadable_since: None,
        }
    }

    /// Returns the stats of three topics, each with ten records from the future. A worker owns their partitions if `is_assigned`.
    fn of_future_records(is_assigned: bool) -> (Config, Stats) {
        let topic = |name: &str, window: &str, filter: &str| {
            format!("{{ input: {name}, output: out, key: {{ record: key }}, window: {window}, filter: {filter} }}")
        };
        let topics = [
            topic("timed", "1h", "{ kind: exact }"),
            topic("counted", "{ keys: 10 }", "{ kind: exact }"),
            topic("stable", "1h", "{ kind: stable, memory: 1MiB }"),
        ];
        let config = Config::of_text(&format!("kafka: {{ bootstrap_servers: a }}\ntopics: [{}]", topics.join(", ")));
        let stats = Stats::new(&config);
        let inputs = ["timed", "counted", "stable"].into_iter().filter(|_| is_assigned).map(input).collect();
        stats.report(0, WorkerReport { inputs, ..WorkerReport::default() });
        for counts in &stats.topics {
            add(&counts.unseen, 10);
            add(&counts.future, 10);
            counts.future_time.store(NOW * 1000, Ordering::Relaxed);
        }
        (config, stats)
    }

    #[test]
    fn only_assigned_topics_that_forget_by_time_are_watched() {
        let (config, stats) = of_future_records(true);
        let changes = stats.check_times(&config, NOW);
        assert_eq!(changes.iter().map(|change| &*change.topic).collect::<Vec<_>>(), ["timed"]);
        assert_eq!(changes[0].warning, stats.topics[0].time_warning());
        assert_eq!(stats.check_times(&config, NOW), [], "the next check is not due");
        let (config, stats) = of_future_records(false);
        assert_eq!(stats.check_times(&config, NOW), []);
    }

    #[test]
    fn each_entry_of_an_input_has_its_own_times() {
        let entry = |space: &str| {
            format!(
                "{{ input: in, output: out, space: {space}, when: {{ header: type, equals: {space} }}, key: {{ record: key }}, window: 1h, filter: {{ kind: exact }} }}"
            )
        };
        let config = Config::of_text(&format!("kafka: {{ bootstrap_servers: a }}\ntopics: [{}, {}]", entry("a"), entry("b")));
        let stats = Stats::new(&config);
        let report = |space, time| StateReport {
            space: SpaceId(space),
            keys: 1,
            bytes: 1,
            load: 0.0,
            estimated: 0.0,
            observed: None,
            stream_time: Some(time),
            capacity: 1,
        };
        let reports = vec![report(0, NOW), report(1, NOW / 1000)];
        stats.report(0, WorkerReport { inputs: vec![input("in")], states: reports, ..WorkerReport::default() });
        stats.topics.iter().for_each(|counts| add(&counts.unseen, 10));
        assert_eq!(stats.check_times(&config, NOW).len(), 1);
        assert_eq!(stats.topics[0].time_warning(), None);
        assert!(stats.topics[1].time_warning().is_some_and(|warning| warning.contains("look like seconds")));
    }

    #[test]
    fn a_topic_that_moved_to_other_processes_is_not_suspect_here() {
        let (config, mut stats) = of_future_records(true);
        stats.check_times(&config, NOW);
        assert!(stats.topics[0].time_warning().is_some());
        stats.times_checked = LastTime::default();
        stats.report(0, WorkerReport::default());
        assert_eq!(stats.check_times(&config, NOW), []);
        assert_eq!(stats.topics[0].time_warning(), None);
    }

    #[test]
    fn the_warning_names_the_likely_cause() {
        let warning = |future, future_time, stream_time| {
            let recent = RecentTimes { records: 10, future, future_time: Some(future_time), stream_time: Some(stream_time) };
            recent.warning(MAX_FUTURE, "this machine's clock", NOW)
        };
        assert_eq!(
            warning(6, NOW * 1000, NOW).as_deref(),
            Some(
                "6 of the last 10 records are more than 5m ahead of this machine's clock; such records do not move the window, so keys may stay seen for too long and records that should be emitted are dropped as duplicates; times such as 1767268800000000 look like microseconds: make the producers write milliseconds since 1970, or, if the option `time` is set, correct its unit"
            )
        );
        for (time, text) in [
            (NOW * 1_000_000, "look like nanoseconds"),
            (NOW + 3_540_000, "the last one was 59m ahead: check this machine's clock, then the producers' clocks"),
        ] {
            assert!(warning(10, time, NOW).is_some_and(|warning| warning.contains(text)), "{text}");
        }
        let seconds = warning(0, 0, NOW / 1000);
        assert!(
            seconds.as_ref().is_some_and(|warning| warning.starts_with("record times such as 1767268800 look like seconds")),
            "{seconds:?}"
        );
        for stream_time in [0, 1, 86_400_000, NOW] {
            assert_eq!(warning(5, NOW * 1000, stream_time), None);
        }
    }
}
