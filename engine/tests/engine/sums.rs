//! Sums that leave 64 bits.

use crate::support::{answer, fails_in_all_modes, in_all_modes, rows, run, session};

#[tokio::test]
async fn a_sum_that_leaves_64_bits_is_an_error_and_no_other_number() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (id INT, g INT, v BIGINT, w BIGINT UNSIGNED, s INT);
         INSERT INTO t VALUES
           (1, 1, 9223372036854775807, 18446744073709551615, 2147483647),
           (2, 1, 9223372036854775807, 1, 2147483647),
           (3, 2, -9223372036854775807, 7, -1), (4, 2, 5, 8, NULL), (5, 3, NULL, NULL, 3);
         CREATE TABLE least (n TINYINT, m TINYINT, un INT UNSIGNED);
         INSERT INTO least VALUES (-128, 1, 4294967295), (-128, 1, 4294967295), (-128, 1, 4294967295)",
    )
    .await;
    for query in [
        "SELECT sum(v) FROM t",
        "SELECT sum(v) FROM t WHERE g = 1",
        "SELECT g, sum(v) FROM t GROUP BY g",
        "SELECT sum(w) FROM t",
        "SELECT sum(v) OVER (ORDER BY id) FROM t",
        "SELECT sum(-v) FROM t WHERE g = 1",
        "SELECT sum(DISTINCT v + id) FROM t WHERE v < 0 OR g = 1 HAVING sum(v) > 0",
        "SELECT sum(x) FROM (SELECT v AS x FROM t UNION ALL SELECT v FROM t)",
        "SELECT sum(a.v) FROM t AS a JOIN t AS b ON a.g = b.g WHERE a.g = 1",
        // Of types whose greatest values are near the end.
        "SELECT sum((v > 0)::BIGINT * v) FROM t",
        "SELECT sum(n::BIGINT * -36028797018963968) FROM least",
        "SELECT sum(4611686018427387904) FROM (SELECT n FROM least GROUP BY CUBE (n, m))",
        "SELECT sum(un::BIGINT * 1073741824) FROM least",
    ] {
        fails_in_all_modes(&session, query, "out of range").await;
    }
    for (query, expected) in [
        // What comes between does not matter.
        ("SELECT sum(v) FROM t WHERE id <> 4", "9223372036854775807"),
        (
            "SELECT g, sum(v) AS s FROM t WHERE g > 1 GROUP BY g ORDER BY g",
            "2 -9223372036854775802,3",
        ),
        (
            "SELECT sum(s), sum(s * 2), sum(id) FROM t",
            "4294967296 8589934592 15",
        ),
        (
            "SELECT sum(v::DECIMAL(38, 0)) FROM t WHERE g = 1",
            "18446744073709551614",
        ),
        (
            "SELECT id, sum(v) OVER (ORDER BY id ROWS BETWEEN CURRENT ROW AND CURRENT ROW) AS s FROM t WHERE g > 1 ORDER BY id",
            "3 -9223372036854775807,4 5,5",
        ),
        ("SELECT sum(v) FROM t WHERE false", ""),
    ] {
        assert_eq!(answer(&session, query).await, expected, "{query}");
    }
}

/// The type stays, and what can't leave 64 bits is summed as before.
#[tokio::test]
async fn sums_of_small_numbers_are_plain() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t AS SELECT value AS v, value::INT AS s FROM generate_series(1, 1000) AS g(value)",
    )
    .await;
    let types = rows(
        &session,
        "SELECT arrow_typeof(sum(v)), arrow_typeof(sum(v * 9000000000000)) FROM t",
    )
    .await;
    assert_eq!(types, ["Int64 Int64"]);
    for (sum, is_plain) in [
        ("sum(v)", true),
        ("sum(s)", true),
        ("sum(CASE WHEN v > 3 THEN 1 ELSE 0 END)", true),
        ("sum(v * 1000 + 7)", true),
        ("sum(v * 10000000000000)", false),
    ] {
        let query = format!("SELECT {sum} FROM t");
        let plan = rows(&session, &format!("EXPLAIN {query}")).await.join("\n");
        assert_eq!(!plan.contains("Decimal128"), is_plain, "{plan}");
        assert_eq!(in_all_modes(&session, &query).await.len(), 1);
    }
    let joined = "SELECT sum(a.v) FROM t AS a JOIN t AS b ON a.v = b.v";
    assert_eq!(in_all_modes(&session, joined).await, ["500500"]);
}
