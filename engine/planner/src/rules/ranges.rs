//! What whole numbers an expression can give.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::catalog::default_table_source::source_as_provider;
use datafusion::common::tree_node::{TreeNodeRecursion, TreeNodeVisitor};
use datafusion::common::{Column, DFSchema, ExprSchema, Result, ScalarValue, Statistics};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, Case, Cast, Distinct, Expr, ExprSchemable, LogicalPlan, Operator, TableScan,
    TableSource,
};

use crate::FlashTable;
use crate::walk::Walk as _;

/// Rows that a plan is taken to have at most, where nothing says how many: a thousand billions, which take hours.
const ROWS: i128 = 1 << 40;

/// How far down into an expression of decimals, and the plans below it, is looked.
const EXPRESSIONS_DEEP: usize = 64;

/// Least and greatest value.
pub type Range = (i128, i128);

/// A type of whole numbers, and a range within its limits.
pub type Whole = (DataType, Range);

/// What is known of an expression's values.
#[derive(Debug)]
pub enum Value {
    Whole(Whole),
    /// No whole numbers.
    Other,
    /// Nothing but its type, which takes a while to find.
    OfItsType,
}

/// What is known of expressions whose parent is still to come, in DataFusion's order. A walk from below over
/// one that has a thousand operators needs no stack of calls, and looks at each once.
#[derive(Debug, Default)]
pub struct Values(Vec<Value>);

impl Values {
    /// Takes what is known of an expression's children, and adds what it makes known of the expression itself.
    /// Gives those of the children.
    pub fn step(&mut self, expr: &Expr, scope: &Scope<'_>) -> Result<Vec<Value>> {
        let mut children = 0;
        expr.apply_children(|_| {
            children += 1;
            Ok(TreeNodeRecursion::Continue)
        })?;
        let children = self.0.split_off(self.0.len().saturating_sub(children));
        self.0.push(scope.value(expr, &children));
        Ok(children)
    }
}

struct Found<'a, 'b> {
    scope: &'b Scope<'a>,
    values: Values,
}

impl<'n> TreeNodeVisitor<'n> for Found<'_, '_> {
    type Node = Expr;

    fn f_up(&mut self, expr: &'n Expr) -> Result<TreeNodeRecursion> {
        self.values.step(expr, self.scope)?;
        Ok(TreeNodeRecursion::Continue)
    }
}

/// Where expressions take their columns from.
pub struct Scope<'a> {
    inputs: Vec<&'a LogicalPlan>,
    schema: DFSchema,
    found: Rc<RefCell<Memo>>,
}

/// What was found in plans, by their addresses: projections may use each column of the one below several
/// times, and a table's statistics are made up each time that they are asked for.
#[derive(Default)]
struct Memo {
    columns: HashMap<(*const LogicalPlan, Column), Option<Range>>,
    statistics: HashMap<*const LogicalPlan, Option<Rc<Statistics>>>,
}

impl<'a> Scope<'a> {
    /// The rows of a plan.
    pub fn over(plan: &'a LogicalPlan) -> Self {
        Self::of_inputs(vec![plan], Rc::default())
    }

    /// What the expressions of a plan's node are computed from.
    pub fn of(node: &'a LogicalPlan) -> Self {
        let mut scope = Self::of_inputs(node.inputs(), Rc::default());
        if let LogicalPlan::TableScan(scan) = node {
            let (table, schema) = (scan.table_name.clone(), scan.source.schema());
            let schema = DFSchema::try_from_qualified_schema(table, &schema);
            scope.schema = schema.unwrap_or_else(|_| node.schema().as_ref().clone());
            scope.inputs.push(node);
        }
        scope
    }

    fn of_inputs(inputs: Vec<&'a LogicalPlan>, found: Rc<RefCell<Memo>>) -> Self {
        Self {
            schema: merge_schema(&inputs),
            inputs,
            found,
        }
    }

    /// The type of an expression of whole numbers and between which of them its values are; `None` of any
    /// other expression. An operation that may leave its type, which is an error there or wraps, has any value of
    /// it.
    pub fn whole(&self, expr: &Expr) -> Option<Whole> {
        let mut found = Found {
            scope: self,
            values: Values::default(),
        };
        // It goes to all nodes, and none fails.
        expr.visit(&mut found).ok()?;
        self.known(expr, found.values.0.last()?)
    }

    /// What is known of `expr`, its type included.
    pub fn known(&self, expr: &Expr, known: &Value) -> Option<Whole> {
        match known {
            Value::Whole(whole) => Some(whole.clone()),
            Value::Other => None,
            Value::OfItsType => {
                let of = expr.get_type(&self.schema).ok()?;
                let limits = limits(&of)?;
                Some((of, limits))
            }
        }
    }

