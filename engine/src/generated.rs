//! Identity columns, and the keyword DEFAULT.
//!
//! To the store an identity column is one whose default says which sequence counts it. Here that
//! default is a function of the session's plans alone: it has no name by which SQL could call it.

use std::any::Any;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::Int64Array;
use arrow::datatypes::DataType;
use datafusion::common::{exec_datafusion_err, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, CreateMemoryTable, DdlStatement, Expr, LogicalPlan, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::sql::parser::DFParserBuilder;
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::{
    self, ColumnOption, GeneratedAs, IdentityPropertyFormatKind, IdentityPropertyKind,
    SequenceOptions,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::Token;
use flashmesh_storage::table::{Database, Generated, TableSnapshot};

use crate::Session;
use crate::alter::name_of;
use crate::error::{Error, Result};
use crate::load::blocking;

/// What a definition says of an identity column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    always: bool,
    start: i64,
    increment: i64,
}

/// Takes what makes a column an identity column out of its definition, which becomes NOT NULL.
///
/// # Errors
/// [`Error::Usage`] for options that are not there.
pub(crate) fn take_identity(column: &mut ast::ColumnDef) -> Result<Option<Identity>> {
    let mut identity = serial(&mut column.data_type).map(|()| Identity {
        always: false,
        start: 1,
        increment: 1,
    });
    let mut options = Vec::with_capacity(column.options.len());
    let mut has_default = false;
    for option in std::mem::take(&mut column.options) {
        match identity_of(&option.option)? {
            Some(found) => identity = Some(found),
            None => {
                has_default |= matches!(option.option, ColumnOption::Default(_));
                options.push(option);
            }
        }
    }
    let is_not_null = |o: &ast::ColumnOptionDef| matches!(o.option, ColumnOption::NotNull);
    if identity.is_some() && !options.iter().any(is_not_null) {
        options.push(ast::ColumnOptionDef {
            name: None,
            option: ColumnOption::NotNull,
        });
    }
    column.options = options;
    match identity {
        Some(_) if has_default => Err(Error::usage(format!(
            "column '{}' is generated, and can't have a DEFAULT too",
            column.name
        ))),
        identity => Ok(identity),
    }
}

/// Whether a type is one that counts, which becomes the integer that it counts in.
fn serial(data_type: &mut ast::DataType) -> Option<()> {
    let ast::DataType::Custom(name, arguments) = &*data_type else {
        return None;
    };
    if !arguments.is_empty() {
        return None;
    }
    *data_type = match name.to_string().to_ascii_lowercase().as_str() {
        "smallserial" | "serial2" => ast::DataType::SmallInt(None),
        "serial" | "serial4" => ast::DataType::Int(None),
        "bigserial" | "serial8" => ast::DataType::BigInt(None),
        _ => return None,
    };
    Some(())
}

fn identity_of(option: &ColumnOption) -> Result<Option<Identity>> {
    Ok(Some(match option {
        ColumnOption::Generated {
            generated_as: generated_as @ (GeneratedAs::Always | GeneratedAs::ByDefault),
            sequence_options,
            generation_expr: None,
            ..
        } => counted(*generated_as == GeneratedAs::Always, sequence_options)?,
        ColumnOption::DialectSpecific(tokens) => match tokens.as_slice() {
            [Token::Word(word)]
                if ["AUTOINCREMENT", "AUTO_INCREMENT"]
                    .iter()
                    .any(|name| word.value.eq_ignore_ascii_case(name)) =>
            {
                counted(false, &None)?
            }
            _ => return Ok(None),
        },
        ColumnOption::Identity(
            IdentityPropertyKind::Identity(property)
            | IdentityPropertyKind::Autoincrement(property),
        ) => match &property.parameters {
            None => counted(false, &None)?,
            Some(
                IdentityPropertyFormatKind::FunctionCall(given)
                | IdentityPropertyFormatKind::StartAndIncrement(given),
            ) => Identity {
                always: false,
                start: integer(&given.seed)?,
                increment: step(&given.increment)?,
            },
        },
        _ => return Ok(None),
    }))
}

/// An identity column with the options of its sequence.
pub(crate) fn counted(always: bool, options: &Option<Vec<SequenceOptions>>) -> Result<Identity> {
    let (mut start, mut increment) = (None, 1);
    for option in options.iter().flatten() {
        match option {
            SequenceOptions::StartWith(value, _) => start = Some(integer(value)?),
            SequenceOptions::IncrementBy(value, _) => increment = step(value)?,
            // Numbers are kept by the database in any case, and end where the type does.
            SequenceOptions::Cache(_)
            | SequenceOptions::MinValue(None)
            | SequenceOptions::MaxValue(None)
            // As the parser has NO CYCLE.
            | SequenceOptions::Cycle(true) => {}
            other => {
                return Err(Error::usage(format!(
                    "an identity column takes START WITH and INCREMENT BY, not{other}"
                )));
            }
        }
    }
    Ok(Identity {
        always,
        start: start.unwrap_or(if increment > 0 { 1 } else { -1 }),
        increment,
    })
}

fn integer(value: &ast::Expr) -> Result<i64> {
    let text = value.to_string();
    let parsed = text.parse();
    parsed.map_err(|_| Error::usage(format!("an identity column counts integers, not {text}")))
}

fn step(value: &ast::Expr) -> Result<i64> {
    match integer(value)? {
        0 => Err(Error::usage("INCREMENT BY 0 would give one value again")),
        by => Ok(by),
    }
}

impl Identity {
    /// Stands for the column's default in the plan of its definition.
    fn marker(self) -> Expr {
        let marker = Marker {
            identity: self,
            signature: Signature::nullary(Volatility::Volatile),
        };
        ScalarUDF::new_from_impl(marker).call(Vec::new())
    }

    /// Which identity column a default stands for.
    pub fn of(default: &Expr) -> Option<Self> {
        match default {
            Expr::ScalarFunction(function) => {
                let inner: &dyn Any = function.func.inner().as_ref();
                let marker = inner.downcast_ref::<Marker>()?;
                Some(marker.identity)
            }
            _ => None,
        }
    }
}

impl Session {
    /// An identity column of that name and type, with a sequence of its own that counts it.
    ///
    /// # Errors
    /// [`Error::Usage`] for a column that is no integer; those of making the sequence.
    pub(crate) async fn counted(
        &self,
        identity: Identity,
        column: &str,
        data_type: &DataType,
    ) -> Result<Generated> {
        if !data_type.is_integer() {
            return Err(Error::usage(format!(
                "column '{column}' is generated, so it must be an integer, not {data_type}"
            )));
        }
        let database = Arc::clone(self.engine().database());
        Ok(Generated {
            always: identity.always,
            sequence: blocking(move || database.new_sequence()).await?,
            start: identity.start,
            increment: identity.increment,
        })
    }
}

/// Takes the identity columns out of CREATE TABLE, which DataFusion does not know.
///
/// # Errors
/// As [`take_identity`].
pub(crate) fn take_identities(statement: &mut ast::Statement) -> Result<Vec<(String, Identity)>> {
    let ast::Statement::CreateTable(create) = statement else {
        return Ok(Vec::new());
    };
    let mut identities = Vec::new();
    for column in &mut create.columns {
        if let Some(identity) = take_identity(column)? {
            identities.push((name_of(&column.name), identity));
        }
    }
    match identities.first() {
        Some((column, _)) if create.query.is_some() => Err(Error::usage(format!(
            "column '{column}' can't be generated where a query gives its values; create the table, then INSERT INTO … SELECT"
        ))),
        _ => Ok(identities),
    }
}

/// Puts them back, as defaults.
pub(crate) fn with_identities(
    plan: LogicalPlan,
    identities: Vec<(String, Identity)>,
) -> LogicalPlan {
    match plan {
        LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) => {
            let mut column_defaults = create.column_defaults;
            let identities = identities.into_iter();
            column_defaults.extend(identities.map(|(name, i)| (name, i.marker())));
            LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(CreateMemoryTable {
                column_defaults,
                ..create
            }))
        }
        plan => plan,
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Marker {
    identity: Identity,
    signature: Signature,
}

impl ScalarUDFImpl for Marker {
    fn name(&self) -> &str {
        "identity"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> datafusion::error::Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> datafusion::error::Result<ColumnarValue> {
        exec_err!("the column's sequence is not made yet")
    }
}

/// The default of an identity column: the next numbers of its sequence.
pub(crate) fn next_numbers(database: &Arc<Database>, column: &str, generated: Generated) -> Expr {
    let next = Next {
        database: Arc::clone(database),
        column: column.to_owned(),
        generated,
        signature: Signature::nullary(Volatility::Volatile),
    };
    ScalarUDF::new_from_impl(next).call(Vec::new())
}

#[derive(Debug)]
struct Next {
    database: Arc<Database>,
    column: String,
    generated: Generated,
    signature: Signature,
}

impl PartialEq for Next {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.database, &other.database) && self.generated == other.generated
    }
}

