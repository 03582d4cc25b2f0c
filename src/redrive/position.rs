//! The position of a redrive in a partition of a dead-letter topic.
//!
//! Tracks which dead letters were redriven and stores this state in the metadata of committed offsets. A later redrive can select kinds of
//! dead letters that an earlier redrive left out. A dead letter that was not redriven never counts as redriven.

use crate::broker::{Committed, Note};
use crate::record::Offset;
use data_encoding::BASE64URL_NOPAD;
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_64;

/// Maximum size of the metadata of a committed offset. The brokers' default limit is 4096.
const METADATA_MAX: usize = 4000;
/// Length in bytes of the hash of a kind. A collision between two kinds of a partition is extremely unlikely.
const HASH_BYTES: usize = 6;
/// The name of the metadata entry with the offsets of rejected dead letters.
const REJECTED: &str = "rejected";

/// The position in one partition. A kind of dead letters is identified by the topic that they refer to and their reason, such as
/// `news.events/malformed`, or by the [`hash`] of this text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// The next offset to read. Below it, all dead letters were redriven, except those that were left out or rejected.
    pub(super) next: Offset,
    /// The offset of the first dead letter that was left out, for each kind with such letters.
    pub(super) left_out: BTreeMap<String, Offset>,
    /// The offsets of dead letters that their target rejected. The redrive continued after them.
    rejected: BTreeSet<Offset>,
}

impl Position {
    /// Reads a committed position. If the position has another topic id, the topic was recreated, so the redrive starts at the first
    /// offset.
    pub(super) fn read(committed: &Committed, topic_id: Option<&str>) -> Self {
        let Committed { offset: Some(next), metadata } = committed else { return Self::default() };
        let id = Note::read(metadata).id;
        if id.is_some() && topic_id.is_some() && id.as_deref() != topic_id {
            return Self::default();
        }
        let words = || metadata.split(' ').filter_map(|word| word.split_once('='));
        let left_out =
            words().filter(|(kind, _)| kind.contains('/')).filter_map(|(kind, offset)| Some((kind.to_owned(), offset.parse().ok()?)));
        let rejected = words().filter(|(name, _)| *name == REJECTED).flat_map(|(_, offsets)| offsets.split(','));
        Self { next: *next, left_out: left_out.collect(), rejected: rejected.filter_map(|offset| offset.parse().ok()).collect() }
    }

    /// Returns the metadata to commit with `next`. If the metadata is too large, replaces kinds with their hashes. Returns `None` if the
    /// metadata is still too large.
    pub(super) fn metadata(&self, topic_id: Option<&str>) -> Option<String> {
        [false, true].into_iter().map(|is_hashed| self.text(topic_id, is_hashed)).find(|text| text.len() <= METADATA_MAX)
    }

    fn text(&self, topic_id: Option<&str>, is_hashed: bool) -> String {
        let note = Note { id: topic_id.map(str::to_owned), ..Note::default() }.to_string();
        let rejected = self.rejected.iter().map(Offset::to_string).collect::<Vec<_>>().join(",");
        let rejected = (!rejected.is_empty()).then(|| format!("{REJECTED}={rejected}"));
        let left_out = self.left_out.iter().map(|(kind, offset)| {
            let hashed = (is_hashed && !is_hash(kind)).then(|| hash(kind));
            format!("{}={offset}", hashed.as_ref().unwrap_or(kind))
        });
        [note].into_iter().chain(rejected).chain(left_out).collect::<Vec<_>>().join(" ")
    }

    /// Forgets dead letters below `low`, the first offset of the partition, because they no longer exist.
    pub(super) fn forget_below(&mut self, low: Offset) {
        self.rejected.retain(|&offset| offset >= low);
        self.left_out.values_mut().for_each(|first| *first = low.max(*first));
        let next = self.next;
        self.left_out.retain(|_, first| *first < next);
    }

    /// Returns the offset of the first dead letter that a redrive of the selected kinds may have to write.
    pub(super) fn begin(&self, is_selected: impl Fn(&str) -> bool) -> Offset {
        let left_out = self.left_out.iter().filter(|(kind, _)| is_selected(kind));
        left_out.map(|(_, &offset)| offset).chain(self.rejected.first().copied()).fold(self.next, Offset::min)
    }

    /// True if the dead letter of this kind at this offset was not redriven yet.
    pub(super) fn is_due(&self, kind: &str, offset: Offset) -> bool {
        offset >= self.first(kind).unwrap_or(self.next) || self.rejected.contains(&offset)
    }

    fn first(&self, kind: &str) -> Option<Offset> {
        self.left_out.get(kind).or_else(|| self.left_out.get(&hash(kind))).copied()
    }

    /// True if the dead letter at this offset was not redriven, because its target rejected it.
    pub(super) fn is_rejected(&self, offset: Offset) -> bool {
        self.rejected.contains(&offset)
    }

    /// Marks a dead letter as not selected by this redrive. Like [`Self::reject`] and [`Self::redrive`], must only be called for a dead
    /// letter that is due.
    pub(super) fn leave_out(&mut self, kind: &str, offset: Offset) {
        if !self.is_rejected(offset) && self.first(kind).is_none() {
            self.left_out.insert(kind.to_owned(), offset);
        }
    }

    pub(super) fn reject(&mut self, offset: Offset) {
        self.rejected.insert(offset);
    }

    pub(super) fn redrive(&mut self, offset: Offset) {
        self.rejected.remove(&offset);
    }

    /// Moves past an offset. The caller has redriven or rejected all dead letters of the selected kinds up to and including this offset.
    /// `is_selected` must return true both for a selected kind and for its hash.
    pub(super) fn advance(&mut self, offset: Offset, is_selected: impl Fn(&str) -> bool) {
        self.next = self.next.max(offset + 1);
        let next = self.next;
        self.left_out.retain(|kind, first| {
            if is_selected(kind) {
                *first = (*first).max(offset + 1);
            }
            *first < next
        });
    }
}

