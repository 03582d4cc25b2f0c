//! States that are rebuilt from a changelog, for all kinds of filters.

use super::*;

fn follow(rules: Rules, log: &[Vec<u8>]) -> (Applier, Dedup) {
    follow_as(ORIGIN, rules, log)
}

/// Rebuilds a state from a changelog whose records have one key per offset. Returns the offset after the last applied record. Panics unless
/// the state has exactly the keys of all offsets below the returned offset.
fn rebuild(log: &[Vec<u8>], bound: Option<Offset>) -> Offset {
    let mut cuts = Vec::new();
    'again: loop {
        let bounds = bound.map(|bound| ("a".to_owned(), bound)).into_iter().collect();
        let (mut applier, mut dedup) = (applier_from(BTreeMap::new(), ORIGIN, bounds), Dedup::new(window()));
        for (at, bytes) in (0..).zip(log) {
            let record = ChangelogRecord::decode(bytes).unwrap();
            if !cuts.iter().any(|cut: &Cut| cut.voids(at, &record)) && applier.follow(&mut dedup, &record).unwrap() == Outcome::SetBack {
                applier.cut(at, &record).unwrap().add_to(&mut cuts);
                continue 'again;
            }
        }
        let end = applier.offsets.get("a").copied().unwrap_or(0);
        let is_seen = |offset: &u64| dedup.judge(key(*offset), Some(5), 9).unwrap() == Verdict::Duplicate;
        assert_eq!((0..200).filter(is_seen).collect::<Vec<_>>(), (0..end.unsigned_abs()).collect::<Vec<_>>());
        return end;
    }
}

/// Rebuilds a state with the settings in `origin` and `rules`, which may differ from the settings of the changelog.
fn follow_as(origin: Origin, rules: Rules, log: &[Vec<u8>]) -> (Applier, Dedup) {
    let (mut applier, mut dedup) = (applier_of(origin), Dedup::new(rules));
    for bytes in log {
        assert_eq!(applier.follow(&mut dedup, &ChangelogRecord::decode(bytes).unwrap()).unwrap(), Outcome::Taken);
    }
    (applier, dedup)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_complete_changelog_rebuilds_the_same_state(rules in any_kind(), arrivals in prop::collection::vec(arrival(), 1..150)) {
        let mut live = Live::new(rules);
        live.take(&arrivals, &mut 0);
        let (followed, mut made) = follow(rules, &live.log);
        let applied: BTreeMap<_, _> = TOPICS.map(str::to_owned).into_iter().zip(live.committed).filter(|&(_, end)| end > 0).collect();
        prop_assert_eq!(&followed.offsets, &applied);
        let (followed_state, live_state) = (state(&mut made), state(&mut live.dedup));
        prop_assert_eq!(&followed_state.0, &live_state.0);
        prop_assert!(followed_state == live_state);
    }

    /// A commit with an unknown outcome is logged again. Any number of parts of the first attempt may have been written.
    #[test]
    fn a_commit_that_is_logged_twice_is_applied_once(
        rules in any_kind(),
        commits in prop::collection::vec((prop::collection::vec(arrival(), 1..20), 0..5_usize), 1..20),
    ) {
        let (mut live, mut clock, mut log) = (Live::new(rules), 0, Vec::new());
        for (arrivals, written) in commits {
            let arrivals: Vec<_> = arrivals.into_iter().map(|arrival| Arrival { commit: false, ..arrival }).collect();
            let logged = live.log.len();
            live.take(&arrivals, &mut clock);
            let parts = &live.log[logged..];
            log.extend_from_slice(&parts[..written.min(parts.len())]);
            log.extend_from_slice(parts);
        }
        let (mut applier, mut made) = (applier_of(ORIGIN), Dedup::new(rules));
        for bytes in &log {
            let outcome = applier.follow(&mut made, &ChangelogRecord::decode(bytes).unwrap()).unwrap();
            prop_assert!(matches!(outcome, Outcome::Taken | Outcome::Passed), "{:?}", outcome);
        }
        let (followed_state, live_state) = (state(&mut made), state(&mut live.dedup));
        prop_assert_eq!(&followed_state.0, &live_state.0);
        prop_assert!(followed_state == live_state);
    }

    /// The worker restores the state at the group's new offset and logs from there. Every later reader gets the same state.
    #[test]
    fn a_log_of_a_group_whose_offsets_were_reset_makes_the_same_state(
        steps in prop::collection::vec((1..12_i64, prop::option::of(0..40_i64)), 1..12),
    ) {
        let (mut log, mut end) = (Vec::new(), 0);
        for (epoch, (count, back)) in (1..).zip(steps) {
            let committed = back.map_or(end, |back| (end - back).max(0));
            let start = if back.is_some() { rebuild(&log, Some(committed)) } else { end };
            end = committed + count;
            log.push(put_by(ORIGIN, epoch, start.unsigned_abs(), end - start, start));
            prop_assert_eq!(rebuild(&log, None), end);
            prop_assert_eq!(rebuild(&log, Some(end)), end);
        }
    }

    #[test]
    fn records_of_expired_slices_can_be_trimmed(
        rules in sliced(),
        arrivals in prop::collection::vec(arrival(), 1..150),
        more in prop::collection::vec(arrival(), 1..80),
    ) {
        let (mut live, mut clock) = (Live::new(rules), 10_000);
        live.take(&arrivals, &mut clock);
        let first = live.dedup.oldest().and_then(|oldest| live.progress.needed_from(oldest)).unwrap_or(0);
        let first = usize::try_from(first).unwrap();
        let (_, mut made) = follow(rules, &live.log[first..]);
        let (followed_state, live_state) = (state(&mut made), state(&mut live.dedup));
        prop_assert_eq!(&followed_state.0, &live_state.0);
        prop_assert!(followed_state == live_state);
        let mut again = clock;
        let expected = live.take(&more, &mut clock);
        for (arrival, expected) in more.iter().zip(expected) {
            again += arrival.clock;
            prop_assert_eq!(judge(&mut made, arrival, again), expected);
        }
    }
}

