//! Clauses that DataFusion leaves out without a word, or does not know.

use crate::support::{answer, error, in_all_modes, rows, run, session};

const TABLES: &str = "
    CREATE TABLE t (id INT, g TEXT, v INT);
    INSERT INTO t VALUES (1, 'x', 10), (2, 'y', 20), (3, 'x', 30), (4, NULL, 40);
    CREATE TABLE u (id INT, w INT);
    INSERT INTO u VALUES (1, 5), (3, 6), (9, 7)";

#[tokio::test]
async fn what_can_be_said_otherwise_is_planned() {
    let session = session();
    run(&session, TABLES).await;
    let asked = [
        // FETCH is LIMIT.
        (
            "SELECT id FROM t ORDER BY id FETCH FIRST 2 ROWS ONLY",
            "1,2",
        ),
        ("SELECT id FROM t ORDER BY id DESC FETCH NEXT ROW ONLY", "4"),
        (
            "SELECT id FROM t ORDER BY id OFFSET 1 ROWS FETCH NEXT 2 ROWS ONLY",
            "2,3",
        ),
        (
            "SELECT id FROM t WHERE id IN (SELECT id FROM u ORDER BY id FETCH FIRST 1 ROW ONLY)",
            "1",
        ),
        // ROLLUP and CUBE behind the groups.
        (
            "SELECT g, count(*) FROM t GROUP BY g WITH ROLLUP ORDER BY g NULLS LAST, count(*)",
            "x 2,y 1,1,4",
        ),
        (
            "SELECT id > 2, g, count(*) FROM t WHERE g IS NOT NULL GROUP BY 1, g WITH CUBE ORDER BY 1, 2, 3",
            "false x 1,false y 1,false 2,true x 1,true 1,x 2,y 1,3",
        ),
        (
            "SELECT g AS h, sum(v) FROM t WHERE id < 4 GROUP BY ROLLUP (1) ORDER BY h NULLS LAST",
            "x 40,y 20,60",
        ),
        // Joins that keep or leave out.
        ("SELECT id FROM t SEMI JOIN u USING (id) ORDER BY id", "1,3"),
        (
            "SELECT t.id FROM t ANTI JOIN u ON t.id = u.id ORDER BY id",
            "2,4",
        ),
        (
            "SELECT count(*) FROM (t SEMI JOIN u ON t.id = u.id) CROSS JOIN (SELECT 1)",
            "2",
        ),
        // Windows by name.
        (
            "SELECT id, sum(v) OVER (w ORDER BY id) FROM t WINDOW w AS (PARTITION BY g) ORDER BY id",
            "1 10,2 20,3 40,4 40",
        ),
        (
            "SELECT id, sum(v) OVER b FROM t WINDOW a AS (PARTITION BY g), b AS (a ORDER BY id) ORDER BY id",
            "1 10,2 20,3 40,4 40",
        ),
        (
            "SELECT g, count(*) AS n FROM t GROUP BY g WINDOW w AS () ORDER BY count(*) OVER w, g",
            "x 2,y 1,1",
        ),
        (
            "SELECT id FROM t WINDOW w AS (PARTITION BY g ORDER BY id DESC) QUALIFY row_number() OVER w = 1 ORDER BY id",
            "2,3,4",
        ),
        (
            "SELECT id, (SELECT max(n) FROM (SELECT count(*) OVER w AS n FROM u WINDOW w AS ())), count(*) OVER w
             FROM t WINDOW w AS (PARTITION BY g) ORDER BY id",
            "1 3 2,2 3 1,3 3 2,4 3 1",
        ),
        // Of a UNION in WITH RECURSIVE that does not name itself.
        (
            "WITH RECURSIVE a AS (SELECT 1 AS x UNION ALL SELECT 2 ORDER BY x DESC LIMIT 1) SELECT * FROM a",
            "2",
        ),
        // Filters that come first.
        ("SELECT id FROM t PREWHERE v > 10 ORDER BY id", "2,3,4"),
        (
            "SELECT id FROM t PREWHERE v > 10 OR v = 10 WHERE id = 1 OR id = 3 ORDER BY id",
            "1,3",
        ),
    ];
    for (sql, expected) in asked {
        let found = in_all_modes(&session, sql).await;
        let found: Vec<_> = found.iter().map(|row| row.split_whitespace()).collect();
        let found: Vec<_> = found
            .into_iter()
            .map(|words| words.collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(found.join(","), expected, "{sql}");
    }
    // In views, which are kept as text, and in prepared statements.
    run(
        &session,
        "CREATE VIEW many AS SELECT g, count(*) AS n FROM t SEMI JOIN u USING (id) GROUP BY g WITH ROLLUP FETCH FIRST 9 ROWS ONLY;
         PREPARE least AS SELECT id FROM t PREWHERE v > $1 ORDER BY id FETCH FIRST 1 ROW ONLY",
    )
    .await;
    let found = in_all_modes(&session, "SELECT sum(n), count(*) FROM many").await;
    assert_eq!(found, ["4 2"]);
    assert_eq!(rows(&session, "EXECUTE least(20)").await, ["3"]);
}

#[tokio::test]
async fn samples_are_samples() {
    let session = session();
    run(
        &session,
        "CREATE TABLE many AS SELECT value AS id, value % 7 AS g FROM range(0, 20000)",
    )
    .await;
    let count = async |sql: &str| -> usize {
        let found = rows(&session, sql).await;
        found[0]
            .parse()
            .unwrap_or_else(|_| panic!("{sql}: {found:?}"))
    };
    for mode in ["never", "auto", "always"] {
        run(&session, &format!("SET flashmesh.pushdown = '{mode}'")).await;
        for (sample, expected) in [("(0 PERCENT)", 0), ("(100 PERCENT)", 20_000)] {
            let sql = format!("SELECT count(*) FROM many TABLESAMPLE {sample}");
            assert_eq!(count(&sql).await, expected, "{sql}");
        }
        // Twenty standard deviations are 1,414 rows.
        for sample in ["BERNOULLI (50)", "SYSTEM (50)", "(50 PERCENT)"] {
            for sql in [
                format!("SELECT count(*) FROM many TABLESAMPLE {sample}"),
                format!(
                    "SELECT count(DISTINCT m.id) FROM many AS m TABLESAMPLE {sample} WHERE m.g >= 0"
                ),
                format!("SELECT count(*) FROM (SELECT * FROM many) TABLESAMPLE {sample}"),
            ] {
                let found = count(&sql).await;
                assert!((8_500..=11_500).contains(&found), "{sql}: {found}");
            }
        }
        let sql = "SELECT count(DISTINCT many.id) FROM many TABLESAMPLE (123 ROWS)";
        assert_eq!(count(sql).await, 123);
    }
    // What is deleted is never a sample's rest.
    let said = error(&session, "DELETE FROM many TABLESAMPLE (1 PERCENT)").await;
    assert_eq!(count("SELECT count(*) FROM many").await, 20_000, "{said}");
}

/// Rules rewrite what is in grouping sets, which stay such and keep their columns' names.
#[tokio::test]
async fn grouping_sets_may_be_of_any_expressions() {
    let session = session();
    run(
        &session,
        "CREATE TABLE s (a TEXT, b INT); INSERT INTO s VALUES ('p', 1), ('z', 3);
         PREPARE p AS SELECT b + $1 AS c, count(*) AS n FROM s GROUP BY ROLLUP (b + $1) ORDER BY c",
    )
    .await;
    for (query, expected) in [
        (
            "SELECT a IN ('p', 'q') OR a = 'r' AS c, count(*) AS n FROM s
             GROUP BY ROLLUP (a IN ('p', 'q') OR a = 'r') ORDER BY c",
            "false 1,true 1,2",
        ),
        (
            "SELECT CASE WHEN b > 0 THEN 10 / b > 4 END AS c, count(*) AS n FROM s
             GROUP BY CUBE (CASE WHEN b > 0 THEN 10 / b > 4 END) ORDER BY c",
            "false 1,true 1,2",
        ),
        ("EXECUTE p(1)", "2 1,4 1,2"),
    ] {
        assert_eq!(answer(&session, query).await, expected, "{query}");
    }
}

#[tokio::test]
async fn what_would_be_left_out_is_refused() {
    let session = session();
    run(&session, TABLES).await;
    run(
        &session,
        "CREATE SCHEMA other; CREATE TABLE other.t (id INT)",
    )
    .await;
    let refused = [
        (
            "SELECT id FROM t ORDER BY id FETCH FIRST 1 ROW WITH TIES",
            "WITH TIES is not supported; number the rows",
        ),
        (
            "SELECT id FROM t FETCH FIRST 10 PERCENT ROWS ONLY",
            "FETCH … PERCENT",
        ),
        (
            "SELECT id FROM t LIMIT 1 FETCH FIRST 2 ROWS ONLY",
            "FETCH beside LIMIT",
        ),
        (
            "SELECT id FROM t FOR UPDATE",
            "FOR UPDATE is not supported; a transaction",
        ),
        (
            "SELECT id FROM t SETTINGS x = 1",
            "SETTINGS is not supported; write SET",
        ),
        (
            "SELECT id FROM t FORMAT JSON",
            "FORMAT JSON is not supported",
        ),
        (
            "SELECT id FROM t FOR JSON AUTO",
            "FOR JSON AUTO is not supported",
        ),
        (
            "SELECT id FROM t CONNECT BY id = 1",
            "CONNECT BY is not supported; write WITH RECURSIVE",
        ),
        (
            "SELECT * ILIKE 'v%' FROM t",
            "* ILIKE 'v%' is not supported; name the columns",
        ),
        (
            "SELECT id FROM t WITH (NOLOCK)",
            "WITH (NOLOCK) behind a table",
        ),
        (
            "SELECT id FROM t PARTITION (p0)",
            "PARTITION behind a table",
        ),
        ("DELETE FROM t PARTITION (p0)", "PARTITION behind a table"),
        (
            "UPDATE t PARTITION (p0) SET v = 0",
            "PARTITION behind a table",
        ),
        ("SELECT * FROM t WITH ORDINALITY", "WITH ORDINALITY"),
        ("DROP TABLE t, u", "write a DROP for each"),
        (
            "SELECT g, count(*) FROM t GROUP BY g WITH TOTALS",
            "WITH TOTALS is not supported; write WITH ROLLUP",
        ),
        (
            "SELECT g, count(*) FROM t GROUP BY ALL WITH ROLLUP",
            "GROUP BY ALL WITH ROLLUP",
        ),
        (
            "SELECT sum(0.5)(v) FROM t",
            "a second list of arguments of sum",
        ),
        (
            "SELECT count(DISTINCT *) FROM u",
            "write SELECT count(*) FROM (SELECT DISTINCT",
        ),
        (
            "SELECT id INTO z FROM t UNION SELECT id FROM u",
            "INTO in a part of a set operation",
        ),
        (
            "SELECT id FROM t TABLESAMPLE (10)",
            "TABLESAMPLE (10) is not supported; write TABLESAMPLE BERNOULLI (10)",
        ),
        (
            "SELECT id FROM t TABLESAMPLE (101 PERCENT)",
            "is not supported; write TABLESAMPLE",
        ),
        (
            "SELECT id FROM t TABLESAMPLE (1.5 ROWS)",
            "is not supported; write TABLESAMPLE",
        ),
        (
            "SELECT id FROM t TABLESAMPLE BERNOULLI (10) REPEATABLE (3)",
            "REPEATABLE is not supported",
        ),
        (
            "SELECT id FROM t SAMPLE 0.1",
            "is not supported; write TABLESAMPLE",
        ),
        (
            "SELECT * FROM read_csv('x.csv', 'y')",
            "read_csv takes options with their names",
        ),
        (
            "CREATE TABLE n (a INT, b INT GENERATED ALWAYS AS (a + 1) STORED)",
            "is not supported; make a view",
        ),
        (
            "CREATE TABLE n (a INT AS (1 + 1) STORED)",
            "is not supported; make a view",
        ),
        ("CREATE TABLE n (a TEXT COLLATE \"de\")", "COLLATE"),
        (
            "CREATE TABLE n (a INT PRIMARY KEY DEFERRABLE)",
            "DEFERRABLE",
        ),
        (
            "CREATE TABLE n (a INT, UNIQUE NULLS NOT DISTINCT (a))",
            "UNIQUE NULLS NOT DISTINCT",
        ),
        (
            "ALTER TABLE t ADD COLUMN z INT AS (1) STORED",
            "is not supported; make a view",
        ),
        (
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 100 ORDER BY 1 LIMIT 5) SELECT * FROM r",
            "LIMIT of a query that names itself is not supported",
        ),
        ("SELECT sum(v) OVER z FROM t", "window 'z' is not defined"),
        (
            "SELECT id FROM t ORDER BY sum(v) OVER (z ORDER BY id)",
            "window 'z' is not defined",
        ),
        (
            "SELECT sum(v) OVER (w PARTITION BY id) FROM t WINDOW w AS (PARTITION BY g)",
            "PARTITION BY beside window 'w'",
        ),
        (
            "SELECT sum(v) OVER (w ORDER BY id) FROM t WINDOW w AS (ORDER BY g)",
            "ORDER BY beside window 'w'",
        ),
        (
            "SELECT sum(v) OVER (w ORDER BY id) FROM t WINDOW w AS (ROWS 1 PRECEDING)",
            "window 'w', which has a frame",
        ),
        (
            "SELECT upper(g) FILTER (WHERE false) FROM t",
            "FILTER of upper is not supported; it is neither",
        ),
        ("SELECT round(v) OVER (ORDER BY id) FROM t", "OVER of round"),
        (
            "SELECT nullif(DISTINCT g, 'x') FROM t",
            "DISTINCT of nullif",
        ),
        (
            "SELECT coalesce(g, 'n' ORDER BY v) FROM t",
            "ORDER BY of coalesce",
        ),
        (
            "SELECT upper(g) WITHIN GROUP (ORDER BY v) FROM t",
            "WITHIN GROUP of upper",
        ),
        ("SELECT unnest(DISTINCT [1, 1])", "DISTINCT of unnest"),
        ("SELECT id INTO TEMPORARY z FROM t", "INTO TEMPORARY"),
        (
            "SELECT count(*) FROM t GROUP BY 9 WITH ROLLUP",
            "position 9 among sets of groups is not supported; write the expression",
        ),
        (
            "SELECT s.* FROM (SELECT g FROM t) s GROUP BY 1 WITH ROLLUP",
            "position 1 among sets of groups",
        ),
        (
            "SELECT 2 AS a, g, count(*) FROM t GROUP BY 1, 2 WITH ROLLUP",
            "position 1 among sets of groups",
        ),
        ("SELECT * FROM t |> SELECT * ILIKE 'v%'", "* ILIKE 'v%'"),
        (
            "SELECT * FROM t |> AGGREGATE sum(v) AS s GROUP BY id DESC",
            "an order in AGGREGATE",
        ),
        (
            "SELECT * FROM range(3, SETTINGS a = 1)",
            "SETTINGS of a function",
        ),
        (
            "SELECT * FROM t, LATERAL generate_series(stop => 1, start => 3)",
            "a name of an argument of generate_series",
        ),
        (
            "SELECT * FROM (SELECT 1) AS q(a TEXT)",
            "a type for column a",
        ),
        (
            "CREATE EXTERNAL TABLE no (a INT, b INT AS (1)) STORED AS CSV LOCATION 'x.csv'",
            "is not supported; make a view",
        ),
        (
            "COPY t TO 'x.csv' STORED AS xlsx",
            "COPY does not write 'XLSX'; it writes arrow",
        ),
        (
            "COPY t TO 'x.csv' (FORMAT text)",
            "COPY does not write 'TEXT'",
        ),
        // What would be read as a name.
        (
            "SELECT * FROM t POSITIONAL JOIN u",
            "a JOIN without ON or USING is not supported; write its condition, or CROSS JOIN",
        ),
        ("SELECT * FROM t LEFT JOIN u", "a JOIN without ON or USING"),
        (
            "SELECT count(*) FROM (t AS a JOIN u)",
            "a JOIN without ON or USING",
        ),
        (
            "SELECT INTERVAL 3 decades",
            "INTERVAL 3 without a unit is not supported; write one such as in INTERVAL '3 days'",
        ),
        (
            "SELECT INTERVAL '1.5' millennia",
            "INTERVAL '1.5' without a unit",
        ),
        ("SELECT '47.2'::INTERVAL", "'47.2' without a unit"),
        (
            "SELECT id FROM t WHERE g SIMILAR TO g",
            "SIMILAR TO g, a pattern that is no constant is not supported; write regexp_like",
        ),
        ("SELECT 'a' SIMILAR TO '[a'", "with an open bracket"),
        (
            "SELECT * FROM t, other.t",
            "t and other.t in one FROM is not supported; write the schemas of both",
        ),
        (
            "SELECT t.id FROM public.t JOIN other.t ON public.t.id = other.t.id",
            "t as the name of a table where there are public.t and other.t",
        ),
        (
            "SELECT public.t.v FROM public.t JOIN other.t ON public.t.id = other.t.id ORDER BY t.id",
            "t as the name of a table where there are",
        ),
        (
            "SELECT t.v FROM (public.t CROSS JOIN u) CROSS JOIN other.t",
            "t as the name of a table where there are",
        ),
        (
            "SELECT t.w FROM u AS t JOIN other.t ON t.id = other.t.id",
            "t and other.t in one FROM",
        ),
        (
            "UPDATE t SET v = 0 FROM u POSITIONAL JOIN u AS x",
            "a JOIN without ON or USING",
        ),
        (
            "UPDATE t SET v = 0 FROM other.t",
            "t and other.t in one FROM",
        ),
        (
            "DELETE FROM t USING u AS x JOIN u",
            "a JOIN without ON or USING",
        ),
        ("SELECT INTERVAL -3 decades", "without a unit"),
        ("SELECT mod(7, 4) OVER ()", "Invalid function 'mod'"),
        ("SELECT max_by(id) FROM t", "max_by but of two arguments"),
        (
            "SELECT arg_min(id, v) OVER () FROM t",
            "arg_min as a window function is not supported; write first_value(x) OVER",
        ),
        ("CREATE SCHEMA no WITH (a = 1)", "write CREATE SCHEMA name"),
        ("DROP TEMPORARY TABLE t", "DROP TEMPORARY"),
        ("DROP TABLE t PURGE", "PURGE"),
    ];
    let all = rows(&session, "SELECT * FROM t ORDER BY id").await;
    for (sql, expected) in refused {
        let said = error(&session, sql).await;
        assert!(said.contains(expected), "{sql}: {said}");
        // Wherever it stands.
        if sql.starts_with("SELECT") {
            for within in [
                format!("EXPLAIN {sql}"),
                format!("CREATE VIEW no AS {sql}"),
                format!("CREATE TABLE no AS {sql}"),
                format!("PREPARE no AS {sql}"),
                format!("WITH w AS ({sql}) SELECT * FROM w"),
                format!("SELECT EXISTS ({sql})"),
            ] {
                let said = error(&session, &within).await;
                assert!(said.contains(expected), "{within}: {said}");
            }
        }
    }
    // While it is optimised, of which EXPLAIN tells as of all else.
    for cast in [
        "'[1, 2]'::INT[]",
        "TRY_CAST(g AS TEXT[])",
        "(SELECT g::TEXT[])",
    ] {
        let said = error(&session, &format!("SELECT {cast} FROM t")).await;
        assert!(said.contains("a cast of text to a list"), "{cast}: {said}");
    }
    assert_eq!(rows(&session, "SELECT * FROM t ORDER BY id").await, all);
    let made =
        "SELECT count(*) FROM information_schema.tables WHERE table_name IN ('n', 'no', 'z')";
    assert_eq!(rows(&session, made).await, ["0"]);
    // What is known still is.
    run(
        &session,
        "CREATE TABLE n (a BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY NOT DEFERRABLE,
         b INTEGER UNIQUE INITIALLY IMMEDIATE COMMENT 'the second', c TEXT CHARACTER SET utf8 NOT NULL DEFAULT 'd');
         INSERT INTO n (b) VALUES (7), (8)",
    )
    .await;
    assert_eq!(
        rows(&session, "SELECT * FROM n ORDER BY b").await,
        ["1 7 d", "2 8 d"]
    );
}

