//! What columns are defined as, and values that do not fit them.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Decimal256Array, FixedSizeBinaryArray, Float64Array, Int64Array, Int64Builder,
    MapBuilder, RecordBatch, RecordBatchIterator, StringBuilder,
};
use arrow::datatypes::{DataType, Field, Schema, i256};
use flashmesh::{Engine, EngineOptions, LoadMode, Session};

use crate::support::{batch, error, rows, run, session};

#[tokio::test]
async fn not_null_holds_in_a_table_made_of_a_query() {
    let session = session();
    session
        .sql("CREATE TABLE n (a INT NOT NULL, b TEXT) AS VALUES (1, 'x')")
        .await
        .unwrap();
    assert_eq!(
        rows(
            &session,
            "SELECT column_name, column_type, \"null\" FROM (DESCRIBE n)"
        )
        .await,
        ["a INTEGER NO", "b VARCHAR YES"]
    );
    let message = error(&session, "INSERT INTO n VALUES (NULL, 'y')").await;
    assert!(
        message.contains("'a'") && message.contains("NOT NULL"),
        "{message}"
    );
    let message = error(
        &session,
        "CREATE TABLE m (a INT NOT NULL) AS SELECT nullif(value, 2) FROM generate_series(1, 3) AS s(value)",
    )
    .await;
    assert!(
        message.contains("'a'") && message.contains("NOT NULL"),
        "{message}"
    );
    session.sql("INSERT INTO n (a) VALUES (2)").await.unwrap();
    assert_eq!(
        rows(&session, "SELECT a FROM n ORDER BY a").await,
        ["1", "2"]
    );
}

#[tokio::test]
async fn columns_may_be_called_key_and_index() {
    let session = session();
    session
        .sql(
            "CREATE TABLE kv (Key VARCHAR(10) PRIMARY KEY, index INT);
             INSERT INTO kv (key, index) VALUES ('a', 1), ('b', 2)",
        )
        .await
        .unwrap();
    let sql = "SELECT index, key FROM kv WHERE key = 'b'";
    assert_eq!(rows(&session, sql).await, ["2 b"]);
    let message = error(&session, "INSERT INTO kv VALUES ('a', 3)").await;
    assert!(message.contains("(key) = (a)"), "{message}");
}

#[tokio::test]
async fn a_column_of_nothing_but_null_is_an_integer() {
    let session = session();
    session
        .sql("CREATE TABLE pn AS SELECT NULL AS a, 1 AS b; INSERT INTO pn VALUES (5, 2)")
        .await
        .unwrap();
    assert_eq!(
        rows(
            &session,
            "SELECT a, coalesce(a, 0) + 1, arrow_typeof(a) FROM pn ORDER BY b"
        )
        .await,
        [" 1 Int32", "5 6 Int32"]
    );
}

