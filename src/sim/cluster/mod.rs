//! The simulated cluster: brokers, topics, the group coordinator, and the transaction coordinator.
//!
//! Comments refer to the classes and methods of Apache Kafka that the code follows, such as `ClassicGroup.validateMember`.

mod elections;
mod group;
mod join;
mod log;
mod offsets;
mod produce;
mod topic;
mod transactions;

pub(super) use group::{CommittedOffset, FormerCoordinator, Group, JoinAnswer, JoinRequest, Joined, MemberRef};
pub(super) use log::{Header, Pid, Producer};
pub use log::{Isolation, StoredRecord};
pub(super) use topic::FormerLeader;
pub(super) use topic::Topic;
pub use topic::{NewRecord, TopicOptions};

use super::Micros;
use super::network::{Code, NodeId};
use super::random::Random;
use crate::record::TopicPartition;
use std::collections::BTreeMap;
use transactions::Transactions;

#[derive(Default)]
pub(super) struct Node {
    pub(super) down_until: Micros,
    pub(super) slow_until: Micros,
}

pub(super) struct Cluster {
    pub(super) nodes: Vec<Node>,
    pub(super) topics: BTreeMap<String, Topic>,
    pub(super) groups: BTreeMap<String, Group>,
    pub(super) transactions: Transactions,
    /// The time when the brokers will have written all transactional records that they have received so far (`Faults::record_time`).
    writes_until: Micros,
    ids: Random,
}

impl Cluster {
    pub(super) fn new(nodes: usize, seed: u64) -> Self {
        let nodes = (0..nodes.max(1)).map(|_| Node::default()).collect();
        let (topics, groups, transactions) = (BTreeMap::new(), BTreeMap::new(), Transactions::default());
        Self { nodes, topics, groups, transactions, writes_until: 0, ids: Random::new(seed) }
    }

    pub(super) fn is_down(&self, node: NodeId, now: Micros) -> bool {
        self.nodes[node].down_until > now
    }

    /// The next available broker after `node`, or `node` if no other broker is available.
    fn up_after(&self, node: NodeId, now: Micros) -> NodeId {
        let count = self.nodes.len();
        (1..count).map(|step| (node + step) % count).find(|&other| !self.is_down(other, now)).unwrap_or(node)
    }

    /// The leader of a partition, or broker 0 if the partition does not exist.
    pub(super) fn leader(&self, of: &TopicPartition) -> NodeId {
        self.partition(of).map_or(0, |partition| partition.leader)
    }

    pub(super) fn coordinator(&self, name: &str) -> NodeId {
        let hash = name.bytes().fold(7_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(byte)));
        let own = hash % self.nodes.len();
        self.transactions.moved.get(&own).copied().unwrap_or(own)
    }

    pub(super) fn partition(&self, of: &TopicPartition) -> Result<&topic::Partition, Code> {
        let topic = self.topics.get(&of.topic).ok_or(Code::UnknownTopic)?;
        topic.partitions.get(usize::try_from(of.partition).unwrap_or(usize::MAX)).ok_or(Code::UnknownTopic)
    }

    pub(super) fn partition_mut(&mut self, of: &TopicPartition) -> Result<&mut topic::Partition, Code> {
        let topic = self.topics.get_mut(&of.topic).ok_or(Code::UnknownTopic)?;
        topic.partitions.get_mut(usize::try_from(of.partition).unwrap_or(usize::MAX)).ok_or(Code::UnknownTopic)
    }

    fn all_partitions(&self) -> Vec<TopicPartition> {
        let of_topic = |(topic, of): (&String, &Topic)| {
            (0..).take(of.partitions.len()).map(|partition| TopicPartition { topic: topic.clone(), partition }).collect::<Vec<_>>()
        };
        self.topics.iter().flat_map(of_topic).collect()
    }

    /// A new random id in Kafka's format (`Uuid.toString`: 16 bytes in base64).
    pub(super) fn new_id(&mut self) -> String {
        let bytes = [self.ids.bits().to_be_bytes(), self.ids.bits().to_be_bytes()].concat();
        data_encoding::BASE64URL_NOPAD.encode(&bytes)
    }
}
