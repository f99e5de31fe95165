//! What `docs/flash-format.md` says against what flashmesh writes and reads.

mod reader;

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::{DataType, Field, Int32Type, Schema};
use arrow::ipc::convert::fb_to_schema;
use arrow::ipc::root_as_schema;
use flashmesh_storage::flash::PageBuffer;
use flashmesh_storage::page::{
    Aux, ChunkIdentity, Page, PageIdentity, decode, encode_chunk, encode_groups,
};
use flashmesh_storage::segment::row_id;
use flashmesh_storage::table::{Database, DatabaseOptions, LoadTarget, TableLayout};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reader::{CONST, CONTINUES, Cell, DICT, FORBP, FSST, Message, RAW, RAWSTR, RLE, SCALED, key};
use redb::{ReadableDatabase, TableDefinition};
use roaring::RoaringBitmap;

const DOCUMENT: &str = include_str!("../../../docs/flash-format.md");

const IDENTITY: ChunkIdentity = ChunkIdentity {
    table: 7,
    segment: 3,
    column_group: 2,
    generation: 9,
};

/// A random generator whose seed is printed; FLASHMESH_TEST_SEED replays one.
fn seeded() -> StdRng {
    let seed = std::env::var("FLASHMESH_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(rand::random);
    println!("replay with FLASHMESH_TEST_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// The pages of an array's chunk.
fn pages(array: &dyn Array) -> Vec<PageBuffer> {
    encode_chunk(array, IDENTITY).unwrap().pages
}

fn read(pages: &[PageBuffer]) -> Vec<Cell> {
    reader::chunk(pages.iter().map(|page| &page[..]))
}

/// The fenced blocks of a language in a section of the document.
fn block(section: &str, language: &str) -> &'static str {
    let (_, rest) = DOCUMENT.split_once(&format!("\n### {section}\n")).unwrap();
    let (_, rest) = rest.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0
}

/// A page of the document: lines of address and bytes, zeros between them.
fn hexdump(section: &str) -> PageBuffer {
    let mut page = PageBuffer::zeroed();
    for line in block(section, "hexdump").lines() {
        let (address, bytes) = line.split_once("  ").unwrap();
        let address = usize::from_str_radix(address, 16).unwrap();
        for (place, byte) in (address..).zip(bytes.split(' ')) {
            page[place] = u8::from_str_radix(byte, 16).unwrap();
        }
    }
    page
}

/// Checks that flashmesh writes the page of the document for `array`, and that flashmesh and the
/// reader of this test find the values `cells` in it.
fn check_dump(section: &str, array: ArrayRef, cells: &[Cell]) {
    let dump = hexdump(section);
    let written = pages(&array);
    assert_eq!(written.len(), 1);
    for place in (0..dump.len()).step_by(16) {
        let line = place..place + 16;
        assert_eq!(
            written[0][line.clone()],
            dump[line],
            "{section}, {place:04x}"
        );
    }
    assert_eq!(read(&written), cells);
    let identity = PageIdentity {
        table: IDENTITY.table,
        segment: IDENTITY.segment,
        column_group: IDENTITY.column_group,
        page: 0,
        generation: IDENTITY.generation,
    };
    let page = Page::verify(dump, &identity, section).unwrap();
    let rows = 0..array.len() as u32;
    let decoded = decode(&page, &Aux::None, array.data_type(), rows).unwrap();
    assert_eq!(&decoded, &array);
}

#[test]
fn the_integers_of_the_document_are_what_is_written_and_read() {
    let section = "Int32, FORBP";
    let values: Vec<Option<i32>> = block(section, "values")
        .split_whitespace()
        .map(|value| (value != "NULL").then(|| value.parse().unwrap()))
        .collect();
    assert_eq!(values.len(), 20);
    let cell = |value: &Option<i32>| value.map_or(Cell::Null, |value| Cell::Integer(value.into()));
    let cells: Vec<Cell> = values.iter().map(cell).collect();
    check_dump(section, Arc::new(Int32Array::from(values)), &cells);
}

#[test]
fn the_text_of_the_document_is_what_is_written_and_read() {
    let section = "Utf8View, RAWSTR";
    // Text stands between quotes, NULL between texts.
    let values: Vec<Option<&str>> = block(section, "values")
        .trim()
        .split('"')
        .enumerate()
        .flat_map(|(place, part)| match place % 2 {
            1 => vec![Some(part)],
            _ => part.split_whitespace().map(|_| None).collect(),
        })
        .collect();
    assert_eq!(values.len(), 6);
    let cell = |value: &Option<&str>| {
        value.map_or(Cell::Null, |value| Cell::Bytes(value.as_bytes().to_vec()))
    };
    let cells: Vec<Cell> = values.iter().map(cell).collect();
    check_dump(section, Arc::new(StringViewArray::from(values)), &cells);
}

#[test]
fn the_checksum_is_that_of_the_document() {
    assert_eq!(reader::crc32c(b"123456789"), 0xe306_9283);
}

/// Reads what flashmesh wrote, compares, and gives the encodings met, SCALED FORBP as 8 more.
fn check(array: &dyn Array, cells: &[Cell], zone_key: impl Fn(&Cell) -> i64) -> BTreeSet<u8> {
    let written = pages(array);
    let found = read(&written);
    assert_eq!(found.len(), cells.len());
    for (row, (found, cell)) in found.iter().zip(cells).enumerate() {
        assert_eq!(found, cell, "row {row} of {}", array.data_type());
    }
    let mut encodings = BTreeSet::new();
    for (number, page) in written.iter().enumerate() {
        let header = reader::header(page);
        let identity = (header.table, header.segment, header.column_group);
        assert_eq!(identity, (7, 3, 2));
        assert_eq!((header.generation, usize::from(header.page)), (9, number));
        encodings.insert(header.encoding + if header.flags & SCALED != 0 { 8 } else { 0 });
        if header.flags & reader::AUXILIARY != 0 || header.null_count == header.row_count {
            assert_eq!((header.min, header.max), (i64::MAX, i64::MIN));
            continue;
        }
        let first = usize::from(header.first_row);
        for cell in &cells[first..first + header.row_count] {
            let range = header.min..=header.max;
            assert!(*cell == Cell::Null || range.contains(&zone_key(cell)));
        }
    }
    encodings
}

/// Integers with this share of NULLs, stored and read.
fn check_integers(rng: &mut StdRng, values: &[i64]) -> BTreeSet<u8> {
    let rate = [0.0, 0.0, 0.02, 0.9][rng.random_range(0..4)];
    let rows: Vec<Option<i64>> = values
        .iter()
        .map(|value| (!rng.random_bool(rate)).then_some(*value))
        .collect();
    let cells: Vec<Cell> = rows
        .iter()
        .map(|value| value.map_or(Cell::Null, Cell::Integer))
        .collect();
    // A dictionary has integers as 8 bytes.
    let array = Int64Array::from(rows);
    let in_dictionary = reader::header(&pages(&array)[0]).flags & reader::AUXILIARY != 0;
    let cells: Vec<Cell> = cells
        .into_iter()
        .map(|cell| match cell {
            Cell::Integer(value) if in_dictionary => Cell::Bytes(value.to_le_bytes().to_vec()),
            cell => cell,
        })
        .collect();
    check(&array, &cells, |cell| match cell {
        Cell::Bytes(bytes) => i64::from_le_bytes(bytes.as_slice().try_into().unwrap()),
        Cell::Integer(value) => *value,
        Cell::Null => unreachable!("a NULL has no key"),
    })
}

/// Binary likewise.
fn check_bytes(rng: &mut StdRng, values: &[Vec<u8>]) -> BTreeSet<u8> {
    let rate = [0.0, 0.0, 0.02, 0.9][rng.random_range(0..4)];
    let rows: Vec<Option<&[u8]>> = values
        .iter()
        .map(|value| (!rng.random_bool(rate)).then_some(value.as_slice()))
        .collect();
    let cells: Vec<Cell> = rows
        .iter()
        .map(|value| value.map_or(Cell::Null, |value| Cell::Bytes(value.to_vec())))
        .collect();
    check(&BinaryViewArray::from_iter(rows), &cells, bytes_key)
}

fn bytes_key(cell: &Cell) -> i64 {
    match cell {
        Cell::Bytes(bytes) => key::bytes(bytes),
        other => panic!("{other:?} among bytes"),
    }
}

fn noise(rng: &mut StdRng, length: usize) -> Vec<u8> {
    (0..length).map(|_| rng.random()).collect()
}

#[test]
fn random_pages_of_integers_read_as_the_document_says() {
    let mut rng = seeded();
    let mut met = BTreeSet::new();
    for width in 0..=64 {
        let mask = u64::MAX.checked_shr(64 - width).unwrap_or(0);
        let rows = rng.random_range(1..4000);
        let reference: i64 = rng.random();
        let values: Vec<i64> = (0..rows)
            .map(|_| reference.wrapping_add((rng.random::<u64>() & mask) as i64))
            .collect();
        met.extend(check_integers(&mut rng, &values));
    }
    assert!(met.contains(&CONST) && met.contains(&FORBP));

    for _ in 0..4 {
        let (rows, step) = (rng.random_range(9000..40_000), rng.random_range(2..1 << 30));
        let values: Vec<i64> = (0..rows)
            .map(|_| rng.random_range(-900..900) * step)
            .collect();
        met.extend(check_integers(&mut rng, &values));

        let few: Vec<i64> = (0..rng.random_range(2..1000))
            .map(|_| rng.random())
            .collect();
        let values: Vec<i64> = (0..rows)
            .map(|_| few[rng.random_range(0..few.len())])
            .collect();
        met.extend(check_integers(&mut rng, &values));

        let mut value = 0;
        let runs = rng.random_range(20..2000);
        let values: Vec<i64> = (0..rows)
            .map(|_| {
                if rng.random_range(0..runs) == 0 {
                    value = rng.random::<i64>() >> rng.random_range(0..40);
                }
                value
            })
            .collect();
        met.extend(check_integers(&mut rng, &values));
    }
    for encoding in [CONST, FORBP, FORBP + 8, DICT, RLE] {
        assert!(met.contains(&encoding), "{encoding} of {met:?}");
    }
}

#[test]
fn random_pages_of_text_read_as_the_document_says() {
    let mut rng = seeded();
    let words = [
        "carefully ",
        "final ",
        "deposits ",
        "sleep ",
        "ironic ",
        "packages ",
    ];
    let phrase = |rng: &mut StdRng, words_each: usize| -> Vec<u8> {
        let count = rng.random_range(0..=words_each);
        let words: String = (0..count)
            .map(|_| words[rng.random_range(0..words.len())])
            .collect();
        format!("{words}{}", rng.random::<u16>()).into_bytes()
    };
    let mut met = BTreeSet::new();
    let mut continues = BTreeSet::new();
    for _ in 0..6 {
        let rows = rng.random_range(1..3000);
        // Noise does not compress, a few of them make a dictionary, phrases compress.
        let most = rng.random_range(1..200);
        let values: Vec<Vec<u8>> = (0..rows)
            .map(|_| {
                let length = rng.random_range(0..most);
                noise(&mut rng, length)
            })
            .collect();
        met.extend(check_bytes(&mut rng, &values));
        let few: Vec<Vec<u8>> = (0..rng.random_range(1..50))
            .map(|_| noise(&mut rng, 60))
            .collect();
        let values: Vec<Vec<u8>> = (0..20_000)
            .map(|_| few[rng.random_range(0..few.len())].clone())
            .collect();
        met.extend(check_bytes(&mut rng, &values));
        let values: Vec<Vec<u8>> = (0..4000).map(|_| phrase(&mut rng, 12)).collect();
        met.extend(check_bytes(&mut rng, &values));
        met.extend(check_bytes(&mut rng, &vec![b"one".to_vec(); rows]));
        // Values longer than a page, of either kind, and full of escapes of escapes.
        let long: Vec<Vec<u8>> = (0..12)
            .map(|row| match row % 4 {
                0 => {
                    let length = rng.random_range(0..30_000);
                    noise(&mut rng, length)
                }
                1 => phrase(&mut rng, 12_000),
                2 => vec![255; rng.random_range(0..20_000)],
                _ => phrase(&mut rng, 3),
            })
            .collect();
        let phrases: Vec<_> = (0..20).map(|_| phrase(&mut rng, 12_000)).collect();
        let noises: Vec<_> = (0..5).map(|_| noise(&mut rng, 20_000)).collect();
        for values in [long, phrases, noises] {
            met.extend(check_bytes(&mut rng, &values));
            let array = BinaryViewArray::from_iter_values(values);
            let headers = pages(&array).into_iter().map(|page| reader::header(&page));
            let continued = headers.filter(|header| header.flags & CONTINUES != 0);
            continues.extend(continued.map(|header| header.encoding));
        }
    }
    for encoding in [CONST, DICT, FSST, RAWSTR] {
        assert!(met.contains(&encoding), "{encoding} of {met:?}");
    }
    assert_eq!(continues, BTreeSet::from([FSST, RAWSTR]));
}

#[test]
fn random_pages_of_other_types_read_as_the_document_says() {
    let mut rng = seeded();
    let mut met = BTreeSet::new();
    let special = [
        0.0,
        -0.0,
        f64::NAN,
        -f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    for distinct in [1, 300, 20_000] {
        let pool: Vec<f64> = (0..distinct)
            .map(|_| match rng.random_range(0..9) {
                0 => special[rng.random_range(0..special.len())],
                _ => f64::from_bits(rng.random()),
            })
            .collect();
        let rows: Vec<Option<f64>> = (0..20_000)
            .map(|_| (!rng.random_bool(0.1)).then(|| pool[rng.random_range(0..distinct)]))
            .collect();
        let bytes = |value: f64| Cell::Bytes(value.to_le_bytes().to_vec());
        let cells: Vec<Cell> = rows.iter().map(|v| v.map_or(Cell::Null, bytes)).collect();
        let zone_key = |cell: &Cell| match cell {
            Cell::Bytes(bytes) => {
                key::float(f64::from_le_bytes(bytes.as_slice().try_into().unwrap()))
            }
            other => panic!("{other:?} among floats"),
        };
        met.extend(check(&Float64Array::from(rows), &cells, zone_key));
    }
    assert_eq!(met, BTreeSet::from([CONST, RAW, DICT]));

    // Numbers of which some do not fit an i64.
    let values: Vec<u64> = (0..3000).map(|_| rng.random()).collect();
    let cells: Vec<Cell> = values
        .iter()
        .map(|value| Cell::Bytes(value.to_le_bytes().into()))
        .collect();
    let zone_key = |cell: &Cell| match cell {
        Cell::Bytes(bytes) => {
            let value = u64::from_le_bytes(bytes.as_slice().try_into().unwrap());
            i64::try_from(value).unwrap_or(i64::MAX)
        }
        other => panic!("{other:?} among wide numbers"),
    };
    let array = UInt64Array::from(values);
    assert_eq!(check(&array, &cells, zone_key), BTreeSet::from([RAW]));

    // Values longer than a page.
    let size = 20_000;
    let values: Vec<Vec<u8>> = (0..5).map(|_| noise(&mut rng, size)).collect();
    let array = FixedSizeBinaryArray::try_from_iter(values.iter()).unwrap();
    let cells: Vec<Cell> = values.iter().map(|v| Cell::Bytes(v.clone())).collect();
    assert_eq!(check(&array, &cells, bytes_key), BTreeSet::from([RAW]));

    let lists = lists(&mut rng, 3000);
    let array = ListArray::from_iter_primitive::<Int32Type, _, _>(lists.clone());
    let found: Vec<_> = read(&pages(&array)).iter().map(list).collect();
    assert_eq!(found, lists);
}

type List = Option<Vec<Option<i32>>>;

fn lists(rng: &mut StdRng, rows: usize) -> Vec<List> {
    let item = |rng: &mut StdRng| (!rng.random_bool(0.2)).then(|| rng.random());
    let list = |rng: &mut StdRng| (0..rng.random_range(0..9)).map(|_| item(rng)).collect();
    (0..rows)
        .map(|_| (!rng.random_bool(0.1)).then(|| list(rng)))
        .collect()
}

fn list(cell: &Cell) -> List {
    match cell {
        Cell::Bytes(bytes) => Some(reader::list_of_i32(bytes)),
        Cell::Null => None,
        other => panic!("{other:?} among lists"),
    }
}

/// From the folder to the rows, by §9.
/// Columns that share pages: those of a segment of which one has a dictionary, one symbols and one
/// values that are too long.
#[test]
fn group_pages_read_as_the_document_says() {
    let mut rng = seeded();
    let rows = rng.random_range(3000..9000);
    let numbers: Vec<Option<i64>> = (0..rows)
        .map(|row| (row % 11 != 3).then(|| rng.random::<i64>() >> 40))
        .collect();
    let codes: Vec<String> = (0..rows)
        .map(|_| format!("a rather long name of code {}", rng.random_range(0..9)))
        .collect();
    let texts: Vec<Option<String>> = (0..rows)
        .map(|row| (row % 5 > 0).then(|| format!("carefully packed text {}", rng.random::<u32>())))
        .collect();
    let longs: Vec<Vec<u8>> = (0..rows)
        .map(|row| noise(&mut rng, if row == 0 { 1017 } else { 3 }))
        .collect();
    let constants = vec![5; rows];
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(numbers.clone())),
        Arc::new(StringViewArray::from_iter_values(&codes)),
        Arc::new(BinaryViewArray::from_iter_values(&longs)),
        Arc::new(StringViewArray::from_iter(texts.clone())),
        Arc::new(Int32Array::from(constants)),
    ];
    let text = |text: &String| Cell::Bytes(text.as_bytes().to_vec());
    let expected: [Vec<Cell>; 4] = [
        numbers
            .iter()
            .map(|n| n.map_or(Cell::Null, Cell::Integer))
            .collect(),
        codes.iter().map(text).collect(),
        texts
            .iter()
            .map(|t| t.as_ref().map_or(Cell::Null, text))
            .collect(),
        vec![Cell::Integer(5); rows],
    ];
    let identity = ChunkIdentity {
        column_group: 65_534,
        ..IDENTITY
    };
    let encoded = encode_groups(&arrays, identity).unwrap().unwrap();
    let shares: Vec<_> = encoded.columns.iter().map(Option::is_some).collect();
    assert_eq!(shares, [true, true, false, true, true]);
    let columns: Vec<_> = encoded.columns.iter().flatten().collect();
    let aux_pages = columns.iter().map(|c| usize::from(c.aux_pages));
    let (aux, groups) = encoded.pages.split_at(aux_pages.sum());
    assert_eq!(aux.len(), 2);
    let groups: Vec<Vec<Vec<u8>>> = groups.iter().map(|page| reader::parts(page)).collect();
    let mut aux = aux.iter();
    for (number, (column, expected)) in columns.iter().zip(&expected).enumerate() {
        let own = aux.by_ref().take(column.aux_pages.into());
        let own = own.map(|page| &page[..]);
        let parts = groups.iter().map(|parts| parts[number].as_slice());
        let pages: Vec<&[u8]> = own.chain(parts.clone()).collect();
        assert!(reader::chunk(pages) == *expected, "column {number}");
        for (part, zone) in parts.zip(&column.zones) {
            let header = reader::header(part);
            assert_eq!((header.min, header.max), (zone.min, zone.max));
            assert_eq!(header.null_count, zone.null_count as usize);
        }
    }
    for (number, page) in encoded.pages.iter().enumerate() {
        let header = reader::header(page);
        assert_eq!(header.column_group, 65_534);
        assert_eq!(usize::from(header.page), number);
    }
}

#[test]
fn a_database_reads_as_the_document_says() {
    let mut rng = seeded();
    let rows = 100_000;
    let ids: Vec<i64> = (0..rows as i64).map(|row| row * 3 - 5000).collect();
    let names: Vec<Option<String>> = (0..rows)
        .map(|row| (row % 7 != 0).then(|| format!("Customer#{:09}", row * 7919 % 10007)))
        .collect();
    let ratios: Vec<Option<f64>> = (0..rows)
        .map(|row| (row % 5 != 0).then(|| rng.random()))
        .collect();
    let lists = lists(&mut rng, rows);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from(ids.clone()))),
        ("name", Arc::new(StringArray::from(names.clone()))),
        ("ratio", Arc::new(Float64Array::from(ratios.clone()))),
        (
            "list",
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(
                lists.clone(),
            )),
        ),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &batch);
    let is_deleted = |row: usize| row % 31 == 4 || (5_000..6_000).contains(&row);
    let deleted = (0..rows).filter(|row| is_deleted(*row));
    let deleted = delete(folder.path(), deleted);

    let catalog = redb::Database::open(folder.path().join("catalog.redb")).unwrap();
    let card = std::fs::read(folder.path().join("card0.flash")).unwrap();
    let catalog = catalog.begin_read().unwrap();
    let meta: TableDefinition<&str, u32> = TableDefinition::new("meta");
    let meta = catalog.open_table(meta).unwrap();
    assert_eq!(meta.get("format").unwrap().unwrap().value(), 7);
    let records: TableDefinition<&[u8], &[u8]> = TableDefinition::new("records");
    let records = catalog.open_table(records).unwrap();
    let get = |key: &[u8]| records.get(key).unwrap().unwrap().value().to_vec();
    let name = [&[2, 0, 0, 0, 6][..], b"public", b"t"].concat();
    let table = reader::unseal(&name, &get(&name)).number(1) as u32;
    let key = [&[3][..], &table.to_be_bytes()].concat();
    let record = get(&key);
    let record = reader::unseal(&key, &record);
    assert_eq!(record.number(7), rows as u64);
    assert_eq!(record.number(9), deleted);
    let root = get(&[0]);
    let root = reader::unseal(&[0], &root);
    assert_eq!([4, 5, 6, 7].map(|count| root.number(count)), [1, 1, 0, 0]);
    assert!(root.number(2) > u64::from(table));
    let schema = fb_to_schema(root_as_schema(record.all(1).next().unwrap()).unwrap());
    let types: Vec<&DataType> = schema.fields().iter().map(|f| f.data_type()).collect();
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    let list_type = DataType::List(item);
    assert_eq!(
        types,
        [
            &DataType::Int64,
            &DataType::Utf8View,
            &DataType::Float64,
            &list_type
        ]
    );
    check_statistics(&record, &ids, &names);

    let first = [&[4][..], &table.to_be_bytes(), &[0; 4]].concat();
    let last = [&[4][..], &table.to_be_bytes(), &[255; 4]].concat();
    let mut in_order: Vec<(u64, u32, Vec<u8>, Vec<u8>)> = records
        .range::<&[u8]>(first.as_slice()..=last.as_slice())
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|(key, sealed)| {
            let (key, sealed) = (key.value().to_vec(), sealed.value().to_vec());
            let order = reader::unseal(&key, &sealed).number(3);
            let segment = u32::from_be_bytes(key[5..].try_into().unwrap());
            (order, segment, key, sealed)
        })
        .collect();
    in_order.sort();
    assert!(in_order.len() >= 2);
    assert_eq!(record.number(6), in_order.len() as u64);
    let mut cells = vec![Vec::new(); 4];
    let mut in_pages = 0;
    for (_, segment, key, sealed) in &in_order {
        let record = reader::unseal(key, sealed);
        assert_eq!(record.all(4).count(), 4);
        let identity = ChunkIdentity {
            table,
            segment: *segment,
            column_group: 0,
            generation: record.number(1) as u32,
        };
        let indexes = record.all(5).next().map(Message::parse);
        let indexes = indexes.map(|run| read_page_indexes(&card, &run, identity));
        in_pages += usize::from(indexes.is_some());
        let deleted = record.all(6).next().expect("some of each segment");
        let deleted = RoaringBitmap::deserialize_from(deleted).unwrap();
        for (column, chunk) in record.all(4).enumerate() {
            let identity = ChunkIdentity {
                column_group: column as u16,
                ..identity
            };
            let chunk = Message::parse(chunk);
            let index = indexes.as_ref().map(|indexes| match &indexes[column] {
                Cell::Bytes(index) => Message::parse(index),
                other => panic!("{other:?} among page indexes"),
            });
            let rows = read_chunk(&card, &chunk, index.as_ref().unwrap_or(&chunk), identity);
            if let Some(index) = &index {
                check_totals(&chunk, index, rows.len());
            }
            assert_eq!(rows.len() as u64, record.number(2));
            let left = (0..).zip(rows).filter(|(row, _)| !deleted.contains(*row));
            cells[column].extend(left.map(|(_, cell)| cell));
        }
    }
    assert!(in_pages > 0);
    let text = |name: Option<String>| name.map_or(Cell::Null, |n| Cell::Bytes(n.into_bytes()));
    let float = |v: Option<f64>| v.map_or(Cell::Null, |v| Cell::Bytes(v.to_le_bytes().into()));
    let left = |cells: Vec<Cell>| -> Vec<Cell> {
        let cells = cells.into_iter().enumerate();
        cells
            .filter(|(row, _)| !is_deleted(*row))
            .map(|(_, cell)| cell)
            .collect()
    };
    assert!(cells[0] == left(ids.into_iter().map(Cell::Integer).collect()));
    assert!(cells[1] == left(names.into_iter().map(text).collect()));
    assert!(cells[2] == left(ratios.into_iter().map(float).collect()));
    let lists = lists.into_iter().enumerate();
    let lists = lists
        .filter(|(row, _)| !is_deleted(*row))
        .map(|(_, list)| list);
    assert!(cells[3].iter().map(list).eq(lists));
}

