//! Past versions of tables in statements: `t AT (VERSION => 17)`.
//!
//! The parser knows AT in few dialects. Where it does not, the words are said otherwise first
//! ([`VERSION_OF`]), as the call of a function, which becomes a table with a version here. The
//! planner of relations makes a scan of that.

use std::ops::ControlFlow;

use datafusion::sql::parser::{CopyToSource, Statement as ParsedStatement};
use datafusion::sql::sqlparser::ast::{
    self, FromTable, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
    FunctionArguments, Ident, ObjectName, ObjectNamePart, Query, TableFactor, TableVersion,
    TableWithJoins, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::Dialect;

use crate::error::{Error, Result};
use crate::spelling::VERSION_OF;
use crate::walk::walk_mut;

/// Whether a text may name versions of tables: only few dialects do without `=>`.
pub(crate) fn may_name_versions(query: &str, dialect: &dyn Dialect) -> bool {
    query.contains("=>") || dialect.supports_table_versioning()
}

/// Makes tables with versions of what was said otherwise.
///
/// # Errors
/// [`Error::Usage`] where a past version is to be changed, or of what has none.
pub(crate) fn with_versions(statement: &mut ParsedStatement) -> Result<()> {
    match statement {
        ParsedStatement::Statement(statement) => {
            let mut versions = Versions::default();
            if let ControlFlow::Break(error) = walk_mut(statement, &mut versions) {
                return Err(error);
            }
            versions.check()?;
            refuse_changes(statement)
        }
        ParsedStatement::Explain(explain) => with_versions(&mut explain.statement),
        ParsedStatement::CopyTo(copy) => {
            let mut versions = Versions::default();
            if let CopyToSource::Query(query) = &mut copy.source
                && let ControlFlow::Break(error) = walk_mut(query, &mut versions)
            {
                return Err(error);
            }
            versions.check()
        }
        ParsedStatement::CreateExternalTable(_) | ParsedStatement::Reset(_) => Ok(()),
    }
}

#[derive(Default)]
struct Versions {
    /// Names of WITH.
    named: Vec<String>,
    /// Tables of which versions are named.
    tables: Vec<ObjectName>,
}

impl Versions {
    /// A name of WITH stands for rows without a past, and for no table of that name.
    fn check(&self) -> Result<()> {
        for table in &self.tables {
            if let [ObjectNamePart::Identifier(name)] = table.0.as_slice()
                && self.named.contains(&name.value.to_lowercase())
            {
                return Err(Error::usage(format!(
                    "'{name}' is a name of WITH, which has no versions; give it another name, or say AT within it"
                )));
            }
        }
        Ok(())
    }
}

impl VisitorMut for Versions {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let named = query.with.iter().flat_map(|with| &with.cte_tables);
        let named = named.map(|table| table.alias.name.value.to_lowercase());
        self.named.extend(named);
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        let TableFactor::Table {
            name,
            args,
            version,
            ..
        } = factor
        else {
            return ControlFlow::Continue(());
        };
        let is_at = matches!(name.0.as_slice(), [ObjectNamePart::Identifier(part)] if part.value == VERSION_OF);
        if is_at && let Some(said) = args.take() {
            match versioned(said.args) {
                Some(found) => {
                    *name = found.0;
                    *version = Some(found.1);
                }
                None => {
                    return ControlFlow::Break(Error::usage(
                        "AT is written t AT (VERSION => number) or t AT (TIMESTAMP => time)",
                    ));
                }
            }
        }
        if version.is_some() {
            self.tables.push(name.clone());
        }
        ControlFlow::Continue(())
    }
}

/// The table that the first argument names, at the version that the second one says.
fn versioned(arguments: Vec<FunctionArg>) -> Option<(ObjectName, TableVersion)> {
    let [table, said] = <[FunctionArg; 2]>::try_from(arguments).ok()?;
    let FunctionArg::Unnamed(FunctionArgExpr::Expr(table)) = table else {
        return None;
    };
    let table = match table {
        ast::Expr::Identifier(name) => vec![name],
        ast::Expr::CompoundIdentifier(names) => names,
        _ => return None,
    };
    let (name, arg, operator) = match said {
        FunctionArg::Named {
            name,
            arg,
            operator,
        } => (name.value, arg, operator),
        FunctionArg::ExprNamed {
            name: ast::Expr::Identifier(name),
            arg,
            operator,
        } => (name.value, arg, operator),
        _ => return None,
    };
    let said = FunctionArg::Named {
        name: Ident::new(name.to_ascii_uppercase()),
        arg,
        operator,
    };
    let at = Function {
        name: ObjectName::from(vec![Ident::new("AT")]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: vec![said],
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    };
    Some((
        ObjectName::from(table),
        TableVersion::Function(ast::Expr::Function(at)),
    ))
}

/// Nobody changes the past.
fn refuse_changes(statement: &ast::Statement) -> Result<()> {
    let of_from = |from: &FromTable| match from {
        FromTable::WithFromKeyword(tables) | FromTable::WithoutKeyword(tables) => tables.clone(),
    };
    let targets: Vec<TableFactor> = match statement {
        ast::Statement::Update(update) => vec![update.table.relation.clone()],
        ast::Statement::Delete(delete) => {
            let tables: Vec<TableWithJoins> = of_from(&delete.from);
            tables.into_iter().map(|table| table.relation).collect()
        }
        ast::Statement::Merge(merge) => vec![merge.table.clone()],
        _ => Vec::new(),
    };
    for target in targets {
        if let TableFactor::Table {
            name,
            version: Some(_),
            ..
        } = target
        {
            return Err(Error::usage(format!(
                "a past version of '{name}' can't be changed; INSERT INTO {name} SELECT … FROM {name} AT (…) brings rows of it back"
            )));
        }
    }
    Ok(())
}
