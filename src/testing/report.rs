//! Reports of tests, as text, JSON, and `JUnit` XML.
//!
//! The `JUnit` format has no specification. Jenkins and GitLab read `testsuites`, a `testsuite` per file, a `testcase` per test,
//! `failure` for tests that failed, and `error` for tests that could not run.

use super::{Difference, Report};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Formats the reports of a file as text: a line per test, followed by its differences.
#[must_use]
pub fn text(file: &str, reports: &[Report]) -> String {
    let mut text = format!("{file}\n");
    for report in reports {
        let word = if report.passed() { "ok    " } else { "FAILED" };
        let _ = writeln!(text, "  {word}  {} ({} records)", report.name, report.records);
        differences(report, "          ", &mut text);
    }
    text
}

fn differences(report: &Report, indent: &str, text: &mut String) {
    if let Some(error) = &report.error {
        let _ = writeln!(text, "{indent}{error}");
    }
    let mut last = None;
    for difference in &report.differences {
        let place = difference.record.map_or_else(|| "all records".to_owned(), |record| format!("record {record}"));
        if last.as_ref() != Some(&place) {
            let _ = writeln!(text, "{indent}{place}");
        }
        last = Some(place);
        let why = difference.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        let _ = writeln!(text, "{indent}  - {}: {}", difference.what, difference.expected);
        let _ = writeln!(text, "{indent}  + {}: {}{why}", difference.what, difference.got);
    }
    if report.left_out > 0 {
        let _ = writeln!(text, "{indent}more differences: {}", report.left_out);
    }
}

#[must_use]
pub fn json(files: &[(String, Vec<Report>)]) -> Value {
    let (count, failed) = totals(files);
    let files = files.iter().map(|(file, reports)| json!({ "file": file, "tests": reports.iter().map(test).collect::<Vec<_>>() }));
    json!({ "ok": count > 0 && failed == 0, "tests": count, "failed": failed, "files": files.collect::<Vec<_>>() })
}

fn test(report: &Report) -> Value {
    let Report { name, records, differences, left_out, error } = report;
    let difference = |Difference { record, what, expected, got, why }: &Difference| json!({ "record": record, "what": what, "expected": expected, "got": got, "why": why });
    let differences: Vec<_> = differences.iter().map(difference).collect();
    json!({ "name": name, "passed": report.passed(), "records": records, "differences": differences, "left_out": left_out, "error": error })
}

/// Returns the number of tests and the number of tests that did not pass.
#[must_use]
pub fn totals(files: &[(String, Vec<Report>)]) -> (usize, usize) {
    let reports = || files.iter().flat_map(|(_, reports)| reports);
    (reports().count(), reports().filter(|report| !report.passed()).count())
}

#[must_use]
pub fn junit(files: &[(String, Vec<Report>)]) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for (file, reports) in files {
        let errors = reports.iter().filter(|report| report.error.is_some()).count();
        let failures = reports.iter().filter(|report| !report.passed()).count() - errors;
        let file = escape(file);
        let _ = writeln!(xml, "  <testsuite name=\"{file}\" tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\">", reports.len());
        for report in reports {
            let name = escape(&report.name);
            if report.passed() {
                let _ = writeln!(xml, "    <testcase classname=\"{file}\" name=\"{name}\"/>");
                continue;
            }
            let mut text = String::new();
            differences(report, "", &mut text);
            let count = report.differences.len() as u64 + report.left_out;
            let (element, message) = match &report.error {
                Some(error) => ("error", escape(error)),
                None => ("failure", format!("differences: {count}")),
            };
            let _ = writeln!(xml, "    <testcase classname=\"{file}\" name=\"{name}\">");
            let _ = writeln!(xml, "      <{element} message=\"{message}\">{}</{element}>", escape(&text));
            let _ = writeln!(xml, "    </testcase>");
        }
        xml.push_str("  </testsuite>\n");
    }
    xml.push_str("</testsuites>\n");
    xml
}

/// Escapes a text for XML 1.0. Replaces control characters with U+FFFD, because XML 1.0 does not allow most of them.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
