//! A schema registry for a single test. scripts/registry starts it.

use super::PATIENCE;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The maximum wait for scripts/registry, which builds the registry when it runs for the first time.
const START_PATIENCE: Duration = Duration::from_secs(300);

/// A running scripts/registry. The registry stops when its stdin ends, either because this value is dropped or because this process dies.
pub struct SchemaRegistry {
    child: Child,
    url: String,
}

impl SchemaRegistry {
    pub fn start(args: &[&str]) -> Self {
        let mut child = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/registry"))
            .arg("--until-eof")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("scripts/registry starts");
        let stdout = child.stdout.take().expect("its stdout is a pipe");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let line = lines.recv_timeout(START_PATIENCE).expect("scripts/registry starts; if not, see its output above");
        let url = line.strip_prefix("ready ").unwrap_or_else(|| panic!("unexpected output of scripts/registry: `{line}`")).to_owned();
        Self { child, url }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Registers a list of schemas with their IDs. The list has the format of a response to `GET /schemas`.
    pub fn put(&self, schemas: &serde_json::Value) {
        self.control("POST", "/test/schemas", &schemas.to_string());
    }

    /// Makes all requests fail with this HTTP status until [`SchemaRegistry::heal`].
    pub fn fail(&self, status: u16) {
        self.control("POST", &format!("/test/fail?status={status}"), "");
    }

    /// Makes requests for paths with this prefix fail with this HTTP status until [`SchemaRegistry::heal`].
    pub fn fail_at(&self, path: &str, status: u16) {
        self.control("POST", &format!("/test/fail?status={status}&path={path}"), "");
    }

    pub fn hang(&self) {
        self.control("POST", "/test/hang", "");
    }

    pub fn heal(&self) {
        self.control("DELETE", "/test/failures", "");
    }

    /// The number of requests for each method and path, such as `GET /schemas/ids/1`.
    pub fn requests(&self) -> serde_json::Value {
        serde_json::from_str(&self.control("GET", "/test/requests", "")).expect("JSON")
    }

    fn control(&self, method: &str, path: &str, body: &str) -> String {
        let host = self.url.split("//").nth(1).expect("an address");
        let mut stream = TcpStream::connect(host).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let length = body.len();
        write!(stream, "{method} {path} HTTP/1.0\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n{body}").expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
        assert!(head.split(' ').nth(1).is_some_and(|code| code.starts_with('2')), "{method} {path}: {answer}");
        body.to_owned()
    }
}

impl Drop for SchemaRegistry {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // Waits for the process to exit, because a running process could still answer requests.
        let _ = self.child.wait();
    }
}
