//! The cost of extracting a record's key in each format: our extractor, compared with decoding the whole record with the format's own
//! crate.
//!
//! Run with `cargo bench --no-default-features --features formats --bench formats`. With `--once NAME N`, one contestant extracts N keys
//! and exits. To get the instructions per record, run this command under `valgrind --tool=callgrind` with two values of N and divide the
//! difference of the counts by the difference of N. Every contestant must read the same record in its own format: about 200 bytes, with the
//! key in two fields.

use prost_reflect::{DescriptorPool, DynamicMessage};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;
use unseen::format::{Body, Format, Formats, LocalSchema, NoSchemas, RecordFormat, Schema};
use unseen::key::{KeySpec, Part, Reader, Scratch};
use unseen::record::Record;

const AVRO: &str = r#"{"type":"record","name":"News","fields":[
    {"name":"source","type":"string"},{"name":"title","type":["null","string"]},{"name":"lang","type":{"type":"enum","name":"L","symbols":["en","de"]}},
    {"name":"tags","type":{"type":"array","items":"string"}},{"name":"published","type":{"type":"long","logicalType":"timestamp-millis"}},
    {"name":"user_id","type":"long"},{"name":"news_id","type":"string"},{"name":"score","type":"double"}]}"#;

const PROTOBUF: &str = r#"syntax = "proto3";
message News { string source = 1; optional string title = 2; L lang = 3; repeated string tags = 4; int64 published = 5;
  int64 user_id = 6; string news_id = 7; double score = 8; }
enum L { en = 0; de = 1; }"#;

const TITLE: &str = "Something happened for the twelfth time, say sources close to the matter, and nobody knows what comes next";
const PUBLISHED: u64 = 1_735_689_600_000;
const ROUND: u32 = 200_000;
const ROUNDS: usize = 9;

fn varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    to.push(number.to_le_bytes()[0]);
}

fn avro() -> Vec<u8> {
    let mut record = Vec::new();
    let text = |record: &mut Vec<u8>, text: &str| {
        varint(record, 2 * text.len() as u64);
        record.extend_from_slice(text.as_bytes());
    };
    text(&mut record, "wire-17");
    record.push(2);
    text(&mut record, TITLE);
    record.extend_from_slice(&[0, 4]);
    text(&mut record, "politics");
    text(&mut record, "breaking");
    record.push(0);
    varint(&mut record, 2 * PUBLISHED);
    varint(&mut record, 2 * 123_456);
    text(&mut record, "news-00001234");
    record.extend_from_slice(&0.75_f64.to_le_bytes());
    record
}

fn protobuf() -> Vec<u8> {
    let mut record = Vec::new();
    for (field, text) in [(1, "wire-17"), (2, TITLE), (4, "politics"), (4, "breaking")] {
        record.push(field << 3 | 2);
        varint(&mut record, text.len() as u64);
        record.extend_from_slice(text.as_bytes());
    }
    record.push(5 << 3);
    varint(&mut record, PUBLISHED);
    record.push(6 << 3);
    varint(&mut record, 123_456);
    record.extend_from_slice(b"\x3a\x0dnews-00001234\x41");
    record.extend_from_slice(&0.75_f64.to_le_bytes());
    record
}

fn json() -> Vec<u8> {
    format!(
        r#"{{"source":"wire-17","title":"{TITLE}","lang":"en","tags":["politics","breaking"],"published":{PUBLISHED},"user_id":123456,"news_id":"news-00001234","score":0.75}}"#
    )
    .into_bytes()
}

/// A contestant: its name, the size of its record in bytes, and a function that reads the record once.
type Contestant = (&'static str, usize, Box<dyn FnMut()>);

fn ours(name: &'static str, format: Format, schema: Option<&str>, value: Vec<u8>) -> Contestant {
    let local = schema.map(|text| {
        let schema = Schema::new(format, Body::Text(text.to_owned()), Vec::new());
        Arc::new(LocalSchema { schema, message: (format == Format::Protobuf).then(|| "News".to_owned()) })
    });
    let formats = Formats::new(RecordFormat::default(), RecordFormat { format, schema: local, ..RecordFormat::default() });
    let spec = KeySpec::new(["/user_id", "/news_id"].map(|place| Part::Field(place.into())).into()).expect("a key");
    let (mut reader, mut scratch) = (Reader::default(), Scratch::default());
    let take = move || {
        let record = Record { value: Some(&value), ..Record::default() };
        black_box(reader.fingerprint(&spec, &formats, black_box(&record), &mut scratch, &NoSchemas).expect("a key"));
    };
    (name, 0, Box::new(take))
}

fn contestants() -> Vec<Contestant> {
    let sized = |(name, _, take): Contestant, bytes: usize| (name, bytes, take);
    let schema = apache_avro::Schema::parse_str(AVRO).expect("a schema");
    let record = avro();
    let decode_avro = move || {
        let reader = apache_avro::reader::datum::GenericDatumReader::builder(&schema).build().expect("a reader");
        black_box(reader.read_value(&mut black_box(&record[..])).expect("a record"));
    };
    let pool = unseen_pool();
    let message = pool.get_message_by_name("News").expect("a message");
    let record = protobuf();
    let decode_protobuf = move || {
        black_box(DynamicMessage::decode(message.clone(), black_box(&record[..])).expect("a record"));
    };
    let record = json();
    let decode_json = move || {
        black_box(serde_json::from_slice::<serde_json::Value>(black_box(&record)).expect("a record"));
    };
    vec![
        sized(ours("json", Format::Json, None, json()), json().len()),
        ("json-serde", json().len(), Box::new(decode_json)),
        sized(ours("avro", Format::Avro, Some(AVRO), avro()), avro().len()),
        ("avro-crate", avro().len(), Box::new(decode_avro)),
        sized(ours("protobuf", Format::Protobuf, Some(PROTOBUF), protobuf()), protobuf().len()),
        ("protobuf-crate", protobuf().len(), Box::new(decode_protobuf)),
    ]
}

fn unseen_pool() -> DescriptorPool {
    let file = protox::file::File::from_source("news.proto", PROTOBUF).expect("a schema");
    let mut pool = DescriptorPool::global();
    pool.add_file_descriptor_proto(file.into()).expect("a schema");
    pool
}

fn main() {
    let args: Vec<_> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [once, name, count] = &args[..]
        && once == "--once"
    {
        let (.., mut take) = contestants().into_iter().find(|(other, ..)| other == name).expect("a contestant");
        (0..count.parse::<u32>().expect("a number")).for_each(|_| take());
        return;
    }
    println!("key of two fields, ns per record, median of {ROUNDS} rounds of {ROUND}");
    for (name, bytes, mut take) in contestants() {
        let mut times: Vec<_> = (0..ROUNDS)
            .map(|_| {
                let began = Instant::now();
                (0..ROUND).for_each(|_| take());
                began.elapsed().as_secs_f64() * 1e9 / f64::from(ROUND)
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("{name:>15}  {bytes:>4} bytes  {:>7.1} ns  ({:.1} to {:.1})", times[ROUNDS / 2], times[0], times[ROUNDS - 1]);
    }
}