#[tokio::test]
async fn what_other_databases_say_means_the_same_here() {
    let session = session();
    run(&session, TABLES).await;
    run(
        &session,
        "CREATE SCHEMA other; CREATE TABLE other.t (id INT, x INT); INSERT INTO other.t VALUES (1, 7), (9, 8);
         CREATE TABLE \"T\" AS SELECT 1 AS one",
    )
    .await;
    for (sql, expected) in [
        // Two tables of one name.
        ("SELECT * FROM public.t, other.t WHERE public.t.id = 3 ORDER BY x", "3 x 30 1 7,3 x 30 9 8"),
        (
            "SELECT public.t.v, other.t.x FROM public.t JOIN other.t ON public.t.id = other.t.id",
            "10 7",
        ),
        ("SELECT t.v, o.x FROM t JOIN other.t AS o USING (id)", "10 7"),
        ("SELECT count(*) FROM t, \"T\"", "4"),
        // Patterns of whole texts.
        (
            "SELECT 'abc' SIMILAR TO 'b', 'abc' SIMILAR TO '%(b|d)%', 'abc' NOT SIMILAR TO '_[a-c]c', 'a.c' SIMILAR TO 'a.c',
                    'abc' SIMILAR TO 'a.c', E'a\nb' SIMILAR TO 'a%b', 'a%' SIMILAR TO 'a!%' ESCAPE '!', NULL SIMILAR TO 'a'",
            "false true false true false true true",
        ),
        ("SELECT '<a>' SIMILAR TO '<a>', 'a' SIMILAR TO '<a>', E'a\\b' SIMILAR TO E'a!\\b' ESCAPE '!'", "true false true"),
        ("SELECT id FROM t WHERE g SIMILAR TO 'x|y' ORDER BY id", "1,2,3"),
        ("SELECT id FROM t WHERE g NOT SIMILAR TO 'x+' ORDER BY id", "2"),
        // Numbers in groups.
        ("SELECT 1_000_000, 1_0.5, 1_0 + 2_5 AS a_1", "1000000 10.5 35"),
        // NULL among the elements.
        (
            "SELECT 4 = ANY ([1, NULL]) AS a, 1 = ANY ([1, NULL]) AS b, 4 = ANY ([1, 2]) AS c, NULL = ANY ([1]) AS d",
            "true false",
        ),
        ("SELECT id FROM t WHERE NOT (id = ANY ([1, 2, NULL]))", ""),
        ("SELECT id FROM t WHERE NOT (id = ANY ([1, 2])) ORDER BY id", "3,4"),
        ("SELECT id FROM t WHERE id = ANY (ARRAY[2, 4]) ORDER BY ALL", "2,4"),
        ("SELECT g, v FROM t WHERE id < 4 ORDER BY ALL DESC", "y 20,x 30,x 10"),
        ("WITH a AS MATERIALIZED (SELECT 1 AS x), b AS NOT MATERIALIZED (SELECT 2 AS x) SELECT a.x, b.x FROM a, b", "1 2"),
        // Functions under their other names.
        (
            "SELECT arg_max(g, v) FILTER (WHERE v < 40), min_by(id, -v), arg_max(g, v), argmin(id, v) FROM t",
            "x 4 x 1",
        ),
        ("SELECT g, max_by(id, v) AS m FROM t GROUP BY g ORDER BY m", "y 2,x 3,4"),
        (
            "SELECT any_value(g ORDER BY v DESC), first(id ORDER BY id), last(id ORDER BY id), list(id ORDER BY id DESC) FROM t",
            "x 1 4 [4, 3, 2, 1]",
        ),
        ("SELECT string_agg(g ORDER BY id), group_concat(g, '-' ORDER BY id DESC) FROM t", "x,y,x x-y-x"),
        (
            "SELECT mod(7, 4) * 2, mod(-7, 4), len('abc'), length([1, 2, 3]), len([]), ceiling(1.5), ucase('a')",
            "6 -3 3 3 0 2.0 A",
        ),
        (
            "SELECT strftime(TIMESTAMP '2024-02-03 04:05:06', '%d.%m.%Y %H:%M'), strptime('03/02/2024', '%d/%m/%Y')::DATE,
                    string_split('a b', ' '), list_value(1, 2), typeof(1)",
            "03.02.2024 04:05 2024-02-03 [a, b] [1, 2] BIGINT",
        ),
    ] {
        let found = in_all_modes(&session, sql).await;
        let found = found.iter().map(|row| row.split_whitespace().collect::<Vec<_>>().join(" "));
        assert_eq!(found.collect::<Vec<_>>().join(","), expected, "{sql}");
    }
}

