//! Tests of text, compiled once for a Program: LIKE, regular expressions, several needles.

use aho_corasick::{AhoCorasick, MatchKind};
use flashmesh_pushdown::compile_regex;
use memchr::memmem::Finder;
use regex::Regex;

use super::like::LikePattern;
use crate::literals;

/// A test of text.
#[derive(Debug)]
pub(in crate::accelerator::cpu) enum TextTest {
    Like(Box<LikePattern>),
    Regex(Box<RegexPattern>),
    ContainsAny(Box<Needles>),
}

/// A compiled regular expression.
#[derive(Debug)]
pub(in crate::accelerator::cpu) struct RegexPattern {
    case_insensitive: bool,
    /// `None` for a pattern that does not compile; the verifier, which also limits what it is
    /// compiled into, lets none through.
    regex: Option<Regex>,
    /// What every match holds one of.
    required: Option<Needles>,
}

/// Texts that are looked for at once.
#[derive(Debug)]
pub(in crate::accelerator::cpu) struct Needles {
    list: Vec<Vec<u8>>,
    finder: NeedleFinder,
}

#[derive(Debug)]
enum NeedleFinder {
    /// One after the other: for none, and for what no automaton can be made of.
    Each,
    One(Box<Finder<'static>>),
    /// In upper or lower case, or mixed.
    AnyCase(regex::bytes::Regex),
    /// By the algorithm of Aho and Corasick, or a packed search where they are few.
    Several(AhoCorasick),
}

/// What texts that pass have in common.
#[derive(Debug)]
pub(in crate::accelerator::cpu) enum Search<'a> {
    /// They are those that start with this.
    Prefix(&'a [u8]),
    /// They are those that end with this.
    Suffix(&'a [u8]),
    /// All hold this; if `is_all`, nothing else is asked of them.
    Literal {
        finder: &'a Finder<'static>,
        is_all: bool,
    },
    /// All hold one of these; if `is_all`, nothing else is asked of them.
    Any { needles: &'a Needles, is_all: bool },
    /// Nothing that could be looked for.
    Each,
}

impl PartialEq for TextTest {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Like(a), Self::Like(b)) => a == b,
            (Self::Regex(a), Self::Regex(b)) => {
                let pattern = |r: &RegexPattern| r.regex.as_ref().map(|r| r.as_str().to_owned());
                a.case_insensitive == b.case_insensitive
                    && a.regex.is_some()
                    && pattern(a) == pattern(b)
            }
            (Self::ContainsAny(a), Self::ContainsAny(b)) => a.list == b.list,
            _ => false,
        }
    }
}

impl TextTest {
    pub fn like(pattern: &str, case_insensitive: bool) -> Self {
        Self::Like(Box::new(LikePattern::new(pattern, case_insensitive)))
    }

    pub fn regex(pattern: &str, case_insensitive: bool) -> Self {
        Self::Regex(Box::new(RegexPattern {
            case_insensitive,
            regex: compile_regex(pattern, case_insensitive, u32::MAX).ok(),
            required: required(pattern, case_insensitive),
        }))
    }

    pub fn contains_any(needles: &[String]) -> Self {
        let list = needles.iter().map(|n| n.as_bytes().to_vec()).collect();
        Self::ContainsAny(Box::new(Needles::new(list)))
    }

    /// How to look for texts that pass in many texts.
    pub fn search(&self) -> Search<'_> {
        match self {
            Self::Like(pattern) => pattern.search(),
            Self::Regex(pattern) => match &pattern.required {
                Some(needles) => Search::Any {
                    needles,
                    is_all: false,
                },
                None => Search::Each,
            },
            Self::ContainsAny(needles) if needles.list.iter().any(Vec::is_empty) => Search::Each,
            Self::ContainsAny(needles) => Search::Any {
                needles,
                is_all: true,
            },
        }
    }

    /// Bytes with which every text that passes starts, and whether that is all it takes.
    pub fn prefix(&self) -> Option<(&[u8], bool)> {
        match self {
            Self::Like(pattern) => pattern.prefix(),
            _ => None,
        }
    }

    /// Whether the text passes. What is not UTF-8 matches no regular expression.
    pub fn matches(&self, text: &[u8]) -> bool {
        match self {
            Self::Like(pattern) => pattern.matches(text),
            Self::Regex(pattern) => match (&pattern.regex, std::str::from_utf8(text)) {
                (Some(regex), Ok(text)) => regex.is_match(text),
                _ => false,
            },
            Self::ContainsAny(needles) => needles.find(text).is_some(),
        }
    }
}

