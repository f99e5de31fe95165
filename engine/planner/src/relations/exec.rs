//! Functions that the store runs as a whole, as operators of a plan.

use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{
    Column, DFSchema, DFSchemaRef, Result, Statistics, exec_err, internal_err,
};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{
    Expr, Extension, LogicalPlan, Projection, SortExpr, UserDefinedLogicalNode,
    UserDefinedLogicalNodeCore,
};
use datafusion::physical_expr::{
    EquivalenceProperties, LexOrdering, OrderingRequirements, PhysicalExpr,
};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, Partitioning, PlanProperties,
    execute_stream,
};
use flashmesh_storage::accelerator::ScanMetrics;
use flashmesh_storage::functions::Kernels;
use flashmesh_storage::kernel::QueryCalls;
use flashmesh_storage::node::data_bytes;
use futures::TryStreamExt;
use parking_lot::Mutex;

use crate::named::NamedTable;
use crate::scan::metrics::function_metrics;

/// A function over the store.
pub(crate) trait StoreFunction: Debug + Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// The table that it reads.
    fn table(&self) -> &NamedTable;

    /// The same at another version of its table.
    fn at(&self, table: NamedTable) -> Result<Arc<dyn StoreFunction>>;

    /// What it is asked for, for `EXPLAIN`.
    fn arguments(&self) -> String;

    /// Its columns.
    fn schema(&self) -> SchemaRef;

    /// Whether it runs in the store, so that its rows are all that leaves it. Otherwise
    /// [`StoreFunction::run`] counts what its commands give.
    fn is_in_store(&self) -> bool {
        true
    }

    /// Rows that it may give, as far as can be said: what the order of joins goes by.
    fn expected_rows(&self) -> usize;

    /// What the kernel that computes its rows belongs to, if one does.
    fn kernels(&self) -> Option<&Arc<Kernels>> {
        None
    }

    /// Computes its rows and gives them to `emit`, on a thread that may block. `input` holds the
    /// rows of the subquery, if it has one; `run` says with what means.
    fn run(&self, input: Vec<RecordBatch>, run: &Run, emit: &mut Emit<'_>) -> Result<()>;
}

/// Takes batches; an error means that nobody wants more.
pub(crate) type Emit<'a> = dyn FnMut(RecordBatch) -> Result<()> + 'a;

/// The means of one execution.
#[derive(Debug)]
pub(crate) struct Run {
    /// Threads that it may use.
    pub threads: usize,
    /// Rows of a batch.
    pub batch_rows: usize,
    /// Set when the query has ended.
    pub cancelled: Arc<AtomicBool>,
    /// What it has cost so far.
    pub cost: Arc<Cost>,
    /// The calls of the query's kernels, if it has any.
    pub calls: Option<Arc<QueryCalls>>,
}

/// What `EXPLAIN ANALYZE` says of a function.
#[derive(Debug, Default)]
pub(crate) struct Cost {
    /// Reads, rows and bytes.
    pub scan: Arc<ScanMetrics>,
    /// Requests to the store, each answered by itself.
    pub commands: AtomicU64,
}

impl Run {
    /// Counts a request to the store.
    pub fn count_command(&self) {
        self.cost.commands.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts what the store gives to the host.
    pub fn count_bytes_to_host(&self, bytes: u64) {
        let counter = &self.cost.scan.bytes_to_host;
        counter.fetch_add(bytes, Ordering::Relaxed);
    }

    /// An error when the query has ended.
    pub fn check(&self) -> Result<()> {
        match self.cancelled.load(Ordering::Relaxed) {
            true => exec_err!("the query was cancelled"),
            false => Ok(()),
        }
    }
}

/// A [`StoreFunction`] in a logical plan.
#[derive(Debug, Clone)]
pub(crate) struct StoreFunctionNode {
    pub(super) function: Arc<dyn StoreFunction>,
    input: Option<LogicalPlan>,
    /// In which order the function wants its input.
    pub(super) order: Vec<SortExpr>,
    schema: DFSchemaRef,
}

impl StoreFunctionNode {
    /// The plan of a function over the rows of `input`, in the input's order if it has one.
    pub fn plan(
        function: Arc<dyn StoreFunction>,
        input: Option<LogicalPlan>,
    ) -> Result<LogicalPlan> {
        let schema = DFSchema::try_from(function.schema())?;
        let (input, order) = match input {
            Some(input) => {
                let (input, order) = with_order(input)?;
                (Some(input), order)
            }
            None => (None, vec![]),
        };
        Ok(LogicalPlan::Extension(Extension {
            node: Arc::new(Self {
                function,
                input,
                order,
                schema: Arc::new(schema),
            }),
        }))
    }

