//! Compressed text by symbol tables of all kinds, which no compressor would make.

use rand::RngExt;

use super::*;
use crate::flash::PageBuffer;
use crate::page::header::{align_region, flags};
use crate::page::layout::MAX_SYMBOLS;

/// What codes stand for, a byte at a time; `None` where they end within an escape.
fn naive(symbols: &[Vec<u8>], codes: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut codes = codes.iter();
    while let Some(code) = codes.next() {
        match *code {
            strings::ESCAPE => bytes.push(*codes.next()?),
            code => {
                for byte in symbols.get(usize::from(code)).into_iter().flatten() {
                    bytes.push(*byte);
                }
            }
        }
    }
    Some(bytes)
}

/// The auxiliary page of a table of these symbols.
fn page_of(symbols: &[Vec<u8>]) -> Arc<Page> {
    let start = align_region(symbols.len());
    let mut buffer = PageBuffer::zeroed();
    let data = &mut buffer[HEADER_SIZE_BYTES..];
    for (number, symbol) in symbols.iter().enumerate() {
        data[number] = symbol.len() as u8;
        data[start + 8 * number..][..symbol.len()].copy_from_slice(symbol);
    }
    let header = PageHeader {
        encoding: Encoding::Fsst,
        width: 0,
        flags: flags::AUXILIARY,
        column_group: IDENTITY.column_group,
        payload_length: (start + 8 * symbols.len()) as u16,
        table: IDENTITY.table,
        segment: IDENTITY.segment,
        page: 0,
        first_row: 0,
        generation: IDENTITY.generation,
        row_count: symbols.len() as u32,
        null_count: 0,
        reference: 0,
        min: 0,
        max: 0,
    };
    header.write(&mut buffer);
    Page::verify(buffer, &page_identity(0), "symbols").unwrap()
}

/// One value, and many at once, come out as a naive decoder has them, behind what was there before;
/// codes without a symbol stand for nothing, and an escape without its byte is an error.
#[test]
fn codes_are_decompressed_as_a_naive_decoder_does() {
    let mut rng = seeded();
    let mut cut = 0;
    for round in 0..3000 {
        let count = match rng.random_range(0..3) {
            0 => MAX_SYMBOLS,
            _ => rng.random_range(1..=MAX_SYMBOLS),
        };
        let symbols: Vec<Vec<u8>> = (0..count)
            .map(|_| (0..rng.random_range(1..=8)).map(|_| rng.random()).collect())
            .collect();
        let page = page_of(&symbols);
        let length = [0, 1, 9, 200, PAYLOAD_SIZE_BYTES][rng.random_range(0..5usize)];
        let escapes = [0.0, 0.05, 0.9][rng.random_range(0..3usize)];
        let codes: Vec<u8> = (0..rng.random_range(0..=length))
            .map(|_| match rng.random_bool(escapes) {
                true => strings::ESCAPE,
                false => rng.random(),
            })
            .collect();
        let before: Vec<u8> = (0..rng.random_range(0..20)).map(|_| rng.random()).collect();
        let expected = naive(&symbols, &codes).map(|bytes| [before.clone(), bytes].concat());

        let mut one = before.clone();
        let is_whole = strings::decompress_value(&page, &codes, &mut one).is_ok();
        assert_eq!(is_whole.then_some(one), expected, "round {round}");

        let Aux::Symbols(table) = parse_aux(Some(&page), &DataType::Utf8View) else {
            panic!("round {round}: no symbol table");
        };
        let (mut many, mut offsets) = (before, Vec::new());
        let ends = std::iter::once(codes.len());
        let is_whole = table
            .decompress_rows(&codes, ends, &mut many, &mut offsets)
            .is_ok();
        assert_eq!(is_whole.then_some(many), expected, "round {round}");
        cut += usize::from(expected.is_none());
    }
    assert!(cut > 100, "{cut} values that end within an escape");
}
