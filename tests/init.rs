//! Promise: `unseen init` writes a configuration that `unseen check` accepts, from flags or from records, or reports what is missing.

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin_cmd;
use std::fs;
use std::path::Path;

/// `unseen init` for two topics, without this machine's environment variables.
fn init(args: &[&str]) -> Command {
    let mut command = cargo_bin_cmd!("unseen");
    command.env_clear().args(["init", "news.events", "news.unseen"]).args(args);
    command
}

fn printed(command: &mut Command) -> String {
    let output = command.assert().success().get_output().clone();
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn refused(command: &mut Command) -> String {
    let output = command.assert().failure().get_output().clone();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    String::from_utf8(output.stderr).expect("UTF-8")
}

fn check(file: &Path) {
    cargo_bin_cmd!("unseen").env_clear().args(["check", "-c"]).arg(file).assert().success();
}

/// One order per second. Every third order is delivered again after 40 s.
fn orders() -> String {
    let line =
        |order: u64, second: u64| format!("{{\"id\":{order},\"kind\":\"k{}\",\"at\":{}}}\n", order % 3, 1_700_000_000_000 + second * 1000);
    let again = |second: u64| second.checked_sub(40).filter(|order| order.is_multiple_of(3)).map(|order| line(order, second));
    (0..1000).flat_map(|second| std::iter::once(line(second, second)).chain(again(second))).collect()
}

/// The result is config/minimal.toml, the commented file of docs/start/tutorial.md.
#[test]
fn init_writes_the_minimal_configuration() {
    let args = ["--group-id", "news", "--key", "key", "--key", "/news_id", "--dead-letters", "news.dead"];
    assert_eq!(fs::read_to_string("config/minimal.toml").expect("the file"), printed(&mut init(&args)));
}

#[test]
fn flags_become_a_valid_configuration() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("unseen.toml");
    let args = ["--key", "header:x \"y\"", "--window", "2h", "--capacity", "1234567", "-X", "security.protocol=SSL", "-o"];
    init(&args).arg(&file).assert().success();
    check(&file);
    let text = fs::read_to_string(&file).expect("the file");
    for line in [
        "group_id = \"unseen-news.events\"",
        "key = { header = 'x \"y\"' }",
        "window = \"2h\"",
        "filter = { capacity = 1234567, false_positive_rate = 1e-4 }",
        "\"security.protocol\" = \"SSL\"",
        "on_invalid = \"fail\"",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    // An existing file is not overwritten.
    assert!(refused(init(&args).arg(&file)).contains("exists; choose another file with -o"));
}

#[test]
fn sample_becomes_a_configuration_that_deduplicates_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let (sample, file) = (dir.path().join("orders.ndjson"), dir.path().join("unseen.toml"));
    fs::write(&sample, orders()).expect("a file");
    let text = printed(init(&["--ignore", "/at", "--sample"]).arg(&sample));
    assert_eq!(text, printed(init(&["--ignore", "/at", "--sample", "-"]).write_stdin(orders())));
    for line in ["key = { field = \"/id\" }", "window = \"5m\"", "key_conflicts = { except = [\"/at\"] }"] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    fs::write(&file, &text).expect("a file");
    check(&file);
    let mut replay = cargo_bin_cmd!("unseen");
    let replay = replay.env_clear().args(["replay", "--truth", "--time", "/at", "-c"]).arg(&file).arg(&sample).assert().success();
    assert_eq!(String::from_utf8_lossy(&replay.get_output().stdout).lines().count(), 1000);
    // A flag takes precedence over the proposal from the sample.
    assert!(printed(init(&["--ignore", "/at", "--window", "1h", "--capacity", "2M", "--sample"]).arg(&sample)).contains("window = \"1h\""));
}

#[test]
fn errors_name_the_missing_flag() {
    let message = refused(init(&["--sample", "-"]).write_stdin("{\"id\":1}\n{\"id\":2}\n"));
    assert!(message.starts_with("error: no key fits the records; set one with --key\n"), "{message}");
    let message = refused(init(&["--sample", "-"]).write_stdin("{\"id\":1,\"x\":2}\n{\"id\":1,\"x\":2}\n"));
    assert!(message.starts_with("error: the records have no times to propose a window from; set --window"), "{message}");
    let message = refused(&mut init(&["--key", "id"]));
    assert!(message.contains("expected a JSON pointer such as /order/id, `key`, or `header:NAME`"), "{message}");
    let message = refused(&mut init(&["--key", "/id", "--dead-letters", "news.events"]));
    assert!(message.starts_with("error: the flags do not make a valid configuration: topics[0]"), "{message}");
    let message = refused(&mut init(&["--key", "/id", "--window", "0s"]));
    assert!(message.contains("window"), "{message}");
}

#[test]
fn secrets_are_not_written_to_the_file() {
    let error = refused(&mut init(&["--key", "key", "-X", "sasl.password=hunter2"]));
    assert!(error.contains("-X sasl.password: a secret would be readable in the file; write 'sasl.password=${VARIABLE}'"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
    let text = printed(init(&["--key", "key", "-X", "sasl.password=${PASSWORD}"]).env("PASSWORD", "hunter2"));
    assert!(text.contains("\"sasl.password\" = \"${PASSWORD}\"") && !text.contains("hunter2"), "{text}");
}

#[test]
fn records_without_the_proposed_key_need_a_topic() {
    let sample = orders().replacen("{\"id\":1,", "{", 1);
    let error = refused(init(&["--ignore", "/at", "--sample", "-"]).write_stdin(sample.clone()));
    assert!(error.contains("1 of 1320 records do not have this key and would stop the worker"), "{error}");
    let text = printed(init(&["--ignore", "/at", "--dead-letters", "news.dead", "--sample", "-"]).write_stdin(sample));
    assert!(text.contains("# - 1 of 1320 records do not have this key, so on_invalid decides what happens to them."), "{text}");
}
