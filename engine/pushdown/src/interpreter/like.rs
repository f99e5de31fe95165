//! LIKE and ILIKE.

/// One element of a pattern.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Element {
    /// `%`
    AnyRun,
    /// `_`
    AnyChar,
    /// This character.
    Char(char),
}

/// A backslash makes the next character stand for itself; one at the very end stands for itself.
fn parse(pattern: &str) -> Vec<Element> {
    let mut elements = Vec::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        elements.push(match c {
            '%' => Element::AnyRun,
            '_' => Element::AnyChar,
            '\\' => Element::Char(chars.next().unwrap_or('\\')),
            c => Element::Char(c),
        });
    }
    elements
}

/// Whether the whole text matches the pattern.
pub(super) fn matches(pattern: &str, text: &str, case_insensitive: bool) -> bool {
    let same = |a: char, b: char| a == b || case_insensitive && fold(a) == fold(b);
    let text: Vec<char> = text.chars().collect();
    // reachable[i]: the elements so far match the first i characters.
    let mut reachable = vec![false; text.len() + 1];
    reachable[0] = true;
    for element in parse(pattern) {
        let mut next = vec![false; text.len() + 1];
        for i in 0..=text.len() {
            next[i] = match element {
                Element::AnyRun => reachable[i] || i > 0 && next[i - 1],
                Element::AnyChar => i > 0 && reachable[i - 1],
                Element::Char(c) => i > 0 && reachable[i - 1] && same(c, text[i - 1]),
            };
        }
        reachable = next;
    }
    reachable[text.len()]
}

/// Unicode's simple case folding, which Arrow's ILIKE uses: both cases of a letter become one
/// character, and no character becomes several.
fn fold(c: char) -> char {
    /// The only character of the mapping, unless it has several.
    fn single(c: char, mut mapped: impl Iterator<Item = char>) -> char {
        match (mapped.next(), mapped.next()) {
            (Some(only), None) => only,
            _ => c,
        }
    }
    match c {
        // Its capital is I, but it is a case of i only in Turkic languages.
        'ı' => c,
        // One letter encoded twice; their capitals are several characters.
        '\u{1fd3}' => '\u{390}',
        '\u{1fe3}' => '\u{3b0}',
        '\u{fb05}' => '\u{fb06}',
        _ => {
            let upper = single(c, c.to_uppercase());
            single(upper, upper.to_lowercase())
        }
    }
}
