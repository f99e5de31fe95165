//! Racks of several nodes in one process, which share nothing but the mesh: all answers are those of
//! one node.
//!
//! `FLASHMESH_TEST_RACK=3` has every test that opens a [`session`](super::support::session) do so on
//! such a rack.

use flashmesh::{EngineOptions, Session};
use flashmesh_storage::store::NodeId;
use rand::RngExt;
use rand::seq::IndexedRandom;

use crate::support::{error, random, rows, run, session_of_threads};
use crate::test_rack::{KEY, TestRack, threads};

const MODES: [&str; 3] = ["auto", "always", "never"];
const TABLES: &str = "
    CREATE TABLE t AS SELECT value AS id, value % 97 AS k, CAST(value AS DOUBLE) / 4 AS x,
        CASE WHEN value % 11 = 0 THEN NULL ELSE 'word ' || (value * 7919 % 1009) END AS s
    FROM generate_series(1, 400000) AS g(value);
    CREATE TABLE u (id BIGINT PRIMARY KEY, v BIGINT);
    INSERT INTO u SELECT value * 3, value FROM generate_series(1, 150000) AS g(value)
";

/// The figure of a metric that a plan's text has, summed over its scans.
pub fn metric(plan: &[String], name: &str) -> u64 {
    let text = plan.join(" ");
    let name = format!(" {name}=");
    let found = text.split(&name).skip(1);
    let digits = found.map(|rest| {
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        rest[..end].parse::<u64>().unwrap_or(0)
    });
    digits.sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_are_left_to_the_nodes_that_have_the_segments() {
    let rack = TestRack::new(3, threads(2));
    let session = rack.session();
    run(&session, TABLES).await;
    let full = "SELECT node, live_bytes > 1000000 FROM system.flash ORDER BY node";
    assert_eq!(rows(&session, full).await, ["0 true", "1 true", "2 true"]);
    let query = "SELECT k, count(*), sum(x) FROM t WHERE s LIKE '%ord 5%' GROUP BY k";
    for mode in MODES {
        run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        let plan = rows(&session, &format!("EXPLAIN ANALYZE {query}")).await;
        let left = metric(&plan, "segments_of_nodes");
        assert_eq!(left > 0, mode != "never", "{mode}: {plan:#?}");
        if left > 0 {
            // What travels is less than what was read for it.
            let (sent, read) = (
                metric(&plan, "bytes_from_nodes"),
                metric(&plan, "bytes_to_nodes"),
            );
            assert!(sent > 0 && read > 0, "{plan:#?}");
        }
    }
}

/// Rows that take more than the pages that they are in stay there; the pages travel, and those that
/// are cached at the head need not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_goes_where_fewer_bytes_travel() {
    for is_cached in [false, true] {
        let rack = TestRack::new(
            3,
            EngineOptions {
                cache_bytes: Some(if is_cached { 256 << 20 } else { 1 << 16 }),
                ..threads(2)
            },
        );
        let session = rack.session();
        run(&session, TABLES).await;
        for (query, is_left, is_left_if_cached) in [
            ("SELECT id, k FROM t", false, false),
            ("SELECT id, k FROM t WHERE x >= 0", false, false),
            ("SELECT id, k FROM t WHERE s LIKE '%d 57%'", true, false),
            // Of these little comes back.
            ("SELECT id, k FROM t ORDER BY x LIMIT 5", true, true),
            ("SELECT k, sum(id) FROM t GROUP BY k", true, true),
            // What a join leaves of it is not known before.
            (
                "SELECT u.v, t.k FROM u JOIN t ON t.id = u.id WHERE u.v % 9999 = 7",
                true,
                true,
            ),
        ] {
            for mode in ["never", "auto", "always"] {
                run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
                let plan = rows(&session, &format!("EXPLAIN ANALYZE {query}")).await;
                let is_left = if is_cached {
                    is_left_if_cached
                } else {
                    is_left
                };
                let expected = mode == "always" || (mode == "auto" && is_left);
                let left = metric(&plan, "segments_of_nodes");
                assert_eq!(
                    left > 0,
                    expected,
                    "{mode}: {is_cached}: {query}: {plan:#?}"
                );
            }
        }
    }
}

