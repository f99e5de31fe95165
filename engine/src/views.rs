//! Views. The catalog keeps the text of each; whoever reads one plans that text in their own
//! session, with their own rights: a view gives nobody rows of a table that they may not read.
//! So it shows what was committed since, and the columns that its tables have now.

use std::future::Future;
use std::sync::{Arc, Weak};

use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{SchemaProvider, Session as PlanningSession, TableProvider};
use datafusion::common::{exec_err, plan_err};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::{TableType, ViewTable};
use datafusion::error::Result as PlanResult;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{
    CreateView, DropView, Expr, LogicalPlan, LogicalPlanBuilder, TableProviderFilterPushDown,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast;
use flashmesh_storage::StorageError;
use flashmesh_storage::capability::Right;
use flashmesh_storage::table::{Database, Generated, TableSnapshot, View};
use parking_lot::{Mutex, RwLock};

use crate::Session;
use crate::alter::default_or_error;
use crate::catalog::CATALOG;
use crate::error::{Error, Result};
use crate::generated::next_numbers;
use crate::load::blocking;
use crate::{same_names, statements};

tokio::task_local! {
    /// The views that are being planned, each within the one before.
    static PLANNED: Vec<String>;
}

/// Plans a statement. A view that can't be planned fails it; outside of this, as where
/// `information_schema` lists all views, such a view has no columns and fails when it is read.
pub(crate) async fn planning<T>(statement: impl Future<Output = T>) -> T {
    PLANNED.scope(Vec::new(), statement).await
}

/// Makes plans of the views that a session reads.
#[derive(Debug, Default)]
pub(crate) struct ViewPlanner {
    session: Mutex<Weak<RwLock<SessionState>>>,
}

impl ViewPlanner {
    /// The session in which views are planned.
    pub fn use_session(&self, session: Weak<RwLock<SessionState>>) {
        *self.session.lock() = session;
    }

    /// The defaults of the columns of a table of `database`, in that session; none at all where no
    /// column has one.
    pub fn defaults(
        &self,
        database: &Arc<Database>,
        table: &TableSnapshot,
    ) -> PlanResult<Vec<Option<Expr>>> {
        if table.defaults.iter().all(Option::is_none) {
            return Ok(Vec::new());
        }
        let Some(session) = self.session.lock().upgrade() else {
            return plan_err!("the session has ended");
        };
        let state = session.read();
        let columns = table.schema.fields().iter().zip(&table.defaults);
        let defaults = columns.map(|(field, text)| {
            let text = text.as_ref();
            text.map(|text| match Generated::parse(text) {
                Some(generated) => next_numbers(database, field.name(), generated),
                None => default_or_error(&state, field.name(), text),
            })
        });
        Ok(defaults.collect())
    }

    /// A view as a table.
    pub async fn table(&self, view: &View) -> PlanResult<Arc<dyn TableProvider>> {
        let name = format!("{}.{}", view.schema, view.name);
        let definition = definition(view);
        let around = PLANNED.try_with(Vec::clone);
        let is_planning = around.is_ok();
        let mut around = around.unwrap_or_default();
        if around.contains(&name) {
            return plan_err!(
                "view '{name}' refers to itself, through {}",
                around.join(", ")
            );
        }
        around.push(name.clone());
        match PLANNED.scope(around, Box::pin(self.plan(view))).await {
            Ok(plan) => Ok(Arc::new(ViewTable::new(plan, Some(definition)))),
            Err(error) if is_planning => Err(error.context(format!("view '{name}'"))),
            Err(error) => Ok(Arc::new(BrokenView {
                schema: Arc::new(Schema::empty()),
                definition,
                error: format!("view '{name}': {error}"),
            })),
        }
    }

    async fn plan(&self, view: &View) -> PlanResult<LogicalPlan> {
        let Some(session) = self.session.lock().upgrade() else {
            return plan_err!("the session has ended");
        };
        let mut state = session.read().clone();
        let catalog = &mut state.config_mut().options_mut().catalog;
        catalog.default_schema.clone_from(&view.default_schema);
        let statement = parse(&view.query, &view.dialect)?;
        let plan = same_names::plan(&state, statement).await?;
        if view.columns.is_empty() {
            return Ok(plan);
        }
        let columns = plan.schema().columns();
        if columns.len() != view.columns.len() {
            return plan_err!(
                "it names {} columns, its query gives {} now; make it anew",
                view.columns.len(),
                columns.len()
            );
        }
        let named = columns.into_iter().zip(&view.columns);
        let named = named.map(|(column, name)| Expr::Column(column).alias(name));
        LogicalPlanBuilder::from(plan).project(named)?.build()
    }
}

/// The statement that makes the view.
fn definition(view: &View) -> String {
    let columns = match view.columns.as_slice() {
        [] => String::new(),
        columns => {
            let quoted = columns
                .iter()
                .map(|c| format!("\"{}\"", c.replace('"', "\"\"")));
            format!(" ({})", quoted.collect::<Vec<_>>().join(", "))
        }
    };
    format!(
        "CREATE VIEW {}.{}{columns} AS {}",
        view.schema, view.name, view.query
    )
}

fn parse(query: &str, dialect: &str) -> Result<ParsedStatement> {
    let mut statements = statements::parse(query, dialect)?;
    match (statements.pop(), statements.is_empty()) {
        (Some(statement), true) => Ok(statement),
        _ => Err(Error::usage(format!("'{query}' is not one statement"))),
    }
}

/// A view whose tables are gone or have other columns.
#[derive(Debug)]
struct BrokenView {
    schema: SchemaRef,
    definition: String,
    error: String,
}

#[async_trait]
impl TableProvider for BrokenView {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    fn get_table_definition(&self) -> Option<&str> {
        Some(&self.definition)
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> PlanResult<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Exact; filters.len()])
    }

    async fn scan(
        &self,
        _: &dyn PlanningSession,
        _: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        exec_err!("{}", self.error)
    }
}

