//! A hint to the CPU that a cache line will be read soon.
//!
//! The hint affects only the time of later reads.

#![allow(unsafe_code)]

/// Prefetches a cache line. Reading the line would also load it but could stall the instructions that follow until the line arrives. On
/// CPUs other than x86-64, reads the line.
#[inline]
pub(super) fn prefetch_line(line: &[u8; 64]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch neither changes memory nor faults, for any address, and this address comes from a reference. The instruction
        // is part of SSE, which every x86-64 CPU has.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(line[0]);
}
