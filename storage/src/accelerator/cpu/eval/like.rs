//! LIKE patterns, compiled once for a Program.

use memchr::memmem::Finder;

use super::text::{Needles, Search};

/// A compiled pattern: `%` any run of characters, `_` one character, backslash takes the next
/// character (or, at the end, itself) as it is.
///
/// The pattern is cut at each `%` into pieces. The first piece is tied to the start of the text
/// unless the pattern starts with `%`, the last to the end unless it ends so; the pieces between
/// are found one after the other, each at its leftmost place after the one before, which never
/// rules out a match that another place would allow.
#[derive(Debug)]
pub(in crate::accelerator::cpu) struct LikePattern {
    pattern: String,
    case_insensitive: bool,
    pieces: Vec<Piece>,
    /// The first piece must stand at the start.
    from_start: bool,
    /// The last piece must stand at the end.
    to_end: bool,
    /// Ignoring case: a text that every match holds in some case.
    any_case: Option<Needles>,
}

/// What stands between two `%`.
#[derive(Debug)]
enum Piece {
    /// Bytes that must stand there.
    Literal(Box<Finder<'static>>),
    /// Characters, `None` for any one.
    Characters(Vec<Option<char>>),
}

impl PartialEq for LikePattern {
    fn eq(&self, other: &Self) -> bool {
        self.pattern == other.pattern && self.case_insensitive == other.case_insensitive
    }
}

impl LikePattern {
    pub fn new(pattern: &str, case_insensitive: bool) -> Self {
        let mut pieces: Vec<Vec<Option<char>>> = vec![Vec::new()];
        let mut percent_last = false;
        let mut characters = pattern.chars();
        while let Some(c) = characters.next() {
            percent_last = c == '%';
            let item = match c {
                '%' => {
                    pieces.push(Vec::new());
                    continue;
                }
                '_' => None,
                '\\' => Some(characters.next().unwrap_or('\\')),
                c => Some(c),
            };
            pieces.last_mut().expect("never empty").push(item);
        }
        let (from_start, to_end) = (!pattern.starts_with('%'), !percent_last);
        let wildcard = pieces.len() > 1;
        let any_case = case_insensitive
            .then(|| longest_ascii(&pieces))
            .and_then(|text| Needles::in_any_case(vec![text]));
        let pieces = pieces
            .into_iter()
            .filter(|p| !wildcard || !p.is_empty())
            .map(|p| match p.iter().copied().collect::<Option<String>>() {
                Some(text) if !case_insensitive => {
                    Piece::Literal(Box::new(Finder::new(&text).into_owned()))
                }
                _ => {
                    Piece::Characters(p.iter().map(|c| c.map(fold_if(case_insensitive))).collect())
                }
            })
            .collect();
        Self {
            pattern: pattern.to_owned(),
            case_insensitive,
            pieces,
            from_start,
            to_end,
            any_case,
        }
    }

    /// How to look for matches in many texts.
    pub fn search(&self) -> Search<'_> {
        match (self.pieces.as_slice(), self.from_start, self.to_end) {
            ([Piece::Literal(finder)], true, false) => Search::Prefix(finder.needle()),
            ([Piece::Literal(finder)], false, true) => Search::Suffix(finder.needle()),
            (pieces, ..) => {
                let literals = pieces.iter().filter_map(|piece| match piece {
                    Piece::Literal(finder) => Some(&**finder),
                    Piece::Characters(_) => None,
                });
                // A longer one is rarer.
                match literals.max_by_key(|finder| finder.needle().len()) {
                    Some(finder) if !finder.needle().is_empty() => Search::Literal {
                        finder,
                        is_all: pieces.len() == 1 && !self.from_start && !self.to_end,
                    },
                    _ => match &self.any_case {
                        Some(needles) => Search::Any {
                            needles,
                            is_all: false,
                        },
                        None => Search::Each,
                    },
                }
            }
        }
    }

    /// Bytes with which every match starts, and whether starting with them is all it takes.
    pub fn prefix(&self) -> Option<(&[u8], bool)> {
        match self.pieces.first() {
            Some(Piece::Literal(finder)) if self.from_start => {
                Some((finder.needle(), self.pieces.len() == 1 && !self.to_end))
            }
            _ => None,
        }
    }

    /// Whether `text` matches.
    pub fn matches(&self, text: &[u8]) -> bool {
        let mut pieces = self.pieces.as_slice();
        let mut at = 0;
        if self.from_start
            && let Some((first, rest)) = pieces.split_first()
        {
            match self.match_at(first, text, 0) {
                Some(end) => at = end,
                None => return false,
            }
            if rest.is_empty() && self.to_end {
                return at == text.len();
            }
            pieces = rest;
        }
        let last = match pieces.split_last() {
            Some((last, rest)) if self.to_end => {
                pieces = rest;
                Some(last)
            }
            _ => None,
        };
        for piece in pieces {
            match self.find(piece, text, at) {
                Some(end) => at = end,
                None => return false,
            }
        }
        last.is_none_or(|piece| self.matches_end(piece, text, at))
    }

    /// End of the piece if it stands at `at`.
    fn match_at(&self, piece: &Piece, text: &[u8], at: usize) -> Option<usize> {
        match piece {
            Piece::Literal(finder) => text[at..]
                .starts_with(finder.needle())
                .then(|| at + finder.needle().len()),
            Piece::Characters(items) => {
                let mut at = at;
                for item in items {
                    let length = character_length(text, at)?;
                    if let Some(expected) = item {
                        let found = std::str::from_utf8(&text[at..at + length])
                            .ok()?
                            .chars()
                            .next()?;
                        if fold_if(self.case_insensitive)(found) != *expected {
                            return None;
                        }
                    }
                    at += length;
                }
                Some(at)
            }
        }
    }

