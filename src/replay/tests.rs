use super::*;
use crate::config::{self, OnDuplicate, OnTombstone};
use crate::content::{CompareContent, Conflicts};
use crate::filter::{Growth, Kind, Window};
use crate::format::{Formats, RecordFormat, Side};
use crate::key::{KeySpec, Predicate};
use crate::values::Counted;
use std::time::Duration;

fn topic(parts: Vec<Part>) -> Topic {
    Topic {
        entry: 0,
        input: "news".into(),
        output: Some("news.unseen".into()),
        space: "news".into(),
        key: KeySpec::new(parts).unwrap(),
        formats: Formats::default(),
        repartition: false,
        window: Window::time(60_000, 4),
        filter: filter(1e-6),
        when: Vec::new(),
        retract: None,
        refresh: false,
        time: None,
        max_future: Duration::from_secs(300),
        late: Late::Emit,
        on_change: None,
        on_duplicate: OnDuplicate::Drop,
        on_tombstone: OnTombstone::Emit,
        on_invalid: OnInvalid::Fail,
        count_by: None,
        key_conflicts: None,
    }
}

fn filter(false_positive_rate: f64) -> config::Filter {
    let growth = Growth::default();
    config::Filter { kind: Kind::Aging, capacity: Some(1_000), false_positive_rate, confirm: false, memory: None, growth }
}

fn by_id() -> Topic {
    topic(vec![Part::Field("/id".into())])
}

fn options(format: Format) -> Options {
    Options { format, time: None, partitions: 1, truth: true }
}

fn replay(topic: &Topic, options: &Options, input: &[u8]) -> Result<(String, Summary), Error> {
    let mut replay = Replay::new(topic, options)?;
    let mut output = Vec::new();
    replay.run(input, &mut output, || 4_102_444_800_000)?;
    Ok((String::from_utf8_lossy(&output).into_owned(), replay.summary()))
}

fn text(lines: impl Iterator<Item = String>) -> String {
    lines.flat_map(|line| [line, "\n".to_owned()]).collect()
}

#[test]
fn a_recorded_stream_of_values() {
    let input = include_bytes!("../../tests/data/news.ndjson");
    let with_time = Options { time: Some("/time".into()), ..options(Format::Ndjson) };
    let (output, summary) = replay(&by_id(), &with_time, input).unwrap();
    assert_eq!(output, include_str!("../../tests/data/news.unseen.ndjson"));
    assert_eq!((summary.records, summary.unseen, summary.duplicates, summary.late, summary.untimed), (9, 6, 3, 0, 1));
    assert_eq!(summary.truth, Some(Counts { unseen: 6, false_positives: 0, false_negatives: 0 }));
    let (_, summary) = replay(&by_id(), &options(Format::Ndjson), input).unwrap();
    assert_eq!((summary.unseen, summary.untimed), (5, 9), "without times, nothing expires");
}

#[test]
fn a_recorded_topic() {
    let input = include_bytes!("../../tests/data/news.kcat");
    let topic = topic(vec![Part::RecordKey, Part::Header("source".into())]);
    let two = Options { partitions: 2, ..options(Format::Kcat) };
    let (output, summary) = replay(&topic, &two, input).unwrap();
    assert_eq!(output, include_str!("../../tests/data/news.unseen.kcat"));
    assert_eq!((summary.records, summary.unseen, summary.duplicates, summary.partitions), (8, 5, 3, 2));
    let error = replay(&topic, &options(Format::Kcat), input).unwrap_err();
    assert!(error.to_string().starts_with("line 2, at byte 145: partition 1 does not exist; the number of partitions is 1;"), "{error}");
}

