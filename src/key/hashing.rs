//! Hashes the encoding of a key to its fingerprint.
//!
//! Defines the hash functions and holds the secret of the selected function, if it has one. Never reveals the secret: `Debug`, errors, and
//! [`Hashing::id`] reveal at most whether two secrets are equal.
//!
//! XXH3 is fast, but anyone who chooses keys can create collisions, regardless of the seed
//! (<https://github.com/Cyan4973/xxHash/issues/1127>). A collision can cause another party's record to be dropped as a duplicate. SipHash
//! is designed to prevent this attack: nobody can predict a collision without the secret key (Aumasson, Bernstein: "SipHash: a fast
//! short-input PRF", 2012).

use super::Fingerprint;
use siphasher::sip128::SipHasher24;
use std::fmt;
use xxhash_rust::xxh3::xxh3_128;

/// The text that [`Hashing::id`] hashes. The text is not the encoding of any key, because every encoding starts with a tag of at most 5.
const ID_TEXT: &[u8] = b"unseen hash key id";

/// The hash function for keys. Fingerprints of different hash functions are not comparable.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Hashing {
    /// XXH3-128 (<https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>), the fastest function. Use it only if all parties that
    /// choose keys are trusted.
    #[default]
    Xxh3,
    /// SipHash-2-4 (<https://github.com/veorq/SipHash>) with 128 bits of output and this secret key. Use it if untrusted parties choose
    /// keys.
    SipHash([u8; 16]),
}

/// An invalid SipHash key. The error does not show the text, because it can be a secret with a typing error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HashKeyError {
    /// The text does not have 32 characters. The field is its number of characters.
    #[error("expected a hash key of 32 hexadecimal digits, got {0} characters")]
    Length(usize),
    /// A character is not a hexadecimal digit. The field is the position of the character, counted from 1.
    #[error("expected a hash key of 32 hexadecimal digits, but character {0} is not a digit")]
    Digit(usize),
}

impl Hashing {
    /// Creates a SipHash function from a key of 32 hexadecimal digits, uppercase or lowercase. The first two digits are the first byte of
    /// the key.
    ///
    /// # Errors
    /// Returns [`HashKeyError`] if the text is not 32 hexadecimal digits.
    pub fn siphash_from_hex(text: &str) -> Result<Self, HashKeyError> {
        let length = text.chars().count();
        if length != 32 {
            return Err(HashKeyError::Length(length));
        }
        let mut key = [0; 16];
        for (index, digit) in text.chars().enumerate() {
            let digit = digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()).ok_or(HashKeyError::Digit(index + 1))?;
            key[index / 2] = key[index / 2] << 4 | digit;
        }
        Ok(Self::SipHash(key))
    }

    /// Returns an id of the hash function and its secret key. The id is stored with fingerprints, to detect a change of function or key. It
    /// is `xxh3`, or `siphash` and 16 hexadecimal digits: half of the SipHash of a fixed text.
    #[must_use]
    pub fn id(&self) -> String {
        match self {
            Self::Xxh3 => "xxh3".to_owned(),
            Self::SipHash(_) => format!("siphash {:016x}", self.fingerprint(ID_TEXT).low()),
        }
    }

    #[inline]
    #[must_use]
    pub(super) fn fingerprint(&self, encoded: &[u8]) -> Fingerprint {
        Fingerprint(match self {
            Self::Xxh3 => xxh3_128(encoded),
            Self::SipHash(key) => u128::from_le_bytes(SipHasher24::new_with_key(key).hash(encoded).as_bytes()),
        })
    }
}

impl fmt::Debug for Hashing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id())
    }
}

#[cfg(test)]
pub(crate) mod numbered {
    use super::Fingerprint;
    use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

    pub(crate) fn key(number: u64) -> Fingerprint {
        Fingerprint(xxh3_128(&number.to_le_bytes()))
    }

    pub(crate) fn key_of_family(family: u64, number: u64) -> Fingerprint {
        Fingerprint(xxh3_128_with_seed(&number.to_le_bytes(), family))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siphash_is_the_published_one() {
        // The first four entries of `vectors_sip128` in the reference implementation. The key is 00 01 .. 0f, and the input of entry n
        // is the n bytes 00 01 02 ..
        let vectors = [
            (0, "a3817f04ba25a8e66df67214c7550293"),
            (1, "da87c1d86b99af44347659119b22fc45"),
            (2, "8177228da4a45dc7fca38bdef60affe4"),
            (3, "9c70b60c5267a94e5f33b6b02985ed51"),
        ];
        let hashing = Hashing::siphash_from_hex("000102030405060708090A0b0c0d0e0f").unwrap();
        for (length, digest) in vectors {
            let input: Vec<u8> = (0..length).collect();
            let expected = u128::from_str_radix(digest, 16).unwrap().swap_bytes();
            assert_eq!(hashing.fingerprint(&input).0, expected, "{length} bytes");
        }
    }

    #[test]
    fn a_key_is_written_in_hexadecimal() {
        let key = [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];
        assert_eq!(Hashing::siphash_from_hex("00112233445566778899aAbBcCdDeEfF"), Ok(Hashing::SipHash(key)));
        for (text, message) in [
            ("", "got 0 characters"),
            ("00112233445566778899aabbccddeef", "got 31 characters"),
            ("00112233445566778899aabbccddeeff0", "got 33 characters"),
            ("0x112233445566778899aabbccddeeff", "character 2 is not a digit"),
            ("00112233445566778899aabbccddeefé", "character 32 is not a digit"),
        ] {
            let error = Hashing::siphash_from_hex(text).unwrap_err().to_string();
            assert!(error.ends_with(message), "{error}");
            assert!(text.is_empty() || !error.contains(text), "{error}");
        }
    }

    #[test]
    fn the_id_tells_keys_apart_and_reveals_none() {
        let (one, other) = (Hashing::SipHash([0x5a; 16]), Hashing::SipHash([0x5b; 16]));
        assert_eq!(Hashing::Xxh3.id(), "xxh3");
        assert_eq!(one.id(), "siphash 11f31a4cb41e4898", "stored state is known by it: it must not change");
        assert_ne!(one.id(), other.id());
        let shown = format!("{one:?} {one:#?}");
        assert!(!shown.contains("5a5a") && !shown.contains("90, "), "{shown}");
    }
}
