//! The Redis serialization protocol (RESP).
//!
//! Parses commands, limits their size, and encodes answers in RESP2 and RESP3. This module does not know which commands exist.

use std::fmt;
use std::ops::Range;

pub(super) const PARTS_MAX: usize = 1 << 17;
pub(super) const PART_BYTES_MAX: usize = 1 << 20;
pub(super) const COMMAND_BYTES_MAX: usize = 4 << 20;
const UNAUTHENTICATED: Limits = Limits { parts: 10, part_bytes: 16 << 10 };
const AUTHENTICATED: Limits = Limits { parts: PARTS_MAX, part_bytes: PART_BYTES_MAX };
const INLINE_BYTES_MAX: usize = 64 << 10;
/// The maximum length of a line with a number, in bytes including the line break.
const LENGTH_BYTES_MAX: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Limits {
    parts: usize,
    part_bytes: usize,
}

/// An error in the bytes of a client. The connection cannot be used any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProtocolError(&'static str);

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protocol error: {}", self.0)
    }
}

#[derive(Debug, Default)]
pub(super) struct Parser {
    /// The positions of the arguments, relative to the start of the command.
    parts: Vec<Range<usize>>,
    /// The number of missing arguments, if known.
    left: Option<usize>,
    /// The position of the first byte that was not parsed yet.
    at: usize,
}

impl Parser {
    /// Parses as much of a command as has arrived. Once the command is complete, returns its size, and [`Parser::parts`] returns its
    /// arguments. Callers ignore a command without arguments.
    pub(super) fn parse(&mut self, command: &[u8], is_authenticated: bool) -> Result<Option<usize>, ProtocolError> {
        let limits = if is_authenticated { AUTHENTICATED } else { UNAUTHENTICATED };
        let mut left = match self.left {
            Some(left) => left,
            None => match self.begin(command, limits)? {
                Some(left) => left,
                None => return Ok(None),
            },
        };
        while left > 0 {
            let (length, start) = if let Some((length, start)) = short(command, self.at, b'$') {
                (Some(length), start)
            } else {
                let Some((line, start)) = line(command, self.at)? else { break };
                let Some((b'$', digits)) = line.split_first() else {
                    return Err(ProtocolError("expected '$' before an argument"));
                };
                (number(digits), start)
            };
            let length = length.filter(|&length| length <= limits.part_bytes);
            let end = start + length.ok_or(ProtocolError("invalid bulk length"))?;
            if end > COMMAND_BYTES_MAX {
                return Err(ProtocolError("command too large"));
            }
            if command.len() < end + 2 {
                break;
            }
            if &command[end..end + 2] != b"\r\n" {
                return Err(ProtocolError("expected a line break after an argument"));
            }
            self.parts.push(start..end);
            self.at = end + 2;
            left -= 1;
        }
        self.left = Some(left);
        Ok((left == 0).then_some(self.at))
    }

    /// Parses the number of arguments, or a whole inline command.
    fn begin(&mut self, command: &[u8], limits: Limits) -> Result<Option<usize>, ProtocolError> {
        match command.first() {
            None => Ok(None),
            Some(b'*') => {
                let (count, start) = if let Some((count, start)) = short(command, 0, b'*') {
                    (Some(count), start)
                } else {
                    let Some((line, start)) = line(command, 0)? else { return Ok(None) };
                    (if line == b"*-1" { Some(0) } else { number(&line[1..]) }, start)
                };
                let count = count.filter(|&count| count <= limits.parts).ok_or(ProtocolError("invalid multibulk length"))?;
                self.at = start;
                Ok(Some(count))
            }
            Some(_) => {
                let Some(end) = command.iter().take(INLINE_BYTES_MAX).position(|&byte| byte == b'\n') else {
                    return if command.len() >= INLINE_BYTES_MAX { Err(ProtocolError("too big inline request")) } else { Ok(None) };
                };
                if command[..end].iter().any(|byte| matches!(byte, b'"' | b'\'')) {
                    return Err(ProtocolError("quotes in an inline command are not supported; send an array of bulk strings"));
                }
                let mut at = 0;
                for word in command[..end].split(u8::is_ascii_whitespace) {
                    if !word.is_empty() {
                        self.parts.push(at..at + word.len());
                    }
                    at += word.len() + 1;
                }
                self.at = end + 1;
                Ok(Some(0))
            }
        }
    }

    pub(super) fn parts(&self) -> &[Range<usize>] {
        &self.parts
    }

    pub(super) fn reset(&mut self) {
        self.parts.clear();
        // A large command may have grown the buffer.
        self.parts.shrink_to(64);
        (self.left, self.at) = (None, 0);
    }
}

