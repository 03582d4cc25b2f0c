//! A filter that was made from any manifest and any pages works like any other, and its state goes out
//! as it came in.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;
use unseen::filter::{CuckooPlan, Filter, Manifest, PAGE_BYTES, PageId, Plan, Spec, StablePlan, Window};
use unseen::key::Fingerprint;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    kind: u8,
    by_count: bool,
    slices: u8,
    /// JSON; if it is none of a manifest, the state of a filter that `steps` made is used.
    manifest: &'a [u8],
    fills: Vec<u8>,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    Insert(u16),
    Contains(u16),
    Refresh(u16),
    Unsee(u16),
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
                    assert!(filter.contains(key(number)), "it is there at once");
                }
            }
            Step::Contains(number) => {
                filter.prefetch(&[key(number)]);
                let _ = filter.contains(key(number));
            }
            Step::Refresh(number) => {
                let _ = filter.refresh(key(number));
            }
            Step::Unsee(number) => {
                filter.unsee(key(number));
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

fn spec(input: &Input<'_>) -> Spec {
    let slices = u32::from(input.slices % 8) + 1;
    let window = if input.by_count { Window::keys(100, slices) } else { Window::time(1_000, slices) };
    match input.kind % 3 {
        0 => Spec::Aging { window, plan: Plan::new(window, 50, 1e-2) },
        1 => Spec::Cuckoo { window, plan: CuckooPlan::new(window, 50, 1e-2) },
        _ => {
            static PLAN: OnceLock<StablePlan> = OnceLock::new();
            Spec::Stable { plan: *PLAN.get_or_init(|| StablePlan::new(1024, 1e-2)) }
        }
    }
}

fuzz_target!(|input: Input| {
    let spec = spec(&input);
    let mut filter = match serde_json::from_slice::<Manifest>(input.manifest) {
        Ok(manifest) => {
            let Ok(mut filter) = spec.restore(&manifest) else { return };
            for (part, &fill) in manifest.parts().iter().zip(&input.fills) {
                let _ = filter.read_page(PageId { slice: part.slice, layer: part.layer, page: 0 }, &vec![fill; PAGE_BYTES]);
            }
            filter
        }
        Err(_) => spec.build(),
    };
    take(&mut *filter, &input.steps);

    let stored = pages(&mut *filter);
    let manifest = filter.manifest();
    let written: Manifest = serde_json::from_slice(&serde_json::to_vec(&manifest).unwrap()).unwrap();
    let mut other = spec.restore(&written).expect("what a filter says of itself is believed");
    for (id, bytes) in &stored {
        other.read_page(*id, bytes).expect("its own pages fit");
    }
    assert_eq!(other.manifest(), manifest);
    assert!(pages(&mut *other) == stored);
});
