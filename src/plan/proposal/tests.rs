use super::*;
use crate::format::{Encoding, gzip};

fn proposal(lines: impl Iterator<Item = String>) -> Proposal {
    let text: Vec<_> = lines.collect();
    let compare = CompareContent::new(vec!["/attempt".to_owned(), "/sent".to_owned()]).unwrap();
    Proposal::new(text.join("\n").as_bytes(), Format::Ndjson, None, &compare).unwrap()
}

/// Returns the webhook records of one order, each with its time. Every third order is sent again 40 s later, with a different attempt
/// number.
fn webhooks(row: u64, version: impl Fn(u64, u64) -> u64) -> Vec<(u64, String)> {
    let line = |attempt: u64, second: u64| {
        let (kind, version) = (row % 3, version(row, attempt));
        let time = 1_700_000_000_000 + second * 1000;
        (
            time,
            format!(
                "{{\"sent\":{time},\"attempt\":{attempt},\"kind\":\"k{kind}\",\"order\":{{\"id\":\"o-{row}\",\"version\":{version}}}}}"
            ),
        )
    };
    let again = row.is_multiple_of(3).then(|| line(2, row + 40));
    std::iter::once(line(1, row)).chain(again).collect()
}

fn stream(rows: u64, version: impl Fn(u64, u64) -> u64 + Copy) -> Proposal {
    let mut lines: Vec<_> = (0..rows).flat_map(|row| webhooks(row, version)).collect();
    lines.sort();
    proposal(lines.into_iter().map(|(_, line)| line))
}

/// A sample of a topic can contain its partitions one after another.
#[test]
fn each_partition_has_its_own_time() {
    let line = |partition: u64, id: u64, minute: u64| {
        let (offset, time) = (id + minute, 1_700_000_000_000 + minute * 60_000);
        format!(
            "{{\"topic\":\"t\",\"partition\":{partition},\"offset\":{offset},\"tstype\":\"create\",\"ts\":{time},\"key\":null,\"payload\":\"{{\\\"id\\\":{id},\\\"kind\\\":{}}}\"}}",
            id % 3
        )
    };
    let first = (0..1_440).map(|minute| line(0, minute, minute));
    let again = |minute: u64| (minute >= 1_400).then(|| line(1, 10_000 + minute - 360, minute));
    let second = (0..1_440).flat_map(|minute| std::iter::once(line(1, 10_000 + minute, minute)).chain(again(minute)));
    let text: Vec<_> = first.chain(second).collect();
    let compare = CompareContent::new(Vec::new()).unwrap();
    let proposal = Proposal::new(text.join("\n").as_bytes(), Format::Kcat, None, &compare).unwrap();
    // The duplicates of partition 1 arrive after six hours.
    assert_eq!(proposal.window_ms, Some(86_400_000), "{:?}", proposal.reasons);
}

#[test]
fn the_key_with_equal_duplicates_is_proposed() {
    let proposal = stream(3_000, |_, _| 1);
    assert_eq!((proposal.time.as_deref(), proposal.parts.as_slice()), (Some("/sent"), &[Part::Field("/order/id".into())][..]));
    let best = &proposal.candidates[0];
    assert_eq!((best.distinct, best.repeats, best.conflicts), (3_000, 1_000, 0));
    // All duplicates arrive after 40 s, and twice this time is less than five minutes. A window of five minutes has 300 keys, and the
    // minimum capacity is 1,000.
    assert_eq!((proposal.window_ms, proposal.capacity), (Some(300_000), Some(1_000)));
    let configuration = proposal.configuration.as_deref().unwrap();
    assert!(configuration.contains("key = { field = \"/order/id\" }\nwindow = \"5m\"\nfilter = { capacity = 1000 }"), "{configuration}");
    assert!(proposal.text().contains("1000 of 4000 records are duplicates with this key, and none of them differs"), "{}", proposal.text());
}

/// An order that changes is not a duplicate: its version is part of the key.
#[test]
fn a_field_in_which_duplicates_differ_becomes_a_part_of_the_key() {
    let proposal = stream(3_000, |row, attempt| if row.is_multiple_of(30) { attempt } else { 1 });
    assert_eq!(proposal.parts, [Part::Field("/order/id".into()), Part::Field("/order/version".into())]);
    let alone = proposal.candidates.iter().find(|candidate| candidate.key == "{ field = \"/order/id\" }").unwrap();
    assert_eq!((alone.conflicts, alone.differ_in.as_slice()), (100, &["/order/version".to_owned()][..]));
    assert_eq!(proposal.candidates[0].repeats, 900);
}

