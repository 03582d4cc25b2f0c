//! Transactions that fail, end late, or belong to other producers.

use super::{COVERS_ALL, NEVER_MS, STATIC, at_once, check, fail_at, kill_at, parse, plan, step};
use crate::plan::{FAILING, Fault, Plan};
use crate::{Outcome, run};

/// Each step of a transaction and of a checkpoint fails twice, with small transactions and with large ones.
#[test]
fn output_is_exact_if_steps_of_transactions_and_checkpoints_fail() {
    for kind in ["kind = \"aging\"", "kind = \"exact\""] {
        for transaction_records in [30, 1_000_000] {
            let twice = |(number, point): (usize, &str)| [1, 3].map(|time| step(20 + 25 * number, fail_at(point, time)));
            let steps = FAILING.into_iter().enumerate().flat_map(twice);
            check(&Plan { transaction_records, ..plan(&[STATIC, kind], steps) });
        }
    }
}

/// After an abort, the worker reads records with known verdicts again, together with many new records. It must write the records with known
/// verdicts first.
#[test]
fn decided_records_are_emitted_before_new_ones_after_an_abort() {
    let steps = [
        step(0, Fault::Stop { ms: 300 }),
        at_once(200, fail_at("commit.begin", 1)),
        at_once(200, fail_at("transaction.send", 40)),
        at_once(200, fail_at("commit.offsets_sent", 3)),
    ];
    check(&Plan { transaction_records: 10, ..plan(&[STATIC, COVERS_ALL], steps) });
}

#[test]
fn at_least_once_loses_nothing_through_kills() {
    let steps = [60, 120, 180].map(|at| step(at, Fault::Kill)).into_iter().chain([step(240, kill_at("commit.flushed", 1))]);
    check(&plan(&[STATIC, COVERS_ALL, "delivery = \"at_least_once\""], steps));
}

#[test]
fn aborted_records_of_the_input_do_not_count_as_seen() {
    let open = |partition| Fault::OpenTransaction { partition, ms: 2_500 };
    check(&plan(&[STATIC], [step(100, open(0)), step(200, open(1))]));
}

/// A copy of an `EndTxn` request that arrives during the next transaction would commit that transaction too early (KIP-890). Random plans
/// seldom have a transaction open at that moment.
#[test]
fn a_late_end_of_a_transaction_is_fenced() {
    let options = [STATIC, COVERS_ALL, "kind = \"exact\"", "on_invalid = \"drop\""];
    let steps = (40..=250).step_by(30).map(|at| step(at, Fault::LateEnd { ms: 300 }));
    let plan = Plan { commit_ms: 200, checkpoint_ms: NEVER_MS, ..plan(&options, steps) };
    check(&plan);
    assert!(matches!(run(&plan, Some("late_request_not_fenced")), Outcome::Failed(_)), "the simulation does not notice the defect");
}

#[test]
fn records_around_open_transactions_keep_their_order() {
    let mixed = |at, partition, committed| step(at, Fault::MixedTransaction { partition, ms: 1_500, committed });
    let steps = [mixed(60, 0, true), mixed(90, 1, false), step(100, Fault::Kill), mixed(150, 2, true), mixed(200, 0, false)];
    check(&plan(&[STATIC, "kind = \"exact\""], steps));
}

#[test]
fn output_is_exact_if_coordinators_move_and_forget_transactional_ids() {
    let steps = [
        step(60, Fault::MoveAll { lag: 5 }),
        step(90, Fault::Join),
        at_once(90, Fault::MoveAll { lag: 0 }),
        step(140, Fault::ExpireTransactionalIds),
        step(180, Fault::MoveAll { lag: 0 }),
        step(220, Fault::ExpireTransactionalIds),
    ];
    check(&plan(&[COVERS_ALL], steps));
}

/// A producer sends a batch, purges it, and sends other records. The answer to the purged batch must not count for the other records.
#[test]
fn late_answer_to_a_purged_batch_acknowledges_no_other_record() {
    check(&parse(include_str!("../seeds/late_answer_after_purge.txt")));
}
