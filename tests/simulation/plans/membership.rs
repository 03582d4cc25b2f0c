//! Members that join, restart, or lose their partitions, and members that cannot reach brokers.

use super::{COVERS_ALL, NO_COLD_START, STATIC, at_once, check, check_kept, parse, plan, step};
use crate::plan::{Fault, Plan, Step};
use crate::truth::ServerFilter;
use crate::{Outcome, run};

/// For a while, the members of the group know different topics.
#[test]
fn output_is_exact_if_members_start_with_new_topics_at_different_times() {
    for options in [&[][..], &["workers = 2"], &["repartition = true", COVERS_ALL]] {
        let steps = [
            step(20, Fault::Join),
            step(50, Fault::NewTopic),
            step(90, Fault::Stop { ms: 1_500 }),
            at_once(120, Fault::NewTopic),
            step(150, Fault::Join),
            step(200, Fault::NewTopic),
        ];
        let plan = plan(options, steps);
        check(&Plan { pattern: true, ..plan });
    }
}

#[test]
fn returning_partition_has_the_keys_seen_by_other_members() {
    let leaves = Fault::Leave { killed: false };
    let steps = [step(60, Fault::Join), step(100, leaves.clone()), step(140, Fault::Join), Step { who: 1, ..step(180, leaves) }];
    check(&plan(&[NO_COLD_START], steps));
}

#[test]
fn output_is_exact_if_static_members_restart_one_by_one() {
    let steps = [step(60, Fault::Join), step(80, Fault::Join), step(120, Fault::Roll), step(200, Fault::Roll)];
    check(&plan(&[STATIC], steps));
}

/// A member is frozen while it is assigned partitions. When it wakes up, another member owns the partitions and has written to their
/// changelog. If the frozen member did not have to prove its membership, it would write a higher epoch to the changelog, and servers would
/// skip the new owner's records.
#[test]
fn replaced_member_does_not_outrank_its_successor() {
    let stop = |point: &str| Fault::StopAt { point: point.to_owned(), count: 1, ms: 3_500 };
    // The remaining records of the stream arrive after the frozen member has woken up.
    let pause = Step { delay_ms: 3_200, ..step(120, Fault::StepClock { ms: 0 }) };
    // In the second case, the offsets are lost, so the member has no committed offset that it could commit again as a proof of membership.
    for (begin, point) in [(Fault::Kill, "assign.committed"), (Fault::LoseOffsets, "restore.offsets")] {
        let steps = [step(60, begin), at_once(60, stop(point)), step(62, Fault::Join), pause.clone()];
        let mut plan = plan(&[STATIC, COVERS_ALL, "delivery = \"at_least_once\"", "kind = \"exact\""], steps);
        plan.server = Some(ServerFilter::Cuckoo);
        check(&plan);
        assert!(matches!(run(&plan, Some("membership_not_proved")), Outcome::Failed(_)), "the simulation does not notice the defect");
    }
}

/// A worker stalls for longer than `max.poll.interval.ms` in a transaction or an assignment. Its consumer leaves the group, and another
/// member gets the worker's partitions, possibly while the worker's transaction is open.
#[test]
fn worker_that_polls_too_seldom_loses_its_partitions() {
    for point in ["transaction.sent", "commit.begin", "commit.offsets_sent", "commit.committed", "assign.committed"] {
        let stall = Fault::StallAt { point: point.to_owned(), count: 2, ms: 9_500 };
        let pause = |at| Step { delay_ms: 9_000, ..step(at, Fault::StepClock { ms: 0 }) };
        let steps = [step(60, Fault::Join), step(100, stall), pause(140), step(180, Fault::Kill), pause(240)];
        check(&Plan { max_poll_ms: Some(8_000), transaction_ms: 20_000, ..plan(&[COVERS_ALL], steps) });
    }
}

/// Tests each set of brokers that a process may be unable to reach. With some sets, the process stays a member but cannot read or commit
/// all of its partitions. With others, the process can read but is no longer a member.
#[test]
fn output_is_exact_if_a_worker_cannot_reach_some_brokers() {
    for bits in 1..8 {
        let brokers = || (0..3).filter(|broker| bits >> broker & 1 == 1).collect::<Vec<_>>();
        let steps =
            [1_000, 3_500, 12_000].into_iter().zip([60, 130, 200]).map(|(ms, at)| step(at, Fault::CutOff { brokers: brokers(), ms }));
        let pauses = [90, 170, 240].map(|at| Step { delay_ms: 5_000, ..step(at, Fault::StepClock { ms: 0 }) });
        let mut steps: Vec<_> = steps.chain(pauses).chain([step(40, Fault::Join)]).collect();
        steps.sort_by_key(|step| step.at);
        check(&plan(&[COVERS_ALL], steps));
    }
}

/// One member commits the start offset of the group while another member requests it.
#[test]
fn member_that_asks_during_the_first_commit_starts_with_the_group() {
    check_kept("stale_beginning_used", include_str!("../seeds/begun_meanwhile.txt"));
}

/// A worker exceeds `max.poll.interval.ms` while it restores a partition. When it continues, another worker of the process owns the
/// partition and has written a checkpoint.
#[test]
fn a_former_owner_does_not_replace_a_checkpoint() {
    check_kept("claims_ignored", include_str!("../seeds/superseded_checkpoint.txt"));
}

/// librdkafka considers a rebalance handled before the worker has seen it. The worker must not commit until it has handled the rebalance.
#[test]
fn nothing_is_committed_before_a_rebalance_is_handled() {
    check_kept("unhandled_rebalance_ignored", include_str!("../seeds/unhandled_rebalance.txt"));
}

/// A worker restarts fetching while a revocation is queued. librdkafka takes the calls that restart fetching as the answer to the
/// revocation. The worker's own answer then arrives during the next rebalance.
#[test]
fn late_answers_to_rebalances_leave_no_partition_unread() {
    check(&parse(include_str!("../seeds/late_answers.txt")));
}

/// With `at_least_once`, a new owner proves its membership with a commit before it announces itself. For an input without a committed
/// offset, it must commit the starting offset, not its current position.
#[test]
fn a_proof_of_membership_commits_no_records() {
    check(&parse(include_str!("../seeds/membership_proved_at_uncommitted_position.txt")));
}
