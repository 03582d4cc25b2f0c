//! Promise: commands that need no broker report errors in one line, and exit without an error if the reader closes the pipe.

use assert_cmd::cargo::cargo_bin;
use openssl::asn1::Asn1Time;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::{X509Builder, X509NameBuilder};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

/// A directory with a configuration file that contains the given lines in `[kafka]` and in the topic.
struct Setup(TempDir);

impl Setup {
    fn new(kafka: &str, topic: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let text = format!(
            "[kafka]\nbootstrap_servers = \"localhost:1\"\n{kafka}\n[state]\ndir = \"{}\"\n[log]\nformat = \"json\"\n[http]\nlisten = \"off\"\n\
             [[topics]]\ninput = \"in\"\noutput = \"out\"\nwindow = \"1h\"\nfilter = {{ capacity = 1000, confirm = true }}\n{topic}\n",
            state.display()
        );
        fs::write(dir.path().join("unseen.toml"), text).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(cargo_bin("unseen"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("UNSEEN")) {
            command.env_remove(name);
        }
        command.args(args).arg("-c").arg(self.path("unseen.toml"));
        command
    }

    /// Returns the exit code, stdout, and stderr.
    fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let Output { status, stdout, stderr } = self.command(args).output().unwrap();
        (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    }
}

const ID: &str = "key = { field = \"/id\" }";

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
fn commands_find_the_topics_of_a_list() {
    let setup = Setup::new("", ID);
    let text = fs::read_to_string(setup.path("unseen.toml")).unwrap();
    let text = text.replace("input = \"in\"\noutput = \"out\"", "input = [\"a\", \"b\"]\noutput = \"{input}.unseen\"");
    fs::write(setup.path("unseen.toml"), text).unwrap();
    let report: Value = serde_json::from_str(&setup.run(&["check", "--json"]).1).unwrap();
    let topics = report["topics"].as_array().unwrap().iter().map(|topic| (topic["input"].clone(), topic["output"].clone()));
    assert_eq!(topics.collect::<Vec<_>>(), [("a".into(), "a.unseen".into()), ("b".into(), "b.unseen".into())]);

    fs::write(setup.path("in.ndjson"), "{\"id\":1}\n{\"id\":1}\n").unwrap();
    let input = setup.path("in.ndjson");
    let input = input.to_str().unwrap();
    let (code, _, summary) = setup.run(&["replay", "--topic", "b", input]);
    assert_eq!(code, Some(0), "{summary}");
    let (code, _, error) = setup.run(&["replay", input]);
    assert!(code == Some(1) && error.contains("several topics; choose one with --topic: a, b"), "{error}");
    let (code, plan, error) = setup.run(&["plan", "--json", "--sample", input, "--topic", "b"]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(serde_json::from_str::<Value>(&plan).unwrap()["sample"]["distinct"], 1);
    let tests =
        "tests:\n  - name: of a list\n    topic: b\n    records: [{ value: { id: 1 }, expect: { verdict: unseen, output: b.unseen } }]\n";
    fs::write(setup.path("unseen.test.yaml"), tests).unwrap();
    let (code, said, error) = setup.run(&["test"]);
    assert_eq!(code, Some(0), "{said}{error}");

    let (code, printed, error) = setup.run(&["check", "--print"]);
    assert_eq!(code, Some(0), "{error}");
    fs::write(setup.path("unseen.toml"), &printed).unwrap();
    assert_eq!(setup.run(&["check", "--print"]).1, printed);
}

#[test]
fn an_entry_of_an_input_is_chosen_by_its_space() {
    let setup = Setup::new("", "space = \"orders-{input}\"\nwhen = { field = \"/type\", equals = \"order\" }\nkey = { field = \"/id\" }");
    let second = "[[topics]]\ninput = \"in\"\noutput = \"out\"\nwindow = \"1h\"\nfilter = { capacity = 1000 }\nkey = { field = \"/no\" }\n";
    let text = fs::read_to_string(setup.path("unseen.toml")).unwrap() + second;
    let lines = "{\"type\":\"order\",\"id\":1,\"no\":1}\n{\"type\":\"order\",\"id\":2,\"no\":2}\n{\"type\":\"view\",\"no\":3}\n";
    fs::write(setup.path("in.ndjson"), lines).unwrap();
    let input = setup.path("in.ndjson");
    // Returns the number of keys of the entry that `args` select. A record counts for the first entry that selects it.
    let keys = |args: &[&str]| {
        let (code, plan, error) = setup.run(&[&["plan", "--json", "--sample", input.to_str().unwrap()], args].concat());
        let keys = |plan: &str| serde_json::from_str::<Value>(plan).unwrap()["sample"]["distinct"].as_u64().unwrap();
        if code == Some(0) { Ok(keys(&plan)) } else { Err(error) }
    };
    let several = "`in` has several entries; choose one by its space: orders-in, in";
    fs::write(setup.path("unseen.toml"), &text).unwrap();
    assert_eq!((keys(&["--topic", "orders-in"]), keys(&["--topic", "in"])), (Ok(2), Ok(1)));
    assert!(keys(&[]).unwrap_err().contains(several));

    // The topic of the entry matches a pattern.
    fs::write(setup.path("unseen.toml"), text.replace("input = \"in\"", "input = { pattern = \"i.*\" }")).unwrap();
    assert_eq!((keys(&["--topic", "orders-in"]), keys(&["--topic", "in"])), (Ok(2), Ok(1)));
    assert!(keys(&["--topic", "views-in"]).unwrap_err().contains("expected one of a topic that matches \"i.*\", a topic"));

    // A topic with the name of the space may also exist.
    fs::write(setup.path("unseen.toml"), text.replace("input = \"in\"", "input = { pattern = \".*in\" }")).unwrap();
    let error = keys(&["--topic", "orders-in"]).unwrap_err();
    assert!(error.contains("`orders-in` is an entry of several topics that can match a pattern: in, orders-in; choose one"), "{error}");
    let only = ["--topic", "orders-in", "--set", "topics.0.input=in", "--set", "topics.1.input=in"];
    assert_eq!((keys(&only), keys(&["--topic", "in"])), (Ok(2), Ok(1)));
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
fn replay_reports_key_conflicts() {
    let setup = Setup::new("", ID);
    let input = setup.path("input");
    fs::write(&input, "{\"id\":1,\"version\":1}\n{\"id\":1,\"version\":2}\n{\"id\":1,\"version\":1}\n").unwrap();
    let name = input.to_string_lossy();
    let (code, _, summary) = setup.run(&["replay", &name]);
    let line = "50 % of the duplicates of field `/id` differ in /version (2 compared). Check whether the key lacks a field. If it does not, set key_conflicts = { except = [\"/version\"] } to ignore the difference.";
    assert!(code == Some(0) && summary.contains(line), "{summary}");
    let except = "topics[0].key_conflicts={ except = [\"/version\"] }";
    let (code, _, said) = setup.run(&["replay", "--set", except, &name]);
    assert!(code == Some(0) && !said.contains("the key lacks a field"), "{said}");
}

#[test]
fn replay_prints_the_counts_as_json() {
    let setup = Setup::new("", &format!("{ID}\ncount_by = {{ field = \"/by\" }}"));
    let input = setup.path("input");
    fs::write(&input, "{\"id\":1,\"by\":\"a\"}\n{\"id\":1,\"by\":\"b\"}\n{}\n{\"id\":2}\n").unwrap();
    let on_invalid = "topics[0].on_invalid=drop";
    let (code, out, error) = setup.run(&["replay", "--json", "--truth", "--set", on_invalid, &input.to_string_lossy()]);
    assert_eq!((code, &*error), (Some(0), ""), "{out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let verdicts = json!({ "unseen": 2, "duplicate": 1, "late": 0, "invalid": 1, "retracted": 0, "tombstone": 0, "passed": 0 });
    assert_eq!((&report["records"], &report["verdicts"]), (&json!(4), &verdicts), "{report}");
    assert_eq!(report["invalid"], json!({ "missing_key": 1 }), "{report}");
    assert_eq!(report["truth"], json!({ "unseen": 2, "false_positives": 0, "false_negatives": 0, "rate": 0.0 }), "{report}");
    let counted = &report["values"][0];
    assert_eq!(
        (&counted["value"], &counted["duplicates"]),
        (&json!(null), &json!(1)),
        "values are named only once they are frequent: {report}"
    );
    assert_eq!((&report["key_conflicts"]["compared"], &report["warnings"]), (&json!(1), &json!([])), "{report}");
    let documented = unseen(&["replay", "--help"]);
    let missing = report.as_object().unwrap().keys().find(|name| !documented.contains(name.as_str()));
    assert_eq!(missing, None, "`replay --help` documents every field");
}

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
fn fatal_errors_have_the_format_of_the_log() {
    let setup = Setup::new("connect_timeout = \"1s\"", ID);
    let (code, _, error) = setup.run(&["run"]);
    assert_eq!(code, Some(1), "{error}");
    let lines: Vec<Value> = error.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"))).collect();
    let last = lines.last().expect("a line");
    assert_eq!(last["level"], "ERROR");
    assert!(
        last["message"].as_str().is_some_and(|message| message.starts_with(
            "no broker at localhost:1 answered within 1s; check that Kafka is running there, and that kafka.bootstrap_servers is correct"
        )),
        "{last}"
    );
}

#[test]
fn a_refused_connection_is_reported_while_waiting() {
    // No process listens on a port that was just closed.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let setup = Setup::new("connect_timeout = \"10m\"", ID);
    let servers = format!("kafka.bootstrap_servers=127.0.0.1:{port}");
    let mut check = setup.command(&["check", "--connect", "--set", &servers]).stderr(Stdio::piped()).spawn().unwrap();
    let told = BufReader::new(check.stderr.take().unwrap()).lines().map_while(Result::ok).find(|line| line.contains("Connection refused"));
    check.kill().unwrap();
    check.wait().unwrap();
    let told = told.expect("the command ended without this message");
    assert!(told.starts_with("no broker has answered yet; waiting ") && told.contains(&port.to_string()), "{told}");
}

#[test]
fn sigterm_ends_the_wait_for_a_broker() {
    let setup = Setup::new("", ID);
    let mut run = setup.command(&["run"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("no broker has answered yet; waiting")), "the command ended without this message");
    assert!(Command::new("kill").arg(run.id().to_string()).status().unwrap().success());
    assert!(run.wait().unwrap().success());
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

/// A self-signed certificate and its private key, in PEM.
fn certificate() -> (Vec<u8>, Vec<u8>) {
    let key = PKey::from_ec_key(EcKey::generate(&EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap()).unwrap()).unwrap();
    let mut name = X509NameBuilder::new().unwrap();
    name.append_entry_by_text("CN", "unseen").unwrap();
    let name = name.build();
    let mut builder = X509Builder::new().unwrap();
    builder.set_version(2).unwrap();
    builder.set_subject_name(&name).unwrap();
    builder.set_issuer_name(&name).unwrap();
    builder.set_pubkey(&key).unwrap();
    builder.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::days_from_now(1).unwrap()).unwrap();
    builder.sign(&key, MessageDigest::sha256()).unwrap();
    (builder.build().to_pem().unwrap(), key.private_key_to_pem_pkcs8().unwrap())
}

#[test]
fn every_documented_login_is_accepted() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/how-to/secure.md")).unwrap();
    let blocks = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let logins: Vec<_> = blocks.filter(|block| block.contains("security.protocol") || block.starts_with('[')).collect();
    assert_eq!(logins.len(), 7, "{logins:?}");
    let (certificate, key) = certificate();
    for login in logins {
        let setup = Setup::new("", ID);
        let login = login.replace("/etc/unseen/", &format!("{}/", setup.0.path().display()));
        let login = login.replace("/run/secrets/", &format!("{}/", setup.0.path().display()));
        let section = if login.starts_with('[') { "" } else { "[kafka.properties]\n" };
        for (name, text) in [("ca.pem", &*certificate), ("client.pem", &certificate), ("client.key", &key)] {
            fs::write(setup.path(name), text).unwrap();
        }
        for name in ["kafka-password", "kafka-client-secret", "registry-client-secret"] {
            fs::write(setup.path(name), "hunter2\n").unwrap();
        }
        let file = setup.path("unseen.toml");
        let text = fs::read_to_string(&file).unwrap().replacen("[state]", &format!("{section}{login}\n[state]"), 1);
        fs::write(file, text).unwrap();
        let (code, printed, error) = setup.run(&["check", "--print"]);
        assert_eq!(code, Some(0), "{login}\n{error}");
        assert!(!printed.contains("hunter2"), "{printed}");
    }
}

#[test]
fn kerberos_is_rejected_with_the_reason() {
    let setup = Setup::new("[kafka.properties]\n\"security.protocol\" = \"SASL_SSL\"\n\"sasl.mechanism\" = \"GSSAPI\"", ID);
    let (code, _, error) = setup.run(&["check"]);
    assert!(code == Some(78) && error.contains("GSSAPI (Kerberos) is not supported, because unseen is built without"), "{error}");
}

fn kcat(id: u32, ts: u128) -> String {
    format!(
        "{{\"topic\":\"in\",\"partition\":0,\"offset\":0,\"tstype\":\"create\",\"ts\":{ts},\"key\":null,\"payload\":\"{{\\\"id\\\":{id}}}\"}}\n"
    )
}

#[test]
fn replay_of_a_capture_without_its_format_is_reported() {
    let setup = Setup::new("", ID);
    let input = setup.path("input");
    fs::write(&input, kcat(1, 1) + &kcat(2, 2)).unwrap();
    let name = input.to_string_lossy();
    for on_invalid in ["fail", "drop"] {
        let (code, out, error) = setup.run(&["replay", "--set", &format!("topics[0].on_invalid={on_invalid}"), &name]);
        assert!(
            code == Some(1)
                && out.is_empty()
                && error.contains("the lines look like the output of `unseen capture` or `kcat -J`; use --format capture"),
            "{error}"
        );
    }
    fs::write(&input, "{}\n{}\n").unwrap();
    let (code, _, error) = setup.run(&["replay", "--set", "topics[0].on_invalid=drop", &name]);
    assert!(code == Some(1) && error.contains("no record has a key") && !error.contains("capture"), "{error}");
    fs::write(&input, "{}\n{\"id\":1}\n").unwrap();
    assert_eq!(setup.run(&["replay", "--set", "topics[0].on_invalid=drop", &name]).0, Some(0));
}

#[test]
fn replay_warns_about_times_that_do_not_move_the_window() {
    let setup = Setup::new("", ID);
    let input = setup.path("input");
    let name = input.to_string_lossy();
    let minute = |id: u32| 1_767_268_800_000 + u128::from(id) * 60_000;
    let warning = |scale: fn(u128) -> u128, args: &[&str]| {
        fs::write(&input, (0..20).map(|id| kcat(id % 2, scale(minute(id)))).collect::<String>()).unwrap();
        let (code, _, said) = setup.run(&[&["replay", "--format", "kcat", &name], args].concat());
        assert_eq!(code, Some(0), "{said}");
        said.lines().find_map(|line| line.strip_prefix("warning: ")).unwrap_or_default().to_owned()
    };
    let micros = warning(|ms| ms * 1000, &[]);
    assert!(micros.starts_with("20 of the last 20 records are more than 5m ahead of the time at which they were read"), "{micros}");
    assert!(
        micros.ends_with("times such as 1767269940000000 look like microseconds: make the producers write milliseconds since 1970, or, if the topic has `time`, correct its unit"),
        "{micros}"
    );
    let seconds = warning(|ms| ms / 1000, &["-q"]);
    assert!(seconds.starts_with("record times such as 1767269940 look like seconds"), "{seconds}");
    let slow = warning(|ms| ms, &["--read-at", "2026-01-01T11:00:00Z"]);
    assert!(slow.contains("the last one was 1h 19m ahead"), "{slow}");
    assert_eq!(warning(|ms| ms, &["--read-at", "2026-01-01T13:00:00Z"]), "");
}

#[test]
fn replay_describes_all_entries_of_an_input() {
    let setup = Setup::new("", "when = { field = \"/type\", equals = \"order\" }\nkey = { field = \"/id\" }\nlate = \"drop\"");
    let second = "[[topics]]\ninput = \"in\"\noutput = \"out\"\nspace = \"rest\"\nwindow = \"1h\"\nfilter = { kind = \"exact\" }\nkey = { field = \"/no\" }\nlate = \"drop\"\n";
    let text = fs::read_to_string(setup.path("unseen.toml")).unwrap();
    let input = setup.path("in.ndjson");
    let lines =
        "{\"type\":\"order\",\"id\":1,\"t\":9000000000}\n{\"no\":1,\"t\":9000000000}\n{\"no\":1,\"t\":9000000000}\n{\"no\":2,\"t\":9}\n";
    fs::write(&input, lines).unwrap();
    let replayed = |text: &str| {
        fs::write(setup.path("unseen.toml"), text).unwrap();
        let (code, _, summary) = setup.run(&["replay", "--truth", "--time", "/t", input.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{summary}");
        summary
    };
    let summary = replayed(&(text.clone() + second));
    assert!(summary.contains("late        1, dropped\n") && summary.contains("duplicates  1\n"), "{summary}");
    // The two entries send such records to different places, so the summary shows no place.
    let summary = replayed(&(text.clone() + &second.replace("late = \"drop\"", "on_duplicate = { topic = \"again\" }")));
    assert!(!summary.contains(", dropped") && summary.contains("duplicates  1\n"), "{summary}");

    // The record times are now in seconds. Only the second entry gets a warning, because the window of the first does not depend on times.
    fs::write(&input, lines.replace("9000000000", "1700000000")).unwrap();
    let by_count =
        text.replace("window = \"1h\"", "window = { keys = 100 }").replace("capacity = 1000, confirm = true", "kind = \"exact\"");
    let summary = replayed(&(by_count.replace("late = \"drop\"", "") + second));
    assert!(summary.contains("warning: space \"rest\": record times such as 1700000000 look like seconds"), "{summary}");
}

#[test]
fn replay_of_a_compressed_file_suggests_to_decompress_it() {
    let setup = Setup::new("", ID);
    let input = setup.path("input");
    fs::write(&input, b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\n").unwrap();
    for format in ["ndjson", "kcat"] {
        let (code, _, error) = setup.run(&["replay", "--set", "topics[0].on_invalid=drop", "--format", format, &input.to_string_lossy()]);
        assert!(code == Some(1) && error.contains("the input is compressed with gzip; decompress it first"), "{error}");
    }
}

/// Three lines of a stream: a record, a record two hours ahead of it, and a duplicate of the first record.
fn with_one_ahead(at: Duration) -> String {
    let ms = at.as_millis();
    kcat(1, ms) + &kcat(2, ms + 7_200_000) + &kcat(1, ms)
}

#[test]
fn replay_uses_the_time_of_reading_for_records_from_the_future() {
    let setup = Setup::new("", ID);
    let input = setup.path("input");
    let yesterday = SystemTime::now() - Duration::from_secs(24 * 3600);
    fs::write(&input, with_one_ahead(yesterday.duration_since(SystemTime::UNIX_EPOCH).unwrap())).unwrap();
    let name = input.to_string_lossy();
    let out = |args: &[&str]| {
        let (code, out, error) = setup.run(&[&["replay", "--format", "kcat", &name], args].concat());
        assert_eq!(code, Some(0), "{error}");
        (out.lines().count(), error)
    };
    // The file was just written, so the future record moves the window.
    assert_eq!(out(&[]).0, 3);
    let read_at = humantime::format_rfc3339(yesterday).to_string();
    let (lines, summary) = out(&["--read-at", &read_at]);
    assert!(lines == 2 && summary.contains("future      1: more than 5m ahead of the time of reading"), "{summary}");
    // By default, the modification time of the file is the time of reading.
    fs::File::options().write(true).open(&input).unwrap().set_modified(yesterday).unwrap();
    let (lines, summary) = out(&[]);
    assert!(lines == 2 && summary.contains("set that time with --read-at"), "{summary}");
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

#[test]
fn the_demo_succeeds() {
    for format in ["json", "avro", "protobuf"] {
        let mut demo = Command::new(cargo_bin("unseen"));
        let Output { status, stdout, stderr } = demo.args(["demo", "--seconds", "1", "--format", format]).output().unwrap();
        let (out, err) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
        assert!(status.success() && out.contains(" 0 IDs emitted twice") && err.contains("records/s"), "{format}: {out}{err}");
    }
}

/// A worker that waits for brokers and serves HTTP on a loopback address.
struct Waiting {
    worker: Child,
    address: SocketAddr,
}

impl Waiting {
    /// Starts a worker with this limit of file descriptors.
    fn start(setup: &Setup, descriptors: u32) -> Self {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut run = Command::new("sh");
        run.args(["-c", &format!("ulimit -n {descriptors} && exec \"$0\" run -c \"$1\" --set \"$2\"")]);
        run.arg(cargo_bin("unseen")).arg(setup.path("unseen.toml")).arg(format!("http.listen={address}"));
        let worker = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let waiting = Self { worker, address };
        let started = Instant::now();
        while waiting.ask("/livez", "localhost").is_err() && started.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(50));
        }
        waiting
    }

    /// Returns the response to a request for a path and a host.
    fn ask(&self, path: &str, host: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.worker.kill().unwrap();
        self.worker.wait().unwrap();
    }
}

/// With more incomplete requests than file descriptors, the oldest connections are closed, and probes are answered.
#[test]
fn idle_connections_do_not_exhaust_descriptors() {
    let setup = Setup::new("connect_timeout = \"10m\"", ID);
    let waiting = Waiting::start(&setup, 256);
    let half = |_| {
        let mut stream = TcpStream::connect(waiting.address).unwrap();
        // The oldest connections may be closed already.
        let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nHost:");
        stream
    };
    let idle: Vec<_> = (0..400).map(half).collect();
    let answer = waiting.ask("/livez", "localhost");
    let open = fs::read_dir(format!("/proc/{}/fd", waiting.worker.id())).map_or(0, Iterator::count);
    // The worker closes each connection.
    let ended = idle.into_iter().all(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        !matches!(stream.read(&mut [0; 512]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    });
    let answer = answer.expect("no response to a probe");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("cache-control: no-store"), "{answer}");
    assert!(open < 200, "{open} descriptors are open");
    assert!(ended, "a connection is still open");
}

/// A web page may resolve its own host name to a loopback address (DNS rebinding).
#[test]
fn requests_for_other_hosts_are_rejected_on_loopback() {
    let setup = Setup::new("connect_timeout = \"10m\"", ID);
    let waiting = Waiting::start(&setup, 256);
    for path in ["/", "/livez", "/readyz", "/metrics", "/api/v1/status", "/no/such/page"] {
        for host in ["evil", "evil.example:8080"] {
            let answer = waiting.ask(path, host).unwrap();
            assert!(
                answer.starts_with("HTTP/1.1 421 ")
                    && answer.ends_with("use the host name localhost, or set http.listen to another address\n"),
                "{path}: {answer}"
            );
        }
    }
    let here = waiting.ask("/metrics", &waiting.address.to_string()).unwrap();
    assert!(here.starts_with("HTTP/1.1 200 "), "{here}");
}

/// A running `unseen serve`, and its log.
struct Serving {
    server: Child,
    log: BufReader<ChildStderr>,
}

impl Serving {
    fn start(setup: &Setup) -> Self {
        let ports = ["--set", "serve.listen=127.0.0.1:0", "--set", "serve.http_listen=off"];
        let mut server = setup.command(&[&["serve"], &ports[..]].concat()).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(server.stderr.take().unwrap());
        Self { server, log }
    }

    /// Waits for a log line with this message.
    fn wait_for_log(&mut self, message: &str) -> Value {
        for line in self.log.by_ref().lines() {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if line.to_string().contains(message) {
                return line;
            }
        }
        panic!("the server ended without {message:?} in its log");
    }

    fn sigterm(&self) {
        assert!(Command::new("kill").arg(self.server.id().to_string()).status().unwrap().success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The first signal lets pending requests finish.
#[test]
fn a_second_signal_ends_the_server_at_once() {
    let setup = Setup::new("", "key = { field = \"/id\" }");
    for (signals, code) in [(1, 0), (2, 130)] {
        let mut serving = Serving::start(&setup);
        let line = serving.wait_for_log("listening for Redis clients");
        let address = line["address"].as_str().unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client.write_all(b"MULTI\r\nPING\r\n").unwrap();
        let mut answer = [0; 14];
        client.read_exact(&mut answer).unwrap();
        serving.sigterm();
        serving.wait_for_log("shutting down");
        let mut rest = String::new();
        if signals == 1 {
            client.write_all(b"EXEC\r\n").unwrap();
            client.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "*1\r\n+PONG\r\n");
        } else {
            serving.sigterm();
        }
        assert_eq!(serving.server.wait().unwrap().code(), Some(code));
    }
}

#[test]
fn collector_errors_hide_the_password() {
    let setup = Setup::new("connect_timeout = \"1s\"", ID);
    for name in ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] {
        for address in ["http://u:secret@h/", "https://u:secret@h", "http://u:secret@h", "u:secret@h"] {
            let Output { status, stdout, stderr } = setup.command(&["run"]).env(name, address).output().unwrap();
            let (out, error) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
            assert!(!status.success() && error.contains(&format!("{name}: ")), "{address}: {error}");
            assert!(!error.contains("secret") && !out.contains("secret"), "{address}: {out}{error}");
        }
    }
}

/// Returns the output of a command without a configuration, which must succeed.
fn unseen(args: &[&str]) -> String {
    let Output { status, stdout, stderr } = Command::new(cargo_bin("unseen")).args(args).output().unwrap();
    assert!(status.success(), "{args:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// Returns the commands that `unseen --help` lists, and the hidden commands, in the order of docs/reference/commands.md.
fn commands() -> (Vec<String>, Vec<String>) {
    let headings = include_str!("../docs/reference/commands.md").lines().filter_map(|line| line.strip_prefix("## "));
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
    let archived = include_str!("../src/cli/commit.txt").trim_end();
    let commit = match option_env!("UNSEEN_COMMIT") {
        Some(commit) if !commit.is_empty() => commit,
        _ if archived.starts_with('$') => "unknown (built in a clone without UNSEEN_COMMIT)",
        _ => archived,
    };
    assert_eq!(lines[0], format!("commit: {commit}"), "{long}");
    assert_eq!(lines[1], format!("features: cli, worker{faults}"));
    assert!(lines[2].starts_with("librdkafka: 2."), "{long}");
}

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
        "later.yaml: tests[0].records: expected records",
    );
    let written = fs::read_to_string(report).unwrap();
    assert!(written.contains("failures=\"1\"") && written.contains("<error message=\"tests[0].records: expected records"), "{written}");
    fs::write(setup.path("unseen.test.yaml"), "tests: [{ name: n, records: [{ verdict: unseen }] }]").unwrap();
    refused(&setup, &["test"], "unseen.test.yaml: tests[0].records[0].verdict: unknown field `verdict`");
}
