//! The choice of the emitted records of a key, which also determines the content of fingerprints.

use crate::key::Fingerprint;

/// The records of a key that are emitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Emit {
    /// The first record within the window.
    #[default]
    First,
    /// The records whose content differs from that of the last emitted record. Fingerprints contain the content.
    OnChange,
}

impl Emit {
    /// Returns the fingerprint without its content, which is the same for all records of a key.
    #[must_use]
    pub fn key_of(self, fingerprint: Fingerprint) -> Fingerprint {
        match self {
            Self::First => fingerprint,
            Self::OnChange => Fingerprint(fingerprint.low().into()),
        }
    }

    /// Returns the content in a fingerprint, or 0 if fingerprints contain none.
    #[must_use]
    pub const fn content_of(self, fingerprint: Fingerprint) -> u64 {
        match self {
            Self::First => 0,
            Self::OnChange => fingerprint.high(),
        }
    }
}
