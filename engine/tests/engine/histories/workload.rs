//! Clients that do random transactions on one database, and write down what they did and saw.
//!
//! | table | objects | written by |
//! |---|---|---|
//! | `account` | registers; the balances' sum stays | transfers: UPDATE of two rows |
//! | `kv` | registers | `put` after `get`, INSERT … ON CONFLICT |
//! | `list`, `short` | lists, as text | INSERT … ON CONFLICT that appends, UPDATE |
//! | `item` | sets, of the rows of a kind | INSERT; found by a hash index that lags |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use flashmesh::{Error, Session};
use flashmesh_storage::StorageError;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::checker::{Id, Key, Op, Span, Transaction};
use super::rows::{count, lists, numbers, registers};
use crate::support::collect_as_servers_do;

/// Rows of each table, kinds of items.
pub const ROWS: i64 = 12;
/// What the accounts hold in all.
const TOTAL: i64 = ROWS * 100;

/// The objects of a table have numbers from here on.
const ACCOUNT: Key = 1000;
const KV: Key = 2000;
const ITEM: Key = 3000;
const LISTS: [(&str, Key); 2] = [("list", 4000), ("short", 5000)];

/// What makes the tables, with indexes of several kinds.
pub const TABLES: &str = "\
    CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT, version BIGINT, writer BIGINT); \
    CREATE TABLE kv (id BIGINT PRIMARY KEY, version BIGINT, writer BIGINT); \
    CREATE TABLE item (kind BIGINT, element BIGINT); \
    CREATE TABLE list (id BIGINT PRIMARY KEY, elements TEXT); \
    CREATE TABLE short (id BIGINT PRIMARY KEY, elements TEXT); \
    CREATE INDEX item_kind ON item USING hash (kind); \
    CREATE INDEX list_elements ON list USING ngram (elements)";

/// Gives no time twice.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    pub fn now(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// Why a transaction did not commit: others were faster.
#[derive(Debug)]
struct Refused;

type Outcome<T = ()> = Result<T, Refused>;

/// Anything else that fails is no part of a history.
fn refused(what: impl Display, error: &Error) -> Refused {
    match error.storage() {
        Some(StorageError::Conflict { .. } | StorageError::DuplicateKey { .. }) => Refused,
        _ => panic!("{what}: {error}"),
    }
}

/// One client, and the transaction that it is in.
pub struct Client {
    session: Session,
    rng: StdRng,
    clock: Arc<Clock>,
    serializable: f64,
    next_id: Id,
    ops: Vec<Op>,
    elements: u64,
}

impl Client {
    /// The number of a client makes the numbers of its transactions; so much of these is serialisable.
    pub fn new(
        number: u64,
        session: Session,
        clock: &Arc<Clock>,
        rng: StdRng,
        serializable: f64,
    ) -> Self {
        Self {
            session,
            rng,
            clock: Arc::clone(clock),
            serializable,
            next_id: number * 1_000_000,
            ops: Vec::new(),
            elements: 0,
        }
    }

    fn id(&self) -> Id {
        self.next_id
    }

    async fn called<T>(&self, call: impl Future<Output = T>) -> (Span, T) {
        let called = self.clock.now();
        let result = call.await;
        let returned = self.clock.now();
        (Span { called, returned }, result)
    }

    async fn run(&self, sql: impl AsRef<str>) -> Outcome<Vec<RecordBatch>> {
        let sql = sql.as_ref();
        let run = async {
            let frame = self.session.sql(sql).await?;
            collect_as_servers_do(frame).await.map_err(Error::from)
        };
        run.await.map_err(|error| refused(sql, &error))
    }

    /// The accounts, the first transaction of every history.
    pub async fn fill(&mut self) -> Transaction {
        let fill = "BEGIN; INSERT INTO account SELECT value, 100, 1, 0 FROM generate_series(0, 11); \
                    INSERT INTO short SELECT value, '' FROM generate_series(0, 11)";
        let (begin, filled) = self.called(self.run(fill)).await;
        filled.expect("nobody else is there");
        self.ops = (0..ROWS as Key)
            .map(|n| Op::Write(ACCOUNT + n, 1))
            .collect();
        let (end, committed) = self.called(self.run("COMMIT")).await;
        self.transaction(false, begin, end, committed.is_ok())
    }