/// The head knows the zone maps of all segments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_node_is_asked_for_segments_that_zone_maps_rule_out() {
    let rack = TestRack::new(3, threads(2));
    // One writer: no other segment's zone map has the rows of a segment, too.
    let writes = format!("SET datafusion.execution.target_partitions = 1; {TABLES}");
    run(&rack.session(), &writes).await;
    let session = rack.session();
    for (filter, most) in [("id > 1000000", 0), ("id = 70001", 1), ("k = 97", 0)] {
        let query = format!("SELECT sum(x), count(s) FROM t WHERE {filter}");
        let mut answers = Vec::new();
        for mode in MODES {
            run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
            let plan = rows(&session, &format!("EXPLAIN ANALYZE {query}")).await;
            let left = metric(&plan, "segments_of_nodes");
            assert!(left <= most, "{mode}: {filter}: {plan:#?}");
            let skipped = metric(&plan, "segments_skipped_zone_map");
            assert_eq!(skipped > 0, mode != "never", "{mode}: {filter}: {plan:#?}");
            answers.push(rows(&session, &query).await);
        }
        answers.dedup();
        assert_eq!(answers.len(), 1, "{filter}: {answers:?}");
    }
}

/// Whether nodes run parts of a query.
async fn is_distributed(session: &Session, query: &str) -> bool {
    parts(session, "EXPLAIN", query).await > 0
}

/// How many parts of a query are done by nodes among themselves: its own, and those of subqueries.
async fn parts(session: &Session, explain: &str, query: &str) -> usize {
    let plan = rows(session, &format!("{explain} {query}")).await;
    plan.join("\n").matches("RackExec: nodes=").count()
}

