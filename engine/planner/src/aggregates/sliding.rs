//! Sums, means and variances of floats over frames that slide, and the means of temporal values.
//!
//! DataFusion's take what leaves a frame from the sum of what was in it: after a NaN or an infinity has left, the
//! sum is none for ever, what was small beside it is lost, and the variance of equal values may be negative. Here
//! the sums of the rows in the frame alone are added up, with two stacks of them for a queue, so that a row costs
//! few additions, however long the frame is (Tangwongsan and others, "General Incremental Sliding-Window
//! Aggregation", PVLDB 8(7), 2015).

use std::mem::{size_of, size_of_val};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, FieldRef, Float64Type};
use datafusion::common::{Result, ScalarValue, internal_err, not_impl_err, plan_err};
use datafusion::functions_aggregate::average::avg_udaf;
use datafusion::functions_aggregate::stddev::{stddev_pop_udaf, stddev_udaf};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::functions_aggregate::variance::{var_pop_udaf, var_samp_udaf};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::function::{
    AccumulatorArgs, AggregateFunctionSimplification, StateFieldsArgs,
};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, Expr, GroupsAccumulator, Operator,
    ReversedUDAF, SetMonotonicity, Signature, StatisticsArgs,
};

use super::coerced;
use super::temporal::{Mean, TEMPORAL, mean_of};

/// The functions, to take the places of DataFusion's.
pub fn functions() -> [Arc<AggregateUDF>; 6] {
    [
        (sum_udaf(), Meaning::Sum),
        (avg_udaf(), Meaning::Mean),
        (var_samp_udaf(), Meaning::Variance { of_sample: true }),
        (var_pop_udaf(), Meaning::Variance { of_sample: false }),
        (stddev_udaf(), Meaning::Deviation { of_sample: true }),
        (stddev_pop_udaf(), Meaning::Deviation { of_sample: false }),
    ]
    .map(|(inner, meaning)| {
        let signature = match meaning {
            Meaning::Sum | Meaning::Mean => Signature::user_defined(inner.signature().volatility),
            _ => inner.signature().clone(),
        };
        Arc::new(AggregateUDF::from(Sliding {
            inner,
            meaning,
            signature,
        }))
    })
}

/// What is said of the rows in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Meaning {
    Sum,
    Mean,
    Variance { of_sample: bool },
    Deviation { of_sample: bool },
}

/// DataFusion's function but for floats over frames that slide, and for means of temporal values.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Sliding {
    inner: Arc<AggregateUDF>,
    meaning: Meaning,
    signature: Signature,
}

impl Sliding {
    /// What the mean of such values is, if DataFusion has none.
    fn mean_of(&self, of: &DataType) -> Option<DataType> {
        mean_of(of).filter(|_| self.meaning == Meaning::Mean)
    }

    fn is_mean(&self, args: &AccumulatorArgs) -> bool {
        let first = args.expr_fields.first();
        first.is_some_and(|of| self.mean_of(of.data_type()).is_some())
    }
}

