//! Table kernels of users: pages of a column in, rows out.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{Result, internal_err, plan_datafusion_err, plan_err};
use datafusion::logical_expr::LogicalPlan;
use flashmesh_storage::flash::PAGE_SIZE_BYTES;
use flashmesh_storage::functions::{Kernels, UserFunction};
use flashmesh_storage::kernel::{Kind, Returns};
use flashmesh_storage::segment::Chunk;

use super::arguments::{Argument, Arguments};
use super::exec::{Emit, Run, StoreFunction, StoreFunctionNode};
use super::store::StoreRelations;
use crate::error::from_storage;
use crate::named::NamedTable;

/// Pages of one call.
const PAGES_PER_CALL: u32 = 64;

/// The table kernel of that name, if the session may use it.
pub(super) fn find(store: &StoreRelations, name: &str) -> Option<TableKernel> {
    let kernels = store.node.kernels()?;
    let functions = kernels.functions();
    let function = functions
        .iter()
        .find(|f| f.entry.name == name && f.manifest().kind == Kind::Table)?;
    store.authority.may_use(name).then(|| TableKernel {
        function: Arc::clone(function),
        kernels: Arc::clone(kernels),
    })
}

/// A kernel that is called where a table stands.
pub(super) struct TableKernel {
    function: Arc<UserFunction>,
    kernels: Arc<Kernels>,
}

impl TableKernel {
    /// Its arguments, for messages.
    pub fn usage(&self) -> String {
        let mut usage = "'table', 'column'".to_string();
        for parameter in self
            .function
            .manifest()
            .signature
            .iter()
            .flat_map(|s| &s.parameters)
        {
            usage.push_str(", ");
            usage.push_str(&parameter.name);
        }
        usage
    }

    pub fn plan(self, store: &StoreRelations, mut arguments: Arguments<'_>) -> Result<LogicalPlan> {
        let name = &self.function.entry.name;
        let table = arguments.text()?;
        let table = store.table(&table, &arguments)?;
        let column = arguments.text()?;
        let column = table.column(&column, &arguments)?;
        let Some(signature) = &self.function.manifest().signature else {
            return plan_err!("{name}: the kernel has no signature");
        };
        let Returns::Table(fields) = &signature.returns else {
            return plan_err!("{name}: the kernel gives no table");
        };
        let mut constants = Vec::new();
        for parameter in &signature.parameters {
            let Argument::Constant(value) = arguments.next()? else {
                return plan_err!("{name}: '{}' takes a constant", parameter.name);
            };
            let value = value.cast_to(&parameter.data_type).map_err(|_| {
                plan_datafusion_err!(
                    "{name}: '{}' is {}, not {value}",
                    parameter.name,
                    parameter.data_type
                )
            })?;
            constants.push(value.to_array()?);
        }
        arguments.end()?;
        let function = KernelRows {
            schema: Arc::new(Schema::new(fields.clone())),
            table: table.0,
            column,
            constants,
            function: self.function,
            kernels: self.kernels,
        };
        StoreFunctionNode::plan(Arc::new(function), None)
    }
}

/// The rows that a kernel makes of a column's pages.
#[derive(Debug, Clone)]
struct KernelRows {
    function: Arc<UserFunction>,
    kernels: Arc<Kernels>,
    schema: SchemaRef,
    table: NamedTable,
    column: usize,
    constants: Vec<ArrayRef>,
}

impl StoreFunction for KernelRows {
    fn name(&self) -> &str {
        &self.function.entry.name
    }

    fn table(&self) -> &NamedTable {
        &self.table
    }

    fn at(&self, table: NamedTable) -> Result<Arc<dyn StoreFunction>> {
        Ok(Arc::new(Self {
            table,
            ..self.clone()
        }))
    }

    fn arguments(&self) -> String {
        let column = self.table.snapshot().schema.field(self.column).name();
        format!(
            "{}.{column}, kernel in the sandbox",
            self.table.snapshot().name
        )
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn expected_rows(&self) -> usize {
        let segments = self.table.snapshot().segments.iter();
        let chunks = segments.map(|segment| &segment.chunks[self.column]);
        chunks.map(Chunk::data_pages).sum()
    }

    fn kernels(&self) -> Option<&Arc<Kernels>> {
        Some(&self.kernels)
    }

    fn run(&self, _: Vec<RecordBatch>, run: &Run, emit: &mut Emit<'_>) -> Result<()> {
        let Some(calls) = &run.calls else {
            return internal_err!("the rows of a kernel outside of a query");
        };
        let (table, capability) = (self.table.snapshot(), self.table.capability());
        let id = self.function.id();
        if table.has_deleted_rows() {
            return plan_err!(
                "table '{0}' has deleted rows, which a kernel over its pages would see; INSERT OVERWRITE {0} SELECT * FROM {0} rewrites it without them",
                table.name
            );
        }
        let kernel = self
            .table
            .node()
            .authorize_kernel(&capability, table, &id, calls)
            .map_err(from_storage)?;
        let mut reader = self.table.store().reader().map_err(from_storage)?;
        let mut bytes = Vec::new();
        for segment in &self.table.snapshot().segments {
            let chunk = &segment.chunks[self.column];
            let mut next = chunk.aux_pages;
            while next < chunk.run.count {
                run.check()?;
                let end = chunk.run.count.min(next + PAGES_PER_CALL);
                bytes.clear();
                bytes.reserve((end - next) as usize * PAGE_SIZE_BYTES);
                let mut pages = Vec::new();
                reader
                    .get_run(&chunk.run, next..end, &mut pages)
                    .map_err(from_storage)?;
                pages
                    .iter()
                    .for_each(|page| bytes.extend_from_slice(&page.bytes()));
                run.count_command();
                let batch = kernel
                    .rows(&bytes, &self.constants, calls.context())
                    .map_err(from_storage)?;
                if batch.num_rows() > 0 {
                    emit(batch)?;
                }
                next = end;
            }
        }
        run.cost.scan.add_reads(reader.take_counters());
        Ok(())
    }
}
