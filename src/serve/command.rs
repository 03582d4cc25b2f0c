//! A command in its parts, the space that it names, and how it is refused.
//!
//! Must never know what a command does.

use super::Server;
use super::names::Name;
use crate::follower::{Space, Unavailable};
use crate::key::LookupError;
use std::ops::{Range, RangeInclusive};

/// Most bytes of a name: each item of a command has it for the first parts of its key.
const NAME_BYTES_MAX: usize = 1024;
/// An error's code, and its sentence.
pub(super) type Refusal = (&'static str, String);

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

    pub(super) fn is(&self, number: usize, word: &str) -> bool {
        self.get(number).is_some_and(|part| part.eq_ignore_ascii_case(word.as_bytes()))
    }

    pub(super) fn from(&self, number: usize) -> impl Iterator<Item = &'c [u8]> + use<'c> {
        let (bytes, parts) = (self.bytes, self.parts.get(number..).unwrap_or_default());
        parts.iter().map(move |part| &bytes[part.clone()])
    }

    /// Refuses a command that has not so many parts.
    pub(super) fn has(&self, parts: RangeInclusive<usize>) -> Result<(), Refusal> {
        if parts.contains(&self.len()) { Ok(()) } else { Err(self.wrong_number()) }
    }

    /// That it has too few parts, or too many.
    pub(super) fn wrong_number(&self) -> Refusal {
        ("ERR", format!("wrong number of arguments for '{}' command", self.text(0).to_lowercase()))
    }

    /// The part as text, for a message; not all of a long one.
    pub(super) fn text(&self, number: usize) -> String {
        let part = self.get(number).unwrap_or_default();
        String::from_utf8_lossy(&part[..part.len().min(128)]).into_owned()
    }
}

/// Says why there is no answer, with the code by which clients know such a state of a replica.
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

/// Says why a key cannot be asked for.
pub(super) fn asked(error: &LookupError, name: &Name<'_>) -> Refusal {
    match error {
        LookupError::Parts { .. } => ("ERR", format!("{error}; parts before the last go into the name, as in {}:{{42}}", name.space)),
        error => ("ERR", error.to_string()),
    }
}

/// The space that a name names.
pub(super) fn space<'s: 'n, 'n>(server: &'s Server, name: &'n [u8]) -> Result<(usize, &'s Space, Name<'n>), Refusal> {
    let shown = || String::from_utf8_lossy(&name[..name.len().min(128)]).into_owned();
    let spaces = server.follower.spaces();
    // A space's own name has no parts of a key in it, and need not be read.
    if let Some(number) = spaces.iter().position(|space| space.name().as_bytes() == name) {
        return Ok((number, &spaces[number], Name::of(spaces[number].name())));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(("ERR", format!("a name has at most {NAME_BYTES_MAX} bytes, got {}", name.len())));
    }
    let parsed = Name::parse(name).ok_or_else(|| {
        ("ERR", format!("'{}' is no name of a key space: expected SPACE, or SPACE:{{PART}} for keys of several parts", shown()))
    })?;
    if let Some(number) = spaces.iter().position(|space| space.name() == parsed.space) {
        return Ok((number, &spaces[number], parsed));
    }
    let names: Vec<_> = spaces.iter().map(Space::name).collect();
    Err(("ERR", format!("there is no key space '{}'; the configuration has {}", parsed.space, names.join(", "))))
}
