//! Changes of a database on behalf of its users: each comes with the capability under which it is
//! made, and is refused where that does not hold, whatever path it came by. Reading has
//! [`StorageNode::submit`](crate::node::StorageNode::submit) for that.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::Schema;
use bytes::Bytes;

use crate::capability::{Capability, Right, Subject};
use crate::functions::UserFunction;
use crate::index::IndexDefinition;
use crate::kernel::Package;
use crate::node::StorageNode;
use crate::table::{
    Accounts, Backup, BackupFiles, BackupProgress, Check, Database, FsckProgress, FsckReport, Load,
    LoadTarget, TableSnapshot, View, Workspace,
};
use crate::{Result, StorageError};

/// The way to change a database.
#[derive(Debug, Clone)]
pub struct Changes {
    node: Arc<StorageNode>,
    workspace: Arc<Workspace>,
}

impl Changes {
    /// Changes of a session's workspace, under capabilities that `node`'s key sealed.
    pub fn new(node: Arc<StorageNode>, workspace: Arc<Workspace>) -> Self {
        Self { node, workspace }
    }

    fn verify(&self, capability: &Capability, of: &Subject, right: Right) -> Result<()> {
        self.node.capability_key().verify(capability, of, right)
    }

    /// The database, for a statement that is no part of a transaction.
    fn outside(&self, statement: &str) -> Result<&Arc<Database>> {
        self.workspace.outside_of_transaction(statement)
    }

    fn verify_table(&self, capability: &Capability, table: &TableSnapshot) -> Result<()> {
        self.verify(capability, &table.id.into(), Right::Create)
    }

    /// Starts a load. A new table takes the right to create its name; more or other rows take the
    /// right to write the table.
    ///
    /// # Errors
    /// `Denied`; what [`Database::begin_load`] says.
    pub fn begin_load(&self, capability: &Capability, target: LoadTarget) -> Result<Load> {
        if let LoadTarget::Create { schema, table, .. } = &target {
            self.verify(capability, &Subject::name(schema, table), Right::Create)?;
            return self.workspace.begin_load(target);
        }
        if let LoadTarget::Redefine { version, .. } = &target {
            self.verify_table(capability, version)?;
            return self.workspace.begin_load(target);
        }
        // The table is the one that the load found, so that it can't be another one by then.
        let load = self.workspace.begin_load(target)?;
        self.verify(capability, &load.table().into(), Right::Write)?;
        Ok(load)
    }

    /// Makes a schema, which takes the right to create any table of it.
    ///
    /// # Errors
    /// `Denied`; what [`Workspace::create_schema`] says.
    pub fn create_schema(&self, capability: &Capability, name: &str) -> Result<()> {
        self.verify(capability, &Subject::name(name, "*"), Right::Create)?;
        self.workspace.create_schema(name)
    }

    /// Drops an empty schema, as [`Changes::create_schema`] makes one.
    ///
    /// # Errors
    /// `Denied`; what [`Workspace::drop_schema`] says.
    pub fn drop_schema(&self, capability: &Capability, name: &str) -> Result<()> {
        self.verify(capability, &Subject::name(name, "*"), Right::Create)?;
        self.workspace.drop_schema(name)
    }

    /// Makes a view, which takes the right to create its name.
    ///
    /// # Errors
    /// `Denied`; what [`Workspace::create_view`] says.
    pub fn create_view(&self, capability: &Capability, view: View, or_replace: bool) -> Result<()> {
        let name = Subject::name(&view.schema, &view.name);
        self.verify(capability, &name, Right::Create)?;
        self.workspace.create_view(view, or_replace)
    }

    /// Drops a view, as [`Changes::create_view`] makes one.
    ///
    /// # Errors
    /// `Denied`; what [`Workspace::drop_view`] says.
    pub fn drop_view(&self, capability: &Capability, schema: &str, name: &str) -> Result<()> {
        self.verify(capability, &Subject::name(schema, name), Right::Create)?;
        self.workspace.drop_view(schema, name)
    }

