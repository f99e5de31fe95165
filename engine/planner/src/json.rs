//! Functions of JSON texts, with DuckDB's names. A text that is no JSON has nothing in it: what asks for a
//! part of it gives NULL, and `json_valid` says so. (Escapes that stand for no character, `\\ud800` alone, are
//! only noticed in what is taken out.)

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, ListBuilder, StringArray, StringBuilder,
    StringViewArray, StructArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Int64Type};
use arrow::error::ArrowError;
use arrow::json::writer::{Encoder, EncoderFactory, EncoderOptions, NullableEncoder, make_encoder};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, TypeSignature, Volatility,
};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The functions.
pub fn functions() -> Vec<Arc<ScalarUDF>> {
    let all = [
        Kind::Extract,
        Kind::ExtractText,
        Kind::Exists,
        Kind::Length,
        Kind::Keys,
        Kind::Type,
        Kind::Valid,
        Kind::Json,
        Kind::Part,
        Kind::Text,
        Kind::Array,
        Kind::Object,
    ];
    all.map(|kind| Arc::new(ScalarUDF::from(Json::new(kind))))
        .to_vec()
}

/// The steps that a path may have: each looks at what the one before has found.
const MOST_STEPS: usize = 1000;

/// The function that marks JSON which is a part of other JSON, and the only field of the structs that it
/// gives: JSON is a text otherwise, which stands in quotes there.
pub const JSON: &str = "flashmesh:json";

fn part_fields() -> Fields {
    vec![Field::new(JSON, DataType::Utf8View, true)].into()
}

/// Writes such structs as what is in them.
#[derive(Debug)]
struct Parts;

impl EncoderFactory for Parts {
    fn make_default_encoder<'a>(
        &self,
        _: &'a FieldRef,
        array: &'a dyn Array,
        _: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        Ok(match array.as_struct_opt() {
            Some(parts) if *parts.fields() == part_fields() => {
                let texts = PartTexts(parts.column(0).as_string_view());
                Some(NullableEncoder::new(
                    Box::new(texts),
                    parts.nulls().cloned(),
                ))
            }
            _ => None,
        })
    }
}

struct PartTexts<'a>(&'a StringViewArray);

impl Encoder for PartTexts<'_> {
    fn encode(&mut self, row: usize, text: &mut Vec<u8>) {
        text.extend_from_slice(self.0.value(row).as_bytes());
    }
}

/// A step from a document to a part of it.
#[derive(Debug, Clone, PartialEq)]
enum Step<'a> {
    /// A member of an object.
    Key(Cow<'a, str>),
    /// An element of a list: from the front, or from the end where it is negative.
    Place(i64),
    /// A member, or an element, whose place is written so.
    Pointer(Cow<'a, str>),
}

/// The steps of a path: `$.a."b c"[0][#-1]`, `/a/0`, or the one key that it is.
///
/// # Errors
/// For a path that begins with `$` and can't be read; for wildcards; for too many steps.
fn steps(path: &str) -> Result<Vec<Step<'_>>> {
    let mut steps = Vec::new();
    if let Some(pointer) = path.strip_prefix('/') {
        let unescaped = |key: &str| Cow::Owned(key.replace("~1", "/").replace("~0", "~"));
        steps.extend(pointer.split('/').map(|key| Step::Pointer(unescaped(key))));
    } else if let Some(after) = path.strip_prefix('$') {
        let mut rest = after;
        while !rest.is_empty() && steps.len() <= MOST_STEPS {
            let Some((step, after)) = first_step(rest) else {
                let [path, rest] =
                    [path, rest].map(|text| text.chars().take(40).collect::<String>());
                return exec_err!(
                    "'{path}' is no path of JSON at '{rest}'; paths are as $.key.\"other key\"[0][#-1], without \
                     wildcards"
                );
            };
            steps.push(step);
            rest = after;
        }
    } else if !path.is_empty() {
        steps.push(Step::Key(path.into()));
    }
    match steps.len() > MOST_STEPS {
        true => exec_err!("a path of JSON has at most {MOST_STEPS} steps"),
        false => Ok(steps),
    }
}

