//! How many rows a logical plan gives, and how many distinct values its columns have.

use arrow::datatypes::DataType;
use datafusion::catalog::default_table_source::source_as_provider;
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, DFSchema, DFSchemaRef, ScalarValue};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, FetchType, Join, JoinType, LogicalPlan, TableScan};
use flashmesh_pushdown as program;

use super::{Columns, KeyRange, default_share, distinct_values, key_of, selectivity};
use crate::FlashTable;
use crate::asof::sides_of;
use crate::translate::{Scope, program_type, scalar_of, translate};
use crate::tree::physical_of;

/// The least share of rows that any predicate is taken to leave: what is joined is not empty.
const LEAST: f64 = 1e-7;

/// What is expected of a plan's output.
#[derive(Debug, Clone)]
pub struct Estimate {
    /// Rows.
    pub rows: f64,
    /// Rows before any filter: the domain that the distinct counts refer to.
    pub base_rows: f64,
    schema: DFSchemaRef,
    /// By their place in `schema`.
    columns: Vec<Known>,
}

#[derive(Debug, Clone, Default)]
struct Known {
    distinct: Option<f64>,
    nulls: Option<f64>,
    bounds: Option<KeyRange>,
}

impl Estimate {
    /// The estimate for `plan`; `None` where a table gives no statistics.
    pub fn of(plan: &LogicalPlan) -> Option<Self> {
        match plan {
            LogicalPlan::TableScan(scan) => Self::of_scan(scan),
            LogicalPlan::Filter(filter) => {
                let input = Self::of(&filter.input)?;
                let kept = input.selectivity(&filter.predicate);
                Some(input.scaled(kept))
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let schema = alias.schema.clone();
                Some(Self {
                    schema,
                    ..Self::of(&alias.input)?
                })
            }
            LogicalPlan::Projection(projection) => {
                let input = Self::of(&projection.input)?;
                Some(Self {
                    rows: input.rows,
                    base_rows: input.base_rows,
                    schema: projection.schema.clone(),
                    columns: projection.expr.iter().map(|e| input.known(e)).collect(),
                })
            }
            LogicalPlan::Aggregate(aggregate) => {
                let input = Self::of(&aggregate.input)?;
                let keys = &aggregate.group_expr;
                let groups = keys.iter().map(|e| input.distinct_among(e, input.rows));
                let rows = groups.product::<f64>().min(input.rows).max(1.0);
                let columns = keys.iter().map(|e| input.known(e)).collect();
                Some(Self::new(rows, plan, columns))
            }
            LogicalPlan::Join(join) => Self::of_join(join),
            LogicalPlan::Limit(limit) => {
                let input = Self::of(&limit.input)?;
                let fetch = match limit.get_fetch_type() {
                    Ok(FetchType::Literal(Some(n))) => n as f64,
                    _ => input.rows,
                };
                Some(Self {
                    rows: input.rows.min(fetch),
                    ..input
                })
            }
            LogicalPlan::Sort(sort) => Self::of(&sort.input),
            LogicalPlan::Repartition(repartition) => Self::of(&repartition.input),
            LogicalPlan::Distinct(distinct) => Self::of(distinct.input()),
            LogicalPlan::Window(window) => {
                let input = Self::of(&window.input)?;
                let mut columns = input.columns;
                columns.resize(window.schema.fields().len(), Known::default());
                Some(Self {
                    schema: window.schema.clone(),
                    columns,
                    ..input
                })
            }
            LogicalPlan::Union(union) => {
                let rows = union.inputs.iter().map(|i| Some(Self::of(i)?.rows));
                Some(Self::new(rows.sum::<Option<f64>>()?, plan, Vec::new()))
            }
            LogicalPlan::Extension(extension) => {
                let (left, right) = sides_of(extension.node.as_ref())?;
                let (left, right) = (Self::of(left)?, Self::of(right)?);
                let columns = left.columns.into_iter().chain(right.columns).collect();
                Some(Self {
                    base_rows: left.base_rows,
                    ..Self::new(left.rows, plan, columns)
                })
            }
            LogicalPlan::EmptyRelation(_) | LogicalPlan::Values(_) => {
                Some(Self::new(1.0, plan, Vec::new()))
            }
            _ => None,
        }
    }

