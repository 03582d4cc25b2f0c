//! Values with units: durations, sizes, counts, and rates.

use crate::filter::Window;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Maximum duration: ten years. A longer duration is most likely a mistake and could overflow.
const DURATION_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Range of capacities. A larger capacity is most likely a mistake, because its filter would need hundreds of gigabytes of memory.
pub(super) const KEYS: RangeInclusive<u64> = 1..=100_000_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    name: &'static str,
    scale: u64,
    any_case: bool,
}

impl Unit {
    const fn new(name: &'static str, scale: u64) -> Self {
        Self { name, scale, any_case: true }
    }

    /// A million. A lowercase `m` usually means a thousandth, so it is not accepted.
    const MILLION: Self = Self { name: "M", scale: 1_000_000, any_case: false };

    fn is(self, text: &str) -> bool {
        if self.any_case { self.name.eq_ignore_ascii_case(text) } else { self.name == text }
    }

    /// Returns a regular expression for the spellings of the unit.
    pub(super) fn pattern(self) -> String {
        let cases = |letter: char| format!("[{}{}]", letter.to_ascii_uppercase(), letter.to_ascii_lowercase());
        if self.any_case { self.name.chars().map(cases).collect() } else { self.name.to_owned() }
    }
}

pub(super) const COUNT_UNITS: [Unit; 4] = [Unit::new("", 1), Unit::new("k", 1_000), Unit::MILLION, Unit::new("G", 1_000_000_000)];

pub(super) const BYTE_UNITS: [Unit; 8] = [
    Unit::new("", 1),
    Unit::new("B", 1),
    Unit::new("kB", 1_000),
    Unit::new("MB", 1_000_000),
    Unit::new("GB", 1_000_000_000),
    Unit::new("KiB", 1 << 10),
    Unit::new("MiB", 1 << 20),
    Unit::new("GiB", 1 << 30),
];

pub(super) fn expected(what: &str, got: &Value) -> String {
    format!("expected {what}, got {got}")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct Span(pub(super) Duration);

impl TryFrom<Value> for Span {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        duration(&value).map(Self).ok_or_else(|| expected("a duration of at most ten years, such as \"24h\"", &value))
    }
}

/// The length of a window as written: `"24h"` or `{ keys = 1000000 }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(super) enum Length {
    Time(Duration),
    Keys(u64),
}

impl TryFrom<Value> for Length {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let keys = |table: &serde_json::Map<String, Value>| match table.get("keys") {
            Some(keys) if table.len() == 1 => count(keys),
            _ => None,
        };
        match &value {
            Value::Object(table) => keys(table).map(Self::Keys),
            other => duration(other).map(Self::Time),
        }
        .ok_or_else(|| expected("a duration such as \"24h\" or { keys = 1000000 }", &value))
    }
}

/// A number, such as `5000`, `"1_000_000"`, or `"10M"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct Count(pub(super) u64);

impl TryFrom<Value> for Count {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        count(&value).map(Self).ok_or_else(|| {
            let million = value.as_str().is_some_and(|text| text.ends_with('m'));
            let advice = if million { "; for millions, write M instead of m" } else { "" };
            expected("a whole number such as 5000, \"200k\", or \"10M\"", &value) + advice
        })
    }
}

/// A number of bytes, such as `"32MiB"` or `"64kB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct Bytes(pub(super) u64);

impl TryFrom<Value> for Bytes {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        quantity(&value, &BYTE_UNITS).map(Self).ok_or_else(|| expected("a size such as \"32MiB\" or \"64kB\"", &value))
    }
}

/// A rate that is larger than 0 and smaller than 1, such as `1e-4`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct Rate(pub(super) f64);

impl TryFrom<Value> for Rate {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let rate = match &value {
            Value::String(text) => text.parse().ok(),
            other => other.as_f64(),
        };
        let rate = rate.filter(|&rate| rate > 0.0 && rate < 1.0);
        rate.map(Self).ok_or_else(|| expected("a rate between 0 and 1, such as 1e-4", &value))
    }
}

/// `true` or `false`. Can also be text, because values from the environment are text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct Switch(pub(super) bool);

impl TryFrom<Value> for Switch {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let switch = match &value {
            Value::String(text) => text.parse().ok(),
            other => other.as_bool(),
        };
        switch.map(Self).ok_or_else(|| expected("true or false", &value))
    }
}

fn duration(value: &Value) -> Option<Duration> {
    let duration = humantime::parse_duration(value.as_str()?).ok()?;
    (duration <= DURATION_MAX).then_some(duration)
}

fn count(value: &Value) -> Option<u64> {
    quantity(value, &COUNT_UNITS)
}

/// Parses a whole number or text with a number and a unit. Underscores in the number are ignored.
fn quantity(value: &Value, units: &[Unit]) -> Option<u64> {
    let Some(text) = value.as_str() else { return value.as_u64() };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit = units.iter().find(|known| known.is(unit.trim_start()))?;
    digits.replace('_', "").parse::<u64>().ok()?.checked_mul(unit.scale)
}

/// Formats a whole number with the last of the `units` that divides it, or without a unit.
fn written(number: u64, units: &[Unit]) -> Value {
    match units.iter().rev().find(|unit| number > 0 && number.is_multiple_of(unit.scale)) {
        Some(unit) if unit.scale > 1 => format!("{}{}", number / unit.scale, unit.name).into(),
        _ => number.into(),
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        humantime::format_duration(self.0).to_string().serialize(serializer)
    }
}

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        written(self.0, &COUNT_UNITS).serialize(serializer)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        written(self.0, &BYTE_UNITS).serialize(serializer)
    }
}

/// Formats the length of a window, such as `1day` or `1000000 keys`.
#[must_use]
pub fn window_text(window: Window) -> String {
    match window {
        Window::Time { slice_ms, slices } => {
            let length = u64::try_from(slice_ms).unwrap_or(0).saturating_mul(u64::from(slices));
            humantime::format_duration(Duration::from_millis(length)).to_string()
        }
        Window::Keys { slice_keys, slices } => format!("{} keys", slice_keys.saturating_mul(u64::from(slices))),
    }
}
