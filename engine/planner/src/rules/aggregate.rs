//! Partial aggregates into the scan.
//!
//! DataFusion aggregates in two steps: *partial* makes states of rows, *final* merges states. A
//! scan that emits states with the partial step's own schema takes its place; the final step
//! can't tell the difference. The states are, by DataFusion 55's accumulators:
//!
//! | function | state columns | in the Program |
//! |---|---|---|
//! | `count(x)`, `count(*)` | count, Int64 | `Count` |
//! | `sum(x)` | sum, the result's type | `Sum` |
//! | `min(x)`, `max(x)` | the value | `Min`, `Max` |
//! | `avg(x)` | count, UInt64; sum, Float64 or a wider decimal | `Count`, `Sum` |
//!
//! In a grouped `avg` the count of a group without values is NULL; the stream of the scan turns
//! the Program's 0 into that.
//!
//! The types are taken from the accumulators, not from this table; a type that Programs don't
//! know keeps the aggregate above.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode};
use flashmesh_pushdown::{Aggregate, AggregateFunction, Expr, Output};

use super::{note_at_scan, scan_below};
use crate::config::Pushdown;
use crate::scan::spec::{OutputText, ScanSpec};
use crate::scan::{FlashScanExec, ScanBuilder};
use crate::translate::{Scope, program_type, text_of, translate};
use crate::walk::Walk as _;
use crate::{Reason, cost};

/// Replaces a partial aggregate over a scan by a scan that gives the partial states.
#[derive(Debug)]
pub struct AggregateIntoScan;

impl PhysicalOptimizerRule for AggregateIntoScan {
    fn name(&self) -> &str {
        "AggregateIntoScan"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            let Some(aggregate) = node.downcast_ref::<AggregateExec>() else {
                return Ok(Transformed::no(node));
            };
            if !matches!(
                aggregate.mode(),
                AggregateMode::Partial | AggregateMode::Single
            ) {
                return Ok(Transformed::no(node));
            }
            let outcome = match scan_below(aggregate.input()) {
                Ok(builder) => replace(aggregate, builder),
                Err(Some(reason)) => Err(reason),
                Err(None) => return Ok(Transformed::no(node)),
            };
            match outcome {
                Ok(scan) => finish(aggregate, scan).map(|replaced| match replaced {
                    Some(replaced) => Transformed::yes(replaced),
                    None => Transformed::no(node),
                }),
                Err(reason) => note_at_scan(Arc::clone(&node), &text(aggregate), &reason),
            }
        })
        .data()
    }
}

/// What takes the place of `aggregate`, given a scan that yields its partial states.
fn finish(
    aggregate: &AggregateExec,
    scan: FlashScanExec,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let partitions = scan.partitions();
    let scan: Arc<dyn ExecutionPlan> = Arc::new(scan);
    if *aggregate.mode() == AggregateMode::Partial {
        return Ok(Some(scan));
    }
    let input = if partitions > 1 {
        Arc::new(CoalescePartitionsExec::new(scan)) as _
    } else {
        scan
    };
    let merged = AggregateExec::try_new(
        AggregateMode::Final,
        aggregate.group_expr().as_final(),
        aggregate.aggr_expr().to_vec(),
        aggregate.filter_expr().to_vec(),
        input,
        aggregate.input_schema(),
    )?
    .with_limit_options(aggregate.limit_options());
    // A rule must not change the plan's schema, be it only a field's nullability.
    Ok((merged.schema() == aggregate.schema()).then(|| Arc::new(merged) as _))
}

/// An aggregate as `EXPLAIN` names it.
fn text(aggregate: &AggregateExec) -> String {
    let keys: Vec<_> = aggregate
        .group_expr()
        .expr()
        .iter()
        .map(|(expr, _)| text_of(expr.as_ref()))
        .collect();
    let aggregates: Vec<_> = aggregate.aggr_expr().iter().map(|a| name(a)).collect();
    let mut text = if aggregates.is_empty() {
        "distinct".to_owned()
    } else {
        aggregates.join(", ")
    };
    if !keys.is_empty() {
        text.push_str(" group by ");
        text.push_str(&keys.join(", "));
    }
    text
}

fn name(aggregate: &AggregateFunctionExpr) -> String {
    aggregate
        .human_display()
        .unwrap_or(aggregate.name())
        .to_owned()
}