#[test]
fn line_ends_are_preserved() {
    let (output, _) = replay(&by_id(), &options(Format::Ndjson), b"{\"id\":1}\r\n{\"id\":2}\n{\"id\":1}\n{\"id\":3}").unwrap();
    assert_eq!(output, "{\"id\":1}\r\n{\"id\":2}\n{\"id\":3}");
    let whole = topic(vec![Part::RecordValue]);
    let (output, _) = replay(&whole, &options(Format::Ndjson), b"a\r\n\na\n\n\xff\n\xff").unwrap();
    assert_eq!(output, "a\r\n\u{fffd}\n", "the line end is not part of the value, and an empty line is not a record");
}

#[test]
fn missing_key_parts_are_reported_before_reading() {
    for (part, named) in [(Part::RecordKey, "the record key"), (Part::Header("id".into()), "header `id`")] {
        let error = replay(&topic(vec![Part::RecordValue, part]), &options(Format::Ndjson), b"").unwrap_err();
        assert!(matches!(&error, Error::Part(_)) && error.to_string().contains(named), "{error}");
    }
    let second_time = Options { time: Some("/time".into()), ..options(Format::Kcat) };
    assert!(matches!(replay(&by_id(), &second_time, b""), Err(Error::SecondTime)));
    let malformed = Options { time: Some("time".into()), ..options(Format::Ndjson) };
    assert!(matches!(replay(&by_id(), &malformed, b""), Err(Error::Time(_))));
}

#[test]
fn unsupported_settings_for_ndjson_are_rejected() {
    let topic = Topic { retract: Some(Predicate::header("retract")), filter: config::Filter { confirm: true, ..filter(1e-4) }, ..by_id() };
    let error = replay(&topic, &options(Format::Ndjson), b"{\"id\":1}\n").unwrap_err().to_string();
    assert!(error.starts_with("the topic's `retract` tests header `retract`, which an ndjson line does not have"), "{error}");
    let topic_when = |predicate| Topic { when: vec![predicate], ..by_id() };
    let error = replay(&topic_when(Predicate::record_key()), &options(Format::Ndjson), b"").unwrap_err().to_string();
    assert!(error.starts_with("the topic's `when` tests the record key, which an ndjson line does not have"), "{error}");
    assert!(replay(&topic_when(Predicate::field(Side::Value, "/type").unwrap()), &options(Format::Ndjson), b"").is_ok());
    assert!(replay(&topic, &options(Format::Kcat), b"").is_ok());
    let four = Options { partitions: 4, ..options(Format::Ndjson) };
    assert!(matches!(replay(&by_id(), &four, b"{\"id\":1}\n"), Err(Error::Partitions)));
}

#[test]
fn records_that_are_not_selected_pass_through() {
    let selected = Predicate::field(Side::Value, "/type").unwrap().one_of(vec!["a".to_owned()]);
    let time = EventTime { place: TimePlace::field("/ts").unwrap(), unit: None, optional: false };
    let topic = Topic { when: vec![selected], time: Some(time), on_invalid: OnInvalid::Drop, ..by_id() };
    let lines = "{\"type\":\"b\",\"id\":1,\"ts\":1900000000}\n{\"type\":\"a\",\"id\":1,\"ts\":1700000000}\n{\"id\":1}\n{\"type\":\"a\",\"id\":1,\"ts\":1700000001}\n{\"type\":\"b\"}\n{\"type\":\"a\"}\n{\n";
    let (output, summary) = replay(&topic, &options(Format::Ndjson), lines.as_bytes()).unwrap();
    assert_eq!((summary.records, summary.unseen, summary.duplicates, summary.passed), (7, 1, 1, 3));
    assert_eq!((summary.stream_time, summary.invalid), (Some(1_700_000_001_000), [("malformed", 1), ("missing_key", 1)].into()));
    let emitted: Vec<_> = lines.lines().enumerate().filter(|(number, _)| matches!(number, 0 | 1 | 2 | 4)).map(|(_, line)| line).collect();
    assert_eq!(output.lines().collect::<Vec<_>>(), emitted);
}

