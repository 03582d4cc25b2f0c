//! A kill at every fault point.

use super::{COVERS_ALL, NEVER_MS, NO_COLD_START, STATIC, WITHOUT_CHANGELOG, at_once, check, fail_at, kill_at, plan, step};
use crate::plan::{Fault, Plan, Step};
use std::collections::BTreeSet;

/// Fault points that a process passes repeatedly while it works.
const WORKING: &[&str] = &[
    "transaction.begin",
    "transaction.begun",
    "transaction.send",
    "transaction.sent",
    "commit.logged",
    "commit.begin",
    "commit.offsets_sent",
    "commit.flushed",
    "commit.committed",
    "commit.booked",
    "checkpoint.begin",
    "checkpoint.write",
    "checkpoint.written",
    "checkpoint.clean",
    "checkpoint.trimmed",
];
const STARTING: &[&str] = &[
    "connect.begin",
    "connect.ready",
    "assign.begin",
    "assign.committed",
    "restore.begin",
    "restore.offsets",
    "restore.loaded",
    "restore.placed",
    "assign.restored",
    "assign.assigned",
];
const REBUILDING: &[&str] = &["rebuild.begin", "rebuild.record", "rebuild.ended", "rebuild.taken"];
const COLD: &[&str] = &["restore.cold", "warm_up.record", "warm_up.ended"];
const CORRUPT: &[&str] = &["quarantine.moved", "quarantine.opened"];
const ABORTING: &[&str] = &["abort.begin", "abort.aborted", "abort.rewound"];
const IN_DOUBT: &[&str] = &["resolve.begin", "connect.begin", "resolve.replaced", "resolve.committed", "resolve.resolved"];
const REVOKED: &[&str] = &["revoke.begin", "revoke.committed", "revoke.checkpointed", "revoke.forgotten", "revoke.unassigned"];
const LOST: &[&str] = &["lose.begin", "lose.forgotten", "lose.aborted"];
const DRAINING: &[&str] = &["drain.begin", "drain.committed", "drain.checkpointed", "drain.left"];

/// Fault points that no simulated process passes. The tests `faults`, `redrive`, and `seed` kill a process there on a real broker.
const ON_A_BROKER: &[&str] = &["checkpoint.file", "outsider.written", "outsider.offsets_sent", "outsider.committed"];

/// For each point and each `n` in `times`, runs a plan that kills a process at its n-th pass of the point. Panics if the process does not
/// pass the point.
fn kill_at_each(points: &[&str], times: &[u32], plan: impl Fn(Fault) -> Plan) {
    let kills = |step: &&Step| {
        matches!(step.fault, Fault::Kill | Fault::KillAt(..) | Fault::LoseDisk { killed: true } | Fault::DamageDisk { killed: true, .. })
    };
    for point in points {
        for &time in times {
            let plan = plan(kill_at(point, time));
            assert_eq!(check(&plan), plan.steps.iter().filter(kills).count() as u64, "{point} is not passed:\n{plan}");
        }
    }
}

#[test]
fn every_fault_point_has_a_test() {
    let all = [WORKING, STARTING, REBUILDING, COLD, CORRUPT, ABORTING, IN_DOUBT, REVOKED, LOST, DRAINING, ON_A_BROKER].concat();
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), unseen::fault::POINTS.iter().copied().collect());
}

#[test]
fn output_is_exact_if_a_worker_is_killed_at_any_point_of_its_work() {
    for kind in ["kind = \"aging\"", "kind = \"exact\""] {
        kill_at_each(WORKING, &[1, 4], |kill| plan(&[STATIC, kind], [step(60, kill)]));
    }
}

#[test]
fn output_is_exact_if_a_worker_is_killed_at_any_point_of_its_start() {
    kill_at_each(STARTING, &[1], |kill| plan(&[STATIC], [step(100, Fault::Kill), at_once(100, kill)]));
    let lost = || step(100, Fault::LoseDisk { killed: true });
    kill_at_each(REBUILDING, &[1, 3], |kill| plan(&[STATIC, NO_COLD_START], [lost(), at_once(100, kill)]));
    kill_at_each(COLD, &[1, 3], |kill| plan(&[STATIC, WITHOUT_CHANGELOG, COVERS_ALL], [lost(), at_once(100, kill)]));
    let damage = || step(100, Fault::DamageDisk { entry: 3, killed: true });
    kill_at_each(CORRUPT, &[1], |kill| plan(&[STATIC], [damage(), at_once(100, kill)]));
}

#[test]
fn output_is_exact_if_a_worker_is_killed_at_any_point_of_a_warm_up() {
    kill_at_each(&["warm_up.record", "warm_up.ended"], &[1, 4], |kill| {
        let steps = [step(100, Fault::Kill), at_once(100, kill)];
        Plan { checkpoint_ms: NEVER_MS, ..plan(&[STATIC, WITHOUT_CHANGELOG], steps) }
    });
}

#[test]
fn output_is_exact_if_a_worker_is_killed_at_any_point_after_an_abort() {
    kill_at_each(ABORTING, &[1], |kill| plan(&[STATIC], [step(60, fail_at("commit.begin", 1)), at_once(60, kill)]));
    for failed in ["commit.flushed", "commit.committed"] {
        kill_at_each(IN_DOUBT, &[1], |kill| plan(&[STATIC], [step(60, fail_at(failed, 1)), at_once(60, kill)]));
    }
}

#[test]
fn worker_is_killed_at_every_point_of_a_revocation() {
    kill_at_each(REVOKED, &[1], |kill| plan(&[], [step(60, kill), step(90, Fault::Join)]));
    kill_at_each(LOST, &[1], |kill| plan(&[], [step(60, Fault::Join), step(120, kill), at_once(120, Fault::Stop { ms: 3_500 })]));
    kill_at_each(DRAINING, &[1], |kill| plan(&[STATIC], [step(60, kill), step(100, Fault::Terminate)]));
}

/// A topic appears that a pattern matches. The process is killed while it finishes its work with the old topics or starts with the new
/// topic.
#[test]
fn worker_is_killed_at_every_point_of_a_start_with_a_new_topic() {
    // A harmless fault that delays the end of the stream until the process has found the topic.
    let found = || Step { delay_ms: 3_000, ..step(100, Fault::Elect { partition: 0, lag: 0 }) };
    let with_topic = |kill| Plan { pattern: true, ..plan(&[], [step(40, kill), step(60, Fault::NewTopic), found()]) };
    kill_at_each(DRAINING, &[1], with_topic);
    kill_at_each(STARTING, &[1], with_topic);
}
