//! Table kernels: rows from a column's pages.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::buffer::MutableBuffer;
use arrow::compute;
use arrow::datatypes::{Field, Schema};

use super::columns::{Scratch, count};
use super::functions::element_type;
use super::{Argument, CallContext, Kernel, Kind, Returns, results};
use crate::Result;
use crate::flash::PAGE_SIZE_BYTES as PAGE_SIZE;
use crate::memory::Charge;

impl Kernel {
    /// The rows that a table kernel makes of `pages`, whole pages as on flash. `constants` are
    /// arrays of one value each. Pages are passed in their order, as many in a call as fit
    /// `limits.bytes_per_call`; the rows of all calls are one batch. A NULL constant gives no rows.
    ///
    /// # Errors
    /// `Invalid` when the arguments are not the signature's; `Kernel` when the kernel fails or
    /// gives what can't be.
    pub fn rows(
        &self,
        pages: &[u8],
        constants: &[ArrayRef],
        context: CallContext<'_>,
    ) -> Result<RecordBatch> {
        let signature = self.signature(&[Kind::Table], "give rows")?;
        let Returns::Table(fields) = &signature.returns else {
            return Err(self.invalid("returns no table"));
        };
        self.check(signature, constants, 0)?;
        if !pages.len().is_multiple_of(PAGE_SIZE) {
            return Err(self.invalid(&format!(
                "takes whole pages of {PAGE_SIZE} bytes, not {} bytes",
                pages.len()
            )));
        }
        let schema = Arc::new(Schema::new(fields.clone()));
        if super::call::has_null_constant(signature, constants) {
            return Ok(RecordBatch::new_empty(schema));
        }
        let inputs = self.inputs(signature, constants)?;
        let scratch = Scratch::default();
        let mut batches = Vec::new();
        let mut columns = Columns::new(fields, self.limits().rows_per_call, context)?;
        let bytes_per_call = (self.limits().bytes_per_call / PAGE_SIZE).max(1) * PAGE_SIZE;
        for pages in pages.chunks(bytes_per_call) {
            for repeat in 0.. {
                let mut rows = [0; 4];
                let mut arguments = vec![Argument::In(pages), count(pages.len() / PAGE_SIZE)];
                arguments.extend(inputs.arguments(0, 0, &scratch));
                let capacity = columns.capacity;
                let columns_out = columns.buffers.iter_mut();
                arguments.extend(columns_out.map(|column| Argument::Out(column.as_slice_mut())));
                arguments.push(count(capacity));
                arguments.push(Argument::Out(&mut rows));
                self.call(&mut arguments, context)?;
                let rows = u32::from_le_bytes(rows) as usize;
                if rows <= capacity {
                    batches.push(columns.take(self, &schema, rows)?);
                    break;
                }
                self.may_repeat(repeat, columns.bytes_of(rows))?;
                columns.grow(rows)?;
            }
        }
        Ok(compute::concat_batches(&schema, &batches)?)
    }
}

/// Room for the columns of one call's rows.
struct Columns<'a> {
    widths: Vec<usize>,
    buffers: Vec<MutableBuffer>,
    capacity: usize,
    charge: Charge<'a>,
}

impl<'a> Columns<'a> {
    fn new(fields: &[Field], capacity: usize, context: CallContext<'a>) -> Result<Self> {
        let width = |field: &Field| {
            element_type(field.data_type()).map_or(8, |element| element.size_bytes())
        };
        let mut columns = Self {
            widths: fields.iter().map(width).collect(),
            buffers: fields.iter().map(|_| MutableBuffer::default()).collect(),
            capacity: 0,
            charge: Charge::new(context.memory, 0)?,
        };
        columns.grow(capacity)?;
        Ok(columns)
    }

    fn bytes_of(&self, rows: usize) -> usize {
        self.widths.iter().sum::<usize>().saturating_mul(rows)
    }

    fn grow(&mut self, capacity: usize) -> Result<()> {
        self.charge.up_to(self.bytes_of(capacity))?;
        for (buffer, width) in self.buffers.iter_mut().zip(&self.widths) {
            buffer.resize(capacity * width, 0);
        }
        self.capacity = capacity;
        Ok(())
    }

    /// The first `rows` rows as a batch of their own.
    fn take(&self, kernel: &Kernel, schema: &Arc<Schema>, rows: usize) -> Result<RecordBatch> {
        let mut arrays = Vec::new();
        let columns = self.buffers.iter().zip(&self.widths);
        for ((buffer, width), field) in columns.zip(schema.fields()) {
            let mut values = MutableBuffer::with_capacity(rows * width);
            values.extend_from_slice(&buffer[..rows * width]);
            let array = results::fixed(field.data_type(), values, rows, None);
            let name = field.name();
            arrays.push(
                array.map_err(|reason| kernel.failed(format!("in column '{name}' it {reason}")))?,
            );
        }
        Ok(RecordBatch::try_new(Arc::clone(schema), arrays)?)
    }
}
