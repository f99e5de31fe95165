//! Searches above the store give what those in it give; and what `EXPLAIN ANALYZE` says of both.

use std::collections::BTreeSet;

use flashmesh::Session;
use rand::RngExt;
use rand::rngs::StdRng;

use crate::support::{random, rows, run, session};

async fn set_pushdown(session: &Session, mode: &str) {
    run(session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
}

/// The answers with pushdown and without.
async fn both(session: &Session, sql: &str) -> [Vec<String>; 2] {
    let mut answers = [vec![], vec![]];
    for (answer, mode) in answers.iter_mut().zip(["auto", "never"]) {
        set_pushdown(session, mode).await;
        *answer = rows(session, sql).await;
    }
    answers
}

/// The line of a plan that names an operator.
async fn operator(session: &Session, sql: &str, name: &str) -> String {
    let plan = rows(session, sql).await;
    let line = plan.iter().find(|line| line.contains(name));
    line.unwrap_or_else(|| panic!("no {name} in {plan:?}"))
        .clone()
}

/// A counter of an operator's line, where it is printed in full.
fn counter(line: &str, name: &str) -> u64 {
    let at = line
        .find(&format!("{name}="))
        .unwrap_or_else(|| panic!("no {name} in {line}"));
    let digits = line[at + name.len() + 1..].split(|c: char| !c.is_ascii_digit());
    digits.into_iter().next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_search_above_the_store_gives_what_one_in_it_gives() {
    let mut random = random();
    let session = session();
    run(&session, "CREATE TABLE e (a BIGINT, b BIGINT, w DOUBLE)").await;
    run(&session, "CREATE INDEX g ON e USING adjacency (a, b, w)").await;
    let vertices = random.random_range(50..600);
    let key = |number: i64| number * 1_000_003 - 450;
    let vertex = |random: &mut StdRng| key(random.random_range(0..vertices));
    let mut known = BTreeSet::new();
    // Several commits, so that the index has several parts.
    for _ in 0..3 {
        let values: Vec<_> = (0..random.random_range(1..1000))
            .map(|_| {
                let (a, b) = (vertex(&mut random), vertex(&mut random));
                known.extend([a, b]);
                format!("({a}, {b}, {})", f64::from(random.random_range(0..9)) / 4.0)
            })
            .collect();
        run(
            &session,
            &format!("INSERT INTO e VALUES {}", values.join(",")),
        )
        .await;
    }
    let known: Vec<i64> = known.into_iter().collect();
    for round in 0..12 {
        let some = |random: &mut StdRng| known[random.random_range(0..known.len())];
        let (from, to) = (some(&mut random), some(&mut random));
        let direction = ["out", "in", "both"][random.random_range(0..3)];
        let hops = random.random_range(0..4);
        for sql in [
            format!(
                "SELECT vertex, depth FROM bfs('g', [{from}, {to}], direction => '{direction}') ORDER BY vertex"
            ),
            format!(
                "SELECT vertex, depth FROM bfs('g', {from}, {hops}, direction => '{direction}') ORDER BY vertex"
            ),
            format!(
                "SELECT seed, depth, vertex FROM expand('g', [{from}, {to}, {from}], {hops}, direction => '{direction}') ORDER BY 1, 2, 3"
            ),
            format!(
                "SELECT seed, depth, vertex FROM expand('g', (SELECT a FROM e WHERE b = {to}), 1) ORDER BY 1, 2, 3"
            ),
            format!(
                "SELECT count(*), max(step), max(cost) FROM shortest_path('g', {from}, {to}, direction => '{direction}')"
            ),
            format!(
                "SELECT max(cost) FROM shortest_path('g', {from}, {to}, 'w', direction => '{direction}')"
            ),
        ] {
            let [in_store, above] = both(&session, &sql).await;
            assert_eq!(in_store, above, "{sql}");
        }
        // What leads to a vertex is an edge from the vertex before it.
        set_pushdown(&session, "never").await;
        for (table, made, wrong) in [
            (
                "x",
                format!("expand('g', {from}, 3)"),
                "FROM x JOIN e ON e.a IS NOT NULL JOIN fetch('e', (SELECT edge FROM x)) f ON f.row_id = x.edge WHERE f.b <> x.vertex".to_string(),
            ),
            (
                "p",
                format!("shortest_path('g', {from}, {to}, 'w')"),
                "FROM p JOIN p q ON q.step = p.step - 1 JOIN fetch('e', (SELECT edge FROM p)) f ON f.row_id = p.edge
                 WHERE f.b <> p.vertex OR f.a <> q.vertex OR f.w <> p.cost - q.cost".to_string(),
            ),
            (
                "s",
                format!("shortest_path('g', {from}, {to})"),
                "FROM s JOIN s q ON q.step = s.step - 1 JOIN fetch('e', (SELECT edge FROM s)) f ON f.row_id = s.edge
                 WHERE f.b <> s.vertex OR f.a <> q.vertex".to_string(),
            ),
            (
                "r",
                format!("bfs('g', {from})"),
                "FROM r LEFT JOIN e ON e.a = r.parent AND e.b = r.vertex LEFT JOIN r p ON p.vertex = r.parent
                 WHERE r.parent IS NOT NULL AND (e.a IS NULL OR p.depth <> r.depth - 1)".to_string(),
            ),
        ] {
            run(&session, &format!("CREATE OR REPLACE TABLE {table} AS SELECT * FROM {made}")).await;
            let sql = format!("SELECT count(*) {wrong}");
            assert_eq!(rows(&session, &sql).await, ["0"], "round {round}: {made}");
        }
    }
    for mode in ["auto", "never"] {
        set_pushdown(&session, mode).await;
        let error = crate::support::error(&session, "SELECT * FROM bfs('g', 3)").await;
        assert!(error.contains("'3'"), "{error}");
    }
    run(&session, "INSERT INTO e VALUES (1, 2, -1.0)").await;
    let sql = "SELECT * FROM shortest_path('g', 1, 1, 'w')";
    let error = crate::support::error(&session, sql).await;
    assert!(error.contains("negative"), "{error}");
}

#[tokio::test]
async fn explain_analyze_counts_what_a_search_costs_in_and_above_the_store() {
    let session = session();
    run(
        &session,
        "CREATE TABLE e AS SELECT value AS a, value + 1 AS b FROM generate_series(1, 200) AS s(value)",
    )
    .await;
    run(&session, "CREATE INDEX g ON e USING adjacency (a, b)").await;
    let chase = "SELECT count(*) FROM bfs('g', 1, 40)";
    let mut bytes_to_host = vec![];
    for (mode, place) in [("auto", "in the store"), ("never", "above the store")] {
        set_pushdown(&session, mode).await;
        let planned = operator(&session, &format!("EXPLAIN {chase}"), "StoreFunctionExec").await;
        assert!(planned.contains(place), "{planned}");
        let ran = operator(
            &session,
            &format!("EXPLAIN ANALYZE {chase}"),
            "StoreFunctionExec",
        )
        .await;
        assert!(ran.contains("output_rows=41"), "{ran}");
        let pages = counter(&ran, "pages_from_flash") + counter(&ran, "pages_from_cache");
        assert!(pages > 0, "{ran}");
        // Above the store each hop is a command; so are the way from keys to numbers and back.
        let commands = counter(&ran, "commands");
        match mode {
            "auto" => assert_eq!(commands, 1, "{ran}"),
            _ => assert!((41..50).contains(&commands), "{ran}"),
        }
        bytes_to_host.push(counter(&ran, "bytes_to_host"));
    }
    assert!(bytes_to_host.iter().all(|bytes| *bytes > 0));

    // The answer of a path is short, the lists on the way to it are not.
    run(
        &session,
        "CREATE TABLE d AS SELECT x.value AS a, y.value AS b FROM generate_series(1, 90) AS x(value), generate_series(1, 90) AS y(value)
         WHERE x.value < 90 OR y.value < 5",
    )
    .await;
    run(&session, "CREATE INDEX dense ON d USING adjacency (a, b)").await;
    let mut sent = vec![];
    for mode in ["auto", "never"] {
        set_pushdown(&session, mode).await;
        let sql = "EXPLAIN ANALYZE SELECT * FROM shortest_path('dense', 90, 80)";
        let ran = operator(&session, sql, "StoreFunctionExec").await;
        // Printed as bytes: 60.0 B or 1.2 KB.
        let kilo = ran
            .split("bytes_to_host=")
            .nth(1)
            .unwrap()
            .split(',')
            .next()
            .unwrap();
        let number: f64 = kilo.split(' ').next().unwrap().parse().unwrap();
        sent.push(if kilo.contains('K') {
            number * 1000.0
        } else {
            number
        });
    }
    assert!(sent[1] > 4.0 * sent[0], "{sent:?}");
    // What looks at every edge stays in the store.
    let plan = operator(
        &session,
        "EXPLAIN SELECT * FROM page_rank('g')",
        "StoreFunctionExec",
    )
    .await;
    assert!(plan.contains("in the store"), "{plan}");
}

/// Brute force: the numbers of the vectors nearest to a query, nearest first.
fn nearest(
    vectors: &[Vec<f32>],
    query: &[f32],
    k: usize,
    keep: impl Fn(usize) -> bool,
) -> Vec<usize> {
    let distance = |vector: &[f32]| -> f64 {
        let squares = vector
            .iter()
            .zip(query)
            .map(|(a, b)| f64::from(a - b).powi(2));
        squares.sum()
    };
    let mut order: Vec<usize> = (0..vectors.len()).filter(|number| keep(*number)).collect();
    order.sort_by(|a, b| distance(&vectors[*a]).total_cmp(&distance(&vectors[*b])));
    order.truncate(k);
    order
}

fn literal(vector: &[f32]) -> String {
    let numbers: Vec<_> = vector.iter().map(f32::to_string).collect();
    format!("[{}]", numbers.join(", "))
}

#[tokio::test]
async fn recall_is_measured_when_it_is_asked_for() {
    const LENGTH: usize = 8;
    const K: usize = 10;
    let mut random = random();
    let session = session();
    let vector = |random: &mut StdRng| -> Vec<f32> {
        // Eighths are printed and summed exactly.
        let element = |_| random.random_range(-4000..4000) as f32 / 8.0;
        (0..LENGTH).map(element).collect()
    };
    let vectors: Vec<Vec<f32>> = (0..3000).map(|_| vector(&mut random)).collect();
    let queries: Vec<Vec<f32>> = (0..10).map(|_| vector(&mut random)).collect();
    for (table, vectors) in [("v", &vectors), ("q", &queries)] {
        let rows: Vec<_> = (0..)
            .zip(vectors)
            .map(|(id, v): (usize, _)| format!("({id}, {})", literal(v)))
            .collect();
        let sql = format!(
            "CREATE TABLE {table} AS SELECT id, arrow_cast(x, 'FixedSizeList({LENGTH}, Float32)') AS x FROM (VALUES {}) AS t(id, x)",
            rows.join(", ")
        );
        run(&session, &sql).await;
    }
    run(
        &session,
        "CREATE INDEX near ON v USING lsh (x) WITH (bits = 6, probes = 1)",
    )
    .await;
    run(&session, "SET flashmesh.approximate = 'on'").await;
    let recall = |line: &str| -> Option<String> {
        let shown = line.split("recall=").nth(1)?.split_once('(')?.1;
        Some(shown.split(')').next()?.to_string())
    };
    let mut missed = 0;
    for query in &queries {
        let list = literal(query);
        for (filter, end) in [("", 3000), (" WHERE id < 1000", 1000)] {
            let sql = format!("SELECT id FROM v{filter} ORDER BY l2_distance(x, {list}) LIMIT {K}");
            run(&session, "SET flashmesh.measure_recall = 'off'").await;
            let analyzed = format!("EXPLAIN ANALYZE {sql}");
            let line = operator(&session, &analyzed, "FlashScanExec").await;
            assert!(line.contains("index=near (lsh)"), "{line}");
            assert_eq!(recall(&line), None);
            let exact: BTreeSet<String> = nearest(&vectors, query, K, |id| id < end)
                .iter()
                .map(usize::to_string)
                .collect();
            let found = rows(&session, &sql).await;
            let found = found.iter().filter(|id| exact.contains(*id)).count();
            missed += K - found;
            run(&session, "SET flashmesh.measure_recall = 'on'").await;
            assert_eq!(
                rows(&session, &sql).await.len(),
                K,
                "measuring changes no answer"
            );
            let line = operator(&session, &analyzed, "FlashScanExec").await;
            assert_eq!(recall(&line), Some(format!("{found}/{K}")), "{line}");
        }
    }
    assert!(missed > 0, "an index that misses nothing tests nothing");

    // Many at once: of a sample of the queries.
    let sql =
        format!("SELECT query, id FROM nearest('v', 'x', (SELECT x FROM q ORDER BY id), {K})");
    let found = rows(&session, &sql).await;
    for (sample, step) in [(100, 1), (3, 4)] {
        run(
            &session,
            &format!("SET flashmesh.measure_recall = '{sample}'"),
        )
        .await;
        let line = operator(
            &session,
            &format!("EXPLAIN ANALYZE {sql}"),
            "StoreFunctionExec",
        )
        .await;
        let (mut hits, mut all) = (0, 0);
        for (number, query) in queries.iter().enumerate().step_by(step) {
            let exact = nearest(&vectors, query, K, |_| true);
            all += exact.len();
            let is_found = |id: &&usize| found.contains(&format!("{number} {id}"));
            hits += exact.iter().filter(is_found).count();
        }
        assert_eq!(recall(&line), Some(format!("{hits}/{all}")), "{line}");
    }
    // An exact search has none.
    let exact = sql.replace(&format!("{K})"), &format!("{K}, exact => true)"));
    let line = operator(
        &session,
        &format!("EXPLAIN ANALYZE {exact}"),
        "StoreFunctionExec",
    )
    .await;
    assert_eq!(recall(&line), None, "{line}");
}
