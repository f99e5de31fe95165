//! Rows by key, by id, and by what their text holds.

use std::sync::Arc;

use arrow::array::{AsArray, ListBuilder, UInt64Builder};
use arrow::compute::{can_cast_types, cast};
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Column, Result, ScalarValue, exec_err, plan_err};
use datafusion::functions::expr_fn::contains;
use datafusion::logical_expr::{
    ColumnarValue, Expr, JoinType, LogicalPlan, LogicalPlanBuilder, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility, cast as cast_to, col, lit, try_cast, when,
};
use memchr::memmem;

use super::arguments::{Argument, Arguments, constants};
use super::store::{StoreRelations, Table};

/// `lookup('table', keys)`: the rows whose primary key is one of `keys`, a constant, an array, or
/// a subquery of one column. Many keys are one command to the store.
pub(super) fn lookup(store: &StoreRelations, mut arguments: Arguments<'_>) -> Result<LogicalPlan> {
    let name = arguments.text()?;
    let table = store.table(&name, &arguments)?;
    let Some(key) = table.snapshot().primary_key() else {
        return plan_err!(
            "lookup: table '{}' has no primary key; say WHERE column IN (…), which uses an index on the column if there is one",
            table.name()
        );
    };
    let [ordinal] = key.definition.columns.as_slice() else {
        return plan_err!(
            "lookup: the primary key of table '{}' has several columns; say WHERE a = … AND b = …, which uses it",
            table.name()
        );
    };
    let column = table.snapshot().schema.field(*ordinal as usize).clone();
    let scan = table.scan(false)?;
    rows_of(scan, &table, &column, arguments)
}

/// `fetch('table', row_ids)`: the rows of these ids, with the ids.
pub(super) fn fetch(store: &StoreRelations, mut arguments: Arguments<'_>) -> Result<LogicalPlan> {
    let name = arguments.text()?;
    let table = store.table(&name, &arguments)?;
    let ids = table.snapshot().scan_schema.fields().last().cloned();
    let Some(column) = ids else {
        return plan_err!("fetch: table '{}' has no columns", table.name());
    };
    let scan = table.scan(true)?;
    rows_of(scan, &table, &column, arguments)
}

/// The rows of `scan` whose `column` is one of the values that the next argument gives.
fn rows_of(
    scan: LogicalPlanBuilder,
    table: &Table,
    column: &Field,
    mut arguments: Arguments<'_>,
) -> Result<LogicalPlan> {
    let named = Column::new(Some(table.name()), column.name());
    let keys = arguments.next()?;
    let function = arguments.function().to_string();
    arguments.end()?;
    match keys {
        Argument::Constant(keys) => {
            let mut values = Vec::new();
            for key in constants(&keys)?.iter().filter(|key| !key.is_null()) {
                let value = equal_value(key, column.data_type());
                let value = value.or_else(|_| {
                    plan_err!(
                        "{function}: {key} is not a value of column '{}' of type {}",
                        column.name(),
                        column.data_type()
                    )
                });
                values.extend(value?.map(lit));
            }
            scan.filter(Expr::Column(named).in_list(values, false))?
                .build()
        }
        Argument::Rows(keys) => {
            let [field] = keys.schema().fields().as_ref() else {
                return plan_err!(
                    "{function}: the subquery gives {} columns, not the keys alone",
                    keys.schema().fields().len()
                );
            };
            let key = Expr::Column(Column::from(keys.schema().qualified_field(0)));
            let key = equal_value_of(key, field.data_type(), column.data_type())?;
            let keys = LogicalPlanBuilder::from(keys)
                .project([key.alias("key")])?
                .alias("keys")?
                .build()?;
            // The keys come first: they are the side of the join that is kept, whose values reach
            // the scan as a runtime filter.
            let on = (vec![Column::new(Some("keys"), "key")], vec![named]);
            LogicalPlanBuilder::from(keys)
                .join(scan.build()?, JoinType::RightSemi, on, None)?
                .build()
        }
    }
}

