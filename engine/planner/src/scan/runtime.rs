//! Filters that other operators learn while the query runs ▸ runtime filters of the store.
//!
//! A hash join knows its build side's keys before it asks the probe side for a row, a top-k knows
//! the worst row that it still holds. DataFusion hands such knowledge down as expressions that
//! change while the query runs. Whenever one has changed, its present form is read here as what
//! it says of single columns:
//!
//! * the *hull*, a range that holds every value for which the expression can be TRUE, from
//!   comparisons with constants below AND, OR and CASE;
//! * exact sets, from IN lists;
//! * an exact bitmap for conjuncts that only the expression itself can evaluate (look-ups in the
//!   join's hash table), by evaluating it once for each value of the hull, if those are few
//!   against the rows that it saves.
//!
//! All of it only removes rows that the operator above would remove too.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::{DataType, Schema};
use arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, Column, InListExpr, IsNullExpr, Literal,
};
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_expr::utils::split_conjunction;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_expr_common::physical_expr::{
    snapshot_generation, snapshot_physical_expr,
};
use flashmesh_pushdown::{
    Limits, Program, RuntimeFilter, RuntimePredicate, Scalar, VerifiedProgram,
    verify_runtime_filter,
};
use flashmesh_storage::node::RuntimeFilters;
use flashmesh_storage::table::ColumnStatistics;
use futures::future::join_all;
use parking_lot::Mutex;

use super::FlashScanExec;
use super::bitmap::Alone;
use super::spec::{DynamicFilter, FilterColumn, ScanSpec};
use crate::join_keys::{Gathered, KeyFilter, QueryKeys};
use crate::translate::scalar_of;
use crate::walk::Walk as _;

/// Keys that a join gives to the scan of its other side one by one.
const LISTED_KEYS: usize = 2048;
/// Values that a bitmap may span.
const BITMAP_SPAN: i64 = 1 << 23;
/// A bitmap of so few values is made however few rows the table has.
const ALWAYS_EVALUATED: u64 = 1 << 14;
/// How many times as dear an expression with CASE is: the keys of a join that is partitioned are
/// hashed twice, once to find the part and once in it.
const CASE_COST: u64 = 8;

/// Whether a scan will know the keys that a join looks for one by one, and not only between which
/// values they are. `keys`: how many there are expected to be; in a join that is `partitioned` to find
/// them is dearer.
pub fn will_know_keys(
    spec: &ScanSpec,
    program: &Program,
    keys: Option<usize>,
    partitioned: bool,
) -> bool {
    if spec.dynamic_filters.is_empty() || keys.is_some_and(|keys| keys <= LISTED_KEYS) {
        return !spec.dynamic_filters.is_empty();
    }
    let filters = spec.dynamic_filters.iter();
    let mut columns = filters.flat_map(|filter| Source::new(filter, spec, program).columns);
    columns.any(|column| {
        let span = column.span.and_then(|(min, max)| max.checked_sub(min));
        span.is_some_and(|span| span < affordable_span(spec.table.rows(), partitioned))
    })
}

/// How many values a bitmap may span for a scan of so many rows.
fn affordable_span(rows: u64, has_case: bool) -> i64 {
    let affordable = rows / if has_case { CASE_COST } else { 1 };
    let affordable = affordable.max(ALWAYS_EVALUATED);
    i64::try_from(affordable)
        .unwrap_or(i64::MAX)
        .min(BITMAP_SPAN)
}

/// A filter with its columns of the table.
#[derive(Debug)]
struct Source {
    filter: DynamicFilter,
    columns: Vec<FilterColumn>,
}

impl Source {
    fn new(filter: &DynamicFilter, spec: &ScanSpec, program: &Program) -> Self {
        let columns = filter.ordinals.iter().enumerate();
        let column = |(place, ordinal): (usize, &Option<u32>)| {
            let ordinal = (*ordinal)?;
            let statistics = spec.table.statistics.get(ordinal as usize);
            Some(FilterColumn {
                place,
                program: number_of(ordinal, program)?,
                data_type: filter.schema.field(place).data_type().clone(),
                span: statistics.and_then(ColumnStatistics::span),
                distinct: statistics.and_then(|s| s.distinct),
            })
        };
        Self {
            columns: columns.filter_map(column).collect(),
            filter: filter.clone(),
        }
    }
}

