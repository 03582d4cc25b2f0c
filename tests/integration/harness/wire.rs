//! Records in Kafka's own words, for what no client here writes: librdkafka takes a time of 0 for "now".
//!
//! Kafka protocol guide, "Produce" version 3 and "Record Batch" version 2.

use super::TestRecord;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Writes records of one partition of a topic, as one batch, and returns the broker's error code.
pub fn produce_raw(broker: &str, topic: &str, records: &[TestRecord]) -> i16 {
    let batch = batch(records);
    let mut request = Vec::new();
    put(&mut request, &[&0_i16.to_be_bytes(), &3_i16.to_be_bytes(), &7_i32.to_be_bytes()]);
    string(&mut request, "wire");
    // No transactional id; all replicas; so many milliseconds; one topic.
    put(&mut request, &[&(-1_i16).to_be_bytes(), &(-1_i16).to_be_bytes(), &30_000_i32.to_be_bytes(), &1_i32.to_be_bytes()]);
    string(&mut request, topic);
    put(&mut request, &[&1_i32.to_be_bytes(), &records[0].partition.to_be_bytes(), &length(&batch).to_be_bytes(), &batch]);
    let mut stream = TcpStream::connect(broker).expect("a broker");
    stream.write_all(&length(&request).to_be_bytes()).and_then(|()| stream.write_all(&request)).expect("it is sent");
    let mut size = [0; 4];
    stream.read_exact(&mut size).expect("an answer");
    let mut answer = vec![0; usize::try_from(i32::from_be_bytes(size)).expect("a size")];
    stream.read_exact(&mut answer).expect("the answer");
    // Correlation, one topic, its name, one partition, its number; then the code.
    let at = 4 + 4 + 2 + topic.len() + 4 + 4;
    i16::from_be_bytes([answer[at], answer[at + 1]])
}

fn batch(records: &[TestRecord]) -> Vec<u8> {
    let times = || records.iter().map(|record| record.timestamp);
    let (first, last) = (times().next().expect("a record"), times().max().expect("a record"));
    let count = i32::try_from(records.len()).expect("few enough");
    let mut body = Vec::new();
    put(&mut body, &[&0_i16.to_be_bytes(), &(count - 1).to_be_bytes(), &first.to_be_bytes(), &last.to_be_bytes()]);
    put(&mut body, &[&(-1_i64).to_be_bytes(), &(-1_i16).to_be_bytes(), &(-1_i32).to_be_bytes(), &count.to_be_bytes()]);
    for (number, record) in (0..).zip(records) {
        let mut bytes = vec![0];
        varint(&mut bytes, record.timestamp - first);
        varint(&mut bytes, number);
        for part in [&record.key, &record.value] {
            varint(&mut bytes, part.as_ref().map_or(-1, |part| i64::from(length(part))));
            bytes.extend(part.iter().flatten());
        }
        varint(&mut bytes, i64::try_from(record.headers.len()).expect("few enough"));
        for (name, value) in &record.headers {
            varint(&mut bytes, i64::from(length(name.as_bytes())));
            bytes.extend(name.as_bytes());
            varint(&mut bytes, value.as_ref().map_or(-1, |value| i64::from(length(value))));
            bytes.extend(value.iter().flatten());
        }
        varint(&mut body, i64::from(length(&bytes)));
        body.extend(bytes);
    }
    let mut batch = Vec::new();
    put(&mut batch, &[&0_i64.to_be_bytes(), &(length(&body) + 9).to_be_bytes(), &(-1_i32).to_be_bytes(), &[2]]);
    put(&mut batch, &[&crc32c(&body).to_be_bytes(), &body]);
    batch
}

fn put(out: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        out.extend_from_slice(part);
    }
}

fn length(bytes: &[u8]) -> i32 {
    i32::try_from(bytes.len()).expect("few enough")
}

fn string(out: &mut Vec<u8>, text: &str) {
    put(out, &[&i16::try_from(text.len()).expect("short").to_be_bytes(), text.as_bytes()]);
}

/// A number as Protocol Buffers have it, small ones of either sign first.
fn varint(out: &mut Vec<u8>, number: i64) {
    let mut left = ((number << 1) ^ (number >> 63)).cast_unsigned();
    while left >= 0x80 {
        out.push(u8::try_from(left & 0x7f).expect("7 bits") | 0x80);
        left >>= 7;
    }
    out.push(u8::try_from(left).expect("7 bits"));
}

/// CRC-32C (Castagnoli), bit by bit.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}
