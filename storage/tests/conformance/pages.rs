//! page_decode, text_decode and key_lookup have no Program that says what they do. They are held against the
//! store instead: pages that its own writer made, and what its own decoder and index say of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Float32Array, Float64Array, Int64Array, StringViewArray,
};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int64Type};
use flashmesh_pushdown::testing::SEED_VARIABLE;
use flashmesh_storage::index::hash::{Builder, hash_keys};
use flashmesh_storage::kernel::{Argument, ScalarArgument, Target};
use flashmesh_storage::page::{Aux, ChunkIdentity, ColumnBuilder, Encoding, Page, encode_chunk};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::runner::CONTEXT;
use super::{sandbox, xrt};

const IDENTITY: ChunkIdentity = ChunkIdentity {
    table: 3,
    segment: 5,
    column_group: 1,
    generation: 7,
};
/// What page_decode says of an encoding that it does not decode.
const NOT_DECODED: u32 = 2;
const NOT_FOUND: u32 = u32::MAX;
const PAGE_BYTES: usize = 8192;

/// `FLASHMESH_SEED` replays a seed that was printed.
fn random() -> StdRng {
    let replayed = std::env::var(SEED_VARIABLE).ok();
    let seed = replayed.map_or_else(rand::random, |seed| seed.parse().unwrap());
    println!("replay with {SEED_VARIABLE}={seed}");
    StdRng::seed_from_u64(seed)
}

/// A chunk as the store writes it.
struct Chunk {
    pages: Vec<Arc<Page>>,
    aux: Aux,
    /// The auxiliary page as it is on flash; empty without one.
    aux_bytes: Vec<u8>,
}