impl Eq for Next {}

impl Hash for Next {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.generated.hash(state);
    }
}

impl ScalarUDFImpl for Next {
    fn name(&self) -> &str {
        "next_number"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> datafusion::error::Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(
        &self,
        args: ScalarFunctionArgs,
    ) -> datafusion::error::Result<ColumnarValue> {
        let rows = args.number_rows as u64;
        let numbers = self.database.take_numbers(self.generated.sequence, rows);
        let numbers = numbers.map_err(Error::Storage)?;
        let values = numbers.map(|number| {
            let value = self.generated.value(number);
            value.ok_or_else(|| {
                let column = &self.column;
                exec_datafusion_err!("the numbers of column '{column}' are used up")
            })
        });
        let values = values.collect::<datafusion::error::Result<Int64Array>>()?;
        Ok(ColumnarValue::Array(Arc::new(values)))
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
    // As `expr_to_sql` writes it, whatever the session's dialect.
    let parser = DFParserBuilder::new(text.as_str()).with_dialect(&GenericDialect {});
    Ok(parser.build()?.parse_expr()?.expr)
}

impl Session {
    /// The present version of the table that a change names, if it is on flash.
    pub(crate) fn changed_table(&self, name: &ast::ObjectName) -> Option<Arc<TableSnapshot>> {
        let name = object_name_to_table_reference(name.clone(), true).ok()?;
        let name = self.resolve(name);
        self.flash_schema(&name).ok()?.snapshot(&name.table).ok()
    }

    /// Has a change leave to the table what it leaves to it: DEFAULT in VALUES and SET becomes the
    /// column's default. Refuses what only the table may give.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub(crate) fn with_defaults(&self, statement: &mut ast::Statement) -> Result<()> {
        match statement {
            ast::Statement::Insert(insert) => {
                let ast::TableObject::TableName(name) = &insert.table else {
                    return Ok(());
                };
                let Some(table) = self.changed_table(name) else {
                    return Ok(());
                };
                if let Some(ast::OnInsert::OnConflict(conflict)) = &mut insert.on
                    && let ast::OnConflictAction::DoUpdate(update) = &mut conflict.action
                {
                    set_defaults(&table, &mut update.assignments)?;
                }
                insert_defaults(&table, insert)
            }
            ast::Statement::Update(update) => match &update.table.relation {
                ast::TableFactor::Table { name, .. } => match self.changed_table(name) {
                    Some(table) => set_defaults(&table, &mut update.assignments),
                    None => Ok(()),
                },
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
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

/// Has an INSERT leave out what is DEFAULT in all of its rows.
fn insert_defaults(table: &TableSnapshot, insert: &mut ast::Insert) -> Result<()> {
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
