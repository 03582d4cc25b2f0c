//! The first commit of a group, by one who is no member of it.
//!
//! Must never commit while the group has members: nothing but the question keeps the two apart.

use super::error::next;
use super::{CALL_TIMEOUT, OffsetToCommit, Sink, SinkError};
use crate::broker::{Broker, MembershipOf, ProducerClient as _};
use crate::fault;

impl<B: Broker> Sink<B> {
    /// Waits until all that was sent is written.
    ///
    /// # Errors
    /// [`SinkError`] says what to do.
    pub fn wait_written(&self) -> Result<(), SinkError> {
        self.flush().map_err(|failure| self.explain(failure))
    }

    /// Commits what was [written](Self::wait_written) together with the first offsets of a group. `check` is asked once the offsets are a part of the
    /// transaction: who joins from then on learns of none before it has ended, so that a member is seen by `check`, or comes after
    /// the commit.
    ///
    /// # Errors
    /// [`SinkError`] says what to do.
    pub fn commit_first(
        &self,
        first: &[OffsetToCommit],
        outsider: &MembershipOf<B>,
        check: impl FnOnce() -> Result<(), SinkError>,
    ) -> Result<(), SinkError> {
        let requests = self.offset_requests(first);
        let commit = || {
            fault::point("seed.written");
            self.send_offsets(&requests, outsider)?;
            fault::point("seed.offsets_sent");
            check()?;
            self.attempt(|| self.producer.commit_transaction(CALL_TIMEOUT)).map_err(|error| next(&error))?;
            fault::point("seed.committed");
            Ok(())
        };
        commit().map_err(|failure| self.explain(failure))
    }
}
