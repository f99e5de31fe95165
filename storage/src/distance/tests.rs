//! The kernels against the definition.

use flashmesh_pushdown::testing::for_each_case;
use flashmesh_pushdown::{Metric, QueryVector, distance};
use rand::RngExt;

use super::{Order, Positions, Search, Targets};

/// All kernels, for all lengths, against the definition.
#[test]
fn kernels_compute_what_is_defined() {
    for_each_case("distance kernels", 300, |generator| {
        let rng = generator.rng();
        let (length, count) = (
            rng.random_range(0..200_usize),
            rng.random_range(0..40_usize),
        );
        let few: Vec<u32> = (0..count as u32).filter(|_| rng.random_bool(0.6)).collect();
        let queries = rng.random_range(1..6);
        let k = rng.random_range(1..12);
        for metric in [Metric::Hamming, Metric::L2, Metric::Cosine, Metric::Dot] {
            let mut vector = || match metric {
                Metric::Hamming => QueryVector::Bits((0..length).map(|_| rng.random()).collect()),
                _ => QueryVector::Floats(
                    (0..length)
                        .map(|_| match rng.random_range(0..200) {
                            0 => f32::NAN,
                            1 => f32::INFINITY,
                            _ => rng.random_range(-3.0..3.0),
                        })
                        .collect(),
                ),
            };
            let vectors: Vec<QueryVector> = (0..count).map(|_| vector()).collect();
            let queries: Vec<QueryVector> = (0..queries).map(|_| vector()).collect();
            let mut values = Vec::new();
            for vector in &vectors {
                match vector {
                    QueryVector::Bits(bytes) => values.extend_from_slice(bytes),
                    QueryVector::Floats(floats) => {
                        values.extend(floats.iter().flat_map(|v| v.to_le_bytes()))
                    }
                }
            }
            let targets = Targets::new(metric, length, &queries);
            for positions in [Positions::All(count), Positions::List(&few)] {
                check(&targets, &queries, &vectors, &values, positions, k);
            }
        }
    });
}

fn check(
    targets: &Targets,
    queries: &[QueryVector],
    vectors: &[QueryVector],
    values: &[u8],
    positions: Positions<'_>,
    k: usize,
) {
    let mut all = Vec::new();
    positions.for_each(|position| all.push(position));
    for order in [Order::Ascending, Order::Descending, Order::Rank] {
        let mut search = Search::new(targets.clone(), order, k);
        search.add(values, positions, u64::from);
        let found = search.take();
        for (number, query) in queries.iter().enumerate() {
            let mut keys: Vec<i32> = match query {
                QueryVector::Bits(query) => {
                    let expected = all.iter().map(|p| match &vectors[*p as usize] {
                        QueryVector::Bits(v) => distance::hamming(v, query),
                        QueryVector::Floats(_) => 0,
                    });
                    let expected: Vec<u32> = expected.collect();
                    let mut measured = Vec::new();
                    targets.hamming(number, values, positions, &mut measured);
                    assert_eq!(measured, expected);
                    expected.iter().map(|d| order.bits_key(*d)).collect()
                }
                QueryVector::Floats(query) => {
                    let metric = targets.metric;
                    let expected = all.iter().map(|p| match &vectors[*p as usize] {
                        QueryVector::Floats(v) => distance::distance(metric, v, query).unwrap(),
                        QueryVector::Bits(_) => 0.0,
                    });
                    let expected: Vec<f32> = expected.collect();
                    let mut measured = Vec::new();
                    targets.floats(number, values, positions, &mut measured);
                    let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&measured), bits(&expected), "{metric}");
                    expected.iter().map(|d| order.key(metric, *d)).collect()
                }
            };
            keys.sort_unstable();
            keys.truncate(k);
            let found: Vec<i32> = found[number].iter().map(|found| found.key).collect();
            assert_eq!(found, keys);
        }
    }
}
