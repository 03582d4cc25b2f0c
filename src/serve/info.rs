//! Commands that describe the server and its key spaces.
//!
//! The field names are the ones that Redis clients expect.

use super::Server;
use super::command::{Command, Refusal, refusal, space};
use super::resp::Answers;
use super::writes::is_write;
use crate::follower::{Space, SpaceReport};
use crate::runtime;
use crate::stats::get;
use std::fmt::Write as _;

/// The name of each command, its number of arguments including the name (negative if it is a minimum), and the positions of the arguments
/// with key spaces: first, last, step.
const COMMANDS: [(&str, i64, [i64; 3]); 39] = [
    ("auth", -2, [0, 0, 0]),
    ("bf.add", 3, [1, 1, 1]),
    ("bf.card", 2, [1, 1, 1]),
    ("bf.exists", 3, [1, 1, 1]),
    ("bf.info", -2, [1, 1, 1]),
    ("bf.insert", -4, [1, 1, 1]),
    ("bf.madd", -3, [1, 1, 1]),
    ("bf.mexists", -3, [1, 1, 1]),
    ("bf.reserve", -4, [1, 1, 1]),
    ("cf.add", 3, [1, 1, 1]),
    ("cf.addnx", 3, [1, 1, 1]),
    ("cf.count", 3, [1, 1, 1]),
    ("cf.del", 3, [1, 1, 1]),
    ("cf.exists", 3, [1, 1, 1]),
    ("cf.info", 2, [1, 1, 1]),
    ("cf.insert", -4, [1, 1, 1]),
    ("cf.insertnx", -4, [1, 1, 1]),
    ("cf.mexists", -3, [1, 1, 1]),
    ("cf.reserve", -3, [1, 1, 1]),
    ("client", -2, [0, 0, 0]),
    ("command", -1, [0, 0, 0]),
    ("config", -2, [0, 0, 0]),
    ("dbsize", 1, [0, 0, 0]),
    ("discard", 1, [0, 0, 0]),
    ("echo", 2, [0, 0, 0]),
    ("exec", 1, [0, 0, 0]),
    ("exists", -2, [1, -1, 1]),
    ("hello", -1, [0, 0, 0]),
    ("info", -1, [0, 0, 0]),
    ("multi", 1, [0, 0, 0]),
    ("ping", -1, [0, 0, 0]),
    ("quit", -1, [0, 0, 0]),
    ("readonly", 1, [0, 0, 0]),
    ("readwrite", 1, [0, 0, 0]),
    ("reset", 1, [0, 0, 0]),
    ("select", 2, [0, 0, 0]),
    ("type", 2, [1, 1, 1]),
    ("unwatch", 1, [0, 0, 0]),
    ("watch", -2, [1, -1, 1]),
];

/// Handles `COMMAND` and its subcommands.
pub(super) fn command(command: Command<'_>, answers: &mut Answers) -> Result<(), Refusal> {
    let entry = |answers: &mut Answers, (name, arity, keys): &(&str, i64, [i64; 3])| {
        // The format of Redis 7. The four empty arrays at the end are categories, tips, key specifications, and subcommands.
        answers.array(10);
        answers.bulk(name.as_bytes());
        answers.integer(*arity);
        answers.array(2);
        answers.simple(if is_write(&name.to_ascii_uppercase()) { "write" } else { "readonly" });
        answers.simple("fast");
        for number in keys {
            answers.integer(*number);
        }
        for _ in 0..4 {
            answers.array(0);
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

pub(super) fn ready(space: &Space) -> Result<SpaceReport, Refusal> {
    let report = space.report();
    match &report.unavailable {
        None => Ok(report),
        Some(reason) => Err(refusal(reason)),
    }
}

/// Handles `BF.INFO space [field]` and `CF.INFO space`.
pub(super) fn filter(name: &str, server: &Server, command: Command<'_>, answers: &mut Answers) -> Result<(), Refusal> {
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
        _ => return Err(command.wrong_number()),
    }
    Ok(())
}

/// Returns the answer to `INFO [section]`, in the text format of Redis.
pub(super) fn info(server: &Server, wanted: &str) -> String {
    let stats = &server.stats;
    let spaces: Vec<_> = server.follower.spaces().iter().map(|space| (space.name(), space.report())).collect();
    let sum = |value: fn(&SpaceReport) -> u64| spaces.iter().map(|(_, report)| value(report)).sum::<u64>();
    let loading = spaces.iter().any(|(_, report)| report.ready < report.partitions || report.partitions == 0);
    let mut of_spaces = String::new();
    for (name, report) in &spaces {
        let age = report.as_of.map(|as_of| runtime::wall_clock().saturating_sub(as_of).max(0));
        let how = report.unavailable.as_ref().map_or_else(|| "ready".to_owned(), ToString::to_string);
        let _ = write!(
            of_spaces,
            "{name}:partitions={},ready={},keys={},bytes={},staleness_ms={},rate={:e},state={}\r\n",
            report.partitions,
            report.ready,
            report.keys,
            report.bytes,
            age.map_or_else(|| "unknown".to_owned(), |age| age.to_string()),
            report.rate,
            how.replace(',', ";")
        );
    }
    let (version, pid, uptime) = (env!("CARGO_PKG_VERSION"), std::process::id(), server.started.elapsed().as_secs());
    let sections = [
        (
            "Server",
            format!(
                "redis_version:7.4.0\r\nredis_mode:standalone\r\nunseen_version:{version}\r\nprocess_id:{pid}\r\nuptime_in_seconds:{uptime}\r\n"
            ),
        ),
        (
            "Clients",
            format!("connected_clients:{}\r\nmaxclients:{}\r\nblocked_clients:0\r\n", get(&stats.connections), server.max_connections),
        ),
        ("Memory", format!("used_memory:{}\r\n", sum(|report| report.bytes))),
        ("Persistence", format!("loading:{}\r\n", u8::from(loading))),
        (
            "Stats",
            format!(
                "total_connections_received:{}\r\ntotal_commands_processed:{}\r\nrejected_connections:{}\r\nkeyspace_hits:{}\r\nkeyspace_misses:{}\r\n",
                get(&stats.accepted),
                get(&stats.commands),
                get(&stats.rejected),
                sum(|report| report.answers[0]),
                sum(|report| report.answers[1])
            ),
        ),
        ("Replication", "role:slave\r\n".to_owned()),
        ("Keyspace", format!("db0:keys={},expires=0,avg_ttl=0\r\n", spaces.len())),
        ("Spaces", of_spaces),
    ];
    let is_wanted =
        |name: &str| ["", "all", "default", "everything"].contains(&&*wanted.to_ascii_lowercase()) || name.eq_ignore_ascii_case(wanted);
    let shown = sections.iter().filter(|(name, _)| is_wanted(name)).map(|(name, lines)| format!("# {name}\r\n{lines}"));
    shown.collect::<Vec<_>>().join("\r\n")
}
