//! [`FlashScanExec`]: the leaf of a plan that runs a Program beside the pages.

mod bitmap;
mod builder;
mod display;
mod execution;
pub(crate) mod metrics;
mod runtime;
pub mod spec;
pub mod statistics;
mod wire;

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::SchemaRef;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics};
use datafusion::config::ConfigOptions;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::expressions::Column;
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
use flashmesh_pushdown::{CompareOp, Expr, Output, VerifiedProgram};
use flashmesh_storage::access::{AccessPath, segments_with_keys};
use flashmesh_storage::kernel::has_kernels;
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::segment::Segment;

pub use self::builder::ScanBuilder;
use self::execution::Executions;
use self::spec::{DynamicFilter, ScanSpec};
pub use self::wire::ScanCodec;
use crate::Reason;
use crate::config::Pushdown;
use crate::join_keys::KeyFilter;
use crate::translate::{scalar_value_of, text_of};

/// A scan of one table: one request and one stream of batches for each partition.
#[derive(Debug)]
pub struct FlashScanExec {
    spec: ScanSpec,
    node: Arc<StorageNode>,
    program: Arc<VerifiedProgram>,
    /// The index that answers a part of the filter, chosen when it is first asked for: planning
    /// makes many scans of which few are run.
    access: OnceLock<Option<Arc<AccessPath>>>,
    properties: Arc<PlanProperties>,
    executions: Executions,
}

impl FlashScanExec {
    /// A scan that does what `spec` says, by its Program. `schema` names and types the output.
    fn new(
        spec: ScanSpec,
        node: Arc<StorageNode>,
        program: Arc<VerifiedProgram>,
        schema: SchemaRef,
        partitions: usize,
    ) -> Result<Self, Reason> {
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
        match &self.spec.output {
            Output::Rows { order, .. } if order.is_empty() => {}
            _ => return None,
        }
        let mut builder = ScanBuilder::of_scan(self);
        builder.plain_text();
        builder.build().ok()
    }

    /// The segments in which rows may pass its filter, as far as the key says by which they lie.
    pub fn segments(&self) -> Cow<'_, [Arc<Segment>]> {
        let table = &self.spec.table;
        match segments_with_keys(&self.program, table) {
            Some(segments) => Cow::Owned(segments),
            None => Cow::Borrowed(&table.segments),
        }
    }

    /// Whether each node may read it whole, in place of what another one has read: it gives rows, all
    /// that there are, and needs nothing but pages of its table.
    pub fn may_be_whole(&self) -> bool {
        let Output::Rows { order, limit, .. } = &self.spec.output else {
            return false;
        };
        let gives_all = order.is_empty() && limit.is_none();
        gives_all && !has_kernels(&self.program) && self.access().is_none()
    }

    /// The same scan, which each node does whole that runs the part of the plan in which it is: `here`
    /// this one, or else one that gets pages in memory with it.
    pub fn whole(&self, here: bool) -> Self {
        let mut scan = self.fresh();
        scan.spec.is_whole = true;
        scan.spec.brings_pages = !here;
        scan
    }

    /// Whether what is above it stays right when its segments are scanned one by one wherever they
    /// lie: no index names rows of all of them, no limit is for all, and who wants all of them together
    /// was planned to put streams together. Partial groups may come more than once.
    pub fn is_divisible(&self) -> bool {
        if self.partitions() == 1 {
            return false;
        }
        let is_divisible = match &self.spec.output {
            Output::Rows { order, limit, .. } => order.is_empty() && limit.is_none(),
            Output::Aggregate { .. } => true,
            Output::Nearest { .. } => false,
        };
        is_divisible && !has_kernels(&self.program) && self.access().is_none()
    }

    /// Whether it will know the keys that a join looks for one by one; `keys`: how many there are
    /// expected to be.
    pub fn will_know_keys(&self, keys: Option<usize>, partitioned: bool) -> bool {
        runtime::will_know_keys(&self.spec, &self.program, keys, partitioned)
    }

    /// The same scan of some of its segments.
    pub fn over(&self, segments: Vec<Arc<Segment>>) -> Self {
        let mut spec = self.spec.clone();
        spec.table = Arc::new(spec.table.over(segments));
        Self {
            spec,
            access: OnceLock::new(),
            ..self.fresh()
        }
    }

    /// The same scan of some of its segments, on a node that gets their pages in memory with it.
    pub fn carried_over(&self, segments: Vec<Arc<Segment>>) -> Self {
        let mut scan = self.over(segments);
        scan.spec.brings_pages = true;
        scan
    }

    /// The same scan, which drops rows by keys of joins elsewhere, and not by what changes those
    /// `filters` any more.
    pub fn with_key_filters(&self, keys: Vec<KeyFilter>, filters: &[u64]) -> Self {
        let mut scan = self.fresh();
        scan.spec.key_filters.extend(keys);
        let is_kept = |filter: &DynamicFilter| {
            let id = filter.expr.expression_id();
            id.is_none_or(|id| !filters.contains(&id))
        };
        scan.spec.dynamic_filters.retain(is_kept);
        scan
    }

    /// The same scan as so many, each of some of its segments in one stream: always the same segments,
    /// whoever runs the others. `None` for a scan that can't be divided.
    pub fn divided(&self, count: usize) -> Option<Vec<Self>> {
        if !self.is_divisible() {
            return None;
        }
        let segments = &self.spec.table.segments;
        let rows = |segment: &Arc<Segment>| u64::from(segment.live_rows());
        let all: u64 = segments.iter().map(rows).sum();
        let mut parts = vec![Vec::new(); count];
        let mut before = 0;
        for segment in segments {
            // Where its middle lies among all rows.
            let place = (before + rows(segment) / 2) * count as u64 / all.max(1);
            parts[(place as usize).min(count - 1)].push(Arc::clone(segment));
            before += rows(segment);
        }
        let one = Partitioning::UnknownPartitioning(1);
        let scans = parts.into_iter().map(|segments| {
            let properties = PlanProperties::clone(&self.properties);
            Self {
                properties: Arc::new(properties.with_partitioning(one.clone())),
                ..self.over(segments)
            }
        });
        Some(scans.collect())
    }

    /// A copy that shares no state of execution.
    fn fresh(&self) -> Self {
        Self {
            spec: self.spec.clone(),
            node: Arc::clone(&self.node),
            program: Arc::clone(&self.program),
            access: self.access.clone(),
            properties: Arc::clone(&self.properties),
            executions: Executions::default(),
        }
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
        apply_expression_roots(
            self.spec.dynamic_filters.iter().map(|filter| &filter.expr),
            f,
        )
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
        let statistics = statistics::of_scan(&self.spec, &self.schema(), partitions);
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
        let mut builder = ScanBuilder::of_scan(self);
        builder.limit(limit?).ok()?;
        Some(Arc::new(builder.build().ok()?))
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
        let mut builder = ScanBuilder::of_scan(self);
        let scan = builder.project(projection).and_then(|()| builder.build());
        Ok(scan.ok().map(|scan| Arc::new(scan) as _))
    }

    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        child_pushdown_result: ChildPushdownResult,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let parents = child_pushdown_result.parent_filters.iter();
        let filters: Vec<_> = parents.map(|parent| &parent.filter).collect();
        let is_fixed = |filter: &&Arc<dyn PhysicalExpr>| snapshot_generation(filter) == 0;
        let mut builder = ScanBuilder::of_scan(self);
        let fixed: Vec<_> = filters.iter().copied().filter(is_fixed).collect();
        let mut reasons = builder.filter(&fixed).into_iter();
        let mut results = Vec::with_capacity(filters.len());
        for filter in filters {
            let reason = match is_fixed(&filter) {
                true => reasons.next().flatten(),
                false => None,
            };
            // The value of a subquery is there before the scan starts: it prunes below the filter.
            let changes = !is_fixed(&filter) || reason == Some(Reason::Subquery);
            if changes && phase == FilterPushdownPhase::Post {
                builder.dynamic_filter(filter);
            }
            results.push(match !changes && reason.is_none() {
                true => PushedDown::Yes,
                false => PushedDown::No,
            });
            if let Some(reason) = reason {
                builder.note(text_of(filter.as_ref()), reason);
            }
        }
        let propagation = FilterPushdownPropagation::with_parent_pushdown_result(results);
        let (known, spec) = (&self.spec, builder.spec());
        if spec.filters.len() == known.filters.len()
            && spec.not_pushed.len() == known.not_pushed.len()
            && spec.dynamic_filters.len() == known.dynamic_filters.len()
        {
            return Ok(propagation);
        }
        let scan = builder.build().map_err(Reason::into_error)?;
        Ok(propagation.with_updated_node(Arc::new(scan)))
    }
}