/// The number that a Program has for a column of its table.
fn number_of(ordinal: u32, program: &Program) -> Option<u32> {
    let mut numbered = program.columns.iter().zip(0..);
    numbered.find_map(|(column, number)| (column.ordinal == ordinal).then_some(number))
}

/// A key of a join elsewhere.
#[derive(Debug)]
struct OfJoin {
    key: u32,
    /// Index into `Program::columns`.
    column: u32,
    gathered: Arc<Gathered>,
    /// What is known of it: once, and for good.
    known: OnceLock<Vec<RuntimeFilter>>,
}

/// A filter as it was read last.
#[derive(Debug)]
struct Known {
    generation: u64,
    says: Vec<RuntimeFilter>,
}

/// The changing filters of one execution of a scan, shared by its partitions.
#[derive(Debug)]
pub struct DynamicFilters {
    sources: Vec<Source>,
    /// Rows of the table: the more there are, the more a bitmap may cost.
    rows: u64,
    /// Threads that may evaluate at once.
    threads: usize,
    program: Arc<VerifiedProgram>,
    of_joins: Vec<OfJoin>,
    /// What each filter said when it was read last.
    known: Mutex<Vec<Known>>,
    /// Where the store looks.
    published: Arc<RuntimeFilters>,
}

impl DynamicFilters {
    /// The filters of a scan, not read yet. `keys`: where it hears of joins elsewhere.
    pub fn new(
        scan: &FlashScanExec,
        keys: Option<&QueryKeys>,
        published: Arc<RuntimeFilters>,
    ) -> Self {
        let (spec, program) = (scan.spec(), scan.program());
        let filters = spec.dynamic_filters.iter();
        let filters = filters.map(|filter| Source::new(filter, spec, program));
        let of_join = |filter: &KeyFilter| {
            Some(OfJoin {
                key: filter.key,
                column: number_of(filter.ordinal, program)?,
                gathered: keys?.of(filter.join),
                known: OnceLock::new(),
            })
        };
        let of_joins = spec.key_filters.iter().filter_map(of_join);
        Self {
            sources: filters.collect(),
            rows: spec.table.rows(),
            threads: scan.partitions(),
            program: Arc::clone(program),
            known: Mutex::default(),
            of_joins: of_joins.collect(),
            published,
        }
    }

