//! Writes of clients: the record that stands for a key, and which keys are on their way.
//!
//! Must never change a state: what was seen is decided by the stream, which such a record goes through as any other does.

use crate::config::{Config, KeySpace, Partitioner, Topic};
use crate::filter::Window;
use crate::kafka::{Error, InputWriter, NewRecord, Written};
use crate::key::{Fingerprint, KeySpec, Part, Scratch};
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

/// A topic whose records can be made of nothing but their key.
#[derive(Debug)]
struct Input {
    topic: String,
    key: KeySpec,
    retract: Option<String>,
    /// Whether a record with an empty key goes to a partition by chance.
    has_random_empty_key: bool,
    /// How long a key of it is on its way, at most.
    patience: Duration,
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

    /// Why keys of a space cannot be written, if so.
    pub(super) fn check(&self, space: usize) -> Result<(), &str> {
        self.inputs[space].as_ref().map(|_| ()).map_err(String::as_str)
    }

    /// Begins to write the record that stands for a key, given by the texts of its parts, or the one that retracts it. The
    /// key `is_known` if what was committed has it. On failure, a sentence says why nothing is written.
    pub(super) fn write(&self, space: usize, texts: &[&[u8]], is_known: bool, retracts: bool) -> Result<Write, String> {
        let input = self.inputs[space].as_ref().map_err(Clone::clone)?;
        let mut fingerprints = Vec::new();
        input.key.fingerprints_of_texts(texts.iter().copied(), &mut Scratch::default(), &mut fingerprints).map_err(|e| e.to_string())?;
        let item = (space, *fingerprints.first().ok_or("no record has such a key")?);
        let mut record = NewRecord { topic: &input.topic, key: None, value: b"", headers: Vec::new() };
        for (part, &text) in input.key.parts().iter().zip(texts) {
            match part {
                Part::RecordKey => record.key = Some(text),
                Part::RecordValue => record.value = text,
                Part::Header(name) => record.headers.push((name, text)),
                _ => return Err(NOT_MADE_OF_FIELDS.to_owned()),
            }
        }
        if record.key == Some(b"") && input.has_random_empty_key {
            return Err("records with an empty key go to any partition, by serve.partitioner".to_owned());
        }
        if retracts {
            let header = input.retract.as_deref();
            record.headers.push((header.ok_or("no record can retract a key here: the topic has no `retract`")?, b""));
            if record.key.is_none() {
                return Err("a record that retracts a key could overtake it, for the record key is no part of it".to_owned());
            }
            let written = self.producer.write(&record)?;
            return Ok(Write { item, mark: None, is_under_way: self.lock().end(item), written });
        }
        if is_known {
            // The mark that it may have stays: whoever looked before the commit, and marks after it, would be a second first.
            return Ok(Write { item, mark: None, is_under_way: false, written: self.producer.write(&record)? });
        }
        // Marked before it is written: of two at once, one is to be told that it was the first.
        let now = Instant::now();
        let mark = self.lock().begin(item, now, input.patience).then_some(now);
        let written = self.producer.write(&record).inspect_err(|_| self.lock().take_back(item, mark))?;
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

/// Why a record cannot be made.
const NOT_MADE_OF_FIELDS: &str =
    "only keys that are made of record key, record value and headers can be written, for only those say all of a record";

impl Input {
    /// The first topic of a space that can be written to; else a sentence says why there is none.
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
        // Of two headers of a name, one counts; and one that retracts would be in every record.
        let is_twice = parts.iter().enumerate().any(|(at, part)| parts[..at].contains(part));
        let retracts = |part: &Part| matches!((part, &topic.retract), (Part::Header(name), Some(retract)) if name == retract);
        if is_twice || parts.iter().any(retracts) {
            return Err("a part of the key stands in it twice, or is the header that retracts".to_owned());
        }
        match (topic.repartition, parts.contains(&Part::RecordKey), partitioner) {
            (true, ..) | (false, true, Some(_)) => {}
            (false, true, None) => {
                let sentence =
                    "it is not known which partition other producers choose: set serve.partitioner, or `repartition = true` for the topic";
                return Err(sentence.to_owned());
            }
            (false, false, _) => {
                return Err("the key does not say which partition it belongs to: set `repartition = true` for the topic".to_owned());
            }
        }
        let window = match topic.window {
            Window::Time { .. } => topic.window.length_ms().map(|ms| Duration::from_millis(ms.unsigned_abs())),
            Window::Keys { .. } => None,
        };
        Ok(Self {
            topic: topic.input.clone(),
            key: topic.key.clone(),
            retract: topic.retract.clone(),
            has_random_empty_key: !topic.repartition && partitioner == Some(Partitioner::Crc32),
            patience: window.map_or(ON_ITS_WAY, |window| window.min(ON_ITS_WAY)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(options: &str, partitioner: Option<Partitioner>) -> Result<Input, String> {
        let text = format!(
            "[kafka]\nbootstrap_servers = \"localhost:9092\"\n[[topics]]\ninput = \"a\"\noutput = \"b\"\nwindow = \"10s\"\non_invalid = \"drop\"\n{options}\n[topics.filter]\ncapacity = 1000\n"
        );
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("unseen.toml");
        std::fs::write(&file, text).unwrap();
        let config = Config::load(&file, &[]).unwrap();
        Input::of(&config.spaces()[0], partitioner)
    }

    #[test]
    fn only_what_a_key_says_all_of_can_be_written_where_its_partition_is_known() {
        let murmur2 = Some(Partitioner::Murmur2);
        assert!(input("key = { record = \"key\" }", murmur2).is_ok());
        assert!(input("key = { record = \"key\" }", None).unwrap_err().contains("set serve.partitioner"));
        assert!(input("key = { record = \"key\" }\nrepartition = true", None).is_ok());
        assert!(input("key = { header = \"id\" }", murmur2).unwrap_err().contains("repartition = true"));
        assert!(input("key = [{ header = \"id\" }, { record = \"value\" }]\nrepartition = true", None).is_ok());
        assert!(input("key = { field = \"/id\" }", murmur2).unwrap_err().contains("made of record key"));
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
