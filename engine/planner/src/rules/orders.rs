//! The order of subqueries: `SELECT * FROM (SELECT … ORDER BY x) LIMIT 3` has the first rows by `x`, and
//! `list(y)` over such a query has its values in that order, in PostgreSQL and DuckDB.
//!
//! By SQL's standard rows of a subquery have no order, and DataFusion's planner leaves such an ORDER BY out (here it
//! is told not to). Through operators that keep their rows' order this rule carries it to what can tell: the
//! statement's rows, LIMIT, `row_number() OVER ()`, aggregates that take one value after the other. Elsewhere it
//! goes, so that nobody sorts for nothing.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, DFSchemaRef, Result};
use datafusion::logical_expr::expr::{Sort as SortExpr, WindowFunction, WindowFunctionDefinition};
use datafusion::logical_expr::{
    Aggregate, Expr, ExprSchemable, Filter, Limit, LogicalPlan, Projection, Sort, SubqueryAlias,
    Unnest, Window, WindowFrameUnits,
};
use datafusion::optimizer::AnalyzerRule;

use super::intervals;
use crate::tree::{has_part, has_subquery, map_named_expressions};
use crate::walk::{Walk as _, WalkPlan as _};

/// Aggregates whose result tells in which order the rows came.
const ORDERED: [&str; 5] = [
    "array_agg",
    "string_agg",
    "first_value",
    "last_value",
    "nth_value",
];

/// Window functions that tell it, and to which rows that are alike by an order are none.
const NUMBERED: [&str; 7] = [
    "row_number",
    "lag",
    "lead",
    "ntile",
    "first_value",
    "last_value",
    "nth_value",
];

/// The rule; place it before those that change expressions.
#[derive(Debug)]
pub struct OrderOfSubqueries;

impl AnalyzerRule for OrderOfSubqueries {
    fn name(&self) -> &str {
        "flashmesh_order_of_subqueries"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let mut has_sort = false;
        plan.walk_with_subqueries(|node| {
            has_sort = matches!(node, LogicalPlan::Sort(_));
            Ok(match has_sort {
                true => TreeNodeRecursion::Stop,
                false => TreeNodeRecursion::Continue,
            })
        })?;
        match has_sort {
            true => Orders::default().of_rows(plan),
            false => Ok(plan),
        }
    }
}

/// A plan without the order that it had, and the keys of that, over the plan's columns.
type Unsorted = (LogicalPlan, Vec<SortExpr>);

#[derive(Default)]
struct Orders {
    /// How many columns were made to sort by.
    made: usize,
}

impl Orders {
    /// A plan whose rows somebody sees in the order in which they come.
    fn of_rows(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        match plan {
            // Sorted already.
            LogicalPlan::Sort(sort) => {
                let input = Arc::new(self.of_set(Arc::unwrap_or_clone(sort.input))?);
                self.of_subqueries(LogicalPlan::Sort(Sort { input, ..sort }))
            }
            LogicalPlan::Limit(limit) => self.of_rows_below(LogicalPlan::Limit(limit)),
            LogicalPlan::Projection(projection) if is_sorted(&projection.input) => {
                let plan = self.of_rows_below(LogicalPlan::Projection(projection))?;
                self.of_subqueries(plan)
            }
            plan => {
                let schema = Arc::clone(plan.schema());
                let (plan, keys) = self.without(plan)?;
                with_columns(sorted(plan, keys)?, &schema)
            }
        }
    }

    fn of_rows_below(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let plan = plan.map_children(|input| Ok(Transformed::yes(self.of_rows(input)?)))?;
        Ok(plan.data)
    }

    fn of_sets_below(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let plan = plan.map_children(|input| Ok(Transformed::yes(self.of_set(input)?)))?;
        Ok(plan.data)
    }

