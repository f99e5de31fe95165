//! The table of groups: keys as words of 64 bits, found by hash.
//!
//! Every key is brought to a fixed number of words, whatever its type: numbers, floats and
//! Booleans as they are, text and binary as the number of an interned value. A group's words
//! stand in one row; NULLs are bits of a word of their own before them, which is there as soon as
//! a key can be NULL.

use arrow::array::{ArrayRef, BinaryViewBuilder};
use arrow::datatypes::DataType;
use hashbrown::HashTable;

use crate::Result;
use crate::accelerator::cpu::bitmap::Bitmap;
use crate::accelerator::cpu::eval::vector::{Kind, Values, Vector, bytes_to_arrow};

/// Groups found so far.
#[derive(Debug)]
pub(super) struct GroupTable {
    keys: Vec<Key>,
    /// The words of a row start with the bits of its NULL keys.
    has_nulls: bool,
    row_words: usize,
    words: Vec<u64>,
    len: usize,
    table: HashTable<Tagged>,
    /// The table of rows of one word, which has the words at hand.
    singles: HashTable<(u64, u32)>,
    /// The groups of interned values, where these are the only key.
    of_interned: Vec<u32>,
}

/// One group key.
#[derive(Debug)]
struct Key {
    data_type: DataType,
    kind: Kind,
    /// Its first word, counted without that of the NULLs.
    word: usize,
    interner: Interner,
}

/// Distinct byte strings, numbered.
#[derive(Debug, Default)]
struct Interner {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    table: HashTable<Tagged>,
}

/// The number of a row or a byte string, and of its hash what tells it from nearly all others without a look at it.
#[derive(Debug)]
struct Tagged {
    tag: u32,
    id: u32,
}

impl Tagged {
    /// What stands for the tag in the table, which wants all 64 bits of a hash.
    fn place(tag: u32) -> u64 {
        mix(0, u64::from(tag))
    }

    /// What each of these may be, or [`NONE`]. Whoever looks at all of them before the first one is compared waits for
    /// the memory of many at a time.
    fn likely(table: &HashTable<Self>, tags: &[u32]) -> Vec<u32> {
        let likely = |tag: &u32| {
            let found = table.find(Self::place(*tag), |of| of.tag == *tag);
            found.map_or(NONE, |found| found.id)
        };
        tags.iter().map(likely).collect()
    }

    fn insert(table: &mut HashTable<Self>, tag: u32, id: u32) {
        table.insert_unique(Self::place(tag), Self { tag, id }, |of| Self::place(of.tag));
    }
}

/// A key's words for the rows of a block or the entries of a dictionary, and its NULLs.
#[derive(Debug, Default, Clone)]
pub(super) struct KeyWords {
    /// One word a row.
    pub low: Vec<u64>,
    /// The upper words of 128-bit numbers, else empty.
    pub high: Vec<u64>,
    pub nulls: Option<Bitmap>,
}

impl KeyWords {
    /// The words of the rows with these numbers.
    pub fn gather(&self, rows: &[u32]) -> Self {
        let take = |words: &[u64]| match words.is_empty() {
            true => Vec::new(),
            false => rows.iter().map(|r| words[*r as usize]).collect(),
        };
        Self {
            low: take(&self.low),
            high: take(&self.high),
            nulls: self.nulls.as_ref().map(|n| n.gather(rows)),
        }
    }
}

