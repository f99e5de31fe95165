//! Bytes that are not as they were written.

use arrow::array::*;
use rand::RngExt;

use super::*;
use crate::flash::PageBuffer;

/// One small chunk of each type, several times.
fn samples(rng: &mut StdRng) -> Vec<(DataType, EncodedChunk)> {
    let mut chunks = Vec::new();
    for _ in 0..3 {
        for data_type in arrays::data_types() {
            let rows = match data_type {
                DataType::FixedSizeBinary(20_000) | DataType::FixedSizeList(_, 3000) => 3,
                _ => rng.random_range(1..4000),
            };
            let array = arrays::array(rng, &data_type, rows);
            chunks.push((data_type, encode_chunk(&array, IDENTITY).unwrap()));
        }
    }
    chunks
}

pub(super) fn copy(buffer: &PageBuffer) -> PageBuffer {
    let mut copy = PageBuffer::zeroed();
    copy.copy_from_slice(buffer);
    copy
}

#[test]
fn a_flipped_bit_in_any_byte_is_found() {
    let mut rng = seeded();
    for (_, chunk) in samples(&mut rng) {
        let number = rng.random_range(0..chunk.pages.len());
        for byte in 0..chunk.pages[number].len() {
            let mut page = copy(&chunk.pages[number]);
            page[byte] ^= 1 << rng.random_range(0..8);
            let error = Page::verify(page, &page_identity(number), "table 't', column 'c'")
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(&format!(
                    "table 't', column 'c', segment 3, page {number}: "
                )),
                "{error}"
            );
        }
    }
}

#[test]
fn the_wrong_page_is_found() {
    let chunk = encode_chunk(&Int64Array::from(vec![1, 2, 3]), IDENTITY).unwrap();
    let right = page_identity(0);
    let wrong = [
        PageIdentity { table: 8, ..right },
        PageIdentity {
            segment: 4,
            ..right
        },
        PageIdentity {
            column_group: 1,
            ..right
        },
        PageIdentity { page: 1, ..right },
        PageIdentity {
            generation: 8,
            ..right
        },
    ];
    for wrong in wrong {
        let error = Page::verify(copy(&chunk.pages[0]), &wrong, "column 'c'")
            .unwrap_err()
            .to_string();
        assert!(error.contains("another page"), "{error}");
    }
    let blank = Page::verify(PageBuffer::zeroed(), &right, "column 'c'")
        .unwrap_err()
        .to_string();
    assert!(blank.contains("blank"), "{blank}");
    let mut newer = copy(&chunk.pages[0]);
    newer[3] = 2;
    let newer = Page::verify(newer, &right, "column 'c'")
        .unwrap_err()
        .to_string();
    assert!(newer.contains("page format 2"), "{newer}");
}

/// Pages changed at random, but with a right checksum: whatever passes `verify` can be read by
/// every function without panic, and gives an error or arrays that Arrow finds well-formed.
#[test]
fn hostile_pages_do_no_harm() {
    let mut rng = seeded();
    let samples = samples(&mut rng);
    let mut survivors = 0;
    for _ in 0..20_000 {
        let (data_type, chunk) = &samples[rng.random_range(0..samples.len())];
        let mut pages: Vec<PageBuffer> = chunk.pages.iter().take(4).map(copy).collect();
        for _ in 0..rng.random_range(1..4) {
            let page = rng.random_range(0..pages.len());
            mutate(&mut rng, &mut pages[page]);
        }
        // The column's type may be another than what was written, too.
        let data_type = if rng.random_range(0..8) == 0 {
            &samples[rng.random_range(0..samples.len())].0
        } else {
            data_type
        };
        let pages: Vec<_> = pages
            .into_iter()
            .enumerate()
            .filter_map(|(number, buffer)| {
                Page::verify(buffer, &page_identity(number), "column 'c'").ok()
            })
            .collect();
        let aux = pages
            .first()
            .and_then(|page| Aux::parse(page, data_type).ok())
            .unwrap_or(Aux::None);
        survivors += pages.len();
        for page in &pages {
            read_everything(&mut rng, page, &aux, data_type);
        }
        let mut builder = ColumnBuilder::new(data_type, 0).unwrap();
        let appended = pages
            .iter()
            .try_for_each(|page| builder.append_rows(page, &aux, 0..page.header().row_count));
        if let Ok(array) = appended.and_then(|()| builder.finish()) {
            array.to_data().validate_full().unwrap();
        }
    }
    assert!(
        survivors > 10_000,
        "too few mutated pages pass verify to test anything: {survivors}"
    );
}

