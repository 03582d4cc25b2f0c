//! Timestamps in the format of RFC 3339, and common variants: a space instead of `T`, a comma before the fraction, and zones such as
//! `+0100` and `+01`.

use crate::record::Timestamp;

/// Converts a timestamp to UTC and removes trailing zeros from its fraction. Returns `None` if a text is not a timestamp with a zone, or if
/// its year in UTC is not between 0 and 9999.
pub(super) fn utc(text: &str) -> Option<String> {
    let (seconds, fraction) = instant(text)?;
    let (year, month, day) = date(seconds.div_euclid(86_400));
    if !(0..=9_999).contains(&year) {
        return None;
    }
    let second = seconds.rem_euclid(86_400);
    let point = if fraction.is_empty() { "" } else { "." };
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{point}{fraction}Z"))
}

/// Converts a timestamp to milliseconds since 1970, rounded down. Returns `None` if a text is not a timestamp with a zone.
pub(crate) fn instant_ms(text: &str) -> Option<Timestamp> {
    let (seconds, fraction) = instant(text)?;
    let millis = fraction.bytes().chain(*b"000").take(3).fold(0, |millis, digit| millis * 10 + i64::from(digit - b'0'));
    Some(seconds * 1_000 + millis)
}

/// Parses a timestamp. Returns its seconds since 1970, and the digits of the fraction without trailing zeros. Returns `None` if a text is
/// not a timestamp with a zone.
fn instant(text: &str) -> Option<(i64, &str)> {
    let bytes = text.as_bytes();
    let number = |at: usize, length: usize| -> Option<i64> {
        let digits = bytes.get(at..at + length)?;
        digits.iter().all(u8::is_ascii_digit).then(|| digits.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0')))
    };
    let is = |at: usize, expected: &[u8]| bytes.get(at).is_some_and(|byte| expected.contains(byte));
    if !(is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":")) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
    let (hour, minute, second) = (number(11, 2)?, number(14, 2)?, number(17, 2)?);
    let is_date = (1..=12).contains(&month) && (1..=days_in(year, month)).contains(&day);
    // Second 60 is rejected, because Unix time has no leap seconds.
    if !is_date || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut at = 19;
    let mut fraction = "";
    if is(at, b".,") {
        let digits = bytes[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        fraction = text.get(at + 1..at + 1 + digits).filter(|digits| !digits.is_empty())?.trim_end_matches('0');
        at += 1 + digits;
    }
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset(&text[at..])?;
    Some((seconds, fraction))
}

fn offset(zone: &str) -> Option<i64> {
    let (sign, digits) = match zone.as_bytes() {
        b"Z" | b"z" => return Some(0),
        [b'+', ..] => (1, &zone[1..]),
        [b'-', ..] => (-1, &zone[1..]),
        _ => return None,
    };
    let (hours, minutes) = match digits.len() {
        5 => digits.split_once(':').filter(|(hours, _)| hours.len() == 2)?,
        4 if digits.is_ascii() => digits.split_at(2),
        2 => (digits, "00"),
        _ => return None,
    };
    let number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse::<i64>().ok())?;
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3_600 + minutes * 60))
}

const fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the number of days from 1970-01-01 to a date. In this algorithm, a year begins in March, which makes the leap day the last day
/// of a year (Hinnant: "chrono-Compatible Low-Level Date Algorithms", 2021).
const fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year - era * 400;
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Returns the year, month, and day of the date that is `days` days after 1970-01-01.
const fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400;
    (if month <= 2 { year + 1 } else { year }, month, day_of_year - (153 * month_from_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_has_one_form() {
        for (text, expected) in [
            ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
            ("2026-01-01t00:00:00.000z", "2026-01-01T00:00:00Z"),
            ("2026-01-01 01:00:00+01:00", "2026-01-01T00:00:00Z"),
            ("2025-12-31T18:30:00,120-0530", "2026-01-01T00:00:00.12Z"),
            ("2025-12-31T19:00:00-05", "2026-01-01T00:00:00Z"),
            ("2024-03-01T00:30:00+01:00", "2024-02-29T23:30:00Z"),
            ("2100-03-01T00:30:00+01:00", "2100-02-28T23:30:00Z"),
            ("1969-12-31T23:59:59.999999999Z", "1969-12-31T23:59:59.999999999Z"),
            ("0000-03-01T00:00:00Z", "0000-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(text).as_deref(), Some(expected), "{text}");
            assert_eq!(utc(expected).as_deref(), Some(expected));
        }
    }

    #[test]
    fn text_that_is_not_an_instant_has_no_normal_form() {
        for text in [
            "",
            "2026-01-01",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00Z",
            "2026-01-01T00:00:00+1:000",
            "2026-01-01T00:00:00+001:0",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-06-30T23:59:60Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00+1:00",
            "2026-01-01T00:00:00+24:00",
            "2026-01-01T00:00:00Z ",
            "2026-01-01T00:00:00+é1",
            "0000-01-01T00:00:00+01:00",
            "1767225600000",
        ] {
            assert_eq!(utc(text), None, "{text}");
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!((days(1970, 1, 1), days(2000, 2, 29), days(1600, 1, 1)), (0, 11_016, -135_140));
        for day in (-800_000..3_000_000).step_by(97) {
            let (year, month, day_of_month) = date(day);
            assert!((1..=days_in(year, month)).contains(&day_of_month));
            assert_eq!(days(year, month, day_of_month), day);
        }
    }
}
