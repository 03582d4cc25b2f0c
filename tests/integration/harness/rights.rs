//! Grants permissions on a broker with ACLs. This needs a `CreateAcls` request, which rdkafka does not offer.

use super::PATIENCE;
use std::io::{Read, Write};
use std::net::TcpStream;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right<'a> {
    DescribeTopic(&'a str),
    ReadTopic(&'a str),
    WriteTopic(&'a str),
    ReadGroup(&'a str),
    /// Write on all transactional ids with this prefix.
    WriteTransactions(&'a str),
    /// Create, read, write, trim, and delete topics with this prefix, and describe their settings.
    OwnTopics(&'a str),
}

/// Grants permissions to a principal such as `User:unseen`. The broker applies all permissions at the same time, shortly after its
/// response.
pub fn grant(broker: &str, user: &str, rights: &[Right<'_>]) {
    let mut entries = Vec::new();
    for right in rights {
        match *right {
            Right::DescribeTopic(name) => entries.push((2, name, LITERAL, 8)),
            Right::ReadTopic(name) => entries.push((2, name, LITERAL, READ)),
            Right::WriteTopic(name) => entries.push((2, name, LITERAL, WRITE)),
            Right::ReadGroup(name) => entries.push((3, name, LITERAL, READ)),
            Right::WriteTransactions(name) => entries.push((5, name, PREFIXED, WRITE)),
            Right::OwnTopics(name) => {
                entries.extend([READ, WRITE, CREATE, DELETE, DESCRIBE_CONFIGS].map(|operation| (2, name, PREFIXED, operation)));
            }
        }
    }
    let mut body = Vec::new();
    body.extend(count(entries.len()));
    for &(resource, name, pattern, operation) in &entries {
        body.push(resource);
        body.extend(string(name));
        body.push(pattern);
        body.extend(string(user));
        body.extend(string("*"));
        body.extend([operation, ALLOW]);
    }
    let answer = call(broker, CREATE_ACLS, &body);
    // Skips the throttle time and the number of results. Each result has an error code and a message.
    let mut results = &answer[8..];
    for entry in entries {
        let (code, message) = (number(&results[..2]), number(&results[2..4]));
        assert_eq!(code, 0, "{user} did not get {entry:?} of {rights:?}: error {code}");
        results = &results[4 + usize::try_from(message).unwrap_or(0)..];
    }
}

const CREATE_ACLS: u8 = 30;
const READ: u8 = 3;
const WRITE: u8 = 4;
const CREATE: u8 = 5;
const DELETE: u8 = 6;
const DESCRIBE_CONFIGS: u8 = 10;
const ALLOW: u8 = 3;
const LITERAL: u8 = 3;
const PREFIXED: u8 = 4;

/// Sends a request in version 1 of an API. Returns the response without its size and correlation ID.
fn call(broker: &str, api: u8, body: &[u8]) -> Vec<u8> {
    let mut request = vec![0, api, 0, 1, 0, 0, 0, 0];
    request.extend(string("unseen-tests"));
    request.extend(body);
    let mut stream = TcpStream::connect(broker).expect("the broker takes a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(&count(request.len())).and_then(|()| stream.write_all(&request)).expect("the broker takes a request");
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("the broker answers");
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).expect("the broker answers in full");
    answer.split_off(4)
}

fn count(count: usize) -> [u8; 4] {
    u32::try_from(count).expect("a small number").to_be_bytes()
}

fn string(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).expect("a short text");
    [&length.to_be_bytes(), text.as_bytes()].concat()
}

fn number(bytes: &[u8]) -> i16 {
    i16::from_be_bytes(bytes.try_into().expect("two bytes"))
}
