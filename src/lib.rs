//! Removes duplicates from streams of records, with filters that remember each key for the length of a window.
//!
//! The command `unseen` deduplicates Kafka topics. Programs and tests can use the same parts:
//!
//! - [`record`] and [`key`]: a record, and the fingerprint of its key
//! - [`filter`]: remembers fingerprints for a window
//! - [`dedup`]: applies the rules of a window to a filter and decides whether a record is unseen, a duplicate, or late
//! - [`config`]: loads a configuration file
//! - [`format`](mod@format): extracts the values of a key from JSON, Avro, and Protobuf
//! - [`replay`]: deduplicates a recorded stream
//! - `follower`: follows the changelogs of a running group and looks up the keys that the group has seen. Needs the feature `worker`.
//!
//! Without default features, the crate depends on neither Kafka nor RocksDB. A filter reports which keys it has seen within a window:
//!
//! ```
//! use unseen::filter::{Aging, AgingSizing, Filter as _, Window};
//! use unseen::key::{KeySpec, Part, Scratch};
//! use unseen::record::Record;
//!
//! // 24 hours in four slices, for a million keys. One in 10,000 unseen keys may be reported as seen.
//! let window = Window::time(24 * 60 * 60 * 1000, 4);
//! let mut filter = Aging::new(window, AgingSizing::new(window, 1_000_000, 1e-4));
//!
//! let key = KeySpec::new(vec![Part::RecordKey])?;
//! let record = Record { key: Some(b"order-1"), value: None, headers: &[] };
//! let fingerprint = key.fingerprint(&record, &mut Scratch::default())?;
//!
//! // The filter's clock is the time of the records, in milliseconds since the Unix epoch.
//! filter.advance(1_700_000_000_000);
//! assert!(!filter.check_and_insert(fingerprint)?);
//! assert!(filter.check_and_insert(fingerprint)?, "the second time, it is seen");
//!
//! filter.advance(1_700_000_000_000 + 2 * 24 * 60 * 60 * 1000);
//! assert!(!filter.contains(fingerprint), "two days later, it is forgotten");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Programs can load the configuration files of the command, with their keys, windows, and filters:
//!
//! ```
//! use unseen::config::Config;
//!
//! // The second argument overrides options of the file, as `--set` does.
//! let config = Config::load("examples/news.toml".as_ref(), &[("topics.0.window".to_owned(), "2h".to_owned())])?;
//! let topic = &config.topics[0];
//! assert_eq!((topic.input.as_str(), topic.window.length_ms()), ("news.events", Some(2 * 60 * 60 * 1000)));
//! let rules = topic.rules(12);
//! println!("{} keys per partition in a window", rules.capacity().unwrap_or_default());
//!
//! // Error messages contain the file, the option, and what to do.
//! let error = Config::load("examples/news.toml".as_ref(), &[("topics.0.window".to_owned(), "soon".to_owned())]).unwrap_err();
//! assert!(error.to_string().contains("topics[0].window"));
//! # Ok::<(), unseen::config::Errors>(())
//! ```
//!
//! `examples/` has programs that use [`dedup`], [`replay`], and `follower`. Modules that this page does not list are internal to the
//! command and its tests. Programs should not use them.

// Each module uses only modules above it. tests/architecture.rs checks this order.

pub mod record;

pub mod format;

pub mod key;

#[doc(hidden)]
pub mod values;

#[doc(hidden)]
pub mod content;

pub mod filter;

pub mod dedup;

#[doc(hidden)]
pub mod changelog;

pub mod config;

#[doc(hidden)]
pub mod route;

pub mod replay;

#[doc(hidden)]
pub mod testing;

#[cfg(any(feature = "cli", test))]
mod plan;

#[doc(hidden)]
pub mod runtime;

#[doc(hidden)]
pub mod stats;

#[cfg(feature = "formats")]
mod oauth;

#[cfg(feature = "formats")]
mod registry;

#[doc(hidden)]
pub mod status;

#[doc(hidden)]
pub mod fault;

#[doc(hidden)]
pub mod checkpoint;

#[cfg(feature = "worker")]
mod tls;

#[cfg(feature = "worker")]
mod http;

#[cfg(feature = "worker")]
#[doc(hidden)]
pub mod broker;

#[cfg(feature = "worker")]
#[doc(hidden)]
pub mod kafka;

#[cfg(feature = "worker")]
pub mod follower;

#[cfg(feature = "worker")]
#[doc(hidden)]
pub mod explain;

#[cfg(feature = "worker")]
mod seed;

#[cfg(feature = "worker")]
mod redrive;

#[cfg(feature = "worker")]
mod serve;

#[cfg(feature = "worker")]
#[doc(hidden)]
pub mod worker;

#[cfg(feature = "faults")]
#[doc(hidden)]
pub mod sim;

#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
