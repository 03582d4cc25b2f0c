//! The metadata of committed offsets.
//!
//! Defines the text format. This module never decides how to react to the metadata.

use crate::record::{Offset, Timestamp};
use std::collections::BTreeMap;
use std::fmt;

/// The metadata of a committed offset. Metadata from other programs is ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// The group's starting offset. No record below this offset was judged.
    pub first: Option<Offset>,
    /// Stream time at the commit. A warm-up must not advance stream time past this value.
    pub stream_time: Option<Timestamp>,
    /// The stream time of each key space, if the input has several rules. `None` marks an unknown stream time.
    pub stream_times: BTreeMap<String, Option<Timestamp>>,
    /// The id of the input topic when the offset was committed. A recreated topic has a different id.
    pub id: Option<String>,
    /// The changelog epoch of the owner that committed the offset. If the next owner has a checkpoint at this offset, it learns this epoch
    /// without reading the changelog.
    pub epoch: Option<i64>,
    /// True if `unseen seed` committed the offset. The seeded keys may be in the changelog, but checkpoints from before the seed lack them.
    pub is_seed: bool,
}

impl Note {
    /// Parses metadata. Returns an empty note for the metadata of other programs.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let mut note = Self::default();
        let Some(words) = text.strip_prefix("unseen ") else { return note };
        for word in words.split(' ') {
            match word.split_once('=') {
                Some(("stream_time", time)) => note.stream_time = time.parse().ok(),
                Some(("topic_id", id)) => note.id = Some(id.to_owned()),
                Some(("first", offset)) => note.first = offset.parse().ok(),
                Some(("epoch", epoch)) => note.epoch = epoch.parse().ok(),
                Some((name, time)) => {
                    let space = name.strip_prefix("stream_time.");
                    note.stream_times.extend(space.map(|space| (space.to_owned(), time.parse().ok())));
                }
                None if word == "seed" => note.is_seed = true,
                None => {}
            }
        }
        note
    }

    /// Returns the stream time in a key space. If the input had a single rule at the commit, its stream time applies to every space.
    #[must_use]
    pub fn stream_time_in(&self, space: &str) -> Option<Timestamp> {
        self.stream_times.get(space).copied().flatten().or(self.stream_time)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unseen")?;
        if let Some(first) = self.first {
            write!(f, " first={first}")?;
        }
        if let Some(time) = self.stream_time {
            write!(f, " stream_time={time}")?;
        }
        for (space, time) in &self.stream_times {
            let time = time.map_or_else(|| "unknown".to_owned(), |time| time.to_string());
            write!(f, " stream_time.{space}={time}")?;
        }
        self.id.iter().try_for_each(|id| write!(f, " topic_id={id}"))?;
        self.epoch.iter().try_for_each(|epoch| write!(f, " epoch={epoch}"))?;
        f.write_str(if self.is_seed { " seed" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_parsed_as_it_was_written() {
        for first in [None, Some(0), Some(i64::MAX)] {
            for stream_time in [None, Some(-5), Some(1_700_000_000_000)] {
                for id in [None, Some("dGhpcyBpcyBhbiBpZC4=".to_owned())] {
                    for (epoch, is_seed) in [(None, false), (Some(7), true)] {
                        for spaces in [&[][..], &["orders"], &["in.2", "a-b"]] {
                            let stream_times = spaces.iter().zip([None, Some(-1)]).map(|(&space, time)| (space.to_owned(), time)).collect();
                            let note = Note { first, stream_time, stream_times, id: id.clone(), epoch, is_seed };
                            assert_eq!(Note::read(&note.to_string()), note);
                        }
                    }
                }
            }
        }
        let note = Note::read("unseen stream_time.a=5 stream_time.b=x");
        assert_eq!((note.stream_time_in("a"), note.stream_time_in("b")), (Some(5), None));
        assert_eq!(Note::read("unseen stream_time=7").stream_time_in("a"), Some(7));
        for text in ["", "unseen", "something else stream_time=5", "unseen stream_time=x first=y"] {
            assert_eq!(Note::read(text), Note::default(), "{text}");
        }
    }
}
