//! Fault probabilities of the network and the brokers.

use super::random::Random;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Api {
    /// Metadata, configurations, and topic management.
    Metadata,
    Fetch,
    Produce,
    ListOffsets,
    OffsetFetch,
    OffsetCommit,
    JoinGroup,
    SyncGroup,
    Heartbeat,
    LeaveGroup,
    InitProducerId,
    AddPartitionsToTxn,
    AddOffsetsToTxn,
    TxnOffsetCommit,
    EndTxn,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFault {
    LostRequest,
    LostAnswer,
    /// The client loses the connection, and the broker serves the request after this time.
    Late(Duration),
    Refused,
}

/// The faults of a simulation. Each `u32` is a probability in parts per 10,000. 0 disables the fault.
#[derive(Clone, Debug)]
pub struct Faults {
    pub lost_request: u32,
    pub lost_answer: u32,
    /// The client loses the connection, and the broker serves the request late. Affects only the requests in [`Faults::late_apis`].
    pub late_request: u32,
    /// The requests that can arrive late. A late `EndTxn` or `TxnOffsetCommit` can affect a later transaction of the same producer epoch
    /// (KIP-890). A late `AddPartitionsToTxn` or `AddOffsetsToTxn` can open a transaction that ends only when it times out. A late
    /// `InitProducerId` fences the producer that sent it, and a late `JoinGroup` disturbs the group (KAFKA-20985). A late `OffsetCommit`
    /// can reset a committed offset to an earlier one. No client can prevent such a reset, so [`Faults::none`] does not list
    /// `OffsetCommit`. Other requests are not listed, because real brokers detect late copies of them or are not affected.
    pub late_apis: &'static [Api],
    /// The maximum delay of a late request.
    pub late_by: Duration,
    /// The answer of the broker takes up to [`Faults::slow_by`] longer.
    pub slow_answer: u32,
    /// The maximum delay of a slow answer or of a slow marker.
    pub slow_by: Duration,
    /// The broker answers with a retriable error and does nothing.
    pub retriable_error: u32,
    pub fetch_error: u32,
    pub queue_full: u32,
    /// A new producer fences the producer of an open transaction and is then fenced itself. If two producers start at the same moment,
    /// brokers fence one of them (`TransactionCoordinator.handleInitProducerId`).
    pub fenced_init: u32,
    /// A marker of a transaction is written up to [`Faults::slow_by`] later than usual.
    pub slow_marker: u32,
    /// The time that brokers need to write each record of a transaction. The producer gets its answer only after this time.
    pub record_time: Duration,
    /// The approximate mean time between the starts of outages. In an outage, one broker or all brokers are unavailable, a broker is slow,
    /// a partition has no leader or changes its leader, or followers lag.
    pub outage_every: Option<Duration>,
    pub outage_for: Duration,
}

impl Faults {
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

    /// Draws random faults from a seed. Each kind of fault is disabled in some runs.
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
