//! One test at a time on a broker: tests that watch clocks must not fight over two cores.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

static TURN: Mutex<()> = Mutex::new(());

thread_local! {
    static MINE: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// Waits for this test's turn. A test is a thread, and its turn ends with it, however it ends.
pub fn take() {
    MINE.with_borrow_mut(|mine| {
        mine.get_or_insert_with(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
    });
}