/// Joins, groups, orders and windows whose rows nodes give to each other: operators of all kinds, and
/// whatever decides over all rows at once.
fn of_several_tables(a: i64, b: i64) -> Vec<String> {
    let selects = [
        "t.k, count(*), sum(u.v), min(t.s) FROM t JOIN u ON t.id = u.id WHERE t.k < 50 GROUP BY t.k",
        "count(*), count(u.v), sum(t.id) FROM t LEFT JOIN u ON t.id = u.id AND u.v > {a} WHERE t.id < {a} + {b}",
        "count(*), count(t.id), count(u.id) FROM (SELECT * FROM t WHERE id > {a}) AS t FULL JOIN u ON t.id = u.id",
        "count(*), count(t.id), sum(u.v) FROM t RIGHT JOIN u ON t.k = u.v",
        "count(*), sum(id) FROM t WHERE id IN (SELECT id FROM u WHERE v < {b})",
        "count(*), sum(id) FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.id = t.id)",
        "count(*), sum(id) FROM t WHERE id NOT IN (SELECT v FROM u WHERE v > {a})",
        "count(*) FROM t WHERE s NOT IN (SELECT s FROM t WHERE id < {b})",
        "count(*) FROM t WHERE s NOT IN (SELECT s FROM t WHERE id < {b} AND s IS NOT NULL)",
        "s, count(*), sum(x), avg(id) FROM t WHERE id > {a} GROUP BY s",
        "count(DISTINCT s), count(DISTINCT id % 1000), sum(DISTINCT k) FROM t",
        "k, max(r), sum(r) FROM (SELECT k, rank() OVER (PARTITION BY k ORDER BY s, id DESC) AS r FROM t WHERE id < {b} * 4) GROUP BY k",
        "k, id, lag(id) OVER (PARTITION BY k ORDER BY id) FROM t WHERE id BETWEEN {a} AND {a} + 500",
        "id, x, sum(x) OVER (ORDER BY id) FROM t WHERE id < 2000",
        "a.k, count(*) FROM t AS a JOIN t AS b ON a.id = b.id + 1 AND a.k < b.k WHERE a.id < {b} * 3 GROUP BY a.k",
        "a.s, b.id FROM t AS a JOIN t AS b ON a.id = b.id JOIN u ON u.id = b.id WHERE u.v BETWEEN {b} AND {b} + 40",
        "id, k FROM t WHERE id > {a} ORDER BY k DESC, id LIMIT 40 OFFSET 5",
        "k, sum(n) FROM (SELECT k, 1 AS n FROM t UNION ALL SELECT v % 97, 2 FROM u) GROUP BY k",
        "k, count(*) * 3, max(id) + k FROM t GROUP BY k HAVING sum(id) - {a} > 0",
        "count(*), sum(w.n - {a}) FROM t JOIN (SELECT v + id AS n FROM (SELECT id, v FROM u UNION ALL SELECT k, id FROM t)) AS w ON w.n = t.id",
        "count(*) FROM (SELECT id FROM t INTERSECT SELECT id FROM u)",
        "count(*) FROM (SELECT id FROM u EXCEPT SELECT id FROM t WHERE k > 3)",
        "count(*), sum(t.id + w.n) FROM t CROSS JOIN (VALUES (1), (20)) AS w(n) WHERE t.id < {b}",
        "k, count(*) FROM t GROUP BY k HAVING count(*) > (SELECT count(*) / 98 FROM t)",
        "count(*) FROM t WHERE x > (SELECT avg(y.x) FROM t AS y WHERE y.k = t.k)",
        "k, v, count(*), grouping(v) FROM (SELECT t.k, u.v % 3 AS v FROM t JOIN u ON t.id = u.id) GROUP BY ROLLUP (k, v)",
        "t.k, string_agg(t.s, ',' ORDER BY t.id) FROM t JOIN u ON t.id = u.id WHERE u.v < 300 GROUP BY t.k",
        "count(*) FROM t JOIN u ON t.id = u.id WHERE t.id > 1000000",
        "count(*), sum(n) FROM t JOIN (SELECT k, count(*) AS n FROM t GROUP BY k) AS g ON t.k = g.k WHERE t.id > {a}",
        "k, count(*), sum(n) FROM (SELECT k, id AS n FROM t UNION ALL SELECT 5, 6 UNION ALL VALUES (1, 2), (2, 3)) GROUP BY k",
        "k, count(*) FROM (SELECT k FROM t UNION ALL (SELECT k FROM t WHERE id > {a} ORDER BY id LIMIT 7)) GROUP BY k",
        "n, count(*) FROM (SELECT count(*) AS n FROM t UNION ALL SELECT k FROM t) GROUP BY n",
        "count(*), max(u.v) FROM (SELECT id FROM t WHERE id > {a} LIMIT 100000) AS t JOIN u ON t.id = u.id WHERE u.id < {a}",
        "t.s || 'x' || CAST(u.v AS VARCHAR), count(*) FROM t JOIN u ON t.id = u.id WHERE u.v < {b} / 8 GROUP BY 1",
        "t.k, t.id FROM t JOIN u ON t.id = u.id ORDER BY t.k DESC, t.id LIMIT 40",
        "min(t.id), max(t.k) FROM t JOIN u ON t.k = u.v",
        // Subqueries that are one value each, which are known before the rest.
        "count(*), sum(id) FROM t WHERE x > (SELECT avg(x) FROM t WHERE id > {a})",
        "k, count(*), (SELECT max(v) FROM u) FROM t WHERE id < {b} GROUP BY k",
        "k, count(*) AS n FROM t GROUP BY k HAVING count(*) > (SELECT avg(n) FROM (SELECT count(*) AS n FROM t GROUP BY k))",
        "t.k, count(*) FROM t JOIN u ON t.id = u.id AND u.v < (SELECT max(v) / 2 FROM u) GROUP BY t.k",
        "count(*) FROM t WHERE id > (SELECT max(id) FROM u WHERE v > (SELECT avg(v) FROM u))",
        "count(*) FROM t WHERE k = (SELECT k FROM t WHERE id = -1)",
        "sum(CASE WHEN v > (SELECT avg(v) FROM u) THEN 1 ELSE 0 END), sum(v - (SELECT avg(v) FROM u)) FROM u",
        "s, count(*) FROM t WHERE s = (SELECT min(s) FROM t WHERE id > {a}) OR s = (SELECT max(s) FROM t) GROUP BY s",
        "count(*) FROM t WHERE id > (SELECT count(*) FROM u WHERE v > {b}) AND k <> (SELECT count(*) FROM u WHERE v > {b}) % 97",
        "(SELECT count(*) FROM u), (SELECT min(s) FROM t WHERE id < 0) IS NULL, (SELECT sum(x) FROM t WHERE k < 7)",
        "k + (SELECT count(*) FROM u), count(*) FROM t GROUP BY ROLLUP (k + (SELECT count(*) FROM u))",
        "round(sum(CAST(x AS DECIMAL(14, 4))), (SELECT count(*) % 3 FROM u)), count(*) FROM t WHERE id < {b}",
        "m, count(*) FROM (SELECT (SELECT id FROM u WHERE v < 0) AS m, k FROM t WHERE id > {a}) AS s WHERE m IS NULL GROUP BY m",
        "count(*) FROM t WHERE id < 3000 AND array_has((SELECT array_agg(id) FROM u WHERE v < 20000), id)",
        "k, count(*) FROM t WHERE coalesce((SELECT max(v) FROM u WHERE v < 0), {b}) > id GROUP BY k",
        // Subqueries that are computed for all values that they use.
        "w.k, l.id FROM (SELECT DISTINCT k FROM t) AS w, LATERAL (SELECT id FROM t WHERE t.k = w.k ORDER BY id DESC LIMIT 2) AS l",
        "w.k, (SELECT DISTINCT u.v % 2 FROM u WHERE u.v % 97 = w.k AND u.v < {b} % 90 + 1) AS n FROM (SELECT DISTINCT k FROM t) AS w",
        "k, id, (SELECT max(s) FROM t) FROM t WHERE id > {a} ORDER BY k DESC, id - (SELECT min(id) FROM u) LIMIT 20",
    ];
    let filled = selects.iter().map(|select| {
        let select = select.replace("{a}", &a.to_string());
        format!("SELECT {}", select.replace("{b}", &b.to_string()))
    });
    filled.collect()
}

