//! Checks that arbitrary bytes in a checkpoint store decode to a usable state or to an error.
#![no_main]

use arbitrary::Arbitrary;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use libfuzzer_sys::fuzz_target;
use unseen::changelog::Progress;
use unseen::checkpoint::decode::{self, Decoder};
use unseen::checkpoint::{CheckpointMetadata, PartitionId, Settings, codec};
use unseen::dedup::{Dedup, Emit, Late, Rules};
use unseen::filter::{Demand, Kind, PageId, Size, Slice, Spec, Window};
use unseen::key::Fingerprint;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    kind: u8,
    by_count: bool,
    slices: u8,
    /// True if a valid checksum is appended to the metadata.
    checksummed: bool,
    /// Arbitrary bytes. If empty, the target uses the metadata of a state that has judged `keys % 4_000` keys.
    metadata: &'a [u8],
    keys: u16,
    /// Positions of bytes in the metadata of a real state and their new values.
    edits: Vec<(u16, u8)>,
    pages: Vec<Page<'a>>,
}

/// Returns the metadata of a real checkpoint with some changed bytes.
fn real_metadata(input: &Input<'_>) -> Vec<u8> {
    let mut state = Dedup::new(rules(input));
    for number in 0..u128::from(input.keys % 4_000) {
        let _ = state.judge(Fingerprint((number << 96) | (number << 32)), Some(number as i64), i64::MAX);
    }
    let settings = Settings { window: Window::keys(1, 1), filter: String::new(), hash: String::new(), keys: BTreeMap::new() };
    let metadata = CheckpointMetadata { settings, offsets: BTreeMap::from([("topic".to_owned(), 1)]), changelog: Progress::default(), state: state.metadata() };
    let mut json = serde_json::to_vec(&metadata).unwrap();
    for &(at, byte) in &input.edits {
        let at = usize::from(at) % json.len();
        // Most changes replace a digit with a digit. Other changes would quickly make the JSON invalid.
        json[at] = if json[at].is_ascii_digit() { b'0' + byte % 10 } else if byte == 0 { b' ' } else { json[at] };
    }
    json
}

#[derive(Arbitrary, Debug)]
struct Page<'a> {
    checksummed: bool,
    slice: i64,
    layer: u8,
    page: u16,
    /// Fills a whole page with one byte, because the fuzzer rarely finds the required length.
    fill: Option<u8>,
    bytes: &'a [u8],
}

fn rules(input: &Input<'_>) -> Rules {
    let slices = u32::from(input.slices % 8) + 1;
    let window = if input.by_count { Window::keys(1_000, slices) } else { Window::time(1_000, slices) };
    // Sizing by memory takes milliseconds and does not depend on the window, so it is done only once per kind.
    static SIZED: [OnceLock<Spec>; Kind::ALL.len()] = [const { OnceLock::new() }; Kind::ALL.len()];
    let number = usize::from(input.kind) % (Kind::ALL.len() + 1);
    let (number, confirm) = if number == Kind::ALL.len() { (0, true) } else { (number, false) };
    let kind = Kind::ALL[number];
    let size = || kind.spec(window, &Demand { bytes: 1024, ..Demand::new(1_000, 1e-3) });
    let is_by_memory = matches!(kind.properties().size, Size::Memory { .. });
    let filter = if is_by_memory { Some(*SIZED[number].get_or_init(|| size().unwrap())) } else { size() };
    let exact = kind.is_on_disk() || confirm;
    Rules { window, filter, exact, refresh: false, late: Late::Emit, emit: Emit::First }
}

fuzz_target!(|input: Input| {
    let id = PartitionId { space: "space".to_owned(), partition: 7 };
    let mut metadata = if input.metadata.is_empty() { real_metadata(&input) } else { input.metadata.to_vec() };
    if input.checksummed {
        codec::append_checksum(&codec::metadata_key(&id), &mut metadata);
    }
    let Ok(metadata) = decode::metadata(&id, &metadata) else { return };
    let Ok(mut decoder) = Decoder::new(&id, &metadata, rules(&input)) else { return };
    for page in &input.pages {
        let key = codec::page_key(&id, PageId { slice: Slice(page.slice), layer: page.layer.into(), page: page.page.into() });
        let mut bytes = page.fill.map_or_else(|| page.bytes.to_vec(), |fill| vec![fill; unseen::filter::PAGE_BYTES]);
        if page.checksummed {
            codec::append_checksum(&key, &mut bytes);
        }
        if decoder.page(&key, &bytes).is_err() {
            return;
        }
    }
    let Ok(mut state) = decoder.finish() else { return };
    for (number, time) in (0_u128..).zip([Some(0), None, Some(500), Some(5_000), Some(i64::MAX)]) {
        let key = Fingerprint((number << 96) | (number << 32));
        let _ = state.judge(key, time, i64::MAX);
    }
    let _ = state.metadata();
});
