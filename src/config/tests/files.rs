//! Tests of configuration files that cannot be read.

use super::{MINIMAL, load, load_as};
use crate::config::Config;
use std::path::Path;

#[test]
fn unreadable_files_are_reported_on_one_line() {
    let missing = Config::load(Path::new("no/such/file.toml"), &[]).unwrap_err().to_string();
    assert_eq!(
        missing,
        "no/such/file.toml: the file does not exist; check the path in --config or UNSEEN_CONFIG, or write the file with `unseen init`"
    );
    assert_eq!(load_as("x.json", "{}", &[], &[]).unwrap_err(), "x.json: expected a file name that ends in .toml, .yaml, or .yml");
    for (name, text) in [
        ("x.toml", "[kafka]\npassword = \"secret"),
        ("x.toml", "a = 1\na = 2"),
        ("x.toml", "\"a[99999999999]\" = 1"),
        ("x.yaml", "a: [1, 2"),
        ("x.yaml", "a: 1\n b: secret\n"),
        ("x.yaml", "- 1"),
        ("x.yaml", "a: 1\n---\nb: 2"),
    ] {
        let errors = load_as(name, text, &[], &[]).unwrap_err();
        assert!(!errors.contains('\n') && !errors.contains("secret") && errors.starts_with(name), "{errors}");
    }
}

/// The lines of this test expand to half a million values. A few more lines would expand to more values than fit into memory.
#[test]
fn aliases_that_expand_to_too_many_values_are_rejected() {
    let lists = (1..6).map(|depth| format!("a{depth}: &a{depth} [{}]\n", vec![format!("*a{}", depth - 1); 9].join(", ")));
    let bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned() + &lists.collect::<String>();
    let refusal = load_as("x.yaml", &bomb, &[], &[]).unwrap_err();
    assert_eq!(refusal, "x.yaml: the file has more than 100000 values after its aliases (`*name`) are expanded; use fewer values");
}

#[test]
fn a_syntax_error_has_a_line_number_but_not_the_line() {
    let error = load("[kafka]\ngroup_id = \"a\"\ngroup_id = \"hidden\"\n").unwrap_err();
    assert!(error.starts_with("x.toml: ") && error.contains("line 3") && error.contains("duplicate key"), "{error}");
    assert!(!error.contains("hidden"), "{error}");
}

#[test]
fn a_file_that_is_too_large_is_rejected() {
    let error = load(&format!("{MINIMAL}#{}", " ".repeat(1 << 20))).unwrap_err();
    assert!(error.contains("more than the maximum of 1048576"), "{error}");
}
