//! [`FlashTable`]: a table of the store as DataFusion sees it.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{
    Constraint, Constraints, DFSchema, Result, Statistics, not_impl_err, plan_err,
};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableSource, TableType};
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns, split_conjunction};
use datafusion::physical_expr::{PhysicalExpr, conjunction};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExecBuilder;
use flashmesh_macros::async_impl;
use flashmesh_storage::access::NearSearch;
use flashmesh_storage::capability::Right;
use flashmesh_storage::changes::Changes;
use flashmesh_storage::table::is_temporary;

use crate::Reason;
use crate::config::{Fallback, FlashmeshOptions};
use crate::named::NamedTable;
use crate::scan::spec::ScanSpec;
use crate::scan::{ScanBuilder, statistics};
use crate::sink::FlashSink;
use crate::translate::text_of;
use crate::tree::has_subquery;

/// A table, which queries see at the version that [`PinTables`](crate::version::PinTables) gives
/// them when they start to run.
#[derive(Debug, Clone)]
pub struct FlashTable {
    table: NamedTable,
    /// Its keys.
    constraints: Constraints,
    /// What its columns have where INSERT says nothing; none at all where none has such a value.
    defaults: Arc<[Option<Expr>]>,
    /// Whether it shows the ids of its rows as its last column.
    row_ids: bool,
    /// Whether a search for near rows may miss some; `None`: as the session says.
    approximate: Option<bool>,
}

impl FlashTable {
    /// The table of that name.
    pub fn new(table: NamedTable) -> Self {
        let snapshot = table.snapshot();
        let keys = snapshot.indexes.iter().map(|index| &index.definition);
        // Rows with a NULL in a unique key may be many, and equal: DataFusion, which leaves out
        // sorts and groups by what keys determine, doesn't reckon with that.
        let has_null = |column: &u32| snapshot.schema.field(*column as usize).is_nullable();
        let keys = keys.filter(|key| key.unique && !key.columns.iter().any(has_null));
        let keys = keys.map(|key| {
            let columns = key.columns.iter().map(|c| *c as usize).collect();
            match key.primary {
                true => Constraint::PrimaryKey(columns),
                false => Constraint::Unique(columns),
            }
        });
        Self {
            constraints: Constraints::new_unverified(keys.collect()),
            defaults: Arc::default(),
            row_ids: false,
            approximate: None,
            table,
        }
    }

    /// The same with defaults of its columns.
    pub fn with_defaults(self, defaults: Vec<Option<Expr>>) -> Self {
        Self {
            defaults: defaults.into(),
            ..self
        }
    }

    /// The table that a scan in a logical plan reads, if it is one of the database.
    pub fn of(source: &Arc<dyn TableSource>) -> Option<Self> {
        let provider = source_as_provider(source).ok()?;
        provider.downcast_ref::<Self>().cloned()
    }

    /// The same with the ids of its rows as the last column.
    pub fn with_row_ids(self) -> Self {
        Self {
            row_ids: true,
            ..self
        }
    }

    /// What the column of the ids is called.
    pub fn row_id_column(&self) -> &str {
        let schema = &self.table.snapshot().scan_schema;
        schema.field(schema.fields().len() - 1).name()
    }

    /// The same where a search for near rows may miss some, or must not, whatever the session
    /// says.
    pub fn with_approximate(self, approximate: bool) -> Self {
        Self {
            approximate: Some(approximate),
            ..self
        }
    }

    /// What it is called, and the version that it shows.
    pub fn named(&self) -> &NamedTable {
        &self.table
    }

    /// Whether it shows its present columns alone, and a search for near rows is as the session
    /// says.
    pub(crate) fn is_plain(&self) -> bool {
        !self.row_ids && self.approximate.is_none() && !self.table.is_past()
    }

    /// The same at another version.
    pub(crate) fn at(&self, table: NamedTable) -> Self {
        Self {
            table,
            ..self.clone()
        }
    }

    /// Puts what the store evaluates of `filters` into the scan; the rest comes back.
    fn split_filters(
        &self,
        filters: &[Arc<dyn PhysicalExpr>],
        builder: &mut ScanBuilder,
    ) -> Result<Vec<Arc<dyn PhysicalExpr>>> {
        let conjuncts: Vec<_> = filters.iter().flat_map(split_conjunction).collect();
        let reasons = builder.filter(&conjuncts);
        let mut residual = Vec::new();
        for (conjunct, reason) in conjuncts.into_iter().zip(reasons) {
            let Some(reason) = reason else { continue };
            let text = text_of(conjunct.as_ref());
            if builder.spec().forbids_fallback && matches!(reason, Reason::Accelerator(_)) {
                return plan_err!(
                    "flashmesh.fallback is 'error' and the accelerator can't run {text} ({reason})"
                );
            }
            builder.note(text, reason);
            residual.push(Arc::clone(conjunct));
        }
        Ok(residual)
    }
}