/// Parses a complete line at `at` that consists of `kind` and one or two digits, which is the most common case. Returns the number and the
/// position of the next line. If this function returns `None`, the caller uses [`line()`].
#[inline]
fn short(command: &[u8], at: usize, kind: u8) -> Option<(usize, usize)> {
    match *command.get(at..)? {
        [first, a, b'\r', b'\n', ..] if first == kind && a.is_ascii_digit() => Some((usize::from(a - b'0'), at + 4)),
        [first, a, b, b'\r', b'\n', ..] if first == kind && a.is_ascii_digit() && b.is_ascii_digit() => {
            Some((usize::from(a - b'0') * 10 + usize::from(b - b'0'), at + 5))
        }
        _ => None,
    }
}

/// Returns the line at `at` and the position of the next line, or `None` if the line is incomplete.
fn line(command: &[u8], at: usize) -> Result<Option<(&[u8], usize)>, ProtocolError> {
    let rest = command.get(at..).unwrap_or_default();
    match rest.iter().take(LENGTH_BYTES_MAX).position(|&byte| byte == b'\n') {
        Some(end) if end > 0 && rest[end - 1] == b'\r' => Ok(Some((&rest[..end - 1], at + end + 1))),
        Some(_) => Err(ProtocolError("expected a line to end with \\r\\n")),
        None if rest.len() >= LENGTH_BYTES_MAX => Err(ProtocolError("line too long")),
        None => Ok(None),
    }
}

/// Parses a number of at most ten digits.
fn number(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 10 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
}

#[derive(Debug, Default)]
pub(super) struct Answers {
    pub(super) bytes: Vec<u8>,
    pub(super) is_resp3: bool,
}

impl Answers {
    /// Adds a short text without a line break.
    pub(super) fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// Adds an error: a code in capitals and a message. Line breaks in the message become spaces.
    pub(super) fn error(&mut self, code: &str, message: &str) {
        self.line(b'-', &format!("{code} {}", message.replace(['\r', '\n'], " ")));
    }

    pub(super) fn integer(&mut self, number: i64) {
        self.line(b':', &number.to_string());
    }

    /// Adds a count, limited to the largest integer of the protocol.
    pub(super) fn count(&mut self, number: u64) {
        self.integer(i64::try_from(number).unwrap_or(i64::MAX));
    }