#[test]
fn a_recorded_stream_is_evaluated_by_event_times() {
    let timed = |place, optional| Topic { time: Some(EventTime { place, unit: None, optional }), on_invalid: OnInvalid::Drop, ..by_id() };
    let by_field = |optional| timed(TimePlace::field("/ts").unwrap(), optional);
    // The window is one minute. In `with_time`, the field `/at` replaces Kafka's timestamp.
    let lines = "{\"id\":1,\"ts\":1700000000,\"at\":5}\n{\"id\":2,\"ts\":\"2023-11-14T22:15:20Z\"}\n{\"id\":1,\"ts\":1700000120000}\n{\"id\":3,\"ts\":1700000000}\n{\"id\":4}\n";
    let (_, summary) = replay(&by_field(false), &options(Format::Ndjson), lines.as_bytes()).unwrap();
    assert_eq!((summary.unseen, summary.late, summary.untimed, summary.stream_time), (4, 1, 0, Some(1_700_000_120_000)));
    assert_eq!(summary.invalid, [("malformed", 1)].into());
    let (_, summary) = replay(&by_field(true), &options(Format::Ndjson), lines.as_bytes()).unwrap();
    assert_eq!((summary.unseen, summary.untimed, summary.invalid.len()), (5, 1, 0));
    let with_time = Options { time: Some("/at".into()), ..options(Format::Ndjson) };
    let error = replay(&by_field(false), &with_time, b"").unwrap_err().to_string();
    assert_eq!(error, "--time: the topic's `time` already specifies field `/ts`; leave out --time");
    assert!(replay(&by_field(true), &with_time, b"").is_ok());
    let error = replay(&timed(TimePlace::Header("ts".into()), false), &options(Format::Ndjson), b"").unwrap_err().to_string();
    assert!(error.starts_with("the topic's `time` is header `ts`, which an ndjson line does not have"), "{error}");
    // A capture has headers. Its Kafka timestamps are ignored, because `time` is a header.
    let captured = |ts: u64| {
        format!("{{\"partition\":0,\"ts\":{ts},\"headers\":[\"ts\",\"1700000000\"],\"key\":null,\"payload\":\"{{\\\"id\\\":1}}\"}}")
    };
    let lines = text([1_700_000_000_000, 1_800_000_000_000].into_iter().map(captured));
    let (_, summary) = replay(&timed(TimePlace::Header("ts".into()), false), &options(Format::Kcat), lines.as_bytes()).unwrap();
    assert_eq!((summary.unseen, summary.duplicates, summary.stream_time), (1, 1, Some(1_700_000_000_000)));
}

#[test]
fn an_envelope_is_distinguished_from_a_value() {
    let line = br#"{"topic":"t","partition":0,"offset":0,"tstype":"create","ts":1,"key":null,"payload":"{\"id\":1}"}"#;
    let topic = Topic { on_invalid: OnInvalid::Drop, ..by_id() };
    let (_, summary) = replay(&topic, &options(Format::Ndjson), line).unwrap();
    assert_eq!((summary.envelopes, summary.invalid), (1, [("missing_key", 1)].into()));
    let (_, summary) = replay(&topic, &options(Format::Ndjson), b"{\"other\":1}\n").unwrap();
    assert_eq!((summary.envelopes, summary.invalid), (0, [("missing_key", 1)].into()));
}

#[test]
fn invalid_records_follow_on_invalid() {
    let input = b"{\"id\":1}\nbroken\n{}\n{\"id\":null}\n{\"id\":2}\n";
    let error = replay(&by_id(), &options(Format::Ndjson), input).unwrap_err();
    assert!(error.to_string().starts_with("line 2, at byte 9: the record value is not JSON"), "{error}");
    for (on_invalid, records, dead_letters) in [(OnInvalid::Drop, 2, 0), (OnInvalid::Emit, 5, 0), (OnInvalid::Topic("dead".into()), 2, 3)] {
        let topic = Topic { on_invalid, ..by_id() };
        let (output, summary) = replay(&topic, &options(Format::Ndjson), input).unwrap();
        assert_eq!(output.lines().count(), records, "{:?}", topic.on_invalid);
        assert_eq!((summary.unseen, summary.dead_letters), (2, dead_letters));
        assert_eq!(summary.invalid, [("malformed", 1), ("missing_key", 1), ("null_key", 1)].into());
    }
}

