//! The database whose tables functions read: its names, and what may be read of it.

use std::sync::Arc;

use datafusion::common::{
    ResolvedTableReference, Result, TableReference, plan_datafusion_err, plan_err,
};
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::LogicalPlanBuilder;
use flashmesh_storage::StorageError;
use flashmesh_storage::capability::Right;
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::table::{TableSnapshot, Workspace};

use super::arguments::Arguments;
use crate::FlashTable;
use crate::authority::{self, Authority};
use crate::error::from_storage;
use crate::named::{NamedTable, TableName};

/// Plans the table functions of a database.
#[derive(Debug)]
pub struct StoreRelations {
    pub(super) workspace: Arc<Workspace>,
    pub(super) node: Arc<StorageNode>,
    pub(super) authority: Arc<dyn Authority>,
    /// The catalog by which SQL names the database.
    pub(super) catalog: String,
}

impl StoreRelations {
    /// The functions over the database of `workspace`, which SQL calls `catalog`; Programs run on
    /// `node`, for a session that may do what `authority` says.
    pub fn new(
        workspace: Arc<Workspace>,
        node: Arc<StorageNode>,
        authority: Arc<dyn Authority>,
        catalog: &str,
    ) -> Self {
        Self {
            workspace,
            node,
            authority,
            catalog: catalog.into(),
        }
    }

    /// The name of a table or an index that an argument gives, with its schema.
    pub(super) fn written(
        &self,
        name: &str,
        arguments: &Arguments<'_>,
    ) -> Result<ResolvedTableReference> {
        let name =
            TableReference::parse_str(name).resolve(&self.catalog, &arguments.default_schema());
        if name.catalog.as_ref() != self.catalog {
            return plan_err!(
                "{}: '{name}' is not in this database; write schema.name or name",
                arguments.function()
            );
        }
        Ok(name)
    }

    /// Where the session finds what is called so.
    pub(super) fn place_of(&self, name: &ResolvedTableReference) -> TableName {
        let schema = self.workspace.place_of(&name.schema, &name.table);
        (schema.to_owned(), name.table.to_string())
    }

    /// A table that an argument names.
    pub(super) fn table(&self, name: &str, arguments: &Arguments<'_>) -> Result<Table> {
        let name = self.place_of(&self.written(name, arguments)?);
        let snapshot = self.workspace.snapshot(&name.0, &name.1);
        let table = self.named(name, snapshot.map_err(from_storage)?);
        self.check_readable(&table, "table", &table.snapshot().name)?;
        Ok(table)
    }

    pub(super) fn named(&self, name: TableName, snapshot: Arc<TableSnapshot>) -> Table {
        let (workspace, node) = (Arc::clone(&self.workspace), Arc::clone(&self.node));
        let authority = Arc::clone(&self.authority);
        Table(NamedTable::new(workspace, node, authority, name, snapshot))
    }

    /// Refuses a table that the session may not read before anything is said of it; one of which
    /// it may not know, or what is of it, looks like one that is not there.
    pub(super) fn check_readable(
        &self,
        table: &Table,
        kind: &'static str,
        name: &str,
    ) -> Result<()> {
        let capability = self.authority.capability(table.snapshot());
        if capability.rights.is_empty() {
            return Err(from_storage(StorageError::NotFound {
                kind,
                name: name.into(),
            }));
        }
        authority::check(&capability, Right::Read, table.snapshot())
    }
}

/// A table that a function reads.
pub(super) struct Table(pub(super) NamedTable);

impl Table {
    /// The version that the function is planned with.
    pub(super) fn snapshot(&self) -> &Arc<TableSnapshot> {
        self.0.snapshot()
    }

    /// What its columns are qualified with.
    pub(super) fn name(&self) -> &str {
        &self.0.name().1
    }

    /// A scan of all columns, with the ids of the rows if asked for.
    pub(super) fn scan(&self, row_ids: bool) -> Result<LogicalPlanBuilder> {
        let provider = FlashTable::new(self.0.clone());
        self.scan_of(match row_ids {
            true => provider.with_row_ids(),
            false => provider,
        })
    }

    /// A scan of all columns, in which a search for near rows may use an index.
    pub(super) fn near_scan(&self, approximate: bool) -> Result<LogicalPlanBuilder> {
        self.scan_of(FlashTable::new(self.0.clone()).with_approximate(approximate))
    }

    pub(super) fn scan_of(&self, provider: FlashTable) -> Result<LogicalPlanBuilder> {
        LogicalPlanBuilder::scan(self.name(), provider_as_source(Arc::new(provider)), None)
    }

    /// A column that an argument names.
    pub(super) fn column(&self, name: &str, arguments: &Arguments<'_>) -> Result<usize> {
        self.snapshot().schema.index_of(name).map_err(|_| {
            let fields = self.snapshot().schema.fields().iter();
            let names: Vec<_> = fields.map(|f| f.name().as_str()).collect();
            plan_datafusion_err!(
                "{}: table '{}' has no column '{name}'; it has: {}",
                arguments.function(),
                self.name(),
                names.join(", ")
            )
        })
    }
}
