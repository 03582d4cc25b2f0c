//! A partition answers only if all keys of the group are known.

use super::*;

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
    // The watermarks from time 5 include a commit and a transaction marker. The state is current as of time 5 only after both are applied.
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

/// Until a worker has written a changelog record, the follower does not know which keys the group has emitted: the worker may be about to
/// warm up.
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

/// After a change of the key or its hash, a worker reads one window of the input again and writes the keys to the changelog in parts.
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
    // All keys of the warm-up are in the changelog, and the input has no new records.
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
