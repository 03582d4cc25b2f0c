//! A batch's work in wide registers, where this processor has them.
//!
//! Must never have another answer than [`batch::work`], which it runs.

#![allow(unsafe_code)]

use super::batch::{self, Entry};
use crate::filter::bloom::Bloom;

/// [`batch::work`], compiled for AVX2 and run so if there is that.
pub(super) fn work<'a>(entries: &mut [Entry], layers: impl Iterator<Item = &'a Bloom>, is_open: bool) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the function is safe but for what it is compiled for, and the processor was just asked for that.
        return unsafe { with_avx2(entries, layers, is_open) };
    }
    batch::work(entries, layers, is_open);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2<'a>(entries: &mut [Entry], layers: impl Iterator<Item = &'a Bloom>, is_open: bool) {
    batch::work(entries, layers, is_open);
}
