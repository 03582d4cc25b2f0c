//! A job that rebuilds one state from its changelog.
//!
//! Keeps the settings of a job and loads its checkpoint again if the job starts over. Never reads a changelog.

use super::Error;
use super::ids::StateId;
use super::partition::PartitionState;
use crate::broker::{Broker, ChangelogReader, ReadEnd};
use crate::changelog::Origin;
use crate::checkpoint::{self, Claim, PartitionId, Store};
use crate::config::Config;
use crate::dedup::Rules;
use crate::filter::Slice;
use crate::record::{Offset, TopicPartition};
use crate::runtime::{self, Changed};
use crate::stats::Stats;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The shortest and the longest pause of a job that waits for a transaction to end or for the brokers to answer.
pub(super) const PAUSE: Duration = Duration::from_millis(20);
pub(super) const PAUSE_MAX: Duration = Duration::from_millis(500);
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
const FAILED_PAUSE: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(super) struct Context<B: Broker> {
    pub(super) broker: B,
    pub(super) config: Arc<Config>,
    pub(super) store: Arc<Store>,
    pub(super) stats: Arc<Stats>,
    pub(super) stop: Arc<AtomicBool>,
}

/// The rebuild of one state, up to the group's committed offsets.
pub(super) struct Job {
    pub(super) id: StateId,
    pub(super) claim: Claim,
    pub(super) partition: PartitionId,
    pub(super) changelog: TopicPartition,
    pub(super) topic_id: Option<String>,
    /// The epoch in the checkpoint, or 0 if there is no checkpoint.
    pub(super) epoch: i64,
    /// The state, as loaded from the checkpoint. The rebuild applies the changelog to this state.
    pub(super) state: PartitionState,
    pub(super) rules: Rules,
    pub(super) settings: checkpoint::Settings,
    pub(super) origin: Origin,
    /// The group's committed offset for each input, by topic incarnation.
    pub(super) bounds: BTreeMap<String, Offset>,
    /// The epoch of the owner that committed an input's offset, if known, by topic incarnation. Only inputs with a topic id.
    pub(super) epochs: BTreeMap<String, i64>,
    /// The log start offset of each input, by topic incarnation.
    pub(super) lows: BTreeMap<String, Offset>,
    /// The oldest slice whose keys had not expired at the group's last commit, if known.
    pub(super) oldest_slice: Option<Slice>,
    /// True if the checkpoint must not be used, because it may have been written before a seed.
    pub(super) ignores_checkpoint: bool,
    pub(super) cancellation: Arc<Cancellation>,
    pub(super) done: Sender<Rebuilt>,
    pub(super) began: Instant,
    /// Set while the end of the changelog is unknown, because of an open transaction or because the brokers do not answer.
    pub(super) wait: Option<Wait>,
    pub(super) pause: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Cancellation {
    stage: Mutex<Stage>,
    changed: Changed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Running,
    Saving,
    Cancelled,
}

impl Cancellation {
    pub(super) fn is_cancelled(&self) -> bool {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) == Stage::Cancelled
    }

    /// Cancels the job. If the job is writing a checkpoint, waits until the checkpoint is written. Without the wait, two threads might
    /// write checkpoints of the same partition at the same time if the partition is assigned to this process again.
    pub(super) fn cancel(&self) {
        runtime::wait(&self.stage, &self.changed, |stage| {
            // A panicking thread does not wait, because the wait could keep the panic from ending the process.
            if *stage == Stage::Saving && !std::thread::panicking() {
                return Err(None);
            }
            *stage = Stage::Cancelled;
            Ok(())
        });
    }

    pub(super) fn save(&self, write: impl FnOnce()) {
        if self.change(Stage::Running, Stage::Saving) {
            let _saving = Saving(self);
            write();
        }
    }

    fn change(&self, from: Stage, to: Stage) -> bool {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let is_from = *stage == from;
        if is_from {
            *stage = to;
        }
        is_from
    }
}

struct Saving<'c>(&'c Cancellation);

impl Drop for Saving<'_> {
    fn drop(&mut self) {
        self.0.change(Stage::Saving, Stage::Running);
        self.0.changed.notify_all();
    }
}

pub(super) struct Wait {
    pub(super) since: Instant,
    pub(super) reported: Instant,
}

impl Job {
    pub(super) fn load<B: Broker>(&self, context: &Context<B>) -> Result<PartitionState, Error> {
        let mut state = if self.ignores_checkpoint {
            PartitionState::new(self.rules)
        } else {
            PartitionState::load(&context.store, &self.partition, &self.settings, self.rules)?
        };
        state.changelog.adopt(self.topic_id.as_deref());
        Ok(state)
    }

    /// Loads the checkpoint again for another attempt, because the changelog could not be read to its end, or because the store was
    /// quarantined during the rebuild.
    pub(super) fn start_over<B: Broker>(&mut self, context: &Context<B>, reader: &B::ChangelogReader, ended: ReadEnd) -> Result<(), Error> {
        self.pause = if ended == ReadEnd::Failed { FAILED_PAUSE } else { PAUSE };
        // The topic may have been recreated with a new id.
        if let Ok(id) = reader.topic_id(&self.changelog.topic) {
            self.topic_id = id;
        }
        self.state = self.load(context)?;
        match ended {
            ReadEnd::Failed => tracing::warn!(
                changelog = %self.changelog,
                "cannot read the changelog; retrying in {} seconds. The log lines \"failed to read changelogs\" contain the error", FAILED_PAUSE.as_secs()
            ),
            ReadEnd::Trimmed => {
                tracing::info!(changelog = %self.changelog, "records of the changelog were deleted, or the changelog was recreated, during the rebuild; reading the changelog again");
            }
            ReadEnd::Reached => {
                tracing::warn!(changelog = %self.changelog, "the checkpoint was lost while the changelog was being read; reading the changelog again");
            }
        }
        Ok(())
    }
}

pub(super) struct Rebuilt {
    pub(super) id: StateId,
    /// Identifies the job, because a canceled job may have had the same id.
    pub(super) cancellation: Arc<Cancellation>,
    pub(super) state: Result<PartitionState, Error>,
}