    /// What is known of `expr`, of whose children, in DataFusion's order, the others are known.
    fn value(&self, expr: &Expr, children: &[Value]) -> Value {
        let of_child = |expr: &Expr, at: usize| self.known(expr, children.get(at)?);
        let whole = match expr {
            Expr::Alias(alias) => of_child(&alias.expr, 0),
            Expr::Literal(value, _) => of_literal(value),
            Expr::Column(column) => self.column(column),
            Expr::Cast(Cast { expr, field }) => limits(field.data_type()).map(|limits| {
                let range = match of_child(expr, 0) {
                    None if is_null(expr) => (0, 0),
                    // What does not fit is an error.
                    Some((_, range)) => within(range, limits).unwrap_or(limits),
                    None if matches!(expr.get_type(&self.schema), Ok(DataType::Boolean)) => (0, 1),
                    None => limits,
                };
                (field.data_type().clone(), range)
            }),
            Expr::Negative(negated) => of_child(negated, 0).and_then(|(of, range)| {
                let limits = limits(&of)?;
                Some((of, stayed(computed((0, 0), Operator::Minus, range), limits)))
            }),
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_arithmetic(*op) => {
                match of_child(left, 0).zip(of_child(right, 1)) {
                    Some(((of, left), (other, right))) if of == other => {
                        limits(&of).map(|limits| (of, stayed(computed(left, *op, right), limits)))
                    }
                    Some(_) => return Value::OfItsType,
                    // A number of days between two dates, for one.
                    None if *op == Operator::Minus => return Value::OfItsType,
                    None => None,
                }
            }
            Expr::ScalarFunction(call) if ONE_OF_ITS_ARGUMENTS.contains(&call.name()) => {
                let args = call.args.iter().enumerate();
                let known = any_of(args.map(|(at, arg)| of_child(arg, at)));
                return known.map_or(Value::OfItsType, Value::Whole);
            }
            Expr::Case(case) => {
                let known = self.of_case(case, children);
                return known.map_or(Value::OfItsType, Value::Whole);
            }
            _ => return Value::OfItsType,
        };
        whole.map_or(Value::Other, Value::Whole)
    }

    /// What no value of an expression of numbers is further from zero than, about; `None` where nothing
    /// says.
    pub fn magnitude(&self, expr: &Expr) -> Option<f64> {
        self.magnitude_within(expr, EXPRESSIONS_DEEP)
    }

    fn magnitude_within(&self, expr: &Expr, depth: usize) -> Option<f64> {
        let depth = depth.checked_sub(1)?;
        let of = |expr: &Expr| self.magnitude_within(expr, depth);
        match expr {
            Expr::Alias(alias) => of(&alias.expr),
            Expr::Literal(value, _) => absolute(value),
            Expr::Cast(Cast { expr, field }) if field.data_type().is_numeric() => of(expr),
            Expr::Column(column) => {
                let mut inputs = self.inputs.iter();
                let input = inputs.find(|input| input.schema().has_column(column))?;
                magnitude_of_column(column, input, depth, &self.found)
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => match op {
                Operator::Plus | Operator::Minus => Some(of(left)? + of(right)?),
                Operator::Multiply => Some(of(left)? * of(right)?),
                _ => None,
            },
            Expr::Case(case) => {
                let thens = case.when_then_expr.iter().map(|(_, then)| then);
                let mut values = thens.chain(&case.else_expr).map(|value| of(value));
                values.try_fold(0.0_f64, |most, value| Some(most.max(value?)))
            }
            other => {
                let (_, range) = self.whole(other)?;
                Some(furthest(range) as f64)
            }
        }
    }

    fn of_case(&self, case: &Case, children: &[Value]) -> Option<Whole> {
        let first = usize::from(case.expr.is_some());
        let thens = case.when_then_expr.iter().enumerate();
        let thens = thens.map(|(at, (_, then))| (then, first + 2 * at + 1));
        let last = children.len().checked_sub(1)?;
        let otherwise = case.else_expr.iter().map(|expr| (expr, last));
        let values = thens.chain(otherwise);
        any_of(values.map(|(expr, at)| self.known(expr, children.get(at)?)))
    }

    fn column(&self, column: &Column) -> Option<Whole> {
        let of = self.schema.field_from_column(column).ok()?.data_type();
        let limits = limits(of)?;
        let mut inputs = self.inputs.iter();
        let input = inputs.find(|input| input.schema().has_column(column));
        let known = input.and_then(|input| of_column(column, input, &self.found));
        let range = known.and_then(|range| within(range, limits));
        Some((of.clone(), range.unwrap_or(limits)))
    }
}

/// Functions that give one of their arguments, or NULL.
const ONE_OF_ITS_ARGUMENTS: [&str; 4] = ["coalesce", "greatest", "least", "nullif"];

/// What is known of a value that is one of these.
fn any_of(mut values: impl Iterator<Item = Option<Whole>>) -> Option<Whole> {
    let first = values.next()??;
    values.try_fold(first, |(of, range), value| {
        let (other, value) = value?;
        let either = (range.0.min(value.0), range.1.max(value.1));
        (of == other).then_some((of, either))
    })
}

fn is_null(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(value, _) if value.is_null())
}

