//! The hint that a cache line will be read soon.
//!
//! Must never have an effect except on the time that reads take.

#![allow(unsafe_code)]

/// Prefetches a cache line. A load would also work, but would delay the instructions after it until the line arrives.
#[inline]
pub(super) fn prefetch_line(line: &[u8; 64]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction neither reads, writes, nor faults, for any address, and this address comes from a reference. It
        // is part of SSE, which every x86-64 CPU has.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(line[0]);
}