    /// Comes back when the keys of all joins elsewhere are known, or are waited for no longer; `None`
    /// where there are none.
    pub fn wait(&self) -> Option<impl Future<Output = ()> + Send + 'static> {
        let gathered = self.of_joins.iter().map(|join| Arc::clone(&join.gathered));
        let all: Vec<_> = gathered.collect();
        let is_any = !all.is_empty();
        let wait = async move { drop(join_all(all.into_iter().map(Gathered::wait)).await) };
        is_any.then_some(wait)
    }

    /// What joins elsewhere have told since the last time, if that is anything.
    fn hear_of_joins(&self) -> bool {
        let mut is_new = false;
        let unknown = self.of_joins.iter().filter(|j| j.known.get().is_none());
        for join in unknown {
            let Some(whole) = join.gathered.whole() else {
                continue;
            };
            let filters = whole.iter().filter(|filter| filter.column == join.key);
            let filters = filters.map(|filter| RuntimeFilter {
                column: join.column,
                ..filter.clone()
            });
            // It came from another node.
            let is_sound = |filter: &RuntimeFilter| {
                let columns = &self.program.columns;
                let verified = verify_runtime_filter(filter, columns, &Limits::default());
                verified
                    .inspect_err(|error| log::warn!("keys of a join are not used: {error}"))
                    .is_ok()
            };
            is_new |= join.known.set(filters.filter(is_sound).collect()).is_ok();
        }
        is_new
    }

    /// Publishes what the filters say now, if that has changed.
    pub fn refresh(&self) -> Result<()> {
        if self.sources.is_empty() && self.of_joins.is_empty() {
            return Ok(());
        }
        let mut known = self.known.lock();
        let mut changed = self.hear_of_joins();
        for (place, source) in self.sources.iter().enumerate() {
            // A filter without generations is one whose value is there from the start of
            // execution.
            let filter = &source.filter.expr;
            let generation = snapshot_generation(filter);
            if known.get(place).is_some_and(|k| k.generation == generation) {
                continue;
            }
            // Only this one is read: a top-k changes its filter often, and the bitmap of a join
            // beside it is dear.
            let current = snapshot_physical_expr(Arc::clone(filter))?;
            let mut says = Vec::new();
            self.read(source, &current, &mut says)?;
            let read = Known { generation, says };
            match known.get_mut(place) {
                Some(known) => *known = read,
                None => known.push(read),
            }
            changed = true;
        }
        if changed {
            let says = known.iter().flat_map(|k| &k.says);
            let of_joins = self.of_joins.iter().filter_map(|join| join.known.get());
            let of_joins = of_joins.flatten();
            self.published
                .publish(says.chain(of_joins).cloned().collect());
        }
        Ok(())
    }

    /// What `expr` says of each column.
    fn read(
        &self,
        source: &Source,
        expr: &Arc<dyn PhysicalExpr>,
        found: &mut Vec<RuntimeFilter>,
    ) -> Result<()> {
        for conjunct in split_conjunction(expr) {
            let mentioned = mentioned(conjunct);
            for column in source
                .columns
                .iter()
                .filter(|c| mentioned.contains(&c.place))
            {
                let hull = hull(conjunct.as_ref(), column.place, &column.data_type);
                if let Some(predicate) = set_of(conjunct, column) {
                    found.push(RuntimeFilter {
                        column: column.program,
                        predicate,
                        keep_nulls: false,
                    });
                    continue;
                }
                if hull.is_empty() || hull.min.is_some() || hull.max.is_some() {
                    found.push(RuntimeFilter {
                        column: column.program,
                        predicate: hull.predicate(),
                        keep_nulls: hull.nulls,
                    });
                }
            }
            if mentioned.is_empty() && is_false(conjunct.as_ref()) {
                // Nothing passes at all. Any column says so.
                if let Some(column) = source.columns.first() {
                    found.push(RuntimeFilter {
                        column: column.program,
                        predicate: RuntimePredicate::Set(vec![]),
                        keep_nulls: false,
                    });
                }
            }
        }
        // Membership is worth a bitmap only when bounds (in any conjunct) make the span small.
        for column in &source.columns {
            if let Some(filter) = self.bitmap(source, expr, column)? {
                found.push(filter);
            }
        }
        Ok(())
    }

    /// The bitmap of `expr` over one integer column, if it mentions no other, has a part that is
    /// no hull or set, and spans few enough values.
    fn bitmap(
        &self,
        source: &Source,
        expr: &Arc<dyn PhysicalExpr>,
        column: &FilterColumn,
    ) -> Result<Option<RuntimeFilter>> {
        let mine: Vec<Arc<dyn PhysicalExpr>> = split_conjunction(expr)
            .into_iter()
            .filter(|c| mentioned(c).into_iter().eq([column.place]))
            .cloned()
            .collect();
        let opaque =
            |c: &Arc<dyn PhysicalExpr>| !is_hull(c.as_ref()) && set_of(c, column).is_none();
        if !mine.iter().any(opaque) {
            return Ok(None);
        }
        let Some((table_min, table_max)) = column.span else {
            return Ok(None);
        };
        let (mut min, mut max) = (table_min, table_max);
        let mut nulls = true;
        for conjunct in &mine {
            let hull = hull(conjunct.as_ref(), column.place, &column.data_type);
            nulls &= hull.nulls;
            min = min.max(hull.min.as_ref().and_then(int_of).unwrap_or(min));
            max = max.min(hull.max.as_ref().and_then(int_of).unwrap_or(max));
        }
        if min > max {
            return Ok(None);
        }
        let Some(span) = max.checked_sub(min).and_then(|s| s.checked_add(1)) else {
            return Ok(None);
        };
        // The span says all that comparisons do.
        let mine: Vec<_> = mine
            .into_iter()
            .filter(|c| !is_range(c.as_ref(), column))
            .collect();
        let has_case = mine.iter().any(has_case);
        if span > affordable_span(self.rows, has_case) {
            return Ok(None);
        }
        let alone = Alone::new(mine, &source.filter.schema, column)?;
        let Some(bits) = alone.bitmap(min, span as usize, self.threads)? else {
            return Ok(None);
        };
        let keep_nulls = nulls && {
            let null = arrow::array::new_null_array(&column.data_type, 1);
            alone.passing(null)?.value(0)
        };
        Ok(Some(RuntimeFilter {
            column: column.program,
            predicate: RuntimePredicate::Bitmap {
                base: min,
                bits: bits.into(),
            },
            keep_nulls,
        }))
    }
}

