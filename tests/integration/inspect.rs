//! Promise: `unseen inspect` shows a state directory, even while its worker runs, and looks up a key in it.

use crate::harness::{News, Setup, broker, topic, unseen};
use crate::stream::Stream;
use std::path::Path;
use std::time::Duration;

const COUNT: usize = 20_000;
const DAY: Duration = Duration::from_secs(24 * 3600);

fn inspect(args: &[&Path]) -> (Option<i32>, String, String) {
    unseen([Path::new("inspect")].iter().chain(args))
}

fn shown_while_running(hint: &str, filter: &str) {
    let records = News { count: COUNT, ..News::default() }.records();
    let output = topic(broker(), &format!("{hint}-out"), 4);
    let stream = Stream::remembered_by(broker(), hint, output, records, DAY, filter);
    stream.produce(..);
    let mut worker = stream.setup.start("a");
    stream.wait_until_read(COUNT, &mut worker);
    let (code, shown, error) = inspect(&[&stream.setup.state_dir("a")]);
    assert_eq!(code, Some(0), "beside a running worker: {error}");
    assert!(shown.contains("news[0]") && shown.contains("4 slices of 6h"), "{shown}");
    worker.drain();
}

#[test]
fn the_state_of_a_running_worker_is_shown() {
    shown_while_running("inspect-aging", "filter = { kind = \"aging\", capacity = \"100k\", false_positive_rate = 1e-9, adapt = false }");
    shown_while_running("inspect-exact", "filter = { kind = \"exact\" }");
}

#[test]
fn a_directory_without_state_is_reported() {
    let setup = Setup::new("nowhere:1", "no-state");
    let (code, _, error) = inspect(&[setup.dir()]);
    assert!(code == Some(1) && error.contains("the directory contains no state"), "{error}");
}

/// Looks up a key in a state directory. Returns the output of `unseen inspect`: an overview table and one line with the answer for each
/// partition.
fn ask(stream: &Stream, key: [&str; 2]) -> String {
    let (dir, config) = (stream.setup.state_dir("a"), stream.setup.write_config("a"));
    let [user, news] = key.map(Path::new);
    let args = [&*dir, Path::new("-c"), &config, Path::new("--key"), user, Path::new("--key"), news];
    let (code, shown, error) = inspect(&args);
    assert_eq!(code, Some(0), "{error}");
    shown
}

fn answers_for(hint: &str, filter: &str, since: &str) {
    let records = News { count: COUNT, ..News::default() }.records();
    let output = topic(broker(), &format!("{hint}-out"), 4);
    let stream = Stream::remembered_by(broker(), hint, output, records, DAY, filter);
    stream.begin(COUNT);
    let value: serde_json::Value = serde_json::from_slice(stream.records[7].value.as_ref().expect("a value")).expect("JSON");
    let [user, news] = ["user_id", "news_id"].map(|field| value[field].to_string());
    let shown = ask(&stream, [&user, &news]);
    let seen: Vec<_> = shown.lines().filter(|line| line.contains(since)).collect();
    assert_eq!(seen.len(), 1, "one partition has seen it:\n{shown}");
    assert_eq!(shown.lines().filter(|line| line.contains("unseen: a record with this key would be emitted")).count(), 3, "{shown}");
    let shown = ask(&stream, [&user, "never-written"]);
    assert_eq!(shown.lines().filter(|line| line.contains("unseen: a record with this key would be emitted")).count(), 4, "{shown}");
}

#[test]
fn query_requires_the_configuration_of_the_state() {
    let records = News { count: COUNT, ..News::default() }.records();
    let stream = Stream::of(broker(), "ask-otherwise", records, DAY);
    stream.begin(COUNT);
    let (dir, config) = (stream.setup.state_dir("a"), stream.setup.write_config("a"));
    let text = std::fs::read_to_string(&config).expect("a configuration");
    for (piece, by, difference) in [
        ("/user_id", "/user", "its keys are taken from"),
        ("space = \"news\"", "space = \"news\"\nhash = { siphash = \"00112233445566778899aabbccddeeff\" }", "its keys are hashed by"),
        ("window = \"86400s\"", "window = \"12h\"", "its window is"),
    ] {
        assert!(text.contains(piece), "{text}");
        let other = config.with_file_name("other.toml");
        std::fs::write(&other, text.replace(piece, by)).expect("it can be written");
        let [one, two] = ["1", "2"].map(Path::new);
        let (code, shown, error) = inspect(&[&dir, Path::new("-c"), &other, Path::new("--key"), one, Path::new("--key"), two]);
        assert!(code == Some(1) && shown.is_empty() && error.contains(difference), "{piece}: {error}");
        assert!(
            error.contains("was written with a different configuration")
                && error.contains("use the configuration that it was written with"),
            "{error}"
        );
    }
}

#[test]
fn a_closed_pipe_ends_the_output_quietly() {
    let stream = Stream::of(broker(), "inspect-pipe", News { count: 100, ..News::default() }.records(), DAY);
    stream.begin(100);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_unseen"));
    let ended = command.arg("inspect").arg(stream.setup.state_dir("a")).stdout(writer).stderr(std::process::Stdio::piped()).output();
    let ended = ended.expect("it runs");
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn query_reports_when_the_key_was_seen() {
    // The first records are at midnight, which is the start of their slice.
    let since = "seen in the slice that starts at 2025-01-01T00:00:00Z";
    answers_for("ask-aging", "filter = { kind = \"aging\", capacity = \"100k\", false_positive_rate = 1e-9 }", since);
    answers_for("ask-exact", "filter = { kind = \"exact\" }", since);
}
