//! Aggregates of sums of powers: `skewness`, `kurtosis`; and `product`.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array};
use arrow::compute::{cast, sum};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type};
use datafusion::common::{Result, ScalarValue, internal_err, not_impl_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, DocSection, Documentation, Signature, Volatility,
};

/// The functions.
pub(super) fn functions() -> impl Iterator<Item = Arc<AggregateUDF>> {
    let all = [
        Kind::Skewness,
        Kind::Kurtosis,
        Kind::KurtosisPop,
        Kind::Product,
    ];
    all.into_iter()
        .map(|kind| Arc::new(AggregateUDF::from(Moments::new(kind))))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Skewness,
    Kurtosis,
    KurtosisPop,
    Product,
}

/// One of them.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Moments {
    kind: Kind,
    signature: Signature,
    documentation: Documentation,
}

impl Moments {
    fn new(kind: Kind) -> Self {
        let says = match kind {
            Kind::Skewness => "The adjusted skewness of three numbers or more.",
            Kind::Kurtosis => {
                "The excess kurtosis of four numbers or more, corrected for the sample's size."
            }
            Kind::KurtosisPop => "The excess kurtosis of numbers.",
            Kind::Product => "The product of numbers, as a float.",
        };
        let example = format!("{}(expression)", kind.name());
        Self {
            kind,
            signature: Signature::exact(vec![DataType::Float64], Volatility::Immutable),
            documentation: Documentation::builder(DocSection::default(), says, example).build(),
        }
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Skewness => "skewness",
            Self::Kurtosis => "kurtosis",
            Self::KurtosisPop => "kurtosis_pop",
            Self::Product => "product",
        }
    }
}

impl AggregateUDFImpl for Moments {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float64)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let parts = ["count", "product", "sum1", "sum2", "sum3", "sum4"];
        let fields = parts.map(|part| {
            let name = format_state_name(args.name, part);
            Arc::new(Field::new(name, DataType::Float64, true))
        });
        Ok(fields.to_vec())
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if args.is_distinct {
            return not_impl_err!(
                "{}(DISTINCT x); take the distinct values in a query in FROM",
                self.name()
            );
        }
        Ok(Box::new(Sums::new(self.kind)))
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

/// What is known of the numbers seen.
#[derive(Debug)]
struct Sums {
    kind: Kind,
    count: f64,
    product: f64,
    /// Of the numbers, and of their second to fourth powers.
    powers: [f64; 4],
}

impl Sums {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            count: 0.0,
            product: 1.0,
            powers: [0.0; 4],
        }
    }

    fn result(&self) -> Option<f64> {
        let n = self.count;
        if n == 0.0 {
            return None;
        }
        let [s1, s2, s3, s4] = self.powers;
        let mean = s1 / n;
        // Central moments by the powers' sums.
        let m2 = s2 / n - mean * mean;
        let m3 = s3 / n - 3.0 * mean * s2 / n + 2.0 * mean.powi(3);
        let m4 = s4 / n - 4.0 * mean * s3 / n + 6.0 * mean * mean * s2 / n - 3.0 * mean.powi(4);
        match self.kind {
            Kind::Product => Some(self.product),
            Kind::Skewness if n > 2.0 && m2 > 0.0 => {
                Some((n * (n - 1.0)).sqrt() / (n - 2.0) * m3 / m2.powf(1.5))
            }
            Kind::Kurtosis if n > 3.0 && m2 > 0.0 => {
                let excess = (n + 1.0) * m4 / (m2 * m2) - 3.0 * (n - 1.0);
                Some((n - 1.0) * excess / ((n - 2.0) * (n - 3.0)))
            }
            Kind::KurtosisPop if n > 1.0 && m2 > 0.0 => Some(m4 / (m2 * m2) - 3.0),
            _ => None,
        }
    }
}

impl Accumulator for Sums {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let [values] = values else {
            return internal_err!("{} of one column", self.kind.name());
        };
        let values = cast(values, &DataType::Float64)?;
        for value in values.as_primitive::<Float64Type>().iter().flatten() {
            self.count += 1.0;
            self.product *= value;
            let mut power = 1.0;
            for sum in &mut self.powers {
                power *= value;
                *sum += power;
            }
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let states: Vec<&Float64Array> = states.iter().map(|s| s.as_primitive()).collect();
        let [count, product, powers @ ..] = states.as_slice() else {
            return internal_err!("the state of {}", self.kind.name());
        };
        self.count += sum(count).unwrap_or(0.0);
        self.product *= product.iter().flatten().product::<f64>();
        for (own, others) in self.powers.iter_mut().zip(powers) {
            *own += sum(others).unwrap_or(0.0);
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let parts = [self.count, self.product].into_iter().chain(self.powers);
        Ok(parts.map(ScalarValue::from).collect())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(ScalarValue::Float64(self.result()))
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}
