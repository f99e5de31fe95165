//! A database in this process.

use std::sync::Arc;

use crate::{Error, FileOptions, LoadMode, Result, Session};
use datafusion::catalog::SchemaProvider;
use datafusion::config::FormatOptions;
use datafusion::datasource::TableType;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::execute_stream;
use datafusion::physical_plan::stream::{
    RecordBatchReceiverStreamBuilder, RecordBatchStreamAdapter,
};
use flashmesh_macros::async_impl;
use flashmesh_planner::interrupt::StopOnDrop;
use flashmesh_planner::progress::ScanProgress;
use flashmesh_planner::relations::table_functions;
use futures::StreamExt;

use super::backend::{Answer, Backend, Statement};
use super::catalog::{Catalog, Column, Index, Table};
use crate::cli::load::load_with_bar;
use crate::information_schema::is_description;

/// A session of this process's engine.
pub(in crate::cli) struct Local(Session);

impl Local {
    /// The session, which from now on tells where in a statement an error is.
    pub fn new(session: &Session) -> Self {
        let state = session.context().state_ref();
        let mut config = state.write();
        // The planner remembers where in the text each name stands.
        config.config_mut().options_mut().sql_parser.collect_spans = true;
        Self(session.clone())
    }
}

/// The names of a session's database.
async fn catalog_of(session: &Session) -> Result<Catalog> {
    let state = session.context().state();
    let options = state.config_options();
    let defaults = &options.catalog;
    let mut catalog = Catalog {
        default_schema: defaults.default_schema.clone(),
        settings: options.entries().into_iter().map(|e| e.key).collect(),
        table_functions: table_functions()
            .map(|(name, _)| name.to_string())
            .collect(),
        ..Catalog::default()
    };
    let functions = state.scalar_functions().keys();
    let functions = functions.chain(state.aggregate_functions().keys());
    let functions = functions.chain(state.window_functions().keys());
    catalog.functions = functions.cloned().collect();
    let of_session = state.table_functions().keys().cloned();
    catalog.table_functions.extend(of_session);
    if let Some(database) = state.catalog_list().catalog(&defaults.default_catalog) {
        catalog.schemas = database.schema_names();
        for name in catalog.schemas.clone() {
            if let Some(schema) = database.schema(&name) {
                add_schema(&mut catalog, session, &name, schema.as_ref()).await;
            }
        }
    }
    for names in [
        &mut catalog.functions,
        &mut catalog.table_functions,
        &mut catalog.settings,
    ] {
        names.sort_unstable();
        names.dedup();
    }
    Ok(catalog)
}

/// Adds the tables of a schema. One that can't be opened (a file that is gone) has no columns.
async fn add_schema(
    catalog: &mut Catalog,
    session: &Session,
    name: &str,
    schema: &dyn SchemaProvider,
) {
    for table in schema.table_names() {
        let Ok(Some(provider)) = schema.table(&table).await else {
            continue;
        };
        let columns = provider.schema();
        let columns = columns.fields().iter().map(|field| Column {
            name: field.name().clone(),
            data_type: field.data_type().to_string(),
            nullable: field.is_nullable(),
        });
        let of_flash = session.catalog().flash_schema(name);
        let snapshot = of_flash.and_then(|schema| schema.snapshot(&table).ok());
        let checks = snapshot.iter().flat_map(|snapshot| &snapshot.checks);
        catalog.tables.push(Table {
            schema: name.into(),
            name: table.clone(),
            kind: match (provider.table_type(), &snapshot) {
                (TableType::View, _) => "view",
                (TableType::Temporary, _) => "temporary table",
                (_, Some(_)) => "table",
                _ => "external table",
            },
            columns: columns.collect(),
            checks: checks.map(|c| (c.name.clone(), c.text.clone())).collect(),
            rows: snapshot.as_ref().map(|snapshot| snapshot.rows()),
        });
        for index in snapshot.iter().flat_map(|snapshot| &snapshot.indexes) {
            let definition = &index.definition;
            let columns = snapshot.iter().flat_map(|s| s.index_columns(definition));
            catalog.indexes.push(Index {
                schema: name.into(),
                table: table.clone(),
                name: definition.name.clone(),
                kind: definition.kind.to_string(),
                columns: columns.map(str::to_string).collect(),
                constraint: match (definition.primary, definition.unique) {
                    (true, _) => "primary key",
                    (_, true) => "unique",
                    _ => "",
                },
            });
        }
    }
}

#[async_impl]
impl Backend for Local {
    fn description(&self) -> String {
        let engine = self.0.engine();
        match engine.is_temporary() {
            true => "a temporary database".into(),
            false => format!("database {}", engine.database().path().display()),
        }
    }

    fn parse<'a>(&self, sql: &'a str) -> Result<Vec<(Statement, &'a str)>> {
        let parsed = self.0.parse(sql)?.into_iter();
        let parsed = parsed.map(|statement| (Statement::Parsed(Box::new(statement)), sql));
        Ok(parsed.collect())
    }

    async fn run(&self, statement: Statement) -> Result<Answer> {
        let statement = match statement {
            Statement::Parsed(statement) => *statement,
            Statement::Text(sql) => {
                let mut statements = self.0.parse(&sql)?.into_iter();
                let (Some(statement), None) = (statements.next(), statements.next()) else {
                    return Err(Error::usage(
                        "write one statement, and a semicolon after it",
                    ));
                };
                statement
            }
        };
        let plan = self.0.plan(statement).await?;
        let all_rows = matches!(plan, LogicalPlan::Explain(_) | LogicalPlan::Analyze(_))
            || is_description(&plan);
        let frame = self.0.execute(plan).await?;
        let context = Arc::new(frame.task_ctx());
        let (state, plan) = frame.into_parts();
        let plan = flashmesh_planner::physical_plan(&state, &plan).await?;
        let progress = {
            let plan = Arc::clone(&plan);
            move || ScanProgress::of(plan.as_ref())
        };
        let stop = StopOnDrop::new(&plan);
        // On a task of its own, so that whoever waits for rows is never kept by their making.
        let mut rows = RecordBatchReceiverStreamBuilder::new(plan.schema(), 2);
        let sender = rows.tx();
        rows.spawn(async move {
            let mut batches = execute_stream(plan, context)?;
            while let Some(batch) = batches.next().await {
                if sender.send(batch).await.is_err() {
                    break;
                }
            }
            Ok(())
        });
        let rows = rows.build();
        let schema = rows.schema();
        let rows = rows.inspect(move |_| {
            let _until_the_rows_go = &stop;
        });
        Ok(Answer {
            rows: Box::pin(RecordBatchStreamAdapter::new(schema, rows)),
            all_rows,
            progress: Some(Arc::new(progress)),
        })
    }
    async fn catalog(&self) -> Result<Catalog> {
        catalog_of(&self.0).await
    }

    async fn import(&self, file: &str, table: &str, quiet: bool) -> Result<u64> {
        let mode = match self.0.table_snapshot(table) {
            Ok(_) => LoadMode::Append,
            Err(_) => LoadMode::Create,
        };
        let options = FileOptions {
            newlines_in_values: true,
            ..FileOptions::default()
        };
        load_with_bar(&self.0, table, &[file.to_string()], &options, mode, quiet).await
    }

    fn format_options(&self) -> FormatOptions {
        self.0.context().copied_config().options().format.clone()
    }
}
