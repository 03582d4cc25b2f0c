//! The session of a connection and the commands that affect it.
//!
//! If a password is configured, an unauthenticated client can never look up keys.

use super::Server;
use super::command::{Command, Refusal};
use super::resp::Answers;
use super::writes::Waiting;
use crate::stats::add;
use std::ops::Range;

const NO_PASSWORD: &str = "Authentication required.";
/// The maximum memory of the commands between MULTI and EXEC, in bytes.
const QUEUED_BYTES_MAX: usize = 1 << 20;
/// The memory of a queued command in addition to its bytes and argument positions: its queue entry and two allocations.
const QUEUED_COMMAND_BYTES: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Session {
    /// Commands queued since MULTI. A Redis transaction does not change the answers to lookups, but some clients send every pipeline as a
    /// transaction.
    pub(super) queued: Option<Queue>,
    /// The remaining commands of an EXEC.
    pub(super) executing: std::vec::IntoIter<(Vec<u8>, Vec<Range<usize>>)>,
    pub(super) waiting: Vec<Waiting>,
    id: u64,
    /// True if the client has sent the password, or if no password is configured.
    pub(super) is_authenticated: bool,
    name: Vec<u8>,
    resp3: bool,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) commands: Vec<(Vec<u8>, Vec<Range<usize>>)>,
    bytes: usize,
    /// True if the commands exceeded the limit. EXEC then fails and does not run any command.
    pub(super) is_aborted: bool,
}

impl Session {
    pub(super) fn new(id: u64, is_authenticated: bool) -> Self {
        Self { id, is_authenticated, ..Self::default() }
    }

    /// Queues a command until EXEC. If the queue exceeds its limit, discards all of its commands.
    pub(super) fn queue(&mut self, command: Command<'_>, answers: &mut Answers) {
        let Some(queue) = &mut self.queued else { return };
        queue.bytes += QUEUED_COMMAND_BYTES + command.bytes.len() + size_of_val(command.parts);
        if queue.bytes > QUEUED_BYTES_MAX {
            (queue.is_aborted, queue.commands) = (true, Vec::new());
            answers.error("ERR", &format!("the commands since MULTI take more than {QUEUED_BYTES_MAX} bytes; send shorter pipelines"));
            return;
        }
        queue.commands.push((command.bytes.to_vec(), command.parts.to_vec()));
        answers.simple("QUEUED");
    }

    fn rename(&mut self, name: &[u8]) -> Result<(), Refusal> {
        if name.len() > 256 || !name.iter().all(u8::is_ascii_graphic) {
            return Err(("ERR", "Client names cannot contain spaces, newlines or special characters.".to_owned()));
        }
        self.name = name.to_vec();
        Ok(())
    }
}

/// Runs a command that affects the session, by its name in capitals. Returns `None` for other commands, or an error if the client must send
/// the password first.
pub(super) fn run(
    name: &str,
    session: &mut Session,
    server: &Server,
    command: Command<'_>,
    answers: &mut Answers,
) -> Option<Result<(), Refusal>> {
    match name {
        "AUTH" => return Some(auth(session, server, command, answers)),
        "HELLO" => return Some(hello(session, server, command, answers)),
        "RESET" => {
            let waiting = std::mem::take(&mut session.waiting);
            *session = Session { waiting, ..Session::new(session.id, server.password.is_none()) };
            answers.is_resp3 = false;
            answers.simple("RESET");
        }
        _ if !session.is_authenticated => return Some(Err(("NOAUTH", NO_PASSWORD.to_owned()))),
        "CLIENT" => return Some(client(session, command, answers)),
        "SELECT" if command.get(1) == Some(b"0") => answers.simple("OK"),
        "SELECT" => return Some(Err(("ERR", "DB index is out of range: the only database is 0".to_owned()))),
        "READONLY" | "READWRITE" | "UNWATCH" | "WATCH" => answers.simple("OK"),
        "MULTI" if session.queued.is_some() => return Some(Err(("ERR", "MULTI calls can not be nested".to_owned()))),
        "MULTI" => {
            session.queued = Some(Queue::default());
            answers.simple("OK");
        }
        "DISCARD" if session.queued.take().is_some() => answers.simple("OK"),
        "DISCARD" => return Some(Err(("ERR", "DISCARD without MULTI".to_owned()))),
        _ => return None,
    }
    Some(Ok(()))
}

