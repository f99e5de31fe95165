//! Data on a terminal: what would command it, or have text read in another order than it stands in, is
//! shown instead. Files and pipes get data as it is.

use std::borrow::Cow;
use std::io::{self, IsTerminal};

/// `text` with pictures in place of control characters (`␛` for ESC), but for tabs and line ends.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
    match text.contains(commands) {
        true => text.chars().map(picture).collect::<String>().into(),
        false => text.into(),
    }
}

/// Prints a line to standard error, shown as above where that is a terminal.
pub(super) fn complain(text: &str) {
    match io::stderr().is_terminal() {
        true => eprintln!("{}", shown(text)),
        false => eprintln!("{text}"),
    }
}

fn commands(char: char) -> bool {
    char.is_control() && !matches!(char, '\n' | '\t') || turns(char)
}

/// Whether the text behind it runs in another direction, over what stands around it too (Boucher and
/// Anderson, Trojan Source, 2021).
fn turns(char: char) -> bool {
    matches!(char, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn picture(char: char) -> char {
    match char {
        '\n' | '\t' => char,
        '\0'..='\x1f' => {
            char::from_u32(0x2400 + char as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
        '\x7f' => '␡',
        // Those of eight bits, which some terminals obey.
        '\u{80}'..='\u{9f}' => char::REPLACEMENT_CHARACTER,
        turning if turns(turning) => char::REPLACEMENT_CHARACTER,
        other => other,
    }
}

/// [`shown`] for a stream of UTF-8 that may be cut within a character.
#[derive(Default)]
pub(super) struct Shown {
    /// The bytes of a character of which the rest is to come.
    rest: Vec<u8>,
}

impl Shown {
    /// What to print for the next bytes.
    pub fn next(&mut self, bytes: &[u8]) -> String {
        self.rest.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.rest) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.rest.len(),
        };
        let whole: Vec<u8> = self.rest.drain(..whole).collect();
        shown(&String::from_utf8_lossy(&whole)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_pictures() {
        for (text, expected) in [
            ("plain ä日本\t\n", "plain ä日本\t\n"),
            ("\x1b]0;title\x07", "␛]0;title␇"),
            ("a\r\x08\x7f\0", "a␍␈␡␀"),
            ("\u{9b}2J", "\u{fffd}2J"),
            ("a\u{202e}b\u{2069}", "a\u{fffd}b\u{fffd}"),
        ] {
            assert_eq!(shown(text), expected);
            let mut stream = Shown::default();
            let bytes = text.as_bytes().chunks(1).map(|byte| stream.next(byte));
            assert_eq!(bytes.collect::<String>(), expected);
        }
    }
}
