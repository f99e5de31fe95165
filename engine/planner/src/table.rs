//! [`FlashTable`]: a table of the store as DataFusion sees it.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{
    Constraint, Constraints, DFSchema, Result, Statistics, not_impl_err, plan_err,
};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns, split_conjunction};
use datafusion::physical_expr::{PhysicalExpr, conjunction};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExecBuilder;
use flashmesh_pushdown::Output;
use flashmesh_storage::access::NearSearch;
use flashmesh_storage::capability::{Capability, Right};
use flashmesh_storage::changes::Changes;
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::table::{Database, TableSnapshot};

use crate::Reason;
use crate::authority::{self, Authority};
use crate::config::{Fallback, FlashmeshOptions, Pushdown};
use crate::scan::spec::{PushedFilter, ScanSpec};
use crate::scan::{FlashScanExec, schema_of_columns, statistics};
use crate::sink::FlashSink;
use crate::translate::{Scope, text_of, translate, weaken};

/// One version of a table. The catalog makes a new one for each query, so that a query sees one
/// version throughout.
#[derive(Debug)]
pub struct FlashTable {
    database: Arc<Database>,
    node: Arc<StorageNode>,
    /// Schema and name in the database.
    name: (String, String),
    snapshot: Arc<TableSnapshot>,
    /// What the session may do with it.
    capability: Arc<Capability>,
    /// Its keys.
    constraints: Constraints,
    /// The columns that it shows.
    schema: SchemaRef,
    /// Whether a search for near rows may miss some; `None`: as the session says.
    approximate: Option<bool>,
}

impl FlashTable {
    /// The table `schema.table` of `database` as it is in `snapshot`; Programs run on `node`, for
    /// a session that may do what `authority` says.
    pub fn new(
        database: Arc<Database>,
        node: Arc<StorageNode>,
        schema: impl Into<String>,
        table: impl Into<String>,
        snapshot: Arc<TableSnapshot>,
        authority: &dyn Authority,
    ) -> Self {
        let keys = snapshot.indexes.iter().map(|index| &index.definition);
        let keys = keys.filter(|key| key.unique).map(|key| {
            let columns = key.columns.iter().map(|c| *c as usize).collect();
            match key.primary {
                true => Constraint::PrimaryKey(columns),
                false => Constraint::Unique(columns),
            }
        });
        Self {
            constraints: Constraints::new_unverified(keys.collect()),
            schema: Arc::clone(&snapshot.schema),
            capability: authority.capability(&snapshot),
            approximate: None,
            database,
            node,
            name: (schema.into(), table.into()),
            snapshot,
        }
    }

    /// The same with the ids of its rows as the last column.
    pub fn with_row_ids(self) -> Self {
        Self {
            schema: Arc::clone(&self.snapshot.scan_schema),
            ..self
        }
    }

    /// The same where a search for near rows may miss some, or must not, whatever the session
    /// says.
    pub fn with_approximate(self, approximate: bool) -> Self {
        Self {
            approximate: Some(approximate),
            ..self
        }
    }

    /// Its schema and its name.
    pub fn name(&self) -> (&str, &str) {
        (&self.name.0, &self.name.1)
    }

    /// The version that it shows.
    pub fn snapshot(&self) -> &Arc<TableSnapshot> {
        &self.snapshot
    }

    /// Puts what translates of `filters` into `spec`; the rest comes back.
    fn split_filters(
        &self,
        filters: &[Arc<dyn PhysicalExpr>],
        spec: &mut ScanSpec,
        fallback: Fallback,
    ) -> Result<Vec<Arc<dyn PhysicalExpr>>> {
        let scope = Scope::of_table(Arc::clone(&self.schema));
        let mut residual = Vec::new();
        for filter in filters.iter().flat_map(split_conjunction) {
            let text = text_of(filter.as_ref());
            let reason = match spec.mode {
                Pushdown::Never => Reason::Off,
                _ => match translate(filter.as_ref(), &scope) {
                    Ok(expr) => match self.add(
                        spec,
                        PushedFilter {
                            expr,
                            text: text.clone(),
                            exact: true,
                        },
                    ) {
                        Ok(()) => continue,
                        Err(reason) => reason,
                    },
                    Err(reason) => {
                        if let Some(expr) = weaken(filter.as_ref(), &scope) {
                            // That it prunes less than it could is no failure.
                            let _ = self.add(
                                spec,
                                PushedFilter {
                                    expr,
                                    text: text.clone(),
                                    exact: false,
                                },
                            );
                        }
                        reason
                    }
                },
            };
            if fallback == Fallback::Error && matches!(reason, Reason::Accelerator(_)) {
                return plan_err!(
                    "flashmesh.fallback is 'error' and the accelerator can't run {text} ({reason})"
                );
            }
            spec.note(text, reason);
            residual.push(Arc::clone(filter));
        }
        Ok(residual)
    }

