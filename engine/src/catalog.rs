//! The database's catalog as DataFusion sees it.
//!
//! Names are looked up in the database each time, so that a session sees what other sessions
//! commit; in a transaction, as that sees it. Temporary views and external tables belong to the session that made them; they live
//! beside the tables on flash and can't take or hide their names.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::catalog::{CatalogProvider, SchemaProvider, TableProvider};
use datafusion::common::{exec_err, plan_err};
use datafusion::datasource::TableType;
use datafusion::error::Result;
use flashmesh_macros::async_impl;
use flashmesh_planner::{Authority, FlashTable, NamedTable};
use flashmesh_storage::StorageError;
use flashmesh_storage::capability::{Capability, KernelRights, Right, Rights, Subject};
use flashmesh_storage::node::{CAPABILITY_LIFETIME, StorageNode};
use flashmesh_storage::table::{
    Database, TEMPORARY_SCHEMA, TableSnapshot, View, Workspace, is_temporary,
};
use parking_lot::RwLock;

use crate::grants::Principal;
use crate::names::SYSTEM_SCHEMA;
use crate::queries::Queries;
use crate::system::SystemSchema;
use crate::views::ViewPlanner;

/// Seals what is granted to a session's user.
#[derive(Debug)]
pub(crate) struct GrantedAuthority {
    node: Arc<StorageNode>,
    workspace: Arc<Workspace>,
    principal: Arc<Principal>,
}

impl Authority for GrantedAuthority {
    fn capability(&self, table: &TableSnapshot) -> Arc<Capability> {
        let (schema, name) = table.name.split_once('.').unwrap_or(("", &table.name));
        let rights = self.rights(schema, name);
        let kernels = match rights.has(Right::Kernel) {
            true => self.kernels(),
            false => KernelRights::None,
        };
        Arc::new(self.seal(table.id, rights, kernels))
    }

    fn may_use(&self, function: &str) -> bool {
        self.principal.may_use(function)
    }
}

impl GrantedAuthority {
    /// What the user may do with the name of a table, whether there is one.
    pub fn of_name(&self, schema: &str, table: &str) -> Capability {
        let rights = self.rights(schema, table);
        self.seal(Subject::name(schema, table), rights, KernelRights::None)
    }

    /// What the user may do with the name of a function.
    pub fn of_function(&self, name: &str) -> Capability {
        let rights = match self.principal.check_create_function(name) {
            Ok(()) => Rights::default().with(Right::Create),
            Err(_) => Rights::default(),
        };
        self.seal(Subject::function(name), rights, KernelRights::None)
    }

    /// What the user may do with accounts; with their own password, if that is all that they change.
    pub fn of_accounts(&self, is_own_password: bool) -> Capability {
        let rights = match self.principal.admin || is_own_password {
            true => Rights::default().with(Right::Create),
            false => Rights::default(),
        };
        self.seal(Subject::Accounts, rights, KernelRights::None)
    }

    /// Those of the session: of temporary tables it has its own alone.
    fn rights(&self, schema: &str, table: &str) -> Rights {
        match self.workspace.is_of_another(schema) {
            true => Rights::default(),
            false => self.principal.rights(schema, table),
        }
    }

    fn seal(&self, of: impl Into<Subject>, rights: Rights, kernels: KernelRights) -> Capability {
        let name = Arc::clone(&self.principal.name);
        let key = self.node.capability_key();
        key.seal(name, of, rights, kernels, CAPABILITY_LIFETIME)
    }

    /// The kernels that the user may run.
    fn kernels(&self) -> KernelRights {
        if self.principal.admin {
            return KernelRights::All;
        }
        let functions = self.node.kernels().map(|kernels| kernels.functions());
        let usable = functions.iter().flat_map(|functions| functions.iter());
        let mut digests: Vec<[u8; 32]> = usable
            .filter(|function| self.principal.may_use(&function.entry.name))
            .map(|function| function.entry.digest)
            .collect();
        digests.sort_unstable();
        KernelRights::These(digests.into())
    }
}

/// The catalog `flashmesh` of one session.
#[derive(Debug)]
pub(crate) struct FlashCatalog {
    workspace: Arc<Workspace>,
    node: Arc<StorageNode>,
    principal: Arc<Principal>,
    authority: Arc<GrantedAuthority>,
    queries: Arc<Queries>,
    views: Arc<ViewPlanner>,
    schemas: RwLock<HashMap<String, Arc<FlashSchema>>>,
}

impl FlashCatalog {
    pub(crate) fn new(
        database: Arc<Database>,
        node: Arc<StorageNode>,
        queries: Arc<Queries>,
        principal: Arc<Principal>,
    ) -> Self {
        let workspace = Arc::new(Workspace::new(database));
        Self {
            workspace: Arc::clone(&workspace),
            queries,
            authority: Arc::new(GrantedAuthority {
                node: Arc::clone(&node),
                workspace,
                principal: Arc::clone(&principal),
            }),
            node,
            principal,
            views: Arc::default(),
            schemas: RwLock::default(),
        }
    }

