//! Answers are the same wherever they are computed: each case in `auto`, `always` and `never`.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::physical_plan::ExecutionPlanProperties;
use flashmesh::Session;
use futures::TryStreamExt;

use crate::support::{error, rows, session_of_threads};

const MODES: [&str; 3] = ["auto", "always", "never"];

/// A session of two threads: some rules take hold only where a query has several streams.
async fn session(setup: &[&str]) -> Session {
    let session = session_of_threads(2);
    for statement in setup {
        rows(&session, statement).await;
    }
    session
}

/// Runs each query in each mode; `expected` are its rows, fields separated by spaces, NULL as
/// nothing.
async fn check(setup: &[&str], queries: &[(&str, &[&str])]) {
    let session = session(setup).await;
    check_in(&session, queries).await;
}

async fn check_in(session: &Session, queries: &[(&str, &[&str])]) {
    for mode in MODES {
        rows(session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        for (query, expected) in queries {
            let found = rows(session, query).await;
            assert_eq!(found, *expected, "{mode}: {query}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn order_by_a_computed_column_that_has_the_name_of_a_stored_one() {
    check(
        &[
            "CREATE TABLE one (a BIGINT)",
            "INSERT INTO one SELECT value FROM generate_series(1, 1000) AS s(value)",
            "CREATE TABLE two (a BIGINT, b BIGINT)",
            "INSERT INTO two SELECT value, 1001 - value FROM generate_series(1, 1000) AS s(value)",
            "CREATE TABLE floats (x DOUBLE)",
            "INSERT INTO floats SELECT value / 10.0 FROM generate_series(1, 100) AS s(value)",
        ],
        &[
            (
                "SELECT a % 10 AS a FROM one ORDER BY a LIMIT 3",
                &["0", "0", "0"],
            ),
            (
                "SELECT abs(a - 500) AS a FROM one ORDER BY a LIMIT 1",
                &["0"],
            ),
            (
                "SELECT b AS a, abs(a) AS b FROM two ORDER BY a LIMIT 1",
                &["1 1000"],
            ),
            (
                "SELECT b AS a, a AS b FROM two ORDER BY a DESC LIMIT 1",
                &["1000 1"],
            ),
            (
                "SELECT round(sin(x), 4) AS x FROM floats ORDER BY x LIMIT 1",
                &["-0.9999"],
            ),
            (
                "SELECT * FROM (SELECT random() * 0 + 5 AS a, a AS b FROM one) ORDER BY a, b LIMIT 2",
                &["5.0 1", "5.0 2"],
            ),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_whose_build_side_has_null_between_its_keys() {
    let queries: &[(&str, &[&str])] = &[
        (
            "SELECT count(*) FROM b JOIN p ON b.k IS NOT DISTINCT FROM p.k",
            &["3"],
        ),
        (
            "SELECT p.k FROM b JOIN p ON b.k IS NOT DISTINCT FROM p.k ORDER BY 1",
            &["5", "9", ""],
        ),
        (
            "SELECT count(*) FROM text_b b JOIN text_p p ON b.k IS NOT DISTINCT FROM p.k",
            &["3"],
        ),
        (
            "SELECT k FROM b INTERSECT SELECT k FROM p ORDER BY 1",
            &["5", "9", ""],
        ),
        ("SELECT k FROM b EXCEPT SELECT k FROM p", &[]),
        (
            "SELECT count(*) FROM p WHERE EXISTS (SELECT 1 FROM b WHERE b.k IS NOT DISTINCT FROM p.k)",
            &["3"],
        ),
        (
            "SELECT count(*) FROM pairs_b b JOIN pairs_p p ON (b.k IS NOT DISTINCT FROM p.k) AND (b.l IS NOT DISTINCT FROM p.l)",
            &["4"],
        ),
    ];
    check(
        &[
            "CREATE TABLE b (k BIGINT)",
            "INSERT INTO b VALUES (5), (NULL), (9)",
            "CREATE TABLE p (k BIGINT)",
            "INSERT INTO p SELECT value FROM generate_series(1, 1000) AS s(value)",
            "INSERT INTO p VALUES (NULL)",
            "CREATE TABLE text_b (k TEXT)",
            "INSERT INTO text_b VALUES ('apple'), (NULL), ('pear')",
            "CREATE TABLE text_p (k TEXT)",
            "INSERT INTO text_p VALUES ('apple'), ('fig'), ('pear'), (NULL), ('zzz'), ('aaa')",
            "CREATE TABLE pairs_b (k BIGINT, l BIGINT)",
            "INSERT INTO pairs_b VALUES (1, 1), (2, NULL), (NULL, 3), (NULL, NULL)",
            "CREATE TABLE pairs_p (k BIGINT, l BIGINT)",
            "INSERT INTO pairs_p VALUES (1, 1), (2, NULL), (NULL, 3), (NULL, NULL), (1, NULL), (9, 9)",
        ],
        queries,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitioned_joins_whose_build_side_has_a_null() {
    let mut setup = vec![
        "SET datafusion.optimizer.hash_join_single_partition_threshold = 0".to_owned(),
        "SET datafusion.optimizer.hash_join_single_partition_threshold_rows = 0".to_owned(),
        "CREATE TABLE p (k BIGINT)".to_owned(),
        "INSERT INTO p SELECT value FROM generate_series(1, 100000) AS s(value)".to_owned(),
    ];
    let firsts = [1, 2, 3, 17, 40];
    for first in firsts {
        setup.push(format!("CREATE TABLE b{first} (k BIGINT)"));
        setup.push(format!(
            "INSERT INTO b{first} SELECT value FROM generate_series({first}, {first} + 99) AS s(value) UNION ALL SELECT NULL UNION ALL SELECT 99999"
        ));
    }
    let setup: Vec<&str> = setup.iter().map(String::as_str).collect();
    let queries = firsts.map(|first| format!("SELECT count(*) FROM b{first} JOIN p USING (k)"));
    let queries = queries.each_ref().map(|q| (q.as_str(), &["101"][..]));
    check(&setup, &queries).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unique_columns_that_may_be_null_are_no_keys() {
    check(
        &[
            "CREATE TABLE t (v TEXT, x BIGINT, UNIQUE (v))",
            "INSERT INTO t VALUES ('a', 1), ('b', 2), (NULL, 3), (NULL, 4)",
        ],
        &[
            ("SELECT DISTINCT v FROM t ORDER BY v", &["a", "b", ""]),
            ("SELECT count(*) FROM (SELECT DISTINCT v FROM t)", &["3"]),
            (
                "SELECT x FROM t ORDER BY v NULLS FIRST, x DESC LIMIT 1",
                &["4"],
            ),
            (
                "SELECT count(*) FROM (SELECT v, x FROM t GROUP BY v, x)",
                &["4"],
            ),
            (
                "SELECT v, x FROM t GROUP BY v, x ORDER BY x",
                &["a 1", "b 2", " 3", " 4"],
            ),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_of_a_subquery_are_numbered_in_its_order() {
    check(
        &[
            "CREATE TABLE t AS SELECT value AS id, arrow_cast(make_array(value * 1.0, value * 1.0), 'FixedSizeList(2, Float32)') AS x FROM generate_series(1, 100) AS s(value)",
        ],
        &[
            (
                "SELECT query, id FROM nearest('t', 'x', (SELECT x FROM t WHERE id <= 3 ORDER BY id DESC), 1, exact => true) ORDER BY query",
                &["0 3", "1 2", "2 1"],
            ),
            (
                "SELECT query, id FROM nearest('t', 'x', (SELECT x FROM t WHERE id <= 9 ORDER BY abs(id - 4), id LIMIT 3), 1, exact => true) ORDER BY query",
                &["0 4", "1 3", "2 5"],
            ),
            (
                "SELECT query, id FROM nearest('t', 'x', (SELECT x FROM t WHERE id <= 9 ORDER BY id DESC LIMIT 2 OFFSET 1), 1, exact => true) ORDER BY query",
                &["0 8", "1 7"],
            ),
            (
                "SELECT query, id FROM nearest('t', 'x', (SELECT DISTINCT x FROM t WHERE id <= 3 ORDER BY x DESC), 1, exact => true) ORDER BY query",
                &["0 3", "1 2", "2 1"],
            ),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn negated_floats_that_are_nan() {
    check(
        &[
            "CREATE TABLE t (id BIGINT, x DOUBLE, y REAL)",
            "INSERT INTO t VALUES (1, CAST('NaN' AS DOUBLE), CAST('NaN' AS REAL)), (2, 1.0, 1.0), (3, -1.0, -1.0)",
        ],
        &[
            ("SELECT count(*) FROM t WHERE -x < 0", &["1"]),
            ("SELECT count(*) FROM t WHERE -y < 0", &["1"]),
            ("SELECT id FROM t ORDER BY -x LIMIT 1", &["2"]),
            ("SELECT id FROM t ORDER BY -x DESC LIMIT 1", &["1"]),
            ("SELECT count(*) FROM t WHERE -id < -1", &["2"]),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_take_both_zeros_for_one() {
    check(
        &[
            "CREATE TABLE plus (k DOUBLE)",
            "INSERT INTO plus VALUES (0.0)",
            "CREATE TABLE minus (k DOUBLE)",
            "INSERT INTO minus SELECT -0.0 FROM generate_series(1, 100) AS s(value)",
        ],
        &[
            (
                "SELECT count(*) FROM plus JOIN minus ON plus.k = minus.k",
                &["100"],
            ),
            (
                "SELECT count(*) FROM plus WHERE k IN (SELECT k FROM minus)",
                &["1"],
            ),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lookups_by_keys_that_no_row_can_have_give_nothing() {
    check(
        &[
            "CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)",
            "INSERT INTO t VALUES (7, 'seven'), (8, 'eight')",
            "CREATE TABLE small (id TINYINT PRIMARY KEY, v TEXT)",
            "INSERT INTO small VALUES (7, 'seven')",
            "CREATE TABLE days (d DATE PRIMARY KEY, v TEXT)",
            "INSERT INTO days VALUES (DATE '2020-01-01', 'new year')",
            "CREATE TABLE words (w TEXT PRIMARY KEY, v BIGINT)",
            "INSERT INTO words VALUES ('7', 7)",
        ],
        &[
            ("SELECT v FROM lookup('t', 7.9)", &[]),
            ("SELECT v FROM lookup('t', 7.0)", &["seven"]),
            ("SELECT v FROM lookup('t', [7.9, 8.0])", &["eight"]),
            ("SELECT v FROM lookup('t', '7')", &["seven"]),
            ("SELECT v FROM lookup('t', (SELECT 7.9))", &[]),
            (
                "SELECT v FROM lookup('t', (SELECT * FROM (VALUES (7.9), (8.0), (NULL)) AS k(k)))",
                &["eight"],
            ),
            ("SELECT v FROM lookup('t', (SELECT '7'))", &["seven"]),
            ("SELECT v FROM lookup('small', 300)", &[]),
            ("SELECT v FROM lookup('small', (SELECT 300))", &[]),
            (
                "SELECT v FROM lookup('days', TIMESTAMP '2020-01-01T12:00:00')",
                &[],
            ),
            (
                "SELECT v FROM lookup('days', TIMESTAMP '2020-01-01T00:00:00')",
                &["new year"],
            ),
            (
                "SELECT v FROM lookup('days', (SELECT TIMESTAMP '2020-01-01T12:00:00'))",
                &[],
            ),
            ("SELECT v FROM lookup('words', 7)", &["7"]),
            ("SELECT v FROM t WHERE id = 7.9", &[]),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volatile_filters_stay_above_the_joins_that_they_follow() {
    let session = session(&[
        "CREATE TABLE big (k BIGINT)",
        "INSERT INTO big SELECT value % 1000 FROM generate_series(1, 100000) AS s(value)",
        "CREATE TABLE mid (k BIGINT, o BIGINT)",
        "INSERT INTO mid SELECT value, value % 2 FROM generate_series(0, 999) AS s(value)",
        "CREATE TABLE one (o BIGINT, p DOUBLE)",
        "INSERT INTO one VALUES (1, 0.5)",
    ])
    .await;
    // Of so many rows each stays by the toss of a coin.
    let cases = [
        (
            "SELECT count(*) FROM big b JOIN mid m ON b.k = m.k JOIN one o ON m.o = o.o WHERE random() < o.p",
            50_000,
        ),
        (
            "SELECT count(*) FROM big b JOIN mid m ON b.k = m.k WHERE random() < 0.5 AND m.o = 1",
            50_000,
        ),
        (
            "SELECT count(*) FROM (SELECT * FROM big, one) WHERE random() < p AND k < 500",
            50_000,
        ),
        (
            "SELECT count(*) FROM (SELECT k, count(*) FROM big GROUP BY k) WHERE random() < 0.5 + 0 * k",
            1_000,
        ),
    ];
    for mode in MODES {
        rows(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        for (query, of) in cases {
            let found = rows(&session, query).await;
            let share = found[0].parse::<f64>().unwrap() / f64::from(of);
            // Six standard deviations and more on either side.
            assert!((0.4..0.6).contains(&share), "{mode}: {query}: {share}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approximate_search_has_as_many_rows_as_the_limit_asks_for() {
    let setup = [
        "CREATE TABLE t AS SELECT value AS id, CASE WHEN value <= 5 THEN arrow_cast(make_array(value * 1.0, 0.0), 'FixedSizeList(2, Float32)') END AS x FROM generate_series(1, 100) AS s(value)",
        "CREATE INDEX i ON t USING lsh (x)",
        "SET flashmesh.approximate = 'on'",
    ];
    let query = |limit: usize, filter: &str| {
        format!(
            "SELECT count(*), count(x) FROM (SELECT x FROM t {filter} ORDER BY l2_distance(x, [1.0, 0.0]) LIMIT {limit})"
        )
    };
    let cases = [
        (query(10, ""), "10 5"),
        (query(3, ""), "3 3"),
        (query(200, ""), "100 5"),
        (query(10, "WHERE id > 2"), "10 3"),
        (query(10, "WHERE id > 2 AND id < 9"), "6 3"),
    ];
    let cases = cases
        .each_ref()
        .map(|(query, expected)| (query.as_str(), std::slice::from_ref(expected)));
    check(&setup, &cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_that_case_guards_are_no_errors() {
    let session = session(&[
        "CREATE TABLE t (d DATE, a BIGINT, x BIGINT)",
        "INSERT INTO t VALUES (DATE '9999-12-31', 1, 0), (DATE '2020-01-01', 2, 5)",
    ])
    .await;
    check_in(
        &session,
        &[
            (
                "SELECT count(*) FROM t WHERE CASE WHEN a = 1 THEN false ELSE CAST(d AS TIMESTAMP) < TIMESTAMP '2021-01-01' END",
                &["1"],
            ),
            (
                "SELECT count(*) FROM t WHERE NOT CASE WHEN a <> 1 THEN CAST(d AS TIMESTAMP) < TIMESTAMP '2021-01-01' ELSE false END",
                &["1"],
            ),
            (
                "SELECT a FROM t WHERE CASE WHEN x = 0 THEN NULL WHEN 10 / x = 2 THEN true END",
                &["2"],
            ),
            (
                "SELECT CASE WHEN x = 0 THEN false ELSE 10 / x = 2 END FROM t ORDER BY a",
                &["false", "true"],
            ),
        ],
    )
    .await;
    for mode in MODES {
        rows(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        let unguarded =
            "SELECT count(*) FROM t WHERE CAST(d AS TIMESTAMP) < TIMESTAMP '2021-01-01'";
        error(&session, unguarded).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn recursive_queries_join_every_iteration_with_the_whole_table() {
    check(
        &[
            "CREATE TABLE t (src BIGINT, dst BIGINT)",
            "INSERT INTO t SELECT value, value + 1 FROM generate_series(1, 200) AS s(value)",
        ],
        &[(
            "WITH RECURSIVE r(n) AS (SELECT CAST(1 AS BIGINT) UNION SELECT t.dst FROM r JOIN t ON r.n = t.src) SELECT count(*), max(n) FROM r",
            &["201 201"],
        )],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_with_null_beside_a_scalar_subquery() {
    check(
        &[
            "CREATE TABLE t (k BIGINT)",
            "INSERT INTO t SELECT value FROM generate_series(1, 100) AS s(value)",
        ],
        &[(
            "SELECT count(*) FROM t WHERE k IN (1, NULL, 3, 7, 9) OR k > (SELECT max(k) - 1 FROM t)",
            &["5"],
        )],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unsigned_integers_beyond_the_signed_ones() {
    check(
        &[
            "CREATE TABLE t (u BIGINT UNSIGNED)",
            "INSERT INTO t VALUES (5), (18446744073709551615), (NULL)",
        ],
        &[
            ("SELECT count(*) FROM t WHERE u > 5", &["1"]),
            ("SELECT count(*) FROM t WHERE u <> 7", &["2"]),
            (
                "SELECT count(*) FROM t WHERE u NOT IN (5, 6, 7, 8, 9)",
                &["1"],
            ),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_that_are_cases_of_ascii_ones() {
    check(
        &[
            "CREATE TABLE t (t TEXT)",
            "INSERT INTO t VALUES ('273 ' || chr(8490) || 'elvin'), ('mi' || chr(383) || 'tress'), ('plain')",
            "CREATE INDEX i ON t USING ngram (t)",
        ],
        &[
            ("SELECT count(*) FROM t WHERE t ILIKE '%kelvin%'", &["1"]),
            ("SELECT count(*) FROM t WHERE t ILIKE 'mistress'", &["1"]),
            (
                r"SELECT count(*) FROM t WHERE t LIKE '%\%' OR t LIKE '100\%'",
                &["0"],
            ),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nulls_ties_and_offset_in_a_top_k() {
    check(
        &[
            "CREATE TABLE t (k BIGINT)",
            "INSERT INTO t VALUES (NULL), (7), (6), (5), (NULL), (1), (1), (1)",
        ],
        &[
            (
                "SELECT k FROM t ORDER BY k DESC NULLS LAST LIMIT 2 OFFSET 1",
                &["6", "5"],
            ),
            (
                "SELECT k FROM t ORDER BY k NULLS FIRST LIMIT 3",
                &["", "", "1"],
            ),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn executions_of_one_plan_at_the_same_time_each_see_all_rows() {
    let session = session(&[
        "CREATE TABLE t (a BIGINT)",
        "INSERT INTO t SELECT value FROM generate_series(1, 1000) AS s(value)",
        "INSERT INTO t SELECT value FROM generate_series(1001, 2000) AS s(value)",
        "SET datafusion.execution.batch_size = 100",
    ])
    .await;
    let frame = session.sql("SELECT a FROM t").await.unwrap();
    let plan = frame.create_physical_plan().await.unwrap();
    assert_eq!(plan.output_partitioning().partition_count(), 2);
    let contexts = [(); 2].map(|()| session.context().task_ctx());
    let open = |execution: usize, partition| {
        let context = Arc::clone(&contexts[execution]);
        plan.execute(partition, context).unwrap()
    };
    let mut rows = [0, 0];
    let mut begun = open(0, 0);
    rows[0] += begun.try_next().await.unwrap().unwrap().num_rows();
    // The second starts with the stream that the first has not asked for yet.
    let rest = [
        (1, open(1, 1)),
        (1, open(1, 0)),
        (0, open(0, 1)),
        (0, begun),
    ];
    for (execution, stream) in rest {
        let batches: Vec<RecordBatch> = stream.try_collect().await.unwrap();
        rows[execution] += batches.iter().map(RecordBatch::num_rows).sum::<usize>();
    }
    assert_eq!(rows, [2000, 2000]);
}

/// DataFusion makes one list of two.
#[tokio::test(flavor = "multi_thread")]
async fn null_in_one_of_several_lists() {
    check(
        &[
            "CREATE TABLE n (x BIGINT)",
            "INSERT INTO n VALUES (0), (1), (7), (9), (NULL)",
        ],
        &[
            (
                "SELECT count(*) FROM n WHERE x NOT IN (7, 1, NULL) AND x IN (0, 7)",
                &["0"],
            ),
            (
                "SELECT count(*) FILTER (WHERE x NOT IN (7, 1, NULL) AND x IN (0, 7)), count(*) FROM n",
                &["0 5"],
            ),
            (
                "SELECT count(*) FROM n WHERE NOT (x IN (1, NULL) AND x NOT IN (2, 9))",
                &["1"],
            ),
            (
                "SELECT count(*) FROM n WHERE (x NOT IN (7, NULL) AND x IN (0, 7)) IS NULL",
                &["2"],
            ),
            (
                "SELECT count(*) FROM n WHERE x NOT IN (NULL) OR x IN (9, 1)",
                &["2"],
            ),
            ("SELECT count(*) FROM n WHERE x IN (1, NULL)", &["1"]),
            (
                "SELECT count(*) FROM n WHERE (x = 0 OR x = 7) AND x NOT IN (7, 1, NULL)",
                &["0"],
            ),
            (
                "SELECT count(*) FROM n WHERE x NOT IN (7, 1, NULL) AND x <> 9 AND x <> 7",
                &["0"],
            ),
            (
                "SELECT count(*) FROM n WHERE (x = 9 AND x IN (7, 1, NULL)) IS NULL",
                &["2"],
            ),
            // Nothing is in both, and x may be NULL.
            (
                "SELECT count(*) FROM n WHERE x NOT IN (7, 1) OR x NOT IN (0, 9)",
                &["4"],
            ),
            (
                "SELECT count(*) FROM n WHERE NOT (x IN (7, 1) AND x IN (0, 9))",
                &["4"],
            ),
            (
                "SELECT count(*) FROM n WHERE (x IN (7, 1) AND x NOT IN (1, 7)) IS NULL",
                &["1"],
            ),
            (
                "SELECT count(*) FROM n WHERE ((x = 0 OR x = 1) AND (x = 7 OR x = 9)) IS NULL",
                &["1"],
            ),
            (
                "SELECT count(*) FROM n WHERE NOT (x IN (7, 1, 9) AND NOT x IN (1, 7, 9, 12))",
                &["4"],
            ),
            // What is written in two ways may be equal.
            ("SELECT count(*) FROM n WHERE x IN (x + 0) AND x IN (x * 1)", &["4"]),
            (
                "SELECT count(*) FROM n WHERE x IN (7, x - 1 + 1) AND x NOT IN (x + 1, 7)",
                &["3"],
            ),
        ],
    )
    .await;
}