    /// Adds a boolean, which is 0 or 1 in RESP2.
    #[inline]
    pub(super) fn bool(&mut self, holds: bool) {
        let bytes: &[u8; 4] = match (self.is_resp3, holds) {
            (false, false) => b":0\r\n",
            (false, true) => b":1\r\n",
            (true, false) => b"#f\r\n",
            (true, true) => b"#t\r\n",
        };
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.line(b'$', &bytes.len().to_string());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub(super) fn null(&mut self) {
        self.bytes.extend_from_slice(if self.is_resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Adds the header of an array with `length` elements, which follow.
    pub(super) fn array(&mut self, length: usize) {
        self.line(b'*', &length.to_string());
    }

    /// Adds the header of a map with `length` entries. Keys and values follow alternately.
    pub(super) fn map(&mut self, length: usize) {
        if self.is_resp3 {
            self.line(b'%', &length.to_string());
        } else {
            self.array(2 * length);
        }
    }

    fn line(&mut self, kind: u8, text: &str) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses an input that arrives in pieces. Returns its commands and the error that ends it.
    fn commands_in(input: &[u8], piece: usize) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
        let (mut commands, mut parser, mut begin, mut there) = (Vec::new(), Parser::default(), 0, 0);
        loop {
            match parser.parse(&input[begin..there], true) {
                Err(error) => return (commands, Some(error)),
                Ok(Some(taken)) => {
                    commands.push(parser.parts().iter().map(|part| input[begin..there][part.clone()].to_vec()).collect());
                    begin += taken;
                    parser.reset();
                }
                Ok(None) if there == input.len() => return (commands, None),
                Ok(None) => there = (there + piece).min(input.len()),
            }
        }
    }

    fn commands(input: &[u8]) -> Result<Vec<Vec<String>>, ProtocolError> {
        let (mut parser, mut begin, mut commands) = (Parser::default(), 0, Vec::new());
        while let Some(taken) = parser.parse(&input[begin..], true)? {
            let text = |part: &Range<usize>| String::from_utf8_lossy(&input[begin..][part.clone()]).into_owned();
            commands.push(parser.parts().iter().map(text).collect());
            begin += taken;
            parser.reset();
        }
        Ok(commands)
    }

    #[test]
    fn short_numbers_parse_like_any_line() {
        for text in ["$0\r\n", "$7\r\n", "$07\r\n", "$16\r\n", "$131072\r\n"] {
            let (line, start) = line(text.as_bytes(), 0).unwrap().unwrap();
            let slow = (number(&line[1..]).unwrap(), start);
            assert_eq!(short(text.as_bytes(), 0, b'$'), Some(slow).filter(|_| text.len() < 6), "{text}");
        }
        for text in ["", "$", "$\r\n", "$1", "$1\r", "$12\r", "$x\r\n", "$-1\r\n", "$1\n\r\n", "*1\r\n"] {
            assert_eq!(short(text.as_bytes(), 0, b'$'), None, "{text}");
        }
    }

    #[test]
    fn commands_are_arrays_or_inline() {
        let input = b"*2\r\n$4\r\nECHO\r\n$4\r\na\r\nb\r\n*1\r\n$0\r\n\r\nPING  x\r\n\r\n*0\r\n*-1\r\nPING\n*1\r\n$4\r\nPI";
        let wanted: [&[&str]; 7] = [&["ECHO", "a\r\nb"], &[""], &["PING", "x"], &[], &[], &[], &["PING"]];
        assert_eq!(commands(input).unwrap(), wanted);
    }

    #[test]
    fn a_command_can_arrive_in_any_pieces() {
        let input = b"*3\r\n$9\r\nBF.EXISTS\r\n$4\r\nnews\r\n$2\r\nn1\r\nPING\r\n*1\r\n$4\r\nQUIT\r\n";
        for piece in 1..=20 {
            assert_eq!(commands_in(input, piece), commands_in(input, input.len()));
        }
    }

    #[test]
    fn invalid_and_oversized_commands_are_rejected() {
        for (input, message) in [
            (&b"*x\r\n"[..], "invalid multibulk length"),
            (b"*131073\r\n", "invalid multibulk length"),
            (b"*-2\r\n", "invalid multibulk length"),
            (b"*1\r\n:1\r\n", "expected '$' before an argument"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$1048577\r\n", "invalid bulk length"),
            (b"*1\r\n$18446744073709551616\r\n", "invalid bulk length"),
            (b"*1\r\n$1\r\nabc", "expected a line break after an argument"),
            (b"*1\n", "expected a line to end with \\r\\n"),
            (b"ECHO \"a b\"\n", "quotes in an inline command are not supported; send an array of bulk strings"),
            (b"*11111111111111111111111111111111111111", "line too long"),
        ] {
            assert_eq!(commands(input), Err(ProtocolError(message)), "{}", String::from_utf8_lossy(input));
        }
        assert_eq!(commands(&vec![b'x'; INLINE_BYTES_MAX]), Err(ProtocolError("too big inline request")));
        let mut large = b"*20\r\n".to_vec();
        for _ in 0..5 {
            large.extend_from_slice(b"$1048576\r\n");
            large.resize(large.len() + PART_BYTES_MAX, b'x');
            large.extend_from_slice(b"\r\n");
        }
        assert_eq!(commands(&large), Err(ProtocolError("command too large")));
    }

    #[test]
    fn unauthenticated_clients_have_lower_limits() {
        assert_eq!(Parser::default().parse(b"*11\r\n", false), Err(ProtocolError("invalid multibulk length")));
        assert_eq!(Parser::default().parse(b"*1\r\n$16385\r\n", false), Err(ProtocolError("invalid bulk length")));
        assert_eq!(Parser::default().parse(b"*11\r\n", true), Ok(None));
    }

    #[test]
    fn answers_follow_the_protocol() {
        let answer = |is_resp3, give: fn(&mut Answers)| {
            let mut answers = Answers { is_resp3, ..Answers::default() };
            give(&mut answers);
            String::from_utf8(answers.bytes).unwrap()
        };
        assert_eq!([false, true].map(|resp3| answer(resp3, |answers| answers.bool(true))), [":1\r\n", "#t\r\n"]);
        assert_eq!([false, true].map(|resp3| answer(resp3, Answers::null)), ["$-1\r\n", "_\r\n"]);
        assert_eq!([false, true].map(|resp3| answer(resp3, |answers| answers.map(2))), ["*4\r\n", "%2\r\n"]);
        assert_eq!(answer(false, |answers| answers.error("ERR", "two\r\nlines")), "-ERR two  lines\r\n");
        assert_eq!(answer(false, |answers| answers.bulk(b"a\r\n")), "$3\r\na\r\n\r\n");
        assert_eq!(answer(false, |answers| answers.count(u64::MAX)), ":9223372036854775807\r\n");
    }
}