/// Returns the hash of a kind. It starts with a slash, so [`is_hash`] can distinguish it from a kind.
pub(super) fn hash(kind: &str) -> String {
    format!("/{}", BASE64URL_NOPAD.encode(&xxh3_64(kind.as_bytes()).to_le_bytes()[..HASH_BYTES]))
}

/// True if the text is the hash of a kind. A kind itself never starts with a slash, because no topic has an empty name.
pub(super) fn is_hash(kind: &str) -> bool {
    kind.starts_with('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [&str; 3] = ["a/malformed", "a/late", "b/late"];

    /// Redrives a log of kinds, from the position to `end`. Returns the offsets that were redriven.
    fn redrive(position: &mut Position, log: &[&str], end: usize, selected: &[&str], rejected: &[usize]) -> Vec<usize> {
        let is_selected = |kind: &str| selected.iter().any(|name| *name == kind || hash(name) == kind);
        let mut redriven = Vec::new();
        for (at, kind) in log.iter().enumerate().take(end).skip(usize::try_from(position.begin(is_selected)).unwrap()) {
            let offset = Offset::try_from(at).unwrap();
            if position.is_due(kind, offset) {
                if is_selected(kind) && rejected.contains(&at) {
                    position.reject(offset);
                } else if is_selected(kind) {
                    position.redrive(offset);
                    redriven.push(at);
                } else {
                    position.leave_out(kind, offset);
                }
            }
            position.advance(offset, is_selected);
        }
        redriven
    }

    /// Each dead letter is redriven once, when its kind is first selected and its target accepts it. This holds for any sequence of
    /// redrives, each of some kinds and up to some offset.
    #[test]
    fn each_dead_letter_is_redriven_once_for_any_selection() {
        let log: Vec<_> = (0..7).map(|number| KINDS[number * number % 3 + usize::from(number == 5)]).collect();
        let selections: Vec<Vec<&str>> =
            (0..8).map(|bits| KINDS.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1).map(|(_, kind)| *kind).collect()).collect();
        for first in 0..selections.len() * 8 {
            for second in 0..selections.len() * 8 {
                let (mut position, mut redriven) = (Position::default(), vec![0; log.len()]);
                let all = KINDS.to_vec();
                for (number, (selected, end)) in
                    [(&selections[first % 8], first / 8), (&selections[second % 8], second / 8), (&all, log.len()), (&all, log.len())]
                        .into_iter()
                        .enumerate()
                {
                    let metadata = position.text(Some("id"), (first + number) % 3 == 0);
                    position = Position::read(&Committed { offset: Some(position.next), metadata }, Some("id"));
                    // In the first two redrives, the target rejects two of the dead letters.
                    let rejected: &[usize] = if number < 2 { &[1, 4] } else { &[] };
                    for at in redrive(&mut position, &log, end, selected, rejected) {
                        redriven[at] += 1;
                    }
                }
                assert_eq!(redriven, vec![1; log.len()], "{first} {second}");
                assert_eq!(position, Position { next: 7, ..Position::default() });
            }
        }
    }

    #[test]
    fn a_recreated_topic_starts_over() {
        let committed = |metadata: &str| Committed { offset: Some(9), metadata: metadata.to_owned() };
        assert_eq!(Position::read(&committed("unseen topic_id=a b/late=3"), Some("c")), Position::default());
        let position = Position { next: 9, left_out: [("b/late".to_owned(), 3)].into(), ..Position::default() };
        assert_eq!(Position::read(&committed("unseen topic_id=a b/late=3"), Some("a")), position);
        assert_eq!(Position::read(&committed("unseen b/late=3"), None), position);
        assert_eq!(Position::read(&Committed::default(), Some("a")), Position::default());
    }

    /// Without hashes, the metadata of only 16 kinds would already be too large for brokers if topic names have 250 bytes.
    #[test]
    fn metadata_has_room_for_many_kinds_and_is_bounded() {
        let kind = |number: usize| (format!("{}{number}/late", "x".repeat(240)), 1_000_000);
        let position = |kinds: usize| Position { next: 9_000_000, left_out: (0..kinds).map(kind).collect(), ..Position::default() };
        let metadata = position(190).metadata(Some("AAAAAAAAAAAAAAAAAAAAAA")).unwrap();
        let read = Position::read(&Committed { offset: Some(9_000_000), metadata }, None);
        for number in 0..190 {
            assert!(read.is_due(&kind(number).0, 1_000_000) && !read.is_due(&kind(number).0, 999_999));
        }
        assert!(!read.is_due(&kind(190).0, 1_000_000));
        let again = Committed { offset: Some(9_000_000), metadata: read.metadata(None).unwrap() };
        assert_eq!(Position::read(&again, None), read);
        assert_eq!(position(300).metadata(None), None);
        let rejected = Position { next: 9_000_000, rejected: (1_000_000..1_000_600).collect(), ..Position::default() };
        assert_eq!(rejected.metadata(None), None);
    }

    #[test]
    fn deleted_dead_letters_are_forgotten() {
        let left_out = [("a/late".to_owned(), 3), ("b/late".to_owned(), 7)].into();
        let mut position = Position { next: 9, left_out, rejected: [4, 6].into() };
        position.forget_below(5);
        assert_eq!(
            position,
            Position { next: 9, left_out: [("a/late".to_owned(), 5), ("b/late".to_owned(), 7)].into(), rejected: [6].into() }
        );
        position.forget_below(9);
        assert_eq!(position, Position { next: 9, ..Position::default() });
    }
}
