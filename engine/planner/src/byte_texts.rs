//! Bytes that are written as texts: `\xdeadbeef`, as PostgreSQL has them, and `\xDE\xAD`, as DuckDB does.

/// What begins them.
const MARK: &str = r"\x";

/// Whether a text means to be one.
pub fn is_marked(text: &str) -> bool {
    text.starts_with(MARK)
}

/// The bytes for which such a text stands; `None` where it stands for none.
pub fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix(MARK)?.as_bytes();
    if digits.len().is_multiple_of(2) && digits.iter().all(u8::is_ascii_hexdigit) {
        return digits.chunks_exact(2).map(byte).collect();
    }
    let mut rest = text.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((first, behind)) = rest.split_first() {
        let (next, behind) = match rest.strip_prefix(MARK.as_bytes()) {
            Some(digits) => (byte(digits.get(..2)?)?, &digits[2..]),
            None if first.is_ascii() => (*first, behind),
            None => return None,
        };
        bytes.push(next);
        rest = behind;
    }
    Some(bytes)
}

/// The byte of two hexadecimal digits.
fn byte(digits: &[u8]) -> Option<u8> {
    let digit = |of: &u8| char::from(*of).to_digit(16);
    match digits {
        [high, low] => u8::try_from(digit(high)? << 4 | digit(low)?).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        for (text, bytes) in [
            (r"\xDEadbeef", Some(&b"\xde\xad\xbe\xef"[..])),
            (r"\x", Some(b"")),
            (r"\xAA\xbbc", Some(b"\xaa\xbbc")),
            (r"\xAAg", Some(b"\xaag")),
            (r"\xA", None),
            (r"\xZZ", None),
            (r"\xAAé", None),
            ("abc", None),
        ] {
            assert_eq!(bytes_of(text).as_deref(), bytes, "{text}");
        }
    }
}
