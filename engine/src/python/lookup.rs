//! Queries for the row of one key, `SELECT a, b FROM t WHERE id = 7`: planning one takes many times
//! what looking its row up does, so they are told by what they say and looked up.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Schema};
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, SelectItem, SetExpr, Statement, TableFactor, UnaryOperator, Value,
};
use pyo3::prelude::*;

use super::query::Batches;
use crate::Session;
use crate::get::Keyed;

/// What such a query asks for.
pub(super) struct Lookup {
    keyed: Keyed,
    /// Of the type of the table's key.
    key: ArrayRef,
    /// Ordinals of the columns.
    columns: Vec<u32>,
}

impl Lookup {
    /// The lookup that a statement is. Of all others, and of those with something wrong in them,
    /// planning tells more.
    pub(super) fn of(session: &Session, statement: &ParsedStatement) -> Option<Self> {
        let ParsedStatement::Statement(statement) = statement else {
            return None;
        };
        let Statement::Query(query) = statement.as_ref() else {
            return None;
        };
        let SetExpr::Select(select) = query.body.as_ref() else {
            return None;
        };
        let [from] = select.from.as_slice() else {
            return None;
        };
        let TableFactor::Table { name, .. } = &from.relation else {
            return None;
        };
        let Expr::BinaryOp { left, op, right } = select.selection.as_ref()? else {
            return None;
        };
        let (Expr::Identifier(key), BinaryOperator::Eq) = (left.as_ref(), op) else {
            return None;
        };
        // Whatever else a statement can say stands in its text.
        let items: Vec<_> = select.projection.iter().map(ToString::to_string).collect();
        let items = items.join(", ");
        if query.to_string() != format!("SELECT {items} FROM {name} WHERE {key} = {right}") {
            return None;
        }
        let in_lower_case = session.options().sql_parser.enable_ident_normalization;
        let name = object_name_to_table_reference(name.clone(), in_lower_case).ok()?;
        let keyed = session.keyed(name).ok()?;
        if session.normalise(key) != keyed.key() {
            return None;
        }
        let schema = &keyed.table.schema;
        let value = constant(right, schema.field(keyed.ordinal as usize).data_type())?;
        Some(Self {
            columns: columns(session, schema, &select.projection)?,
            key: keyed.keys(&value).ok()?,
            keyed,
        })
    }

    /// The row, if there is one. `None`: it can't be had in this way.
    pub(super) fn rows(&self, py: Python<'_>, session: &Session) -> Option<Batches> {
        let Self {
            keyed,
            key,
            columns,
        } = self;
        let ordinals: Vec<usize> = columns.iter().map(|column| *column as usize).collect();
        let schema = keyed.table.scan_schema.project(&ordinals).ok()?;
        // Letting other threads have the interpreter and getting it back takes longer than this.
        let rows = match session.cached_rows_of(keyed, key, columns).ok()? {
            Some(rows) => rows,
            None => py.detach(|| session.rows_of(keyed, key, columns)).ok()?,
        };
        Some(Batches::of_rows(Arc::new(schema), rows))
    }
}

/// The ordinals of the columns that are selected.
fn columns(session: &Session, schema: &Schema, items: &[SelectItem]) -> Option<Vec<u32>> {
    let mut columns = Vec::new();
    for item in items {
        match item {
            SelectItem::Wildcard(_) if item.to_string() == "*" => {
                columns.extend(0..schema.fields().len() as u32);
            }
            SelectItem::UnnamedExpr(Expr::Identifier(name)) => {
                columns.push(schema.index_of(&session.normalise(name)).ok()? as u32);
            }
            _ => return None,
        }
    }
    Some(columns)
}

/// A constant that is compared with keys of a type as they are.
fn constant(expr: &Expr, data_type: &DataType) -> Option<ArrayRef> {
    match expr {
        Expr::Nested(expr) => constant(expr, data_type),
        Expr::UnaryOp {
            op: UnaryOperator::Minus,
            expr,
        } if data_type.is_integer() => {
            let number: i64 = format!("-{}", digits(expr)?).parse().ok()?;
            Some(Arc::new(Int64Array::from(vec![number])))
        }
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) if is_text(data_type) => {
                Some(Arc::new(StringArray::from(vec![text.as_str()])))
            }
            Value::Number(..) if data_type.is_integer() => {
                let number: u64 = digits(expr)?.parse().ok()?;
                Some(Arc::new(UInt64Array::from(vec![number])))
            }
            _ => None,
        },
        _ => None,
    }
}

fn digits(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(digits, false) => Some(digits),
            _ => None,
        },
        _ => None,
    }
}

fn is_text(data_type: &DataType) -> bool {
    use DataType::{LargeUtf8, Utf8, Utf8View};
    matches!(data_type, Utf8 | LargeUtf8 | Utf8View)
}
