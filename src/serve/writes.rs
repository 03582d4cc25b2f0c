//! Commands that write.
//!
//! With `serve.writes`, a command that adds or deletes items writes one record per item to an input topic of the space, and RESERVE
//! succeeds if the existing filter has the requested capacity and rate. The server rejects all other write commands. Without
//! `serve.writes`, it rejects all write commands. A command never changes a state, because only the stream decides which keys were seen.

use super::Server;
use super::command::{Command, Refusal, asked, refusal, space};
use super::names::{Name, Texts};
use super::resp::Answers;
use super::writer::{Write, Writer};
use crate::follower::{Answer, Query, Space};
use crate::stats::add;

/// The commands that change, create, delete, dump, or load a filter in Redis, in capitals.
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

/// The maximum number of items per command. The producer's queue holds at most 100,000 records, so ten such commands fill it.
const ITEMS_MAX: usize = 10_000;
/// The maximum size of the parts of a written key, in bytes. Every topic on the path of the record accepts such a record, unless its
/// `max.message.bytes` is far below the default of 1 MiB. With `on_invalid = "fail"`, a rejected record would stop every worker.
const ITEM_BYTES_MAX: usize = 32 << 10;

/// For each item, the answer of its lookup and either its write in progress or the error that prevented the write.
type Begun = Vec<(Answer, Result<Write, String>)>;

/// An answer that waits for its writes.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The byte position at which this answer is inserted into the other answers.
    at: usize,
    is_list: bool,
    retracts: bool,
    /// The client's protocol version at the time of the command.
    is_resp3: bool,
    writes: Begun,
}

/// True if the command is a write command. The name must be in capitals.
pub(super) fn is_write(name: &str) -> bool {
    WRITES.contains(&name)
}

/// Runs a write command. If it writes records, `settle` adds its answer later.
pub(super) fn run(
    name: &str,
    server: &Server,
    command: Command<'_>,
    waiting: &mut Vec<Waiting>,
    answers: &mut Answers,
) -> Result<(), Refusal> {
    command.has(2..=usize::MAX)?;
    let (number, space, of) = space(server, command.get(1).unwrap_or_default())?;
    let refuse = |reason: &str| Err(read_only(reason));
    match (name, &server.writer) {
        ("BF.RESERVE" | "CF.RESERVE", Some(_)) => return reserve(name, space, command, answers),
        ("BF.RESERVE" | "CF.RESERVE", None) => {
            return refuse("key spaces are created in the configuration, by a topic with this space, a window, and a filter");
        }
        ("BF.SCANDUMP" | "CF.SCANDUMP" | "BF.LOADCHUNK" | "CF.LOADCHUNK", _) => {
            return refuse("filters are rebuilt from the changelog and cannot be saved or loaded");
        }
        ("DEL" | "UNLINK", Some(_)) => return refuse("key spaces can only be deleted in the configuration"),
        (_, None) => return refuse("only the stream decides which keys were seen; write a record to the space's input topic"),
        (_, Some(writer)) => {
            let first = match name {
                "BF.INSERT" | "CF.INSERT" | "CF.INSERTNX" => first_item(command)?,
                _ => 2,
            };
            let is_list = matches!(name, "BF.MADD" | "BF.INSERT" | "CF.INSERT" | "CF.INSERTNX");
            command.has(first + 1..=if is_list { usize::MAX } else { first + 1 })?;
            if command.len() - first > ITEMS_MAX {
                return Err(("ERR", format!("a command can write at most {ITEMS_MAX} items; send several commands")));
            }
            let retracts = name == "CF.DEL";
            let texts: Vec<Vec<_>> = command.from(first).map(|item| Texts::new(&of, item).collect()).collect();
            let bytes = |texts: &Vec<&[u8]>| texts.iter().map(|text| text.len()).sum::<usize>();
            if let Some(bytes) = texts.iter().map(bytes).find(|&bytes| bytes > ITEM_BYTES_MAX) {
                return Err(("ERR", format!("the parts of a key to write may have at most {ITEM_BYTES_MAX} bytes in total, got {bytes}")));
            }
            let begun = begin(writer, number, space, &of, &texts, retracts)?;
            waiting.push(Waiting { at: answers.bytes.len(), is_list, retracts, is_resp3: answers.is_resp3, writes: begun });
        }
    }
    Ok(())
}

/// Returns the index of the first item, which follows `ITEMS`. Skips the options before `ITEMS` that only matter when Redis creates a filter,
/// such as `CAPACITY`. Returns an error for any other argument, or if there are no items.
fn first_item(command: Command<'_>) -> Result<usize, Refusal> {
    let mut at = 2;
    while at < command.len() && !command.is(at, "ITEMS") {
        at += match command.text(at).to_ascii_uppercase().as_str() {
            "CAPACITY" | "ERROR" | "EXPANSION" => 2,
            "NOCREATE" | "NONSCALING" => 1,
            _ => return Err(("ERR", format!("unknown argument '{}'; items must follow ITEMS", command.text(at)))),
        };
    }
    if at < command.len() { Ok(at + 1) } else { Err(command.wrong_number()) }
}

