//! Seeds a new consumer group with the keys of a file, by writing the keys to the group's changelog.
//!
//! Workers rebuild their state from the changelog. If the changelog starts with the keys, every rebuilt state has seen them. One
//! transaction writes all keys and commits the start offsets of the group, so a crash leaves all or none of the keys.
//!
//! This module never seeds a group that has started, and it never emits records.
//!
//! | file | content |
//! |---|---|
//! | `lines`, `table` | parsing of lines |
//! | `placement` | the partition of a key |
//! | `keys` | the keys of a partition, and its changelog records |
//! | `group` | checks of the group, and the transaction |
//! | `error` | errors |

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

/// The earliest accepted time, in March 1973. A smaller number is probably a time in seconds. Times in seconds stay below this number until
/// the year 5138.
const MILLIS_MIN: Timestamp = 100_000_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The value of a record.
    #[default]
    Ndjson,
    /// A CSV row. The first line contains the column names: the parts of the key and, if needed, the time and the record key.
    Csv,
    /// A record in the format of `unseen capture`.
    Capture,
}

#[derive(Clone, Debug)]
pub struct Options {
    pub format: Format,
    /// JSON pointer or column name of the time.
    pub time: Option<String>,
    /// Time of lines without a time, in milliseconds since the epoch.
    pub at: Option<Timestamp>,
    /// Latest accepted time, in milliseconds since the epoch.
    pub latest: Timestamp,
    /// JSON pointer or column name of the record key.
    pub record_key: Option<String>,
    pub partitioner: Option<Partitioner>,
    /// True if keys with an unknown partition are added to every partition.
    pub every_partition: bool,
    pub skip_invalid: bool,
    /// Maximum number of keys. A key in several partitions counts once per partition. Sorting uses 32 bytes per key.
    pub max_keys: u64,
}

pub struct Seeds<'t> {
    reader: LineReader<'t>,
    placement: Placement,
    options: &'t Options,
    is_timed: bool,
    partitions: Vec<Keys>,
    number: u32,
}

impl<'t> Seeds<'t> {
    /// Fails if the options do not match the topic.
    pub fn new(
        config: &'t Config,
        topic: &'t Topic,
        options: &'t Options,
        partitions: u32,
        schemas: Arc<dyn Schemas>,
    ) -> Result<Self, Error> {
        if topic.on_change.is_some() {
            let message = "a topic with emit = \"on_change\" cannot be seeded, because a key alone has no content; the first record of each key will be emitted".to_owned();
            return Err(Error::Options(message));
        }
        let earlier = config.earlier_rules(topic).collect();
        let inputs = config.space_of(topic).topics.iter().map(|topic| topic.input.as_str()).collect();
        Ok(Self {
            reader: LineReader::new(topic, earlier, inputs, options, schemas)?,
            placement: Placement::new(options, topic, partitions),
            options,
            is_timed: topic.window.length_ms().is_some(),
            partitions: (0..partitions).map(|_| Keys::default()).collect(),
            number: 0,
        })
    }

    /// Reads the keys of all lines. With [`Options::skip_invalid`], skips lines without a usable key. Fails if any other line is invalid,
    /// if there are more than [`Options::max_keys`] keys, or if `stop` returns true.
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
            if let Some(time) = time.filter(|&time| *is_timed && time < MILLIS_MIN) {
                return Err(Fault::Past(crate::replay::format_rfc3339(time)));
            }
            if let Some(time) = time.filter(|&time| *is_timed && time > options.latest) {
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

    /// Returns the number of keys so far. A key in several partitions counts once per partition.
    #[must_use]
    pub fn keys(&self) -> u64 {
        u64::from(self.number)
    }

    fn into_partitions(self) -> Vec<Keys> {
        self.partitions
    }

    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.reader.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Lookup, NoSchemas, SchemaId};

    const ORDERS: &str = "input = \"in\"\noutput = \"out\"\nkey = { field = \"/id\" }\nwindow = { keys = 10 }\n\
                          when = { field = \"/type\", equals = \"order\" }\n";

    fn seed(topics: &[&str], options: &Options, lines: &str, schemas: Arc<dyn Schemas>) -> Result<(Counts, u64), String> {
        let topics = topics.iter().map(|topic| format!("[[topics]]\n{topic}")).collect::<Vec<_>>().concat();
        let registry = "[schema_registry]\nurl = \"http://localhost:1\"\n";
        let config = Config::of_text(&format!("[kafka]\nbootstrap_servers = \"localhost:1\"\n{registry}{topics}"));
        let topic = config.topics.last().unwrap();
        let mut seeds = Seeds::new(&config, topic, options, 1, schemas).map_err(|error| error.to_string())?;
        seeds.read(lines.as_bytes(), &|| false).map_err(|error| error.to_string())?;
        Ok((seeds.counts(), seeds.keys()))
    }