#[test]
fn tombstones_follow_on_tombstone() {
    let lines = r#"{"partition":0,"key":"a","payload":null}"#.to_owned() + "\n";
    let input = lines.repeat(2);
    let replay_with = |on_tombstone, on_invalid| {
        let topic = Topic { on_tombstone, on_invalid, ..by_id() };
        replay(&topic, &options(Format::Kcat), input.as_bytes()).map(|(output, summary)| (output, summary.tombstones, summary.invalid))
    };
    assert_eq!(replay_with(OnTombstone::Emit, OnInvalid::Fail).unwrap(), (input.clone(), 2, [].into()), "tombstones are not duplicates");
    assert_eq!(replay_with(OnTombstone::Drop, OnInvalid::Fail).unwrap(), (String::new(), 2, [].into()));
    assert_eq!(replay_with(OnTombstone::Invalid, OnInvalid::Drop).unwrap(), (String::new(), 0, [("tombstone", 2)].into()));
    let error = replay_with(OnTombstone::Invalid, OnInvalid::Fail).unwrap_err();
    assert!(error.to_string().contains("the record value is null"), "{error}");
    // If the key does not need the value, a tombstone is a normal record.
    let by_key = Topic { on_tombstone: OnTombstone::Drop, ..topic(vec![Part::RecordKey]) };
    let (output, summary) = replay(&by_key, &options(Format::Kcat), input.as_bytes()).unwrap();
    assert_eq!((output, summary.duplicates, summary.tombstones), (lines, 1, 0));
}

#[test]
fn late_records_follow_late() {
    let input = b"{\"id\":1,\"t\":1000000}\n{\"id\":2,\"t\":900000}\n{\"id\":2,\"t\":1000000}\n";
    for (late, lines, late_ones, dead_letters) in [(Late::Emit, 2, 1, 0), (Late::Drop, 2, 1, 0), (Late::DeadLetter, 2, 1, 1)] {
        let with_time = Options { time: Some("/t".into()), ..options(Format::Ndjson) };
        let (output, summary) = replay(&Topic { late, ..by_id() }, &with_time, input).unwrap();
        assert_eq!((output.lines().count(), summary.late, summary.dead_letters), (lines, late_ones, dead_letters));
        assert_eq!(output.contains("900000"), late == Late::Emit);
    }
}

#[test]
fn a_time_beyond_the_max_timestamp_does_not_expire_anything() {
    let input = b"{\"id\":1,\"t\":0}\n{\"id\":2,\"t\":9000000000000}\n{\"id\":1,\"t\":1}\n";
    let with_time = Options { time: Some("/t".into()), ..options(Format::Ndjson) };
    assert_eq!(replay(&by_id(), &with_time, input).unwrap().1.duplicates, 1);
}

#[test]
fn the_same_stream_gives_the_same_verdicts_in_either_format() {
    let ids: Vec<u64> = (0..2_000).map(|number| number * 7_919 % 911).collect();
    let values = text(ids.iter().enumerate().map(|(n, id)| format!("{{\"id\":{id},\"t\":{}}}", n * 61)));
    let records = text(ids.iter().enumerate().map(|(n, id)| {
        let payload = format!("{{\\\"id\\\":{id}}}");
        format!("{{\"partition\":0,\"tstype\":\"create\",\"ts\":{},\"key\":null,\"payload\":\"{payload}\"}}", n * 61)
    }));
    let with_time = Options { time: Some("/t".into()), ..options(Format::Ndjson) };
    let (_, one) = replay(&by_id(), &with_time, values.as_bytes()).unwrap();
    let (_, other) = replay(&by_id(), &options(Format::Kcat), records.as_bytes()).unwrap();
    assert_eq!(one, other);
    assert!(one.duplicates > 100 && one.unseen > 911, "{one:?}");
}

