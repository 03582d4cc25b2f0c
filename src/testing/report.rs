//! What is said of tests that ran: to a person, and to a machine.
//!
//! Owns both forms. That of `JUnit` has no specification; this is what Jenkins and GitLab read: `testsuites`, a `testsuite` for each
//! file, a `testcase` for each test, `failure` in those that failed, `error` in those that could not be run.

use super::Report;
use std::fmt::Write as _;

/// The reports of a file as text: a line for each test, and its differences below.
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
        let _ = writeln!(text, "{indent}and {} differences more", report.left_out);
    }
}

/// The reports of files as XML, as `JUnit` writes it.
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
                None => ("failure", format!("{count} differences")),
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

/// A text within XML 1.0, which has no place for most control characters.
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
