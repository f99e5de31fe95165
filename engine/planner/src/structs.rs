//! Structs and maps that are made of others: `struct_insert`, `struct_keys`, `map_concat` and
//! `map_from_entries`.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, ListArray, MapArray, StringArray, StructArray, UInt32Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{cast, concat, take};
use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};

/// The functions.
pub fn functions() -> Vec<Arc<ScalarUDF>> {
    let all = [
        Made::new(
            Kind::Insert,
            "struct_insert",
            &[],
            "a struct with more fields behind its own",
            "struct_insert(struct, name := value, …)",
        ),
        Made::new(
            Kind::Keys,
            "struct_keys",
            &[],
            "the names of a struct's fields, as a list",
            "struct_keys(struct)",
        ),
        Made::new(
            Kind::Concat,
            "map_concat",
            &[],
            "a map with the entries of all of them; of several with one key it has the last one's value",
            "map_concat(map, …)",
        ),
        Made::new(
            Kind::Entries,
            "map_from_entries",
            &[],
            "the map of a list of structs of a key and a value each",
            "map_from_entries(list)",
        ),
    ];
    all.map(|f| Arc::new(ScalarUDF::from(f))).to_vec()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Insert,
    Keys,
    Concat,
    Entries,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Made {
    kind: Kind,
    name: &'static str,
    aliases: Vec<String>,
    signature: Signature,
    documentation: Documentation,
}

impl Made {
    fn new(kind: Kind, name: &'static str, aliases: &[&str], says: &str, call: &str) -> Self {
        Self {
            kind,
            name,
            aliases: aliases.iter().map(ToString::to_string).collect(),
            signature: Signature::user_defined(Volatility::Immutable),
            documentation: Documentation::builder(DocSection::default(), says, call).build(),
        }
    }

    /// The type of what it makes; `names`: the arguments that are constant texts.
    fn made(&self, types: &[DataType], names: &[Option<String>]) -> Result<DataType> {
        match (self.kind, types) {
            (Kind::Insert, [DataType::Struct(fields), more @ ..]) if more.len() >= 2 => {
                let mut all: Vec<FieldRef> = fields.iter().cloned().collect();
                for (pair, names) in more.chunks(2).zip(names[1..].chunks(2)) {
                    let ([_, data_type], Some(Some(name))) = (pair, names.first()) else {
                        return plan_err!(
                            "struct_insert takes struct_insert(struct, name := value)"
                        );
                    };
                    if all
                        .iter()
                        .any(|field| field.name().eq_ignore_ascii_case(name))
                    {
                        return plan_err!("struct_insert: the struct has a field '{name}'");
                    }
                    all.push(Arc::new(Field::new(name, data_type.clone(), true)));
                }
                Ok(DataType::Struct(all.into()))
            }
            (Kind::Keys, [DataType::Struct(_)]) => Ok(DataType::List(Arc::new(
                Field::new_list_field(DataType::Utf8, true),
            ))),
            (Kind::Concat, [DataType::Map(..), ..]) => {
                let same = types.iter().all(|other| *other == types[0]);
                match same {
                    true => Ok(types[0].clone()),
                    false => plan_err!("map_concat takes maps of one type, not {types:?}"),
                }
            }
            (Kind::Entries, [DataType::List(entry) | DataType::LargeList(entry)]) => {
                match entry.data_type() {
                    DataType::Struct(fields) if fields.len() == 2 => Ok(map_of(
                        fields[0].data_type().clone(),
                        fields[1].data_type().clone(),
                    )),
                    other => plan_err!(
                        "map_from_entries takes a list of structs of a key and a value, not of {other}"
                    ),
                }
            }
            _ => plan_err!("{} takes {}", self.name, self.documentation.syntax_example),
        }
    }
}

/// The type of a map, as the function `map` makes it.
fn map_of(key: DataType, value: DataType) -> DataType {
    let fields = Fields::from(vec![
        Field::new("key", key, false),
        Field::new("value", value, true),
    ]);
    let entries = Field::new("entries", DataType::Struct(fields), false);
    DataType::Map(Arc::new(entries), false)
}

impl ScalarUDFImpl for Made {
    fn name(&self) -> &str {
        self.name
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let mut types = types.to_vec();
        if self.kind == Kind::Concat {
            // NULL is no map, and changes nothing.
            let map = types
                .iter()
                .find(|of| matches!(of, DataType::Map(..)))
                .cloned();
            if let Some(map) = map {
                let nulls = types.iter_mut().filter(|of| of.is_null());
                nulls.for_each(|of| *of = map.clone());
            }
        }
        Ok(types)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.made(types, &vec![None; types.len()])
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let types = args
            .arg_fields
            .iter()
            .map(|field| field.data_type().clone());
        let types: Vec<_> = types.collect();
        let names = args.scalar_arguments.iter().map(|constant| {
            let text = constant.and_then(|constant| constant.try_as_str().flatten());
            text.map(ToOwned::to_owned)
        });
        let data_type = self.made(&types, &names.collect::<Vec<_>>())?;
        Ok(Arc::new(Field::new(self.name, data_type, true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let columns = args.args.iter().map(|value| value.to_array(rows));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let made = match (self.kind, columns.as_slice()) {
            (Kind::Insert, [first, more @ ..]) => {
                let DataType::Struct(fields) = args.return_field.data_type() else {
                    return exec_err!("struct_insert makes a struct");
                };
                let first = first.as_struct();
                let mut all = first.columns().to_vec();
                all.extend(more.iter().skip(1).step_by(2).cloned());
                let made = StructArray::try_new(fields.clone(), all, first.nulls().cloned())?;
                Arc::new(made) as ArrayRef
            }
            (Kind::Keys, [first]) => {
                let names = first.as_struct().column_names();
                let names: ArrayRef = Arc::new(StringArray::from(names));
                let offsets = OffsetBuffer::from_lengths([names.len()]);
                let element = Arc::new(Field::new_list_field(DataType::Utf8, true));
                let names = ListArray::try_new(element, offsets, names, None)?;
                let of_row = (0..rows).map(|row| (!first.is_null(row)).then_some(0));
                take(&names, &UInt32Array::from_iter(of_row), None)?
            }
            (Kind::Concat, [_, ..]) => concatenated(&columns, args.return_field.data_type())?,
            (Kind::Entries, [list]) => {
                let element = match list.data_type() {
                    DataType::List(element) | DataType::LargeList(element) => Arc::clone(element),
                    other => return exec_err!("map_from_entries takes a list, not {other}"),
                };
                let list = cast(list, &DataType::List(element))?;
                of_entries(list.as_list::<i32>(), args.return_field.data_type())?
            }
            _ => return exec_err!("{} takes more arguments", self.name),
        };
        Ok(ColumnarValue::Array(made))
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

/// The maps of rows: of each the entries that are named, of the arrays of all keys and of all values.
fn maps(
    data_type: &DataType,
    keys: &ArrayRef,
    values: &ArrayRef,
    entries: Vec<u32>,
    lengths: Vec<usize>,
    nulls: NullBuffer,
) -> Result<ArrayRef> {
    let DataType::Map(field, is_sorted) = data_type else {
        return exec_err!("a map is made, not {data_type}");
    };
    let DataType::Struct(fields) = field.data_type() else {
        return exec_err!("a map has entries");
    };
    let entries = UInt32Array::from(entries);
    let columns = vec![take(keys, &entries, None)?, take(values, &entries, None)?];
    let entries = StructArray::try_new(fields.clone(), columns, None)?;
    let offsets = OffsetBuffer::from_lengths(lengths);
    let map = MapArray::try_new(Arc::clone(field), offsets, entries, Some(nulls), *is_sorted)?;
    Ok(Arc::new(map))
}

/// The entries of several maps in each row. One that is NULL has none; all of them make NULL.
fn concatenated(columns: &[ArrayRef], data_type: &DataType) -> Result<ArrayRef> {
    let all: Vec<_> = columns.iter().map(|column| column.as_map()).collect();
    let keys: Vec<_> = all.iter().map(|map| map.keys().as_ref()).collect();
    let values: Vec<_> = all.iter().map(|map| map.values().as_ref()).collect();
    let (keys, values) = (concat(&keys)?, concat(&values)?);
    let converter = RowConverter::new(vec![SortField::new(keys.data_type().clone())])?;
    let of_keys = converter.convert_columns(&[Arc::clone(&keys)])?;
    let (mut entries, mut lengths, mut are_there) = (vec![], vec![], vec![]);
    for row in 0..columns.first().map_or(0, |first| first.len()) {
        let begin = entries.len();
        let mut places = HashMap::new();
        let mut before = 0;
        for map in &all {
            let offsets = map.value_offsets();
            if !map.is_null(row) {
                for entry in offsets[row]..offsets[row + 1] {
                    let entry = before + entry as usize;
                    let place = *places.entry(of_keys.row(entry)).or_insert(entries.len());
                    match place < entries.len() {
                        true => entries[place] = entry as u32,
                        false => entries.push(entry as u32),
                    }
                }
            }
            before += map.keys().len();
        }
        lengths.push(entries.len() - begin);
        are_there.push(all.iter().any(|map| !map.is_null(row)));
    }
    maps(
        data_type,
        &keys,
        &values,
        entries,
        lengths,
        are_there.into(),
    )
}

/// A map of each list of entries.
///
/// # Errors
/// For keys that are NULL, and for two of one.
fn of_entries(lists: &ListArray, data_type: &DataType) -> Result<ArrayRef> {
    let structs = lists.values().as_struct();
    let (keys, values) = (structs.column(0), structs.column(1));
    let converter = RowConverter::new(vec![SortField::new(keys.data_type().clone())])?;
    let of_keys = converter.convert_columns(&[Arc::clone(keys)])?;
    let (mut entries, mut lengths, mut are_there) = (vec![], vec![], vec![]);
    let offsets = lists.value_offsets();
    for row in 0..lists.len() {
        let begin = entries.len();
        let mut seen = HashMap::new();
        are_there.push(!lists.is_null(row));
        if !lists.is_null(row) {
            for entry in offsets[row] as usize..offsets[row + 1] as usize {
                if structs.is_null(entry) || keys.is_null(entry) {
                    return exec_err!("map_from_entries: a key is NULL");
                }
                if seen.insert(of_keys.row(entry), ()).is_some() {
                    let key = ScalarValue::try_from_array(keys, entry)?;
                    return exec_err!("map_from_entries: the key {key} is there twice");
                }
                entries.push(entry as u32);
            }
        }
        lengths.push(entries.len() - begin);
    }
    maps(data_type, keys, values, entries, lengths, are_there.into())
}
