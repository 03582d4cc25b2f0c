//! The bytes of a filter and a status for each page: never written, changed, or stored.
//!
//! The memory comes directly from the operating system: zeroed, allocated on first access, and in huge pages if available. With huge pages,
//! a random lookup avoids a TLB miss. This module never interprets the bytes.

use memmap2::{Advice, MmapMut};
use std::fmt;

/// Bytes per page. Changes are tracked and stored page by page.
pub const PAGE_BYTES: usize = 64 * 1024;

/// Status of a page's stored copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    /// No stored copy is needed, because the page was never written to.
    Clear,
    /// The stored copy is missing or out of date.
    Dirty,
    /// The stored copy is up to date.
    Stored,
}

/// A buffer of bytes, initially zero. Its start is aligned to a page of the operating system and therefore to a cache line.
pub(super) struct PagedBuffer {
    bytes: MmapMut,
    pages: Vec<Page>,
}

impl PagedBuffer {
    /// Creates a buffer or returns `None` if there is not enough memory.
    pub(super) fn new(bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok()?;
        let map = MmapMut::map_anon(bytes).ok()?;
        #[cfg(target_os = "linux")]
        {
            // Ignore errors, because small pages work, too. A buffer smaller than a huge page keeps small pages, but the TLB covers such a
            // small buffer. The kernel uses only huge pages that lie within the map, so the memory does not grow.
            let _ = map.advise(Advice::HugePage);
        }
        Some(Self { bytes: map, pages: vec![Page::Clear; bytes.div_ceil(PAGE_BYTES)] })
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes for writing. The caller must call [`PagedBuffer::touch`] with an offset in each page that it changes.
    #[inline]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    #[inline]
    pub(super) fn touch(&mut self, offset: usize) {
        self.pages[offset / PAGE_BYTES] = Page::Dirty;
    }

    pub(super) fn dirty_pages(&self) -> impl Iterator<Item = usize> {
        self.pages.iter().enumerate().filter_map(|(number, &page)| (page == Page::Dirty).then_some(number))
    }

    /// Returns the number of pages that were ever written to or restored.
    pub(super) fn used_pages(&self) -> u64 {
        self.pages.iter().filter(|&&page| page != Page::Clear).count() as u64
    }

    pub(super) fn mark_clean(&mut self) {
        self.pages.iter_mut().filter(|page| **page == Page::Dirty).for_each(|page| *page = Page::Stored);
    }

    pub(super) fn mark_stale(&mut self) {
        self.pages.iter_mut().filter(|page| **page == Page::Stored).for_each(|page| *page = Page::Dirty);
    }

    /// Appends a page's bytes: 64 KiB, or fewer for the last page.
    pub(super) fn write_page(&self, page: usize, out: &mut Vec<u8>) {
        if let Some(bytes) = self.bytes.chunks(PAGE_BYTES).nth(page) {
            out.extend_from_slice(bytes);
        }
    }

    /// Restores a page from its stored bytes. Returns false if the page does not exist, or the length is wrong.
    pub(super) fn read_page(&mut self, page: usize, bytes: &[u8]) -> bool {
        match self.bytes.chunks_mut(PAGE_BYTES).nth(page) {
            Some(own) if own.len() == bytes.len() => own.copy_from_slice(bytes),
            _ => return false,
        }
        self.pages[page] = Page::Stored;
        true
    }
}

impl fmt::Debug for PagedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagedBuffer").field("bytes", &self.bytes.len()).field("used_pages", &self.used_pages()).finish_non_exhaustive()
    }
}
