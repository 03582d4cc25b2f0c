use super::*;
use crate::format::{NoSchemas, RecordFormat};
use crate::key::ValueReader;
use xxhash_rust::xxh3::xxh3_128;

fn key(number: u64) -> PartitionKey {
    PartitionKey { partition: 0, fingerprint: Fingerprint(xxh3_128(&number.to_le_bytes())) }
}

fn sample(keys: u64) -> ContentSample {
    ContentSample::new(Some(keys))
}

fn except(pointers: &[&str]) -> CompareContent {
    CompareContent::new(pointers.iter().map(|&pointer| pointer.to_owned()).collect()).unwrap()
}

fn take(sample: &mut ContentSample, number: u64, verdict: Verdict, value: &str) -> Option<Vec<String>> {
    take_of(sample, key(number), verdict, value, &except(&[]))
}

fn take_of(sample: &mut ContentSample, key: PartitionKey, verdict: Verdict, value: &str, compare: &CompareContent) -> Option<Vec<String>> {
    let mut reader = ValueReader::default();
    let value = reader.open(&RecordFormat::default(), Some(value.as_bytes()), std::iter::empty(), &NoSchemas);
    sample.take(key, verdict, value, compare)
}

fn compared(first: &str, second: &str, pointers: &[&str]) -> Option<Vec<String>> {
    let (mut sample, compare) = (sample(1_000), except(pointers));
    let mut take = |verdict, value: &str| take_of(&mut sample, key(1), verdict, value, &compare);
    assert_eq!(take(Verdict::Unseen, first), None);
    let differs = take(Verdict::Duplicate, second);
    assert_eq!((sample.counted.compared, sample.counted.conflicts), (1, u64::from(differs.is_some())));
    differs
}