pub(super) fn mutate(rng: &mut StdRng, page: &mut PageBuffer) {
    for _ in 0..rng.random_range(1..4) {
        let at = match rng.random_range(0..3) {
            0 => rng.random_range(8..64),
            1 => 64 + rng.random_range(0..256),
            _ => rng.random_range(64..8192),
        };
        // Not the identity: that is for another test.
        if (12..14).contains(&at) || (16..26).contains(&at) || (28..32).contains(&at) {
            continue;
        }
        page[at] = match rng.random_range(0..4) {
            0 => 0,
            1 => 255,
            2 => page[at] ^ 1 << rng.random_range(0..8),
            _ => rng.random(),
        };
    }
    header::seal(page);
}

pub(super) fn read_everything(rng: &mut StdRng, page: &Page, aux: &Aux, data_type: &DataType) {
    let rows = page.header().row_count;
    let start = rng.random_range(0..=rows);
    let range = start..rng.random_range(start..=rows);
    let some: Vec<u32> = range.clone().filter(|_| rng.random()).collect();
    let decoded = [
        decode(page, aux, data_type, range.clone()),
        gather(page, aux, data_type, &some),
    ];
    for array in decoded.into_iter().flatten() {
        array.to_data().validate_full().unwrap();
    }
    let mut row = RowValues::default();
    for single in some.into_iter().take(20).chain([rows]) {
        // Without auxiliary page, and with one that is not made for it.
        let _ = row.push(data_type, page, None, single);
        let _ = row.push(data_type, page, Some(page), single);
    }
    row.iter().for_each(drop);
    let (mut bytes, mut offsets) = (Vec::new(), Vec::new());
    let short = range.start..range.end.min(range.start + 100);
    if strings::decompress(page, aux, short, &mut bytes, &mut offsets).is_ok() {
        assert!(offsets.is_sorted());
    }
    if ints::is_integer_page(page) {
        let mut values = vec![0; range.len()];
        ints::unpack_i64(page, range.clone(), &mut values);
        if page.header().width <= 32 {
            ints::unpack_u32(page, range.clone(), &mut vec![0; range.len()]);
        }
        let mut selection = vec![0; range.len().div_ceil(64)];
        ints::select_range(
            page,
            range.clone(),
            rng.random(),
            rng.random(),
            &mut selection,
        );
        ints::select_bitmap(
            page,
            range.clone(),
            rng.random(),
            &[5, 6, 7],
            &mut selection,
        );
        ints::runs(page, range).into_iter().flatten().for_each(drop);
        if rows > 0 {
            ints::value(page, rows - 1);
        }
    }
}

/// Hostile pages of random bytes never get past `verify` into trouble either.
#[test]
fn random_payloads_do_no_harm() {
    let mut rng = seeded();
    for _ in 0..5_000 {
        let mut page = PageBuffer::zeroed();
        rng.fill(&mut page[64..]);
        let header = PageHeader {
            encoding: [
                Encoding::Const,
                Encoding::Raw,
                Encoding::Forbp,
                Encoding::Dict,
                Encoding::Fsst,
                Encoding::RawStr,
                Encoding::Rle,
                Encoding::Group,
            ][rng.random_range(0..8)],
            width: rng.random_range(0..70),
            flags: rng.random_range(0..16),
            column_group: IDENTITY.column_group,
            payload_length: rng.random_range(0..8200),
            table: IDENTITY.table,
            segment: IDENTITY.segment,
            page: 0,
            first_row: 0,
            generation: IDENTITY.generation,
            row_count: rng.random_range(0..70_000),
            null_count: 0,
            reference: rng.random_range(0..64),
            min: 0,
            max: 0,
        };
        header.write(&mut page);
        if let Ok(page) = Page::verify(page, &page_identity(0), "column 'c'") {
            let types = arrays::data_types();
            let data_type = &types[rng.random_range(0..types.len())];
            read_everything(&mut rng, &page, &Aux::None, data_type);
            for part in (0..3).filter_map(|part| page.part(part, "column 'c'").ok()) {
                read_everything(&mut rng, &part, &Aux::None, data_type);
            }
        }
    }
}
