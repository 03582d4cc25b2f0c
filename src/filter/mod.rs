//! What remembers fingerprints: from a fingerprint to "seen" or "not seen".
//!
//! Owns the bits and how they age. Pure: no I/O, no clock, no randomness; time comes in with the
//! records. Must never forget a key within its window: every error here is on the side of "seen".

mod aging;
mod bloom;
mod sizing;

pub use aging::{Aging, GenerationManifest, LayerManifest, Manifest, Mismatch, PageId, Plan, Window};
pub use bloom::{Bloom, Mask, PAGE_BYTES, Shape};
pub use sizing::{blocked_rate, rate_per_generation};
