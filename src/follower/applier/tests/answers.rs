//! A follower answers like the worker, with any filter and after any retraction.

use super::*;
use crate::filter::{Kind, Size};
use xxhash_rust::xxh3::xxh3_64;

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

/// Returns the options of a filter. In a window by count, the window determines the capacity.
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

/// The worker's exact store corrects the errors of its filter in memory. A follower has no exact store, so a retraction could remove the
/// wrong key.
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

/// The worker did not know whether its commit was written, so it logged the commit again.
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
