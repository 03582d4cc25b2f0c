//! Storing and restoring the state of a filter.

use super::*;
use crate::filter::kind::Metadata as _;

fn stored_pages(filter: &Aging) -> u64 {
    metadata(filter).parts().iter().map(|part| part.pages).sum()
}

#[test]
fn restored_state_is_bit_for_bit_identical() {
    let (mut filter, _) = large();
    let pages = dirty(&filter);
    assert!(pages.is_sorted_by_key(|(id, _)| *id), "pages are sorted by id");
    assert_eq!(pages.len() as u64, stored_pages(&filter));
    let mut other = restored(&filter, &pages);
    assert_eq!(other.dirty_pages().len(), 0, "restored pages are clean");
    assert_eq!(other.metadata(), filter.metadata());
    other.mark_stale();
    assert!(dirty(&other) == pages);
    for number in 0..10_000 {
        filter.insert(key(8, number)).unwrap();
        other.insert(key(8, number)).unwrap();
    }
    filter.mark_stale();
    other.mark_stale();
    assert!(dirty(&other) == dirty(&filter));
}

#[test]
fn only_changed_pages_are_dirty() {
    let (mut filter, _) = large();
    filter.mark_clean();
    assert_eq!(filter.dirty_pages().len(), 0);
    filter.insert(key(9, 0)).unwrap();
    let changed: Vec<_> = filter.dirty_pages();
    assert_eq!(changed.len(), 1);
    assert_eq!((changed[0].slice, changed[0].layer), (Slice(2), 1), "a page that already contained data");
    filter.mark_clean();
    filter.advance(3);
    (0..1000).for_each(|number| filter.insert(key(9, number)).unwrap());
    assert!(filter.dirty_pages().iter().all(|page| page.slice == Slice(3)), "a sealed generation never changes");
    filter.mark_stale();
    assert_eq!(filter.dirty_pages().len() as u64, stored_pages(&filter));
}

#[test]
fn empty_pages_are_not_stored() {
    let window = Window::Time { slice_ms: 1, slices: 1 };
    let mut filter = Aging::new(window, Sizing::new(window, 1_000_000, 1e-3));
    filter.insert(key(0, 0)).unwrap();
    assert_eq!(stored_pages(&filter), 1);
    filter.mark_stale();
    assert_eq!(filter.dirty_pages().len(), 1);
}

#[test]
fn keys_of_unknown_time_are_stored_again_when_the_time_is_known() {
    let window = Window::Time { slice_ms: 1, slices: 1 };
    let mut filter = Aging::new(window, Sizing::new(window, 100, 1e-3));
    filter.insert(key(0, 0)).unwrap();
    filter.mark_clean();
    filter.advance(1_000);
    let pages = dirty(&filter);
    assert!(pages.iter().all(|(id, _)| id.slice == Slice(1_000)));
    assert!(restored(&filter, &pages).contains(key(0, 0)));
}

#[test]
fn a_new_capacity_applies_from_the_next_layer() {
    let (filter, sizing) = large();
    let smaller = Sizing::new(filter.window, 1_000, 1e-3);
    let mut other = Aging::from_metadata(filter.window, smaller, &metadata(&filter)).unwrap();
    for (id, bytes) in dirty(&filter) {
        other.read_page(id, &bytes).unwrap();
    }
    assert!(other.contains(key(7, 5)));
    other.advance(3);
    other.insert(key(9, 0)).unwrap();
    assert!(metadata(&other).generations.last().unwrap().layers[0].blocks < sizing.layout.blocks / 100);
}

#[test]
fn impossible_metadata_is_rejected() {
    let (filter, sizing) = large();
    let window = filter.window;
    let with = |change: &dyn Fn(&mut Metadata)| {
        let mut metadata = metadata(&filter);
        change(&mut metadata);
        Aging::from_metadata(window, sizing, &metadata).map(|_| ())
    };
    assert_eq!(with(&|_| ()), Ok(()));
    let shapes: [fn(&mut LayerMetadata); 11] = [
        |layer| layer.blocks = 0,
        |layer| layer.blocks = 1 << 40,
        |layer| layer.blocks = u64::MAX,
        |layer| (layer.blocks, layer.capacity) = (1 << 40, 1 << 40),
        |layer| (layer.blocks, layer.capacity) = (u64::MAX, u64::MAX),
        |layer| layer.capacity = u64::MAX,
        |layer| layer.k = 0,
        |layer| layer.k = u32::MAX,
        |layer| layer.blocks_per_key = 0,
        |layer| layer.blocks_per_key = 3,
        |layer| (layer.blocks, layer.capacity, layer.keys, layer.blocks_per_key) = (1, 1, 1, 2),
    ];
    for change in shapes {
        assert_eq!(with(&|metadata| change(&mut metadata.generations[0].layers[0])), Err(MetadataError::Size));
    }
    let orders: [fn(&mut Metadata); 5] = [
        |metadata| metadata.generations.reverse(),
        |metadata| metadata.generations[2].slice = Slice(3),
        |metadata| metadata.generations[0].slice = Slice(-1),
        |metadata| metadata.slice = Some(Slice(1)),
        |metadata| metadata.slice = None,
    ];
    for change in orders {
        assert_eq!(with(&change), Err(MetadataError::Generations));
    }
}

#[test]
fn foreign_pages_are_rejected() {
    let (mut filter, _) = large();
    let (id, bytes) = dirty(&filter).remove(0);
    for wrong in [PageId { slice: Slice(9), ..id }, PageId { layer: 9, ..id }, PageId { page: 1 << 40, ..id }] {
        assert_eq!(filter.read_page(wrong, &bytes), Err(MetadataError::Page(wrong)));
    }
    assert_eq!(filter.read_page(id, &bytes[..64]), Err(MetadataError::Page(id)));
}