    /// What the session sees of the database, and does to it.
    pub(crate) fn workspace(&self) -> &Arc<Workspace> {
        &self.workspace
    }

    fn database(&self) -> &Arc<Database> {
        self.workspace.database()
    }

    /// What plans the views of the database.
    pub(crate) fn views(&self) -> &ViewPlanner {
        &self.views
    }

    /// What the session may do, stated for the store.
    pub(crate) fn authority(&self) -> &Arc<GrantedAuthority> {
        &self.authority
    }

    /// Whether the database has a schema that the user may know of.
    fn has_schema(&self, name: &str) -> bool {
        !self.workspace.is_of_another(name)
            && self.principal.sees_schema(name)
            && self.workspace.has_schema(name)
    }

    /// The schema, if the database has it and the user may know of it; that of the session's temporary
    /// tables by either name.
    pub(crate) fn flash_schema(&self, name: &str) -> Option<Arc<FlashSchema>> {
        let name = match name {
            TEMPORARY_SCHEMA => self.workspace.place_of(name, ""),
            _ => name,
        };
        if !self.has_schema(name) {
            // What the session has of its own there may be seen again after a ROLLBACK.
            if !self.workspace.is_in_transaction() {
                self.schemas.write().remove(name);
            }
            return None;
        }
        if let Some(schema) = self.schemas.read().get(name) {
            return Some(Arc::clone(schema));
        }
        let schema = self
            .schemas
            .write()
            .entry(name.to_string())
            .or_insert_with(|| {
                Arc::new(FlashSchema {
                    name: name.to_string(),
                    workspace: Arc::clone(&self.workspace),
                    node: Arc::clone(&self.node),
                    principal: Arc::clone(&self.principal),
                    authority: Arc::clone(&self.authority),
                    views: Arc::clone(&self.views),
                    session_tables: RwLock::default(),
                })
            })
            .clone();
        Some(schema)
    }
}

impl CatalogProvider for FlashCatalog {
    fn schema_names(&self) -> Vec<String> {
        let mut names = self.workspace.schemas();
        names.retain(|name| self.principal.sees_schema(name));
        if !names.iter().any(|name| name == SYSTEM_SCHEMA) {
            names.push(SYSTEM_SCHEMA.into());
        }
        let has_temporary = self.workspace.temporary_schema().is_some();
        if has_temporary && !names.iter().any(|name| name == TEMPORARY_SCHEMA) {
            names.push(TEMPORARY_SCHEMA.into());
        }
        names
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        // A database may have a schema of that name from before there was this one.
        if name == SYSTEM_SCHEMA && !self.has_schema(name) {
            return Some(Arc::new(SystemSchema::new(
                Arc::clone(self.database()),
                self.node.kernels().cloned(),
                Arc::clone(&self.queries),
                Arc::clone(&self.principal),
            )));
        }
        Some(self.flash_schema(name)? as _)
    }
}

/// A schema: tables on flash, views, and the session's own views and external tables.
#[derive(Debug)]
pub(crate) struct FlashSchema {
    name: String,
    workspace: Arc<Workspace>,
    node: Arc<StorageNode>,
    principal: Arc<Principal>,
    authority: Arc<GrantedAuthority>,
    views: Arc<ViewPlanner>,
    session_tables: RwLock<HashMap<String, Arc<dyn TableProvider>>>,
}

