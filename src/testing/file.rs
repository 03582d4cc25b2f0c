//! The format of a test file.
//!
//! Defines the names of the fields, which docs/how-to/test.md lists. This module never evaluates a record.

use crate::record::Timestamp;
use crate::replay::{Format, parse_rfc3339};
use data_encoding::BASE64;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The default time of a test's first record: noon of the first day of 2026, in UTC.
pub const BEGIN: Timestamp = 1_767_268_800_000;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestFile {
    /// The tests, in execution order. The tests are independent of each other.
    pub tests: Vec<Test>,
}

/// A test: input records and their expected outcomes. A test has either `records`, or a `file` with records.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Test {
    pub name: String,
    /// The input topic of the records. Optional if each record names its topic, or if the configuration has only one input topic and no
    /// pattern.
    pub topic: Option<String>,
    /// The number of partitions of each topic. The filters of a topic's partitions share the topic's capacity.
    #[serde(default = "one")]
    pub partitions: u32,
    /// The time when the records are read. Records whose times exceed this time by more than `max_future` do not move the window. By
    /// default, each record is read at its own time.
    pub read_at: Option<String>,
    #[serde(default)]
    pub records: Vec<TestRecord>,
    pub file: Option<Recording>,
    /// The expected number of records per verdict, for a test with a `file`.
    pub expect: Option<Totals>,
}

const fn one() -> u32 {
    1
}

/// A recorded stream, in a format that `unseen replay` reads.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// The path, relative to the test file.
    pub path: PathBuf,
    #[serde(default)]
    pub format: Format,
    /// For ndjson, the JSON Pointer to a record's time. In any format, `none` if the records may have no times.
    pub time: Option<String>,
}

impl Recording {
    pub(super) fn is_untimed(&self) -> bool {
        self.time.as_deref() == Some("none")
    }
}

/// The expected number of records per verdict. Missing fields are not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    pub records: Option<u64>,
    pub unseen: Option<u64>,
    pub duplicate: Option<u64>,
    /// Records older than the window, whether they were emitted or not.
    pub late: Option<u64>,
    pub invalid: Option<u64>,
    pub retracted: Option<u64>,
    /// Records without a value, although the key needs the value.
    pub tombstone: Option<u64>,
    /// Records that no entry's `when` selects.
    pub passed: Option<u64>,
    /// False positives of the filter: records that were reported as duplicates although an exact window did not contain their key.
    pub false_positive: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestRecord {
    /// The input topic, if it differs from the test's topic.
    pub topic: Option<String>,
    #[serde(default)]
    pub partition: i32,
    /// The time of the record: RFC 3339, milliseconds since the epoch, a time relative to the previous record such as `+5m`, or `none`. By
    /// default, the time of the previous record. A record without a time does not count as the previous record.
    pub at: Option<Value>,
    /// The key of the record: a string, or any other value as JSON. Null by default.
    pub key: Option<Value>,
    pub key_base64: Option<String>,
    /// The value of the record, in the same form as `key`.
    pub value: Option<Value>,
    pub value_base64: Option<String>,
    #[serde(default)]
    pub headers: BTreeMap<String, Option<String>>,
    /// The expected outcome. By default, nothing is checked.
    pub expect: Option<Expect>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a verdict, or a table of verdict, reason, output and headers")]
pub enum Expect {
    Verdict(String),
    Outcome(Outcome),
}

/// The outcome of a record. Missing fields are not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// `unseen`, `duplicate`, `late`, `invalid`, `retracted`, `tombstone`, or `passed`.
    pub verdict: Option<String>,
    /// The reason for an invalid record, as named in metrics.
    pub reason: Option<String>,
    /// The topic that the record is written to, `none` if the record is not written, or `fails` if the record stops the worker.
    pub output: Option<String>,
    /// Headers of the written record, which may also have other headers. Null means that the header must not exist.
    #[serde(default)]
    pub headers: BTreeMap<String, Option<String>>,
}

/// The value of `output` for a record that stops the worker.
pub const FAILS: &str = "fails";
/// The value of `output` for a record that is not written.
pub const NOWHERE: &str = "none";
pub const VERDICTS: [&str; 7] = ["unseen", "duplicate", "late", "invalid", "retracted", "tombstone", "passed"];

impl TestFile {
    /// Parses a test file. `tree` is the TOML or YAML of the file, converted to JSON.
    ///
    /// # Errors
    /// Returns a message with the location of the error.
    pub fn new(tree: &Value) -> Result<Self, String> {
        let file: Self = serde_path_to_error::deserialize(tree).map_err(|error| {
            let path = error.path().to_string();
            format!("{path}: {}", error.into_inner())
        })?;
        if file.tests.is_empty() {
            return Err("tests: expected at least one test, [[tests]]".to_owned());
        }
        for (index, test) in file.tests.iter().enumerate() {
            test.check().map_err(|message| format!("tests[{index}].{message}"))?;
        }
        Ok(file)
    }
}

