//! What tasks tell of their keys, against the keys themselves.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool, UnboundedMemoryPool};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use flashmesh_pushdown::testing::for_each_case;
use flashmesh_pushdown::{RuntimeFilter, Scalar};
use futures::StreamExt;
use parking_lot::Mutex;
use rand::RngExt;
use rand::rngs::StdRng;

use super::JoinKeysExec;
use super::collect::{Collected, JoinKey, union};
use super::hub::{KeyHub, QueryKeys, TellNodes};
use crate::translate::scalar_of;

/// Keys of some rows, and a value more that may be one.
fn keys(rng: &mut StdRng, data_type: &DataType, from: i64, width: i64) -> (ArrayRef, Scalar) {
    let rows = rng.random_range(0..300);
    let mut key = || (rng.random_range(0..20) > 0).then(|| rng.random_range(from..=from + width));
    let keys: Vec<Option<i64>> = (0..=rows).map(|_| key()).collect();
    let array: ArrayRef = match data_type {
        DataType::Utf8 => Arc::new(StringArray::from_iter(
            keys.iter().map(|key| key.map(|key| format!("key {key}"))),
        )),
        _ => cast(&Int64Array::from(keys), data_type).unwrap(),
    };
    let last = ScalarValue::try_from_array(&array, rows).unwrap();
    (array.slice(0, rows), scalar_of(&last).unwrap())
}

fn values(array: &ArrayRef) -> impl Iterator<Item = Scalar> {
    let values = (0..array.len()).map(|row| ScalarValue::try_from_array(array, row).unwrap());
    values.map(|value| scalar_of(&value).unwrap())
}

fn pool() -> Arc<dyn MemoryPool> {
    Arc::new(UnboundedMemoryPool::default())
}

#[test]
fn what_any_task_has_seen_passes_and_what_none_has_does_not() {
    for_each_case("keys of joins", 300, |generator| {
        let rng = generator.rng();
        let types = [
            (DataType::Int32, -1000),
            (DataType::UInt32, 3_000_000_000),
            (DataType::Int64, i64::MIN / 4),
            (DataType::UInt64, 5),
            (DataType::Date32, -50),
            (
                DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())),
                1 << 40,
            ),
            (DataType::Utf8, 0),
        ];
        let (data_type, from) = &types[rng.random_range(0..types.len())];
        let width = [40, 5_000, 1 << 27][rng.random_range(0..3)];
        // The probe side's may reach further, or less far, than the keys.
        let span = rng
            .random_bool(0.7)
            .then(|| (from - 20, from + rng.random_range(0..2 * width)));
        let is_probed = |value: &Scalar| match (value, span) {
            (Scalar::Null, _) => false,
            (Scalar::Int(value), Some((least, greatest))) => {
                (least.into()..=greatest.into()).contains(value)
            }
            _ => true,
        };
        let (mut seen, mut others, mut has_nulls) = (Vec::new(), Vec::new(), false);
        let tasks = (0..rng.random_range(1..4)).map(|_| {
            let task = Collected::new(data_type, span, &pool());
            for _ in 0..rng.random_range(0..25) {
                let (array, other) = keys(rng, data_type, *from, width);
                has_nulls |= array.null_count() > 0;
                seen.extend(values(&array));
                others.push(other);
                task.add(&array).unwrap();
            }
            task.filter(3)
        });
        let all: Vec<Option<RuntimeFilter>> = tasks.collect();
        let Some(Some(whole)) = all.into_iter().reduce(|one, other| union(one?, other?)) else {
            let distinct: BTreeSet<_> = seen.iter().map(|value| format!("{value:?}")).collect();
            let is_known = *data_type != DataType::UInt64;
            assert!(
                !is_known || distinct.len() > 2048,
                "{} keys",
                distinct.len()
            );
            return;
        };
        assert_eq!((whole.column, whole.keep_nulls), (3, has_nulls));
        for value in seen.iter().filter(|value| is_probed(value)) {
            assert!(whole.passes(value), "{value:?} is dropped by {whole:?}");
        }
        for value in others.iter().filter(|value| is_probed(value)) {
            assert_eq!(whole.passes(value), seen.contains(value), "{value:?}");
        }
    });
}

#[test]
fn long_texts_and_what_there_is_no_memory_for_say_nothing() {
    let texts = Collected::new(&DataType::Utf8, None, &pool());
    let long = "x".repeat(400_000);
    for key in ["a", "b"] {
        texts
            .add(&(Arc::new(StringArray::from(vec![format!("{key}{long}")])) as _))
            .unwrap();
        assert!(texts.filter(0).is_some());
    }
    texts
        .add(&(Arc::new(StringArray::from(vec![format!("c{long}")])) as _))
        .unwrap();
    assert_eq!(texts.filter(0), None);

    let many: ArrayRef = Arc::new(Int64Array::from_iter_values(0..3000));
    for (bytes, is_known) in [(1 << 20, true), (1 << 10, false)] {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(bytes));
        let keys = Collected::new(&DataType::Int64, Some((0, 100_000)), &pool);
        keys.add(&many).unwrap();
        assert_eq!(keys.filter(0).is_some(), is_known, "{bytes} bytes");
        drop(keys);
        assert_eq!(pool.reserved(), 0);
    }
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
    let collecting = keys.collecting(join, &[key], 2, &pool());
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

#[tokio::test]
async fn streams_that_nobody_asks_any_more_have_ended() {
    let (hub, _) = hub();
    let batch = |keys: Vec<i64>| {
        let keys: ArrayRef = Arc::new(Int64Array::from(keys));
        RecordBatch::try_from_iter([("k", keys)]).unwrap()
    };
    let streams = [vec![batch(vec![1]), batch(vec![2])], vec![batch(vec![3])]];
    let schema = streams[1][0].schema();
    let rows = MemorySourceConfig::try_new_exec(&streams, schema, None).unwrap();
    let key: Arc<dyn PhysicalExpr> = Arc::new(Column::new("k", 0));
    let plan = JoinKeysExec::new(rows, 4, [(key, None)]).unwrap();
    let query = QueryKeys::new(Arc::clone(&hub), 1, 0, 1);
    let gathered = query.of(4);
    let config = SessionConfig::new().with_extension(Arc::new(query));
    let context = Arc::new(TaskContext::default().with_session_config(config));
    let mut one = plan.execute(0, Arc::clone(&context)).unwrap();
    let mut other = plan.execute(1, context).unwrap();
    assert_eq!(other.next().await.unwrap().unwrap().num_rows(), 1);
    assert!(other.next().await.is_none());
    assert_eq!(one.next().await.unwrap().unwrap().num_rows(), 1);
    assert_eq!(gathered.whole(), None, "one stream goes on");
    drop(one);
    let whole = gathered.whole().expect("nobody asks for more");
    let passes = [1, 2, 3].map(|key| whole[0].passes(&Scalar::Int(key)));
    assert_eq!(passes, [true, false, true]);
}
