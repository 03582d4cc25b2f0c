//! A batch's work in wide registers, where this processor has them.
//!
//! Owns the only `unsafe` of the crate. Must never have another answer than [`Batch::work`], which it runs.

#![allow(unsafe_code)]

use super::batch::Batch;
use crate::filter::bloom::{Bloom, Shape};

/// [`Batch::work`], compiled for AVX2 and run so if there is that.
pub(super) fn work<'a>(batch: &mut Batch, sealed: impl Iterator<Item = &'a Bloom>, open: Shape, turn: u64) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the function is safe but for what it is compiled for, and the processor was just asked for that.
        return unsafe { with_avx2(batch, sealed, open, turn) };
    }
    batch.work(sealed, open, turn);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2<'a>(batch: &mut Batch, sealed: impl Iterator<Item = &'a Bloom>, open: Shape, turn: u64) {
    batch.work(sealed, open, turn);
}
