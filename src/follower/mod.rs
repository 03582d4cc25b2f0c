//! Followers: lookups of seen keys from outside the consumer group.
//!
//! A follower reads the committed changelogs of key spaces, rebuilds their states, and answers which keys were seen. It does not join a
//! group and does not write anything. So it cannot affect what the group emits, and you can run any number of followers.
//!
//! Keeps the rebuilt states and tracks their age. A follower never reports a key as unseen without proof. Without proof, the answer is
//! unknown, for example while a partition is loading or its worker is warming up. [`Unavailable`] lists all reasons.
//!
//! ```no_run
//! use std::sync::Arc;
//! use unseen::config::Config;
//! use unseen::follower::{Answer, Follower, Query};
//!
//! let config = Config::load("unseen.toml".as_ref(), &[])?;
//! let follower = Follower::start(&Arc::new(config))?;
//! let space = follower.space("seen-news").ok_or("no such space")?;
//! let mut query = Query::default();
//! for item in ["n1", "n2"] {
//!     space.add(&mut query, [b"42", item.as_bytes()].into_iter())?;
//! }
//! let (answers, unavailable) = space.answer(&mut query);
//! for answer in answers {
//!     match (answer, &unavailable) {
//!         (Answer::Seen, _) => println!("seen (or a false positive)"),
//!         (Answer::Unseen, _) => println!("not seen, as of the last known commit"),
//!         (Answer::Unknown, Some(reason)) => println!("{reason}"),
//!         (Answer::Unknown, None) => {}
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod applier;
mod partition;
mod query;
mod report;
pub(crate) mod routing;
mod space;
mod watcher;

pub use query::{Answer, Query, Unavailable};
pub use report::SpaceReport;
pub use space::Space;

use crate::broker::{self, Broker};
use crate::config::Config;
use crate::kafka::KafkaBroker;
use crate::runtime::{Done, Task};
use crate::stats::Stats;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// An error that prevents a follower from starting or continuing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `state.changelog` is false, or the configuration has a key space that cannot be followed. The message states what to change.
    #[error("{0}")]
    Config(String),
    /// A Kafka client cannot be created or cannot continue, for example because librdkafka rejects a property.
    #[error(transparent)]
    Kafka(#[from] broker::Error),
}

#[derive(Debug, Default)]
struct Ending {
    failure: Mutex<Option<Error>>,
    failed: Condvar,
}

impl Ending {
    fn fail(&self, error: Error) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(error);
        self.failed.notify_all();
    }
}

/// Follows the changelogs of all key spaces of a configuration until it is dropped.
#[derive(Debug)]
pub struct Follower {
    spaces: Arc<[Space]>,
    stop: Arc<AtomicBool>,
    ending: Arc<Ending>,
    threads: Vec<(JoinHandle<()>, Done)>,
}

/// Returns all errors in a configuration that prevent a follower from starting.
#[must_use]
pub fn check(config: &Config) -> Vec<Error> {
    let of_spaces = config.spaces().into_iter().filter_map(|space| Space::new(config, &space).err());
    without_changelog(config).into_iter().chain(of_spaces).collect()
}

fn without_changelog(config: &Config) -> Option<Error> {
    let message = "state.changelog is false, but serving reads the changelog; set state.changelog to true";
    (!config.state.changelog).then(|| Error::Config(message.to_owned()))
}

impl Follower {
    /// Starts to follow the changelogs. Does not wait for brokers or states. Until they are available, every answer is [`Answer::Unknown`].
    ///
    /// # Errors
    /// Returns an error if `state.changelog` is false, if the configuration has a key space that cannot be followed, or if librdkafka
    /// rejects a property.
    pub fn start(config: &Arc<Config>) -> Result<Self, Error> {
        Self::start_on(&KafkaBroker::new(Arc::new(Stats::new(config))), config)
    }

    /// Starts to follow on any implementation of [`Broker`]. See [`Follower::start`].
    ///
    /// # Errors
    /// See [`Follower::start`].
    pub fn start_on<B: Broker>(broker: &B, config: &Arc<Config>) -> Result<Self, Error> {
        if let Some(error) = without_changelog(config) {
            return Err(error);
        }
        let spaces: Vec<_> = config.spaces().iter().map(|space| Space::new(config, space)).collect::<Result<_, _>>()?;
        let spaces: Arc<[Space]> = spaces.into();
        let (stop, ending) = (Arc::new(AtomicBool::new(false)), Arc::new(Ending::default()));
        let (tail, ends) = (broker.changelog_tail(config)?, broker.changelog_ends(config)?);
        let (send, receive) = channel();
        let watcher = {
            let (config, spaces, stop) = (Arc::clone(config), Arc::clone(&spaces), Arc::clone(&stop));
            move || watcher::run(&config, &spaces, &ends, &stop, &send)
        };
        let applier = {
            let (spaces, stop, ending) = (Arc::clone(&spaces), Arc::clone(&stop), Arc::clone(&ending));
            move || {
                if let Err(error) = applier::Appliers::new(&spaces, &tail).run(&receive, &stop) {
                    ending.fail(error);
                }
            }
        };
        let threads = vec![thread("watcher", watcher), thread("applier", applier)];
        Ok(Self { spaces, stop, ending, threads })
    }

    /// Creates a follower that answers every query with [`Answer::Unknown`].
    #[cfg(test)]
    pub(crate) fn without_brokers(config: &Config) -> Self {
        let spaces = config.spaces().iter().map(|space| Space::new(config, space).expect("the key space can be followed")).collect();
        Self { spaces, stop: Arc::default(), ending: Arc::default(), threads: Vec::new() }
    }

    /// Returns all key spaces, in the order of the configuration.
    #[must_use]
    pub fn spaces(&self) -> &[Space] {
        &self.spaces
    }

    /// Returns the key space with this name, or `None` if the configuration does not contain it.
    #[must_use]
    pub fn space(&self, name: &str) -> Option<&Space> {
        self.spaces.iter().find(|space| space.name() == name)
    }

    /// Returns a handle that lets another thread wait until the follower fails.
    #[must_use]
    pub fn end(&self) -> End {
        End(Arc::clone(&self.ending))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for (thread, done) in self.threads.drain(..) {
            done.wait();
            let _ = thread.join();
        }
    }
}

/// A handle for waiting until a follower cannot continue.
#[derive(Clone, Debug)]
pub struct End(Arc<Ending>);

impl End {
    /// Waits until the follower cannot continue and returns the reason. Only one call gets the reason. All other calls block forever, even
    /// if the follower is dropped.
    #[must_use]
    pub fn wait(&self) -> Error {
        let mut failure = self.0.failure.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match failure.take() {
                Some(error) => return error,
                None => failure = self.0.failed.wait(failure).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> (JoinHandle<()>, Done) {
    let task = Task::new(name);
    let done = task.done();
    (std::thread::Builder::new().name(name.to_owned()).spawn(move || task.run(work)).expect("the thread starts"), done)
}
