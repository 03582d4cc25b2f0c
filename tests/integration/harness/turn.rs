//! Limits the number of broker tests that run at the same time to `UNSEEN_TEST_JOBS`, eight by default. Tests spend most of their time
//! waiting, but too many tests at once would compete for the cores. `scripts/test` sets `RUST_TEST_THREADS` higher than this limit, because
//! a test that waits for its turn occupies a thread.

use std::cell::RefCell;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

static FREE: LazyLock<Mutex<usize>> = LazyLock::new(|| {
    let jobs = std::env::var("UNSEEN_TEST_JOBS").ok().filter(|jobs| !jobs.is_empty());
    Mutex::new(jobs.map_or(8, |jobs| jobs.parse().expect("UNSEEN_TEST_JOBS: a number of tests")).max(1))
});
static ENDED: Condvar = Condvar::new();

thread_local! {
    static MINE: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

struct Turn;

impl Drop for Turn {
    fn drop(&mut self) {
        *free() += 1;
        ENDED.notify_one();
    }
}

fn free() -> MutexGuard<'static, usize> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for this test's turn. The turn ends with the test, because every test has its own thread.
pub fn take() {
    MINE.with_borrow_mut(|mine| {
        mine.get_or_insert_with(|| {
            let mut free = ENDED.wait_while(free(), |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
            *free -= 1;
            Turn
        });
    });
}
