//! Checks that restoring a filter from a damaged state either fails or results in a filter that works like any other: its own state can be
//! stored and restored without a change.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use std::sync::OnceLock;
use unseen::filter::{Demand, Filter, FilterMetadata, Kind, PageId, Size, Spec, Window};
use unseen::key::Fingerprint;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    kind: u8,
    by_count: bool,
    slices: u8,
    /// Steps before the state of the filter is damaged.
    before: Vec<Step>,
    /// Positions of numbers and nulls in the metadata and their new values.
    edits: Vec<(u8, Number)>,
    /// Pages to fill with one byte value, and that value.
    fills: Vec<(u8, u8)>,
    /// Arbitrary bytes, parsed as JSON, that replace the metadata. Edits and fills are then ignored.
    metadata: Option<&'a [u8]>,
    after: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Small(u8),
    Signed(i64),
    Unsigned(u64),
    Null,
}

/// Replaces the number or null at a position. Numbers and nulls are counted through the whole JSON value.
fn edit(value: &mut Value, place: &mut u8, by: Number) {
    match value {
        Value::Number(_) | Value::Null => {
            if *place == 0 {
                *value = match by {
                    Number::Small(number) => number.into(),
                    Number::Signed(number) => number.into(),
                    Number::Unsigned(number) => number.into(),
                    Number::Null => Value::Null,
                };
            }
            *place = place.wrapping_sub(1);
        }
        Value::Array(values) => values.iter_mut().for_each(|value| edit(value, place, by)),
        Value::Object(values) => values.values_mut().for_each(|value| edit(value, place, by)),
        _ => {}
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    Insert(u16),
    Contains(u16),
    Refresh(u16),
    Remove(u16),
    Advance(i32),
}

fn key(number: u16) -> Fingerprint {
    let number = u128::from(number) + 1;
    Fingerprint(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

fn take(filter: &mut dyn Filter, steps: &[Step]) {
    for &step in steps {
        match step {
            Step::Insert(number) => {
                if filter.insert(key(number)).is_ok() {
                    assert!(filter.contains(key(number)), "an inserted key is not found");
                }
            }
            Step::Contains(number) => {
                filter.prefetch(&[key(number)]);
                let _ = filter.contains(key(number));
            }
            Step::Refresh(number) => {
                let _ = filter.refresh(key(number));
            }
            Step::Remove(number) => {
                filter.remove(key(number));
            }
            Step::Advance(time) => filter.advance(time.into()),
        }
    }
}

fn pages(filter: &mut dyn Filter) -> Vec<(PageId, Vec<u8>)> {
    filter.mark_stale();
    let page = |id| {
        let mut bytes = Vec::new();
        filter.write_page(id, &mut bytes);
        (id, bytes)
    };
    filter.dirty_pages().into_iter().map(page).collect()
}

fn window(input: &Input<'_>) -> Window {
    let slices = u32::from(input.slices % 8) + 1;
    if input.by_count { Window::keys(100, slices) } else { Window::time(1_000, slices) }
}

fn spec(input: &Input<'_>, window: Window) -> Spec {
    // Sizing by memory takes milliseconds and does not depend on the window, so it is done only once per kind.
    static SIZED: [OnceLock<Spec>; Kind::ALL.len()] = [const { OnceLock::new() }; Kind::ALL.len()];
    let kinds: Vec<_> = Kind::ALL.iter().filter(|kind| !kind.is_on_disk()).collect();
    let number = usize::from(input.kind) % kinds.len();
    let size = || kinds[number].spec(window, &Demand { bytes: 1024, ..Demand::new(50, 1e-2) }).unwrap();
    if kinds[number].properties().size == Size::Capacity { size() } else { *SIZED[number].get_or_init(size) }
}

fuzz_target!(|input: Input| {
    let window = window(&input);
    let spec = spec(&input, window);
    let mut filter = spec.build(window);
    take(&mut *filter, &input.before);
    if let Some(json) = input.metadata {
        let Ok(metadata) = serde_json::from_slice::<FilterMetadata>(json) else { return };
        let Ok(restored) = spec.restore(window, &metadata) else { return };
        filter = restored;
    } else if !input.edits.is_empty() || !input.fills.is_empty() {
        let mut stored = pages(&mut *filter);
        let mut value = serde_json::to_value(filter.metadata()).unwrap();
        input.edits.iter().for_each(|&(place, by)| edit(&mut value, &mut { place }, by));
        let Ok(metadata) = serde_json::from_value::<FilterMetadata>(value) else { return };
        let Ok(mut restored) = spec.restore(window, &metadata) else { return };
        let count = stored.len().max(1);
        for &(page, fill) in &input.fills {
            stored.get_mut(usize::from(page) % count).into_iter().for_each(|(_, bytes)| bytes.fill(fill));
        }
        for (id, bytes) in &stored {
            let _ = restored.read_page(*id, bytes);
        }
        filter = restored;
    }
    take(&mut *filter, &input.after);

    let stored = pages(&mut *filter);
    let metadata = filter.metadata();
    let written: FilterMetadata = serde_json::from_slice(&serde_json::to_vec(&metadata).unwrap()).unwrap();
    let mut other = spec.restore(window, &written).expect("metadata that a filter wrote is accepted");
    for (id, bytes) in &stored {
        other.read_page(*id, bytes).expect("its own pages fit");
    }
    assert_eq!(other.metadata(), metadata);
    assert!(pages(&mut *other) == stored);
});
