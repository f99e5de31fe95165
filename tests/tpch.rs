//! The 22 TPC-H queries at scale factor 0.1, against the answers in `tests/tpch/`
//! (`tests/tpch/export.py` says where they come from).

use std::fs;
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use flashmesh::{LoadMode, Session};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use crate::support::{PUSHDOWN_MODES, Row, load, open, query, set_pushdown};
use crate::test_rack::{TestRack, threads};

const SCALE_FACTOR: f64 = 0.1;

#[tokio::test(flavor = "multi_thread")]
async fn all_22_queries_give_the_answers_in_every_pushdown_mode() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(&folder.path().join("db")).unwrap();
    let session = engine.session().unwrap();
    load_tpch(&session).await;
    // A second session on what the first one committed.
    let session = engine.session().unwrap();

    let mut wrong = Vec::new();
    for mode in PUSHDOWN_MODES {
        wrong.extend(wrong_answers(&session, mode).await);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The same on a rack whose nodes do parts of the queries.
#[tokio::test(flavor = "multi_thread")]
async fn all_22_queries_give_the_answers_where_nodes_take_part() {
    let rack = TestRack::new(4, threads(2));
    let session = rack.session();
    load_tpch(&session).await;
    let mut wrong = Vec::new();
    for distributed in ["always", "never"] {
        let set = format!("SET flashmesh.distributed = '{distributed}'");
        query(&session, &set).await.unwrap();
        for mode in PUSHDOWN_MODES {
            wrong.extend(wrong_answers(&session, mode).await);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let (queries, on_head) = rack.engine().distributed_queries().unwrap();
    assert!(queries >= 3 * 15 && on_head == 0, "{queries}, {on_head}");
}

/// Which of the 22 queries are not answered as they should be.
pub async fn wrong_answers(session: &Session, mode: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    set_pushdown(session, mode).await;
    for number in 1..=22 {
        let sql = read(&format!("queries/q{number:02}.sql"));
        let answer = read(&format!("answers-sf0.1/q{number:02}.csv"));
        let difference = match query(session, &sql).await {
            Ok(rows) => compare(&rows, &answer),
            Err(error) => Some(error.to_string()),
        };
        let difference = difference.map(|how| format!("q{number:02}, pushdown {mode}: {how}"));
        wrong.extend(difference);
    }
    wrong
}

/// Loads all eight tables.
pub async fn load_tpch(session: &Session) {
    let sf = SCALE_FACTOR;
    load_table(
        session,
        "region",
        RegionArrow::new(RegionGenerator::new(sf, 1, 1)),
    )
    .await;
    load_table(
        session,
        "nation",
        NationArrow::new(NationGenerator::new(sf, 1, 1)),
    )
    .await;
    load_table(
        session,
        "supplier",
        SupplierArrow::new(SupplierGenerator::new(sf, 1, 1)),
    )
    .await;
    load_table(
        session,
        "customer",
        CustomerArrow::new(CustomerGenerator::new(sf, 1, 1)),
    )
    .await;
    load_table(
        session,
        "part",
        PartArrow::new(PartGenerator::new(sf, 1, 1)),
    )
    .await;
    load_table(
        session,
        "partsupp",
        PartSuppArrow::new(PartSuppGenerator::new(sf, 1, 1)),
    )
    .await;
    load_table(
        session,
        "orders",
        OrderArrow::new(OrderGenerator::new(sf, 1, 1)),
    )
    .await;
    load_table(
        session,
        "lineitem",
        LineItemArrow::new(LineItemGenerator::new(sf, 1, 1)),
    )
    .await;
}

/// Loads one table.
pub async fn load_table<E: std::fmt::Debug>(
    session: &Session,
    table: &str,
    batches: impl Iterator<Item = Result<RecordBatch, E>>,
) {
    let batches: Vec<RecordBatch> = batches
        .map(|batch| batch.expect("a batch of TPC-H data"))
        .collect();
    load(session, table, &batches, LoadMode::Create)
        .await
        .expect(table);
}

/// How the rows differ from the answer, if they do. The queries' ORDER BY leaves nothing open at
/// this scale.
fn compare(rows: &[Row], answer: &str) -> Option<String> {
    let expected: Vec<Vec<&str>> = answer
        .lines()
        .skip(1)
        .map(|line| line.split('|').collect())
        .collect();
    if rows.len() != expected.len() {
        return Some(format!(
            "{} rows in place of {}",
            rows.len(),
            expected.len()
        ));
    }
    rows.iter()
        .zip(&expected)
        .enumerate()
        .find_map(|(number, (row, expected))| {
            let same = row.len() == expected.len()
                && row
                    .iter()
                    .zip(expected)
                    .all(|(ours, theirs)| same(ours.as_deref().unwrap_or("None"), theirs));
            (!same).then(|| format!("row {number} is {row:?} in place of {expected:?}"))
        })
}

/// Equal as text, or as numbers but for what the engines' types for averages and quotients of
/// decimals round away.
fn same(ours: &str, theirs: &str) -> bool {
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 + 1e-9 * b.abs();
    ours == theirs
        || matches!((ours.parse(), theirs.parse()), (Ok(ours), Ok(theirs)) if close(ours, theirs))
}

/// A file of `tests/tpch`.
pub fn read(name: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tpch")
        .join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