#[async_impl]
impl TableProvider for FlashTable {
    fn schema(&self) -> SchemaRef {
        let snapshot = self.table.snapshot();
        Arc::clone(match self.row_ids {
            true => &snapshot.scan_schema,
            false => &snapshot.schema,
        })
    }

    fn constraints(&self) -> Option<&Constraints> {
        Some(&self.constraints)
    }

    fn get_column_default(&self, column: &str) -> Option<&Expr> {
        let place = self.table.snapshot().schema.index_of(column).ok()?;
        self.defaults.get(place)?.as_ref()
    }

    fn table_type(&self) -> TableType {
        match is_temporary(&self.table.name().0) {
            true => TableType::Temporary,
            false => TableType::Base,
        }
    }

    fn statistics(&self) -> Option<Statistics> {
        Some(statistics::of_table(self.table.snapshot(), &self.schema()))
    }

    /// The table takes every filter: [`FlashTable::scan`] knows the session's options and puts
    /// what the store does not evaluate into a filter of its own above the scan. Values of
    /// subqueries are for the plan to supply.
    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        filters
            .iter()
            .map(|filter| {
                Ok(if has_subquery(filter)? || filter.is_volatile() {
                    TableProviderFilterPushDown::Unsupported
                } else {
                    TableProviderFilterPushDown::Exact
                })
            })
            .collect()
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let table = self.table.pinned()?;
        let capability = table.capability_to(Right::Read)?;
        let (snapshot, node) = (table.snapshot(), table.node());
        let options = FlashmeshOptions::of(state.config_options());
        if let Some(bytes) = options.cache_size_bytes {
            table.store().cache().set_capacity_bytes(bytes);
        }
        let table_schema = self.schema();
        let df_schema = DFSchema::try_from(Arc::clone(&table_schema))?;
        let filters = filters
            .iter()
            .map(|filter| state.create_physical_expr(filter.clone(), &df_schema))
            .collect::<Result<Vec<_>>>()?;

        let wanted: Vec<usize> = match projection {
            Some(projection) => projection.clone(),
            None => (0..table_schema.fields().len()).collect(),
        };
        let mut spec = ScanSpec::new(Arc::clone(snapshot), capability, options.pushdown);
        spec.near = match self.approximate.unwrap_or(options.approximate) {
            false => NearSearch::Exact,
            true if options.measure_recall > 0 => NearSearch::Measured,
            true => NearSearch::Approximate,
        };
        spec.accelerator = options.accelerator.as_deref().map(Arc::from);
        spec.forbids_fallback = options.fallback == Fallback::Error;
        let target = state.config().target_partitions();
        let partitions = target.min(snapshot.segments.len()).max(1);
        let (node, schema) = (Arc::clone(node), Arc::clone(&table_schema));
        let mut builder = ScanBuilder::of_table(node, spec, schema, partitions);
        builder.columns(&wanted)?;
        let residual = self.split_filters(&filters, &mut builder)?;
        if residual.is_empty() {
            if let Some(limit) = limit {
                // Where it may not go below, it stays above alone.
                let _ = builder.limit(limit);
            }
            return Ok(Arc::new(builder.build().map_err(Reason::into_error)?));
        }

        // The filter above reads columns that the query may not want.
        let mut ordinals = wanted.clone();
        let known: BTreeSet<usize> = wanted.iter().copied().collect();
        let read: BTreeSet<usize> = residual
            .iter()
            .flat_map(collect_columns)
            .map(|c| c.index())
            .collect();
        ordinals.extend(read.difference(&known));
        builder.columns(&ordinals)?;
        let scan = builder.build().map_err(Reason::into_error)?;
        let predicate = reassign_expr_columns(conjunction(residual), &scan.schema())?;
        let narrowed = (ordinals.len() > wanted.len()).then(|| (0..wanted.len()).collect());
        let filter = FilterExecBuilder::new(predicate, Arc::new(scan))
            .apply_projection(narrowed)?
            .with_batch_size(state.config().batch_size())
            .build()?;
        Ok(Arc::new(filter))
    }

    async fn insert_into(
        &self,
        _state: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        insert_op: InsertOp,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if self.table.is_past() {
            return plan_err!("a past version can't be changed");
        }
        let capability = self.table.capability_to(Right::Write)?;
        let (schema, table) = self.table.name();
        let columns = self.table.snapshot().schema.fields().len();
        if input.schema().fields().len() != columns {
            return plan_err!(
                "table '{schema}.{table}' has {columns} columns, the query gives {}",
                input.schema().fields().len()
            );
        }
        if insert_op == InsertOp::Replace {
            return not_impl_err!(
                "INSERT OR REPLACE into '{schema}.{table}' is not supported yet; use INSERT or INSERT OVERWRITE"
            );
        }
        let sink = FlashSink::new(
            Changes::new(
                Arc::clone(self.table.node()),
                Arc::clone(self.table.workspace()),
            ),
            capability,
            (schema.clone(), table.clone()),
            self.schema(),
            insert_op == InsertOp::Overwrite,
        );
        Ok(Arc::new(DataSinkExec::new(input, Arc::new(sink), None)))
    }
}
