//! Calls of a kernel over Arrow arrays: chunks of rows, strict NULL, and checked results.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, BooleanBufferBuilder, Float64Array, Int32Array,
    UInt32Array, new_empty_array, new_null_array,
};
use arrow::buffer::{MutableBuffer, NullBuffer};
use arrow::compute;
use arrow::datatypes::{DataType, Float64Type};

use super::columns::{self, Inputs, Scratch, bitmap_bytes, count};
use super::functions::element_type;
use super::signature::sql_type;
use super::{
    Argument, CallContext, Kind, Limits, Manifest, Nulls, Package, Returns, Signature, Target,
    results,
};
use crate::memory::{Charge, MemoryBudget};
use crate::{Result, StorageError};

/// Times that a kernel may ask for more room for one call's result.
const REPEATS: usize = 2;

/// A kernel that can be called: what its package says, and what runs it.
#[derive(Debug, Clone)]
pub struct Kernel {
    package: Arc<Package>,
    target: Arc<dyn Target>,
}

impl Kernel {
    /// The kernel of `package`, run by `target`.
    pub fn new(package: impl Into<Arc<Package>>, target: Arc<dyn Target>) -> Self {
        Self {
            package: package.into(),
            target,
        }
    }

    /// The kernel for one query: what its target keeps between calls (instances with their memory,
    /// charged to `memory`) is this query's alone and ends with the last clone of what is
    /// returned. Calls without this are right too, but start anew each.
    pub fn for_query(&self, memory: &Arc<dyn MemoryBudget>) -> Self {
        let session = self.target.session(memory);
        Self {
            package: Arc::clone(&self.package),
            target: session.unwrap_or_else(|| Arc::clone(&self.target)),
        }
    }

    /// What the package says.
    pub fn package(&self) -> &Arc<Package> {
        &self.package
    }

    /// What the manifest says.
    pub fn manifest(&self) -> &Manifest {
        &self.package.manifest
    }

    /// What runs it.
    pub fn target(&self) -> &Arc<dyn Target> {
        &self.target
    }

    /// The values of a kernel of kind scalar, filter or search for `rows` rows. `arguments` are in
    /// the signature's order: arrays of `rows` values, of one value for constants. With
    /// `nulls = "strict"` a row with a NULL gives NULL; filters and searches with
    /// `nulls = "kernel"` never give NULL. A NULL constant makes all rows NULL.
    ///
    /// # Errors
    /// `Invalid` when the arguments are not the signature's; `Kernel` when the kernel fails or
    /// gives what can't be; what the query's memory says.
    pub fn evaluate(
        &self,
        arguments: &[ArrayRef],
        rows: usize,
        context: CallContext<'_>,
    ) -> Result<ArrayRef> {
        let signature = self.signature(&[Kind::Scalar, Kind::Filter, Kind::Search], "evaluate")?;
        let Returns::Scalar(returns) = &signature.returns else {
            return Err(self.invalid("returns a table"));
        };
        self.check(signature, arguments, rows)?;
        if rows == 0 {
            return Ok(new_empty_array(returns));
        }
        if has_null_constant(signature, arguments) {
            return Ok(new_null_array(returns, rows));
        }
        let strict = self.manifest().nulls == Nulls::Strict;
        let left = match strict {
            true => columns::without_nulls(&signature.parameters, arguments)?,
            false => None,
        };
        let Some((left, valid)) = left else {
            return self.dense(signature, returns, arguments, rows, context);
        };
        let computed = rows - valid.null_count();
        if computed == 0 {
            return Ok(new_null_array(returns, rows));
        }
        let result = self.dense(signature, returns, &left, computed, context)?;
        spread(&result, &valid)
    }