#[tokio::test]
async fn functions_read_files_as_their_names_do() {
    let folder = tempfile::tempdir().unwrap();
    let session = session();
    let path = |name: &str| folder.path().join(name).display().to_string();
    run(
        &session,
        &format!(
            "COPY (VALUES (1, 'a'), (2, 'b')) TO '{}' (FORMAT parquet, COMPRESSION zstd);
             COPY (VALUES (1, 'a'), (2, 'b')) TO '{}' (HEADER, DELIMITER ',');
             COPY (VALUES (1, 'a'), (2, 'b')) TO '{}' WITH (FORMAT 'json')",
            path("p.parquet"),
            path("c.csv"),
            path("j.json")
        ),
    )
    .await;
    for (function, name) in [
        ("read_parquet", "p.parquet"),
        ("READ_PARQUET", "*.parquet"),
        ("read_csv", "c.csv"),
        ("read_csv_auto", "c.csv"),
        ("read_json", "j.json"),
        ("read_json_auto", "j.json"),
    ] {
        let sql = format!(
            "SELECT sum(f.column1), max(f.column2) FROM {function}('{}') AS f",
            path(name)
        );
        assert_eq!(rows(&session, &sql).await, ["3 b"], "{sql}");
    }
    let text = std::fs::read_to_string(path("c.csv")).unwrap();
    assert_eq!(text, "column1,column2\n1,a\n2,b\n");
    // Into a table, in the file's order.
    run(&session, "CREATE TABLE here (id BIGINT, name TEXT)").await;
    let copy = |name: &str| format!("COPY here FROM '{}'", path(name));
    run(&session, &copy("p.parquet")).await;
    run(&session, &format!("{} (HEADER)", copy("c.csv"))).await;
    assert_eq!(
        rows(&session, "SELECT * FROM here ORDER BY id").await,
        ["1 a", "1 a", "2 b", "2 b"]
    );
    run(
        &session,
        "DELETE FROM here; INSERT INTO here VALUES (1, 'a'), (2, 'b')",
    )
    .await;
    // By folders of the values of a column.
    let parts = path("parts");
    run(
        &session,
        &format!("COPY here TO '{parts}/' (FORMAT parquet, PARTITION_BY (NAME))"),
    )
    .await;
    let sql = format!("SELECT sum(id) FROM read_parquet('{parts}/name=b/')");
    assert_eq!(rows(&session, &sql).await, ["2"]);
}

