//! The encoding of records.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_decode_to_a_record_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), version in any::<bool>()) {
        let mut bytes = bytes;
        if let (Some(first), true) = (bytes.first_mut(), version) {
            *first = record::VERSION;
        }
        let _ = ChangelogRecord::decode(&bytes);
    }
}

#[test]
fn a_record_is_decoded_as_it_was_encoded() {
    let bytes = put(7, 3, 10);
    let record = ChangelogRecord::decode(&bytes).unwrap();
    assert_eq!(
        (record.origin, record.epoch, record.part, record.slice, record.time, record.replay_info),
        (ORIGIN, 0, 0, Some(Slice::FIRST), Some(5), None)
    );
    assert_eq!(record.spans, [Span { topic: "a", start: 10, end: 13 }]);
    assert_eq!(record.runs[0].fingerprints().collect::<Vec<_>>(), [key(7), key(8), key(9)]);
    for length in 0..bytes.len() {
        let cut = ChangelogRecord::decode(&bytes[..length]);
        assert!(cut.as_ref().is_err() || cut.is_ok_and(|cut| cut.runs.is_empty()), "truncated at {length}");
    }
}

/// Versions that do not know the mark read it as a topic without a name. So nothing else in the record may differ.
#[test]
fn a_record_of_a_warm_up_differs_only_by_its_mark() {
    let (dedup, pending, span) = (Dedup::new(window()), PendingChanges::default(), Span { topic: "a", start: 3, end: 7 });
    let logged = |spans: &[Span<'_>]| pending.records(&dedup, ORIGIN, 1, spans, &[(TopicId(0), 7)], Some(5)).remove(0).1;
    let [plain, marked] = [logged(&[span]), logged(&[span, Span::WARM_UP])];
    assert_eq!(marked.len(), plain.len() + 2 + 8 + 8);
    let [plain, marked] = [&plain, &marked].map(|bytes| ChangelogRecord::decode(bytes).unwrap());
    assert!(!plain.warms_up && marked.warms_up);
    assert_eq!(ChangelogRecord { warms_up: false, ..marked }, plain);
}

#[test]
fn a_record_of_another_version_is_an_error_with_a_message() {
    for version in [0, 1, 2, record::VERSION + 1] {
        let mut bytes = put(0, 3, 0);
        bytes[0] = version;
        assert_eq!(
            ChangelogRecord::decode(&bytes).unwrap_err().to_string(),
            "this version of unseen cannot read the changelog record: unknown format version"
        );
    }
}
