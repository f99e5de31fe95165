//! Distances of vectors of floats.

use flashmesh_pushdown::Metric;
use flashmesh_pushdown::distance::{self, LANES};
use multiversion::multiversion;

use super::Positions;

/// Appends the distances of vectors of floats to a query, whose squares add up to `squares`.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt",
    "aarch64+neon"
))]
pub(super) fn distances_of(
    metric: Metric,
    query: &[f32],
    squares: f32,
    values: &[u8],
    positions: Positions<'_>,
    out: &mut Vec<f32>,
) {
    let values = values.as_chunks::<4>().0;
    let length = query.len();
    out.reserve(positions.len());
    positions.for_each(|position| {
        let vector = &values[position as usize * length..][..length];
        out.push(match metric {
            Metric::Dot => distance::number(sum(vector, query, |v, q| v * q)),
            Metric::Cosine => {
                let (both, own) = sums(vector, query);
                distance::cosine_of(both, own, squares)
            }
            _ => {
                let sum = sum(vector, query, |v, q| (v - q) * (v - q));
                distance::number(sum.sqrt())
            }
        });
    });
}

/// The sum of the products of a vector with a query.
pub(super) fn products_of(vector: &[[u8; 4]], query: &[f32]) -> f32 {
    sum(vector, query, |v, q| v * q)
}

/// The sum in the order that [`flashmesh_pushdown::distance`] defines.
///
/// The chunks are slices, not arrays: of a loop whose length it knows a compiler makes 32 scalar
/// sums.
#[inline(always)]
fn sum(vector: &[[u8; 4]], query: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    for (vector, query) in vector.chunks(LANES).zip(query.chunks(LANES)) {
        for ((lane, value), query) in lanes.iter_mut().zip(vector).zip(query) {
            *lane += term(f32::from_le_bytes(*value), *query);
        }
    }
    add_lanes(lanes)
}

/// The sums of a vector's products with a query and with itself.
#[inline(always)]
fn sums(vector: &[[u8; 4]], query: &[f32]) -> (f32, f32) {
    let (mut both, mut own) = ([0.0_f32; LANES], [0.0_f32; LANES]);
    for (vector, query) in vector.chunks(LANES).zip(query.chunks(LANES)) {
        let lanes = both.iter_mut().zip(&mut own);
        for (((both, own), value), query) in lanes.zip(vector).zip(query) {
            let value = f32::from_le_bytes(*value);
            *both += value * query;
            *own += value * value;
        }
    }
    (add_lanes(both), add_lanes(own))
}

#[inline(always)]
fn add_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}
