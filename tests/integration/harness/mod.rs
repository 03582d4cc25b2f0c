//! The harness of the integration tests: a real broker, the real binary, and the exact expected output.
//!
//! The harness never sleeps for a fixed time to wait for an effect. It polls for the effect, usually with [`wait_until`], which panics at
//! its deadline with a message about the missing effect.

#![allow(dead_code, unused_imports, reason = "a harness may offer more than today's tests use")]

mod asker;
mod broker;
mod compare;
mod front;
mod msk;
mod news;
mod oracle;
mod produce;
mod provider;
mod random;
mod read;
mod record;
mod registry;
mod rights;
mod segments;
mod setup;
pub mod state;
mod topic;
mod turn;
mod way;
mod wire;
mod worker;

pub use asker::{Asker, Reply, http, wait_until_fresh};
pub use broker::{OwnBroker, SecureBroker, broker, secure_broker};
pub use compare::{assert_prefix, assert_same, difference, show};
pub use front::{Exchange, api, front, limit_api};
pub use msk::{KEY_ID, Msk, REGION};
pub use news::News;
pub use oracle::{Oracle, RETRACT};
pub use produce::{Feed, produce};
pub use provider::{SCOPE, SUBJECT, TokenProvider};
pub use random::{SplitMix, pick};
pub use read::{Reader, read_committed, wait_for_output};
pub use record::{TestRecord, by_partition, offset_of};
pub use registry::SchemaRegistry;
pub use rights::{Right, grant};
pub use setup::Setup;
pub use topic::{
    Group, add_partitions, alter_topic, client, committed_offset, delete_group, delete_records_before, delete_topic, delete_topics,
    first_offset, make_topic, make_topic_with, move_offset, reset_offset, topic, topic_on, topic_with,
};
pub use way::Way;
pub use wire::{crc32c, elect_first_replicas, move_leaders, produce_raw};
pub use worker::{Worker, logged, unseen, unseen_with};

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The timeout of most requests and waits. A healthy broker or server needs much less time.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Calls `condition` repeatedly until it returns a value, and returns the value. After `timeout`, panics with a message that ends with
/// `what`.
pub fn wait_until<T>(what: &str, timeout: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {timeout:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn unique(hint: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{hint}-{:x}-{}-{number}", since_epoch.as_secs(), std::process::id())
}
