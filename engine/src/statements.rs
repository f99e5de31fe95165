//! Statements that change the database. DataFusion would keep their tables in memory; here they
//! go to flash, and what flashmesh does not do yet is refused rather than half done.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::catalog::SchemaProvider;
use datafusion::common::{ResolvedTableReference, SchemaReference, TableReference};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::TableType;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{
    CreateCatalogSchema, DdlStatement, DropCatalogSchema, DropTable, LogicalPlan,
    LogicalPlanBuilder, Statement,
};
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast;
use flashmesh_planner::{Authority, FlashmeshOptions};
use flashmesh_storage::StorageError;
use flashmesh_storage::capability::Right;
use flashmesh_storage::changes::Changes;
use flashmesh_storage::table::{TEMPORARY_SCHEMA, Workspace, is_temporary};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt};

use crate::Session;
use crate::assign::{assign, mark_casts};
use crate::blocking::blocking;
use crate::catalog::FlashSchema;
use crate::change;
use crate::clauses::Calls;
use crate::constraints::{take_checks, with_checks};
use crate::create_table::{declared_not_null, with_declared};
use crate::dml::nullable_values;
use crate::error::{Error, Result};
use crate::files::parse_path;
use crate::gate;
use crate::generated;
use crate::information_schema::{described_table, with_description};
use crate::literal_rows::LiteralRows;
use crate::macros::parsed_macro;
use crate::merge;
use crate::names::{CATALOG, DEFAULT_SCHEMA, SYSTEM_SCHEMA};
use crate::own_statement::OwnStatement;
use crate::parameters::Values;
use crate::parse::parse;
use crate::pragmas::parsed_pragma;
use crate::procedures::{parsed_call, parsed_explain_rack, parsed_summarize, parsed_variable};
use crate::returning::{Returning, take_returning};
use crate::same_names;
use crate::settings;
use crate::settled_types::{declares_columns, with_settled_types};
use crate::show_functions;
use crate::summarize;
use crate::system::parsed_kill;
use crate::table_options::TableOptions;
use crate::transactions::parsed_transaction;
use crate::upsert::{on_conflict, take_on_conflict};
use crate::views;
use crate::walk::walk_statement;
use crate::whole_files::Draft;
use crate::written_types::with_known_types;

impl Session {
    /// Runs SQL: one statement, or several separated by semicolons, of which all but the last
    /// are run to their end.
    ///
    /// A query runs when its [`DataFrame`] is collected or streamed; everything else (CREATE,
    /// INSERT, COPY, SET, …) has happened when this returns.
    ///
    /// # Errors
    /// [`Error::Query`] for what can't be parsed, planned or run, [`Error::Storage`] for what
    /// the database refused, [`Error::Usage`] for no statement at all and for what flashmesh
    /// does not do. Statements before the one that failed have happened.
    pub fn sql<'a>(&'a self, query: &'a str) -> BoxFuture<'a, Result<DataFrame>> {
        // A box, and no `async fn`, so that what all statements do is compiled in this crate alone; so of
        // those below. The binary, the Python module and each of the tests had it for themselves.
        async move { self.run_script(self.parse(query)?).await }.boxed()
    }

    /// [`Session::sql`], its rows computed to their end and dropped.
    ///
    /// # Errors
    /// Those of [`Session::sql`], and what goes wrong with the rows.
    pub fn run<'a>(&'a self, query: &'a str) -> BoxFuture<'a, Result<()>> {
        async move { drain(self.sql(query).await?).await }.boxed()
    }

