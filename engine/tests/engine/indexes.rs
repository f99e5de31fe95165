//! Indexes: the same answers with them as without, kept up by inserts, refused where they make
//! no sense; and the functions that search by them.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::Path;

use flashmesh::{Engine, EngineOptions, Session};
use rand::RngExt;
use rand::rngs::StdRng;

use crate::support::{error, random, rows, run, session};

async fn plan(session: &Session, sql: &str) -> String {
    rows(session, &format!("EXPLAIN {sql}")).await.join("\n")
}

fn open(path: &Path) -> Session {
    let options = EngineOptions {
        path: Some(path.into()),
        ..EngineOptions::default()
    };
    Engine::open(options).unwrap().session().unwrap()
}

#[tokio::test]
async fn a_hash_index_finds_what_a_scan_finds() {
    let mut random = random();
    let session = session();
    run(
        &session,
        "CREATE TABLE t AS SELECT value AS a, (value * 7919) % 50021 AS b, 'key ' || ((value * 31) % 40009) AS c
         FROM generate_series(1, 150000) AS s(value)",
    )
    .await;
    run(&session, "CREATE TABLE plain AS SELECT * FROM t").await;
    run(
        &session,
        "CREATE INDEX b ON t USING hash (b); CREATE INDEX c ON t (c)",
    )
    .await;
    run(&session, "CREATE INDEX bc ON t USING hash (c, b)").await;
    for round in 0..12 {
        // Rows that the indexes cover, and rows that they do not cover yet.
        let (b, c) = (
            random.random_range(0..50_021),
            random.random_range(0..40_009),
        );
        let insert = format!("(-{round}, {b}, 'key {c}'), (NULL, NULL, NULL), (1, {b}, 'other')");
        for table in ["t", "plain"] {
            run(&session, &format!("INSERT INTO {table} VALUES {insert}")).await;
        }
        for filter in [
            format!("b = {b}"),
            format!("c = 'key {c}'"),
            format!("b IN ({b}, {}, NULL, -5)", random.random_range(0..50_021)),
            format!("c = 'key {c}' AND b = {b}"),
            format!("b = {b} OR b = {}", random.random_range(0..50_021)),
            "c = 'not there'".to_string(),
        ] {
            let query = |table: &str| {
                format!("SELECT a, b, c FROM {table} WHERE {filter} ORDER BY a, b, c")
            };
            let explained = plan(&session, &query("t")).await;
            assert!(explained.contains("index="), "{explained}");
            assert_eq!(
                rows(&session, &query("t")).await,
                rows(&session, &query("plain")).await,
                "{filter}"
            );
        }
    }
    let joined = |table: &str| {
        format!(
            "SELECT count(*), sum(t.a) FROM {table} t JOIN (VALUES (5), (77), (4242)) k(b) ON t.b = k.b"
        )
    };
    assert_eq!(
        rows(&session, &joined("t")).await,
        rows(&session, &joined("plain")).await
    );
    run(&session, "DROP INDEX b").await;
    assert!(
        !plan(&session, "SELECT * FROM t WHERE b = 7")
            .await
            .contains("index=")
    );
}

