//! `array_sum` and `list_sum` in the type of the elements: DataFusion adds whole numbers and decimals as floats, which
//! hold no more than 53 bits.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, PrimitiveArray,
};
use arrow::compute::{cast, sum_checked};
use arrow::datatypes::{
    ArrowNativeType, DataType, Decimal128Type, Decimal256Type, Field, Float64Type, Int64Type,
    UInt64Type,
};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::functions::utils::make_scalar_function;
use datafusion::functions_nested::array_sum::array_sum_udf;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

/// The function, to take the place of DataFusion's.
pub fn function() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(SumOfList {
        inner: array_sum_udf(),
        signature: Signature::user_defined(Volatility::Immutable),
    }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct SumOfList {
    /// What it is called.
    inner: Arc<ScalarUDF>,
    signature: Signature,
}

/// The type of a sum of values: DataFusion's of `sum`, with all digits for decimals.
fn type_of_sum(of: &DataType) -> DataType {
    match of {
        of if of.is_unsigned_integer() => DataType::UInt64,
        of if of.is_integer() => DataType::Int64,
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale) => DataType::Decimal128(38, *scale),
        DataType::Decimal256(_, scale) => DataType::Decimal256(76, *scale),
        _ => DataType::Float64,
    }
}

impl ScalarUDFImpl for SumOfList {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [list] = types else {
            return plan_err!("{} takes one list, not {}", self.name(), types.len());
        };
        let element = match list {
            DataType::Null => return Ok(vec![DataType::Null]),
            DataType::List(element)
            | DataType::LargeList(element)
            | DataType::FixedSizeList(element, _) => element.data_type(),
            other => return plan_err!("{} takes a list of numbers, not {other}", self.name()),
        };
        if !element.is_numeric() && !element.is_null() {
            return plan_err!("{} takes a list of numbers, not {list}", self.name());
        }
        let element = Field::new_list_field(type_of_sum(element), true);
        Ok(vec![match list {
            DataType::LargeList(_) => DataType::LargeList(Arc::new(element)),
            _ => DataType::List(Arc::new(element)),
        }])
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(match types {
            [DataType::List(element) | DataType::LargeList(element)] => element.data_type().clone(),
            _ => DataType::Float64,
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let result = args.return_type().clone();
        let sums = move |columns: &[ArrayRef]| match columns {
            [lists] => sums(lists, &result),
            _ => exec_err!("a sum is of one list"),
        };
        make_scalar_function(sums, Vec::new())(&args.args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}

fn sums(lists: &ArrayRef, result: &DataType) -> Result<ArrayRef> {
    let (values, ends) = match lists.data_type() {
        DataType::List(_) => {
            let lists = lists.as_list::<i32>();
            let ends = lists.offsets().iter().map(|end| end.as_usize());
            (lists.values(), ends.collect::<Vec<_>>())
        }
        DataType::LargeList(_) => {
            let lists = lists.as_list::<i64>();
            let ends = lists.offsets().iter().map(|end| end.as_usize());
            (lists.values(), ends.collect())
        }
        DataType::Null => return Ok(arrow::array::new_null_array(result, lists.len())),
        other => return exec_err!("a sum is of a list, not of {other}"),
    };
    let values = cast(values, result)?;
    let of = |ends: &[usize]| values.slice(ends[0], ends[1] - ends[0]);
    Ok(match result {
        DataType::Int64 => added::<Int64Type>(lists, &ends, of, result)?,
        DataType::UInt64 => added::<UInt64Type>(lists, &ends, of, result)?,
        DataType::Decimal128(..) => added::<Decimal128Type>(lists, &ends, of, result)?,
        DataType::Decimal256(..) => added::<Decimal256Type>(lists, &ends, of, result)?,
        _ => added::<Float64Type>(lists, &ends, of, result)?,
    })
}

/// The sum of each list; NULL for NULL, and where no element is there.
fn added<T: ArrowPrimitiveType>(
    lists: &ArrayRef,
    ends: &[usize],
    values: impl Fn(&[usize]) -> ArrayRef,
    result: &DataType,
) -> Result<ArrayRef>
where
    T::Native: ArrowNativeTypeOp,
{
    let sums = ends.windows(2).enumerate().map(|(row, ends)| {
        if lists.is_null(row) {
            return Ok(None);
        }
        Ok(sum_checked(values(ends).as_primitive::<T>())?)
    });
    let sums = sums.collect::<Result<PrimitiveArray<T>>>()?;
    Ok(Arc::new(sums.with_data_type(result.clone())))
}
