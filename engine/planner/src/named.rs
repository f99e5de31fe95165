//! Tables that plans name, and which version of each is meant.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::{DFSchema, Result, ScalarValue, plan_datafusion_err, plan_err};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use flashmesh_storage::capability::{Capability, Right};
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::store::PageStore;
use flashmesh_storage::table::{AsOf, TableSnapshot, Workspace};

use crate::authority::{self, Authority};
use crate::error::from_storage;
/// Schema and name of a table.
pub type TableName = (String, String);

/// A table that a plan names.
#[derive(Clone)]
pub struct NamedTable {
    workspace: Arc<Workspace>,
    node: Arc<StorageNode>,
    authority: Arc<dyn Authority>,
    name: TableName,
    snapshot: Arc<TableSnapshot>,
    /// What the session may do with this version: there once a statement runs on it.
    capability: Option<Arc<Capability>>,
    /// Which version is meant, where it is not the present one.
    past: Option<Arc<Past>>,
}

/// Which past version of a table a plan means.
#[derive(Debug, Clone)]
pub(crate) struct Past {
    pub moment: Moment,
    /// A constant: it is evaluated when a statement begins to run, as it may say `now()`.
    pub expr: Expr,
}

/// What the constant is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The number of a version.
    Version,
    /// A time; without a time zone it is of UTC.
    Time,
}

/// As it is written between the brackets of AT.
impl fmt::Display for Past {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = match self.moment {
            Moment::Version => "VERSION",
            Moment::Time => "TIMESTAMP",
        };
        write!(f, "{moment} => {}", self.expr)
    }
}

impl Past {
    /// The version, or the time, that is meant now.
    fn as_of(&self) -> Result<AsOf> {
        let context = SimplifyContext::builder().with_current_time().build();
        let simplifier = ExprSimplifier::new(context);
        let expr = simplifier.coerce(self.expr.clone(), &DFSchema::empty())?;
        let Expr::Literal(value, _) = simplifier.simplify(expr)? else {
            return plan_err!("AT takes a constant; '{}' is none", self.expr);
        };
        let wrong = |what: &str| plan_datafusion_err!("AT takes {what}, not '{value}'");
        match self.moment {
            Moment::Version => {
                let number = value.data_type().is_integer();
                let number = number
                    .then(|| value.cast_to(&DataType::UInt64).ok())
                    .flatten();
                match number {
                    Some(ScalarValue::UInt64(Some(number))) => Ok(AsOf::Version(number)),
                    _ => Err(wrong("the number of a version")),
                }
            }
            Moment::Time => {
                let is_time = value.data_type().is_temporal() || value.data_type().is_string();
                let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into()));
                let time = is_time.then(|| value.cast_to(&utc).ok()).flatten();
                match time {
                    Some(ScalarValue::TimestampMicrosecond(Some(time), _)) => Ok(AsOf::Time(time)),
                    _ => Err(wrong("a time")),
                }
            }
        }
    }
}

impl fmt::Debug for NamedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedTable")
            .field("name", &self.snapshot.name)
            .field("version", &self.snapshot.version)
            .field("pinned", &self.is_pinned())
            .finish()
    }
}

impl NamedTable {
    /// The table `schema.table` as a session's workspace has it, at the version `snapshot`; Programs
    /// run on `node`, for a session that may do what `authority` says.
    pub fn new(
        workspace: Arc<Workspace>,
        node: Arc<StorageNode>,
        authority: Arc<dyn Authority>,
        name: TableName,
        snapshot: Arc<TableSnapshot>,
    ) -> Self {
        Self {
            workspace,
            node,
            authority,
            name,
            snapshot,
            capability: None,
            past: None,
        }
    }

    /// The same as it was.
    ///
    /// # Errors
    /// `Plan` for a version that is not there.
    pub(crate) fn in_the_past(self, past: Past) -> Result<Self> {
        let snapshot = self.past_version(&past)?;
        Ok(Self {
            snapshot,
            past: Some(Arc::new(past)),
            ..self
        })
    }

    fn past_version(&self, past: &Past) -> Result<Arc<TableSnapshot>> {
        let (schema, table) = &self.name;
        let version = self.workspace.as_of(schema, table, past.as_of()?);
        version.map_err(from_storage)
    }

    /// Whether a version is meant that need not be the present one: nobody changes that.
    pub fn is_past(&self) -> bool {
        self.past.is_some()
    }

    /// Whether a statement runs on this version.
    pub(crate) fn is_pinned(&self) -> bool {
        self.capability.is_some()
    }

    /// Schema and name.
    pub fn name(&self) -> &TableName {
        &self.name
    }

    /// What the session sees of the database, and does to it.
    pub fn workspace(&self) -> &Arc<Workspace> {
        &self.workspace
    }

    /// Its pages.
    pub fn store(&self) -> &Arc<PageStore> {
        self.workspace.database().store()
    }

    /// What runs Programs over it.
    pub fn node(&self) -> &Arc<StorageNode> {
        &self.node
    }

    /// The version that a running statement sees; before that the one that it was planned with.
    pub fn snapshot(&self) -> &Arc<TableSnapshot> {
        &self.snapshot
    }

    /// What the session may do with it now.
    pub fn capability(&self) -> Arc<Capability> {
        match &self.capability {
            Some(capability) => Arc::clone(capability),
            None => self.authority.capability(&self.snapshot),
        }
    }

    /// What the session may do with it, which must be this.
    ///
    /// # Errors
    /// `Denied`.
    pub fn capability_to(&self, right: Right) -> Result<Arc<Capability>> {
        let capability = self.capability();
        authority::check(&capability, right, &self.snapshot)?;
        Ok(capability)
    }

    /// The same at the table's present version, or itself where a statement runs on it already.
    ///
    /// # Errors
    /// `Plan` for a table that was dropped since the query was planned, or has other columns or keys.
    pub fn pinned(&self) -> Result<Self> {
        if self.is_pinned() {
            return Ok(self.clone());
        }
        if let Some(past) = &self.past {
            return self.at(Some(self.past_version(past)?));
        }
        let present = self.workspace.snapshots([&self.name]);
        let present = present.map_err(from_storage)?.pop().flatten();
        self.at(present)
    }

    /// The same at a version that has the columns and keys which the plan goes by.
    pub(crate) fn at(&self, snapshot: Option<Arc<TableSnapshot>>) -> Result<Self> {
        let Some(snapshot) = snapshot else {
            let (schema, table) = &self.name;
            return plan_err!("table '{schema}.{table}' does not exist; it was dropped");
        };
        if snapshot.schema != self.snapshot.schema || keys(&snapshot) != keys(&self.snapshot) {
            return plan_err!(
                "table '{}' has other columns or keys than when the query was planned; plan it again",
                self.snapshot.name
            );
        }
        Ok(Self {
            capability: Some(self.authority.capability(&snapshot)),
            snapshot,
            ..self.clone()
        })
    }
}

/// The columns of each key, which the optimizer goes by.
fn keys(table: &TableSnapshot) -> Vec<(bool, &[u32])> {
    let unique = table.indexes.iter().filter(|i| i.definition.unique);
    let mut keys: Vec<_> = unique
        .map(|i| (i.definition.primary, i.definition.columns.as_slice()))
        .collect();
    keys.sort_unstable();
    keys
}
