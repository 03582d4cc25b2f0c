//! Code that is shared by the plans on a real broker and the plans in the simulator: records and their comparison.

#![allow(dead_code, reason = "each harness uses a part of it")]

#[path = "../integration/harness/compare.rs"]
mod compare;
#[path = "../integration/harness/news.rs"]
mod news;
#[path = "../integration/harness/random.rs"]
mod random;
#[path = "../integration/harness/record.rs"]
mod record;

pub use compare::{assert_same, show};
pub use news::News;
pub use random::{SplitMix, pick};
pub use record::TestRecord;

pub const RETRACT: &str = "retract";