#[test]
fn keys_logged_by_one_kind_are_remembered_by_another() {
    let window = Window::time(1_000, 4);
    let rules = |filter, exact| Rules { window, filter, exact, refresh: false, late: Late::Emit, emit: Emit::First };
    let alone = Kind::ALL.iter().map(|&kind| rules(of_kind(kind, window, 50), kind.is_on_disk()));
    let kinds: Vec<_> = alone.chain([rules(of_kind(Kind::default(), window, 50), true)]).collect();
    let clock = |rules: &Rules| if rules.is_sliced() { 1 } else { 2 };
    for (number, logged) in kinds.iter().enumerate() {
        let origin = Origin { clock: clock(logged), kind: number as u64, ..ORIGIN };
        let (mut live, mut pending, mut log) = (Dedup::new(*logged), PendingChanges::default(), Vec::new());
        for offset in 0..4_000_i64 {
            // At the end, the window contains about 1,000 keys. A stable filter has replaced all of its keys several times.
            let _ = live.judge(key(offset.cast_unsigned()), Some(1_700_000_000_000 + offset), i64::MAX).unwrap();
            pending.note(&live, TopicId(0), offset, key(offset.cast_unsigned()));
            if offset % 100 == 99 {
                let span = Span { topic: "a", start: offset - 99, end: offset + 1 };
                log.extend(
                    pending
                        .records(&live, origin, 1, &[span], &[(TopicId(0), offset + 1)], live.stream_time())
                        .into_iter()
                        .map(|(_, record)| record),
                );
                pending.committed(&[(TopicId(0), offset + 1)]);
            }
        }
        for (other, now) in kinds.iter().enumerate().filter(|(_, rules)| rules.is_sliced()) {
            let (_, mut made) = follow_as(Origin { clock: clock(now), kind: other as u64, ..ORIGIN }, *now, &log);
            let bytes = made.usage().bytes;
            assert!(bytes < 1 << 20, "{number} as {other}: {bytes} bytes for a few thousand keys");
            // A stable filter reports a few new keys as seen. These keys are not logged.
            let forgotten =
                (3_100..4_000_u64).filter(|&number| made.judge(key(number), Some(1_700_000_003_999), i64::MAX).unwrap() == Verdict::Unseen);
            let forgotten = forgotten.count();
            assert!(forgotten < if logged.is_sliced() { 1 } else { 45 }, "{number} as {other}: forgot {forgotten} keys of the window");
        }
    }
}

/// Keys of records without a timestamp, or from the future, belong to the slice of the first valid timestamp.
#[test]
fn keys_from_before_the_first_timestamp_are_kept_for_a_window() {
    let (mut live, mut clock) = (Live::new(window()), 1_700_000_000_000);
    let arrival = Arrival { topic: 0, number: 0, clock: 0, timed: false, retract: false, commit: true };
    let untimed: Vec<_> = (0..10).map(|number| Arrival { number, ..arrival }).collect();
    live.take(&untimed, &mut clock);
    live.take(&[Arrival { number: 10, timed: true, ..arrival }, Arrival { number: 11, clock: 900, timed: true, ..arrival }], &mut clock);
    let needed = live.progress.needed_from(live.dedup.oldest().unwrap());
    assert_eq!(needed.unwrap_or(0), 0, "these keys are not trimmed");
    let mut applier = Applier::new(BTreeMap::new(), ORIGIN, BTreeMap::new(), live.dedup.oldest(), 0);
    let mut made = Dedup::new(window());
    for bytes in &live.log {
        applier.follow(&mut made, &ChangelogRecord::decode(bytes).unwrap()).unwrap();
    }
    for number in 0..12 {
        let arrival = Arrival { number, timed: true, ..arrival };
        assert_eq!(judge(&mut made, &arrival, clock), Verdict::Duplicate, "{number}");
    }
}
