//! Decodes the stored bytes of a partition's state.
//!
//! For any input, decoding returns a state or an error message and uses no more memory than a filter of the stored size. Decoding never
//! panics and never accepts a value with a wrong checksum.

use super::codec::{checked, metadata_key, page_id};
use super::{CheckpointMetadata, PartitionId, Settings};
use crate::dedup::{Dedup, Late, Rules};

#[derive(Debug)]
pub struct Decoder<'a> {
    id: &'a PartitionId,
    state: Dedup,
    expected_pages: u64,
    pages: u64,
}

/// Checks the checksum of a checkpoint's metadata and parses the metadata.
///
/// # Errors
/// Returns a description of the problem.
pub fn metadata(id: &PartitionId, stored: &[u8]) -> Result<CheckpointMetadata, String> {
    let value = checked(&metadata_key(id), stored).ok_or("the checksum of its metadata does not match")?;
    serde_json::from_slice(value).map_err(|error| format!("cannot parse its metadata: {error}"))
}

/// Returns the content in the value of a stored fingerprint, 0 if contents are not stored, or `None` if the value is invalid.
#[must_use]
pub fn content(value: &[u8]) -> Option<u64> {
    if value.is_empty() { Some(0) } else { value.try_into().ok().map(u64::from_le_bytes) }
}

/// Returns rules for reading a stored state without its configuration. The rules are not suitable for judging records, because the metadata
/// lacks options such as `late`.
#[must_use]
pub fn metadata_rules(metadata: &CheckpointMetadata) -> Rules {
    let (window, state) = (metadata.settings.window, &metadata.state);
    Rules {
        window,
        filter: state.filter.as_ref().map(|metadata| metadata.spec(window)),
        exact: state.exact.is_some(),
        refresh: false,
        late: Late::default(),
        emit: Settings::emit_of(&metadata.settings.filter),
    }
}

impl<'a> Decoder<'a> {
    /// Starts to decode the state that the metadata describes.
    ///
    /// # Errors
    /// Returns an error message if the metadata does not match these rules.
    pub fn new(id: &'a PartitionId, metadata: &CheckpointMetadata, rules: Rules) -> Result<Self, String> {
        let state = Dedup::from_metadata(rules, &metadata.state).map_err(|error| error.to_string())?;
        let expected_pages = metadata.state.parts().iter().fold(0_u64, |sum, part| sum.saturating_add(part.pages));
        Ok(Self { id, state, expected_pages, pages: 0 })
    }

    /// Decodes a stored page.
    ///
    /// # Errors
    /// Returns an error message if the key, the checksum, or the length does not match a page of this state.
    pub fn page(&mut self, key: &[u8], stored: &[u8]) -> Result<(), String> {
        let page = page_id(self.id, key).ok_or("a page has an invalid key")?;
        let bytes =
            checked(key, stored).ok_or_else(|| format!("the checksum of page {} of slice {} does not match", page.page, page.slice))?;
        self.state.read_page(page, bytes).map_err(|error| error.to_string())?;
        self.pages += 1;
        Ok(())
    }

    /// Returns the state if all pages were decoded.
    ///
    /// # Errors
    /// Returns an error message if pages are missing.
    pub fn finish(self) -> Result<Dedup, String> {
        if self.pages == self.expected_pages {
            Ok(self.state)
        } else {
            Err(format!("the stored filter is incomplete: expected {} pages, got {}", self.expected_pages, self.pages))
        }
    }
}
