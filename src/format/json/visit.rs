//! Visits a whole JSON text.
//!
//! Rejects every text that is not a single JSON value. The end of a text is validated after its values are visited, so callers must discard
//! the values of a rejected text.

use super::scan::{Scan, behind};
use super::unescape;
use crate::format::scalar::Scalar;
use crate::format::{Container, DEPTH_MAX, Unreadable, Visit};

/// Visits a text. Returns `None` if the text is not JSON or has too many nested containers.
pub(super) fn visit(scan: &Scan<'_, '_>, visitor: &mut impl Visit) -> Option<()> {
    let end = value(scan, scan.space(0), visitor, 0)?;
    (scan.space(end) == scan.json.len()).then_some(())
}

/// Returns the error for a rejected text. Slow, because it parses the text again.
pub(super) fn refused(json: &[u8]) -> Unreadable {
    match serde_json::from_slice::<serde_json::Value>(json) {
        // A text that serde_json accepts was rejected because of its depth. The depth limit of serde_json is higher than [`DEPTH_MAX`], so
        // a text that exceeds the limit of serde_json is too deep as well.
        Err(error) if !error.to_string().starts_with("recursion limit exceeded") => Unreadable::Json(error),
        Ok(_) | Err(_) => Unreadable::Deep,
    }
}

/// Visits the value at a position and returns the position after it.
fn value(scan: &Scan<'_, '_>, at: usize, visitor: &mut impl Visit, depth: usize) -> Option<usize> {
    match scan.byte(at)? {
        b'"' => string(scan, at, |text| visitor.scalar(Scalar::String(text))),
        b'{' if depth < DEPTH_MAX => object(scan, at, visitor, depth),
        b'[' if depth < DEPTH_MAX => array(scan, at, visitor, depth),
        b'{' | b'[' => None,
        b'n' => {
            let end = scan.word(at)?;
            visitor.scalar(Scalar::Null);
            Some(end)
        }
        b't' | b'f' => {
            let end = scan.word(at)?;
            visitor.scalar(Scalar::Bool(&scan.json[at..end]));
            Some(end)
        }
        _ => {
            let end = scan.number(at)?;
            visitor.scalar(Scalar::Number(&scan.json[at..end]));
            Some(end)
        }
    }
}

/// Passes a string to `take`, with its escapes decoded.
fn string(scan: &Scan<'_, '_>, at: usize, take: impl FnOnce(&[u8])) -> Option<usize> {
    let (end, is_simple) = scan.string(at)?;
    let text = &scan.json[at..end];
    if !scan.is_utf8(text) {
        return None;
    }
    if is_simple {
        take(&text[1..text.len() - 1]);
    } else {
        take(unescape(text).ok()?.as_bytes());
    }
    Some(end)
}

fn object(scan: &Scan<'_, '_>, at: usize, visitor: &mut impl Visit, depth: usize) -> Option<usize> {
    visitor.open(Container::Object);
    let mut at = scan.space(behind(at));
    let mut is_end = scan.byte(at)? == b'}';
    if is_end {
        at = behind(at);
    }
    while !is_end {
        let end = string(scan, at, |name| visitor.name(name))?;
        let end = value(scan, scan.colon(end)?, visitor, depth + 1)?;
        (at, is_end) = scan.comma(end, b'}')?;
    }
    visitor.close();
    Some(at)
}

fn array(scan: &Scan<'_, '_>, at: usize, visitor: &mut impl Visit, depth: usize) -> Option<usize> {
    visitor.open(Container::Array);
    let mut at = scan.space(behind(at));
    let mut is_end = scan.byte(at)? == b']';
    if is_end {
        at = behind(at);
    }
    while !is_end {
        let end = value(scan, at, visitor, depth + 1)?;
        (at, is_end) = scan.comma(end, b']')?;
    }
    visitor.close();
    Some(at)
}
