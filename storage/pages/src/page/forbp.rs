//! Bit-packing in blocks of 256 values, and its way back.
//!
//! A block keeps its values in natural order over interleaved lanes, so that one vector
//! instruction works on neighbouring values and the compiler can vectorise plain loops (the
//! interleaved layout of Lemire and Boytsov, "Decoding billions of integers per second through
//! vectorization", 2015, with lanes of a fixed number whatever the machine's vectors):
//!
//! * widths up to 32: 8 lanes of `u32` words. Value `i` is in lane `i % 8`; the lane's 32 values
//!   of `width` bits follow each other from the least significant bit of the lane's word 0 on.
//!   Word `k` of lane `l` is the block's word `8 * k + l`.
//! * widths above: the same with 4 lanes of `u64` words, 64 values each.
//!
//! Either way a block takes 32 bytes for each bit of width. All words are little-endian.
//!
//! The loop that unpacks widths up to 32 is instantiated for every width, so that shifts and masks
//! are constants. The hot loops are compiled for several instruction sets; the choice falls once,
//! at the first call.

use multiversion::multiversion;

use super::BLOCK_VALUES;
use super::header::bytes_at;

/// Bytes of a block for each bit of width.
pub(super) const BLOCK_BYTES_PER_BIT: usize = BLOCK_VALUES / 8;
/// Words of a selection bitmap for each block.
pub(super) const BLOCK_WORDS: usize = BLOCK_VALUES / 64;

/// Rows of a block, on average, from which on whole blocks are unpacked rather than value by value.
const DENSE_ROWS: usize = 12;
/// Rows that this is decided for at a time.
const GATHERED: usize = 64;
/// A whole number of blocks' values fit: what the loops over pages work in.
pub(super) const CHUNK_VALUES: usize = 4 * BLOCK_VALUES;

/// Packs `values` (offsets, none wider than `width`) into one block, zero-padded to 256 values.
/// `block` has `32 * width` bytes.
pub(super) fn pack(width: usize, values: &[u64], block: &mut [u8]) {
    assert!(values.len() <= BLOCK_VALUES && block.len() == width * BLOCK_BYTES_PER_BIT);
    let mut padded = [0u64; BLOCK_VALUES];
    padded[..values.len()].copy_from_slice(values);
    match width {
        0 => {}
        1..=32 => pack_narrow(width, &padded, block),
        _ => pack_wide(width, &padded, block),
    }
}

macro_rules! pack_lanes {
    ($name:ident, $word:ty, $lanes:literal) => {
        #[multiversion(targets(
            "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
            "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
            "aarch64+neon"
        ))]
        fn $name(width: usize, values: &[u64; BLOCK_VALUES], block: &mut [u8]) {
            const BITS: usize = <$word>::BITS as usize;
            const BYTES: usize = BITS / 8;
            let mut words = block.chunks_exact_mut($lanes * BYTES);
            let mut pending: [$word; $lanes] = [0; $lanes];
            let mut filled = 0;
            for row in values.as_chunks::<$lanes>().0 {
                for (lane, value) in pending.iter_mut().zip(row) {
                    *lane |= (*value as $word) << filled;
                }
                filled += width;
                if filled >= BITS {
                    let out = words.next().expect("a block has `width` rows of words");
                    for (bytes, lane) in out.as_chunks_mut::<BYTES>().0.iter_mut().zip(pending) {
                        *bytes = lane.to_le_bytes();
                    }
                    filled -= BITS;
                    for (lane, value) in pending.iter_mut().zip(row) {
                        // What did not fit is the value's top `filled` bits.
                        *lane = if filled == 0 {
                            0
                        } else {
                            (*value as $word) >> (width - filled)
                        };
                    }
                }
            }
        }
    };
}
pack_lanes!(pack_narrow, u32, 8);
pack_lanes!(pack_wide, u64, 4);

/// Writes row `R` of a block, one value of each lane, to `out`.
///
/// A plain loop over arrays: a closure here would not take on the instruction set of the function
/// that it is inlined into.
#[inline(always)]
fn row<const W: usize, const R: usize>(block: &[[u8; 32]], out: &mut [u32; 8]) {
    let word = const { R * W / 32 };
    let shift = const { R * W % 32 };
    let mask = const { if W == 32 { u32::MAX } else { (1 << W) - 1 } };
    let straddles = const { R * W % 32 + W > 32 };
    let low = block[word].as_chunks::<4>().0;
    let high = block[if straddles { word + 1 } else { word }]
        .as_chunks::<4>()
        .0;
    for lane in 0..8 {
        let mut value = u32::from_le_bytes(low[lane]) >> shift;
        if straddles {
            value |= u32::from_le_bytes(high[lane]) << ((32 - shift) % 32);
        }
        out[lane] = value & mask;
    }
}