#[tokio::test]
async fn keys_are_enforced() {
    let session = session();
    run(
        &session,
        "CREATE TABLE p (id BIGINT PRIMARY KEY, v TEXT, UNIQUE (v))",
    )
    .await;
    run(
        &session,
        "INSERT INTO p VALUES (1, 'a'), (2, 'b'), (3, NULL), (4, NULL)",
    )
    .await;
    for (sql, parts) in [
        (
            "INSERT INTO p VALUES (1, 'z')",
            ["(id) = (1)", "primary key"],
        ),
        ("INSERT INTO p VALUES (9, 'a')", ["(v) = (a)", "p_v_key"]),
        (
            "INSERT INTO p VALUES (9, 'y'), (9, 'z')",
            ["(id) = (9)", "primary key"],
        ),
        ("INSERT INTO p VALUES (NULL, 'z')", ["'id'", "NOT NULL"]),
        ("DROP INDEX p_pkey", ["p_pkey", "can't be dropped"]),
        ("DROP INDEX nothing", ["'nothing'", "does not exist"]),
        (
            "CREATE UNIQUE INDEX u ON p USING ngram (v)",
            ["ngram", "unique"],
        ),
        ("CREATE INDEX u ON p (w)", ["'w'", "no column"]),
        ("CREATE INDEX u ON p USING ngram (id)", ["'id'", "no text"]),
        ("CREATE INDEX u ON p USING lsh (id)", ["'u'", "Int64"]),
        (
            "CREATE INDEX u ON p USING adjacency (v, id)",
            ["'u'", "Utf8"],
        ),
        (
            "CREATE INDEX u ON p USING adjacency (id)",
            ["'u'", "source, target"],
        ),
        (
            "CREATE INDEX u ON p USING hash (id) WITH (x = 1)",
            ["'x'", "no option"],
        ),
        ("CREATE INDEX p_pkey ON p (v)", ["p_pkey", "already exists"]),
        (
            "CREATE INDEX u ON p (v) WHERE id > 1",
            ["WHERE", "leave it out"],
        ),
        ("CREATE INDEX u ON p (id + 1)", ["columns", "expressions"]),
        ("CREATE INDEX u ON nope (v)", ["nope", "not exist"]),
        ("SELECT * FROM lookup('p', 'x')", ["lookup", "'id'"]),
        ("SELECT * FROM lookup('p')", ["lookup", "keys"]),
        ("SELECT * FROM matches('p', 'v', '')", ["matches", "empty"]),
        ("SELECT * FROM matches('p', 'id', 'a')", ["'id'", "no text"]),
        ("SELECT * FROM fetch('p', 'x')", ["fetch", "UInt64"]),
    ] {
        let message = error(&session, sql).await;
        for part in parts {
            assert!(message.contains(part), "{sql}: {message}");
        }
    }
    assert_eq!(rows(&session, "SELECT count(*) FROM p").await, ["4"]);
    run(
        &session,
        "CREATE INDEX IF NOT EXISTS p_pkey ON p (v); DROP INDEX IF EXISTS nothing",
    )
    .await;
    // The rows of a table that was rewritten are new ones.
    run(&session, "INSERT OVERWRITE p VALUES (1, 'z')").await;
    assert_eq!(rows(&session, "SELECT v FROM lookup('p', 1)").await, ["z"]);
    assert!(
        error(&session, "INSERT INTO p VALUES (1, 'y')")
            .await
            .contains("(id) = (1)")
    );
}

