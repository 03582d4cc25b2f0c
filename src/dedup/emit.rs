//! The records of a key that are emitted. This choice also determines whether fingerprints contain a hash of the content.

use crate::key::Fingerprint;

/// The records of a key that are emitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Emit {
    /// The first record within the window.
    #[default]
    First,
    /// The first record within the window, and each record whose content differs from the content of the last emitted record of its key.
    /// Fingerprints then contain a hash of the content.
    OnChange,
}

impl Emit {
    /// Returns the part of a fingerprint that is the same for all records of a key: the fingerprint without the hash of the content.
    #[must_use]
    pub fn key_of(self, fingerprint: Fingerprint) -> Fingerprint {
        match self {
            Self::First => fingerprint,
            Self::OnChange => Fingerprint(fingerprint.low().into()),
        }
    }

    /// Returns the hash of the content in a fingerprint, or 0 if fingerprints contain only the key.
    #[must_use]
    pub const fn content_of(self, fingerprint: Fingerprint) -> u64 {
        match self {
            Self::First => 0,
            Self::OnChange => fingerprint.high(),
        }
    }
}
