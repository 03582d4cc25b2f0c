//! What can be asked of the server and of its spaces.
//!
//! Owns the names by which clients of Redis know them.

use super::Server;
use super::commands::{Command, space};
use super::resp::Answers;
use crate::clock;
use crate::follower::{Space, SpaceReport};
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

/// Name, number of parts (at least so many if negative), and where the names of spaces stand: first, last, step.
const COMMANDS: [(&str, i64, [i64; 3]); 26] = [
    ("auth", -2, [0, 0, 0]),
    ("bf.card", 2, [1, 1, 1]),
    ("bf.exists", 3, [1, 1, 1]),
    ("bf.info", -2, [1, 1, 1]),
    ("bf.mexists", -3, [1, 1, 1]),
    ("cf.count", 3, [1, 1, 1]),
    ("cf.exists", 3, [1, 1, 1]),
    ("cf.info", 2, [1, 1, 1]),
    ("cf.mexists", -3, [1, 1, 1]),
    ("client", -2, [0, 0, 0]),
    ("command", -1, [0, 0, 0]),
    ("config", -2, [0, 0, 0]),
    ("dbsize", 1, [0, 0, 0]),
    ("echo", 2, [0, 0, 0]),
    ("exists", -2, [1, -1, 1]),
    ("hello", -1, [0, 0, 0]),
    ("info", -1, [0, 0, 0]),
    ("keys", 2, [0, 0, 0]),
    ("ping", -1, [0, 0, 0]),
    ("quit", -1, [0, 0, 0]),
    ("readonly", 1, [0, 0, 0]),
    ("readwrite", 1, [0, 0, 0]),
    ("reset", 1, [0, 0, 0]),
    ("scan", -2, [0, 0, 0]),
    ("select", 2, [0, 0, 0]),
    ("type", 2, [1, 1, 1]),
];

/// `COMMAND`, and what may stand behind it.
pub(super) fn command(command: Command<'_>, answers: &mut Answers) -> Result<(), (&'static str, String)> {
    let entry = |answers: &mut Answers, (name, arity, keys): &(&str, i64, [i64; 3])| {
        answers.array(6);
        answers.bulk(name.as_bytes());
        answers.integer(*arity);
        answers.array(2);
        answers.simple("readonly");
        answers.simple("fast");
        for number in keys {
            answers.integer(*number);
        }
    };
    let all = |answers: &mut Answers| {
        answers.array(COMMANDS.len());
        for known in &COMMANDS {
            entry(answers, known);
        }
    };
    match command.text(1).to_ascii_uppercase().as_str() {
        "" => all(answers),
        "COUNT" => answers.count(COMMANDS.len() as u64),
        "DOCS" => answers.map(0),
        "LIST" => {
            answers.array(COMMANDS.len());
            for (name, ..) in COMMANDS {
                answers.bulk(name.as_bytes());
            }
        }
        "INFO" if command.len() == 2 => all(answers),
        "INFO" => {
            answers.array(command.len() - 2);
            for number in 2..command.len() {
                let name = command.text(number).to_ascii_lowercase();
                match COMMANDS.iter().find(|(known, ..)| *known == name) {
                    Some(known) => entry(answers, known),
                    None => answers.null(),
                }
            }
        }
        other => return Err(("ERR", format!("unknown subcommand '{other}'. Try COMMAND COUNT, DOCS, INFO or LIST."))),
    }
    Ok(())
}

/// How a space stands, if it can be asked.
pub(super) fn ready(space: &Space) -> Result<SpaceReport, (&'static str, String)> {
    let report = space.report();
    match &report.unavailable {
        None => Ok(report),
        Some(reason) => Err(("LOADING", reason.to_string())),
    }
}

/// `BF.INFO space [field]` and `CF.INFO space`.
pub(super) fn filter(name: &str, server: &Server, command: Command<'_>, answers: &mut Answers) -> Result<(), (&'static str, String)> {
    let (_, space, _) = space(server, command.get(1).unwrap_or_default())?;
    let report = ready(space)?;
    let all: &[(&str, &str, u64)] = if name == "BF.INFO" {
        &[
            ("CAPACITY", "Capacity", report.capacity),
            ("SIZE", "Size", report.bytes),
            ("FILTERS", "Number of filters", report.partitions as u64),
            ("ITEMS", "Number of items inserted", report.keys),
            ("EXPANSION", "Expansion rate", 1),
        ]
    } else {
        &[
            ("", "Size", report.bytes),
            ("", "Number of buckets", report.capacity / 4),
            ("", "Number of filters", report.partitions as u64),
            ("", "Number of items inserted", report.keys),
            ("", "Number of items deleted", 0),
            ("", "Bucket size", 4),
            ("", "Expansion rate", 1),
            ("", "Max iterations", 1),
        ]
    };
    match command.len() {
        2 => {
            answers.map(all.len());
            for (_, name, value) in all {
                answers.simple(name);
                answers.count(*value);
            }
        }
        3 if name == "BF.INFO" => {
            let field = command.text(2).to_ascii_uppercase();
            let (_, name, value) =
                all.iter().find(|(short, ..)| *short == field).ok_or_else(|| ("ERR", "Invalid information value".to_owned()))?;
            if answers.is_resp3 {
                answers.map(1);
                answers.simple(name);
            } else {
                answers.array(1);
            }
            answers.count(*value);
        }
        _ => return Err(("ERR", format!("wrong number of arguments for '{}' command", name.to_lowercase()))),
    }
    Ok(())
}

/// `INFO`: in sections, as clients read it.
pub(super) fn info(server: &Server) -> String {
    let stats = &server.stats;
    let get = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let mut text = String::new();
    let loading = server.follower.spaces().iter().any(|space| space.report().unavailable.is_some());
    let _ = write!(
        text,
        "# Server\r\nredis_version:7.4.0\r\nredis_mode:standalone\r\nunseen_version:{}\r\nprocess_id:{}\r\nuptime_in_seconds:{}\r\n\r\n\
         # Clients\r\nconnected_clients:{}\r\nmaxclients:{}\r\n\r\n\
         # Persistence\r\nloading:{}\r\n\r\n\
         # Stats\r\ntotal_connections_received:{}\r\ntotal_commands_processed:{}\r\nrejected_connections:{}\r\nkeyspace_hits:{}\r\nkeyspace_misses:{}\r\n\r\n\
         # Replication\r\nrole:slave\r\n\r\n# Spaces\r\n",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        server.started.elapsed().as_secs(),
        get(&stats.connections),
        server.max_connections,
        u8::from(loading),
        get(&stats.accepted),
        get(&stats.commands),
        get(&stats.rejected),
        server.follower.spaces().iter().map(|space| space.report().answers[0]).sum::<u64>(),
        server.follower.spaces().iter().map(|space| space.report().answers[1]).sum::<u64>(),
    );
    for space in server.follower.spaces() {
        let report = space.report();
        let age = report.as_of.map(|as_of| clock::now().saturating_sub(as_of).max(0));
        let how = report.unavailable.as_ref().map_or_else(|| "ready".to_owned(), ToString::to_string);
        let _ = write!(
            text,
            "{}:partitions={},ready={},keys={},bytes={},staleness_ms={},rate={:e},state={}\r\n",
            space.name(),
            report.partitions,
            report.ready,
            report.keys,
            report.bytes,
            age.map_or_else(|| "unknown".to_owned(), |age| age.to_string()),
            report.rate,
            how.replace(',', ";")
        );
    }
    text
}
