//! What clients of Redis may ask for.
//!
//! Owns the commands, and their errors in the forms that clients know. Must never write, nor answer 0 for what is not known.

use super::Server;
use super::command::{Command, Refusal, refusal, space};
use super::info;
use super::names::{Texts, is_like};
use super::resp::Answers;
use super::writes;
use crate::follower::{Answer, Lookup};
use crate::key::LookupError;
use std::ops::Range;

/// What is said where a password is wanted.
const NO_PASSWORD: &str = "Authentication required.";
/// Most bytes of commands between MULTI and EXEC.
const QUEUED_BYTES_MAX: usize = 1 << 20;
/// Answers to one EXEC are refused past so many bytes: they are sent together.
const EXEC_BYTES_MAX: usize = 16 << 20;

/// What is known of a connection.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// Commands that wait for EXEC, since MULTI. There is nothing that they could see half of, but some clients send every
    /// pipeline so.
    queued: Option<Queue>,
    id: u64,
    /// Whether it has given the password, or none is wanted.
    pub(super) is_known: bool,
    name: Vec<u8>,
    resp3: bool,
}

/// Commands that wait.
#[derive(Debug, Default)]
struct Queue {
    commands: Vec<(Vec<u8>, Vec<Range<usize>>)>,
    bytes: usize,
}

impl Session {
    pub(super) fn new(id: u64, is_known: bool) -> Self {
        Self { id, is_known, ..Self::default() }
    }

    /// Keeps a command until EXEC.
    fn queue(&mut self, command: Command<'_>, answers: &mut Answers) {
        let Some(queue) = &mut self.queued else { return };
        queue.bytes += command.bytes.len();
        if queue.bytes > QUEUED_BYTES_MAX {
            self.queued = None;
            answers.error(
                "ERR",
                &format!("more than {QUEUED_BYTES_MAX} bytes of commands since MULTI, which are dropped; send shorter pipelines"),
            );
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

/// Whether a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Go,
    Close,
}

/// Keys that are asked for, of commands that follow each other: asked for at once, they take a fraction.
#[derive(Debug, Default)]
pub(super) struct Pending {
    lookup: Lookup,
    /// Number of their space.
    space: usize,
    commands: Vec<(Form, usize)>,
}

/// How a command is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    One,
    Many,
    Count,
}

impl Pending {
    /// Answers what waits.
    pub(super) fn flush(&mut self, server: &Server, answers: &mut Answers) {
        if self.commands.is_empty() {
            return;
        }
        let (found, unavailable) = server.follower.spaces()[self.space].answer(&mut self.lookup);
        let mut at = 0;
        for (form, keys) in self.commands.drain(..) {
            let found = &found[at..at + keys];
            at += keys;
            match (&unavailable, form) {
                (Some(reason), _) if found.contains(&Answer::Unknown) => {
                    let (code, sentence) = refusal(reason);
                    answers.error(code, &sentence);
                }
                (_, Form::One) => answers.bool(found.contains(&Answer::Seen)),
                (_, Form::Count) => answers.integer(i64::from(found.contains(&Answer::Seen))),
                (_, Form::Many) => {
                    answers.array(keys);
                    for answer in found {
                        answers.bool(*answer == Answer::Seen);
                    }
                }
            }
        }
        server.stats.answered(at);
        self.lookup.clear();
    }

