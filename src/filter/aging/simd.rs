//! A batch's work in wide registers, where this processor has them.
//!
//! Must never have another answer than [`Batch::work`], which it runs.

#![allow(unsafe_code)]

use super::batch::Batch;
use crate::filter::bloom::Bloom;

/// [`Batch::work`], compiled for AVX2 and run so if there is that.
pub(super) fn work<'a>(batch: &mut Batch, layers: impl Iterator<Item = &'a Bloom>, is_open: bool, turn: u64) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the function is safe but for what it is compiled for, and the processor was just asked for that.
        return unsafe { with_avx2(batch, layers, is_open, turn) };
    }
    batch.work(layers, is_open, turn);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2<'a>(batch: &mut Batch, layers: impl Iterator<Item = &'a Bloom>, is_open: bool, turn: u64) {
    batch.work(layers, is_open, turn);
}