    /// Drops a table.
    ///
    /// # Errors
    /// `Denied`; what [`Workspace::drop_table`] says.
    pub fn drop_table(&self, capability: &Capability, schema: &str, table: &str) -> Result<()> {
        let found = self.workspace.snapshot(schema, table)?;
        self.verify_table(capability, &found)?;
        self.workspace.drop_table(schema, table)
    }

    /// Rewrites the segments of a table as few and full ones, which takes the right to write it.
    ///
    /// # Errors
    /// `Denied`; what [`Database::compact`] says.
    pub fn compact(&self, capability: &Capability, schema: &str, table: &str) -> Result<()> {
        let database = self.outside("VACUUM")?;
        let found = database.snapshot(schema, table)?;
        self.verify(capability, &found.id.into(), Right::Write)?;
        database.compact(schema, table)
    }

    /// Puts `text` in the place of all accounts, which takes the right to create them; FALSE where they
    /// are others by now than `from`.
    ///
    /// # Errors
    /// `Denied`; `Invalid` in a transaction; `ReadOnly`, `Full`, `Io`; `Corrupt`; `NeedsReopening`.
    pub fn put_accounts(
        &self,
        capability: &Capability,
        from: &Accounts,
        text: String,
    ) -> Result<bool> {
        let database = self.outside("a change of users, roles or grants")?;
        self.verify(capability, &Subject::Accounts, Right::Create)?;
        database.put_accounts(from, text)
    }

    /// Backs the database up, which takes the right to read all that it has.
    ///
    /// # Errors
    /// `Denied`; what [`Database::backup`] says.
    pub fn backup(
        &self,
        capability: &Capability,
        files: &dyn BackupFiles,
        keep: Option<u32>,
        progress: &mut dyn FnMut(BackupProgress) -> Result<()>,
    ) -> Result<Backup> {
        let database = self.outside("BACKUP")?;
        self.verify(capability, &Subject::name("*", "*"), Right::Read)?;
        database.backup(files, keep, progress)
    }

    /// Checks all pages of the database, which takes the right to read all that it has.
    ///
    /// # Errors
    /// `Denied`; what [`Database::fsck`] says.
    pub fn check(
        &self,
        capability: &Capability,
        progress: &mut dyn FnMut(FsckProgress) -> Result<()>,
    ) -> Result<FsckReport> {
        self.verify(capability, &Subject::name("*", "*"), Right::Read)?;
        self.outside("CHECK")?.fsck(progress)
    }

    /// Gives a table another name in its schema, which takes the right to create it.
    ///
    /// # Errors
    /// `Denied`; what [`Workspace::rename_table`] says.
    pub fn rename_table(
        &self,
        capability: &Capability,
        schema: &str,
        table: &str,
        to: &str,
    ) -> Result<()> {
        let found = self.workspace.snapshot(schema, table)?;
        self.verify_table(capability, &found)?;
        self.workspace.rename_table(schema, table, to)
    }

    /// Sets for how long past versions of a table stay readable, which takes the right to create it.
    ///
    /// # Errors
    /// `Denied`; what [`Workspace::set_retention`] says.
    pub fn set_retention(
        &self,
        capability: &Capability,
        schema: &str,
        table: &str,
        retention: Duration,
    ) -> Result<()> {
        let found = self.workspace.snapshot(schema, table)?;
        self.verify_table(capability, &found)?;
        self.workspace.set_retention(schema, table, retention)
    }

    /// Sets what is said of a table, which takes the right to create it.
    ///
    /// # Errors
    /// `Denied`; what [`Workspace::set_comment`] says.
    pub fn set_comment(
        &self,
        capability: &Capability,
        schema: &str,
        table: &str,
        comment: &str,
    ) -> Result<()> {
        let found = self.workspace.snapshot(schema, table)?;
        self.verify_table(capability, &found)?;
        self.workspace.set_comment(schema, table, comment)
    }

