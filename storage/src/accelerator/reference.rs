//! The interpreter over pages: decodes whole segments and hands them to the naive interpreter.
//!
//! It defines, page for page, what every other accelerator must give; it is for tests and far too
//! slow for anything else.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema};
use flashmesh_pushdown::{Output, Program, RuntimeFilter, interpreter};

use crate::Result;
use crate::accelerator::{Accelerator, Task, TaskRun, Work};
use crate::kernel::has_kernels;
use crate::store::PageReader;
use crate::table::read_column;

/// Runs Programs by the naive interpreter.
#[derive(Debug, Default)]
pub struct ReferenceAccelerator;

impl Accelerator for ReferenceAccelerator {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn supports(&self, program: &Program) -> std::result::Result<(), String> {
        match has_kernels(program) {
            true => Err("the interpreter has no kernels".into()),
            false => Ok(()),
        }
    }

    fn open(&self, task: Task) -> Result<Box<dyn TaskRun>> {
        Ok(Box::new(ReferenceRun {
            task,
            input: Vec::new(),
            finished: false,
        }))
    }
}

struct ReferenceRun {
    task: Task,
    /// Decoded segments that were not interpreted yet.
    input: Vec<RecordBatch>,
    finished: bool,
}

impl ReferenceRun {
    /// Whether the output of several segments is the outputs of each.
    fn is_rowwise(&self) -> bool {
        matches!(&self.task.program.output, Output::Rows { limit: None, .. })
    }

    fn interpret(&mut self) -> Result<Option<RecordBatch>> {
        let input = std::mem::take(&mut self.input);
        Ok(Some(interpreter::run(&self.task.program, &input)?))
    }
}

impl TaskRun for ReferenceRun {
    fn prefetch(&mut self, _: &Work, _: &[RuntimeFilter], _: &mut PageReader) -> Result<()> {
        Ok(())
    }

    fn start_segment(
        &mut self,
        work: Work,
        _: &[RuntimeFilter],
        reader: &mut PageReader,
    ) -> Result<()> {
        let (program, segment) = (&self.task.program, &work.segment);
        let mut fields = Vec::new();
        let mut arrays = Vec::new();
        for column in &program.columns {
            let values = read_column(reader, segment, column.ordinal as usize, &column.data_type)?;
            fields.push(Field::new(&column.name, column.data_type.clone(), true));
            arrays.push(values);
        }
        let options =
            arrow::array::RecordBatchOptions::new().with_row_count(Some(segment.rows as usize));
        let schema = Arc::new(Schema::new(fields));
        let batch = RecordBatch::try_new_with_options(schema, arrays, &options)?;
        match &work.rows {
            None => self.input.push(batch),
            Some(rows) => {
                let slices = rows.ranges().iter();
                self.input
                    .extend(slices.map(|r| batch.slice(r.start as usize, r.len())));
            }
        }
        Ok(())
    }

    fn next(&mut self, _: &mut PageReader) -> Result<Option<RecordBatch>> {
        if self.is_rowwise() && !self.input.is_empty() {
            self.interpret()
        } else {
            Ok(None)
        }
    }

    fn finish(&mut self) -> Result<Option<RecordBatch>> {
        if self.finished || self.is_rowwise() {
            return Ok(None);
        }
        self.finished = true;
        self.interpret()
    }

    fn is_satisfied(&self) -> bool {
        false
    }
}
