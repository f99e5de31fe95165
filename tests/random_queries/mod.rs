//! Random queries on random tables, against DataFusion over the same rows in memory.
//!
//! Every query is written so that its answer is determined: unordered results are compared as
//! multisets, a LIMIT comes with a total order or only the keys of the order are looked at, and
//! columns that are summed hold values whose sums are exact in any order.

mod queries;
mod shapes;
mod tables;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use flashmesh::{LoadMode, Session};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::time::timeout;

use crate::support::{
    PUSHDOWN_MODES, Row, collect, describe, load, open, query, rows, seed, set_pushdown,
};
use queries::{Comparison, Query};
use tables::RandomTable;

const ROUNDS: u64 = 12;
const QUERIES_PER_ROUND: usize = 40;
/// Of these, views and prepared statements that are older than most rows.
const OLD_PER_ROUND: usize = 8;
/// What takes longer does not end.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn random_queries_agree_with_datafusion() {
    let seed = seed("random_queries");
    let mut compared = 0;
    for round in 0..ROUNDS {
        let mut rng = SmallRng::seed_from_u64(seed.wrapping_add(round));
        compared += one_round(&mut rng, seed, round).await;
    }
    // Queries that DataFusion itself refuses say nothing; they must stay the exception.
    let total = ROUNDS as usize * QUERIES_PER_ROUND;
    println!("random_queries: {compared} of {total} queries compared");
    assert!(
        compared * 10 >= total * 8,
        "DataFusion refused {} of {total} queries",
        total - compared
    );
}

/// Makes two tables and compares queries on them; returns how many were compared.
async fn one_round(rng: &mut SmallRng, seed: u64, round: u64) -> usize {
    let tables = [
        RandomTable::new(rng, "big", true),
        RandomTable::new(rng, "small", false),
    ];
    let folder = tempfile::tempdir().unwrap();
    let engine = open(&folder.path().join("db")).unwrap();
    let flashmesh = engine.session().unwrap();
    let oracle = SessionContext::new();
    for table in &tables {
        load_first(&flashmesh, &oracle, table).await;
    }
    let mut questions = Vec::new();
    for number in 0..OLD_PER_ROUND {
        questions.push(old(rng, &flashmesh, &tables, number).await);
    }
    for table in &tables {
        load_rest(&flashmesh, table).await;
    }
    questions.extend((OLD_PER_ROUND..QUERIES_PER_ROUND).map(|_| {
        let query = Query::random(rng, &tables);
        (query.sql.clone(), query)
    }));

    let mut compared = 0;
    for (sql, random) in questions {
        let asked = random.oracle.as_ref().unwrap_or(&random.sql);
        let answer = timeout(PATIENCE, run_oracle(&oracle, asked)).await;
        let answer = answer.unwrap_or_else(|_| panic!("the oracle does not end: {asked}"));
        let Ok(expected) = answer else {
            continue;
        };
        let expected = random.comparison.normal_form(expected);
        compared += 1;
        for mode in PUSHDOWN_MODES {
            set_pushdown(&flashmesh, mode).await;
            let difference = match timeout(PATIENCE, query(&flashmesh, &sql)).await {
                Ok(Ok(found)) => difference(&random.comparison.normal_form(found), &expected),
                Ok(Err(error)) => Some(format!("error: {error}")),
                Err(_) => Some("it does not end".into()),
            };
            if let Some(difference) = difference {
                let plan = query(&flashmesh, &format!("EXPLAIN {}", random.sql))
                    .await
                    .unwrap_or_default();
                panic!(
                    "FLASHMESH_TEST_SEED={seed}, round {round}, pushdown {mode}\n{}\n{sql}\n{}\n{difference}\n{}",
                    tables.each_ref().map(RandomTable::to_string).join("\n"),
                    random.sql,
                    plan.iter()
                        .flatten()
                        .flatten()
                        .cloned()
                        .collect::<Vec<_>>()
                        .join("\n"),
                );
            }
        }
    }
    compared
}

