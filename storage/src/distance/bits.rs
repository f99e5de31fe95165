//! Hamming distances.

use multiversion::multiversion;

use super::Positions;

/// Codes side by side.
const SIDE: usize = 8;

/// The bytes as words, filled up with zeros.
#[inline(always)]
pub(super) fn to_words(bytes: &[u8], words: &mut [u64]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, bytes) in words.iter_mut().zip(whole) {
        *word = u64::from_le_bytes(*bytes);
    }
    if !rest.is_empty()
        && let Some(word) = words.get_mut(whole.len())
    {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        *word = u64::from_le_bytes(last);
    }
}

/// Lays codes out in blocks of eight: the first words of all eight, then their second words, ….
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+popcnt",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt",
    "aarch64+neon"
))]
pub(super) fn put_side_by_side(
    values: &[u8],
    size: usize,
    words_each: usize,
    positions: Positions<'_>,
    blocks: &mut Vec<u64>,
) {
    #[inline(always)]
    fn put<const W: usize>(values: &[u8], positions: Positions<'_>, blocks: &mut [u64]) {
        let codes = values.as_chunks::<8>().0.as_chunks::<W>().0;
        let blocks = blocks.as_chunks_mut::<SIDE>().0.as_chunks_mut::<W>().0;
        let mut number = 0;
        positions.for_each(|position| {
            let (code, block) = (&codes[position as usize], &mut blocks[number / SIDE]);
            for word in 0..W {
                block[word][number % SIDE] = u64::from_le_bytes(code[word]);
            }
            number += 1;
        });
    }
    blocks.clear();
    blocks.resize(positions.len().div_ceil(SIDE) * SIDE * words_each, 0);
    match size {
        8 => return put::<1>(values, positions, blocks),
        16 => return put::<2>(values, positions, blocks),
        32 => return put::<4>(values, positions, blocks),
        64 => return put::<8>(values, positions, blocks),
        _ => {}
    }
    let mut code = vec![0; words_each];
    let mut number = 0;
    positions.for_each(|position| {
        to_words(&values[position as usize * size..][..size], &mut code);
        let start = number / SIDE * SIDE * words_each + number % SIDE;
        for (word, value) in code.iter().enumerate() {
            blocks[start + word * SIDE] = *value;
        }
        number += 1;
    });
}

/// Collects distance and number of the codes that are nearer to the query than `limit`.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+popcnt",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt",
    "aarch64+neon"
))]
pub(super) fn nearer_side_by_side(
    blocks: &[u64],
    query: &[u64],
    count: usize,
    limit: i32,
    hits: &mut Vec<(i32, u32)>,
) {
    let limit = u64::from(limit.max(0) as u32);
    let keep = |number: usize, counts: &[u64; SIDE], hits: &mut Vec<(i32, u32)>| {
        for (lane, distance) in counts.iter().enumerate() {
            if *distance < limit && number * SIDE + lane < count {
                hits.push((*distance as i32, (number * SIDE + lane) as u32));
            }
        }
    };
    #[inline(always)]
    fn scan<const W: usize>(
        blocks: &[u64],
        query: &[u64],
        limit: u64,
        mut keep: impl FnMut(usize, &[u64; SIDE]),
    ) {
        let blocks = blocks.as_chunks::<SIDE>().0.as_chunks::<W>().0;
        let Some(query) = query.first_chunk::<W>() else {
            return;
        };
        for (number, block) in blocks.iter().enumerate() {
            let mut counts = [0_u64; SIDE];
            for word in 0..W {
                for lane in 0..SIDE {
                    counts[lane] += u64::from((block[word][lane] ^ query[word]).count_ones());
                }
            }
            if counts
                .iter()
                .fold(false, |any, count| any | (*count < limit))
            {
                keep(number, &counts);
            }
        }
    }
    match query.len() {
        1 => scan::<1>(blocks, query, limit, |n, c| keep(n, c, hits)),
        2 => scan::<2>(blocks, query, limit, |n, c| keep(n, c, hits)),
        4 => scan::<4>(blocks, query, limit, |n, c| keep(n, c, hits)),
        8 => scan::<8>(blocks, query, limit, |n, c| keep(n, c, hits)),
        words => {
            let blocks = blocks.as_chunks::<SIDE>().0.chunks_exact(words);
            for (number, block) in blocks.enumerate() {
                let mut counts = [0_u64; SIDE];
                for (codes, query) in block.iter().zip(query) {
                    for lane in 0..SIDE {
                        counts[lane] += u64::from((codes[lane] ^ query).count_ones());
                    }
                }
                keep(number, &counts, hits);
            }
        }
    }
}

/// [`nearer_side_by_side`] for codes as they lie.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+popcnt",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt",
    "aarch64+neon"
))]
pub(super) fn nearer(
    query: &[u64],
    size: usize,
    values: &[u8],
    positions: Positions<'_>,
    limit: i32,
    hits: &mut Vec<(i32, u32)>,
) {
    #[inline(always)]
    fn scan<const W: usize>(
        query: &[u64],
        values: &[u8],
        count: usize,
        limit: i32,
        hits: &mut Vec<(i32, u32)>,
    ) {
        let Some(query) = query.first_chunk::<W>() else {
            return;
        };
        let codes = values.as_chunks::<8>().0.as_chunks::<W>().0;
        for (number, code) in codes[..count].iter().enumerate() {
            let mut distance = 0;
            for word in 0..W {
                distance += (u64::from_le_bytes(code[word]) ^ query[word]).count_ones();
            }
            if (distance as i32) < limit {
                hits.push((distance as i32, number as u32));
            }
        }
    }
    match (positions, size) {
        (Positions::All(count), 8) => scan::<1>(query, values, count, limit, hits),
        (Positions::All(count), 16) => scan::<2>(query, values, count, limit, hits),
        (Positions::All(count), 32) => scan::<4>(query, values, count, limit, hits),
        (Positions::All(count), 64) => scan::<8>(query, values, count, limit, hits),
        _ => {
            let mut number = 0;
            positions.for_each(|position| {
                let distance = bits_apart(query, &values[position as usize * size..][..size]);
                if (distance as i32) < limit {
                    hits.push((distance as i32, number));
                }
                number += 1;
            });
        }
    }
}

/// Bits in which a code and a query differ.
#[inline(always)]
fn bits_apart(query: &[u64], code: &[u8]) -> u32 {
    let (whole, rest) = code.as_chunks::<8>();
    let mut distance = 0;
    for (query, code) in query.iter().zip(whole) {
        distance += (query ^ u64::from_le_bytes(*code)).count_ones();
    }
    if let Some(query) = query.get(whole.len()) {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        distance += (query ^ u64::from_le_bytes(last)).count_ones();
    }
    distance
}

/// Appends the Hamming distances of codes to a query.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+popcnt",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt",
    "aarch64+neon"
))]
pub(super) fn hamming_of(
    query: &[u64],
    size: usize,
    values: &[u8],
    positions: Positions<'_>,
    out: &mut Vec<u32>,
) {
    out.reserve(positions.len());
    positions.for_each(|position| {
        let code = &values[position as usize * size..][..size];
        out.push(bits_apart(query, code));
    });
}