    /// All objects, read by one transaction.
    pub async fn read_all(&mut self) -> Transaction {
        let (begin, begun) = self.called(self.run("BEGIN READ ONLY")).await;
        begun.expect("nobody else is there");
        self.accounts().await.expect("it only reads");
        for table in LISTS {
            self.all_lists(table).await.expect("it only reads");
        }
        for row in 0..ROWS {
            self.read_register(row).await.expect("it only reads");
            self.read_set(row).await.expect("it only reads");
        }
        let (end, committed) = self.called(self.run("COMMIT")).await;
        self.transaction(false, begin, end, committed.is_ok())
    }

    fn transaction(
        &mut self,
        is_serializable: bool,
        begin: Span,
        end: Span,
        is_committed: bool,
    ) -> Transaction {
        let id = self.next_id;
        self.next_id += 1;
        self.elements = 0;
        Transaction {
            id,
            is_serializable,
            is_committed,
            begin,
            end,
            ops: std::mem::take(&mut self.ops),
        }
    }

    /// A random transaction.
    pub async fn act(&mut self) -> Transaction {
        if self.rng.random_bool(0.1) {
            let mode = ["auto", "always", "never"].choose(&mut self.rng).unwrap();
            let set = format!("SET flashmesh.pushdown = '{mode}'");
            self.run(set).await.expect("it changes no table");
        }
        match self.rng.random_range(0..10) {
            0..2 => self.single_statement().await,
            2 => self.long_reader().await,
            _ => self.several_statements().await,
        }
    }

    /// A statement outside of a transaction begins and commits within one call.
    async fn single_statement(&mut self) -> Transaction {
        let called = self.clock.now();
        let row = self.rng.random_range(0..ROWS);
        let done = match self.rng.random_range(0..5) {
            0 => self.append(row).await,
            1 => self.add(row).await,
            2 => self.read_list(row).await,
            3 => self.read_set(row).await,
            _ => self.sum().await,
        };
        let returned = self.clock.now();
        let span = Span { called, returned };
        self.transaction(false, span, span, done.is_ok())
    }

    /// Reads everything, twice and in any order, while others write.
    async fn long_reader(&mut self) -> Transaction {
        let (begin, begun) = self.called(self.run("BEGIN READ ONLY")).await;
        begun.expect("it changes nothing");
        for _ in 0..2 * ROWS {
            let row = self.rng.random_range(0..ROWS);
            let read = match self.rng.random_range(0..6) {
                0 => self.accounts().await,
                1 => self.all_lists(LISTS[row as usize % 2]).await,
                2 => self.read_list(row).await,
                3 => self.read_set(row).await,
                4 => self.read_register(row).await,
                _ => self.sum().await,
            };
            read.expect("it changes nothing");
        }
        let (end, committed) = self.called(self.run("COMMIT")).await;
        committed.expect("it has changed nothing");
        self.transaction(false, begin, end, true)
    }

    async fn several_statements(&mut self) -> Transaction {
        let is_serializable = self.rng.random_bool(self.serializable);
        let sql = match is_serializable {
            true => "BEGIN ISOLATION LEVEL SERIALIZABLE",
            false => "BEGIN",
        };
        let (begin, begun) = self.called(self.run(sql)).await;
        begun.expect("nothing is changed yet");
        // What is read as a whole may be changed by others in any of its rows.
        let mut done = match self.rng.random_range(0..6) {
            0 => self.accounts().await,
            place @ (1 | 2) => self.all_lists(LISTS[place - 1]).await,
            _ => Ok(()),
        };
        for _ in 0..self.rng.random_range(1..5) {
            if done.is_err() {
                break;
            }
            done = self.random_op().await;
            if done.is_ok() && self.rng.random_bool(0.1) {
                done = self.undone().await;
            }
        }
        let gives_up = done.is_err() || self.rng.random_bool(0.05);
        let end = match gives_up {
            true => "ROLLBACK",
            false => "COMMIT",
        };
        let (end, ended) = self.called(self.run(end)).await;
        self.transaction(is_serializable, begin, end, ended.is_ok() && !gives_up)
    }

    async fn random_op(&mut self) -> Outcome {
        let row = self.rng.random_range(0..ROWS);
        match self.rng.random_range(0..10) {
            0..2 => self.append(row).await,
            2 => self.add(row).await,
            3 => self.put(row).await,
            4 => self.upsert(row).await,
            5 => self.transfer(row).await,
            6 => self.read_list(row).await,
            7 => self.read_set(row).await,
            8 => self.read_register(row).await,
            _ => self.sum().await,
        }
    }

