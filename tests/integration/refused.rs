//! Promise: `on_invalid` determines what happens to a record that a topic permanently rejects, because of the record's time or a missing
//! key. The other records in the batch are emitted, once each with `exactly_once`.

use crate::harness::{Group, Setup, TestRecord, Worker, broker, committed_offset, logged, produce, read_committed, topic_with, wait_until};
use crate::stream::LIMIT;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

const HOUR: i64 = 3_600_000;

#[derive(Clone, Copy, PartialEq)]
enum Refusal {
    /// A record without a key, in a compacted topic.
    NoKey,
    /// A record that is older than the topic's `message.timestamp.before.max.ms` allows.
    Old,
    /// A record that is further in the future than the topic's `message.timestamp.after.max.ms` allows.
    Ahead,
}

impl Refusal {
    const ALL: [Self; 3] = [Self::NoKey, Self::Old, Self::Ahead];

    const fn property(self) -> (&'static str, &'static str) {
        match self {
            Self::NoKey => ("cleanup.policy", "compact"),
            Self::Old => ("message.timestamp.before.max.ms", "86400000"),
            Self::Ahead => ("message.timestamp.after.max.ms", "86400000"),
        }
    }
}

struct Case {
    refusal: Refusal,
    setup: Setup,
    input: String,
    output: String,
    now: i64,
    /// The IDs of the accepted records, by partition and in order. The field `bad` has the IDs of the rejected records.
    good: BTreeMap<i32, Vec<String>>,
    bad: BTreeMap<i32, Vec<String>>,
    next: usize,
}

impl Case {
    fn new(refusal: Refusal, delivery: &str, lines: &str) -> Self {
        let input = topic_with(broker(), "refused", 2, &[("message.timestamp.after.max.ms", "9223372036854775807")]);
        let output = topic_with(broker(), "refused-out", 2, &[refusal.property()]);
        let lines = format!("space = \"ids\"\nkey = {{ field = \"/id\" }}\nwindow = \"30d\"\nfilter = {{ kind = \"exact\" }}\n{lines}");
        let worker = format!("commit_interval = \"100ms\"\ndelivery = \"{delivery}\"");
        let setup = Setup::new(broker(), "refused").worker(&worker).topic(&input, &output, &lines);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_millis();
        let now = i64::try_from(now).expect("a time");
        Self { refusal, setup, input, output, now, good: BTreeMap::new(), bad: BTreeMap::new(), next: 0 }
    }

    fn record(&self, id: &str, partition: i32, is_bad: bool) -> TestRecord {
        let key = (!is_bad || self.refusal != Refusal::NoKey).then(|| id.as_bytes().to_vec());
        let timestamp = match self.refusal {
            Refusal::Old if is_bad => self.now - 72 * HOUR,
            Refusal::Ahead if is_bad => self.now + 72 * HOUR,
            _ => self.now,
        };
        TestRecord { partition, key, value: Some(format!("{{\"id\":\"{id}\"}}").into_bytes()), headers: Vec::new(), timestamp }
    }

    /// Sends `count` different records to each partition. `is_bad` selects the numbers of bad records. Each good record is sent twice.
    fn send(&mut self, count: usize, is_bad: impl Fn(usize) -> bool) {
        let mut records = Vec::new();
        for number in 0..count {
            for partition in 0..2 {
                let (id, is_bad) = (format!("{partition}-{}", self.next), is_bad(number));
                let record = self.record(&id, partition, is_bad);
                records.extend((!is_bad).then(|| record.clone()));
                records.push(record);
                if is_bad { &mut self.bad } else { &mut self.good }.entry(partition).or_default().push(id);
            }
            self.next += 1;
        }
        produce(broker(), &self.input, &records);
    }

    fn wait(&self, worker: &mut Worker) {
        let end = |partition| self.good[&partition].len() * 2 + self.bad.get(&partition).map_or(0, Vec::len);
        wait_until("everything is read", LIMIT, || {
            assert!(worker.runs(), "the worker has ended");
            let is_read =
                |partition| committed_offset(broker(), self.setup.group(), &self.input, partition) == i64::try_from(end(partition)).ok();
            (0..2).all(is_read).then_some(())
        });
    }

    /// Panics unless the output has exactly the accepted records. Without `exactly`, ignores duplicates.
    fn check_output(&self, exactly: bool) {
        let mut output = ids(&self.output);
        if !exactly {
            for ids in output.values_mut() {
                let mut seen = std::collections::HashSet::new();
                ids.retain(|id| seen.insert(id.clone()));
            }
        }
        assert_eq!(output, self.good);
    }

