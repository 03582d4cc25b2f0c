use super::*;

fn metadata(slices: &[i64]) -> ExactMetadata {
    let generations = (0..).zip(slices).map(|(id, &slice)| ExactGenerationMetadata { id, slice: Slice(slice), keys: 1 }).collect();
    ExactMetadata { slice: slices.last().copied().map(Slice), next_id: slices.len() as u64, generations }
}

#[test]
fn impossible_metadata_is_rejected() {
    let window = Window::Time { slice_ms: 10, slices: 2 };
    assert!(Exact::new(window).restored(&metadata(&[3, 4, 5])).is_ok());
    assert!(Exact::new(window).restored(&metadata(&[])).is_ok());
    let changed = |change: fn(&mut ExactMetadata)| {
        let mut metadata = metadata(&[3, 4, 5]);
        change(&mut metadata);
        Exact::new(window).restored(&metadata).map(drop)
    };
    let wrong: [fn(&mut ExactMetadata); 5] = [
        |metadata| metadata.next_id = 2,
        |metadata| metadata.generations.reverse(),
        |metadata| metadata.generations[0].slice = Slice(2),
        |metadata| metadata.slice = Some(Slice(4)),
        |metadata| metadata.slice = None,
    ];
    for change in wrong {
        assert_eq!(changed(change), Err(MetadataError::Generations));
    }
}

#[test]
fn unsaved_fingerprints_are_counted_and_bounded() {
    let mut exact = Exact::new(Window::Time { slice_ms: 10, slices: 1 });
    exact.advance(0);
    for number in 0..5 {
        exact.insert(Fingerprint(number)).unwrap();
    }
    assert!(exact.remove(Fingerprint(0)).unwrap() && !exact.remove(Fingerprint(9)).unwrap());
    assert_eq!((exact.unsaved(), exact.changes().count(), exact.is_stored()), (4, 4, false));
    exact.mark_clean();
    assert_eq!((exact.unsaved(), exact.keys(), exact.is_stored()), (0, 5, true));
    exact.unsaved = UNSAVED_MAX;
    assert_eq!(exact.insert(Fingerprint(7)), Err(CapacityError::Unsaved));
}

#[test]
fn deletions_of_possibly_stored_keys_reach_the_archive() {
    let mut exact = Exact::new(Window::keys(10, 1));
    exact.insert(Fingerprint(1)).unwrap();
    // It is unknown whether the checkpoint was written.
    exact.mark_stored();
    assert!(exact.remove(Fingerprint(1)).unwrap() && !exact.contains(Fingerprint(1)).unwrap());
    assert_eq!(exact.changes().collect::<Vec<_>>(), [(0, Fingerprint(1), Change::Delete)]);
}

#[test]
fn an_unreadable_archive_is_an_error() {
    #[derive(Debug)]
    struct Broken;
    impl Archive for Broken {
        fn content(&self, _: GenerationId, _: Fingerprint) -> Result<Option<u64>, ArchiveError> {
            Err(ArchiveError("broken".to_owned()))
        }
    }
    let mut exact = Exact::new(Window::keys(10, 1));
    exact.insert(Fingerprint(1)).unwrap();
    exact.mark_clean();
    exact.attach(Box::new(Broken));
    assert!(exact.contains(Fingerprint(1)).is_err() && exact.remove(Fingerprint(2)).is_err());
}

#[test]
fn a_store_of_contents_has_only_the_last_content_of_a_key() {
    let of = |key: u64, content: u64| Fingerprint(u128::from(content) << 64 | u128::from(key));
    let mut exact = Exact::new(Window::Time { slice_ms: 10, slices: 2 }).with_contents();
    exact.advance(0);
    exact.insert(of(1, 5)).unwrap();
    exact.insert(of(2, 5)).unwrap();
    exact.insert(of(1, 6)).unwrap();
    assert_eq!([of(1, 5), of(1, 6), of(2, 5), of(3, 5)].map(|one| exact.contains(one).unwrap()), [false, true, true, false]);
    assert_eq!(exact.unsaved(), 2, "an entry is replaced");
    exact.advance(10);
    exact.insert(of(1, 5)).unwrap();
    assert!(exact.contains(of(1, 5)).unwrap() && !exact.contains(of(1, 6)).unwrap(), "the newest generation counts");
    assert_eq!(exact.slice_of(of(1, 0)).unwrap(), Some(Slice(1)), "regardless of its content");
    assert!(exact.remove(of(1, 0)).unwrap() && exact.slice_of(of(1, 5)).unwrap().is_none(), "no older content comes back");
    assert!(!exact.refresh(of(2, 5)).is_ok_and(|changed| !changed), "renewed in a new slice");
    exact.advance(40);
    assert!(!exact.contains(of(2, 5)).unwrap());
}
