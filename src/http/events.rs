//! The last hundred log lines of level `info` and above, for the dashboard: rebalances, restores, aborts, errors.

use crate::runtime;
use crate::status::Event;
use std::collections::VecDeque;
use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

const LINES_MAX: usize = 100;
const LINE_MAX: usize = 1000;

/// The last log lines. Clones share the lines.
#[derive(Clone, Debug, Default)]
pub struct Events(Arc<Mutex<VecDeque<Event>>>);

impl Events {
    /// Returns the last lines, newest last.
    #[must_use]
    pub fn last(&self) -> Vec<Event> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl<S: Subscriber> Layer<S> for Events {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || !metadata.target().starts_with("unseen") {
            return;
        }
        let mut line = EventLine::default();
        event.record(&mut line);
        if line.routine {
            return;
        }
        let mut message = line.message + &line.fields;
        let end = (0..=LINE_MAX.min(message.len())).rev().find(|&end| message.is_char_boundary(end)).unwrap_or(0);
        message.truncate(end);
        let event = Event { time_ms: runtime::wall_clock(), level: metadata.level().as_str().to_ascii_lowercase(), message };
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push_back(event);
        if lines.len() > LINES_MAX {
            lines.pop_front();
        }
    }
}

#[derive(Default)]
struct EventLine {
    message: String,
    fields: String,
    /// True for periodic progress lines, which are left out.
    routine: bool,
}

impl Visit for EventLine {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a `String` cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.fields, " {}={value}", field.name());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.routine |= field.name() == "routine" && value;
        let _ = write!(self.fields, " {}={value}", field.name());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt as _;

    #[test]
    fn only_the_last_lines_are_kept() {
        let events = Events::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(events.clone()), || {
            (0..LINES_MAX + 7).for_each(|number| tracing::warn!(target: "unseen::worker", number, error = "full", "disk"));
            tracing::debug!(target: "unseen::worker", "too fine");
            tracing::info!(target: "other", "not ours");
            tracing::info!(target: "unseen", routine = true, "progress");
            tracing::error!(target: "unseen", "{}", "ü".repeat(LINE_MAX));
        });
        let last = events.last();
        assert_eq!(last.len(), LINES_MAX);
        assert_eq!((&*last[0].level, &*last[0].message), ("warn", "disk number=8 error=full"));
        assert_eq!((&*last[LINES_MAX - 1].level, last[LINES_MAX - 1].message.len()), ("error", LINE_MAX));
    }
}