    /// Rows of which all are there; nothing is known of columns after the last of `columns`.
    fn new(rows: f64, plan: &LogicalPlan, mut columns: Vec<Known>) -> Self {
        let schema = plan.schema().clone();
        columns.resize(schema.fields().len(), Known::default());
        Self {
            rows,
            base_rows: rows,
            schema,
            columns,
        }
    }

    fn of_scan(scan: &TableScan) -> Option<Self> {
        let provider = source_as_provider(&scan.source).ok()?;
        let statistics = provider.statistics()?;
        let rows = *statistics.num_rows.get_value()? as f64;
        // Filters may use columns that the scan does not return.
        let schema = scan.source.schema();
        let columns = schema.fields().iter().zip(&statistics.column_statistics);
        let columns = columns.map(|(field, known)| Known::of(known, field.data_type(), rows));
        let named = DFSchema::try_from_qualified_schema(scan.table_name.clone(), &schema).ok()?;
        let mut whole = Self {
            rows,
            base_rows: rows.max(1.0),
            schema: named.into(),
            columns: columns.collect(),
        };
        let filters = scan.filters.iter().flat_map(split_conjunction);
        // A table on flash has histograms.
        let kept = match FlashTable::of(&scan.source) {
            Some(table) => share_kept(filters, &whole.schema, table.named().snapshot().as_ref()),
            None => share_kept(filters, &whole.schema, &whole),
        };
        if let Some(projection) = &scan.projection {
            let columns = projection.iter().map(|i| whole.columns.get(*i).cloned());
            whole.columns = columns.collect::<Option<_>>()?;
        }
        whole.schema = scan.projected_schema.clone();
        Some(whole.scaled(kept))
    }

    fn of_join(join: &Join) -> Option<Self> {
        let (left, right) = (Self::of(&join.left)?, Self::of(&join.right)?);
        let matching: f64 = {
            let (mut l, mut r) = (1.0, 1.0);
            for (a, b) in &join.on {
                l *= left.distinct(a);
                r *= right.distinct(b);
            }
            let (l_cap, r_cap) = (l.min(left.base_rows), r.min(right.base_rows));
            if join.on.len() > 1 {
                l_cap.min(r_cap)
            } else {
                l.max(r)
            }
        };
        let inner = (left.rows * right.rows / matching.max(1.0)).max(1.0);
        // Share of the left rows that find a partner, when keys of the right are contained.
        let partnered = || {
            let keys: f64 = join.on.iter().map(|(a, _)| left.distinct(a)).product();
            (right.rows / keys.min(left.base_rows).max(1.0)).clamp(LEAST, 1.0)
        };
        let rows = match join.join_type {
            JoinType::Inner => inner,
            JoinType::Left => inner.max(left.rows),
            JoinType::Right => inner.max(right.rows),
            JoinType::Full => inner.max(left.rows).max(right.rows),
            JoinType::LeftSemi => left.rows * partnered(),
            JoinType::LeftAnti => left.rows * (1.0 - partnered()).max(0.1),
            _ => return None,
        };
        let mut columns = left.columns;
        let mut base_rows = left.base_rows.max(rows);
        if !matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti) {
            columns.extend(right.columns);
            base_rows = base_rows.max(right.base_rows);
        }
        Some(Self {
            rows: rows.max(1.0),
            base_rows,
            schema: join.schema.clone(),
            columns,
        })
    }

    fn scaled(mut self, kept: f64) -> Self {
        self.rows = (self.rows * kept).max(1.0);
        self
    }

    /// What is known of an expression over the columns.
    fn known(&self, expr: &Expr) -> Known {
        match expr {
            Expr::Alias(alias) => self.known(&alias.expr),
            Expr::Column(column) => match self.schema.maybe_index_of_column(column) {
                Some(index) => self.columns[index].clone(),
                None => Known::default(),
            },
            other => Known {
                distinct: Some(self.distinct(other)),
                ..Known::default()
            },
        }
    }

    /// Distinct values of an expression in the base rows.
    pub fn distinct(&self, expr: &Expr) -> f64 {
        self.distinct_among(expr, self.base_rows)
    }

    /// Distinct values of an expression among `rows` of the base rows.
    fn distinct_among(&self, expr: &Expr, rows: f64) -> f64 {
        let of = |expr: &program::Expr| distinct_values(expr, rows, self);
        let values = match translated(expr, &self.schema) {
            Some(expr) => of(&expr),
            // A function has no more values than its arguments have combinations.
            None => expr
                .column_refs()
                .into_iter()
                .map(|c| match self.schema.maybe_index_of_column(c) {
                    Some(index) => of(&program::Expr::Column(index as u32)),
                    None => rows,
                })
                .product(),
        };
        values.min(rows).max(1.0)
    }

    /// Share of the rows for which `expr` is true.
    pub fn selectivity(&self, expr: &Expr) -> f64 {
        share_kept(split_conjunction(expr), &self.schema, self)
    }
}

