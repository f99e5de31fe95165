//! `bar(x, min, max, width)`: a number as a bar of blocks.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringBuilder};
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::functions::utils::make_scalar_function;
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, ScalarFunctionArgs, ScalarUDFImpl, Signature,
    Volatility,
};

/// How wide a bar is where nothing is said.
const WIDTH: f64 = 80.0;
const WIDEST: f64 = 1000.0;
/// Eighths of a block.
const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Bar {
    signature: Signature,
    documentation: Documentation,
}

impl Bar {
    pub fn new() -> Self {
        let says = "a bar of blocks that is as long as the number lies between two others, among as many \
                    characters as the width says (80)";
        let call = "bar(x, min, max), bar(x, min, max, width)";
        Self {
            signature: Signature::user_defined(Volatility::Immutable),
            documentation: Documentation::builder(DocSection::default(), says, call).build(),
        }
    }
}

impl ScalarUDFImpl for Bar {
    fn name(&self) -> &str {
        "bar"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let are_numbers = types.iter().all(|of| of.is_numeric() || of.is_null());
        match (types.len(), are_numbers) {
            (3 | 4, true) => Ok(vec![DataType::Float64; types.len()]),
            _ => plan_err!("bar takes numbers: bar(x, min, max) or bar(x, min, max, width)"),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let drawn = |columns: &[ArrayRef]| {
            let mut bars = StringBuilder::new();
            let rows = columns.first().map_or(0, |first| first.len());
            let columns = columns
                .iter()
                .map(|column| column.as_primitive::<Float64Type>());
            let columns: Vec<_> = columns.collect();
            for row in 0..rows {
                if columns.iter().any(|column| column.is_null(row)) {
                    bars.append_null();
                    continue;
                }
                let value = |place: usize| columns.get(place).map(|column| column.value(row));
                let (x, min) = (value(0).unwrap_or(f64::NAN), value(1).unwrap_or(f64::NAN));
                let (max, width) = (value(2).unwrap_or(f64::NAN), value(3).unwrap_or(WIDTH));
                if !(1.0..=WIDEST).contains(&width) {
                    return exec_err!("bar: a width is from 1 to {WIDEST}, not {width}");
                }
                bars.append_value(bar(x, min, max, width));
            }
            Ok(Arc::new(bars.finish()) as ArrayRef)
        };
        make_scalar_function(drawn, vec![])(&args.args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

fn bar(x: f64, min: f64, max: f64, width: f64) -> String {
    let long = match x {
        _ if x.is_nan() || min.is_nan() || max.is_nan() || x <= min => 0.0,
        _ if x >= max => width,
        _ => width * ((x - min) / (max - min)),
    };
    // What lies between infinities is nowhere.
    let eighths = (long * 8.0) as usize;
    let mut bar = "█".repeat(eighths / 8);
    bar.push_str(PARTS[eighths % 8]);
    let used = eighths / 8 + usize::from(!eighths.is_multiple_of(8));
    let width = width.ceil() as usize;
    bar.push_str(&" ".repeat(width.saturating_sub(used)));
    bar
}
