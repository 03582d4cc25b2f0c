//! Checks within your own program whether a key was seen. A follower in the program rebuilds the dedup state from the changelogs.
//!
//! ```sh
//! cargo run --release --example seen -- unseen.toml seen-news 42 n7
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};
use unseen::config::Config;
use unseen::follower::{Answer, Follower, Query};

/// Maximum time to wait until the state is available.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [file, space, parts @ ..] = &arguments[..] else { return Err("expected FILE SPACE PART...".into()) };

    let config = Config::load(file.as_ref(), &[])?;
    let follower = Follower::start(&Arc::new(config))?;
    let space = follower.space(space).ok_or("the configuration has no space with this name")?;

    let (mut query, started) = (Query::default(), Instant::now());
    space.add(&mut query, parts.iter().map(String::as_bytes))?;
    loop {
        let (answers, unavailable) = space.answer(&mut query);
        match (answers[0], unavailable) {
            (Answer::Seen, _) => println!("seen (or a false positive)"),
            (Answer::Unseen, _) => println!("not seen as of the last known commit"),
            // Until the follower has read the whole changelog, a key that it has not found may still have been seen.
            (Answer::Unknown, Some(reason)) if started.elapsed() > PATIENCE => return Err(reason.into()),
            (Answer::Unknown, _) => {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        }
        return Ok(());
    }
}