impl GroupTable {
    pub fn new(data_types: impl Iterator<Item = DataType>) -> Self {
        let mut word = 0;
        let keys = data_types
            .map(|data_type| {
                let kind = Kind::of(&data_type);
                let key = Key {
                    data_type,
                    kind,
                    word,
                    interner: Interner::default(),
                };
                word += if kind == Kind::Decimal { 2 } else { 1 };
                key
            })
            .collect();
        Self {
            keys,
            has_nulls: false,
            row_words: word,
            words: Vec::new(),
            len: 0,
            table: HashTable::new(),
            singles: HashTable::new(),
            of_interned: Vec::new(),
        }
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Makes room for NULL keys; only while there is no group.
    pub fn allow_nulls(&mut self) {
        debug_assert_eq!(self.len, 0);
        if !self.has_nulls {
            self.has_nulls = true;
            self.row_words += 1;
        }
    }

    pub fn allows_nulls(&self) -> bool {
        self.has_nulls
    }

    /// Forgets all groups.
    pub fn clear(&mut self) {
        self.words.clear();
        self.table.clear();
        self.singles.clear();
        self.of_interned.clear();
        self.len = 0;
        for key in &mut self.keys {
            key.interner = Interner::default();
        }
    }

    /// The words of `len` values of key number `key`.
    pub fn key_words(&mut self, key: usize, vector: &Vector, len: usize) -> KeyWords {
        let key = &mut self.keys[key];
        let each = |row: usize| if vector.constant { 0 } else { row };
        let nulls = vector.validity_of(len).map(|mut validity| {
            validity.invert();
            validity
        });
        let is_null = |row: usize| nulls.as_ref().is_some_and(|n| n.get(row));
        let low: Vec<u64> = match &vector.values {
            // What stands in the place of a NULL must not tell NULLs apart.
            _ if vector.is_null_constant() => vec![0; len],
            Values::I64(v) => (0..len)
                .map(|i| if is_null(i) { 0 } else { v[each(i)] as u64 })
                .collect(),
            Values::I128(v) => (0..len)
                .map(|i| if is_null(i) { 0 } else { v[each(i)] as u64 })
                .collect(),
            Values::F64(v) => {
                // -0.0 and 0.0 are one group.
                let fold = |v: f64| if v == 0.0 { 0.0 } else { v };
                (0..len)
                    .map(|i| {
                        if is_null(i) {
                            0
                        } else {
                            fold(v[each(i)]).to_bits()
                        }
                    })
                    .collect()
            }
            Values::Bool(bits) => (0..len)
                .map(|i| u64::from(!is_null(i) && bits.get(each(i))))
                .collect(),
            Values::Bytes(_) => {
                let bytes = |row| (!is_null(row)).then(|| vector.bytes(row));
                key.interner.intern_all(bytes, len)
            }
            Values::Array(_) => unreachable!("the verifier refuses carried types as keys"),
        };
        let high = match (&vector.values, key.kind) {
            (Values::I128(v), Kind::Decimal) => (0..len)
                .map(|i| {
                    if is_null(i) {
                        0
                    } else {
                        (v[each(i)] >> 64) as u64
                    }
                })
                .collect(),
            (_, Kind::Decimal) => low.iter().map(|low| ((*low as i64) >> 63) as u64).collect(),
            _ => Vec::new(),
        };
        KeyWords { low, high, nulls }
    }

    /// The group of each of `len` rows, which have these words for the keys in order; new groups
    /// are put in.
    pub fn find(&mut self, keys: &[KeyWords], len: usize, ids: &mut Vec<u32>) {
        ids.clear();
        ids.reserve(len);
        let rows = self.rows(keys, len);
        match (self.keys.as_slice(), self.row_words) {
            ([key], 1) if key.kind == Kind::Bytes => return self.find_interned(&rows, ids),
            (_, 1) => return self.find_single(&rows, ids),
            _ => {}
        }
        let width = self.row_words;
        let tag = |row: &[u64]| row.iter().fold(0, |hash, word| mix(hash, *word)) as u32;
        let tags: Vec<u32> = rows.chunks_exact(width).map(tag).collect();
        let likely = Tagged::likely(&self.table, &tags);
        for ((row, tag), likely) in rows.chunks_exact(width).zip(tags).zip(likely) {
            let is_row = |id: u32| &self.words[id as usize * width..][..width] == row;
            let id = match likely {
                id if id != NONE && is_row(id) => id,
                _ => {
                    let is_row = |of: &Tagged| of.tag == tag && is_row(of.id);
                    match self.table.find(Tagged::place(tag), is_row) {
                        Some(found) => found.id,
                        None => {
                            let id = self.len as u32;
                            Tagged::insert(&mut self.table, tag, id);
                            self.words.extend_from_slice(row);
                            self.len += 1;
                            id
                        }
                    }
                }
            };
            ids.push(id);
        }
    }

    /// [`Self::find`] for one key of byte strings and no NULL, whose numbers need no table.
    fn find_interned(&mut self, rows: &[u64], ids: &mut Vec<u32>) {
        self.of_interned
            .resize(self.keys[0].interner.ends.len(), NONE);
        for row in rows {
            let group = &mut self.of_interned[*row as usize];
            if *group == NONE {
                *group = self.len as u32;
                self.words.push(*row);
                self.len += 1;
            }
            ids.push(*group);
        }
    }

    /// [`Self::find`] for keys of one word.
    fn find_single(&mut self, rows: &[u64], ids: &mut Vec<u32>) {
        let mut last = None;
        for row in rows {
            if let Some((before, id)) = last
                && before == *row
            {
                ids.push(id);
                continue;
            }
            let next = self.len as u32;
            let entry = self.singles.entry(
                mix(0, *row),
                |(word, _)| word == row,
                |(word, _)| mix(0, *word),
            );
            let id = match entry {
                hashbrown::hash_table::Entry::Occupied(found) => found.get().1,
                hashbrown::hash_table::Entry::Vacant(free) => {
                    free.insert((*row, next));
                    self.words.push(*row);
                    self.len += 1;
                    next
                }
            };
            ids.push(id);
            last = Some((*row, id));
        }
    }

    /// The words of `len` rows, row by row.
    fn rows(&self, keys: &[KeyWords], len: usize) -> Vec<u64> {
        let width = self.row_words;
        if let ([key], 1) = (keys, width) {
            return key.low[..len].to_vec();
        }
        let first = usize::from(self.has_nulls);
        let mut rows = vec![0; len * width];
        for (number, (key, words)) in self.keys.iter().zip(keys).enumerate() {
            let at = first + key.word;
            rows.iter_mut()
                .skip(at)
                .step_by(width)
                .zip(&words.low)
                .for_each(|(row, word)| *row = *word);
            if key.kind == Kind::Decimal {
                rows.iter_mut()
                    .skip(at + 1)
                    .step_by(width)
                    .zip(&words.high)
                    .for_each(|(row, word)| *row = *word);
            }
            if let (true, Some(nulls)) = (self.has_nulls, &words.nulls) {
                // Up to 64 keys: one bit each.
                for (index, row) in rows.iter_mut().step_by(width).enumerate().take(len) {
                    *row |= u64::from(nulls.get(index)) << number;
                }
            }
        }
        rows
    }

    /// The keys of groups as arrays: those of all groups of the table.
    pub fn key_arrays(&self, groups: std::ops::Range<usize>) -> Result<Vec<ArrayRef>> {
        self.arrays(
            &self.words[groups.start * self.row_words..groups.end * self.row_words],
            groups.len(),
        )
    }

    /// The keys of groups that are not in the table as arrays.
    pub fn key_arrays_of(&self, keys: &[KeyWords], len: usize) -> Result<Vec<ArrayRef>> {
        self.arrays(&self.rows(keys, len), len)
    }

    fn arrays(&self, rows: &[u64], len: usize) -> Result<Vec<ArrayRef>> {
        let first = usize::from(self.has_nulls);
        let width = self.row_words;
        let mut arrays = Vec::with_capacity(self.keys.len());
        for (number, key) in self.keys.iter().enumerate() {
            let word = |row: usize| rows[row * width + first + key.word];
            let is_null = |row: usize| self.has_nulls && rows[row * width] >> number & 1 == 1;
            let validity = (self.has_nulls && (0..len).any(is_null))
                .then(|| Bitmap::from_fn(len, |i| !is_null(i)));
            arrays.push(match key.kind {
                Kind::Decimal => {
                    let wide = |row: usize| {
                        let high = rows[row * width + first + key.word + 1];
                        (u128::from(high) << 64 | u128::from(word(row))) as i128
                    };
                    Vector::i128((0..len).map(wide).collect(), validity)
                        .to_arrow(&key.data_type, len)?
                }
                Kind::Float { .. } => {
                    let floats = (0..len).map(|i| f64::from_bits(word(i))).collect();
                    Vector::f64(floats, validity).to_arrow(&key.data_type, len)?
                }
                Kind::Boolean => Vector::bool(Bitmap::from_fn(len, |i| word(i) == 1), validity)
                    .to_arrow(&key.data_type, len)?,
                Kind::Bytes => {
                    let mut builder = BinaryViewBuilder::with_capacity(len);
                    for row in 0..len {
                        let value = (!is_null(row)).then(|| key.interner.value(word(row) as usize));
                        builder.append_option(value);
                    }
                    bytes_to_arrow(builder.finish(), &key.data_type)?
                }
                Kind::Integer { .. } | Kind::Opaque => {
                    Vector::i64((0..len).map(|i| word(i) as i64).collect(), validity)
                        .to_arrow(&key.data_type, len)?
                }
            });
        }
        Ok(arrays)
    }

    /// Bytes that the table holds, about.
    pub fn size_bytes(&self) -> usize {
        let interned: usize = self
            .keys
            .iter()
            .map(|k| k.interner.bytes.len() + 20 * k.interner.ends.len())
            .sum();
        let singles = self.singles.capacity() * 16 + self.of_interned.len() * 4;
        interned + self.words.len() * 8 + self.table.capacity() * 8 + singles
    }
}

impl Interner {
    fn value(&self, id: usize) -> &[u8] {
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..self.ends[id]]
    }