#[tokio::test]
async fn indexes_outlive_the_process() {
    let dir = tempfile::TempDir::new().unwrap();
    {
        let session = open(dir.path());
        run(&session, "CREATE TABLE p (id BIGINT PRIMARY KEY, v TEXT)").await;
        run(
            &session,
            "INSERT INTO p SELECT value, 'text ' || value FROM generate_series(1, 70000) s(value)",
        )
        .await;
        run(&session, "CREATE INDEX words ON p USING ngram (v)").await;
        run(
            &session,
            "CREATE TABLE e AS SELECT id AS a, id + 1 AS b FROM p WHERE id < 100",
        )
        .await;
        run(&session, "CREATE INDEX g ON e USING adjacency (a, b)").await;
    }
    let session = open(dir.path());
    run(&session, "INSERT INTO p VALUES (70001, 'text 70001')").await;
    run(&session, "INSERT INTO e VALUES (100, 500)").await;
    assert_eq!(
        rows(
            &session,
            "SELECT v FROM lookup('p', [3, 70001, 99999]) ORDER BY id"
        )
        .await,
        ["text 3", "text 70001"]
    );
    assert_eq!(
        rows(
            &session,
            "SELECT id FROM p WHERE v LIKE '%7000_' ORDER BY id"
        )
        .await,
        ["70000", "70001"]
    );
    assert_eq!(
        rows(&session, "SELECT max(depth), max(vertex) FROM bfs('g', 1)").await,
        ["100 500"]
    );
    let report = session.engine().database().fsck(&mut |_| Ok(())).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[tokio::test]
async fn an_ngram_index_finds_what_a_scan_finds() {
    let mut random = random();
    let session = session();
    run(&session, "CREATE TABLE t (id INT, s TEXT)").await;
    run(&session, "CREATE INDEX grams ON t USING ngram (s)").await;
    const WORDS: [&str; 12] = [
        "flash",
        "Mesh",
        "K\u{212a}elvin",
        "größe",
        "100%",
        "under_score",
        "ſharp",
        "日本語",
        "",
        "zz",
        "needle",
        "a\\b",
    ];
    for batch in 0..3 {
        let values: Vec<String> = (0..4000)
            .map(|i| {
                if random.random_bool(0.02) {
                    return format!("({i}, NULL)");
                }
                let words: Vec<_> = (0..random.random_range(0..9))
                    .map(|_| {
                        let word = WORDS[random.random_range(0..WORDS.len())];
                        format!("{word}{}", random.random_range(0..300))
                    })
                    .collect();
                format!("({}, '{}')", batch * 4000 + i, words.join(" "))
            })
            .collect();
        run(
            &session,
            &format!("INSERT INTO t VALUES {}", values.join(",")),
        )
        .await;
    }
    run(&session, "CREATE TABLE plain AS SELECT * FROM t").await;
    for _ in 0..30 {
        let word = WORDS[random.random_range(0..WORDS.len())].replace('\\', "\\\\");
        let number = random.random_range(0..300);
        let filter = match random.random_range(0..8) {
            0 => format!("s LIKE '%{word}{number}%'"),
            1 => format!("s ILIKE '%{}{number} %'", word.to_uppercase()),
            2 => format!("contains(s, '{word}{number}')"),
            3 => format!("regexp_like(s, '(needle|zz){number}[ 0-9]')"),
            4 => format!("s LIKE '%{word}{number}%' OR s LIKE '%zz{number}%'"),
            5 => format!("s LIKE '{word}{number}%' AND s LIKE '%needle%'"),
            6 => format!("strpos(s, '{word}{number}') > 0"),
            _ => format!("s LIKE '%{word}_{number}%'"),
        };
        let query =
            |table: &str| format!("SELECT id, s FROM {table} WHERE {filter} ORDER BY id, s");
        let host = {
            run(&session, "SET flashmesh.pushdown = 'never'").await;
            let host = rows(&session, &query("plain")).await;
            run(&session, "SET flashmesh.pushdown = 'auto'").await;
            host
        };
        assert_eq!(rows(&session, &query("t")).await, host, "{filter}");
    }
    let explained = plan(&session, "SELECT * FROM t WHERE s LIKE '%needle7 %'").await;
    assert!(explained.contains("index=grams (ngram)"), "{explained}");
    // The places of matches: bytes, not characters, and every occurrence.
    run(
        &session,
        "CREATE TABLE m AS SELECT 'größe größe' AS s UNION ALL SELECT 'no' UNION ALL SELECT NULL",
    )
    .await;
    assert_eq!(
        rows(
            &session,
            "SELECT byte_offset, value FROM matches('m', 's', 'öße') ORDER BY 1"
        )
        .await,
        ["2 größe größe", "10 größe größe"]
    );
    assert_eq!(
        rows(
            &session,
            "SELECT s FROM fetch('m', (SELECT row_id FROM matches('m', 's', 'öße')))"
        )
        .await,
        ["größe größe"]
    );
}

#[tokio::test]
async fn nearest_rows_are_the_nearest() {
    let session = session();
    run(
        &session,
        "CREATE TABLE v AS SELECT value AS id, value % 10 AS bucket,
            arrow_cast(make_array(sin(value), cos(value * 3), sin(value * 0.7), cos(value)), 'FixedSizeList(4, Float32)') AS x
         FROM generate_series(1, 5000) AS s(value)",
    )
    .await;
    let query = "[0.1, -0.2, 0.3, 0.9]";
    let by_hand = "SELECT id FROM v WHERE bucket = 3 ORDER BY l2_distance(x, [0.1, -0.2, 0.3, 0.9]), id LIMIT 7";
    run(&session, "SET flashmesh.pushdown = 'never'").await;
    let expected = rows(&session, by_hand).await;
    let nearest = rows(
        &session,
        &format!("SELECT id FROM nearest('v', 'x', {query}, 5)"),
    )
    .await;
    run(&session, "SET flashmesh.pushdown = 'always'").await;
    assert_eq!(rows(&session, by_hand).await, expected);
    assert_eq!(
        rows(
            &session,
            &format!("SELECT id FROM nearest('v', 'x', {query}, 5)")
        )
        .await,
        nearest
    );
    // Many at once, without an index and with one that looks at everything.
    let many = "SELECT query, id FROM nearest('v', 'x', (SELECT x FROM v WHERE id <= 20 ORDER BY id), 1) ORDER BY query";
    let own: Vec<_> = (0..20).map(|i| format!("{i} {}", i + 1)).collect();
    assert_eq!(rows(&session, many).await, own);
    run(
        &session,
        "CREATE INDEX near ON v USING lsh (x) WITH (bits = 4, probes = 16)",
    )
    .await;
    assert_eq!(rows(&session, many).await, own);
    let explained = plan(
        &session,
        &format!("SELECT id FROM nearest('v', 'x', {query}, 5)"),
    )
    .await;
    assert!(explained.contains("index=near (lsh)"), "{explained}");
    assert_eq!(
        rows(
            &session,
            &format!("SELECT id FROM nearest('v', 'x', {query}, 5)")
        )
        .await,
        nearest
    );
    // A filter comes before the limit: no short answers, however rare what passes is.
    run(
        &session,
        "SET flashmesh.pushdown = 'auto'; SET flashmesh.approximate = 'on'",
    )
    .await;
    assert_eq!(rows(&session, by_hand).await.len(), 7);
    run(
        &session,
        "DROP INDEX near; CREATE INDEX near ON v USING lsh (x) WITH (bits = 6, probes = 1)",
    )
    .await;
    let rare = "SELECT id FROM v WHERE id IN (5, 505, 4005) ORDER BY l2_distance(x, [0.1, -0.2, 0.3, 0.9]) LIMIT 3";
    assert_eq!(rows(&session, rare).await.len(), 3);
    // However few pass, those that do are found; with more the index may miss some.
    for least in [100, 4_000, 4_990, 4_998] {
        let sql = format!(
            "SELECT id FROM v WHERE id >= {least} ORDER BY l2_distance(x, [0.1, -0.2, 0.3, 0.9]) LIMIT 4"
        );
        assert!(plan(&session, &sql).await.contains("index=near (lsh)"));
        let found = rows(&session, &sql).await;
        run(&session, "SET flashmesh.approximate = 'off'").await;
        let exact = rows(&session, &sql).await;
        run(&session, "SET flashmesh.approximate = 'on'").await;
        assert_eq!(found.len(), exact.len(), "{sql}");
        if least > 4_000 {
            assert_eq!(found, exact, "{sql}");
        }
    }
    run(&session, "INSERT INTO v VALUES (9999, 3, arrow_cast([0.1, -0.2, 0.3, 0.9], 'FixedSizeList(4, Float32)')), (10000, 3, NULL)").await;
    assert_eq!(
        rows(
            &session,
            &format!("SELECT id FROM nearest('v', 'x', {query}, 1)")
        )
        .await,
        ["9999"]
    );
    for (sql, part) in [
        ("SELECT * FROM nearest('v', 'x', [1.0, 2.0])", "length 2"),
        ("SELECT * FROM nearest('v', 'id', [1.0])", "'id'"),
        ("SELECT * FROM nearest('v', 'x', 'text')", "no vector"),
        ("SELECT l2_distance([1.0], [1.0, 2.0])", "different lengths"),
        (
            "SELECT hamming_distance(X'00', X'0000')",
            "different lengths",
        ),
        (
            "SELECT * FROM nearest('v', 'x', [1,2,3,4], 5, metric => 'hamming')",
            "hamming",
        ),
        ("SET flashmesh.approximate = 'perhaps'", "'on' or 'off'"),
    ] {
        let message = error(&session, sql).await;
        assert!(message.contains(part), "{sql}: {message}");
    }
}

#[tokio::test]
async fn graph_searches_agree_with_a_naive_search() {
    let mut random = random();
    let session = session();
    let edges: Vec<(i64, i64)> = (0..3000)
        .map(|_| {
            let vertex =
                |random: &mut StdRng| i64::from(random.random_range(0..900)) * 1_000_003 - 450;
            (vertex(&mut random), vertex(&mut random))
        })
        .collect();
    run(&session, "CREATE TABLE e (a BIGINT, b BIGINT, w DOUBLE)").await;
    run(&session, "CREATE INDEX g ON e USING adjacency (a, b, w)").await;
    for part in edges.chunks(700) {
        let values: Vec<_> = part
            .iter()
            .map(|(a, b)| format!("({a}, {b}, 1.0)"))
            .collect();
        run(
            &session,
            &format!("INSERT INTO e VALUES {}", values.join(",")),
        )
        .await;
    }
    run(
        &session,
        "INSERT INTO e VALUES (NULL, 5, 1.0), (5, NULL, 1.0)",
    )
    .await;
    let mut lists: HashMap<i64, Vec<i64>> = HashMap::new();
    for (a, b) in &edges {
        lists.entry(*a).or_default().push(*b);
    }
    let start = edges[0].0;
    let mut depths = BTreeMap::from([(start, 0)]);
    let mut queue = VecDeque::from([start]);
    while let Some(vertex) = queue.pop_front() {
        for next in lists.get(&vertex).into_iter().flatten() {
            if !depths.contains_key(next) {
                depths.insert(*next, depths[&vertex] + 1);
                queue.push_back(*next);
            }
        }
    }
    let expected: Vec<_> = depths.iter().map(|(v, d)| format!("{v} {d}")).collect();
    let found = rows(
        &session,
        &format!("SELECT vertex, depth FROM bfs('g', {start}) ORDER BY vertex"),
    )
    .await;
    assert_eq!(found, expected);
    // Every parent is one edge away and one level up.
    let wrong = format!(
        "WITH r AS (SELECT * FROM bfs('g', {start}))
         SELECT count(*) FROM r LEFT JOIN e ON e.a = r.parent AND e.b = r.vertex LEFT JOIN r p ON p.vertex = r.parent
         WHERE r.parent IS NOT NULL AND (e.a IS NULL OR p.depth <> r.depth - 1)"
    );
    assert_eq!(rows(&session, &wrong).await, ["0"]);
    let two: BTreeSet<_> = depths
        .iter()
        .filter(|(_, d)| (1..=2).contains(*d))
        .map(|(v, _)| *v)
        .collect();
    let expanded = format!("SELECT vertex FROM expand('g', {start}, 2) ORDER BY vertex");
    let two: Vec<_> = two.iter().map(i64::to_string).collect();
    assert_eq!(rows(&session, &expanded).await, two);
    let (far, depth) = depths.iter().max_by_key(|(_, depth)| **depth).unwrap();
    for weight in ["", ", 'w'"] {
        let path =
            format!("SELECT max(step), max(cost) FROM shortest_path('g', {start}, {far}{weight})");
        assert_eq!(rows(&session, &path).await, [format!("{depth} {depth}.0")]);
    }
    assert_eq!(
        rows(&session, "SELECT round(sum(rank), 6) FROM page_rank('g')").await,
        ["1.0"]
    );
    let components = "SELECT count(DISTINCT component), count(*) FROM connected_components('g')";
    assert_eq!(rows(&session, components).await, [naive_components(&edges)]);
    for (sql, part) in [
        ("SELECT * FROM bfs('g', 3)", "'3'"),
        ("SELECT * FROM bfs('nope', 3)", "'nope'"),
        ("SELECT * FROM expand('g', 'x', 1)", "no vertex"),
        ("SELECT * FROM expand('g', 1)", "hops"),
        ("SELECT * FROM bfs('g', (SELECT a, b FROM e))", "one column"),
        (
            "SELECT * FROM bfs('g', 1, direction => 'up')",
            "'out', 'in' or 'both'",
        ),
        ("SELECT * FROM page_rank('g', damping => 1.5)", "damping"),
        ("SELECT * FROM shortest_path('g', 1, 2, 'v')", "'v'"),
    ] {
        let message = error(&session, sql).await;
        assert!(message.contains(part), "{sql}: {message}");
    }
    run(&session, "INSERT INTO e VALUES (1, 2, -1.0)").await;
    let negative = error(&session, "SELECT * FROM shortest_path('g', 1, 2, 'w')").await;
    assert!(negative.contains("negative"), "{negative}");
}

/// Components and vertices of a graph, by spreading the least name along edges until nothing
/// changes.
fn naive_components(edges: &[(i64, i64)]) -> String {
    let mut names: BTreeMap<i64, i64> = edges
        .iter()
        .flat_map(|(a, b)| [(*a, *a), (*b, *b)])
        .collect();
    loop {
        let mut changed = false;
        for (a, b) in edges {
            let least = names[a].min(names[b]);
            changed |= names.insert(*a, least) != Some(least);
            changed |= names.insert(*b, least) != Some(least);
        }
        if !changed {
            break;
        }
    }
    let components: BTreeSet<_> = names.values().collect();
    format!("{} {}", components.len(), names.len())
}

#[tokio::test]
async fn rows_that_an_index_does_not_cover_yet_are_found_and_counted() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t AS SELECT value AS a, value % 5000 AS b, 'line ' || value AS c,
            arrow_cast(make_array(sin(value), cos(value * 3)), 'FixedSizeList(2, Float32)') AS x
         FROM generate_series(1, 20000) AS s(value)",
    )
    .await;
    for index in ["hash (b)", "ngram (c)", "lsh (x)", "adjacency (a, b)"] {
        let name = index.split_once(' ').unwrap().0;
        run(
            &session,
            &format!("CREATE INDEX i_{name} ON t USING {index}"),
        )
        .await;
    }
    let rows_added = "(20001, 77, 'a needle', arrow_cast([9.0, 9.0], 'FixedSizeList(2, Float32)')),
        (20002, 78, 'hay', arrow_cast([9.5, 9.0], 'FixedSizeList(2, Float32)')),
        (20003, 79, 'hay', NULL)";
    run(&session, &format!("INSERT INTO t VALUES {rows_added}")).await;
    let state = "SELECT name, uncovered_segments, uncovered_rows, failure FROM system.indexes ORDER BY name";
    let lagging = |rows: u32| {
        let names = ["adjacency", "hash", "lsh", "ngram"];
        let line = |name| format!("i_{name} {} {rows}", rows.min(1));
        names.map(line).to_vec()
    };
    let trimmed = |rows: Vec<String>| -> Vec<String> {
        rows.iter().map(|row| row.trim_end().to_string()).collect()
    };
    assert_eq!(trimmed(rows(&session, state).await), lagging(3));
    for (sql, index) in [
        ("SELECT a FROM t WHERE b = 77", "i_hash"),
        ("SELECT a FROM t WHERE c LIKE '%needle%'", "i_ngram"),
        ("SELECT a FROM nearest('t', 'x', [9.0, 9.1], 1)", "i_lsh"),
    ] {
        let explained = plan(&session, sql).await;
        assert!(explained.contains(index), "{explained}");
        assert!(explained.contains("3 rows not covered yet"), "{explained}");
    }
    for is_covered in [false, true] {
        if is_covered {
            session.engine().database().settle_indexes().unwrap();
            assert_eq!(trimmed(rows(&session, state).await), lagging(0));
        }
        let answers = [
            (
                "SELECT a FROM t WHERE b = 77 ORDER BY a DESC LIMIT 1",
                "20001",
            ),
            ("SELECT count(*) FROM t WHERE b = 77", "5"),
            ("SELECT a FROM t WHERE c LIKE '%needle%'", "20001"),
            ("SELECT a FROM nearest('t', 'x', [9.0, 9.1], 1)", "20001"),
            (
                "SELECT a FROM nearest('t', 'x', (SELECT x FROM t WHERE a = 20002), 2) ORDER BY distance",
                "20002",
            ),
            ("SELECT vertex FROM expand('i_adjacency', 20003, 1)", "79"),
        ];
        for (sql, expected) in answers {
            assert_eq!(rows(&session, sql).await[0], expected, "{sql}");
        }
    }
}

/// A filter that so few rows pass that the nearest 262,144 rows have not enough of them.
#[tokio::test]
async fn a_filter_that_hardly_a_row_passes_is_answered_by_a_scan() {
    let session = session();
    run(
        &session,
        "CREATE TABLE v AS SELECT value AS id, value % 100000 AS m, arrow_cast([sin(value), cos(value * 3)], 'FixedSizeList(2, Float32)') AS x \
         FROM generate_series(1, 300000); \
         CREATE INDEX near ON v USING lsh (x); \
         SET flashmesh.approximate = 'on'",
    )
    .await;
    let sql = "SELECT id FROM v WHERE m = 7 ORDER BY l2_distance(x, [0.5, 0.5]) LIMIT 3";
    assert!(plan(&session, sql).await.contains("index=near (lsh)"));
    let mut found = rows(&session, sql).await;
    found.sort();
    assert_eq!(found, ["100007", "200007", "7"]);
}
