//! Promise: at every commit, a follower gives the same answers as the worker, for any combination of filters.

use super::*;
use crate::changelog::{Origin, PendingChanges, Span};
use crate::config::Config;
use crate::dedup::Dedup;
use crate::filter::{Kind, Size};
use crate::follower::space::Space;
use crate::follower::{Answer, Query, Unavailable};
use crate::key::Scratch;
use crate::key::numbered::key;
use crate::record::{Record, TopicId};
use std::hint::black_box;
use xxhash_rust::xxh3::xxh3_64;

const KEYS_ASKED: u64 = 150;

/// Returns a configuration with one topic. `topic` and `serve` are additional lines of the file.
fn config(topic: &str, serve: &str) -> Config {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("unseen.toml");
    let head = "[kafka]\nbootstrap_servers = \"localhost:1\"\n[[topics]]\ninput = \"in\"\noutput = \"out\"\nkey = { record = \"key\" }\n";
    std::fs::write(&file, format!("{head}{topic}\n{serve}")).unwrap();
    Config::load(&file, &[]).unwrap()
}

fn space(config: &Config) -> Space {
    Space::new(config, &config.spaces()[0]).unwrap()
}

/// A worker's changelog, and its answers.
struct Live {
    dedup: Dedup,
    pending: PendingChanges,
    origin: Origin,
    epoch: i64,
    position: Offset,
    committed: Offset,
    warms_up: bool,
    log: Vec<Vec<u8>>,
}

impl Live {
    fn new(rules: Rules, origin: Origin) -> Self {
        let (dedup, pending) = (Dedup::new(rules), PendingChanges::default());
        Self { dedup, pending, origin, epoch: 1, position: 0, committed: 0, warms_up: false, log: Vec::new() }
    }

    fn judge(&mut self, number: u64, time: i64, retract: bool) {
        let done = if retract {
            self.dedup.retract(key(number), Some(time), i64::MAX)
        } else {
            self.dedup.judge(key(number), Some(time), i64::MAX)
        };
        done.unwrap();
        self.pending.note(&self.dedup, TopicId(0), self.position, key(number));
        self.position += 1;
    }

    /// Logs the changes since the last commit, if any.
    fn commit(&mut self) {
        let (span, ends) = (Span { topic: "in", start: self.committed, end: self.position }, [(TopicId(0), self.position)]);
        let spans: Vec<_> = [span].into_iter().chain(self.warms_up.then_some(Span::WARM_UP)).collect();
        let records = self.pending.records(&self.dedup, self.origin, self.epoch, &spans, &ends, self.dedup.stream_time());
        self.log.extend(records.into_iter().map(|(_, record)| record));
        self.pending.committed(&ends);
        self.committed = self.position;
    }

    fn end(&self) -> Offset {
        Offset::try_from(self.log.len()).unwrap()
    }
}

fn watermarks(low: Offset, end: Offset, asked: i64) -> Watermarks {
    Watermarks { space: 0, partition: 0, partitions: 1, low, end, log: None, asked }
}

/// Applies the changelog from the follower's position.
fn catch_up(partition: &mut PartitionApplier<'_>, live: &Live) {
    let from = usize::try_from(partition.next).unwrap();
    for (offset, value) in live.log.iter().enumerate().skip(from) {
        partition.take(&Event::Record(Logged { offset: Offset::try_from(offset).unwrap(), time: None, value }));
    }
}

fn asked(partition: &Partition) -> Result<Vec<bool>, Unavailable> {
    let keys: Vec<_> = (0..KEYS_ASKED).map(key).collect();
    let mut seen = vec![false; keys.len()];
    partition.ask(&keys, &mut seen).map(|()| seen)
}

fn known(live: &Live) -> Vec<bool> {
    (0..KEYS_ASKED).map(|number| live.dedup.would_drop(key(number)).unwrap().is_some()).collect()
}

