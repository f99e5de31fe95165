//! The schema `system`: what the process tells of itself, and `KILL QUERY`.

use std::fmt;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use arrow::array::{
    ArrayRef, Float64Array, RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array,
};
use async_trait::async_trait;
use datafusion::catalog::{SchemaProvider, TableProvider};
use datafusion::common::{DFSchema, DFSchemaRef};
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};
use datafusion::sql::sqlparser::ast::KillType;

use crate::error::Error;
use crate::grants::Principal;
use crate::queries::{Queries, QueryReport, QueryState};

/// Name of the table of queries.
const QUERIES: &str = "queries";

/// The tables of the schema, made when they are asked for.
#[derive(Debug)]
pub(crate) struct SystemSchema {
    queries: Arc<Queries>,
    principal: Arc<Principal>,
}

impl SystemSchema {
    /// What `principal` may see: their own queries, or all for an admin.
    pub fn new(queries: Arc<Queries>, principal: Arc<Principal>) -> Self {
        Self { queries, principal }
    }
}

#[async_trait]
impl SchemaProvider for SystemSchema {
    fn table_names(&self) -> Vec<String> {
        vec![QUERIES.into()]
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        if name != QUERIES {
            return Ok(None);
        }
        let mut queries = self.queries.list();
        if !self.principal.admin {
            queries.retain(|query| query.user == *self.principal.name);
        }
        let batch = batch_of(&queries)?;
        let table = MemTable::try_new(batch.schema(), vec![vec![batch]])?;
        Ok(Some(Arc::new(table)))
    }

    fn table_exist(&self, name: &str) -> bool {
        name == QUERIES
    }
}

fn batch_of(queries: &[QueryReport]) -> Result<RecordBatch> {
    let numbers = |value: fn(&QueryReport) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(queries.iter().map(value)))
    };
    let texts = |value: fn(&QueryReport) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(queries.iter().map(value)))
    };
    let asked = queries.iter().map(|query| {
        let since = query.asked_at.duration_since(UNIX_EPOCH);
        since.map_or(0, |time| time.as_micros() as i64)
    });
    let asked = TimestampMicrosecondArray::from_iter_values(asked).with_timezone("UTC");
    let took = queries.iter().map(|query| query.took.as_secs_f64() * 1e3);
    let errors = queries.iter().map(|query| match &query.state {
        QueryState::Failed(error) => Some(error.as_str()),
        _ => None,
    });
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("id", numbers(|q| q.id), false),
        ("user", texts(|q| &q.user), false),
        ("query", texts(|q| &q.sql), false),
        ("state", texts(|q| q.state.name()), false),
        (
            "error",
            Arc::new(StringArray::from_iter(errors)) as ArrayRef,
            true,
        ),
        ("asked_at", Arc::new(asked) as ArrayRef, false),
        (
            "took_ms",
            Arc::new(Float64Array::from_iter_values(took)) as ArrayRef,
            false,
        ),
        ("rows", numbers(|q| q.rows), false),
        (
            "bytes_from_flash",
            numbers(|q| q.plan.bytes_from_flash),
            false,
        ),
        ("bytes_to_host", numbers(|q| q.plan.bytes_to_host), false),
        ("plan", texts(|q| &q.plan.plan), false),
    ])?)
}

/// `KILL QUERY id`, as a plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct KillStatement {
    id: u64,
    schema: DFSchemaRef,
}

impl KillStatement {
    /// The query's number.
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl PartialOrd for KillStatement {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.id.cmp(&other.id))
    }
}

impl UserDefinedLogicalNodeCore for KillStatement {
    fn name(&self) -> &str {
        "KillQuery"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "KillQuery: {}", self.id)
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, _: Vec<LogicalPlan>) -> Result<Self> {
        Ok(self.clone())
    }
}

/// The plan of a KILL statement.
pub(crate) fn plan_kill(kind: Option<&KillType>, id: u64) -> crate::Result<LogicalPlan> {
    match kind {
        None | Some(KillType::Query) => Ok(LogicalPlan::Extension(Extension {
            node: Arc::new(KillStatement {
                id,
                schema: Arc::new(DFSchema::empty()),
            }),
        })),
        Some(other) => Err(Error::usage(format!(
            "KILL {other} is not supported; KILL QUERY {id} ends a query"
        ))),
    }
}