impl Columns for Estimate {
    fn base_rows(&self) -> f64 {
        self.base_rows
    }

    fn distinct(&self, column: u32) -> Option<f64> {
        self.columns.get(column as usize)?.distinct
    }

    fn null_share(&self, column: u32) -> f64 {
        let known = self.columns.get(column as usize);
        known.and_then(|k| k.nulls).unwrap_or(default_share::NULL)
    }

    fn range_share(&self, column: u32, wanted: KeyRange) -> Option<f64> {
        let bounds = self.columns.get(column as usize)?.bounds?;
        let data_type = program_type(self.schema.field(column as usize).data_type());
        let share = bounds.share_within(wanted, &data_type)?;
        Some(share * (1.0 - self.null_share(column)))
    }

    fn lacks(&self, column: u32, key: i64) -> bool {
        let known = self.columns.get(column as usize);
        let bounds = known.and_then(|k| k.bounds);
        bounds.is_some_and(|b| !(b.min..=b.max).contains(&key))
    }
}

impl Known {
    fn of(statistics: &ColumnStatistics, data_type: &DataType, rows: f64) -> Self {
        let data_type = program_type(data_type);
        let key = |value: &Precision<ScalarValue>| {
            key_of(&scalar_of(value.get_value()?).ok()?, &data_type)
        };
        let bounds = key(&statistics.min_value)
            .zip(key(&statistics.max_value))
            .map(|(min, max)| KeyRange { min, max });
        // Whole numbers have no more values than their range.
        let span = bounds.filter(|_| data_type.is_integer() || data_type.is_temporal());
        let span = span.map(|b| (b.max as f64 - b.min as f64 + 1.0).min(rows).max(1.0));
        let counted = statistics.distinct_count.get_value();
        Self {
            distinct: counted.map(|d| (*d as f64).max(1.0)).or(span),
            nulls: statistics
                .null_count
                .get_value()
                .map(|n| *n as f64 / rows.max(1.0)),
            bounds,
        }
    }
}

/// The share of rows for which all of `conjuncts` are true.
fn share_kept<'a>(
    conjuncts: impl IntoIterator<Item = &'a Expr>,
    schema: &DFSchema,
    columns: &dyn Columns,
) -> f64 {
    let mut known = Vec::new();
    let mut share = 1.0;
    for conjunct in conjuncts {
        match translated(conjunct, schema) {
            Some(expr) => known.push(expr),
            None => share *= default_share::OTHER,
        }
    }
    (share * selectivity(&known, columns)).clamp(LEAST, 1.0)
}

/// An expression as a Program would have it, over the columns of `schema` by their ordinals.
fn translated(expr: &Expr, schema: &DFSchema) -> Option<program::Expr> {
    let physical = physical_of(expr, schema).ok()?;
    translate(physical.as_ref(), &Scope::of_table(schema.inner().clone())).ok()
}
