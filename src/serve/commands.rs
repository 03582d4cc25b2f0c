//! The commands of Redis clients.
//!
//! Runs the commands and formats errors as clients expect them. A command never answers 0 (not seen) if the answer is unknown. A command in
//! the body of an HTTP request never runs, because a web page may have sent the request.

use super::Server;
use super::command::{Command, Refusal, space};
use super::info;
use super::pending::{Form, Pending};
use super::resp::Answers;
use super::session::{self, Session};
use super::writes;
use crate::broker::throttle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Go,
    Close,
}

/// Runs a command or queues it until EXEC.
pub(super) fn run(session: &mut Session, server: &Server, command: Command<'_>, pending: &mut Pending, answers: &mut Answers) -> Next {
    let Some(name) = command.get(0) else { return Next::Go };
    if is_http(name) {
        throttle::report("HTTP at serve.listen", |suppressed| {
            tracing::warn!(
                suppressed,
                "closing a connection that sends HTTP to serve.listen, possibly from a web page; HTTP clients must use serve.http_listen"
            );
        });
        return Next::Close;
    }
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    if session.queued.is_some() && !["EXEC", "DISCARD", "MULTI", "QUIT", "RESET"].iter().any(|word| is(word)) {
        session.queue(command, answers);
        return Next::Go;
    }
    if is("EXEC") && session.is_authenticated {
        pending.flush(server, answers);
        let Some(queue) = session.queued.take() else {
            answers.error("ERR", "EXEC without MULTI");
            return Next::Go;
        };
        if queue.is_aborted {
            answers.error("EXECABORT", "Transaction discarded because of previous errors.");
            return Next::Go;
        }
        answers.array(queue.commands.len());
        session.executing = queue.commands.into_iter();
        return Next::Go;
    }
    now(session, server, command, pending, answers)
}

/// Runs the next command of an EXEC. Returns false if no command is left.
pub(super) fn run_queued(session: &mut Session, server: &Server, pending: &mut Pending, answers: &mut Answers) -> bool {
    let Some((bytes, parts)) = session.executing.next() else { return false };
    // A queued command never closes the connection, because QUIT is not queued.
    now(session, server, Command { bytes: &bytes, parts: &parts }, pending, answers);
    true
}

/// True if the name of a command is `POST` or starts with `Host:`. Almost every HTTP request has such a line, and no real command has such
/// a name. Redis closes the connection in the same cases.
fn is_http(name: &[u8]) -> bool {
    let begins_with = |word: &str| name.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes()));
    (begins_with("POST") && name.len() == 4) || begins_with("HOST:")
}

fn now(session: &mut Session, server: &Server, command: Command<'_>, pending: &mut Pending, answers: &mut Answers) -> Next {
    let Some(name) = command.get(0) else { return Next::Go };
    // Most clients send names in capitals, so the fast comparison comes first.
    let is = |word: &str| name == word.as_bytes() || name.eq_ignore_ascii_case(word.as_bytes());
    let form = match command.len() {
        3 if is("BF.EXISTS") || is("CF.EXISTS") => Some(Form::One),
        3.. if is("BF.MEXISTS") || is("CF.MEXISTS") => Some(Form::Many),
        3 if is("CF.COUNT") => Some(Form::Count),
        _ => None,
    };
    if let Some(form) = form.filter(|_| session.is_authenticated) {
        if let Err((code, message)) = pending.ask(server, command, form, answers) {
            pending.flush(server, answers);
            answers.error(code, &message);
        }
        return Next::Go;
    }
    pending.flush(server, answers);
    let upper = String::from_utf8_lossy(&name[..name.len().min(32)]).to_ascii_uppercase();
    match other(&upper, session, server, command, answers) {
        Ok(next) => next,
        Err((code, message)) => {
            answers.error(code, &message);
            Next::Go
        }
    }
}

fn other(name: &str, session: &mut Session, server: &Server, command: Command<'_>, answers: &mut Answers) -> Result<Next, Refusal> {
    if name == "QUIT" {
        answers.simple("OK");
        return Ok(Next::Close);
    }
    if let Some(done) = session::run(name, session, server, command, answers) {
        return done.map(|()| Next::Go);
    }
    match name {
        "PING" => {
            command.has(1..=2)?;
            match command.get(1) {
                Some(message) => answers.bulk(message),
                None => answers.simple("PONG"),
            }
        }
        "ECHO" => {
            command.has(2..=2)?;
            answers.bulk(command.get(1).unwrap_or_default());
        }
        "COMMAND" => info::command(command, answers)?,
        "CONFIG" if command.is(1, "GET") => answers.map(0),
        "INFO" => answers.bulk(info::info(server, &command.text(1)).as_bytes()),
        "DBSIZE" => answers.count(server.follower.spaces().len() as u64),
        "EXISTS" => {
            command.has(2..=usize::MAX)?;
            answers.count(command.from(1).filter(|name| space(server, name).is_ok()).count() as u64);
        }
        "TYPE" => {
            command.has(2..=2)?;
            let is_there = space(server, command.get(1).unwrap_or_default()).is_ok();
            answers.simple(if is_there { "MBbloom--" } else { "none" });
        }
        "BF.INFO" | "CF.INFO" => info::filter(name, server, command, answers)?,
        "BF.CARD" => {
            command.has(2..=2)?;
            let (_, space, _) = space(server, command.get(1).unwrap_or_default())?;
            answers.count(info::ready(space)?.keys);
        }
        // Valid calls were handled above, so the number of arguments is wrong.
        "BF.EXISTS" | "BF.MEXISTS" | "CF.EXISTS" | "CF.MEXISTS" | "CF.COUNT" => return Err(command.wrong_number()),
        name if writes::is_write(name) => writes::run(name, server, command, &mut session.waiting, answers)?,
        _ => {
            let more: Vec<_> = (1..command.len().min(4)).map(|number| format!("'{}'", command.text(number))).collect();
            let message = format!("unknown command '{}', with args beginning with: {}", command.text(0), more.join(" "));
            return Err(("ERR", message));
        }
    }
    Ok(Next::Go)
}
