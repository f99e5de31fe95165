//! A reader written from `docs/flash-format.md` and from nothing else: slow, plain, and without a
//! call into the crate that it checks. The paragraphs that it follows are named by number.

/// What a row holds: integers (and codes of booleans) as numbers, all else as bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    Null,
    Integer(i64),
    Bytes(Vec<u8>),
}

pub const CONST: u8 = 1;
pub const RAW: u8 = 2;
pub const FORBP: u8 = 3;
pub const DICT: u8 = 4;
pub const FSST: u8 = 5;
pub const RAWSTR: u8 = 6;
pub const RLE: u8 = 7;
pub const GROUP: u8 = 8;

pub const HAS_VALIDITY: u16 = 1;
pub const AUXILIARY: u16 = 2;
pub const CONTINUES: u16 = 4;
pub const SCALED: u16 = 8;
pub const CANONICAL: u16 = 16;

pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken
}

fn pad(bytes: usize) -> usize {
    bytes.div_ceil(64) * 64
}

/// §1.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    })
}

/// The fields of §3.
pub struct Header {
    pub encoding: u8,
    pub width: usize,
    pub flags: u16,
    pub column_group: u16,
    pub payload_length: usize,
    pub table: u32,
    pub segment: u32,
    pub page: u16,
    pub first_row: u16,
    pub generation: u32,
    pub row_count: usize,
    pub null_count: usize,
    pub reference: i64,
    pub min: i64,
    pub max: i64,
}

/// Checks magic, version and checksum, and reads the fields.
pub fn header(page: &[u8]) -> Header {
    assert_eq!(page.len(), 8192);
    assert_eq!(&page[..4], b"FMP\x01");
    assert_eq!(u32_at(page, 4), crc32c(&page[8..]));
    Header {
        encoding: page[8],
        width: page[9].into(),
        flags: u16_at(page, 10),
        column_group: u16_at(page, 12),
        payload_length: u16_at(page, 14).into(),
        table: u32_at(page, 16),
        segment: u32_at(page, 20),
        page: u16_at(page, 24),
        first_row: u16_at(page, 26),
        generation: u32_at(page, 28),
        row_count: u32_at(page, 32) as usize,
        null_count: u32_at(page, 36) as usize,
        reference: u64_at(page, 40) as i64,
        min: u64_at(page, 48) as i64,
        max: u64_at(page, 56) as i64,
    }
}

/// The parts of a group page, each as the page of one column that it stands for: §6.
pub fn parts(page: &[u8]) -> Vec<Vec<u8>> {
    let group = header(page);
    assert_eq!(
        (group.encoding, group.width, group.flags, group.null_count),
        (GROUP, 0, 0, 0)
    );
    assert_eq!((group.min, group.max), (i64::MIN, i64::MAX));
    let payload = &page[64..64 + group.payload_length];
    assert!(page[64 + group.payload_length..].iter().all(|b| *b == 0));
    let parts = group.reference as usize;
    let mut end = 34 * parts;
    let pages = (0..parts).map(|part| {
        let entry = &payload[34 * part..34 * (part + 1)];
        let (length, stored) = (u16_at(entry, 4) as usize, u16_at(entry, 6) as usize);
        assert!(stored <= length && length <= 8128);
        let start = end.div_ceil(8) * 8;
        end = start + stored;
        let mut alone = page[..64].to_vec();
        alone[8..12].copy_from_slice(&entry[..4]);
        alone[14..16].copy_from_slice(&entry[4..6]);
        alone[36..38].copy_from_slice(&entry[8..10]);
        alone[40..64].copy_from_slice(&entry[10..]);
        alone.extend_from_slice(&payload[start..end]);
        alone.resize(8192, 0);
        let checksum = crc32c(&alone[8..]);
        alone[4..8].copy_from_slice(&checksum.to_le_bytes());
        alone
    });
    let pages = pages.collect();
    assert_eq!(end, payload.len());
    pages
}

