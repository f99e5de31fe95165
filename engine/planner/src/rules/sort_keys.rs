//! Sort keys whose order DataFusion can't tell.
//!
//! Whether rows are sorted by `-(a * b)`, `sqrt(x + 1)` or `a * b > 7` it works out from between which values the
//! parts of the key are. Of a product, a quotient or CASE it knows none, fails over that, and takes even a sort by
//! this very key for no order: merging sorted partitions, windows and ordered aggregates over it were internal
//! errors. Here such a key is computed as a column below, and that is sorted by. So is what windows are partitioned
//! by, over joins: of an expression over a column that the join has made equal to another, DataFusion finds fewer
//! keys than there are.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result};
use datafusion::logical_expr::expr::Sort as SortExpr;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, LogicalPlanBuilder, Sort, Window};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalSortExpr};

use crate::tree::{map_named_expressions, physical_of};
use crate::walk::Walk as _;

/// The rule; place it behind those that simplify.
#[derive(Debug)]
pub(super) struct SortKeys;

impl OptimizerRule for SortKeys {
    fn name(&self) -> &str {
        "flashmesh_sort_keys"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let input = match &plan {
            LogicalPlan::Sort(Sort { input, .. })
            | LogicalPlan::Window(Window { input, .. })
            | LogicalPlan::Aggregate(Aggregate { input, .. }) => Arc::clone(input),
            _ => return Ok(Transformed::no(plan)),
        };
        let is_joined = matches!(plan, LogicalPlan::Window(_))
            && input.exists(|node| Ok(matches!(node, LogicalPlan::Join(_))))?;
        let mut keys = Keys {
            input: &input,
            is_joined,
            config,
            columns: vec![],
        };
        let columns = plan.schema().columns();
        let changed = match plan {
            LogicalPlan::Sort(mut sort) => {
                sort.expr = keys.of_sorts(sort.expr);
                LogicalPlan::Sort(sort)
            }
            plan => {
                map_named_expressions(plan, |expr| {
                    expr.transform_up(|expr| Ok(keys.of_function(expr)))
                })?
                .data
            }
        };
        if keys.columns.is_empty() {
            return Ok(Transformed::no(changed));
        }
        let input = keys.computed()?;
        Ok(Transformed::yes(match changed {
            LogicalPlan::Sort(sort) => {
                without_keys(LogicalPlan::Sort(Sort { input, ..sort }), columns)?
            }
            LogicalPlan::Window(window) => {
                let window = Window::try_new(window.window_expr, input)?;
                without_keys(LogicalPlan::Window(window), columns)?
            }
            LogicalPlan::Aggregate(aggregate) => {
                LogicalPlan::Aggregate(Aggregate::try_new_with_schema(
                    input,
                    aggregate.group_expr,
                    aggregate.aggr_expr,
                    aggregate.schema,
                )?)
            }
            other => other,
        }))
    }
}

fn without_keys(plan: LogicalPlan, columns: Vec<Column>) -> Result<LogicalPlan> {
    let columns = columns.into_iter().map(Expr::Column);
    LogicalPlanBuilder::from(plan).project(columns)?.build()
}

fn is_plain(key: &Expr) -> bool {
    matches!(key, Expr::Column(_) | Expr::Literal(..))
}

/// The keys over an operator's input that become columns.
struct Keys<'a> {
    input: &'a Arc<LogicalPlan>,
    /// Whether a join is in it.
    is_joined: bool,
    config: &'a dyn OptimizerConfig,
    /// What is computed, and what it is called.
    columns: Vec<(Expr, String)>,
}

impl Keys<'_> {
    /// The keys of a window, or of an aggregate of sorted values.
    fn of_function(&mut self, expr: Expr) -> Transformed<Expr> {
        let before = self.columns.len();
        let expr = match expr {
            Expr::WindowFunction(mut call) => {
                let params = &mut call.params;
                params.order_by = self.of_sorts(std::mem::take(&mut params.order_by));
                let by = std::mem::take(&mut params.partition_by);
                params.partition_by = by.into_iter().map(|key| self.of_partition(key)).collect();
                Expr::WindowFunction(call)
            }
            Expr::AggregateFunction(mut call) => {
                let params = &mut call.params;
                params.order_by = self.of_sorts(std::mem::take(&mut params.order_by));
                Expr::AggregateFunction(call)
            }
            other => other,
        };
        Transformed::new_transformed(expr, self.columns.len() > before)
    }

    fn of_sorts(&mut self, sorts: Vec<SortExpr>) -> Vec<SortExpr> {
        let sorts = sorts.into_iter().map(|sort| SortExpr {
            expr: self.of(sort.expr),
            ..sort
        });
        sorts.collect()
    }

    fn of_partition(&mut self, key: Expr) -> Expr {
        match self.is_joined && !is_plain(&key) {
            true => self.column_of(key),
            false => self.of(key),
        }
    }

    /// The key, or the column with its value.
    fn of(&mut self, key: Expr) -> Expr {
        let is_computed = self.columns.iter().any(|(computed, _)| *computed == key);
        match !is_computed && self.is_known_to_sort(&key) {
            true => key,
            false => self.column_of(key),
        }
    }

    fn column_of(&mut self, key: Expr) -> Expr {
        let known = self.columns.iter().find(|(computed, _)| *computed == key);
        let name = match known {
            Some((_, name)) => name.clone(),
            None => {
                let name = self.config.alias_generator().next("__sort_key");
                self.columns.push((key, name.clone()));
                name
            }
        };
        Expr::Column(Column::new_unqualified(name))
    }

    /// Whether rows that are sorted by a key are known to be sorted by it.
    fn is_known_to_sort(&self, key: &Expr) -> bool {
        if is_plain(key) {
            return true;
        }
        let schema = self.input.schema();
        let Ok(key) = physical_of(key, schema) else {
            return true;
        };
        let key = PhysicalSortExpr::new_default(key);
        let mut known = EquivalenceProperties::new(Arc::clone(schema.inner()));
        known.add_ordering([key.clone()]);
        known.ordering_satisfy([key]).unwrap_or(true)
    }

    /// The input with the keys behind its columns.
    fn computed(self) -> Result<Arc<LogicalPlan>> {
        let columns = self.input.schema().columns().into_iter().map(Expr::Column);
        let keys = self.columns.into_iter().map(|(key, name)| key.alias(name));
        let input = LogicalPlanBuilder::from(Arc::clone(self.input));
        Ok(Arc::new(input.project(columns.chain(keys))?.build()?))
    }
}
