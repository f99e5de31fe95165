//! Values on their way into a table's columns: where DataFusion casts, a value that would lose
//! digits is refused. What the user casts is the user's to decide.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, ExprSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Alias, Cast};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, Projection, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Values, Volatility,
};
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;

use crate::exact::cast_exactly;

/// `value` for the column of that name and type.
pub(crate) fn assigned(value: Expr, to: &DataType, column: &str) -> Expr {
    ScalarUDF::from(Assign {
        to: to.clone(),
        column: column.to_owned(),
        signature: Signature::any(1, Volatility::Immutable),
    })
    .call(vec![value])
}

/// The rows of an INSERT, or of CREATE TABLE with columns and a query, with such values in place
/// of the casts that DataFusion put there: in the projection to the table's columns, and in VALUES
/// right below it.
pub(crate) fn assign(rows: LogicalPlan) -> Result<LogicalPlan> {
    let LogicalPlan::Projection(projection) = rows else {
        return Ok(rows);
    };
    let input = match Arc::unwrap_or_clone(projection.input) {
        LogicalPlan::Values(values) => {
            LogicalPlan::Values(assign_values(values, &projection.expr)?)
        }
        input => input,
    };
    let columns = projection.expr.into_iter().map(|expr| match expr {
        Expr::Alias(Alias { expr, name, .. }) => {
            let value = without_cast(*expr, &name, input.schema())?;
            Ok(value.alias(name))
        }
        expr => Ok(expr),
    });
    let columns = columns.collect::<Result<_>>()?;
    Ok(LogicalPlan::Projection(Projection::try_new(
        columns,
        Arc::new(input),
    )?))
}

/// VALUES in which the casts that DataFusion put there are such values; `targets` name the table's columns.
pub(crate) fn assign_values(mut values: Values, targets: &[Expr]) -> Result<Values> {
    let schema = DFSchema::empty();
    let columns = values.schema.columns();
    let names: Vec<_> = columns
        .iter()
        .map(|column| {
            let target = targets
                .iter()
                .find(|target| target.column_refs().contains(column));
            target.map_or(column.name.clone(), |target| {
                target.schema_name().to_string()
            })
        })
        .collect();
    for row in &mut values.values {
        for (value, name) in row.iter_mut().zip(&names) {
            *value = without_cast(std::mem::take(value), name, &schema)?;
        }
    }
    Ok(values)
}

/// A cast of anything but NULL as a value for a column.
fn without_cast(value: Expr, column: &str, schema: &dyn ExprSchema) -> Result<Expr> {
    match value {
        Expr::Cast(Cast { expr, field }) => {
            let from = expr.get_type(schema)?;
            Ok(match from.is_null() || from == *field.data_type() {
                true => Expr::Cast(Cast { expr, field }),
                false => assigned(*expr, field.data_type(), column),
            })
        }
        // A value that took the place of a parameter has the parameter's name.
        Expr::Alias(alias) => without_cast(*alias.expr, column, schema),
        value => Ok(value),
    }
}

/// Keeps the casts that stand in the VALUES of an INSERT, or in UPDATE … SET, apart from those that
/// DataFusion adds.
pub(crate) fn mark_casts(statement: &mut ast::Statement) {
    match statement {
        ast::Statement::Insert(insert) => {
            let source = insert.source.as_mut().map(|s| s.body.as_mut());
            if let Some(ast::SetExpr::Values(values)) = source {
                let values = values.rows.iter_mut().flat_map(|row| &mut row.content);
                values.for_each(mark_cast);
            }
        }
        ast::Statement::Update(update) => {
            let values = update.assignments.iter_mut().map(|a| &mut a.value);
            values.for_each(mark_cast);
        }
        _ => {}
    }
}

fn mark_cast(value: &mut ast::Expr) {
    if matches!(value, ast::Expr::Cast { .. }) {
        let result = std::mem::replace(value, ast::Expr::value(ast::Value::Boolean(false)));
        *value = ast::Expr::Case {
            case_token: AttachedToken::empty(),
            end_token: AttachedToken::empty(),
            operand: None,
            conditions: vec![ast::CaseWhen {
                condition: ast::Expr::value(ast::Value::Boolean(true)),
                result,
            }],
            else_result: None,
        };
    }
}

/// The cast into one column.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Assign {
    to: DataType,
    column: String,
    signature: Signature,
}

impl Assign {
    /// The cast that a function is, if it is one.
    pub(crate) fn of(function: &ScalarUDF) -> Option<&Self> {
        function.inner().downcast_ref()
    }

    pub(crate) fn apply(&self, value: &ColumnarValue) -> Result<ColumnarValue> {
        let cast = |array: &_| cast_exactly(array, &self.to, &self.column);
        Ok(match value {
            ColumnarValue::Array(array) => ColumnarValue::Array(cast(array)?),
            ColumnarValue::Scalar(value) => {
                let cast = cast(&value.to_array()?)?;
                ColumnarValue::Scalar(ScalarValue::try_from_array(&cast, 0)?)
            }
        })
    }
}

impl ScalarUDFImpl for Assign {
    fn name(&self) -> &str {
        "assign"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.to.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.apply(&args.args[0])
    }
}
