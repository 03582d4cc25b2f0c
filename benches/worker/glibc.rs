//! The minimum cost of Kafka, as in `raw.rs`, with the system's allocator. A binary has only one allocator, and librdkafka uses it, too. So
//! the same calls with the worker's allocator are in a different binary, `main.rs`.

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
