//! Views. The catalog keeps the text of each; whoever reads one plans that text in their own
//! session, with their own rights: a view gives nobody rows of a table that they may not read.
//! So it shows what was committed since, and the columns that its tables have now.

use std::future::Future;
use std::sync::{Arc, Weak};

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::catalog::{Session as PlanningSession, TableProvider};
use datafusion::common::{exec_err, plan_err};
use datafusion::datasource::{TableType, ViewTable};
use datafusion::error::Result as PlanResult;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{
    Expr, LogicalPlan, LogicalPlanBuilder, TableProviderFilterPushDown,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::sql::parser::Statement as ParsedStatement;
use flashmesh_macros::async_impl;
use flashmesh_storage::table::{Database, Generated, TableSnapshot, View};
use parking_lot::{Mutex, RwLock};

use crate::defaults::default_or_error;
use crate::error::{Error, Result};
use crate::generated::next_numbers;
use crate::parse::parse;
use crate::same_names;

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
        let statement = parsed(&view.query, &view.dialect)?;
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

/// The one statement of a view's text.
pub(crate) fn parsed(query: &str, dialect: &str) -> Result<ParsedStatement> {
    let mut statements = parse(query, dialect)?;
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

#[async_impl]
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
