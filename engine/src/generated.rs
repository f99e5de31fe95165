//! Identity columns.
//!
//! To the store an identity column is one whose default says which sequence counts it. Here that
//! default is a function of the session's plans alone: it has no name by which SQL could call it.

use std::any::Any;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::Int64Array;
use arrow::datatypes::DataType;
use datafusion::common::exec_err;
use datafusion::logical_expr::{
    ColumnarValue, CreateMemoryTable, DdlStatement, Expr, LogicalPlan, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::sql::sqlparser::ast::{
    self, ColumnOption, GeneratedAs, IdentityPropertyFormatKind, IdentityPropertyKind,
    SequenceOptions,
};
use flashmesh_storage::table::{Database, Generated};

use crate::blocking::blocking;
use crate::error::{Error, Result};
use crate::names::{is_auto_increment, name_of};

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
        ColumnOption::DialectSpecific(tokens) if is_auto_increment(tokens) => {
            counted(false, &None)?
        }
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

    /// The column of that name and type, with a new sequence of `database` that counts it.
    ///
    /// # Errors
    /// [`Error::Usage`] for a column that is no integer; those of making the sequence.
    pub async fn with_sequence(
        self,
        database: &Arc<Database>,
        column: &str,
        data_type: &DataType,
    ) -> Result<Generated> {
        if !data_type.is_integer() {
            return Err(Error::usage(format!(
                "column '{column}' is generated, so it must be an integer, not {data_type}"
            )));
        }
        let database = Arc::clone(database);
        Ok(Generated {
            always: self.always,
            sequence: blocking(move || database.new_sequence()).await?,
            start: self.start,
            increment: self.increment,
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

/// So many values that a sequence has given to nobody; `of` says whose it is.
///
/// # Errors
/// [`Error::Usage`] where there are no more of them; those of the catalog.
pub(crate) fn next_values(
    database: &Database,
    generated: Generated,
    count: usize,
    of: impl Fn() -> String,
) -> Result<Int64Array> {
    let numbers = database.take_numbers(generated.sequence, count as u64)?;
    let values = numbers.map(|number| {
        let value = generated.value(number);
        value.ok_or_else(|| Error::usage(format!("the numbers of {} are used up", of())))
    });
    values.collect()
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
        let of = || format!("column '{}'", self.column);
        let values = next_values(&self.database, self.generated, args.number_rows, of)?;
        Ok(ColumnarValue::Array(Arc::new(values)))
    }
}
