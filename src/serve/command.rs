//! A parsed command, its key space, and the errors that reject it.
//!
//! Only parses the key space and checks the number of arguments. The callers run the command.

use super::Server;
use super::names::Name;
use crate::follower::{Space, Unavailable};
use crate::key::LookupError;
use std::ops::{Range, RangeInclusive};

/// The maximum length of a name in bytes. A command hashes the key parts in its name again for each item, so long names are slow.
const NAME_BYTES_MAX: usize = 1024;
pub(super) type Refusal = (&'static str, String);

#[derive(Clone, Copy)]
pub(super) struct Command<'c> {
    pub(super) bytes: &'c [u8],
    pub(super) parts: &'c [Range<usize>],
}

impl<'c> Command<'c> {
    /// Returns an argument by index. The name of the command has index 0.
    pub(super) fn get(&self, number: usize) -> Option<&'c [u8]> {
        self.parts.get(number).map(|part| &self.bytes[part.clone()])
    }

    pub(super) const fn len(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn is(&self, number: usize, word: &str) -> bool {
        self.get(number).is_some_and(|part| part.eq_ignore_ascii_case(word.as_bytes()))
    }

    pub(super) fn from(&self, number: usize) -> impl Iterator<Item = &'c [u8]> + use<'c> {
        let (bytes, parts) = (self.bytes, self.parts.get(number..).unwrap_or_default());
        parts.iter().map(move |part| &bytes[part.clone()])
    }

    /// Checks the number of arguments, including the command name.
    pub(super) fn has(&self, parts: RangeInclusive<usize>) -> Result<(), Refusal> {
        if parts.contains(&self.len()) { Ok(()) } else { Err(self.wrong_number()) }
    }

    pub(super) fn wrong_number(&self) -> Refusal {
        ("ERR", format!("wrong number of arguments for '{}' command", self.text(0).to_lowercase()))
    }

    /// Returns the first 128 bytes of an argument as text, for a message.
    pub(super) fn text(&self, number: usize) -> String {
        let part = self.get(number).unwrap_or_default();
        String::from_utf8_lossy(&part[..part.len().min(128)]).into_owned()
    }
}

/// Returns the error for an unavailable answer, with the code that Redis replicas use in a similar state.
pub(super) fn refusal(reason: &Unavailable) -> Refusal {
    let code = match reason {
        Unavailable::Nothing { .. } | Unavailable::Unowned { .. } | Unavailable::Loading { .. } | Unavailable::WarmingUp { .. } => {
            "LOADING"
        }
        Unavailable::Stale { .. } => "MASTERDOWN",
        _ => "ERR",
    };
    (code, reason.to_string())
}

pub(super) fn asked(error: &LookupError, name: &Name<'_>) -> Refusal {
    match error {
        LookupError::Parts { .. } => {
            ("ERR", format!("{error}; put all parts except the last in the name, such as {}:{{42}} for a key with two parts", name.space))
        }
        error => ("ERR", error.to_string()),
    }
}

/// Finds the key space that a name refers to. Returns its index, the space, and the parsed name.
pub(super) fn space<'s: 'n, 'n>(server: &'s Server, name: &'n [u8]) -> Result<(usize, &'s Space, Name<'n>), Refusal> {
    let shown = || String::from_utf8_lossy(&name[..name.len().min(128)]).into_owned();
    let spaces = server.follower.spaces();
    // The name of a space without key parts needs no parsing.
    if let Some(number) = spaces.iter().position(|space| space.name().as_bytes() == name) {
        return Ok((number, &spaces[number], Name::of(spaces[number].name())));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(("ERR", format!("a name has at most {NAME_BYTES_MAX} bytes, got {}", name.len())));
    }
    let parsed = Name::parse(name).ok_or_else(|| {
        ("ERR", format!("'{}' is not a valid name: expected SPACE, or SPACE:{{PART}} for keys with several parts", shown()))
    })?;
    if let Some(number) = spaces.iter().position(|space| space.name() == parsed.space) {
        return Ok((number, &spaces[number], parsed));
    }
    let names: Vec<_> = spaces.iter().map(Space::name).collect();
    Err(("ERR", format!("there is no key space '{}'; the configuration has {}", parsed.space, names.join(", "))))
}