/// Whether all of one range is in another one.
pub fn fits(range: Range, limits: Range) -> bool {
    limits.0 <= range.0 && range.1 <= limits.1
}

/// What an operation on whole numbers gives, which may leave their type.
fn stayed(range: Option<Range>, limits: Range) -> Range {
    range.filter(|range| fits(*range, limits)).unwrap_or(limits)
}

fn within(range: Range, limits: Range) -> Option<Range> {
    let range = (range.0.max(limits.0), range.1.min(limits.1));
    (range.0 <= range.1).then_some(range)
}

fn is_arithmetic(op: Operator) -> bool {
    use Operator::{Divide, Minus, Modulo, Multiply, Plus};
    matches!(op, Plus | Minus | Multiply | Divide | Modulo)
}

/// What an operation on numbers of two ranges gives; `None` where that is not known.
pub fn computed(left: Range, op: Operator, right: Range) -> Option<Range> {
    match op {
        Operator::Plus => Some((left.0.checked_add(right.0)?, left.1.checked_add(right.1)?)),
        Operator::Minus => Some((left.0.checked_sub(right.1)?, left.1.checked_sub(right.0)?)),
        Operator::Multiply => {
            let corners = [
                (left.0, right.0),
                (left.0, right.1),
                (left.1, right.0),
                (left.1, right.1),
            ];
            let corners = corners.map(|(left, right)| left.checked_mul(right));
            let corners = corners.into_iter().collect::<Option<Vec<_>>>()?;
            Some((*corners.iter().min()?, *corners.iter().max()?))
        }
        // No further from zero than what is divided, on either side of it.
        Operator::Divide => {
            let most = furthest(left);
            Some((-most, most))
        }
        // Nearer to zero than the divisor, and on the side of what is divided.
        Operator::Modulo => {
            let most = furthest(left).min((furthest(right) - 1).max(0));
            Some((
                if left.0 < 0 { -most } else { 0 },
                if left.1 > 0 { most } else { 0 },
            ))
        }
        _ => None,
    }
}

fn furthest(range: Range) -> i128 {
    range.0.abs().max(range.1.abs())
}

/// The values of a type of whole numbers.
pub fn limits(data_type: &DataType) -> Option<Range> {
    let signed = |bits: u32| Some((-(1_i128 << (bits - 1)), (1 << (bits - 1)) - 1));
    let unsigned = |bits: u32| Some((0, (1_i128 << bits) - 1));
    match data_type {
        DataType::Int8 => signed(8),
        DataType::UInt8 => unsigned(8),
        DataType::Int16 => signed(16),
        DataType::UInt16 => unsigned(16),
        DataType::Int32 => signed(32),
        DataType::UInt32 => unsigned(32),
        DataType::Int64 => signed(64),
        DataType::UInt64 => unsigned(64),
        _ => None,
    }
}

fn of_literal(value: &ScalarValue) -> Option<Whole> {
    let of = value.data_type();
    let limits = limits(&of)?;
    let value = match value.is_null() {
        true => Some(0),
        false => number(value),
    };
    Some((of, value.map_or(limits, |value| (value, value))))
}

fn number(value: &ScalarValue) -> Option<i128> {
    match value.cast_to(&DataType::Decimal128(20, 0)).ok()? {
        ScalarValue::Decimal128(value, ..) => value,
        _ => None,
    }
}

/// What values a column has, as its table's statistics have it: these may be of more rows than there are,
/// and never of fewer.
fn of_column(column: &Column, plan: &LogicalPlan, found: &Rc<RefCell<Memo>>) -> Option<Range> {
    let key = (std::ptr::from_ref(plan), column.clone());
    if let Some(known) = found.borrow().columns.get(&key) {
        return *known;
    }
    let range = look_for(column, plan, found);
    found.borrow_mut().columns.insert(key, range);
    range
}

fn look_for(column: &Column, plan: &LogicalPlan, found: &Rc<RefCell<Memo>>) -> Option<Range> {
    match origin(column, plan)? {
        Origin::Table(scan) => {
            let [least, greatest] = bounds(column, plan, scan, found)?;
            Some((number(&least)?, number(&greatest)?))
        }
        Origin::Computed(Expr::Column(column), input) => of_column(column, input, found),
        Origin::Computed(expr, input) => {
            let scope = Scope::of_inputs(vec![input], Rc::clone(found));
            scope.whole(expr).map(|(_, range)| range)
        }
        Origin::Column(column, input) => of_column(&column, input, found),
    }
}

