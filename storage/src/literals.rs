//! What every text that a pattern matches has in it.
//!
//! Searching for a literal is many times faster than matching, so a pattern is tried only where
//! one of the literals that it cannot do without stands.

use regex_syntax::hir::{Class, Hir, HirKind};

/// Alternatives up to which searching for all of them pays.
const MAX_ALTERNATIVES: usize = 64;

/// The literals, all not empty, of which every match of the regular expression holds at least one;
/// `None` where there are none, or too many.
///
/// With `fold_ascii` they are literals of the text in which the letters A to Z are made small, and
/// letters that characters beyond ASCII are a case of (k and s) are left out where the expression
/// matches either case.
///
/// A pattern that cannot be parsed has none.
pub(crate) fn required(
    pattern: &str,
    case_insensitive: bool,
    fold_ascii: bool,
) -> Option<Vec<Vec<u8>>> {
    let hir = regex_syntax::ParserBuilder::new()
        .case_insensitive(case_insensitive)
        .build()
        .parse(pattern)
        .ok()?;
    Walk { fold_ascii }.best(&hir)
}

/// The texts between the wildcards of a LIKE pattern, A to Z made small: a text that matches holds
/// all of them, its own letters made small. Ignoring case, what is not ASCII and what characters
/// beyond ASCII are a case of (k and s) ends a text as wildcards do.
pub(crate) fn of_like(pattern: &str, case_insensitive: bool) -> Vec<Vec<u8>> {
    let mut texts = vec![Vec::new()];
    let mut characters = pattern.chars();
    while let Some(c) = characters.next() {
        let c = match c {
            '%' | '_' => None,
            '\\' => Some(characters.next().unwrap_or('\\')),
            c => Some(c),
        };
        let c = c.filter(|c| {
            !case_insensitive || c.is_ascii() && !matches!(c.to_ascii_lowercase(), 'k' | 's')
        });
        match (c, texts.last_mut()) {
            (Some(c), Some(text)) => {
                let mut bytes = [0; 4];
                text.extend(c.to_ascii_lowercase().encode_utf8(&mut bytes).bytes());
            }
            _ => texts.push(Vec::new()),
        }
    }
    texts.retain(|text| !text.is_empty());
    texts
}

struct Walk {
    fold_ascii: bool,
}

impl Walk {
    fn best(&self, hir: &Hir) -> Option<Vec<Vec<u8>>> {
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => None,
            HirKind::Literal(_) | HirKind::Class(_) => self.exact(hir).map(|text| vec![text]),
            HirKind::Capture(capture) => self.best(&capture.sub),
            HirKind::Repetition(repetition) if repetition.min > 0 => self.best(&repetition.sub),
            HirKind::Repetition(_) => None,
            HirKind::Concat(parts) => {
                // Runs of parts that are one text each, and what the parts between require.
                let mut candidates = Vec::new();
                let mut run = Vec::new();
                for part in parts {
                    match self.exact(part) {
                        Some(text) => run.extend(text),
                        // Nothing is consumed: what stands before and behind is adjacent.
                        None if matches!(part.kind(), HirKind::Look(_) | HirKind::Empty) => {}
                        None => {
                            candidates.push(vec![std::mem::take(&mut run)]);
                            candidates.extend(self.best(part));
                        }
                    }
                }
                candidates.push(vec![run]);
                // The longer its shortest alternative, the rarer.
                let shortest = |c: &Vec<Vec<u8>>| c.iter().map(Vec::len).min().unwrap_or(0);
                let best = candidates.into_iter().max_by_key(shortest)?;
                (shortest(&best) > 0).then_some(best)
            }
            HirKind::Alternation(parts) => {
                let mut all = Vec::new();
                for part in parts {
                    all.extend(self.best(part)?);
                    if all.len() > MAX_ALTERNATIVES {
                        return None;
                    }
                }
                Some(all)
            }
        }
    }

    /// The one text that the expression matches, if there is just one and it is not empty.
    fn exact(&self, hir: &Hir) -> Option<Vec<u8>> {
        match hir.kind() {
            HirKind::Literal(literal) => {
                let mut text = literal.0.to_vec();
                if self.fold_ascii {
                    text.make_ascii_lowercase();
                }
                Some(text)
            }
            HirKind::Class(class) => self.letter(class).map(|letter| vec![letter]),
            HirKind::Capture(capture) => self.exact(&capture.sub),
            HirKind::Concat(parts) => {
                let parts: Option<Vec<_>> = parts.iter().map(|part| self.exact(part)).collect();
                parts.map(|parts| parts.concat())
            }
            _ => None,
        }
    }

    /// The small letter of a class of just both cases of it.
    fn letter(&self, class: &Class) -> Option<u8> {
        let (Class::Unicode(class), true) = (class, self.fold_ascii) else {
            return None;
        };
        let [capital, small] = class.ranges() else {
            return None;
        };
        let (capital, small) = match (capital.len(), small.len()) {
            (1, 1) => (capital.start(), small.start()),
            _ => return None,
        };
        (capital.is_ascii_uppercase() && capital.to_ascii_lowercase() == small)
            .then_some(small as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pattern: &str, case_insensitive: bool, fold: bool) -> Option<Vec<String>> {
        let found = required(pattern, case_insensitive, fold)?;
        Some(
            found
                .into_iter()
                .map(|t| String::from_utf8(t).unwrap())
                .collect(),
        )
    }

    #[test]
    fn literals_that_no_match_lacks() {
        let some = |list: &[&str]| Some(list.iter().map(|t| t.to_string()).collect::<Vec<_>>());
        for (pattern, case_insensitive, fold, expected) in [
            ("abc", false, false, some(&["abc"])),
            ("^a.*bcd$", false, false, some(&["bcd"])),
            ("error (at|in) line", false, false, some(&["error "])),
            ("(?:foo|barn)[0-9]+", false, false, some(&["foo", "barn"])),
            ("(?:foo|x*)y?", false, false, None),
            ("(needle)+", false, false, some(&["needle"])),
            ("(needle)*", false, false, None),
            (r"un\btied", false, false, some(&["untied"])),
            ("Abc", false, true, some(&["abc"])),
            ("Bad", true, false, None),
            ("Bad", true, true, some(&["bad"])),
            // Each k and s may be another letter.
            ("broker", true, true, some(&["bro"])),
            ("", false, false, None),
            ("(", false, false, None),
        ] {
            assert_eq!(
                texts(pattern, case_insensitive, fold),
                expected,
                "{pattern}"
            );
        }
    }
}
