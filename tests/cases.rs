//! Promise: cases that users reported for comparable tools work here or fail with a helpful message.
//!
//! `tests/data/cases` has the records of each case. Each row of `CASES` is a configuration that does what the reports ask for.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use unseen::config::{self, Config};
use unseen::format::{NoSchemas, Schemas};
use unseen::replay::{Format, Options, Replay};
use unseen::stats::RecentTimes;
use unseen::testing::{self, TestFile};

/// The name of each case and the options of its topic.
const CASES: [(&str, &str); 12] = [
    ("03-optional-part", "key = [{ field = \"/tenant\" }, { field = \"/id\" }, { field = \"/sub\", optional = true }]"),
    ("05-header-case", "key = { header = \"X-Shopify-Event-Id\", ignore_case = true }"),
    (
        "15-nested-json",
        "key = [{ field = \"/Message\", then = \"/Records/0/s3/object/key\" }, { field = \"/Message\", then = \"/Records/0/s3/object/sequencer\" }]",
    ),
    ("20-consecutive", "key = { field = \"/device\" }\nemit = \"on_change\""),
    ("26-time", "key = { record = \"key\" }\ntime = { field = \"/ts\" }\nlate = \"dead_letter\""),
    ("28-urls", "key = { field = \"/url\", normalize = [\"url\"] }"),
    ("29-trim-case", "key = { field = \"/email\", normalize = [\"trim\", \"lowercase\"] }"),
    ("32-double-encoded", "key = { field = \"\", then = \"/id\" }"),
    ("35-delete-reinsert", "key = { record = \"key\" }\nretract = { header = \"__op\", one_of = [\"d\"] }"),
    ("44-fallback", "key = { first_of = [{ field = \"/event_id\" }, { content = \"value\" }] }"),
    ("encoded-values", "key = { field = \"/id\" }\nvalue_encoding = [\"base64\", \"gzip\"]"),
    (
        "mixed-envelopes",
        "key = { first_of = [{ field = \"/body\", then = [\"/Message\", \"/id\"] }, { field = \"/body\" }], normalize = [\"to_string\"] }",
    ),
];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cases").join(name)
}

fn load(options: &str) -> Result<Config, config::Errors> {
    let text = format!(
        "[kafka]\nbootstrap_servers = \"localhost:9092\"\n[[topics]]\ninput = \"cases-in\"\noutput = \"cases-out\"\nwindow = \"1h\"\nfilter = {{ kind = \"exact\" }}\non_invalid = {{ topic = \"cases-dead\" }}\n{options}\n"
    );
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("unseen.toml");
    fs::write(&file, text).expect("a file");
    Config::load(&file, &[])
}

fn failures(name: &str, options: &str) -> Option<String> {
    let config = load(options).unwrap_or_else(|errors| panic!("{name}: {errors}"));
    let tree = config::document(&data(&format!("{name}.test.toml"))).expect("a file of tests");
    let tests = TestFile::new(&tree).unwrap_or_else(|message| panic!("{name}: {message}")).tests;
    assert!(!tests.is_empty(), "{name} has tests");
    let schemas: Arc<dyn Schemas> = Arc::new(NoSchemas);
    let reports: Vec<_> = tests.iter().map(|test| testing::run(&config, test, &schemas, &|_| unreachable!("no test has a file"))).collect();
    let passed = reports.iter().all(testing::Report::passed);
    (!passed).then(|| testing::text(name, &reports))
}

#[test]
fn reported_cases_can_be_expressed() {
    for (name, options) in CASES {
        assert_eq!(failures(name, options), None, "{name}");
    }
}

#[test]
fn every_case_with_records_is_run() {
    let mut files: Vec<_> = fs::read_dir(data("")).expect("the cases").map(|entry| entry.expect("an entry").file_name()).collect();
    files.retain(|name| name.to_string_lossy().ends_with(".test.toml"));
    files.sort();
    assert_eq!(files, CASES.map(|(name, _)| std::ffi::OsString::from(format!("{name}.test.toml"))));
}

/// Covers the configurations that the reporters tried first.
#[test]
fn first_attempts_fail_with_a_message_that_shows_the_fix() {
    for (name, options, message) in [
        ("05-header-case", "key = { header = \"X-Shopify-Event-Id\" }", "but it has header `x-shopify-event-id`"),
        (
            "15-nested-json",
            "key = { field = \"/Message/Records/0/s3/object/key\" }",
            "write { field = \"/Message\", then = \"/Records/0/s3/object/key\" }",
        ),
        ("32-double-encoded", "key = { field = \"/id\" }", "which encodes it twice"),
        ("encoded-values", "key = { field = \"/id\" }\nvalue_encoding = \"gzip\"", "the record value is not gzip"),
    ] {
        let report = failures(name, options).unwrap_or_default();
        assert!(report.contains(message), "{name}: {report}");
    }
    let brackets = load("key = { field = \"/data[0]/id\" }").unwrap_err().to_string();
    assert!(brackets.contains("write `/data/0/id`"), "{brackets}");
}

#[test]
fn times_in_microseconds_are_noticed() {
    let config = load("key = { field = \"/id\" }").expect("a configuration");
    let topic = &config.topics[0];
    let options = Options { format: Format::Kcat, time: None, partitions: 1, truth: false };
    let mut replay = Replay::new(topic, &options).expect("a replay");
    let input = fs::read(data("11-micros.kcat")).expect("a capture");
    let read_at = 1_767_268_800_000;
    replay.run(&*input, std::io::sink(), || topic.max_timestamp(read_at)).expect("lines");
    let summary = replay.summary();
    let records = summary.records;
    assert!(records > 0 && summary.future == records, "{summary:?}");
    let times = RecentTimes { records, future: summary.future, future_time: summary.future_time, stream_time: summary.stream_time };
    let warning = times.warning(topic.max_future, "the clock", read_at).expect("a warning");
    assert!(warning.contains("microseconds"), "{warning}");
}
