//! Explains in an error message why a JSON text does not have a field.
//!
//! Runs only for invalid records, so parsing a text again is fast enough. A message never contains a value of the record.

use super::unescape;
use crate::format::Side;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Returns the end of an error message for a pointer that finds nothing in a text, or `None` if there is nothing helpful to add. `option`
/// is the configuration option of the pointer, or `None` if this option cannot be combined with `then`.
pub(crate) fn missing_field(side: Side, option: Option<&str>, pointer: &str, json: &[u8]) -> Option<String> {
    dead_end(side, option, pointer, str::from_utf8(json).ok()?)
}

/// Follows a pointer as far as possible and explains why it ends there.
fn dead_end(side: Side, option: Option<&str>, pointer: &str, json: &str) -> Option<String> {
    let (mut text, mut at) = (json.trim(), String::new());
    for token in pointer.split('/').skip(1) {
        let step = token.replace("~1", "/").replace("~0", "~");
        let Some(found) = child(text, &step) else {
            let then = option.map(|option| format!("{{ {option} = \"{at}\", then = \"{}\" }}", &pointer[at.len()..]));
            return explain(side, then.as_deref(), &at, &step, text);
        };
        text = found;
        at = at + "/" + token;
    }
    None
}

fn child<'j>(text: &'j str, step: &str) -> Option<&'j str> {
    let found = match text.as_bytes().first()? {
        b'{' => serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(text).ok()?.remove(step),
        b'[' => serde_json::from_str::<Vec<&RawValue>>(text).ok()?.get(step.parse::<usize>().ok()?).copied(),
        _ => None,
    };
    found.map(RawValue::get)
}

/// Explains why the value at pointer `at` has no member or element `step`. `then` is the configuration of a key part that parses the string
/// at `at` as JSON.
fn explain(side: Side, then: Option<&str>, at: &str, step: &str, text: &str) -> Option<String> {
    let kind = match text.as_bytes().first()? {
        b'"' => {
            let inner = unescape(text.as_bytes()).ok()?;
            let is_json = inner.trim_start().starts_with(['{', '[']) && serde_json::from_str::<IgnoredAny>(&inner).is_ok();
            return match (is_json, at) {
                (true, "") => Some(format!(
                    ": the record {side} is a JSON string that contains JSON; fix the producer, which encodes it twice{}",
                    then.map_or_else(String::new, |then| format!(", or write {then}"))
                )),
                (true, at) => Some(match then {
                    Some(then) => format!(": `{at}` is a string that contains JSON; write {then}"),
                    None => format!(": `{at}` is a string that contains JSON, and a pointer cannot lead into a string"),
                }),
                (false, "") => None,
                (false, at) => Some(format!(": `{at}` is a string")),
            };
        }
        b'{' => {
            let members = serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(text).ok()?;
            let other = members.keys().find(|name| name.eq_ignore_ascii_case(step))?;
            let other = other.replace('~', "~0").replace('/', "~1");
            return Some(format!(", but it has `{at}/{other}`: field names are case-sensitive"));
        }
        b'[' => "a list",
        b'n' => "null",
        b't' | b'f' => "a boolean",
        _ => "a number",
    };
    (!at.is_empty()).then(|| format!(": `{at}` is {kind}"))
}
