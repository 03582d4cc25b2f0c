//! State that must survive configuration changes, lost disks, and lost changelogs.

use super::{COVERS_ALL, NO_COLD_START, STATIC, WITHOUT_CHANGELOG, check, check_kept, filters, parse, plan, step};
use crate::options::{Change, EVENT_TIMES};
use crate::plan::Fault;

#[test]
fn state_survives_configuration_changes() {
    for kind in filters().map(|filter| filter.choice) {
        let changes = [Change::Kind, Change::Slices, Change::Window, Change::Size, Change::Kind];
        let steps = changes.into_iter().enumerate().map(|(number, change)| step(50 * (number + 1), Fault::Change(change)));
        check(&plan(&[STATIC, COVERS_ALL, NO_COLD_START, kind], steps));
    }
}

#[test]
fn window_that_covers_all_records_survives_a_change_of_its_times() {
    let steps = (1..=4).map(|number| step(50 * number, Fault::Change(Change::Time)));
    check(&plan(&[STATIC, COVERS_ALL, NO_COLD_START, EVENT_TIMES], steps));
}

#[test]
fn window_by_count_survives_a_lost_disk() {
    for kind in filters().map(|filter| filter.choice) {
        let steps = [step(100, Fault::LoseDisk { killed: true }), step(200, Fault::LoseDisk { killed: false })];
        check(&plan(&[STATIC, "a window by count that covers all", NO_COLD_START, kind], steps));
    }
}

/// Records from before the group's start were never emitted, so a cold start must not count them as seen.
#[test]
fn cold_start_ignores_records_from_before_the_group() {
    let steps = [step(60, Fault::LoseDisk { killed: false })];
    check(&plan(&[STATIC, COVERS_ALL, "start = \"latest\"", WITHOUT_CHANGELOG], steps));
}

/// The changelog is deleted. The first records of the new changelog are from a member that warmed up from an old checkpoint. A member with
/// a newer checkpoint must keep that checkpoint, because it contains keys from before the new changelog.
#[test]
fn a_warm_up_in_a_recreated_changelog_is_not_a_reset() {
    check_kept("warm_up_taken_for_reset", include_str!("../seeds/recreated_changelog.txt"));
    // Here, the last changelog record of the warm-up also covers new input records, and the checkpoint lacks some of the input records that
    // the earlier changelog records cover.
    check_kept("warm_up_taken_for_reset", include_str!("../seeds/warm_up_with_new_records.txt"));
}

/// The disk is full for a while, so checkpoints cannot be written. Then the changelog of one entry is deleted. The repartition topic must
/// still have the records that this entry's checkpoint lacks, although the other entry of the input has a later checkpoint.
#[test]
fn a_lost_changelog_is_replaced_by_records_that_were_not_trimmed() {
    check_kept("trimmed_before_checkpoint", include_str!("../seeds/changelog_lost_after_a_trim.txt"));
}

/// A member comes back with a checkpoint from before the changelog was recreated. The new changelog already contains the whole window, and
/// the input does not.
#[test]
fn a_changelog_with_the_whole_window_replaces_an_older_checkpoint() {
    check(&parse(include_str!("../seeds/checkpoint_older_than_changelog.txt")));
}

/// A member comes back with a checkpoint from before the changelog was recreated. The changelog does not contain the whole window, so the
/// member must keep its checkpoint. The changelog only looks as if it began before the window, because it begins with an announcement or
/// with a warm-up that ended early.
#[test]
fn a_changelog_without_the_whole_window_does_not_replace_a_checkpoint() {
    check(&parse(include_str!("../seeds/changelog_without_whole_window_by_count.txt")));
    check(&parse(include_str!("../seeds/changelog_without_whole_window_by_time.txt")));
}

/// The changelog is recreated. A member with an old checkpoint writes only a part of its warm-up to the changelog, and then a member with a
/// newer checkpoint continues. The changelog lacks the records between the end of that part and the newer checkpoint, so the first member
/// must later read these records from the input.
#[test]
fn a_hole_after_an_unfinished_warm_up_is_read_from_the_input() {
    check(&parse(include_str!("../seeds/hole_after_unfinished_warm_up.txt")));
    check(&parse(include_str!("../seeds/hole_after_unfinished_warm_up_at_least_once.txt")));
}

/// A process is killed after it has written a part of its warm-up to the changelog. The next rebuild reads this part from the changelog and
/// the rest from the input. To judge the rest, the rebuild needs keys that have already expired.
#[test]
fn a_rebuild_that_ends_in_a_warm_up_keeps_expired_keys() {
    check(&parse(include_str!("../seeds/expired_keys_needed_by_warm_up.txt")));
}

/// A rebuild skips changelog records of input offsets that were not committed. After these records, another member with an older checkpoint
/// has written the changes of its warm-up. The warm-up must not count as a reset.
#[test]
fn a_warm_up_after_skipped_records_keeps_the_checkpoint() {
    check(&parse(include_str!("../seeds/skipped_before_warm_up.txt")));
    check(&parse(include_str!("../seeds/skipped_before_warm_up_at_least_once.txt")));
}

/// With `at_least_once`, a crash leaves a changelog record whose input offsets were not committed. The next changelog record covers some of
/// these offsets again, as after a reset of the offsets. The checkpoint is older than both changelog records, so the member must keep the
/// checkpoint.
#[test]
fn a_crash_between_changelog_and_offsets_keeps_the_checkpoint() {
    check(&parse(include_str!("../seeds/crash_after_changelog_record.txt")));
}

/// The worker trims the changelog as soon as a commit makes old records unnecessary. A server that loads the changelog at that moment
/// cannot read the records of that commit until the broker has written the transaction's control batches.
#[test]
fn a_server_that_loads_a_changelog_trimmed_before_its_markers_knows_all_keys() {
    check(&parse(include_str!("../seeds/trimmed_before_markers.txt")));
}
