//! [`FlashScanExec`]: the leaf of a plan that runs a Program beside the pages.

mod bitmap;
mod display;
mod execution;
pub(crate) mod metrics;
mod runtime;
pub mod spec;
pub mod statistics;

use std::fmt;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics};
use datafusion::config::ConfigOptions;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{
    AcrossPartitions, ConstExpr, EquivalenceProperties, Partitioning, PhysicalExpr,
};
use datafusion::physical_expr_common::physical_expr::snapshot_generation;
use datafusion::physical_plan::execution_plan::{
    Boundedness, EmissionType, SchedulingType, apply_expression_roots,
};
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterPushdownPhase, FilterPushdownPropagation, PushedDown,
};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
    ReplaceChildrenOptions, SendableRecordBatchStream,
};
use flashmesh_pushdown::{Expr, Output, VerifiedProgram};
use flashmesh_storage::access::AccessPath;
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::page::plain::plain_schema;

use self::execution::Executions;
use self::spec::{PushedFilter, ScanSpec};
use crate::config::Pushdown;
use crate::translate::{Scope, scalar_value_of, text_of, translate};
use crate::{Reason, rules};

/// A scan of one table: one request and one stream of batches for each partition.
#[derive(Debug)]
pub struct FlashScanExec {
    spec: ScanSpec,
    node: Arc<StorageNode>,
    program: Arc<VerifiedProgram>,
    /// The index that answers a part of the filter, chosen when it is first asked for: planning
    /// makes many scans of which few are run.
    access: OnceLock<Option<Arc<AccessPath>>>,
    /// Expressions over the output that change while the query runs.
    dynamic_filters: Vec<Arc<dyn PhysicalExpr>>,
    properties: Arc<PlanProperties>,
    executions: Executions,
}