/// The first step of a path behind its `$`, and what follows it.
fn first_step(path: &str) -> Option<(Step<'_>, &str)> {
    if let Some(quoted) = path.strip_prefix(".\"") {
        let (key, after) = quoted.split_once('"')?;
        return Some((Step::Key(key.into()), after));
    }
    if let Some(key) = path.strip_prefix('.') {
        let (key, after) = key.split_at(key.find(['.', '[']).unwrap_or(key.len()));
        let is_key = !matches!(key, "" | "*");
        return is_key.then(|| (Step::Key(key.into()), after));
    }
    let (place, after) = path.strip_prefix('[')?.split_once(']')?;
    let from_end = place.strip_prefix('#');
    let number = from_end.unwrap_or(place);
    let digits = number.strip_prefix('-').unwrap_or(number);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let place = number.parse().ok().filter(|_| is_number)?;
    let is_place = place < 0 || from_end.is_none();
    is_place.then_some((Step::Place(place), after))
}

/// The place of an element by its digits in a pointer.
fn place_of(pointer: &str) -> Option<usize> {
    let is_number = pointer.bytes().all(|byte| byte.is_ascii_digit());
    let is_short = pointer == "0" || !pointer.starts_with('0');
    pointer.parse().ok().filter(|_| is_number && is_short)
}

/// The part of a document behind one step, as it is written there. What is within it is not taken apart, so
/// that however deep it is nothing here is.
struct Member<'s>(&'s Step<'s>);

impl<'de> DeserializeSeed<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, document: D) -> Result<Self::Value, D::Error> {
        document.deserialize_any(self)
    }
}

/// Nothing is within these.
macro_rules! nothing_within {
    ($($visit:ident($of:ty)),*) => {
        $(fn $visit<E>(self, _: $of) -> Result<Self::Value, E> {
            Ok(None)
        })*
    };
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    nothing_within!(
        visit_bool(bool),
        visit_i64(i64),
        visit_u64(u64),
        visit_f64(f64),
        visit_str(&str)
    );

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let wanted = match self.0 {
            Step::Key(key) | Step::Pointer(key) => Some(key),
            Step::Place(_) => None,
        };
        let mut found = None;
        while let Some(key) = map.next_key::<Key<'de>>()? {
            let value = map.next_value::<&RawValue>()?;
            if found.is_none() && wanted.is_some_and(|wanted| *wanted == key.0) {
                found = Some(value);
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element::<&RawValue>()? {
            values.push(value);
        }
        let place = match self.0 {
            Step::Key(_) => None,
            Step::Pointer(pointer) => place_of(pointer),
            Step::Place(place) => match usize::try_from(*place) {
                Ok(place) => Some(place),
                Err(_) => usize::try_from(place.unsigned_abs())
                    .ok()
                    .and_then(|from_end| values.len().checked_sub(from_end)),
            },
        };
        Ok(place.and_then(|place| values.get(place).copied()))
    }
}

