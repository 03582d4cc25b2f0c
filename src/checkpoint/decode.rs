//! From stored bytes back to a partition's state.
//!
//! Whatever the bytes are, this ends with a state or with a sentence, and takes no more room than a
//! filter of the stored size would. Must never panic, nor accept a value whose checksum does not fit.

use super::codec::{checked, metadata_key, page_id};
use super::{CheckpointMetadata, PartitionId};
use crate::dedup::{Dedup, Late, Rules};

/// A partition's state while its pages come in.
#[derive(Debug)]
pub struct Decoder<'a> {
    id: &'a PartitionId,
    state: Dedup,
    expected_pages: u64,
    pages: u64,
}

/// The metadata of a partition's checkpoint, from its stored bytes.
///
/// # Errors
/// What is wrong with it, as the end of a sentence.
pub fn metadata(id: &PartitionId, stored: &[u8]) -> Result<CheckpointMetadata, String> {
    let value = checked(&metadata_key(id), stored).ok_or("the checksum of its metadata does not fit")?;
    serde_json::from_slice(value).map_err(|error| format!("its metadata cannot be read: {error}"))
}

/// Rules by which what metadata describes can be read, without its configuration: not to judge records by.
#[must_use]
pub fn metadata_rules(metadata: &CheckpointMetadata) -> Rules {
    let (window, state) = (metadata.settings.window, &metadata.state);
    Rules {
        window,
        filter: state.filter.as_ref().map(|metadata| metadata.spec(window)),
        exact: state.exact.is_some(),
        refresh: false,
        late: Late::default(),
    }
}

impl<'a> Decoder<'a> {
    /// Begins with the metadata in metadata.
    ///
    /// # Errors
    /// When it is not one of a state with these rules.
    pub fn new(id: &'a PartitionId, metadata: &CheckpointMetadata, rules: Rules) -> Result<Self, String> {
        let state = Dedup::from_metadata(rules, &metadata.state).map_err(|error| error.to_string())?;
        let expected_pages = metadata.state.parts().iter().fold(0_u64, |sum, part| sum.saturating_add(part.pages));
        Ok(Self { id, state, expected_pages, pages: 0 })
    }

    /// Takes a stored page in.
    ///
    /// # Errors
    /// When its name, its checksum or its length is not that of a page of this state.
    pub fn page(&mut self, key: &[u8], stored: &[u8]) -> Result<(), String> {
        let page = page_id(self.id, key).ok_or("a page has an impossible name")?;
        let bytes =
            checked(key, stored).ok_or_else(|| format!("the checksum of page {} of slice {} does not fit", page.page, page.slice))?;
        self.state.read_page(page, bytes).map_err(|error| error.to_string())?;
        self.pages += 1;
        Ok(())
    }

    /// The state, if it is whole.
    ///
    /// # Errors
    /// When pages are missing.
    pub fn finish(self) -> Result<Dedup, String> {
        if self.pages == self.expected_pages {
            Ok(self.state)
        } else {
            Err(format!("expected {} pages, got {}", self.expected_pages, self.pages))
        }
    }
}
