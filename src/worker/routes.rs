//! Where a decided record goes, in this cluster.
//!
//! Owns the topics that a topic's records go to, and whether partitions keep their numbers on the way; [`crate::route`] says
//! which of them a verdict leads to. Must never change a verdict.

use crate::broker::{Cluster, Record};
use crate::config::{OnDuplicate, OnInvalid, Topic};
use crate::record::{Invalid, Reason, Verdict};
use crate::route::{self, AddedHeaders, Destination, Detail, Origin};

/// A topic that records go to.
#[derive(Debug)]
struct Place {
    topic: String,
    /// Whether records keep the number of the partition they came from.
    same_partition: bool,
}

impl Place {
    /// The topic, and the partition of a record there; `None` leaves it to the record's key.
    #[inline]
    fn of(&self, message: &impl Record) -> (&str, Option<i32>) {
        (&self.topic, self.same_partition.then(|| message.partition()))
    }
}

/// The topics that records of one input go to.
#[derive(Debug)]
pub(super) struct Routes {
    /// None of a shadow: then no record goes anywhere.
    output: Option<Place>,
    duplicates: Option<Place>,
    dead_letters: Option<Place>,
}

/// What becomes of a record.
pub(super) enum Route<'a> {
    /// It is written there; `None` leaves the partition to its key.
    Write { topic: &'a str, partition: Option<i32> },
    /// It is dropped.
    Drop,
    /// The worker stops at it.
    Fail(Reason),
}

impl Routes {
    pub(super) fn new(topic: &Topic, cluster: &Cluster) -> Self {
        let count = |name: &str| cluster.partitions.get(name).copied().unwrap_or(0);
        let place = |name: &str| Place { topic: name.to_owned(), same_partition: count(name) >= count(&topic.input) };
        Self {
            output: topic.output.as_deref().map(place),
            duplicates: if let OnDuplicate::Topic(name) = &topic.on_duplicate { Some(place(name)) } else { None },
            dead_letters: if let OnInvalid::Topic(name) = &topic.on_invalid { Some(place(name)) } else { None },
        }
    }

    /// Decides what becomes of a record. `invalid` explains a verdict that asks for it, and `detail` how much is to be said;
    /// the headers to add are put into `headers`.
    #[inline]
    pub(super) fn route<'a>(
        &'a self,
        topic: &Topic,
        verdict: Verdict,
        invalid: Option<&Invalid>,
        detail: Detail,
        message: &impl Record,
        headers: &mut AddedHeaders,
    ) -> Route<'a> {
        let destination = match route::of(topic, verdict) {
            route::Route::Write(destination) => destination,
            route::Route::Drop => return Route::Drop,
            route::Route::Fail(reason) => return Route::Fail(reason),
        };
        let place = match destination {
            Destination::Output => self.output.as_ref(),
            Destination::Duplicates => self.duplicates.as_ref(),
            Destination::DeadLetters => self.dead_letters.as_ref(),
        };
        let Some(place) = place else { return Route::Drop };
        let origin =
            || Origin { topic: message.topic(), partition: message.partition(), offset: message.offset(), time: message.timestamp() };
        route::headers(topic, destination, verdict, invalid, detail, origin, headers);
        let (topic, partition) = place.of(message);
        Route::Write { topic, partition }
    }

    /// Where an unseen record goes, if anywhere; `None` leaves the partition to its key.
    #[inline]
    pub(super) fn output(&self, message: &impl Record) -> Option<(&str, Option<i32>)> {
        self.output.as_ref().map(|place| place.of(message))
    }

    /// Whether such a record, if it is written, goes to the dead letters.
    pub(super) const fn is_dead_letter(&self, verdict: Verdict) -> bool {
        matches!(verdict, Verdict::Late | Verdict::Invalid(_)) && self.dead_letters.is_some()
    }
}
