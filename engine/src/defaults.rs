//! Defaults of columns: their texts, and the keyword DEFAULT in statements.

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, exec_err};
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::sql::parser::DFParserBuilder;
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::unparser::expr_to_sql;
use flashmesh_planner::walk::Walk as _;
use flashmesh_storage::table::{Generated, TableSnapshot};

use crate::error::{Error, Result};
use crate::names::name_of;

/// The text of a column's default.
///
/// # Errors
/// [`Error::Usage`] for an expression that SQL has no text for.
pub(crate) fn text_of_default(column: &str, default: &Expr) -> Result<String> {
    let is_query = |e: &Expr| {
        Ok(matches!(
            e,
            Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_)
        ))
    };
    if default.exists(|e| Ok(matches!(e, Expr::Lambda(_))))? {
        return Err(Error::usage(format!(
            "DEFAULT of column '{column}' takes no lambda function"
        )));
    }
    if default.exists(is_query)? {
        return Err(Error::usage(format!(
            "DEFAULT of column '{column}' takes no subquery"
        )));
    }
    let text = expr_to_sql(default).map_err(|e| {
        let why = e.strip_backtrace();
        Error::usage(format!("DEFAULT of column '{column}' can't be kept: {why}"))
    })?;
    Ok(text.to_string())
}

/// The default that a column's text says.
///
/// # Errors
/// Those of planning.
pub(crate) fn parsed_default(state: &SessionState, text: &str) -> datafusion::error::Result<Expr> {
    state.create_logical_expr_from_sql_expr(parsed_text(text)?, &DFSchema::empty())
}

/// As `expr_to_sql` writes it, whatever the session's dialect.
pub(crate) fn parsed_text(text: &str) -> datafusion::error::Result<ast::ExprWithAlias> {
    let parser = DFParserBuilder::new(text).with_dialect(&GenericDialect {});
    parser.build()?.parse_expr()
}

/// The same for a table that is only read, perhaps: where the default means nothing any more (its
/// function is gone, or not this session's to use) the INSERT that needs it fails, and nothing else.
pub(crate) fn default_or_error(state: &SessionState, column: &str, text: &str) -> Expr {
    parsed_default(state, text).unwrap_or_else(|error| {
        let broken = BrokenDefault {
            signature: Signature::nullary(Volatility::Volatile),
            error: format!(
                "the DEFAULT of column '{column}' ({text}): {}",
                error.strip_backtrace()
            ),
        };
        ScalarUDF::new_from_impl(broken).call(Vec::new())
    })
}

/// Stands for a default that can't be planned.
#[derive(Debug, PartialEq, Eq, Hash)]
struct BrokenDefault {
    signature: Signature,
    error: String,
}