/// Makes a view or a prepared statement of a random query, and gives what asks it.
async fn old(
    rng: &mut SmallRng,
    flashmesh: &Session,
    tables: &[RandomTable; 2],
    number: usize,
) -> (String, Query) {
    let random = Query::random(rng, tables);
    // The rows of a view have no order.
    let (make, ask) = match random.comparison {
        Comparison::Multiset if number.is_multiple_of(2) => ("CREATE VIEW", "SELECT * FROM"),
        _ => ("PREPARE", "EXECUTE"),
    };
    // What can't be made can't be asked either, and shows where the oracle has an answer.
    let _ = query(flashmesh, &format!("{make} old{number} AS {}", random.sql)).await;
    (format!("{ask} old{number}"), random)
}

/// Loads a table into the oracle, and its first commit into flashmesh.
async fn load_first(flashmesh: &Session, oracle: &SessionContext, table: &RandomTable) {
    let schema = table.batches[0].schema();
    let memory = MemTable::try_new(schema, vec![table.batches.clone()]).expect("a table in memory");
    oracle
        .register_table(table.name, Arc::new(memory))
        .expect(table.name);
    let first = table.batches.chunks(table.batches_per_commit).next();
    let first = first.expect("a table has a batch");
    load(flashmesh, table.name, first, LoadMode::Create)
        .await
        .unwrap_or_else(|error| panic!("{table}: {error}"));
}

/// Loads the other commits, and looks at what is stored.
async fn load_rest(flashmesh: &Session, table: &RandomTable) {
    for part in table.batches.chunks(table.batches_per_commit).skip(1) {
        load(flashmesh, table.name, part, LoadMode::Append)
            .await
            .unwrap_or_else(|error| panic!("{table}: {error}"));
    }
    let stored = collect(
        flashmesh,
        &format!("SELECT * FROM {} ORDER BY id", table.name),
    )
    .await;
    let stored = rows(&stored.unwrap_or_else(|error| panic!("{table}: {error}")));
    if let Some(difference) = difference(&stored, &rows(&table.batches)) {
        panic!("{table}: what was stored comes back different: {difference}");
    }
}

async fn run_oracle(oracle: &SessionContext, sql: &str) -> datafusion::error::Result<Vec<Row>> {
    Ok(rows(&oracle.sql(sql).await?.collect().await?))
}

/// The first difference between two results.
fn difference(found: &[Row], expected: &[Row]) -> Option<String> {
    let position = found
        .iter()
        .zip(expected)
        .position(|(a, b)| !same_row(a, b));
    let position =
        position.or((found.len() != expected.len()).then(|| found.len().min(expected.len())))?;
    let mut text = format!(
        "{} rows found, {} expected; first difference at {position}\n",
        found.len(),
        expected.len()
    );
    let _ = writeln!(text, "found    {:?}", found.get(position));
    let _ = writeln!(text, "expected {:?}", expected.get(position));
    Some(text)
}

/// Equal as text, or as floats that were averaged in another order.
fn same_row(found: &Row, expected: &Row) -> bool {
    found.len() == expected.len()
        && found.iter().zip(expected).all(|pair| match pair {
            (Some(a), Some(b)) => {
                a == b || matches!((a.parse(), b.parse()), (Ok(a), Ok(b)) if close(a, b))
            }
            (a, b) => a == b,
        })
}

fn close(a: f64, b: f64) -> bool {
    a.is_finite()
        && b.is_finite()
        && a.fract() != 0.0
        && (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
}

impl Comparison {
    /// The result with what the query leaves open taken out.
    fn normal_form(self, mut rows: Vec<Row>) -> Vec<Row> {
        if self == Comparison::Multiset {
            rows.sort();
        }
        rows
    }
}

impl std::fmt::Display for RandomTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns: Vec<_> = self.batches[0]
            .schema()
            .fields()
            .iter()
            .map(|field| describe(field))
            .collect();
        let rows: usize = self.batches.iter().map(|batch| batch.num_rows()).sum();
        write!(f, "{} ({} rows): {}", self.name, rows, columns.join(", "))
    }
}