    /// What a savepoint takes back was never there.
    async fn undone(&mut self) -> Outcome {
        self.run("SAVEPOINT before").await?;
        let before = self.ops.len();
        let done = self.random_op().await;
        self.ops.truncate(before);
        self.run("ROLLBACK TO SAVEPOINT before").await?;
        done
    }

    /// An element that no other transaction writes.
    fn element(&mut self) -> u64 {
        self.elements += 1;
        self.id() * 100 + self.elements
    }

    async fn append(&mut self, row: i64) -> Outcome {
        let element = self.element();
        let ((table, first), sql) = match self.rng.random_bool(0.5) {
            true => (
                LISTS[0],
                format!(
                    "INSERT INTO list VALUES ({row}, '{element}') ON CONFLICT (id) \
                 DO UPDATE SET elements = list.elements || ',' || excluded.elements"
                ),
            ),
            false => (
                LISTS[1],
                format!(
                    "UPDATE short SET elements = elements || ',' || {element} WHERE id = {row}"
                ),
            ),
        };
        let changed = self.run(sql).await?;
        assert_eq!(count(&changed), 1, "{table}: one row");
        self.ops.push(Op::Append(first + row as Key, element));
        Ok(())
    }

    async fn add(&mut self, kind: i64) -> Outcome {
        let element = self.element();
        self.run(format!("INSERT INTO item VALUES ({kind}, {element})"))
            .await?;
        self.ops.push(Op::Add(ITEM + kind as Key, element));
        Ok(())
    }

