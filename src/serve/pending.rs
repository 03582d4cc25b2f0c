//! Lookups of consecutive commands, collected into one batch.
//!
//! Keeps the answers in the order of the commands. An unknown answer never becomes 0 (not seen).

use super::Server;
use super::command::{Command, Refusal, asked, refusal, space};
use super::names::Texts;
use super::resp::Answers;
use crate::follower::{Answer, Query};

/// The pending lookups of consecutive commands. One batch takes a fraction of the time that single lookups take.
#[derive(Debug, Default)]
pub(super) struct Pending {
    query: Query,
    /// The index of the key space of all pending lookups.
    space: usize,
    commands: Vec<(Form, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    One,
    Many,
    Count,
}

impl Pending {
    pub(super) fn flush(&mut self, server: &Server, answers: &mut Answers) {
        if self.commands.is_empty() {
            return;
        }
        let (found, unavailable) = server.follower.spaces()[self.space].answer(&mut self.query);
        let mut at = 0;
        for (form, keys) in self.commands.drain(..) {
            let found = &found[at..at + keys];
            at += keys;
            match (&unavailable, form) {
                (Some(reason), _) if found.contains(&Answer::Unknown) => {
                    let (code, message) = refusal(reason);
                    answers.error(code, &message);
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
        self.query.clear();
    }

    /// Adds a lookup command. If the pending commands are for another key space, answers them first.
    pub(super) fn ask(&mut self, server: &Server, command: Command<'_>, form: Form, answers: &mut Answers) -> Result<(), Refusal> {
        let (number, _, name) = space(server, command.get(1).unwrap_or_default())?;
        if self.space != number {
            self.flush(server, answers);
            self.space = number;
        }
        let before = self.query.len();
        for item in command.from(2) {
            if let Err(error) = server.follower.spaces()[number].add(&mut self.query, Texts::new(&name, item)) {
                self.query.truncate(before);
                return Err(asked(&error, &name));
            }
        }
        self.commands.push((form, self.query.len() - before));
        Ok(())
    }
}