/// Nodes do their parts, and nothing is done twice or on the head in their place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_join_group_and_sort_among_themselves() {
    let mut rng = random();
    let rack = TestRack::new(3, threads(2));
    let (many, one) = (rack.session(), session_of_threads(2));
    run(&many, TABLES).await;
    run(&one, TABLES).await;
    let engine = rack.engine();
    let mut asked = 0;
    for _ in 0..2 {
        let mut cut = 0;
        let (a, b) = (rng.random_range(0..400_000), rng.random_range(1..20_000));
        for query in of_several_tables(a, b) {
            let mut expected = rows(&one, &query).await;
            for mode in ["never", "always"] {
                run(&many, &format!("SET flashmesh.distributed = '{mode}'")).await;
                let mut found = rows(&many, &query).await;
                if !query.contains("k DESC") {
                    found.sort();
                    expected.sort();
                }
                assert_eq!(found, expected, "{mode}: {query}");
                let (queries, on_head) = engine.distributed_queries().unwrap();
                let in_parts = parts(&many, "EXPLAIN ANALYZE", &query).await;
                assert!(in_parts == 0 || mode == "always", "{query}");
                assert_eq!(queries - asked, in_parts as u64, "{mode}: {query}");
                (asked, _) = engine.distributed_queries().unwrap();
                assert_eq!((asked - queries, on_head), (in_parts as u64, 0), "{query}");
                cut += usize::from(in_parts > 0);
            }
        }
        // Joins without keys stay on the head.
        assert!(cut > 30, "{cut}");
        run(&many, "DELETE FROM t WHERE id % 5 = 1").await;
        run(&one, "DELETE FROM t WHERE id % 5 = 1").await;
        run(&many, "UPDATE u SET v = v + 1 WHERE id % 4 = 1").await;
        run(&one, "UPDATE u SET v = v + 1 WHERE id % 4 = 1").await;
        // They read what they change.
        (asked, _) = engine.distributed_queries().unwrap();
    }
}

/// What was planned for one stream is not done by each node for itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_of_one_thread_gives_the_same() {
    let rack = TestRack::new(3, threads(1));
    let (many, one) = (rack.session(), session_of_threads(1));
    run(&many, TABLES).await;
    run(&one, TABLES).await;
    run(&many, "SET flashmesh.distributed = 'always'").await;
    for partitions in [1, 3] {
        let set = format!("SET datafusion.execution.target_partitions = {partitions}");
        run(&many, &set).await;
        for query in of_several_tables(200_000, 5_000) {
            let (mut found, mut expected) = (rows(&many, &query).await, rows(&one, &query).await);
            if !query.contains("k DESC") {
                found.sort();
                expected.sort();
            }
            assert_eq!(found, expected, "{partitions}: {query}");
        }
    }
}

