use super::*;
use crate::format::NoSchemas;
use serde_json::{Value, json};

const CONFIG: &str = r#"
[kafka]
bootstrap_servers = "localhost:9092"

[[topics]]
input = "news"
output = "news-unseen"
space = "news"
key = { field = "/id" }
window = "1h"
late = "dead_letter"
on_invalid = { topic = "news-invalid" }
on_duplicate = "mark"
filter = { kind = "cuckoo", capacity = 1000, slices = 4 }
retract = { header = "gone" }

[[topics]]
input = "wire"
output = "news-unseen"
space = "news"
key = { record = "key" }
window = "1h"
late = "dead_letter"
on_invalid = { topic = "news-invalid" }
filter = { kind = "cuckoo", capacity = 1000, slices = 4 }
"#;

fn no_files(path: &Path) -> io::Result<Box<dyn BufRead>> {
    panic!("unexpected read of {}", path.display())
}

fn report(config: &Config, test: &Value) -> Report {
    let file = TestFile::new(&json!({ "tests": [test] })).unwrap();
    let schemas: Arc<dyn Schemas> = Arc::new(NoSchemas);
    run(config, &file.tests[0], &schemas, &no_files)
}

#[test]
fn expected_outcomes_pass() {
    let test = json!({ "name": "all verdicts", "topic": "news", "records": [
        { "value": { "id": "a" }, "expect": { "verdict": "unseen", "output": "news-unseen", "headers": { "unseen-verdict": "unseen" } } },
        { "value": { "id": "a" }, "expect": { "verdict": "duplicate", "output": "news-unseen", "headers": { "unseen-verdict": "duplicate", "no": null } } },
        // The key has already been seen in the topic `news`, which has the same space.
        { "topic": "wire", "key": "a", "value": "x", "expect": { "verdict": "duplicate", "output": "none" } },
        { "value": { "id": "a" }, "headers": { "gone": "" }, "expect": { "verdict": "retracted", "output": "none" } },
        { "value": { "id": "a" }, "at": "+1m", "expect": "unseen" },
        { "value": { "no": 1 }, "expect": { "verdict": "invalid", "reason": "missing_key", "output": "news-invalid",
            "headers": { "__connect.errors.topic": "news", "__connect.errors.offset": "4", "unseen-verdict": null } } },
        { "value": { "id": 2 }, "at": "2026-01-01T10:00:00Z", "expect": { "verdict": "late", "output": "news-invalid" } },
        { "value": { "id": "a" }, "at": "2026-01-01T14:00:00Z", "expect": "unseen" },
    ]});
    let report = report(&Config::of_text(CONFIG), &test);
    assert_eq!(report.differences, []);
    assert_eq!(report.records, 8);
}

