//! Tests that explanations marked as certain match the model, and that no explanation is certain if the changelog is ambiguous.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn certain_explanations_match_the_model(window in windows(), kind in 0_u8..7, refresh: bool, arrivals in arrivals(2, 0.1)) {
        let can_retract = matches!(kind, 2..=4 | 6);
        let arrivals: Vec<_> = arrivals.into_iter().map(|arrival| Arrival { retracts: arrival.retracts && can_retract, ..arrival }).collect();
        let mut live = Live::run(rules(window, kind, refresh, Late::Emit), &arrivals);
        live.explain_all(0)?;
        // Explain the records again from a trimmed changelog: a worker deletes the changelog records that have left the window.
        let low = live.dedup.oldest().and_then(|oldest| live.progress.needed_from(oldest));
        if let Some(low) = low {
            live.explain_all(usize::try_from(low).unwrap())?;
        }
    }

    /// With one topic, one slice, and no retractions, every explanation is certain, except with `stable`.
    #[test]
    fn everything_within_one_slice_is_certain(kind in prop_oneof![0_u8..5, Just(6)], arrivals in arrivals(1, 0.0)) {
        let window = Window::time(1_000_000_000, 1);
        let live = Live::run(rules(window, kind, false, Late::Emit), &arrivals);
        prop_assert_eq!(live.explain_all(0)?, arrivals.len());
    }

    #[test]
    fn late_records_are_recognized(kind in prop_oneof![0_u8..5, Just(6)], arrivals in arrivals(1, 0.0)) {
        let live = Live::run(rules(Window::time(200, 2), kind, false, Late::Drop), &arrivals);
        live.explain_all(0)?;
    }
}

/// If `retract` was added to the configuration later, the worker processed a record that would now retract its key as a normal record.
#[test]
fn a_retraction_that_did_not_happen_is_uncertain() {
    let arrival = |number, retracts, commits| Arrival { topic: 0, number, after: 1, behind: 0, retracts, commits };
    for kind in 2..=4 {
        let rules = rules(Window::time(1_000_000, 1), kind, false, Late::Emit);
        for arrivals in [
            vec![arrival(7, false, false), arrival(7, false, true)],
            vec![arrival(7, false, true), arrival(7, false, true)],
            vec![arrival(7, false, true), arrival(7, false, false), arrival(7, false, true)],
            vec![arrival(8, false, true), arrival(7, true, false), arrival(7, false, false), arrival(7, false, true)],
        ] {
            let mut live = Live::run(rules, &arrivals);
            let last = live.judged.len() - 1;
            live.judged[last].retracts = true;
            let judged = live.judged[last];
            let (judgment, places) = live.judge(&judged, 0).unwrap().unwrap();
            assert!(!judgment.is_certain, "{arrivals:?}: {judgment:?}");
            assert!(judgment.limit.is_some());
            // The explanations of all other records with the key in the commit are uncertain, too.
            for other in live.judged.iter().filter(|other| places.contains(&(other.topic, other.offset))) {
                assert!(!live.judge(other, 0).unwrap().unwrap().0.is_certain, "{arrivals:?}: {other:?}");
            }
        }
        let retracted = Live::run(rules, &[arrival(7, false, true), arrival(7, true, true)]);
        assert_eq!(retracted.explain_all(0).unwrap(), 2);
    }
}

#[test]
fn records_of_one_commit_are_distinguished_only_by_order() {
    let arrival = |topic, commits| Arrival { topic, number: 7, after: 1, behind: 0, retracts: false, commits };
    let rules = rules(Window::time(1_000_000, 1), 1, false, Late::Emit);
    let one = Live::run(rules, &[arrival(0, false), arrival(0, true)]);
    assert_eq!(one.explain_all(0).unwrap(), 2);
    let two = Live::run(rules, &[arrival(0, false), arrival(1, true)]);
    assert_eq!(two.explain_all(0).unwrap(), 0, "either topic may have been first");
}

#[test]
fn a_key_removed_by_the_retraction_of_another_key_is_uncertain() {
    let arrival = |number, retracts| Arrival { topic: 0, number, after: 1, behind: 0, retracts, commits: true };
    let rules = rules(Window::keys(8, 1), 4, false, Late::Emit);
    let takes = |other: &u64| {
        let mut dedup = Dedup::new(rules);
        dedup.judge(key(0), Some(1_000), i64::MAX).unwrap();
        dedup.retract(key(*other), Some(1_000), i64::MAX).unwrap();
        dedup.judge(key(0), Some(1_000), i64::MAX).unwrap() == Verdict::Unseen
    };
    let other = (1..100_000).find(takes).unwrap();
    // The slice of key 0 is full, and the next slice has started. Key 0 is still within the window, but its changelog record may soon be
    // trimmed.
    let mut arrivals = vec![arrival(0, false), arrival(other, true)];
    arrivals.extend((200_000..200_008).map(|number| arrival(number, false)));
    arrivals.push(arrival(0, false));
    let live = Live::run(rules, &arrivals);
    let last = live.judged.last().unwrap();
    assert_eq!((last.verdict, last.repeats), (Verdict::Unseen, Some((0, 0))));
    let reaches = |low| live.explain(last, low).unwrap();
    assert!(reaches(0));
    assert!(!reaches(arrivals.len() - 2));
}
