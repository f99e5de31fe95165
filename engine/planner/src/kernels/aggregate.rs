//! Aggregates of users: `init`, `update`, `merge` and `finish` of a kernel.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, FixedSizeBinaryArray};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, internal_err, not_impl_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ColumnarValue, Documentation, EmitTo,
    GroupsAccumulator, Signature, Volatility,
};
use flashmesh_storage::functions::{Kernels, UserFunction};
use flashmesh_storage::kernel::{Kind, QueryCalls, States};

use super::Handle;
use super::calls::aside;
use crate::error::from_storage;

/// The aggregate function of a kernel; `None` for other kinds.
pub fn aggregate_function(
    function: Arc<UserFunction>,
    kernels: Arc<Kernels>,
) -> Option<AggregateUDF> {
    if function.manifest().kind != Kind::Aggregate {
        return None;
    }
    let handle = Handle::new(function, kernels);
    let signature = Signature::user_defined(Volatility::Immutable);
    Some(AggregateUDF::from(KernelAggregate { handle, signature }))
}

/// A kernel of kind aggregate.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct KernelAggregate {
    handle: Handle,
    signature: Signature,
}

impl KernelAggregate {
    fn groups(&self, args: &AccumulatorArgs<'_>) -> Result<Groups> {
        if args.is_distinct || !args.order_bys.is_empty() || args.ignore_nulls {
            return not_impl_err!(
                "{}: DISTINCT, ORDER BY and IGNORE NULLS are not for kernels; use a subquery",
                self.handle.name()
            );
        }
        Groups::new(self.handle.clone())
    }

    /// The kernel that a function of a plan is, if it is one.
    pub(super) fn of(function: &AggregateUDF) -> Option<&Self> {
        function.inner().downcast_ref::<Self>()
    }

    pub(super) fn kernels(&self) -> &Arc<Kernels> {
        &self.handle.kernels
    }

    pub(super) fn for_query(&self, calls: &Arc<QueryCalls>) -> Self {
        Self {
            handle: self.handle.for_query(calls),
            signature: self.signature.clone(),
        }
    }
}

impl AggregateUDFImpl for KernelAggregate {
    fn name(&self) -> &str {
        self.handle.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.handle.documentation)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.handle.coerce(types)
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        self.handle.return_type()
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let mut groups = self.groups(&args)?;
        groups.grow(1)?;
        Ok(Box::new(OneGroup(groups)))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let words = self.handle.function.manifest().state_words;
        let bytes = i32::try_from(words * 8).unwrap_or(i32::MAX);
        let data_type = DataType::FixedSizeBinary(bytes);
        Ok(vec![Arc::new(Field::new(args.name, data_type, false))])
    }

    fn groups_accumulator_supported(&self, _: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(self.groups(&args)?))
    }
}

/// The states of many groups.
#[derive(Debug)]
struct Groups {
    handle: Handle,
    states: States,
    calls: Arc<QueryCalls>,
}

impl Groups {
    fn new(handle: Handle) -> Result<Self> {
        let (kernel, calls) = handle.running()?;
        let states = kernel.states().map_err(from_storage)?;
        let calls = Arc::clone(calls);
        Ok(Self {
            handle,
            states,
            calls,
        })
    }

    /// Makes states up to this number of groups.
    fn grow(&mut self, groups: usize) -> Result<()> {
        let context = self.calls.context();
        self.states.init(groups, context).map_err(from_storage)
    }

    fn update(&mut self, values: &[ArrayRef], group: &[u32]) -> Result<()> {
        let values: Vec<_> = values.iter().cloned().map(ColumnarValue::Array).collect();
        // Constants come spread out over the rows.
        let arrays = match group.is_empty() {
            true => return Ok(()),
            false => self.handle.arrays(&values, group.len())?,
        };
        let context = self.calls.context();
        let states = &mut self.states;
        aside(|| states.update(&arrays, group.len(), group, context)).map_err(from_storage)
    }

    fn take(&mut self, emit_to: EmitTo) -> States {
        match emit_to {
            EmitTo::All => self.states.take_first(self.states.groups()),
            EmitTo::First(count) => self.states.take_first(count),
        }
    }
}

impl GroupsAccumulator for Groups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups)?;
        let group: Vec<u32> = group_indices.iter().map(|g| *g as u32).collect();
        let Some(filter) = filter else {
            return self.update(values, &group);
        };
        let kept = values
            .iter()
            .map(|array| Ok(arrow::compute::filter(array, filter)?))
            .collect::<Result<Vec<_>>>()?;
        let is_kept = |row: &usize| filter.is_valid(*row) && filter.value(*row);
        let group: Vec<u32> = (0..group.len()).filter(is_kept).map(|r| group[r]).collect();
        self.update(&kept, &group)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let states = self.take(emit_to);
        let context = self.calls.context();
        states.finish(context).map_err(from_storage)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let states = self.take(emit_to);
        Ok(vec![Arc::new(states.to_array().map_err(from_storage)?)])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups)?;
        let group: Vec<u32> = group_indices.iter().map(|g| *g as u32).collect();
        let others = states_of(&values[0])?;
        let (states, context) = (&mut self.states, self.calls.context());
        aside(|| states.merge(others, &group, context)).map_err(from_storage)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let rows = values.first().map_or(0, |array| array.len());
        let mut each = Self::new(self.handle.clone())?;
        let group: Vec<usize> = (0..rows).collect();
        each.update_batch(values, &group, filter, rows)?;
        each.state(EmitTo::All)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.states.size_bytes()
    }
}

/// Partial results, as they travel.
fn states_of(array: &ArrayRef) -> Result<&FixedSizeBinaryArray> {
    match array.as_fixed_size_binary_opt() {
        Some(states) => Ok(states),
        None => internal_err!("states of a kernel come as {}", array.data_type()),
    }
}

/// The state of an aggregate without groups.
#[derive(Debug)]
struct OneGroup(Groups);

impl Accumulator for OneGroup {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let rows = values.first().map_or(0, |array| array.len());
        self.0.update(values, &vec![0; rows])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let context = self.0.calls.context();
        let result = self.0.states.finish(context);
        ScalarValue::try_from_array(&result.map_err(from_storage)?, 0)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.0.states.size_bytes()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let array = self.0.states.to_array().map_err(from_storage)?;
        Ok(vec![ScalarValue::try_from_array(&array, 0)?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let rows = states[0].len();
        let context = self.0.calls.context();
        let merged = self
            .0
            .states
            .merge(states_of(&states[0])?, &vec![0; rows], context);
        merged.map_err(from_storage)
    }
}
