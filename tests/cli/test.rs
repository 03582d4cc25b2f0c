//! The command `test`: its reports of failed expectations.

use super::{ID, Setup};
use serde_json::{Value, json};
use std::fs;

#[test]
fn test_reports_failed_expectations() {
    let setup = Setup::new("", ID);
    let refused = |setup: &Setup, args: &[&str], sentence: &str| {
        let (code, _, error) = setup.run(args);
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains(sentence), "{error}");
    };
    refused(&setup, &["test"], "there are no tests next to");
    refused(&setup, &["test", "elsewhere.toml"], "elsewhere.toml: the file does not exist");
    let records = |verdict: &str| {
        format!(
            "tests:\n  - name: an hour\n    records:\n      - value: {{ id: 1 }}\n      - {{ at: +59m, value: {{ id: 1 }}, expect: {verdict} }}\n\
             \x20 - name: a file\n    file: {{ path: in.ndjson, time: none }}\n    expect: {{ unseen: 1, duplicate: 1 }}\n"
        )
    };
    fs::write(setup.path("in.ndjson"), "{\"id\":1}\n{\"id\":1}\n").unwrap();
    fs::write(setup.path("unseen.test.yaml"), records("duplicate")).unwrap();
    let (code, said, error) = setup.run(&["test"]);
    assert_eq!(code, Some(0), "{said}{error}");
    assert!(said.ends_with("2 tests passed\n"), "{said}");
    refused(&setup, &["test", "--only", "nothing"], "no test was run: no test name contains `nothing`");

    fs::write(setup.path("unseen.test.yaml"), records("unseen")).unwrap();
    let report = setup.path("report.xml");
    let (code, said, error) = setup.run(&["test", "--junit", report.to_str().unwrap()]);
    assert_eq!(code, Some(1), "{said}{error}");
    assert!(said.contains("- verdict: unseen\n            + verdict: duplicate: it repeats record 1"), "{said}");
    assert!(error.contains("1 of 2 tests failed"), "{error}");
    assert!(fs::read_to_string(&report).unwrap().contains("failures=\"1\""));
    let (code, out, error) = setup.run(&["test", "--json"]);
    assert!(code == Some(1) && error.contains("1 of 2 tests failed"), "{error}");
    let report_json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!([&report_json["ok"], &report_json["tests"], &report_json["failed"]], [&json!(false), &json!(2), &json!(1)], "{out}");
    let [first, second] = [0, 1].map(|index| report_json["files"][0]["tests"][index].clone());
    let why = first["differences"][0]["why"].clone();
    let difference = json!({ "record": 2, "what": "verdict", "expected": "unseen", "got": "duplicate", "why": why });
    assert_eq!(first["differences"], json!([difference]), "{out}");
    let passed = json!({ "name": "a file", "passed": true, "records": 2, "differences": [], "left_out": 0, "error": null });
    assert_eq!(second, passed, "{out}");
    fs::write(setup.path("later.yaml"), "tests: [{ name: n }]").unwrap();
    refused(
        &setup,
        &[
            "test",
            "--junit",
            report.to_str().unwrap(),
            setup.path("unseen.test.yaml").to_str().unwrap(),
            setup.path("later.yaml").to_str().unwrap(),
        ],
        "later.yaml: tests[0].records: required, unless `file` has the records",
    );
    let written = fs::read_to_string(report).unwrap();
    assert!(written.contains("failures=\"1\"") && written.contains("<error message=\"tests[0].records: required, unless"), "{written}");
    fs::write(setup.path("unseen.test.yaml"), "tests: [{ name: n, records: [{ verdict: unseen }] }]").unwrap();
    refused(&setup, &["test"], "unseen.test.yaml: tests[0].records[0].verdict: unknown field `verdict`");
}