/// What was committed and is in the log alone, by §12.
#[test]
fn a_log_reads_as_the_document_says() {
    let folder = tempfile::tempdir().unwrap();
    let batch = |ids: std::ops::Range<i64>| {
        let names = ids
            .clone()
            .map(|id| (id % 3 != 0).then(|| format!("name {id}")));
        let names: StringArray = names.collect();
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("id", Arc::new(Int64Array::from_iter_values(ids))),
            ("name", Arc::new(names)),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    write(folder.path(), &batch(0..1000));
    let database = Database::open(folder.path(), DatabaseOptions::default()).unwrap();
    for first in (1000..1010).step_by(2) {
        let load = database
            .begin_load(LoadTarget::Append {
                schema: "public".into(),
                table: "t".into(),
            })
            .unwrap();
        let mut writer = load.writer().unwrap();
        writer.append(&batch(first..first + 2)).unwrap();
        writer.finish().unwrap();
        load.commit().unwrap();
    }
    let log = std::fs::read(folder.path().join("commits.log")).unwrap();
    let (mut place, mut last) = (0usize, None);
    let (mut ids, mut names) = (Vec::new(), Vec::new());
    while let Some(end) = (place + 32).checked_add(reader::u32_at(&log, place) as usize)
        && end <= log.len()
        && let sums = [&log[place..place + 4], &log[place + 8..end]].concat()
        && reader::u32_at(&log, place + 4) == reader::crc32c(&sums)
    {
        let number = reader::u64_at(&log, place + 8);
        assert!(last.is_none_or(|last: u64| last + 1 == number));
        // Each was waited for before the next one was made.
        assert_eq!(reader::u64_at(&log, place + 16), number - 1);
        last = Some(number);
        let message = Message::parse(&log[place + 32..end]);
        let pages = message.all(2).map(|page| {
            let page = Message::parse(page);
            let mut bytes = page.all(2).next().unwrap().to_vec();
            bytes.resize(8192, 0);
            (page.number(1), bytes)
        });
        let pages: std::collections::BTreeMap<u64, Vec<u8>> = pages.collect();
        let edit = Message::parse(message.all(1).next().unwrap());
        let operations = edit.all(2).map(Message::parse);
        for put in operations.flat_map(|o| o.all(5).collect::<Vec<_>>()) {
            let record = Message::parse(Message::parse(put).all(3).next().unwrap());
            for (cells, chunk) in [&mut ids, &mut names].into_iter().zip(record.all(4)) {
                let chunk = Message::parse(chunk);
                assert_eq!(chunk.number(2), 65535);
                let count = chunk.packed(5).len() as u64 + chunk.number(4);
                let numbers = chunk.number(3)..chunk.number(3) + count;
                let of_chunk = numbers.map(|page| pages[&page].as_slice());
                cells.extend(reader::chunk(of_chunk));
            }
        }
        place = end.next_multiple_of(8);
    }
    assert!(last.is_some());
    let name = |id: i64| match id % 3 {
        0 => Cell::Null,
        _ => Cell::Bytes(format!("name {id}").into()),
    };
    assert!(ids.into_iter().eq((1000..1010).map(Cell::Integer)));
    assert!(names.into_iter().eq((1000..1010).map(name)));
    drop(database);
}

/// Deletes rows, numbered as they were written; gives how many.
fn delete(folder: &std::path::Path, rows: impl Iterator<Item = usize>) -> u64 {
    let database = Database::open(folder, DatabaseOptions::default()).unwrap();
    let version = database.snapshot("public", "t").unwrap();
    let ids = version.segments.iter().flat_map(|segment| {
        let rows = 0..segment.rows;
        rows.map(|row| row_id(segment.id, row))
    });
    let ids: Vec<u64> = ids.collect();
    let gone = UInt64Array::from_iter_values(rows.map(|row| ids[row]));
    let batch = RecordBatch::try_from_iter([("row_id", Arc::new(gone) as ArrayRef)]).unwrap();
    let load = database
        .begin_load(LoadTarget::Change {
            schema: "public".into(),
            table: "t".into(),
            version,
        })
        .unwrap();
    let mut writer = load.writer().unwrap();
    writer.append(&batch).unwrap();
    writer.finish().unwrap();
    load.commit().unwrap()
}

fn write(folder: &std::path::Path, batch: &RecordBatch) {
    write_as(folder, batch, TableLayout::Column);
}

fn write_as(folder: &std::path::Path, batch: &RecordBatch, layout: TableLayout) {
    let database = Database::open(folder, DatabaseOptions::default()).unwrap();
    let load = database
        .begin_load(LoadTarget::Create {
            layout,
            distribution: None,
            retention: std::time::Duration::ZERO,
            defaults: vec![],
            checks: vec![],
            schema: "public".into(),
            table: "t".into(),
            arrow_schema: Arc::new(Schema::clone(&batch.schema())),
            or_replace: false,
            indexes: vec![],
        })
        .unwrap();
    let mut writer = load.writer().unwrap();
    writer.append(batch).unwrap();
    writer.finish().unwrap();
    load.commit().unwrap();
}

/// A table whose columns share pages, from the catalog's records on.
#[test]
fn a_table_whose_columns_share_pages_reads_as_the_document_says() {
    let mut rng = seeded();
    let folder = tempfile::tempdir().unwrap();
    let ids: Vec<i64> = (0..20_000).map(|_| rng.random_range(0..1 << 40)).collect();
    let words: Vec<String> = ids.iter().map(|id| format!("word {}", id % 300)).collect();
    let columns: [(&str, ArrayRef); 2] = [
        ("id", Arc::new(Int64Array::from(ids.clone()))),
        ("word", Arc::new(StringViewArray::from_iter_values(&words))),
    ];
    write_as(
        folder.path(),
        &RecordBatch::try_from_iter(columns).unwrap(),
        TableLayout::Pax,
    );
    let catalog = redb::Database::open(folder.path().join("catalog.redb")).unwrap();
    let records = catalog.begin_read().unwrap();
    let meta: TableDefinition<&str, u32> = TableDefinition::new("meta");
    let meta = records.open_table(meta).unwrap();
    assert_eq!(meta.get("format").unwrap().unwrap().value(), 8);
    let entries: TableDefinition<&[u8], &[u8]> = TableDefinition::new("records");
    let entries = records.open_table(entries).unwrap();
    let get = |key: &[u8]| entries.get(key).unwrap().unwrap().value().to_vec();
    let name = [&[2, 0, 0, 0, 6][..], b"public", b"t"].concat();
    let table = reader::unseal(&name, &get(&name)).number(1) as u32;
    let key = [&[3][..], &table.to_be_bytes()].concat();
    assert_eq!(reader::unseal(&key, &get(&key)).number(15), 1);
    let key = [&[4][..], &table.to_be_bytes(), &[0; 4]].concat();
    let segment = get(&key);
    let segment = reader::unseal(&key, &segment);
    let shared = Message::parse(segment.all(7).next().unwrap());
    let card = std::fs::read(folder.path().join("card0.flash")).unwrap();
    let (first, count) = (shared.number(3) as usize, shared.number(4) as usize);
    let pages = (first..first + count).map(|page| &card[8192 * page..8192 * (page + 1)]);
    let pages: Vec<&[u8]> = pages.collect();
    let chunks: Vec<Message<'_>> = segment.all(4).map(Message::parse).collect();
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk.number(10) == 1 && chunk.number(3) == 0)
    );
    let aux_pages: u64 = chunks.iter().map(|chunk| chunk.number(4)).sum();
    assert_eq!((chunks[0].number(4), aux_pages), (0, 1));
    let groups: Vec<_> = pages[1..].iter().map(|page| reader::parts(page)).collect();
    let part = |number: usize| groups.iter().map(move |parts| parts[number].as_slice());
    let found = reader::chunk(part(0));
    assert!(found == ids.iter().map(|id| Cell::Integer(*id)).collect::<Vec<_>>());
    let found = reader::chunk(std::iter::once(pages[0]).chain(part(1)));
    let words = words
        .iter()
        .map(|word| Cell::Bytes(word.as_bytes().to_vec()));
    assert!(found == words.collect::<Vec<_>>());
}

