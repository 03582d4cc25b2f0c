//! Processes a batch with AVX2 instructions if the CPU supports AVX2.
//!
//! The answers are always the same as the answers of [`batch::work`].

#![allow(unsafe_code)]

use super::batch::{self, Entry};
use crate::filter::bloom::Bloom;

/// Runs [`batch::work`]. If the CPU supports AVX2, runs a copy of that function that is compiled for AVX2.
pub(super) fn work<'a>(entries: &mut [Entry], layers: impl Iterator<Item = &'a Bloom>, is_open: bool) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the only requirement of the function is AVX2, and the line above checked that the CPU supports it.
        return unsafe { with_avx2(entries, layers, is_open) };
    }
    batch::work(entries, layers, is_open);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2<'a>(entries: &mut [Entry], layers: impl Iterator<Item = &'a Bloom>, is_open: bool) {
    batch::work(entries, layers, is_open);
}