impl Chunk {
    fn of(array: &ArrayRef) -> Self {
        let encoded = encode_chunk(array.as_ref(), IDENTITY).unwrap();
        let mut identity = IDENTITY.first_page();
        let mut pages = Vec::new();
        for buffer in encoded.pages {
            pages.push(Page::verify(buffer, &identity, "a test's column").unwrap());
            identity.page += 1;
        }
        let rest = pages.split_off(usize::from(encoded.aux_pages));
        let aux = pages.first();
        let aux_bytes = aux.map_or_else(Vec::new, |page| page.bytes().into_owned());
        let aux = aux.map_or(Aux::None, |page| {
            Aux::parse(page, array.data_type()).unwrap()
        });
        Self {
            pages: rest,
            aux,
            aux_bytes,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let pages = self.pages.iter();
        pages.flat_map(|page| page.bytes().into_owned()).collect()
    }

    /// What the store's decoder makes of it, as page_decode gives it: numbers, the bits of floats,
    /// the codes of text.
    fn decoded(&self, data_type: &DataType) -> Vec<Option<i64>> {
        let mut builder = ColumnBuilder::new(data_type, 0).unwrap();
        for page in &self.pages {
            let rows = 0..page.header().row_count;
            builder.append_rows(page, &self.aux, rows).unwrap();
        }
        let array = builder.finish().unwrap();
        let value = |row: usize| match data_type {
            DataType::Int64 => array.as_primitive::<Int64Type>().value(row),
            DataType::Float64 => array.as_primitive::<Float64Type>().value(row).to_bits() as i64,
            DataType::Float32 => {
                let bits = array.as_primitive::<Float32Type>().value(row).to_bits();
                i64::from(bits as i32)
            }
            _ => {
                let Aux::Dictionary(dictionary) = &self.aux else {
                    panic!("text without a dictionary")
                };
                let text = array.as_string_view().value(row);
                dictionary.lower_bound(text.as_bytes()) as i64
            }
        };
        let rows = 0..array.len();
        rows.map(|row| array.is_valid(row).then(|| value(row)))
            .collect()
    }

    /// The values of a dictionary of numbers, as the kernel takes it.
    fn dictionary(&self) -> Vec<u8> {
        match &self.aux {
            Aux::Dictionary(dictionary) => {
                let values = dictionary.integers().iter();
                values.flat_map(|value| value.to_le_bytes()).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Columns for which the store chooses the encodings that page_decode knows, and texts, which it
/// does not.
fn column(random: &mut StdRng, kind: usize, rows: usize, has_nulls: bool) -> ArrayRef {
    let low: i64 = random.random_range(-1 << 40..1 << 40);
    let few: Vec<i64> = (0..40).map(|_| random.random()).collect();
    let words: Vec<String> = (0..30)
        .map(|n| format!("word {n}, long enough to be coded"))
        .collect();
    let bits = random.random_range(1..63);
    let valid = |random: &mut StdRng| !has_nulls || random.random_bool(0.8);
    let mut integers = |value: &mut dyn FnMut(&mut StdRng, usize) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter(
            (0..rows).map(|row| valid(random).then(|| value(random, row))),
        ))
    };
    match kind {
        0 => integers(&mut |_, _| low),
        1 => integers(&mut |random, _| low + (random.random::<i64>() & ((1 << bits) - 1)) / 2),
        2 => integers(&mut |random, _| few[random.random_range(0..few.len())]),
        3 => integers(&mut |random, _| low + 86_400 * random.random_range(0..9000)),
        4 => integers(&mut |random, _| random.random()),
        // Runs of numbers that take several pages as such.
        5 => integers(&mut |_, row| (row as i64 / 900).wrapping_mul(0x6a09_e667_f3bc_c909)),
        6 => Arc::new(Float64Array::from_iter(
            (0..rows).map(|_| valid(random).then(|| random.random_range(-1e9..1e9))),
        )),
        7 => Arc::new(Float32Array::from_iter(
            (0..rows).map(|_| valid(random).then(|| random.random_range(-1e9..1e9))),
        )),
        8 => Arc::new(Float64Array::from_iter(
            (0..rows).map(|_| valid(random).then_some(2.5)),
        )),
        _ => Arc::new(StringViewArray::from_iter((0..rows).map(|_| {
            valid(random).then(|| words[random.random_range(0..words.len())].as_str())
        }))),
    }
}

const KINDS: usize = 10;

fn scalar(value: usize) -> Argument<'static> {
    Argument::Scalar(ScalarArgument::I32(value as u32 as i32))
}

fn u32_of(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().unwrap())
}

/// Decodes random chunks on `target`.
fn decode_like_the_store(target: &dyn Target) {
    let mut random = random();
    let mut seen = BTreeSet::new();
    for number in 0..4 * KINDS {
        let (kind, has_nulls) = (number % KINDS, number / KINDS % 2 == 1);
        let rows = match number / KINDS {
            0 | 1 => random.random_range(3000..8000),
            _ => random.random_range(1..70),
        };
        let array = column(&mut random, kind, rows, has_nulls);
        let chunk = Chunk::of(&array);
        let encodings = chunk.pages.iter().map(|page| page.header().encoding);
        let encodings: Vec<Encoding> = encodings.collect();
        seen.extend(
            encodings
                .iter()
                .map(|e| (format!("{e:?}"), array.null_count() > 0)),
        );
        let is_known = |page: &Arc<Page>| match page.header().encoding {
            // A text of which there is only one in the chunk is its bytes.
            Encoding::Const => page.header().width == 0 || matches!(page.data().len(), 4 | 8),
            encoding => matches!(
                encoding,
                Encoding::Dict | Encoding::Forbp | Encoding::Raw | Encoding::Rle
            ),
        };

        let (pages, dictionary) = (chunk.bytes(), chunk.dictionary());
        let mut values = vec![0; 8 * rows];
        let mut valid = vec![0; 8 * rows.div_ceil(64)];
        let (mut found_rows, mut status) = ([0; 4], [0; 4]);
        let mut arguments = [
            Argument::In(&pages),
            scalar(chunk.pages.len()),
            Argument::In(&dictionary),
            scalar(dictionary.len()),
            scalar(rows),
            Argument::InOut(&mut values),
            Argument::InOut(&mut valid),
            Argument::InOut(&mut found_rows),
            Argument::InOut(&mut status),
        ];
        target.call("page_decode", &mut arguments, CONTEXT).unwrap();
        let what = format!("column {number}: {rows} rows, {encodings:?}");
        if !chunk.pages.iter().all(is_known) {
            let refused = (u32_of(&status), u32_of(&found_rows));
            assert_eq!(refused, (NOT_DECODED, 0), "{what}");
            continue;
        }
        assert_eq!(
            (u32_of(&status), u32_of(&found_rows)),
            (0, rows as u32),
            "{what}"
        );
        let (words, _) = values.as_chunks();
        let found: Vec<Option<i64>> = (0..rows)
            .map(|row| {
                let value = i64::from_le_bytes(words[row]);
                let is_valid = valid[row / 8] >> (row % 8) & 1 == 1;
                assert!(is_valid || value == 0, "{what}: a NULL that is not 0");
                is_valid.then_some(value)
            })
            .collect();
        assert!(found == chunk.decoded(array.data_type()), "{what}");
    }
    for encoding in ["Const", "Raw", "Forbp", "Dict", "Rle"] {
        for has_nulls in [false, true] {
            let wanted = (encoding.to_owned(), has_nulls);
            assert!(seen.contains(&wanted), "{wanted:?} is not among {seen:?}");
        }
    }
}

/// Texts for which the store chooses the encodings that text_decode knows, long values, and a
/// dictionary.
fn text_column(random: &mut StdRng, kind: usize, has_nulls: bool) -> ArrayRef {
    const WORDS: [&str; 8] = [
        "flash ",
        "mesh ",
        "pages ",
        "of ",
        "the ",
        "symbol ",
        "tables ",
        "größer ",
    ];
    let words = |random: &mut StdRng, count: usize| -> String {
        (0..count)
            .map(|_| WORDS[random.random_range(0..WORDS.len())])
            .collect()
    };
    let noise = |random: &mut StdRng, count: usize| -> String {
        (0..count)
            .map(|_| char::from(random.random_range(b' '..b'~')))
            .collect()
    };
    let rows: usize = [400, 400, 5000, 500, 3000, 6, 4][kind];
    let mut texts = Vec::new();
    for row in 0..rows {
        let is_valid = kind != 0 && (!has_nulls || random.random_bool(0.8));
        let length = random.random_range(5..20);
        let text = match kind {
            0 | 1 => "the same in each row".to_owned(),
            2 => format!("word {}, long enough to be coded", row % 30),
            3 => noise(random, length),
            4 => words(random, length) + &row.to_string(),
            5 => words(random, 12_000),
            _ => noise(random, 20_000),
        };
        texts.push(is_valid.then_some(text));
    }
    Arc::new(StringViewArray::from_iter(texts))
}

const TEXT_KINDS: usize = 7;

/// Decodes random chunks of text on `target`; of those with a dictionary, the dictionary.
fn decode_texts_of_the_store(target: &dyn Target) {
    let mut random = random();
    let mut seen = BTreeSet::new();
    for number in 0..2 * TEXT_KINDS {
        let array = text_column(&mut random, number % TEXT_KINDS, number >= TEXT_KINDS);
        let chunk = Chunk::of(&array);
        for page in &chunk.pages {
            seen.insert(format!("{:?}", page.header().encoding));
            if page.header().row_count == 0 {
                seen.insert("part of a value".to_owned());
            }
        }
        let mut texts: Vec<Option<Vec<u8>>> = Vec::new();
        let (pages, symbols) = if let Aux::Dictionary(dictionary) = &chunk.aux {
            let entries = 0..dictionary.len();
            texts.extend(entries.map(|code| Some(dictionary.value(code).to_vec())));
            (chunk.aux_bytes.clone(), Vec::new())
        } else {
            let rows = array.as_string_view().iter();
            texts.extend(rows.map(|text| text.map(|text| text.as_bytes().to_vec())));
            (chunk.bytes(), chunk.aux_bytes.clone())
        };

        let rows = texts.len();
        let byte_count: usize = texts.iter().flatten().map(Vec::len).sum();
        let mut offsets = vec![0; 4 * (rows + 1)];
        let mut bytes = vec![0; byte_count];
        let mut valid = vec![0; 8 * rows.div_ceil(64)];
        let (mut found_rows, mut found_bytes, mut status) = ([0; 4], [0; 4], [0; 4]);
        let mut arguments = [
            Argument::In(&pages),
            scalar(pages.len() / PAGE_BYTES),
            Argument::In(&symbols),
            scalar(symbols.len()),
            scalar(rows),
            scalar(byte_count),
            Argument::InOut(&mut offsets),
            Argument::InOut(&mut bytes),
            Argument::InOut(&mut valid),
            Argument::InOut(&mut found_rows),
            Argument::InOut(&mut found_bytes),
            Argument::InOut(&mut status),
        ];
        target.call("text_decode", &mut arguments, CONTEXT).unwrap();
        let what = format!("column {number}: {rows} rows");
        assert_eq!(
            (
                u32_of(&status),
                u32_of(&found_rows),
                u32_of(&found_bytes) as usize
            ),
            (0, rows as u32, byte_count),
            "{what}"
        );
        let end = |row: usize| u32_of(&offsets[4 * row..4 * row + 4]) as usize;
        for (row, text) in texts.iter().enumerate() {
            let found = &bytes[end(row)..end(row + 1)];
            let is_valid = valid[row / 8] >> (row % 8) & 1 == 1;
            assert!(is_valid || found.is_empty(), "{what}: a NULL with bytes");
            assert!(
                is_valid.then_some(found) == text.as_deref(),
                "{what}: row {row}"
            );
        }
    }
    for wanted in ["Const", "RawStr", "Fsst", "Dict", "part of a value"] {
        assert!(seen.contains(wanted), "{wanted} is not among {seen:?}");
    }
}

/// Looks keys up on `target` in the pages of an index, and in its entries.
fn find_like_the_index(target: &dyn Target) {
    let mut random = random();
    for rows in [1, 50, 5000] {
        // Some keys are there often, some rows are NULL, some keys are nowhere.
        let keys = |random: &mut StdRng, count| -> ArrayRef {
            Arc::new(Int64Array::from_iter((0..count).map(|_| {
                let key = match random.random_range(0..4) {
                    0 => random.random_range(0..3),
                    _ => random.random_range(0..rows * 2),
                };
                random.random_bool(0.95).then_some(key)
            })))
        };
        let column = keys(&mut random, rows);
        let mut builder = Builder::default();
        builder.add(&[column]).unwrap();
        let (part, entries) = builder.finish();
        let chunks = part.arrays[0].iter().map(Chunk::of);
        let chunks: Vec<Chunk> = chunks.collect();
        let pages: Vec<u8> = chunks.iter().flat_map(Chunk::bytes).collect();
        let page_count: usize = chunks.iter().map(|chunk| chunk.pages.len()).sum();

        let wanted = hash_keys(&[keys(&mut random, 300)]).unwrap();
        let hashes: Vec<u64> = wanted.into_iter().flatten().collect();
        let hash_bytes: Vec<u8> = hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect();
        let results = || vec![0; 4 * hashes.len()];
        let (mut counts, mut positions, mut found) = (results(), results(), results());
        let mut status = [1; 4];
        let mut arguments = [
            Argument::In(&pages),
            scalar(page_count),
            Argument::In(&hash_bytes),
            scalar(hashes.len()),
            Argument::InOut(&mut counts),
            Argument::InOut(&mut positions),
            Argument::InOut(&mut found),
            Argument::InOut(&mut status),
        ];
        target.call("key_lookup", &mut arguments, CONTEXT).unwrap();
        assert_eq!(u32_of(&status), 0, "{rows} rows, {page_count} pages");
        let mut hits = 0;
        for (key, hash) in hashes.iter().enumerate() {
            let equal = entries.iter().filter(|(other, _)| other == hash).count();
            let place = entries.iter().position(|(other, _)| other == hash);
            let expected = place.map_or((0, NOT_FOUND, NOT_FOUND), |place| {
                (equal as u32, place as u32, entries[place].1)
            });
            let at = |array: &[u8]| u32_of(&array[4 * key..4 * key + 4]);
            assert_eq!(
                (at(&counts), at(&positions), at(&found)),
                expected,
                "hash {hash}"
            );
            hits += usize::from(place.is_some());
        }
        println!(
            "{rows} rows, {page_count} pages: {hits} of {} keys are there",
            hashes.len()
        );
    }
}

#[test]
fn the_sandbox_decodes_pages_like_the_store() {
    if let Some(kernel) = sandbox::compiled("page_decode") {
        decode_like_the_store(kernel.target().as_ref());
    }
}

#[test]
fn the_sandbox_decodes_texts_of_the_store() {
    if let Some(kernel) = sandbox::compiled("text_decode") {
        decode_texts_of_the_store(kernel.target().as_ref());
    }
}

#[test]
fn the_sandbox_finds_keys_like_the_index() {
    if let Some(kernel) = sandbox::compiled("key_lookup") {
        find_like_the_index(kernel.target().as_ref());
    }
}

#[test]
fn xrt_emulation_decodes_pages_like_the_store() {
    if let Some(kernel) = xrt::kernel("page_decode") {
        decode_like_the_store(&kernel);
    }
}

#[test]
fn xrt_emulation_decodes_texts_of_the_store() {
    if let Some(kernel) = xrt::kernel("text_decode") {
        decode_texts_of_the_store(&kernel);
    }
}

#[test]
fn xrt_emulation_finds_keys_like_the_index() {
    if let Some(kernel) = xrt::kernel("key_lookup") {
        find_like_the_index(&kernel);
    }
}
