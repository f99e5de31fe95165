//! `list_reduce(list, (a, b) -> …)`: the elements of a list, two by two from the left, as one value.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array, new_empty_array};
use arrow::compute::{CastOptions, cast_with_options, interleave, take, take_arrays};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, HigherOrderFunctionArgs, HigherOrderReturnFieldArgs,
    HigherOrderSignature, HigherOrderUDFImpl, LambdaParametersProgress, ValueOrLambda, Volatility,
};

#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Reduce {
    aliases: Vec<String>,
    signature: HigherOrderSignature,
    documentation: Documentation,
}

impl Reduce {
    pub fn new() -> Self {
        let says = "the elements of a list as one, by a lambda function of what has come of those before and the next \
                    one; with a third argument that is taken for an element before the first";
        let call = "list_reduce(list, (a, b) -> …), list_reduce(list, (a, b) -> …, initial)";
        let args = vec![ValueOrLambda::Value(()), ValueOrLambda::Lambda(())];
        Self {
            aliases: vec!["array_reduce".into(), "reduce".into()],
            signature: HigherOrderSignature::exact(args, Volatility::Immutable),
            documentation: Documentation::builder(DocSection::default(), says, call).build(),
        }
    }
}

/// The type of a list's elements.
fn element_of(list: &DataType) -> Result<&FieldRef> {
    match list {
        DataType::List(element) => Ok(element),
        other => plan_err!("list_reduce takes a list, not {other}"),
    }
}

impl HigherOrderUDFImpl for Reduce {
    fn name(&self) -> &str {
        "list_reduce"
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &HigherOrderSignature {
        &self.signature
    }

    fn coerce_value_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [
                DataType::List(element)
                | DataType::LargeList(element)
                | DataType::FixedSizeList(element, _)
                | DataType::ListView(element)
                | DataType::LargeListView(element),
            ] => Ok(vec![DataType::List(Arc::clone(element))]),
            [DataType::Null] => Ok(vec![DataType::new_list(DataType::Null, true)]),
            _ => plan_err!(
                "list_reduce takes a list and a lambda function: list_reduce(l, (a, b) -> a + b)"
            ),
        }
    }

    fn lambda_parameters(
        &self,
        _: usize,
        fields: &[ValueOrLambda<FieldRef, Option<FieldRef>>],
    ) -> Result<LambdaParametersProgress> {
        let [ValueOrLambda::Value(list), ValueOrLambda::Lambda(_)] = fields else {
            return plan_err!("list_reduce takes a list and a lambda function");
        };
        // What has come of the elements before may be NULL where they were not.
        let element = element_of(list.data_type())?.as_ref().clone();
        let element = Arc::new(element.with_nullable(true));
        let parameters = vec![vec![Arc::clone(&element), element]];
        Ok(LambdaParametersProgress::Complete(parameters))
    }

    fn return_field_from_args(&self, args: HigherOrderReturnFieldArgs) -> Result<FieldRef> {
        let [ValueOrLambda::Value(list), ValueOrLambda::Lambda(_)] = args.arg_fields else {
            return plan_err!("list_reduce takes a list and a lambda function");
        };
        let data_type = element_of(list.data_type())?.data_type().clone();
        Ok(Arc::new(Field::new(self.name(), data_type, true)))
    }

    fn invoke_with_args(&self, args: HigherOrderFunctionArgs) -> Result<ColumnarValue> {
        let [ValueOrLambda::Value(list), ValueOrLambda::Lambda(lambda)] = args.args.as_slice()
        else {
            return exec_err!("list_reduce takes a list and a lambda function");
        };
        let list = list.to_array(args.number_rows)?;
        let data_type = element_of(list.data_type())?.data_type().clone();
        let list = list.as_list::<i32>();
        if list.is_empty() {
            return Ok(ColumnarValue::Array(new_empty_array(&data_type)));
        }
        let (offsets, values) = (list.value_offsets(), list.values());
        let mut lengths = Vec::with_capacity(list.len());
        for row in 0..list.len() {
            let length = offsets[row + 1] - offsets[row];
            if length == 0 && list.is_valid(row) {
                return exec_err!(
                    "list_reduce: a list has no elements; give what that is as a third argument"
                );
            }
            lengths.push(if list.is_valid(row) { length } else { 0 });
        }
        let first = lengths.iter().zip(offsets);
        let first = first.map(|(length, start)| (*length > 0).then_some(*start as u32));
        let mut reduced = take(values, &UInt32Array::from_iter(first), None)?;
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let options = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        for place in 1..longest {
            let rows = (0..list.len()).filter(|row| lengths[*row] > place);
            let rows: Vec<u32> = rows.map(|row| row as u32).collect();
            let next = rows
                .iter()
                .map(|row| (offsets[*row as usize] + place) as u32);
            let next = take(values, &UInt32Array::from_iter_values(next), None)?;
            let places = UInt32Array::from(rows.clone());
            let before = take(&reduced, &places, None)?;
            let made = lambda.evaluate(
                &[&|| Ok(Arc::clone(&before)), &|| Ok(Arc::clone(&next))],
                |columns| Ok(take_arrays(columns, &places, None)?),
            )?;
            let made = made.into_array(rows.len())?;
            let made = cast_with_options(&made, &data_type, &options)?;
            let mut from: Vec<_> = (0..list.len()).map(|row| (0, row)).collect();
            for (place, row) in rows.into_iter().enumerate() {
                from[row as usize] = (1, place);
            }
            let both: [&dyn Array; 2] = [&reduced, &made];
            reduced = interleave(&both, &from)?;
        }
        let reduced: ArrayRef = reduced;
        Ok(ColumnarValue::Array(reduced))
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}
