//! What is done while I/O fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    Array, ArrayRef, FixedSizeBinaryArray, Int64Array, RecordBatch, StringArray, UInt64Array,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use flashmesh_pushdown::Scalar;

use crate::Result;
use crate::index::{IndexDefinition, IndexKind};
use crate::segment::row_id;
use crate::table::tests::layout;
use crate::table::{
    Database, Isolation, Load, LoadTarget, NewFunction, TableSnapshot, View, Workspace,
};

/// One acknowledged change.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    CreateSchema(&'static str),
    DropSchema(&'static str),
    /// A table with so many rows, with a primary key if so said.
    Create(&'static str, usize, bool),
    Replace(&'static str, usize),
    Append(&'static str, usize),
    Overwrite(&'static str, usize),
    /// Every row of so many is deleted, or, where the flag says so, replaced.
    Change(&'static str, u32, bool),
    DropTable(&'static str),
    CreateIndex(&'static str, IndexKind),
    DropIndex(&'static str),
    /// Indexes are covered and merged.
    Settle,
    /// Segments are rewritten as few ones.
    Compact(&'static str),
    /// One transaction: every so manieth row of the one table replaced, as many added to the other.
    Transact(&'static str, u32, &'static str),
    /// One transaction that renames a table and makes one of its name, with rows, an index and a view
    /// of it, in a schema too.
    Define(&'static str, &'static str),
    /// A function; the number tells its versions apart.
    Function(&'static str, u8),
    DropFunction(&'static str),
    View(&'static str, &'static str),
    DropView(&'static str),
    /// Other accounts than before.
    Accounts(&'static str),
    /// The catalog takes over what the log holds.
    EmptyLog,
    /// The past of a table is kept from here on, or not.
    Retain(&'static str, bool),
    /// All past versions expire.
    Expire,
}

/// What is there before, and what is then done under faults.
#[derive(Debug)]
pub struct Workload {
    pub name: &'static str,
    pub before: Vec<Step>,
    pub steps: Vec<Step>,
}

pub fn all() -> Vec<Workload> {
    use IndexKind::{Adjacency, Hash, Lsh, Ngram};
    use Step::*;
    let workload = |name, before: &[Step], steps: &[Step]| Workload {
        name,
        before: before.to_vec(),
        steps: steps.to_vec(),
    };
    let indexed = [
        Create("t", 40, true),
        CreateIndex("t", Hash),
        CreateIndex("t", Ngram),
        CreateIndex("t", Adjacency),
        CreateIndex("t", Lsh),
    ];
    vec![
        workload("schemas", &[], &[CreateSchema("s"), DropSchema("s")]),
        workload(
            "create",
            &[],
            &[Create("t", 0, false), Create("u", 0, true)],
        ),
        workload("load", &[], &[Create("t", 3000, false), Append("t", 900)]),
        workload("append", &[Create("t", 50, false)], &[Append("t", 5); 4]),
        workload(
            "empty the log",
            &[&indexed[..], &[Append("t", 9)]].concat(),
            &[
                EmptyLog,
                Append("t", 5),
                Change("t", 2, true),
                EmptyLog,
                Append("t", 2),
                Settle,
                EmptyLog,
            ],
        ),
        workload(
            "keep the past",
            &[&indexed[..], &[Retain("t", true), Append("t", 9), EmptyLog]].concat(),
            &[
                Change("t", 3, true),
                Append("t", 5),
                Compact("t"),
                EmptyLog,
                Overwrite("t", 12),
                Change("t", 2, false),
                Expire,
                EmptyLog,
                Append("t", 3),
                Retain("t", false),
                EmptyLog,
            ],
        ),
        workload("fill the log", &indexed, &[Append("t", 3); 9]),
        workload("append to indexes", &indexed, &[Append("t", 30); 2]),
        workload(
            "cover what was appended",
            &[&indexed[..], &[Append("t", 30)]].concat(),
            &[Settle, Append("t", 3), Settle],
        ),
        workload(
            "merge parts of indexes",
            &[indexed.as_slice(), &[Append("t", 3), Settle].repeat(7)].concat(),
            &[Append("t", 3), Settle, Append("t", 3), Settle],
        ),
        workload(
            "overwrite",
            &indexed,
            &[
                Overwrite("t", 700),
                Settle,
                Overwrite("t", 0),
                Append("t", 9),
            ],
        ),
        workload(
            "change",
            &indexed,
            &[
                Change("t", 3, false),
                Change("t", 5, true),
                Append("t", 9),
                Settle,
                Change("t", 1, true),
            ],
        ),
        workload(
            "compact",
            &[indexed.as_slice(), &[Append("t", 3); 4], &[Settle]].concat(),
            &[
                Change("t", 4, true),
                Compact("t"),
                Append("t", 2),
                Settle,
                Change("t", 1, false),
                Compact("t"),
            ],
        ),
        workload(
            "transactions",
            &[indexed.as_slice(), &[Create("u", 9, true)]].concat(),
            &[Transact("t", 3, "u"), Append("t", 2), Transact("u", 2, "t")],
        ),
        workload(
            "definitions in transactions",
            &indexed,
            &[Define("t", "u"), Append("t", 2), Define("t", "w")],
        ),
        workload(
            "replace",
            &indexed,
            &[Replace("t", 500), Replace("t", 20), Append("t", 9)],
        ),
        workload(
            "make indexes",
            &[Create("t", 500, false), Append("t", 20)],
            &indexed[1..],
        ),
        workload(
            "drop indexes",
            &indexed,
            &[DropIndex("t_hash"), DropIndex("t_lsh"), Append("t", 1)],
        ),
        workload(
            "drop tables",
            &[&indexed[..], &[Create("u", 10, false)]].concat(),
            &[DropTable("t"), Create("t", 10, false), DropTable("u")],
        ),
        workload(
            "functions",
            &[],
            &[
                Function("f", 1),
                Function("f", 2),
                Function("g", 1),
                DropFunction("f"),
            ],
        ),
        workload(
            "views",
            &[Create("t", 3, false)],
            &[
                View("v", "SELECT 1"),
                Accounts("ann"),
                View("v", "SELECT 2"),
                Accounts(""),
                DropView("v"),
            ],
        ),
    ]
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("line", DataType::Utf8, true),
        Field::new("code", DataType::FixedSizeBinary(4), false),
        Field::new("next", DataType::Int64, false),
    ]))
}

fn rows(first: i64, count: usize) -> RecordBatch {
    let ids: Vec<i64> = (first..first + count as i64).collect();
    let lines: StringArray = ids
        .iter()
        .map(|id| (id % 5 != 0).then(|| format!("line {id} of {}", id * 7919 % 1009)))
        .collect();
    let codes = ids.iter().map(|id| (id * 2_654_435 % 65_521).to_le_bytes());
    let codes: Vec<[u8; 4]> = codes.map(|b| [b[0], b[1], b[2], b[3]]).collect();
    let next: Vec<i64> = ids.iter().map(|id| id * 31 % 97).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(ids)),
        Arc::new(lines),
        Arc::new(
            FixedSizeBinaryArray::try_from_iter(codes.iter()).unwrap_or_else(|_| {
                FixedSizeBinaryArray::try_from_sparse_iter_with_size(
                    std::iter::empty::<Option<[u8; 4]>>(),
                    4,
                )
                .unwrap()
            }),
        ),
        Arc::new(Int64Array::from(next)),
    ];
    RecordBatch::try_new(schema(), columns).unwrap()
}

impl Step {
    /// Does it; an error leaves it undone.
    pub fn run(self, database: &Arc<Database>) -> Result<()> {
        match self {
            Self::CreateSchema(name) => database.create_schema(name),
            Self::DropSchema(name) => database.drop_schema(name),
            Self::Create(table, count, has_key) => {
                let indexes = has_key.then(|| definition(table, IndexKind::Hash, true));
                create(database, table, count, false, indexes.into_iter().collect())
            }
            Self::Replace(table, count) => create(database, table, count, true, vec![]),
            Self::Append(table, count) => {
                let first = next_id(&*database.snapshot("public", table)?);
                let target = LoadTarget::Append {
                    schema: "public".into(),
                    table: table.into(),
                };
                load(database, target, first, count)
            }
            Self::Overwrite(table, count) => {
                let target = LoadTarget::Overwrite {
                    schema: "public".into(),
                    table: table.into(),
                };
                load(database, target, 1_000_000, count)
            }
            Self::Change(table, every, replaces) => change(
                &Workspace::new(Arc::clone(database)),
                table,
                every,
                replaces,
            ),
            Self::DropTable(table) => database.drop_table("public", table),
            Self::CreateIndex(table, kind) => {
                database.create_index("public", table, definition(table, kind, false))
            }
            Self::DropIndex(index) => database.drop_index("public", index),
            Self::Settle => database.settle_indexes(),
            Self::Compact(table) => database.compact("public", table),
            Self::Transact(one, every, other) => {
                let workspace = Workspace::new(Arc::clone(database));
                workspace.begin(Isolation::Snapshot, false)?;
                change(&workspace, one, every, true)?;
                workspace.savepoint("undone")?;
                change(&workspace, one, 1, false)?;
                workspace.rollback_to("undone")?;
                let added = append_to(&workspace, other, 3)?;
                change(&workspace, other, 2, false)?;
                assert_eq!(added, 3);
                workspace.commit()
            }
            Self::Define(table, renamed) => {
                let workspace = Workspace::new(Arc::clone(database));
                workspace.begin(Isolation::Snapshot, false)?;
                workspace.rename_table("public", table, renamed)?;
                workspace.create_schema(renamed)?;
                for schema in ["public", renamed] {
                    let load = workspace.begin_load(LoadTarget::Create {
                        layout: layout(),
                        distribution: None,
                        retention: Duration::ZERO,
                        defaults: vec![],
                        checks: vec![],
                        schema: schema.into(),
                        table: table.into(),
                        arrow_schema: self::schema(),
                        or_replace: true,
                        indexes: vec![],
                    })?;
                    load_rows(load, 0, 12)?;
                }
                append_to(&workspace, table, 3)?;
                let index = IndexDefinition {
                    name: format!("of_{renamed}"),
                    ..definition(table, IndexKind::Hash, false)
                };
                workspace.create_index("public", table, index)?;
                change(&workspace, table, 5, false)?;
                workspace.create_view(view("v", "SELECT 2"), true)?;
                workspace.commit()
            }
            Self::Function(name, number) => {
                let new = NewFunction {
                    name,
                    owner: "ann",
                    package: &vec![number; 30_000 * usize::from(number)],
                    or_replace: true,
                    callees: Vec::new(),
                    quota: None,
                };
                database.create_function(new).map(drop)
            }
            Self::DropFunction(name) => database.drop_function(name, None),
            Self::View(name, query) => database.create_view(view(name, query), true),
            Self::DropView(name) => database.drop_view("public", name),
            Self::Accounts(text) => {
                let present = database.accounts()?;
                assert!(database.put_accounts(&present, text.to_string())?);
                Ok(())
            }
            Self::EmptyLog => database.empty_log(),
            Self::Retain(table, keeps) => {
                let retention = Duration::from_secs(if keeps { 3600 } else { 0 });
                Workspace::new(Arc::clone(database)).set_retention("public", table, retention)
            }
            Self::Expire => database.expire_versions(u64::MAX),
        }
    }
}

fn view(name: &str, query: &str) -> View {
    View {
        schema: "public".into(),
        name: name.into(),
        query: query.into(),
        columns: vec![],
        owner: "ann".into(),
        default_schema: "public".into(),
        dialect: "postgresql".into(),
    }
}

/// An id that no row has: they are numbered as they come.
fn next_id(table: &TableSnapshot) -> i64 {
    match table.statistics[0].max {
        Some(Scalar::Int(max)) => max as i64 + 1,
        _ => 0,
    }
}

fn append_to(workspace: &Workspace, table: &str, count: usize) -> Result<u64> {
    let version = workspace.snapshot("public", table)?;
    let load = workspace.begin_load(LoadTarget::Append {
        schema: "public".into(),
        table: table.into(),
    })?;
    let mut writer = load.writer()?;
    writer.append(&rows(next_id(&version), count))?;
    writer.finish()?;
    load.commit()
}

fn change(workspace: &Workspace, table: &str, every: u32, replaces: bool) -> Result<()> {
    let version = workspace.snapshot("public", table)?;
    let first = next_id(&version);
    let live = version.segments.iter().flat_map(|segment| {
        let rows = (0..segment.rows).filter(|row| segment.has_row(*row));
        rows.map(|row| row_id(segment.id, row))
    });
    let ids: UInt64Array = live.step_by(every as usize).collect::<Vec<_>>().into();
    let ids: ArrayRef = Arc::new(ids);
    let batch = match replaces {
        true => {
            let new = rows(first, ids.len());
            let schema = new.schema();
            let names = schema.fields().iter().map(|field| field.name().as_str());
            let columns = names.zip(new.columns().iter().cloned());
            RecordBatch::try_from_iter(columns.chain([("row_id", ids)]))?
        }
        false => RecordBatch::try_from_iter([("row_id", ids)])?,
    };
    let load = workspace.begin_load(LoadTarget::Change {
        schema: "public".into(),
        table: table.into(),
        version,
    })?;
    let mut writer = load.writer()?;
    writer.append(&batch)?;
    writer.finish()?;
    load.commit().map(drop)
}

fn create(
    database: &Arc<Database>,
    table: &str,
    count: usize,
    or_replace: bool,
    indexes: Vec<IndexDefinition>,
) -> Result<()> {
    let target = LoadTarget::Create {
        layout: layout(),
        distribution: None,
        retention: Duration::ZERO,
        defaults: vec![],
        checks: vec![],
        schema: "public".into(),
        table: table.into(),
        arrow_schema: schema(),
        or_replace,
        indexes,
    };
    load(database, target, 0, count)
}

fn load(database: &Arc<Database>, target: LoadTarget, first: i64, count: usize) -> Result<()> {
    load_rows(database.begin_load(target)?, first, count)
}

fn load_rows(load: Load, first: i64, count: usize) -> Result<()> {
    // Two writers, so that a load has more than one segment.
    for part in [count / 3, count - count / 3] {
        let mut writer = load.writer()?;
        let first = first
            + if part == count / 3 {
                0
            } else {
                count as i64 / 3
            };
        writer.append(&rows(first, part))?;
        writer.finish()?;
    }
    load.commit().map(drop)
}

fn definition(table: &str, kind: IndexKind, primary: bool) -> IndexDefinition {
    let columns = match kind {
        IndexKind::Hash => vec![0],
        IndexKind::Ngram => vec![1],
        IndexKind::Lsh => vec![2],
        IndexKind::Adjacency => vec![0, 3],
    };
    IndexDefinition {
        name: format!("{table}_{}", if primary { "key" } else { kind.name() }),
        kind,
        columns,
        unique: primary,
        primary,
        options: BTreeMap::new(),
    }
}
