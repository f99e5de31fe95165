//! Our catalog as the wheel's sessions see it: tables and views by name.

use std::fmt;
use std::sync::Arc;

use datafusion::catalog::{CatalogProvider, SchemaProvider, TableProvider};
use datafusion::common::{Result, TableReference, plan_datafusion_err};
use datafusion::error::DataFusionError;
use flashmesh_macros::async_impl;

use flashmesh::{CATALOG, Session};

use crate::link::Link;
use crate::table::QueryTable;

/// The catalog of an open database; empty once it is closed.
#[derive(Debug)]
pub(crate) struct LinkedCatalog {
    pub(crate) link: Arc<Link>,
}

impl LinkedCatalog {
    fn inner(&self) -> Option<Arc<dyn CatalogProvider>> {
        catalog(&self.link.session().ok()?)
    }
}

fn catalog(session: &Session) -> Option<Arc<dyn CatalogProvider>> {
    session.context().catalog(CATALOG)
}

impl CatalogProvider for LinkedCatalog {
    fn schema_names(&self) -> Vec<String> {
        self.inner()
            .map(|catalog| catalog.schema_names())
            .unwrap_or_default()
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        self.inner()?.schema(name)?;
        Some(Arc::new(LinkedSchema {
            link: Arc::clone(&self.link),
            name: name.into(),
        }))
    }
}

struct LinkedSchema {
    link: Arc<Link>,
    name: String,
}

impl fmt::Debug for LinkedSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkedSchema")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl LinkedSchema {
    fn open(&self) -> Result<Arc<dyn SchemaProvider>> {
        let session = self.link.session()?;
        let schema = catalog(&session).and_then(|catalog| catalog.schema(&self.name));
        schema.ok_or_else(|| plan_datafusion_err!("there is no schema '{}'", self.name))
    }

    fn inner(&self) -> Option<Arc<dyn SchemaProvider>> {
        self.open().ok()
    }
}

#[async_impl]
impl SchemaProvider for LinkedSchema {
    fn table_names(&self) -> Vec<String> {
        self.inner()
            .map(|schema| schema.table_names())
            .unwrap_or_default()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>, DataFusionError> {
        let session = self.link.session()?;
        if !self.table_exist(name) {
            return Ok(None);
        }
        let table = TableReference::full(CATALOG, self.name.as_str(), name);
        let plan = session.context().table(table).await?.logical_plan().clone();
        Ok(Some(QueryTable::try_new(&self.link, plan)?))
    }

    /// What the wheel's session registers is a table of ours too, which SQL sees.
    fn register_table(
        &self,
        name: String,
        table: Arc<dyn TableProvider>,
    ) -> Result<Option<Arc<dyn TableProvider>>> {
        self.open()?.register_table(name, table)
    }

    fn deregister_table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        self.open()?.deregister_table(name)
    }

    fn table_exist(&self, name: &str) -> bool {
        self.inner().is_some_and(|schema| schema.table_exist(name))
    }
}
