//! Rejoining the group after it has mistaken another process for this member.
//!
//! Owns the decision whether there is such a process. Must never continue with records that were read before, because the other process
//! may have committed past them.
//!
//! When another process joins with the static name of a member (`group.instance.id`), the group fences that member. Its consumer cannot
//! be used any more. The group may also do so if there is no such process. librdkafka forgets the id of a member whose session has ended.
//! Until the worker has answered the rebalance that follows, which may wait for a commit to the same broker, librdkafka sends heartbeats
//! without an id. When the broker is back, the name has a different id there (librdkafka issue 3437). A join that the client had given
//! up, and that the broker processes after the next one, has the same effect (KAFKA-20985). librdkafka and Kafka's own client both leave
//! the recovery to the application.
//!
//! So the member joins again. A new consumer takes the name back. If another process is alive, it does the same. A commit in between
//! proves nothing, because both may get that far. Only the frequency shows whether there is another process. Everything that either of
//! them writes is safe, because the group accepts only the offsets of the member that joined last, and producers with one transactional
//! id fence each other.

use super::{Error, POLL_INTERVAL, Worker};
use crate::broker::{self, Broker};
use crate::runtime;
use std::time::Duration;

/// Most times that a member rejoins within [`MEMORY`].
const REJOINS_MAX: usize = 3;

/// The time for which each rejoin counts: much longer than two processes need to take the name from each other.
const MEMORY: Duration = Duration::from_secs(600);

/// The wait before a member rejoins.
const PAUSE: Duration = Duration::from_secs(1);

impl<B: Broker> Worker<B> {
    /// Drops everything that the fenced consumer has read, and waits a moment. A new consumer then joins the group.
    ///
    /// # Errors
    /// If this happens so often that another process must have the same name.
    pub(super) fn prepare_to_rejoin(&mut self, source: &B::Consumer) -> Result<(), Error> {
        self.rejoins.retain(|at| runtime::since(*at) < MEMORY);
        if self.rejoins.len() >= REJOINS_MAX {
            return Err(broker::Error::Fenced.into());
        }
        self.rejoins.push(runtime::now());
        tracing::warn!(
            time = self.rejoins.len(),
            "the group says that another process has joined as the same member; joining anew, for it may say so after an outage, too"
        );
        let partitions: Vec<_> = self.assignment.positions().into_iter().map(|(partition, _)| partition).collect();
        self.lose(source, &partitions)?;
        let until = runtime::now() + PAUSE;
        while runtime::now() < until && !self.check_stop() {
            runtime::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}
