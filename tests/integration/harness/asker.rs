//! Simple clients of `unseen serve`: a Redis client ([`Asker`]) and functions for HTTP requests.

use super::{PATIENCE, wait_until};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

pub struct Asker {
    stream: BufReader<TcpStream>,
}

impl Asker {
    pub fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { stream: BufReader::new(stream) }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("bytes are sent");
    }

    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]), Ok(0) | Err(_))
    }

    pub fn read_to_end(&mut self, bytes: &mut Vec<u8>) {
        let _ = self.stream.read_to_end(bytes);
    }

    /// Sends commands in pipelines of up to 1,000 and returns the replies in the order of the commands.
    pub fn ask_all(&mut self, commands: &[Vec<String>]) -> Vec<Reply> {
        commands
            .chunks(1000)
            .flat_map(|commands| {
                let mut bytes = Vec::new();
                for command in commands {
                    write!(bytes, "*{}\r\n", command.len()).expect("bytes grow");
                    for part in command {
                        write!(bytes, "${}\r\n{part}\r\n", part.len()).expect("bytes grow");
                    }
                }
                self.send(&bytes);
                commands.iter().map(|_| self.reply()).collect::<Vec<_>>()
            })
            .collect()
    }

    pub fn ask(&mut self, command: &[&str]) -> Reply {
        self.ask_all(&[command.iter().map(|&part| part.to_owned()).collect()]).remove(0)
    }

    pub fn reply(&mut self) -> Reply {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("an answer");
        let (kind, rest) = line.trim_end().split_at_checked(1).expect("an answer, not the end of the connection");
        let number = || rest.parse::<i64>().expect("a number");
        match kind {
            "+" => Reply::Simple(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(number()),
            "*" => Reply::Array((0..number()).map(|_| self.reply()).collect()),
            "$" => Reply::Bulk(usize::try_from(number()).ok().map(|length| {
                let mut bytes = vec![0; length + 2];
                self.stream.read_exact(&mut bytes).expect("all of it");
                bytes.truncate(length);
                bytes
            })),
            _ => panic!("not a RESP2 reply: {line:?}"),
        }
    }
}

pub fn http(address: &str, request: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let length = body.len();
    write!(stream, "{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
        .expect("a question");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (code, body.to_owned())
}

pub fn wait_until_fresh(address: &str, limit: Duration) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock past 1970").as_millis();
    wait_until("the server is up to date", limit, || {
        let spaces: serde_json::Value = serde_json::from_str(&http(address, "GET /api/v1/spaces", "").1).expect("JSON");
        let is_fresh = |space: &serde_json::Value| space["as_of_ms"].as_u64().is_some_and(|as_of| u128::from(as_of) >= now);
        spaces.as_array().expect("a list").iter().all(is_fresh).then_some(())
    });
}