fn has_case(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.exists(|node| Ok(node.downcast_ref::<CaseExpr>().is_some()))
        .expect("the closure never fails")
}

/// Output columns that `expr` reads.
fn mentioned(expr: &Arc<dyn PhysicalExpr>) -> BTreeSet<usize> {
    let mut columns = BTreeSet::new();
    expr.apply(|node| {
        if let Some(column) = node.downcast_ref::<Column>() {
            columns.insert(column.index());
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .expect("the closure never fails");
    columns
}

fn is_false(expr: &dyn PhysicalExpr) -> bool {
    matches!(
        expr.downcast_ref::<Literal>().map(Literal::value),
        Some(ScalarValue::Boolean(Some(false) | None))
    )
}

/// Values of a column for which an expression may be TRUE.
#[derive(Debug, Clone, PartialEq)]
struct Hull {
    min: Option<Scalar>,
    max: Option<Scalar>,
    /// Whether it may be TRUE for NULL.
    nulls: bool,
    /// It is TRUE for no value but perhaps NULL.
    no_values: bool,
}

impl Hull {
    /// All values.
    fn all() -> Self {
        Self {
            min: None,
            max: None,
            nulls: true,
            no_values: false,
        }
    }

    fn none() -> Self {
        Self {
            min: None,
            max: None,
            nulls: false,
            no_values: true,
        }
    }

    fn is_empty(&self) -> bool {
        self.no_values
    }

    fn predicate(&self) -> RuntimePredicate {
        if self.no_values {
            RuntimePredicate::Set(vec![])
        } else {
            RuntimePredicate::Range {
                min: self.min.clone(),
                max: self.max.clone(),
            }
        }
    }

    fn and(self, other: Self) -> Self {
        let bound = |a: Option<Scalar>, b: Option<Scalar>, greater: bool| match (a, b) {
            (Some(a), Some(b)) => Some(if is_less(&a, &b) == greater { b } else { a }),
            (a, b) => a.or(b),
        };
        Self {
            min: bound(self.min, other.min, true),
            max: bound(self.max, other.max, false),
            nulls: self.nulls && other.nulls,
            no_values: self.no_values || other.no_values,
        }
    }

    fn or(self, other: Self) -> Self {
        let nulls = self.nulls || other.nulls;
        if self.no_values {
            return Self { nulls, ..other };
        }
        if other.no_values {
            return Self { nulls, ..self };
        }
        let bound = |a: Option<Scalar>, b: Option<Scalar>, greater: bool| match (a, b) {
            (Some(a), Some(b)) => Some(if is_less(&a, &b) == greater { b } else { a }),
            _ => None,
        };
        Self {
            min: bound(self.min, other.min, false),
            max: bound(self.max, other.max, true),
            nulls,
            no_values: false,
        }
    }
}

/// Order of two values of one type.
fn is_less(a: &Scalar, b: &Scalar) -> bool {
    match (a, b) {
        (Scalar::Int(a), Scalar::Int(b)) => a < b,
        (Scalar::Float(a), Scalar::Float(b)) => a.total_cmp(b).is_lt(),
        (Scalar::Bytes(a), Scalar::Bytes(b)) => a < b,
        (Scalar::Boolean(a), Scalar::Boolean(b)) => a < b,
        _ => false,
    }
}

fn int_of(scalar: &Scalar) -> Option<i64> {
    match scalar {
        Scalar::Int(value) => i64::try_from(*value).ok(),
        _ => None,
    }
}

/// The value of an expression that is constant now.
fn constant(expr: &dyn PhysicalExpr) -> Option<ScalarValue> {
    if let Some(literal) = expr.downcast_ref::<Literal>() {
        return Some(literal.value().clone());
    }
    expr.downcast_ref::<ScalarSubqueryExpr>()?;
    // The subquery has run before the scan is asked for its first row, or the value is not
    // there yet and the filter says nothing.
    let empty = RecordBatch::new_empty(Arc::new(Schema::empty()));
    match expr.evaluate(&empty).ok()? {
        datafusion::logical_expr::ColumnarValue::Scalar(value) => Some(value),
        datafusion::logical_expr::ColumnarValue::Array(_) => None,
    }
}

fn is_column(expr: &dyn PhysicalExpr, place: usize) -> bool {
    expr.downcast_ref::<Column>()
        .is_some_and(|c| c.index() == place)
}

/// `column op constant`, whichever side the column is on.
fn comparison(
    binary: &BinaryExpr,
    place: usize,
    data_type: &DataType,
) -> Option<(Operator, Scalar)> {
    let (op, value) = if is_column(binary.left().as_ref(), place) {
        (*binary.op(), constant(binary.right().as_ref())?)
    } else if is_column(binary.right().as_ref(), place) {
        (binary.op().swap()?, constant(binary.left().as_ref())?)
    } else {
        return None;
    };
    if crate::translate::program_type(&value.data_type()) != *data_type {
        return None;
    }
    Some((op, scalar_of(&value).ok()?))
}

/// Where `expr` can be TRUE, as far as it compares the column with constants.
fn hull(expr: &dyn PhysicalExpr, place: usize, data_type: &DataType) -> Hull {
    let recurse = |e: &Arc<dyn PhysicalExpr>| hull(e.as_ref(), place, data_type);
    if is_false(expr) {
        return Hull::none();
    }
    if let Some(is_null) = expr.downcast_ref::<IsNullExpr>()
        && is_column(is_null.arg().as_ref(), place)
    {
        return Hull {
            nulls: true,
            ..Hull::none()
        };
    }
    if let Some(in_list) = expr.downcast_ref::<InListExpr>()
        && is_column(in_list.expr().as_ref(), place)
        && !in_list.negated()
        && let Some(values) = literals(in_list.list(), None)
    {
        return values.into_iter().fold(Hull::none(), |hull, value| {
            hull.or(Hull {
                min: Some(value.clone()),
                max: Some(value),
                nulls: false,
                no_values: false,
            })
        });
    }
    if let Some(case) = expr.downcast_ref::<CaseExpr>() {
        let branches = case.when_then_expr().iter().map(|(_, then)| recurse(then));
        let hull = branches.fold(Hull::none(), Hull::or);
        return match case.else_expr() {
            Some(otherwise) => hull.or(recurse(otherwise)),
            None => hull,
        };
    }
    let Some(binary) = expr.downcast_ref::<BinaryExpr>() else {
        return Hull::all();
    };
    match binary.op() {
        Operator::And => recurse(binary.left()).and(recurse(binary.right())),
        Operator::Or => recurse(binary.left()).or(recurse(binary.right())),
        _ => match comparison(binary, place, data_type) {
            Some((_, Scalar::Null)) => Hull::none(),
            Some((op, value)) => {
                let (min, max) = match op {
                    Operator::Eq => (Some(value.clone()), Some(value)),
                    Operator::Lt => (None, Some(next(value, -1))),
                    Operator::LtEq => (None, Some(value)),
                    Operator::Gt => (Some(next(value, 1)), None),
                    Operator::GtEq => (Some(value), None),
                    // The comparison rules out NULL, whatever it is.
                    Operator::NotEq => (None, None),
                    _ => return Hull::all(),
                };
                Hull {
                    min,
                    max,
                    nulls: false,
                    no_values: false,
                }
            }
            None => Hull::all(),
        },
    }
}

/// The neighbour of an integer; a bound of another type stays, which only lets more pass.
fn next(value: Scalar, step: i128) -> Scalar {
    match value {
        Scalar::Int(value) => Scalar::Int(value + step),
        other => other,
    }
}

/// Whether [`hull`] says all that `expr` says of its only column.
fn is_hull(expr: &dyn PhysicalExpr) -> bool {
    match expr.downcast_ref::<BinaryExpr>() {
        Some(binary) => match binary.op() {
            Operator::And => is_hull(binary.left().as_ref()) && is_hull(binary.right().as_ref()),
            Operator::Eq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => true,
            // Of an OR the hull keeps less, but what it loses is not worth a bitmap.
            Operator::Or => is_hull(binary.left().as_ref()) && is_hull(binary.right().as_ref()),
            _ => false,
        },
        None => {
            expr.downcast_ref::<Literal>().is_some()
                || expr.downcast_ref::<IsNullExpr>().is_some()
                || expr.downcast_ref::<Column>().is_some()
        }
    }
}

/// Whether `expr` is TRUE for exactly the integers of its hull.
fn is_range(expr: &dyn PhysicalExpr, column: &FilterColumn) -> bool {
    let Some(binary) = expr.downcast_ref::<BinaryExpr>() else {
        return false;
    };
    let recurse = |e: &Arc<dyn PhysicalExpr>| is_range(e.as_ref(), column);
    match binary.op() {
        Operator::And => recurse(binary.left()) && recurse(binary.right()),
        Operator::Eq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => matches!(
            comparison(binary, column.place, &column.data_type),
            Some((_, Scalar::Int(_)))
        ),
        _ => false,
    }
}

/// The values of a list of constants; of constant structs, the values of field `field`. NULLs are
/// left out: nothing equals them.
fn literals(list: &[Arc<dyn PhysicalExpr>], field: Option<usize>) -> Option<Vec<Scalar>> {
    let mut values = Vec::with_capacity(list.len());
    for item in list {
        let item = item.downcast_ref::<Literal>()?.value();
        let value = match (item, field) {
            (value, None) => value.clone(),
            (ScalarValue::Struct(row), Some(field)) => {
                ScalarValue::try_from_array(row.column(field), 0).ok()?
            }
            _ => return None,
        };
        if !value.is_null() {
            values.push(scalar_of(&value).ok()?);
        }
    }
    Some(values)
}

/// The set of values that a conjunct `column IN (…)` or `struct(…, column, …) IN (…)` allows.
fn set_of(conjunct: &Arc<dyn PhysicalExpr>, column: &FilterColumn) -> Option<RuntimePredicate> {
    let in_list = conjunct.downcast_ref::<InListExpr>()?;
    if in_list.negated() {
        return None;
    }
    let mut values = if is_column(in_list.expr().as_ref(), column.place) {
        literals(in_list.list(), None)?
    } else {
        let row = in_list.expr().downcast_ref::<ScalarFunctionExpr>()?;
        if row.name() != "struct" {
            return None;
        }
        let field = row
            .args()
            .iter()
            .position(|a| is_column(a.as_ref(), column.place))?;
        literals(in_list.list(), Some(field))?
    };
    let integers: Option<Vec<i64>> = values.iter().map(int_of).collect();
    let dense = column.data_type.is_integer() || column.data_type == DataType::Date32;
    if let Some(mut integers) = integers.filter(|i| dense && i.len() > 8) {
        integers.sort_unstable();
        let (base, last) = (integers[0], integers[integers.len() - 1]);
        if let Some(span) = last.checked_sub(base).filter(|s| *s < BITMAP_SPAN) {
            let mut bits = vec![0u64; span as usize / 64 + 1];
            for value in integers {
                let bit = (value - base) as usize;
                bits[bit / 64] |= 1 << (bit % 64);
            }
            return Some(RuntimePredicate::Bitmap {
                base,
                bits: bits.into(),
            });
        }
    }
    values.sort_by(|a, b| is_less(b, a).cmp(&is_less(a, b)));
    values.dedup();
    Some(RuntimePredicate::Set(values))
}
