//! Writes records for clients: builds the record for a key and tracks the keys whose records are in flight.
//!
//! A write never changes a state: the worker judges the record like any other input record. Before a write, this module checks that a
//! worker would extract the requested key from the record. With `on_invalid = "fail"`, a single invalid record would stop every worker.

use crate::config::{Config, KeySpace, Partitioner, Topic};
use crate::filter::Window;
use crate::format::NoSchemas;
use crate::kafka::{Error, InputWriter, NewRecord, Written};
use crate::key::{Fingerprint, NoKey, Part, Predicate, Reader, Scratch};
use crate::record::Record;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot::Receiver;

/// The maximum time that a key counts as in flight. If the key is still unseen afterward, probably no worker is running, or the key was
/// retracted.
const IN_FLIGHT_MAX: Duration = Duration::from_secs(60);
/// The maximum number of keys in flight. If there are more, the oldest keys no longer count as in flight.
const IN_FLIGHT_KEYS_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Writer {
    producer: InputWriter,
    /// The input of each space, or an error message if the space is read-only.
    inputs: Vec<Result<Input, String>>,
    in_flight: Mutex<InFlight>,
}

/// An input topic whose records can be built from the key alone.
#[derive(Debug)]
struct Input {
    topic: Topic,
    /// True if the producer sends a record with an empty key to a random partition.
    has_random_empty_key: bool,
    /// The time that a key counts as in flight: [`IN_FLIGHT_MAX`], or the length of a time window if the window is shorter.
    timeout: Duration,
}

/// A record for a key, ready to write. A worker extracts exactly this key from the record.
#[derive(Debug)]
pub(super) struct Prepared<'r> {
    item: Item,
    record: NewRecord<'r>,
    retracts: bool,
}

/// The index of a space and the fingerprint of a key.
pub(super) type Item = (usize, Fingerprint);

#[derive(Debug, Default)]
struct InFlight {
    since: HashMap<Item, Instant>,
    order: VecDeque<(Item, Instant)>,
}

#[derive(Debug)]
pub(super) struct Write {
    item: Item,
    /// The time when this write put the key in flight. `None` if the key was already in flight or seen, or if the write is a retraction.
    mark: Option<Instant>,
    /// True if another write of the same key was in flight when this write started. False if the key was already seen and the write is not
    /// a retraction.
    pub(super) is_in_flight: bool,
    pub(super) written: Receiver<Written>,
}

impl Writer {
    pub(super) fn new(config: &Config) -> Result<Self, Error> {
        let partitioner = config.serve.partitioner;
        let inputs = config.spaces().iter().map(|space| Input::of(config, space, partitioner)).collect();
        let producer = InputWriter::new(config, partitioner.unwrap_or(Partitioner::Murmur2))?;
        Ok(Self { producer, inputs, in_flight: Mutex::default() })
    }

