//! The bytes of a filter, and which pages of them changed since they were stored.
//!
//! Fresh from the system: zero, taken as they are touched, in huge pages where it gives them, which
//! saves a random look-up a second miss for its address. Must never know what the bytes mean.

use memmap2::{Advice, MmapMut};
use std::fmt;

/// Bytes in a page, the unit in which changes are tracked and stored.
pub const PAGE_BYTES: usize = 64 * 1024;

/// What is known of a page's stored copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    /// There is none and need be none: the page was never written to.
    Clear,
    /// It is missing or out of date.
    Dirty,
    /// It is as the page is.
    Stored,
}

/// A number of bytes, all zero at first. They start at a system page, and so at a cache line.
pub(super) struct PagedBuffer {
    bytes: MmapMut,
    pages: Vec<Page>,
}

impl PagedBuffer {
    /// So many bytes; `None` when this machine cannot give them.
    pub(super) fn new(bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok()?;
        let map = MmapMut::map_anon(bytes).ok()?;
        #[cfg(target_os = "linux")]
        {
            // Where there are no huge pages, small ones do; as they do for what is smaller than one, whose
            // addresses the processor knows by heart. Only whole huge pages within the map are taken, so that
            // memory stays what it is planned to be.
            let _ = map.advise(Advice::HugePage);
        }
        Some(Self { bytes: map, pages: vec![Page::Clear; bytes.div_ceil(PAGE_BYTES)] })
    }

    /// The bytes, to read.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, to change. Call [`PagedBuffer::touch`] for each place that changed.
    #[inline]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The byte at `offset` was changed.
    #[inline]
    pub(super) fn touch(&mut self, offset: usize) {
        self.pages[offset / PAGE_BYTES] = Page::Dirty;
    }

    /// Sets every bit that another memory of the same length has set.
    pub(super) fn add(&mut self, other: &Self) {
        let pages = self.bytes.chunks_mut(PAGE_BYTES).zip(other.bytes.chunks(PAGE_BYTES));
        for ((own, theirs), (page, known)) in pages.zip(self.pages.iter_mut().zip(&other.pages)) {
            if *known != Page::Clear {
                own.iter_mut().zip(theirs).for_each(|(own, theirs)| *own |= theirs);
                *page = Page::Dirty;
            }
        }
    }

    /// Numbers of the pages whose stored copy is missing or out of date.
    pub(super) fn dirty_pages(&self) -> impl Iterator<Item = usize> {
        self.pages.iter().enumerate().filter_map(|(number, &page)| (page == Page::Dirty).then_some(number))
    }

    /// How many pages were ever written to.
    pub(super) fn used_pages(&self) -> u64 {
        self.pages.iter().filter(|&&page| page != Page::Clear).count() as u64
    }

    /// All pages are stored.
    pub(super) fn mark_clean(&mut self) {
        self.pages.iter_mut().filter(|page| **page == Page::Dirty).for_each(|page| *page = Page::Stored);
    }

    /// Nothing is stored any more: pages that were written to must be stored again.
    pub(super) fn mark_stale(&mut self) {
        self.pages.iter_mut().filter(|page| **page == Page::Stored).for_each(|page| *page = Page::Dirty);
    }

    /// Appends a page's bytes: 64 KiB, or what the last one has.
    pub(super) fn write_page(&self, page: usize, out: &mut Vec<u8>) {
        if let Some(bytes) = self.bytes.chunks(PAGE_BYTES).nth(page) {
            out.extend_from_slice(bytes);
        }
    }

    /// Takes a page's stored bytes in; false if their length is not that page's, or there is no such page.
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
