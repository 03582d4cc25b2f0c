//! The names of the producers' partitioners.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Partitioner of the producers, which chooses the partition of a record by its record key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Partitioner {
    /// The default of Java clients.
    Murmur2,
    /// The default of librdkafka.
    Crc32,
}