    /// Changes the columns of a table, which takes the right to create it.
    ///
    /// # Errors
    /// `Denied`; what [`Workspace::redefine_columns`] says.
    pub fn redefine_columns(
        &self,
        capability: &Capability,
        version: &Arc<TableSnapshot>,
        columns: &Schema,
        defaults: &[Option<String>],
        checks: &[Check],
    ) -> Result<()> {
        self.verify_table(capability, version)?;
        self.workspace
            .redefine_columns(version, columns, defaults, checks)
    }

    /// Makes an index. Who may not read the table does not learn its keys from the error.
    ///
    /// # Errors
    /// `Denied`; what [`Database::create_index`] says.
    pub fn create_index(
        &self,
        capability: &Capability,
        schema: &str,
        table: &str,
        definition: IndexDefinition,
    ) -> Result<()> {
        let found = self.workspace.snapshot(schema, table)?;
        self.verify_table(capability, &found)?;
        let made = self.workspace.create_index(schema, table, definition);
        match made {
            Err(error @ StorageError::DuplicateKey { .. })
                if !capability.rights.has(Right::Read) =>
            {
                Err(error.without_values())
            }
            made => made,
        }
    }

    /// Drops an index.
    ///
    /// # Errors
    /// `Denied`; what [`Database::drop_index`] says.
    pub fn drop_index(&self, capability: &Capability, schema: &str, name: &str) -> Result<()> {
        let (_, table, _) = self.workspace.index(schema, name)?;
        self.verify_table(capability, &table)?;
        self.workspace.drop_index(schema, name)
    }

    /// Makes a function of a package, for the principal of the capability, which is of the
    /// function's name.
    ///
    /// # Errors
    /// `Denied`; what [`Kernels::create`](crate::functions::Kernels::create) says.
    pub fn create_function(
        &self,
        capability: &Capability,
        package: Bytes,
        is_admin: bool,
        or_replace: bool,
        may_use: impl Fn(&str) -> bool,
    ) -> Result<Arc<UserFunction>> {
        let name = Package::parse(package.clone())?.manifest.name;
        self.verify(capability, &Subject::function(&name), Right::Create)?;
        let kernels = self.node.kernels();
        let kernels =
            kernels.ok_or_else(|| StorageError::Invalid("this database runs no kernels".into()))?;
        self.outside("CREATE FUNCTION")?;
        kernels.create(
            package,
            &capability.principal,
            is_admin,
            or_replace,
            may_use,
        )
    }

