//! Statements that change rows: what each runs, what it stores, and how often it is tried.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use arrow::datatypes::{Field, Schema};
use datafusion::catalog::SchemaProvider;
use datafusion::common::DFSchema;
use datafusion::common::tree_node::Transformed;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::TableType;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{DmlStatement, LogicalPlan, WriteOp};
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast;
use flashmesh_planner::interrupt::StopOnDrop;
use flashmesh_planner::version::pin_tables;
use flashmesh_planner::walk::Walk as _;
use flashmesh_planner::{Authority, FlashTable};
use flashmesh_storage::StorageError;
use flashmesh_storage::capability::{Capability, Right};
use flashmesh_storage::changes::Changes;
use flashmesh_storage::table::{Load, LoadTarget, TableSnapshot, Workspace};

use crate::Session;
use crate::assign::assign;
use crate::blocking::blocking;
use crate::change::changed_rows;
use crate::constants::constant_rows;
use crate::defaults::{insert_defaults, set_defaults};
use crate::error::{Error, Result};
use crate::load::{self, LoadProgress};
use crate::returning::{Returned, with_returned};
use crate::row_ids::version_of;
use crate::upsert::say_replace;

/// How often UPDATE, DELETE and MERGE are tried while others change the same rows.
pub(crate) const CHANGE_ATTEMPTS: u32 = 20;

impl Session {
    /// The present version of the table that a change names, if it is on flash.
    pub(crate) fn changed_table(&self, name: &ast::ObjectName) -> Option<Arc<TableSnapshot>> {
        let name = object_name_to_table_reference(name.clone(), true).ok()?;
        let name = self.resolve(name);
        self.flash_schema(&name).ok()?.snapshot(&name.table).ok()
    }

