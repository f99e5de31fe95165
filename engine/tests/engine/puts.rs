//! Rows put, got and deleted by key, without SQL.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::scalar::ScalarValue;
use flashmesh::Session;
use rand::{RngExt, rngs::StdRng};

use super::support::{error, random, rows, run, session};

fn batch(rows: &[(i64, Option<String>)]) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0)));
    let names: StringArray = rows.iter().map(|row| row.1.as_deref()).collect();
    // Columns go by their names.
    let columns: Vec<(&str, ArrayRef)> = vec![("name", Arc::new(names)), ("id", ids)];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn keys(keys: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(keys.to_vec()))
}

/// A table of names whose keys are numbers, or those numbers as text.
struct Names {
    session: Session,
    keys: DataType,
}

impl Names {
    async fn new(keys: DataType) -> Self {
        let session = session();
        let sql_type = match keys {
            DataType::Utf8 => "TEXT",
            _ => "BIGINT",
        };
        let create = format!(
            "CREATE TABLE kv (id {sql_type} PRIMARY KEY, name TEXT); \
             CREATE INDEX ON kv USING ngram (name)"
        );
        run(&session, &create).await;
        Self { session, keys }
    }

    fn keys(&self, ids: &[i64]) -> ArrayRef {
        cast(&keys(ids), &self.keys).unwrap()
    }

    fn put(&self, rows: &[(i64, Option<String>)]) -> u64 {
        let batch = batch(rows);
        let ids = cast(batch.column(1), &self.keys).unwrap();
        let columns = [("name", Arc::clone(batch.column(0))), ("id", ids)];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        self.session.put("kv", &batch).unwrap()
    }

    /// The rows with these keys.
    fn get(&self, ids: &[i64]) -> Vec<(i64, Option<String>)> {
        let mut got = Vec::new();
        for batch in self.session.get("kv", &self.keys(ids)).unwrap() {
            let ids = cast(batch.column(0), &DataType::Int64).unwrap();
            let ids = ids.as_primitive::<Int64Type>().values().to_vec();
            let names = batch.column(1).as_string_view().iter();
            got.extend(
                ids.into_iter()
                    .zip(names.map(|name| name.map(str::to_string))),
            );
        }
        got.sort();
        got
    }