#[inline(always)]
fn unpack_blocks<const W: usize>(packed: &[u8], out: &mut [u32]) {
    for (block, out) in packed
        .chunks_exact(W * BLOCK_BYTES_PER_BIT)
        .zip(out.as_chunks_mut::<BLOCK_VALUES>().0)
    {
        let (block, out) = (block.as_chunks::<32>().0, out.as_chunks_mut::<8>().0);
        macro_rules! rows {
            ($($r:literal)*) => { $( row::<W, $r>(block, &mut out[$r]); )* };
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
    }
}

/// Unpacks the blocks of `packed`, of at most 32 bits, into `out`, 256 values each.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
pub(super) fn unpack_u32(width: u8, packed: &[u8], out: &mut [u32]) {
    macro_rules! for_width {
        ($($w:literal)*) => {
            match width {
                0 => out.fill(0),
                $( $w => unpack_blocks::<$w>(packed, out), )*
                _ => unreachable!("widths are checked when a page is verified"),
            }
        };
    }
    for_width!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32)
}

/// Unpacks the blocks of `packed`, of 33 bits or more, into `out`, 256 values each. Such widths
/// are rare: they share one loop.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
pub(super) fn unpack_u64(width: u8, packed: &[u8], out: &mut [u64]) {
    let width = usize::from(width);
    let mask = u64::MAX >> (64 - width);
    for (block, out) in packed
        .chunks_exact(width * BLOCK_BYTES_PER_BIT)
        .zip(out.as_chunks_mut::<BLOCK_VALUES>().0)
    {
        let words = block.as_chunks::<32>().0;
        for (row, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let (word, shift) = (row * width / 64, row * width % 64);
            // When the value does not straddle, the mask drops what the next word gives.
            let (low, high) = (&words[word], &words[(word + 1).min(width - 1)]);
            for lane in 0..4 {
                let load = |word: &[u8; 32]| {
                    u64::from_le_bytes(
                        word[lane * 8..lane * 8 + 8]
                            .try_into()
                            .expect("eight bytes"),
                    )
                };
                out[lane] = (load(low) >> shift | load(high) << (63 - shift) << 1) & mask;
            }
        }
    }
}

/// Bit `i` of the result is bit 0 of `flags[i]`; the other bits of the flags must be 0.
#[inline(always)]
pub(super) fn pack_flags(flags: &[u8; 64]) -> u64 {
    let bytes = flags.as_chunks::<8>().0.iter().enumerate();
    bytes.fold(0, |word, (at, flags)| {
        // The product collects bit 0 of byte k as bit 56 + k; no two terms overlap.
        let byte = u64::from_le_bytes(*flags).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        word | byte << (8 * at)
    })
}

/// Defines `$name(values, low, span, selection)`: bit `i` of `selection` := `values[i]` is at
/// least `low` and at most `low + span`. A word for each 64 values.
macro_rules! select {
    ($name:ident, $word:ty) => {
        #[multiversion(targets(
            "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
            "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
            "aarch64+neon"
        ))]
        fn $name(values: &[$word], low: $word, span: $word, selection: &mut [u64]) {
            for (word, values) in selection.iter_mut().zip(values.as_chunks::<64>().0) {
                let mut flags = [0u8; 64];
                for (flag, value) in flags.iter_mut().zip(values) {
                    *flag = u8::from(value.wrapping_sub(low) <= span);
                }
                *word = pack_flags(&flags);
            }
        }
    };
}
select!(compare_u32, u32);
select!(compare_u64, u64);

/// For every value of the blocks of `packed`: bit `i` of `selection` :=
/// `low <= value <= low + span`. Four words of `selection` a block.
pub(super) fn select(width: u8, packed: &[u8], low: u64, span: u64, selection: &mut [u64]) {
    let bytes = usize::from(width) * BLOCK_BYTES_PER_BIT;
    // A few blocks at a time stay in the nearest cache.
    let chunks = packed.chunks(bytes * (CHUNK_VALUES / BLOCK_VALUES));
    let chunks = chunks.zip(selection.chunks_mut(CHUNK_VALUES / 64));
    let values_of = |blocks: &[u8]| blocks.len() / bytes * BLOCK_VALUES;
    if width <= 32 {
        let mut values = [0; CHUNK_VALUES];
        for (blocks, selection) in chunks {
            let values = &mut values[..values_of(blocks)];
            unpack_u32(width, blocks, values);
            compare_u32(values, low as u32, span as u32, selection);
        }
    } else {
        let mut values = [0; CHUNK_VALUES];
        for (blocks, selection) in chunks {
            let values = &mut values[..values_of(blocks)];
            unpack_u64(width, blocks, values);
            compare_u64(values, low, span, selection);
        }
    }
}

/// The value in place `index` of the blocks of `packed`.
#[inline]
pub(super) fn value(width: u8, packed: &[u8], index: usize) -> u64 {
    match width {
        0 => 0,
        1..=32 => NarrowPlace::of(width, index).load(width, packed).into(),
        _ => WidePlace::of(width, index).load(width, packed),
    }
}