    /// Builds the record for a key, or the record that retracts the key, from the texts of its parts. Writes nothing.
    ///
    /// # Errors
    /// Returns a reason if no record of the space's topics can represent this key.
    pub(super) fn prepare<'r>(&'r self, space: usize, texts: &[&'r [u8]], retracts: bool) -> Result<Prepared<'r>, String> {
        let input = self.inputs[space].as_ref().map_err(Clone::clone)?;
        let (fingerprint, record) = input.record(texts, retracts)?;
        Ok(Prepared { item: (space, fingerprint), record, retracts })
    }

    /// Starts to write a record. `is_known` is true if the committed state contains its key.
    ///
    /// # Errors
    /// Returns a reason if the record is not written.
    pub(super) fn write(&self, prepared: &Prepared<'_>, is_known: bool) -> Result<Write, String> {
        let Prepared { item, record, retracts } = prepared;
        let (item, input) = (*item, self.inputs[item.0].as_ref().map_err(Clone::clone)?);
        if *retracts {
            let written = self.producer.write(record)?;
            return Ok(Write { item, mark: None, is_in_flight: self.lock().end(item), written });
        }
        if is_known {
            // The key may still be in flight from an earlier write. Leave it in flight: another client may have looked up the key before
            // the commit and write it only after this write. Otherwise, that client would wrongly get the answer that it was first.
            return Ok(Write { item, mark: None, is_in_flight: false, written: self.producer.write(record)? });
        }
        // Put the key in flight before the write. Otherwise, two concurrent clients could both get the answer that they were first.
        let now = Instant::now();
        let mark = self.lock().begin(item, now, input.timeout).then_some(now);
        let written = self.producer.write(record).inspect_err(|_| self.lock().unmark(item, mark))?;
        Ok(Write { item, mark, is_in_flight: mark.is_none(), written })
    }

    /// Waits until the brokers have answered all writes, for at most `timeout`. After the timeout, returns the number of unanswered writes.
    pub(super) fn flush(&self, timeout: Duration) -> Result<(), i32> {
        self.producer.flush(timeout)
    }

    pub(super) fn failed(&self, write: &Write) {
        self.lock().unmark(write.item, write.mark);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, InFlight> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InFlight {
    /// Puts a key in flight. Returns false if the key was already in flight.
    fn begin(&mut self, item: Item, now: Instant, timeout: Duration) -> bool {
        while let Some(&(oldest, since)) = self.order.front()
            && (self.order.len() >= IN_FLIGHT_KEYS_MAX || now.duration_since(since) >= IN_FLIGHT_MAX)
        {
            self.order.pop_front();
            if self.since.get(&oldest) == Some(&since) {
                self.since.remove(&oldest);
            }
        }
        if self.since.get(&item).is_some_and(|&since| now.duration_since(since) < timeout) {
            return false;
        }
        self.since.insert(item, now);
        self.order.push_back((item, now));
        true
    }

    /// Removes a key from the keys in flight if `mark` is from the write that put the key in flight.
    fn unmark(&mut self, item: Item, mark: Option<Instant>) {
        if mark.is_some() && self.since.get(&item).copied() == mark {
            self.since.remove(&item);
        }
    }

    /// Removes a key from the keys in flight. Returns false if the key was not in flight.
    fn end(&mut self, item: Item) -> bool {
        self.since.remove(&item).is_some()
    }
}

const NOT_MADE_OF_FIELDS: &str =
    "only keys that consist of the record key, the record value, and headers can be written, because they determine the whole record";

impl Input {
    /// Returns the first writable topic of a space. If no topic is writable, returns the error of the first topic.
    fn of(config: &Config, space: &KeySpace<'_>, partitioner: Option<Partitioner>) -> Result<Self, String> {
        let input = |topic: &&Topic| match config.rules(&topic.input).nth(1) {
            // Another entry of the input could select the record.
            Some(_) => Err(format!("{:?} has several entries; only topics with one entry can be written to", topic.input)),
            None => Self::new(topic, partitioner),
        };
        let mut inputs = space.topics.iter().map(input);
        let first = inputs.next().ok_or(NOT_MADE_OF_FIELDS)?;
        first.or_else(|reason| inputs.find_map(Result::ok).ok_or(reason))
    }

    fn new(topic: &Topic, partitioner: Option<Partitioner>) -> Result<Self, String> {
        let parts = topic.key.parts();
        if !parts.iter().all(|part| matches!(part, Part::RecordKey | Part::RecordValue | Part::Header(_))) {
            return Err(NOT_MADE_OF_FIELDS.to_owned());
        }
        match (topic.repartition, parts.contains(&Part::RecordKey), partitioner) {
            (true, ..) | (false, true, Some(_)) => {}
            (false, true, None) => {
                let reason =
                    "the partitioner of the other producers is unknown: set serve.partitioner, or `repartition = true` for the topic";
                return Err(reason.to_owned());
            }
            (false, false, _) => {
                return Err("the key does not determine the partition: set `repartition = true` for the topic".to_owned());
            }
        }
        let window = match topic.window {
            Window::Time { .. } => topic.window.length_ms().map(|ms| Duration::from_millis(ms.unsigned_abs())),
            Window::Keys { .. } => None,
        };
        let input = Self {
            topic: topic.clone(),
            has_random_empty_key: !topic.repartition && partitioner == Some(Partitioner::Crc32),
            timeout: window.map_or(IN_FLIGHT_MAX, |window| window.min(IN_FLIGHT_MAX)),
        };
        // Build a record from sample texts to check that a record can represent a key of this topic. Each part has a different text, so the
        // check notices swapped parts.
        let texts: Vec<_> = (0..parts.len()).map(|number| number.to_string()).collect();
        input.record(&texts.iter().map(String::as_bytes).collect::<Vec<_>>(), false)?;
        Ok(input)
    }

    /// Builds the record for a key, or the record that retracts the key. Also returns the fingerprint of the key.
    fn record<'r>(&'r self, texts: &[&'r [u8]], retracts: bool) -> Result<(Fingerprint, NewRecord<'r>), String> {
        let mut fingerprints = Vec::new();
        let found = self.topic.key.fingerprints_of_texts(texts.iter().copied(), &mut Scratch::default(), &mut fingerprints);
        found.map_err(|error| error.to_string())?;
        let fingerprint = *fingerprints.first().ok_or("no record has such a key")?;
        // If the record key is not a part of the key, this stand-in becomes the record key. Each key gets a different stand-in, because a
        // compacted topic keeps only one record per record key.
        let stand_in = format!("{:032x}", fingerprint.0).into_bytes();
        let mut record = NewRecord { topic: &self.topic.input, key: stand_in.into(), value: b"", headers: Vec::new() };
        for (part, &text) in self.topic.key.parts().iter().zip(texts) {
            match part {
                Part::RecordKey => record.key = text.into(),
                Part::RecordValue => record.value = text,
                Part::Header(name) => record.headers.push((name, text)),
                _ => return Err(NOT_MADE_OF_FIELDS.to_owned()),
            }
        }
        let has = |record: &NewRecord<'_>, name: &str| record.headers.iter().any(|(header, _)| *header == name);
        for (name, value) in self.topic.when.iter().filter_map(Predicate::as_header) {
            if !has(&record, name) {
                record.headers.push((name, value.as_bytes()));
            }
        }
        if record.key.is_empty() && self.has_random_empty_key {
            return Err("with serve.partitioner = \"crc32\", a record with an empty key goes to a random partition".to_owned());
        }
        if retracts {
            let retract = self.topic.retract.as_ref().ok_or("keys of this topic cannot be retracted: the topic has no `retract`")?;
            let header =
                retract.as_header().ok_or("keys of this topic cannot be retracted by clients: its `retract` needs more than a header")?;
            record.headers.push((header.0, header.1.as_bytes()));
            if !self.topic.key.parts().contains(&Part::RecordKey) {
                return Err("a retraction could overtake its item, because the record key is not a part of the key".to_owned());
            }
        }
        if self.read_back(&record)? != (fingerprint, retracts) {
            return Err("a worker would extract a different key, or a retraction, from the record for this key".to_owned());
        }
        Ok((fingerprint, record))
    }

    /// Returns the fingerprint that a worker computes for a record of this topic, and true if the record retracts its key.
    fn read_back(&self, record: &NewRecord<'_>) -> Result<(Fingerprint, bool), String> {
        let headers: Vec<_> = record.headers.iter().map(|&(name, value)| (name, Some(value))).collect();
        let read = Record { key: Some(&record.key), value: Some(record.value), headers: &headers };
        // The key does not contain fields, so the reader does not need a schema.
        let (mut reader, mut scratch) = (Reader::default(), Scratch::default());
        let why = match reader.read(self.topic.record_spec(), &read, None, &mut scratch, &NoSchemas) {
            Ok(keyed) => return Ok((keyed.fingerprint, keyed.retracts)),
            Err(NoKey::Invalid(invalid)) => invalid.message,
            Err(NoKey::Awaits(schema)) => format!("the record needs schema {schema}"),
            Err(NoKey::Passes) => "the topic's `when` does not select it".to_owned(),
        };
        Err(format!("a worker would not accept the record for this key: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_cuckoo(options: &str) -> Result<Input, String> {
        input_with("capacity = 1000\nkind = \"cuckoo\"", options, None)
    }

    fn input(options: &str, partitioner: Option<Partitioner>) -> Result<Input, String> {
        input_with("capacity = 1000", options, partitioner)
    }

    fn input_with(filter: &str, options: &str, partitioner: Option<Partitioner>) -> Result<Input, String> {
        let text = format!(
            "[kafka]\nbootstrap_servers = \"localhost:9092\"\n[[topics]]\ninput = \"a\"\noutput = \"b\"\nwindow = \"10s\"\non_invalid = \"drop\"\n{options}\n[topics.filter]\n{filter}\n"
        );
        let config = Config::of_text(&text);
        Input::of(&config, &config.spaces()[0], partitioner)
    }

    #[test]
    fn records_without_the_required_frame_or_encoding_are_not_written() {
        let (murmur2, framed) = (Some(Partitioner::Murmur2), "key_format = \"json_schema\"");
        let by_key = "key = { record = \"key\" }";
        assert!(input(&format!("{by_key}\n{framed}"), murmur2).unwrap_err().contains("does not begin with the frame"));
        assert!(input(&format!("{by_key}\n{framed}\nrepartition = true"), None).unwrap_err().contains("does not begin with the frame"));
        let by_value = "key = { record = \"value\" }\nrepartition = true\nvalue_format = \"json_schema\"";
        assert!(input(by_value, None).unwrap_err().contains("does not begin with the frame"));
        let encoded = "key = { record = \"value\" }\nrepartition = true\nvalue_encoding = \"gzip\"";
        assert!(input(encoded, None).unwrap_err().contains("is not gzip"));
        // A worker does not read the parts of a record that are not in the key.
        assert!(input(&format!("{by_key}\nvalue_format = \"json_schema\""), murmur2).is_ok());
        assert!(input(&format!("key = {{ header = \"id\" }}\n{framed}\nrepartition = true"), None).is_ok());
    }

    #[test]
    fn a_record_is_written_only_if_a_worker_extracts_the_same_key() {
        let cuckoo = "retract = { header = \"gone\" }\nrepartition = true";
        let twice = format!("key = [{{ record = \"key\" }}, {{ record = \"key\" }}]\n{cuckoo}");
        assert!(of_cuckoo(&twice).unwrap_err().contains("would extract a different key"));
        let retracts = format!("key = [{{ record = \"key\" }}, {{ header = \"gone\" }}]\n{cuckoo}");
        assert!(of_cuckoo(&retracts).unwrap_err().contains("or a retraction"));
        let input = of_cuckoo(&format!("key = [{{ record = \"key\" }}, {{ header = \"id\" }}]\n{cuckoo}")).unwrap();
        for retracts in [false, true] {
            let (fingerprint, record) = input.record(&[b"42", b"\0\x01"], retracts).unwrap();
            assert_eq!(input.read_back(&record), Ok((fingerprint, retracts)));
        }
    }

    #[test]
    fn written_records_are_selected() {
        let with = |when: &str| input(&format!("key = {{ record = \"key\" }}\nrepartition = true\nwhen = {when}"), None);
        let input = with(
            "[{ header = \"type\", one_of = [\"a\", \"b\"] }, { record = \"key\", exists = true }, { header = \"x\", exists = false }]",
        )
        .unwrap();
        let headers = input.record(&[b"42"], false).unwrap().1.headers;
        assert_eq!(headers, [("type", &b"a"[..])]);
        let reason = with("{ record = \"key\", equals = \"a\" }").unwrap_err();
        assert_eq!(reason, "a worker would not accept the record for this key: the topic's `when` does not select it");
        let reason = with("{ field = \"/type\", equals = \"a\" }").unwrap_err();
        assert!(reason.starts_with("a worker would not accept the record for this key: the record value is not JSON"), "{reason}");
    }

    #[test]
    fn written_records_have_distinct_record_keys() {
        let keys = |options: &str, texts: &[[&'static [u8]; 2]]| -> Vec<_> {
            let input = input(options, Some(Partitioner::Murmur2)).unwrap();
            texts.iter().map(|texts| input.record(texts, false).unwrap().1.key.into_owned()).collect()
        };
        let texts: [[&[u8]; 2]; 2] = [[b"42", b"n1"], [b"4", b"2n1"]];
        assert_eq!(keys("key = [{ record = \"key\" }, { header = \"id\" }]", &texts), [b"42".to_vec(), b"4".to_vec()]);
        let made = keys("key = [{ header = \"user\" }, { header = \"id\" }]\nrepartition = true", &texts);
        assert!(made.iter().all(|key| key.len() == 32) && made[0] != made[1], "{made:?}");
    }

    #[test]
    fn a_space_is_writable_if_the_key_defines_record_and_partition() {
        let murmur2 = Some(Partitioner::Murmur2);
        assert!(input("key = { record = \"key\" }", murmur2).is_ok());
        assert!(input("key = { record = \"key\" }", None).unwrap_err().contains("set serve.partitioner"));
        assert!(input("key = { record = \"key\" }\nrepartition = true", None).is_ok());
        assert!(input("key = { header = \"id\" }", murmur2).unwrap_err().contains("repartition = true"));
        assert!(input("key = [{ header = \"id\" }, { record = \"value\" }]\nrepartition = true", None).is_ok());
        assert!(input("key = { field = \"/id\" }", murmur2).unwrap_err().contains("consist of the record key"));
    }

    #[test]
    fn a_key_is_in_flight_until_it_fails_or_times_out() {
        let (mut in_flight, start) = (InFlight::default(), Instant::now());
        let item = |number: u128| (0, Fingerprint(number));
        let timeout = Duration::from_secs(10);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(in_flight.begin(item(1), start, timeout));
        assert!(!in_flight.begin(item(1), after(9), timeout));
        assert!(in_flight.begin(item(2), after(9), timeout));
        assert!(in_flight.begin(item(1), after(10), timeout), "its window has ended");
        in_flight.unmark(item(1), None);
        in_flight.unmark(item(1), Some(start));
        assert!(!in_flight.begin(item(1), after(11), timeout), "another write has set the mark");
        assert!(in_flight.end(item(2)));
        assert!(!in_flight.end(item(2)));
        assert!(in_flight.begin(item(2), after(11), timeout));
        assert!(in_flight.begin(item(3), after(100), timeout));
        assert_eq!((in_flight.since.len(), in_flight.order.len()), (1, 1), "old entries are dropped");
    }
}