/// The value of `data_type` that equals `key`; `None` where none does. Text is read as a value.
///
/// # Errors
/// For a key that is of another kind than the type's values.
fn equal_value(key: &ScalarValue, data_type: &DataType) -> Result<Option<ScalarValue>> {
    let key_type = key.data_type();
    let value = match key.cast_to(data_type) {
        // Beyond the type's values.
        Err(_) if !key_type.is_string() && can_cast_types(&key_type, data_type) => return Ok(None),
        value => value?,
    };
    let is_equal = || value.cast_to(&key_type).is_ok_and(|back| back == *key);
    Ok((key_type.is_string() || is_equal()).then_some(value))
}

/// The same of an expression: NULL where no value equals the key.
fn equal_value_of(key: Expr, key_type: &DataType, data_type: &DataType) -> Result<Expr> {
    if key_type == data_type || key_type.is_null() || key_type.is_string() {
        return Ok(cast_to(key, data_type.clone()));
    }
    let value = try_cast(key.clone(), data_type.clone());
    when(cast_to(value.clone(), key_type.clone()).eq(key), value).end()
}

/// `matches('table', 'column', needle)`: where a text occurs (BlueDBM section 7.3): for each
/// occurrence the id of its row, the byte at which it starts in the value, and the value.
/// Occurrences do not overlap; the leftmost one counts.
pub(super) fn matches(store: &StoreRelations, mut arguments: Arguments<'_>) -> Result<LogicalPlan> {
    let name = arguments.text()?;
    let table = store.table(&name, &arguments)?;
    let column = arguments.text()?;
    let ordinal = table.column(&column, &arguments)?;
    let needle = arguments.text()?;
    let field = table.snapshot().schema.field(ordinal).clone();
    arguments.end()?;
    if field.data_type() != &DataType::Utf8View {
        return plan_err!(
            "matches: column '{column}' of type {} is no text",
            field.data_type()
        );
    }
    if needle.is_empty() {
        return plan_err!("matches: the needle is empty, it would be everywhere; give a text");
    }
    let schema = &table.snapshot().scan_schema;
    let id = schema.field(schema.fields().len() - 1).name();
    let text = Expr::Column(Column::new(Some(table.name()), field.name()));
    let id = Expr::Column(Column::new(Some(table.name()), id));
    let offsets = ScalarUDF::from(Occurrences::new()).call(vec![text.clone(), lit(needle.clone())]);
    table
        .scan(true)?
        .filter(contains(text.clone(), lit(needle)))?
        .project([
            id.alias("row_id"),
            offsets.alias("byte_offset"),
            text.alias("value"),
        ])?
        .unnest_column("byte_offset")?
        .project([col("row_id"), col("byte_offset"), col("value")])?
        .build()
}

/// The byte offsets at which a needle occurs in a text.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Occurrences {
    signature: Signature,
}

impl Occurrences {
    fn new() -> Self {
        Self {
            signature: Signature::any(2, Volatility::Immutable),
        }
    }
}

impl ScalarUDFImpl for Occurrences {
    fn name(&self) -> &str {
        "occurrences"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        let item = Field::new_list_field(DataType::UInt64, true);
        Ok(DataType::List(Arc::new(item)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [texts, ColumnarValue::Scalar(needle)] = args.args.as_slice() else {
            return exec_err!("occurrences takes a text and a constant");
        };
        let Some(Some(needle)) = needle.try_as_str() else {
            return exec_err!("occurrences takes a text to look for");
        };
        let texts = cast(&texts.to_array(args.number_rows)?, &DataType::Utf8View)?;
        let finder = memmem::Finder::new(needle);
        let mut offsets = ListBuilder::new(UInt64Builder::new());
        for text in texts.as_string_view() {
            if let Some(text) = text {
                let found = finder.find_iter(text.as_bytes());
                found.for_each(|at| offsets.values().append_value(at as u64));
            }
            offsets.append(text.is_some());
        }
        Ok(ColumnarValue::Array(Arc::new(offsets.finish())))
    }
}