    /// End of the leftmost place of the piece from `at` on.
    fn find(&self, piece: &Piece, text: &[u8], at: usize) -> Option<usize> {
        if let Piece::Literal(finder) = piece {
            return finder
                .find(&text[at..])
                .map(|start| at + start + finder.needle().len());
        }
        let mut start = at;
        loop {
            if let Some(end) = self.match_at(piece, text, start) {
                return Some(end);
            }
            start += character_length(text, start)?;
        }
    }

    /// Whether the text ends with the piece, which starts no earlier than `at`.
    fn matches_end(&self, piece: &Piece, text: &[u8], at: usize) -> bool {
        match piece {
            Piece::Literal(finder) => text[at..].ends_with(finder.needle()),
            Piece::Characters(items) => {
                let mut start = text.len();
                for _ in items {
                    loop {
                        if start == at {
                            return false;
                        }
                        start -= 1;
                        if !is_continuation(text[start]) {
                            break;
                        }
                    }
                }
                self.match_at(piece, text, start) == Some(text.len())
            }
        }
    }
}

/// The longest run of ASCII characters of a pattern's pieces. (What is folded to a character
/// beyond ASCII, `regex` may fold to another.)
fn longest_ascii(pieces: &[Vec<Option<char>>]) -> Vec<u8> {
    let runs = pieces
        .iter()
        .flat_map(|piece| piece.split(|c| !c.is_some_and(|c| c.is_ascii())));
    let longest = runs.max_by_key(|run| run.len()).unwrap_or_default();
    longest.iter().flatten().map(|c| *c as u8).collect()
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

/// Bytes of the character at `at`, or `None` at the end.
pub(in crate::accelerator::cpu) fn character_length(text: &[u8], at: usize) -> Option<usize> {
    let rest = text.get(at + 1..)?;
    Some(1 + rest.iter().take_while(|b| is_continuation(**b)).count())
}

fn fold_if(case_insensitive: bool) -> impl Fn(char) -> char {
    move |c| if case_insensitive { fold(c) } else { c }
}

/// Simple case folding: characters that differ in case only become equal.
fn fold(c: char) -> char {
    if c.is_ascii() {
        return c.to_ascii_lowercase();
    }
    match c {
        // Its capital is I, but it is a case of i only in Turkic languages.
        'ı' => return c,
        // One letter encoded twice; their capitals are several characters.
        '\u{1fd3}' => return '\u{390}',
        '\u{1fe3}' => return '\u{3b0}',
        '\u{fb05}' => return '\u{fb06}',
        _ => {}
    }
    let single =
        |mut all: std::iter::Peekable<std::char::ToLowercase>, c| match (all.next(), all.next()) {
            (Some(one), None) => one,
            _ => c,
        };
    let mut upper = c.to_uppercase();
    let upper = match (upper.next(), upper.next()) {
        (Some(one), None) => one,
        _ => c,
    };
    single(upper.to_lowercase().peekable(), upper)
}

/// `substring(text from start for length)` in characters, `start` from 1.
pub(in crate::accelerator::cpu) fn substring(
    text: &[u8],
    start: u32,
    length: u32,
) -> (usize, usize) {
    if text.is_ascii() {
        let first = (start as usize - 1).min(text.len());
        return (first, first.saturating_add(length as usize).min(text.len()));
    }
    let skip = |mut at: usize, characters: u32| {
        for _ in 0..characters {
            match character_length(text, at) {
                Some(length) => at += length,
                None => break,
            }
        }
        at
    };
    let first = skip(0, start - 1);
    (first, skip(first, length))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Scalar, StringArray};
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    /// Short texts over a small alphabet, so that matches and near misses are frequent, against
    /// Arrow's kernels.
    #[test]
    fn patterns_agree_with_arrow() {
        let seed = rand::random::<u64>();
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        for _ in 0..3000 {
            let mut text = |alphabet: &[&str], most: usize| -> String {
                (0..rng.random_range(0..=most))
                    .map(|_| alphabet[rng.random_range(0..alphabet.len())])
                    .collect()
            };
            let pattern = text(&["a", "b", "é", "%", "%", "_", "\\", "B", "i"], 6);
            let texts: Vec<String> = (0..20)
                .map(|_| {
                    text(
                        &["a", "b", "é", "É", "%", "_", "\\", "B", "\n", "ı", "I"],
                        7,
                    )
                })
                .collect();
            for case_insensitive in [false, true] {
                let compiled = LikePattern::new(&pattern, case_insensitive);
                let kernel = if case_insensitive {
                    arrow::compute::kernels::comparison::ilike
                } else {
                    arrow::compute::kernels::comparison::like
                };
                let expected = kernel(
                    &StringArray::from(texts.clone()),
                    &Scalar::new(StringArray::from(vec![pattern.clone()])),
                )
                .unwrap();
                for (i, text) in texts.iter().enumerate() {
                    assert_eq!(
                        compiled.matches(text.as_bytes()),
                        expected.value(i),
                        "{text:?} like {pattern:?}, case-insensitive {case_insensitive}"
                    );
                }
            }
        }
    }

    #[test]
    fn substrings_count_characters() {
        for (text, start, length, expected) in [
            ("phone", 1, 2, "ph"),
            ("phone", 4, 9, "ne"),
            ("phone", 9, 1, ""),
            ("aéb", 2, 1, "é"),
            ("aéb", 3, 5, "b"),
        ] {
            let (from, to) = substring(text.as_bytes(), start, length);
            assert_eq!(&text[from..to], expected);
        }
    }
}
