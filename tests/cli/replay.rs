//! The command `replay`: its reports, its warnings, and the times of records.

use super::{ID, Setup, unseen};
use serde_json::{Value, json};
use std::fs;
use std::time::{Duration, SystemTime};

#[test]
fn replay_reports_key_conflicts() {
    let setup = Setup::new("", ID);
    let input = setup.path("input");
    fs::write(&input, "{\"id\":1,\"version\":1}\n{\"id\":1,\"version\":2}\n{\"id\":1,\"version\":1}\n").unwrap();
    let name = input.to_string_lossy();
    let (code, _, summary) = setup.run(&["replay", &name]);
    let line = "50 % of the duplicates of field `/id` differ in /version (2 compared). Check whether the key lacks a field. If the key is complete, set key_conflicts = { except = [\"/version\"] } to ignore the difference.";
    assert!(code == Some(0) && summary.contains(line), "{summary}");
    let except = "topics[0].key_conflicts={ except = [\"/version\"] }";
    let (code, _, said) = setup.run(&["replay", "--set", except, &name]);
    assert!(code == Some(0) && !said.contains("the key lacks a field"), "{said}");
}

#[test]
fn replay_prints_the_counts_as_json() {
    let setup = Setup::new("", &format!("{ID}\ncount_by = {{ field = \"/by\" }}"));
    let input = setup.path("input");
    fs::write(&input, "{\"id\":1,\"by\":\"a\"}\n{\"id\":1,\"by\":\"b\"}\n{}\n{\"id\":2}\n").unwrap();
    let on_invalid = "topics[0].on_invalid=drop";
    let (code, out, error) = setup.run(&["replay", "--json", "--truth", "--set", on_invalid, &input.to_string_lossy()]);
    assert_eq!((code, &*error), (Some(0), ""), "{out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let verdicts = json!({ "unseen": 2, "duplicate": 1, "late": 0, "invalid": 1, "retracted": 0, "tombstone": 0, "passed": 0 });
    assert_eq!((&report["records"], &report["verdicts"]), (&json!(4), &verdicts), "{report}");
    assert_eq!(report["invalid"], json!({ "missing_key": 1 }), "{report}");
    assert_eq!(report["truth"], json!({ "unseen": 2, "false_positives": 0, "false_negatives": 0, "rate": 0.0 }), "{report}");
    let counted = &report["values"][0];
    assert_eq!(
        (&counted["value"], &counted["duplicates"]),
        (&json!(null), &json!(1)),
        "values are named only once they are frequent: {report}"
    );
    assert_eq!((&report["key_conflicts"]["compared"], &report["warnings"]), (&json!(1), &json!([])), "{report}");
    let documented = unseen(&["replay", "--help"]);
    let missing = report.as_object().unwrap().keys().find(|name| !documented.contains(name.as_str()));
    assert_eq!(missing, None, "`replay --help` documents every field");
}

fn kcat(id: u32, ts: u128) -> String {
    format!(
        "{{\"topic\":\"in\",\"partition\":0,\"offset\":0,\"tstype\":\"create\",\"ts\":{ts},\"key\":null,\"payload\":\"{{\\\"id\\\":{id}}}\"}}\n"
    )
}

#[test]
fn replay_of_a_capture_without_its_format_is_reported() {
    let setup = Setup::new("", ID);
    let input = setup.path("input");
    fs::write(&input, kcat(1, 1) + &kcat(2, 2)).unwrap();
    let name = input.to_string_lossy();
    for on_invalid in ["fail", "drop"] {
        let (code, out, error) = setup.run(&["replay", "--set", &format!("topics[0].on_invalid={on_invalid}"), &name]);
        assert!(
            code == Some(1)
                && out.is_empty()
                && error.contains("the lines look like the output of `unseen capture` or `kcat -J`; use --format capture"),
            "{error}"
        );
    }
    fs::write(&input, "{}\n{}\n").unwrap();
    let (code, _, error) = setup.run(&["replay", "--set", "topics[0].on_invalid=drop", &name]);
    assert!(code == Some(1) && error.contains("no record has a key") && !error.contains("capture"), "{error}");
    fs::write(&input, "{}\n{\"id\":1}\n").unwrap();
    assert_eq!(setup.run(&["replay", "--set", "topics[0].on_invalid=drop", &name]).0, Some(0));
}

#[test]
fn replay_warns_about_times_that_do_not_move_the_window() {
    let setup = Setup::new("", ID);
    let input = setup.path("input");
    let name = input.to_string_lossy();
    let minute = |id: u32| 1_767_268_800_000 + u128::from(id) * 60_000;
    let warning = |scale: fn(u128) -> u128, args: &[&str]| {
        fs::write(&input, (0..20).map(|id| kcat(id % 2, scale(minute(id)))).collect::<String>()).unwrap();
        let (code, _, said) = setup.run(&[&["replay", "--format", "kcat", &name], args].concat());
        assert_eq!(code, Some(0), "{said}");
        said.lines().find_map(|line| line.strip_prefix("warning: ")).unwrap_or_default().to_owned()
    };
    let micros = warning(|ms| ms * 1000, &[]);
    assert!(micros.starts_with("20 of the last 20 records are more than 5m ahead of the time when they were read"), "{micros}");
    assert!(
        micros.ends_with("times such as 1767269940000000 look like microseconds: make the producers write milliseconds since 1970, or, if the option `time` is set, correct its unit"),
        "{micros}"
    );
    let seconds = warning(|ms| ms / 1000, &["-q"]);
    assert!(seconds.starts_with("record times such as 1767269940 look like seconds"), "{seconds}");
    let slow = warning(|ms| ms, &["--read-at", "2026-01-01T11:00:00Z"]);
    assert!(slow.contains("the last one was 1h 19m ahead"), "{slow}");
    assert_eq!(warning(|ms| ms, &["--read-at", "2026-01-01T13:00:00Z"]), "");
}

#[test]
fn replay_describes_all_entries_of_an_input() {
    let setup = Setup::new("", "when = { field = \"/type\", equals = \"order\" }\nkey = { field = \"/id\" }\nlate = \"drop\"");
    let second = "[[topics]]\ninput = \"in\"\noutput = \"out\"\nspace = \"rest\"\nwindow = \"1h\"\nfilter = { kind = \"exact\" }\nkey = { field = \"/no\" }\nlate = \"drop\"\n";
    let text = fs::read_to_string(setup.path("unseen.toml")).unwrap();
    let input = setup.path("in.ndjson");
    let lines =
        "{\"type\":\"order\",\"id\":1,\"t\":9000000000}\n{\"no\":1,\"t\":9000000000}\n{\"no\":1,\"t\":9000000000}\n{\"no\":2,\"t\":9}\n";
    fs::write(&input, lines).unwrap();
    let replayed = |text: &str| {
        fs::write(setup.path("unseen.toml"), text).unwrap();
        let (code, _, summary) = setup.run(&["replay", "--truth", "--time", "/t", input.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{summary}");
        summary
    };
    let summary = replayed(&(text.clone() + second));
    assert!(summary.contains("late        1, dropped\n") && summary.contains("duplicates  1\n"), "{summary}");
    // The two entries now handle late records and duplicates differently, so the summary does not show where these records go.
    let summary = replayed(&(text.clone() + &second.replace("late = \"drop\"", "on_duplicate = { topic = \"again\" }")));
    assert!(!summary.contains(", dropped") && summary.contains("duplicates  1\n"), "{summary}");

    // The record times are now in seconds. Only the second entry gets a warning, because the first entry has a window by count.
    fs::write(&input, lines.replace("9000000000", "1700000000")).unwrap();
    let by_count =
        text.replace("window = \"1h\"", "window = { keys = 100 }").replace("capacity = 1000, confirm = true", "kind = \"exact\"");
    let summary = replayed(&(by_count.replace("late = \"drop\"", "") + second));
    assert!(summary.contains("warning: space \"rest\": record times such as 1700000000 look like seconds"), "{summary}");
}

#[test]
fn replay_of_a_compressed_file_suggests_to_decompress_it() {
    let setup = Setup::new("", ID);
    let input = setup.path("input");
    fs::write(&input, b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\n").unwrap();
    for format in ["ndjson", "kcat"] {
        let (code, _, error) = setup.run(&["replay", "--set", "topics[0].on_invalid=drop", "--format", format, &input.to_string_lossy()]);
        assert!(code == Some(1) && error.contains("the input is compressed with gzip; decompress it first"), "{error}");
    }
}

/// Three lines of a stream: a record, a record two hours ahead of it, and a duplicate of the first record.
fn with_one_ahead(at: Duration) -> String {
    let ms = at.as_millis();
    kcat(1, ms) + &kcat(2, ms + 7_200_000) + &kcat(1, ms)
}

#[test]
fn replay_uses_the_time_of_reading_for_records_from_the_future() {
    let setup = Setup::new("", ID);
    let input = setup.path("input");
    let yesterday = SystemTime::now() - Duration::from_secs(24 * 3600);
    fs::write(&input, with_one_ahead(yesterday.duration_since(SystemTime::UNIX_EPOCH).unwrap())).unwrap();
    let name = input.to_string_lossy();
    let out = |args: &[&str]| {
        let (code, out, error) = setup.run(&[&["replay", "--format", "kcat", &name], args].concat());
        assert_eq!(code, Some(0), "{error}");
        (out.lines().count(), error)
    };
    // The file was written just now, so no record is from the future, and the second record moves the window past the first.
    assert_eq!(out(&[]).0, 3);
    let read_at = humantime::format_rfc3339(yesterday).to_string();
    let (lines, summary) = out(&["--read-at", &read_at]);
    assert!(lines == 2 && summary.contains("future      1: more than 5m ahead of the time when they were read"), "{summary}");
    // By default, the modification time of the file is the time of reading.
    fs::File::options().write(true).open(&input).unwrap().set_modified(yesterday).unwrap();
    let (lines, summary) = out(&[]);
    assert!(lines == 2 && summary.contains("set that time with --read-at"), "{summary}");
}
