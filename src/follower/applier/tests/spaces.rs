//! Spaces: reports, rates, and lookups over several partitions.

use super::*;
use crate::follower::{Answer, Query};
use crate::key::Scratch;
use std::hint::black_box;

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
    // Use the minimum, because other processes take CPU time, too.
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

/// Adds `partitions` partitions to a space. All of them are ready and empty.
fn ready_partitions(space: &Space, partitions: u32) -> Vec<Arc<Partition>> {
    let ready = |number| {
        let partition = Arc::new(Partition::new(number, space.rules(partitions)));
        partition.set_applied(Standing::Complete);
        space.set(Some(Arc::clone(&partition)), number, partitions);
        partition
    };
    (0..partitions.cast_signed()).map(ready).collect()
}

/// A connection collects the keys of a pipeline in one query. If a command is rejected, the connection drops that command's keys.
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
