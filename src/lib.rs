//! unseen: a worker that emits each Kafka record once, and what it is made of.
//!
//! The command is `unseen`. As a library, the crate gives you its filters, its deduplication and its replayer, to
//! use in a program or a test of your own. Without the default features, none of them needs Kafka, RocksDB or a command
//! line.
//!
//! A filter says which keys it has seen within a window:
//!
//! ```
//! use unseen::filter::{Aging, AgingSizing, Filter as _, Window};
//! use unseen::key::{KeySpec, Part, Scratch};
//! use unseen::record::Record;
//!
//! // 24 hours, forgotten in four parts; a million keys; one unseen key of 10,000 is called seen.
//! let window = Window::time(24 * 60 * 60 * 1000, 4);
//! let mut filter = Aging::new(window, AgingSizing::new(window, 1_000_000, 1e-4));
//!
//! let key = KeySpec::new(vec![Part::RecordKey])?;
//! let record = Record { key: Some(b"order-1"), value: None, headers: &[] };
//! let fingerprint = key.fingerprint(&record, &mut Scratch::default())?;
//!
//! // Time is that of the records, in milliseconds.
//! filter.advance(1_700_000_000_000);
//! assert!(!filter.check_and_insert(fingerprint)?);
//! assert!(filter.check_and_insert(fingerprint)?, "the second time, it is seen");
//!
//! filter.advance(1_700_000_000_000 + 2 * 24 * 60 * 60 * 1000);
//! assert!(!filter.contains(fingerprint), "two days later, it is forgotten");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `follower::Follower` (with the feature `worker`) knows what a running group has seen.
//!
//! [`dedup::Dedup`] adds the rules of a window and takes verdicts; [`replay::Replay`] puts a recorded stream through it.
//! `examples/` has a program for each.
//!
//! Modules in reading order. Each may use only those above it; `ARCHITECTURE.md` says why.

pub mod record;

pub mod format;

pub mod key;

pub mod values;

pub mod content;

pub mod filter;

pub mod dedup;

pub mod changelog;

pub mod config;

pub mod route;

pub mod replay;

pub mod testing;

pub mod plan;

pub mod runtime;

pub mod stats;

#[cfg(feature = "formats")]
pub mod registry;

pub mod status;

pub mod fault;

pub mod checkpoint;

#[cfg(feature = "worker")]
pub mod tls;

#[cfg(feature = "worker")]
pub mod http;

#[cfg(feature = "worker")]
pub mod broker;

#[cfg(feature = "worker")]
pub mod kafka;

#[cfg(feature = "worker")]
pub mod follower;

#[cfg(feature = "worker")]
pub mod explain;

#[cfg(feature = "worker")]
pub mod seed;

#[cfg(feature = "worker")]
pub mod serve;
#[cfg(feature = "worker")]
pub mod worker;

#[cfg(feature = "faults")]
pub mod sim;