    fn options(format: Format) -> Options {
        Options {
            format,
            time: None,
            at: None,
            latest: Timestamp::MAX,
            record_key: None,
            partitioner: None,
            every_partition: false,
            skip_invalid: false,
            max_keys: 10,
        }
    }

    fn seeded(format: Format, lines: &str) -> (Counts, u64) {
        seed(&[ORDERS], &options(format), lines, Arc::new(NoSchemas)).unwrap()
    }

    #[test]
    fn records_of_an_earlier_entry_are_not_seeded() {
        let rest = "input = \"in\"\noutput = \"out\"\nspace = \"rest\"\nkey = { field = \"/no\" }\nwindow = { keys = 10 }\n";
        let seeded = |skip_invalid, lines: &str| {
            let options = Options { skip_invalid, ..options(Format::Ndjson) };
            seed(&[ORDERS, rest], &options, lines, Arc::new(NoSchemas))
        };
        // The first entry selects every order, even an order without the key of the first entry.
        let lines = "{\"type\":\"order\",\"id\":1,\"no\":1}\n{\"type\":\"order\",\"no\":2}\n{\"type\":\"view\",\"no\":3}\n";
        assert_eq!(seeded(false, lines), Ok((Counts { lines: 3, passed: 2, ..Counts::default() }, 1)));
        // The worker cannot tell which entry selects a malformed record.
        let malformed = format!("{lines}{{\"type\n");
        let error = seeded(false, &malformed).unwrap_err();
        assert!(error.starts_with("line 4: ") && error.contains("--skip-invalid"), "{error}");
        assert_eq!(seeded(true, &malformed), Ok((Counts { lines: 4, passed: 2, invalid: 1, ..Counts::default() }, 1)));

        let by_header = ORDERS.replace("{ field = \"/type\"", "{ header = \"type\"");
        let error = seed(&[&by_header, rest], &options(Format::Ndjson), lines, Arc::new(NoSchemas)).unwrap_err();
        assert!(error.starts_with("`when` tests header `type`, which an ndjson line does not have"), "{error}");
    }

    #[test]
    fn a_missing_schema_of_an_earlier_entry_is_an_error() {
        #[derive(Debug)]
        struct Awaited;
        impl Schemas for Awaited {
            fn get(&self, _: SchemaId) -> Lookup {
                Lookup::Awaited
            }
        }
        let first = format!("{ORDERS}value_format = \"avro\"\n");
        let rest = "input = \"in\"\noutput = \"out\"\nspace = \"rest\"\nkey = { record = \"key\" }\nwindow = { keys = 10 }\nvalue_format = \"avro\"\n";
        let line = r#"{"topic":"in","partition":0,"offset":0,"key":"k","payload":"\u0000\u0000\u0000\u0000\u0001\u0002"}"#;
        assert_eq!(seed(&[rest], &options(Format::Capture), line, Arc::new(Awaited)).unwrap().1, 1, "the key needs no schema");
        let error = seed(&[&first, rest], &options(Format::Capture), line, Arc::new(Awaited)).unwrap_err();
        assert!(error.starts_with("line 1: the record needs schema 1, which is not available"), "{error}");
    }

    #[test]
    fn records_that_the_topic_does_not_select_are_not_seeded() {
        let selected = Counts { lines: 3, passed: 2, ..Counts::default() };
        // A record that passes through needs no key.
        let values = [r#"{"id":1,"type":"order"}"#, r#"{"id":2,"type":"view"}"#, r#"{"type":"ping"}"#];
        assert_eq!(seeded(Format::Ndjson, &values.join("\n")), (selected, 1));
        let captured = values
            .map(|value| serde_json::json!({ "topic": "in", "partition": 0, "offset": 0, "key": null, "payload": value }).to_string());
        assert_eq!(seeded(Format::Capture, &captured.join("\n")), (selected, 1));
        let framed = format!("{ORDERS}value_format = \"json_schema\"\n");
        let lines = seed(&[&framed], &options(Format::Ndjson), &values.join("\n"), Arc::new(NoSchemas));
        assert_eq!(lines, Ok((selected, 1)), "a line has no frame");
        // A table has only keys, so `when` does not apply. `1` and `2` each mean a number and a string, so there are five keys.
        assert_eq!(seeded(Format::Csv, "id\n1\n2\nn\n"), (Counts { lines: 3, ..Counts::default() }, 5));
    }
}
