//! The command `check`: configurations, warnings, and the state directory.

use super::{ID, Setup};
use serde_json::Value;
use std::fs;
use std::path::Path;

#[test]
fn printed_configuration_loads_unchanged() {
    let setup = Setup::new("", ID);
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("config/example.toml"), setup.path("unseen.toml")).unwrap();
    let (code, printed, error) = setup.run(&["check", "--print"]);
    assert_eq!(code, Some(0), "{error}");
    fs::write(setup.path("unseen.toml"), &printed).unwrap();
    assert_eq!(setup.run(&["check", "--print"]), (Some(0), printed, error));
}

#[test]
fn check_prints_json() {
    let setup = Setup::new("", ID);
    let (code, stdout, stderr) = setup.run(&["check", "--json"]);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &report["ok"], &report["topics"][0]["output"], stderr), (Some(0), &true.into(), &"out".into(), String::new()));
    let (code, stdout, stderr) = setup.run(&["check", "--json", "--set", "topics.0.window=0"]);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    let problem = report["problems"][0].as_str().unwrap();
    assert_eq!((code, &report["ok"]), (Some(78), &false.into()));
    assert!(problem.contains("topics[0].window") && stderr.contains(problem), "{stdout}{stderr}");
}

#[test]
fn check_warns_about_a_topic_without_output() {
    let setup = Setup::new("", ID);
    let text = fs::read_to_string(setup.path("unseen.toml")).unwrap();
    fs::write(setup.path("unseen.toml"), text.replace("output = \"out\"\n", "")).unwrap();
    let sentence = "topics[0]: \"in\" has no output, so it is a shadow: the worker writes only its state";
    let (code, summary, warning) = setup.run(&["check"]);
    assert_eq!((code, warning), (Some(0), format!("warning: {sentence}\n")));
    assert!(summary.contains("none (shadow)"), "{summary}");
    let (_, printed, error) = setup.run(&["check", "--print"]);
    assert!(printed.starts_with(&format!("# {sentence}\n")), "{printed}");
    fs::write(setup.path("unseen.toml"), &printed).unwrap();
    assert_eq!(setup.run(&["check", "--print"]), (Some(0), printed, error));
}

#[test]
fn check_warns_about_unprotected_writes() {
    let setup = Setup::new("", ID);
    let open = ["check", "--set", "serve.writes=true", "--set", "serve.listen=0.0.0.0:6379"];
    let (code, _, warning) = setup.run(&open);
    assert_eq!(code, Some(0));
    assert!(warning.starts_with("warning: serve.writes: any client that can connect to 0.0.0.0:6379 can write"), "{warning}");
    let certificates = "serve.tls={ certificate_location = \"a\", key_location = \"b\", client_ca_location = \"c\" }";
    for closed in ["serve.password=secret", certificates, "serve.listen=127.0.0.1:6379", "serve.writes=false"] {
        assert_eq!(setup.run(&[&open[..], &["--set", closed]].concat()).2, "", "{closed}");
    }
}

#[test]
fn check_validates_serve_if_it_is_configured() {
    let setup = Setup::new("", ID);
    let text = fs::read_to_string(setup.path("unseen.toml")).unwrap();
    let filter = "filter = { capacity = 1000, confirm = true }";
    for (piece, by, reason) in [
        ("[log]", "changelog = false\n[log]", "serve: state.changelog is false"),
        (filter, "filter = { kind = \"exact\" }", "serve: space \"in\": a filter of kind \"exact\" stores its keys on the worker's disk"),
        (
            filter,
            "filter = { kind = \"exact\" }\nemit = \"on_change\"",
            "serve: space \"in\": `unseen serve` does not follow a space with emit",
        ),
        (
            "window =",
            "retract = { header = \"r\" }\nwindow =",
            "serve: space \"in\": with confirm, exact retraction needs the fingerprints on the worker's disk",
        ),
    ] {
        fs::write(setup.path("unseen.toml"), text.replace(piece, by)).unwrap();
        let (code, _, error) = setup.run(&["check"]);
        assert_eq!((code, &*error), (Some(0), ""), "{by} without servers");
        let (code, _, error) = setup.run(&["check", "--set", "serve.threads=1"]);
        assert!(code == Some(78) && error.contains(reason), "{by}: {error}");
        let (code, _, error) = setup.run(&["serve"]);
        let error = error.replace("\\\"", "\"");
        assert!(code == Some(1) && error.contains(reason.strip_prefix("serve: ").unwrap()), "{by}: {error}");
    }
}

