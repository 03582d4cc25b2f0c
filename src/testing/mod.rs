//! Tests of a configuration: input records and their expected outcomes.
//!
//! Defines the format of a test, runs tests, and reports the results. This module never decides differently than the worker and never reads
//! a clock. All times come from the test.

mod file;
mod judge;
mod report;

pub use file::{BEGIN, Expect, FAILS, NOWHERE, Outcome, Recording, Test, TestFile, TestRecord, Totals, VERDICTS};
pub use report::{json, junit, text, totals};

use crate::config::{Config, Topic};
use crate::format::Schemas;
use crate::replay::{self, Options, Replay, Summary, parse_rfc3339};
use judge::Judge;
use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::path::Path;
use std::sync::Arc;

/// The maximum number of differences that a test's report contains. Further differences are only counted.
const DIFFERENCES_MAX: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub name: String,
    pub records: u64,
    pub differences: Vec<Difference>,
    /// The number of differences that `differences` does not contain.
    pub left_out: u64,
    /// The error if the test could not run or stopped early.
    pub error: Option<String>,
}

impl Report {
    #[must_use]
    pub fn not_run(name: &str, why: &str) -> Self {
        Self { error: Some(why.to_owned()), ..Self::new(name) }
    }

    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), records: 0, differences: Vec::new(), left_out: 0, error: None }
    }

    #[must_use]
    pub const fn passed(&self) -> bool {
        self.differences.is_empty() && self.error.is_none()
    }

    fn add(&mut self, difference: Difference) {
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(difference);
        } else {
            self.left_out += 1;
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The number of the record, starting at 1, or `None` for the whole test.
    pub record: Option<u64>,
    /// The part of the outcome that differs, such as `verdict` or `header unseen-verdict`.
    pub what: String,
    pub expected: String,
    pub got: String,
    pub why: Option<String>,
}

pub type Open<'o> = &'o dyn Fn(&Path) -> io::Result<Box<dyn BufRead>>;

/// Runs a test. If the test cannot run, the report contains the error, for example an unknown topic or an unreadable file.
#[must_use]
pub fn run(config: &Config, test: &Test, schemas: &Arc<dyn Schemas>, open: Open<'_>) -> Report {
    let mut report = Report::new(&test.name);
    let expanded = expand(config, test);
    let config = match &expanded {
        Ok(config) => config,
        Err(message) => {
            report.error = Some(message.clone());
            return report;
        }
    };
    let ran = match &test.file {
        Some(recording) => replay(config, test, recording, schemas, open, &mut report),
        None => judge(config, test, schemas, &mut report),
    };
    report.error = ran.err();
    report
}

/// Adds a topic to the configuration for each topic name in the test that matches a pattern.
fn expand(config: &Config, test: &Test) -> Result<Config, String> {
    let of_records = test.records.iter().filter_map(|record| record.topic.as_deref());
    let (config, left_out) = config.expand(test.topic.as_deref().into_iter().chain(of_records))?;
    left_out.first().map_or(Ok(config), |left_out| Err(format!("topic: {left_out}")))
}

/// Returns the index of the topic with this name, or of the only topic. If the topic has several rules, returns the index of the first one.
fn topic(config: &Config, name: Option<&str>) -> Result<usize, String> {
    match (name, config.only_input()) {
        (None, _) if !config.patterns.is_empty() => {
            Err(format!("topic: the configuration has a pattern; name a topic: {}", config.inputs()))
        }
        (None, Some(_)) => Ok(0),
        (None, None) => Err(format!("topic: the configuration has several topics; choose one: {}", config.inputs())),
        (Some(name), _) => config.topic(name).map(|id| id.0).map_err(|message| format!("topic: {message}")),
    }
}

fn judge(config: &Config, test: &Test, schemas: &Arc<dyn Schemas>, report: &mut Report) -> Result<(), String> {
    let read_at = test.read_at.as_deref().and_then(parse_rfc3339);
    let mut judge = Judge::new(config, test.partitions, Arc::clone(schemas));
    let (mut last, mut stopped) = (Some(BEGIN), None);
    for (index, record) in test.records.iter().enumerate() {
        let fault = |message: String| format!("records[{index}].{message}");
        let number = index as u64 + 1;
        if let Some(stopped) = stopped {
            return Err(fault(format!(
                "expect: the worker stopped at record {stopped} because on_invalid is \"fail\"; remove all later records"
            )));
        }
        let topic = topic(config, record.topic.as_deref().or(test.topic.as_deref())).map_err(fault)?;
        let time = record.time(last).map_err(fault)?;
        last = time.or(last);
        let actual = judge.record(topic, record, number, time, read_at).map_err(fault)?;
        report.records += 1;
        stopped = (actual.output == Some(FAILS)).then_some(number);
        let mut differ = |what: &str, expected: Option<&str>, got: &str, why: Option<&str>| {
            if let Some(expected) = expected.filter(|&expected| expected != got) {
                let (expected, got, why) = (expected.to_owned(), got.to_owned(), why.map(str::to_owned));
                report.add(Difference { record: Some(number), what: what.to_owned(), expected, got, why });
            }
        };
        let expected = record.expected();
        differ("verdict", expected.verdict.as_deref(), actual.verdict, actual.why.as_deref());
        differ("reason", expected.reason.as_deref(), actual.reason.unwrap_or("none"), None);
        differ("output", expected.output.as_deref(), actual.output.unwrap_or(NOWHERE), None);
        for (name, value) in &expected.headers {
            let got = actual.headers.get(name);
            let show = |value: Option<&Option<String>>| match value {
                None => "no such header".to_owned(),
                Some(None) => "null".to_owned(),
                Some(Some(value)) => format!("{value:?}"),
            };
            // Null means that the header must not exist.
            let expected = show(value.is_some().then_some(value));
            differ(&format!("header {name}"), Some(&expected), &show(got), None);
        }
    }
    Ok(())
}

