//! Records that are forwarded to the repartition topic, together with rejected records.

use super::{check, check_kept};
use crate::plan::Plan;

#[test]
fn rejected_records_are_not_forwarded_forever() {
    check_kept("forwarded_again", include_str!("../seeds/forwarded_and_rejected.txt"));
}

/// Records that pass through are not repartitioned. The offsets of forwarded records next to them must not be committed early.
#[test]
fn copies_of_forwarded_records_wait_until_rejected_ones_are_committed() {
    check_kept("new_records_join_rejected_ones", include_str!("../seeds/forwarded_next_to_passing.txt"));
    // A copy follows a repeated record in the same batch.
    check(&Plan::parse(include_str!("../seeds/rejected_copies_in_one_batch.txt")).expect("a plan"));
}
