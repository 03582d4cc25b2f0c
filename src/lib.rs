//! unseen: a worker that emits each Kafka record once.
//!
//! Modules in reading order. Each may use only those above it; `ARCHITECTURE.md` says why.

pub mod record;

pub mod key;

pub mod filter;

pub mod dedup;

pub mod changelog;

pub mod config;

pub mod replay;

pub mod plan;

pub mod stats;

pub mod status;

pub mod fault;

pub mod checkpoint;
#[cfg(feature = "worker")]
pub mod http;
#[cfg(feature = "worker")]
pub mod kafka;
#[cfg(feature = "worker")]
pub mod worker;
