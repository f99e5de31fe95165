//! What types are called in SQL: for people who ask, where [`DataType`]'s own text is Arrow's.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, TimeUnit};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::functions::utils::make_scalar_function;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

/// The function `typeof`.
pub fn type_of() -> Arc<ScalarUDF> {
    let says = "the type of a value, by SQL's name; `arrow_typeof` gives Arrow's";
    Arc::new(ScalarUDF::from(TypeOf {
        aliases: vec!["pg_typeof".to_owned()],
        signature: Signature::any(1, Volatility::Immutable),
        documentation: Documentation::builder(DocSection::default(), says, "typeof(x)").build(),
    }))
}

/// What a type is called in SQL. Types that SQL has not are called as the nearest of its own.
pub fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Null => "NULL".into(),
        DataType::Boolean => "BOOLEAN".into(),
        DataType::Int8 => "TINYINT".into(),
        DataType::Int16 => "SMALLINT".into(),
        DataType::Int32 => "INTEGER".into(),
        DataType::Int64 => "BIGINT".into(),
        DataType::UInt8 => "UTINYINT".into(),
        DataType::UInt16 => "USMALLINT".into(),
        DataType::UInt32 => "UINTEGER".into(),
        DataType::UInt64 => "UBIGINT".into(),
        DataType::Float16 | DataType::Float32 => "REAL".into(),
        DataType::Float64 => "DOUBLE".into(),
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => format!("DECIMAL({precision},{scale})"),
        DataType::Date32 | DataType::Date64 => "DATE".into(),
        DataType::Time32(unit) | DataType::Time64(unit) => format!("TIME{}", digits(*unit)),
        DataType::Timestamp(unit, None) => format!("TIMESTAMP{}", digits(*unit)),
        DataType::Timestamp(unit, Some(_)) => {
            format!("TIMESTAMP{} WITH TIME ZONE", digits(*unit))
        }
        DataType::Interval(_) | DataType::Duration(_) => "INTERVAL".into(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "VARCHAR".into(),
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => "BYTEA".into(),
        DataType::List(element)
        | DataType::LargeList(element)
        | DataType::ListView(element)
        | DataType::LargeListView(element) => format!("{}[]", type_name(element.data_type())),
        DataType::FixedSizeList(element, length) => {
            format!("{}[{length}]", type_name(element.data_type()))
        }
        DataType::Struct(fields) => {
            let fields = fields.iter().map(|field| named(field)).collect::<Vec<_>>();
            format!("STRUCT({})", fields.join(", "))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => {
                let types = fields.iter().map(|field| type_name(field.data_type()));
                format!("MAP({})", types.collect::<Vec<_>>().join(", "))
            }
            _ => "MAP".into(),
        },
        DataType::Union(fields, _) => {
            let fields = fields.iter().map(|(_, field)| named(field));
            format!("UNION({})", fields.collect::<Vec<_>>().join(", "))
        }
        DataType::Dictionary(_, values) => type_name(values),
        DataType::RunEndEncoded(_, values) => type_name(values.data_type()),
    }
}

/// A field of a type that has several.
fn named(field: &Field) -> String {
    let name = field.name();
    let is_plain = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_';
    let is_word = !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.chars().all(is_plain);
    let mut said = match is_word {
        true => name.clone(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    };
    let _ = write!(said, " {}", type_name(field.data_type()));
    said
}

/// How many digits of a second there are, where they are not as many as where nothing is said.
fn digits(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "(0)",
        TimeUnit::Millisecond => "(3)",
        TimeUnit::Microsecond => "(6)",
        TimeUnit::Nanosecond => "",
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TypeOf {
    aliases: Vec<String>,
    signature: Signature,
    documentation: Documentation,
}

impl ScalarUDFImpl for TypeOf {
    fn name(&self) -> &str {
        "typeof"
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    /// Without the value, whose type says it.
    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let [value] = args.as_slice() else {
            return plan_err!("typeof takes one value, not {}", args.len());
        };
        let name = type_name(&info.get_data_type(value)?);
        let name = Expr::Literal(ScalarValue::Utf8(Some(name)), None);
        Ok(ExprSimplifyResult::Simplified(name))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [value] = args.args.as_slice() else {
            return exec_err!("typeof takes one value, not {}", args.args.len());
        };
        let name = type_name(&value.data_type());
        Ok(ColumnarValue::Scalar(ScalarValue::Utf8(Some(name))))
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

/// A function without a name in SQL: what a type is called there that a text says as Arrow does. A text that says
/// none stays as it is.
pub fn name_of_arrow_type() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(NameOf {
        signature: Signature::string(1, Volatility::Immutable),
    }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct NameOf {
    signature: Signature,
}

impl ScalarUDFImpl for NameOf {
    fn name(&self) -> &str {
        "flashmesh:type_name"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let names = |columns: &[ArrayRef]| {
            let [texts] = columns else {
                return exec_err!("a type's name is made of one text");
            };
            let texts = cast(texts, &DataType::Utf8)?;
            let names = texts.as_string::<i32>().iter().map(|text| {
                text.map(|text| match text.parse::<DataType>() {
                    Ok(data_type) => type_name(&data_type),
                    Err(_) => text.to_owned(),
                })
            });
            Ok(Arc::new(names.collect::<StringArray>()) as ArrayRef)
        };
        make_scalar_function(names, Vec::new())(&args.args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_names_of_sql() {
        let item = |of| Arc::new(Field::new_list_field(of, true));
        let zoned = DataType::Timestamp(TimeUnit::Microsecond, Some("Europe/Berlin".into()));
        let fields = vec![
            Field::new("a", DataType::List(item(DataType::Utf8View)), true),
            Field::new("B c", zoned, true),
        ];
        let map = DataType::Map(
            Arc::new(Field::new_struct(
                "entries",
                vec![
                    Field::new("key", DataType::Utf8, false),
                    Field::new("value", DataType::Decimal128(9, 2), true),
                ],
                false,
            )),
            false,
        );
        for (of, name) in [
            (DataType::Int64, "BIGINT"),
            (
                DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8)),
                "VARCHAR",
            ),
            (
                DataType::FixedSizeList(item(DataType::Float32), 3),
                "REAL[3]",
            ),
            (
                DataType::Struct(fields.into()),
                "STRUCT(a VARCHAR[], \"B c\" TIMESTAMP(6) WITH TIME ZONE)",
            ),
            (map, "MAP(VARCHAR, DECIMAL(9,2))"),
        ] {
            assert_eq!(type_name(&of), name);
        }
    }
}
