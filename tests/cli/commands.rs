//! All commands: help, flags, completions, versions, and the variable `UNSEEN_CONFIG`.

use super::{ID, Setup, unseen};
use assert_cmd::cargo::cargo_bin;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Output, Stdio};

#[test]
fn a_closed_pipe_is_not_an_error() {
    let setup = Setup::new("", ID);
    let lines = (0..10_000).map(|id| format!("{{\"id\":{id}}}")).collect::<Vec<_>>().join("\n");
    fs::write(setup.path("input"), lines).unwrap();
    let input = setup.path("input");
    let mut commands = vec![setup.command(&["check"]), setup.command(&["replay", "-q", &input.to_string_lossy()])];
    commands.push(Command::new(cargo_bin("unseen")));
    commands[2].arg("schema");
    commands.push(Command::new(cargo_bin("unseen")));
    commands[3].args(["plan", "--keys", "1000"]);
    for mut command in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""), "{command:?}");
    }
}

#[test]
fn the_demo_succeeds() {
    let Output { status, stdout, stderr } = Command::new(cargo_bin("unseen")).args(["demo", "--seconds", "1"]).output().unwrap();
    let (out, err) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success() && out.contains(" 0 IDs emitted twice") && err.contains("records/s"), "{out}{err}");
}

/// Returns the commands that `unseen --help` lists, and the hidden commands, in the order of docs/reference/commands.md.
fn commands() -> (Vec<String>, Vec<String>) {
    let headings = include_str!("../../docs/reference/commands.md").lines().filter_map(|line| line.strip_prefix("## "));
    let documented = headings.flat_map(|heading| heading.split([',', ' ']));
    let documented: Vec<_> = documented.filter(|word| !["", "and"].contains(word)).map(str::to_owned).collect();
    let help = unseen(&["--help"]);
    documented.into_iter().partition(|name| help.lines().any(|line| line.starts_with(&format!("  {name} "))))
}

#[test]
fn help_lists_the_commands_in_the_order_of_the_documentation() {
    let (listed, hidden) = commands();
    assert_eq!(hidden, ["schema", "completions", "man"]);
    let help = unseen(&["--help"]);
    let (_, groups) = help.split_once("Deduplicate:\n").unwrap();
    let (groups, _) = groups.split_once("Options:\n").unwrap();
    let names: Vec<_> = groups.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next()).collect();
    assert_eq!(names, listed);
}

/// Each short flag has the same long form in all commands.
#[test]
fn a_short_flag_means_the_same_in_every_command() {
    let mut long_forms: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for command in commands().0 {
        for line in unseen(&[&command, "--help"]).lines() {
            let Some((short, rest)) = line.trim_start().strip_prefix('-').and_then(|flags| flags.split_once(", --")) else { continue };
            long_forms.entry(short.to_owned()).or_default().insert(rest.split([' ', '.']).next().unwrap().to_owned());
        }
    }
    assert!(["c", "f", "o", "p", "t"].iter().all(|short| long_forms.contains_key(*short)), "{long_forms:?}");
    let ambiguous: Vec<_> = long_forms.iter().filter(|(_, long)| long.len() > 1).collect();
    assert!(ambiguous.is_empty(), "{ambiguous:?}");
}

#[test]
fn every_command_with_a_configuration_reads_unseen_config() {
    let dir = tempfile::tempdir().unwrap();
    let sample = dir.path().join("sample.ndjson");
    fs::write(&sample, "{}\n").unwrap();
    let (missing, sample) = (dir.path().join("missing.toml"), sample.to_str().unwrap());
    let mut tested = BTreeSet::from(["init", "demo"]);
    for args in [
        &["run"][..],
        &["serve"],
        &["seed", sample],
        &["check"],
        &["validate"],
        &["test"],
        &["plan", "--sample", sample],
        &["capture"],
        &["replay", sample],
        &["explain", "in", "0", "0"],
        &["inspect", "--key", "1", dir.path().to_str().unwrap()],
        &["dlq", "redrive"],
    ] {
        let Output { status, stderr, .. } = Command::new(cargo_bin("unseen")).env("UNSEEN_CONFIG", &missing).args(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&stderr);
        assert!(status.code() == Some(78) && stderr.contains("missing.toml"), "{args:?}: {stderr}");
        tested.insert(args[0]);
    }
    assert!(commands().0.iter().all(|command| tested.contains(command.as_str())), "{tested:?}");
}

