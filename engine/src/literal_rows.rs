//! INSERT of many rows of literals.
//!
//! Planners make an expression of each: of 200,000 rows those take ten times as long as to parse and to store them, and
//! a hundred times their memory. Here a few rows are planned that have each kind of literal of each column, and what
//! the plan makes of those is made of arrays of all others.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringViewArray,
    new_null_array,
};
use arrow::compute::kernels::zip::zip;
use arrow::compute::{cast, is_not_null};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, DmlStatement, Expr, LogicalPlan, LogicalPlanBuilder, Projection, Values,
};
use datafusion::sql::sqlparser::ast;
use flashmesh_planner::walk::Walk as _;
use flashmesh_storage::page::SEGMENT_ROWS;

use crate::assign::assign_values;
use crate::constants::value_of;

/// Rows from which on it is worth it.
const LEAST: usize = 64;
/// Rows of a batch where there are more of them than a segment has.
const BATCH_ROWS: usize = 8192;
/// What the rows are called in plans.
const NAME: &str = "rows";

/// Literals that planners give one type each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Whole,
    Fraction,
    Text,
    Truth,
}

/// What a literal says.
#[derive(Debug, Clone, Copy)]
enum Literal<'a> {
    Null,
    Whole(i64),
    Fraction(f64),
    Text(&'a str),
    Truth(bool),
}

impl<'a> Literal<'a> {
    /// `None` for what is no literal, and for those that planners may give other types.
    fn of(expr: &'a ast::Expr) -> Option<Self> {
        match expr {
            ast::Expr::Value(value) => Self::of_value(&value.value),
            ast::Expr::UnaryOp {
                op: ast::UnaryOperator::Minus,
                expr,
            } => match Self::of(expr)? {
                // The least number has none above zero.
                Self::Whole(number) => Some(Self::Whole(-number)),
                Self::Fraction(number) => Some(Self::Fraction(-number)),
                _ => None,
            },
            _ => None,
        }
    }

    fn of_value(value: &'a ast::Value) -> Option<Self> {
        match value {
            ast::Value::Null => Some(Self::Null),
            ast::Value::Boolean(truth) => Some(Self::Truth(*truth)),
            ast::Value::SingleQuotedString(text) => Some(Self::Text(text)),
            ast::Value::Number(digits, false) => match digits.parse() {
                Ok(number) => Some(Self::Whole(number)),
                Err(_) if digits.contains(['.', 'e', 'E']) => {
                    digits.parse().ok().map(Self::Fraction)
                }
                Err(_) => None,
            },
            _ => None,
        }
    }

    fn kind(self) -> Option<Kind> {
        match self {
            Self::Null => None,
            Self::Whole(_) => Some(Kind::Whole),
            Self::Fraction(_) => Some(Kind::Fraction),
            Self::Text(_) => Some(Kind::Text),
            Self::Truth(_) => Some(Kind::Truth),
        }
    }

    /// Whether a planner read the same.
    fn is(self, value: &ScalarValue) -> bool {
        match (self, value) {
            (Self::Whole(number), ScalarValue::Int64(Some(value))) => number == *value,
            (Self::Fraction(number), ScalarValue::Float64(Some(value))) => {
                number.to_bits() == value.to_bits()
            }
            (Self::Text(text), value) => value.try_as_str().flatten() == Some(text),
            (Self::Truth(truth), ScalarValue::Boolean(Some(value))) => truth == *value,
            _ => false,
        }
    }
}

/// Rows that were taken out of an INSERT.
#[derive(Debug)]
pub(crate) struct LiteralRows {
    rows: Vec<ast::Parens<Vec<ast::Expr>>>,
    /// For each kind of each column, a row that has it.
    examples: Vec<Vec<(Kind, usize)>>,
}

impl LiteralRows {
    /// Takes the rows of an INSERT of many literals, and leaves as many as tell what becomes of each kind.
    pub fn take(statement: &mut ast::Statement) -> Option<Self> {
        let values = values_of(statement)?;
        let width = values.rows.first()?.content.len();
        if values.rows.len() < LEAST || values.rows.iter().any(|row| row.content.len() != width) {
            return None;
        }
        let mut examples = vec![Vec::new(); width];
        for (place, row) in values.rows.iter().enumerate() {
            for (value, examples) in row.content.iter().zip(&mut examples) {
                if let Some(kind) = Literal::of(value)?.kind()
                    && !examples.iter().any(|(known, _)| *known == kind)
                {
                    examples.push((kind, place));
                }
            }
        }
        let rows = std::mem::take(&mut values.rows);
        let count = examples.iter().map(Vec::len).max()?.max(1);
        let left = (0..count).map(|number| {
            let mut row = rows[0].clone();
            for (place, (value, examples)) in row.content.iter_mut().zip(&examples).enumerate() {
                if let Some((_, example)) = examples.get(number).or(examples.first()) {
                    value.clone_from(&rows[*example].content[place]);
                }
            }
            row
        });
        values.rows = left.collect();
        Some(Self { rows, examples })
    }

    /// Puts the rows back.
    pub fn give_back(self, statement: &mut ast::Statement) {
        if let Some(values) = values_of(statement) {
            values.rows = self.rows;
        }
    }