    async fn check(&self, expected: &BTreeMap<i64, Option<String>>) {
        let found = rows(
            &self.session,
            "SELECT CAST(id AS BIGINT) AS number, coalesce(name, '-') FROM kv ORDER BY number",
        )
        .await;
        let text = |name: &Option<String>| name.clone().unwrap_or("-".into());
        let expected = expected
            .iter()
            .map(|(id, name)| format!("{id} {}", text(name)));
        assert_eq!(found, expected.collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn random_puts_and_deletes_do_what_a_map_does() {
    let mut rng = random();
    for keys in [DataType::Int64, DataType::Utf8] {
        puts_and_deletes(&mut rng, &Names::new(keys).await).await;
    }
}

async fn puts_and_deletes(rng: &mut StdRng, names: &Names) {
    let session = &names.session;
    let mut map = BTreeMap::new();
    let mut committed = None;
    for step in 0..80 {
        let size = [1, 1, 5, 400][rng.random_range(0..4)];
        let ids: BTreeSet<i64> = (0..size).map(|_| rng.random_range(0..600)).collect();
        match rng.random_range(0..10) {
            0..6 => {
                let name = |id: i64| (id % 7 != 0).then(|| format!("name {id} of {step}"));
                let new: Vec<_> = ids.iter().map(|id| (*id, name(*id))).collect();
                assert_eq!(names.put(&new), new.len() as u64);
                map.extend(new);
            }
            6..8 => {
                let ids: Vec<i64> = ids.into_iter().collect();
                let there = ids.iter().filter(|id| map.remove(id).is_some()).count();
                // A key that comes twice is deleted once.
                let twice = names.keys(&[ids.as_slice(), &ids[..1]].concat());
                assert_eq!(session.delete("public.kv", &twice).unwrap(), there as u64);
            }
            8 if committed.is_none() => run(session, "VACUUM kv").await,
            8 => {
                let refused = error(session, "VACUUM kv").await;
                assert!(refused.contains("transaction"), "{refused}");
            }
            _ => match committed.take() {
                None => {
                    run(session, "BEGIN").await;
                    committed = Some(map.clone());
                }
                Some(before) if rng.random_bool(0.5) => {
                    run(session, "ROLLBACK").await;
                    map = before;
                }
                Some(_) => run(session, "COMMIT").await,
            },
        }
        names.check(&map).await;
        // Few keys go another way than many; some come twice.
        for count in [1, 9, 200] {
            let wanted: Vec<i64> = (0..count).map(|_| rng.random_range(0..600)).collect();
            let distinct: BTreeSet<i64> = wanted.iter().copied().collect();
            let there = distinct.iter().filter_map(|id| map.get_key_value(id));
            let there: Vec<_> = there.map(|(id, name)| (*id, name.clone())).collect();
            assert_eq!(names.get(&wanted), there);
        }
    }
}

#[tokio::test]
async fn rows_that_do_not_fit_are_refused_and_change_nothing() {
    let session = session();
    run(
        &session,
        "CREATE TABLE kv (id BIGINT PRIMARY KEY, name TEXT); INSERT INTO kv VALUES (1, 'one'); \
         CREATE TABLE plain (id BIGINT); CREATE TABLE two (a INT, b INT, PRIMARY KEY (a, b))",
    )
    .await;
    let refused =
        |table: &str, rows: &RecordBatch| session.put(table, rows).unwrap_err().to_string();
    let one = batch(&[(2, None)]);
    for (message, part) in [
        (refused("plain", &one), "no primary key"),
        (refused("two", &one), "primary key of one column"),
        (refused("none", &one), "none"),
        (
            refused("kv", &one.project(&[1]).unwrap()),
            "lack column 'name'",
        ),
        (refused("kv", &batch(&[(3, None), (3, None)])), "key 3"),
        (refused("kv", &batch(&[(1, None), (1, None)])), "key 1"),
    ] {
        assert!(message.contains(part), "{message}");
    }
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Float64Array::from(vec![2.5]))),
        ("name", Arc::new(StringArray::from(vec!["x"]))),
    ];
    let halves = RecordBatch::try_from_iter(columns.clone()).unwrap();
    let message = refused("kv", &halves);
    assert!(
        message.contains("'id'") && message.contains("2.5"),
        "{message}"
    );
    let more = columns.into_iter().chain([("more", keys(&[1]))]);
    let message = refused("kv", &RecordBatch::try_from_iter(more).unwrap());
    assert!(message.contains("no column 'more'"), "{message}");
    let nulls: ArrayRef = Arc::new(Int64Array::from(vec![None]));
    let names: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    let nulls = RecordBatch::try_from_iter([("id", nulls), ("name", names)]).unwrap();
    let message = refused("kv", &nulls);
    assert!(
        message.contains("'id'") && message.contains("NULL"),
        "{message}"
    );
    assert_eq!(rows(&session, "SELECT * FROM kv").await, ["1 one"]);
    // Keys of another type that are equal.
    let narrow: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None]));
    assert_eq!(session.delete("kv", &narrow).unwrap(), 1);
    assert_eq!(session.delete("kv", &narrow).unwrap(), 0);
    assert_eq!(rows(&session, "SELECT count(*) FROM kv").await, ["0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_put_the_same_keys_lose_nothing() {
    const CLIENTS: i64 = 4;
    const PUTS: i64 = 40;
    let first = session();
    run(&first, "CREATE TABLE kv (id BIGINT PRIMARY KEY, name TEXT)").await;
    let clients = (0..CLIENTS).map(|client| {
        let session = first.engine().session().unwrap();
        tokio::task::spawn_blocking(move || {
            for number in 0..PUTS {
                let own = (1000 * (client + 1) + number, None);
                let shared = (number % 5, Some(format!("{client} {number}")));
                session.put("kv", &batch(&[own, shared])).unwrap();
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    let counts = rows(
        &first,
        "SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE id < 5) FROM kv",
    )
    .await;
    let all = CLIENTS * PUTS + 5;
    assert_eq!(counts, [format!("{all} {all} 5")]);
}

#[tokio::test]
async fn rows_of_a_range_of_keys_come_in_their_order() {
    let session = session();
    run(
        &session,
        "CREATE TABLE r (id BIGINT PRIMARY KEY, \"Text\" TEXT);
         INSERT INTO r SELECT 99 - value, 'x' || value FROM generate_series(0, 99) AS s(value)",
    )
    .await;
    let key = |id: i64| ScalarValue::Int64(Some(id));
    let ids = |batches: Vec<RecordBatch>| -> Vec<i64> {
        let columns = batches.iter().map(|batch| batch.column(0).clone());
        columns
            .flat_map(|ids| ids.as_primitive::<Int64Type>().values().to_vec())
            .collect()
    };
    let some = session.scan("r", key(3)..key(7)).await.unwrap();
    run(
        &session,
        "DELETE FROM r WHERE id = 5; INSERT INTO r VALUES (-1, 'y')",
    )
    .await;
    // The version is that of the time when it runs.
    assert_eq!(ids(some.collect().await.unwrap()), [3, 4, 6]);
    let some = session.scan("public.r", ..=key(1)).await.unwrap();
    assert_eq!(ids(some.collect().await.unwrap()), [-1, 0, 1]);
    let some = session.scan("r", key(98)..).await.unwrap();
    assert_eq!(ids(some.collect().await.unwrap()), [98, 99]);
    let all = session.scan("r", ..).await.unwrap();
    assert_eq!(all.count().await.unwrap(), 100);
    assert!(session.scan("s", ..).await.is_err());
}