impl Search<'_> {
    /// The literals of which every text that passes holds at least one; none: nothing is known.
    pub fn literals(&self) -> Vec<&[u8]> {
        match self {
            Search::Literal { finder, .. } => vec![finder.needle()],
            Search::Prefix(edge) | Search::Suffix(edge) => vec![edge],
            Search::Any { needles, .. } => needles.list.iter().map(Vec::as_slice).collect(),
            _ => Vec::new(),
        }
    }
}

impl Needles {
    /// Looks for ASCII texts, or others that have no case, in whatever case; `None` without one or
    /// where one is empty.
    pub fn in_any_case(list: Vec<Vec<u8>>) -> Option<Self> {
        let texts: Option<Vec<String>> = list
            .into_iter()
            .map(|text| String::from_utf8(text).ok().filter(|text| !text.is_empty()))
            .collect();
        let texts = texts.filter(|texts| !texts.is_empty())?;
        let escaped: Vec<String> = texts.iter().map(|text| regex::escape(text)).collect();
        let regex = regex::bytes::RegexBuilder::new(&escaped.join("|"))
            .case_insensitive(true)
            .build();
        Some(Self {
            // What is looked for among codes is looked for as it is.
            list: Vec::new(),
            finder: NeedleFinder::AnyCase(regex.ok()?),
        })
    }

    fn new(list: Vec<Vec<u8>>) -> Self {
        let finder = match list.as_slice() {
            [] => NeedleFinder::Each,
            [one] => NeedleFinder::One(Box::new(Finder::new(one).into_owned())),
            several => {
                // Leftmost-first, because only then few needles are searched for in vectors.
                let automaton = AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostFirst)
                    .build(several);
                automaton.map_or(NeedleFinder::Each, NeedleFinder::Several)
            }
        };
        Self { list, finder }
    }

    /// Start and end of the leftmost needle.
    pub fn find(&self, text: &[u8]) -> Option<(usize, usize)> {
        match &self.finder {
            NeedleFinder::Each => {
                let found = self.list.iter().filter_map(|needle| {
                    let start = memchr::memmem::find(text, needle)?;
                    Some((start, start + needle.len()))
                });
                found.min()
            }
            NeedleFinder::One(finder) => {
                let start = finder.find(text)?;
                Some((start, start + finder.needle().len()))
            }
            NeedleFinder::AnyCase(regex) => {
                let found = regex.find(text)?;
                Some((found.start(), found.end()))
            }
            NeedleFinder::Several(automaton) => {
                let found = automaton.find(text)?;
                Some((found.start(), found.end()))
            }
        }
    }
}

/// What every match of a regular expression holds one of, as it is or, where that is longer, in
/// whatever case.
fn required(pattern: &str, case_insensitive: bool) -> Option<Needles> {
    let shortest = |list: &Option<Vec<Vec<u8>>>| {
        let lengths = list.iter().flatten().map(Vec::len);
        lengths.min().unwrap_or(0)
    };
    let exact = literals::required(pattern, case_insensitive, false);
    let folded = literals::required(pattern, case_insensitive, true);
    if shortest(&folded) > shortest(&exact) {
        return folded.and_then(Needles::in_any_case);
    }
    exact.map(Needles::new)
}

/// Where the needle first occurs, in characters from 1; 0 where it does not.
pub(in crate::accelerator::cpu) fn position(needle: &Finder<'_>, text: &[u8]) -> i64 {
    match needle.find(text) {
        Some(at) => {
            let before = &text[..at];
            // Every byte but those that continue a character starts one.
            1 + before.iter().filter(|byte| **byte & 0xC0 != 0x80).count() as i64
        }
        None => 0,
    }
}