    /// The table that it reads.
    pub fn table(&self) -> &NamedTable {
        self.function.table()
    }

    /// The same at another version of its table.
    pub fn at(&self, table: NamedTable) -> Result<Self> {
        Ok(Self {
            function: self.function.at(table)?,
            ..self.clone()
        })
    }
}

/// `plan`, and the order that its query asks for. What it is ordered by comes behind its columns
/// where it is none of them: only an order that the operator above can name is kept.
fn with_order(plan: LogicalPlan) -> Result<(LogicalPlan, Vec<SortExpr>)> {
    match plan {
        LogicalPlan::Sort(sort) => {
            let order = sort.expr.clone();
            Ok((LogicalPlan::Sort(sort), order))
        }
        LogicalPlan::Limit(mut limit) => {
            let (input, order) = with_order(Arc::unwrap_or_clone(limit.input))?;
            limit.input = Arc::new(input);
            Ok((LogicalPlan::Limit(limit), order))
        }
        LogicalPlan::Projection(projection) => {
            let (input, keys) = with_order(Arc::unwrap_or_clone(projection.input))?;
            let mut exprs = projection.expr;
            let mut order = Vec::with_capacity(keys.len());
            for (number, key) in keys.into_iter().enumerate() {
                let name = format!("__order_{number}");
                exprs.push(key.expr.alias(&name));
                let column = Expr::Column(Column::new_unqualified(name));
                order.push(column.sort(key.asc, key.nulls_first));
            }
            let projection = Projection::try_new(exprs, Arc::new(input))?;
            Ok((LogicalPlan::Projection(projection), order))
        }
        unordered => Ok((unordered, vec![])),
    }
}

/// Whether an operator of a logical plan is a function that the store runs.
pub fn is_store_function(node: &dyn UserDefinedLogicalNode) -> bool {
    node.as_any().is::<StoreFunctionNode>()
}

impl PartialEq for StoreFunctionNode {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.function, &other.function)
            && self.input == other.input
            && self.order == other.order
    }
}

impl Eq for StoreFunctionNode {}

impl PartialOrd for StoreFunctionNode {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (self == other).then_some(std::cmp::Ordering::Equal)
    }
}

impl Hash for StoreFunctionNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.function).cast::<()>().hash(state);
        self.input.hash(state);
    }
}

impl UserDefinedLogicalNodeCore for StoreFunctionNode {
    fn name(&self) -> &str {
        "StoreFunction"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        self.input.iter().collect()
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        self.order.iter().map(|key| key.expr.clone()).collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "StoreFunction: {}({})",
            self.function.name(),
            self.function.arguments()
        )
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let keys = exprs.into_iter().zip(&self.order);
        Ok(Self {
            input: inputs.into_iter().next(),
            order: keys.map(|(expr, key)| key.with_expr(expr)).collect(),
            ..self.clone()
        })
    }

    fn necessary_children_exprs(&self, _: &[usize]) -> Option<Vec<Vec<usize>>> {
        // All that the subquery gives is wanted.
        let columns = |input: &LogicalPlan| (0..input.schema().fields().len()).collect();
        Some(self.input.iter().map(columns).collect())
    }
}

/// What the kernel that a node of a plan runs belongs to, if it runs one.
pub(crate) fn kernels_of_relation(node: &dyn UserDefinedLogicalNode) -> Option<Arc<Kernels>> {
    let node = node.as_any().downcast_ref::<StoreFunctionNode>()?;
    node.function.kernels().cloned()
}

