//! `EXPLAIN RACK`: what goes into the model is what `EXPLAIN ANALYZE` counts; what comes out is the
//! same each time, and follows from the counts.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::AsArray;
use datafusion::physical_plan::{ExecutionPlan, collect};
use flashmesh::{FunctionGrants, Grant, Principal, RightName, Session};
use flashmesh_cluster::{Rack, Shape};
use rand::RngExt;
use tempfile::TempDir;

use crate::support::{batch, error, random, rows, run, session, session_of_threads};
use crate::test_rack::{TestRack, threads};

/// A folder with rack files: rings of so many nodes, by name.
struct Racks(TempDir);

impl Racks {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        for nodes in [1, 2, 4, 6] {
            let rack = Rack::draft(folder.path(), nodes, Shape::Ring, 1, 50051).unwrap();
            std::fs::write(folder.path().join(format!("ring{nodes}.toml")), rack).unwrap();
        }
        Self(folder)
    }

    fn file(&self, nodes: usize) -> String {
        let file = self.0.path().join(format!("ring{nodes}.toml"));
        file.display().to_string()
    }

    async fn explain(&self, session: &Session, nodes: usize, query: &str) -> Explained {
        let statement = format!("EXPLAIN RACK '{}' {query}", self.file(nodes));
        Explained::of(session, &statement).await
    }
}

/// In-store and host, by figure and quantity.
#[derive(Debug, PartialEq)]
struct Explained(HashMap<(String, String), [String; 2]>);

impl Explained {
    async fn of(session: &Session, statement: &str) -> Self {
        let batch = batch(session, statement).await;
        let cell = |column: &str, row| {
            let column = batch.column_by_name(column).unwrap();
            column.as_string::<i32>().value(row).to_string()
        };
        let line = |row| {
            let key = (cell("figure", row), cell("quantity", row));
            (key, [cell("in_store", row), cell("host", row)])
        };
        Self((0..batch.num_rows()).map(line).collect())
    }

    fn text(&self, figure: &str, quantity: &str) -> &[String; 2] {
        let key = (figure.to_string(), quantity.to_string());
        let cells = self.0.get(&key);
        cells.unwrap_or_else(|| panic!("no {figure} {quantity} in {self:?}"))
    }

    /// In-store and host.
    fn number(&self, figure: &str, quantity: &str) -> [f64; 2] {
        let text = self.text(figure, quantity);
        [0, 1].map(|place: usize| text[place].parse().unwrap())
    }
}

/// The metrics that `EXPLAIN ANALYZE` prints (rounded) of all operators of a query, added up by
/// name, with all in the store.
async fn metrics(session: &Session, query: &str) -> HashMap<String, u64> {
    fn add(plan: &dyn ExecutionPlan, sums: &mut HashMap<String, u64>) {
        for metric in plan.metrics().iter().flat_map(|metrics| metrics.iter()) {
            let value = metric.value();
            *sums.entry(value.name().to_string()).or_default() += value.as_usize() as u64;
        }
        for child in plan.children() {
            add(child.as_ref(), sums);
        }
    }
    run(session, "SET flashmesh.pushdown = 'always'").await;
    let frame = session.sql(query).await.unwrap();
    let context = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await.unwrap();
    collect(Arc::clone(&plan), context).await.unwrap();
    run(session, "SET flashmesh.pushdown = 'auto'").await;
    let mut sums = HashMap::new();
    add(plan.as_ref(), &mut sums);
    sums
}