/// The page indexes of a segment.
fn read_page_indexes(card: &[u8], run: &Message<'_>, of: ChunkIdentity) -> Vec<Cell> {
    assert_eq!((run.number(1), run.number(2)), (0, 0));
    let (first, pages) = (run.number(3) as usize, run.number(4) as usize);
    let pages = (first..first + pages).map(|page| &card[8192 * page..8192 * (page + 1)]);
    let pages: Vec<&[u8]> = pages.collect();
    for (number, page) in pages.iter().enumerate() {
        let found = reader::header(page);
        assert_eq!((found.table, found.segment), (of.table, of.segment));
        assert_eq!(
            (found.column_group, found.generation),
            (65_535, of.generation)
        );
        assert_eq!(usize::from(found.page), number);
    }
    reader::chunk(pages)
}

/// What a chunk's record says of all its pages.
fn check_totals(chunk: &Message<'_>, index: &Message<'_>, rows: usize) {
    let totals = Message::parse(chunk.all(9).next().unwrap());
    let pages = index.packed(5).len();
    assert_eq!(
        (totals.number(1), totals.number(2)),
        (pages as u64, rows as u64)
    );
    assert_eq!(totals.number(3), index.packed(6).iter().sum::<u64>());
    let mins = index.packed(7).into_iter().map(reader::zigzag);
    let keys = mins
        .zip(index.packed(8))
        .map(|(min, span)| (min, min.wrapping_add(span as i64)));
    let (least, greatest) = keys.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap();
    assert_eq!(reader::zigzag(totals.number(4)), least);
    assert_eq!(reader::zigzag(totals.number(5)), greatest);
}