    /// A plan of whose rows nobody sees the order.
    fn of_set(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let schema = Arc::clone(plan.schema());
        match plan {
            LogicalPlan::Sort(Sort {
                input, fetch: None, ..
            }) => self.of_set(Arc::unwrap_or_clone(input)),
            plan @ (LogicalPlan::Projection(_)
            | LogicalPlan::Filter(_)
            | LogicalPlan::SubqueryAlias(_)
            | LogicalPlan::Subquery(_)) => {
                let plan = self.of_sets_below(plan)?;
                self.of_subqueries(plan)
            }
            plan => with_columns(self.without(plan)?.0, &schema),
        }
    }

    fn of_subqueries(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let plan = plan.change_subqueries(|query| Ok(Transformed::yes(self.of_set(query)?)))?;
        Ok(plan.data)
    }

    /// Takes the order off a plan, whose columns keep their names: among them may be some to sort by, then.
    fn without(&mut self, plan: LogicalPlan) -> Result<Unsorted> {
        match self.of_subqueries(plan)? {
            LogicalPlan::Sort(sort) => self.unsorted(sort),
            LogicalPlan::Limit(limit) => {
                let (input, keys) = self.without(Arc::unwrap_or_clone(limit.input))?;
                let input = Arc::new(sorted(input, keys.clone())?);
                Ok((LogicalPlan::Limit(Limit { input, ..limit }), keys))
            }
            LogicalPlan::Filter(filter) => {
                let (input, keys) = self.without(Arc::unwrap_or_clone(filter.input))?;
                let filter = Filter::try_new(filter.predicate, Arc::new(input))?;
                Ok((LogicalPlan::Filter(filter), keys))
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let (input, keys) = self.without(Arc::unwrap_or_clone(alias.input))?;
                let before = Arc::clone(input.schema());
                let alias = SubqueryAlias::try_new(Arc::new(input), alias.alias)?;
                let keys = called_anew(keys, &before, &alias.schema)?;
                Ok((LogicalPlan::SubqueryAlias(alias), keys))
            }
            LogicalPlan::Projection(projection) => {
                let (input, keys) = self.without(Arc::unwrap_or_clone(projection.input))?;
                self.projected(projection.expr, input, keys)
            }
            LogicalPlan::Window(window) => self.windows(window),
            LogicalPlan::Unnest(unnest) => self.unnested(unnest),
            LogicalPlan::Aggregate(aggregate) => Ok((self.aggregates(aggregate)?, vec![])),
            // They take their rows as those come.
            plan @ (LogicalPlan::Explain(_)
            | LogicalPlan::Analyze(_)
            | LogicalPlan::Dml(_)
            | LogicalPlan::Ddl(_)
            | LogicalPlan::Copy(_)
            | LogicalPlan::Statement(_)
            | LogicalPlan::DescribeTable(_)
            | LogicalPlan::Extension(_)) => Ok((self.of_rows_below(plan)?, vec![])),
            plan => Ok((self.of_sets_below(plan)?, vec![])),
        }
    }

    fn unsorted(&mut self, sort: Sort) -> Result<Unsorted> {
        let input = self.of_set(Arc::unwrap_or_clone(sort.input))?;
        let mut has_subqueries = false;
        for key in &sort.expr {
            has_subqueries |= has_subquery(&key.expr)?;
        }
        // What these use of the input is not there above it. After LIMIT, rows are as they were chosen.
        if has_subqueries || sort.fetch.is_some() {
            let input = Arc::new(input);
            return Ok((LogicalPlan::Sort(Sort { input, ..sort }), vec![]));
        }
        let schema = Arc::clone(input.schema());
        let keys = sort.expr.into_iter().map(|key| {
            let is_interval = matches!(key.expr.get_type(&schema), Ok(DataType::Interval(_)));
            match is_interval {
                true => {
                    let length = intervals::length(key.expr.clone());
                    key.with_expr(length)
                }
                false => key,
            }
        });
        let keys: Vec<_> = keys.collect();
        // Each that uses it would have an order of its own.
        match keys.iter().any(|key| key.expr.is_volatile()) {
            true => self.projected(columns_of(&schema), input, keys),
            false => Ok((input, keys)),
        }
    }