#[test]
fn differences_are_shown_and_explained() {
    let test = json!({ "name": "wrong", "topic": "news", "records": [
        { "value": { "id": 1 }, "expect": "duplicate" },
        { "value": { "id": 1 }, "expect": { "verdict": "unseen", "output": "none", "headers": { "unseen-verdict": "unseen", "x": "y" } } },
    ]});
    let report = report(&Config::of_text(CONFIG), &test);
    assert!(!report.passed());
    let shown = text("news.test.toml", std::slice::from_ref(&report));
    assert_eq!(
        shown,
        "news.test.toml\n  FAILED  wrong (2 records)\n          record 1\n            - verdict: duplicate\n            + verdict: unseen\n\
         \x20         record 2\n            - verdict: unseen\n            + verdict: duplicate: it repeats record 1\n\
         \x20           - output: none\n            + output: news-unseen\n\
         \x20           - header unseen-verdict: \"unseen\"\n            + header unseen-verdict: \"duplicate\"\n\
         \x20           - header x: \"y\"\n            + header x: no such header\n"
    );
    let xml = junit(&[("a&b".to_owned(), vec![report])]);
    assert!(xml.contains(r#"<testsuite name="a&amp;b" tests="1" failures="1" errors="0">"#), "{xml}");
    assert!(xml.contains("&quot;unseen&quot;"), "{xml}");
}

#[test]
fn a_changed_window_or_key_fails() {
    let test = json!({ "name": "an hour", "topic": "news", "records": [
        { "value": { "id": 1, "version": 1 }, "expect": "unseen" },
        { "value": { "id": 1, "version": 2 }, "at": "+59m", "expect": "duplicate" },
        { "value": { "id": 1, "version": 2 }, "at": "+17m", "expect": "unseen" },
    ]});
    assert!(report(&Config::of_text(CONFIG), &test).passed());
    for (from, to) in [("window = \"1h\"", "window = \"2h\""), ("window = \"1h\"", "window = \"30m\""), ("/id", "/version")] {
        let changed = Config::of_text(&CONFIG.replace(from, to));
        assert!(!report(&changed, &test).passed(), "{to}");
    }
}

#[test]
fn a_file_of_records_is_replayed_and_counted() {
    let config = Config::of_text(&CONFIG.replace("retract = { header = \"gone\" }", ""));
    let lines = "{\"id\":1}\n{\"id\":2}\n{\"id\":1}\n{}\n";
    let open = |path: &Path| -> io::Result<Box<dyn BufRead>> {
        assert_eq!(path, Path::new("news.ndjson"));
        Ok(Box::new(lines.as_bytes()))
    };
    let expect = |expect: Value| {
        let test = json!({ "name": "n", "topic": "news", "file": { "path": "news.ndjson", "time": "none" }, "expect": expect });
        let file = TestFile::new(&json!({ "tests": [test] })).unwrap();
        let schemas: Arc<dyn Schemas> = Arc::new(NoSchemas);
        run(&config, &file.tests[0], &schemas, &open)
    };
    assert!(expect(json!({ "records": 4, "unseen": 2, "duplicate": 1, "invalid": 1, "false_positive": 0 })).passed());
    let failed = expect(json!({ "unseen": 3 }));
    assert_eq!((failed.differences.len(), &*failed.differences[0].got), (1, "2"));
}

#[test]
fn invalid_tests_are_reported_with_their_location() {
    let refused = |test: Value| TestFile::new(&json!({ "tests": [test] })).unwrap_err();
    for (test, place) in [
        (json!({ "name": "n" }), "tests[0].records: "),
        (json!({ "name": "n", "record": [] }), "tests[0].record: unknown field"),
        (json!({ "name": "n", "records": [{ "expect": "new" }] }), "tests[0].records[0].expect: expected one of unseen, "),
        (json!({ "name": "n", "records": [{ "at": "soon" }] }), "tests[0].records[0].at: "),
        (json!({ "name": "n", "records": [{ "at": "none" }, { "at": "+1s" }, { "at": "+a" }] }), "tests[0].records[2].at: "),
        (json!({ "name": "n", "records": [{ "at": -1 }] }), "tests[0].records[0].at: "),
        (json!({ "name": "n", "records": [{ "key": "a", "key_base64": "YQ==" }] }), "tests[0].records[0].key_base64: "),
        (json!({ "name": "n", "records": [{ "partition": 1 }] }), "tests[0].records[0].partition: expected 0 to 0"),
        (json!({ "name": "n", "records": [{}], "file": { "path": "a" } }), "tests[0].file: "),
        (json!({ "name": "n", "file": { "path": "a" } }), "tests[0].expect: "),
        (json!({ "name": "n", "file": { "path": "a" }, "expect": {} }), "tests[0].expect: "),
        (json!({ "name": "n", "read_at": "noon", "records": [{}] }), "tests[0].read_at: "),
        (json!({ "name": "n", "partitions": 0, "records": [{}] }), "tests[0].partitions: "),
        (
            json!({ "name": "n", "records": [{}, { "expect": {} }] }),
            "tests[0].records: expected at least one record with an expected outcome",
        ),
    ] {
        let message = refused(test);
        assert!(message.starts_with(place), "{message} begins with {place}");
    }
    let file = TestFile::new(&json!({ "tests": [{ "name": "n", "records": [{ "value": 1, "expect": "unseen" }] }] })).unwrap();
    let schemas: Arc<dyn Schemas> = Arc::new(NoSchemas);
    let report = run(&Config::of_text(CONFIG), &file.tests[0], &schemas, &no_files);
    assert_eq!(report.error.as_deref(), Some("records[0].topic: the configuration has several topics; choose one: news, wire"));
    assert!(!report.passed() && text("f", std::slice::from_ref(&report)).contains("FAILED  n (0 records)\n          records[0].topic: "));
    let xml = junit(&[("f".to_owned(), vec![report])]);
    assert!(xml.contains("failures=\"0\" errors=\"1\"") && xml.contains("<error message=\"records[0].topic: "), "{xml}");
}

/// A test could pass with a wrong configuration if its recording has no records, and with a wrong window if the records have no times.
#[test]
fn a_stream_that_cannot_fail_is_an_error() {
    let config = Config::of_text(&CONFIG.replace("retract = { header = \"gone\" }", ""));
    let said = |config: &Config, lines: &str, file: Value| {
        let open = |_: &Path| -> io::Result<Box<dyn BufRead>> { Ok(Box::new(io::Cursor::new(lines.to_owned().into_bytes()))) };
        let test = json!({ "name": "n", "topic": "news", "file": file, "expect": { "invalid": 0 } });
        let tests = TestFile::new(&json!({ "tests": [test] })).unwrap();
        let schemas: Arc<dyn Schemas> = Arc::new(NoSchemas);
        run(config, &tests.tests[0], &schemas, &open).error.unwrap_or_default()
    };
    let values = |time: &str| json!({ "path": "a", "time": time });
    assert_eq!(said(&config, "\n", values("none")), "file: a has no records");
    assert_eq!(said(&config, "{\"id\":1,\"t\":5}", values("/t")), "");
    assert_eq!(said(&config, "{\"id\":1,\"t\":5}", values("none")), "");
    for (lines, file) in [("{\"id\":1,\"t\":5}", values("/time")), ("{\"id\":1}", json!({ "path": "a" }))] {
        assert!(said(&config, lines, file).starts_with("file: no record of a has a time, so no key expires;"));
    }
    // A window by count does not need times.
    let by_count = CONFIG.replace("window = \"1h\"", "window = { keys = 100 }").replace("capacity = 1000, ", "");
    let by_count = Config::of_text(&by_count.replace("retract = { header = \"gone\" }", "").replace("late = \"dead_letter\"", ""));
    assert_eq!(said(&by_count, "{\"id\":1}", json!({ "path": "a" })), "");

    let line = |topic: &str| format!("{{\"topic\":\"{topic}\",\"partition\":0,\"ts\":5,\"key\":null,\"payload\":\"{{\\\"id\\\":1}}\"}}\n");
    let capture = || json!({ "path": "a", "format": "capture" });
    assert_eq!(said(&config, &line("news"), capture()), "");
    let other = said(&config, &(line("news") + &line("wire")), capture());
    assert!(other.contains("line 2") && other.contains("the record is from topic \"wire\", not from \"news\""), "{other}");
}

/// A worker that stops at a record never reaches the next record.
#[test]
fn records_after_a_fatal_record_are_an_error() {
    let config = Config::of_text(&CONFIG.replace("on_invalid = { topic = \"news-invalid\" }", "").replace("late = \"dead_letter\"", ""));
    let fails = json!({ "value": {}, "expect": { "verdict": "invalid", "output": "fails" } });
    assert!(report(&config, &json!({ "name": "n", "topic": "news", "records": [fails] })).passed());
    let report =
        report(&config, &json!({ "name": "n", "topic": "news", "records": [fails, { "value": { "id": 1 }, "expect": "unseen" }] }));
    assert!(report.error.unwrap().starts_with("records[1].expect: the worker stopped at record 1"));
}

#[test]
fn records_are_repartitioned_by_key() {
    let config = Config::of_text(
        &CONFIG.replace("space = \"news\"", "space = \"news\"\nrepartition = true").replace("retract = { header = \"gone\" }", ""),
    );
    let record = |partition: i32, expect: Value| json!({ "partition": partition, "value": { "id": "a" }, "expect": expect });
    let headers = json!({ "unseen-topic": "unseen-news-repartition", "unseen-offset": "1", "unseen-space": "news" });
    let again = json!({ "verdict": "duplicate", "headers": headers });
    let test = json!({ "name": "n", "topic": "news", "partitions": 8, "records": [record(0, json!("unseen")), record(5, again)] });
    assert_eq!(report(&config, &test).differences, []);
}

#[test]
fn a_recorded_stream_is_repartitioned_by_key() {
    let config = Config::of_text(
        &CONFIG.replace("space = \"news\"", "space = \"news\"\nrepartition = true").replace("retract = { header = \"gone\" }", ""),
    );
    let line = |partition: i32| format!("{{\"partition\":{partition},\"key\":null,\"payload\":\"{{\\\"id\\\":1}}\"}}\n");
    let lines = line(0) + &line(5);
    let open = |_: &Path| -> io::Result<Box<dyn BufRead>> { Ok(Box::new(io::Cursor::new(lines.clone().into_bytes()))) };
    let file = json!({ "path": "news.jsonl", "format": "capture", "time": "none" });
    let test = json!({ "name": "n", "topic": "news", "partitions": 8, "file": file, "expect": { "unseen": 1, "duplicate": 1 } });
    let tests = TestFile::new(&json!({ "tests": [test] })).unwrap();
    let schemas: Arc<dyn Schemas> = Arc::new(NoSchemas);
    let report = run(&config, &tests.tests[0], &schemas, &open);
    assert!(report.passed(), "{report:?}");
}

fn has_verdicts(options: &str, records: &Value) {
    let text = format!(
        "[kafka]\nbootstrap_servers = \"localhost:9092\"\n[[topics]]\ninput = \"in\"\noutput = \"out\"\nwindow = \"1h\"\nfilter = {{ kind = \"exact\" }}\non_invalid = \"drop\"\n{options}"
    );
    let report = report(&Config::of_text(&text), &json!({ "name": options, "records": records }));
    assert_eq!(report.differences, [], "{options}");
}

#[test]
fn null_and_missing_optional_fields_are_the_same_key() {
    has_verdicts(
        "key = [{ field = \"/tenant\" }, { field = \"/id\" }, { field = \"/sub\", optional = true }]",
        &json!([
            { "value": { "tenant": "t", "id": 1, "sub": null }, "expect": "unseen" },
            { "value": { "tenant": "t", "id": 1 }, "expect": "duplicate" },
            { "value": { "tenant": "t", "id": 1, "sub": "s" }, "expect": "unseen" },
            { "value": { "tenant": "t", "sub": "s" }, "expect": "invalid" },
        ]),
    );
}

#[test]
fn header_names_match_in_any_case_with_ignore_case() {
    has_verdicts(
        "key = { header = \"X-Shopify-Event-Id\", ignore_case = true }",
        &json!([
            { "value": "x", "headers": { "X-Shopify-Event-Id": "e-1" }, "expect": "unseen" },
            { "value": "x", "headers": { "x-shopify-event-id": "e-1" }, "expect": "duplicate" },
            { "value": "x", "headers": { "x-shopify-event-id": "E-1" }, "expect": "unseen" },
        ]),
    );
}

#[test]
fn normalized_urls_are_the_same_key() {
    has_verdicts(
        "key = { field = \"/url\", normalize = [\"url\", { drop_query = [\"utm_*\"] }] }",
        &json!([
            { "value": { "url": "http://example.org/a?x=1&y=2" }, "expect": "unseen" },
            { "value": { "url": "http://example.org/a?y=2&x=1" }, "expect": "duplicate" },
            { "value": { "url": "http://EXAMPLE.org/a?x=1&y=2" }, "expect": "duplicate" },
            { "value": { "url": "http://example.org:80/a?x=1&y=2#top" }, "expect": "duplicate" },
            { "value": { "url": "http://example.org/a?x=1&y=2&utm_source=mail" }, "expect": "duplicate" },
            { "value": { "url": "https://example.org/a?x=1&y=2" }, "expect": "unseen" },
        ]),
    );
}

#[test]
fn normalized_email_addresses_are_the_same_key() {
    has_verdicts(
        "key = { field = \"/email\", normalize = [\"lowercase\", \"trim\"] }",
        &json!([
            { "value": { "email": "a.user@example.org" }, "expect": "unseen" },
            { "value": { "email": "A.User@example.org" }, "expect": "duplicate" },
            { "value": { "email": " a.user@example.org" }, "expect": "duplicate" },
            { "value": { "email": "a. user@example.org" }, "expect": "unseen" },
        ]),
    );
}

#[test]
fn first_of_falls_back_to_the_content() {
    has_verdicts(
        "key = { first_of = [{ field = \"/event_id\" }, { content = \"value\" }] }",
        &json!([
            { "value": { "event_id": "e", "attempt": 1 }, "expect": "unseen" },
            { "value": { "event_id": "e", "attempt": 2 }, "expect": "duplicate" },
            { "value": { "text": "no id" }, "expect": "unseen" },
            { "value": { "text": "no id" }, "expect": "duplicate" },
            { "value": { "text": "no id", "event_id": null }, "expect": "unseen" },
        ]),
    );
}

#[test]
fn a_row_that_is_deleted_and_inserted_again_is_emitted_again() {
    has_verdicts(
        "key = { record = \"key\" }\nretract = { header = \"__op\", one_of = [\"d\"] }",
        &json!([
            { "key": "7", "value": { "name": "a" }, "headers": { "__op": "c" }, "expect": "unseen" },
            { "key": "7", "value": { "name": "a" }, "headers": { "__op": "c" }, "expect": "duplicate" },
            { "key": "7", "headers": { "__op": "d" }, "expect": "retracted" },
            { "key": "7", "value": { "name": "b" }, "headers": { "__op": "c" }, "expect": "unseen" },
        ]),
    );
    has_verdicts(
        "key = { first_of = [{ field = \"/after/id\" }, { field = \"/before/id\" }] }\nretract = { field = \"/op\", one_of = [\"d\"] }",
        &json!([
            { "value": { "op": "c", "after": { "id": 7 }, "before": null }, "expect": "unseen" },
            { "value": { "op": "u", "after": { "id": 7 }, "before": { "id": 7 } }, "expect": "duplicate" },
            { "value": { "op": "d", "after": null, "before": { "id": 7 } }, "expect": "retracted" },
            { "value": { "op": "c", "after": { "id": 7 }, "before": null }, "expect": "unseen" },
            { "value": null, "expect": "tombstone" },
        ]),
    );
    // A record without a value, or with a value that `one_of` does not list, retracts nothing.
    has_verdicts(
        "key = { record = \"key\" }\nretract = { field = \"/deleted\", one_of = [true, 1] }",
        &json!([
            { "key": "7", "value": { "deleted": false }, "expect": "unseen" },
            { "key": "7", "expect": "duplicate" },
            { "key": "7", "value": { "deleted": true }, "expect": "retracted" },
            { "key": "7", "value": {}, "expect": "unseen" },
            { "key": "7", "value": { "deleted": 1 }, "expect": "retracted" },
            { "key": "7", "value": "{", "expect": "invalid" },
        ]),
    );
}

#[test]
fn only_selected_records_are_deduplicated() {
    has_verdicts(
        "key = { field = \"/id\" }\nwhen = [{ field = \"/type\", one_of = [\"order\", 7] }, { header = \"test\", exists = false }]",
        &json!([
            { "value": { "type": "order", "id": 1 }, "expect": { "verdict": "unseen", "output": "out" } },
            { "value": { "type": "view", "id": 1 }, "expect": { "verdict": "passed", "output": "out", "headers": {} } },
            { "value": { "type": 7, "id": 1 }, "expect": "duplicate" },
            { "value": { "type": "7", "id": 2 }, "expect": "unseen" },
            { "value": { "type": "order", "id": 1 }, "headers": { "test": null }, "expect": "passed" },
            { "value": { "type": "view", "id": 1 }, "expect": "passed" },
            { "value": { "id": 3 }, "expect": "passed" },
            { "value": { "type": "order" }, "expect": "invalid" },
            { "value": "{", "expect": "invalid" },
            // A null value has no fields, so `when` does not select the record.
            { "value": null, "expect": "passed" },
        ]),
    );
    has_verdicts(
        "key = { field = \"/id\" }\non_tombstone = \"drop\"\nwhen = { not = { field = \"/type\", equals = \"view\" } }",
        &json!([
            { "value": { "type": "view" }, "expect": "passed" },
            { "value": { "id": 1 }, "expect": "unseen" },
            { "value": null, "expect": { "verdict": "tombstone", "output": "none" } },
        ]),
    );
    // Only a selected record retracts its key, and every written record has its verdict in a header.
    has_verdicts(
        "key = { record = \"key\" }\nrepartition = true\non_duplicate = \"mark\"\nwhen = { header = \"type\", equals = \"a\" }\nretract = { header = \"gone\" }",
        &json!([
            { "key": "1", "headers": { "type": "a" }, "expect": "unseen" },
            { "key": "1", "headers": { "type": "b", "gone": "" }, "expect": { "verdict": "passed", "headers": {
                "type": "b", "gone": "", "unseen-verdict": "passed", "unseen-space": "in", "unseen-filter": "exact",
                "unseen-topic": "in", "unseen-partition": "0", "unseen-offset": "1",
            } } },
            { "key": "1", "headers": { "type": "a" }, "expect": "duplicate" },
            { "key": "1", "headers": { "type": "a", "gone": "" }, "expect": "retracted" },
            { "key": "1", "headers": { "type": "a" }, "expect": "unseen" },
        ]),
    );
}

#[test]
fn late_and_future_records_are_judged_by_the_time_of_their_event() {
    let time = |ts: Value, id: &str, expect: &str| json!({ "key": id, "value": { "ts": ts }, "expect": expect });
    has_verdicts(
        "key = { record = \"key\" }\nlate = \"drop\"\ntime = { field = \"/ts\" }",
        &json!([
            time(json!("2026-01-01T12:00:00Z"), "a", "unseen"),
            time(json!(1_767_270_600), "b", "unseen"),
            time(json!(1_767_270_600_000_i64), "a", "duplicate"),
            // An hour and a half after its first record, key `a` has left the window.
            time(json!(1_767_274_200_000_000_i64), "c", "unseen"),
            time(json!("2026-01-01T14:30:00+01:00"), "a", "unseen"),
            time(json!("2026-01-01T12:00:00Z"), "d", "late"),
            time(json!("2026-01-01T12:00:00"), "d", "invalid"),
            time(json!(null), "d", "invalid"),
            json!({ "key": "d", "expect": "invalid" }),
        ]),
    );
    // Kafka's timestamp matters only if the record has no valid event time.
    has_verdicts(
        "key = { record = \"key\" }\ntime = { header = \"at\", unit = \"ms\", optional = true }",
        &json!([
            { "key": "a", "headers": { "at": "1767268800000" }, "expect": "unseen" },
            { "at": "+1d", "key": "a", "headers": { "at": "1767268800000" }, "expect": "duplicate" },
            { "key": "a", "headers": { "at": "now" }, "expect": "unseen" },
        ]),
    );
    // By default, each record is read at its own time. With `read_at`, `b` is from the future and does not move the window.
    let text = "[kafka]\nbootstrap_servers = \"a\"\n[[topics]]\ninput = \"in\"\noutput = \"out\"\nwindow = \"1h\"\nfilter = { kind = \"exact\" }\nkey = { record = \"key\" }\ntime = { field = \"/ts\" }";
    for (read_at, last) in [(json!(null), "unseen"), (json!("2026-01-01T12:00:00Z"), "duplicate")] {
        let records = json!([
            time(json!("2026-01-01T12:00:00Z"), "a", "unseen"),
            time(json!("2027-01-01T12:00:00Z"), "b", "unseen"),
            time(json!("2026-01-01T12:00:00Z"), "a", last),
        ]);
        let report = report(&Config::of_text(text), &json!({ "name": "future", "read_at": read_at, "records": records }));
        assert_eq!((report.differences, report.error), (Vec::new(), None));
    }
}

const ENTRIES: &str = r#"
[kafka]
bootstrap_servers = "localhost:9092"

[[topics]]
input = "news"
output = "orders"
space = "orders"
when = { field = "/type", equals = "order" }
key = { field = "/id" }
window = "1h"
on_invalid = { topic = "invalid-orders" }
filter = { kind = "exact" }

[[topics]]
input = "news"
output = "others"
when = { field = "/type", equals = "view" }
key = { field = "/user" }
window = "1m"
on_invalid = "drop"
filter = { kind = "exact" }
"#;

#[test]
fn a_record_belongs_to_the_first_entry_that_selects_it() {
    let config = Config::of_text(ENTRIES);
    let test = json!({ "name": "entries", "records": [
        { "value": { "type": "order", "id": 1, "user": 1 }, "expect": { "verdict": "unseen", "output": "orders" } },
        { "value": { "type": "view", "id": 1, "user": 1 }, "expect": { "verdict": "unseen", "output": "others" } },
        { "value": { "type": "order", "id": 1, "user": 2 }, "expect": { "verdict": "duplicate", "output": "none" } },
        { "value": { "type": "view", "id": 2, "user": 1 }, "expect": "duplicate" },
        // No entry selects this record, so the last entry passes it through.
        { "value": { "type": "x", "id": 1 }, "expect": { "verdict": "passed", "output": "others" } },
        { "value": { "type": "order", "user": 1 }, "expect": { "verdict": "invalid", "output": "invalid-orders" } },
        { "value": { "type": "view", "id": 1 }, "expect": { "verdict": "invalid", "output": "none" } },
        // The first entry cannot read the type, so the record is invalid.
        { "value": "not JSON", "expect": { "verdict": "invalid", "output": "invalid-orders" } },
        { "at": "+10m", "value": { "type": "view", "id": 1, "user": 1 }, "expect": "unseen" },
        { "value": { "type": "order", "id": 1, "user": 1 }, "expect": "duplicate" },
    ] });
    let report = report(&config, &test);
    assert!(report.passed(), "{}", text("entries", &[report]));
}

#[test]
fn a_file_is_replayed_by_all_entries_of_its_input() {
    let lines: String = ["order 1 1", "view 1 1", "order 1 2", "view 2 1", "x 1 1", "view 3 2", "order 2 2"]
        .into_iter()
        .map(|line| {
            let mut words = line.split(' ');
            let mut next = || words.next().unwrap();
            json!({ "type": next(), "id": next(), "user": next() }).to_string() + "\n"
        })
        .collect();
    let test = json!({ "name": "file", "file": { "path": "x", "time": "none" }, "expect": {
        "records": 7, "unseen": 4, "duplicate": 2, "passed": 1, "false_positive": 0 } });
    let file = TestFile::new(&json!({ "tests": [test] })).unwrap();
    let schemas: Arc<dyn Schemas> = Arc::new(NoSchemas);
    let open = |_: &Path| -> io::Result<Box<dyn BufRead>> { Ok(Box::new(io::Cursor::new(lines.clone().into_bytes()))) };
    let report = run(&Config::of_text(ENTRIES), &file.tests[0], &schemas, &open);
    assert!(report.passed(), "{}", text("file", &[report]));
}

#[test]
fn a_file_without_times_is_an_error_if_any_entry_has_a_window_by_time() {
    let entry = |options: &str| {
        format!("[[topics]]\ninput = \"in\"\noutput = \"out\"\nkey = {{ field = \"/id\" }}\nfilter = {{ kind = \"exact\" }}\n{options}\n")
    };
    let first = entry("window = { keys = 10 }\nwhen = { field = \"/type\", equals = \"order\" }");
    let config =
        Config::of_text(&format!("[kafka]\nbootstrap_servers = \"localhost:9092\"\n{first}{}", entry("space = \"rest\"\nwindow = \"1h\"")));
    let error = |lines: &str| {
        let test = json!({ "name": "file", "file": { "path": "x" }, "expect": { "duplicate": 0 } });
        let file = TestFile::new(&json!({ "tests": [test] })).unwrap();
        let schemas: Arc<dyn Schemas> = Arc::new(NoSchemas);
        let open = |_: &Path| -> io::Result<Box<dyn BufRead>> { Ok(Box::new(io::Cursor::new(lines.to_owned().into_bytes()))) };
        run(&config, &file.tests[0], &schemas, &open).error
    };
    let order = "{\"type\":\"order\",\"id\":1}\n";
    assert_eq!(error(order), None, "a window by count needs no times");
    let why = error(&format!("{order}{{\"id\":1}}\n")).unwrap();
    assert!(why.starts_with("file: no record of x in the space \"rest\" has a time, so no key expires;"), "{why}");
}
