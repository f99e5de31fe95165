//! `min` and `max` by group for floats. DataFusion's lose infinities, and take or leave NaN by the
//! order of rows; these go by the total order of floats, as the store and every other form of the
//! two functions do.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray};
use arrow::datatypes::{
    DataType, Field, FieldRef, Float16Type, Float32Type, Float64Type, Int16Type, Int32Type,
    Int64Type,
};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, EmitTo, GroupsAccumulator,
    ReversedUDAF, SetMonotonicity, Signature, StatisticsArgs,
};

/// The two functions, to take the places of DataFusion's.
pub fn functions() -> [Arc<AggregateUDF>; 2] {
    [
        AggregateUDF::from(Min::new()),
        AggregateUDF::from(Max::new()),
    ]
    .map(|inner| Arc::new(AggregateUDF::from(MinMax { inner })))
}

/// DataFusion's function but for floats by group.
#[derive(Debug, PartialEq, Eq, Hash)]
struct MinMax {
    inner: AggregateUDF,
}

impl AggregateUDFImpl for MinMax {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.inner.accumulator(args)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.inner.inner().create_sliding_accumulator(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        let keys = match args.return_field.data_type() {
            DataType::Float16 => DataType::Int16,
            DataType::Float32 => DataType::Int32,
            DataType::Float64 => DataType::Int64,
            _ => return self.inner.create_groups_accumulator(args),
        };
        let floats = args.return_field.data_type().clone();
        let field = Field::new(args.name, keys, true);
        let keys = self.inner.create_groups_accumulator(AccumulatorArgs {
            return_field: FieldRef::new(field),
            ..args
        })?;
        Ok(Box::new(ByTotalOrder { keys, floats }))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.inner.order_sensitivity()
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn is_descending(&self) -> Option<bool> {
        self.inner.is_descending()
    }

    fn value_from_stats(&self, args: &StatisticsArgs) -> Option<ScalarValue> {
        self.inner.value_from_stats(args)
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.inner.inner().set_monotonicity(data_type)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}

/// The accumulator of integers that order as the floats do.
struct ByTotalOrder {
    keys: Box<dyn GroupsAccumulator>,
    floats: DataType,
}

impl GroupsAccumulator for ByTotalOrder {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total_groups: usize,
    ) -> Result<()> {
        let keys = [to_keys(&values[0])];
        self.keys.update_batch(&keys, groups, filter, total_groups)
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        total_groups: usize,
    ) -> Result<()> {
        let keys = [to_keys(&values[0])];
        self.keys.merge_batch(&keys, groups, total_groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        Ok(to_floats(&self.keys.evaluate(emit_to)?, &self.floats))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.evaluate(emit_to)?])
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let keys = [to_keys(&values[0])];
        let states = self.keys.convert_to_state(&keys, filter)?;
        Ok(states
            .iter()
            .map(|keys| to_floats(keys, &self.floats))
            .collect())
    }

    fn size(&self) -> usize {
        self.keys.size()
    }
}

/// Turns the bits of a negative float round, so that they order as the float does; and back.
macro_rules! turn {
    ($bits:expr, $native:ty) => {{
        let bits = $bits as $native;
        bits ^ ((bits >> (<$native>::BITS - 1)) & <$native>::MAX)
    }};
}

fn to_keys(floats: &ArrayRef) -> ArrayRef {
    match floats.data_type() {
        DataType::Float16 => map::<Float16Type, Int16Type>(floats, |v| turn!(v.to_bits(), i16)),
        DataType::Float32 => map::<Float32Type, Int32Type>(floats, |v| turn!(v.to_bits(), i32)),
        _ => map::<Float64Type, Int64Type>(floats, |v| turn!(v.to_bits(), i64)),
    }
}

fn to_floats(keys: &ArrayRef, floats: &DataType) -> ArrayRef {
    match floats {
        DataType::Float16 => map::<Int16Type, Float16Type>(keys, |v| {
            <Float16Type as ArrowPrimitiveType>::Native::from_bits(turn!(v, i16) as u16)
        }),
        DataType::Float32 => {
            map::<Int32Type, Float32Type>(keys, |v| f32::from_bits(turn!(v, i32) as u32))
        }
        _ => map::<Int64Type, Float64Type>(keys, |v| f64::from_bits(turn!(v, i64) as u64)),
    }
}

fn map<A: ArrowPrimitiveType, B: ArrowPrimitiveType>(
    values: &ArrayRef,
    change: impl Fn(A::Native) -> B::Native,
) -> ArrayRef {
    let changed: PrimitiveArray<B> = values.as_primitive::<A>().unary(change);
    Arc::new(changed)
}