    /// Lists as rows, in the order of what they were in.
    fn unnested(&mut self, unnest: Unnest) -> Result<Unsorted> {
        let (input, keys) = self.without(Arc::unwrap_or_clone(unnest.input))?;
        let taken = &unnest.exec_columns;
        let is_kept = |key: &SortExpr| matches!(&key.expr, Expr::Column(c) if !taken.contains(c));
        let (input, keys) = match keys.iter().all(is_kept) {
            true => (input, keys),
            false => self.beside(input, keys)?,
        };
        let (columns, options) = (unnest.exec_columns, unnest.options);
        let unnest = Unnest::try_new(Arc::new(input), columns, options)?;
        Ok((LogicalPlan::Unnest(unnest), keys))
    }

    /// The plan with its keys as columns of their own.
    fn beside(&mut self, input: LogicalPlan, keys: Vec<SortExpr>) -> Result<Unsorted> {
        let mut exprs = columns_of(input.schema());
        let mut places = Vec::with_capacity(keys.len());
        for key in &keys {
            places.push(exprs.len());
            exprs.push(self.named(key));
        }
        over(exprs, input, keys, &places)
    }

    fn named(&mut self, key: &SortExpr) -> Expr {
        let name = format!("__order_{}", self.made);
        self.made += 1;
        key.expr.clone().alias(name)
    }

    /// A projection that has the keys of its input's order, too.
    fn projected(
        &mut self,
        mut exprs: Vec<Expr>,
        input: LogicalPlan,
        keys: Vec<SortExpr>,
    ) -> Result<Unsorted> {
        let mut places = Vec::with_capacity(keys.len());
        for key in &keys {
            let is_key = |expr: &Expr| without_alias(expr) == &key.expr;
            let place = exprs.iter().position(is_key).unwrap_or_else(|| {
                exprs.push(self.named(key));
                exprs.len() - 1
            });
            places.push(place);
        }
        over(exprs, input, keys, &places)
    }

    /// Windows that tell the order have it. All of one node share theirs, so the others stand in one below.
    fn windows(&mut self, window: Window) -> Result<Unsorted> {
        let (input, keys) = self.without(Arc::unwrap_or_clone(window.input))?;
        let (mut ordered, mut others) = (vec![], vec![]);
        for expr in window.window_expr {
            let name = expr.schema_name().to_string();
            let expr = expr.transform_up(|expr| match expr {
                Expr::WindowFunction(mut call) if !keys.is_empty() && tells_order(&call) => {
                    call.params.order_by = keys.clone();
                    Ok(Transformed::yes(Expr::WindowFunction(call)))
                }
                other => Ok(Transformed::no(other)),
            })?;
            match expr.transformed {
                true => ordered.push(expr.data.alias_if_changed(name)?),
                false => others.push(expr.data),
            }
        }
        let mut plan = input;
        for exprs in [others, ordered] {
            if !exprs.is_empty() {
                plan = LogicalPlan::Window(Window::try_new(exprs, Arc::new(plan))?);
            }
        }
        Ok((plan, keys))
    }

    fn aggregates(&mut self, aggregate: Aggregate) -> Result<LogicalPlan> {
        let takes_order = |expr: &Expr| {
            matches!(expr, Expr::AggregateFunction(call)
                if call.params.order_by.is_empty()
                    && !call.params.distinct
                    && ORDERED.contains(&call.func.name()))
        };
        let plan = LogicalPlan::Aggregate(aggregate);
        if !has_part(&plan, takes_order)? {
            return self.of_sets_below(plan);
        }
        let mut keys = Vec::new();
        let plan = plan.map_children(|input| {
            let (input, of_input) = self.without(input)?;
            keys = of_input;
            Ok(Transformed::yes(input))
        })?;
        let plan = map_named_expressions(plan.data, |expr| {
            expr.transform_up(|expr| match expr {
                expr if keys.is_empty() || !takes_order(&expr) => Ok(Transformed::no(expr)),
                Expr::AggregateFunction(mut call) => {
                    call.params.order_by = keys.clone();
                    Ok(Transformed::yes(Expr::AggregateFunction(call)))
                }
                other => Ok(Transformed::no(other)),
            })
        })?;
        Ok(plan.data)
    }
}