/// A key, which is only copied where it has escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// The part of a text behind steps, as it is written there; `None` where there is none, or no JSON.
fn part_of<'t>(text: &'t str, steps: &[Step<'_>]) -> Option<&'t RawValue> {
    let mut part: &RawValue = serde_json::from_str(text).ok()?;
    for step in steps {
        let mut document = serde_json::Deserializer::from_str(part.get());
        part = Member(step).deserialize(&mut document).ok()??;
    }
    Some(part)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Extract,
    ExtractText,
    Exists,
    Length,
    Keys,
    Type,
    Valid,
    Json,
    /// [`JSON`].
    Part,
    Text,
    Array,
    Object,
}

impl Kind {
    /// Its name, others of it, its arguments and what it gives.
    fn says(
        self,
    ) -> (
        &'static str,
        &'static [&'static str],
        &'static str,
        &'static str,
    ) {
        match self {
            Self::Extract => (
                "json_extract",
                &["json_extract_path"],
                "json, path",
                "the part of a document behind a path (`$.key[0]`, `/key/0`, `key`, or a place in a list), as it \
                 is written there; `json -> path`",
            ),
            Self::ExtractText => (
                "json_extract_string",
                &["json_extract_path_text"],
                "json, path",
                "the part of a document behind a path: texts without quotes, NULL for null; `json ->> path`",
            ),
            Self::Exists => (
                "json_exists",
                &[],
                "json, path",
                "whether a document has a part behind a path",
            ),
            Self::Length => (
                "json_array_length",
                &[],
                "json[, path]",
                "how many elements a list has; 0 for what is none",
            ),
            Self::Keys => (
                "json_keys",
                &[],
                "json[, path]",
                "the keys of an object, as a list",
            ),
            Self::Type => (
                "json_type",
                &[],
                "json[, path]",
                "OBJECT, ARRAY, VARCHAR, UBIGINT, BIGINT, DOUBLE, BOOLEAN or NULL",
            ),
            Self::Valid => ("json_valid", &[], "text", "whether a text is JSON"),
            Self::Json => (
                "json",
                &[],
                "text",
                "a text that is JSON, which is a part of JSON that is made of it; NULL where it is none",
            ),
            Self::Part => (JSON, &[], "text", "JSON as a part of other JSON"),
            Self::Text => (
                "to_json",
                &[],
                "value",
                "a value as JSON: rows as objects, lists as lists",
            ),
            Self::Array => ("json_array", &[], "value, …", "a list of values as JSON"),
            Self::Object => (
                "json_object",
                &[],
                "name, value, …",
                "an object of names and values as JSON",
            ),
        }
    }

    /// Whether it reads a document.
    fn reads(self) -> bool {
        !matches!(self, Self::Text | Self::Array | Self::Object)
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Json {
    kind: Kind,
    aliases: Vec<String>,
    signature: Signature,
    documentation: Documentation,
}

impl Json {
    fn new(kind: Kind) -> Self {
        let (name, aliases, args, says) = kind.says();
        let signature = match kind {
            Kind::Text => Signature::any(1, Volatility::Immutable),
            Kind::Array | Kind::Object => Signature::one_of(
                vec![TypeSignature::Nullary, TypeSignature::VariadicAny],
                Volatility::Immutable,
            ),
            _ => Signature::user_defined(Volatility::Immutable),
        };
        let call = format!("{name}({args})");
        let documentation = Documentation::builder(DocSection::default(), says, call);
        Self {
            kind,
            aliases: aliases.iter().map(ToString::to_string).collect(),
            signature,
            documentation: documentation.build(),
        }
    }
}

impl ScalarUDFImpl for Json {
    fn name(&self) -> &str {
        self.kind.says().0
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let (name, _, args, _) = self.kind.says();
        fn is_text(of: &DataType) -> bool {
            match of {
                DataType::Dictionary(_, values) => is_text(values),
                of => of.is_string() || of.is_null(),
            }
        }
        let (least, most) = match self.kind {
            Kind::Valid | Kind::Json | Kind::Part => (1, 1),
            Kind::Length | Kind::Keys | Kind::Type => (1, 2),
            _ => (2, 2),
        };
        match types {
            [text, path @ ..] if is_text(text) && (least..=most).contains(&types.len()) => {
                let path = path.iter().map(|path| match path {
                    path if path.is_integer() => Ok(DataType::Int64),
                    path if is_text(path) => Ok(DataType::Utf8),
                    path => plan_err!("{name}: a path is a text or a number, not {path}"),
                });
                std::iter::once(Ok(DataType::Utf8View))
                    .chain(path)
                    .collect()
            }
            _ => plan_err!("{name} takes ({args}), of which the document is a text"),
        }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(match self.kind {
            Kind::Valid | Kind::Exists => DataType::Boolean,
            Kind::Length => DataType::Int64,
            Kind::Part => DataType::Struct(part_fields()),
            Kind::Keys => DataType::new_list(DataType::Utf8, true),
            Kind::Object if !types.len().is_multiple_of(2) => {
                return plan_err!("json_object takes a value for each name");
            }
            _ => DataType::Utf8,
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = |arg: &ColumnarValue| matches!(arg, ColumnarValue::Scalar(_));
        let all_constant = args.args.iter().all(is_constant);
        let rows = match all_constant {
            true => 1,
            false => args.number_rows,
        };
        let values = match (self.kind.reads(), args.args.as_slice()) {
            (true, [texts, path @ ..]) => {
                let texts = cast(&texts.to_array(rows)?, &DataType::Utf8View)?;
                let paths = Paths::of(path.first(), rows)?;
                let texts = texts.as_string_view();
                let parts = (0..rows).map(|row| {
                    if texts.is_null(row) {
                        return Ok(None);
                    }
                    let part = |steps: &[Step<'_>]| part_of(texts.value(row), steps);
                    Ok(paths.steps(row)?.map(|steps| part(&steps)))
                });
                read(self.kind, parts)?
            }
            _ => self.made(&args, rows)?,
        };
        match all_constant {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(
                &values, 0,
            )?)),
            false => Ok(ColumnarValue::Array(values)),
        }
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

/// The paths of rows.
enum Paths<'a> {
    /// Of all rows; `None` for NULL.
    One(Option<Vec<Step<'a>>>),
    Each(ArrayRef),
}

impl<'a> Paths<'a> {
    /// `rows`: how many there are, where each has its own.
    fn of(given: Option<&'a ColumnarValue>, rows: usize) -> Result<Self> {
        Ok(match given {
            // The document itself.
            None => Self::One(Some(Vec::new())),
            Some(ColumnarValue::Scalar(ScalarValue::Int64(place))) => {
                Self::One(place.map(|place| vec![Step::Place(place)]))
            }
            Some(ColumnarValue::Scalar(path)) => {
                let path = path.try_as_str().flatten();
                Self::One(path.map(steps).transpose()?)
            }
            Some(paths) => Self::Each(paths.to_array(rows)?),
        })
    }

    fn steps(&self, row: usize) -> Result<Option<Cow<'_, [Step<'_>]>>> {
        match self {
            Self::One(steps) => Ok(steps.as_deref().map(Cow::Borrowed)),
            Self::Each(paths) if paths.is_null(row) => Ok(None),
            Self::Each(paths) => Ok(Some(Cow::Owned(match paths.as_string_opt::<i32>() {
                Some(paths) => steps(paths.value(row))?,
                None => vec![Step::Place(paths.as_primitive::<Int64Type>().value(row))],
            }))),
        }
    }
}

/// What is behind a path in each row: NULL where the text or the path is, then nothing or a part.
type Part<'t> = Option<Option<&'t RawValue>>;

fn read<'t>(kind: Kind, parts: impl Iterator<Item = Result<Part<'t>>>) -> Result<ArrayRef> {
    Ok(match kind {
        Kind::Valid | Kind::Exists => {
            let found = parts.map(|part| Ok(part?.map(|part| part.is_some())));
            Arc::new(found.collect::<Result<BooleanArray>>()?)
        }
        Kind::Length => {
            let lengths = parts.map(|part| Ok(part?.flatten().map(length)));
            Arc::new(lengths.collect::<Result<Int64Array>>()?)
        }
        Kind::Keys => {
            let mut lists = ListBuilder::new(StringBuilder::new());
            for part in parts {
                match part?.flatten() {
                    None => lists.append_null(),
                    Some(part) => {
                        let keys = serde_json::from_str(part.get()).unwrap_or(Keys(Vec::new()));
                        lists.append_value(keys.0.into_iter().map(Some));
                    }
                }
            }
            Arc::new(lists.finish())
        }
        Kind::Type => {
            let types = parts.map(|part| Ok(part?.flatten().map(type_of)));
            Arc::new(types.collect::<Result<StringArray>>()?)
        }
        Kind::Part => {
            let texts = parts.map(|part| Ok(part?.flatten().map(RawValue::get)));
            let texts = texts.collect::<Result<StringViewArray>>()?;
            let nulls = texts.nulls().cloned();
            Arc::new(StructArray::new(
                part_fields(),
                vec![Arc::new(texts)],
                nulls,
            ))
        }
        Kind::Extract | Kind::Json => {
            let texts = parts.map(|part| Ok(part?.flatten().map(RawValue::get)));
            Arc::new(texts.collect::<Result<StringArray>>()?)
        }
        _ => {
            let texts = parts.map(|part| Ok(part?.flatten().and_then(text_of)));
            Arc::new(texts.collect::<Result<StringArray>>()?)
        }
    })
}

/// Texts without quotes.
fn text_of(part: &RawValue) -> Option<Cow<'_, str>> {
    match part.get() {
        "null" => None,
        text if text.starts_with('"') => {
            serde_json::from_str::<Key<'_>>(text).ok().map(|key| key.0)
        }
        text => Some(text.into()),
    }
}

fn length(part: &RawValue) -> i64 {
    let elements = serde_json::from_str::<Vec<IgnoredAny>>(part.get());
    elements.map_or(0, |elements| elements.len() as i64)
}

fn type_of(part: &RawValue) -> &'static str {
    let text = part.get();
    match text.as_bytes().first() {
        Some(b'{') => "OBJECT",
        Some(b'[') => "ARRAY",
        Some(b'"') => "VARCHAR",
        Some(b't' | b'f') => "BOOLEAN",
        Some(b'n') => "NULL",
        _ if text.parse::<u64>().is_ok() => "UBIGINT",
        _ if text.parse::<i64>().is_ok() => "BIGINT",
        _ => "DOUBLE",
    }
}

/// The keys of an object, in its order.
struct Keys(Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(document: D) -> Result<Self, D::Error> {
        document.deserialize_map(KeysVisitor)
    }
}

struct KeysVisitor;

impl<'de> Visitor<'de> for KeysVisitor {
    type Value = Keys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
        let mut keys = Vec::new();
        while let Some((key, _)) = map.next_entry::<String, IgnoredAny>()? {
            keys.push(key);
        }
        Ok(Keys(keys))
    }
}

