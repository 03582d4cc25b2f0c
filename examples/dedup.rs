//! Deduplicates lines of standard input. Unlike `uniq`, it finds duplicates anywhere among the last million distinct lines, with
//! a filter of about four megabytes.
//!
//! ```sh
//! printf 'a\nb\na\n' | cargo run --release --no-default-features --example dedup
//! ```

use std::io::{BufRead as _, Write as _};
use unseen::dedup::{Dedup, Emit, Late, Rules};
use unseen::filter::{AgingSizing, Spec, Window};
use unseen::key::{KeySpec, Part, Scratch};
use unseen::record::{Record, Timestamp, Verdict};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A window by count needs no record times. This window contains at least the last million keys.
    let window = Window::keys(1_000_000, 4);
    let filter = Spec::Aging(AgingSizing::new(window, 1_000_000, 1e-4));
    let mut dedup = Dedup::new(Rules { window, filter: Some(filter), exact: false, refresh: false, late: Late::Emit, emit: Emit::First });

    let key = KeySpec::new(vec![Part::RecordValue])?;
    let mut scratch = Scratch::default();
    let mut output = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let record = Record { key: None, value: Some(line.as_bytes()), headers: &[] };
        let fingerprint = key.fingerprint(&record, &mut scratch)?;
        if dedup.judge(fingerprint, None, Timestamp::MAX)? == Verdict::Unseen {
            writeln!(output, "{line}")?;
        }
    }
    Ok(output.flush()?)
}