/// Where a node does not do its part, nothing of what the others have done is in what the head does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_node_does_not_do_the_head_does_from_the_start() {
    let mut rack = TestRack::new(3, threads(2));
    let (many, one) = (rack.session(), session_of_threads(2));
    run(&many, TABLES).await;
    run(&one, TABLES).await;
    run(&many, "SET flashmesh.distributed = 'always'").await;
    rack.end_last_worker();
    for query in of_several_tables(200_000, 5_000) {
        let (mut found, mut expected) = (rows(&many, &query).await, rows(&one, &query).await);
        if !query.contains("k DESC") {
            found.sort();
            expected.sort();
        }
        assert_eq!(found, expected, "{query}");
    }
    let (queries, on_head) = rack.engine().distributed_queries().unwrap();
    assert!(queries > 20 && on_head == queries, "{on_head} of {queries}");
}

/// Functions read the time zone of the session that asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_are_those_of_the_session_on_all_nodes() {
    let rack = TestRack::new(3, threads(2));
    let session = rack.session();
    run(&session, TABLES).await;
    run(&session, "SET datafusion.execution.time_zone = '-05:00'").await;
    let query =
        "SELECT sum(to_unixtime('2024-01-01 00:00:' || lpad(CAST(t.k % 60 AS VARCHAR), 2, '0')))
         FROM t JOIN u ON t.id = u.id";
    let mut answers = Vec::new();
    for mode in ["never", "always"] {
        run(&session, &format!("SET flashmesh.distributed = '{mode}'")).await;
        answers.push(rows(&session, query).await);
    }
    assert_eq!(answers[0], answers[1]);
}

/// By itself only what would come to the head in great amounts is left to the nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_left_what_would_be_much_at_the_head() {
    let options = EngineOptions {
        cache_bytes: Some(1 << 20),
        ..threads(2)
    };
    let rack = TestRack::new(3, options);
    let session = rack.session();
    run(
        &session,
        "CREATE TABLE wide AS SELECT value AS id, value * 7919 % 1000003 AS other, random() AS x, random() AS y
         FROM generate_series(1, 2000000) AS g(value)",
    )
    .await;
    let join = "FROM wide AS a JOIN wide AS b ON a.id = b.other";
    for (query, expected) in [
        (format!("SELECT count(*), sum(a.x), max(b.y) {join}"), true),
        // Few rows come, by the filter or by the keys that the join looks for.
        (
            format!("SELECT count(*), sum(a.x), max(b.y) {join} WHERE a.id < 500 AND b.id < 500"),
            false,
        ),
        (
            format!("SELECT count(*), sum(a.x), max(b.y) {join} WHERE a.id < 5"),
            false,
        ),
        // The store has the groups.
        ("SELECT id % 10, sum(x) FROM wide GROUP BY 1".into(), false),
        // Nothing becomes less elsewhere.
        ("SELECT * FROM wide".into(), false),
    ] {
        let distributed = is_distributed(&session, &query).await;
        assert_eq!(distributed, expected, "{query}");
    }
    run(&session, "SET flashmesh.distributed = 'never'").await;
    let query = format!("SELECT count(*), sum(a.x), max(b.y) {join}");
    assert!(!is_distributed(&session, &query).await);
}

/// What nodes did is in EXPLAIN ANALYZE, by stages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_parts_of_nodes_are_shown() {
    let rack = TestRack::new(3, threads(2));
    let session = rack.session();
    run(&session, TABLES).await;
    run(&session, "SET flashmesh.distributed = 'always'").await;
    let query = "SELECT t.k, count(*) FROM t JOIN u ON t.id = u.id GROUP BY t.k";
    let plan = rows(&session, &format!("EXPLAIN ANALYZE {query}")).await;
    let text = plan.join("\n");
    assert!(text.contains("tasks=3"), "{text}");
    // Each row of the larger table was read once, wherever it lies; the small one by each node.
    assert!(text.contains("rows_in=400.0 K"), "{text}");
    assert!(text.contains("scanned=whole on each node"), "{text}");
    assert!(text.contains("rows_in=450.0 K"), "{text}");
    assert!(text.contains("bytes_transferred="), "{text}");
}