#[test]
fn check_tests_the_state_directory_and_leaves_no_files() {
    let setup = Setup::new("", ID);
    assert_eq!(setup.run(&["check"]).0, Some(0));
    assert!(!setup.path("state").exists(), "the directory was created");
    fs::create_dir(setup.path("state")).unwrap();
    assert_eq!(setup.run(&["check"]).0, Some(0));
    assert_eq!(fs::read_dir(setup.path("state")).unwrap().count(), 0, "a file was left");

    fs::write(setup.path("file"), "").unwrap();
    for dir in [setup.path("file"), setup.path("file/below")] {
        let (code, _, error) = setup.run(&["check", "--set", &format!("state.dir={}", dir.display())]);
        assert!(code == Some(78) && error.contains("state.dir: ") && error.contains("Not a directory"), "{error}");
    }
    // Even root cannot write to /proc.
    let (code, _, error) = setup.run(&["check", "--set", "state.dir=/proc/unseen/state"]);
    assert!(code == Some(78) && error.contains("state.dir: cannot create a directory in /proc for /proc/unseen/state"), "{error}");
}

#[test]
fn configuration_errors_are_reported_together() {
    let setup = Setup::new("", ID);
    let topic = |name: &str, key: &str, window: &str| {
        format!("[[topics]]\ninput = \"{name}\"\noutput = \"{name}-out\"\n{key}\nwindow = \"{window}\"\nfilter = {{ capacity = 1000 }}\n")
    };
    let shared = "space = \"shared\"\nkey = { record = \"key\" }";
    let topics = topic("a", "key = [{ field = \"id\" }]", "1 fortnight") + &topic("b", shared, "1h") + &topic("c", shared, "2h");
    let text = format!(
        "[kafka]\nbootstrap_servers = \"localhost:1\"\n[log]\nformat = \"text\"\n[worker]\nwokers = 2\ncommit_interval = \"soon\"\n{topics}"
    );
    fs::write(setup.path("unseen.toml"), text).unwrap();
    for command in ["check", "run"] {
        let (code, _, error) = setup.run(&[command]);
        assert_eq!(code, Some(78), "{error}");
        for path in ["worker.wokers", "worker.commit_interval", "topics[0].key", "topics[0].window", "topics[2]"] {
            let names = |line: &str| line.contains("unseen.toml: ") && line.contains(path);
            assert!(error.lines().any(names), "`{command}` does not name {path}:\n{error}");
        }
    }
}

#[test]
fn properties_of_librdkafka_are_checked() {
    let refused = |property: &str| {
        let setup = Setup::new(&format!("[kafka.properties]\n{property}"), ID);
        let [checked, run] = ["check", "run"].map(|command| {
            let (code, _, error) = setup.run(&[command, "--set", "log.format=text"]);
            assert_eq!(code, Some(78), "`{command}`: {error}");
            error
        });
        assert_eq!(checked, run, "`check` and `run` differ");
        checked
    };
    let unknown = refused("\"no.such.property\" = \"secret\"");
    assert!(unknown.contains("no.such.property") && !unknown.contains("secret"), "a value may be a secret: {unknown}");
    assert!(refused("\"enable.auto.commit\" = \"true\"").contains("enable.auto.commit"));
}

#[test]
fn misspelled_environment_variables_are_errors() {
    let setup = Setup::new("", ID);
    let ended = setup.command(&["check"]).env("UNSEEN_WORKER__WORKERS", "4").output().unwrap();
    assert_eq!(ended.status.code(), Some(78));
    assert_eq!(
        String::from_utf8_lossy(&ended.stderr).trim_end(),
        "environment: UNSEEN_WORKER__WORKERS: not the name of an option; did you mean UNSEEN__WORKER__WORKERS?"
    );
    assert!(Path::new(&setup.path("unseen.toml")).exists());
}
