//! Judging records in batches has the same effect as judging them one by one.

use super::*;

/// Judges records with the batch calls that a worker uses. Returns `None` if a batch is not possible.
fn judge_in_batch(
    live: &mut Live,
    topic: usize,
    records: &[(u64, i64)],
    since: Option<&mut Vec<Option<Timestamp>>>,
) -> Option<Vec<Verdict>> {
    let newest = records.iter().map(|&(_, time)| time).max()?;
    if live.dedup.batch_horizon().is_none_or(|latest| newest > latest) || !live.pending.can_append(&live.dedup) {
        return None;
    }
    let (fingerprints, times): (Vec<_>, Vec<_>) = records.iter().map(|&(number, time)| (key(number), time)).unzip();
    let (before, mut seen) = (live.dedup.stream_time(), vec![true; 3]);
    live.dedup.prefetch(&fingerprints);
    live.dedup.judge_batch(&fingerprints, &times, &mut seen, since).unwrap();
    live.pending.note_batch(TopicId(topic), live.position[topic], &fingerprints, before, &times, &seen);
    live.position[topic] += Offset::try_from(records.len()).unwrap();
    Some(seen.into_iter().map(|seen| if seen { Verdict::Duplicate } else { Verdict::Unseen }).collect())
}

proptest! {
    /// Covers all kinds of filters, slices that end or get another layer anywhere in a batch, and retractions and commits between batches.
    #[test]
    fn a_batch_has_the_same_effect_as_single_records(
        rules in any_kind(),
        batches in prop::collection::vec((0..2_usize, prop::collection::vec((0..90_u64, 0..12_i64), 1..70), 0..40_i64, any::<[bool; 3]>()), 1..30),
    ) {
        let (mut one, mut many, mut clock, mut together) = (Live::new(rules), Live::new(rules), 0, 0);
        for (topic, records, passed, [commits, retracts, explains]) in batches {
            clock += passed;
            // Timestamps are out of order.
            let records: Vec<_> = records.into_iter().map(|(number, ahead)| (number, clock + ahead)).collect();
            let arrivals: Vec<_> = records.iter().map(|&(number, time)| (Arrival { topic, number, clock: 0, timed: true, retract: false, commit: false }, time)).collect();
            let one_by_one = |live: &mut Live, since: &mut Vec<Option<Timestamp>>| -> Vec<Verdict> {
                arrivals.iter().map(|(arrival, time)| {
                    let verdict = judge(&mut live.dedup, arrival, *time);
                    let is_duplicate = verdict == Verdict::Duplicate;
                    since.push(if is_duplicate { live.dedup.seen_since(key(arrival.number)).unwrap() } else { None });
                    live.pending.note(&live.dedup, TopicId(topic), live.position[topic], key(arrival.number));
                    live.position[topic] += 1;
                    verdict
                }).collect()
            };
            let (mut since, mut since_in_batch) = (Vec::new(), vec![Some(1)]);
            let expected = one_by_one(&mut one, &mut since);
            let taken = judge_in_batch(&mut many, topic, &records, explains.then_some(&mut since_in_batch));
            together += usize::from(taken.is_some());
            if taken.is_some() && explains {
                prop_assert_eq!(since_in_batch, since);
            }
            prop_assert_eq!(taken.unwrap_or_else(|| one_by_one(&mut many, &mut Vec::new())), expected);
            prop_assert_eq!((many.dedup.mutation(), many.dedup.stream_time(), many.dedup.observed()), (one.dedup.mutation(), one.dedup.stream_time(), one.dedup.observed()));
            for live in [&mut one, &mut many] {
                if retracts {
                    judge(&mut live.dedup, &Arrival { retract: true, ..arrivals[0].0 }, clock);
                    live.pending.note(&live.dedup, TopicId(topic), live.position[topic], key(arrivals[0].0.number));
                    live.position[topic] += 1;
                }
                if commits {
                    live.commit();
                }
            }
        }
        for live in [&mut one, &mut many] {
            live.commit();
        }
        prop_assert_eq!(&many.log, &one.log);
        prop_assert_eq!(many.dedup.metadata(), one.dedup.metadata());
        prop_assert_eq!(state(&mut many.dedup), state(&mut one.dedup));
        let keeps_window = rules.filter.is_none_or(|filter| filter.kind().properties().keeps_window);
        let may = keeps_window && !rules.refresh && rules.window.length_ms().is_some();
        prop_assert!(may || together == 0);
    }
}

#[test]
fn ordinary_records_are_judged_in_batches() {
    let window = Window::time(1_000, 4);
    let sliced = Kind::ALL.iter().filter(|kind| kind.properties().keeps_window);
    let filters = sliced.filter_map(|&kind| of_kind(kind, window, 100)).map(Some);
    let confirmed = [(None, true), (of_kind(Kind::default(), window, 100), true)];
    for (filter, exact) in filters.map(|filter| (filter, false)).chain(confirmed) {
        let mut live = Live::new(Rules { window, filter, exact, refresh: false, late: Late::Emit, emit: Emit::First });
        assert_eq!(judge_in_batch(&mut live, 0, &[(1, 5)], None), None, "no timestamp yet");
        let arrival = Arrival { topic: 0, number: 1, clock: 5, timed: true, retract: false, commit: false };
        judge(&mut live.dedup, &arrival, 5);
        assert_eq!(judge_in_batch(&mut live, 0, &[(1, 5)], None), None, "no pending changes yet");
        live.pending.note(&live.dedup, TopicId(0), 0, key(1));
        assert_eq!(
            judge_in_batch(&mut live, 0, &[(1, 5), (2, 9), (2, 3)], None),
            Some(vec![Verdict::Duplicate, Verdict::Unseen, Verdict::Duplicate])
        );
        assert_eq!(judge_in_batch(&mut live, 0, &[(3, 5), (4, 300)], None), None, "past the end of the slice");
    }
}
