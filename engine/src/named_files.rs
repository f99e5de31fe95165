//! Files as a table with one column more: the file that each row is of (`read_csv('2024/*.csv', filename = true)`).

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::listing::ListingTable;
use datafusion::error::Result;
use datafusion::functions::core::input_file_name;
use datafusion::functions::string::concat;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_expr::expressions::{Column, lit};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use flashmesh_macros::async_impl;

use crate::error::Error;

/// The table.
#[derive(Debug)]
pub(crate) struct NamedFiles {
    files: ListingTable,
    /// What is before a file's path in its store to name it.
    store: String,
    schema: SchemaRef,
}

impl NamedFiles {
    /// # Errors
    /// [`Error::Usage`] where the files have such a column.
    pub fn new(files: ListingTable, column: &str) -> crate::Result<Self> {
        let schema = files.schema();
        if schema.field_with_name(column).is_ok() {
            return Err(Error::usage(format!(
                "the files have a column '{column}'; name the one of their names otherwise: \
                 filename = 'file'"
            )));
        }
        let mut fields = schema.fields().to_vec();
        fields.push(Arc::new(Field::new(column, DataType::Utf8, true)));
        let store = files.table_paths().first();
        let store = store.map_or_else(String::new, |url| url.object_store().to_string());
        Ok(Self {
            store: store.strip_prefix("file://").unwrap_or(&store).to_owned(),
            schema: Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())),
            files,
        })
    }

    /// The place of the column, behind those of the files.
    fn place(&self) -> usize {
        self.schema.fields().len() - 1
    }
}

#[async_impl]
impl TableProvider for NamedFiles {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let all = || (0..self.schema.fields().len()).collect();
        let wanted: Vec<usize> = projection.cloned().unwrap_or_else(all);
        let of_files: Vec<_> = wanted
            .iter()
            .copied()
            .filter(|at| *at != self.place())
            .collect();
        let scan = self
            .files
            .scan(state, Some(&of_files), filters, limit)
            .await?;
        if of_files.len() == wanted.len() {
            return Ok(scan);
        }
        let name = self.schema.field(self.place()).name();
        let files = scan.schema();
        let columns = || {
            let fields = files.fields().iter().enumerate();
            fields.map(|(at, field)| {
                let column = Arc::new(Column::new(field.name(), at));
                ProjectionExpr::new(column, field.name())
            })
        };
        let config = Arc::new(state.config_options().clone());
        let call = |function, args, schema: &Schema| -> Result<Arc<dyn PhysicalExpr>> {
            let config = Arc::clone(&config);
            let call = ScalarFunctionExpr::try_new(function, args, schema, config)?;
            Ok(Arc::new(call))
        };
        let path = call(input_file_name(), vec![], &files)?;
        let path = ProjectionExpr::new(path, name);
        let named = ProjectionExec::try_new(columns().chain([path]), Arc::clone(&scan))?;
        // What reads a file knows which it is; nobody above does. Where there is no file there is nothing to read.
        let named = match scan.try_swapping_with_projection(&named)? {
            Some(named) => named,
            None => Arc::new(named),
        };
        let at = files.fields().len();
        let whole = vec![
            lit(self.store.as_str()),
            Arc::new(Column::new(name, at)) as _,
        ];
        let whole = ProjectionExpr::new(call(concat(), whole, &named.schema())?, name);
        let mut columns = columns();
        let in_order = wanted.iter().filter_map(|at| match *at == self.place() {
            true => Some(whole.clone()),
            false => columns.next(),
        });
        Ok(Arc::new(ProjectionExec::try_new(
            in_order.collect::<Vec<_>>(),
            named,
        )?))
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        let name = self.schema.field(self.place()).name();
        let supported = filters.iter().map(|filter| {
            let of_files = !filter
                .column_refs()
                .iter()
                .any(|column| column.name == *name);
            Ok(match of_files {
                true => self.files.supports_filters_pushdown(&[filter])?.pop(),
                false => None,
            })
        });
        let supported = supported.collect::<Result<Vec<_>>>()?.into_iter();
        let none = TableProviderFilterPushDown::Unsupported;
        Ok(supported.map(|how| how.unwrap_or(none.clone())).collect())
    }
}
