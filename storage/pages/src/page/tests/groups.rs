//! Columns that share pages: each reads as it would from pages of its own.

use arrow::array::*;
use rand::RngExt;

use super::hostile::{copy, mutate, read_everything};
use super::round_trip::check_chunk;
use super::*;
use crate::flash::PageBuffer;

/// Columns of random types and of as many rows.
fn columns(rng: &mut StdRng, count: usize, rows: usize) -> Vec<ArrayRef> {
    let types = arrays::data_types();
    let mut column = || {
        let data_type = &types[rng.random_range(0..types.len())];
        match data_type {
            // Its values are longer than a page.
            DataType::FixedSizeBinary(20_000) | DataType::FixedSizeList(_, 3000) if rows > 100 => {
                arrays::array(rng, &DataType::Utf8View, rows)
            }
            _ => arrays::array(rng, data_type, rows),
        }
    };
    (0..count).map(|_| column()).collect()
}

/// What the pages say of each column that shares them.
fn read(encoded: &EncodedGroups, columns: &[ArrayRef]) -> Vec<Option<ReadChunk>> {
    let pages = encoded.pages.iter().enumerate().map(|(number, buffer)| {
        Page::verify(copy(buffer), &page_identity(number), "columns").unwrap()
    });
    let pages: Vec<Arc<Page>> = pages.collect();
    let of_groups = |column: &&GroupedColumn| usize::from(column.aux_pages);
    let aux_pages: usize = encoded
        .columns
        .iter()
        .flatten()
        .map(|c| of_groups(&c))
        .sum();
    let (mut part, mut next_aux) = (0, 0);
    let chunks = encoded.columns.iter().zip(columns).map(|(column, array)| {
        let column = column.as_ref()?;
        let aux_page = (column.aux_pages > 0).then(|| {
            next_aux += 1;
            Arc::clone(&pages[next_aux - 1])
        });
        let parts = pages[aux_pages..].iter();
        let parts = parts.map(|page| Arc::new(page.part(part, "columns").unwrap()));
        let pages = parts.collect();
        part += 1;
        Some(ReadChunk {
            aux: parse_aux(aux_page.as_deref(), array.data_type()),
            aux_page,
            pages,
            zones: column.zones.clone(),
            stats: column.stats.clone(),
        })
    });
    chunks.collect()
}

#[test]
fn columns_that_share_pages_come_back() {
    let mut rng = seeded();
    let (mut shared, mut alone) = (0, 0);
    for _ in 0..60 {
        let rows = match rng.random_range(0..4) {
            0 => rng.random_range(1..10),
            1 => rng.random_range(1..20_000),
            _ => rng.random_range(1..3000),
        };
        let count = rng.random_range(2..12);
        let columns = columns(&mut rng, count, rows);
        let Some(encoded) = encode_groups(&columns, IDENTITY).unwrap() else {
            continue;
        };
        for (chunk, array) in read(&encoded, &columns).into_iter().zip(&columns) {
            let Some(chunk) = chunk else {
                alone += 1;
                continue;
            };
            shared += 1;
            let alone = encode_chunk(array, IDENTITY).unwrap();
            // As text: NaN is not equal to itself.
            assert_eq!(format!("{:?}", chunk.stats), format!("{:?}", alone.stats));
            assert_eq!(
                usize::from(alone.aux_pages),
                usize::from(!matches!(chunk.aux, Aux::None))
            );
            check_chunk(&mut rng, array, &chunk);
            // A part's bytes are those of a page by itself.
            let part = &chunk.pages[rng.random_range(0..chunk.pages.len())];
            let mut page = PageBuffer::zeroed();
            page.copy_from_slice(&part.bytes());
            let identity = page_identity(usize::from(part.header().page));
            let page = Page::verify(page, &identity, "columns").unwrap();
            assert_eq!(
                (page.header(), page.payload()),
                (part.header(), part.payload())
            );
        }
    }
    assert!(
        shared > 100 && alone > 0,
        "{shared} columns share pages, {alone} do not"
    );
}