#[test]
fn plan_ignores_unseen_config_if_the_key_is_given() {
    let setup = Setup::new("", ID);
    let sample = setup.path("sample.ndjson");
    fs::write(&sample, "{\"id\":1,\"n\":1}\n{\"id\":1,\"n\":2}\n").unwrap();
    let distinct = |args: &[&str]| {
        let mut plan = Command::new(cargo_bin("unseen"));
        plan.env("UNSEEN_CONFIG", setup.path("unseen.toml")).args(["plan", "--json", "--sample"]).arg(&sample).args(args);
        let Output { stdout, stderr, .. } = plan.output().unwrap();
        let plan: Value = serde_json::from_slice(&stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&stderr)));
        plan["sample"]["distinct"].clone()
    };
    assert_eq!([distinct(&[]), distinct(&["--key", "/n"]), distinct(&["--set", "topics.0.key=[{field=\"/n\"}]"])], [1, 2, 2]);
}

#[test]
fn every_command_has_completions_and_a_manual_page() {
    let (commands, _) = commands();
    assert!(commands.len() > 5, "{commands:?}");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = unseen(&["completions", shell]);
        assert!(commands.iter().all(|name| script.contains(name.as_str())) && script.contains("false-positive-rate"), "{shell}");
    }
    let dir = tempfile::tempdir().unwrap();
    let bash = dir.path().join("unseen.bash");
    fs::write(&bash, unseen(&["completions", "bash"])).unwrap();
    let completed = "source \"$0\"; COMP_WORDS=(unseen insp) COMP_CWORD=1; _unseen unseen insp unseen; echo \"${COMPREPLY[*]}\"";
    let Output { stdout, stderr, .. } = Command::new("bash").args(["-c", completed]).arg(&bash).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&stdout).trim(), "inspect", "{}", String::from_utf8_lossy(&stderr));

    assert_eq!(unseen(&["man", &dir.path().to_string_lossy()]), "");
    let page = |name: &str| fs::read_to_string(dir.path().join(format!("{name}.1"))).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(page("unseen"), unseen(&["man"]));
    for name in &commands {
        assert!(page("unseen").contains(&format!("unseen\\-{name}(1)")) && page(&format!("unseen-{name}")).starts_with(".ie"), "{name}");
    }
    let missing = dir.path().join("missing");
    let Output { status, stderr, .. } = Command::new(cargo_bin("unseen")).arg("man").arg(&missing).output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(
        status.code() == Some(1) && stderr.contains("cannot write the manual pages to ") && stderr.contains("No such file"),
        "{stderr}"
    );
}

#[test]
fn the_long_version_describes_the_build() {
    let short = format!("unseen {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(unseen(&["-V"]), short);
    let long = unseen(&["--version"]);
    let lines: Vec<_> = long.strip_prefix(&short).unwrap_or_else(|| panic!("{long}")).lines().collect();
    let faults = if cfg!(feature = "faults") { ", faults" } else { "" };
    let archived = include_str!("../../src/cli/commit.txt").trim_end();
    let commit = match option_env!("UNSEEN_COMMIT") {
        Some(commit) if !commit.is_empty() => commit,
        _ if archived.starts_with('$') => "unknown (built in a clone without UNSEEN_COMMIT)",
        _ => archived,
    };
    assert_eq!(lines[0], format!("commit: {commit}"), "{long}");
    assert_eq!(lines[1], format!("features: cli, worker{faults}"));
    assert!(lines[2].starts_with("librdkafka: 2."), "{long}");
}
