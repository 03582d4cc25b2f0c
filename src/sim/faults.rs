//! How often the network and the brokers misbehave.

use super::random::Random;
use std::time::Duration;

/// The requests that clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Api {
    /// Metadata, configurations, and topic management.
    Metadata,
    /// Records for a consumer.
    Fetch,
    /// Records of a producer.
    Produce,
    /// The ends of a partition.
    ListOffsets,
    /// The group's committed offsets.
    OffsetFetch,
    /// Offsets committed outside a transaction.
    OffsetCommit,
    /// Joining the group.
    JoinGroup,
    /// The assignment of a group.
    SyncGroup,
    /// A sign of life of a member.
    Heartbeat,
    /// Leaving the group.
    LeaveGroup,
    /// A producer id or a new epoch.
    InitProducerId,
    /// Partitions of a transaction.
    AddPartitionsToTxn,
    /// A group of a transaction.
    AddOffsetsToTxn,
    /// Offsets of a transaction.
    TxnOffsetCommit,
    /// The end of a transaction.
    EndTxn,
    /// Deleting the beginning of a log.
    DeleteRecords,
}

impl Api {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Metadata => "Metadata",
            Self::Fetch => "Fetch",
            Self::Produce => "Produce",
            Self::ListOffsets => "ListOffsets",
            Self::OffsetFetch => "OffsetFetch",
            Self::OffsetCommit => "OffsetCommit",
            Self::JoinGroup => "JoinGroup",
            Self::SyncGroup => "SyncGroup",
            Self::Heartbeat => "Heartbeat",
            Self::LeaveGroup => "LeaveGroup",
            Self::InitProducerId => "InitProducerId",
            Self::AddPartitionsToTxn => "AddPartitionsToTxn",
            Self::AddOffsetsToTxn => "AddOffsetsToTxn",
            Self::TxnOffsetCommit => "TxnOffsetCommit",
            Self::EndTxn => "EndTxn",
            Self::DeleteRecords => "DeleteRecords",
        }
    }
}

/// What becomes of one request, if a test says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It never reaches the broker.
    LostRequest,
    /// The broker serves it, and its answer is lost.
    LostAnswer,
    /// The client loses the connection, and the broker serves the request after this time.
    Late(Duration),
    /// The broker answers with a retriable error.
    Refused,
}

/// The faults of a simulation. Probabilities are parts in 10,000 requests. 0 switches a fault off.
#[derive(Clone, Debug)]
pub struct Faults {
    /// The request never reaches the broker.
    pub lost_request: u32,
    /// The broker serves the request, and its answer is lost.
    pub lost_answer: u32,
    /// The client loses the connection and sends the request again, and the broker serves the first copy late.
    pub late_request: u32,
    /// The requests that may arrive late. A late `EndTxn` or `TxnOffsetCommit` acts on another transaction of the same epoch (KIP-890),
    /// a late `AddPartitionsToTxn` or `AddOffsetsToTxn` opens one that nobody ends before it times out, a late `InitProducerId` fences
    /// its own producer, and a late join disturbs the group (KAFKA-20985). A late `OffsetCommit` may set a committed offset back, which
    /// no client can prevent. Late copies of other requests have no effect.
    pub late_apis: &'static [Api],
    /// The longest time by which a request is late.
    pub late_by: Duration,
    /// The answer takes up to [`Faults::slow_by`].
    pub slow_answer: u32,
    /// The longest time that a slow answer takes.
    pub slow_by: Duration,
    /// The broker answers with a retriable error and does nothing.
    pub retriable_error: u32,
    /// A fetch reports an error of a partition.
    pub fetch_error: u32,
    /// The producer's queue is full.
    pub queue_full: u32,
    /// A producer that fences another one's open transaction is told that it was fenced itself, as happens to one of two producers that
    /// begin in the same moment (`TransactionCoordinator.handleInitProducerId`).
    pub fenced_init: u32,
    /// The markers of a transaction are written up to [`Faults::slow_by`] after its end.
    pub slow_marker: u32,
    /// The time that the brokers need for each record of a transaction: they answer when they have written it.
    pub record_time: Duration,
    /// The mean time between outages: an unavailable broker, an election, a slow broker, or lagging followers.
    pub outage_every: Option<Duration>,
    /// The longest outage.
    pub outage_for: Duration,
}

impl Faults {
    /// No faults.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            lost_request: 0,
            lost_answer: 0,
            late_request: 0,
            late_apis: &[
                Api::EndTxn,
                Api::TxnOffsetCommit,
                Api::JoinGroup,
                Api::InitProducerId,
                Api::AddPartitionsToTxn,
                Api::AddOffsetsToTxn,
            ],
            late_by: Duration::from_secs(20),
            slow_answer: 0,
            slow_by: Duration::from_secs(3),
            retriable_error: 0,
            fetch_error: 0,
            queue_full: 0,
            fenced_init: 0,
            slow_marker: 0,
            record_time: Duration::ZERO,
            outage_every: None,
            outage_for: Duration::from_secs(15),
        }
    }

    /// Faults of a strength that the seed chooses. Each kind is off in some of the runs.
    #[must_use]
    pub fn drawn(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6661_756c_7473);
        let mut often = |most: u64| match random.below(3) {
            0 => 0,
            1 => u32::try_from(random.below(most / 10 + 1)).unwrap_or(0),
            _ => u32::try_from(random.below(most + 1)).unwrap_or(0),
        };
        Self {
            lost_request: often(200),
            lost_answer: often(200),
            late_request: often(200),
            slow_answer: often(200),
            retriable_error: often(300),
            fetch_error: often(100),
            queue_full: often(100),
            fenced_init: often(500),
            slow_marker: often(1000),
            outage_every: (often(10_000) > 0).then(|| Duration::from_millis(random.between(2_000, 60_000))),
            ..Self::none()
        }
    }
}