impl FlashSchema {
    /// Whether it has something of that name: a table, a view, or one of the session.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.is_on_flash(name) || self.has_view(name) || self.session_table(name).is_some()
    }

    /// Whether a table of that name is on flash and the user may know of it.
    pub(crate) fn is_on_flash(&self, table: &str) -> bool {
        self.snapshot(table).is_ok()
    }

    /// The newest version of a table on flash of which the user may know.
    ///
    /// # Errors
    /// `NotFound`, whether there is none or they may not know of it.
    pub(crate) fn snapshot(&self, table: &str) -> flashmesh_storage::Result<Arc<TableSnapshot>> {
        match self.principal.sees(&self.name, table) {
            true => self.workspace.snapshot(&self.name, table),
            false => Err(StorageError::NotFound {
                kind: "table",
                name: format!("{}.{table}", self.name),
            }),
        }
    }

    /// A table on flash.
    ///
    /// # Errors
    /// As [`FlashSchema::snapshot`].
    pub(crate) fn flash_table(&self, name: &str) -> crate::error::Result<FlashTable> {
        let snapshot = self.snapshot(name)?;
        Ok(self.flash_table_at(name, snapshot)?)
    }

    /// The session's temporary table that is looked for here.
    fn temporary(&self, name: &str) -> Result<Option<FlashTable>> {
        let place = self.workspace.place_of(&self.name, name);
        if place == self.name {
            return Ok(None);
        }
        let snapshot = self.workspace.snapshot(place, name);
        let snapshot = snapshot.map_err(crate::Error::from)?;
        self.flash_table_in(place, name, snapshot).map(Some)
    }

    fn flash_table_at(&self, name: &str, snapshot: Arc<TableSnapshot>) -> Result<FlashTable> {
        self.flash_table_in(&self.name, name, snapshot)
    }

    fn flash_table_in(
        &self,
        schema: &str,
        name: &str,
        snapshot: Arc<TableSnapshot>,
    ) -> Result<FlashTable> {
        let (workspace, node) = (Arc::clone(&self.workspace), Arc::clone(&self.node));
        let authority = Arc::clone(&self.authority) as _;
        let name = (schema.to_string(), name.to_string());
        let defaults = self.views.defaults(self.workspace.database(), &snapshot)?;
        let table = NamedTable::new(workspace, node, authority, name, snapshot);
        Ok(FlashTable::new(table).with_defaults(defaults))
    }

    /// The view of that name, if the session may know of it.
    fn view(&self, name: &str) -> Option<Arc<View>> {
        let view = self.workspace.view(&self.name, name);
        view.filter(|_| self.principal.sees(&self.name, name))
    }

    /// Whether there is a view of that name in the database that the session may know of.
    pub(crate) fn has_view(&self, name: &str) -> bool {
        self.view(name).is_some()
    }

    /// Makes `table` the session's of that name.
    pub(crate) fn replace_session_table(&self, name: String, table: Arc<dyn TableProvider>) {
        self.session_tables.write().insert(name, table);
    }

    /// Forgets the session's view or external table of that name.
    pub(crate) fn forget_session_table(&self, name: &str) {
        self.session_tables.write().remove(name);
    }

    /// The session's view or external table of that name.
    pub(crate) fn session_table(&self, name: &str) -> Option<Arc<dyn TableProvider>> {
        self.session_tables.read().get(name).cloned()
    }
}

#[async_impl]
impl SchemaProvider for FlashSchema {
    fn table_names(&self) -> Vec<String> {
        let mut names = self.workspace.tables(&self.name);
        names.extend(self.workspace.views(&self.name));
        names.retain(|table| self.principal.sees(&self.name, table));
        names.extend(self.session_tables.read().keys().cloned());
        names.sort();
        names.dedup();
        names
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        if let Some(table) = self.temporary(name)? {
            return Ok(Some(Arc::new(table)));
        }
        match self.snapshot(name) {
            Ok(snapshot) => {
                let table = self.flash_table_at(name, snapshot)?;
                Ok(Some(Arc::new(table)))
            }
            Err(StorageError::NotFound { .. }) => {
                if let Some(table) = self.session_table(name) {
                    return Ok(Some(table));
                }
                match self.view(name) {
                    Some(view) => Ok(Some(self.views.table(&view).await?)),
                    None => Ok(None),
                }
            }
            Err(error) => Err(crate::Error::from(error).into()),
        }
    }

    fn register_table(
        &self,
        name: String,
        table: Arc<dyn TableProvider>,
    ) -> Result<Option<Arc<dyn TableProvider>>> {
        if self.is_on_flash(&name) {
            return plan_err!(
                "table '{name}' already exists on flash; choose another name, or DROP TABLE {name} first"
            );
        }
        if self.workspace.view(&self.name, &name).is_some() {
            return plan_err!("view '{name}' already exists; choose another name");
        }
        let mut tables = self.session_tables.write();
        if tables.contains_key(&name) {
            return plan_err!("'{name}' already exists in this session; drop it first");
        }
        tables.insert(name, table);
        Ok(None)
    }

    /// Forgets a view or external table. A table on flash goes by DROP TABLE only, never as the
    /// side effect of a replaced view.
    fn deregister_table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        if self.is_on_flash(name) {
            return exec_err!("table '{name}' is on flash; it is removed by DROP TABLE {name}");
        }
        Ok(self.session_tables.write().remove(name))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.workspace.place_of(&self.name, name) != self.name
            || self.is_on_flash(name)
            || self.session_tables.read().contains_key(name)
            || self.view(name).is_some()
    }

    /// Without a look into views, one of which may be broken.
    async fn table_type(&self, name: &str) -> Result<Option<TableType>> {
        if self.workspace.place_of(&self.name, name) != self.name {
            return Ok(Some(TableType::Temporary));
        }
        if self.is_on_flash(name) {
            return Ok(Some(match is_temporary(&self.name) {
                true => TableType::Temporary,
                false => TableType::Base,
            }));
        }
        let of_session = self.session_table(name).map(|table| table.table_type());
        Ok(of_session.or_else(|| self.view(name).map(|_| TableType::View)))
    }
}
