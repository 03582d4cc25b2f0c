//! From stored bytes back to a partition's memory.
//!
//! Whatever the bytes are, this ends with a memory or with a sentence, and takes no more room than a
//! filter of the stored size would. Must never panic, nor believe a value whose seal does not fit.

use super::codec::{head_key, page_id, unseal};
use super::{Head, PartitionId};
use crate::dedup::{Dedup, Late, Rules};

/// A partition's memory while its pages come in.
#[derive(Debug)]
pub struct Decoder<'a> {
    id: &'a PartitionId,
    memory: Dedup,
    expected_pages: u64,
    pages: u64,
}

/// The head of a partition's checkpoint, from its sealed bytes.
///
/// # Errors
/// What is wrong with it, as the end of a sentence.
pub fn head(id: &PartitionId, sealed: &[u8]) -> Result<Head, String> {
    let value = unseal(&head_key(id), sealed).ok_or("the checksum of its head does not fit")?;
    serde_json::from_slice(value).map_err(|error| format!("its head cannot be read: {error}"))
}

/// Rules by which what a head outlines can be read, without its configuration: not to judge records by.
#[must_use]
pub fn outline_rules(head: &Head) -> Rules {
    let (window, memory) = (head.settings.window, &head.memory);
    Rules {
        window,
        filter: memory.filter.as_ref().map(|manifest| manifest.spec(window)),
        exact: memory.exact.is_some(),
        refresh: false,
        late: Late::default(),
    }
}

impl<'a> Decoder<'a> {
    /// Begins with the outline in a head.
    ///
    /// # Errors
    /// When it is not one of a memory with these rules.
    pub fn new(id: &'a PartitionId, head: &Head, rules: Rules) -> Result<Self, String> {
        let memory = Dedup::from_snapshot(rules, &head.memory).map_err(|error| error.to_string())?;
        let expected_pages = head.memory.parts().iter().fold(0_u64, |sum, part| sum.saturating_add(part.pages));
        Ok(Self { id, memory, expected_pages, pages: 0 })
    }

    /// Takes a stored page in.
    ///
    /// # Errors
    /// When its name, its seal or its length is not that of a page of this memory.
    pub fn page(&mut self, key: &[u8], sealed: &[u8]) -> Result<(), String> {
        let page = page_id(self.id, key).ok_or("a page has an impossible name")?;
        let bytes =
            unseal(key, sealed).ok_or_else(|| format!("the checksum of page {} of slice {} does not fit", page.page, page.slice))?;
        self.memory.read_page(page, bytes).map_err(|error| error.to_string())?;
        self.pages += 1;
        Ok(())
    }

    /// The memory, if it is whole.
    ///
    /// # Errors
    /// When pages are missing.
    pub fn finish(self) -> Result<Dedup, String> {
        if self.pages == self.expected_pages {
            Ok(self.memory)
        } else {
            Err(format!("expected {} pages, got {}", self.expected_pages, self.pages))
        }
    }
}
