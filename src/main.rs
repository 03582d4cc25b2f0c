//! The `unseen` command.

mod cli;

use std::process::ExitCode;

/// It is that of the C libraries, too. librdkafka allocates a record in one thread and frees it in another, which the
/// system's allocator has a lock for: docs/contributing/performance.md says what that took.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What it is told, read as a C string before `main`: an arena a core instead of four, for each keeps memory of its own.
#[allow(unsafe_code)]
// SAFETY: nothing but jemalloc looks for this name, and it reads there a pointer to a C string, which this is.
#[unsafe(export_name = "malloc_conf")]
static MALLOC_CONF: &[u8; 16] = b"narenas_ratio:1\0";

fn main() -> ExitCode {
    cli::main()
}
