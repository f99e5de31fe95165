//! What tasks tell of their keys, against the keys themselves.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Date32Array, Int32Array, Int64Array, StringArray};
use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::physical_expr::expressions::Column;
use flashmesh_pushdown::testing::for_each_case;
use flashmesh_pushdown::{RuntimeFilter, Scalar};
use parking_lot::Mutex;
use rand::RngExt;
use rand::rngs::StdRng;

use super::collect::{Collected, union};
use super::exec::JoinKey;
use super::hub::{KeyHub, QueryKeys, TellNodes};
use crate::translate::scalar_of;

/// Keys of some rows, and a value more that may be one.
fn keys(rng: &mut StdRng, data_type: &DataType, width: i64) -> (ArrayRef, Scalar) {
    let rows = rng.random_range(0..300);
    let mut some = |from: i64| {
        let mut one =
            || (rng.random_range(0..20) > 0).then(|| rng.random_range(from..from + width));
        (0..=rows).map(|_| one()).collect::<Vec<_>>()
    };
    let array: ArrayRef = match data_type {
        DataType::Int32 => Arc::new(Int32Array::from_iter(
            some(-50).into_iter().map(|key| key.map(|key| key as i32)),
        )),
        DataType::Date32 => Arc::new(Date32Array::from_iter(
            some(-50).into_iter().map(|key| key.map(|key| key as i32)),
        )),
        DataType::Utf8 => Arc::new(StringArray::from_iter(
            some(0)
                .into_iter()
                .map(|key| key.map(|key| format!("key {key}"))),
        )),
        _ => Arc::new(Int64Array::from(some(i64::MIN / 4))),
    };
    let last = ScalarValue::try_from_array(&array, rows).unwrap();
    (array.slice(0, rows), scalar_of(&last).unwrap())
}

fn values(array: &ArrayRef) -> impl Iterator<Item = Scalar> {
    let values = (0..array.len()).map(|row| ScalarValue::try_from_array(array, row).unwrap());
    values.map(|value| scalar_of(&value).unwrap())
}

#[test]
fn what_any_task_has_seen_passes_and_what_none_has_mostly_not() {
    for_each_case("keys of joins", 300, |generator| {
        let rng = generator.rng();
        let types = [
            DataType::Int32,
            DataType::Int64,
            DataType::Date32,
            DataType::Utf8,
        ];
        let data_type = &types[rng.random_range(0..types.len())];
        let width = *[40, 5_000, 1 << 30].get(rng.random_range(0..3)).unwrap();
        let width = if *data_type == DataType::Int64 {
            width << 20
        } else {
            width
        };
        // The probe side's may reach further, or less far, than the keys.
        let span = rng
            .random_bool(0.7)
            .then(|| (-20, rng.random_range(0..2 * width)));
        let is_probed = |value: &Scalar| match (value, span) {
            (Scalar::Int(value), Some((least, greatest))) => {
                (least.into()..=greatest.into()).contains(value)
            }
            _ => true,
        };
        let (mut seen, mut others, mut has_nulls) = (Vec::new(), Vec::new(), false);
        let tasks = (0..rng.random_range(1..4)).map(|_| {
            let task = Collected::new(data_type, span);
            for _ in 0..rng.random_range(0..12) {
                let (array, other) = keys(rng, data_type, width);
                has_nulls |= array.null_count() > 0;
                seen.extend(values(&array));
                others.push(other);
                task.add(&array).unwrap();
            }
            task.filter(3)
        });
        let all: Vec<Option<RuntimeFilter>> = tasks.collect();
        let whole = all.into_iter().reduce(|one, other| union(one?, other?));
        let Some(Some(whole)) = whole else {
            let distinct: BTreeSet<_> = seen.iter().map(|value| format!("{value:?}")).collect();
            assert!(
                distinct.len() > 2048,
                "nothing is told of {} keys",
                distinct.len()
            );
            return;
        };
        assert_eq!((whole.column, whole.keep_nulls), (3, has_nulls));
        for value in seen
            .iter()
            .filter(|value| !value.is_null() && is_probed(value))
        {
            assert!(whole.passes(value), "{value:?} is dropped by {whole:?}");
        }
        let is_range = matches!(
            whole.predicate,
            flashmesh_pushdown::RuntimePredicate::Range { .. }
        );
        for value in others
            .iter()
            .filter(|value| !value.is_null() && is_probed(value))
        {
            assert!(
                is_range || whole.passes(value) == seen.contains(value),
                "{value:?} with {whole:?}"
            );
        }
    });
}