#[test]
fn records_and_duplicates_are_counted_by_a_value() {
    let by = |by| Topic { count_by: Some(by), ..by_id() };
    let lines = text((0..90).map(|number| format!("{{\"id\":{},\"tenant\":\"{}\"}}", number / 3, if number < 60 { "a" } else { "b" })));
    let (_, summary) = replay(&by(CountBy::Field(Field::new("/tenant").unwrap())), &options(Format::Ndjson), lines.as_bytes()).unwrap();
    // A value is counted by name only after its first sixteen records, which count as others. Every third record is the first with its ID.
    let counted = |records, duplicates| Counted { records, duplicates };
    assert_eq!(summary.values, [(Some("a".to_owned()), counted(44, 30)), (Some("b".to_owned()), counted(14, 10)), (None, counted(32, 20))]);
    assert_eq!(replay(&by_id(), &options(Format::Ndjson), lines.as_bytes()).unwrap().1.values, []);
    let (_, summary) = replay(&by(CountBy::Header("tenant".to_owned())), &options(Format::Ndjson), lines.as_bytes()).unwrap();
    assert_eq!(summary.values, [], "an ndjson line has no headers");
}

#[test]
fn values_are_counted_over_all_entries_of_an_input() {
    let of_type = |kind: &str| Predicate::field(Side::Value, "/type").unwrap().one_of(vec![kind.to_owned()]);
    let first = Topic { when: vec![of_type("x")], count_by: Some(CountBy::Field(Field::new("/tenant").unwrap())), ..by_id() };
    let second = Topic { entry: 1, space: "rest".into(), when: Vec::new(), ..first.clone() };
    let line = |number| {
        let (kind, tenant) = (if number % 3 == 0 { "x" } else { "y" }, if number < 90 { "a" } else { "b" });
        format!("{{\"id\":{number},\"type\":\"{kind}\",\"tenant\":\"{tenant}\"}}")
    };
    let lines = text((0..240).map(line));
    let mut replay = Replay::of_rules(&[&first, &second], &options(Format::Ndjson)).unwrap();
    replay.run(lines.as_bytes(), io::sink(), || Timestamp::MAX).unwrap();
    let names = |summary: &Summary| summary.values.iter().map(|(value, _)| value.clone()).collect::<Vec<_>>();
    let values = ["b", "a"].map(|value| Some(value.to_owned())).into_iter().chain([None]).collect::<Vec<_>>();
    let summary = replay.summary();
    assert_eq!(names(&summary), values, "each value once, most records first, all others last");
    let of_rules: Vec<_> = replay.summaries().into_iter().map(|(_, summary)| summary).collect();
    assert_eq!([names(&of_rules[0]), names(&of_rules[1])], [values.clone(), values]);
    for (at, (_, counted)) in summary.values.iter().enumerate() {
        let [first, second] = [0, 1].map(|rule: usize| of_rules[rule].values[at].1);
        assert_eq!(counted.records, first.records + second.records);
    }
}

#[test]
fn duplicates_are_compared_with_their_originals() {
    let lines = text((0..30).map(|number| format!("{{\"id\":{},\"version\":{},\"at\":{number}}}", number % 10, number / 20)));
    let conflicts = |except: &[&str], time: Option<&str>| {
        let except = except.iter().map(|&pointer| pointer.to_owned()).collect();
        let topic = Topic { key_conflicts: Some(CompareContent { except }), ..by_id() };
        let options = Options { time: time.map(str::to_owned), ..options(Format::Ndjson) };
        replay(&topic, &options, lines.as_bytes()).unwrap().1.key_conflicts
    };
    let found = |conflicts, fields: &[(&str, u64)]| Conflicts {
        compared: 20,
        conflicts,
        fields: fields.iter().map(|&(field, count)| (field.to_owned(), count)).collect(),
    };
    assert_eq!(conflicts(&[], None), found(20, &[("/at", 20), ("/version", 10)]));
    assert_eq!(conflicts(&[], Some("/at")), found(10, &[("/version", 10)]));
    assert_eq!(conflicts(&["/at", "/version"], None), found(0, &[]));
}