    /// Has a change leave to the table what it leaves to it: DEFAULT in VALUES and SET becomes the
    /// column's default. Refuses what only the table may give.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub(crate) fn with_defaults(&self, statement: &mut ast::Statement) -> Result<()> {
        match statement {
            ast::Statement::Insert(insert) => {
                let ast::TableObject::TableName(name) = &insert.table else {
                    return Ok(());
                };
                let Some(table) = self.changed_table(name) else {
                    return Ok(());
                };
                say_replace(&table, insert);
                if let Some(ast::OnInsert::OnConflict(conflict)) = &mut insert.on
                    && let ast::OnConflictAction::DoUpdate(update) = &mut conflict.action
                {
                    set_defaults(&table, &mut update.assignments)?;
                }
                insert_defaults(&table, insert)
            }
            ast::Statement::Update(update) => match &update.table.relation {
                ast::TableFactor::Table { name, .. } => match self.changed_table(name) {
                    Some(table) => set_defaults(&table, &mut update.assignments),
                    None => Ok(()),
                },
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Stores the rows of a query and gives their number.
    pub(crate) async fn load_plan(
        &self,
        target: LoadTarget,
        query: LogicalPlan,
        progress: Arc<LoadProgress>,
    ) -> Result<u64> {
        self.load_planned(target, None, query, progress, None, false)
            .await
    }

    /// The same into a table that must have the columns of the version which the query was planned
    /// for, and with what the query gives beside the rows.
    async fn load_planned(
        &self,
        target: LoadTarget,
        planned: Option<Arc<TableSnapshot>>,
        query: LogicalPlan,
        progress: Arc<LoadProgress>,
        returned: Option<Arc<Returned>>,
        is_merge: bool,
    ) -> Result<u64> {
        let beginning = Beginning {
            capability: self.check_target(&target)?,
            target,
            planned,
            changes: self.changes(),
            workspace: Arc::clone(self.workspace()),
        };
        if returned.is_none()
            && !is_merge
            && let Some(rows) = constant_rows(&query)?
        {
            // A small statement is the work of one thread.
            return blocking(move || {
                let load = beginning.load()?;
                let mut writer = load.writer()?;
                writer.append(&rows)?;
                writer.finish()?;
                Ok::<_, Error>(load.commit()?)
            })
            .await;
        }
        // Plan first: a query that can't run shall not start a load.
        let plan = self.context().state().create_physical_plan(&query).await?;
        let _stop = StopOnDrop::new(&plan);
        let load = blocking(move || beginning.load()).await?;
        load::run(
            load,
            plan,
            self.context().task_ctx(),
            self.engine().threads(),
            progress,
            returned,
            is_merge,
        )
        .await
    }

    /// Refuses a load that the user may not do; gives the capability for one that they may.
    pub(crate) fn check_target(&self, target: &LoadTarget) -> Result<Arc<Capability>> {
        let authority = self.catalog().authority();
        match target {
            LoadTarget::Create { schema, table, .. } => {
                self.principal().check(Right::Create, schema, table)?;
                Ok(Arc::new(authority.of_name(schema, table)))
            }
            LoadTarget::Redefine {
                schema,
                table,
                version,
                ..
            } => {
                self.principal().check(Right::Create, schema, table)?;
                Ok(authority.capability(version))
            }
            LoadTarget::Append { schema, table }
            | LoadTarget::Change { schema, table, .. }
            | LoadTarget::Overwrite { schema, table } => {
                self.principal().check(Right::Write, schema, table)?;
                let table = self.workspace().snapshot(schema, table)?;
                Ok(authority.capability(&table))
            }
        }
    }

    /// Changes rows and gives their number, or what `returning` says of them.
    pub(crate) async fn execute_dml(
        &self,
        dml: DmlStatement,
        returning: Option<&LogicalPlan>,
    ) -> Result<DataFrame> {
        let name = self.resolve(dml.table_name.clone());
        let on_flash = self
            .flash_schema(&name)
            .is_ok_and(|schema| schema.is_on_flash(&name.table));
        if !on_flash {
            if let Ok(schema) = self.flash_schema(&name)
                && schema.table_type(&name.table).await? == Some(TableType::View)
            {
                return Err(Error::usage(format!(
                    "'{}' is a view; rows are changed in its tables",
                    name.table
                )));
            }
            return self.run_now(LogicalPlan::Dml(dml)).await;
        }
        let (schema, table) = (name.schema.to_string(), name.table.to_string());
        let target = match dml.op {
            WriteOp::Insert(InsertOp::Append) => LoadTarget::Append { schema, table },
            WriteOp::Insert(InsertOp::Overwrite) => LoadTarget::Overwrite { schema, table },
            WriteOp::Insert(InsertOp::Replace) => {
                return Err(Error::usage(format!(
                    "REPLACE INTO {table} is not supported yet; INSERT refuses keys that are there"
                )));
            }
            WriteOp::Truncate => {
                let target = LoadTarget::Overwrite { schema, table };
                let capability = self.check_target(&target)?;
                let changes = self.changes();
                blocking(move || changes.begin_load(&capability, target)?.commit()).await?;
                return self.nothing();
            }
            WriteOp::Update | WriteOp::Delete | WriteOp::MergeInto(_) => {
                return self.execute_change(&dml, returning).await;
            }
            op => {
                return Err(Error::usage(format!(
                    "{} on table '{table}' is not supported",
                    op.name().to_uppercase()
                )));
            }
        };
        let planned = FlashTable::of(&dml.target);
        let planned = planned.map(|table| Arc::clone(table.named().snapshot()));
        let mut input = assign(nullable_values(dml.input.as_ref().clone())?)?;
        let stored = 0..input.schema().fields().len();
        let returned = match returning {
            Some(rows) => {
                input = with_returned(rows, input, stored)?;
                Some(self.returned(rows))
            }
            None => None,
        };
        let progress = Arc::default();
        let rows = returned.clone();
        let rows = self.load_planned(target, planned, input, progress, rows, false);
        self.answer(rows.await?, returned)
    }

    /// Where what is returned is kept.
    fn returned(&self, rows: &LogicalPlan) -> Arc<Returned> {
        Returned::new(rows, &self.context().runtime_env().memory_pool)
    }

    /// The result of a change of so many rows.
    fn answer(&self, rows: u64, returned: Option<Arc<Returned>>) -> Result<DataFrame> {
        match returned {
            Some(returned) => returned.into_frame(self.context().state()),
            None => self.count(rows),
        }
    }

    /// Runs UPDATE, DELETE or MERGE, once more where another statement has changed the same rows meanwhile.
    async fn execute_change(
        &self,
        dml: &DmlStatement,
        returning: Option<&LogicalPlan>,
    ) -> Result<DataFrame> {
        let Some(target) = FlashTable::of(&dml.target) else {
            return Err(Error::usage(
                "UPDATE, DELETE and MERGE change tables on flash",
            ));
        };
        let is_merge = matches!(dml.op, WriteOp::MergeInto(_));
        let plan = match returning {
            Some(rows) => {
                let (changed, stored) = changed_rows(dml, &target, true)?;
                with_returned(rows, changed, stored)?
            }
            None => changed_rows(dml, &target, false)?.0,
        };
        let mut attempts = 0;
        loop {
            // What is read and what is changed is of one version.
            let plan = pin_tables(plan.clone())?;
            let version = version_of(&plan, &target)?;
            let (schema, table) = target.named().name().clone();
            let change = LoadTarget::Change {
                schema: schema.clone(),
                table: table.clone(),
                version: Arc::clone(&version),
            };
            attempts += 1;
            let returned = returning.map(|rows| self.returned(rows));
            let progress = Arc::default();
            let load = returned.clone();
            let load = self.load_planned(change, None, plan, progress, load, is_merge);
            match load.await {
                Err(error) if attempts < CHANGE_ATTEMPTS => {
                    let name = (schema.as_str(), table.as_str());
                    if !error
                        .storage()
                        .is_some_and(|e| self.was_overtaken(e, name, &version))
                    {
                        return Err(error);
                    }
                }
                changed => return self.answer(changed?, returned),
            }
        }
    }

    /// Whether a change of a version of a table failed because another one was faster, so that it
    /// may pass when it is made again.
    pub(crate) fn was_overtaken(
        &self,
        error: &StorageError,
        (schema, table): (&str, &str),
        version: &TableSnapshot,
    ) -> bool {
        match error {
            StorageError::Conflict { .. } => true,
            // The key may have come meanwhile, and ON CONFLICT meets it now.
            StorageError::DuplicateKey { .. } => {
                let present = self.workspace().snapshot(schema, table);
                present.is_ok_and(|present| present.version != version.version)
            }
            _ => false,
        }
    }

    /// The one-row result of a statement that stored rows, as INSERT has it.
    pub(crate) fn count(&self, rows: u64) -> Result<DataFrame> {
        let schema = Arc::new(Schema::new(vec![Field::new(
            "count",
            arrow::datatypes::DataType::UInt64,
            false,
        )]));
        let column: ArrayRef = Arc::new(UInt64Array::from(vec![rows]));
        Ok(self
            .context()
            .read_batch(RecordBatch::try_new(schema, vec![column])?)?)
    }
}

/// A load that is about to begin.
struct Beginning {
    changes: Changes,
    workspace: Arc<Workspace>,
    capability: Arc<Capability>,
    target: LoadTarget,
    /// The version of the table that the rows were planned for, if its columns count.
    planned: Option<Arc<TableSnapshot>>,
}

impl Beginning {
    /// The load, which blocks.
    ///
    /// # Errors
    /// Those of [`Changes::begin_load`]; [`Error::Usage`] where the table has become another one.
    fn load(self) -> Result<Load> {
        let load = self.changes.begin_load(&self.capability, self.target);
        let Some(planned) = self.planned else {
            return Ok(load?);
        };
        let is_other = match &load {
            Ok(load) => load.table() != planned.id || load.schema() != planned.schema,
            // The right was to write the table that was there.
            Err(_) => {
                let (schema, table) = planned.name.split_once('.').unwrap_or_default();
                let present = self.workspace.snapshot(schema, table);
                present.is_ok_and(|present| present.id != planned.id)
            }
        };
        match is_other {
            true => Err(Error::usage(format!(
                "table '{}' has become another one, or has other columns, since the statement was planned; run it again",
                planned.name
            ))),
            false => Ok(load?),
        }
    }
}

/// `plan` with every column of its VALUES nullable. DataFusion gives them the nullability of the
/// table's columns and then fails on a NULL without naming the column; the load names it.
pub(crate) fn nullable_values(plan: LogicalPlan) -> Result<LogicalPlan> {
    let plan = plan.transform_up(|node| match node {
        LogicalPlan::Values(mut values) => {
            let fields = values
                .schema
                .iter()
                .map(|(qualifier, field)| {
                    (
                        qualifier.cloned(),
                        Arc::new(field.as_ref().clone().with_nullable(true)),
                    )
                })
                .collect();
            values.schema = Arc::new(DFSchema::new_with_metadata(
                fields,
                values.schema.metadata().clone(),
            )?);
            Ok(Transformed::yes(LogicalPlan::Values(values)))
        }
        other => Ok(Transformed::yes(other.recompute_schema()?)),
    })?;
    Ok(plan.data)
}