/// Starts to write each item, given by the texts of its key parts. Writes nothing unless every item has a valid record and a known answer.
fn begin(writer: &Writer, number: usize, space: &Space, name: &Name<'_>, items: &[Vec<&[u8]>], retracts: bool) -> Result<Begun, Refusal> {
    let prepared = items.iter().map(|texts| writer.prepare(number, texts, retracts)).collect::<Result<Vec<_>, _>>();
    let mut query = Query::default();
    for texts in items {
        space.add(&mut query, texts.iter().copied()).map_err(|error| asked(&error, name))?;
    }
    let prepared = prepared.map_err(|reason| read_only(&reason))?;
    let (known, unavailable) = space.answer(&mut query);
    if let Some(reason) = unavailable.filter(|_| known.contains(&Answer::Unknown)) {
        return Err(refusal(&reason));
    }
    let write = |(&known, prepared)| (known, writer.write(prepared, known == Answer::Seen));
    Ok(known.iter().zip(&prepared).map(write).collect())
}

/// Returns the error that Redis replicas use to reject writes.
fn read_only(reason: &str) -> Refusal {
    ("READONLY", format!("You can't write against a read only replica; {reason}"))
}

/// Handles `BF.RESERVE space rate capacity …` and `CF.RESERVE space capacity …`. Succeeds if the existing filter has at least the requested
/// capacity and, for `BF.RESERVE`, at most the requested false-positive rate.
fn reserve(name: &str, space: &Space, command: Command<'_>, answers: &mut Answers) -> Result<(), Refusal> {
    command.has(if name == "BF.RESERVE" { 4..=usize::MAX } else { 3..=usize::MAX })?;
    let number = |at: usize| {
        let number = command.text(at).parse::<f64>().ok().filter(|number| *number > 0.0);
        number.ok_or_else(|| ("ERR", format!("expected a number greater than 0, got '{}'", command.text(at))))
    };
    let (rate, capacity) = if name == "BF.RESERVE" { (number(2)?, number(3)?) } else { (1.0, number(2)?) };
    let filter = space.filter();
    let has_room = filter.capacity.is_none_or(|there| crate::http::float(there) >= capacity);
    if has_room && filter.false_positive_rate <= rate {
        answers.simple("OK");
        return Ok(());
    }
    let there = filter.capacity.map_or_else(|| "its window".to_owned(), |capacity| format!("{capacity} keys"));
    let message = format!(
        "key spaces are created in the configuration, and the filter of this key space is sized for {there} at a false-positive rate of {:e}; change the filter in the configuration (`filter` or serve.filters)",
        filter.false_positive_rate
    );
    Err(("ERR", message))
}

/// Waits for the writes of all commands in `waiting` and inserts the commands' answers at their positions.
pub(super) async fn settle(server: &Server, waiting: &mut Vec<Waiting>, answers: &mut Answers) {
    let Some(writer) = &server.writer else { return };
    let (before, mut from, now) = (std::mem::take(&mut answers.bytes), 0, answers.is_resp3);
    for Waiting { at, is_list, retracts, is_resp3, writes } in waiting.drain(..) {
        answers.is_resp3 = is_resp3;
        answers.bytes.extend_from_slice(&before[from..at]);
        from = at;
        if is_list {
            answers.array(writes.len());
        }
        for (known, write) in writes {
            match end(writer, write).await {
                Ok(is_in_flight) => {
                    add(&server.stats.written, 1);
                    // For a retraction, the answer is 1 if the key existed. For other writes, it is 1 if the key did not exist.
                    answers.bool((known == Answer::Seen || is_in_flight) == retracts);
                }
                Err(message) => {
                    add(&server.stats.unwritten, 1);
                    answers.error("ERR", &message);
                }
            }
        }
    }
    answers.bytes.extend_from_slice(&before[from..]);
    answers.is_resp3 = now;
}

/// Waits until all in-sync replicas have the record. Returns true if another write of the key was already in flight.
async fn end(writer: &Writer, write: Result<Write, String>) -> Result<bool, String> {
    let mut write = write?;
    match (&mut write.written).await {
        Ok(Ok(())) => Ok(write.is_in_flight),
        Ok(Err(message)) => {
            writer.failed(&write);
            Err(message)
        }
        Err(_) => Err("the server is stopping; the record may be in the topic anyway".to_owned()),
    }
}
