//! The position of a redrive in a partition of a dead-letter topic.
//!
//! Owns the record of which dead letters were redriven, and its text in the metadata of committed offsets. A redrive may leave out some
//! kinds of dead letters, which a later redrive can select. Must never count a dead letter as redriven if it was not.

use crate::broker::{Committed, Note};
use crate::record::Offset;
use std::collections::BTreeMap;

/// Maximum size of the metadata of a committed offset. The brokers' default limit is 4096.
const METADATA_MAX: usize = 4000;

/// A position. A kind is an input and a reason, such as `news.events/malformed`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// The next offset to read. Below it, all dead letters were redriven, except those that were left out.
    pub(super) next: Offset,
    /// The offset of the first dead letter that was left out, for each kind with such letters.
    pub(super) left_out: BTreeMap<String, Offset>,
}

impl Position {
    /// Reads a committed position. A topic with another id was recreated, so its offsets start over.
    pub(super) fn read(committed: &Committed, topic_id: Option<&str>) -> Self {
        let Committed { offset: Some(next), metadata } = committed else { return Self::default() };
        let id = Note::read(metadata).id;
        if id.is_some() && topic_id.is_some() && id.as_deref() != topic_id {
            return Self::default();
        }
        let words = metadata.split(' ').filter_map(|word| word.split_once('='));
        let left_out =
            words.filter(|(kind, _)| kind.contains('/')).filter_map(|(kind, offset)| Some((kind.to_owned(), offset.parse().ok()?)));
        Self { next: *next, left_out: left_out.collect() }
    }

    /// Returns the metadata to commit with `next`, or `None` if it is too large.
    pub(super) fn metadata(&self, topic_id: Option<&str>) -> Option<String> {
        let note = Note { id: topic_id.map(str::to_owned), ..Note::default() };
        let text = self.left_out.iter().fold(note.to_string(), |text, (kind, offset)| format!("{text} {kind}={offset}"));
        (text.len() <= METADATA_MAX).then_some(text)
    }

    /// Returns the offset of the first dead letter that a redrive of the selected kinds may have to write.
    pub(super) fn begin(&self, is_selected: impl Fn(&str) -> bool) -> Offset {
        let left_out = self.left_out.iter().filter(|(kind, _)| is_selected(kind));
        left_out.map(|(_, &offset)| offset).fold(self.next, Offset::min)
    }

    /// True if the dead letter of this kind at this offset was not redriven yet.
    pub(super) fn is_due(&self, kind: &str, offset: Offset) -> bool {
        offset >= self.left_out.get(kind).copied().unwrap_or(self.next)
    }

    /// Leaves out a dead letter that is due.
    pub(super) fn leave_out(&mut self, kind: &str, offset: Offset) {
        if !self.left_out.contains_key(kind) {
            self.left_out.insert(kind.to_owned(), offset);
        }
    }

    /// Moves past an offset. All dead letters of the selected kinds were redriven up to and including it.
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

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [&str; 3] = ["a/malformed", "a/late", "b/late"];

    /// Redrives a log of kinds, from the position to `end`. Returns the offsets that were redriven.
    fn redrive(position: &mut Position, log: &[&str], end: usize, selected: &[&str]) -> Vec<usize> {
        let is_selected = |kind: &str| selected.contains(&kind);
        let mut redriven = Vec::new();
        for (at, kind) in log.iter().enumerate().take(end).skip(usize::try_from(position.begin(is_selected)).unwrap()) {
            let offset = Offset::try_from(at).unwrap();
            if position.is_due(kind, offset) {
                if is_selected(kind) {
                    redriven.push(at);
                } else {
                    position.leave_out(kind, offset);
                }
            }
            position.advance(offset, is_selected);
        }
        redriven
    }

    /// Any sequence of redrives, each of some kinds and up to some offset, redrives each dead letter once, when its kind is first selected.
    #[test]
    fn each_dead_letter_is_redriven_once_for_any_selection() {
        let log: Vec<_> = (0..7).map(|number| KINDS[number * number % 3 + usize::from(number == 5)]).collect();
        let selections: Vec<Vec<&str>> =
            (0..8).map(|bits| KINDS.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1).map(|(_, kind)| *kind).collect()).collect();
        for first in 0..selections.len() * 8 {
            for second in 0..selections.len() * 8 {
                let (mut position, mut redriven) = (Position::default(), vec![0; log.len()]);
                let all = KINDS.to_vec();
                for (selected, end) in
                    [(&selections[first % 8], first / 8), (&selections[second % 8], second / 8), (&all, log.len()), (&all, log.len())]
                {
                    let metadata = position.metadata(Some("id")).unwrap();
                    position = Position::read(&Committed { offset: Some(position.next), metadata }, Some("id"));
                    for at in redrive(&mut position, &log, end, selected) {
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
        let position = Position { next: 9, left_out: [("b/late".to_owned(), 3)].into() };
        assert_eq!(Position::read(&committed("unseen topic_id=a b/late=3"), Some("a")), position);
        assert_eq!(Position::read(&committed("unseen b/late=3"), None), position);
        assert_eq!(Position::read(&Committed::default(), Some("a")), Position::default());
    }

    #[test]
    fn metadata_is_bounded() {
        let kind = |number: usize| (format!("{}/late", "x".repeat(number)), 7);
        assert_eq!(Position { next: 9, left_out: (0..100).map(kind).collect() }.metadata(None), None);
    }
}