#[test]
fn a_follower_answers_like_the_worker_at_every_commit() {
    let windows = [r#"window = "10s""#, r"window = { keys = 40 }"];
    let kinds: Vec<_> = Kind::ALL.iter().copied().filter(|kind| kind.properties().keeps_window).collect();
    let workers: Vec<_> = kinds.iter().map(|&kind| (kind, false)).chain([(Kind::default(), true)]).collect();
    let followers = || kinds.iter().copied().filter(|kind| !kind.is_on_disk()).map(Some);
    for window in windows {
        for &worker in &workers {
            for follower in followers().chain([None]) {
                for (refresh, seed) in [(false, 1), (true, 2), (false, 3), (true, 4)] {
                    follows(window, worker, follower, refresh, seed);
                }
            }
        }
    }
}

/// The options of a filter. In a window by count, the window determines the capacity.
fn filter(window: &str, kind: Kind, confirm: bool) -> String {
    let has_capacity = kind.properties().size == Size::Capacity;
    let rate = if has_capacity && !confirm { ", false_positive_rate = 1e-9" } else { "" };
    let capacity = if has_capacity && window.contains('"') { ", capacity = 60" } else { "" };
    format!("{{ kind = {:?}, confirm = {confirm}{rate}{capacity} }}", kind.name())
}

/// Compares a follower with a worker over a stream of records. `follower` is the follower's own filter, if it has one.
fn follows(window: &str, (worker, confirm): (Kind, bool), follower: Option<Kind>, refresh: bool, seed: u64) {
    // With `confirm`, the worker's filter in memory has a high error rate, which the exact store corrects. The follower has no exact store,
    // so it gets a filter of its own.
    let own = follower.or(confirm.then(Kind::default));
    if own.is_none() && worker.is_on_disk() {
        return;
    }
    let can_retract = |kind: Kind| kind.properties().can_retract;
    let retracts = (confirm || can_retract(worker)) && can_retract(own.unwrap_or(worker));
    let retract = if retracts { "\nretract = { header = \"r\" }" } else { "" };
    let serve = own.map_or_else(String::new, |own| format!("[serve.filters]\nin = {}", filter(window, own, false)));
    let topic = format!("{window}\nfilter = {}\nrefresh = {refresh}{retract}", filter(window, worker, confirm));
    let config = config(&topic, &serve);
    let space = space(&config);
    let mut live = Live::new(config.topics[0].rules(1), space.written());
    let mut partition = PartitionApplier::new(&space, &watermarks(0, 0, 1));
    partition.update_watermarks(watermarks(0, 0, 1));
    let what = format!("{topic} by {own:?}, seed {seed}");
    let (mut time, mut number) = (1_700_000_000_000_i64, seed);
    let mut random = |below: u64| {
        number = xxh3_64(&number.to_le_bytes());
        number % below
    };
    for step in 0..600 {
        time += [0, 7, 40, 400, 4_000][usize::try_from(random(5).min(random(5) + 1)).unwrap()];
        let jitter = i64::try_from(random(300)).unwrap();
        live.judge(random(KEYS_ASKED), time - jitter, retracts && random(10) == 0);
        if random(7) == 0 {
            live.commit();
            catch_up(&mut partition, &live);
            assert_eq!(asked(&partition.shared).unwrap(), known(&live), "{what}, step {step}");
        }
    }
}

const AGING: &str = "window = \"1h\"\nfilter = { capacity = 1000, false_positive_rate = 1e-9 }";

/// The worker's exact store corrects the errors of its filter in memory. A follower has no exact store, so a retraction would remove other
/// keys.
#[test]
fn retractions_with_confirm_need_a_separate_filter() {
    for kind in ["cuckoo", "aging"] {
        let filter = format!("kind = \"{kind}\", confirm = true, capacity = 400, false_positive_rate = 0.2");
        let topic = format!("window = \"1h\"\nfilter = {{ {filter} }}\nretract = {{ header = \"r\" }}");
        let alone = config(&topic, "");
        let refusal = Space::new(&alone, &alone.spaces()[0]).unwrap_err().to_string();
        assert!(refusal.contains("[serve.filters.in]"), "{refusal}");
        let own = config(&topic, "[serve.filters.in]\nkind = \"cuckoo\"\ncapacity = 400\nfalse_positive_rate = 1e-9");
        assert!(Space::new(&own, &own.spaces()[0]).is_ok());
    }
}

#[test]
fn no_answer_before_the_whole_changelog_is_applied() {
    let config = config(AGING, "");
    let space = space(&config);
    let mut live = Live::new(config.topics[0].rules(1), space.written());
    for number in 0..100 {
        live.judge(number, 1_700_000_000_000, false);
        live.commit();
    }
    let mut partition = PartitionApplier::new(&space, &watermarks(0, live.end(), 1));
    partition.update_watermarks(watermarks(0, live.end(), 1));
    for (offset, value) in live.log.iter().enumerate() {
        let percent = u32::try_from(offset).unwrap();
        assert_eq!(asked(&partition.shared), Err(Unavailable::Loading { partition: 0, percent }));
        assert_eq!(partition.shared.as_of(), None);
        partition.take(&Event::Record(Logged { offset: Offset::try_from(offset).unwrap(), time: None, value }));
    }
    assert_eq!(asked(&partition.shared).unwrap(), known(&live));
    assert_eq!(partition.shared.as_of(), Some(1));
    // At time 5, more was committed than is applied. The state is current as of time 5 only after everything is applied.
    live.judge(100, 1_700_000_000_000, false);
    live.commit();
    partition.update_watermarks(watermarks(0, live.end() + 1, 5));
    catch_up(&mut partition, &live);
    assert_eq!(partition.shared.as_of(), Some(1));
    // The last record is followed by a transaction marker.
    partition.take(&Event::End(live.end() + 1));
    assert_eq!(partition.shared.as_of(), Some(5));
}

#[test]
fn a_reset_of_the_groups_offsets_is_followed() {
    let config = config(AGING, "");
    let space = space(&config);
    let mut live = Live::new(config.topics[0].rules(1), space.written());
    let mut partition = PartitionApplier::new(&space, &watermarks(0, 0, 1));
    for number in 0..20 {
        live.judge(number, 1_700_000_000_000, false);
        live.commit();
    }
    catch_up(&mut partition, &live);
    // The group resumes from offset 10 with the state that it had at that offset, and reads different records.
    let log = std::mem::take(&mut live.log);
    let mut live = Live::new(config.topics[0].rules(1), space.written());
    for number in 0..10 {
        live.judge(number, 1_700_000_000_000, false);
        live.commit();
    }
    (live.log, live.epoch) = (log, 2);
    live.judge(50, 1_700_000_000_000, false);
    live.commit();
    catch_up(&mut partition, &live);
    assert_eq!(partition.reading, Reading::Reload);
    partition.update_watermarks(watermarks(0, live.end(), 2));
    assert_eq!(partition.reading, Reading::Seek);
    partition.reading = Reading::Active;
    assert!(matches!(asked(&partition.shared), Err(Unavailable::Loading { .. })));
    catch_up(&mut partition, &live);
    assert_eq!(asked(&partition.shared).unwrap(), known(&live));
    assert!(known(&live)[50] && !known(&live)[15]);
}

#[test]
fn a_worker_with_other_key_settings_makes_answers_unavailable() {
    let config = config(AGING, "");
    let space = space(&config);
    let mut partition = PartitionApplier::new(&space, &watermarks(0, 0, 1));
    for origin in [Origin { keys: 1, ..space.written() }, Origin { clock: 1, ..space.written() }] {
        let mut live = Live::new(config.topics[0].rules(1), origin);
        live.judge(1, 1_700_000_000_000, false);
        live.commit();
        partition.reload(0, 0);
        catch_up(&mut partition, &live);
        assert_eq!(asked(&partition.shared), Err(Unavailable::OtherKeys));
    }
    // Keys from before a configuration change are ignored.
    let mut live = Live::new(config.topics[0].rules(1), space.written());
    (live.position, live.committed, live.epoch) = (10, 10, 2);
    live.judge(2, 1_700_000_000_000, false);
    live.commit();
    partition.next = 0;
    catch_up(&mut partition, &live);
    assert!(asked(&partition.shared).unwrap()[2]);
    // The changelog of another group is rejected.
    let mut foreign = Live::new(config.topics[0].rules(1), Origin { owner: 1, ..space.written() });
    foreign.commit();
    partition.next = 0;
    partition.take(&Event::Record(Logged { offset: 0, time: None, value: &foreign.log[0] }));
    assert!(matches!(asked(&partition.shared), Err(Unavailable::Broken(message)) if message.contains("another consumer group")));
    assert_eq!(partition.reading, Reading::Failed);
}

/// Before a worker has logged anything, the keys that the group has emitted are unknown. The worker may be about to warm up.
#[test]
fn a_partition_with_an_empty_changelog_gives_no_answer() {
    let config = config(AGING, "");
    let space = space(&config);
    let mut partition = PartitionApplier::new(&space, &watermarks(0, 0, 1));
    partition.update_watermarks(watermarks(0, 0, 1));
    assert_eq!(asked(&partition.shared), Err(Unavailable::Unowned { partition: 0 }));
    assert_eq!(partition.shared.as_of(), None);
    let mut live = Live::new(config.topics[0].rules(1), space.written());
    live.commit();
    catch_up(&mut partition, &live);
    assert_eq!(asked(&partition.shared).unwrap(), known(&live));
}

/// After a change of the key or its hash, a worker reads one window of the input again, and logs it in parts.
#[test]
fn no_answer_during_a_warm_up_until_it_is_logged_completely() {
    let config = config(AGING, "");
    let space = space(&config);
    let (rules, mut live) = (config.topics[0].rules(1), Live::new(config.topics[0].rules(1), Origin { keys: 1, ..space.written() }));
    for number in 0..30 {
        live.judge(number, 1_700_000_000_000, false);
    }
    live.commit();
    let log = std::mem::take(&mut live.log);
    live = Live { log, epoch: 2, warms_up: true, ..Live::new(rules, space.written()) };
    let mut partition = PartitionApplier::new(&space, &watermarks(0, live.end(), 1));
    partition.update_watermarks(watermarks(0, live.end(), 1));
    catch_up(&mut partition, &live);
    assert_eq!(asked(&partition.shared), Err(Unavailable::OtherKeys));
    for number in 0..30 {
        live.judge(number, 1_700_000_000_000, false);
        live.commit();
        catch_up(&mut partition, &live);
        assert_eq!(asked(&partition.shared), Err(Unavailable::WarmingUp { partition: 0 }), "{number}");
    }
    // The warm-up is logged completely, and the input has no new records.
    live.warms_up = false;
    live.commit();
    catch_up(&mut partition, &live);
    assert_eq!(asked(&partition.shared).unwrap(), known(&live));
    // If a worker lacks keys again, its records are marked as part of a warm-up.
    (live.warms_up, live.epoch) = (true, 3);
    live.commit();
    catch_up(&mut partition, &live);
    assert_eq!(asked(&partition.shared), Err(Unavailable::WarmingUp { partition: 0 }));
}

#[test]
fn a_worker_with_other_slices_is_followed_before_its_first_record() {
    let config = config(AGING, "");
    let space = space(&config);
    let mut live = Live::new(config.topics[0].rules(1), Origin { clock: 1, ..space.written() });
    live.judge(1, 1_700_000_000_000, false);
    live.commit();
    let mut partition = PartitionApplier::new(&space, &watermarks(0, live.end(), 1));
    catch_up(&mut partition, &live);
    assert_eq!(asked(&partition.shared), Err(Unavailable::OtherKeys));
    (live.origin, live.epoch) = (space.written(), 2);
    live.commit();
    catch_up(&mut partition, &live);
    assert_eq!(asked(&partition.shared).unwrap(), known(&live));
}

/// A filter keeps its size when partitions are added.
#[test]
fn the_reported_capacity_is_that_of_the_filters_in_memory() {
    let config = config(AGING, "");
    let space = space(&config);
    let partition = |number, partitions| Arc::new(Partition::new(number, space.rules(partitions)));
    let capacity = |partitions| space.rules(partitions).capacity().unwrap();
    (0..2).for_each(|number| space.set(Some(partition(number, 2)), number, 2));
    assert_eq!(space.report().capacity, 2 * capacity(2));
    (2..4).for_each(|number| space.set(Some(partition(number, 4)), number, 4));
    assert_eq!(space.report().capacity, 2 * capacity(2) + 2 * capacity(4));
    assert_ne!(capacity(2), capacity(4));
}

/// Clients, probes, and metrics request reports often, and sizing a filter takes milliseconds.
#[test]
fn reports_do_not_size_filters() {
    const REPORTS: u32 = 500;
    let config = config(AGING, "");
    let space = space(&config);
    space.set(Some(Arc::new(Partition::new(0, space.rules(1)))), 0, 1);
    // The minimum is used, because other processes may take CPU time.
    let least = |work: &dyn Fn()| {
        let timed = |_| {
            let start = Instant::now();
            work();
            start.elapsed()
        };
        (0..5).map(timed).min().unwrap()
    };
    let sizing = least(&|| {
        black_box(config.topics[0].rules(1));
    });
    let reports = least(&|| {
        for _ in 0..REPORTS {
            black_box(space.report());
        }
    });
    assert!(reports < sizing * REPORTS / 10, "{REPORTS} reports took {reports:?}, sizing a filter takes {sizing:?}");
}

/// If the keys of a filter change all the time, reports must not compute its rate each time.
#[test]
fn the_rate_is_computed_once_per_second() {
    let config = config(AGING, "");
    let space = space(&config);
    let mut live = Live::new(config.topics[0].rules(1), space.written());
    let mut partition = PartitionApplier::new(&space, &watermarks(0, 0, 1));
    let mut rate_after = |keys: std::ops::Range<u64>| {
        keys.for_each(|number| live.judge(number, 1_700_000_000_000, false));
        live.commit();
        catch_up(&mut partition, &live);
        partition.shared.rate()
    };
    let (start, first) = (Instant::now(), rate_after(0..100));
    let same = rate_after(100..200);
    assert!(same.total_cmp(&first).is_eq() || start.elapsed() >= Duration::from_secs(1), "{same} {first}");
    std::thread::sleep(Duration::from_millis(1100));
    assert!(rate_after(200..300) > first);
}

/// Follows `partitions` partitions of a space. All of them are ready and empty.
fn ready_partitions(space: &Space, partitions: u32) -> Vec<Arc<Partition>> {
    let ready = |number| {
        let partition = Arc::new(Partition::new(number, space.rules(partitions)));
        partition.set_applied(Standing::Complete);
        space.set(Some(Arc::clone(&partition)), number, partitions);
        partition
    };
    (0..partitions.cast_signed()).map(ready).collect()
}

/// A connection collects the keys of a pipeline in one query. If a command is rejected, it drops the command's keys.
#[test]
fn keys_added_before_the_partitions_are_known_are_looked_up_in_all_of_them() {
    let config = config(&format!("{AGING}\nrepartition = true"), "");
    let space = space(&config);
    let mut query = Query::default();
    let add = |query: &mut Query, text: &str| space.add(query, std::iter::once(text.as_bytes())).unwrap();
    add(&mut query, "seen");
    let partitions = ready_partitions(&space, 4);
    let seen = config.topics[0].key.fingerprint(&record("seen"), &mut Scratch::default()).unwrap();
    let place = |fingerprint| crate::key::partition(fingerprint, 4);
    partitions[place(seen) as usize].write().judge(seen, Some(1), i64::MAX).unwrap();
    let elsewhere = (0..100).map(|number| number.to_string()).find(|text| {
        let fingerprint = config.topics[0].key.fingerprint(&record(text), &mut Scratch::default()).unwrap();
        place(fingerprint) != place(seen)
    });
    for _ in 0..2 {
        add(&mut query, elsewhere.as_deref().unwrap());
    }
    query.truncate(2);
    assert_eq!(space.answer(&mut query), (&[Answer::Seen, Answer::Unseen][..], None));
}

#[test]
fn a_space_is_not_ready_if_none_of_its_partitions_is_followed() {
    let unavailable = |partitions: &str| {
        let space = space(&config(AGING, &format!("[serve]\npartitions = {partitions:?}")));
        ready_partitions(&space, 4);
        (0..4).filter(|&number| !space.follows(number)).for_each(|number| space.set(None, number, 4));
        space.why_unavailable().map(|reason| reason.to_string())
    };
    assert_eq!(unavailable("3-7"), None);
    let reason = "serve.partitions contains none of the 4 partitions of unseen-in-changelog; add some of them, or remove the option";
    assert_eq!(unavailable("4-7").as_deref(), Some(reason));
}

#[test]
fn a_changelog_recreated_with_fewer_partitions_is_followed_in_those_only() {
    let config = config(&format!("{AGING}\nrepartition = true"), "");
    let (spaces, tail) = ([space(&config)], crate::kafka::ChangelogTail::new(&config).unwrap());
    let mut appliers = Appliers::new(&spaces, &tail);
    let mut handle_watermarks = |log: &str, partitions: u32| {
        for partition in 0..partitions.cast_signed() {
            let watermarks = Watermarks { partition, partitions, log: Some(log.into()), ..watermarks(0, 0, 1) };
            appliers.handle_watermarks(watermarks).unwrap();
        }
        let names: Vec<_> = appliers.partitions.iter().map(|partition| partition.changelog.partition).collect();
        assert!(names.iter().enumerate().all(|(at, &name)| appliers.by_name[&spaces[0].changelog(name)] == at));
        (names.len(), spaces[0].count(), spaces[0].report().partitions, spaces[0].was_resized.load(Ordering::Relaxed))
    };
    assert_eq!(handle_watermarks("one", 4), (4, 4, 4, false));
    assert_eq!(handle_watermarks("one", 2), (4, 4, 4, false), "a broker with outdated metadata");
    assert_eq!(handle_watermarks("two", 2), (2, 2, 2, true));
    let capacity = spaces[0].rules(2).capacity().unwrap();
    assert_eq!(spaces[0].report().capacity, 2 * capacity, "each filter is sized for two partitions");
    // The number of partitions has changed, so keys are looked up in all partitions.
    let partitions: Vec<_> = appliers.partitions.iter().map(|partition| Arc::clone(&partition.shared)).collect();
    for partition in &partitions {
        partition.set_applied(Standing::Complete);
    }
    let mut query = Query::default();
    for number in 0..20 {
        let text = number.to_string();
        let fingerprint = config.topics[0].key.fingerprint(&record(&text), &mut Scratch::default()).unwrap();
        partitions[crate::key::partition(fingerprint, 2) as usize].write().judge(fingerprint, Some(1), i64::MAX).unwrap();
        spaces[0].add(&mut query, std::iter::once(text.as_bytes())).unwrap();
    }
    assert_eq!(spaces[0].answer(&mut query), (&[Answer::Seen; 20][..], None));
}

/// A record with this key.
fn record(key: &str) -> Record<'_> {
    Record { key: Some(key.as_bytes()), value: None, headers: &[] }
}

