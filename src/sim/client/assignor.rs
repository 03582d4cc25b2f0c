//! Partition assignment by the group leader.

use super::super::cluster::JoinRequest;
use crate::record::TopicPartition;
use std::collections::{BTreeMap, BTreeSet};

type Assignments = BTreeMap<String, Vec<TopicPartition>>;

/// Assigns partitions with the protocol of the first member. `count` returns a topic's partition count.
pub(super) fn assign(members: &[(String, JoinRequest)], count: impl Fn(&str) -> usize) -> Assignments {
    let topics: BTreeSet<_> = members.iter().flat_map(|(_, member)| member.topics.iter().cloned()).collect();
    if members.first().is_some_and(|(_, member)| member.protocol == "range") {
        return range(members, &topics, count);
    }
    cooperative(members, &topics, count)
}

/// Assigns consecutive partitions of each topic to the members that subscribe to it (`rd_kafka_range_assignor_assign_cb`).
fn range(members: &[(String, JoinRequest)], topics: &BTreeSet<String>, count: impl Fn(&str) -> usize) -> Assignments {
    let mut assignments: Assignments = members.iter().map(|(id, _)| (id.clone(), Vec::new())).collect();
    for topic in topics {
        let subscribed: Vec<_> = members.iter().filter(|(_, member)| member.topics.contains(topic)).map(|(id, _)| id).collect();
        let (share, extra) = (count(topic) / subscribed.len(), count(topic) % subscribed.len());
        let mut next = 0;
        for (at, id) in subscribed.into_iter().enumerate() {
            let end = next + share + usize::from(at < extra);
            let partitions = (next..end).map(|partition| partition_of(topic, partition));
            assignments.entry(id.clone()).or_default().extend(partitions);
            next = end;
        }
    }
    assignments
}

fn partition_of(topic: &str, partition: usize) -> TopicPartition {
    TopicPartition { topic: topic.to_owned(), partition: i32::try_from(partition).unwrap_or(i32::MAX) }
}

/// Assigns balanced shares and keeps partitions with their current owners if possible (`rd_kafka_sticky_assignor_assign_cb`). A partition
/// that moves is assigned to nobody until its current owner has released it (KIP-429).
fn cooperative(members: &[(String, JoinRequest)], topics: &BTreeSet<String>, count: impl Fn(&str) -> usize) -> Assignments {
    let all: BTreeSet<_> = topics.iter().flat_map(|topic| (0..count(topic)).map(|partition| partition_of(topic, partition))).collect();
    let (share, extra) = (all.len() / members.len(), all.len() % members.len());
    let mut owners: BTreeMap<&TopicPartition, &str> = BTreeMap::new();
    for (id, member) in members {
        for partition in member.owned.iter().filter(|partition| all.contains(*partition)) {
            owners.entry(partition).or_insert(id);
        }
    }
    let mut assignments = Assignments::new();
    let mut extras = extra;
    let mut free = all.clone();
    // The members that own the most partitions get the larger shares, so fewer partitions move.
    let mut order: Vec<_> = members.iter().collect();
    order.sort_by_key(|(id, member)| (std::cmp::Reverse(member.owned.len()), id.clone()));
    let mut quotas = Vec::new();
    for (id, member) in order {
        let quota = share + usize::from(extras > 0);
        extras = extras.saturating_sub(1);
        let is_kept = |partition: &&TopicPartition| owners.get(partition) == Some(&id.as_str()) && member.topics.contains(&partition.topic);
        let held = member.owned.iter().filter(is_kept);
        let kept: Vec<_> = held.take(quota).cloned().collect();
        for partition in &kept {
            free.remove(partition);
        }
        quotas.push((id, member, quota));
        assignments.insert(id.clone(), kept);
    }
    // If some members do not subscribe to a topic, the subscribers may have to take more than their share. So a second pass has no limit.
    let rest = quotas.clone().into_iter().map(|(id, member, _)| (id, member, usize::MAX));
    for (id, member, quota) in quotas.into_iter().chain(rest) {
        let assigned = assignments.entry(id.clone()).or_default();
        while assigned.len() < quota {
            let Some(partition) = free.iter().find(|partition| member.topics.contains(&partition.topic)).cloned() else { break };
            free.remove(&partition);
            if owners.get(&partition).is_none_or(|owner| *owner == id.as_str()) {
                assigned.push(partition);
            } else {
                // The current owner must release the partition first. A placeholder counts the partition toward the new owner's share.
                assigned.push(TopicPartition { topic: String::new(), partition: -1 });
            }
        }
        assigned.retain(|partition| partition.partition >= 0);
    }
    assignments
}
