//! Commands that wait for a broker: errors, signals, and the log.

use super::{ID, Setup};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

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
            "no broker at localhost:1 answered within 1s; check that Kafka is running there and that kafka.bootstrap_servers is correct"
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
    assert!(told.starts_with("no broker can be used yet; waiting ") && told.contains(&port.to_string()), "{told}");
}

#[test]
fn sigterm_ends_the_wait_for_a_broker() {
    let setup = Setup::new("", ID);
    let mut run = setup.command(&["run"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("no broker can be used yet; waiting")), "the command ended without this message");
    assert!(Command::new("kill").arg(run.id().to_string()).status().unwrap().success());
    assert!(run.wait().unwrap().success());
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
