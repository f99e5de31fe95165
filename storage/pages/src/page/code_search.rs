//! Search in FSST-compressed text without decompressing it.
//!
//! A writer that compresses greedily, always by the longest symbol that matches (flag
//! [`CANONICAL`](super::flags::CANONICAL)), leaves no choice in how a literal appears among the
//! codes, but for its ends: its first bytes may belong to a symbol that starts before it, its last
//! ones to a symbol that ends behind it. So for each number of bytes that the symbol before may
//! take, the codes in between follow from the symbol table, and every row that holds the literal
//! holds one of a few sequences of codes. The converse does not hold (the sequence may start
//! within an escape): what is found is a candidate, to be decompressed and tested.

use std::ops::Range;

use aho_corasick::packed::{self, Searcher};
use memchr::memmem::Finder;

use super::auxiliary::SymbolTable;
use super::layout::Layout;
use super::strings::ESCAPE;
use super::{Encoding, Page};

/// Codes of a sequence that are enough: longer ones are hardly rarer.
const ENOUGH_CODES: usize = 4;
/// Codes of a sequence at least; shorter ones are on every page.
const MIN_CODES: usize = 2;
/// Sequences that are searched for at once at most (Teddy's buckets fill up).
const MAX_SEQUENCES: usize = 48;
/// Bytes of a literal that are looked for at most, its first ones: compiling takes time for each.
const MAX_LITERAL_BYTES: usize = 32;

/// Sequences of codes, one of which every row with one of some literals holds.
#[derive(Debug)]
pub struct CodeSearch {
    finder: CodeFinder,
}

#[derive(Debug)]
enum CodeFinder {
    One(Box<Finder<'static>>),
    Several(Searcher),
}

impl CodeSearch {
    /// Compiles the search for literals in the chunk of a symbol table. `None` where codes do not
    /// tell enough: the chunk is not known to be compressed greedily, a literal is short for the
    /// table's symbols, or there are too many sequences.
    pub fn new(symbols: &SymbolTable, literals: &[&[u8]]) -> Option<Self> {
        if !symbols.is_canonical() || literals.is_empty() {
            return None;
        }
        let mut sequences = Vec::new();
        for literal in literals {
            let literal = &literal[..literal.len().min(MAX_LITERAL_BYTES)];
            Enumeration { symbols, literal }.sequences(&mut sequences)?;
            if sequences.len() > MAX_SEQUENCES {
                return None;
            }
        }
        sequences.sort();
        sequences.dedup();
        let finder = match sequences.as_slice() {
            [one] => CodeFinder::One(Box::new(Finder::new(one).into_owned())),
            several => {
                let mut builder = packed::Config::new().builder();
                builder.extend(several);
                // `None` on a machine without the vectors that it takes.
                CodeFinder::Several(builder.build()?)
            }
        };
        Some(Self { finder })
    }

    /// Appends those of `rows` (relative to the page, as the result) that may hold a literal, of
    /// an FSST page of the chunk. Nothing for other pages, and for rows beyond the page.
    pub fn candidates(&self, page: &Page, rows: Range<u32>, found: &mut Vec<u32>) {
        let Layout::Text(text) = page.layout() else {
            return;
        };
        let is_within = !rows.is_empty() && rows.end <= page.header().row_count;
        if page.header().encoding != Encoding::Fsst || !is_within {
            return;
        }
        let data = page.data();
        let end = text.start(data, rows.end as usize);
        let codes = &data[text.bytes..];
        let mut cursor = text.cursor();
        let mut at = text.start(data, rows.start as usize);
        while let Some(place) = self.find(&codes[..end], at) {
            // A row is a candidate wherever in it a sequence starts, even one that crosses its
            // end: the next search starts at the next row and so misses none.
            let row = text.row_at(data, place);
            found.push(row as u32);
            at = cursor.locate(data, row).end.max(place + 1);
        }
    }

    fn find(&self, codes: &[u8], at: usize) -> Option<usize> {
        match &self.finder {
            CodeFinder::One(finder) => finder.find(codes.get(at..)?).map(|place| at + place),
            CodeFinder::Several(searcher) => searcher
                .find_in(codes, (at..codes.len()).into())
                .map(|found| found.start()),
        }
    }
}

/// The codes that a literal may become.
struct Enumeration<'a> {
    symbols: &'a SymbolTable,
    literal: &'a [u8],
}

/// What the encoder may write where the rest of a literal begins.
struct Step {
    /// Codes of the longest symbol within the rest, and its length; none: the next byte is
    /// escaped. (Several only where a table has a symbol twice.)
    inside: Vec<u8>,
    length: usize,
    /// Codes of symbols that are longer than the rest and start with it.
    beyond: Vec<u8>,
}

