//! The `unseen` command.

mod cli;

use std::process::ExitCode;

/// It is that of the C libraries, too. librdkafka allocates a record in one thread and frees it in another, which the
/// system's allocator has a lock for: docs/performance.md says what that took.
#[cfg(feature = "worker")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    cli::main()
}