    /// The plan of the INSERT with all rows in place of those that were left; `None` where it has other
    /// expressions for them than literals and how these are assigned.
    ///
    /// # Errors
    /// Those of assigning them.
    pub fn put(&self, plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
        let LogicalPlan::Dml(insert) = plan else {
            return Ok(None);
        };
        let LogicalPlan::Projection(projection) = insert.input.as_ref() else {
            return Ok(None);
        };
        let LogicalPlan::Values(left) = projection.input.as_ref() else {
            return Ok(None);
        };
        let left = assign_values(left.clone(), &projection.expr)?;
        let Some(rows) = self.assigned(&left)? else {
            return Ok(None);
        };
        let input = scan_of(rows)?;
        let columns = projection.expr.clone();
        let input = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(input))?);
        Ok(Some(LogicalPlan::Dml(DmlStatement {
            input: Arc::new(input),
            ..insert.clone()
        })))
    }

    /// The rows as the table's columns have them.
    fn assigned(&self, left: &Values) -> Result<Option<RecordBatch>> {
        let mut fields = Vec::with_capacity(self.examples.len());
        let mut columns = Vec::with_capacity(self.examples.len());
        for (place, field) in left.schema.fields().iter().enumerate() {
            let Some(column) = self.column(place, field.data_type(), left)? else {
                return Ok(None);
            };
            fields.push(Field::new(field.name(), field.data_type().clone(), true));
            columns.push(column);
        }
        let schema = Arc::new(Schema::new(fields));
        Ok(Some(RecordBatch::try_new(schema, columns)?))
    }

    fn column(&self, place: usize, to: &DataType, left: &Values) -> Result<Option<ArrayRef>> {
        let mut column = new_null_array(to, self.rows.len());
        let Some(examples) = self.examples.get(place) else {
            return Ok(None);
        };
        for (number, (kind, example)) in examples.iter().enumerate() {
            let Some(value) = left.values.get(number).and_then(|row| row.get(place)) else {
                return Ok(None);
            };
            let example = Literal::of(&self.rows[*example].content[place]);
            let of_kind = self.literals(place, *kind);
            let Some(assigned) = applied(value, example, &of_kind)? else {
                return Ok(None);
            };
            if assigned.data_type() != to {
                return Ok(None);
            }
            column = match examples.len() {
                1 => assigned,
                _ => zip(&is_not_null(&of_kind)?, &assigned, &column)?,
            };
        }
        Ok(Some(column))
    }

    /// The literals of a kind in a column, NULL where it has others.
    fn literals(&self, place: usize, kind: Kind) -> ArrayRef {
        let all = || {
            let rows = self.rows.iter();
            rows.map(|row| Literal::of(&row.content[place]))
        };
        match kind {
            Kind::Whole => Arc::new(Int64Array::from_iter(all().map(|literal| match literal {
                Some(Literal::Whole(number)) => Some(number),
                _ => None,
            }))),
            Kind::Fraction => Arc::new(Float64Array::from_iter(all().map(
                |literal| match literal {
                    Some(Literal::Fraction(number)) => Some(number),
                    _ => None,
                },
            ))),
            Kind::Text => Arc::new(StringViewArray::from_iter(all().map(
                |literal| match literal {
                    Some(Literal::Text(text)) => Some(text),
                    _ => None,
                },
            ))),
            Kind::Truth => Arc::new(BooleanArray::from_iter(all().map(
                |literal| match literal {
                    Some(Literal::Truth(truth)) => Some(truth),
                    _ => None,
                },
            ))),
        }
    }
}

fn values_of(statement: &mut ast::Statement) -> Option<&mut ast::Values> {
    let ast::Statement::Insert(insert) = statement else {
        return None;
    };
    match insert.source.as_mut()?.body.as_mut() {
        ast::SetExpr::Values(values) => Some(values),
        _ => None,
    }
}

/// What `expr`, which is made of the literal `example`, makes of others of the kind.
fn applied(expr: &Expr, example: Option<Literal<'_>>, all: &ArrayRef) -> Result<Option<ArrayRef>> {
    let Some(example) = example else {
        return Ok(None);
    };
    let place = Expr::Column(Column::new_unqualified(NAME));
    let mut of = None;
    let expr = expr.clone().transform_up(|part| match part {
        Expr::Literal(value, None) if of.is_none() && example.is(&value) => {
            of = Some(value.data_type());
            Ok(Transformed::yes(place.clone()))
        }
        part => Ok(Transformed::no(part)),
    })?;
    let Some(of) = of else {
        return Ok(None);
    };
    let all = cast(all, &of)?;
    let schema = DFSchema::try_from(Schema::new(vec![Field::new(NAME, of, true)]))?;
    let value = value_of(
        &expr.data,
        &schema,
        &[ColumnarValue::Array(Arc::clone(&all))],
    )?;
    value.map(|value| value.into_array(all.len())).transpose()
}

/// A plan that gives rows, with their columns' names.
fn scan_of(rows: RecordBatch) -> Result<LogicalPlan> {
    let schema = rows.schema();
    let size = match rows.num_rows() {
        // As one they are stored without operators.
        count if count <= SEGMENT_ROWS => count.max(1),
        _ => BATCH_ROWS,
    };
    let starts = (0..rows.num_rows()).step_by(size);
    let batches = starts.map(|start| rows.slice(start, size.min(rows.num_rows() - start)));
    let table = MemTable::try_new(Arc::clone(&schema), vec![batches.collect()])?;
    let scan = LogicalPlanBuilder::scan(NAME, provider_as_source(Arc::new(table)), None)?;
    let columns = schema.fields().iter().map(|field| {
        let column = Column::new(Some(NAME), field.name());
        Expr::Column(column).alias(field.name())
    });
    scan.project(columns.collect::<Vec<_>>())?.build()
}