impl Json {
    /// The texts of what makes them.
    fn made(&self, args: &ScalarFunctionArgs, rows: usize) -> Result<ArrayRef> {
        // A NULL in a column that says that it has none is one nevertheless.
        let nullable = |field: &FieldRef| Arc::new(Field::clone(field).with_nullable(true));
        let given = args.args.iter().zip(&args.arg_fields);
        let given = given.map(|(value, field)| {
            let (array, field) = (value.to_array(rows)?, nullable(field));
            Ok(match field.data_type() {
                // Its encoder looks at the keys' NULLs alone.
                DataType::Dictionary(_, values) => {
                    let plain = Field::clone(&field).with_data_type(values.as_ref().clone());
                    (cast(&array, values)?, Arc::new(plain))
                }
                _ => (array, field),
            })
        });
        let given: Vec<(ArrayRef, FieldRef)> = given.collect::<Result<_>>()?;
        let options = EncoderOptions::default()
            .with_explicit_nulls(true)
            .with_encoder_factory(Arc::new(Parts));
        if self.kind == Kind::Text {
            let mut values = encoders(&given, &options)?;
            return written(rows, |row, text| {
                let Some(value) = values.first_mut().filter(|value| !value.is_null(row)) else {
                    return Ok(false);
                };
                value.encode(row, text);
                Ok(true)
            });
        }
        if self.kind == Kind::Array {
            let mut values = encoders(&given, &options)?;
            return written(rows, |row, text| {
                text.push(b'[');
                for (place, value) in values.iter_mut().enumerate() {
                    if place > 0 {
                        text.push(b',');
                    }
                    put(value, row, text);
                }
                text.push(b']');
                Ok(true)
            });
        }
        let names = given.iter().step_by(2);
        let names = names.map(|(names, _)| cast(names, &DataType::Utf8));
        let names: Vec<ArrayRef> = names.collect::<Result<_, _>>()?;
        let mut values = encoders(given.iter().skip(1).step_by(2), &options)?;
        written(rows, |row, text| {
            text.push(b'{');
            for (place, (names, value)) in names.iter().zip(&mut values).enumerate() {
                let names = names.as_string::<i32>();
                if names.is_null(row) {
                    return exec_err!("json_object: a name is NULL");
                }
                if place > 0 {
                    text.push(b',');
                }
                let name = serde_json::to_string(names.value(row));
                text.extend(name.expect("a text has a form").into_bytes());
                text.push(b':');
                put(value, row, text);
            }
            text.push(b'}');
            Ok(true)
        })
    }
}

/// What writes the values of columns as JSON.
fn encoders<'a>(
    columns: impl IntoIterator<Item = &'a (ArrayRef, FieldRef)>,
    options: &'a EncoderOptions,
) -> Result<Vec<NullableEncoder<'a>>> {
    let columns = columns.into_iter();
    let columns = columns.map(|(values, field)| Ok(make_encoder(field, values, options)?));
    columns.collect()
}

fn put(values: &mut NullableEncoder<'_>, row: usize, text: &mut Vec<u8>) {
    match values.is_null(row) {
        true => text.extend(b"null"),
        false => values.encode(row, text),
    }
}

/// The texts of all rows; NULL where `write` says that there is none.
fn written(
    rows: usize,
    mut write: impl FnMut(usize, &mut Vec<u8>) -> Result<bool>,
) -> Result<ArrayRef> {
    let mut texts = StringBuilder::new();
    let mut text = Vec::new();
    for row in 0..rows {
        text.clear();
        match write(row, &mut text)? {
            true => match std::str::from_utf8(&text) {
                Ok(text) => texts.append_value(text),
                Err(_) => return exec_err!("a value has no JSON in UTF-8"),
            },
            false => texts.append_null(),
        }
    }
    Ok(Arc::new(texts.finish()))
}