#[tokio::test]
async fn values_that_would_lose_digits_are_refused() {
    let session = session();
    session
        .sql(
            "CREATE TABLE t (i BIGINT, d DECIMAL(10, 2), r REAL, s TIMESTAMP(0), small SMALLINT, day DATE);
             CREATE TABLE source AS SELECT 1.5 AS f, CAST(1.99 AS DECIMAL(5, 2)) AS d,
                 1e300 AS huge, TIMESTAMP '2024-05-06 07:08:09.123456' AS micros",
        )
        .await
        .unwrap();
    for (column, value, shown) in [
        ("i", "1.5", "1.5"),
        ("i", "CAST(1.99 AS DECIMAL(5, 2))", "1.99"),
        ("d", "1.999", "1.999"),
        ("d", "'1.999'", "1.999"),
        ("r", "1e300", "1e300"),
        ("s", "TIMESTAMP '2024-05-06 07:08:09.123456'", "09.123456"),
        ("s", "'2024-05-06 07:08:09.123456'", "09.123456"),
        ("day", "TIMESTAMP '2024-05-06 07:08:09'", "07:08:09"),
    ] {
        for sql in [
            format!("INSERT INTO t ({column}) VALUES ({value})"),
            format!("INSERT INTO t ({column}) SELECT {value}"),
        ] {
            let message = error(&session, &sql).await;
            assert!(
                message.contains(&format!("'{column}'")) && message.contains(shown),
                "{sql}: {message}"
            );
        }
    }
    for (column, value) in [("i", "f"), ("i", "d"), ("r", "huge"), ("s", "micros")] {
        let sql = format!("INSERT INTO t ({column}) SELECT {value} FROM source");
        let message = error(&session, &sql).await;
        assert!(message.contains(&format!("'{column}'")), "{sql}: {message}");
    }
    let message = error(&session, "INSERT INTO t (small) VALUES (1), (70000)").await;
    assert!(
        message.contains("'small'") && message.contains("70000"),
        "{message}"
    );
    let message = error(
        &session,
        "CREATE TABLE u (i BIGINT) AS SELECT f FROM source",
    )
    .await;
    assert!(
        message.contains("'i'") && message.contains("1.5"),
        "{message}"
    );
    assert_eq!(rows(&session, "SELECT count(*) FROM t").await, ["0"]);

    // What fits is stored, and what the user casts is the user's to decide.
    session
        .sql(
            "INSERT INTO t VALUES
             (2.0, 2.5, 0.1, '2024-05-06 07:08:09', 3, TIMESTAMP '2024-05-06 00:00:00'),
             (CAST(1.5 AS BIGINT), 0.1 + 0.2, 2, TIMESTAMP '2024-05-06 07:08:09', 4, '2024-05-06'),
             (1.5::BIGINT, '3.50', NULL, NULL, NULL, NULL)",
        )
        .await
        .unwrap();
    session
        .sql("INSERT INTO t (i) SELECT CAST(f AS BIGINT) FROM source")
        .await
        .unwrap();
    session
        .sql("CREATE TABLE v AS SELECT CAST(f AS BIGINT) AS i FROM source")
        .await
        .unwrap();
    assert_eq!(
        rows(
            &session,
            "SELECT i, d, r, s, day FROM t ORDER BY i DESC, d NULLS LAST"
        )
        .await,
        [
            "2 0.30 2.0 2024-05-06T07:08:09 2024-05-06",
            "2 2.50 0.1 2024-05-06T07:08:09 2024-05-06",
            "2 3.50   ",
            "2    ",
        ]
    );
}

#[tokio::test]
async fn appended_arrow_data_that_would_lose_digits_is_refused() {
    let session = session();
    session.sql("CREATE TABLE t (i BIGINT)").await.unwrap();
    for (values, fits) in [(vec![1.0, 1.5], false), (vec![1.0, 2.0], true)] {
        let column: ArrayRef = Arc::new(Float64Array::from(values));
        let batch = RecordBatch::try_from_iter([("i", column)]).unwrap();
        let schema = batch.schema();
        let reader = RecordBatchIterator::new([Ok(batch)], schema);
        let loaded = session
            .load_reader("t", Box::new(reader), LoadMode::Append)
            .await;
        match loaded {
            Ok(_) => assert!(fits),
            Err(error) => {
                let message = error.to_string();
                assert!(
                    message.contains("'i'") && message.contains("1.5"),
                    "{message}"
                );
                assert!(!fits);
            }
        }
    }
    assert_eq!(
        rows(&session, "SELECT i FROM t ORDER BY i").await,
        ["1", "2"]
    );
}