/// The rows of a chunk, its page index checked against its pages.
fn read_chunk(
    card: &[u8],
    chunk: &Message<'_>,
    index: &Message<'_>,
    identity: ChunkIdentity,
) -> Vec<Cell> {
    assert_eq!((chunk.number(1), chunk.number(2)), (0, 0));
    let (first, aux_pages) = (chunk.number(3) as usize, chunk.number(4) as usize);
    let row_counts = index.packed(5);
    let (mins, spans) = (index.packed(7), index.packed(8));
    let null_counts = match index.packed(6) {
        none if none.is_empty() => vec![0; row_counts.len()],
        counts => counts,
    };
    let pages: Vec<&[u8]> = (first..first + aux_pages + row_counts.len())
        .map(|page| &card[8192 * page..8192 * (page + 1)])
        .collect();
    for (number, page) in pages.iter().enumerate() {
        let header = reader::header(page);
        let found = ChunkIdentity {
            table: header.table,
            segment: header.segment,
            column_group: header.column_group,
            generation: header.generation,
        };
        assert_eq!((found, usize::from(header.page)), (identity, number));
        if let Some(zone) = number.checked_sub(aux_pages) {
            let min = reader::zigzag(mins[zone]);
            assert_eq!(
                (header.row_count as u64, header.null_count as u64),
                (row_counts[zone], null_counts[zone])
            );
            assert_eq!(
                (header.min, header.max),
                (min, min.wrapping_add(spans[zone] as i64))
            );
        }
    }
    reader::chunk(pages)
}

/// What the table's record says of its columns.
fn check_statistics(record: &Message<'_>, ids: &[i64], names: &[Option<String>]) {
    assert_eq!((record.number(2), record.number(3)), (2, 2));
    let columns: Vec<Message<'_>> = record.all(4).map(Message::parse).collect();
    assert_eq!(columns.len(), 4);
    let scalar =
        |column: usize, field: u64| Message::parse(columns[column].all(field).next().unwrap());
    assert_eq!(
        scalar(0, 2).all(2).next().unwrap(),
        (-5000i128).to_le_bytes()
    );
    let greatest = names.iter().flatten().max().unwrap();
    assert_eq!(scalar(1, 3).all(4).next().unwrap(), greatest.as_bytes());
    let nulls = names.iter().filter(|name| name.is_none()).count();
    assert_eq!(columns[1].number(1), nulls as u64);
    let sketch = reader::sketch(ids.iter().copied());
    assert_eq!(columns[0].all(4).next().unwrap(), sketch);
    assert_eq!(columns[3].all(4).count(), 0);
    assert_eq!(columns[3].all(2).count(), 0);
    assert_eq!((columns[0].number(6), columns[3].number(6)), (0, 1));
    assert_eq!(columns[2].number(5) % 8192, 0);
}
