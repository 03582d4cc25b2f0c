//! Command-line flags with units. They have the same syntax, limits, and error messages as options in a file.

use super::filter::RATE_MIN;
use super::units::KEYS;
use super::units::{Bytes, Count, Rate, Span, expected};
use serde_json::Value;
use std::time::Duration;

/// Parses a number of distinct keys, such as `10M`, from 1 to 100 billion.
///
/// # Errors
/// Returns an error message with the expected and the actual value.
pub fn keys(text: &str) -> Result<u64, String> {
    bounded(Count::try_from(Value::from(text))?.0, text)
}

/// Parses a whole number, such as `1000` or `1M`.
///
/// # Errors
/// Returns an error message with the expected and the actual value.
pub fn count(text: &str) -> Result<u64, String> {
    Count::try_from(Value::from(text)).map(|count| count.0)
}

/// Parses a number of bytes, such as `2GiB`.
///
/// # Errors
/// Returns an error message with the expected and the actual value.
pub fn bytes(text: &str) -> Result<u64, String> {
    Bytes::try_from(Value::from(text)).map(|bytes| bytes.0)
}

/// Parses a false-positive rate, such as `1e-4`, from 1e-9 to less than 1.
///
/// # Errors
/// Returns an error message with the expected and the actual value.
pub fn false_positive_rate(text: &str) -> Result<f64, String> {
    let rate = Rate::try_from(Value::from(text))?.0;
    if rate < RATE_MIN { Err(format!("expected a rate of at least {RATE_MIN:e}, got {rate:e}")) } else { Ok(rate) }
}

/// Parses a duration, such as `24h`.
///
/// # Errors
/// Returns an error message with the expected and the actual value.
pub fn duration(text: &str) -> Result<Duration, String> {
    Span::try_from(Value::from(text)).map(|span| span.0)
}

/// Parses a number per unit of time, such as `5000/s` or `2M/15min`, into the number and the time.
///
/// # Errors
/// Returns an error message with the expected and the actual value.
pub fn per_time(text: &str) -> Result<(u64, Duration), String> {
    let parsed = text.split_once('/').and_then(|(count, time)| {
        let count = Count::try_from(Value::from(count)).ok()?.0;
        // `/s` means `/1s`.
        let time = if time.starts_with(|c: char| c.is_ascii_digit()) { duration(time) } else { duration(&format!("1{time}")) };
        Some((count, time.ok().filter(|time| !time.is_zero())?))
    });
    parsed.ok_or_else(|| expected("a rate such as \"5000/s\" or \"2M/h\"", &Value::from(text)))
}

/// Returns the number of distinct keys in a window if new keys arrive at `rate`.
///
/// # Errors
/// Returns an error message if the number is 0 or more than 100 billion.
pub fn keys_in(rate: (u64, Duration), window: Duration) -> Result<u64, String> {
    let keys = u128::from(rate.0) * window.as_nanos() / rate.1.as_nanos().max(1);
    let text = format!("{keys} keys in a window");
    bounded(u64::try_from(keys).unwrap_or(u64::MAX), &text)
}

fn bounded(keys: u64, text: &str) -> Result<u64, String> {
    if KEYS.contains(&keys) { Ok(keys) } else { Err(format!("expected {} to {} keys, got {text}", KEYS.start(), KEYS.end())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_the_units_of_options() {
        assert_eq!(keys("10M"), Ok(10_000_000));
        assert_eq!(count("1M"), Ok(1_000_000));
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert_eq!(false_positive_rate("1e-4"), Ok(1e-4));
        assert_eq!(duration("24h"), Ok(Duration::from_secs(86_400)));
        assert_eq!(per_time("5000/s"), Ok((5000, Duration::from_secs(1))));
        assert_eq!(per_time("2M/15min"), Ok((2_000_000, Duration::from_secs(900))));
        assert_eq!(keys_in((5000, Duration::from_secs(1)), Duration::from_secs(86_400)), Ok(432_000_000));
    }

    #[test]
    fn errors_show_the_expected_and_the_actual_value() {
        for (got, message) in [
            (keys("ten").unwrap_err(), r#"expected a whole number such as 5000, "200k", or "10M", got "ten""#),
            (keys("0").unwrap_err(), "expected 1 to 100000000000 keys, got 0"),
            (bytes("2XB").unwrap_err(), r#"expected a size such as "32MiB" or "64kB", got "2XB""#),
            (false_positive_rate("2").unwrap_err(), r#"expected a rate between 0 and 1, such as 1e-4, got "2""#),
            (false_positive_rate("1e-12").unwrap_err(), "expected a rate of at least 1e-9, got 1e-12"),
            (per_time("5000").unwrap_err(), r#"expected a rate such as "5000/s" or "2M/h", got "5000""#),
            (per_time("5/0s").unwrap_err(), r#"expected a rate such as "5000/s" or "2M/h", got "5/0s""#),
            (
                keys_in((1, Duration::from_secs(3600)), Duration::from_secs(1)).unwrap_err(),
                "expected 1 to 100000000000 keys, got 0 keys in a window",
            ),
        ] {
            assert_eq!(got, message);
        }
    }
}