    /// Takes a command that asks for keys.
    fn ask(&mut self, server: &Server, command: Command<'_>, form: Form, answers: &mut Answers) -> Result<(), (&'static str, String)> {
        let (number, _, name) = space(server, command.get(1).unwrap_or_default())?;
        if self.space != number {
            self.flush(server, answers);
            self.space = number;
        }
        let before = self.lookup.len();
        for item in command.from(2) {
            if let Err(error) = server.follower.spaces()[number].add(&mut self.lookup, Texts::new(&name, item)) {
                self.lookup.truncate(before);
                let space = name.space;
                return Err(match error {
                    LookupError::Parts { .. } => ("ERR", format!("{error}; parts before the last go into the name, as in {space}:{{42}}")),
                    error => ("ERR", error.to_string()),
                });
            }
        }
        self.commands.push((form, self.lookup.len() - before));
        Ok(())
    }
}

/// Does what a command says, or keeps it until EXEC.
pub(super) fn run(session: &mut Session, server: &Server, command: Command<'_>, pending: &mut Pending, answers: &mut Answers) -> Next {
    let Some(name) = command.get(0) else { return Next::Go };
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    if session.queued.is_some() && !["EXEC", "DISCARD", "MULTI", "QUIT", "RESET"].iter().any(|word| is(word)) {
        session.queue(command, answers);
        return Next::Go;
    }
    if is("EXEC") && session.is_known {
        pending.flush(server, answers);
        let Some(queue) = session.queued.take() else {
            answers.error("ERR", "EXEC without MULTI");
            return Next::Go;
        };
        answers.array(queue.commands.len());
        for (bytes, parts) in &queue.commands {
            let bytes = &bytes[..];
            if answers.bytes.len() > EXEC_BYTES_MAX {
                pending.flush(server, answers);
                answers.error("ERR", "the answers to this EXEC are too large; send shorter pipelines");
                continue;
            }
            // None of them is EXEC, so this goes no deeper.
            now(session, server, Command { bytes, parts }, pending, answers);
        }
        return Next::Go;
    }
    now(session, server, command, pending, answers)
}

/// Does what a command says.
fn now(session: &mut Session, server: &Server, command: Command<'_>, pending: &mut Pending, answers: &mut Answers) -> Next {
    let Some(name) = command.get(0) else { return Next::Go };
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    let form = match command.len() {
        3 if is("BF.EXISTS") || is("CF.EXISTS") => Some(Form::One),
        3.. if is("BF.MEXISTS") || is("CF.MEXISTS") => Some(Form::Many),
        3 if is("CF.COUNT") => Some(Form::Count),
        _ => None,
    };
    if let Some(form) = form.filter(|_| session.is_known) {
        if let Err((code, sentence)) = pending.ask(server, command, form, answers) {
            pending.flush(server, answers);
            answers.error(code, &sentence);
        }
        return Next::Go;
    }
    pending.flush(server, answers);
    let upper = String::from_utf8_lossy(&name[..name.len().min(32)]).to_ascii_uppercase();
    match other(&upper, session, server, command, answers) {
        Ok(next) => next,
        Err((code, sentence)) => {
            answers.error(code, &sentence);
            Next::Go
        }
    }
}

/// Whether the number of parts is right.
fn arity(command: Command<'_>, range: std::ops::RangeInclusive<usize>) -> Result<(), Refusal> {
    if range.contains(&command.len()) {
        return Ok(());
    }
    Err(("ERR", format!("wrong number of arguments for '{}' command", command.text(0).to_lowercase())))
}

fn other(name: &str, session: &mut Session, server: &Server, command: Command<'_>, answers: &mut Answers) -> Result<Next, Refusal> {
    match name {
        "AUTH" => auth(session, server, command, answers)?,
        "HELLO" => hello(session, server, command, answers)?,
        "QUIT" => {
            answers.simple("OK");
            return Ok(Next::Close);
        }
        "RESET" => {
            *session = Session::new(session.id, server.password.is_none());
            answers.is_resp3 = false;
            answers.simple("RESET");
        }
        _ if !session.is_known => return Err(("NOAUTH", NO_PASSWORD.to_owned())),
        "PING" => {
            arity(command, 1..=2)?;
            match command.get(1) {
                Some(message) => answers.bulk(message),
                None => answers.simple("PONG"),
            }
        }
        "ECHO" => {
            arity(command, 2..=2)?;
            answers.bulk(command.get(1).unwrap_or_default());
        }
        "SELECT" => match command.get(1) {
            Some(b"0") => answers.simple("OK"),
            _ => return Err(("ERR", "DB index is out of range: there is 0 only".to_owned())),
        },
        "READONLY" | "READWRITE" | "UNWATCH" | "WATCH" => answers.simple("OK"),
        "MULTI" if session.queued.is_some() => return Err(("ERR", "MULTI calls can not be nested".to_owned())),
        "MULTI" => {
            session.queued = Some(Queue::default());
            answers.simple("OK");
        }
        "DISCARD" if session.queued.take().is_some() => answers.simple("OK"),
        "DISCARD" => return Err(("ERR", "DISCARD without MULTI".to_owned())),
        "CLIENT" => client(session, command, answers)?,
        "COMMAND" => info::command(command, answers)?,
        "CONFIG" if command.is(1, "GET") => answers.map(0),
        "INFO" => answers.bulk(info::info(server, &command.text(1)).as_bytes()),
        "DBSIZE" => answers.count(server.follower.spaces().len() as u64),
        "EXISTS" => {
            arity(command, 2..=usize::MAX)?;
            answers.count(command.from(1).filter(|name| space(server, name).is_ok()).count() as u64);
        }
        "TYPE" => {
            arity(command, 2..=2)?;
            let is_there = space(server, command.get(1).unwrap_or_default()).is_ok();
            answers.simple(if is_there { "MBbloom--" } else { "none" });
        }
        "KEYS" => {
            arity(command, 2..=2)?;
            spaces_like(server, command.get(1).unwrap_or_default(), answers);
        }
        "SCAN" => scan(server, command, answers)?,
        "BF.INFO" | "CF.INFO" => info::filter(name, server, command, answers)?,
        "BF.CARD" => {
            arity(command, 2..=2)?;
            let (_, space, _) = space(server, command.get(1).unwrap_or_default())?;
            answers.count(info::ready(space)?.keys);
        }
        "BF.EXISTS" | "BF.MEXISTS" | "CF.EXISTS" | "CF.MEXISTS" | "CF.COUNT" => {
            return Err(("ERR", format!("wrong number of arguments for '{}' command", name.to_lowercase())));
        }
        name if writes::is_write(name) => return Err(writes::refuse(name, server, command, answers)),
        _ => {
            let more: Vec<_> = (1..command.len().min(4)).map(|number| format!("'{}'", command.text(number))).collect();
            let sentence = format!("unknown command '{}', with args beginning with: {}", command.text(0), more.join(" "));
            return Err(("ERR", sentence));
        }
    }
    Ok(Next::Go)
}

/// `AUTH [user] password`.
fn auth(session: &mut Session, server: &Server, command: Command<'_>, answers: &mut Answers) -> Result<(), Refusal> {
    arity(command, 2..=3)?;
    let (user, password) = if command.len() == 3 { (command.get(1), command.get(2)) } else { (None, command.get(1)) };
    know(session, server, user, password.unwrap_or_default())?;
    answers.simple("OK");
    Ok(())
}

fn know(session: &mut Session, server: &Server, user: Option<&[u8]>, password: &[u8]) -> Result<(), Refusal> {
    let Some(wanted) = &server.password else {
        let sentence = "AUTH <password> called without any password configured: serve.password is not set, and anybody may ask";
        return Err(("ERR", sentence.to_owned()));
    };
    if user.is_none_or(|user| user == b"default") && is_equal(wanted.as_bytes(), password) {
        session.is_known = true;
        return Ok(());
    }
    server.stats.refused_password();
    Err(("WRONGPASS", "invalid username-password pair or user is disabled.".to_owned()))
}

/// Whether they are equal, in a time that does not depend on where they differ.
pub(super) fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |differences, (one, other)| differences | (one ^ other));
    one.len() == other.len() && std::hint::black_box(differences) == 0
}

