//! Lost and reset offsets, and inputs that are truncated, recreated, or expire.

use super::{COVERS_ALL, NEVER_MS, NO_COLD_START, STATIC, WITHOUT_CHANGELOG, at_once, check, check_kept, parse, plan, step};
use crate::plan::{Fault, Plan, Step};
use crate::truth::ServerFilter;
use crate::{Outcome, run};

/// The remaining changelog records are newer than the checkpoint. After the group has lost its offsets, only the changelog shows how far
/// the group has read.
#[test]
fn a_state_older_than_the_changelog_is_rebuilt_without_offsets() {
    let steps = [step(0, Fault::OldDisk), step(250, Fault::LoseOffsets), at_once(250, Fault::OldDisk)];
    check(&plan(&[STATIC, NO_COLD_START], steps));
}

/// `start = "latest"` determines where a group starts, and not where it resumes after it has lost its offsets.
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

/// A new leader that does not know the high watermark yet reports an end offset that is too low. Random plans seldom have a warm-up at that
/// moment, so this test also checks that the simulation detects a worker that ends a warm-up at this offset.
#[test]
fn an_early_end_of_a_partition_does_not_end_its_warm_up() {
    let options = [STATIC, COVERS_ALL, WITHOUT_CHANGELOG, "kind = \"exact\"", "a space that topics share"];
    let plan = Plan { checkpoint_ms: NEVER_MS, ..plan(&options, [step(150, Fault::ElectAfterRestore { lag: 20 })]) };
    check(&plan);
    assert!(matches!(run(&plan, Some("early_end_ends_warm_up")), Outcome::Failed(_)), "the simulation does not notice the defect");
}

/// Another member takes over a truncated partition and has to warm it up from an old checkpoint. Until the warm-up ends, the member's
/// stream time is behind the group's. The member must not commit its own stream time, because the next warm-up would not move the window
/// past that time.
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

/// The second reset sets the offset to the middle of a commit that the group made after the first reset.
#[test]
fn offsets_that_are_reset_twice_lose_no_key() {
    for partition in 0..4 {
        let reset = |back| Fault::ResetOffset { partition, back };
        let steps = [step(150, reset(1_000)), step(150, reset(3)), step(150, Fault::LoseDisk { killed: true })];
        let plan = plan(&[STATIC, COVERS_ALL, "kind = \"exact\""], steps);
        check(&Plan { server: Some(ServerFilter::Worker), commit_ms: 200, ..plan });
    }
}

/// The group's offsets are lost, and a member takes over a partition whose checkpoint is older than the trimmed changelog. The changelog
/// still shows how far the group had read.
#[test]
fn lost_offsets_are_found_in_a_changelog_that_starts_after_the_checkpoint() {
    check(&parse(include_str!("../seeds/lost_offsets_after_a_trim.txt")));
}

/// Records expire while the group is stopped. The next changelog record must start at the offset of the state. Otherwise, if the process is
/// killed before its next checkpoint, the rebuild finds a gap.
#[test]
fn a_kill_after_records_expired_forgets_no_key() {
    check_kept("expired_records_not_logged", include_str!("../seeds/killed_after_expiry.txt"));
}

/// A member is suspended after it has read a committed offset. While the member is suspended, another member takes the partition over,
/// commits more, and deletes the records of the repartition topic that all checkpoints contain.
#[test]
fn an_outdated_committed_offset_is_not_taken_for_expired_records() {
    check_kept("outdated_offset_believed", include_str!("../seeds/outdated_offset.txt"));
    // Two other members own the partition in turn, so the changelog records that the suspended member skips have two epochs.
    check_kept("outdated_offset_believed", include_str!("../seeds/outdated_offset_of_two_epochs.txt"));
}