#[test]
fn duplicates_are_compared_field_by_field() {
    let first = r#"{"id":1,"version":1,"meta":{"attempt":1,"host":"a"}}"#;
    let cases = [
        (r#"{ "meta":{"host":"\u0061","attempt":1}, "version":1, "id":0, "id":1 }"#, vec![]),
        (r#"{"id":1,"version":2,"meta":{"attempt":1,"host":"a"}}"#, vec!["/version"]),
        (r#"{"id":1,"version":2,"meta":{"attempt":2,"host":"a"}}"#, vec!["/meta/attempt", "/version"]),
        (r#"{"id":1,"version":1,"meta":{"attempt":1}}"#, vec![GONE]),
        (r#"{"id":1,"version":1,"meta":{"attempt":1,"host":null}}"#, vec![GONE]),
        (r#"{"id":1,"version":2,"meta":{"attempt":1}}"#, vec!["/version", GONE]),
        (r#"{"id":1,"version":1,"new":0,"meta":{"attempt":1,"host":"a"}}"#, vec!["/new"]),
        ("none", vec![WHOLE]),
    ];
    for (second, fields) in cases {
        assert_eq!(compared(first, second, &[]).unwrap_or_default(), fields, "{second}");
    }
    assert_eq!((compared("a", "a", &[]), compared("a", "b", &[])), (None, Some(vec![WHOLE.to_owned()])));
}

#[test]
fn fields_are_compared_as_they_are_written() {
    let differ = |one: &str, other: &str| compared(&format!("{{\"a\":{one}}}"), &format!("{{\"a\":{other}}}"), &[]).is_some();
    for (one, other) in [
        ("18446744073709551617", "18446744073709551618"),
        ("0.10000000000000000001", "0.1"),
        ("1", "\"1\""),
        ("1e999", "1e998"),
        ("[1,2]", "[2,1]"),
        ("\"\\ud800\"", "\"\\ud801\""),
    ] {
        assert!(differ(one, other) && !differ(one, one), "{one} {other}");
    }
    for (one, other) in [("[1,{\"b\":2,\"c\":3}]", "[ 1, { \"c\" : 3, \"b\" : 2 } ]"), ("\"/\"", "\"\\/\""), ("{}", "null")] {
        assert!(!differ(one, other), "{one} {other}");
    }
    let deep = |last: u64| format!("{{\"a\":{{\"b\":{{\"c\":{{\"d\":{{\"e\":{last}}}}}}}}}}}");
    assert_eq!(compared(&deep(1), &deep(2), &[]), Some(vec!["/a/b/c/d".to_owned()]));
    let brackets = |last: &str| format!("{{\"a\":{}{last}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(compared(&brackets("1"), &brackets("2"), &[]), Some(vec![WHOLE.to_owned()]), "too deep for a digest");
}

#[test]
fn excepted_fields_may_differ() {
    let (first, second) = (r#"{"a":{"b":1,"c":1},"ab":1}"#, r#"{"a":{"b":2,"c":2},"ab":2}"#);
    assert_eq!(compared(first, second, &["/a", "/ab"]), None);
    assert_eq!(compared(first, second, &["/a"]), Some(vec!["/ab".to_owned()]));
    assert_eq!(compared(first, second, &["/a/b", "/ab"]), Some(vec!["/a/c".to_owned()]));
}

#[test]
fn fields_beyond_the_limit_are_compared_as_one() {
    let wide = |fields: u64, changed: u64| {
        let fields: Vec<_> = (100..fields).map(|field| format!("\"f{field}\":{}", u8::from(field == changed))).collect();
        format!("{{{}}}", fields.join(","))
    };
    let rest = Some(vec![REST.to_owned()]);
    assert_eq!(compared(&wide(150, 0), &wide(150, 0), &[]), None);
    let differs = (100..150).map(|changed| (changed, compared(&wide(150, 0), &wide(150, changed), &[])));
    let (of_rest, named): (Vec<_>, Vec<_>) = differs.partition(|(_, fields)| *fields == rest);
    assert_eq!((of_rest.len(), named.len()), (50 - FIELDS_MAX, FIELDS_MAX));
    assert!(named.iter().all(|(changed, fields)| *fields == Some(vec![format!("/f{changed}")])));
    // A new field that is stored individually can push an unchanged field into the rest.
    let more = wide(150, 0).replace("{\"f100\"", "{\"f000\":1,\"f100\"");
    assert_eq!((compared(&wide(150, 0), &more, &[]), compared(&more, &wide(150, 0), &[])), (rest.clone(), rest));
    let (mut reader, value) = (ValueReader::default(), wide(10_000, 0));
    let value = reader.open(&RecordFormat::default(), Some(value.as_bytes()), std::iter::empty(), &NoSchemas);
    let content = CompareContent::default().content(&mut value.unwrap());
    assert_eq!(content.0.len(), FIELDS_MAX + 1);
}

#[test]
fn duplicates_are_compared_with_the_last_emission() {
    let mut sample = sample(1_000);
    let mut next = |verdict, value| take(&mut sample, 1, verdict, value).is_some();
    assert!(!next(Verdict::Duplicate, "a"), "the original was emitted before the sample started");
    assert!(next(Verdict::Duplicate, "b"));
    assert!(!next(Verdict::Late, "c"));
    assert!(!next(Verdict::Unseen, "b"), "the window had ended");
    assert!(!next(Verdict::Duplicate, "b"));
    assert!(next(Verdict::Duplicate, "a"));
    assert!(!next(Verdict::Retracted, "x"));
    assert!(!next(Verdict::Unseen, "a"));
    assert!(!next(Verdict::Duplicate, "a"));
    let Conflicts { compared, conflicts, fields } = sample.read();
    assert_eq!((compared, conflicts, fields), (4, 2, vec![(WHOLE.to_owned(), 2)]));
}

#[test]
fn partitions_are_independent() {
    let mut sample = sample(1_000);
    let mut next = |partition, verdict, value: &str| {
        let key = PartitionKey { partition, ..key(1) };
        take_of(&mut sample, key, verdict, value, &except(&[])).is_some()
    };
    assert!(!next(0, Verdict::Unseen, "a") && !next(1, Verdict::Unseen, "b"));
    assert!(!next(0, Verdict::Duplicate, "a") && !next(1, Verdict::Duplicate, "b"));
    sample.forget_partition(0);
    let mut next = |partition, value: &str| {
        let key = PartitionKey { partition, ..key(1) };
        take_of(&mut sample, key, Verdict::Duplicate, value, &except(&[])).is_some()
    };
    assert!(!next(0, "c") && next(0, "a") && next(1, "a"));
    // Another topic of the key space has emitted or retracted the key.
    sample.forget(PartitionKey { partition: 1, ..key(1) });
    assert_eq!(take(&mut sample, 1, Verdict::Duplicate, "c"), None);
}

fn is_consistent(sample: &ContentSample) -> bool {
    sample.contents.len() == sample.order.len() && sample.order.iter().all(|key| sample.contents.contains_key(key))
}

#[test]
fn the_sample_is_bounded_and_has_the_latest_keys() {
    for keys in [1_000, 1_000_000] {
        let mut sample = sample(keys);
        for number in 0..100_000_u64 {
            take(&mut sample, number, Verdict::Unseen, "a");
            assert!(sample.order.len() <= KEYS_MAX);
        }
        assert!(is_consistent(&sample) && sample.contents.len() > KEYS_MAX / 4, "{keys}: {}", sample.contents.len());
        let last = (90_000..100_000_u64).filter(|&number| sample.contents.contains_key(&key(number))).count();
        assert!(last > 500, "{keys}: {last}");
    }
}

#[test]
fn retracted_keys_do_not_fill_the_sample() {
    let mut sample = sample(1_000);
    (10..1_000).for_each(|number| drop(take(&mut sample, number, Verdict::Unseen, "a")));
    for round in 0..100_000_u64 {
        take(&mut sample, round % 10, Verdict::Unseen, "a");
        take(&mut sample, round % 10, Verdict::Retracted, "a");
    }
    assert!(is_consistent(&sample) && sample.order.len() == 1_000);
    assert_eq!(take(&mut sample, 10, Verdict::Duplicate, "b"), Some(vec![WHOLE.to_owned()]));
}

#[test]
fn the_sampling_rate_adapts_to_the_record_rate() {
    let mut sample = sample(1_000);
    for round in 0..10_000_u64 {
        (0..1_000).for_each(|number| drop(take(&mut sample, number, Verdict::Duplicate, if round % 2 == 0 { "a" } else { "b" })));
    }
    let counted = sample.read();
    assert_eq!(sample.halvings, MAX_HALVINGS_FOR_CPU);
    assert!(counted.compared < 1_000_000, "{}", counted.compared);
    assert!((0.49..0.51).contains(&counted.share()), "{}", counted.share());
    // Emit all keys again. Most of them are not in the sample now, so the sample must not keep their old content.
    (0..1_000).for_each(|number| drop(take(&mut sample, number, Verdict::Unseen, "c")));
    sample.pass_minutes(1);
    for minute in 0..10_u64 {
        sample.pass_minutes(1);
        (0..6_000).for_each(|number| drop(take(&mut sample, number, Verdict::Duplicate, "c")));
        assert_eq!(sample.halvings, MAX_HALVINGS_FOR_CPU.saturating_sub(u32::try_from(minute).unwrap() + 1));
    }
    assert_eq!(sample.read().conflicts, counted.conflicts);
    assert!(sample.read().compared > counted.compared + 24_000);
}

#[test]
fn large_values_reduce_the_sampling_rate() {
    let mut sample = sample(1_000);
    let value = vec![b'x'; 1 << 20];
    for number in 0..1_000 {
        sample.look(key(number), Verdict::Unseen, value.len(), Content(Box::default()));
    }
    assert!(sample.halvings > 0);
}

#[test]
fn names_are_bounded_and_escaped() {
    let long = compared("{}", &format!("{{\"{}\":1}}", "é".repeat(1_000)), &[]).unwrap();
    assert_eq!(long[0].len(), NAME_BYTES_MAX - 1);
    assert_eq!(compared("{}", "{\"a\\u001b[1m~/\":1}", &[]), Some(vec!["/a\\u{1b}[1m~0~1".to_owned()]));
    // If field names differ in every record, a frequent field is still reported, no matter how late it first appears.
    let mut sample = sample(1_000);
    take(&mut sample, 1, Verdict::Unseen, "{}");
    (0..200).for_each(|field| drop(take(&mut sample, 1, Verdict::Duplicate, &format!("{{\"f{field}\":1}}"))));
    (0..200).for_each(|field| drop(take(&mut sample, 1, Verdict::Duplicate, &format!("{{\"g{field}\":1,\"often\":1}}"))));
    let Conflicts { conflicts, fields, .. } = sample.read();
    assert_eq!((conflicts, fields.len()), (400, NAMES_MAX));
    assert!(fields[0].0 == "/often" && (150..=200).contains(&fields[0].1), "{:?}", fields[0]);
}