impl Enumeration<'_> {
    /// Appends sequences of which every occurrence of the literal holds one. `None` when one of
    /// them would be too short or they are too many.
    fn sequences(&self, sequences: &mut Vec<Vec<u8>>) -> Option<()> {
        // An occurrence within one symbol leaves no sequence.
        if self.literal.is_empty() {
            return None;
        }
        if (0..self.symbols.len()).any(|code| {
            let symbol = self.symbol(code as u8);
            symbol
                .windows(self.literal.len())
                .any(|part| part == self.literal)
        }) {
            return None;
        }
        let mut starts: Vec<usize> = (0..self.literal.len().min(8))
            .filter(|taken| *taken == 0 || self.ends_a_symbol(*taken))
            .collect();
        // Where each start leads before there is a choice: the boundaries passed, and the codes
        // from each of them on.
        let paths: Vec<Path> = starts.iter().map(|start| self.path(*start)).collect();
        // The paths of most starts meet, and one sequence then serves all of them: choose what
        // serves most, until no sequence serves several.
        loop {
            let mut best: Option<(usize, usize)> = None;
            for boundary in 0..self.literal.len() {
                let serves = |start: &&usize| self.serves(&paths, **start, boundary).is_some();
                let count = starts.iter().filter(serves).count();
                if count > 1 && best.is_none_or(|(most, _)| count > most) {
                    best = Some((count, boundary));
                }
            }
            let Some((_, boundary)) = best else { break };
            let mut sequence = None;
            starts.retain(|start| match self.serves(&paths, *start, boundary) {
                Some(codes) => {
                    sequence = Some(codes);
                    false
                }
                None => true,
            });
            sequences.push(sequence?);
        }
        for start in starts {
            self.extend(start, &mut Vec::new(), sequences)?;
        }
        Some(())
    }

    /// The codes from `boundary` on, if the path of `start` passes it and they are enough.
    fn serves(&self, paths: &[Path], start: usize, boundary: usize) -> Option<Vec<u8>> {
        let path = paths.iter().find(|path| path.start == start)?;
        let (_, from) = path.boundaries.iter().find(|(at, _)| *at == boundary)?;
        let codes = &path.codes[*from..];
        (codes.len() >= ENOUGH_CODES).then(|| codes.to_vec())
    }

    fn path(&self, start: usize) -> Path {
        let mut path = Path {
            start,
            boundaries: Vec::new(),
            codes: Vec::new(),
        };
        let mut at = start;
        while at < self.literal.len() {
            path.boundaries.push((at, path.codes.len()));
            let step = self.step(at);
            match step.inside.as_slice() {
                _ if !step.beyond.is_empty() => break,
                [] => path.codes.extend([ESCAPE, self.literal[at]]),
                [code] => path.codes.push(*code),
                _ => break,
            }
            at += step.length;
        }
        path
    }

    /// Appends all that the codes from `at` on can be, behind `codes`.
    fn extend(&self, at: usize, codes: &mut Vec<u8>, sequences: &mut Vec<Vec<u8>>) -> Option<()> {
        if at == self.literal.len() || codes.len() >= ENOUGH_CODES {
            if codes.len() < MIN_CODES || sequences.len() >= MAX_SEQUENCES {
                return None;
            }
            sequences.push(codes.clone());
            return Some(());
        }
        let step = self.step(at);
        let length = codes.len();
        for code in step.beyond {
            codes.push(code);
            self.extend(self.literal.len(), codes, sequences)?;
            codes.truncate(length);
        }
        if step.inside.is_empty() {
            codes.extend([ESCAPE, self.literal[at]]);
            self.extend(at + 1, codes, sequences)?;
            codes.truncate(length);
        }
        for code in step.inside {
            codes.push(code);
            self.extend(at + step.length, codes, sequences)?;
            codes.truncate(length);
        }
        Some(())
    }

    fn step(&self, at: usize) -> Step {
        let rest = &self.literal[at..];
        let mut step = Step {
            inside: Vec::new(),
            length: 1,
            beyond: Vec::new(),
        };
        for code in 0..self.symbols.len() as u8 {
            let symbol = self.symbol(code);
            let symbol = symbol.as_slice();
            if symbol.len() > rest.len() {
                if symbol.starts_with(rest) {
                    step.beyond.push(code);
                }
            } else if rest.starts_with(symbol) {
                if symbol.len() > step.length {
                    step.inside.clear();
                    step.length = symbol.len();
                }
                if symbol.len() == step.length {
                    step.inside.push(code);
                }
            }
        }
        step
    }

    /// Whether a symbol that is longer ends with so many first bytes of the literal.
    fn ends_a_symbol(&self, taken: usize) -> bool {
        (0..self.symbols.len()).any(|code| {
            let symbol = self.symbol(code as u8);
            symbol.len() > taken && symbol.ends_with(&self.literal[..taken])
        })
    }

    fn symbol(&self, code: u8) -> Symbol {
        let (bytes, length) = self.symbols.symbol(code);
        Symbol {
            bytes: bytes.to_le_bytes(),
            length: usize::from(length),
        }
    }
}

/// Codes that a start leads to, up to the first choice.
struct Path {
    start: usize,
    /// Places in the literal, each with its place in the codes.
    boundaries: Vec<(usize, usize)>,
    codes: Vec<u8>,
}

/// The bytes of a symbol.
struct Symbol {
    bytes: [u8; 8],
    length: usize,
}

impl Symbol {
    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl std::ops::Deref for Symbol {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}