fn replay(
    config: &Config,
    test: &Test,
    recording: &Recording,
    schemas: &Arc<dyn Schemas>,
    open: Open<'_>,
    report: &mut Report,
) -> Result<(), String> {
    let topic: &Topic = &config.topics[topic(config, test.topic.as_deref())?];
    let expected = test.expect.clone().unwrap_or_default();
    let truth = expected.false_positive.is_some();
    let time = recording.time.clone().filter(|_| !recording.is_untimed());
    let options = Options { format: recording.format, time, partitions: test.partitions, truth };
    let name = recording.path.display();
    // The error of a replay names an option of `unseen replay`. A test has a field with the same meaning instead.
    let fault = |error: replay::Error| format!("file: {name}: {}", with_causes(&error).replace("--partitions", "`partitions` of the test"));
    let rules: Vec<_> = config.rules(&topic.input).map(|(_, topic)| topic).collect();
    let mut replay = Replay::of_rules(&rules, &options).map_err(fault)?.with_schemas(Arc::clone(schemas)).reject_other_topics();
    let input = open(&recording.path).map_err(|error| format!("file.path: cannot read {name}: {error}"))?;
    // Without `read_at`, each record is read at its own time, so no record is from the future.
    let read_at = test.read_at.as_deref().and_then(parse_rfc3339).unwrap_or(i64::MAX);
    replay.run(input, io::sink(), || topic.max_timestamp(read_at)).map_err(fault)?;
    let summary = replay.summary();
    report.records = summary.records;
    if summary.records == 0 {
        return Err(format!("file: {name} has no records"));
    }
    // If no record has a time, no key expires, and the test would pass with any window.
    let is_timed = |rule: &Topic| rule.rules(test.partitions).is_sliced() && rule.window.length_ms().is_some();
    let is_untimed = |(rule, of): &(&Topic, Summary)| is_timed(rule) && of.records > 0 && of.untimed == of.records;
    if let Some((rule, _)) = replay.summaries().into_iter().find(is_untimed).filter(|_| !recording.is_untimed()) {
        let of_rule = if rules.len() > 1 { format!(" in the space {:?}", rule.space) } else { String::new() };
        return Err(format!(
            "file: no record of {name}{of_rule} has a time, so no key expires; if the records have no times, set `time` to \"none\"; otherwise, for ndjson, set `time` to the JSON pointer to the time"
        ));
    }
    for (what, expected, got) in counts(&expected, &summary) {
        if let Some(expected) = expected.filter(|&expected| expected != got) {
            let (expected, got) = (expected.to_string(), got.to_string());
            report.add(Difference { record: None, what: what.to_owned(), expected, got, why: None });
        }
    }
    Ok(())
}

fn counts(expected: &Totals, summary: &Summary) -> [(&'static str, Option<u64>, u64); 9] {
    let wrong = summary.truth.as_ref().map_or(0, |counts| counts.false_positives);
    [
        ("records", expected.records, summary.records),
        ("unseen", expected.unseen, summary.unseen),
        ("duplicate", expected.duplicate, summary.duplicates),
        ("late", expected.late, summary.late),
        ("invalid", expected.invalid, summary.invalid.values().sum()),
        ("retracted", expected.retracted, summary.retracted),
        ("tombstone", expected.tombstone, summary.tombstones),
        ("passed", expected.passed, summary.passed),
        ("false_positive", expected.false_positive, wrong),
    ]
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

struct ActualOutcome<'c> {
    verdict: &'static str,
    reason: Option<&'static str>,
    /// The topic that the record is written to, `FAILS` if the record stops the worker, or `None` if the record is not written.
    output: Option<&'c str>,
    headers: BTreeMap<String, Option<String>>,
    why: Option<String>,
}

#[cfg(test)]
mod tests;
