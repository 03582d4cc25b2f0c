//! Writes of clients: the record for a key, and the keys whose records are in flight.
//!
//! Must never change a state: the worker judges the record like any other record of the input. Must never write a record that
//! the worker cannot read this key from: with `on_invalid = "fail"`, one such record stops every worker.

use crate::config::{Config, KeySpace, Partitioner, Topic};
use crate::filter::Window;
use crate::format::NoSchemas;
use crate::kafka::{Error, InputWriter, NewRecord, Written};
use crate::key::{Fingerprint, NoKey, Part, Reader, Scratch};
use crate::record::Record;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot::Receiver;

/// How long a key is taken to be on its way, at most: a worker may stand still, or have been told to forget it since.
const ON_ITS_WAY: Duration = Duration::from_secs(60);
/// Most keys that are remembered as such; the oldest are forgotten.
const ON_THEIR_WAY_MAX: usize = 1 << 20;

/// Writes the records that stand for keys.
#[derive(Debug)]
pub(super) struct Writer {
    producer: InputWriter,
    /// Of each space, or why it has none.
    inputs: Vec<Result<Input, String>>,
    under_way: Mutex<UnderWay>,
}

/// A topic whose records can be built from their key alone.
#[derive(Debug)]
struct Input {
    topic: Topic,
    /// True if the producer sends a record with an empty key to a random partition.
    has_random_empty_key: bool,
    /// The longest time for which a key counts as in flight.
    patience: Duration,
}

/// A record that a worker reads the requested key from.
#[derive(Debug)]
pub(super) struct Prepared<'r> {
    item: Item,
    record: NewRecord<'r>,
    retracts: bool,
}

/// A key of a space.
pub(super) type Item = (usize, Fingerprint);

/// Keys that were written, in the order of that.
#[derive(Debug, Default)]
struct UnderWay {
    since: HashMap<Item, Instant>,
    order: VecDeque<(Item, Instant)>,
}

/// A write that has begun.
#[derive(Debug)]
pub(super) struct Write {
    item: Item,
    /// Since when it is on its way by this write; none if it already was, or is not by this one.
    mark: Option<Instant>,
    /// Whether another write of the same key is on its way.
    pub(super) is_under_way: bool,
    pub(super) written: Receiver<Written>,
}

impl Writer {
    /// Has written nothing yet.
    ///
    /// # Errors
    /// When librdkafka refuses a property.
    pub(super) fn new(config: &Config) -> Result<Self, Error> {
        let partitioner = config.serve.partitioner;
        let inputs = config.spaces().iter().map(|space| Input::of(space, partitioner)).collect();
        let producer = InputWriter::new(config, partitioner.unwrap_or(Partitioner::Murmur2))?;
        Ok(Self { producer, inputs, under_way: Mutex::default() })
    }

