//! Aggregates that see all values of a group together: `mode`, quantiles, `mad`, `entropy` and `histogram`, and the
//! `median` of temporal values. The values are gathered by `array_agg`.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, MapArray, StructArray, UInt64Array, new_empty_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{SortOptions, cast, partition, sort, take};
use arrow::datatypes::{
    DataType, Decimal128Type, Field, FieldRef, Fields, Float64Type, Int64Type, TimeUnit,
};
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_err, plan_err};
use datafusion::functions_aggregate::array_agg::array_agg_udaf;
use datafusion::functions_aggregate::median::median_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, DocSection, Documentation, EmitTo,
    GroupsAccumulator, Signature, Volatility,
};
use datafusion::physical_expr::expressions::Literal;

use super::coerced;
use super::temporal::{TEMPORAL, between, numbers_of, scalar_of};

/// The functions.
pub(super) fn functions() -> impl Iterator<Item = Arc<AggregateUDF>> {
    use Kind::*;
    // Not aliases: DataFusion calls a column of one without its WITHIN GROUP, so two would have one name.
    let all = [
        ("mode", Mode),
        ("quantile_disc", QuantileDisc),
        ("percentile_disc", QuantileDisc),
        // DataFusion's cuts the place between two values to a millionth, and is of numbers alone.
        ("percentile_cont", QuantileCont),
        // DataFusion's has it for an alias, and would be found by it.
        ("quantile_cont", QuantileCont),
        ("mad", Mad),
        ("entropy", Entropy),
        ("histogram", Histogram),
    ];
    let median = AggregateUDF::from(Median {
        of_numbers: median_udaf(),
        of_temporal: OfValues::new("median", QuantileCont),
        signature: Signature::user_defined(Volatility::Immutable),
    });
    all.into_iter()
        .map(|(name, kind)| AggregateUDF::from(OfValues::new(name, kind)))
        .chain([median])
        .map(Arc::new)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Mode,
    QuantileDisc,
    QuantileCont,
    Mad,
    Entropy,
    Histogram,
}

/// One of them.
#[derive(Debug, PartialEq, Eq, Hash)]
struct OfValues {
    name: &'static str,
    kind: Kind,
    signature: Signature,
    documentation: Documentation,
}

impl OfValues {
    fn new(name: &'static str, kind: Kind) -> Self {
        let (takes, says) = match kind {
            Kind::Mode => (
                "(expression)",
                "The most frequent value; of several the smallest.",
            ),
            Kind::QuantileDisc => (
                "(expression, quantile)",
                "The value below or at which that part of the values is, a number from 0 to 1: a value that is there, where `percentile_cont` interpolates. Also `percentile_disc(quantile) WITHIN GROUP (ORDER BY expression)`.",
            ),
            Kind::QuantileCont => (
                "(quantile) WITHIN GROUP (ORDER BY expression)",
                "The value below which that part of the values is, a number from 0 to 1, interpolated between the two that are next to it: of numbers, dates, times and timestamps. Also `quantile_cont(expression, quantile)`.",
            ),
            Kind::Mad => (
                "(expression)",
                "The median of the distances of numbers from their median.",
            ),
            Kind::Entropy => (
                "(expression)",
                "The entropy of the values' frequencies, in bits.",
            ),
            Kind::Histogram => (
                "(expression)",
                "A map from each value to how often it is there.",
            ),
        };
        let signature = match kind {
            Kind::Mad => Signature::exact(vec![DataType::Float64], Volatility::Immutable),
            _ => Signature::user_defined(Volatility::Immutable),
        };
        let example = format!("{name}{takes}");
        Self {
            name,
            kind,
            signature,
            documentation: Documentation::builder(DocSection::default(), says, example).build(),
        }
    }

    fn finish(&self, args: &AccumulatorArgs) -> Result<Finish> {
        let mut is_descending = args
            .order_bys
            .first()
            .is_some_and(|by| by.options.descending);
        let quantile = match (self.kind, args.exprs) {
            (Kind::QuantileCont, [_]) => 0.5,
            (Kind::QuantileDisc | Kind::QuantileCont, [_, quantile]) => {
                let quantile = quantile.downcast_ref::<Literal>().map(Literal::value);
                match quantile {
                    // Below zero, or of its zero, it counts from the greatest value.
                    Some(ScalarValue::Float64(Some(at))) if (0.0..=1.0).contains(&at.abs()) => {
                        is_descending ^= at.is_sign_negative();
                        at.abs()
                    }
                    _ => return plan_err!("{} takes a number from 0 to 1", self.name()),
                }
            }
            _ => 0.0,
        };
        Ok(Finish {
            kind: self.kind,
            quantile,
            is_descending,
            result: args.return_type().clone(),
        })
    }
}

