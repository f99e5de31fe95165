//! `INSERT INTO t BY NAME SELECT …`: columns go by what the query calls them.

use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{self, Ident, ObjectName, SetExpr};

use crate::Session;
use crate::error::{Error, Result};
use crate::parameters::Values;
use crate::spelling::BY_NAME;

impl Session {
    /// Has an INSERT name the columns that its query gives.
    ///
    /// # Errors
    /// [`Error::Usage`] for VALUES, and for two columns of one name; those of planning the query.
    pub(crate) async fn write_out_names(
        &self,
        statement: &mut ParsedStatement,
        variables: &Values,
    ) -> Result<()> {
        let ParsedStatement::Statement(statement) = statement else {
            return Ok(());
        };
        let ast::Statement::Insert(insert) = statement.as_mut() else {
            return Ok(());
        };
        let is_by_name = matches!(insert.columns.as_slice(), [only] if matches!(only.0.as_slice(),
            [part] if part.as_ident().is_some_and(|name| name.value == BY_NAME)));
        if !is_by_name {
            return Ok(());
        }
        let source = insert.source.clone();
        let source = source.filter(|source| !matches!(source.body.as_ref(), SetExpr::Values(_)));
        let Some(source) = source else {
            return Err(Error::usage(
                "INSERT … BY NAME takes a SELECT, whose columns have names; leave BY NAME out",
            ));
        };
        let query = ParsedStatement::Statement(Box::new(ast::Statement::Query(source)));
        let plan = Box::pin(self.plan_in(query, variables)).await?;
        let mut names: Vec<ObjectName> = Vec::new();
        for field in plan.schema().fields() {
            let name = ObjectName::from(vec![Ident::with_quote('"', field.name())]);
            if names.contains(&name) {
                return Err(Error::usage(format!(
                    "INSERT … BY NAME: the query has two columns named '{}'",
                    field.name()
                )));
            }
            names.push(name);
        }
        insert.columns = names;
        Ok(())
    }
}
