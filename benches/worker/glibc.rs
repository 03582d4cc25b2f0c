//! The minimum cost of Kafka, as in `raw.rs`, with the system's allocator. The allocator is the same for the whole binary,
//! including librdkafka. The other binary has the worker's allocator.

#[allow(dead_code, reason = "this binary only reads")]
mod input;
mod raw;

use clap::Parser;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    raw: raw::Arguments,
}

fn main() {
    raw::work(&Arguments::parse().raw);
}