#[tokio::test]
async fn casts_of_one_thing_are_several_columns() {
    let session = session();
    run(&session, TABLES).await;
    let asked = [
        (
            "SELECT id::TEXT, id::DOUBLE, id FROM t WHERE id = 1",
            "1 1.0 1",
        ),
        ("SELECT t.id::TEXT, id::DOUBLE FROM t WHERE id = 1", "1 1.0"),
        (
            "SELECT '2020-01-01'::DATE, DATE '2020-01-01', CAST('2020-01-01' AS TIMESTAMP(0))",
            "2020-01-01 2020-01-01 2020-01-01T00:00:00",
        ),
        (
            "SELECT count(*), CAST(count(*) AS TEXT), TRY_CAST(count(*) AS DOUBLE) FROM t",
            "4 4 4.0",
        ),
        (
            "SELECT (v + 1)::TEXT, v + 1, (v + 1) FROM t WHERE id = 1",
            "11 11 11",
        ),
        ("SELECT upper(g), upper(g::TEXT) FROM t WHERE id = 1", "X X"),
        ("SELECT *, id::TEXT FROM t WHERE id = 1", "1 x 10 1"),
        (
            "SELECT a.id::TEXT, b.id::TEXT, a.id::DOUBLE FROM t AS a, u AS b WHERE a.id = 1 AND b.id = 3",
            "1 3 1.0",
        ),
    ];
    for (sql, expected) in asked {
        assert_eq!(in_all_modes(&session, sql).await, [expected], "{sql}");
    }
}