/// The rows of a chunk: §4 and §6.
pub fn chunk<'a>(pages: impl IntoIterator<Item = &'a [u8]>) -> Vec<Cell> {
    let mut cells: Vec<Cell> = Vec::new();
    let mut auxiliary: Option<(Header, &[u8])> = None;
    for page in pages {
        let header = header(page);
        let payload = &page[64..64 + header.payload_length];
        assert!(page[64 + header.payload_length..].iter().all(|b| *b == 0));
        if header.flags & AUXILIARY != 0 {
            assert!(auxiliary.is_none() && cells.is_empty());
            auxiliary = Some((header, payload));
            continue;
        }
        let auxiliary = auxiliary.as_ref().map(|(header, data)| (header, *data));
        if header.row_count == 0 {
            let part = match header.encoding {
                FSST => symbols(auxiliary, payload),
                _ => payload.to_vec(),
            };
            match cells.last_mut() {
                Some(Cell::Bytes(value)) => value.extend(part),
                other => panic!("{other:?} goes on"),
            }
            continue;
        }
        assert_eq!(usize::from(header.first_row), cells.len());
        let has_validity = header.flags & HAS_VALIDITY != 0;
        let validity = if has_validity {
            pad(header.row_count.div_ceil(8))
        } else {
            0
        };
        let all_null = header.null_count == header.row_count;
        let is_valid = |row: usize| match has_validity {
            true => payload[row / 8] >> (row % 8) & 1 == 1,
            false => !all_null,
        };
        let nulls = (0..header.row_count).filter(|row| !is_valid(*row)).count();
        assert_eq!(nulls, header.null_count);
        if all_null {
            cells.extend((0..nulls).map(|_| Cell::Null));
            continue;
        }
        let data = rows(&header, &payload[validity..], auxiliary);
        assert_eq!(data.len(), header.row_count);
        let masked = data.into_iter().enumerate();
        cells.extend(masked.map(|(row, cell)| if is_valid(row) { cell } else { Cell::Null }));
    }
    cells
}

/// The rows of one page, whatever stands under the NULLs: the first table of §6.
fn rows(header: &Header, data: &[u8], auxiliary: Option<(&Header, &[u8])>) -> Vec<Cell> {
    let (n, w, reference) = (header.row_count, header.width, header.reference);
    let sum = |number: u64| Cell::Integer(reference.wrapping_add(number as i64));
    match header.encoding {
        CONST if w == 0 => vec![Cell::Integer(reference); n],
        CONST => vec![Cell::Bytes(data.to_vec()); n],
        RAW if header.flags & CONTINUES != 0 => vec![Cell::Bytes(data.to_vec())],
        RAW => {
            let size = reference as usize;
            assert_eq!(data.len(), n * size);
            (0..n)
                .map(|row| Cell::Bytes(data[size * row..size * (row + 1)].to_vec()))
                .collect()
        }
        FORBP if header.flags & SCALED != 0 => {
            let (step, width) = (u64_at(data, 0), usize::from(data[8]));
            let numbers = packed(n, width, &data[64..]);
            numbers.map(|number| sum(step * number)).collect()
        }
        FORBP => packed(n, w, data).map(sum).collect(),
        DICT => {
            let (auxiliary, entries) = auxiliary.expect("a dictionary");
            let entries = rows(auxiliary, entries, None);
            packed(n, w, data)
                .map(|number| entries[(reference + number as i64) as usize].clone())
                .collect()
        }
        FSST => text(header, data)
            .map(|codes| Cell::Bytes(symbols(auxiliary, codes)))
            .collect(),
        RAWSTR => text(header, data)
            .map(|bytes| Cell::Bytes(bytes.to_vec()))
            .collect(),
        RLE => {
            let count = usize::from(u16_at(data, 0));
            let ends: Vec<usize> = (0..count)
                .map(|run| u16_at(data, 2 + 2 * run).into())
                .collect();
            assert_eq!(ends[count - 1], n - 1);
            let values: Vec<Cell> = packed(count, w, &data[pad(2 + 2 * count)..])
                .map(sum)
                .collect();
            let run_of = |row: usize| ends.iter().position(|end| *end >= row).unwrap();
            (0..n).map(|row| values[run_of(row)].clone()).collect()
        }
        other => panic!("encoding {other}"),
    }
}

/// §5.
fn packed(n: usize, w: usize, data: &[u8]) -> impl Iterator<Item = u64> {
    assert_eq!(data.len(), 32 * w * n.div_ceil(256));
    (0..n).map(move |i| {
        let block = &data[32 * w * (i / 256)..];
        let j = i % 256;
        let (lanes, bits) = if w <= 32 { (8, 32) } else { (4, 64) };
        let (lane, p) = (j % lanes, j / lanes * w);
        let (k, s) = (p / bits, p % bits);
        let word = |k: usize| match bits {
            32 => u128::from(u32_at(block, 32 * k + 4 * lane)),
            _ => u128::from(u64_at(block, 32 * k + 8 * lane)),
        };
        let mut number = 0;
        if w > 0 {
            number = word(k) >> s;
            if s + w > bits {
                number |= word(k + 1) << (bits - s);
            }
        }
        (number & ((1 << w) - 1)) as u64
    })
}

/// The stored bytes of each row of a page of text.
fn text<'a>(header: &Header, data: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let (n, w, least) = (header.row_count, header.width, header.reference as usize);
    let starts = n.div_ceil(32);
    let (lengths, bytes) = data.split_at(pad(2 * starts + (n * w).div_ceil(8) + 3));
    let mut start = 0;
    (0..n).map(move |row| {
        if row % 32 == 0 {
            assert_eq!(usize::from(u16_at(lengths, row / 32 * 2)), start);
        }
        let bit = |b: usize| usize::from(lengths[2 * starts + b / 8] >> (b % 8) & 1);
        let length = (0..w).fold(least, |length, b| length + (bit(row * w + b) << b));
        start += length;
        if row + 1 == n {
            assert_eq!(start, bytes.len());
        }
        &bytes[start - length..start]
    })
}

