//! What a file of tests says.
//!
//! Owns the names of its fields, which docs/testing.md lists. Must never judge anything.

use crate::record::Timestamp;
use crate::replay::{Format, parse_rfc3339};
use data_encoding::BASE64;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The time of a test's first record, unless it says another: noon of the first day of 2026, in UTC.
pub const BEGIN: Timestamp = 1_767_268_800_000;

/// A file of tests.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestFile {
    /// In the order in which they are run; none knows of another.
    pub tests: Vec<Test>,
}

/// A test: records in, and what is to become of them. It has `records`, or a `file` of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Test {
    /// What it promises.
    pub name: String,
    /// The input topic of its records; may be left out if there is just one.
    pub topic: Option<String>,
    /// How many partitions each topic has; their filters share its capacity.
    #[serde(default = "one")]
    pub partitions: u32,
    /// When its records are read; what is too far ahead of that moves no window. Each at its own time, if nothing is said.
    pub read_at: Option<String>,
    /// What comes in, in order.
    #[serde(default)]
    pub records: Vec<TestRecord>,
    /// A recorded stream in place of `records`.
    pub file: Option<Recording>,
    /// With `file`: how many of its records get which verdict.
    pub expect: Option<Totals>,
}

const fn one() -> u32 {
    1
}

/// A recorded stream, as `unseen replay` takes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// Where it is, seen from the file of tests.
    pub path: PathBuf,
    /// What a line is.
    #[serde(default)]
    pub format: Format,
    /// For ndjson, JSON pointer to a record's time; or `none`, if the records are to have none.
    pub time: Option<String>,
}

impl Recording {
    /// Whether its records are to have no time.
    pub(super) fn is_untimed(&self) -> bool {
        self.time.as_deref() == Some("none")
    }
}

/// How many records of a stream get which verdict. What is left out is not looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// All of them.
    pub records: Option<u64>,
    /// Emitted for the first time.
    pub unseen: Option<u64>,
    /// Seen within the window.
    pub duplicate: Option<u64>,
    /// Older than the window, emitted or not.
    pub late: Option<u64>,
    /// Without a key.
    pub invalid: Option<u64>,
    /// Those that took their key back.
    pub retracted: Option<u64>,
    /// Without a value to take a key from.
    pub tombstone: Option<u64>,
    /// Dropped though their key was not seen: the filter's errors, by an exact window beside it.
    pub false_positive: Option<u64>,
}

/// A record that comes in, and what is to become of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestRecord {
    /// Another input topic than the test's.
    pub topic: Option<String>,
    /// Its partition.
    #[serde(default)]
    pub partition: i32,
    /// Its time: RFC 3339, milliseconds since the epoch, a time after the record before such as `+5m`, or `none`. That of the
    /// record before, if nothing is said.
    pub at: Option<Value>,
    /// Its key: a text, or anything else as JSON. Null if it is left out.
    pub key: Option<Value>,
    /// The same in base64.
    pub key_base64: Option<String>,
    /// Its value, in the same way.
    pub value: Option<Value>,
    /// The same in base64.
    pub value_base64: Option<String>,
    /// Its headers.
    #[serde(default)]
    pub headers: BTreeMap<String, Option<String>>,
    /// What is to become of it. Nothing is looked at, if it is left out.
    pub expect: Option<Expect>,
}

/// What is to become of a record.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a verdict, or a table of verdict, reason, output and headers")]
pub enum Expect {
    /// Its verdict.
    Verdict(String),
    /// More than that.
    Outcome(Outcome),
}

/// What becomes of a record. What is left out is not looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// `unseen`, `duplicate`, `late`, `invalid`, `retracted` or `tombstone`.
    pub verdict: Option<String>,
    /// Why a record is invalid, as metrics name it.
    pub reason: Option<String>,
    /// The topic that it is written to; `none` if to none, `fails` if the worker stops at it.
    pub output: Option<String>,
    /// Headers that it has there. Others it may have, too; null is one that it must not have.
    #[serde(default)]
    pub headers: BTreeMap<String, Option<String>>,
}