    /// Drops a function, which must be the principal's own unless that is an admin.
    ///
    /// # Errors
    /// `Denied`; what [`Database::drop_function`] says.
    pub fn drop_function(&self, capability: &Capability, name: &str, is_admin: bool) -> Result<()> {
        self.verify(capability, &Subject::function(name), Right::Create)?;
        let owner = (!is_admin).then_some(&*capability.principal);
        self.outside("DROP FUNCTION")?.drop_function(name, owner)
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;
    use crate::capability::{KernelRights, Rights};
    use crate::index::IndexKind;
    use crate::table::DatabaseOptions;

    fn changes(folder: &std::path::Path) -> Changes {
        let database = Database::open(folder, DatabaseOptions::default()).unwrap();
        let node = StorageNode::new(Arc::clone(database.store()));
        Changes::new(node, Arc::new(Workspace::new(database)))
    }

    fn create(table: &str) -> LoadTarget {
        LoadTarget::Create {
            layout: Default::default(),
            distribution: None,
            retention: Duration::ZERO,
            defaults: vec![],
            checks: vec![],
            schema: "public".into(),
            table: table.into(),
            arrow_schema: Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, true)])),
            or_replace: true,
            indexes: vec![],
        }
    }

    fn named(table: &str) -> (String, String) {
        ("public".into(), table.into())
    }

    fn is_denied<T: std::fmt::Debug>(result: &Result<T>) -> bool {
        matches!(result, Err(StorageError::Denied(_)))
    }

    #[test]
    fn every_change_takes_its_own_right() {
        let folder = tempfile::tempdir().unwrap();
        let changes = changes(folder.path());
        let seal = |of: Subject, rights: &[Right]| {
            let key = changes.node.capability_key();
            let rights = rights.iter().fold(Rights::default(), |all, r| all.with(*r));
            key.seal(
                "ada".into(),
                of,
                rights,
                KernelRights::All,
                Duration::from_secs(60),
            )
        };
        let index = || IndexDefinition {
            name: "i".into(),
            kind: IndexKind::Hash,
            columns: vec![0],
            unique: false,
            primary: false,
            options: Default::default(),
        };
        let others = [Right::Read, Right::Write, Right::Kernel];
        let name = Subject::name("public", "t");

        for capability in [
            seal(name.clone(), &others),
            seal(Subject::name("public", "u"), &[Right::Create]),
            seal(Subject::function("t"), &[Right::Create]),
        ] {
            assert!(is_denied(&changes.begin_load(&capability, create("t"))));
        }
        let create_name = seal(name, &[Right::Create]);
        changes
            .begin_load(&create_name, create("t"))
            .unwrap()
            .commit()
            .unwrap();

        let table = || {
            Subject::from(
                changes
                    .workspace
                    .database()
                    .snapshot("public", "t")
                    .unwrap()
                    .id,
            )
        };
        let (schema, name) = named("t");
        let append = || LoadTarget::Append {
            schema: schema.clone(),
            table: name.clone(),
        };
        let overwrite = || LoadTarget::Overwrite {
            schema: schema.clone(),
            table: name.clone(),
        };
        let reader = seal(table(), &[Right::Read, Right::Create, Right::Kernel]);
        for capability in [&create_name, &reader] {
            assert!(is_denied(&changes.begin_load(capability, append())));
            assert!(is_denied(&changes.begin_load(capability, overwrite())));
        }
        let writer = seal(table(), &others);
        drop(changes.begin_load(&writer, append()).unwrap());
        drop(changes.begin_load(&writer, overwrite()).unwrap());

        for capability in [&writer, &create_name] {
            assert!(is_denied(&changes.create_index(
                capability,
                "public",
                "t",
                index()
            )));
            assert!(is_denied(&changes.drop_table(capability, "public", "t")));
        }
        let maker = seal(table(), &[Right::Create]);
        changes
            .create_index(&maker, "public", "t", index())
            .unwrap();
        assert!(is_denied(&changes.drop_index(&writer, "public", "i")));
        changes.drop_index(&maker, "public", "i").unwrap();

        // A capability of a table is not one of the table that takes its place.
        changes
            .begin_load(&create_name, create("t"))
            .unwrap()
            .commit()
            .unwrap();
        assert!(is_denied(&changes.begin_load(&writer, append())));
        assert!(is_denied(&changes.drop_table(&maker, "public", "t")));
        changes
            .drop_table(&seal(table(), &[Right::Create]), "public", "t")
            .unwrap();

        assert!(is_denied(&changes.create_schema(&create_name, "s")));
        let schema = seal(Subject::name("s", "*"), &[Right::Create]);
        changes.create_schema(&schema, "s").unwrap();
        assert!(is_denied(&changes.drop_schema(&create_name, "s")));
        changes.drop_schema(&schema, "s").unwrap();

        assert!(is_denied(&changes.drop_function(&create_name, "f", false)));
        let mut forged = seal(Subject::function("f"), &[Right::Create]);
        forged.principal = "eve".into();
        assert!(is_denied(&changes.drop_function(&forged, "f", false)));
        let function = seal(Subject::function("f"), &[Right::Create]);
        let missing = changes.drop_function(&function, "f", false);
        assert!(
            matches!(missing, Err(StorageError::NotFound { .. })),
            "{missing:?}"
        );
    }
}