/// Decodes a row of codes.
fn symbols(auxiliary: Option<(&Header, &[u8])>, codes: &[u8]) -> Vec<u8> {
    let (header, data) = auxiliary.expect("a symbol table");
    let n = header.row_count;
    let symbol = |code: usize| &data[pad(n) + 8 * code..][..data[code].into()];
    let mut out = Vec::new();
    // Where each code's bytes start, and how many they are if it stands for a symbol.
    let mut lengths = Vec::new();
    let mut codes = codes.iter();
    while let Some(code) = codes.next() {
        let code = usize::from(*code);
        if code == 255 {
            lengths.push((out.len(), None));
            out.push(*codes.next().expect("a byte after the escape"));
        } else if code < n {
            lengths.push((out.len(), Some(symbol(code).len())));
            out.extend_from_slice(symbol(code));
        }
    }
    if header.flags & CANONICAL != 0 {
        for (start, length) in lengths {
            let matching = (0..n).map(symbol).filter(|s| out[start..].starts_with(s));
            assert_eq!(
                length,
                matching.map(<[u8]>::len).max(),
                "the longest symbol"
            );
        }
    }
    out
}

/// A list of Int32 (§7, nested values); the bytes are used up.
pub fn list_of_i32(mut bytes: &[u8]) -> Vec<Option<i32>> {
    let count = u32_at(take(&mut bytes, 4), 0);
    let items = (0..count)
        .map(|_| (take(&mut bytes, 1) == [1]).then(|| u32_at(take(&mut bytes, 4), 0) as i32))
        .collect();
    assert!(bytes.is_empty());
    items
}

/// The keys of §7.
pub mod key {
    pub fn float(value: f64) -> i64 {
        let bits = value.to_bits() as i64;
        match (value.is_nan(), bits >= 0) {
            (true, true) => i64::MAX,
            (true, false) => i64::MIN,
            (false, true) => bits,
            (false, false) => bits ^ 0x7fff_ffff_ffff_ffff,
        }
    }

    pub fn bytes(value: &[u8]) -> i64 {
        let first = (0..8).fold(0, |number, at| {
            number << 8 | u64::from(value.get(at).copied().unwrap_or(0))
        });
        (i128::from(first) - (1 << 63)) as i64
    }
}

/// The sketch of integers (§8).
pub fn sketch(values: impl Iterator<Item = i64>) -> [u8; 256] {
    let mut registers = [0; 256];
    for value in values {
        let z = (value as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let h = z ^ z >> 31;
        let rank = 1 + (h << 8).leading_zeros().min(56) as u8;
        let register = &mut registers[(h >> 56) as usize];
        *register = rank.max(*register);
    }
    registers
}

/// A field of a protobuf message.
#[derive(Debug, Clone, Copy)]
pub enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The message in the sealed record of a key (§8).
pub fn unseal<'a>(key: &[u8], record: &'a [u8]) -> Message<'a> {
    let (checksum, message) = record.split_at(4);
    assert_eq!(u32_at(checksum, 0), crc32c(&[key, message].concat()));
    Message::parse(message)
}

/// The fields of a protobuf message, in their order.
#[derive(Debug, Clone)]
pub struct Message<'a>(Vec<(u64, Field<'a>)>);

impl<'a> Message<'a> {
    pub fn parse(mut bytes: &'a [u8]) -> Self {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let field = match tag & 7 {
                0 => Field::Number(varint(&mut bytes)),
                1 => Field::Number(u64_at(take(&mut bytes, 8), 0)),
                2 => {
                    let length = varint(&mut bytes) as usize;
                    Field::Bytes(take(&mut bytes, length))
                }
                other => panic!("wire type {other}"),
            };
            fields.push((tag >> 3, field));
        }
        Self(fields)
    }

    /// A number, 0 if it is omitted.
    pub fn number(&self, number: u64) -> u64 {
        match self.0.iter().find(|(found, _)| *found == number) {
            Some((_, Field::Number(value))) => *value,
            None => 0,
            other => panic!("{other:?}"),
        }
    }

    /// Bytes, or a message; the repeated ones in order.
    pub fn all(&self, number: u64) -> impl Iterator<Item = &'a [u8]> {
        let fields = self.0.clone().into_iter();
        fields
            .filter(move |(found, _)| *found == number)
            .map(|(_, field)| match field {
                Field::Bytes(bytes) => bytes,
                other => panic!("{other:?}"),
            })
    }

    /// Packed numbers.
    pub fn packed(&self, number: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        for mut bytes in self.all(number) {
            while !bytes.is_empty() {
                numbers.push(varint(&mut bytes));
            }
        }
        numbers
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a varint");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    value
}

/// A number of type sint64.
pub fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}
