//! [`DeferredExec`]: the part of a query that waits for its subqueries of one value.
//!
//! Such a subquery that depends on nothing around it is computed once, and the expressions of the query
//! read its value where it is kept: on one machine. Nodes are not sent such expressions. So the query is
//! planned again when the values are known, as one with constants in their place, which scans can be
//! asked for, estimates can be made of, and nodes can be sent.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::Schema;
use datafusion::common::metadata::FieldMetadata;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result, ScalarValue, internal_datafusion_err, not_impl_err};
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::logical_expr::logical_plan::Subquery;
use datafusion::logical_expr::physical_planning_context::{ScalarSubqueryResults, SubqueryIndex};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, execute_stream,
};
use flashmesh_planner::map_named_expressions;
use flashmesh_planner::walk::{Walk as _, WalkPlan as _};
use futures::{StreamExt, TryStreamExt};

use super::DistributedPlanner;
use super::exec::Measure;

/// Values that are sent to each node as a part of its plan are no more bytes than this.
const MAX_VALUE_BYTES: usize = 64 << 10;

/// A query below the operator that computes its subqueries, in one stream.
#[derive(Debug)]
pub(super) struct DeferredExec {
    query: Arc<Query>,
    /// How the query is done on this node without constants: what is shown before, and what is done where
    /// it can't be planned with them.
    expected: Arc<dyn ExecutionPlan>,
    /// How it is done.
    planned: Arc<OnceLock<Arc<dyn ExecutionPlan>>>,
    properties: Arc<PlanProperties>,
}

#[derive(Debug)]
struct Query {
    plan: LogicalPlan,
    /// By their places among the values.
    subqueries: Vec<Subquery>,
    values: ScalarSubqueryResults,
    planner: DistributedPlanner,
    session: SessionState,
    measure: Option<Measure>,
}

impl DeferredExec {
    /// `values`: where those of `subqueries` are when it is executed. `expected` reads them there.
    pub fn new(
        planner: DistributedPlanner,
        session: SessionState,
        plan: LogicalPlan,
        (subqueries, values): (Vec<Subquery>, ScalarSubqueryResults),
        expected: Arc<dyn ExecutionPlan>,
        measure: Option<Measure>,
    ) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(expected.schema()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self {
            query: Arc::new(Query {
                plan,
                subqueries,
                values,
                planner,
                session,
                measure,
            }),
            expected,
            planned: Arc::default(),
            properties: Arc::new(properties),
        }
    }
}

impl Query {
    /// The plan with constants.
    ///
    /// # Errors
    /// `NotImplemented` where constants would mean something else, or are long; those of planning.
    async fn planned(&self) -> Result<Arc<dyn ExecutionPlan>> {
        let mut values = HashMap::with_capacity(self.subqueries.len());
        for (place, subquery) in self.subqueries.iter().enumerate() {
            let value = self.values.get(SubqueryIndex::new(place));
            let value = value.ok_or_else(|| internal_datafusion_err!("no value {place}"))?;
            values.insert(subquery, value);
        }
        if values.values().map(ScalarValue::size).sum::<usize>() > MAX_VALUE_BYTES {
            return not_impl_err!("values of subqueries are long");
        }
        let plan = with_values(self.plan.clone(), &values)?;
        let (planner, measure) = (&self.planner, self.measure);
        planner.planned(&plan, &self.session, measure).await
    }
}