/// The scan that gives the partial states of `aggregate`.
fn replace(aggregate: &AggregateExec, mut builder: ScanBuilder) -> Result<FlashScanExec, Reason> {
    if builder.spec().mode == Pushdown::Never {
        return Err(Reason::Off);
    }
    if !matches!(&builder.spec().output, Output::Rows { limit: None, .. }) {
        return Err(Reason::Blocked("a limit comes first".into()));
    }
    if !aggregate.group_expr().is_single() {
        return Err(Reason::Operator("GROUPING SETS".into()));
    }
    if *aggregate.input_order_mode() != InputOrderMode::Linear {
        return Err(Reason::Blocked("the input is ordered by its groups".into()));
    }
    let scope = builder.scope();
    let mut keys = Vec::new();
    for (expr, _) in aggregate.group_expr().expr() {
        let data_type = expr
            .data_type(scope.schema())
            .map_err(|e| Reason::Operator(e.strip_backtrace()))?;
        if program_type(&data_type) != data_type {
            return Err(Reason::Type(data_type));
        }
        keys.push(translate(expr.as_ref(), scope)?);
    }
    let mut aggregates = Vec::new();
    let mut null_for_zero = Vec::new();
    for (function, filter) in aggregate.aggr_expr().iter().zip(aggregate.filter_expr()) {
        if function.fun().name() == "avg" && !keys.is_empty() {
            null_for_zero.push(keys.len() + aggregates.len());
        }
        states(function, filter.as_ref(), scope, &mut aggregates)?;
    }
    pays(builder.spec(), &keys)?;
    let schema = partial_schema(aggregate)?;
    if schema.fields().len() != keys.len() + aggregates.len() {
        return Err(Reason::Function("its state has another shape".into()));
    }
    let groups = aggregate.group_expr().expr().iter();
    let text = OutputText {
        columns: groups.map(|(e, _)| text_of(e.as_ref())).collect(),
        aggregates: aggregate.aggr_expr().iter().map(|a| name(a)).collect(),
        order: vec![],
    };
    builder.aggregate(keys, aggregates, null_for_zero, text, schema);
    builder.build()
}

/// Whether grouping in the store is worth it.
fn pays(spec: &ScanSpec, keys: &[Expr]) -> Result<(), Reason> {
    if spec.mode == Pushdown::Always || keys.is_empty() {
        return Ok(());
    }
    let rows = spec.rows_after_filter();
    let groups = cost::groups(keys, rows, spec.table.as_ref());
    if cost::grouping_pays(groups, rows) {
        return Ok(());
    }
    Err(Reason::Cost(format!(
        "about {groups:.0} groups of {rows:.0} rows"
    )))
}

/// The schema of the partial step.
fn partial_schema(aggregate: &AggregateExec) -> Result<arrow::datatypes::SchemaRef, Reason> {
    if *aggregate.mode() == AggregateMode::Partial {
        return Ok(aggregate.schema());
    }
    AggregateExec::try_new(
        AggregateMode::Partial,
        aggregate.group_expr().clone(),
        aggregate.aggr_expr().to_vec(),
        aggregate.filter_expr().to_vec(),
        Arc::clone(aggregate.input()),
        aggregate.input_schema(),
    )
    .map(|partial| partial.schema())
    .map_err(|e| Reason::Operator(e.strip_backtrace()))
}

/// Adds the states of one aggregate function to `out`.
fn states(
    function: &AggregateFunctionExpr,
    filter: Option<&Arc<dyn PhysicalExpr>>,
    scope: &Scope,
    out: &mut Vec<Aggregate>,
) -> Result<(), Reason> {
    let unsupported = || Reason::Function(name(function));
    if function.is_distinct() || !function.order_bys().is_empty() {
        return Err(unsupported());
    }
    let filter = filter.map(|f| translate(f.as_ref(), scope)).transpose()?;
    let fields = function
        .state_fields()
        .map_err(|e| Reason::Operator(e.strip_backtrace()))?;
    let types: Vec<&DataType> = fields.iter().map(|f| f.data_type()).collect();
    let args = function.expressions();
    let [argument] = args.as_slice() else {
        return Err(unsupported());
    };
    let translated = || translate(argument.as_ref(), scope);
    let mut add = |function, argument, data_type: &DataType| {
        out.push(Aggregate {
            function,
            argument,
            filter: filter.clone(),
            data_type: data_type.clone(),
        });
    };
    match (function.fun().name(), types.as_slice()) {
        ("count", [count]) => add(AggregateFunction::Count, counted(argument, scope)?, count),
        ("sum", [sum]) if sums(sum) => add(AggregateFunction::Sum, Some(translated()?), sum),
        ("min", [value]) if program_type(value) == **value => {
            add(AggregateFunction::Min, Some(translated()?), value);
        }
        ("max", [value]) if program_type(value) == **value => {
            add(AggregateFunction::Max, Some(translated()?), value);
        }
        ("avg", [count, sum]) if sums(sum) => {
            let argument = translated()?;
            add(AggregateFunction::Count, Some(argument.clone()), count);
            add(AggregateFunction::Sum, Some(argument), sum);
        }
        ("sum" | "avg" | "min" | "max", [.., last]) => return Err(Reason::Type((*last).clone())),
        _ => return Err(unsupported()),
    }
    Ok(())
}

/// What `count` counts: `None` for `count(*)`, which arrives as the count of a constant.
fn counted(argument: &Arc<dyn PhysicalExpr>, scope: &Scope) -> Result<Option<Expr>, Reason> {
    match argument.downcast_ref::<Literal>() {
        Some(literal) if !literal.value().is_null() => Ok(None),
        _ => translate(argument.as_ref(), scope).map(Some),
    }
}

/// Types that a Program's `Sum` has.
fn sums(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Int64 | DataType::UInt64 | DataType::Float64 | DataType::Decimal128(..)
    )
}
