//! A schema registry of one test's own: franz-go's, which scripts/registry runs.

use super::PATIENCE;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long scripts/registry may take: the first time it is built.
const START_PATIENCE: Duration = Duration::from_secs(300);

/// A running registry. It stops when this is dropped, or when this process dies.
pub struct SchemaRegistry {
    child: Child,
    url: String,
}

impl SchemaRegistry {
    /// Starts one that has no schema.
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
        let line = lines.recv_timeout(START_PATIENCE).expect("scripts/registry says above why it does not start");
        let url = line.strip_prefix("ready ").unwrap_or_else(|| panic!("scripts/registry said `{line}`")).to_owned();
        Self { child, url }
    }

    /// Its address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Puts schemas where a list says, as `GET /schemas` answers it.
    pub fn put(&self, schemas: &serde_json::Value) {
        self.control("POST", "/test/schemas", &schemas.to_string());
    }

    /// Has the next requests fail with this status.
    pub fn fail(&self, status: u16) {
        self.control("POST", &format!("/test/fail?status={status}"), "");
    }

    /// Has the next requests for paths that begin like this fail with this status.
    pub fn fail_at(&self, path: &str, status: u16) {
        self.control("POST", &format!("/test/fail?status={status}&path={path}"), "");
    }

    /// Has the next requests wait.
    pub fn hang(&self) {
        self.control("POST", "/test/hang", "");
    }

    /// Has all be well again.
    pub fn heal(&self) {
        self.control("DELETE", "/test/failures", "");
    }

    /// How many requests of each kind it got.
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
        // It answers nobody by then.
        let _ = self.child.wait();
    }
}
