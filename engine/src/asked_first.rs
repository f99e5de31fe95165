//! Parts of statements for which something has to be asked before the statement is planned: columns, values
//! that become columns, numbers of rows.

use std::ops::ControlFlow;

use arrow::array::RecordBatch;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{self, Query, Select, TableFactor, VisitorMut, With};

use crate::Session;
use crate::error::{Error, Result};
use crate::parameters::Values;
use crate::walk::walk_statement;

/// A kind of them: what one is, where there is one.
pub(crate) trait Pending: Sized {
    /// In a query, but for its SELECT and its tables.
    fn in_query(_: &mut Query) -> Option<Self> {
        None
    }

    /// In a SELECT, but for its tables.
    fn in_select(_: &mut Select) -> Option<Self> {
        None
    }

    /// In FROM.
    fn in_table(_: &mut TableFactor) -> Option<Self> {
        None
    }
}

/// The first of a kind within which is none, with the queries of WITH that it may name.
pub(crate) fn first<P: Pending>(statement: &mut ParsedStatement) -> Option<(Vec<With>, P)> {
    let mut search = Search::<P>::default();
    let _ = walk_statement(statement, &mut search);
    search.found
}

/// Looks for one; it ends where there is one.
pub(crate) struct Search<P> {
    scopes: Vec<With>,
    found: Option<(Vec<With>, P)>,
}

impl<P> Default for Search<P> {
    fn default() -> Self {
        Self {
            scopes: Vec::new(),
            found: None,
        }
    }
}

impl<P> Search<P> {
    fn end_with(&mut self, found: Option<P>) -> ControlFlow<()> {
        match found {
            Some(found) => {
                self.found = Some((std::mem::take(&mut self.scopes), found));
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        }
    }
}

impl<P: Pending> VisitorMut for Search<P> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        self.scopes.extend(query.with.clone());
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if query.with.is_some() {
            self.scopes.pop();
        }
        self.end_with(P::in_query(query))
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        self.end_with(P::in_select(select))
    }

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        self.end_with(P::in_table(factor))
    }
}

/// Whether a statement makes a view, which would keep what was asked for then.
pub(crate) fn makes_view(statement: &ParsedStatement) -> bool {
    matches!(statement, ParsedStatement::Statement(parsed)
        if matches!(parsed.as_ref(), ast::Statement::CreateView { .. }))
}

impl Session {
    /// The rows of a query of ours over a part of a statement: that stands in the place of the one table that
    /// the query's text names.
    ///
    /// # Errors
    /// Those of the query.
    pub(crate) async fn rows_over(
        &self,
        text: &str,
        table: TableFactor,
        with: Option<With>,
        variables: &Values,
    ) -> Result<Vec<RecordBatch>> {
        let plan = self.plan_over(text, table, with, variables).await?;
        Ok(Box::pin(self.execute(plan)).await?.collect().await?)
    }

    /// The plan of such a query.
    ///
    /// # Errors
    /// Those of planning it.
    pub(crate) async fn plan_over(
        &self,
        text: &str,
        table: TableFactor,
        with: Option<With>,
        variables: &Values,
    ) -> Result<LogicalPlan> {
        let Some(ParsedStatement::Statement(mut parsed)) = self.parse(text)?.pop() else {
            return Err(Error::usage("there is no query to run"));
        };
        if let ast::Statement::Query(query) = parsed.as_mut()
            && let ast::SetExpr::Select(select) = query.body.as_mut()
            && let Some(from) = select.from.first_mut()
        {
            from.relation = table;
            query.with = with;
        }
        Box::pin(self.plan_in(ParsedStatement::Statement(parsed), variables)).await
    }
}