/// The subqueries of one value that a plan has itself, in the order in which DataFusion's planner numbers
/// them.
pub(super) fn subqueries_of(plan: &LogicalPlan) -> Result<Vec<Subquery>> {
    let mut subqueries: Vec<Subquery> = Vec::new();
    plan.apply(|node| {
        node.walk_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::ScalarSubquery(subquery) = expr
                    && subquery.outer_ref_columns.is_empty()
                    && !subqueries.contains(subquery)
                {
                    subqueries.push(subquery.clone());
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(subqueries)
}

/// The plan with constants in place of subqueries. Its columns keep their names.
///
/// # Errors
/// `NotImplemented` where a function gives another type for a constant (`round(decimal, places)`).
fn with_values(plan: LogicalPlan, values: &HashMap<&Subquery, ScalarValue>) -> Result<LogicalPlan> {
    let constant = |expr: Expr| {
        let Expr::ScalarSubquery(subquery) = &expr else {
            return Ok(Transformed::no(expr));
        };
        let Some(value) = values.get(subquery) else {
            return Ok(Transformed::no(expr));
        };
        let field = subquery.subquery.schema().field(0);
        let metadata = FieldMetadata::new_from_field(field);
        let metadata = (!metadata.is_empty()).then_some(metadata);
        Ok(Transformed::yes(Expr::Literal(value.clone(), metadata)))
    };
    let plan = plan.transform_up(|node| {
        let input = input_of(&node)?;
        let node = map_named_expressions(node, |expr| {
            if !expr.exists(|expr| Ok(matches!(expr, Expr::ScalarSubquery(_))))? {
                return Ok(Transformed::no(expr));
            }
            expr.transform_down(|expr| {
                let known = constant(expr)?;
                if known.transformed {
                    return Ok(known);
                }
                let replaced = known.data.clone().map_children(constant)?;
                let type_of = |expr: &Expr| expr.get_type(&input);
                if replaced.transformed && type_of(&known.data)? != type_of(&replaced.data)? {
                    return not_impl_err!("{} is of another type for a constant", known.data);
                }
                Ok(replaced)
            })
        })?;
        match node.transformed {
            true => node.map_data(LogicalPlan::recompute_schema),
            false => Ok(node),
        }
    })?;
    Ok(plan.data)
}

/// The columns that the expressions of an operator read.
fn input_of(node: &LogicalPlan) -> Result<DFSchema> {
    match node {
        LogicalPlan::TableScan(scan) => {
            DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())
        }
        node => Ok(merge_schema(&node.inputs())),
    }
}

/// Whether rows of the one schema have the types of the other.
fn has_types(rows: &Schema, expected: &Schema) -> bool {
    let (rows, expected) = (rows.fields().iter(), expected.fields().iter());
    rows.map(|field| field.data_type())
        .eq(expected.map(|field| field.data_type()))
}

impl DisplayAs for DeferredExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.query.subqueries.len();
        write!(f, "DeferredExec: planned_with_values_of={count}")
    }
}

impl ExecutionPlan for DeferredExec {
    fn name(&self) -> &str {
        "DeferredExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    /// What runs, once that is known.
    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![self.planned.get().unwrap_or(&self.expected)]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    /// One that has not run: what does is planned by itself.
    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self {
            query: Arc::clone(&self.query),
            expected: Arc::clone(&self.expected),
            planned: Arc::default(),
            properties: Arc::clone(&self.properties),
        }))
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (query, planned) = (Arc::clone(&self.query), Arc::clone(&self.planned));
        let (expected, schema) = (Arc::clone(&self.expected), self.schema());
        let rows = async move {
            let plan = match query.planned().await {
                Ok(plan) if has_types(&plan.schema(), &schema) => plan,
                Ok(_) => expected,
                Err(error) => {
                    log::debug!("a query is not planned with constants: {error}");
                    expected
                }
            };
            let _ = planned.set(Arc::clone(&plan));
            // Who has ended the query meanwhile has not seen this plan.
            tokio::task::yield_now().await;
            execute_stream(plan, context)
        };
        // Of a constant it is known whether it is NULL, and of what it stands for it was not.
        let schema = self.schema();
        let as_expected = move |rows: RecordBatch| {
            let count = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
            let (schema, columns) = (Arc::clone(&schema), rows.columns().to_vec());
            Ok(RecordBatch::try_new_with_options(schema, columns, &count)?)
        };
        let rows = futures::stream::once(rows).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            self.schema(),
            rows.map(move |rows| rows.and_then(&as_expected)),
        )))
    }
}
