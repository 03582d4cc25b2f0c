//! Scheduling, virtual time, and processes.

use super::*;
use crate::runtime::{self, Task};
use crate::sim::{Effect, Ended};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Instant;

#[test]
fn a_day_of_sleep_takes_no_time() {
    let began = Instant::now();
    run(|simulation| {
        let day = Duration::from_secs(23 * 3600);
        let before = runtime::now();
        runtime::sleep(day);
        assert!(runtime::since(before) >= day && simulation.elapsed() >= day);
    });
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn threads_of_a_process_exchange_messages() {
    run(|simulation| {
        let process = simulation.start("process", || {
            let (to_thread, received) = channel();
            let (answer, answers) = channel();
            let task = Task::new("thread");
            let done = task.done();
            let thread = std::thread::spawn(move || {
                task.run(|| {
                    while let Ok(number) = runtime::receive::<u32>(&received) {
                        runtime::sleep(SECOND);
                        answer.send(number * 2).unwrap();
                    }
                });
            });
            let mut sum = 0;
            for number in 1..=3 {
                to_thread.send(number).unwrap();
                sum += runtime::receive(&answers).unwrap();
            }
            drop(to_thread);
            done.wait();
            thread.join().unwrap();
            sum
        });
        process.wait();
        assert_eq!(process.take_outcome(), Some(Ended::Returned(12)));
        assert!(simulation.elapsed() >= 3 * SECOND);
    });
}

#[test]
fn killed_process_unwinds_all_of_its_threads() {
    struct Dropped(Arc<AtomicU32>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            // While the thread unwinds, the call does nothing.
            runtime::sleep(SECOND);
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    for kills_itself in [false, true] {
        run(|simulation| {
            let dropped = Arc::new(AtomicU32::new(0));
            let guard = Dropped(Arc::clone(&dropped));
            let process = simulation.start("process", move || {
                let outer = guard;
                let count = Arc::clone(&outer.0);
                let thread_count = Arc::clone(&count);
                std::thread::scope(|scope| {
                    let task = Task::new("scoped");
                    let handle = scope.spawn(move || {
                        task.run(|| {
                            let _guard = Dropped(thread_count);
                            loop {
                                runtime::sleep(SECOND);
                            }
                        })
                    });
                    loop {
                        runtime::sleep(SECOND);
                        if runtime::scheduler().is_some_and(|scheduler| scheduler.point("commit.begin")) {
                            break;
                        }
                    }
                    handle.join().unwrap();
                });
            });
            if kills_itself {
                process.arm("commit.begin", 3, Effect::Kill);
                process.wait();
            } else {
                simulation.sleep(5 * SECOND);
                process.kill();
            }
            assert!(process.has_ended());
            assert_eq!((process.take_outcome(), dropped.load(Ordering::Relaxed)), (Some(Ended::Killed), 2));
        });
    }
}

#[test]
fn stopped_process_does_not_run() {
    run(|simulation| {
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        let process = simulation.start("process", move || {
            loop {
                runtime::sleep(SECOND);
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        simulation.sleep(5 * SECOND + SECOND / 2);
        assert_eq!(count.load(Ordering::Relaxed), 5);
        process.stop();
        simulation.sleep(100 * SECOND);
        assert_eq!(count.load(Ordering::Relaxed), 5);
        process.resume();
        simulation.sleep(SECOND / 2);
        assert_eq!(count.load(Ordering::Relaxed), 6, "the sleep ended while the process was stopped");
    });
}

#[test]
fn each_process_has_its_own_clock() {
    run(|simulation| {
        let times = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&times);
        let process = simulation.start("process", move || {
            loop {
                told.lock().unwrap().push(runtime::wall_clock());
                runtime::sleep(SECOND);
            }
        });
        process.set_clock_ahead(3_600_000);
        simulation.sleep(SECOND / 2);
        process.set_clock_ahead(-3_600_000);
        simulation.sleep(SECOND);
        let offset = |time: i64| (time - simulation.broker_clock()) / 60_000;
        let told: Vec<_> = times.lock().unwrap().iter().map(|&time| offset(time)).collect();
        assert_eq!((told[0], told[1]), (59, -60));
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn deadlock_is_reported() {
    run(|simulation| {
        let process = simulation.start("process", || {
            let (_sender, receiver) = channel::<()>();
            runtime::receive(&receiver)
        });
        process.wait();
    });
}

#[test]
fn panic_of_a_process_is_its_outcome() {
    run(|simulation| {
        let process = simulation.start("process", || {
            runtime::sleep(SECOND);
            std::panic::resume_unwind(Box::new("broken".to_owned()));
        });
        process.wait();
        assert_eq!(process.take_outcome(), Some(Ended::<()>::Panicked("broken".to_owned())));
    });
}
