//! How producers choose partitions, by the names that the configuration has for it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a producer chooses the partition of a record that has a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Partitioner {
    /// As the Java client does.
    Murmur2,
    /// As librdkafka does by default.
    Crc32,
}