/// A query whose subqueries are one value each is planned when these are known, and shows what it then does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_subqueries_are_known_before_nodes_are_asked() {
    let rack = TestRack::new(3, threads(2));
    let session = rack.session();
    run(&session, TABLES).await;
    run(&session, "SET flashmesh.distributed = 'always'").await;
    let query = "SELECT t.k, count(*) FROM t JOIN u ON t.id = u.id WHERE t.id > (SELECT max(id) - 90000 FROM u)
                 GROUP BY t.k";
    let plan = rows(&session, &format!("EXPLAIN {query}")).await.join("\n");
    assert!(
        plan.contains("DeferredExec: planned_with_values_of=1"),
        "{plan}"
    );
    for explain in ["EXPLAIN ANALYZE", "EXPLAIN ANALYZE VERBOSE"] {
        let plan = rows(&session, &format!("{explain} {query}"))
            .await
            .join("\n");
        // Scans are given the value as a constant.
        assert!(plan.contains("id > 360000"), "{explain}: {plan}");
        assert!(
            plan.contains("input_tasks=3") && plan.contains("bytes_transferred="),
            "{explain}: {plan}"
        );
    }
    let of_many =
        "SELECT count(*) FROM t JOIN u ON t.id = u.id WHERE t.k = (SELECT k FROM t WHERE id < 9)";
    let text = error(&session, of_many).await;
    assert!(text.contains("more than one row"), "{text}");
    let fails = "SELECT count(*) FROM t JOIN u ON t.id = u.id WHERE t.k = (SELECT 1 / (count(*) - 400000) FROM t)";
    let text = error(&session, fails).await;
    assert!(text.contains("zero"), "{text}");
}

/// A node that ends in the middle is no error where copies stand in for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_ends_is_not_missed_by_queries_of_several() {
    let mut rng = random();
    let mut rack = TestRack::with_copies(3, 2, threads(2));
    let (many, one) = (rack.session(), session_of_threads(2));
    run(&many, TABLES).await;
    run(&one, TABLES).await;
    run(&many, "SET flashmesh.distributed = 'always'").await;
    let (a, b) = (rng.random_range(0..400_000), rng.random_range(1..20_000));
    for (number, query) in of_several_tables(a, b).into_iter().take(8).enumerate() {
        if number == 2 {
            // With its worker, its cards and its mesh.
            rack.nodes[rng.random_range(0..2)] = None;
        }
        let (mut found, mut expected) = (rows(&many, &query).await, rows(&one, &query).await);
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{query}");
    }
}

/// Queries of all kinds that are pushed down, and some that are not, against one node, while rows
/// change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_one_node() {
    compare(TestRack::new(4, threads(2)), None).await;
}

/// The same where each card is on two nodes, and a node ends in the middle: nobody is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_one_node_when_a_node_ends_that_is_not_the_only_one() {
    let node = random().random_range(0..3);
    println!("node {} ends", node + 1);
    let rack = TestRack::with_copies(4, 2, threads(2));
    assert!(
        rack.head
            .copies()
            .iter()
            .all(|copy| copy.is_there && !copy.is_behind)
    );
    let rack = compare(rack, Some(node)).await;
    let ended = NodeId(node as u16 + 1);
    let copies = rack.head.copies();
    assert_eq!(copies.len(), 8);
    for copy in copies {
        assert_eq!(
            copy.is_there && !copy.is_behind,
            copy.holder != ended,
            "{copy:?}"
        );
    }
}