/// A column of USING is that of the side that has the row, and never one of the query around.
#[tokio::test]
async fn columns_of_using_are_of_the_side_that_has_the_row() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (i INT, j INT); INSERT INTO t VALUES (1, 10), (2, 20);
         CREATE TABLE u (i INT, k INT); INSERT INTO u VALUES (2, 200), (3, 300);
         CREATE TABLE w (i INT); INSERT INTO w VALUES (2), (9);
         CREATE TABLE v (i INT, l INT); INSERT INTO v VALUES (2, 5), (3, 6)",
    )
    .await;
    for (query, expected) in [
        (
            "SELECT i, j, k FROM t FULL JOIN u USING (i) ORDER BY i",
            "1 10,2 20 200,3 300",
        ),
        (
            "SELECT i, k FROM t RIGHT JOIN u USING (i) ORDER BY i",
            "2 200,3 300",
        ),
        (
            "SELECT i + 1 AS n FROM t RIGHT JOIN u USING (i) WHERE i > 2",
            "4",
        ),
        (
            "SELECT * FROM t RIGHT JOIN u USING (i) ORDER BY i",
            "2 20 200,3 300",
        ),
        (
            "SELECT * FROM t FULL JOIN u USING (i) WHERE i <> 2 ORDER BY i",
            "1 10,3 300",
        ),
        (
            "SELECT * REPLACE (i * 2 AS i) FROM t FULL JOIN u USING (i) ORDER BY i",
            "2 10,4 20 200,6 300",
        ),
        (
            "SELECT i, count(*) AS c FROM t FULL JOIN u USING (i) GROUP BY i ORDER BY i",
            "1 1,2 1,3 1",
        ),
        (
            "SELECT max(i) AS m FROM t FULL JOIN u USING (i) HAVING max(i) > 2",
            "3",
        ),
        (
            "SELECT k FROM t RIGHT JOIN u USING (i) ORDER BY i DESC",
            "300,200",
        ),
        (
            "SELECT x.i FROM (SELECT * FROM t RIGHT JOIN u USING (i)) AS x ORDER BY x.i",
            "2,3",
        ),
        (
            "SELECT l FROM v WHERE EXISTS (SELECT 1 FROM t JOIN u USING (i) WHERE i = v.i)",
            "5",
        ),
        (
            "SELECT l, (SELECT sum(i) FROM t FULL JOIN u USING (i) WHERE i <= v.i) AS s FROM v ORDER BY l",
            "5 3,6 6",
        ),
        (
            "SELECT * FROM u LEFT JOIN t USING (i) ORDER BY i",
            "2 200 20,3 300",
        ),
        (
            "SELECT * FROM t FULL JOIN w USING (i) ORDER BY 1",
            "1 10,2 20,9",
        ),
        (
            "SELECT u.i, count(*) AS c FROM t JOIN u USING (i) GROUP BY u.i ORDER BY i",
            "2 1",
        ),
        (
            "SELECT DISTINCT u.i FROM t JOIN u USING (i) ORDER BY i",
            "2",
        ),
        (
            "SELECT max(j) AS i FROM t JOIN u USING (i) HAVING i > 3",
            "20",
        ),
        (
            "SELECT i, row_number() OVER w AS n FROM t RIGHT JOIN u USING (i) WINDOW w AS (ORDER BY i DESC) ORDER BY row_number() OVER w",
            "3 1,2 2",
        ),
        (
            "SELECT i FROM t AS a LEFT JOIN u AS b USING (i) ORDER BY i",
            "1,2",
        ),
        // Of more tables.
        (
            "SELECT i, j, k, l FROM t JOIN u USING (i) JOIN v USING (i)",
            "2 20 200 5",
        ),
        (
            "SELECT * FROM t JOIN u USING (i) JOIN v USING (i) JOIN w USING (i) WHERE i < 9 ORDER BY i",
            "2 20 200 5",
        ),
        (
            "SELECT * FROM t FULL JOIN u USING (i) FULL JOIN w USING (i) ORDER BY i",
            "1 10,2 20 200,3 300,9",
        ),
        (
            "SELECT i, l FROM t RIGHT JOIN u USING (i) RIGHT JOIN v USING (i) ORDER BY i DESC",
            "3 6,2 5",
        ),
        (
            "SELECT i, count(*) AS c FROM t FULL JOIN u USING (i) LEFT JOIN v USING (i) JOIN w AS x USING (i) GROUP BY i HAVING i > 1",
            "2 1",
        ),
        (
            "SELECT * FROM t JOIN u USING (i) JOIN (SELECT 200 AS k, 7 AS z) AS q USING (k) JOIN v USING (i)",
            "2 20 200 7 5",
        ),
        (
            "SELECT * FROM t JOIN u USING (i) LEFT SEMI JOIN v USING (i)",
            "2 20 200",
        ),
        (
            "SELECT * FROM t JOIN u USING (i) JOIN v ON l = 5 AND v.i = u.i",
            "2 20 200 2 5",
        ),
    ] {
        let found = in_all_modes(&session, query).await;
        let found: Vec<_> = found
            .iter()
            .map(|row| row.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(found.join(","), expected, "{query}");
    }
    let refused = error(&session, "SELECT * FROM t NATURAL RIGHT JOIN u").await;
    assert!(refused.contains("NATURAL RIGHT and FULL JOIN"), "{refused}");
}