    /// What is put depends on what was got.
    async fn put(&mut self, row: i64) -> Outcome {
        let keys: ArrayRef = Arc::new(Int64Array::from(vec![row]));
        let got = self.session.get("kv", &keys);
        let got = registers(&got.unwrap_or_else(|error| panic!("get: {error}")));
        let found = got.first().map(|(_, found)| *found);
        self.ops.push(Op::ReadRegister(KV + row as Key, found));
        let version = found.map_or(0, |(version, _)| version) + 1;
        let column = |value: i64| -> ArrayRef { Arc::new(Int64Array::from(vec![value])) };
        let columns = [
            ("id", column(row)),
            ("version", column(version as i64)),
            ("writer", column(self.id() as i64)),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        self.session
            .put("kv", &batch)
            .map_err(|error| refused("put", &error))?;
        self.ops.push(Op::Write(KV + row as Key, version));
        Ok(())
    }

    /// The store counts; the client learns its version afterwards.
    async fn upsert(&mut self, row: i64) -> Outcome {
        let id = self.id();
        self.run(format!(
            "INSERT INTO kv VALUES ({row}, 1, {id}) ON CONFLICT (id) \
             DO UPDATE SET version = kv.version + 1, writer = excluded.writer"
        ))
        .await?;
        let found = registers(
            &self
                .run(format!("SELECT * FROM kv WHERE id = {row}"))
                .await?,
        );
        let [(_, (version, writer))] = found[..] else {
            panic!("{found:?} after an upsert of {row}");
        };
        self.ops.push(Op::Write(KV + row as Key, version));
        self.ops
            .push(Op::ReadRegister(KV + row as Key, Some((version, writer))));
        Ok(())
    }

    async fn transfer(&mut self, from: i64) -> Outcome {
        let to = (from + self.rng.random_range(1..ROWS)) % ROWS;
        let amount = self.rng.random_range(1..30);
        let both = format!("SELECT id, version, writer FROM account WHERE id IN ({from}, {to})");
        let found = registers(&self.run(both).await?);
        assert_eq!(found.len(), 2, "accounts {from} and {to}: {found:?}");
        for (row, amount) in [(from, -amount), (to, amount)] {
            self.run(format!(
                "UPDATE account SET balance = balance + {amount}, version = version + 1, \
                 writer = {} WHERE id = {row}",
                self.id()
            ))
            .await?;
        }
        for (row, (version, writer)) in found {
            let key = ACCOUNT + row as Key;
            self.ops
                .push(Op::ReadRegister(key, Some((version, writer))));
            self.ops.push(Op::Write(key, version + 1));
        }
        Ok(())
    }

    async fn sum(&mut self) -> Outcome {
        let sum = self.run("SELECT sum(balance) FROM account").await?;
        self.ops.push(Op::Sum(count(&sum), TOTAL));
        Ok(())
    }

    async fn accounts(&mut self) -> Outcome {
        let accounts = self
            .run("SELECT id, version, writer, balance FROM account")
            .await?;
        let balances = accounts
            .iter()
            .map(|batch| numbers(batch, 3).values().iter().sum::<i64>());
        self.ops.push(Op::Sum(balances.sum(), TOTAL));
        let found: BTreeMap<_, _> = registers(&accounts).into_iter().collect();
        for row in 0..ROWS {
            let found = found.get(&row).copied();
            self.ops.push(Op::ReadRegister(ACCOUNT + row as Key, found));
        }
        Ok(())
    }

    async fn read_register(&mut self, row: i64) -> Outcome {
        let found = match self.rng.random_range(0..3) {
            0 => {
                let keys: ArrayRef = Arc::new(Int64Array::from(vec![row]));
                let got = self.session.get("kv", &keys);
                got.unwrap_or_else(|error| panic!("get: {error}"))
            }
            1 => {
                self.run(format!("SELECT * FROM lookup('kv', [{row}])"))
                    .await?
            }
            _ => {
                self.run(format!("SELECT * FROM kv WHERE id = {row}"))
                    .await?
            }
        };
        let found = registers(&found);
        assert!(found.len() < 2, "{found:?} of one key");
        let found = found.first().map(|(_, found)| *found);
        self.ops.push(Op::ReadRegister(KV + row as Key, found));
        Ok(())
    }

    async fn read_list(&mut self, row: i64) -> Outcome {
        let (table, first) = *LISTS.choose(&mut self.rng).unwrap();
        let sql = match self.rng.random_bool(0.5) {
            true => format!("SELECT id, elements FROM lookup('{table}', [{row}])"),
            false => format!("SELECT id, elements FROM {table} WHERE id = {row}"),
        };
        let mut found = lists(&self.run(sql).await?);
        let list = found.remove(&row).unwrap_or_default();
        self.ops.push(Op::ReadList(first + row as Key, list));
        Ok(())
    }

    async fn all_lists(&mut self, (table, first): (&str, Key)) -> Outcome {
        let mut found = lists(
            &self
                .run(format!("SELECT id, elements FROM {table}"))
                .await?,
        );
        for row in 0..ROWS {
            let list = found.remove(&row).unwrap_or_default();
            self.ops.push(Op::ReadList(first + row as Key, list));
        }
        assert!(found.is_empty(), "{table}: {found:?}");
        Ok(())
    }

    async fn read_set(&mut self, kind: i64) -> Outcome {
        let sql = format!("SELECT element FROM item WHERE kind = {kind}");
        let found = self.run(sql).await?;
        let elements = found
            .iter()
            .flat_map(|batch| numbers(batch, 0).values().to_vec());
        let elements: Vec<_> = elements.map(|element| element as u64).collect();
        let set: BTreeSet<_> = elements.iter().copied().collect();
        assert_eq!(set.len(), elements.len(), "{elements:?} of {kind}");
        self.ops.push(Op::ReadSet(ITEM + kind as Key, set));
        Ok(())
    }
}

/// What goes on beside the clients: rows in bulk that come and go, so that the log fills up;
/// VACUUM; an index that comes and goes.
pub async fn upkeep(session: &Session, rng: &mut StdRng) {
    let table = ["account", "kv", "item", "list", "short"]
        .choose(rng)
        .unwrap();
    let sql = match rng.random_range(0..8) {
        0..3 => format!("VACUUM {table}"),
        3 => "CREATE INDEX IF NOT EXISTS kv_writer ON kv USING hash (writer)".into(),
        4 => "DROP INDEX IF EXISTS kv_writer".into(),
        5 => {
            "CREATE TABLE IF NOT EXISTS ballast AS SELECT value AS id, 'ballast ' || value AS name \
              FROM generate_series(1, 20000)"
                .into()
        }
        6 => "CREATE OR REPLACE TABLE ballast AS SELECT value AS id, 'more ' || value AS name \
              FROM generate_series(1, 30000)"
            .into(),
        _ => "DROP TABLE IF EXISTS ballast".into(),
    };
    let done = async {
        let frame = session.sql(&sql).await?;
        collect_as_servers_do(frame).await.map_err(Error::from)
    };
    if let Err(error) = done.await {
        refused(sql, &error);
    }
}