/// What is known of the output's columns: those of one expression are equal; literals are constant, and so is
/// what is computed of columns for which the filter leaves one value. A sort that was planned above a projection
/// leaves such keys out, and must be right above a scan that has taken the projection in.
fn equivalences(spec: &ScanSpec, schema: SchemaRef) -> Result<EquivalenceProperties> {
    let exprs = spec.output_columns();
    let column = |position: usize| -> Arc<dyn PhysicalExpr> {
        Arc::new(Column::new(schema.field(position).name(), position))
    };
    let fixed: Vec<u32> = spec
        .filters
        .iter()
        .filter_map(|f| fixed_by(&f.expr))
        .collect();
    // A column itself is left out of sorts before: it would only make groups by it ones of sorted rows.
    let is_fixed = |expr: &Expr| {
        let columns = expr.columns();
        let is_computed = !matches!(expr, Expr::Column(_)) && !columns.is_empty();
        is_computed && columns.iter().all(|column| fixed.contains(column))
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
        } else if is_fixed(expr) {
            let across = AcrossPartitions::Uniform(None);
            known.add_constants([ConstExpr::new(column(position), across)])?;
        } else if let Some(twin) = exprs[..position].iter().position(|e| *e == Some(*expr)) {
            known.add_equal_conditions(column(twin), column(position))?;
        }
    }
    Ok(known)
}

/// The column for which a conjunct of a filter leaves one value.
fn fixed_by(conjunct: &Expr) -> Option<u32> {
    match conjunct {
        Expr::Compare {
            op: CompareOp::Eq,
            left,
            right,
        } => match (left.as_ref(), right.as_ref()) {
            (Expr::Column(column), Expr::Literal(_)) | (Expr::Literal(_), Expr::Column(column)) => {
                Some(*column)
            }
            _ => None,
        },
        Expr::InList {
            expr,
            list,
            negated: false,
        } => match (expr.as_ref(), list.as_slice()) {
            (Expr::Column(column), [_]) => Some(*column),
            _ => None,
        },
        _ => None,
    }
}

fn divided(count: &Precision<usize>, by: usize) -> Precision<usize> {
    count.map(|count| count.div_ceil(by))
}
