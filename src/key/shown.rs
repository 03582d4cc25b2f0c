//! Formats the parts of a key for people.
//!
//! The texts are only for display. To compare keys, compare fingerprints.

use super::Scratch;
use super::encoding::Tag;

impl Scratch {
    /// Returns the parts of the encoded key, in order. Strings and bytes are in quotes, other JSON values are as written, and a content
    /// part is shown as its digest. A [`Reader`](super::Reader) must have read the key, because
    /// [`KeySpec::fingerprint`](super::KeySpec::fingerprint) does not keep a key that is a single short field.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        let (mut texts, mut rest) = (Vec::new(), &*self.encoded);
        while let Some((&tag, after)) = rest.split_first()
            && let Some((length, after)) = after.split_first_chunk()
            && let Some((bytes, after)) =
                usize::try_from(u64::from_le_bytes(*length)).ok().and_then(|length| after.split_at_checked(length))
        {
            texts.push(text(tag, bytes));
            rest = after;
        }
        texts
    }
}

fn text(tag: u8, bytes: &[u8]) -> String {
    let text = || String::from_utf8_lossy(bytes).into_owned();
    match tag {
        tag if tag == Tag::Null as u8 => "null".to_owned(),
        tag if tag == Tag::Content as u8 => {
            let digest = bytes.try_into().map_or(0, u128::from_le_bytes);
            format!("(digest {digest:032x})")
        }
        // Quotes distinguish text from a number with the same digits, as in the option `--key` of `unseen explain`.
        tag if tag == Tag::Bytes as u8 => serde_json::Value::String(text()).to_string(),
        _ => text(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Formats, NoSchemas};
    use crate::key::{KeySpec, Part, Reader};
    use crate::record::Record;

    #[test]
    fn printed_parts_are_accepted_in_lookups() {
        let field = |name: &str| Part::Field(format!("/{name}"));
        let spec = KeySpec::new(vec![Part::RecordKey, field("a"), field("b"), field("c"), field("d")]).unwrap();
        let value = br#"{"a": 4711, "b": "47\"11", "c": null, "d": true}"#;
        let mut scratch = Scratch::default();
        let fingerprint = spec.fingerprint(&Record { key: Some(b"k"), value: Some(value), headers: &[] }, &mut scratch).unwrap();
        let texts = scratch.texts();
        assert_eq!(texts, ["\"k\"", "4711", "\"47\\\"11\"", "null", "true"]);
        // A lookup takes the bytes of a record key as they are, without quotes.
        let asked = ["k", &texts[1], &texts[2], &texts[3], &texts[4]].map(str::as_bytes);
        let mut found = Vec::new();
        spec.fingerprints_of_texts(asked.into_iter(), &mut scratch, &mut found).unwrap();
        assert!(found.contains(&fingerprint));
    }
    #[test]
    fn a_key_of_one_short_field_is_shown() {
        let key = KeySpec::new(vec![Part::Field("/id".into())]).unwrap();
        let (mut reader, mut scratch) = (Reader::default(), Scratch::default());
        for id in ["a".to_owned(), "a".repeat(100)] {
            let value = format!("{{\"id\":\"{id}\"}}");
            let record = Record { value: Some(value.as_bytes()), ..Record::default() };
            let read = reader.fingerprint(&key, &Formats::default(), &record, &mut scratch, &NoSchemas).unwrap();
            assert_eq!(scratch.texts(), [format!("\"{id}\"")]);
            assert_eq!(read, key.fingerprint(&record, &mut scratch).unwrap());
        }
    }
}