/// What `output` says of a record that the worker stops at.
pub const FAILS: &str = "fails";
/// What `output` says of a record that is written nowhere.
pub const NOWHERE: &str = "none";
/// The verdicts, as a test names them.
pub const VERDICTS: [&str; 6] = ["unseen", "duplicate", "late", "invalid", "retracted", "tombstone"];

impl TestFile {
    /// Reads what a file says: TOML or YAML as JSON.
    ///
    /// # Errors
    /// A sentence with the place of the fault.
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
            ([], None, _) => return Err("records: expected records, or a file of them".to_owned()),
            ([_, ..], Some(_), _) => return Err("file: expected records or a file, got both".to_owned()),
            ([], Some(_), expect) if expect.as_ref().is_none_or(|totals| *totals == Totals::default()) => {
                return Err("expect: expected what is to become of the records, such as { unseen = 10 }".to_owned());
            }
            ([_, ..], None, Some(_)) => return Err("expect: goes with a file; each of the records has its own".to_owned()),
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
                return Err(fault(format!("partition: expected 0 to {}, got {}", self.partitions - 1, record.partition)));
            }
            if let Some(verdict) = record.expected().verdict.filter(|verdict| !VERDICTS.contains(&verdict.as_str())) {
                return Err(fault(format!("expect: expected one of {}, got {verdict:?}", VERDICTS.join(", "))));
            }
        }
        if self.file.is_none() && self.records.iter().all(|record| record.expected() == Outcome::default()) {
            return Err("records: expected what is to become of at least one of them, such as expect = \"unseen\"".to_owned());
        }
        Ok(())
    }
}

impl TestRecord {
    /// What is to become of it.
    #[must_use]
    pub fn expected(&self) -> Outcome {
        match &self.expect {
            None => Outcome::default(),
            Some(Expect::Verdict(verdict)) => Outcome { verdict: Some(verdict.clone()), ..Outcome::default() },
            Some(Expect::Outcome(outcome)) => outcome.clone(),
        }
    }

    /// Its time, if it has any; `before` is the last that a record had.
    ///
    /// # Errors
    /// A sentence, if it is none.
    pub fn time(&self, before: Option<Timestamp>) -> Result<Option<Timestamp>, String> {
        let fault = |got: &dyn std::fmt::Display| {
            format!(
                "at: expected a time in RFC 3339, milliseconds since the epoch, a time after the record before such as \"+5m\", or \"none\", got {got}"
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

    /// Its key.
    ///
    /// # Errors
    /// A sentence, if it cannot be read.
    pub fn key_bytes(&self) -> Result<Option<Vec<u8>>, String> {
        bytes("key", self.key.as_ref(), self.key_base64.as_deref())
    }

    /// Its value.
    ///
    /// # Errors
    /// A sentence, if it cannot be read.
    pub fn value_bytes(&self) -> Result<Option<Vec<u8>>, String> {
        bytes("value", self.value.as_ref(), self.value_base64.as_deref())
    }
}

/// A text as it is, and anything else as JSON.
fn bytes(name: &str, value: Option<&Value>, base64: Option<&str>) -> Result<Option<Vec<u8>>, String> {
    match (value, base64) {
        (Some(_), Some(_)) => Err(format!("{name}_base64: expected {name} or {name}_base64, got both")),
        (None | Some(Value::Null), None) => Ok(None),
        (Some(Value::String(text)), None) => Ok(Some(text.clone().into_bytes())),
        (Some(value), None) => Ok(Some(value.to_string().into_bytes())),
        (None, Some(text)) => {
            BASE64.decode(text.as_bytes()).map(Some).map_err(|error| format!("{name}_base64: expected base64, got something else: {error}"))
        }
    }
}
