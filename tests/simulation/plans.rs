//! Promise: in the situations after which these tests are named, the output is as docs/contributing/promises.md promises.
//!
//! Random plans reach most of these situations, but only with some seeds. The plans below reach them in every run. Most have an
//! `instance_id`: without one, the group would wait until the session of a killed process ends, and the stream would end before that.

use crate::options::{Change, DIMENSIONS, ENCODED, EVENT_TIMES, FILTERS, Filter, ON_CHANGE, RULES, WHEN};
use crate::plan::{FAILING, Fault, Plan, ServerFilter, Step};
use crate::{Outcome, run};
use serde_json::json;
use std::collections::BTreeSet;

const STATIC: &str = "instance_id";
const COVERS_ALL: &str = "a window by time that covers all";
const WITHOUT_CHANGELOG: &str = "state.changelog = false";
const NO_COLD_START: &str = "cold_start = \"fail\"";

/// The filters that keep a window.
fn filters() -> impl Iterator<Item = &'static Filter> {
    FILTERS.iter().filter(|filter| filter.keeps_window())
}

/// A checkpoint interval longer than any plan.
const NEVER_MS: u64 = 1_000_000;

/// A plan with these options, the defaults of all others, and a network without faults.
fn plan(options: &[&str], steps: impl IntoIterator<Item = Step>) -> Plan {
    let unknown = options.iter().find(|option| !DIMENSIONS.iter().any(|choices| choices.contains(option)));
    assert_eq!(unknown, None, "an option that does not exist");
    let choice = |choices: &&[&'static str]| choices.iter().copied().find(|choice| options.contains(choice)).unwrap_or(choices[0]);
    let plan = json!({
        "seed": 1,
        "records": 300,
        "options": DIMENSIONS.iter().map(choice).collect::<Vec<_>>(),
        "capacity": 4_000,
        "commit_ms": 50,
        "checkpoint_ms": 100,
        "session_ms": 2_000,
        "transaction_ms": 1_000,
        "transaction_records": 1_000_000,
        "network": false,
    });
    Plan { steps: steps.into_iter().collect(), ..serde_json::from_value(plan).expect("a plan") }
}

/// A fault 50 ms after this number of records.
fn step(at: usize, fault: Fault) -> Step {
    Step { at, delay_ms: 50, who: 0, fault }
}

/// A fault right after the previous step, before a process that this step started has done anything.
fn at_once(at: usize, fault: Fault) -> Step {
    Step { delay_ms: 0, ..step(at, fault) }
}

fn kill_at(point: &str, time: u32) -> Fault {
    Fault::KillAt(point.to_owned(), time)
}

fn fail_at(point: &str, time: u32) -> Fault {
    Fault::FailAt(point.to_owned(), time)
}

/// Carries a plan out, and returns the number of killed processes.
fn check(plan: &Plan) -> u64 {
    match run(plan, None) {
        Outcome::Exact { kills } => kills,
        Outcome::Failed(reason) => panic!("{reason}; write this to FILE and run UNSEEN_SIM_PLAN=FILE:\n{plan}"),
    }
}

/// Carries out a plan that was kept because it once failed. With the defect that caused the failure, the plan must still fail.
fn check_kept(defect: &'static str, plan: &str) {
    let plan = Plan::parse(plan).expect("a plan");
    check(&plan);
    assert!(matches!(run(&plan, Some(defect)), Outcome::Failed(_)), "the simulation does not notice the defect");
}

/// Points that a process passes repeatedly while it works.
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

/// Points that no simulated process passes. Tests on a real broker kill there: `faults`, `redrive`, and `seed`.
const ON_A_BROKER: &[&str] = &["checkpoint.file", "outsider.written", "outsider.offsets_sent", "outsider.committed"];

/// Kills a process at each of these points, at the n-th pass of the point, for each n in `times`.
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

/// A topic appears that a pattern matches. The process is killed while it ends its work with the old topics, or starts with the new one.
#[test]
fn worker_is_killed_at_every_point_of_a_start_with_a_new_topic() {
    // A harmless fault that delays the end of the stream until the process has found the topic.
    let found = || Step { delay_ms: 3_000, ..step(100, Fault::Elect { partition: 0, lag: 0 }) };
    let with_topic = |kill| Plan { pattern: true, ..plan(&[], [step(40, kill), step(60, Fault::NewTopic), found()]) };
    kill_at_each(DRAINING, &[1], with_topic);
    kill_at_each(STARTING, &[1], with_topic);
}

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

/// Each step of a transaction and of a checkpoint fails twice, with small and with large transactions.
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

/// After an abort, the worker reads decided records together with many new ones. It must write the decided records first.
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
fn returning_partition_has_the_keys_seen_by_other_members() {
    let leaves = Fault::Leave { killed: false };
    let steps = [step(60, Fault::Join), step(100, leaves.clone()), step(140, Fault::Join), Step { who: 1, ..step(180, leaves) }];
    check(&plan(&[NO_COLD_START], steps));
}

#[test]
fn state_survives_configuration_changes() {
    for kind in filters().map(|filter| filter.choice) {
        let changes = [Change::Kind, Change::Slices, Change::Window, Change::Size, Change::Kind];
        let steps = changes.into_iter().enumerate().map(|(number, change)| step(50 * (number + 1), Fault::Change(change)));
        check(&plan(&[STATIC, COVERS_ALL, NO_COLD_START, kind], steps));
    }
}

/// Event times differ from Kafka's timestamps by up to half a window, in several units, and some records have no event time.
#[test]
fn keys_expire_by_event_time_through_kills_and_a_lost_disk() {
    let odd = "records that are late, from the future, or without a time";
    let of = |kind| {
        let steps = [step(60, Fault::Kill), step(120, Fault::LoseDisk { killed: true }), step(200, Fault::Join), step(240, Fault::Kill)];
        plan(&[STATIC, NO_COLD_START, EVENT_TIMES, "late = \"drop\"", odd, kind], steps)
    };
    for kind in filters().map(|filter| filter.choice) {
        check(&of(kind));
    }
    let plan = of(FILTERS[0].choice);
    assert!(matches!(run(&plan, Some("event_times_ignored")), Outcome::Failed(_)), "the simulation does not notice the defect");
}

#[test]
fn window_that_covers_all_records_survives_a_change_of_its_times() {
    let steps = (1..=4).map(|number| step(50 * number, Fault::Change(Change::Time)));
    check(&plan(&[STATIC, COVERS_ALL, NO_COLD_START, EVENT_TIMES], steps));
}

/// A header or a field selects the records to deduplicate. Some records have no key.
#[test]
fn records_pass_through_in_order_through_kills_and_a_lost_disk() {
    let of = |more: &[&str]| {
        let steps = [step(60, Fault::Kill), step(120, Fault::LoseDisk { killed: true }), step(200, Fault::Join), step(240, Fault::Kill)];
        plan(&[&[STATIC, COVERS_ALL, NO_COLD_START, WHEN][..], more].concat(), steps)
    };
    for more in [
        &[][..],
        &["tombstones", "on_duplicate = \"mark\""],
        &["records that lack what the key is made of", "on_invalid = \"drop\""],
        &["records that the output refuses", "on_invalid = { topic }"],
        &["records that the output refuses", "on_invalid = { topic }", "repartition = true"],
        &["a space that topics share"],
        &["delivery = \"at_least_once\"", "repartition = true"],
    ] {
        check(&of(more));
    }
    let plan = of(&[]);
    assert!(matches!(run(&plan, Some("conditions_ignored")), Outcome::Failed(_)), "the simulation does not notice the defect");
}

#[test]
fn changed_condition_applies_to_later_records() {
    let steps =
        || [step(80, Fault::Change(Change::When)), step(120, Fault::Kill), step(160, Fault::Change(Change::When)), step(220, Fault::Kill)];
    for kind in filters().map(|filter| filter.choice) {
        check(&plan(&[STATIC, NO_COLD_START, WHEN, kind], steps()));
    }
    let lost = step(250, Fault::LoseDisk { killed: true });
    check(&plan(&[STATIC, COVERS_ALL, NO_COLD_START, WHEN, EVENT_TIMES], [steps().to_vec(), vec![lost]].concat()));
}

/// The contents on, on, off, on are emitted as on, off, on, even if the worker that emits the third record has only the changelog.
#[test]
fn changed_contents_are_emitted_through_kills_and_lost_disks() {
    let of = |more: &[&str]| {
        let lost = |at| step(at, Fault::LoseDisk { killed: true });
        let steps = [step(60, Fault::Kill), lost(120), step(160, Fault::Kill), step(200, Fault::Join), lost(240), step(280, Fault::Kill)];
        plan(&[&[STATIC, NO_COLD_START, "kind = \"exact\"", ON_CHANGE][..], more].concat(), steps)
    };
    for more in [
        &[COVERS_ALL][..],
        &["slices = 1", "refresh = true"],
        &["a window by count that rotates", "on_duplicate = \"mark\""],
        &["records that are late, from the future, or without a time", "late = \"drop\""],
        &["records that lack what the key is made of", "on_invalid = { topic }"],
        &["retract", "tombstones", "slices = 1"],
        &[ENCODED, WHEN, EVENT_TIMES],
        &[WITHOUT_CHANGELOG, "cold_start = \"rebuild\""],
    ] {
        let plan = of(more);
        let keeps_disk = |step: &Step| more[0] != WITHOUT_CHANGELOG || !matches!(step.fault, Fault::LoseDisk { .. });
        check(&Plan { steps: plan.steps.iter().filter(|step| keeps_disk(step)).cloned().collect(), ..plan });
    }
    let plan = of(&[COVERS_ALL]);
    assert!(matches!(run(&plan, Some("contents_ignored")), Outcome::Failed(_)));
    assert!(matches!(run(&plan, Some("replaced_contents_not_logged")), Outcome::Failed(_)));
}

#[test]
fn a_change_of_emit_evaluates_the_records_again() {
    let change = |at| step(at, Fault::Change(Change::Emit));
    let steps = [change(80), step(120, Fault::Kill), change(160), step(200, Fault::LoseDisk { killed: true }), change(240)];
    for more in [&["cold_start = \"rebuild\""][..], &["retract", "refresh = true", "start = \"latest\""]] {
        check(&plan(&[&[STATIC, COVERS_ALL, "kind = \"exact\"", ON_CHANGE][..], more].concat(), steps.clone()));
    }
}

#[test]
fn window_by_count_survives_a_lost_disk() {
    for kind in filters().map(|filter| filter.choice) {
        let steps = [step(100, Fault::LoseDisk { killed: true }), step(200, Fault::LoseDisk { killed: false })];
        check(&plan(&[STATIC, "a window by count that covers all", NO_COLD_START, kind], steps));
    }
}

#[test]
fn keys_are_retracted_through_kills_and_a_lost_disk() {
    for kind in filters().filter(|filter| filter.can_retract()).map(|filter| filter.choice) {
        let kill = |at| step(at, Fault::Kill);
        let steps = [kill(60), kill(120), step(180, Fault::LoseDisk { killed: true }), kill(240)];
        check(&plan(&[STATIC, kind, "retract"], steps));
    }
}

/// The changelog was trimmed past the checkpoint. Without the group's offsets, only the changelog shows the group's position.
#[test]
fn a_state_older_than_the_changelog_is_rebuilt_without_offsets() {
    let steps = [step(0, Fault::OldDisk), step(250, Fault::LoseOffsets), at_once(250, Fault::OldDisk)];
    check(&plan(&[STATIC, NO_COLD_START], steps));
}

/// `latest` determines where a group starts, and not where it resumes after it has lost its offsets.
#[test]
fn group_that_lost_its_offsets_does_not_start_over() {
    let steps = [
        at_once(100, Fault::LoseOffsets),
        at_once(100, Fault::LoseDisk { killed: true }),
        at_once(180, Fault::LoseOffsets),
        at_once(180, Fault::KillAfter(150)),
    ];
    check(&plan(&[STATIC, COVERS_ALL, "start = \"latest\"", "workers = 2"], steps));
}

/// Records from before the group's start were never emitted, so a cold start must not count them as seen.
#[test]
fn cold_start_ignores_records_from_before_the_group() {
    let steps = [step(60, Fault::LoseDisk { killed: false })];
    check(&plan(&[STATIC, COVERS_ALL, "start = \"latest\"", WITHOUT_CHANGELOG], steps));
}

#[test]
fn recreated_empty_input_keeps_seen_keys() {
    let options = [STATIC, COVERS_ALL, NO_COLD_START];
    check(&plan(&options, [step(150, Fault::RecreateInput), at_once(150, Fault::LoseDisk { killed: true })]));
    check(&plan(&options, [step(40, Fault::OldDisk), step(150, Fault::RecreateInput), at_once(150, Fault::OldDisk)]));
}

#[test]
fn log_that_ends_before_the_groups_offset_is_continued_at_its_end() {
    let steps = [step(150, Fault::ShortLog { partition: 0 }), at_once(150, Fault::Kill)];
    check(&plan(&[STATIC, "on_truncation = \"continue\""], steps));
}

#[test]
fn topics_of_a_space_share_seen_keys() {
    let options = [STATIC, COVERS_ALL, "a space that topics share"];
    check(&plan(&options, [step(100, Fault::Kill), step(200, Fault::Join)]));
    let without_changelog = [&options[..], &[WITHOUT_CHANGELOG]].concat();
    let kills = [step(150, Fault::Kill), step(250, Fault::Kill)];
    check(&Plan { checkpoint_ms: NEVER_MS, ..plan(&without_changelog, kills) });
}

#[test]
fn at_least_once_loses_nothing_through_kills() {
    let steps = [60, 120, 180].map(|at| step(at, Fault::Kill)).into_iter().chain([step(240, kill_at("commit.flushed", 1))]);
    check(&plan(&[STATIC, COVERS_ALL, "delivery = \"at_least_once\""], steps));
}

#[test]
fn records_are_dropped_as_configured_through_kills() {
    for (dropped, records) in [
        ("late = \"drop\"", "records that are late, from the future, or without a time"),
        ("on_tombstone = \"drop\"", "tombstones"),
        ("on_invalid = \"drop\"", "records that lack what the key is made of"),
    ] {
        check(&plan(&[STATIC, dropped, records], [step(100, Fault::Kill), step(200, Fault::Kill)]));
    }
}

#[test]
fn aborted_records_of_the_input_do_not_count_as_seen() {
    let open = |partition| Fault::OpenTransaction { partition, ms: 2_500 };
    check(&plan(&[STATIC], [step(100, open(0)), step(200, open(1))]));
}

#[test]
fn output_is_exact_if_static_members_restart_one_by_one() {
    let steps = [step(60, Fault::Join), step(80, Fault::Join), step(120, Fault::Roll), step(200, Fault::Roll)];
    check(&plan(&[STATIC], steps));
}

/// A new leader that does not know the committed end yet reports the end of its partition too early. Random plans seldom have a warm-up at
/// that moment, so this test also checks that the simulation detects a worker that believes the leader.
#[test]
fn an_early_end_of_a_partition_does_not_end_its_warm_up() {
    let options = [STATIC, COVERS_ALL, WITHOUT_CHANGELOG, "kind = \"exact\"", "a space that topics share"];
    let plan = Plan { checkpoint_ms: NEVER_MS, ..plan(&options, [step(150, Fault::ElectAfterRestore { lag: 20 })]) };
    check(&plan);
    assert!(matches!(run(&plan, Some("early_end_ends_warm_up")), Outcome::Failed(_)), "the simulation does not notice the defect");
}

/// A copy of an `EndTxn` request that arrives during the next transaction would commit a part of it (KIP-890). Random plans seldom have a
/// transaction open at that moment.
#[test]
fn a_late_end_of_a_transaction_is_fenced() {
    let options = [STATIC, COVERS_ALL, "kind = \"exact\"", "on_invalid = \"drop\""];
    let steps = (40..=250).step_by(30).map(|at| step(at, Fault::LateEnd { ms: 300 }));
    let plan = Plan { commit_ms: 200, checkpoint_ms: NEVER_MS, ..plan(&options, steps) };
    check(&plan);
    assert!(matches!(run(&plan, Some("late_request_not_fenced")), Outcome::Failed(_)), "the simulation does not notice the defect");
}

/// A member is frozen while it is assigned partitions. When it wakes up, another member owns them and has written to their changelog.
/// Without proof of its own membership, the frozen member would claim a later epoch, and servers would skip the new owner's records.
#[test]
fn replaced_member_does_not_outrank_its_successor() {
    let stop = Fault::StopAt { point: "assign.committed".to_owned(), count: 1, ms: 3_500 };
    // The other records arrive after the frozen member has woken up.
    let pause = Step { delay_ms: 3_200, ..step(120, Fault::StepClock { ms: 0 }) };
    let steps = [step(60, Fault::Kill), at_once(60, stop), step(62, Fault::Join), pause];
    let mut plan = plan(&[STATIC, COVERS_ALL, "delivery = \"at_least_once\"", "kind = \"exact\""], steps);
    plan.server = Some(ServerFilter::Cuckoo);
    check(&plan);
    assert!(matches!(run(&plan, Some("membership_not_proved")), Outcome::Failed(_)), "the simulation does not notice the defect");
}

/// Another member takes over a truncated partition, and has to warm it up from an old checkpoint. Until the warm-up ends, the member's
/// state is behind the group's stream time. The member must not commit its older time, because the next warm-up would stop there too early.
#[test]
fn a_truncated_partition_keeps_the_stream_time_of_the_group() {
    let options =
        [STATIC, WITHOUT_CHANGELOG, "a window by time that rotates", "kind = \"exact\"", "refresh = true", "on_truncation = \"continue\""];
    let with_defect = |partition| {
        let steps = [
            step(100, Fault::Join),
            at_once(100, Fault::ShortLog { partition }),
            Step { who: 1, ..at_once(100, Fault::ElectAfterRestore { lag: 0 }) },
        ];
        let plan = plan(&options, steps);
        check(&plan);
        matches!(run(&plan, Some("truncation_forgets_stream_time")), Outcome::Failed(_))
    };
    assert!((0..4).map(with_defect).fold(false, |any, noticed| any | noticed), "the simulation does not notice the defect");
}

/// The second reset leads into a commit that the group wrote after the first reset.
#[test]
fn offsets_that_are_reset_twice_lose_no_key() {
    for partition in 0..4 {
        let reset = |back| Fault::ResetOffset { partition, back };
        let steps = [step(150, reset(1_000)), step(150, reset(3)), step(150, Fault::LoseDisk { killed: true })];
        let plan = plan(&[STATIC, COVERS_ALL, "kind = \"exact\""], steps);
        check(&Plan { server: Some(ServerFilter::Worker), commit_ms: 200, ..plan });
    }
}

/// A worker's commit takes longer than `max.poll.interval.ms`. Its consumer leaves the group, and another member gets its partitions while
/// the transaction is open.
#[test]
fn worker_that_polls_too_seldom_loses_its_partitions() {
    for point in ["transaction.sent", "commit.begin", "commit.offsets_sent", "commit.committed", "assign.committed"] {
        let stall = Fault::StallAt { point: point.to_owned(), count: 2, ms: 9_500 };
        let pause = |at| Step { delay_ms: 9_000, ..step(at, Fault::StepClock { ms: 0 }) };
        let steps = [step(60, Fault::Join), step(100, stall), pause(140), step(180, Fault::Kill), pause(240)];
        check(&Plan { max_poll_ms: Some(8_000), transaction_ms: 20_000, ..plan(&[COVERS_ALL], steps) });
    }
}

/// Tests each set of brokers that a process may be unable to reach. With some sets, the process remains a member that cannot read or commit
/// all of its partitions. With others, it reads but is no longer a member.
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

#[test]
fn output_is_exact_if_brokers_set_the_timestamps() {
    check(&Plan { append_time: true, ..plan(&[STATIC, "kind = \"exact\""], [step(100, Fault::Kill), step(200, Fault::Kill)]) });
}

/// The group's offsets are lost, and a member takes over a partition whose checkpoint is older than the trimmed changelog. The changelog
/// still shows how far the group had read.
#[test]
fn lost_offsets_are_found_in_a_changelog_that_starts_after_the_checkpoint() {
    check_kept("gap_forgets_group_offsets", include_str!("seeds/lost_offsets_after_a_trim.txt"));
}

/// Records expire while the group is stopped. A process that is killed before its next checkpoint has logged where to continue reading.
#[test]
fn a_kill_after_records_expired_forgets_no_key() {
    check_kept("expired_records_not_logged", include_str!("seeds/killed_after_expiry.txt"));
}

/// The changelog is deleted. The first records of the new changelog are from a member that warmed up from an old checkpoint. A member with
/// a newer checkpoint must keep it, because it has keys from before the new changelog.
#[test]
fn a_warm_up_in_a_recreated_changelog_is_not_a_reset() {
    check_kept("warm_up_taken_for_reset", include_str!("seeds/recreated_changelog.txt"));
}

/// The changelog of one entry is deleted after the disk was full. The repartition topic must still have the records that the entry's
/// checkpoint lacks, although the other entry of the input has a later checkpoint.
#[test]
fn a_lost_changelog_is_replaced_by_records_that_were_not_trimmed() {
    check_kept("trimmed_before_checkpoint", include_str!("seeds/changelog_lost_after_a_trim.txt"));
}

/// One member commits the start offset of the group while another member requests it.
#[test]
fn member_that_asks_during_the_first_commit_starts_with_the_group() {
    check_kept("stale_beginning_used", include_str!("seeds/begun_meanwhile.txt"));
}

/// A worker of a process exceeds `max.poll.interval.ms` while it restores a partition, and continues after another worker of the process
/// has written a checkpoint.
#[test]
fn a_former_owner_does_not_replace_a_checkpoint() {
    check_kept("claims_ignored", include_str!("seeds/superseded_checkpoint.txt"));
}

/// librdkafka considers a rebalance handled before the worker has seen it.
#[test]
fn nothing_is_committed_before_a_rebalance_is_handled() {
    check_kept("unhandled_rebalance_ignored", include_str!("seeds/unhandled_rebalance.txt"));
}

/// A worker restarts fetching while a revocation is queued. librdkafka takes these calls as the answer to the revocation. The worker's own
/// answer then arrives while the next rebalance awaits its answer.
#[test]
fn late_answers_to_rebalances_leave_no_partition_unread() {
    check(&Plan::parse(include_str!("seeds/late_answers.txt")).expect("a plan"));
}

#[test]
fn rejected_records_are_not_forwarded_forever() {
    check_kept("forwarded_again", include_str!("seeds/forwarded_and_rejected.txt"));
}

/// Records that pass through are not repartitioned. The offsets of forwarded records next to them must not be committed early.
#[test]
fn copies_of_forwarded_records_wait_until_rejected_ones_are_committed() {
    check_kept("new_records_join_rejected_ones", include_str!("seeds/forwarded_next_to_passing.txt"));
    // A copy follows a repeated record in the same batch.
    check(&Plan::parse(include_str!("seeds/rejected_copies_in_one_batch.txt")).expect("a plan"));
}

/// Each entry of an input has its own window, state, and changelog.
#[test]
fn entries_of_one_input_survive_kills_and_a_lost_disk() {
    let of = |more: &[&str]| {
        let steps = [step(60, Fault::Kill), step(120, Fault::LoseDisk { killed: true }), step(200, Fault::Join), step(240, Fault::Kill)];
        plan(&[&[STATIC, NO_COLD_START, RULES][..], more].concat(), steps)
    };
    for kind in filters().map(|filter| filter.choice) {
        check(&of(&[kind]));
    }
    for more in [
        &[COVERS_ALL, WHEN, "tombstones", "on_duplicate = \"mark\""][..],
        &["a window by count that rotates", "refresh = true"],
        &["kind = \"cuckoo\"", "retract", "workers = 2"],
        &["records that lack what the key is made of", "on_invalid = { topic }"],
        &["records that are late, from the future, or without a time", "late = \"drop\"", EVENT_TIMES],
        &[COVERS_ALL, "a space that topics share"],
        &[COVERS_ALL, "repartition = true", WHEN],
        &[COVERS_ALL, "start = \"latest\"", "workers = 2"],
        &[COVERS_ALL, "delivery = \"at_least_once\"", "repartition = true"],
    ] {
        check(&of(more));
    }
}

/// A new entry starts without keys, and an entry that returns has its former keys. Records of another entry do not count as seen.
#[test]
fn output_is_exact_if_entries_of_an_input_are_removed_and_added() {
    let change = |at| step(at, Fault::Change(Change::Rules));
    let steps = || [change(80), step(120, Fault::Kill), change(160), step(220, Fault::LoseDisk { killed: true }), change(240)];
    for kind in filters().map(|filter| filter.choice) {
        check(&plan(&[STATIC, NO_COLD_START, RULES, kind], steps()));
    }
    let plan = plan(&[STATIC, COVERS_ALL, RULES, WHEN], steps());
    check(&plan);
    assert!(matches!(run(&plan, Some("new_rule_warms_up")), Outcome::Failed(_)), "the simulation does not notice the defect");
}

/// Without a changelog, the states of an input are restored from checkpoints of different offsets.
#[test]
fn output_is_exact_if_entries_of_an_input_warm_up_from_different_offsets() {
    let steps = || (1..=8).map(|number| step(30 * number, Fault::Kill));
    for more in ["a window by time that rotates", "a window by count that rotates", "a space that topics share"] {
        let kinds = if more.starts_with("a space") { &[COVERS_ALL][..] } else { &[] };
        let options = [&[STATIC, WITHOUT_CHANGELOG, NO_COLD_START, RULES, more][..], kinds].concat();
        check(&plan(&options, steps()));
    }
    let options = [STATIC, WITHOUT_CHANGELOG, NO_COLD_START, RULES, "kind = \"cuckoo\"", "retract"];
    let plan = Plan { commit_ms: 20, checkpoint_ms: 300, ..plan(&options, steps()) };
    check(&plan);
    assert!(matches!(run(&plan, Some("warm_up_applied_again")), Outcome::Failed(_)), "the simulation does not notice the defect");
}