/// Rows of numbers and short texts take about what the columns alone take.
#[test]
fn pages_are_full() {
    let mut rng = seeded();
    let rows = 65_536;
    let mut number = |bits: u32| -> ArrayRef {
        let values = (0..rows).map(|_| rng.random::<u32>() >> (32 - bits));
        Arc::new(Int64Array::from_iter_values(values.map(i64::from)))
    };
    let columns: Vec<ArrayRef> = [20, 14, 3, 6, 24, 4, 4, 2, 1, 12, 12, 12, 30, 30]
        .map(&mut number)
        .into();
    let grouped = encode_groups(&columns, IDENTITY).unwrap().unwrap();
    let alone = columns.iter().map(|c| encode_chunk(c, IDENTITY).unwrap());
    let alone: usize = alone.map(|chunk| chunk.pages.len()).sum();
    assert!(
        grouped.pages.len() * 100 <= alone * 125,
        "{} pages in place of {alone}",
        grouped.pages.len()
    );
}

#[test]
fn what_does_not_fit_a_group_has_pages_of_its_own() {
    let mut rng = seeded();
    let mut long = || -> String { (0..5000).map(|_| rng.random_range(' '..='~')).collect() };
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..50));
    let texts: ArrayRef = Arc::new(StringViewArray::from_iter_values((0..50).map(|_| long())));
    let columns = [numbers.clone(), texts.clone(), numbers.clone()];
    let encoded = encode_groups(&columns, IDENTITY).unwrap().unwrap();
    let shares: Vec<bool> = encoded.columns.iter().map(Option::is_some).collect();
    assert_eq!(shares, [true, false, true]);
    assert!(
        encode_groups(&[numbers.clone(), texts], IDENTITY)
            .unwrap()
            .is_none()
    );
    assert!(
        encode_groups(std::slice::from_ref(&numbers), IDENTITY)
            .unwrap()
            .is_none()
    );
    assert!(
        encode_groups(&[numbers.slice(0, 0), numbers.slice(0, 0)], IDENTITY)
            .unwrap()
            .is_none()
    );
    // More columns than a page has room for.
    let many = vec![numbers; 500];
    let encoded = encode_groups(&many, IDENTITY).unwrap().unwrap();
    let shares = encoded.columns.iter().flatten().count();
    assert!((50..300).contains(&shares), "{shares}");
    for (chunk, array) in read(&encoded, &many).iter().zip(&many) {
        if let Some(chunk) = chunk {
            check_chunk(&mut seeded(), array, chunk);
        }
    }
}

/// Group pages changed at random, but with a right checksum: what passes is read without panic.
#[test]
fn hostile_group_pages_do_no_harm() {
    let mut rng = seeded();
    let samples: Vec<_> = (0..40)
        .filter_map(|_| {
            let rows = rng.random_range(1..2000);
            let columns = columns(&mut rng, 4, rows);
            let encoded = encode_groups(&columns, IDENTITY).unwrap()?;
            let grouped = encoded.columns.iter().zip(&columns);
            let types: Vec<DataType> = grouped
                .filter(|(column, _)| column.is_some())
                .map(|(_, array)| array.data_type().clone())
                .collect();
            Some((encoded, types))
        })
        .collect();
    let (mut verified, mut opened) = (0, 0);
    for _ in 0..10_000 {
        let (encoded, types) = &samples[rng.random_range(0..samples.len())];
        let number = encoded.pages.len() - 1;
        let mut page = copy(&encoded.pages[number]);
        mutate(&mut rng, &mut page);
        let Ok(page) = Page::verify(page, &page_identity(number), "columns") else {
            continue;
        };
        verified += 1;
        for (part, data_type) in (0..types.len() as u16 + 1).zip(types.iter().cycle()) {
            if let Ok(part) = page.part(part, "columns") {
                opened += 1;
                read_everything(&mut rng, &part, &Aux::None, data_type);
            }
        }
        // The page itself is no column's, unless it says another encoding by now.
        let is_group = page.header().encoding == Encoding::Group;
        assert!(!is_group || decode(&page, &Aux::None, &types[0], 0..1).is_err());
    }
    assert!(
        verified > 2000 && opened > 5000,
        "{verified} pages, {opened} parts"
    );
}

#[test]
fn a_flipped_bit_in_a_group_page_is_found() {
    let mut rng = seeded();
    let columns = columns(&mut rng, 5, 300);
    let Some(encoded) = encode_groups(&columns, IDENTITY).unwrap() else {
        return;
    };
    let number = rng.random_range(0..encoded.pages.len());
    for byte in 0..encoded.pages[number].len() {
        let mut page = copy(&encoded.pages[number]);
        page[byte] ^= 1 << rng.random_range(0..8);
        assert!(Page::verify(page, &page_identity(number), "columns").is_err());
    }
}