/// What `array_agg` is asked for instead: the first argument's values but NULL.
fn gathered<'a>(args: &AccumulatorArgs<'a>) -> AccumulatorArgs<'a> {
    let of = args.expr_fields[0].data_type().clone();
    AccumulatorArgs {
        return_field: Arc::new(list_of(args.name, of)),
        schema: args.schema,
        ignore_nulls: true,
        order_bys: &[],
        is_reversed: false,
        name: args.name,
        is_distinct: args.is_distinct,
        exprs: &args.exprs[..1],
        expr_fields: &args.expr_fields[..1],
    }
}

fn list_of(name: &str, of: DataType) -> Field {
    Field::new_list(name, Field::new_list_field(of, true), true)
}

impl AggregateUDFImpl for OfValues {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match (self.kind, types) {
            (Kind::QuantileDisc, [of, quantile]) if quantile.is_numeric() => {
                Ok(vec![of.clone(), DataType::Float64])
            }
            (Kind::QuantileCont, [of, quantile]) if quantile.is_numeric() => {
                let of = match of {
                    DataType::Dictionary(_, values) => values,
                    of => of,
                };
                let number = match of {
                    DataType::Decimal128(..) | DataType::Float16 | DataType::Float32 => {
                        Some(of.clone())
                    }
                    of if of.is_numeric() || of.is_null() => Some(DataType::Float64),
                    _ => None,
                };
                match between(of).or(number) {
                    Some(of) => Ok(vec![of, DataType::Float64]),
                    None => plan_err!("{} is of {TEMPORAL} and numbers, not of {of}", self.name),
                }
            }
            (Kind::QuantileDisc | Kind::QuantileCont, _) | (_, [] | [_, _, ..]) => {
                plan_err!("write {}", self.documentation.syntax_example)
            }
            (_, [of]) => Ok(vec![of.clone()]),
        }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        let Some(of) = types.first() else {
            return internal_err!("{} of nothing", self.name());
        };
        Ok(match self.kind {
            Kind::Mode | Kind::QuantileDisc | Kind::QuantileCont => of.clone(),
            Kind::Mad | Kind::Entropy => DataType::Float64,
            Kind::Histogram => {
                let entries = DataType::Struct(entries(of));
                DataType::Map(Arc::new(Field::new("entries", entries, false)), false)
            }
        })
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let of = args.input_fields[0].data_type().clone();
        array_agg_udaf().state_fields(StateFieldsArgs {
            name: args.name,
            input_fields: &args.input_fields[..1],
            return_field: Arc::new(list_of(args.name, of)),
            ordering_fields: &[],
            is_distinct: args.is_distinct,
        })
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let finish = self.finish(&args)?;
        let values = array_agg_udaf().accumulator(gathered(&args))?;
        Ok(Box::new(Values { values, finish }))
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        array_agg_udaf().groups_accumulator_supported(gathered(&args))
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        let finish = self.finish(&args)?;
        let values = array_agg_udaf().create_groups_accumulator(gathered(&args))?;
        Ok(Box::new(Values { values, finish }))
    }

    fn supports_within_group_clause(&self) -> bool {
        matches!(self.kind, Kind::QuantileDisc | Kind::QuantileCont)
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

/// The fields of a histogram's entries.
fn entries(of: &DataType) -> Fields {
    Fields::from(vec![
        Field::new("key", of.clone(), false),
        // As those of all maps are.
        Field::new("value", DataType::UInt64, true),
    ])
}

/// What becomes of a group's values.
#[derive(Debug)]
struct Finish {
    kind: Kind,
    quantile: f64,
    is_descending: bool,
    result: DataType,
}

impl Finish {
    /// The results of groups, by the lists of their values.
    fn all(&self, lists: &ArrayRef) -> Result<ArrayRef> {
        let none = match self.kind {
            Kind::Entropy => ScalarValue::from(0.0),
            _ => ScalarValue::try_from(&self.result)?,
        };
        let lists = lists.as_list::<i32>();
        let results = lists.iter().map(|values| match values {
            Some(values) if !values.is_empty() => self.one(&values),
            _ => Ok(none.clone()),
        });
        let results = results.collect::<Result<Vec<_>>>()?;
        match results.is_empty() {
            true => Ok(new_empty_array(&self.result)),
            false => ScalarValue::iter_to_array(results),
        }
    }

    /// The value at the quantile's place among those of a group, of which none is NULL.
    fn interpolated(&self, values: &ArrayRef) -> Result<ScalarValue> {
        let place = self.quantile * (values.len() - 1) as f64;
        let in_order = |order: Ordering| match self.is_descending {
            true => order.reverse(),
            false => order,
        };
        if self.result.is_floating() {
            let numbers = cast(values, &DataType::Float64)?;
            // Of any sign NaN is the greatest.
            let numbers = numbers.as_primitive::<Float64Type>().values().iter();
            let numbers = numbers.map(|x| if x.is_nan() { f64::NAN } else { *x });
            let order = |a: &f64, b: &f64| in_order(a.total_cmp(b));
            let between = |low: f64, high: f64, part: f64| low * (1.0 - part) + high * part;
            let at = at_place(numbers.collect(), place, order, between);
            return ScalarValue::from(at).cast_to(&self.result);
        }
        // To the microsecond: a float has no more digits for what is between values that are years apart.
        let step = match self.result {
            DataType::Timestamp(TimeUnit::Nanosecond, _)
            | DataType::Time64(TimeUnit::Nanosecond) => 1000,
            _ => 1,
        };
        let between = |low: i128, high: i128, part: f64| match part {
            0.5 => (low + high).div_euclid(2),
            _ => {
                low + ((high - low) as f64 * part / f64::from(step)).round() as i128
                    * i128::from(step)
            }
        };
        let order = |a: &i128, b: &i128| in_order(a.cmp(b));
        if let DataType::Decimal128(precision, scale) = self.result {
            let numbers = values.as_primitive::<Decimal128Type>().values().to_vec();
            let at = at_place(numbers, place, order, between);
            return Ok(ScalarValue::Decimal128(Some(at), precision, scale));
        }
        let numbers = numbers_of(values)?;
        let numbers = numbers.as_primitive::<Int64Type>().values().iter();
        let at = at_place(
            numbers.map(|x| i128::from(*x)).collect(),
            place,
            order,
            between,
        );
        scalar_of(at, &self.result)
    }

    /// The result of a group with values, of which none is NULL.
    fn one(&self, values: &ArrayRef) -> Result<ScalarValue> {
        let count = values.len();
        if self.kind == Kind::QuantileCont {
            return self.interpolated(values);
        }
        let options = SortOptions::new(self.is_descending, false);
        let values = sort(values, Some(options))?;
        let runs = || Ok::<_, DataFusionError>(partition(&[Arc::clone(&values)])?.ranges());
        match self.kind {
            Kind::Mode => {
                let longest = runs()?.into_iter().rev().max_by_key(Range::len);
                let at = longest.map_or(0, |run| run.start);
                ScalarValue::try_from_array(&values, at)
            }
            Kind::QuantileDisc => {
                let at = (self.quantile * count as f64).ceil() as usize;
                ScalarValue::try_from_array(&values, at.saturating_sub(1).min(count - 1))
            }
            Kind::QuantileCont => internal_err!("a quantile between values needs no order"),
            Kind::Mad => {
                let numbers = values.as_primitive::<Float64Type>().values();
                let middle = median(numbers);
                let mut distances: Vec<_> = numbers.iter().map(|x| (x - middle).abs()).collect();
                distances.sort_unstable_by(f64::total_cmp);
                Ok(ScalarValue::from(median(&distances)))
            }
            Kind::Entropy => {
                let shares = runs()?
                    .into_iter()
                    .map(|run| run.len() as f64 / count as f64);
                // Not the negative of a sum, which would be -0 for one run.
                let bits: f64 = shares.map(|share| share * share.recip().log2()).sum();
                Ok(ScalarValue::from(bits))
            }
            Kind::Histogram => {
                let runs = runs()?;
                let starts = runs.iter().map(|run| run.start as u64);
                let keys = take(&values, &UInt64Array::from_iter_values(starts), None)?;
                let counts = runs.iter().map(|run| run.len() as u64);
                let counts: ArrayRef = Arc::new(UInt64Array::from_iter_values(counts));
                let fields = entries(values.data_type());
                let entries = StructArray::try_new(fields, vec![keys, counts], None)?;
                let DataType::Map(field, sorted) = &self.result else {
                    return internal_err!("a histogram is a map");
                };
                let offsets = OffsetBuffer::from_lengths([entries.len()]);
                let map = MapArray::try_new(Arc::clone(field), offsets, entries, None, *sorted)?;
                Ok(ScalarValue::Map(Arc::new(map)))
            }
        }
    }
}

/// The value at a place, which may be between two, among values that need not be in order.
fn at_place<T: Copy>(
    mut values: Vec<T>,
    place: f64,
    order: impl Fn(&T, &T) -> Ordering,
    between: impl Fn(T, T, f64) -> T,
) -> T {
    let below = (place.floor() as usize).min(values.len() - 1);
    let (_, low, above) = values.select_nth_unstable_by(below, &order);
    let high = above.iter().copied().min_by(&order);
    match (high, place.fract()) {
        (Some(high), part) if part > 0.0 => between(*low, high, part),
        _ => *low,
    }
}

/// DataFusion's `median`, and that of temporal values.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Median {
    of_numbers: Arc<AggregateUDF>,
    of_temporal: OfValues,
    signature: Signature,
}