/// A [`StoreFunction`] in a physical plan.
#[derive(Debug)]
pub(super) struct StoreFunctionExec {
    function: Arc<dyn StoreFunction>,
    input: Option<Arc<dyn ExecutionPlan>>,
    /// In which order it wants its input, if in any.
    order: Option<LexOrdering>,
    properties: Arc<PlanProperties>,
    /// Of the execution that was started last.
    cost: Mutex<Option<Arc<Cost>>>,
}

impl StoreFunctionExec {
    pub(super) fn new(
        function: Arc<dyn StoreFunction>,
        input: Option<Arc<dyn ExecutionPlan>>,
        order: Option<LexOrdering>,
    ) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(function.schema()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        Self {
            function,
            input,
            order,
            properties: Arc::new(properties),
            cost: Mutex::new(None),
        }
    }
}

/// The table that an operator reads, if it is a function that the store runs.
pub(crate) fn table_of_function(plan: &dyn ExecutionPlan) -> Option<&NamedTable> {
    let function = plan.downcast_ref::<StoreFunctionExec>()?;
    Some(function.function.table())
}

impl DisplayAs for StoreFunctionExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "StoreFunctionExec: {}({})",
            self.function.name(),
            self.function.arguments()
        )
    }
}

/// Sets the flag when the stream that holds it is dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl ExecutionPlan for StoreFunctionExec {
    fn name(&self) -> &str {
        "StoreFunctionExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.input.iter().collect()
    }

    fn statistics_from_inputs(
        &self,
        _: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        Ok(Arc::new(Statistics {
            num_rows: Precision::Inexact(self.function.expected_rows()),
            ..Statistics::new_unknown(&self.function.schema())
        }))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let cost = self.cost.lock();
        let cost = cost.as_ref()?;
        let commands = cost.commands.load(Ordering::Relaxed);
        Some(function_metrics(&cost.scan, commands))
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        vec![Distribution::SinglePartition; self.children().len()]
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        let order = self.order.clone().map(OrderingRequirements::from);
        vec![order; self.children().len()]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let function = Arc::clone(&self.function);
        let input = children.into_iter().next();
        Ok(Arc::new(Self::new(function, input, self.order.clone())))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("partition {partition} of a store function");
        }
        let config = context.session_config();
        let cancelled = Arc::new(AtomicBool::new(false));
        let run = Run {
            threads: config.target_partitions(),
            batch_rows: config.batch_size(),
            cancelled: Arc::clone(&cancelled),
            cost: Arc::default(),
            calls: config.get_extension(),
        };
        *self.cost.lock() = Some(Arc::clone(&run.cost));
        let input = match &self.input {
            Some(input) => Some(execute_stream(Arc::clone(input), context)?),
            None => None,
        };
        let function = Arc::clone(&self.function);
        let mut builder = RecordBatchReceiverStreamBuilder::new(function.schema(), 2);
        let sender = builder.tx();
        builder.spawn(async move {
            let guard = CancelOnDrop(cancelled);
            let input = match input {
                Some(input) => input.try_collect().await?,
                None => vec![],
            };
            let computed = tokio::task::spawn_blocking(move || {
                if function.is_in_store() {
                    run.count_command();
                }
                function.run(input, &run, &mut |batch| {
                    let rows = batch.num_rows() as u64;
                    run.cost.scan.rows_out.fetch_add(rows, Ordering::Relaxed);
                    if function.is_in_store() {
                        run.count_bytes_to_host(data_bytes(&batch));
                    }
                    sender.blocking_send(Ok(batch)).map_err(|_| {
                        datafusion::common::DataFusionError::Execution("the query has ended".into())
                    })
                })
            });
            let result = computed.await;
            drop(guard);
            match result {
                Ok(result) => result,
                Err(error) => internal_err!("a store function failed: {error}"),
            }
        });
        Ok(builder.build())
    }
}