/// Whether what a window function gives tells in which order rows come that it has no order for.
fn tells_order(call: &WindowFunction) -> bool {
    let frame = &call.params.window_frame;
    let is_of_all = frame.start_bound.is_unbounded() && frame.end_bound.is_unbounded();
    call.params.order_by.is_empty()
        && match &call.fun {
            WindowFunctionDefinition::WindowUDF(function) => NUMBERED.contains(&function.name()),
            WindowFunctionDefinition::AggregateUDF(function) => {
                ORDERED.contains(&function.name())
                    || (frame.units == WindowFrameUnits::Rows && !is_of_all)
            }
        }
}

fn columns_of(schema: &DFSchema) -> Vec<Expr> {
    schema.columns().into_iter().map(Expr::Column).collect()
}

/// A projection, and the keys as its columns at these places.
fn over(
    exprs: Vec<Expr>,
    input: LogicalPlan,
    keys: Vec<SortExpr>,
    places: &[usize],
) -> Result<Unsorted> {
    let projection = Projection::try_new(exprs, Arc::new(input))?;
    let keys = keys.into_iter().zip(places).map(|(key, place)| {
        let column = Column::from(projection.schema.qualified_field(*place));
        key.with_expr(Expr::Column(column))
    });
    let keys = keys.collect();
    Ok((LogicalPlan::Projection(projection), keys))
}

fn is_sorted(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(_) => true,
        LogicalPlan::Projection(projection) => is_sorted(&projection.input),
        LogicalPlan::Limit(limit) => is_sorted(&limit.input),
        _ => false,
    }
}

fn without_alias(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => without_alias(&alias.expr),
        other => other,
    }
}

fn sorted(plan: LogicalPlan, keys: Vec<SortExpr>) -> Result<LogicalPlan> {
    Ok(match keys.is_empty() {
        true => plan,
        false => LogicalPlan::Sort(Sort {
            expr: keys,
            input: Arc::new(plan),
            fetch: None,
        }),
    })
}

/// The plan with those columns alone, in their order.
fn with_columns(plan: LogicalPlan, schema: &DFSchemaRef) -> Result<LogicalPlan> {
    let mut wanted = schema.columns();
    // DataFusion's rule for `grouping(…)`, which runs before, takes it from below nodes that still name it.
    wanted.retain(|column| {
        column.name != Aggregate::INTERNAL_GROUPING_ID || plan.schema().has_column(column)
    });
    if plan.schema().columns() == wanted {
        return Ok(plan);
    }
    let wanted = wanted.into_iter().map(Expr::Column).collect();
    let projection = Projection::try_new(wanted, Arc::new(plan))?;
    Ok(LogicalPlan::Projection(projection))
}

/// The keys over columns of one schema as those over another one, which calls the same columns otherwise.
fn called_anew(
    keys: Vec<SortExpr>,
    before: &DFSchemaRef,
    after: &DFSchemaRef,
) -> Result<Vec<SortExpr>> {
    let keys = keys.into_iter().map(|key| {
        let expr = key.expr.clone().transform_up(|expr| match expr {
            Expr::Column(column) => {
                let place = before.index_of_column(&column)?;
                let column = Column::from(after.qualified_field(place));
                Ok(Transformed::yes(Expr::Column(column)))
            }
            other => Ok(Transformed::no(other)),
        })?;
        Ok(key.with_expr(expr.data))
    });
    keys.collect()
}