impl FlashScanExec {
    /// A scan that does what `spec` says. `schema` names and types the output; a [`Reason`] says
    /// why the store can't run it.
    pub fn try_new(
        spec: ScanSpec,
        node: Arc<StorageNode>,
        schema: SchemaRef,
        partitions: usize,
    ) -> Result<Self, Reason> {
        let program = spec.verified(&node)?;
        let emission = match &spec.output {
            Output::Rows { order, .. } if order.is_empty() => EmissionType::Incremental,
            _ => EmissionType::Final,
        };
        let equivalences = equivalences(&spec, schema)
            .map_err(|error| Reason::Operator(error.strip_backtrace()))?;
        let properties = PlanProperties::new(
            equivalences,
            Partitioning::UnknownPartitioning(partitions.max(1)),
            emission,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        Ok(Self {
            spec,
            node,
            program,
            access: OnceLock::new(),
            dynamic_filters: vec![],
            properties: Arc::new(properties),
            executions: Executions::default(),
        })
    }

    /// What it does.
    pub fn spec(&self) -> &ScanSpec {
        &self.spec
    }

    /// The Program.
    pub fn program(&self) -> &Arc<VerifiedProgram> {
        &self.program
    }

    /// The index that answers a part of its filter.
    pub fn access(&self) -> Option<&Arc<AccessPath>> {
        let access = self.access.get_or_init(|| match self.spec.mode {
            Pushdown::Never => None,
            _ => AccessPath::choose(&self.program, &self.spec.table, self.spec.near).map(Arc::new),
        });
        access.as_ref()
    }

    /// The node that runs it.
    pub fn node(&self) -> &Arc<StorageNode> {
        &self.node
    }

    /// The number of streams.
    pub fn partitions(&self) -> usize {
        self.properties.partitioning.partition_count()
    }

    /// Expressions over the output that change while the query runs.
    pub fn dynamic_filters(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.dynamic_filters
    }

    /// The same scan doing something else.
    pub fn with_spec(&self, spec: ScanSpec, schema: SchemaRef) -> Result<Self, Reason> {
        Self::try_new(spec, Arc::clone(&self.node), schema, self.partitions())
    }

    /// The same scan with a note in its text of what stayed above it and why.
    pub fn with_note(&self, text: String, reason: Reason) -> Self {
        let mut spec = self.spec.clone();
        spec.note(text, reason);
        Self {
            spec,
            ..self.fresh()
        }
    }

    /// The same scan with text in plain arrays instead of views, as it is for whoever only passes
    /// it on; `None` for a scan that orders or aggregates. For the root of a plan: what is above
    /// a scan was planned for its views.
    pub fn with_plain_text(&self) -> Option<Self> {
        let mut spec = self.spec.clone();
        match &spec.output {
            Output::Rows { order, .. } if order.is_empty() => spec.plain_text = true,
            _ => return None,
        }
        let scan = self.with_spec(spec, plain_schema(&self.schema()));
        // A filter that changes while the query runs comes from above.
        scan.ok().filter(|_| self.dynamic_filters.is_empty())
    }

    /// A copy that shares no state of execution.
    fn fresh(&self) -> Self {
        Self {
            spec: self.spec.clone(),
            node: Arc::clone(&self.node),
            program: Arc::clone(&self.program),
            access: self.access.clone(),
            dynamic_filters: self.dynamic_filters.clone(),
            properties: Arc::clone(&self.properties),
            executions: Executions::default(),
        }
    }

    /// What the scan's output columns are in terms of the table.
    pub fn scope(&self) -> Scope {
        let columns = self
            .spec
            .output_columns()
            .into_iter()
            .map(|expr| {
                expr.cloned()
                    .ok_or_else(|| Reason::Blocked("it reads an aggregate".into()))
            })
            .collect();
        Scope::new(self.schema(), columns)
    }

    /// Whether `expr` reads no column that is an aggregate.
    fn reads_only_keys(&self, expr: &Arc<dyn PhysicalExpr>) -> bool {
        let columns = self.spec.output_columns();
        collect_columns(expr)
            .iter()
            .all(|column| columns.get(column.index()).is_some_and(Option::is_some))
    }

    /// Adds a filter over the output to the Program.
    fn push_filter(
        &self,
        spec: &mut ScanSpec,
        filter: &Arc<dyn PhysicalExpr>,
    ) -> Result<(), Reason> {
        if spec.mode == Pushdown::Never {
            return Err(Reason::Off);
        }
        if !spec.output_accepts_filters() {
            return Err(Reason::Blocked(
                "it filters what a limit or an aggregate gives".into(),
            ));
        }
        let expr = translate(filter.as_ref(), &self.scope())?;
        let mut candidate = spec.clone();
        candidate.filters.push(PushedFilter {
            expr,
            text: text_of(filter.as_ref()),
            exact: true,
        });
        candidate.verified(&self.node)?;
        *spec = candidate;
        Ok(())
    }

    /// Whether runtime filters of the store can do anything with `filter`.
    fn accepts_dynamic_filter(&self, filter: &Arc<dyn PhysicalExpr>) -> bool {
        self.spec.mode != Pushdown::Never
            && self.spec.output_accepts_filters()
            && self.reads_only_keys(filter)
            && collect_columns(filter).iter().any(|column| {
                matches!(
                    self.spec.output_columns().get(column.index()),
                    Some(Some(Expr::Column(_)))
                )
            })
    }
}

impl DisplayAs for FlashScanExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display::write(self, format, f)
    }
}