    /// How far each of `vectors` is from `query`, an array of one vector of the same length. NULL
    /// vectors give NULL.
    ///
    /// # Errors
    /// As of [`Kernel::evaluate`].
    pub fn distances(
        &self,
        vectors: &ArrayRef,
        query: &ArrayRef,
        context: CallContext<'_>,
    ) -> Result<Float64Array> {
        let signature = self.signature(&[Kind::Distance], "measure distances")?;
        let rows = vectors.len();
        let of_kind = |found: &DataType| {
            matches!(
                (&signature.parameters[0].data_type, found),
                (DataType::FixedSizeList(..), DataType::FixedSizeList(..))
                    | (DataType::FixedSizeBinary(_), DataType::FixedSizeBinary(_))
            )
        };
        let (found, wanted) = (vectors.data_type(), query.data_type());
        if !of_kind(found) || !columns::fits(found, wanted) || query.len() != 1 {
            return Err(self.invalid(&format!(
                "takes vectors and one vector of their length as {signature}, not {} and {} \
                 values of {}",
                sql_type(found),
                query.len(),
                sql_type(wanted)
            )));
        }
        if rows == 0 || query.is_null(0) {
            return Ok(Float64Array::new_null(rows));
        }
        let valid = vectors.nulls().filter(|valid| valid.null_count() > 0);
        let Some(valid) = valid else {
            return self.dense_distances(vectors, query, context);
        };
        let mask = BooleanArray::new(valid.inner().clone(), None);
        let left = compute::filter(vectors, &mask)?;
        if left.is_empty() {
            return Ok(Float64Array::new_null(rows));
        }
        let result: ArrayRef = Arc::new(self.dense_distances(&left, query, context)?);
        Ok(spread(&result, valid)?
            .as_primitive::<Float64Type>()
            .clone())
    }

    fn dense_distances(
        &self,
        vectors: &ArrayRef,
        query: &ArrayRef,
        context: CallContext<'_>,
    ) -> Result<Float64Array> {
        let vector_error = |error: String| self.invalid(&format!("'s argument {error}"));
        let (values, row_bytes) = columns::fixed(vectors).map_err(vector_error)?;
        let (query, _) = columns::fixed(query).map_err(vector_error)?;
        let dimension = match vectors.data_type() {
            DataType::FixedSizeBinary(_) => row_bytes,
            _ => row_bytes / 4,
        };
        let rows = vectors.len();
        let mut result = MutableBuffer::from_len_zeroed(rows * 8);
        let chunk = columns::vectors_per_call(row_bytes, self.limits());
        for start in (0..rows).step_by(chunk) {
            let length = chunk.min(rows - start);
            let mut arguments = [
                Argument::In(&values[start * row_bytes..(start + length) * row_bytes]),
                Argument::In(&query),
                count(dimension),
                count(length),
                Argument::Out(&mut result[start * 8..(start + length) * 8]),
            ];
            self.call(&mut arguments, context)?;
        }
        let result = results::fixed(&DataType::Float64, result, rows, None);
        let result = result.map_err(|reason| self.failed(reason))?;
        Ok(result.as_primitive::<Float64Type>().clone())
    }

    /// All rows, none with a NULL that the kernel must not see.
    fn dense(
        &self,
        signature: &Signature,
        returns: &DataType,
        arguments: &[ArrayRef],
        rows: usize,
        context: CallContext<'_>,
    ) -> Result<ArrayRef> {
        let inputs = self.inputs(signature, arguments)?;
        match (self.manifest().kind, element_type(returns)) {
            (Kind::Filter, _) => self.filter(&inputs, rows, context),
            (Kind::Search, _) => self.search(&inputs, returns, rows, context),
            (_, None) => self.text(&inputs, returns, rows, context),
            (_, Some(element)) => self.fixed(&inputs, returns, element.size_bytes(), rows, context),
        }
    }

    fn filter(&self, inputs: &Inputs, rows: usize, context: CallContext<'_>) -> Result<ArrayRef> {
        let mut selection = BooleanBufferBuilder::new(rows);
        let mut words = MutableBuffer::default();
        self.chunks(inputs, rows, |start, length, scratch| {
            words.resize(bitmap_bytes(length), 0);
            let mut arguments = inputs.arguments(start, length, scratch);
            arguments.push(count(length));
            arguments.push(Argument::Out(words.as_slice_mut()));
            self.call(&mut arguments, context)?;
            selection.append_packed_range(0..length, &words);
            Ok(())
        })?;
        Ok(Arc::new(BooleanArray::new(selection.finish(), None)))
    }

