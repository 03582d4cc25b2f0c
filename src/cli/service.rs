//! How a command begins that runs until it is told to stop.

use super::{ConfigArgs, log};
use crate::config::Config;
use crate::http::Events;
use std::process;
use std::sync::Arc;

/// Reads the configuration, starts logging, and does the work on this thread.
pub fn run(args: &ConfigArgs, events: Events, work: impl AsyncFnOnce(Arc<Config>) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let config = args.load()?;
    let _sending = log::start(&config.log, events)?;
    end_on_panic();
    args.check_properties(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work(Arc::new(config)))
}

/// Has a panic end the process at once, whatever thread it is in, with its message in the log. It is a bug; and to unwind
/// would drop a consumer that keeps its partitions from others, and wait for threads that never end.
fn end_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload().downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.payload().downcast_ref().copied()).unwrap_or("without a message");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current();
        tracing::error!(thread = thread.name().unwrap_or("unnamed"), place, "panicked: {message}; this is a bug, please report it");
        process::abort();
    }));
}