    /// Panics unless the rejected records are dead letters, each with the reason and the time of the record.
    fn check_letters(&self, dead_letters: &str) {
        assert_eq!(ids(dead_letters), self.bad);
        for letter in read_committed(broker(), dead_letters, 2).concat() {
            let header = |name: &str| {
                let value = letter.headers.iter().find(|(header, _)| header == name).and_then(|(_, value)| value.clone());
                String::from_utf8(value.unwrap_or_else(|| panic!("no header {name} in {letter:?}"))).expect("UTF-8")
            };
            assert_eq!(header("__connect.errors.exception.class.name"), "unseen.refused");
            let message = header("__connect.errors.exception.message");
            assert!(message.starts_with(&format!("topic {:?} rejected the record: ", self.output)), "{message}");
            let names = if self.refusal == Refusal::NoKey { "without key" } else { "out of range" };
            assert!(message.contains(names), "{message}");
            let record = self.record("", letter.partition, true);
            assert_eq!((header("unseen-timestamp"), letter.timestamp), (record.timestamp.to_string(), -1));
        }
    }
}

fn ids(topic: &str) -> BTreeMap<i32, Vec<String>> {
    let mut ids: BTreeMap<i32, Vec<String>> = BTreeMap::new();
    for record in read_committed(broker(), topic, 2).concat() {
        let id = record.text().trim_start_matches("{\"id\":\"").trim_end_matches("\"}").to_owned();
        ids.entry(record.partition).or_default().push(id);
    }
    ids
}

/// True for single records, for several in a row, and for the last of 400 records.
const fn mixed(number: usize) -> bool {
    matches!(number, 100 | 200..=205 | 207 | 399)
}

#[test]
fn rejected_records_become_dead_letters() {
    for (refusal, delivery) in Refusal::ALL.map(|refusal| (refusal, "exactly_once")).into_iter().chain([(Refusal::NoKey, "at_least_once")])
    {
        let mut case = Case::new(refusal, delivery, "");
        // If the output rejects the time of a record, the dead-letter topic rejects this time, too.
        let properties = if refusal == Refusal::NoKey { vec![] } else { vec![refusal.property()] };
        let dead_letters = topic_with(broker(), "refused-dead", 2, &properties);
        case.send(400, mixed);
        let mut worker = case.setup.start_with("a", &[&format!("topics[0].on_invalid.topic={dead_letters}")]);
        case.wait(&mut worker);
        // The worker has seen by now that this broker identifies rejected records, so it does not have to try each record.
        let tries = |log: &str| log.matches("a topic rejected records").count();
        let before = tries(&worker.log());
        assert!(before > 0, "nothing was tried");
        case.send(300, |number| number % 100 >= 50);
        case.wait(&mut worker);
        let log = worker.drain();
        case.check_output(delivery == "exactly_once");
        if delivery == "exactly_once" {
            case.check_letters(&dead_letters);
        }
        assert!(tries(&log) < before + 50, "a try for each of 300 records: {before} before, then {}", tries(&log));
        assert_eq!(logged(&log, "invalid"), case.bad.values().map(Vec::len).sum::<usize>() as u64, "{log}");
    }
}

/// The broker rejects a whole batch. The batch itself may be the reason, so the worker tries its records one by one.
#[test]
fn batch_of_rejected_records_loses_nothing() {
    for refusal in Refusal::ALL {
        let mut case = Case::new(refusal, "exactly_once", "on_invalid = \"drop\"");
        case.send(5, |_| true);
        case.send(50, |_| false);
        let mut worker = case.setup.start("a");
        case.wait(&mut worker);
        worker.drain();
        case.check_output(true);
    }
}

/// With `at_least_once`, an abort does not remove forwarded records from the repartition topic. If the worker forwarded all of these
/// records again, the output would also reject the copies of the bad records.
#[test]
fn records_are_forwarded_once_while_others_are_rejected() {
    let mut case = Case::new(Refusal::NoKey, "at_least_once", "repartition = true\non_invalid = \"drop\"");
    let mut worker = case.setup.start("a");
    for _ in 0..5 {
        case.send(100, |number| number % 10 == 3);
        case.wait(&mut worker);
    }
    let repartitioned = format!("{}-{}-repartition", case.setup.group(), case.input);
    let group = Group::new(broker(), case.setup.group(), &repartitioned, 2);
    wait_until("the repartition topic is read", LIMIT, || group.has_read_all().then_some(()));
    let log = worker.drain();
    assert!(log.contains("a topic rejected records"), "{log}");
    let sent: usize = case.good.values().map(|ids| ids.len() * 2).chain(case.bad.values().map(Vec::len)).sum();
    let forwarded: i64 = group.committed().expect("the broker answers").into_iter().sum();
    assert_eq!(usize::try_from(forwarded), Ok(sent));
    let mut emitted: Vec<_> = ids(&case.output).into_values().flatten().collect();
    emitted.sort_unstable();
    emitted.dedup();
    let mut good: Vec<_> = case.good.into_values().flatten().collect();
    good.sort_unstable();
    assert_eq!(emitted, good);
}

/// A tombstone has no field `/id`, so it bypasses the repartition topic, and the output itself can reject it.
#[test]
fn rejected_tombstone_is_dropped_before_repartitioning() {
    let mut case = Case::new(Refusal::NoKey, "exactly_once", "repartition = true\non_invalid = \"drop\"");
    case.send(20, |_| false);
    let tombstone = TestRecord { value: None, ..case.record("none", 0, true) };
    produce(broker(), &case.input, [tombstone]);
    case.bad.insert(0, vec![String::new()]);
    let mut worker = case.setup.start("a");
    case.wait(&mut worker);
    let log = worker.drain();
    assert!(log.contains("a topic rejected records, which are now invalid"), "{log}");
}

