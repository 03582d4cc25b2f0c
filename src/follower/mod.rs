//! Followers: what a group has seen, known outside of it.
//!
//! A follower reads the changelogs of key spaces as they are committed, makes the states that they log, and answers which
//! keys were seen. It joins no group and writes nothing, so a group is exact whatever becomes of it, and any number of
//! followers may answer.
//!
//! Owns those states and their age. Must never report a key as unseen without knowing: while a partition is loading or its worker
//! is warming up, if a partition is not followed here, or once the brokers have not answered for `serve.max_staleness`.
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
//!         (Answer::Seen, _) => println!("seen, but for a false positive"),
//!         (Answer::Unseen, _) => println!("not seen, for certain, as of the last commit that is known"),
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

/// Why a follower cannot begin, or go on. Each is a sentence for a person.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration has nothing to follow, or what cannot be followed.
    #[error("{0}")]
    Config(String),
    /// Kafka cannot be worked with.
    #[error(transparent)]
    Kafka(#[from] broker::Error),
}

/// How a follower ends: with an error, or because it was dropped.
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

/// Follows the changelogs of all key spaces of a configuration, until it is dropped.
#[derive(Debug)]
pub struct Follower {
    spaces: Arc<[Space]>,
    stop: Arc<AtomicBool>,
    ending: Arc<Ending>,
    threads: Vec<(JoinHandle<()>, Done)>,
}

/// Returns everything in a configuration that a follower cannot work with.
#[must_use]
pub fn check(config: &Config) -> Vec<Error> {
    let of_spaces = config.spaces().into_iter().filter_map(|space| Space::new(config, &space).err());
    without_changelog(config).into_iter().chain(of_spaces).collect()
}

fn without_changelog(config: &Config) -> Option<Error> {
    let sentence = "state.changelog is false, and what was seen is followed in the changelog; set it to true";
    (!config.state.changelog).then(|| Error::Config(sentence.to_owned()))
}

impl Follower {
    /// Begins to follow. Does not wait for brokers, nor for a state: until these are there, every answer is
    /// [`Answer::Unknown`].
    ///
    /// # Errors
    /// When the configuration has a space that cannot be followed, or librdkafka refuses a property.
    pub fn start(config: &Arc<Config>) -> Result<Self, Error> {
        Self::start_on(&KafkaBroker::new(Arc::new(Stats::new(config))), config)
    }

    /// [`Follower::start`] on any broker.
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

    /// Follows nothing: every answer is [`Answer::Unknown`].
    #[cfg(test)]
    pub(crate) fn without_brokers(config: &Config) -> Self {
        let spaces = config.spaces().iter().map(|space| Space::new(config, space).expect("it can be followed")).collect();
        Self { spaces, stop: Arc::default(), ending: Arc::default(), threads: Vec::new() }
    }

    /// The key spaces, in the order of the configuration.
    #[must_use]
    pub fn spaces(&self) -> &[Space] {
        &self.spaces
    }

    /// The key space of that name.
    #[must_use]
    pub fn space(&self, name: &str) -> Option<&Space> {
        self.spaces.iter().find(|space| space.name() == name)
    }

    /// A handle on its end, for another thread to wait for.
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

/// The end of a follower that cannot go on.
#[derive(Clone, Debug)]
pub struct End(Arc<Ending>);

impl End {
    /// Waits until the follower cannot go on, and says why. A follower that is dropped has no such end.
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
    (std::thread::Builder::new().name(name.to_owned()).spawn(move || task.run(work)).expect("a thread can be started"), done)
}