/// Compares answers of a rack with those of one node, while rows change; after two rounds a node ends.
async fn compare(mut rack: TestRack, ends: Option<usize>) -> TestRack {
    let mut rng = random();
    let (many, one) = (rack.session(), session_of_threads(2));
    run(&many, TABLES).await;
    run(&one, TABLES).await;
    let mut round = 0;
    while round < 6 {
        round += 1;
        if let Some(node) = ends.filter(|_| round == 3) {
            rack.nodes[node] = None;
        }
        let (a, b) = (rng.random_range(0..400_000), rng.random_range(1..40_000));
        let word = rng.random_range(0..1009);
        let queries = [
            format!(
                "SELECT count(*), sum(id), min(s), max(x) FROM t WHERE id BETWEEN {a} AND {a} + {b}"
            ),
            format!("SELECT k, count(s), avg(x) FROM t WHERE id > {a} GROUP BY k ORDER BY k"),
            format!("SELECT id, s FROM t WHERE s = 'word {word}' ORDER BY id DESC LIMIT 7"),
            format!("SELECT * FROM t WHERE s LIKE '%{word}%' ORDER BY id LIMIT 50"),
            format!("SELECT count(*) FROM (SELECT id FROM t WHERE k = 5 LIMIT {b})"),
            format!(
                "SELECT t.k, count(*) FROM t JOIN u ON t.id = u.id WHERE u.v < {b} GROUP BY t.k ORDER BY 1"
            ),
            format!(
                "SELECT v FROM u WHERE id IN (3, {}, 9, 999999999) ORDER BY v",
                a * 3
            ),
            "SELECT count(*), count(DISTINCT s), count(DISTINCT k) FROM t".to_string(),
            format!("SELECT id FROM t WHERE x < {b} EXCEPT SELECT id FROM u ORDER BY id LIMIT 20"),
            format!(
                "SELECT k, id, row_number() OVER (PARTITION BY k ORDER BY id) AS n FROM t WHERE id < {b} ORDER BY id LIMIT 30"
            ),
        ];
        for (place, mode) in MODES.into_iter().enumerate() {
            let set = format!("SET flashmesh.pushdown = '{mode}'");
            run(&many, &set).await;
            // Nodes do parts of plans in every other round of each.
            let distributed = ["auto", "always"][(round + place) % 2];
            let set = format!("SET flashmesh.distributed = '{distributed}'");
            run(&many, &set).await;
            for query in &queries {
                assert_eq!(
                    rows(&many, query).await,
                    rows(&one, query).await,
                    "{mode}: {query}"
                );
            }
        }
        let changes = [
            format!("DELETE FROM t WHERE id BETWEEN {a} AND {a} + {b} AND k < 40"),
            format!(
                "UPDATE t SET x = x + 1, s = 'word {word}' WHERE k = {}",
                a % 97
            ),
            format!(
                "INSERT INTO u SELECT value * 3, {b} FROM generate_series({a}, {a} + {b}) AS g(value) ON CONFLICT (id) DO UPDATE SET v = excluded.v"
            ),
            "CREATE INDEX t_s ON t USING ngram (s)".to_string(),
            "DROP INDEX t_s".to_string(),
            "VACUUM".to_string(),
        ];
        let change = match round {
            1 => changes.choose(&mut rng).unwrap(),
            _ => &changes[round % changes.len()],
        };
        let (on_many, on_one) = (many.sql(change).await, one.sql(change).await);
        match (on_many, on_one) {
            (Ok(_), Ok(_)) | (Err(_), Err(_)) => {}
            (on_many, _) => panic!("{change}: {:?}", on_many.err()),
        }
    }
    rack
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_away_is_named_and_nothing_is_lost() {
    let mut rack = TestRack::new(3, threads(2));
    let session = rack.session();
    run(&session, TABLES).await;
    // The mesh of node 2 ends, too.
    rack.nodes[1] = None;
    for mode in MODES {
        run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        let error = crate::support::error(&session, "SELECT sum(x), max(s) FROM t").await;
        assert!(
            error.contains("node 2") || error.contains("n2"),
            "{mode}: {error}"
        );
    }
    // What is on no other node is answered still, and small changes are taken.
    run(&session, "CREATE TABLE small (a BIGINT PRIMARY KEY)").await;
    run(&session, "INSERT INTO small VALUES (1), (2)").await;
    assert_eq!(rows(&session, "SELECT sum(a) FROM small").await, ["3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_believes_the_key_of_its_rack_alone() {
    let made = std::thread::spawn(|| TestRack::make(2, 1, [KEY, [8; 32]], threads(1)));
    let rack = made.join().unwrap().unwrap();
    let session = rack.session();
    run(&session, TABLES).await;
    run(&session, "SET flashmesh.pushdown = 'always'").await;
    let error = crate::support::error(&session, "SELECT sum(x) FROM t").await;
    assert!(error.contains("was not sealed"), "{error}");
}