/// Handles `AUTH [user] password`.
fn auth(session: &mut Session, server: &Server, command: Command<'_>, answers: &mut Answers) -> Result<(), Refusal> {
    command.has(2..=3)?;
    let (user, password) = if command.len() == 3 { (command.get(1), command.get(2)) } else { (None, command.get(1)) };
    know(session, server, user, password.unwrap_or_default())?;
    answers.simple("OK");
    Ok(())
}

fn know(session: &mut Session, server: &Server, user: Option<&[u8]>, password: &[u8]) -> Result<(), Refusal> {
    let Some(wanted) = &server.password else {
        let message = "AUTH <password> called without any password configured; serve.password is not set, and no password is needed";
        return Err(("ERR", message.to_owned()));
    };
    if user.is_none_or(|user| user == b"default") && is_equal(wanted.as_bytes(), password) {
        session.is_authenticated = true;
        return Ok(());
    }
    add(&server.stats.wrong_passwords, 1);
    Err(("WRONGPASS", "invalid username-password pair or user is disabled.".to_owned()))
}

/// Compares two values. The time does not depend on where the values differ.
pub(super) fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |differences, (one, other)| differences | (one ^ other));
    one.len() == other.len() && std::hint::black_box(differences) == 0
}

/// Handles `HELLO [version [AUTH user password] [SETNAME name]]`.
fn hello(session: &mut Session, server: &Server, command: Command<'_>, answers: &mut Answers) -> Result<(), Refusal> {
    let is_resp3 = match command.get(1) {
        None => session.resp3,
        Some(b"2") => false,
        Some(b"3") => true,
        Some(_) => return Err(("NOPROTO", "unsupported protocol version".to_owned())),
    };
    let (mut at, mut name) = (2, None);
    while at < command.len() {
        if command.is(at, "AUTH") && at + 2 < command.len() {
            know(session, server, command.get(at + 1), command.get(at + 2).unwrap_or_default())?;
            at += 3;
        } else if command.is(at, "SETNAME") && at + 1 < command.len() {
            name = command.get(at + 1);
            at += 2;
        } else {
            return Err(("ERR", format!("Syntax error in HELLO option '{}'", command.text(at))));
        }
    }
    if !session.is_authenticated {
        return Err((
            "NOAUTH",
            format!(
                "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time. {NO_PASSWORD}"
            ),
        ));
    }
    if let Some(name) = name {
        session.rename(name)?;
    }
    (session.resp3, answers.is_resp3) = (is_resp3, is_resp3);
    answers.map(7);
    for (name, value) in [("server", "unseen"), ("version", env!("CARGO_PKG_VERSION"))] {
        answers.bulk(name.as_bytes());
        answers.bulk(value.as_bytes());
    }
    for (name, value) in [("proto", if is_resp3 { 3 } else { 2 }), ("id", session.id)] {
        answers.bulk(name.as_bytes());
        answers.count(value);
    }
    for (name, value) in [("mode", "standalone"), ("role", "replica")] {
        answers.bulk(name.as_bytes());
        answers.bulk(value.as_bytes());
    }
    answers.bulk(b"modules");
    answers.array(0);
    Ok(())
}

fn client(session: &mut Session, command: Command<'_>, answers: &mut Answers) -> Result<(), Refusal> {
    command.has(2..=usize::MAX)?;
    match command.text(1).to_ascii_uppercase().as_str() {
        "ID" => answers.count(session.id),
        "GETNAME" if session.name.is_empty() => answers.null(),
        "GETNAME" => answers.bulk(&session.name),
        "SETNAME" => {
            command.has(3..=3)?;
            session.rename(command.get(2).unwrap_or_default())?;
            answers.simple("OK");
        }
        "SETINFO" | "NO-EVICT" | "NO-TOUCH" => answers.simple("OK"),
        "INFO" => {
            let resp = if session.resp3 { 3 } else { 2 };
            let line = format!("id={} name={} db=0 resp={resp}\n", session.id, String::from_utf8_lossy(&session.name));
            answers.bulk(line.as_bytes());
        }
        _ => return Err(("ERR", format!("unknown subcommand '{}'. Try CLIENT ID, GETNAME, SETNAME, SETINFO or INFO.", command.text(1)))),
    }
    Ok(())
}
