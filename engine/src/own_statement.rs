//! The statements that DataFusion has no plan for, as plans: what describes, prepares, admits and
//! sends plans takes them as it takes all others. What runs each of them stands in a module of its
//! own.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display as _};
use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{DFSchema, DFSchemaRef, TableReference};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};
use datafusion::sql::sqlparser::ast::{self, AlterTableOperation};
use parking_lot::Mutex;

use crate::accounts::AccountStatement;

/// A statement of flashmesh's own. It gives no rows, but for one that explains, and is never a part
/// of another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum OwnStatement {
    /// Of users, roles and grants.
    Accounts(Box<AccountStatement>),
    Alter(Box<AlterStatement>),
    Backup(BackupStatement),
    /// `CHECK DATABASE`.
    Check,
    Comment(CommentStatement),
    /// `CLEAR CACHE`, of external files.
    ClearCache,
    ExplainRack(ExplainRackStatement),
    Index(IndexStatement),
    /// `KILL QUERY` with the query's number.
    Kill(u64),
    /// `CREATE MACRO` and `DROP MACRO`.
    Macro(MacroStatement),
    /// One that asks for what is done already: `CHECKPOINT`, `ANALYZE`.
    Nothing(&'static str),
    Prepare(PreparedStatement),
    Transaction(TransactionStatement),
    /// `SET VARIABLE` and `RESET VARIABLE`.
    Variable(VariableStatement),
    /// `VACUUM` of a table, by its schema and name, or of all.
    Vacuum(Option<(String, String)>),
}

impl OwnStatement {
    /// The statement that a plan is.
    pub fn of(plan: &LogicalPlan) -> Option<&Self> {
        match plan {
            LogicalPlan::Extension(extension) => extension.node.as_any().downcast_ref(),
            _ => None,
        }
    }

    /// Whether it gives rows.
    pub fn gives_rows(&self) -> bool {
        matches!(self, Self::Check | Self::ExplainRack(_))
    }

    pub fn into_plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension {
            node: Arc::new(self),
        })
    }
}

impl PartialOrd for OwnStatement {
    /// There is no order of statements.
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self == other).then_some(Ordering::Equal)
    }
}

impl UserDefinedLogicalNodeCore for OwnStatement {
    fn name(&self) -> &str {
        match self {
            Self::Accounts(_) => "ChangeAccounts",
            Self::Alter(_) => "AlterTable",
            Self::Backup(_) => "BackupDatabase",
            Self::Check => "CheckDatabase",
            Self::ClearCache => "ClearCache",
            Self::Comment(_) => "Comment",
            Self::ExplainRack(_) => "ExplainRack",
            Self::Index(IndexStatement::Create(_)) => "CreateIndex",
            Self::Index(IndexStatement::Drop { .. }) => "DropIndex",
            Self::Kill(_) => "KillQuery",
            Self::Macro(MacroStatement::Create { .. }) => "CreateMacro",
            Self::Macro(MacroStatement::Drop { .. }) => "DropMacro",
            Self::Nothing(name) => name,
            Self::Prepare(_) => "Prepare",
            Self::Transaction(_) => "Transaction",
            Self::Variable(_) => "SetVariable",
            Self::Vacuum(_) => "Vacuum",
        }
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        match self {
            Self::ExplainRack(explain) => vec![&explain.query],
            Self::Variable(variable) => variable.value.iter().collect(),
            _ => vec![],
        }
    }

    fn schema(&self) -> &DFSchemaRef {
        static NO_COLUMNS: LazyLock<DFSchemaRef> = LazyLock::new(|| Arc::new(DFSchema::empty()));
        match self {
            Self::Check => &CHECK_COLUMNS,
            Self::ExplainRack(_) => &EXPLAIN_RACK_COLUMNS,
            _ => &NO_COLUMNS,
        }
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: ", self.name())?;
        match self {
            Self::Accounts(statement) => statement.fmt(f),
            Self::Alter(alter) => write!(f, "{}.{}", alter.schema, alter.table),
            Self::Backup(statement) => statement.fmt(f),
            Self::Check => f.write_str("all pages"),
            Self::ClearCache => f.write_str("all objects"),
            Self::Comment(of) => write!(f, "{}.{}", of.schema, of.table),
            Self::ExplainRack(explain) => write!(f, "'{}', scale {}", explain.rack, explain.scale),
            Self::Index(statement) => statement.fmt(f),
            Self::Kill(query) => query.fmt(f),
            Self::Macro(
                MacroStatement::Create { name, .. } | MacroStatement::Drop { name, .. },
            ) => f.write_str(name),
            Self::Nothing(_) => f.write_str("nothing is to be done"),
            Self::Prepare(prepared) => f.write_str(&prepared.name),
            Self::Transaction(statement) => statement.fmt(f),
            Self::Variable(variable) => f.write_str(&variable.name),
            Self::Vacuum(Some((schema, table))) => write!(f, "{schema}.{table}"),
            Self::Vacuum(None) => f.write_str("all tables"),
        }
    }

    fn with_exprs_and_inputs(
        &self,
        _: Vec<Expr>,
        inputs: Vec<LogicalPlan>,
    ) -> datafusion::error::Result<Self> {
        let mut statement = self.clone();
        match (&mut statement, inputs.into_iter().next()) {
            (Self::ExplainRack(explain), Some(query)) => explain.query = query,
            (Self::Variable(variable), query) => variable.value = query,
            _ => {}
        }
        Ok(statement)
    }
}