impl ScalarUDFImpl for BrokenDefault {
    fn name(&self) -> &str {
        "default"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> datafusion::error::Result<DataType> {
        Ok(DataType::Null)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> datafusion::error::Result<ColumnarValue> {
        exec_err!("{}", self.error)
    }
}

/// Refuses values for a column that nobody else may give.
///
/// # Errors
/// [`Error::Usage`].
pub(crate) fn check_given(table: &TableSnapshot, place: usize) -> Result<()> {
    match table.generated(place) {
        Some(Generated { always: true, .. }) => {
            let column = table.schema.field(place).name();
            Err(Error::usage(format!(
                "column '{column}' of table '{}' is GENERATED ALWAYS; leave it out, or write DEFAULT",
                table.name
            )))
        }
        _ => Ok(()),
    }
}

/// Whether a value is the keyword DEFAULT.
fn is_default(value: &ast::Expr) -> bool {
    matches!(value, ast::Expr::Identifier(name)
        if name.quote_style.is_none() && name.value.eq_ignore_ascii_case("default"))
}

/// The default of a column, as a value in a statement.
fn default_of(table: &TableSnapshot, place: usize) -> Result<ast::Expr> {
    let null = || ast::Expr::value(ast::Value::Null);
    let Some(text) = table.defaults.get(place).and_then(Option::as_ref) else {
        return Ok(null());
    };
    if Generated::parse(text).is_some() {
        return Err(Error::usage(format!(
            "DEFAULT stands in all rows of the generated column '{}' or in none, and beside another column",
            table.schema.field(place).name()
        )));
    }
    Ok(parsed_text(text)?.expr)
}

/// Looks at the columns that SET names.
pub(crate) fn set_defaults(
    table: &TableSnapshot,
    assignments: &mut [ast::Assignment],
) -> Result<()> {
    for ast::Assignment { target, value } in assignments {
        let ast::AssignmentTarget::ColumnName(name) = target else {
            continue;
        };
        let name = name.0.last().and_then(|part| part.as_ident()).map(name_of);
        // What is not there is for the planner to say.
        let place = name.and_then(|name| table.schema.index_of(&name).ok());
        let Some(place) = place else { continue };
        check_given(table, place)?;
        if is_default(value) {
            *value = default_of(table, place)?;
        }
    }
    Ok(())
}

/// Has an INSERT leave out what is DEFAULT in all of its rows. `DEFAULT VALUES` is one row of it.
pub(crate) fn insert_defaults(table: &TableSnapshot, insert: &mut ast::Insert) -> Result<()> {
    if insert.source.is_none() && insert.assignments.is_empty() {
        // All others are left out.
        let columns = 0..table.schema.fields().len();
        let mut columns = columns.filter(|place| table.generated(*place).is_none());
        if let Some(place) = columns.next() {
            let name = ast::Ident::with_quote('"', table.schema.field(place).name());
            insert.columns = vec![ast::ObjectName::from(vec![name])];
        }
        let parser = Parser::new(&GenericDialect {}).try_with_sql("VALUES (DEFAULT)");
        let values = parser.and_then(|mut parser| parser.parse_query());
        insert.source = Some(values.map_err(DataFusionError::from)?);
    }
    let mut none = Vec::new();
    let rows = match insert.source.as_mut().map(|source| source.body.as_mut()) {
        Some(ast::SetExpr::Values(values)) => &mut values.rows,
        _ => &mut none,
    };
    leave_defaults(table, &mut insert.columns, rows)
}

/// Leaves out the columns of rows that are DEFAULT in all of them, and refuses others that are the
/// table's to give. No columns are all of the table.
///
/// # Errors
/// [`Error::Usage`].
pub(crate) fn leave_defaults(
    table: &TableSnapshot,
    columns: &mut Vec<ast::ObjectName>,
    rows: &mut [ast::Parens<Vec<ast::Expr>>],
) -> Result<()> {
    let names = table.schema.fields().iter().map(|field| field.name());
    let mut given: Vec<ast::ObjectName> = match columns.is_empty() {
        true => names
            .map(|name| ast::ObjectName::from(vec![ast::Ident::with_quote('"', name)]))
            .collect(),
        false => columns.clone(),
    };
    let are_whole = rows.iter().all(|row| row.content.len() == given.len());
    for place in (0..given.len()).rev() {
        let name = given[place].0.last().and_then(|part| part.as_ident());
        let of_table = name.map(name_of);
        let of_table = of_table.and_then(|name| table.schema.index_of(&name).ok());
        // What is not there is for the planner to say.
        let Some(of_table) = of_table else { continue };
        let is_left = |row: &ast::Parens<Vec<ast::Expr>>| is_default(&row.content[place]);
        let left = rows.iter().filter(|row| are_whole && is_left(row)).count();
        if left > 0 && left == rows.len() && given.len() > 1 {
            given.remove(place);
            columns.clone_from(&given);
            for row in rows.iter_mut() {
                row.content.remove(place);
            }
            continue;
        }
        if left < rows.len() || rows.is_empty() {
            check_given(table, of_table)?;
        }
        if left > 0 {
            let default = default_of(table, of_table)?;
            let values = rows.iter_mut().map(|row| &mut row.content[place]);
            values
                .filter(|value| is_default(value))
                .for_each(|value| *value = default.clone());
        }
    }
    Ok(())
}
