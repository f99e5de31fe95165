//! What the Tab key may offer: words that begin with what was typed, or files.

use std::collections::BTreeSet;

/// What may stand in place of the text from `start` to the cursor.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Completion {
    /// These words.
    Words { start: usize, words: Vec<String> },
    /// The name of a file.
    File,
}

/// Those of `candidates` that begin with what was typed, whatever its case, each once and in the
/// order given.
pub(super) fn words(
    start: usize,
    typed: &str,
    candidates: impl IntoIterator<Item = String>,
) -> Completion {
    let begins = |candidate: &String| {
        let begins = |candidate: &str| {
            let head = candidate.get(..typed.len());
            head.is_some_and(|head| head.eq_ignore_ascii_case(typed))
        };
        // A name that needs quotes may be typed without.
        begins(candidate) || candidate.strip_prefix('"').is_some_and(begins)
    };
    let mut seen = BTreeSet::new();
    // A name that would command the terminal is none to offer.
    let words = candidates
        .into_iter()
        .filter(|word| begins(word) && !word.contains(char::is_control));
    Completion::Words {
        start,
        words: words.filter(|word| seen.insert(word.clone())).collect(),
    }
}