/// `HELLO [version [AUTH user password] [SETNAME name]]`.
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
    if !session.is_known {
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
    arity(command, 2..=usize::MAX)?;
    match command.text(1).to_ascii_uppercase().as_str() {
        "ID" => answers.count(session.id),
        "GETNAME" if session.name.is_empty() => answers.null(),
        "GETNAME" => answers.bulk(&session.name),
        "SETNAME" => {
            arity(command, 3..=3)?;
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

fn spaces_like(server: &Server, pattern: &[u8], answers: &mut Answers) {
    let names: Vec<_> =
        server.follower.spaces().iter().map(|space| space.name().as_bytes()).filter(|name| is_like(name, pattern)).collect();
    answers.array(names.len());
    for name in names {
        answers.bulk(name);
    }
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`: all spaces at once, for they are few.
fn scan(server: &Server, command: Command<'_>, answers: &mut Answers) -> Result<(), Refusal> {
    if command.get(1).is_none_or(|cursor| cursor.is_empty() || !cursor.iter().all(u8::is_ascii_digit)) {
        return Err(("ERR", "invalid cursor".to_owned()));
    }
    let (mut pattern, mut is_type) = (&b"*"[..], true);
    for at in (2..command.len()).step_by(2) {
        let value = command.get(at + 1).ok_or_else(|| ("ERR", "syntax error".to_owned()))?;
        match command.text(at).to_ascii_uppercase().as_str() {
            "MATCH" => pattern = value,
            "COUNT" => {}
            "TYPE" => is_type = value.eq_ignore_ascii_case(b"MBbloom--"),
            _ => return Err(("ERR", "syntax error".to_owned())),
        }
    }
    answers.array(2);
    answers.bulk(b"0");
    if is_type && command.get(1) == Some(b"0") {
        spaces_like(server, pattern, answers);
    } else {
        answers.array(0);
    }
    Ok(())
}