impl Session {
    /// Makes a view: of the session with TEMPORARY, else of the database.
    pub(crate) async fn create_view(&self, create: CreateView) -> Result<DataFrame> {
        let name = self.resolve(create.name);
        let schema = self.flash_schema(&name)?;
        if !create.temporary {
            self.principal()
                .check(Right::Create, &name.schema, &name.table)?;
        }
        if schema.is_on_flash(&name.table) {
            return Err(Error::usage(format!(
                "'{0}' is a table on flash; choose another name for the view, or DROP TABLE {0} first",
                name.table
            )));
        }
        crate::create_table::check_columns(&name.table, create.input.schema().inner())?;
        let of_session = schema.session_table(&name.table);
        if of_session.is_some() && !(create.temporary && create.or_replace) {
            return Err(Error::usage(format!(
                "'{}' already exists in this session; drop it first",
                name.table
            )));
        }
        if create.temporary {
            let plan = Arc::unwrap_or_clone(create.input);
            let view = ViewTable::new(plan, create.definition);
            schema.replace_session_table(name.table.to_string(), Arc::new(view));
            return self.nothing();
        }
        let options = self.options();
        let dialect = options.sql_parser.dialect.to_string();
        let text = create.definition.unwrap_or_default();
        let ParsedStatement::Statement(statement) = parse(&text, &dialect)? else {
            return Err(Error::usage("a view is made of a query"));
        };
        let ast::Statement::CreateView(parsed) = *statement else {
            return Err(Error::usage("a view is made of a query"));
        };
        let columns = parsed.columns.iter().map(|c| self.normalise(&c.name));
        let view = View {
            schema: name.schema.to_string(),
            name: name.table.to_string(),
            query: parsed.query.to_string(),
            columns: columns.collect(),
            owner: self.principal().name.to_string(),
            default_schema: options.catalog.default_schema.clone(),
            dialect,
        };
        if create.or_replace {
            self.check_no_circle(&view)?;
        }
        let capability = self.catalog().authority().of_name(&view.schema, &view.name);
        let changes = self.changes();
        blocking(move || changes.create_view(&capability, view, create.or_replace)).await?;
        self.nothing()
    }

    /// Refuses a view that would be read by way of itself.
    fn check_no_circle(&self, view: &View) -> Result<()> {
        let workspace = self.workspace();
        let state = self.context().state();
        let mut seen: Vec<View> = Vec::new();
        let mut next = vec![view.clone()];
        while let Some(current) = next.pop() {
            let statement = parse(&current.query, &current.dialect)?;
            for reference in state.resolve_table_references(&statement)? {
                let name = reference.resolve(CATALOG, &current.default_schema);
                if (name.schema.as_ref(), name.table.as_ref()) == (&*view.schema, &*view.name) {
                    return Err(Error::usage(format!(
                        "view '{}.{}' would refer to itself through '{}.{}'",
                        view.schema, view.name, current.schema, current.name
                    )));
                }
                let known = workspace.view(&name.schema, &name.table);
                if let Some(known) = known.filter(|known| !seen.contains(known)) {
                    next.push(known.as_ref().clone());
                }
            }
            seen.push(current);
        }
        Ok(())
    }

    /// Drops a view of the session or of the database.
    pub(crate) async fn drop_view(&self, drop: DropView) -> Result<DataFrame> {
        let name = self.resolve(drop.name);
        let schema = match self.flash_schema(&name) {
            Ok(schema) => schema,
            Err(_) if drop.if_exists => return self.nothing(),
            Err(error) => return Err(error),
        };
        if let Some(table) = schema.session_table(&name.table) {
            if table.table_type() != TableType::View {
                return Err(Error::usage(format!(
                    "'{0}' is not a view; use DROP TABLE {0}",
                    name.table
                )));
            }
            schema.forget_session_table(&name.table);
            return self.nothing();
        }
        // What the user may not know of is not there.
        if drop.if_exists && !schema.table_exist(&name.table) {
            return self.nothing();
        }
        self.principal()
            .check(Right::Create, &name.schema, &name.table)?;
        if schema.is_on_flash(&name.table) {
            return Err(Error::usage(format!(
                "'{0}' is a table; use DROP TABLE {0}",
                name.table
            )));
        }
        let (schema, view) = (name.schema.to_string(), name.table.to_string());
        let capability = self.catalog().authority().of_name(&schema, &view);
        let changes = self.changes();
        match blocking(move || changes.drop_view(&capability, &schema, &view)).await {
            Err(Error::Storage(StorageError::NotFound { .. })) if drop.if_exists => self.nothing(),
            other => other.and_then(|()| self.nothing()),
        }
    }
}