#[tokio::test]
async fn types_of_other_databases_are_stored_as_the_nearest() {
    let session = session();
    for (name, stored, value) in [
        (
            "TIMESTAMP WITH TIME ZONE",
            "Timestamp(ns, \"UTC\")",
            "'2024-05-06T07:08:09+02:00'",
        ),
        (
            "TIMESTAMPTZ",
            "Timestamp(ns, \"UTC\")",
            "'2024-05-06T07:08:09Z'",
        ),
        (
            "TIMESTAMP(3) WITH TIME ZONE",
            "Timestamp(ms, \"UTC\")",
            "'2024-05-06T07:08:09Z'",
        ),
        ("TIMESTAMP", "Timestamp(ns)", "'2024-05-06 07:08:09'"),
        ("TIMESTAMP(0)", "Timestamp(s)", "'9999-12-31 07:08:09'"),
        ("TIMESTAMP(1)", "Timestamp(ms)", "'2024-05-06 07:08:09.1'"),
        ("TIMESTAMP(2)", "Timestamp(ms)", "'2024-05-06 07:08:09.12'"),
        (
            "TIMESTAMP(4)",
            "Timestamp(µs)",
            "'2024-05-06 07:08:09.1234'",
        ),
        (
            "TIMESTAMP(5)",
            "Timestamp(µs)",
            "'2024-05-06 07:08:09.12345'",
        ),
        (
            "TIMESTAMP(7)",
            "Timestamp(ns)",
            "'2024-05-06 07:08:09.1234567'",
        ),
        (
            "TIMESTAMP(8)",
            "Timestamp(ns)",
            "'2024-05-06 07:08:09.12345678'",
        ),
        ("DATETIME", "Timestamp(ns)", "'2024-05-06 07:08:09'"),
        ("DATETIME(3)", "Timestamp(ms)", "'2024-05-06 07:08:09.123'"),
        ("TIME(0)", "Time32(s)", "'07:08:09'"),
        ("TIME(3)", "Time32(ms)", "'07:08:09.123'"),
        ("TIME(6)", "Time64(µs)", "'07:08:09.123456'"),
        ("TIME(9)", "Time64(ns)", "'07:08:09.123456789'"),
        ("VARBINARY", "BinaryView", "X'00ff'"),
        ("VARBINARY(16)", "BinaryView", "X'00ff'"),
        ("BLOB", "BinaryView", "X'00ff'"),
        ("BINARY(2)", "BinaryView", "X'00ff'"),
        ("CLOB", "Utf8View", "'x'"),
        ("NVARCHAR(10)", "Utf8View", "'x'"),
        ("CHARACTER VARYING(10)", "Utf8View", "'x'"),
        ("UUID", "Utf8View", "'123e4567-e89b-12d3-a456-426614174000'"),
        ("JSON", "Utf8View", "'{}'"),
        ("FLOAT(53)", "Float64", "1.1"),
    ] {
        session
            .sql(&format!("CREATE OR REPLACE TABLE t (a {name})"))
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        session
            .sql(&format!("INSERT INTO t VALUES ({value}), (NULL)"))
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            rows(
                &session,
                "SELECT arrow_typeof(a) FROM t WHERE a IS NOT NULL"
            )
            .await,
            [stored],
            "{name}"
        );
    }
    session
        .sql("CREATE OR REPLACE TABLE t (a TIMESTAMP WITH TIME ZONE); INSERT INTO t VALUES ('2024-05-06T07:08:09+02:00')")
        .await
        .unwrap();
    assert_eq!(
        rows(&session, "SELECT a FROM t").await,
        ["2024-05-06T05:08:09Z"]
    );
    session
        .sql("SET datafusion.execution.time_zone = '+02:00'; CREATE TABLE z (a TIMESTAMP WITH TIME ZONE)")
        .await
        .unwrap();
    assert_eq!(
        rows(&session, "SELECT arrow_typeof((SELECT a FROM z))").await,
        ["Timestamp(ns, \"+02:00\")"]
    );
    let message = error(&session, "CREATE TABLE u (a TIMESTAMP(10))").await;
    assert!(message.contains("TIMESTAMP(10)"), "{message}");
}

#[tokio::test]
async fn refusals_name_the_statement_and_the_way_out() {
    let session = session();
    session
        .sql("CREATE TABLE t (a INT, \"Big\" INT, x REAL); INSERT INTO t VALUES (1, 2, 3)")
        .await
        .unwrap();
    let message = error(&session, "SELECT \"big\" FROM t").await;
    assert!(message.contains("write \"Big\""), "{message}");
    let message = error(&session, "CREATE INDEX i ON t (x)").await;
    assert!(
        message.contains("'x'") && message.contains("integers"),
        "{message}"
    );
}

