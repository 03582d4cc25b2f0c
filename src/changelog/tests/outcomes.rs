//! Records that are applied, skipped, or rejected: resets, gaps, other settings, and previous owners.

use super::*;

#[test]
fn records_past_the_committed_offset_are_skipped() {
    let bounds = BTreeMap::from([("a".to_owned(), 4)]);
    let mut applier = applier_from(BTreeMap::new(), ORIGIN, bounds);
    let mut dedup = Dedup::new(window());
    let mut step = |bytes: &[u8]| applier.follow(&mut dedup, &ChangelogRecord::decode(bytes).unwrap()).unwrap();
    assert_eq!(step(&put(0, 4, 0)), Outcome::Taken);
    assert_eq!(step(&put(4, 4, 4)), Outcome::PastBounds);
    assert_eq!(dedup.judge(key(3), Some(5), 9).unwrap(), Verdict::Duplicate);
    assert_eq!(dedup.judge(key(4), Some(5), 9).unwrap(), Verdict::Unseen);
}

#[test]
fn a_reset_of_the_groups_offsets_is_detected() {
    let mut applier = applier_from(BTreeMap::from([("a".to_owned(), 6)]), ORIGIN, BTreeMap::new());
    let mut dedup = Dedup::new(window());
    let mut step = |bytes: &[u8]| applier.follow(&mut dedup, &ChangelogRecord::decode(bytes).unwrap()).unwrap();
    assert_eq!(step(&put(0, 6, 0)), Outcome::Passed, "already in the checkpoint");
    assert_eq!(step(&put(6, 4, 6)), Outcome::Taken);
    assert_eq!(step(&put(6, 4, 6)), Outcome::Passed, "the same part");
    assert_eq!(step(&put_part(ORIGIN, 0, 1, 6, 4, 6)), Outcome::Taken, "another part of the same commit");
    assert_eq!(step(&put(20, 4, 8)), Outcome::SetBack);
}

/// Another owner had an older checkpoint when the changelog was recreated and logs the records that its checkpoint lacks.
#[test]
fn a_warm_up_is_not_a_reset() {
    let mut dedup = Dedup::new(window());
    let mut follow = |applier: &mut Applier, (start, end), warms_up| {
        let bytes = put(1, end - start, start);
        let record = ChangelogRecord { warms_up, ..ChangelogRecord::decode(&bytes).unwrap() };
        applier.follow(&mut dedup, &record).unwrap()
    };
    let from_checkpoint = || applier_from(BTreeMap::from([("a".to_owned(), 6)]), ORIGIN, BTreeMap::new());
    assert_eq!(follow(&mut from_checkpoint(), (1, 9), true), Outcome::Gap);
    assert_eq!(follow(&mut from_checkpoint(), (1, 9), false), Outcome::SetBack);
    let mut applier = from_checkpoint();
    assert_eq!(follow(&mut applier, (6, 9), false), Outcome::Taken);
    assert_eq!(follow(&mut applier, (1, 9), true), Outcome::Passed);
    assert_eq!(follow(&mut applier, (1, 12), true), Outcome::Gap, "the last part of a warm-up may contain new records");
    assert_eq!(follow(&mut applier, (1, 9), false), Outcome::SetBack);
    let mut applier = applier_from(BTreeMap::new(), ORIGIN, BTreeMap::new());
    assert_eq!(follow(&mut applier, (6, 9), false), Outcome::Taken);
    assert_eq!(follow(&mut applier, (1, 12), true), Outcome::SetBack, "without a checkpoint, the warm-up has all keys that are left");
}

#[test]
fn a_changelog_that_starts_after_the_checkpoint_is_a_gap() {
    let mut applier = applier_from(BTreeMap::from([("a".to_owned(), 6)]), ORIGIN, BTreeMap::new());
    let record = put(0, 6, 7);
    assert_eq!(applier.follow(&mut Dedup::new(window()), &ChangelogRecord::decode(&record).unwrap()).unwrap(), Outcome::Gap);
}

#[test]
fn fingerprints_of_other_key_settings_are_skipped() {
    let other = Origin { keys: 9, ..ORIGIN };
    let mut applier = applier_of(other);
    assert_eq!(applier.follow(&mut Dedup::new(window()), &ChangelogRecord::decode(&put(0, 4, 0)).unwrap()).unwrap(), Outcome::Passed);
    assert_eq!(applier.fingerprints, 0);
}

#[test]
fn a_changelog_of_another_owner_is_foreign() {
    let mut applier = applier_of(Origin { owner: 9, ..ORIGIN });
    assert_eq!(applier.follow(&mut Dedup::new(window()), &ChangelogRecord::decode(&put(0, 4, 0)).unwrap()).unwrap(), Outcome::Foreign);
}

#[test]
fn records_of_the_previous_owner_after_a_takeover_are_void() {
    let (mut applier, mut dedup) = (applier_of(ORIGIN), Dedup::new(window()));
    let mut step = |bytes: &[u8]| applier.follow(&mut dedup, &ChangelogRecord::decode(bytes).unwrap()).unwrap();
    assert_eq!(step(&put_by(ORIGIN, 5, 0, 4, 0)), Outcome::Taken);
    assert_eq!(step(&put_by(ORIGIN, 6, 4, 4, 4)), Outcome::Taken, "by the new owner");
    assert_eq!(step(&put_by(ORIGIN, 5, 90, 4, 4)), Outcome::Passed, "by the previous owner, which was suspended");
    assert_eq!(step(&put_by(ORIGIN, 6, 8, 4, 8)), Outcome::Taken);
    for (number, verdict) in [(7, Verdict::Duplicate), (11, Verdict::Duplicate), (90, Verdict::Unseen)] {
        assert_eq!(dedup.judge(key(number), Some(5), 9).unwrap(), verdict, "{number}");
    }
}

/// After an offset reset, a group can commit exactly the same records again.
#[test]
fn the_same_records_of_another_epoch_are_a_different_commit() {
    let rules = Rules { window: Window::keys(100, 1), filter: None, exact: true, refresh: false, late: Late::Emit, emit: Emit::First };
    let logged = |epoch| {
        let mut live = Live::new(rules);
        let arrivals = [Arrival { topic: 0, number: 1, clock: 1, timed: true, retract: false, commit: false }];
        live.dedup.judge(key(1), Some(1), i64::MAX).unwrap();
        live.pending.note(&live.dedup, TopicId(0), 0, key(1));
        let span = Span { topic: TOPICS[0], start: 0, end: Offset::try_from(arrivals.len()).unwrap() };
        live.pending.records(&live.dedup, ORIGIN, epoch, &[span], &[(TopicId(0), 1)], Some(1)).remove(0).1
    };
    let (mut applier, mut dedup) = (applier_of(ORIGIN), Dedup::new(rules));
    let outcomes =
        [logged(1), logged(1), logged(2)].map(|bytes| applier.follow(&mut dedup, &ChangelogRecord::decode(&bytes).unwrap()).unwrap());
    assert_eq!(outcomes, [Outcome::Taken, Outcome::Passed, Outcome::SetBack]);
}