#[test]
fn a_changelog_trimmed_past_the_follower_is_loaded_again() {
    let config = config(AGING, "");
    let space = space(&config);
    let mut partition = PartitionApplier::new(&space, &watermarks(0, 10, 1));
    partition.update_watermarks(watermarks(3, 10, 2));
    // The watermarks that reveal the trim also show the new start, so the reader can seek immediately.
    assert_eq!((partition.reading, partition.next), (Reading::Seek, 3));
    assert!(matches!(asked(&partition.shared), Err(Unavailable::Loading { .. })));
    partition.reading = Reading::Active;
    partition.take(&Event::End(10));
    partition.update_watermarks(watermarks(10, 10, 3));
    assert_eq!(partition.reading, Reading::Active, "the trimmed records were already applied");
    partition.take(&Event::OutOfRange);
    assert_eq!(partition.reading, Reading::Reload);
}

#[test]
fn offset_resets_of_a_deleted_changelog_do_not_affect_the_new_one() {
    let config = config(AGING, "");
    let space = space(&config);
    let of_log = |log: &str, low, end| Watermarks { log: Some(log.into()), ..watermarks(low, end, 1) };
    let mut partition = PartitionApplier::new(&space, &of_log("one", 0, 0));
    partition.update_watermarks(of_log("one", 0, 0));
    partition.cuts.push(Cut { before: 1000, topic: "in".to_owned(), start: 0, ends: Vec::new() });
    // A new leader reports a lower end for a moment.
    partition.take(&Event::End(5));
    partition.update_watermarks(of_log("one", 0, 5));
    partition.update_watermarks(of_log("one", 0, 4));
    assert_eq!(partition.reading, Reading::Active);
    partition.update_watermarks(of_log("two", 0, 1));
    assert_eq!((partition.reading, partition.next, partition.cuts.len()), (Reading::Seek, 0, 0));
    assert!(asked(&partition.shared).is_err());
}

/// The worker did not know whether its commit was written, and logged it again.
#[test]
fn a_retracted_key_is_unseen_even_if_its_commit_was_logged_twice() {
    let config = config("window = \"10s\"\nfilter = { kind = \"cuckoo\", capacity = 60 }\nretract = { header = \"r\" }", "");
    let space = space(&config);
    let mut live = Live::new(config.topics[0].rules(1), space.written());
    live.judge(1, 1_700_000_000_000, false);
    live.commit();
    live.log.extend_from_within(..);
    live.judge(1, 1_700_000_000_000, true);
    live.commit();
    let mut partition = PartitionApplier::new(&space, &watermarks(0, live.end(), 1));
    catch_up(&mut partition, &live);
    assert!(!known(&live)[1]);
    assert_eq!(asked(&partition.shared).unwrap(), known(&live));
}
