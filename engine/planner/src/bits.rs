//! The bits of numbers and texts, and their bytes: `bit_count`, `bin` and `octet_length`.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, Int8Array, StringArray,
};
use arrow::compute::cast;
use arrow::compute::kernels::length::length;
use arrow::datatypes::{
    DataType, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::functions::utils::make_scalar_function;
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

/// The functions.
pub fn functions() -> Vec<Arc<ScalarUDF>> {
    let count = Bits::new(
        "bit_count",
        &[],
        "how many bits of a whole number are 1, of its type's, so that a negative one has many",
        Computed::Count,
    );
    let digits = Bits::new(
        "bin",
        &["to_binary"],
        "a whole number in binary digits, 64 for negative ones, or the bits of a text",
        Computed::Digits,
    );
    let bytes = Bits::new(
        "octet_length",
        &[],
        "how many bytes a text or a binary value has",
        Computed::Bytes,
    );
    [count, digits, bytes]
        .map(|f| Arc::new(ScalarUDF::from(f)))
        .to_vec()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Computed {
    Count,
    Digits,
    Bytes,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Bits {
    name: &'static str,
    aliases: Vec<String>,
    computed: Computed,
    signature: Signature,
    documentation: Documentation,
}

impl Bits {
    fn new(name: &'static str, aliases: &[&str], says: &'static str, computed: Computed) -> Self {
        let call = format!("{name}(x)");
        Self {
            name,
            aliases: aliases.iter().map(ToString::to_string).collect(),
            computed,
            signature: Signature::user_defined(Volatility::Immutable),
            documentation: Documentation::builder(DocSection::default(), says, call).build(),
        }
    }
}

impl ScalarUDFImpl for Bits {
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
        let [given] = types else {
            return plan_err!("{} takes one value, not {}", self.name, types.len());
        };
        Ok(vec![match (self.computed, given) {
            (Computed::Count, given) if given.is_integer() => given.clone(),
            (Computed::Count, DataType::Null) => DataType::Int32,
            (Computed::Digits, given) if given.is_unsigned_integer() => DataType::UInt64,
            (Computed::Digits, given) if given.is_integer() => DataType::Int64,
            (Computed::Digits, given) if given.is_string() || given.is_null() => DataType::Utf8View,
            (Computed::Bytes, given) if given.is_string() || given.is_binary() => given.clone(),
            (Computed::Bytes, DataType::Null) => DataType::Utf8View,
            (Computed::Bytes, DataType::Dictionary(_, values))
                if values.is_string() || values.is_binary() =>
            {
                values.as_ref().clone()
            }
            (Computed::Bytes, _) => {
                return plan_err!("{} takes a text or a binary value, not {given}", self.name);
            }
            (Computed::Count, _) => {
                return plan_err!("bit_count takes a whole number, not {given}");
            }
            (Computed::Digits, _) => {
                return plan_err!("{} takes a whole number or a text, not {given}", self.name);
            }
        }])
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(match self.computed {
            Computed::Count => DataType::Int8,
            Computed::Digits => DataType::Utf8,
            Computed::Bytes => DataType::Int64,
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let computed = self.computed;
        let of = move |columns: &[ArrayRef]| match (computed, columns) {
            (Computed::Count, [numbers]) => count(numbers),
            (Computed::Digits, [values]) => digits(values),
            (Computed::Bytes, [values]) => Ok(cast(&length(values)?, &DataType::Int64)?),
            _ => exec_err!("bits are of one value"),
        };
        make_scalar_function(of, Vec::new())(&args.args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

fn count(numbers: &ArrayRef) -> Result<ArrayRef> {
    fn of<T: ArrowPrimitiveType>(numbers: &ArrayRef, ones: fn(T::Native) -> u32) -> ArrayRef
    where
        T::Native: ArrowNativeTypeOp,
    {
        let numbers = numbers.as_primitive::<T>().iter();
        let counts = numbers.map(|number| number.map(|number| ones(number) as i8));
        Arc::new(counts.collect::<Int8Array>())
    }
    Ok(match numbers.data_type() {
        DataType::Int8 => of::<Int8Type>(numbers, i8::count_ones),
        DataType::Int16 => of::<Int16Type>(numbers, i16::count_ones),
        DataType::Int32 => of::<Int32Type>(numbers, i32::count_ones),
        DataType::Int64 => of::<Int64Type>(numbers, i64::count_ones),
        DataType::UInt8 => of::<UInt8Type>(numbers, u8::count_ones),
        DataType::UInt16 => of::<UInt16Type>(numbers, u16::count_ones),
        DataType::UInt32 => of::<UInt32Type>(numbers, u32::count_ones),
        DataType::UInt64 => of::<UInt64Type>(numbers, u64::count_ones),
        other => return exec_err!("bit_count takes a whole number, not {other}"),
    })
}

fn digits(values: &ArrayRef) -> Result<ArrayRef> {
    let digits: StringArray = match values.data_type() {
        DataType::UInt64 => {
            let numbers = values.as_primitive::<UInt64Type>().iter();
            numbers.map(|n| n.map(|n| format!("{n:b}"))).collect()
        }
        DataType::Int64 => {
            let numbers = values.as_primitive::<Int64Type>().iter();
            numbers.map(|n| n.map(|n| format!("{n:b}"))).collect()
        }
        _ => {
            let texts = cast(values, &DataType::Utf8View)?;
            let texts = texts.as_string_view().iter();
            texts.map(|text| text.map(of_bytes)).collect()
        }
    };
    Ok(Arc::new(digits))
}

fn of_bytes(text: &str) -> String {
    let mut bits = String::with_capacity(text.len() * 8);
    for byte in text.bytes() {
        // A String takes all that is written to it.
        let _ = write!(bits, "{byte:08b}");
    }
    bits
}