impl Test {
    fn check(&self) -> Result<(), String> {
        match (&self.records[..], &self.file, &self.expect) {
            ([], None, _) => return Err("records: required, unless `file` has the records".to_owned()),
            ([_, ..], Some(_), _) => return Err("file: expected `records` or `file`, got both".to_owned()),
            ([], Some(_), expect) if expect.as_ref().is_none_or(|totals| *totals == Totals::default()) => {
                return Err("expect: expected the number of records per verdict, such as { unseen = 10 }".to_owned());
            }
            ([_, ..], None, Some(_)) => return Err("expect: only valid with `file`; set `expect` in each record instead".to_owned()),
            _ => {}
        }
        if !(1..=100_000).contains(&self.partitions) {
            return Err(format!("partitions: expected 1 to 100000, got {}", self.partitions));
        }
        if let Some(text) = &self.read_at {
            parse_rfc3339(text).ok_or_else(|| format!("read_at: expected a time in RFC 3339, got {text:?}"))?;
        }
        let mut time = Some(BEGIN);
        for (index, record) in self.records.iter().enumerate() {
            let fault = |message: String| format!("records[{index}].{message}");
            time = record.time(time).map_err(fault)?.or(time);
            record.key_bytes().and(record.value_bytes()).map_err(fault)?;
            if !(0..i64::from(self.partitions)).contains(&i64::from(record.partition)) {
                return Err(fault(format!(
                    "partition: expected 0 to {}, got {}; for more partitions, set `partitions` of the test",
                    self.partitions - 1,
                    record.partition
                )));
            }
            if let Some(verdict) = record.expected().verdict.filter(|verdict| !VERDICTS.contains(&verdict.as_str())) {
                return Err(fault(format!("expect: expected one of {}, got {verdict:?}", VERDICTS.join(", "))));
            }
        }
        if self.file.is_none() && self.records.iter().all(|record| record.expected() == Outcome::default()) {
            return Err("records: expected at least one record with an expected outcome, such as expect = \"unseen\"".to_owned());
        }
        Ok(())
    }
}

impl TestRecord {
    #[must_use]
    pub fn expected(&self) -> Outcome {
        match &self.expect {
            None => Outcome::default(),
            Some(Expect::Verdict(verdict)) => Outcome { verdict: Some(verdict.clone()), ..Outcome::default() },
            Some(Expect::Outcome(outcome)) => outcome.clone(),
        }
    }

    /// Returns the record's time, if any. `before` is the time of the previous record with a time.
    ///
    /// # Errors
    /// Returns a message if the time is invalid.
    pub fn time(&self, before: Option<Timestamp>) -> Result<Option<Timestamp>, String> {
        let fault = |got: &dyn std::fmt::Display| {
            format!(
                "at: expected a time in RFC 3339, milliseconds since the epoch, a time relative to the previous record such as \"+5m\", or \"none\", got {got}"
            )
        };
        match &self.at {
            None => Ok(before),
            Some(Value::String(text)) if text == "none" => Ok(None),
            Some(Value::String(text)) => {
                let later = text.strip_prefix('+').map(|text| humantime::parse_duration(text.trim()).unwrap_or(Duration::MAX));
                let time = match later {
                    Some(later) => i64::try_from(later.as_millis()).ok().and_then(|later| before?.checked_add(later)),
                    None => parse_rfc3339(text).or_else(|| text.parse().ok()).filter(|&time| time >= 0),
                };
                time.map(Some).ok_or_else(|| fault(text))
            }
            Some(value) => value.as_i64().filter(|&time| time >= 0).map(Some).ok_or_else(|| fault(value)),
        }
    }

    /// Returns the record's key.
    ///
    /// # Errors
    /// Returns a message if the key is invalid.
    pub fn key_bytes(&self) -> Result<Option<Vec<u8>>, String> {
        bytes("key", self.key.as_ref(), self.key_base64.as_deref())
    }

    /// Returns the record's value.
    ///
    /// # Errors
    /// Returns a message if the value is invalid.
    pub fn value_bytes(&self) -> Result<Option<Vec<u8>>, String> {
        bytes("value", self.value.as_ref(), self.value_base64.as_deref())
    }
}

/// Returns the bytes of a key or value: a text unchanged, base64 decoded, and any other value as JSON.
fn bytes(name: &str, value: Option<&Value>, base64: Option<&str>) -> Result<Option<Vec<u8>>, String> {
    match (value, base64) {
        (Some(_), Some(_)) => Err(format!("{name}_base64: expected {name} or {name}_base64, got both")),
        (None | Some(Value::Null), None) => Ok(None),
        (Some(Value::String(text)), None) => Ok(Some(text.clone().into_bytes())),
        (Some(value), None) => Ok(Some(value.to_string().into_bytes())),
        (None, Some(text)) => {
            BASE64.decode(text.as_bytes()).map(Some).map_err(|error| format!("{name}_base64: the text is not base64: {error}"))
        }
    }
}
