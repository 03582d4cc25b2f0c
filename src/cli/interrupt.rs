//! SIGINT and SIGTERM for commands that clean up before they exit.
//!
//! The first signal sets a flag. The second signal ends the process at once, because the command may be stuck.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of a process that a signal ends immediately: 128 plus the number of SIGINT, as in shells. Commands that
/// clean up after the first signal exit with another code.
pub(super) const EXIT_INTERRUPTED: i32 = 130;

#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub fn listen() -> anyhow::Result<Self> {
        let received = Arc::new(AtomicBool::new(false));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let (mut interrupt, mut terminate) = {
            let _context = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        let flag = Arc::clone(&received);
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async move {
                loop {
                    tokio::select! { _ = interrupt.recv() => {} _ = terminate.recv() => {} }
                    if flag.swap(true, Ordering::Relaxed) {
                        std::process::exit(EXIT_INTERRUPTED);
                    }
                }
            });
        })?;
        Ok(Self(received))
    }

    pub fn received(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
