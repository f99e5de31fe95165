//! The statements that DataFusion has no plan for, as plans: what describes, prepares, admits and
//! sends plans takes them as it takes all others.

use std::cmp::Ordering;
use std::fmt::{self, Display as _};
use std::sync::{Arc, LazyLock};

use datafusion::common::{DFSchema, DFSchemaRef};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};

use crate::alter::AlterStatement;
use crate::backup::BackupStatement;
use crate::indexes::IndexStatement;
use crate::prepare::PreparedStatement;
use crate::transactions::TransactionStatement;

/// A statement of flashmesh's own. It gives no rows, and is never a part of another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum OwnStatement {
    Alter(Box<AlterStatement>),
    Backup(BackupStatement),
    /// `CLEAR CACHE`, of external files.
    ClearCache,
    Index(IndexStatement),
    /// `KILL QUERY` with the query's number.
    Kill(u64),
    Prepare(PreparedStatement),
    Transaction(TransactionStatement),
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
            Self::Alter(_) => "AlterTable",
            Self::Backup(_) => "BackupDatabase",
            Self::ClearCache => "ClearCache",
            Self::Index(IndexStatement::Create(_)) => "CreateIndex",
            Self::Index(IndexStatement::Drop { .. }) => "DropIndex",
            Self::Kill(_) => "KillQuery",
            Self::Prepare(_) => "Prepare",
            Self::Transaction(_) => "Transaction",
            Self::Vacuum(_) => "Vacuum",
        }
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![]
    }

    fn schema(&self) -> &DFSchemaRef {
        static NO_COLUMNS: LazyLock<DFSchemaRef> = LazyLock::new(|| Arc::new(DFSchema::empty()));
        &NO_COLUMNS
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: ", self.name())?;
        match self {
            Self::Alter(alter) => write!(f, "{}.{}", alter.schema, alter.table),
            Self::Backup(statement) => statement.fmt(f),
            Self::ClearCache => f.write_str("all objects"),
            Self::Index(statement) => statement.fmt(f),
            Self::Kill(query) => query.fmt(f),
            Self::Prepare(prepared) => f.write_str(prepared.name()),
            Self::Transaction(statement) => statement.fmt(f),
            Self::Vacuum(Some((schema, table))) => write!(f, "{schema}.{table}"),
            Self::Vacuum(None) => f.write_str("all tables"),
        }
    }

    fn with_exprs_and_inputs(
        &self,
        _: Vec<Expr>,
        _: Vec<LogicalPlan>,
    ) -> datafusion::error::Result<Self> {
        Ok(self.clone())
    }
}
