//! Compares the worker with a worker that was built from another commit. Prints medians and ratios, but no verdict.

use crate::Options;
use crate::broker::Broker;
use crate::contender::Contender;
use crate::run::{Cost, run};
use crate::table::{Table, median, thousands};
use crate::throughput::{RECORDS, Row, fill, rows, topic};
use std::path::PathBuf;

/// Name prefix of the rows that are compared by default.
const USUAL: &str = "unseen, commit";

#[derive(clap::Args)]
pub struct Arguments {
    /// Path of the other worker.
    #[arg(long)]
    other: PathBuf,
    /// Name of the other worker.
    #[arg(long)]
    label: String,
}

pub fn measure(options: &Options, Arguments { other, label }: &Arguments) {
    let is_chosen = |name: &str| if options.only.is_empty() { name.starts_with(USUAL) } else { options.includes(name) };
    let chosen = |binary| {
        let mut rows = rows(binary);
        rows.retain(|row| is_chosen(row.name) && matches!(row.contender, Contender::Unseen(_)));
        rows
    };
    let (ours, theirs) = (chosen(&options.binary), chosen(other));
    assert!(!ours.is_empty(), "no worker has a name that starts with {}", options.only.join(" or "));
    let broker = Broker::start();
    let topics = fill(&broker, &ours, options.load, options.records.unwrap_or(RECORDS));
    let run = |row: &Row| run(&broker, topic(&topics, row), &row.contender);
    ours.iter().zip(&theirs).for_each(|(ours, theirs)| {
        run(theirs);
        run(ours);
    });
    let mut pairs: Vec<Vec<(Cost, Cost)>> = vec![Vec::new(); ours.len()];
    for round in 0..options.rounds * 2 {
        for ((ours, theirs), pairs) in ours.iter().zip(&theirs).zip(&mut pairs) {
            // Alternates the order, because the worker that runs first may have an advantage.
            let pair = if round % 2 == 0 {
                let theirs = run(theirs);
                (run(ours), theirs)
            } else {
                (run(ours), run(theirs))
            };
            let rates = [&pair.0, &pair.1].map(|cost| thousands(cost.settled.rate));
            eprintln!("pair {}: {}: {} records/s, {label} {}", round + 1, ours.name, rates[0], rates[1]);
            pairs.push(pair);
        }
    }
    let mut table = Table::new(&["this / other", "median", "min", "max", "this", "other"]);
    for (row, pairs) in ours.iter().zip(&pairs) {
        let mut line = |what: &str, say: fn(f64) -> String, figure: fn(&Cost) -> f64| {
            let ratios: Vec<_> = pairs.iter().map(|(ours, theirs)| figure(ours) / figure(theirs)).collect();
            let of = |choose: fn(f64, f64) -> f64| format!("{:.3}", ratios.iter().copied().reduce(choose).unwrap_or(0.0));
            let medians = [median(pairs.iter().map(|pair| figure(&pair.0))), median(pairs.iter().map(|pair| figure(&pair.1)))].map(say);
            let ratio = format!("{:.3}", median(ratios.iter().copied()));
            table.row([vec![format!("{}: {what}", row.name), ratio, of(f64::min), of(f64::max)], medians.to_vec()].concat());
        };
        line("records/s", thousands, |cost| cost.settled.rate);
        line("µs CPU per record", |cpu| format!("{cpu:.2}"), |cost| cost.settled.cpu);
        line("peak RSS, MB", |bytes| format!("{:.0}", bytes / 1e6), |cost| cost.memory as f64);
    }
    println!("{} pairs, half of them with {label} first\n\n{table}", options.rounds * 2);
}