impl Median {
    /// The function of values of that type.
    fn of(&self, of: Option<&DataType>) -> &dyn AggregateUDFImpl {
        match of.and_then(between) {
            Some(_) => &self.of_temporal,
            None => self.of_numbers.inner().as_ref(),
        }
    }

    fn of_args(&self, args: &AccumulatorArgs) -> &dyn AggregateUDFImpl {
        self.of(args.expr_fields.first().map(|of| of.data_type()))
    }
}

impl AggregateUDFImpl for Median {
    fn name(&self) -> &str {
        self.of_numbers.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [of] = types else {
            return plan_err!("median takes one argument, and was given {}", types.len());
        };
        if let Some(between) = between(of) {
            return Ok(vec![between]);
        }
        match coerced(of, &self.of_numbers) {
            Some(types) => Ok(types),
            None => plan_err!("median is of {TEMPORAL} and numbers, not of {of}"),
        }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.of(types.first()).return_type(types)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let of = args.input_fields.first().map(|of| of.data_type());
        self.of(of).state_fields(args)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.of_args(&args).accumulator(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.of_args(&args).groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        self.of_args(&args).create_groups_accumulator(args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.of_numbers.documentation()
    }
}

/// The median of numbers in their order, of which there is one at least.
fn median(numbers: &[f64]) -> f64 {
    let middle = numbers.len() / 2;
    match numbers.len() % 2 {
        1 => numbers[middle],
        _ => (numbers[middle - 1] + numbers[middle]) / 2.0,
    }
}

/// An accumulator of `array_agg`, and what becomes of its lists.
#[derive(Debug)]
struct Values<A: ?Sized> {
    finish: Finish,
    values: Box<A>,
}

impl Accumulator for Values<dyn Accumulator> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values.update_batch(&values[..1])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.values.merge_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.values.state()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let list = self.values.evaluate()?.to_array()?;
        ScalarValue::try_from_array(&self.finish.all(&list)?, 0)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values.retract_batch(&values[..1])
    }

    fn supports_retract_batch(&self) -> bool {
        self.values.supports_retract_batch()
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.values.size()
    }
}

impl GroupsAccumulator for Values<dyn GroupsAccumulator> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total_groups: usize,
    ) -> Result<()> {
        let values = &values[..1];
        self.values
            .update_batch(values, groups, filter, total_groups)
    }

    fn merge_batch(
        &mut self,
        states: &[ArrayRef],
        groups: &[usize],
        total_groups: usize,
    ) -> Result<()> {
        self.values.merge_batch(states, groups, total_groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let lists = self.values.evaluate(emit_to)?;
        self.finish.all(&lists)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        self.values.state(emit_to)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        self.values.convert_to_state(&values[..1], filter)
    }

    fn size(&self) -> usize {
        self.values.size()
    }
}
