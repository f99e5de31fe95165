//! The kernels of one query: they begin when it runs and end with it.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result, Statistics, internal_err};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{
    AggregateUDF, EmptyRelation, Expr, LogicalPlan, Projection, ScalarUDF, Union, Values,
    WindowFunctionDefinition,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use flashmesh_storage::functions::Kernels;
use flashmesh_storage::kernel::QueryCalls;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;

use super::KernelFunction;
use super::aggregate::KernelAggregate;
use super::calls::note;
use crate::relations::kernels_of_relation;
use crate::walk::{Walk as _, WalkPlan as _};

/// `plan` with kernels of its own in place of the session's, and their calls; `None` without any.
pub(crate) fn plan_for_query(plan: &LogicalPlan) -> Result<Option<(LogicalPlan, Arc<QueryCalls>)>> {
    let Some(kernels) = kernels_called(plan)? else {
        return Ok(None);
    };
    let calls = kernels.calls();
    let own = plan.clone().change_up_with_subqueries(|node| {
        let own = node.change_expressions(|expr| expr.transform_up(|e| Ok(of_query(e, &calls))))?;
        own.map_data(|node| match node {
            LogicalPlan::Values(values) if values_call(&values)? => rows_apart(values),
            node => Ok(node),
        })
    })?;
    Ok(Some((own.data, calls)))
}

/// What the first kernel of a plan belongs to.
fn kernels_called(plan: &LogicalPlan) -> Result<Option<Arc<Kernels>>> {
    let mut found = None;
    plan.walk_with_subqueries(|node| {
        if let LogicalPlan::Extension(extension) = node {
            found = kernels_of_relation(extension.node.as_ref());
        }
        if found.is_none() {
            node.walk_expressions(|expr| {
                expr.apply(|expr| {
                    found = kernels_of(expr);
                    Ok(stop_at(&found))
                })
            })?;
        }
        Ok(stop_at(&found))
    })?;
    Ok(found)
}

fn stop_at(found: &Option<Arc<Kernels>>) -> TreeNodeRecursion {
    match found {
        Some(_) => TreeNodeRecursion::Stop,
        None => TreeNodeRecursion::Continue,
    }
}

fn aggregate_of(expr: &Expr) -> Option<&Arc<AggregateUDF>> {
    match expr {
        Expr::AggregateFunction(call) => Some(&call.func),
        Expr::WindowFunction(call) => match &call.fun {
            WindowFunctionDefinition::AggregateUDF(function) => Some(function),
            WindowFunctionDefinition::WindowUDF(_) => None,
        },
        _ => None,
    }
}

fn kernels_of(expr: &Expr) -> Option<Arc<Kernels>> {
    let kernels = match expr {
        Expr::ScalarFunction(call) => &KernelFunction::of(&call.func)?.handle.kernels,
        _ => KernelAggregate::of(aggregate_of(expr)?)?.kernels(),
    };
    Some(Arc::clone(kernels))
}

fn of_query(mut expr: Expr, calls: &Arc<QueryCalls>) -> Transformed<Expr> {
    let aggregate = |function: &mut Arc<AggregateUDF>| {
        let own = KernelAggregate::of(function).map(|kernel| kernel.for_query(calls));
        let found = own.is_some();
        if let Some(own) = own {
            *function = Arc::new(AggregateUDF::from(own));
        }
        found
    };
    let found = match &mut expr {
        Expr::ScalarFunction(call) => {
            let own = KernelFunction::of(&call.func).map(|kernel| kernel.for_query(calls));
            let found = own.is_some();
            if let Some(own) = own {
                call.func = Arc::new(ScalarUDF::from(own));
            }
            found
        }
        Expr::AggregateFunction(call) => aggregate(&mut call.func),
        Expr::WindowFunction(call) => match &mut call.fun {
            WindowFunctionDefinition::AggregateUDF(function) => aggregate(function),
            WindowFunctionDefinition::WindowUDF(_) => false,
        },
        _ => false,
    };
    match found {
        true => Transformed::yes(expr),
        false => Transformed::no(expr),
    }
}

