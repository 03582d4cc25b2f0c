//! Rejoins the group after the group fenced this member.
//!
//! Decides whether another process uses the same `group.instance.id`. Never processes records that the fenced consumer has read, because
//! the other process may have committed past these records.
//!
//! When another process joins with a member's static name (`group.instance.id`), the group fences that member, and its consumer becomes
//! unusable. The group can also fence a member when no other process exists, for two reasons.
//!
//! First, if the session ends during an outage of the broker, librdkafka forgets its member id. Until the worker has answered the rebalance
//! that follows, librdkafka sends heartbeats without an id. The answer can take long, because the worker may first have to wait for a
//! commit to the same broker. The broker knows the static name under a different member id, so it fences the member when it is back
//! (librdkafka issue 3437). Second, if the client has given up a join request and has sent another request, the broker may process the two
//! requests in the wrong order (KAFKA-20985). librdkafka and Kafka's Java client both leave the recovery to the application.
//!
//! So the member rejoins with a new consumer, which takes the name back. If another process has the same name, that process takes the name
//! back as well. A successful commit in between proves nothing, because both processes can commit before they are fenced. Only repeated
//! fencing shows that there is another process. Neither process loses records, because the group accepts offsets only from the member that
//! joined last. With exactly-once delivery, the processes also emit no duplicates, because producers with the same transactional id fence
//! each other.

use super::{Error, POLL_INTERVAL, Worker};
use crate::broker::{self, Broker};
use crate::runtime;
use std::time::Duration;

const REJOINS_MAX: usize = 3;

/// The period for counting rejoins. Two processes that take the name from each other reach the maximum much faster.
const REJOIN_WINDOW: Duration = Duration::from_secs(600);

const PAUSE: Duration = Duration::from_secs(1);

impl<B: Broker> Worker<B> {
    /// Drops everything that the fenced consumer has read and waits. A new consumer then joins the group. Fails if the group has fenced
    /// this member so often that another process must have the same name.
    pub(super) fn prepare_to_rejoin(&mut self, source: &B::Consumer) -> Result<(), Error> {
        self.rejoins.retain(|at| runtime::since(*at) < REJOIN_WINDOW);
        if self.rejoins.len() >= REJOINS_MAX {
            return Err(broker::Error::Fenced.into());
        }
        self.rejoins.push(runtime::now());
        tracing::warn!(
            attempt = self.rejoins.len(),
            "the group reported that another process joined with this process's kafka.instance_id; rejoining, because an outage can have the same effect"
        );
        let partitions: Vec<_> = self.assignment.positions().into_iter().map(|(partition, _)| partition).collect();
        self.drop_lost(source, &partitions)?;
        let until = runtime::now() + PAUSE;
        while runtime::now() < until && !self.check_stop() {
            runtime::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}