/// Rows whose values look random, so that their pages are many: some 50 of a column's segment.
async fn table(session: &Session, name: &str, rows: usize) {
    let create = format!(
        "CREATE TABLE {name} AS SELECT value AS id,
             value * 2654435761 % 4294967291 * 1000003 AS a,
             value * 40503 % 999983 * 2147483647 AS b
         FROM generate_series(1, {rows}) AS s(value)"
    );
    run(session, &create).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_counted_is_what_explain_analyze_counts() {
    let (session, racks) = (session_of_threads(1), Racks::new());
    table(&session, "t", 200_000).await;
    run(&session, "CREATE TABLE k (id BIGINT PRIMARY KEY, a BIGINT)").await;
    run(
        &session,
        "INSERT INTO k SELECT id, a FROM t WHERE id <= 1000",
    )
    .await;
    let mut random = random();
    let bound = random.random_range(1..200_000);
    let queries = [
        format!("SELECT a, b FROM t WHERE id < {bound}"),
        format!("SELECT a FROM t WHERE b % 7 = 3 AND id > {bound}"),
        "SELECT * FROM k JOIN t USING (id)".into(),
        "SELECT * FROM k WHERE id = 77".into(),
        "SELECT a FROM t WHERE id = (SELECT max(id) FROM k)".into(),
        "(SELECT id FROM k) UNION ALL (SELECT id FROM t)".into(),
        "WITH x AS (SELECT id FROM t WHERE id > 5) SELECT count(*) FROM x WHERE id < 50000".into(),
        "SELECT 1".into(),
    ];
    for query in queries {
        // A page index that one run had to read is in the cache for the next one, and upkeep in the
        // background puts others there: between two runs that count the same, so does a third.
        let mut before = metrics(&session, &query).await;
        let mut tries = 0;
        let (explained, metrics) = loop {
            let explained = racks.explain(&session, 4, &query).await;
            let after = metrics(&session, &query).await;
            let pages = |of: &HashMap<String, u64>| {
                let names = ["pages_from_flash", "pages_from_cache"];
                names
                    .map(|name| of.get(name).copied().unwrap_or(0))
                    .iter()
                    .sum::<u64>()
            };
            if pages(&before) == pages(&after) {
                break (explained, after);
            }
            tries += 1;
            assert!(tries < 50, "{query} never counts the same twice");
            before = after;
        };
        for (quantity, names) in [
            ("rows", &["rows_in"][..]),
            ("segments", &["segments_read"]),
            ("pages read", &["pages_from_flash", "pages_from_cache"]),
            ("out of the store", &["bytes_to_host"]),
        ] {
            let expected = names
                .iter()
                .filter_map(|name| metrics.get(*name))
                .sum::<u64>();
            let [found, _] = explained.number("counted", quantity);
            assert_eq!(found, expected as f64, "{quantity} of {query}");
        }
        // Nothing is lost on the way into the model.
        let pages = explained.number("counted", "pages read");
        assert_eq!(explained.number("scaled", "pages read"), pages, "{query}");
        let [_, host] = explained.number("counted", "out of the store");
        assert_eq!(host, pages[0] * 8192.0, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twice_the_data_takes_twice_as_long() {
    let (session, racks) = (session_of_threads(1), Racks::new());
    table(&session, "t", 8 * 65_536).await;
    run(&session, "CREATE TABLE twice AS SELECT * FROM t").await;
    run(&session, "INSERT INTO twice SELECT * FROM t").await;
    let query = |table| format!("SELECT id FROM {table} WHERE a < 4000000000000 AND b > 0");
    for table in ["t", "twice"] {
        // From flash, what was read ahead for nothing is counted too.
        run(&session, &query(table)).await;
    }
    let once = racks.explain(&session, 4, &query("t")).await;
    let twice = racks.explain(&session, 4, &query("twice")).await;
    let scaled = racks
        .explain(&session, 4, &format!("(SCALE 2) {}", query("t")))
        .await;
    for place in [0, 1] {
        // On one node, where a request and a page's latency, which are there once, count least.
        let time = |of: &Explained| of.number("modelled", "time, 1 node")[place];
        for larger in [&twice, &scaled] {
            let times = time(larger) / time(&once);
            assert!((1.9..2.05).contains(&times), "{times}: {once:?} {larger:?}");
        }
    }
    assert_eq!(
        scaled.number("scaled", "pages read")[0],
        2.0 * once.number("scaled", "pages read")[0]
    );
    assert_eq!(scaled.text("counted", "rows"), once.text("counted", "rows"));
    // The model has no randomness of its own: the same counts give the same figures.
    assert_eq!(racks.explain(&session, 4, &query("t")).await, once);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_nodes_are_not_slower_and_less_leaves_the_store() {
    let (session, racks) = (session_of_threads(1), Racks::new());
    table(&session, "t", 8 * 65_536).await;
    let selective = "SELECT id FROM t WHERE a < 4000000000000 AND b > 0";
    run(&session, selective).await;
    let four = racks.explain(&session, 4, selective).await;
    let times = ["time, 1 node", "time, 2 nodes", "time, 4 nodes"];
    for pair in times.map(|name| four.number("modelled", name)).windows(2) {
        assert!(
            pair[1][0] <= pair[0][0] && pair[1][1] <= pair[0][1],
            "{four:?}"
        );
    }
    for nodes in [1, 2] {
        let alone = racks.explain(&session, nodes, selective).await;
        let time = times[nodes - 1];
        assert_eq!(alone.text("modelled", time), four.text("modelled", time));
    }
    let [in_store, host] = four.number("scaled", "out of the store");
    assert!(in_store * 100.0 < host, "{four:?}");
    // Eight segments on four nodes: a quarter of the rows is where they are wanted.
    let [over_links, _] = four.number("scaled", "over links");
    assert!((0.7..0.8).contains(&(over_links / in_store)), "{four:?}");
    assert_eq!(four.text("scaled", "requests")[0], "4");
    // A card a node gives less than its PCIe takes.
    assert_eq!(
        four.text("modelled", "bottleneck"),
        &["flash bus", "flash bus"]
    );

    // An aggregate is a row from each node, however large the data is.
    let sum = "SELECT max(a) FROM t WHERE b > 0";
    let of_data = racks.explain(&session, 4, sum).await;
    let of_more = racks
        .explain(&session, 4, &format!("(SCALE 100) {sum}"))
        .await;
    let out = of_data.number("scaled", "out of the store")[0];
    assert_eq!(of_more.number("scaled", "out of the store")[0], out);
    let alone = racks.explain(&session, 1, sum).await;
    assert_eq!(out, 4.0 * alone.number("scaled", "out of the store")[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_figure_says_what_it_is() {
    let (session, racks) = (session(), Racks::new());
    table(&session, "t", 1000).await;
    let statement = format!("explain rack '{}' select * from t", racks.file(6));
    let explained = Explained::of(&session, &statement).await;
    for (figure, quantity) in explained.0.keys() {
        let is_modelled = ["time", "bottleneck", "use of", "energy"]
            .iter()
            .any(|modelled| quantity.starts_with(modelled));
        assert_eq!(figure == "modelled", is_modelled, "{figure} {quantity}");
        assert!(["counted", "scaled", "modelled"].contains(&figure.as_str()));
    }
    for part in ["flash bus", "card link", "PCIe to host", "host cores"] {
        explained.number("modelled", &format!("use of {part}"));
    }
    let [in_store, host] = explained.number("modelled", "energy");
    let [of_storage, _] = explained.number("modelled", "energy of the storage");
    assert!(of_storage > 0.0 && of_storage < in_store && in_store < host);
    // Between others, and as the call that drivers' parsers know.
    let script = format!("SELECT 1; {statement}; SELECT 2");
    assert_eq!(rows(&session, &script).await, ["2"]);
    let call = format!(
        "CALL explain_rack('{}', (SELECT * FROM t), 1)",
        racks.file(6)
    );
    assert_eq!(Explained::of(&session, &call).await, explained);
    // The session goes on as it was set.
    run(&session, "SET flashmesh.pushdown = 'never'").await;
    assert_eq!(Explained::of(&session, &statement).await, explained);
    let setting = "SHOW flashmesh.pushdown";
    assert_eq!(rows(&session, setting).await, ["flashmesh.pushdown never"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_parsed_is_parsed_again() {
    let session = session();
    for statement in [
        "EXPLAIN RACK 'it''s.toml' SELECT a, count(*) FROM t WHERE b > 1 GROUP BY a ORDER BY 2 LIMIT 3",
        "EXPLAIN RACK 'r.toml' (SCALE 100) WITH x AS (SELECT 1) SELECT * FROM x, t AT (VERSION => 7)",
        "explain rack 'r.toml' (scale 2) (select 1)",
    ] {
        let parsed = session.parse(statement).unwrap();
        let again = session.parse(&parsed[0].to_string()).unwrap();
        assert_eq!(parsed[0].to_string(), again[0].to_string(), "{statement}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_explained_says_why() {
    let (session, racks) = (session(), Racks::new());
    table(&session, "t", 10).await;
    let folder = racks.0.path();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name).display().to_string()
    };
    let empty = write("empty.toml", "node = []");
    let other = write("other.toml", "colour = 'red'");
    let (file, missing) = (
        racks.file(2),
        folder.join("none.toml").display().to_string(),
    );
    for (sql, hints) in [
        (
            format!("EXPLAIN RACK '{missing}' SELECT 1"),
            &["none.toml", "rack init"][..],
        ),
        (
            format!("EXPLAIN RACK '{empty}' SELECT 1"),
            &["empty.toml", "0 nodes"],
        ),
        (
            format!("EXPLAIN RACK '{other}' SELECT 1"),
            &["other.toml", "colour"],
        ),
        (
            "EXPLAIN RACK SELECT 1".into(),
            &["EXPLAIN RACK 'rack.toml' SELECT"],
        ),
        (format!("EXPLAIN RACK '{file}'"), &["a query"]),
        (
            format!("EXPLAIN RACK '{file}' INSERT INTO t SELECT 1"),
            &["a query", "changes nothing"],
        ),
        (format!("EXPLAIN RACK '{file}' DELETE FROM t"), &["a query"]),
        (format!("EXPLAIN RACK '{file}' DROP TABLE t"), &["a query"]),
        (
            format!("EXPLAIN RACK '{file}' COPY t TO 'x.csv'"),
            &["a query"],
        ),
        (
            format!("EXPLAIN RACK '{file}' EXPLAIN SELECT 1"),
            &["a query"],
        ),
        (
            format!("EXPLAIN RACK '{file}' SELECT * INTO u FROM t"),
            &["changes something"],
        ),
        (
            format!("EXPLAIN RACK '{file}' (SPEED 2) SELECT 1"),
            &["SCALE"],
        ),
        (
            format!("EXPLAIN RACK '{file}' (SCALE 0) SELECT 1"),
            &["(SCALE 100)"],
        ),
        (
            format!("EXPLAIN RACK '{file}' (SCALE 1.5) SELECT 1"),
            &["whole number"],
        ),
        (
            format!("EXPLAIN RACK '{file}' (SCALE 'x') SELECT 1"),
            &["whole number"],
        ),
        (
            format!("EXPLAIN RACK '{file}' SELECT * FROM nothing"),
            &["nothing"],
        ),
        (
            format!("EXPLAIN RACK '{file}' SELECT 1 / (id - id) FROM t"),
            &["zero"],
        ),
        (
            format!("EXPLAIN RACK '{file}' SELECT 1 SELECT 2"),
            &["SELECT"],
        ),
        (format!("CALL explain_rack('{file}')"), &["EXPLAIN RACK"]),
    ] {
        let message = error(&session, &sql).await;
        for hint in hints {
            assert!(message.contains(hint), "{sql}: {message}\nnot: {hint}");
        }
    }
    assert_eq!(rows(&session, "SELECT count(*) FROM t").await, ["10"]);
    assert!(error(&session, "SELECT * FROM u").await.contains("u"));
}

/// A rack file is a file of the server: who is no admin learns nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn files_of_the_server_are_an_admins() {
    let (owner, racks) = (session(), Racks::new());
    table(&owner, "t", 10).await;
    let grant = Grant {
        tables: "t".to_string().try_into().unwrap(),
        rights: vec![RightName::Read],
    };
    let ada = Principal::user("ada", vec![grant], FunctionGrants::default());
    let ada = owner.engine().session_for(Arc::new(ada)).unwrap();
    assert_eq!(rows(&ada, "SELECT count(*) FROM t").await, ["10"]);
    let mut messages = Vec::new();
    for file in [racks.file(2), "/no/such/file".into()] {
        messages.push(error(&ada, &format!("EXPLAIN RACK '{file}' SELECT * FROM t")).await);
    }
    assert!(
        messages[0].contains("'ada' may not read files of the server"),
        "{messages:?}"
    );
    assert_eq!(messages[0], messages[1]);
}

/// The example of docs/model.md.
#[tokio::test(flavor = "multi_thread")]
async fn the_documented_figures_are_those_of_the_model() {
    let page = include_str!("../../../docs/model.md");
    let block = |after: &str, language: &str| {
        let rest = page.split(after).nth(1).expect(after);
        let block = rest.split(&format!("```{language}\n")).nth(1).unwrap();
        block.split("```").next().unwrap().to_string()
    };
    let folder = TempDir::new().unwrap();
    let rack = Rack::draft(folder.path(), 4, Shape::Ring, 1, 50051).unwrap();
    std::fs::write(folder.path().join("rack.toml"), rack).unwrap();
    let session = session_of_threads(1);
    let statements = block("## Of a query", "sql");
    let statements = statements.replace("lab/rack.toml", &in_folder(folder.path(), "rack.toml"));
    let (create, explain) = statements.split_once(';').unwrap();
    run(&session, create).await;
    run(&session, explain).await;
    let table = arrow::util::pretty::pretty_format_batches(&[batch(&session, explain).await]);
    let text = block("## Of a query", "text");
    assert_eq!(table.unwrap().to_string(), text.trim_end());
}

fn in_folder(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

/// What nodes would do among themselves is counted as where this one does it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nodes_would_do_among_themselves_is_counted() {
    let (files, rack) = (Racks::new(), TestRack::new(3, threads(2)));
    let session = rack.session();
    run(
        &session,
        "CREATE TABLE big AS SELECT value AS id, value % 7 AS k FROM generate_series(1, 400000) AS g(value)",
    )
    .await;
    let query =
        "SELECT id % 100000, count(*) FROM big WHERE id > (SELECT avg(k) FROM big) GROUP BY 1";
    let mut explained = Vec::new();
    for mode in ["never", "always"] {
        run(&session, &format!("SET flashmesh.distributed = '{mode}'")).await;
        explained.push(files.explain(&session, 4, query).await);
    }
    // Bitmaps of batches are whole bytes, and how rows are cut into batches differs from run to run.
    let of_batches = [
        ("counted", "out of the store"),
        ("scaled", "out of the store"),
        ("scaled", "over links"),
    ];
    for (what, counted) in of_batches {
        let key = (what.to_owned(), counted.to_owned());
        let bytes = explained.iter_mut().map(|explained| {
            let bytes = explained.0.remove(&key).unwrap();
            bytes.map(|bytes| bytes.parse::<i64>().unwrap())
        });
        let bytes: Vec<_> = bytes.collect();
        for (never, always) in bytes[0].iter().zip(bytes[1]) {
            assert!((never - always).abs() < 1024, "{what} {counted}: {bytes:?}");
        }
    }
    assert_eq!(explained[0], explained[1]);
}
