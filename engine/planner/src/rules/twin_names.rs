//! Filters that go down past columns of one name.
//!
//! DataFusion 55 finds the column of a filter among those of a child by its name, and takes the
//! first of that name: `a LEFT JOIN b … WHERE b.id IS DISTINCT FROM 1`, whose sides were swapped,
//! would test `a.id`. Its rule runs here with such filters held back where a name says too little;
//! they stay above, where columns are told apart by their places.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterDescription, FilterPushdownPhase, FilterPushdownPropagation,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

/// DataFusion's rule that pushes filters down, `0`, kept from taking one column for another.
#[derive(Debug)]
pub struct FiltersPastTwins(pub Arc<dyn PhysicalOptimizerRule + Send + Sync>);

impl PhysicalOptimizerRule for FiltersPastTwins {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let guarded = plan.transform_up(|node| {
            let twins = twins_of(&node);
            Ok(match twins.is_empty() {
                true => Transformed::no(node),
                false => Transformed::yes(Arc::new(Guard { node, twins }) as _),
            })
        })?;
        let pushed = self.0.optimize(guarded.data, config)?;
        if !guarded.transformed {
            return Ok(pushed);
        }
        let bare = pushed.transform_up(|node| {
            Ok(match node.downcast_ref::<Guard>() {
                Some(guard) => Transformed::yes(Arc::clone(&guard.node)),
                None => Transformed::no(node),
            })
        });
        Ok(bare?.data)
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

/// Names by which the node may not find the column that a filter means.
fn twins_of(node: &Arc<dyn ExecutionPlan>) -> HashSet<String> {
    // A projection knows its expressions by the names that it gives them.
    let own = node.is::<ProjectionExec>().then(|| node.schema());
    let children = node.children().into_iter().map(|child| child.schema());
    let mut twins = HashSet::new();
    for schema in own.into_iter().chain(children) {
        twins.extend(twin_names(&schema));
    }
    twins
}

fn twin_names(schema: &Schema) -> impl Iterator<Item = String> {
    let mut seen = HashSet::with_capacity(schema.fields().len());
    let names = schema.fields().iter().map(|field| field.name().as_str());
    names
        .filter(move |name| !seen.insert(*name))
        .map(str::to_owned)
}

/// A node that passes no filter on which has one of `twins`; it is there only while the rule runs.
#[derive(Debug)]
struct Guard {
    node: Arc<dyn ExecutionPlan>,
    twins: HashSet<String>,
}

impl DisplayAs for Guard {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.node.fmt_as(t, f)
    }
}

impl ExecutionPlan for Guard {
    fn name(&self) -> &str {
        self.node.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.node.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.node.children()
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self {
            node: Arc::clone(&self.node).replace_children(children, options)?,
            twins: self.twins.clone(),
        }))
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

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.node.apply_expressions(f)
    }

    fn gather_filters_for_pushdown(
        &self,
        phase: FilterPushdownPhase,
        mut parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        for filter in &mut parent_filters {
            let columns = collect_columns(filter);
            if columns.iter().any(|c| self.twins.contains(c.name())) {
                // A column that no child has: the node refuses it, and the filter itself stays.
                *filter = Arc::new(Column::new("", usize::MAX));
            }
        }
        self.node
            .gather_filters_for_pushdown(phase, parent_filters, config)
    }

    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        results: ChildPushdownResult,
        config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        self.node
            .handle_child_pushdown_result(phase, results, config)
    }

    fn execute(
        &self,
        _partition: usize,
        _context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        internal_err!("a plan runs with a guard of its optimiser")
    }
}
