//! The hint that a cache line will be read soon.
//!
//! Must never have an effect but on the time that reads take.

#![allow(unsafe_code)]

/// Has the cache load a line. A load would do, but holds up what comes after it until it is there; this does not.
#[inline]
pub(super) fn prefetch_line(line: &[u8; 64]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: it neither reads nor writes nor faults, whatever the address, which is that of a reference at that.
        // It is of SSE, and there is no x86-64 without.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(line[0]);
}
