//! What was seen before unseen came: keys of a file become the beginning of a group's changelog.
//!
//! A state is a function of its changelog, so a changelog that begins with keys makes a state that has seen them, whatever becomes
//! of the process or its disk. One transaction writes all of them, together with the offsets where the group begins: after a
//! kill there is either nothing, or all.
//!
//! Owns the way from a line to that transaction. Must never seed a group that has begun, nor emit anything.
//!
//! | file | owns |
//! |---|---|
//! | `lines`, `table` | what a line says |
//! | `placement` | which partition a key is of |
//! | `keys` | the keys of a partition, and the records of its changelog |
//! | `group` | whether the group may be seeded, and the transaction |
//! | `error` | why not |

mod error;
mod group;
mod keys;
mod lines;
mod placement;
mod table;

pub use error::{Error, Fault};
pub use group::{Group, Seeded, Waiting};
pub use lines::Counts;

use crate::config::{Config, Partitioner, Topic};
use crate::format::Schemas;
use crate::record::Timestamp;
use keys::Keys;
use lines::{Line, LineReader};
use placement::Placement;
use std::io::BufRead;
use std::sync::Arc;

/// In March 1973. As seconds, that is the year 5138, so what lies before is no time in milliseconds.
const MILLIS_LEAST: Timestamp = 100_000_000_000;

/// What a line of the file is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The value of a record.
    #[default]
    Ndjson,
    /// A row of a table, whose first line names the columns: those of the key's parts, and more.
    Csv,
    /// A record as `unseen capture` writes it.
    Capture,
}

/// How a file is to be read.
#[derive(Clone, Debug)]
pub struct Options {
    /// What a line is.
    pub format: Format,
    /// Where the time is: a JSON pointer, or the name of a column.
    pub time: Option<String>,
    /// The time of lines that have none, in milliseconds.
    pub at: Option<Timestamp>,
    /// The latest time that a line may have.
    pub latest: Timestamp,
    /// Where the record key is: a JSON pointer, or the name of a column.
    pub record_key: Option<String>,
    /// How producers choose a partition by that.
    pub partitioner: Option<Partitioner>,
    /// Whether keys whose partition is not known go into each.
    pub every_partition: bool,
    /// Whether lines without a key are left out.
    pub skip_invalid: bool,
    /// Most keys, counted in each partition that they are put into. Each takes 32 bytes while they are sorted.
    pub max_keys: u64,
}

/// Keys that were read from a file.
pub struct Seeds<'t> {
    reader: LineReader<'t>,
    placement: Placement,
    options: &'t Options,
    is_timed: bool,
    partitions: Vec<Keys>,
    number: u32,
}

impl<'t> Seeds<'t> {
    /// Has read nothing. The topic's keys are judged in so many `partitions`.
    ///
    /// # Errors
    /// When the options do not fit the topic.
    pub fn new(
        config: &'t Config,
        topic: &'t Topic,
        options: &'t Options,
        partitions: u32,
        schemas: Arc<dyn Schemas>,
    ) -> Result<Self, Error> {
        let inputs = config.space_of(topic).topics.iter().map(|topic| topic.input.as_str()).collect();
        Ok(Self {
            reader: LineReader::new(topic, inputs, options, schemas)?,
            placement: Placement::new(options, topic, partitions),
            options,
            is_timed: topic.window.length_ms().is_some(),
            partitions: (0..partitions).map(|_| Keys::default()).collect(),
            number: 0,
        })
    }

    /// Reads `input` to its end, or until `stop` says so.
    ///
    /// # Errors
    /// When a line is at fault.
    pub fn read(&mut self, input: impl BufRead, stop: &dyn Fn() -> bool) -> Result<(), Error> {
        let Self { reader, placement, options, is_timed, partitions, number } = self;
        reader.read(input, &mut |line| {
            let Line { fingerprints, time, place, is_retraction } = line;
            if stop() {
                return Err(Fault::Stopped);
            }
            let time = time.or(options.at);
            if *is_timed && time.is_none() {
                return Err(Fault::NoTime);
            }
            if let Some(time) = time.filter(|&time| *is_timed && time < MILLIS_LEAST) {
                return Err(Fault::Past(crate::replay::format_rfc3339(time)));
            }
            if let Some(time) = time.filter(|&time| time > options.latest) {
                return Err(Fault::Future(crate::replay::format_rfc3339(time)));
            }
            for &fingerprint in fingerprints {
                let all = match placement.of(fingerprint, place)? {
                    Some(partition) => &mut partitions[partition as usize..=partition as usize],
                    None => &mut partitions[..],
                };
                *number = u32::try_from(u64::from(*number) + all.len() as u64).unwrap_or(u32::MAX);
                if u64::from(*number) > options.max_keys {
                    return Err(Fault::Many(options.max_keys));
                }
                for keys in all {
                    keys.add(fingerprint, time.filter(|_| *is_timed), *number, is_retraction);
                }
            }
            Ok(())
        })
    }

    /// Keys that were read so far, counted in each partition that they are put into.
    #[must_use]
    pub fn keys(&self) -> u64 {
        u64::from(self.number)
    }

    fn into_partitions(self) -> Vec<Keys> {
        self.partitions
    }

    /// What was read so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.reader.counts
    }
}