/// A table with an extension type, metadata, a map and decimals of 256 bits, twice the same row
/// but for `n`, and a row of NULL.
fn unusual_columns() -> RecordBatch {
    let ids: ArrayRef = Arc::new(
        FixedSizeBinaryArray::try_from_sparse_iter_with_size(
            [Some([7_u8; 16]), Some([7; 16]), None].into_iter(),
            16,
        )
        .unwrap(),
    );
    let wide = Decimal256Array::from(vec![Some(i256::MAX), Some(i256::MIN), None]);
    let wide = wide.with_precision_and_scale(76, 10).unwrap();
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for row in 0..3 {
        if row < 2 {
            map.keys().append_value("a");
            map.values().append_value(row);
        }
        map.append(row < 2).unwrap();
    }
    let map: ArrayRef = Arc::new(map.finish());
    let labelled = |name: &str, array: &ArrayRef, metadata: &[(&str, &str)]| {
        let metadata = metadata.iter().map(|(k, v)| (k.to_string(), v.to_string()));
        Field::new(name, array.data_type().clone(), true).with_metadata(metadata.collect())
    };
    let (n, wide): (ArrayRef, ArrayRef) =
        (Arc::new(Int64Array::from(vec![1, 2, 3])), Arc::new(wide));
    let schema = Schema::new(vec![
        labelled("n", &n, &[("unit", "km"), ("PARQUET:field_id", "3")]),
        labelled("id", &ids, &[("ARROW:extension:name", "arrow.uuid")]),
        labelled("wide", &wide, &[]),
        labelled("map", &map, &[]),
    ]);
    RecordBatch::try_new(Arc::new(schema), vec![n, ids, wide, map]).unwrap()
}

#[tokio::test]
async fn unusual_types_and_what_fields_say_of_themselves_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        path: Some(folder.path().join("db")),
        ..EngineOptions::default()
    };
    let load = async |session: &Session, mode| {
        let batch = unusual_columns();
        let reader = RecordBatchIterator::new([Ok(batch.clone())], batch.schema());
        session
            .load_reader("t", Box::new(reader), mode)
            .await
            .unwrap();
    };
    {
        let session = Engine::open(options.clone()).unwrap().session().unwrap();
        load(&session, LoadMode::Create).await;
        load(&session, LoadMode::Append).await;
        run(&session, "CREATE TABLE u AS SELECT * FROM t").await;
        run(&session, "INSERT INTO u SELECT * FROM t WHERE n = 1").await;
    }
    let session = Engine::open(options).unwrap().session().unwrap();
    for mode in ["auto", "always", "never"] {
        run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        for (sql, expected) in [
            ("SELECT n, id, wide, map FROM t", 6),
            (
                "SELECT n, id, wide, map FROM u WHERE n < 3 AND id IS NOT NULL",
                6,
            ),
            ("SELECT n, id, wide, map FROM t ORDER BY n LIMIT 2", 2),
            (
                "SELECT n, id, wide, map FROM u WHERE wide IS NULL ORDER BY n",
                2,
            ),
            (
                "SELECT n, id, max(wide) AS wide, first_value(map) AS map FROM t GROUP BY n, id",
                3,
            ),
            (
                "SELECT n, id, wide, map FROM t UNION ALL SELECT n, id, wide, map FROM u",
                14,
            ),
            (
                "SELECT t.n, u.id, t.wide, u.map FROM t JOIN u ON t.n = u.n AND t.id = u.id",
                12,
            ),
            (
                "SELECT n, id, wide, map FROM t WHERE id = X'07070707070707070707070707070707'",
                4,
            ),
            (
                "SELECT n, id, wide, map FROM (SELECT DISTINCT n, id FROM t) JOIN (SELECT wide, map FROM u WHERE n = 1 LIMIT 1) ON true",
                3,
            ),
        ] {
            let found = batch(&session, sql).await;
            assert_eq!(found.num_rows(), expected, "{mode} {sql}");
            let schema = found.schema();
            let (n, id) = (schema.field(0), schema.field(1));
            assert_eq!(n.metadata().len(), 1, "{mode} {sql}");
            assert_eq!(n.metadata()["unit"], "km", "{mode} {sql}");
            assert_eq!(id.extension_type_name(), Some("arrow.uuid"), "{mode} {sql}");
            assert!(
                matches!(schema.field(2).data_type(), DataType::Decimal256(76, 10)),
                "{mode} {sql}"
            );
            assert!(
                matches!(schema.field(3).data_type(), DataType::Map(..)),
                "{mode} {sql}"
            );
        }
        assert_eq!(
            rows(
                &session,
                "SELECT max(wide), min(wide), count(map), sum(map['a']) FROM t WHERE n IN (1, 2)"
            )
            .await,
            [format!("{} {} 4 2", decimal(i256::MAX), decimal(i256::MIN))]
        );
    }
}

fn decimal(value: i256) -> String {
    let array = Decimal256Array::from(vec![value]);
    array
        .with_precision_and_scale(76, 10)
        .unwrap()
        .value_as_string(0)
}
