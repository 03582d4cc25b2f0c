//! One cache-line-blocked Bloom filter.
//!
//! All bits of a key lie in one block of 512 bits, a cache line, so that a look-up costs one miss
//! (Putze, Sanders, Singler, 2007). Error direction: may say "seen" of a key that is not there,
//! never "not seen" of one that is.

use crate::key::Fingerprint;

/// Bits in a block.
pub(super) const BLOCK_BITS: u32 = 512;
const BLOCK_WORDS: usize = 8;
const BLOCK_BYTES: usize = 64;

/// Bytes in a page, the unit in which changes are tracked and stored.
pub const PAGE_BYTES: usize = 64 * 1024;
const PAGE_WORDS: usize = PAGE_BYTES / 8;
const PAGE_BLOCKS: usize = PAGE_BYTES / BLOCK_BYTES;

/// Size of a filter: it, and the fingerprints put in, determine every bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of 64-byte blocks, at least 1.
    pub blocks: u64,
    /// Bits that a key sets in its block, all different; 1 to 32.
    pub probes: u32,
}

impl Shape {
    /// Memory for the bits.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.blocks.saturating_mul(BLOCK_BYTES as u64)
    }
}

/// The bits that a key sets within its block.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    probes: u32,
    bits: [u64; BLOCK_WORDS],
}

impl Mask {
    /// Top nine bits of the fingerprint's high half, multiplied on until there are `probes` different
    /// ones, at most 512. An odd number stays odd, so this cannot get stuck at zero.
    #[must_use]
    pub fn new(fingerprint: Fingerprint, probes: u32) -> Self {
        let mut bits = [0; BLOCK_WORDS];
        let mut hash = fingerprint.high() | 1;
        let mut set = 0;
        while set < probes {
            let bit = hash >> 55;
            let word = &mut bits[(bit >> 6) as usize & (BLOCK_WORDS - 1)];
            let before = *word;
            *word |= 1 << (bit & 63);
            set += u32::from(*word != before);
            hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        Self { probes, bits }
    }
}

/// The bits of one filter, and which pages of them changed since they were last stored.
#[derive(Debug)]
pub struct Bloom {
    shape: Shape,
    /// The blocks, from `start` on; the allocator aligns to 16 bytes, and a block must not straddle lines.
    words: Vec<u64>,
    start: usize,
    pages: Vec<Page>,
}

/// What is known of a page's stored copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    /// There is none and need be none: no bit was ever set.
    Clear,
    /// It is missing or out of date.
    Dirty,
    /// It is as the page is.
    Stored,
}

impl Bloom {
    /// An empty filter. Its memory is taken from the system as it is touched.
    ///
    /// # Panics
    /// If the address space cannot hold the blocks.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        let blocks = usize::try_from(shape.blocks).expect("a filter fits in the address space");
        let words = vec![0; blocks * BLOCK_WORDS + BLOCK_WORDS - 1];
        let start = match words.as_ptr().align_offset(BLOCK_BYTES) {
            offset if offset < BLOCK_WORDS => offset,
            _ => 0, // Alignment is for speed only.
        };
        Self { shape, words, start, pages: vec![Page::Clear; blocks.div_ceil(PAGE_BLOCKS)] }
    }

    /// Like [`Bloom::new`], but `None` when this machine cannot give so much memory.
    #[must_use]
    pub fn try_new(shape: Shape) -> Option<Self> {
        // Only `vec!` gets zeroed memory that is not touched, and it aborts when there is none: so ask
        // first, in a way that the optimizer must not take for idle.
        let bytes = usize::try_from(shape.bytes()).ok()?;
        let mut probe = Vec::<u8>::new();
        probe.try_reserve_exact(bytes.checked_add(BLOCK_BYTES)?).ok()?;
        drop(std::hint::black_box(probe));
        Some(Self::new(shape))
    }

    /// The size it was made with.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// Whether the fingerprint was put in; wrong at the planned rate for one that was not.
    ///
    /// `mask` is the fingerprint's, made beforehand: of several filters that are asked for one key, most
    /// have as many probes.
    #[must_use]
    pub fn contains(&self, fingerprint: Fingerprint, mask: &Mask) -> bool {
        if mask.probes != self.shape.probes {
            return self.contains(fingerprint, &Mask::new(fingerprint, self.shape.probes));
        }
        let first = self.start + self.block(fingerprint) * BLOCK_WORDS;
        let block = &self.words[first..first + BLOCK_WORDS];
        block.iter().zip(mask.bits).fold(0, |missing, (word, bits)| missing | (bits & !word)) == 0
    }

    /// Puts a fingerprint in.
    pub fn insert(&mut self, fingerprint: Fingerprint) {
        let block = self.block(fingerprint);
        let mask = Mask::new(fingerprint, self.shape.probes);
        let first = self.start + block * BLOCK_WORDS;
        for (word, bits) in self.words[first..first + BLOCK_WORDS].iter_mut().zip(mask.bits) {
            *word |= bits;
        }
        self.pages[block / PAGE_BLOCKS] = Page::Dirty;
    }

    /// The low half of the fingerprint, scaled to the number of blocks (Lemire's fast range, 2019).
    #[expect(clippy::cast_possible_truncation, reason = "less than the number of blocks, which is a usize")]
    fn block(&self, fingerprint: Fingerprint) -> usize {
        ((u128::from(fingerprint.low()) * u128::from(self.shape.blocks)) >> 64) as usize
    }

    fn bits(&self) -> &[u64] {
        &self.words[self.start..][..self.used_words()]
    }

    const fn used_words(&self) -> usize {
        self.words.len() - (BLOCK_WORDS - 1)
    }

    /// Numbers of the pages whose stored copy is missing or out of date.
    pub fn dirty_pages(&self) -> impl Iterator<Item = usize> {
        self.pages.iter().enumerate().filter_map(|(number, &page)| (page == Page::Dirty).then_some(number))
    }

    /// How many pages hold anything.
    #[must_use]
    pub fn used_pages(&self) -> u64 {
        self.pages.iter().filter(|&&page| page != Page::Clear).count() as u64
    }

    /// All pages are stored.
    pub fn mark_clean(&mut self) {
        self.pages.iter_mut().filter(|page| **page == Page::Dirty).for_each(|page| *page = Page::Stored);
    }

    /// Nothing is stored any more: pages that hold anything must be stored again.
    pub fn mark_stale(&mut self) {
        self.pages.iter_mut().filter(|page| **page == Page::Stored).for_each(|page| *page = Page::Dirty);
    }

    fn page(&self, page: usize) -> &[u64] {
        let bits = self.bits();
        let first = page * PAGE_WORDS;
        &bits[first..bits.len().min(first + PAGE_WORDS)]
    }

    /// Appends a page's bits, little-endian, 64 KiB or what the last one has.
    pub fn write_page(&self, page: usize, out: &mut Vec<u8>) {
        for word in self.page(page) {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Takes a page's stored bits in; false if their length is not that page's, or there is no such page.
    pub fn read_page(&mut self, page: usize, bytes: &[u8]) -> bool {
        if page >= self.pages.len() || bytes.len() != self.page(page).len() * 8 {
            return false;
        }
        let first = self.start + page * PAGE_WORDS;
        for (word, bytes) in self.words[first..].iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        self.pages[page] = Page::Stored;
        true
    }
}
