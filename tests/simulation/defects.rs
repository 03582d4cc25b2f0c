//! Promise: the simulation detects each defect of the list `DEFECTS` within the number of seeds that the list states. The worker had some
//! of these defects in the past.
//!
//! A defect is a branch in the worker, `fault::defect("name")`, that only a simulation can take.

use crate::plan::Plan;
use crate::{Outcome, run};
use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread::available_parallelism;
use std::time::Instant;

struct Defect {
    name: &'static str,
    does: &'static str,
    /// The number of seeds to try. At least one of them must detect the defect.
    seeds: u64,
}

#[rustfmt::skip]
const DEFECTS: &[Defect] = &[
    Defect { name: "changes_forgotten_on_abort", does: "forgets the state changes of an aborted transaction, so the changelog lacks their keys", seeds: 100 },
    Defect { name: "checkpoint_of_uncommitted_verdicts", does: "takes a checkpoint while verdicts are not committed", seeds: 100 },
    Defect { name: "checkpoint_past_offset_used", does: "uses a checkpoint that is past the group's committed offset", seeds: 150 },
    Defect { name: "duplicates_emitted_at_least_once", does: "emits duplicates (`at_least_once`)", seeds: 100 },
    Defect { name: "failed_deliveries_ignored", does: "commits offsets although an output record was not written", seeds: 100 },
    Defect { name: "failed_fetch_not_sought", does: "does not seek a partition after a failed fetch", seeds: 100 },
    Defect { name: "filter_asked_again_on_repeat", does: "asks the filter again about a record of an aborted transaction", seeds: 50 },
    Defect { name: "former_leader_believed", does: "believes a former leader that reports an end before the group's position", seeds: 150 },
    Defect { name: "full_transaction_not_held", does: "lets new records into a full transaction that must repeat old ones", seeds: 50 },
    Defect { name: "future_moves_window", does: "lets records from the future advance stream time", seeds: 100 },
    Defect { name: "idle_partition_warms_up", does: "reports a finished warm-up as unfinished until a record arrives", seeds: 100 },
    Defect { name: "lost_partitions_kept", does: "keeps partitions that the group took away, and commits them after it has rejoined", seeds: 150 },
    Defect { name: "markers_not_stepped_over", does: "does not commit past transaction markers at the end of a partition", seeds: 100 },
    Defect { name: "needed_changelog_trimmed", does: "trims the changelog up to its end instead of the oldest slice of the window", seeds: 50 },
    Defect { name: "offsets_committed_before_outputs", does: "commits offsets before the output records are written (`at_least_once`)", seeds: 100 },
    Defect { name: "offsets_outside_transaction", does: "commits offsets after the transaction instead of within it", seeds: 50 },
    Defect { name: "partitions_read_before_restore", does: "reads partitions while their state is being rebuilt", seeds: 50 },
    Defect { name: "passed_over_records_not_read_again", does: "does not seek back to records that it passed over during a warm-up", seeds: 50 },
    Defect { name: "passed_over_records_stepped_over", does: "steps over records that it passed over, as if they were transaction markers", seeds: 250 },
    Defect { name: "refused_record_written_again", does: "writes a record again that the output refuses", seeds: 50 },
    Defect { name: "repartition_topic_not_held_back", does: "reads the repartition topic before a group with `start = \"latest\"` has begun", seeds: 100 },
    Defect { name: "resumed_from_checkpoint", does: "emits the records between the checkpoint and the committed offset again", seeds: 50 },
    Defect { name: "revoked_without_commit", does: "gives partitions up without a commit", seeds: 100 },
    Defect { name: "rewind_without_seek", does: "does not seek back after an abort", seeds: 50 },
    Defect { name: "side_outputs_not_repeated", does: "does not write dead letters and duplicates of an aborted transaction again", seeds: 100 },
    Defect { name: "topic_ids_ignored", does: "does not distinguish a recreated topic from the old one", seeds: 150 },
    Defect { name: "transactions_never_shrink", does: "repeats a transaction that brokers are too slow for, instead of making it smaller", seeds: 250 },
    Defect { name: "unknown_outcome_taken_for_abort", does: "treats a transaction with an unknown outcome as aborted", seeds: 250 },
    Defect { name: "unknown_outcome_taken_for_commit", does: "treats a transaction with an unknown outcome as committed", seeds: 100 },
    Defect { name: "verdicts_forgotten_on_abort", does: "forgets the verdicts of an aborted transaction", seeds: 50 },
    Defect { name: "warm_up_emits", does: "emits records of a warm-up", seeds: 50 },
    Defect { name: "warm_up_starts_too_late", does: "starts a warm-up at the offset that one state needs, although the state of another entry needs earlier records", seeds: 400 },
];

/// Returns the name as a static string. A defect that has its own plan in the module `plans` is not in the table, so its name is leaked.
pub fn find(name: &str) -> &'static str {
    DEFECTS.iter().find(|defect| defect.name == name).map_or_else(|| &*Box::leak(name.to_owned().into_boxed_str()), |defect| defect.name)
}

/// Suppresses the panic messages of plans with a defect, because these plans are expected to fail.
fn expect_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if unseen::runtime::scheduler().is_none_or(|scheduler| scheduler.defect().is_none()) {
                print(panic);
            }
        }));
    });
}

impl Defect {
    /// Runs plans until one of them fails with the defect and passes without it. Returns a row of the table that `notice_all` prints, or an
    /// error if no plan detects the defect.
    fn notice(&self) -> Result<String, String> {
        let (Self { name, does, seeds }, began) = (self, Instant::now());
        let is_noticed = |&seed: &u64| {
            let plan = Plan::draw(seed, crate::FAULTS);
            matches!(run(&plan, Some(name)), Outcome::Failed(_)) && matches!(run(&plan, None), Outcome::Exact { .. })
        };
        let noticed = (0..*seeds).find(is_noticed).ok_or_else(|| format!("{name}: none of {seeds} seeds detects the defect"))?;
        let seconds = began.elapsed().as_secs_f64();
        Ok(format!("| `{name}` | {does} | {seeds} | {} | {seconds:.1} |", noticed + 1))
    }
}

/// Looks for these defects on all cores. Prints a table of the detected defects. Panics if a defect is not detected.
fn notice_all(defects: &[&Defect]) {
    expect_panics();
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(defect) = defects.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let row = defect.notice();
                    rows.lock().unwrap_or_else(PoisonError::into_inner).push((defect.name, row));
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_unstable_by_key(|&(name, _)| name);
    let (noticed, missed): (Vec<_>, Vec<_>) = rows.into_iter().map(|(_, row)| row).partition(Result::is_ok);
    println!("| defect | what the worker does wrong | bound | seeds needed | seconds |\n|---|---|---|---|---|");
    noticed.into_iter().flatten().for_each(|row| println!("{row}"));
    let missed: Vec<_> = missed.into_iter().filter_map(Result::err).collect();
    assert!(missed.is_empty(), "{}", missed.join("; "));
}

/// If `UNSEEN_SIM_DEFECT=NAME` is set, the test looks only for this defect.
#[test]
fn every_defect_is_detected() {
    let only = std::env::var("UNSEEN_SIM_DEFECT").ok();
    notice_all(&DEFECTS.iter().filter(|defect| only.as_deref().is_none_or(|only| only == defect.name)).collect::<Vec<_>>());
}