fn values_call(values: &Values) -> Result<bool> {
    for expr in values.values.iter().flatten() {
        if expr.exists(|expr| Ok(kernels_of(expr).is_some()))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// VALUES as a query of each row: DataFusion evaluates those of VALUES while it plans.
fn rows_apart(values: Values) -> Result<LogicalPlan> {
    let schema = values.schema;
    let row = |exprs: Vec<Expr>| -> Result<LogicalPlan> {
        let named = exprs.into_iter().zip(schema.fields());
        let named = named.map(|(expr, field)| expr.alias(field.name()));
        let one = LogicalPlan::EmptyRelation(EmptyRelation {
            produce_one_row: true,
            schema: Arc::new(DFSchema::empty()),
        });
        Ok(LogicalPlan::Projection(Projection::try_new_with_schema(
            named.collect(),
            Arc::new(one),
            Arc::clone(&schema),
        )?))
    };
    let mut rows = values.values.into_iter().map(row);
    match (rows.next(), rows.len()) {
        (Some(only), 0) => only,
        (Some(first), _) => {
            let rows = std::iter::once(first).chain(rows);
            let inputs = rows.map(|row| row.map(Arc::new)).collect::<Result<_>>()?;
            Ok(LogicalPlan::Union(Union { inputs, schema }))
        }
        (None, _) => internal_err!("VALUES without rows"),
    }
}

/// The root of a plan that calls kernels. Its rows are computed by a task of their own, so that
/// whoever waits for them can leave at any time, and the calls end soon after.
#[derive(Debug)]
pub(crate) struct KernelQueryExec {
    input: Arc<dyn ExecutionPlan>,
    calls: Arc<QueryCalls>,
    /// The context of the last execution and the one that the plan below runs in, which leads its
    /// scans to the calls.
    contexts: Mutex<Option<(Weak<TaskContext>, Arc<TaskContext>)>>,
}

impl KernelQueryExec {
    /// `input` as a query that makes `calls`.
    pub fn new(input: Arc<dyn ExecutionPlan>, calls: Arc<QueryCalls>) -> Self {
        note(&calls);
        Self {
            input,
            calls,
            contexts: Mutex::new(None),
        }
    }

    /// Ends its calls.
    pub fn cancel(&self) {
        self.calls.cancel();
    }

    /// The same for all partitions of an execution.
    fn context_below(&self, context: &Arc<TaskContext>) -> Arc<TaskContext> {
        let mut contexts = self.contexts.lock();
        if let Some((outer, below)) = &*contexts
            && std::ptr::eq(outer.as_ptr(), Arc::as_ptr(context))
        {
            return Arc::clone(below);
        }
        let config = context.session_config().clone();
        let below = Arc::new(TaskContext::new(
            context.task_id(),
            context.session_id(),
            config.with_extension(Arc::clone(&self.calls)),
            context.scalar_functions().clone(),
            context.higher_order_functions().clone(),
            context.aggregate_functions().clone(),
            context.window_functions().clone(),
            context.runtime_env(),
        ));
        *contexts = Some((Arc::downgrade(context), Arc::clone(&below)));
        below
    }
}

impl DisplayAs for KernelQueryExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("KernelQueryExec")
    }
}

impl ExecutionPlan for KernelQueryExec {
    fn name(&self) -> &str {
        "KernelQueryExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let calls = Arc::clone(&self.calls);
        Ok(Arc::new(Self::new(children.remove(0), calls)))
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.calls.begin();
        let below = self.context_below(&context);
        let mut rows = self.input.execute(partition, below)?;
        let mut builder = RecordBatchReceiverStreamBuilder::new(self.schema(), 2);
        let sender = builder.tx();
        builder.spawn(async move {
            while let Some(batch) = rows.next().await {
                if sender.send(Ok(batch?)).await.is_err() {
                    break;
                }
            }
            Ok(())
        });
        Ok(Box::pin(CancelOnDrop {
            rows: builder.build(),
            calls: Arc::clone(&self.calls),
            has_ended: false,
        }))
    }
}

/// Ends the query's calls when its rows are not wanted to their end.
struct CancelOnDrop {
    rows: SendableRecordBatchStream,
    calls: Arc<QueryCalls>,
    has_ended: bool,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if !self.has_ended {
            self.calls.cancel();
        }
    }
}

impl Stream for CancelOnDrop {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let batch = self.rows.poll_next_unpin(context);
        if matches!(batch, Poll::Ready(None)) {
            self.has_ended = true;
        }
        batch
    }
}

impl RecordBatchStream for CancelOnDrop {
    fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }
}