    /// The numbers of `len` byte strings, 0 where there is none.
    fn intern_all<'a>(
        &mut self,
        bytes: impl Fn(usize) -> Option<&'a [u8]>,
        len: usize,
    ) -> Vec<u64> {
        let mut last: Option<(&[u8], u32)> = None;
        let tag = |row: usize| match (bytes(row), last) {
            (None, _) => 0,
            (Some(value), Some((before, tag))) if before == value => tag,
            (Some(value), _) => {
                let tag = hash_bytes(value) as u32;
                last = Some((value, tag));
                tag
            }
        };
        let tags: Vec<u32> = (0..len).map(tag).collect();
        let likely = Tagged::likely(&self.table, &tags);
        let ids = likely.into_iter().zip(tags).enumerate();
        let ids = ids.map(|(row, (likely, tag))| match bytes(row) {
            None => 0,
            Some(value) if likely != NONE && self.value(likely as usize) == value => likely,
            Some(value) => self.intern(tag, value),
        });
        ids.map(u64::from).collect()
    }

    fn intern(&mut self, tag: u32, value: &[u8]) -> u32 {
        let is_value = |of: &Tagged| of.tag == tag && self.value(of.id as usize) == value;
        if let Some(found) = self.table.find(Tagged::place(tag), is_value) {
            return found.id;
        }
        let id = self.ends.len() as u32;
        Tagged::insert(&mut self.table, tag, id);
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len());
        id
    }
}

/// The number of no byte string, and of no group.
const NONE: u32 = u32::MAX;

/// Mixes a word into a hash: the folded 128-bit product with an odd constant (Wang Yi, "wyhash").
#[inline(always)]
fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from((word ^ hash) ^ 0x9E37_79B9_7F4A_7C15)
        * u128::from(0xD6E8_FEB8_6659_FD93u64 ^ hash.rotate_left(32));
    product as u64 ^ (product >> 64) as u64
}

fn hash_bytes(value: &[u8]) -> u64 {
    let (words, rest) = value.as_chunks::<8>();
    let hash = words.iter().fold(value.len() as u64, |hash, word| {
        mix(hash, u64::from_le_bytes(*word))
    });
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(hash, u64::from_le_bytes(last))
}
