//! Being told to stop, for commands that have something to clear away.
//!
//! Owns the signals. Must never end the process at the first of them: that is for the command.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{SignalKind, signal};

/// The exit code that shells use for interrupted commands.
pub(super) const EXIT_INTERRUPTED: i32 = 130;

/// Whether a signal has told the process to stop.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Hears SIGINT and SIGTERM from now on. The second ends the process at once: it may wait for something for ever.
    pub fn listen() -> anyhow::Result<Self> {
        let came = Arc::new(AtomicBool::new(false));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let (mut interrupt, mut terminate) = {
            let _context = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        let heard = Arc::clone(&came);
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async move {
                loop {
                    tokio::select! { _ = interrupt.recv() => {} _ = terminate.recv() => {} }
                    if heard.swap(true, Ordering::Relaxed) {
                        std::process::exit(EXIT_INTERRUPTED);
                    }
                }
            });
        })?;
        Ok(Self(came))
    }

    /// Whether one has come.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
