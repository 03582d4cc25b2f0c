//! Startup of the long-running commands, `run` and `serve`.

use super::{ConfigArgs, log};
use crate::config::Config;
use crate::http::Events;
use std::process;
use std::sync::Arc;

pub fn run(args: &ConfigArgs, events: Events, work: impl AsyncFnOnce(Arc<Config>) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let config = args.load()?;
    let _export_guard = log::start(&config.log, events)?;
    abort_on_panic();
    args.check_properties(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work(Arc::new(config)))
}

/// Makes a panic in any thread log its message and abort the process. Unwinding would hang instead, because it joins threads that never
/// end. The consumer of the hanging process would keep its partitions, and no other member could process them.
fn abort_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload().downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.payload().downcast_ref().copied()).unwrap_or("no message");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current();
        // If the system refuses to start a thread, the process has reached a limit. This is not a bug.
        let advice = if message.contains("Resource temporarily unavailable") {
            "raise the limit of threads (`ulimit -u`, TasksMax=, or the container's limit of processes)"
        } else {
            "this is a bug, please report it"
        };
        tracing::error!(thread = thread.name().unwrap_or("unnamed"), place, "panicked: {message}; {advice}");
        process::abort();
    }));
}