    fn search(
        &self,
        inputs: &Inputs,
        returns: &DataType,
        rows: usize,
        context: CallContext<'_>,
    ) -> Result<ArrayRef> {
        const NOWHERE: u32 = u32::MAX;
        let mut found = Vec::with_capacity(rows);
        let mut positions = MutableBuffer::default();
        self.chunks(inputs, rows, |start, length, scratch| {
            positions.resize(length * 4, 0);
            let mut arguments = inputs.arguments(start, length, scratch);
            arguments.push(count(length));
            arguments.push(Argument::Out(positions.as_slice_mut()));
            self.call(&mut arguments, context)?;
            let ends = Inputs::text_offsets(scratch).windows(2);
            for (&position, ends) in positions.typed_data::<u32>().iter().zip(ends) {
                if position != NOWHERE && position > ends[1] - ends[0] {
                    return Err(self.failed(format!(
                        "found its pattern at byte {position} of a text of {} bytes",
                        ends[1] - ends[0]
                    )));
                }
                found.push(position);
            }
            Ok(())
        })?;
        Ok(match returns {
            DataType::Boolean => {
                let found: Vec<bool> = found.iter().map(|&at| at != NOWHERE).collect();
                Arc::new(BooleanArray::from(found))
            }
            // NOWHERE is all ones: one more is 0.
            _ => Arc::new(Int32Array::from_iter_values(
                found.iter().map(|&at| at.wrapping_add(1) as i32),
            )),
        })
    }

    fn fixed(
        &self,
        inputs: &Inputs,
        returns: &DataType,
        width: usize,
        rows: usize,
        context: CallContext<'_>,
    ) -> Result<ArrayRef> {
        let kernel_nulls = self.manifest().nulls == Nulls::Kernel;
        let mut result = MutableBuffer::from_len_zeroed(rows * width);
        let mut valid = BooleanBufferBuilder::new(rows);
        let mut words = MutableBuffer::default();
        self.chunks(inputs, rows, |start, length, scratch| {
            words.resize(bitmap_bytes(length), 0);
            let mut arguments = inputs.arguments(start, length, scratch);
            arguments.push(count(length));
            let place = start * width..(start + length) * width;
            arguments.push(Argument::Out(&mut result[place]));
            if kernel_nulls {
                arguments.push(Argument::Out(words.as_slice_mut()));
            }
            self.call(&mut arguments, context)?;
            if kernel_nulls {
                valid.append_packed_range(0..length, &words);
            }
            Ok(())
        })?;
        let valid = kernel_nulls.then(|| NullBuffer::new(valid.finish()));
        results::fixed(returns, result, rows, valid).map_err(|reason| self.failed(reason))
    }

    fn text(
        &self,
        inputs: &Inputs,
        returns: &DataType,
        rows: usize,
        context: CallContext<'_>,
    ) -> Result<ArrayRef> {
        let kernel_nulls = self.manifest().nulls == Nulls::Kernel;
        let mut capacity = (32 * rows.min(self.limits().rows_per_call)).max(4096);
        let mut charge = Charge::new(context.memory, capacity)?;
        let mut bytes = MutableBuffer::from_len_zeroed(capacity);
        let (mut offsets, mut words) = (MutableBuffer::default(), MutableBuffer::default());
        let mut parts: Vec<ArrayRef> = Vec::new();
        self.chunks(inputs, rows, |start, length, scratch| {
            for repeat in 0.. {
                offsets.resize((length + 1) * 4, 0);
                words.resize(bitmap_bytes(length), 0);
                let mut arguments = inputs.arguments(start, length, scratch);
                arguments.push(count(length));
                arguments.push(Argument::Out(offsets.as_slice_mut()));
                arguments.push(Argument::Out(bytes.as_slice_mut()));
                arguments.push(count(capacity));
                if kernel_nulls {
                    arguments.push(Argument::Out(words.as_slice_mut()));
                }
                self.call(&mut arguments, context)?;
                let needed = offsets.typed_data::<u32>()[length] as usize;
                if needed <= capacity {
                    break;
                }
                self.may_repeat(repeat, needed)?;
                charge.up_to(needed)?;
                capacity = needed;
                bytes.resize(capacity, 0);
            }
            let valid = kernel_nulls.then(|| results::validity(&words, length));
            let part = results::text(returns, offsets.typed_data(), &bytes, valid);
            parts.push(part.map_err(|reason| self.failed(reason))?);
            Ok(())
        })?;
        if parts.len() == 1 {
            return Ok(parts.remove(0));
        }
        let parts: Vec<&dyn Array> = parts.iter().map(|part| part.as_ref()).collect();
        Ok(compute::concat(&parts)?)
    }