/// What a hub wants to tell others.
#[derive(Debug, Default, Clone)]
struct Sent(Arc<Mutex<Vec<Vec<u8>>>>);

impl TellNodes for Sent {
    fn tell(&self, message: Vec<u8>) {
        self.0.lock().push(message);
    }
}

fn hub() -> (Arc<KeyHub>, Sent) {
    let sent = Sent::default();
    (Arc::new(KeyHub::new(Box::new(sent.clone()))), sent)
}

fn told(keys: &QueryKeys, join: u32, values: &[i64]) {
    let key = JoinKey {
        expr: Arc::new(Column::new("k", 0)),
        data_type: DataType::Int64,
        span: None,
    };
    let collecting = keys.collecting(join, &[key], 2);
    let (one, other) = values.split_at(values.len() / 2);
    for part in [one, other] {
        let array: ArrayRef = Arc::new(Int64Array::from(part.to_vec()));
        collecting.keys[0].add(&array).unwrap();
        keys.ended(join, &collecting);
    }
}

#[test]
fn a_node_knows_keys_when_all_tasks_have_told_whenever_it_begins() {
    let (here, _) = hub();
    let (there, sent) = hub();
    let query = 17;
    let of_here = QueryKeys::new(Arc::clone(&here), query, 0, 2);
    told(&of_here, 5, &[1, 2, 3]);
    let gathered = of_here.of(5);
    assert_eq!(gathered.whole(), None, "one of two has told");

    let of_there = QueryKeys::new(Arc::clone(&there), query, 1, 2);
    told(&of_there, 5, &[9, 3]);
    told(&of_there, 6, &[4]);
    for message in sent.0.lock().iter() {
        here.receive(message).unwrap();
        // Told twice is told once.
        here.receive(message).unwrap();
    }
    let passes = |keys: &QueryKeys, value: i64| {
        let whole = keys.of(5).whole();
        whole.map(|whole| whole[0].passes(&Scalar::Int(value.into())))
    };
    let all = [0, 1, 2, 3, 4, 9].map(|value| passes(&of_here, value));
    assert_eq!(all, [false, true, true, true, false, true].map(Some));
    assert_eq!(of_here.of(6).whole(), None);
    // Another execution of the same plan knows nothing of it.
    let another = QueryKeys::new(Arc::clone(&here), 18, 0, 2);
    assert_eq!(another.of(5).whole(), None);

    // The same, for a node whose tasks begin last.
    let (late, _) = hub();
    let of_one = QueryKeys::new(Arc::clone(&there), 19, 0, 1);
    sent.0.lock().clear();
    told(&of_one, 5, &[7]);
    late.receive(&sent.0.lock()[0]).unwrap();
    let of_late = QueryKeys::new(Arc::clone(&late), 19, 0, 1);
    assert_eq!(
        [6, 7].map(|value| passes(&of_late, value)),
        [false, true].map(Some)
    );
}

#[test]
fn bytes_of_another_node_are_refused_and_never_panic() {
    for_each_case("messages of keys", 300, |generator| {
        let rng = generator.rng();
        let (node, _) = hub();
        let (other, sent) = hub();
        let keys = QueryKeys::new(other, 1, 0, 1);
        told(&keys, 2, &[1, 2, 3]);
        let mut message = sent.0.lock()[0].clone();
        for _ in 0..rng.random_range(1..4) {
            match rng.random_range(0..3) {
                0 => message.truncate(rng.random_range(0..=message.len())),
                1 => message.push(rng.random()),
                _ => {
                    let place = rng.random_range(0..message.len().max(1));
                    if let Some(byte) = message.get_mut(place) {
                        *byte = rng.random();
                    }
                }
            }
        }
        let _ = node.receive(&message);
        let _ = QueryKeys::new(node, 1, 0, 1).of(2).whole();
    });
    let (node, _) = hub();
    let error = node.receive(b"hello").unwrap_err().to_string();
    assert!(error.contains("no keys"), "{error}");
}
