//! What is short: variables, macros, sequences, PRAGMA and ANALYZE.

use arrow::array::Array;
use datafusion::common::ScalarValue;
use datafusion::dataframe::DataFrame;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast;
use flashmesh_storage::StorageError;
use flashmesh_storage::table::{TEMPORARY_SCHEMA, is_temporary};

use crate::Session;
use crate::error::{Error, Result};
use crate::named_sequences::check_sequence;
use crate::own_statement::{MacroStatement, OwnStatement, VariableStatement};
use crate::parameters::Values;
use crate::pragmas::{Pragma, columns_of_table, tables_of_schema};

impl Session {
    /// Says DROP SEQUENCE as DROP TABLE.
    ///
    /// # Errors
    /// [`Error::Usage`] for a table that is no sequence.
    pub(crate) fn drop_sequences(&self, statement: &mut ast::Statement) -> Result<()> {
        let ast::Statement::Drop {
            object_type: object_type @ ast::ObjectType::Sequence,
            names,
            ..
        } = statement
        else {
            return Ok(());
        };
        for name in names {
            if let Some(table) = self.changed_table(name) {
                check_sequence(name, &table)?;
            }
        }
        *object_type = ast::ObjectType::Table;
        Ok(())
    }

    /// The plan of `SET VARIABLE` or, without a value, RESET.
    pub(crate) async fn plan_variable(
        &self,
        name: String,
        value: Option<ast::Expr>,
        variables: &Values,
    ) -> Result<LogicalPlan> {
        let mut statement = VariableStatement { name, value: None };
        if let Some(value) = value {
            let mut query = self.parse("SELECT 1")?;
            if let Some(ParsedStatement::Statement(query)) = query.first_mut()
                && let ast::Statement::Query(query) = query.as_mut()
                && let ast::SetExpr::Select(select) = query.body.as_mut()
            {
                select.projection = vec![ast::SelectItem::UnnamedExpr(value)];
            }
            for query in query {
                let plan = Box::pin(self.plan_in(query, variables)).await?;
                statement.value = Some(plan);
            }
        }
        Ok(OwnStatement::Variable(statement).into_plan())
    }

    pub(crate) async fn set_variable(&self, statement: VariableStatement) -> Result<DataFrame> {
        let VariableStatement { name, value } = statement;
        let Some(query) = value else {
            self.variables().set(name, None);
            return self.nothing();
        };
        let rows = self.context().execute_logical_plan(query).await?;
        let rows = rows.collect().await?;
        let columns = rows.iter().filter_map(|batch| batch.columns().first());
        let mut columns = columns.filter(|column| !column.is_empty());
        let value = match (columns.next(), columns.next()) {
            (None, _) => ScalarValue::Null,
            (Some(only), None) if only.len() == 1 => ScalarValue::try_from_array(only, 0)?,
            _ => {
                return Err(Error::usage(format!(
                    "variable '{name}' takes one value, and the query gives several rows"
                )));
            }
        };
        self.variables().set(name, Some(value));
        self.nothing()
    }

    /// Refuses the name of a function for a macro.
    pub(crate) fn check_free_macro(
        &self,
        state: &SessionState,
        statement: &MacroStatement,
    ) -> Result<()> {
        let MacroStatement::Create { name, .. } = statement else {
            return Ok(());
        };
        let is_function = state.scalar_functions().contains_key(name)
            || state.aggregate_functions().contains_key(name)
            || state.window_functions().contains_key(name)
            || state.higher_order_functions().contains_key(name)
            || state.table_functions().contains_key(name);
        match is_function {
            true => Err(Error::usage(format!(
                "'{name}' is a function of every database; choose another name"
            ))),
            false => Ok(()),
        }
    }

    /// The query that a PRAGMA is.
    pub(crate) fn query_of_pragma(&self, pragma: Pragma) -> Result<ParsedStatement> {
        let Pragma::TableInfo(table) = pragma else {
            return tables_of_schema(&self.options().catalog.default_schema);
        };
        let name = self.resolve(table);
        if !self.flash_schema(&name)?.has(&name.table) {
            return Err(Error::Storage(StorageError::NotFound {
                kind: "table",
                name: name.table.to_string(),
            }));
        }
        let schema = match is_temporary(&name.schema) {
            true => TEMPORARY_SCHEMA,
            false => &name.schema,
        };
        columns_of_table(schema, &name.table)
    }

    /// ANALYZE: statistics are those of the rows at all times, so only the name is looked at.
    pub(crate) fn parsed_analyze(&self, analyze: &ast::Analyze) -> Result<OwnStatement> {
        if let Some(name) = &analyze.table_name {
            let name = object_name_to_table_reference(name.clone(), true)?;
            let name = self.resolve(name);
            self.flash_schema(&name)?.snapshot(&name.table)?;
        }
        Ok(OwnStatement::Nothing("Analyze"))
    }
}
