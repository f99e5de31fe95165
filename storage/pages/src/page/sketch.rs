//! Estimates of the number of distinct values: HyperLogLog sketches.
//!
//! A sketch has 256 registers of one byte (standard error 1.04 / √256 = 6.5 %). The first 8 bits
//! of a value's 64-bit hash choose a register, which keeps the greatest number of leading zeros,
//! plus one, met in the other 56 bits (Flajolet, Fusy, Gandouet, Meunier, "HyperLogLog: the
//! analysis of a near-optimal cardinality estimation algorithm", 2007). The estimate is Ertl's
//! improved raw estimator ("New cardinality estimation algorithms for HyperLogLog sketches",
//! 2017, algorithms 6 to 8): unbiased over the whole range, without tables of corrections.
//!
//! Sketches are stored and merged across loads, so the hashes are fixed: the finaliser of
//! SplitMix64 of integers that fit an i64, XXH3 of the bytes of all other values.

use multiversion::multiversion;

const REGISTER_BITS: u32 = 8;
const REGISTERS: usize = 1 << REGISTER_BITS;
/// Greatest value of a register.
const MAX_RANK: usize = 64 - REGISTER_BITS as usize + 1;

/// A sketch that values are added to.
#[derive(Debug, Clone)]
pub(super) struct Sketch([u8; REGISTERS]);

impl Sketch {
    pub fn new() -> Self {
        Self([0; REGISTERS])
    }

    /// Adds integers.
    pub fn add_integers(&mut self, values: &[i64]) {
        add_integers(&mut self.0, values);
    }

    /// Adds a value by its bytes.
    pub fn add_bytes(&mut self, value: &[u8]) {
        add(&mut self.0, twox_hash::XxHash3_64::oneshot(value));
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0.to_vec()
    }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn add_integers(registers: &mut [u8; REGISTERS], values: &[i64]) {
    // Runs of equal values are common, and hashing a value again changes nothing.
    let mut last = None;
    for value in values {
        if last != Some(value) {
            add(registers, mix(*value as u64));
            last = Some(value);
        }
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood, 2014; constants: Stafford's mix 13).
#[inline(always)]
fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[inline(always)]
fn add(registers: &mut [u8; REGISTERS], hash: u64) {
    let register = &mut registers[(hash >> (64 - REGISTER_BITS)) as usize];
    // The bit below the 56 ends the count there.
    let rank = (hash << REGISTER_BITS | 1 << (REGISTER_BITS - 1)).leading_zeros() as u8 + 1;
    *register = (*register).max(rank);
}

/// The sketch of the union of what the given sketches saw; empty if any of them is unusable
/// (empty, or of another size).
pub fn merge_sketches<'a>(sketches: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut merged = vec![0; REGISTERS];
    for sketch in sketches {
        if sketch.len() != REGISTERS {
            return Vec::new();
        }
        for (register, other) in merged.iter_mut().zip(sketch) {
            *register = (*register).max(*other);
        }
    }
    merged
}

/// The estimated number of distinct values that a sketch saw; `None` for an unusable sketch.
pub fn estimate_distinct(sketch: &[u8]) -> Option<u64> {
    if sketch.len() != REGISTERS {
        return None;
    }
    let mut histogram = [0u32; MAX_RANK + 1];
    for register in sketch {
        histogram[usize::from(*register).min(MAX_RANK)] += 1;
    }
    let m = REGISTERS as f64;
    let mut z = m * tau(1.0 - f64::from(histogram[MAX_RANK]) / m);
    for count in histogram[1..MAX_RANK].iter().rev() {
        z = 0.5 * (z + f64::from(*count));
    }
    z += m * sigma(f64::from(histogram[0]) / m);
    let alpha = 0.5 / std::f64::consts::LN_2;
    Some((alpha * m * m / z).round() as u64)
}

/// Σ x^(2^k) 2^(k-1), plus x.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

/// (1 - x - Σ (1 - x^(2^-k))² 2^-k) / 3.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x).powi(2) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_stay_near_the_truth() {
        // The sketch of a fixed input is fixed, so the bound (four standard errors) can't fail by
        // chance.
        for count in [0u64, 1, 2, 10, 100, 300, 700, 1000, 5000, 60_000, 1_000_000] {
            let values: Vec<i64> = (0..count as i64).collect();
            let mut halves = [Sketch::new(), Sketch::new()];
            halves[0].add_integers(&values[..values.len() * 2 / 3]);
            halves[1].add_integers(&values[values.len() / 3..]);
            let merged = merge_sketches(halves.iter().map(|sketch| sketch.0.as_slice()));
            let mut whole = Sketch::new();
            whole.add_integers(&values);
            assert_eq!(merged, whole.0, "merging is the union");
            let estimate = estimate_distinct(&merged).unwrap();
            let error = estimate.abs_diff(count) as f64;
            assert!(
                error <= count as f64 * 0.26 + 0.5,
                "{count} values, estimate {estimate}"
            );

            let mut text = Sketch::new();
            (0..count).for_each(|value| text.add_bytes(format!("Customer#{value:09}").as_bytes()));
            let estimate = estimate_distinct(&text.into_bytes()).unwrap();
            let error = estimate.abs_diff(count) as f64;
            assert!(
                error <= count as f64 * 0.26 + 0.5,
                "{count} texts, estimate {estimate}"
            );
        }
        assert_eq!(estimate_distinct(&[]), None);
        assert_eq!(merge_sketches([[].as_slice()]), Vec::<u8>::new());
    }
}