impl ExecutionPlan for FlashScanExec {
    fn name(&self) -> &str {
        "FlashScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn replace_children(
        self: Arc<Self>,
        _children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(
            children,
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        )
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(self.fresh()))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        apply_expression_roots(&self.dynamic_filters, f)
    }

    fn repartitioned(
        &self,
        target_partitions: usize,
        _config: &ConfigOptions,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let partitions = target_partitions.min(self.spec.table.segments.len());
        if partitions <= self.partitions() {
            return Ok(None);
        }
        let properties = PlanProperties::clone(&self.properties)
            .with_partitioning(Partitioning::UnknownPartitioning(partitions));
        Ok(Some(Arc::new(Self {
            properties: Arc::new(properties),
            ..self.fresh()
        })))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.executions.open(self, partition, &context)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let fallbacks = self
            .spec
            .not_pushed
            .iter()
            .filter(|note| matches!(note.reason, Reason::Accelerator(_)))
            .count();
        let counters = self.executions.last_metrics()?;
        Some(metrics::metrics_set(&counters, fallbacks))
    }

    fn statistics_from_inputs(
        &self,
        _input_stats: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let partitions = self.partitions();
        let dynamic = !self.dynamic_filters.is_empty();
        let statistics = statistics::of_scan(&self.spec, &self.schema(), partitions, dynamic);
        Ok(Arc::new(match args.partition() {
            // Partitions share one queue of segments: how many each gets is not known.
            Some(_) if partitions > 1 => {
                let mut one = statistics.to_inexact();
                one.num_rows = divided(&one.num_rows, partitions);
                one.total_byte_size = divided(&one.total_byte_size, partitions);
                one
            }
            _ => statistics,
        }))
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        let mut spec = self.spec.clone();
        if spec.mode == Pushdown::Never {
            return None;
        }
        let Output::Rows { limit: known, .. } = &mut spec.output else {
            return None;
        };
        let limit = limit? as u64;
        *known = Some(known.map_or(limit, |known| known.min(limit)));
        let scan = self.with_spec(spec, self.schema()).ok()?;
        Some(Arc::new(Self {
            dynamic_filters: self.dynamic_filters.clone(),
            ..scan
        }))
    }

    fn fetch(&self) -> Option<usize> {
        match &self.spec.output {
            Output::Rows {
                limit: Some(limit), ..
            } => usize::try_from(*limit).ok(),
            _ => None,
        }
    }

    fn try_swapping_with_projection(
        &self,
        projection: &ProjectionExec,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if !self.dynamic_filters.is_empty() {
            // They are over the present output.
            return Ok(None);
        }
        Ok(rules::projection::into_scan(self, projection).map(|scan| Arc::new(scan) as _))
    }

    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        child_pushdown_result: ChildPushdownResult,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let mut spec = self.spec.clone();
        let mut dynamic_filters = self.dynamic_filters.clone();
        let mut results = Vec::with_capacity(child_pushdown_result.parent_filters.len());
        for parent in child_pushdown_result.parent_filters {
            let filter = parent.filter;
            if snapshot_generation(&filter) != 0 {
                // It stays above too: runtime filters may come late and let more rows pass.
                if phase == FilterPushdownPhase::Post && self.accepts_dynamic_filter(&filter) {
                    dynamic_filters.push(filter);
                }
                results.push(PushedDown::No);
                continue;
            }
            match self.push_filter(&mut spec, &filter) {
                Ok(()) => results.push(PushedDown::Yes),
                Err(reason) => {
                    if reason == Reason::Subquery
                        && phase == FilterPushdownPhase::Post
                        && self.accepts_dynamic_filter(&filter)
                    {
                        // Its value is there before the scan starts: it prunes below the filter.
                        dynamic_filters.push(Arc::clone(&filter));
                    }
                    spec.note(text_of(filter.as_ref()), reason);
                    results.push(PushedDown::No);
                }
            }
        }
        let propagation = FilterPushdownPropagation::with_parent_pushdown_result(results);
        let changed = spec.filters.len() != self.spec.filters.len()
            || spec.not_pushed.len() != self.spec.not_pushed.len()
            || dynamic_filters.len() != self.dynamic_filters.len();
        if !changed {
            return Ok(propagation);
        }
        // Each filter was verified as it was added, so that the whole can't be refused.
        let scan = self
            .with_spec(spec, self.schema())
            .map_err(Reason::into_error)?;
        Ok(propagation.with_updated_node(Arc::new(Self {
            dynamic_filters,
            ..scan
        })))
    }
}

/// What is known of the output's columns: those of one expression are equal, literals constant. A
/// sort that was planned above a projection leaves such keys out, and must be right above a scan
/// that has taken the projection in.
fn equivalences(spec: &ScanSpec, schema: SchemaRef) -> Result<EquivalenceProperties> {
    let exprs = spec.output_columns();
    let column = |position: usize| -> Arc<dyn PhysicalExpr> {
        Arc::new(Column::new(schema.field(position).name(), position))
    };
    let mut known = EquivalenceProperties::new(Arc::clone(&schema));
    for (position, expr) in exprs.iter().enumerate() {
        let Some(expr) = expr else { continue };
        if let Expr::Literal(literal) = expr {
            let across = scalar_value_of(&literal.value, schema.field(position).data_type())
                .map_or(AcrossPartitions::Heterogeneous, |value| {
                    AcrossPartitions::Uniform(Some(value))
                });
            known.add_constants([ConstExpr::new(column(position), across)])?;
        } else if let Some(twin) = exprs[..position].iter().position(|e| *e == Some(*expr)) {
            known.add_equal_conditions(column(twin), column(position))?;
        }
    }
    Ok(known)
}

fn divided(count: &Precision<usize>, by: usize) -> Precision<usize> {
    count.map(|count| count.div_ceil(by))
}

/// The schema of a scan that gives back these columns of a table.
pub fn schema_of_columns(table: &Schema, ordinals: &[usize]) -> Result<SchemaRef> {
    Ok(Arc::new(table.project(ordinals)?))
}