#[test]
fn rejected_record_stops_the_worker_by_default() {
    for (on_invalid, delivery) in [("fail", "exactly_once"), ("emit", "at_least_once")] {
        let mut case = Case::new(Refusal::NoKey, delivery, &format!("on_invalid = \"{on_invalid}\""));
        case.send(100, |number| number == 50);
        let log = case.setup.start("a").fails(1);
        let place = format!("offset 100: topic {:?} rejected the record: Compacted topic cannot accept message without key", case.output);
        assert!(log.contains(&place), "{log}");
        assert!(log.contains("To continue past it, set on_invalid to \"drop\" or { topic = \"...\" } for topic "), "{log}");
        // Nothing is lost: with another setting, the worker continues from the rejected record.
        let mut worker = case.setup.start_with("a", &["topics[0].on_invalid=drop"]);
        case.wait(&mut worker);
        worker.drain();
        case.check_output(delivery == "exactly_once");
    }
}

#[test]
fn rejected_duplicate_becomes_invalid() {
    let duplicates = topic_with(broker(), "refused-repeats", 2, &[Refusal::Old.property()]);
    for on_duplicate in ["\"mark\"".to_owned(), format!("{{ topic = {duplicates:?} }}")] {
        let mut case = Case::new(Refusal::Old, "exactly_once", &format!("on_invalid = \"drop\"\non_duplicate = {on_duplicate}"));
        case.send(50, |_| false);
        let old: Vec<_> = (0..10).map(|number| case.record(&format!("0-{number}"), 0, true)).collect();
        produce(broker(), &case.input, &old);
        case.bad.insert(0, vec![String::new(); old.len()]);
        let mut worker = case.setup.start("a");
        case.wait(&mut worker);
        let log = worker.drain();
        // Each record was sent twice. The duplicate is marked in the output or is in a separate topic.
        let repeats = if on_duplicate == "\"mark\"" { &case.output } else { &duplicates };
        let repeats = ids(repeats);
        let marked = |(partition, ids): (&i32, &Vec<String>)| {
            let twice = ids.iter().flat_map(|id| [id.clone(), id.clone()]).collect();
            (*partition, if repeats == case.good { ids.clone() } else { twice })
        };
        assert_eq!(repeats, case.good.iter().map(marked).collect());
        assert!(log.contains("invalid=10"), "{log}");
    }
}

#[test]
fn rejected_dead_letters_stop_the_worker() {
    let mut case = Case::new(Refusal::NoKey, "exactly_once", "");
    let dead_letters = topic_with(broker(), "refused-dead", 2, &[Refusal::NoKey.property()]);
    case.send(100, |number| number == 50);
    let log = case.setup.start_with("a", &[&format!("topics[0].on_invalid.topic={dead_letters}")]).fails(1);
    assert!(
        log.contains(&format!(
            "{dead_letters:?} is the dead-letter topic, so the worker cannot continue past this record; change the settings"
        )),
        "{log}"
    );
    let mut worker = case.setup.start_with("a", &["topics[0].on_invalid=drop"]);
    case.wait(&mut worker);
    worker.drain();
    case.check_output(true);
}

/// If the dead-letter topic rejects the time of a dead letter, the letter is written without the time and keeps its original reason.
#[test]
fn dead_letter_with_a_rejected_time_is_written_without_it() {
    let mut case = Case::new(Refusal::Old, "exactly_once", "");
    let dead_letters = topic_with(broker(), "refused-dead", 2, &[Refusal::Old.property()]);
    case.send(20, |_| false);
    let mut broken = case.record("", 0, true);
    broken.value = Some(b"{\"id\":".to_vec());
    produce(broker(), &case.input, [&broken]);
    case.bad.insert(0, vec![String::new()]);
    let mut worker = case.setup.start_with("a", &[&format!("topics[0].on_invalid.topic={dead_letters}")]);
    case.wait(&mut worker);
    worker.drain();
    case.check_output(true);
    let letters = read_committed(broker(), &dead_letters, 2).concat();
    assert_eq!(letters.iter().map(|letter| (letter.value.clone(), letter.timestamp)).collect::<Vec<_>>(), [(broken.value, -1)]);
}

/// The changelog already exists and is compacted, so brokers would reject its records, which have no key.
#[test]
fn a_compacted_changelog_stops_the_worker() {
    let mut case = Case::new(Refusal::NoKey, "exactly_once", "");
    let changelog = format!("{}-ids-changelog", case.setup.group());
    topic_of(&changelog);
    case.send(20, |_| false);
    let log = case.setup.start("a").fails(1);
    assert!(log.contains(&format!("{changelog:?} has cleanup.policy=compact; set it to delete")), "{log}");
}

fn topic_of(changelog: &str) {
    crate::harness::make_topic_with(broker(), changelog, 2, &[Refusal::NoKey.property()]);
}
