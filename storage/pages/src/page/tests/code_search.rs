//! Compressed text is searched as if it were decompressed.

use arrow::array::BinaryViewArray;
use rand::{Rng, RngExt};

use super::super::layout::Layout;
use super::*;

/// Text of many kinds: words, few letters, characters beyond ASCII, any bytes, zeros.
fn random_rows(rng: &mut impl Rng) -> Vec<Vec<u8>> {
    let alphabets: [&[&[u8]]; 4] = [
        &[b"a", b"b", b"ab", b"aab", b"\0", b" "],
        &[
            "é".as_bytes(),
            "漢字".as_bytes(),
            b"abc",
            b"e",
            b"the ",
            b"\xff",
        ],
        &[
            b"error", b" at ", b"line ", b"0", b"1", b"2", b"/", b"-", b"needle",
        ],
        &[b"\0\0", b"\0", b"x", b"\0x", b"xyz\0", b"\x01"],
    ];
    let kind = rng.random_range(0..=alphabets.len());
    (0..rng.random_range(500..3000))
        .map(|_| {
            let mut row = Vec::new();
            for _ in 0..rng.random_range(0..20) {
                match alphabets.get(kind) {
                    Some(parts) => row.extend(parts[rng.random_range(0..parts.len())]),
                    None => {
                        let most = rng.random_range(1..=255u8);
                        row.push(rng.random_range(0..=most));
                    }
                }
                if rng.random_bool(0.02) {
                    row.push(rng.random());
                }
            }
            row
        })
        .collect()
}

/// Calls `f` with the symbols and pages of many random chunks that are compressed.
fn for_each_chunk(mut f: impl FnMut(&mut StdRng, &SymbolTable, &Aux, &[Arc<Page>])) {
    let mut rng = seeded();
    let mut compressed = 0;
    for _ in 0..60 {
        let rows = random_rows(&mut rng);
        let array: BinaryViewArray = rows.iter().map(|row| Some(row.as_slice())).collect();
        let chunk = encode_and_read(&array);
        if let Aux::Symbols(symbols) = &chunk.aux {
            compressed += 1;
            f(&mut rng, symbols, &chunk.aux, &chunk.pages);
        }
    }
    assert!(compressed > 10, "{compressed} chunks are compressed");
}

/// The flag is true: no code stands where a longer symbol would match, and no escape where any
/// would. `fsst` finds symbols by lossy hash tables, but what is in the symbol table it finds.
#[test]
fn compression_is_greedy() {
    for_each_chunk(|_, symbols, aux, pages| {
        assert!(symbols.is_canonical());
        let symbol = |code: u8| {
            let (bytes, length) = symbols.symbol(code);
            bytes.to_le_bytes()[..usize::from(length)].to_vec()
        };
        for page in pages {
            let Layout::Text(text) = page.layout() else {
                continue;
            };
            let data = page.data();
            let mut cursor = text.cursor();
            for row in 0..page.header().row_count {
                let codes = &data[text.bytes..][cursor.locate(data, row as usize)];
                let (mut bytes, mut offsets) = (Vec::new(), Vec::new());
                strings::decompress(page, aux, row..row + 1, &mut bytes, &mut offsets).unwrap();
                let mut rest = bytes.as_slice();
                let mut codes = codes.iter();
                while let Some(code) = codes.next() {
                    let longest = (0..symbols.len() as u8)
                        .map(symbol)
                        .filter(|s| rest.starts_with(s))
                        .map(|s| s.len())
                        .max();
                    let length = match *code {
                        strings::ESCAPE => {
                            codes.next().unwrap();
                            assert_eq!(longest, None);
                            1
                        }
                        code => symbol(code).len(),
                    };
                    assert_eq!(longest.unwrap_or(1), length);
                    rest = &rest[length..];
                }
            }
        }
    });
}

/// Every row that holds one of the literals is a candidate.
#[test]
fn no_row_is_lost() {
    let (mut searches, mut refused, mut candidates, mut matches) = (0, 0, 0, 0);
    for_each_chunk(|rng, symbols, aux, pages| {
        for _ in 0..60 {
            let page = &pages[rng.random_range(0..pages.len())];
            let rows = page.header().row_count;
            let (mut bytes, mut offsets) = (Vec::new(), Vec::new());
            strings::decompress(page, aux, 0..rows, &mut bytes, &mut offsets).unwrap();
            let literals: Vec<Vec<u8>> = (0..rng.random_range(1..4))
                .map(|_| {
                    let length = rng.random_range(1..=48).min(bytes.len());
                    let start = rng.random_range(0..=bytes.len() - length);
                    let mut literal = bytes[start..start + length].to_vec();
                    if rng.random_bool(0.2) {
                        let at = rng.random_range(0..literal.len());
                        literal[at] = rng.random();
                    }
                    literal
                })
                .collect();
            let literals: Vec<&[u8]> = literals.iter().map(Vec::as_slice).collect();
            let Some(search) = CodeSearch::new(symbols, &literals) else {
                refused += 1;
                continue;
            };
            searches += 1;
            let first = rng.random_range(0..rows);
            let range = first..rng.random_range(first..=rows);
            let mut found = Vec::new();
            search.candidates(page, range.clone(), &mut found);
            assert!(found.is_sorted_by(|a, b| a < b), "{found:?}");
            assert!(found.iter().all(|row| range.contains(row)), "{found:?}");
            candidates += found.len();
            for row in range {
                let text =
                    &bytes[offsets[row as usize] as usize..offsets[row as usize + 1] as usize];
                let holds = literals
                    .iter()
                    .any(|literal| text.windows(literal.len()).any(|part| part == *literal));
                if holds {
                    matches += 1;
                    assert!(
                        found.binary_search(&row).is_ok(),
                        "row {row} {text:?} holds one of {literals:?}"
                    );
                }
            }
        }
    });
    println!("{searches} searches, {refused} refused, {matches} of {candidates} candidates match");
    // About a quarter of the candidates match; chance must not decide.
    assert!(searches > 200 && matches * 10 > candidates);
}
