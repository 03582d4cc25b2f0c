//! The value of `--key` in `unseen init` and `unseen plan`, which define a part of the key with it.

use crate::key::Part;

#[derive(Clone, Debug)]
pub(super) enum KeyPart {
    RecordKey,
    Header(String),
    /// A JSON pointer.
    Field(String),
}

impl From<KeyPart> for Part {
    fn from(part: KeyPart) -> Self {
        match part {
            KeyPart::RecordKey => Self::RecordKey,
            KeyPart::Header(name) => Self::Header(name),
            KeyPart::Field(pointer) => Self::Field(pointer),
        }
    }
}

pub(super) fn parse(text: &str) -> Result<KeyPart, String> {
    match text.split_once(':') {
        _ if text == "key" => Ok(KeyPart::RecordKey),
        Some(("header", name)) if !name.is_empty() => Ok(KeyPart::Header(name.to_owned())),
        _ if text.starts_with('/') => Ok(KeyPart::Field(text.to_owned())),
        _ => Err("expected a JSON pointer such as /order/id, `key`, or `header:NAME`".to_owned()),
    }
}
