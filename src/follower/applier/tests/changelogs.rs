//! Changelogs that are reset, trimmed, deleted, or recreated.

use super::*;
use crate::follower::{Answer, Query};
use crate::key::Scratch;

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
    // The group resumes from offset 10 with the state that it had at that offset and reads different records.
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
