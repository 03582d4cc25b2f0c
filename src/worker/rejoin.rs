//! A worker's life as a member of the group, and what follows when the group takes another for this member.
//!
//! Owns the question whether there is such another. Must never go on with anything that was read
//! before: whoever has the name may have committed past it.
//!
//! When another process joins under the static name of a member (`group.instance.id`), that member gets an error that
//! says so. Its consumer is of no use any more. It gets the same error where there is no such process. librdkafka forgets the id of a member
//! whose session has ended, and while the worker has not answered the rebalance that follows, perhaps because its
//! commit waits for the same broker, it goes on sending heartbeats without one. To the broker, once it is back, the
//! name has another id than that (librdkafka issue 3437). A join that the client had given up, and that the broker
//! takes after the next one, ends the same way (KAFKA-20985). librdkafka and Kafka's own client both leave it to
//! whoever uses them to start anew.
//!
//! So the member joins anew. A new consumer takes the name over from whoever has it; if that is a process that lives,
//! it comes back, too. A commit in between says nothing, for both may get that far: they are distinguished by how often
//! this happens. What each writes meanwhile is safe, for the group takes the offsets of the last that joined only,
//! and producers of one transactional id fence each other.

use super::{Error, POLL_INTERVAL, Worker};
use crate::broker::{self, Broker};
use crate::runtime;
use std::time::Duration;

/// How often a member joins anew within [`MEMORY`].
const REJOINS_MAX: usize = 3;

/// How long each time counts: by far longer than two processes need to take the name from each other.
const MEMORY: Duration = Duration::from_secs(600);

/// How long the group is given before a member joins anew.
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