    /// Whether a call whose result needs `needed` bytes of room is repeated.
    pub(super) fn may_repeat(&self, repeat: usize, needed: usize) -> Result<()> {
        let limit = self.limits().memory_bytes;
        if repeat == REPEATS {
            return Err(self.failed(format!(
                "asks for room for its result again and again, for {needed} bytes at last"
            )));
        }
        if needed > limit {
            return Err(self.failed(format!(
                "asks for {needed} bytes for the result of one call, limits.memory_bytes is \
                 {limit}; lower limits.rows_per_call"
            )));
        }
        Ok(())
    }

    /// Calls `each` with start and length of every chunk of rows.
    pub(super) fn chunks(
        &self,
        inputs: &Inputs,
        rows: usize,
        mut each: impl FnMut(usize, usize, &Scratch) -> Result<()>,
    ) -> Result<()> {
        let mut scratch = Scratch::default();
        let mut start = 0;
        while start < rows {
            let length = inputs.chunk(start, rows, self.limits());
            let length = length.map_err(|reason| self.failed(reason))?;
            inputs.fill(start, length, &mut scratch);
            each(start, length, &scratch)?;
            start += length;
        }
        Ok(())
    }

    /// Calls the C function of kernels that have one.
    pub(super) fn call(
        &self,
        arguments: &mut [Argument<'_>],
        context: CallContext<'_>,
    ) -> Result<()> {
        self.target.call(&self.manifest().top, arguments, context)
    }

    pub(super) fn inputs(&self, signature: &Signature, arguments: &[ArrayRef]) -> Result<Inputs> {
        let kernel_nulls = self.manifest().nulls == Nulls::Kernel;
        let inputs = Inputs::new(&signature.parameters, arguments, kernel_nulls);
        inputs.map_err(|reason| self.invalid(&format!("'s {reason}")))
    }

    pub(super) fn check(
        &self,
        signature: &Signature,
        arguments: &[ArrayRef],
        rows: usize,
    ) -> Result<()> {
        let fits = columns::check(&signature.parameters, arguments, rows);
        fits.map_err(|reason| self.invalid(&format!(" {reason}")))
    }

    /// The signature, when the kernel is of one of these kinds.
    pub(super) fn signature(&self, kinds: &[Kind], what: &str) -> Result<&Signature> {
        let manifest = self.manifest();
        let signature = manifest.signature.as_ref();
        let signature = signature.filter(|_| kinds.contains(&manifest.kind));
        signature.ok_or_else(|| {
            self.invalid(&format!(
                " is of kind {} and can't {what}{}",
                manifest.kind.name(),
                match manifest.signature {
                    None => ": it has no SQL signature",
                    Some(_) => "",
                }
            ))
        })
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.manifest().limits
    }

    pub(super) fn invalid(&self, reason: &str) -> StorageError {
        let space = if reason.starts_with(['\'', ' ']) {
            ""
        } else {
            " "
        };
        StorageError::Invalid(format!("kernel '{}'{space}{reason}", self.manifest().name))
    }

    pub(super) fn failed(&self, reason: String) -> StorageError {
        StorageError::Kernel {
            kernel: self.manifest().name.clone(),
            reason,
        }
    }
}

/// Whether a constant is NULL.
pub(super) fn has_null_constant(signature: &Signature, arguments: &[ArrayRef]) -> bool {
    let mut pairs = signature.parameters.iter().zip(arguments);
    pairs.any(|(parameter, array)| parameter.constant && array.is_null(0))
}

/// The values of `result` at the rows that are valid, NULL at the others.
fn spread(result: &ArrayRef, valid: &NullBuffer) -> Result<ArrayRef> {
    let mut next = 0u32;
    let places = valid.iter().map(|valid| {
        let place = valid.then_some(next);
        next += u32::from(valid);
        place
    });
    let places: UInt32Array = places.collect();
    Ok(compute::take(result, &places, None)?)
}
