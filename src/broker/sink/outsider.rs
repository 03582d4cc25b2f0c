//! A commit of group offsets by a client that is not a member of the group, such as `unseen seed`.
//!
//! Runs the steps of the commit in a safe order. This module never commits while the group has members, which it detects with the caller's
//! `check`.

use super::error::next;
use super::{CALL_TIMEOUT, OffsetToCommit, Sink, SinkError};
use crate::broker::{Broker, MembershipOf, ProducerClient as _};
use crate::fault;

impl<B: Broker> Sink<B> {
    pub fn wait_written(&self) -> Result<(), SinkError> {
        self.flush().map_err(|failure| match self.explain(failure) {
            // If the user may not write to a topic, all records fail together, and only the error of the transaction contains the reason.
            SinkError::Abort(reason) => match self.why_failed() {
                denied @ SinkError::Exit(_) => denied,
                _ => SinkError::Abort(reason),
            },
            other => other,
        })
    }

    /// Commits the [written](Self::wait_written) records together with offsets of a group. Calls `check` after the offsets were added to
    /// the transaction. From then until the transaction ends, the brokers return no committed offsets of these partitions. So a member that
    /// has fetched the earlier offsets joined the group before `check` runs, and `check` sees this member.
    pub fn commit_as_outsider(
        &self,
        offsets: &[OffsetToCommit],
        outsider: &MembershipOf<B>,
        check: impl FnOnce() -> Result<(), SinkError>,
    ) -> Result<(), SinkError> {
        let requests = self.offset_requests(offsets);
        let commit = || {
            fault::point("outsider.written");
            self.send_offsets(&requests, outsider)?;
            fault::point("outsider.offsets_sent");
            check()?;
            self.attempt(|| self.producer.commit_transaction(CALL_TIMEOUT)).map_err(|error| next(&error))?;
            fault::point("outsider.committed");
            Ok(())
        };
        commit().map_err(|failure| self.explain(failure))
    }
}