/// As [`Scope::magnitude`] of a column that a plan gives.
fn magnitude_of_column(
    column: &Column,
    plan: &LogicalPlan,
    depth: usize,
    found: &Rc<RefCell<Memo>>,
) -> Option<f64> {
    let depth = depth.checked_sub(1)?;
    match origin(column, plan)? {
        Origin::Table(scan) => {
            let [least, greatest] = bounds(column, plan, scan, found)?;
            Some(absolute(&least)?.max(absolute(&greatest)?))
        }
        Origin::Computed(expr, input) => {
            let scope = Scope::of_inputs(vec![input], Rc::clone(found));
            scope.magnitude_within(expr, depth)
        }
        Origin::Column(column, input) => magnitude_of_column(&column, input, depth, found),
    }
}

/// Where a plan has the values of a column from; NULLs may be among them that are not there.
enum Origin<'a> {
    Table(&'a TableScan),
    /// What is computed from rows of a plan.
    Computed(&'a Expr, &'a LogicalPlan),
    /// A column of a plan.
    Column(Column, &'a LogicalPlan),
}

fn origin<'a>(column: &Column, plan: &'a LogicalPlan) -> Option<Origin<'a>> {
    match plan {
        LogicalPlan::TableScan(scan) => Some(Origin::Table(scan)),
        LogicalPlan::Projection(projection) => {
            let place = projection.schema.maybe_index_of_column(column)?;
            let expr = projection.expr.get(place)?;
            Some(Origin::Computed(expr, &projection.input))
        }
        // Those that it is grouped by; NULL, where a grouping set lacks one.
        LogicalPlan::Aggregate(aggregate) => {
            let place = aggregate.schema.maybe_index_of_column(column)?;
            let key = aggregate.group_expr.get(place)?;
            Some(Origin::Computed(key, &aggregate.input))
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let place = alias.schema.maybe_index_of_column(column)?;
            let inner = Column::from(alias.input.schema().qualified_field(place));
            Some(Origin::Column(inner, &alias.input))
        }
        LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Join(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::Distinct(Distinct::All(_)) => {
            let mut inputs = plan.inputs().into_iter();
            let input = inputs.find(|input| input.schema().has_column(column))?;
            Some(Origin::Column(column.clone(), input))
        }
        _ => None,
    }
}

/// The least and the greatest value of a table's column, as its statistics have them; `plan` is the scan.
fn bounds(
    column: &Column,
    plan: &LogicalPlan,
    scan: &TableScan,
    found: &RefCell<Memo>,
) -> Option<[ScalarValue; 2]> {
    FlashTable::of(&scan.source)?;
    let place = scan.source.schema().index_of(&column.name).ok()?;
    let statistics = statistics(plan, &scan.source, found)?;
    let known = statistics.column_statistics.get(place)?;
    let (least, greatest) = (known.min_value.get_value()?, known.max_value.get_value()?);
    Some([least.clone(), greatest.clone()])
}

/// How far a number is from zero; NULL is no number that counts.
fn absolute(value: &ScalarValue) -> Option<f64> {
    match value.cast_to(&DataType::Float64).ok()? {
        ScalarValue::Float64(value) => Some(value.unwrap_or(0.0).abs()),
        _ => None,
    }
}

fn statistics(
    plan: &LogicalPlan,
    source: &Arc<dyn TableSource>,
    found: &RefCell<Memo>,
) -> Option<Rc<Statistics>> {
    let key = std::ptr::from_ref(plan);
    if let Some(known) = found.borrow().statistics.get(&key) {
        return known.clone();
    }
    let provider = source_as_provider(source).ok();
    let statistics = provider.and_then(|table| table.statistics()).map(Rc::new);
    found
        .borrow_mut()
        .statistics
        .insert(key, statistics.clone());
    statistics
}

/// Rows that a plan has at most, as far as that is below [`ROWS`].
pub fn rows_at_most(plan: &LogicalPlan) -> i128 {
    match plan {
        LogicalPlan::TableScan(scan) => match FlashTable::of(&scan.source) {
            Some(table) => table.named().snapshot().rows().into(),
            None => ROWS,
        },
        LogicalPlan::Projection(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Window(_) => rows_at_most(plan.inputs()[0]),
        LogicalPlan::EmptyRelation(_) => 1,
        // An outer join gives each row of a side once at least.
        LogicalPlan::Join(join) => {
            let sides = [&join.left, &join.right].map(|side| rows_at_most(side).max(1));
            sides[0]
                .saturating_mul(sides[1])
                .saturating_add(sides[0] + sides[1])
                .min(ROWS)
        }
        _ => ROWS,
    }
}
