//! The faults that a plan can have.

use crate::options::Change;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Fault {
    /// `kill -9` and a restart.
    Kill,
    /// `kill -9` after the given number of client calls.
    KillAfter(u64),
    /// `kill -9` at the n-th pass of a fault point.
    KillAt(String, u32),
    /// A step fails at the n-th pass of its fault point, which is one of [`FAILING`].
    FailAt(String, u32),
    /// The process is frozen for a while.
    Stop {
        ms: u64,
    },
    /// The process is frozen for a while at the n-th pass of a fault point.
    StopAt {
        point: String,
        count: u32,
        ms: u64,
    },
    /// SIGTERM and a restart.
    Terminate,
    Join,
    Leave {
        killed: bool,
    },
    Roll,
    /// A second process runs with the same name as the first and with a copy of its disk.
    Twin {
        killed: bool,
    },
    /// The process stops, and its disk is deleted.
    LoseDisk {
        killed: bool,
    },
    /// The process stops, and a stored value is damaged.
    DamageDisk {
        entry: usize,
        killed: bool,
    },
    /// The process is killed, and its disk is copied. Then the copy that the previous fault of this kind made replaces the disk. The first
    /// fault of this kind replaces nothing.
    OldDisk,
    FullDisk {
        ms: u64,
    },
    /// The state directory is deleted while the process runs.
    DeleteDisk,
    /// All processes stop and start with another configuration.
    Change(Change),
    AddPartitions,
    /// All processes stop, and the group's offsets are deleted.
    LoseOffsets,
    /// All brokers are unavailable.
    Outage {
        ms: u64,
    },
    /// A partition of the input gets another leader, whose high watermark lags for a moment if `lag` is not 0.
    Elect {
        partition: i32,
        lag: i64,
    },
    /// A process restarts. While it restores its partitions, former leaders of the input wake up and answer with outdated offsets.
    FormerLeader,
    /// A process restarts. While it restores its partitions, a former group coordinator wakes up and answers with outdated offsets. Random
    /// plans do not contain this fault.
    FormerCoordinator,
    /// The group reads everything, and all processes stop. Then the input is deleted and recreated.
    RecreateInput,
    /// Like `RecreateInput`, but all disks are deleted, too.
    RecreateInputAndDisks,
    /// The group reads everything, and all processes stop. Then the group's offset of a partition is set to a higher offset than the end of
    /// the log, as if the log had been truncated.
    ShortLog {
        partition: i32,
    },
    /// The group reads everything, and all processes stop. Then another producer aborts a transaction, and all records of the input expire.
    ExpireInput,
    /// The group reads everything. Then another producer aborts a transaction, and all records of the input expire while the processes run.
    /// Another process joins.
    ExpireUnderWay,
    /// All processes stop, and the changelog is deleted.
    DeleteChangelog,
    /// The group reads everything, and all processes stop. Then the repartition topic is deleted.
    DeleteRepartitionTopic,
    /// The group reads everything, and all processes stop. Then an operator resets the group's offset of a partition.
    ResetOffset {
        partition: i32,
        back: i64,
    },
    /// The client loses the connection while it waits for the answer to `EndTxn`. The broker receives the request late, possibly after the
    /// client has repeated it.
    LateEnd {
        ms: u64,
    },
    /// `kill -9` and a restart. Without a changelog, the process restarts with its checkpoints from the group's start. When the process has
    /// restored its partitions, all partitions get other leaders, whose high watermarks lag for a moment if `lag` is not 0.
    ElectAfterRestore {
        lag: i64,
    },
    /// The wall clock of a process jumps by this time.
    StepClock {
        ms: i64,
    },
    /// The server is killed or frozen for a while.
    Server {
        killed: bool,
        ms: u64,
    },
    /// Another producer leaves a transaction open in the input for a while and then aborts it.
    OpenTransaction {
        partition: i32,
        ms: u64,
    },
    /// Two other producers each write some records to the input in a transaction. The stream continues before the two transactions end. If
    /// `committed` is true, the first transaction is committed and the second is aborted. Otherwise, the first is aborted and the second is
    /// committed.
    MixedTransaction {
        partition: i32,
        ms: u64,
        committed: bool,
    },
    /// A process cannot reach some of the brokers for a while.
    CutOff {
        brokers: Vec<usize>,
        ms: u64,
    },
    /// A thread is delayed for a while at the n-th pass of a fault point. The other threads of its process continue.
    StallAt {
        point: String,
        count: u32,
        ms: u64,
    },
    /// The group reads everything. Then the transaction coordinators expire all transactional ids that have no open transaction.
    ExpireTransactionalIds,
    /// All leaders and coordinators move to other brokers.
    MoveAll {
        lag: i64,
    },
    /// An empty topic appears that the pattern of the configuration matches.
    NewTopic,
}

/// The fault points of steps that can fail: connecting a producer, and the steps of a transaction and of a checkpoint.
pub const FAILING: [&str; 10] = [
    "connect.begin",
    "transaction.begin",
    "transaction.send",
    "commit.begin",
    "commit.offsets_sent",
    "commit.flushed",
    "commit.committed",
    "checkpoint.write",
    "checkpoint.written",
    "abort.begin",
];

impl Fault {
    /// True if, after the fault, the committed offsets do not show which records the group has read, or the current configuration does not
    /// show how the group judged them.
    pub const fn changes_the_input(&self) -> bool {
        matches!(
            self,
            Self::RecreateInput
                | Self::RecreateInputAndDisks
                | Self::ExpireInput
                | Self::ExpireUnderWay
                | Self::ShortLog { .. }
                | Self::LoseOffsets
                | Self::ResetOffset { .. }
                | Self::AddPartitions
                | Self::Change(Change::When | Change::Emit | Change::Rules)
        )
    }

    /// True if the fault changes which records are deduplicated or which entry deduplicates them.
    pub(super) const fn changes_conditions(&self) -> bool {
        matches!(self, Self::Change(Change::When | Change::Rules))
    }
}