    /// [`Session::sql`] of statements that were parsed.
    ///
    /// # Errors
    /// Those of [`Session::sql`].
    pub fn run_script(&self, script: Vec<ParsedStatement>) -> BoxFuture<'_, Result<DataFrame>> {
        let run = async move {
            let mut last: Option<DataFrame> = None;
            for statement in script {
                if let Some(before) = last.take() {
                    drain(before).await?;
                }
                let plan = self.plan(statement).await?;
                last = Some(self.execute(plan).await?);
            }
            last.ok_or_else(|| Error::usage("there is no statement to run"))
        };
        run.boxed()
    }

    /// Splits SQL into statements, in the session's dialect.
    pub fn parse(&self, query: &str) -> Result<Vec<ParsedStatement>> {
        parse(query, self.options().sql_parser.dialect.as_ref())
    }

    /// Refuses a plan that holds, at any depth, what the session's user may not do.
    ///
    /// # Errors
    /// [`Error::Denied`].
    pub fn admit(&self, plan: &LogicalPlan) -> Result<()> {
        gate::admit(self.principal(), plan)
    }

    /// The plan of a statement, to be run by [`Session::execute`].
    ///
    /// # Errors
    /// [`Error::Query`] for names that are not there, wrong types and the like; [`Error::Denied`]
    /// for what the user may not do; [`Error::Usage`] for what flashmesh does not do.
    pub fn plan(&self, statement: ParsedStatement) -> BoxFuture<'_, Result<LogicalPlan>> {
        async move { self.plan_in(statement, &Values::default()).await }.boxed()
    }

    /// The same of a statement with variables.
    pub(crate) async fn plan_in(
        &self,
        statement: ParsedStatement,
        variables: &Values,
    ) -> Result<LogicalPlan> {
        self.update_functions();
        self.start_statement();
        let mut state = self.context().state();
        variables.declare(&mut state);
        let mut statement = statement;
        if let ParsedStatement::Statement(statement) = &mut statement {
            self.drop_sequences(statement)?;
        }
        self.macros().write_out(&mut statement)?;
        self.write_out_shown(&mut statement, variables).await?;
        self.write_out_pivots(&mut statement, variables).await?;
        self.write_out_limits(&mut statement, variables).await?;
        self.write_out_columns(&mut statement, variables).await?;
        self.write_out_rows(&mut statement, variables).await?;
        self.write_out_fields(&mut statement, variables).await?;
        self.write_out_orders(&mut statement, variables).await;
        self.write_out_names(&mut statement, variables).await?;
        if let ControlFlow::Break(error) = walk_statement(&mut statement, &mut Calls(&state)) {
            return Err(error);
        }
        if let ParsedStatement::Statement(parsed) = &statement {
            if let ast::Statement::Execute { .. } = parsed.as_ref() {
                return self.plan_execute(&state, parsed.as_ref().clone()).await;
            }
            if let ast::Statement::Call(call) = parsed.as_ref()
                && let Some(query) = parsed_summarize(call)?
            {
                let summary = summarize::summary(self, query, variables).await?;
                return Box::pin(self.plan_in(summary, variables)).await;
            }
            if let ast::Statement::Call(call) = parsed.as_ref()
                && let Some((name, value)) = parsed_variable(call)
            {
                return self.plan_variable(name, value, variables).await;
            }
            if let ast::Statement::Pragma { name, value, .. } = parsed.as_ref() {
                let value = value.as_ref().map(|value| &value.value);
                let query = self.query_of_pragma(parsed_pragma(name, value)?)?;
                return Box::pin(self.plan_in(query, variables)).await;
            }
            if let Some(comment) = self.parsed_comment(parsed)? {
                return Ok(comment.into_plan());
            }
            if let Some(own) = self.parsed_own(&state, parsed).await? {
                return Ok(own.into_plan());
            }
            if let ast::Statement::ShowFunctions { filter } = parsed.as_ref() {
                statement = show_functions::query(filter.as_ref())?;
            }
        }
        if let ParsedStatement::Explain(explain) = &mut statement
            && change::is_change(&explain.statement)
        {
            let nothing = self.parse("SELECT 1")?.pop();
            let nothing = nothing.ok_or_else(|| Error::usage("there is no statement to run"))?;
            let change = std::mem::replace(&mut *explain.statement, nothing);
            let change = Box::pin(self.plan_in(change, variables)).await?;
            return change::explaining(state.statement_to_plan(statement).await?, change);
        }
        let (mut conflict, mut returning) = (None, None);
        let (mut identities, mut nothing) = (Vec::new(), Vec::new());
        let (mut options, mut checks) = (None, Vec::new());
        if let ParsedStatement::Statement(statement) = &mut statement {
            returning = take_returning(statement)?;
            self.with_defaults(statement)?;
            identities = generated::take_identities(statement)?;
            options = TableOptions::take(statement)?;
            if let Some(options) = &options {
                options.check_replicas(self.engine().replicas())?;
            }
            checks = take_checks(statement)?;
            if let ast::Statement::Merge(merge) = statement.as_mut()
                && let ast::TableFactor::Table { name, .. } = &merge.table
                && let Some(table) = self.changed_table(name)
            {
                nothing = merge::planned_form(merge, &table)?;
            }
            if let Some(query) = change::all_tables(statement) {
                views::planning(same_names::plan(&state, query)).await?;
            }
            mark_casts(statement);
            change::planned_form(statement);
            conflict = take_on_conflict(statement);
        }
        let not_null = declared_not_null(&statement);
        let declares_columns = declares_columns(&statement);
        let described = described_table(&statement).and_then(|name| self.changed_table(name));
        let plan = plan_literals(&state, statement).await?;
        let mut plan = with_description(plan, described.as_deref())?;
        plan = with_settled_types(plan, declares_columns, &state)?;
        if let Some(not_null) = not_null {
            plan = with_declared(plan, &not_null)?;
        }
        if let Some(options) = options {
            plan = options.put(plan)?;
        }
        plan = with_checks(plan, checks, &state)?;
        plan = generated::with_identities(plan, identities);
        plan = merge::with_nothing(plan, &nothing);
        if let (Some(conflict), LogicalPlan::Dml(insert)) = (conflict, &plan) {
            let rows = assign(nullable_values(insert.input.as_ref().clone())?)?;
            plan = on_conflict(insert.clone(), rows, &conflict, &state)?;
        }
        if let Some(rows) = returning {
            let rows = views::planning(same_names::plan(&state, rows)).await?;
            plan = Returning::plan(plan, rows)?;
        }
        self.admit(&plan)?;
        Ok(plan)
    }

    /// A parsed statement that DataFusion has no plan for.
    async fn parsed_own(
        &self,
        state: &SessionState,
        statement: &ast::Statement,
    ) -> Result<Option<OwnStatement>> {
        Ok(Some(match statement {
            ast::Statement::CreateIndex(create) => {
                OwnStatement::Index(self.parsed_create_index(create)?)
            }
            ast::Statement::Drop {
                object_type: ast::ObjectType::Index,
                if_exists,
                names,
                ..
            } => OwnStatement::Index(self.parsed_drop_index(names, *if_exists)?),
            ast::Statement::Kill { modifier, id } => parsed_kill(modifier.as_ref(), *id)?,
            ast::Statement::Prepare { .. } => {
                OwnStatement::Prepare(self.parsed_prepare(state, statement.clone()).await?)
            }
            ast::Statement::AlterTable(alter) => {
                OwnStatement::Alter(Box::new(self.parsed_alter(alter)?))
            }
            ast::Statement::Call(call) => match parsed_explain_rack(call)? {
                Some(call) => OwnStatement::ExplainRack(self.planned_explain(state, call).await?),
                None => parsed_call(call, &self.options().catalog.default_schema)?,
            },
            ast::Statement::Vacuum(vacuum) => self.parsed_vacuum(vacuum)?,
            ast::Statement::Analyze(analyze) => self.parsed_analyze(analyze)?,
            ast::Statement::CreateMacro { .. } => match parsed_macro(statement)? {
                Some(create) => {
                    self.check_free_macro(state, &create)?;
                    OwnStatement::Macro(create)
                }
                None => return Ok(None),
            },
            other => return Ok(parsed_transaction(other)?.map(OwnStatement::Transaction)),
        }))
    }

    async fn execute_own(&self, statement: OwnStatement) -> Result<DataFrame> {
        match statement {
            OwnStatement::Accounts(statement) => self.change_accounts(*statement).await,
            OwnStatement::Alter(alter) => self.alter_table(*alter).await,
            OwnStatement::Backup(backup) => self.execute_backup(backup).await,
            OwnStatement::Check => self.check_database().await,
            OwnStatement::ClearCache => self.clear_cache(),
            OwnStatement::Comment(statement) => self.set_comment(statement).await,
            OwnStatement::ExplainRack(statement) => self.explain_rack(statement).await,
            OwnStatement::Index(statement) => self.execute_index(statement).await,
            OwnStatement::Kill(id) => {
                let by = self.principal();
                let by = (!by.admin).then_some(by.name.as_ref());
                self.engine().queries().kill(id, by)?;
                self.nothing()
            }
            OwnStatement::Macro(statement) => {
                self.macros().apply(statement)?;
                self.nothing()
            }
            OwnStatement::Nothing(_) => self.nothing(),
            OwnStatement::Prepare(statement) => {
                self.prepare(statement)?;
                self.nothing()
            }
            OwnStatement::Transaction(statement) => self.execute_transaction(statement).await,
            OwnStatement::Vacuum(table) => self.vacuum(table).await,
            OwnStatement::Variable(statement) => self.set_variable(statement).await,
        }
    }

    /// Runs a plan as [`Session::sql`] runs a statement.
    ///
    /// # Errors
    /// As [`Session::sql`].
    pub fn execute(&self, plan: LogicalPlan) -> BoxFuture<'_, Result<DataFrame>> {
        self.execute_plan(plan).boxed()
    }

    async fn execute_plan(&self, plan: LogicalPlan) -> Result<DataFrame> {
        self.admit(&plan)?;
        if let Some(own) = OwnStatement::of(&plan) {
            return self.execute_own(own.clone()).await;
        }
        if let Some(Returning { change, rows }) = Returning::of(&plan)
            && let LogicalPlan::Dml(dml) = change
        {
            return self.execute_dml(dml.clone(), Some(rows)).await;
        }
        match plan {
            LogicalPlan::Ddl(ddl) => self.execute_ddl(ddl).await,
            LogicalPlan::Dml(dml) => self.execute_dml(dml, None).await,
            LogicalPlan::Copy(copy) => {
                settings::check_copy(&copy.options, self.engine().threads())?;
                let mut copy = with_known_types(copy)?;
                let draft = Draft::of(&mut copy);
                let written = self.run_now(LogicalPlan::Copy(copy)).await;
                match draft {
                    Some(draft) => draft.end(written),
                    None => written,
                }
            }
            LogicalPlan::Statement(Statement::SetVariable(_) | Statement::ResetVariable(_)) => {
                self.execute_set(plan).await
            }
            LogicalPlan::Statement(Statement::Deallocate(ref deallocate)) => {
                self.deallocate(&deallocate.name)?;
                self.nothing()
            }
            other => {
                let plan = change::explained(other)?;
                Ok(self.context().execute_logical_plan(plan).await?)
            }
        }
    }

    /// Runs SET or RESET.
    async fn execute_set(&self, plan: LogicalPlan) -> Result<DataFrame> {
        let plan = settings::without_reset(plan)?;
        let name = match &plan {
            LogicalPlan::Statement(Statement::SetVariable(set)) => {
                settings::check_set(self.principal(), set, self.engine().threads())?;
                set.variable.clone()
            }
            LogicalPlan::Statement(Statement::ResetVariable(reset)) => {
                settings::check_name(self.principal(), &reset.variable)?;
                reset.variable.clone()
            }
            _ => return Err(Error::usage("neither SET nor RESET")),
        };
        let done = self.context().execute_logical_plan(plan).await?;
        self.apply_option(&name);
        Ok(done)
    }

    /// Makes an option that was set take effect outside the session.
    fn apply_option(&self, name: &str) {
        if name.eq_ignore_ascii_case("flashmesh.cache_size")
            && let Some(bytes) = FlashmeshOptions::of(&self.options()).cache_size_bytes
        {
            self.engine()
                .database()
                .store()
                .cache()
                .set_capacity_bytes(bytes);
        }
    }

    async fn execute_ddl(&self, ddl: DdlStatement) -> Result<DataFrame> {
        match ddl {
            DdlStatement::CreateMemoryTable(create) => self.create_table(create).await,
            DdlStatement::DropTable(drop) => self.drop_table(drop).await,
            DdlStatement::CreateCatalogSchema(create) => self.create_schema(create).await,
            DdlStatement::DropCatalogSchema(drop) => self.drop_schema(drop).await,
            DdlStatement::CreateCatalog(create) => Err(Error::usage(format!(
                "CREATE DATABASE {} is not supported: a database is a folder; open another one with --db (or flashmesh.connect)",
                create.catalog_name
            ))),
            DdlStatement::CreateFunction(create) => self.create_function(*create).await,
            DdlStatement::DropFunction(drop) => self.drop_function(&drop).await,
            DdlStatement::CreateIndex(create) => self.create_planned_index(create).await,
            DdlStatement::CreateExternalTable(ref create) => {
                self.check_free_on_flash(&create.name, "external table")?;
                // Without columns they are those of the files; with some it may be a place to write to.
                if create.schema.fields().is_empty() {
                    for location in &create.locations {
                        parse_path(location)?;
                    }
                }
                Ok(self
                    .context()
                    .execute_logical_plan(LogicalPlan::Ddl(ddl))
                    .await?)
            }
            DdlStatement::CreateView(create) => self.create_view(create).await,
            DdlStatement::DropView(drop) => self.drop_view(drop).await,
        }
    }

    /// Runs `CLEAR CACHE`.
    fn clear_cache(&self) -> Result<DataFrame> {
        self.principal().check_admin("clear the cache")?;
        if let Some(cache) = self.engine().database().block_cache() {
            cache.clear();
        }
        self.nothing()
    }

    fn parsed_vacuum(&self, vacuum: &ast::VacuumStatement) -> Result<OwnStatement> {
        if vacuum.sort_only
            || vacuum.delete_only
            || vacuum.reindex
            || vacuum.recluster
            || vacuum.threshold.is_some()
            || vacuum.boost
        {
            return Err(Error::usage("VACUUM takes a table or nothing"));
        }
        let named = |name: &ast::ObjectName| {
            let name = object_name_to_table_reference(name.clone(), true)?;
            let name = self.resolve(name);
            self.flash_schema(&name)?.snapshot(&name.table)?;
            Ok::<_, Error>((name.schema.to_string(), name.table.to_string()))
        };
        let table = vacuum.table_name.as_ref().map(named).transpose();
        // The parser takes ANALYZE for a table.
        let is_analyze = |name: &ast::ObjectName| name.to_string().eq_ignore_ascii_case("analyze");
        Ok(OwnStatement::Vacuum(match table {
            Err(_) if vacuum.table_name.as_ref().is_some_and(is_analyze) => None,
            table => table?,
        }))
    }

    /// Rewrites the segments of a table, or of all that the user may write.
    async fn vacuum(&self, table: Option<(String, String)>) -> Result<DataFrame> {
        let database = self.engine().database();
        let is_of_all = table.is_none();
        let tables = match table {
            Some((schema, table)) => {
                self.principal().check(Right::Write, &schema, &table)?;
                vec![(schema, table)]
            }
            None => {
                let schemas = database.schemas();
                let named = schemas.iter().flat_map(|schema| {
                    let tables = database.tables(schema).into_iter();
                    tables.map(|table| (schema.clone(), table))
                });
                let may_write =
                    |(s, t): &(String, String)| self.principal().rights(s, t).has(Right::Write);
                named.filter(may_write).collect()
            }
        };
        for (schema, table) in tables {
            let version = match database.snapshot(&schema, &table) {
                // It was dropped meanwhile.
                Err(StorageError::NotFound { .. }) if is_of_all => continue,
                version => version?,
            };
            let capability = self.catalog().authority().capability(&version);
            let changes = self.changes();
            blocking(move || changes.compact(&capability, &schema, &table)).await?;
        }
        self.nothing()
    }

    async fn drop_table(&self, drop: DropTable) -> Result<DataFrame> {
        let name = self.resolve(drop.name);
        let schema = match self.flash_schema(&name) {
            Ok(schema) => schema,
            Err(_) if drop.if_exists => return self.nothing(),
            Err(error) => return Err(error),
        };
        if schema.is_on_flash(&name.table) {
            self.principal()
                .check(Right::Create, &name.schema, &name.table)?;
            let version = schema.snapshot(&name.table)?;
            let capability = self.catalog().authority().capability(&version);
            let changes = self.changes();
            let (schema, table) = (name.schema.to_string(), name.table.to_string());
            blocking(move || changes.drop_table(&capability, &schema, &table)).await?;
            return self.nothing();
        }
        match schema.table_type(&name.table).await? {
            Some(TableType::View) => Err(Error::usage(format!(
                "'{0}' is a view; use DROP VIEW {0}",
                name.table
            ))),
            Some(_) => {
                schema.deregister_table(&name.table)?;
                self.nothing()
            }
            None if drop.if_exists => self.nothing(),
            None => Err(Error::Storage(StorageError::NotFound {
                kind: "table",
                name: name.table.to_string(),
            })),
        }
    }

    async fn create_schema(&self, create: CreateCatalogSchema) -> Result<DataFrame> {
        let name = match create.schema_name.split_once('.') {
            None => create.schema_name.as_str(),
            Some((CATALOG, name)) if !name.contains('.') => name,
            Some(_) => {
                return Err(Error::usage(format!(
                    "schema '{}' is not in this database; write CREATE SCHEMA name",
                    create.schema_name
                )));
            }
        };
        // The right to make any table of it.
        self.principal().check(Right::Create, name, "*")?;
        let is_taken = ["", "information_schema", SYSTEM_SCHEMA, TEMPORARY_SCHEMA].contains(&name);
        if is_taken || is_temporary(name) {
            return Err(Error::usage(format!(
                "a schema can't be called '{name}'; choose another name"
            )));
        }
        if create.if_not_exists && self.catalog().flash_schema(name).is_some() {
            return self.nothing();
        }
        let capability = self.catalog().authority().of_name(name, "*");
        let (changes, name) = (self.changes(), name.to_string());
        blocking(move || changes.create_schema(&capability, &name)).await?;
        self.nothing()
    }

    async fn drop_schema(&self, drop: DropCatalogSchema) -> Result<DataFrame> {
        let name = match &drop.name {
            SchemaReference::Bare { schema } => schema.to_string(),
            SchemaReference::Full { schema, catalog } if catalog.as_ref() == CATALOG => {
                schema.to_string()
            }
            other => {
                return Err(Error::usage(format!(
                    "schema '{other}' is not in this database"
                )));
            }
        };
        self.principal().check(Right::Create, &name, "*")?;
        let Some(schema) = self.catalog().flash_schema(&name) else {
            if drop.if_exists {
                return self.nothing();
            }
            return Err(Error::Storage(StorageError::NotFound {
                kind: "schema",
                name,
            }));
        };
        if name == TEMPORARY_SCHEMA && !self.workspace().schemas().contains(&name) {
            return Err(Error::usage(
                "temporary tables are dropped one by one, or go with their session",
            ));
        }
        if name == DEFAULT_SCHEMA {
            return Err(Error::usage(format!(
                "schema '{name}' is part of every database and can't be dropped"
            )));
        }
        let names = schema.table_names();
        if !drop.cascade && !names.is_empty() {
            return Err(Error::usage(format!(
                "schema '{name}' is not empty ({}); drop its tables first, or write DROP SCHEMA {name} CASCADE",
                names.join(", ")
            )));
        }
        let workspace = Arc::clone(self.workspace());
        let authority = Arc::clone(self.catalog().authority());
        let node = Arc::clone(self.engine().node());
        // All of it goes, or nothing.
        let dropping = move |workspace: &Arc<Workspace>| {
            let changes = Changes::new(node, Arc::clone(workspace));
            // Without CASCADE what came meanwhile stays, and so does the schema.
            let listed = |names: Vec<String>| names.into_iter().filter(|_| drop.cascade);
            for view in listed(workspace.views(&name)) {
                changes.drop_view(&authority.of_name(&name, &view), &name, &view)?;
            }
            for table in listed(workspace.tables(&name)) {
                let version = workspace.snapshot(&name, &table)?;
                let capability = authority.capability(&version);
                changes.drop_table(&capability, &name, &table)?;
            }
            changes.drop_schema(&authority.of_name(&name, "*"), &name)
        };
        blocking(move || workspace.atomically(dropping)).await?;
        self.nothing()
    }

    /// The name with catalog and schema, as it is written.
    pub(crate) fn resolve_written(&self, name: TableReference) -> ResolvedTableReference {
        let options = self.options();
        let defaults = &options.catalog;
        name.resolve(&defaults.default_catalog, &defaults.default_schema)
    }

    /// The name with catalog and schema, under which the session finds it: its temporary tables come
    /// first.
    pub(crate) fn resolve(&self, name: TableReference) -> ResolvedTableReference {
        let mut name = self.resolve_written(name);
        if name.catalog.as_ref() == CATALOG {
            let place = self.workspace().place_of(&name.schema, &name.table);
            name.schema = place.into();
        }
        name
    }

    /// The schema of the database that a name is in.
    pub(crate) fn flash_schema(&self, name: &ResolvedTableReference) -> Result<Arc<FlashSchema>> {
        if name.catalog.as_ref() != CATALOG {
            return Err(Error::usage(format!(
                "'{}' is not in this database: write {}.{}, or just {}",
                name, name.schema, name.table, name.table
            )));
        }
        self.catalog().flash_schema(&name.schema).ok_or_else(|| {
            Error::usage(format!(
                "schema '{0}' does not exist; CREATE SCHEMA {0} makes it",
                name.schema
            ))
        })
    }

    fn check_free_on_flash(&self, name: &TableReference, kind: &str) -> Result<()> {
        let name = self.resolve(name.clone());
        if self.flash_schema(&name)?.is_on_flash(&name.table) {
            return Err(Error::usage(format!(
                "'{0}' is a table on flash; choose another name for the {kind}, or DROP TABLE {0} first",
                name.table
            )));
        }
        Ok(())
    }

    /// Runs a plan that writes, to its end, and gives what it returned.
    pub(crate) async fn run_now(&self, plan: LogicalPlan) -> Result<DataFrame> {
        let written = self.context().execute_logical_plan(plan).await?;
        let schema = Arc::clone(written.schema().inner());
        let mut batches = written.collect().await?;
        if batches.is_empty() {
            batches.push(RecordBatch::new_empty(schema));
        }
        Ok(self.context().read_batches(batches)?)
    }

    pub(crate) fn nothing(&self) -> Result<DataFrame> {
        let empty = LogicalPlanBuilder::empty(false).build()?;
        Ok(DataFrame::new(self.context().state(), empty))
    }
}

/// Runs a query to its end for its errors and effects alone.
pub(crate) async fn drain(frame: DataFrame) -> Result<()> {
    let mut stream = frame.execute_stream().await?;
    while let Some(batch) = stream.next().await {
        batch?;
    }
    Ok(())
}

/// The plan of a statement, whose literals are planned by a few of them where it inserts many.
async fn plan_literals(
    state: &SessionState,
    mut statement: ParsedStatement,
) -> Result<LogicalPlan> {
    let rows = match &mut statement {
        ParsedStatement::Statement(statement) => LiteralRows::take(statement),
        _ => None,
    };
    let Some(rows) = rows else {
        return views::planning(same_names::plan(state, statement)).await;
    };
    let plan = views::planning(same_names::plan(state, statement.clone())).await?;
    if let Some(plan) = rows.put(&plan)? {
        return Ok(plan);
    }
    if let ParsedStatement::Statement(statement) = &mut statement {
        rows.give_back(statement);
    }
    views::planning(same_names::plan(state, statement)).await
}