/// Defines `$place`, where a value lies, and `$gather(width, packed, indices, out)`: the values in
/// the ascending places `indices`.
macro_rules! single_values {
    ($place:ident, $gather:ident, $unpack:ident, $word:ty, $double:ty, $lanes:literal) => {
        /// Where the words of a value lie. One that does not straddle two words of its lane has
        /// the same word twice: its upper bits are masked, which is cheaper than to tell.
        #[derive(Debug, Clone, Copy, Default)]
        struct $place {
            low: u32,
            high: u32,
            shift: u32,
        }

        impl $place {
            #[inline(always)]
            fn of(width: u8, index: usize) -> Self {
                const BITS: usize = <$word>::BITS as usize;
                let width = usize::from(width);
                let (bit, lane) = (index % BLOCK_VALUES / $lanes * width, index % $lanes);
                let block = index / BLOCK_VALUES * width * BLOCK_BYTES_PER_BIT;
                let low = block + (bit / BITS * $lanes + lane) * (BITS / 8);
                let straddles = bit % BITS + width > BITS;
                Self {
                    low: low as u32,
                    high: (low + usize::from(straddles) * $lanes * (BITS / 8)) as u32,
                    shift: (bit % BITS) as u32,
                }
            }

            #[inline(always)]
            fn load(self, width: u8, packed: &[u8]) -> $word {
                let load = |at: u32| -> $double {
                    <$word>::from_le_bytes(bytes_at(packed, at as usize)).into()
                };
                let both = load(self.low) | load(self.high) << <$word>::BITS;
                (both >> self.shift & ((1 << width) - 1)) as $word
            }
        }

        pub(super) fn $gather(width: u8, packed: &[u8], indices: &[u32], out: &mut [$word]) {
            if width == 0 {
                return out.fill(0);
            }
            for (indices, out) in indices.chunks(GATHERED).zip(out.chunks_mut(GATHERED)) {
                let span = (indices[indices.len() - 1] - indices[0]) as usize;
                if indices.len() * BLOCK_VALUES < DENSE_ROWS * span {
                    // First all places, then all values: pages that lie in memory make a value
                    // wait long, and the less there is between two loads, the more are under way.
                    let mut places = [$place::default(); GATHERED];
                    for (place, index) in places.iter_mut().zip(indices) {
                        *place = $place::of(width, *index as usize);
                    }
                    for (out, place) in out.iter_mut().zip(&places) {
                        *out = place.load(width, packed);
                    }
                    continue;
                }
                let size = usize::from(width) * BLOCK_BYTES_PER_BIT;
                let mut values = [0; BLOCK_VALUES];
                let mut out = out.iter_mut();
                let same_block =
                    |a: &u32, b: &u32| *a as usize / BLOCK_VALUES == *b as usize / BLOCK_VALUES;
                for indices in indices.chunk_by(same_block) {
                    let start = indices[0] as usize / BLOCK_VALUES * size;
                    $unpack(width, &packed[start..start + size], &mut values);
                    // In this order: `zip` would take one more of its first half.
                    for (index, out) in indices.iter().zip(out.by_ref()) {
                        *out = values[*index as usize % BLOCK_VALUES];
                    }
                }
            }
        }
    };
}
single_values!(NarrowPlace, gather_u32, unpack_u32, u32, u64, 8);
single_values!(WidePlace, gather_u64, unpack_u64, u64, u128, 4);

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn every_width_comes_back() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        for width in 0..=64u8 {
            let mask = super::super::layout::max_offset(width);
            let values: Vec<u64> = (0..3 * BLOCK_VALUES)
                .map(|_| rng.random::<u64>() & mask)
                .collect();
            let mut packed = vec![0; 3 * BLOCK_BYTES_PER_BIT * usize::from(width)];
            for block in 0..3 {
                let bytes = BLOCK_BYTES_PER_BIT * usize::from(width);
                pack(
                    usize::from(width),
                    &values[block * BLOCK_VALUES..(block + 1) * BLOCK_VALUES],
                    &mut packed[block * bytes..(block + 1) * bytes],
                );
            }
            let low = rng.random::<u64>() & mask;
            let span = (rng.random::<u64>() & mask) / 2;
            let mut selection = vec![0; 3 * BLOCK_WORDS];
            if width <= 32 {
                let mut out = vec![1; values.len()];
                unpack_u32(width, &packed, &mut out);
                assert!(
                    out.iter().map(|v| u64::from(*v)).eq(values.iter().copied()),
                    "width {width}"
                );
            } else {
                let mut out = vec![1; values.len()];
                unpack_u64(width, &packed, &mut out);
                assert_eq!(out, values, "width {width}");
            }
            if width > 0 {
                select(width, &packed, low, span, &mut selection);
            }
            for (index, expected) in values.iter().enumerate() {
                assert_eq!(
                    value(width, &packed, index),
                    *expected,
                    "width {width}, value {index}"
                );
                if width > 0 {
                    let inside = if width <= 32 {
                        (*expected as u32).wrapping_sub(low as u32) <= span as u32
                    } else {
                        expected.wrapping_sub(low) <= span
                    };
                    assert_eq!(
                        selection[index / 64] >> (index % 64) & 1 == 1,
                        inside,
                        "width {width}, value {index}"
                    );
                }
            }
        }
    }
}
