//! Promise: a state directory can be inspected while its worker runs, and merged with another one. The merged state has seen the keys of
//! both states.

use crate::harness::{News, Setup, Worker, broker, committed_offset, read_committed, topic, unseen, wait_until};
use crate::stream::{LIMIT, PARTITIONS, Stream};
use std::path::Path;
use std::time::Duration;

const COUNT: usize = 20_000;
const DAY: Duration = Duration::from_secs(24 * 3600);

fn inspect(args: &[&Path]) -> (Option<i32>, String, String) {
    unseen([Path::new("inspect")].iter().chain(args))
}

/// Waits until a group has read `count` records of the stream's input, over all partitions.
fn wait_until_read(stream: &Stream, group: &str, count: usize, worker: &mut Worker) {
    wait_until("the records are read", LIMIT, || {
        assert!(worker.runs(), "the worker ended");
        let offsets = (0..).take(PARTITIONS).filter_map(|partition| committed_offset(&stream.broker, group, &stream.input, partition));
        (offsets.sum::<i64>() >= i64::try_from(count).expect("few enough")).then_some(())
    });
}

fn joined(hint: &str, filter: &str) {
    let records = News { count: 2 * COUNT, ..News::default() }.records();
    let output = topic(broker(), &format!("{hint}-out"), 4);
    let stream = Stream::remembered_by(broker(), hint, output, records, DAY, filter);
    // One group reads the first half, and another one the second half.
    stream.begin(COUNT);
    let other_output = topic(broker(), &format!("{hint}-other"), 4);
    let other = Setup::new(broker(), hint).kafka("start = \"latest\"").topic(&stream.input, &other_output, &Stream::lines(DAY, filter));
    let mut worker = other.start("b");
    worker.wait_for_log("partitions assigned", LIMIT);
    stream.produce(COUNT..);
    wait_until_read(&stream, other.group(), 2 * COUNT, &mut worker);

    let dirs = [stream.setup.state_dir("a"), other.state_dir("b")];
    let (code, shown, error) = inspect(&[&dirs[1]]);
    assert_eq!(code, Some(0), "beside a running worker: {error}");
    assert!(shown.contains("news[0]") && shown.contains("4 slices of 6h"), "{shown}");
    worker.drain();

    let target = other.state_dir("c");
    let (code, shown, error) = inspect(&[&dirs[0], &dirs[1], Path::new("--merge"), &target, Path::new("--json")]);
    assert_eq!(code, Some(0), "{error}");
    let inspection: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let partitions = inspection["directories"][0]["partitions"].as_array().expect("a list");
    let offsets = partitions.iter().filter_map(|partition| partition["offsets"][&stream.input].as_i64());
    assert_eq!(offsets.sum::<i64>(), i64::try_from(2 * COUNT).expect("few enough"), "{shown}");
    let (code, _, error) = inspect(&[&dirs[0], Path::new("--merge"), &target]);
    assert!(code == Some(1) && error.contains("already contains state"), "{error}");

    // Produces all records again. The merged state has seen all of them.
    let before = read_committed(broker(), &other_output, PARTITIONS);
    assert!(before.iter().map(Vec::len).sum::<usize>() > 1_000);
    let mut worker = other.start("c");
    stream.produce(..);
    wait_until_read(&stream, other.group(), 4 * COUNT, &mut worker);
    worker.drain();
    assert!(read_committed(broker(), &other_output, PARTITIONS) == before, "a key was emitted that one of the two states had seen");
}

#[test]
fn aging_filters_are_merged() {
    joined("join-aging", "filter = { kind = \"aging\", capacity = \"100k\", false_positive_rate = 1e-9, adapt = false }");
}

#[test]
fn exact_filters_are_merged() {
    joined("join-exact", "filter = { kind = \"exact\" }");
}

#[test]
fn a_directory_without_state_is_reported() {
    let setup = Setup::new("nowhere:1", "no-state");
    let (code, _, error) = inspect(&[setup.dir()]);
    assert!(code == Some(1) && error.contains("the directory contains no state"), "{error}");
}

/// Looks up a key in a state directory. Returns the output of `unseen inspect`: an overview table, then one line with the answer for each
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
