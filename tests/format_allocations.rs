//! Promise: extracting the key of a record allocates nothing, in any format, once the schema is known.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use unseen::format::{Body, Format, Formats, LocalSchema, NoSchemas, RecordFormat, Schema};
use unseen::key::{KeySpec, Part, Reader, Scratch};
use unseen::record::Record;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator with a counter per thread, because other threads of the test harness can allocate at the same time.
struct Counting;

// SAFETY: all calls are forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

const AVRO: &str = r#"{"type":"record","name":"E","fields":[
    {"name":"at","type":"long"},{"name":"user","type":["null",{"type":"record","name":"U","fields":[{"name":"id","type":"string"}]}]},
    {"name":"tags","type":{"type":"array","items":"string"}},{"name":"cents","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}}]}"#;

const PROTOBUF: &str = r#"syntax = "proto3";
message E { int64 at = 1; U user = 2; repeated string tags = 3; sint32 cents = 4; }
message U { string id = 1; }"#;

#[test]
fn extracting_a_key_does_not_allocate() {
    let avro = [&[2, 2, 4][..], b"u1", &[4, 2, b'a', 2, b'b', 0, 4, 0x30, 0x39]].concat();
    let protobuf = [&[8, 1, 0x12, 4, 10, 2][..], b"u1", &[0x1a, 1, b'a', 0x1a, 1, b'b', 0x20, 0x72]].concat();
    let framed = [&[0, 0, 0, 0, 7][..], br#"{"user":{"id":"u1"},"cents":57}"#].concat();
    let local = |format, text: &str| {
        let schema = Schema::new(format, Body::Text(text.to_owned()), Vec::new());
        let message = (format == Format::Protobuf).then(|| "E".to_owned());
        Formats::new(
            RecordFormat::default(),
            RecordFormat { format, schema: Some(Arc::new(LocalSchema { schema, message })), ..RecordFormat::default() },
        )
    };
    let json = Formats::new(RecordFormat::default(), RecordFormat { format: Format::JsonSchema, ..RecordFormat::default() });
    for (formats, value) in [(local(Format::Avro, AVRO), &avro), (local(Format::Protobuf, PROTOBUF), &protobuf), (json, &framed)] {
        let spec = KeySpec::new(["/user/id", "/cents"].map(|place| Part::Field(place.into())).into()).expect("a key");
        let (mut reader, mut scratch) = (Reader::default(), Scratch::default());
        let record = Record { value: Some(value), ..Record::default() };
        let mut take = || reader.fingerprint(&spec, &formats, &record, &mut scratch, &NoSchemas).expect("a key");
        // The first call compiles the schema, grows the buffers, and learns the usual layout of the JSON text.
        let first = take();
        (0..100).for_each(|_| assert_eq!(take(), first));
        let before = ALLOCATIONS.get();
        let is_same = (0..1_000).all(|_| take() == first);
        let allocated = ALLOCATIONS.get() - before;
        assert!(is_same && allocated == 0, "{:?}: {allocated} allocations", formats.value().format);
    }
}
