//! What clients of Redis may ask for.
//!
//! Owns the commands, and their errors in the forms that clients know. Must never write, nor answer 0 for what is not known.

use super::Server;
use super::info;
use super::names::{Name, Texts, is_like};
use super::resp::Answers;
use super::writes;
use crate::follower::{Answer, Lookup, Space, Unavailable};
use std::ops::Range;

/// What is said where a password is wanted.
const NO_PASSWORD: &str = "Authentication required.";

/// A command's parts.
#[derive(Clone, Copy)]
pub(super) struct Command<'c> {
    pub(super) bytes: &'c [u8],
    pub(super) parts: &'c [Range<usize>],
}

impl<'c> Command<'c> {
    /// The part of that number; the name of the command is the first.
    pub(super) fn get(&self, number: usize) -> Option<&'c [u8]> {
        self.parts.get(number).map(|part| &self.bytes[part.clone()])
    }

    pub(super) const fn len(&self) -> usize {
        self.parts.len()
    }

    fn is(&self, number: usize, word: &str) -> bool {
        self.get(number).is_some_and(|part| part.eq_ignore_ascii_case(word.as_bytes()))
    }

    fn from(&self, number: usize) -> impl Iterator<Item = &'c [u8]> + use<'c> {
        let (bytes, parts) = (self.bytes, self.parts.get(number..).unwrap_or_default());
        parts.iter().map(move |part| &bytes[part.clone()])
    }

    /// The part as text, for a message; not all of a long one.
    pub(super) fn text(&self, number: usize) -> String {
        let part = self.get(number).unwrap_or_default();
        String::from_utf8_lossy(&part[..part.len().min(128)]).into_owned()
    }
}

/// What is known of a connection.
#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) id: u64,
    /// Whether it has given the password, or none is wanted.
    pub(super) is_known: bool,
    pub(super) name: Vec<u8>,
    pub(super) resp3: bool,
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
                (Some(reason), _) if found.contains(&Answer::Unknown) => refuse(reason, answers),
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
                return Err(("ERR", format!("{error}; parts before the last go into the name, as in {space}:{{42}}")));
            }
        }
        self.commands.push((form, self.lookup.len() - before));
        Ok(())
    }
}

/// Says why there is no answer, with the code by which clients know such a state of a replica.
fn refuse(reason: &Unavailable, answers: &mut Answers) {
    let code = match reason {
        Unavailable::Loading { .. } | Unavailable::Nothing { .. } => "LOADING",
        Unavailable::Stale { .. } => "MASTERDOWN",
        _ => "ERR",
    };
    answers.error(code, &reason.to_string());
}

/// The space that a name names.
pub(super) fn space<'s, 'n>(server: &'s Server, name: &'n [u8]) -> Result<(usize, &'s Space, Name<'n>), (&'static str, String)> {
    let shown = || String::from_utf8_lossy(&name[..name.len().min(128)]).into_owned();
    let spaces = server.follower.spaces();
    let parsed = Name::parse(name).ok_or_else(|| {
        ("ERR", format!("'{}' is no name of a key space: expected SPACE, or SPACE:{{PART}} for keys of several parts", shown()))
    })?;
    if let Some(number) = spaces.iter().position(|space| space.name() == parsed.space) {
        return Ok((number, &spaces[number], parsed));
    }
    let names: Vec<_> = spaces.iter().map(Space::name).collect();
    Err(("ERR", format!("there is no key space '{}'; the configuration has {}", parsed.space, names.join(", "))))
}

/// Does what a command says.
pub(super) fn run(session: &mut Session, server: &Server, command: Command<'_>, pending: &mut Pending, answers: &mut Answers) -> Next {
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

type Refusal = (&'static str, String);

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
            *session = Session { id: session.id, is_known: server.password.is_none(), ..Session::default() };
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
        "READONLY" | "READWRITE" => answers.simple("OK"),
        "CLIENT" => client(session, command, answers)?,
        "COMMAND" => info::command(command, answers)?,
        "CONFIG" if command.is(1, "GET") => answers.map(0),
        "INFO" => answers.bulk(info::info(server).as_bytes()),
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
        session.name = name.to_vec();
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
            let name = command.get(2).unwrap_or_default();
            if name.len() > 256 || !name.iter().all(u8::is_ascii_graphic) {
                return Err(("ERR", "Client names cannot contain spaces, newlines or special characters.".to_owned()));
            }
            session.name = name.to_vec();
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