    fn add(&self, spec: &mut ScanSpec, filter: PushedFilter) -> Result<(), Reason> {
        spec.filters.push(filter);
        spec.verified(&self.node).map(|_| ()).inspect_err(|_| {
            spec.filters.pop();
        })
    }
}

#[async_trait]
impl TableProvider for FlashTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn constraints(&self) -> Option<&Constraints> {
        Some(&self.constraints)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn statistics(&self) -> Option<Statistics> {
        Some(statistics::of_table(&self.snapshot, &self.schema))
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
        authority::check(&self.capability, Right::Read, &self.snapshot)?;
        let options = FlashmeshOptions::of(state.config_options());
        if let Some(bytes) = options.cache_size_bytes {
            self.database.store().cache().set_capacity_bytes(bytes);
        }
        let table_schema = &self.schema;
        let df_schema = DFSchema::try_from(Arc::clone(table_schema))?;
        let filters = filters
            .iter()
            .map(|filter| state.create_physical_expr(filter.clone(), &df_schema))
            .collect::<Result<Vec<_>>>()?;

        let wanted: Vec<usize> = match projection {
            Some(projection) => projection.clone(),
            None => (0..table_schema.fields().len()).collect(),
        };
        let mut spec = ScanSpec::of_columns(
            Arc::clone(&self.snapshot),
            Arc::clone(&self.capability),
            options.pushdown,
            &wanted,
        );
        spec.near = match self.approximate.unwrap_or(options.approximate) {
            false => NearSearch::Exact,
            true if options.measure_recall > 0 => NearSearch::Measured,
            true => NearSearch::Approximate,
        };
        spec.accelerator = options.accelerator.as_deref().map(Arc::from);
        spec.forbids_fallback = options.fallback == Fallback::Error;
        let residual = self.split_filters(&filters, &mut spec, options.fallback)?;

        let target = state.config().target_partitions();
        let partitions = target.min(self.snapshot.segments.len()).max(1);
        let scan_of = |spec, ordinals: &[usize]| -> Result<FlashScanExec> {
            let schema = schema_of_columns(table_schema, ordinals)?;
            FlashScanExec::try_new(spec, Arc::clone(&self.node), schema, partitions)
                .map_err(Reason::into_error)
        };
        if residual.is_empty() {
            if let (
                Output::Rows {
                    limit: scan_limit, ..
                },
                Some(limit),
            ) = (&mut spec.output, limit)
                && options.pushdown != Pushdown::Never
            {
                *scan_limit = Some(limit as u64);
            }
            return Ok(Arc::new(scan_of(spec, &wanted)?));
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
        let columns = ScanSpec::of_columns(
            Arc::clone(&self.snapshot),
            Arc::clone(&self.capability),
            options.pushdown,
            &ordinals,
        );
        (spec.output, spec.text) = (columns.output, columns.text);
        let scan = scan_of(spec, &ordinals)?;
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
        authority::check(&self.capability, Right::Write, &self.snapshot)?;
        let (schema, table) = &self.name;
        let columns = self.snapshot.schema.fields().len();
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
            Changes::new(Arc::clone(&self.node), Arc::clone(&self.database)),
            Arc::clone(&self.capability),
            (schema.clone(), table.clone()),
            self.schema(),
            insert_op == InsertOp::Overwrite,
        );
        Ok(Arc::new(DataSinkExec::new(input, Arc::new(sink), None)))
    }
}

fn has_subquery(expr: &Expr) -> Result<bool> {
    let mut found = false;
    expr.apply(|node| {
        found |= matches!(
            node,
            Expr::ScalarSubquery(_)
                | Expr::InSubquery(_)
                | Expr::Exists(_)
                | Expr::SetComparison(_)
        );
        Ok(if found {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    })?;
    Ok(found)
}