/// An ALTER TABLE as it was parsed, its names resolved.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct AlterStatement {
    pub schema: String,
    pub table: String,
    pub if_exists: bool,
    pub operations: Vec<AlterTableOperation>,
}

/// `BACKUP DATABASE TO 'place' [KEEP n]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BackupStatement {
    /// A folder, or the URL of one in an object store.
    pub to: String,
    /// Of the backups there so many stay.
    pub keep: Option<u32>,
}

impl fmt::Display for BackupStatement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "to '{}'", self.to)?;
        match self.keep {
            Some(keep) => write!(f, ", keep {keep}"),
            None => Ok(()),
        }
    }
}

/// The columns of [`OwnStatement::Check`].
static CHECK_COLUMNS: LazyLock<DFSchemaRef> = LazyLock::new(|| {
    let counts = ["tables", "segments", "pages", "bytes"];
    let counts = counts.map(|name| Field::new(name, DataType::UInt64, false));
    let problem = Field::new("problem", DataType::Utf8, true);
    of_different_names([problem].into_iter().chain(counts).collect())
});

/// The columns of [`OwnStatement::ExplainRack`].
static EXPLAIN_RACK_COLUMNS: LazyLock<DFSchemaRef> = LazyLock::new(|| {
    let names = ["figure", "quantity", "in_store", "host", "unit"];
    let columns = names.map(|name| Field::new(name, DataType::Utf8, false));
    of_different_names(columns.to_vec())
});

fn of_different_names(columns: Vec<Field>) -> DFSchemaRef {
    Arc::new(DFSchema::try_from(Schema::new(columns)).unwrap_or_else(|_| DFSchema::empty()))
}

/// `EXPLAIN RACK 'rack.toml' [(SCALE n)] query`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ExplainRackStatement {
    /// The rack file.
    pub rack: String,
    /// So many times the data at hand.
    pub scale: u64,
    pub query: LogicalPlan,
}

/// `SET VARIABLE name = value`, or RESET without one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct VariableStatement {
    pub name: String,
    /// A query for one value.
    pub value: Option<LogicalPlan>,
}

/// `COMMENT ON TABLE` and `COMMENT ON COLUMN`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CommentStatement {
    pub schema: String,
    pub table: String,
    /// Of which column, if of one.
    pub column: Option<String>,
    /// Empty for nothing.
    pub comment: String,
    pub if_exists: bool,
}

/// A statement about macros.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum MacroStatement {
    Create {
        name: String,
        or_replace: bool,
        if_not_exists: bool,
        of: Box<Macro>,
    },
    Drop {
        name: String,
        if_exists: bool,
    },
}

/// A macro: its parameters, with what they are where nothing is given, and what stands in its place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Macro {
    pub parameters: Vec<(String, Option<ast::Expr>)>,
    pub body: MacroBody,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum MacroBody {
    Value(Box<ast::Expr>),
    Table(Box<ast::Query>),
}

/// A statement about indexes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum IndexStatement {
    Create(CreateIndex),
    Drop {
        indexes: Vec<TableReference>,
        if_exists: bool,
    },
}

impl fmt::Display for IndexStatement {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Create(create) => {
                let name = create.name.as_deref().unwrap_or("unnamed");
                write!(f, "{name} on {}", create.table)
            }
            Self::Drop { indexes, .. } => {
                let names: Vec<_> = indexes.iter().map(ToString::to_string).collect();
                f.write_str(&names.join(", "))
            }
        }
    }
}

/// `CREATE INDEX` as written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CreateIndex {
    pub name: Option<String>,
    pub table: TableReference,
    pub using: Option<String>,
    pub columns: Vec<String>,
    pub unique: bool,
    pub if_not_exists: bool,
    pub options: BTreeMap<String, String>,
}

/// The prepared statements of a session, by name.
pub(crate) type PreparedStatements = Mutex<HashMap<String, Arc<PreparedStatement>>>;

/// `PREPARE name (types) AS statement`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PreparedStatement {
    /// The name by which it is executed.
    pub name: String,
    /// The types that its parameters are said to have; none where nothing is said.
    pub types: Vec<DataType>,
    pub statement: Box<ast::Statement>,
    /// Of its text.
    pub bytes: usize,
}

/// A statement that begins, ends or marks a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum TransactionStatement {
    Begin { serializable: bool, read_only: bool },
    Commit,
    Rollback,
    Savepoint(String),
    RollbackTo(String),
    Release(String),
}

impl fmt::Display for TransactionStatement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin {
                serializable,
                read_only,
            } => {
                let isolation = if *serializable {
                    "serializable"
                } else {
                    "snapshot"
                };
                let access = if *read_only { ", read only" } else { "" };
                write!(f, "begin, {isolation}{access}")
            }
            Self::Commit => f.write_str("commit"),
            Self::Rollback => f.write_str("rollback"),
            Self::Savepoint(name) => write!(f, "savepoint {name}"),
            Self::RollbackTo(name) => write!(f, "rollback to {name}"),
            Self::Release(name) => write!(f, "release {name}"),
        }
    }
}
