//! Committed offsets (`OffsetMetadataManager`).

use super::super::World;
use super::super::network::Code;
use super::group::{CommittedOffset, GroupState, MemberRef};
use super::log::Pid;
use crate::record::{Offset, TopicPartition};

/// The maximum size of an offset's metadata, in bytes (`offset.metadata.max.bytes`).
const METADATA_MAX: usize = 4096;
/// The maximum size of a commit, in bytes. A commit must fit into one batch of `__consumer_offsets` (`message.max.bytes`).
const COMMIT_MAX: usize = 1_048_588;
/// The approximate size of a committed offset without its metadata and topic name, in bytes.
const OFFSET_BYTES: usize = 60;

/// Partitions with their offsets and metadata.
pub(in crate::sim) type Offsets = [(TopicPartition, Offset, String)];

fn check_size(offsets: &Offsets) -> Result<(), Code> {
    if offsets.iter().any(|(_, _, metadata)| metadata.len() > METADATA_MAX) {
        return Err(Code::OffsetMetadataTooLarge);
    }
    let bytes: usize = offsets.iter().map(|(partition, _, metadata)| partition.topic.len() + metadata.len() + OFFSET_BYTES).sum();
    if bytes > COMMIT_MAX { Err(Code::InvalidCommitOffsetSize) } else { Ok(()) }
}

impl World {
    /// Commits offsets outside a transaction (`OffsetMetadataManager.commitOffset`).
    pub(in crate::sim) fn commit_offsets(&mut self, name: &str, of: &MemberRef, offsets: &Offsets) -> Result<(), Code> {
        self.group(name).validate(of)?;
        self.touch(name, &of.id);
        if self.group(name).state == GroupState::CompletingRebalance {
            return Err(Code::RebalanceInProgress);
        }
        check_size(offsets)?;
        for (partition, offset, metadata) in offsets {
            let committed = CommittedOffset { offset: *offset, metadata: metadata.clone() };
            self.trace_on("committed", partition, *offset);
            self.group(name).offsets.insert(partition.clone(), committed);
        }
        Ok(())
    }

    /// Adds offsets to a transaction (`OffsetMetadataManager.commitTransactionalOffset`). The coordinator checks the member and its
    /// generation (KIP-447), but not whether the member owns the partitions. If a request contains neither a generation nor a member id nor
    /// an instance id, the coordinator skips this check.
    pub(in crate::sim) fn commit_transactional(
        &mut self,
        name: &str,
        (pid, epoch): (Pid, i16),
        of: &MemberRef,
        offsets: &Offsets,
    ) -> Result<(), Code> {
        self.cluster.transactions.verify_group(pid, epoch, name)?;
        if of.generation >= 0 || !of.id.is_empty() || of.instance.is_some() {
            self.group(name).validate(of)?;
        }
        check_size(offsets)?;
        let pending = self.group(name).pending_offsets.entry(pid).or_default();
        for (partition, offset, metadata) in offsets {
            pending.insert(partition.clone(), CommittedOffset { offset: *offset, metadata: metadata.clone() });
        }
        Ok(())
    }

    /// Applies a transaction marker in `__consumer_offsets` (`OffsetMetadataManager.replayEndTransactionMarker`).
    pub(super) fn end_offsets(&mut self, name: &str, pid: Pid, is_commit: bool) {
        let group = self.group(name);
        let pending = group.pending_offsets.remove(&pid).unwrap_or_default();
        if is_commit {
            for (partition, committed) in pending {
                self.trace_on("committed", &partition, committed.offset);
                self.group(name).offsets.insert(partition, committed);
            }
        }
    }

    /// Returns the committed offset of each partition. Fails with `UNSTABLE_OFFSET_COMMIT` if a transaction whose marker has not been
    /// written yet contains an offset of one of the partitions (`require_stable`, KIP-447, `fetchOffsets`).
    pub(in crate::sim) fn fetch_offsets(&self, name: &str, partitions: &[TopicPartition]) -> Result<Vec<Option<CommittedOffset>>, Code> {
        let Some(group) = self.cluster.groups.get(name) else { return Ok(vec![None; partitions.len()]) };
        let (offsets, pending) = match group.former.as_ref().filter(|former| former.times.contains(&self.now)) {
            Some(former) => (&former.offsets, &former.pending_offsets),
            None => (&group.offsets, &group.pending_offsets),
        };
        if partitions.iter().any(|partition| pending.values().any(|pending| pending.contains_key(partition))) {
            return Err(Code::UnstableOffsetCommit);
        }
        Ok(partitions.iter().map(|partition| offsets.get(partition).cloned()).collect())
    }
}