impl AggregateUDFImpl for Sliding {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types.first().and_then(|of| self.mean_of(of)) {
            Some(mean) => Ok(mean),
            None => self.inner.return_type(types),
        }
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let of_numbers = [Meaning::Sum, Meaning::Mean];
        if !of_numbers.contains(&self.meaning) {
            return self.inner.coerce_types(types);
        }
        // How many are TRUE, as `sum(a > 5)` is asked in DuckDB and SQLite.
        if self.meaning == Meaning::Sum
            && let [DataType::Boolean | DataType::Null] = types
        {
            return Ok(vec![DataType::Int64]);
        }
        let name = self.name();
        let [of] = types else {
            return plan_err!("{name} takes one argument, and was given {}", types.len());
        };
        if self.mean_of(of).is_some() {
            return Ok(vec![of.clone()]);
        }
        match coerced(of, &self.inner) {
            Some(types) => Ok(types),
            None if self.meaning == Meaning::Mean => {
                plan_err!("avg is of numbers, {TEMPORAL} and intervals, not of {of}")
            }
            None => plan_err!("sum is of numbers, not of {of}"),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match self.is_mean(&args) {
            true => Ok(Box::new(Mean::new(&args)?)),
            false => self.inner.accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let of = args.input_fields.first().map(|of| of.data_type());
        match of.and_then(|of| self.mean_of(of)) {
            Some(mean) => Ok(Mean::state_fields(args.name, &mean)),
            None => self.inner.state_fields(args),
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !self.is_mean(&args) && self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        self.inner.create_groups_accumulator(args)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if self.is_mean(&args) {
            return self.accumulator(args);
        }
        let of_floats = |field: &FieldRef| *field.data_type() == DataType::Float64;
        match args.expr_fields {
            [only] if of_floats(only) && !args.is_distinct => Ok(match self.meaning {
                Meaning::Sum | Meaning::Mean => Box::new(Frame::<Sum>::new(self.meaning)),
                _ => Box::new(Frame::<Moments>::new(self.meaning)),
            }),
            _ => self.inner.inner().create_sliding_accumulator(args),
        }
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.inner.order_sensitivity()
    }

    fn simplify(&self) -> Option<AggregateFunctionSimplification> {
        self.inner.simplify()
    }

    fn simplify_expr_op_literal(
        &self,
        call: &AggregateFunction,
        argument: &Expr,
        op: Operator,
        literal: &Expr,
        is_left: bool,
    ) -> Result<Option<Expr>> {
        let inner = self.inner.inner();
        inner.simplify_expr_op_literal(call, argument, op, literal, is_left)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn value_from_stats(&self, args: &StatisticsArgs) -> Option<ScalarValue> {
        self.inner.value_from_stats(args)
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        self.inner.default_value(data_type)
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.inner.inner().set_monotonicity(data_type)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}

/// What is kept of some rows, one behind the other.
trait Part: Copy + std::fmt::Debug + Send + Sync {
    fn of(value: f64) -> Self;
    /// Of these rows and others.
    fn and(self, others: Self) -> Self;
    fn said(self, meaning: Meaning) -> Option<f64>;
}

#[derive(Debug, Clone, Copy)]
struct Sum {
    rows: u64,
    sum: f64,
}

impl Part for Sum {
    fn of(value: f64) -> Self {
        Self {
            rows: 1,
            sum: value,
        }
    }

    fn and(self, others: Self) -> Self {
        Self {
            rows: self.rows + others.rows,
            sum: self.sum + others.sum,
        }
    }

    fn said(self, meaning: Meaning) -> Option<f64> {
        Some(match meaning {
            Meaning::Sum => self.sum,
            _ => self.sum / self.rows as f64,
        })
    }
}

/// Rows, their mean, and the sum of the squares of how far they are from it: of two parts together as Chan,
/// Golub and LeVeque have it ("Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979).
#[derive(Debug, Clone, Copy)]
struct Moments {
    rows: f64,
    mean: f64,
    squares: f64,
}

impl Part for Moments {
    fn of(value: f64) -> Self {
        Self {
            rows: 1.0,
            mean: value,
            squares: match value.is_finite() {
                true => 0.0,
                false => f64::NAN,
            },
        }
    }

    fn and(self, others: Self) -> Self {
        let rows = self.rows + others.rows;
        let apart = others.mean - self.mean;
        Self {
            rows,
            mean: self.mean + apart * others.rows / rows,
            squares: self.squares + others.squares + apart * apart * self.rows * others.rows / rows,
        }
    }

    fn said(self, meaning: Meaning) -> Option<f64> {
        let (Meaning::Variance { of_sample } | Meaning::Deviation { of_sample }) = meaning else {
            return None;
        };
        let rows = match of_sample {
            true => self.rows - 1.0,
            false => self.rows,
        };
        let variance = (rows > 0.0).then(|| self.squares / rows)?;
        Some(match meaning {
            Meaning::Deviation { .. } => variance.sqrt(),
            _ => variance,
        })
    }
}

/// The rows in a frame: each step of `front` is all that is below it, the oldest row on top.
#[derive(Debug)]
struct Frame<P> {
    meaning: Meaning,
    front: Vec<P>,
    back: Vec<P>,
    of_back: Option<P>,
}

impl<P: Part> Frame<P> {
    fn new(meaning: Meaning) -> Self {
        Self {
            meaning,
            front: Vec::new(),
            back: Vec::new(),
            of_back: None,
        }
    }

    fn push(&mut self, value: f64) {
        let part = P::of(value);
        self.back.push(part);
        self.of_back = Some(self.of_back.map_or(part, |before| before.and(part)));
    }

    /// Takes the oldest row out.
    fn pop(&mut self) -> Result<()> {
        if self.front.is_empty() {
            for part in self.back.drain(..).rev() {
                let behind = self.front.last();
                self.front
                    .push(behind.map_or(part, |behind| part.and(*behind)));
            }
            self.of_back = None;
        }
        match self.front.pop() {
            Some(_) => Ok(()),
            None => internal_err!("more rows leave a frame than are in it"),
        }
    }
}

impl<P: Part + 'static> Accumulator for Frame<P> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = values[0].as_primitive::<Float64Type>();
        values.iter().flatten().for_each(|value| self.push(value));
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let leaving = values[0].len() - values[0].null_count();
        (0..leaving).try_for_each(|_| self.pop())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let parts = self.front.last().copied().into_iter().chain(self.of_back);
        let said = parts.reduce(P::and).and_then(|all| all.said(self.meaning));
        // One NaN, whatever made it.
        let said = said.map(|value| if value.is_nan() { f64::NAN } else { value });
        Ok(ScalarValue::Float64(said))
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        not_impl_err!("a part of a frame that slides")
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        not_impl_err!("parts of a frame that slides")
    }

    fn size(&self) -> usize {
        size_of_val(self) + (self.front.capacity() + self.back.capacity()) * size_of::<P>()
    }
}
