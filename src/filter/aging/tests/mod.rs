//! Tests of the aging filter.

#![expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]

mod growth;
mod prefetch;
mod rates;
mod storage;
mod windows;

use super::*;
use crate::key::numbered::key_of_family as key;

/// A filter at its highest false-positive rate: all of its `slices + 1` generations hold `each` keys.
fn full(sizing: Sizing, slices: u32, each: u64, family: u64) -> Aging {
    let mut filter = Aging::new(Window::Time { slice_ms: 1, slices }, sizing);
    for slice in 0..=u64::from(slices) {
        filter.advance(slice.cast_signed());
        (0..each).for_each(|number| filter.insert(key(family, slice * each + number)).unwrap());
    }
    filter
}

/// Checks that a measured rate is not above the target. By chance, a filter exactly at the target exceeds `most` with a probability of one
/// in a thousand (normal approximation of the binomial distribution, one-sided 99.9 %). The keys are fixed, so the test always gives the
/// same result.
fn assert_rate(what: &str, found: u64, asked: u64, target: f64) {
    let expected = asked as f64 * target;
    let most = expected + 3.09 * (expected * (1.0 - target)).sqrt();
    println!("{what}: {:.3e} of {asked}, target {target:.0e}", found as f64 / asked as f64);
    assert!(found as f64 <= most, "{what}: {found} false positives of {asked}, expected at most {most:.0}");
}

fn metadata(filter: &Aging) -> Metadata {
    let super::super::FilterMetadata::Aging(metadata) = filter.metadata() else { panic!("wrong kind") };
    metadata
}

fn dirty(filter: &Aging) -> Vec<(PageId, Vec<u8>)> {
    let page = |id| {
        let mut bytes = Vec::new();
        filter.write_page(id, &mut bytes);
        (id, bytes)
    };
    filter.dirty_pages().into_iter().map(page).collect()
}

fn restored(filter: &Aging, pages: &[(PageId, Vec<u8>)]) -> Aging {
    let mut other = Aging::from_metadata(filter.window, filter.sizing, &metadata(filter)).unwrap();
    for (id, bytes) in pages {
        other.read_page(*id, bytes).unwrap();
    }
    other
}

/// A filter with several pages, generations, and layers.
fn large() -> (Aging, Sizing) {
    let sizing = Sizing::new(Window::Time { slice_ms: 1, slices: 2 }, 200_000, 1e-3);
    (full(sizing, 2, 140_000, 7), sizing)
}