/// A duplicate is compared only with records of its partition. The frame (the schema id) in front of its value is ignored.
#[test]
fn duplicates_are_compared_within_a_partition_and_without_frames() {
    let line = |partition: u32, schema: u32, version: u32| {
        let payload = format!("\\u0000\\u0000\\u0000\\u0000\\u{schema:04x}{{\\\"id\\\":1,\\\"version\\\":{version}}}");
        format!("{{\"partition\":{partition},\"key\":\"k\",\"payload\":\"{payload}\"}}")
    };
    let mut topic = topic(vec![Part::RecordKey]);
    let framed = RecordFormat { format: crate::format::Format::JsonSchema, ..RecordFormat::default() };
    topic.formats = Formats::new(RecordFormat::default(), framed);
    let options = Options { partitions: 2, ..options(Format::Kcat) };
    let lines = text([line(0, 1, 1), line(1, 1, 2), line(0, 2, 1), line(1, 2, 2), line(1, 2, 3)].into_iter());
    let conflicts = replay(&topic, &options, lines.as_bytes()).unwrap().1.key_conflicts;
    assert_eq!((conflicts.compared, conflicts.conflicts, conflicts.fields), (3, 1, vec![("/version".to_owned(), 1)]));
}

#[test]
fn the_exact_window_finds_false_positives() {
    for window in [Window::time(60_000, 4), Window::keys(1_000, 4)] {
        for refresh in [false, true] {
            let topic = Topic { window, refresh, filter: filter(0.2), ..topic(vec![Part::RecordValue]) };
            let lines = text((0..20_000).map(|number| number.to_string()));
            let (output, summary) = replay(&topic, &options(Format::Ndjson), lines.as_bytes()).unwrap();
            let truth = summary.truth.unwrap();
            assert_eq!((truth.unseen, truth.false_negatives), (20_000, 0));
            assert_eq!(truth.false_positives, summary.duplicates, "there are no duplicates, so every dropped line is a false positive");
            assert_eq!(output.lines().count() as u64 + truth.false_positives, 20_000);
            let (mut emitted, mut wrong) = (Vec::new(), Vec::new());
            let mut listed = Replay::new(&topic, &options(Format::Ndjson)).unwrap();
            listed.run_and_list(lines.as_bytes(), &mut emitted, &mut wrong, || 0).unwrap();
            let mut both: Vec<u32> =
                String::from_utf8([emitted, wrong].concat()).unwrap().lines().map(|line| line.parse().unwrap()).collect();
            both.sort_unstable();
            assert!(both.into_iter().eq(0..20_000), "each line is either emitted or listed as a false positive");
            // In a window by time, only one of the five slices has keys. In a window by count, all five are full, so the rate is higher.
            assert!((0.015..=0.2).contains(&truth.rate()), "{window:?}: {truth:?}");
        }
    }
}

#[test]
fn an_accurate_filter_has_no_errors() {
    for window in [Window::time(60_000, 4), Window::keys(300, 3), Window::keys(7, 1)] {
        for refresh in [false, true] {
            let topic = Topic { window, refresh, filter: filter(1e-9), ..by_id() };
            let lines = text((0..20_000_u64).map(|n| format!("{{\"id\":{},\"t\":{}}}", n * n * 31 % 1_009 % (n % 500 + 1), n * 61)));
            let with_time = Options { time: Some("/t".into()), ..options(Format::Ndjson) };
            let (_, summary) = replay(&topic, &with_time, lines.as_bytes()).unwrap();
            let truth = summary.truth.unwrap();
            assert_eq!((truth.false_positives, truth.false_negatives), (0, 0), "{window:?}, refresh {refresh}");
            assert_eq!(truth.unseen, summary.unseen);
            assert!(summary.duplicates > 1_000 && summary.unseen > 500, "{summary:?}");
        }
    }
}
