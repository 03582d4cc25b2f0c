//! The least that Kafka costs, as in `raw.rs`, under the allocator of the system. Which allocator there is, the whole
//! binary decides, librdkafka included: the other binary has the worker's.

#[allow(dead_code, reason = "this reads, and no more")]
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
