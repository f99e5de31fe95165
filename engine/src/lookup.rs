//! Queries for the row of one key, `SELECT a, b FROM t WHERE id = 7`: planning one takes many times
//! what looking its row up does, so they are told by what they say and looked up.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, SelectItem, SetExpr, Statement, TableFactor, UnaryOperator, Value,
};

use crate::Session;
use crate::error::Result;
use crate::get::Keyed;

/// A query for the row of one key of a session's table, told by [`Session::lookup`].
pub struct Lookup<'a> {
    session: &'a Session,
    keyed: Keyed,
    /// Of the type of the table's key.
    key: ArrayRef,
    /// Ordinals of the columns.
    columns: Vec<u32>,
}

impl Session {
    /// The lookup that a statement is. `None` of all others, and of those with something wrong in them:
    /// planning tells more.
    pub fn lookup(&self, statement: &ParsedStatement) -> Option<Lookup<'_>> {
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
        let in_lower_case = self.options().sql_parser.enable_ident_normalization;
        let name = object_name_to_table_reference(name.clone(), in_lower_case).ok()?;
        let keyed = self.keyed(name).ok()?;
        if self.normalise(key) != keyed.key() {
            return None;
        }
        let schema = &keyed.table.schema;
        let value = constant(right, schema.field(keyed.ordinal as usize).data_type())?;
        Some(Lookup {
            session: self,
            columns: columns(self, schema, &select.projection)?,
            key: keyed.keys(&value).ok()?,
            keyed,
        })
    }
}

impl Lookup<'_> {
    /// The schema of the row.
    ///
    /// # Errors
    /// None that a user can bring about: the columns are the table's.
    pub fn schema(&self) -> Result<SchemaRef> {
        let ordinals: Vec<usize> = self.columns.iter().map(|column| *column as usize).collect();
        Ok(Arc::new(self.keyed.table.scan_schema.project(&ordinals)?))
    }

    /// The row, if there is one. It blocks as [`Session::get`] does.
    ///
    /// # Errors
    /// Those of [`Session::get`].
    pub fn rows(&self) -> Result<Vec<RecordBatch>> {
        let Self { keyed, key, .. } = self;
        self.session.rows_of(keyed, key, &self.columns)
    }

    /// [`Lookup::rows`] where all that it takes is cached, so that it waits for nothing; else `None`.
    ///
    /// # Errors
    /// Those of [`Session::get`].
    pub fn cached_rows(&self) -> Result<Option<Vec<RecordBatch>>> {
        let Self { keyed, key, .. } = self;
        self.session.cached_rows_of(keyed, key, &self.columns)
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
