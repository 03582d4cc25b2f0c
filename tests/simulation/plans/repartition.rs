//! Records that are forwarded to the repartition topic, together with rejected records.

use super::{check, check_kept, parse};

#[test]
fn rejected_records_are_not_forwarded_forever() {
    check_kept("forwarded_again", include_str!("../seeds/forwarded_and_rejected.txt"));
}

/// The output rejects records that pass through. The forwarded records next to them cannot be committed separately, so each attempt adds
/// copies of them to the repartition topic. The copies must wait until the replayed records are committed, because a rejected copy would
/// abort the replay, too.
#[test]
fn copies_of_forwarded_records_wait_until_rejected_ones_are_committed() {
    check_kept("new_records_join_rejected_ones", include_str!("../seeds/forwarded_next_to_passing.txt"));
    // Here, a copy follows a replayed record in the same batch.
    check(&parse(include_str!("../seeds/rejected_copies_in_one_batch.txt")));
}

/// With `at_least_once`, a record is rejected while the delivery of a forwarded record times out. The offset of the forwarded record must
/// not be committed.
#[test]
fn a_forwarded_record_that_was_not_delivered_is_forwarded_again() {
    check(&parse(include_str!("../seeds/forwarded_record_not_delivered.txt")));
}