    /// Builds the record for a key from the texts of its parts, or the record that retracts the key. Writes nothing.
    ///
    /// # Errors
    /// A reason, if no record of the space's topics can stand for this key.
    pub(super) fn prepare<'r>(&'r self, space: usize, texts: &[&'r [u8]], retracts: bool) -> Result<Prepared<'r>, String> {
        let input = self.inputs[space].as_ref().map_err(Clone::clone)?;
        let (fingerprint, record) = input.record(texts, retracts)?;
        Ok(Prepared { item: (space, fingerprint), record, retracts })
    }

    /// Begins to write a record. Its key `is_known` if the committed state has it.
    ///
    /// # Errors
    /// A reason, if the record is not written.
    pub(super) fn write(&self, prepared: &Prepared<'_>, is_known: bool) -> Result<Write, String> {
        let Prepared { item, record, retracts } = prepared;
        let (item, input) = (*item, self.inputs[item.0].as_ref().map_err(Clone::clone)?);
        if *retracts {
            let written = self.producer.write(record)?;
            return Ok(Write { item, mark: None, is_under_way: self.lock().end(item), written });
        }
        if is_known {
            // A mark of this key stays. A client that looked the key up before the commit and marks it later would be a second first.
            return Ok(Write { item, mark: None, is_under_way: false, written: self.producer.write(record)? });
        }
        // The mark comes before the write: of two clients at the same time, one is told that it was the first.
        let now = Instant::now();
        let mark = self.lock().begin(item, now, input.patience).then_some(now);
        let written = self.producer.write(record).inspect_err(|_| self.lock().take_back(item, mark))?;
        Ok(Write { item, mark, is_under_way: mark.is_none(), written })
    }

    /// Waits until the brokers have answered every write, for at most `timeout`; on failure, returns how many are left.
    pub(super) fn flush(&self, timeout: Duration) -> Result<(), i32> {
        self.producer.flush(timeout)
    }

    /// A write did not come to an end.
    pub(super) fn failed(&self, write: &Write) {
        self.lock().take_back(write.item, write.mark);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnderWay {
    /// A key is on its way from now on; false if it was already.
    fn begin(&mut self, item: Item, now: Instant, patience: Duration) -> bool {
        while let Some(&(oldest, since)) = self.order.front()
            && (self.order.len() >= ON_THEIR_WAY_MAX || now.duration_since(since) >= ON_ITS_WAY)
        {
            self.order.pop_front();
            if self.since.get(&oldest) == Some(&since) {
                self.since.remove(&oldest);
            }
        }
        if self.since.get(&item).is_some_and(|&since| now.duration_since(since) < patience) {
            return false;
        }
        self.since.insert(item, now);
        self.order.push_back((item, now));
        true
    }

    /// It is not, if it is by that mark.
    fn take_back(&mut self, item: Item, mark: Option<Instant>) {
        if mark.is_some() && self.since.get(&item).copied() == mark {
            self.since.remove(&item);
        }
    }

    /// It is not any more; false if it was not.
    fn end(&mut self, item: Item) -> bool {
        self.since.remove(&item).is_some()
    }
}

/// The reason for a key that says only a part of its record.
const NOT_MADE_OF_FIELDS: &str =
    "only keys that are made of the record key, the record value, and headers can be written, because they say everything about a record";

impl Input {
    /// Returns the first topic of a space that can be written to, or the reason why the first topic cannot.
    fn of(space: &KeySpace<'_>, partitioner: Option<Partitioner>) -> Result<Self, String> {
        let mut inputs = space.topics.iter().map(|topic| Self::new(topic, partitioner));
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
                    "the partition that other producers choose is not known: set serve.partitioner, or `repartition = true` for the topic";
                return Err(reason.to_owned());
            }
            (false, false, _) => {
                return Err("the partition does not follow from the key: set `repartition = true` for the topic".to_owned());
            }
        }
        let window = match topic.window {
            Window::Time { .. } => topic.window.length_ms().map(|ms| Duration::from_millis(ms.unsigned_abs())),
            Window::Keys { .. } => None,
        };
        let input = Self {
            topic: topic.clone(),
            has_random_empty_key: !topic.repartition && partitioner == Some(Partitioner::Crc32),
            patience: window.map_or(ON_ITS_WAY, |window| window.min(ON_ITS_WAY)),
        };
        // Whether any record can stand for a key of this topic. No two parts have the same text.
        let texts: Vec<_> = (0..parts.len()).map(|number| number.to_string()).collect();
        input.record(&texts.iter().map(String::as_bytes).collect::<Vec<_>>(), false)?;
        Ok(input)
    }

    /// Builds the record for a key, or the record that retracts it, and returns it with the fingerprint of the key.
    fn record<'r>(&'r self, texts: &[&'r [u8]], retracts: bool) -> Result<(Fingerprint, NewRecord<'r>), String> {
        let mut fingerprints = Vec::new();
        let found = self.topic.key.fingerprints_of_texts(texts.iter().copied(), &mut Scratch::default(), &mut fingerprints);
        found.map_err(|error| error.to_string())?;
        let fingerprint = *fingerprints.first().ok_or("no record has such a key")?;
        // One per key, because a compacted topic keeps one record per record key.
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
        if record.key.is_empty() && self.has_random_empty_key {
            return Err("with serve.partitioner, a record with an empty key goes to a random partition".to_owned());
        }
        if retracts {
            let retract = self.topic.retract.as_ref().ok_or("no record can retract a key here: the topic has no `retract`")?;
            let header = retract.as_header().ok_or("no record can retract a key here: the topic's `retract` is a field of the value")?;
            record.headers.push((header.0, header.1.as_bytes()));
            if !self.topic.key.parts().contains(&Part::RecordKey) {
                return Err("a retraction could overtake its item, because the record key is not a part of the key".to_owned());
            }
        }
        if self.read_back(&record)? != (fingerprint, retracts) {
            return Err("a worker would read another key, or a retraction, from the record that is written for this key".to_owned());
        }
        Ok((fingerprint, record))
    }

    /// Returns the fingerprint that a worker computes for a record of this topic, and whether the record retracts its key.
    fn read_back(&self, record: &NewRecord<'_>) -> Result<(Fingerprint, bool), String> {
        let headers: Vec<_> = record.headers.iter().map(|&(name, value)| (name, Some(value))).collect();
        let read = Record { key: Some(&record.key), value: Some(record.value), headers: &headers };
        // A key without fields needs no schema.
        let (mut reader, mut scratch) = (Reader::default(), Scratch::default());
        let why = match reader.read(self.topic.record_spec(), &read, None, &mut scratch, &NoSchemas) {
            Ok(keyed) => return Ok((keyed.fingerprint, keyed.retracts)),
            Err(NoKey::Invalid(invalid)) => invalid.message,
            Err(NoKey::Awaits(schema)) => format!("the record needs schema {schema}"),
        };
        Err(format!("a worker could not judge the record that is written for this key: {why}"))
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
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("unseen.toml");
        std::fs::write(&file, text).unwrap();
        let config = Config::load(&file, &[]).unwrap();
        Input::of(&config.spaces()[0], partitioner)
    }

    #[test]
    fn records_without_the_frame_that_a_topic_expects_are_not_written() {
        let (murmur2, framed) = (Some(Partitioner::Murmur2), "key_format = \"json_schema\"");
        let by_key = "key = { record = \"key\" }";
        assert!(input(&format!("{by_key}\n{framed}"), murmur2).unwrap_err().contains("does not begin with the frame"));
        assert!(input(&format!("{by_key}\n{framed}\nrepartition = true"), None).unwrap_err().contains("does not begin with the frame"));
        let by_value = "key = { record = \"value\" }\nrepartition = true\nvalue_format = \"json_schema\"";
        assert!(input(by_value, None).unwrap_err().contains("does not begin with the frame"));
        // A worker does not read what is not a part of the key.
        assert!(input(&format!("{by_key}\nvalue_format = \"json_schema\""), murmur2).is_ok());
        assert!(input(&format!("key = {{ header = \"id\" }}\n{framed}\nrepartition = true"), None).is_ok());
    }

    #[test]
    fn a_record_is_written_only_if_a_worker_reads_the_same_key_from_it() {
        let cuckoo = "retract = { header = \"gone\" }\nrepartition = true";
        let twice = format!("key = [{{ record = \"key\" }}, {{ record = \"key\" }}]\n{cuckoo}");
        assert!(of_cuckoo(&twice).unwrap_err().contains("would read another key"));
        let retracts = format!("key = [{{ record = \"key\" }}, {{ header = \"gone\" }}]\n{cuckoo}");
        assert!(of_cuckoo(&retracts).unwrap_err().contains("or a retraction"));
        let input = of_cuckoo(&format!("key = [{{ record = \"key\" }}, {{ header = \"id\" }}]\n{cuckoo}")).unwrap();
        for retracts in [false, true] {
            let (fingerprint, record) = input.record(&[b"42", b"\0\x01"], retracts).unwrap();
            assert_eq!(input.read_back(&record), Ok((fingerprint, retracts)));
        }
    }

    #[test]
    fn every_record_that_is_written_has_a_record_key_of_its_own() {
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
        assert!(input("key = { field = \"/id\" }", murmur2).unwrap_err().contains("made of the record key"));
    }

    #[test]
    fn a_key_is_on_its_way_until_it_fails_or_its_time_is_over() {
        let (mut under_way, start) = (UnderWay::default(), Instant::now());
        let item = |number: u128| (0, Fingerprint(number));
        let patience = Duration::from_secs(10);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(under_way.begin(item(1), start, patience));
        assert!(!under_way.begin(item(1), after(9), patience));
        assert!(under_way.begin(item(2), after(9), patience));
        assert!(under_way.begin(item(1), after(10), patience), "its window is over");
        under_way.take_back(item(1), None);
        under_way.take_back(item(1), Some(start));
        assert!(!under_way.begin(item(1), after(11), patience), "the mark is another's");
        assert!(under_way.end(item(2)));
        assert!(!under_way.end(item(2)));
        assert!(under_way.begin(item(2), after(11), patience));
        assert!(under_way.begin(item(3), after(100), patience));
        assert_eq!((under_way.since.len(), under_way.order.len()), (1, 1), "what is old is not kept");
    }
}
