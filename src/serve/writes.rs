//! Commands that would write.
//!
//! Must never change a state: what was seen is decided by the stream.

use super::Server;
use super::command::{Command, Refusal, space};

/// Commands by which clients fill filters.
const WRITES: [&str; 16] = [
    "BF.ADD",
    "BF.MADD",
    "BF.INSERT",
    "BF.LOADCHUNK",
    "BF.RESERVE",
    "BF.SCANDUMP",
    "CF.ADD",
    "CF.ADDNX",
    "CF.DEL",
    "CF.INSERT",
    "CF.INSERTNX",
    "CF.LOADCHUNK",
    "CF.RESERVE",
    "CF.SCANDUMP",
    "DEL",
    "UNLINK",
];

/// Whether a command is one of them, by its name in capitals.
pub(super) fn is_write(name: &str) -> bool {
    WRITES.contains(&name)
}

/// Why it is not done.
pub(super) fn refuse(name: &str, server: &Server, command: Command<'_>) -> Refusal {
    if let Err(refusal) = space(server, command.get(1).unwrap_or_default()) {
        return refusal;
    }
    let sentence = match name {
        "BF.RESERVE" | "CF.RESERVE" => "key spaces are configured: a topic with this space says its window and filter",
        "BF.SCANDUMP" | "CF.SCANDUMP" | "BF.LOADCHUNK" | "CF.LOADCHUNK" => {
            "states are made from the changelog, and can be neither saved nor loaded here"
        }
        _ => "what was seen is decided by the stream: write a record to the space's input topic",
    };
    ("READONLY", format!("You can't write against a read only replica; {sentence}"))
}
