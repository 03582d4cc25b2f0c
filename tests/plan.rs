//! `unseen plan` as a command: output, counts, and exit codes.

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin_cmd;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;

/// All kinds of filters, in the order of the output of `unseen plan`.
const KINDS: [&str; 7] = ["aging", "unchained", "pair", "stable", "cuckoo", "exact", "bloom"];

fn plan(args: &[&str]) -> Command {
    let mut command = cargo_bin_cmd!("unseen");
    command.env_clear().arg("plan").args(args);
    command
}

/// Returns the output of a command that succeeds without warnings.
fn printed(command: &mut Command) -> String {
    let output = command.assert().success().code(0).get_output().clone();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn parsed(command: &mut Command) -> Value {
    serde_json::from_str(&printed(command)).expect("one JSON object")
}

fn refused(command: &mut Command, code: i32) -> String {
    let output = command.assert().failure().code(code).get_output().clone();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    String::from_utf8(output.stderr).expect("UTF-8")
}

fn fields(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn a_table_of_all_kinds_is_printed() {
    let text = printed(&mut plan(&["--keys", "10M"]));
    let heading = "10M keys per window of 4 slices, 1 partition\nrate: false-positive rate, at most 1e-4 when every slice is full;\n      the mean over a window is not higher\n\nkind ";
    assert!(text.starts_with(heading), "{text}");
    let (costs, rest) = text.split_once("\n\nrate at").expect("the table of errors");
    let named: Vec<_> = costs.lines().skip(5).filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(named, KINDS);
    assert!(rest.contains("\n  filter = { kind = \"aging\", capacity = \"10M\", false_positive_rate = 1e-4, slices = 4 }\n"), "{rest}");
    assert!(text.lines().all(|line| line.chars().count() <= 80 || line.starts_with("  filter = ")), "{text}");
}

#[test]
fn json_has_the_documented_fields() {
    let help = printed(&mut plan(&["--help"]));
    let documented = help.split("JSON output (--json)").nth(1).expect("a section of the long help");
    let words: BTreeSet<_> = documented.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let args = ["--sample", "-", "--memory", "1MiB", "--partitions", "3", "--window", "1h", "--json"];
    let report = parsed(plan(&args).write_stdin("a\nb\na\n"));
    assert_eq!(fields(&report), BTreeSet::from(["ask", "sample", "proposal", "kinds"]));
    assert_eq!(
        report["ask"],
        json!({
            "keys": 2, "false_positive_rate": 1e-4, "partitions": 3, "slices": 4, "window_ms": 3_600_000, "memory_bytes": 1_048_576,
        })
    );
    let kinds = report["kinds"].as_array().expect("an array");
    assert_eq!(kinds.iter().map(|row| row["kind"].as_str().expect("a name")).collect::<Vec<_>>(), KINDS);
    for row in kinds {
        let known = [
            "kind",
            "memory_bytes",
            "partition_bytes",
            "pod_bytes",
            "steady_partition_bytes",
            "disk_bytes",
            "bits_per_key",
            "k",
            "reads",
            "mean_rate",
            "loads",
            "remembers",
            "forgets",
            "can_retract",
            "overfull",
            "fits",
            "rate_within_memory",
            "configuration",
        ];
        assert_eq!(fields(row), BTreeSet::from(known));
        let loads = row["loads"].as_array().expect("an array");
        assert_eq!(loads.iter().map(|point| point["load"].as_f64().expect("a number")).collect::<Vec<_>>(), [1.0, 1.5, 2.0, 4.0]);
        assert_eq!(fields(&loads[0]), BTreeSet::from(["load", "rate", "memory_bytes"]));
        assert!(loads.iter().all(|point| point["rate"].as_f64().is_some_and(|rate| (0.0..=1.0).contains(&rate))), "{row}");
    }
    for value in [&report, &report["ask"], &report["sample"], &kinds[0], &kinds[0]["loads"][0]] {
        let missing: Vec<_> = fields(value).into_iter().filter(|&field| !words.contains(field)).collect();
        assert!(missing.is_empty(), "--help does not document {missing:?}: {documented}");
    }
}

#[test]
fn json_fields_without_a_value_are_null() {
    let report = parsed(&mut plan(&["--rate", "5000/s", "--window", "24h", "--kinds", "aging,bloom", "--json"]));
    assert_eq!((&report["ask"]["keys"], &report["sample"]), (&json!(432_000_000), &Value::Null));
    let kinds = report["kinds"].as_array().expect("an array");
    assert_eq!(kinds.iter().map(|row| row["kind"].as_str().expect("a name")).collect::<Vec<_>>(), ["aging", "unchained", "bloom"]);
    assert!(kinds.iter().all(|row| row["fits"].is_null() && row["rate_within_memory"].is_null()));
}

#[test]
fn a_sample_of_ndjson_is_counted_exactly() {
    // The ids by slices of 25 ms: 1 2 | 1 | 3 4 | and much later 1. One line has no id, and one is not JSON.
    let lines = "{\"id\":1,\"t\":0}\n{\"id\":2,\"t\":5}\n{\"id\":1,\"t\":30}\n{\"no\":1}\nbroken\n{\"id\":3,\"t\":60}\n\
                 {\"id\":4,\"t\":61}\n{\"id\":1,\"t\":900}\n";
    let args = ["--sample", "-", "--key", "/id", "--time", "/t", "--window", "100ms", "--json"];
    let report = parsed(plan(&args).write_stdin(lines));
    let expected = json!({
        "records": 8, "distinct": 4, "relative_error": 0.0, "repeats": 2, "repeat_share": 0.3333, "invalid": 2, "passed": 0, "untimed": 2, "span_ms": 900,
        "window_keys": 4,
    });
    assert_eq!((&report["sample"], &report["ask"]["keys"]), (&expected, &json!(4)));

    let text = printed(plan(&args[..8]).write_stdin(lines));
    assert!(
        text.starts_with(
            "sample: 8 records, 4 distinct keys, 2 duplicates (33.3 %), 2 without a key\n        4 in the busiest window of 100ms\n"
        ),
        "{text}"
    );
}

#[test]
fn a_sample_of_kcat_is_counted_exactly() {
    let line = |key: &str, time: i64| format!("{{\"partition\":0,\"tstype\":\"create\",\"ts\":{time},\"key\":{key},\"payload\":\"x\"}}\n");
    let lines = [line("\"a\"", 10), line("\"b\"", 20), line("\"a\"", 30), line("null", 40)].concat();
    let report = parsed(plan(&["--sample", "-", "--format", "kcat", "--json"]).write_stdin(lines));
    let expected = json!({
        "records": 4, "distinct": 2, "relative_error": 0.0, "repeats": 1, "repeat_share": 0.3333, "invalid": 1, "passed": 0, "untimed": 0, "span_ms": 30,
        "window_keys": null,
    });
    assert_eq!((&report["sample"], &report["ask"]["keys"]), (&expected, &json!(2)));
}

#[test]
fn invalid_usage_is_reported_in_one_line() {
    let unknown = format!("error: --kinds: unknown kind `cuckold`; the kinds are {}\n", KINDS.join(", "));
    for (args, message) in [
        (&["--keys", "10M", "--kinds", "cuckold"][..], &*unknown),
        (&["--rate", "1/h", "--window", "1s"], "error: --rate: expected 1 to 100000000000 keys, got 0 keys in a window\n"),
        (
            &["--sample", "-", "--format", "kcat", "--time", "/t"],
            "error: --time: lines of a capture already have the record time; remove --time\n",
        ),
    ] {
        assert_eq!(refused(&mut plan(args), 2), message);
    }
    // clap adds a hint about --help, so only the first line is checked.
    for (args, message) in [
        (&["--keys", "ten"][..], "expected a whole number such as 5000, \"200k\", or \"10M\", got \"ten\""),
        (&["--keys", "0"], "expected 1 to 100000000000 keys, got 0"),
        (&["--keys", "10M", "--false-positive-rate", "2"], "expected a rate between 0 and 1, such as 1e-4, got \"2\""),
        (&["--keys", "10M", "--window", "0s"], "expected at least a millisecond, got 0s"),
        (&["--keys", "10M", "--slices", "65"], "65 is not in 1..=64"),
        (&["--keys", "10M", "--rate", "1/s", "--window", "1h"], "cannot be used with"),
        (&["--keys", "10M", "--key", "/id"], "cannot be used with"),
        (&["--rate", "1/s"], "required arguments were not provided"),
        (&[], "required arguments were not provided"),
    ] {
        let got = refused(&mut plan(args), 2);
        let first = got.lines().next().unwrap_or_default();
        assert!(first.starts_with("error: ") && first.contains(message), "{args:?}: {got}");
    }
}

#[test]
fn times_in_another_unit_cause_a_warning() {
    let line = |ts: i64| format!("{{\"partition\":0,\"tstype\":\"create\",\"ts\":{ts},\"key\":\"a\",\"payload\":\"x\"}}\n");
    let warned = |time| {
        let output = plan(&["--sample", "-", "--format", "kcat"]).write_stdin(line(time)).assert().success().get_output().clone();
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    for (time, unit) in [(1_767_268_800_000_000, "microseconds"), (1_767_268_800, "seconds")] {
        let warning = warned(time);
        assert!(warning.starts_with(&format!("warning: times such as {time} look like {unit}")), "{warning}");
    }
    assert_eq!(warned(1_767_268_800_000), "");
}

#[test]
fn sample_errors_contain_the_file_name() {
    let good = "{\"partition\":0,\"ts\":1,\"key\":\"a\",\"payload\":\"x\"}\n";
    let args = ["--sample", "-", "--format", "kcat"];
    let message = refused(plan(&args).write_stdin(format!("{good}\n{{}}\n")), 1);
    let start = format!(
        "error: standard input: line 3, at byte {}: expected a record in the format of `unseen capture` or `kcat -J`: ",
        good.len() + 1
    );
    assert!(message.starts_with(&start), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");

    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("sample.kcat");
    fs::write(&path, "no record\n").expect("a file");
    let name = path.to_str().expect("UTF-8");
    let message = refused(&mut plan(&["--sample", name, "--format", "kcat"]), 1);
    assert!(message.starts_with(&format!("error: {name}: line 1, at byte 0: ")), "{message}");

    let message = refused(plan(&["--sample", "-"]).write_stdin("\n"), 1);
    assert_eq!(
        message,
        "error: standard input: the sample has no record to count: it is empty, or its records have no key or are not selected; check the file, --format, the key, and `when`\n"
    );
    let message = refused(&mut plan(&["--sample", "no such file"]), 1);
    assert!(message.starts_with("error: no such file: "), "{message}");
}

#[test]
fn proposal_for_a_sample_is_usable() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("orders.ndjson");
    // Every third order is written again after 40 s.
    let line =
        |order: u64, second: u64| format!("{{\"id\":{order},\"kind\":\"k{}\",\"at\":{}}}\n", order % 3, 1_700_000_000_000 + second * 1000);
    let again = |second: u64| second.checked_sub(40).filter(|order| order.is_multiple_of(3)).map(|order| line(order, second));
    fs::write(&path, (0..1000).flat_map(|second| std::iter::once(line(second, second)).chain(again(second))).collect::<String>())
        .expect("a file");
    let name = path.to_str().expect("a path");
    let report = parsed(&mut plan(&["--sample", name, "--ignore", "/at", "--json"]));
    let section = report["proposal"]["configuration"].as_str().expect("a section");
    assert!(section.contains("key = { field = \"/id\" }\nwindow = \"5m\"\n"), "{section}");
    // The counts and the comparison of filters use the proposed key and window.
    assert_eq!(
        (&report["sample"]["distinct"], &report["sample"]["repeats"], &report["ask"]["window_ms"]),
        (&json!(1000), &json!(320), &json!(300_000))
    );
    let text = printed(&mut plan(&["--sample", name, "--ignore", "/at"]));
    assert!(text.contains(section), "{text}");
    let config = dir.path().join("unseen.toml");
    fs::write(&config, format!("[kafka]\nbootstrap_servers = \"localhost:9092\"\n{}", section.replace("the topic", "orders")))
        .expect("a file");
    let mut replay = cargo_bin_cmd!("unseen");
    let replay = replay.env_clear().args(["replay", "--truth", "--time", "/at", "-c"]).arg(&config).arg(&path).assert().success();
    assert_eq!(String::from_utf8_lossy(&replay.get_output().stdout).lines().count(), 1000);
}
