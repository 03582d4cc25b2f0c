//! Where a decided record goes.
//!
//! Owns the routes of a topic and the headers that are added on the way. Must never change a verdict.

use crate::config::{OnDuplicate, OnInvalid, OnTombstone, Topic};
use crate::dedup::Late;
use crate::kafka::{Cluster, Message};
use crate::record::{Invalid, Reason, Verdict};

/// Header that says a record's verdict, where `on_duplicate = "mark"`.
const VERDICT_HEADER: &str = "unseen-verdict";

/// Header of a dead letter that is written without its time: the time, in milliseconds since the epoch.
const TIMESTAMP_HEADER: &str = "unseen-timestamp";

/// A header that is added: its name and value.
pub(super) type AddedHeader = (&'static str, String);

/// A topic that records go to.
#[derive(Debug)]
pub(super) struct Destination {
    topic: String,
    /// Whether records keep the number of the partition they came from.
    same_partition: bool,
}

/// The destinations of one input topic.
#[derive(Debug)]
pub(super) struct Routes {
    output: Destination,
    duplicates: Option<Destination>,
    dead_letters: Option<Destination>,
    mark: bool,
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
        let destination = |name: &str| Destination { topic: name.to_owned(), same_partition: count(name) >= count(&topic.input) };
        Self {
            output: destination(&topic.output),
            duplicates: if let OnDuplicate::Topic(name) = &topic.on_duplicate { Some(destination(name)) } else { None },
            dead_letters: if let OnInvalid::Topic(name) = &topic.on_invalid { Some(destination(name)) } else { None },
            mark: topic.on_duplicate == OnDuplicate::Mark,
        }
    }

    /// Decides what becomes of a record. `invalid` explains a verdict that asks for it; the headers
    /// to add are put into `headers`.
    #[inline]
    pub(super) fn route<'a>(
        &'a self,
        topic: &Topic,
        verdict: Verdict,
        invalid: Option<&Invalid>,
        message: &Message<'_>,
        headers: &mut Vec<AddedHeader>,
    ) -> Route<'a> {
        headers.clear();
        let destination = match verdict {
            Verdict::Unseen => &self.output,
            Verdict::Tombstone if topic.on_tombstone == OnTombstone::Emit => &self.output,
            Verdict::Retracted | Verdict::Tombstone => return Route::Drop,
            Verdict::Duplicate if self.mark => &self.output,
            // Written as it is, it would be refused again.
            Verdict::Invalid(reason) if reason.is_of_broker() && topic.on_invalid == OnInvalid::Emit => return Route::Fail(reason),
            Verdict::Invalid(_) if topic.on_invalid == OnInvalid::Emit => &self.output,
            Verdict::Invalid(reason) if topic.on_invalid == OnInvalid::Fail => return Route::Fail(reason),
            Verdict::Late if topic.late != Late::DeadLetter => return Route::Drop,
            Verdict::Duplicate => match &self.duplicates {
                Some(duplicates) => duplicates,
                None => return Route::Drop,
            },
            Verdict::Late | Verdict::Invalid(_) => match &self.dead_letters {
                Some(dead_letters) => {
                    explain(verdict, invalid, message, headers);
                    dead_letters
                }
                None => return Route::Drop,
            },
        };
        if self.mark && headers.is_empty() {
            headers.push((VERDICT_HEADER, label(verdict).to_owned()));
        }
        let partition = destination.same_partition.then(|| message.partition());
        Route::Write { topic: &destination.topic, partition }
    }
}

impl Routes {
    /// Whether such a record, if it is written, goes to the dead letters.
    pub(super) const fn is_dead_letter(&self, verdict: Verdict) -> bool {
        matches!(verdict, Verdict::Late | Verdict::Invalid(_)) && self.dead_letters.is_some()
    }
}

/// A verdict as a word, the same as in metrics.
const fn label(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Unseen => "unseen",
        Verdict::Duplicate => "duplicate",
        Verdict::Late => "late",
        Verdict::Retracted => "retracted",
        Verdict::Tombstone => "tombstone",
        Verdict::Invalid(_) => "invalid",
    }
}

/// What is said of a record that nothing more is known of.
const fn without_words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Invalid(_) => "the record was invalid when it was first read",
        _ => "the record is older than the window",
    }
}

/// The headers of a dead letter, named as Kafka Connect names them, so that its tools read them.
fn explain(verdict: Verdict, invalid: Option<&Invalid>, message: &Message<'_>, headers: &mut Vec<AddedHeader>) {
    let reason = match verdict {
        Verdict::Invalid(reason) => reason.label(),
        _ => label(verdict),
    };
    let sentence = invalid.map_or_else(|| without_words(verdict).to_owned(), ToString::to_string);
    headers.extend([
        ("__connect.errors.topic", message.topic().to_owned()),
        ("__connect.errors.partition", message.partition().to_string()),
        ("__connect.errors.offset", message.offset().to_string()),
        ("__connect.errors.stage", "DEDUP".to_owned()),
        ("__connect.errors.exception.class.name", format!("unseen.{reason}")),
        ("__connect.errors.exception.message", sentence),
    ]);
    if let (Verdict::Invalid(Reason::Refused), Some(time)) = (verdict, message.timestamp()) {
        headers.push((TIMESTAMP_HEADER, time.to_string()));
    }
}