#[test]
fn no_key_is_proposed_without_equal_duplicates() {
    let unlike = proposal((0..100).map(|row| format!("{{\"kind\":{},\"amount\":{row}}}", row % 5)));
    assert_eq!((unlike.configuration.as_deref(), unlike.parts.len()), (None, 0));
    assert!(unlike.reasons[0].starts_with("No key fits"), "{:?}", unlike.reasons);
    // Fields without a column of their own are still compared.
    let fields: Vec<_> = (0..40).map(|field| format!("\"f{field}\":1")).collect();
    let wide = |row: u64| format!(",{},\"last\":{row}", fields.join(","));
    let many = proposal((0..100).map(|row| format!("{{\"id\":{}{}}}", row % 50, wide(row))));
    assert_eq!((many.parts.len(), many.candidates[0].differ_in.as_slice()), (0, &["the rest of the value".to_owned()][..]));
    let captured = |row: u64| format!("{{\"partition\":0,\"key\":\"k{}\",\"payload\":\"[{row}]\"}}", row % 10);
    let captured: Vec<_> = (0..100).map(captured).collect();
    let opaque = Proposal::new(captured.join("\n").as_bytes(), Format::Kcat, None, &CompareContent::default()).unwrap();
    assert_eq!((opaque.configuration.as_deref(), opaque.candidates[0].conflicts), (None, 90));
    let status = proposal((0..90).map(|row| format!("{{\"order\":{},\"customer\":7,\"status\":\"s{}\"}}", row / 3, row % 3)));
    assert_eq!(status.configuration, None);
    assert!(!opaque.text().contains("differ in :"), "{}", opaque.text());
    let unique = proposal((0..100).map(|row| format!("{{\"id\":{row}}}")));
    assert!(unique.reasons[0].starts_with("No possible key has duplicates among the sample's records (100)"), "{:?}", unique.reasons);
}

#[test]
fn records_that_lack_a_part_of_the_key_do_not_count_for_the_capacity() {
    let line = |row: u64| {
        let version = if row.is_multiple_of(100) { String::new() } else { format!("\"version\":{},", row / 2 % 2) };
        let sent = 1_700_000_000_000 + row * 1000;
        format!("{{\"order\":{},{version}\"kind\":{},\"sent\":{sent}}}", row / 4, row / 4 % 3)
    };
    let proposal = proposal((0..2_000).map(line));
    assert_eq!(proposal.parts, [Part::Field("/order".into()), Part::Field("/version".into())]);
    assert_eq!((proposal.window_ms, proposal.without_key), (Some(10_000), 20));
    assert!(proposal.text().contains("capacity: 5 keys in the busiest window"), "{}", proposal.text());
}

#[test]
fn a_record_may_consist_of_its_key_only() {
    let review = |row: u64| {
        let sent = 1_700_000_000_000 + row * 1000;
        format!("{{\"reviewer\":\"r{}\",\"vendor\":\"v{}\",\"attempt\":{row},\"sent\":{sent}}}", row % 50, row % 7)
    };
    let proposal = proposal((0..2_000).map(review));
    assert_eq!(proposal.parts, [Part::Field("/reviewer".into()), Part::Field("/vendor".into())]);
    assert_eq!(proposal.candidates[0].distinct, 350);
}

/// Like a worker with `key_conflicts`, a proposal ignores differences in headers and in the fields of `--ignore`.
#[test]
fn duplicates_are_compared_as_in_a_worker() {
    let row = |row: u64, attempt: u64| {
        let fields: Vec<_> = (10..45).map(|field| format!("\\\"f{field}\\\":1")).collect();
        let value = format!("{{\\\"id\\\":{row},\\\"x\\\":null,{},\\\"zmeta\\\":{{\\\"attempt\\\":{attempt}}}}}", fields.join(","));
        format!("{{\"partition\":0,\"key\":\"k{row}\",\"headers\":[\"attempt\",\"{attempt}\"],\"payload\":\"{value}\"}}")
    };
    let lines: Vec<_> = (0..200).map(|number| row(number / 2, number % 2)).collect();
    let propose = |except: &[&str]| {
        let compare = CompareContent::new(except.iter().map(|&pointer| pointer.to_owned()).collect()).unwrap();
        Proposal::new(lines.join("\n").as_bytes(), Format::Kcat, None, &compare).unwrap()
    };
    assert_eq!(propose(&[]).configuration, None);
    let proposal = propose(&["/zmeta"]);
    assert_eq!(proposal.parts, [Part::RecordKey]);
    let text = proposal.text();
    assert!(text.contains("- Duplicates differ in header attempt, but only fields of the value are compared"), "{text}");
}

#[test]
fn compressed_values_are_read_and_the_configuration_decodes_them() {
    let line = |time: u64, value: &str| {
        let payload = data_encoding::BASE64.encode(&gzip(value.as_bytes()));
        format!("{{\"partition\":0,\"ts\":{},\"key\":null,\"payload_base64\":\"{payload}\"}}", 1_700_000_000_000 + time * 1_000)
    };
    let lines = (0..100).flat_map(|row| [row, row + 40].map(|time| (time, line(time, &format!("{{\"id\":{row},\"n\":{}}}", row % 7)))));
    let mut lines: Vec<_> = lines.collect();
    lines.sort();
    let text: Vec<_> = lines.into_iter().map(|(_, line)| line).collect();
    let proposal = Proposal::new(text.join("\n").as_bytes(), Format::Kcat, None, &CompareContent::default()).unwrap();
    assert_eq!((proposal.parts.as_slice(), &*proposal.format.encodings), (&[Part::Field("/id".into())][..], &[Encoding::Gzip][..]));
    let configuration = proposal.configuration.as_deref().unwrap();
    assert!(configuration.contains("key = { field = \"/id\" }\nvalue_encoding = \"gzip\"\nwindow = "), "{configuration}");
}
