//! `SELECT i FROM generate_series(1, 3) AS i`: the one column of such a function is called as its rows are, or as the
//! function is. Where a name is no column's, it may be that one's.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{
    Ident, TableAlias, TableAliasColumnDef, TableFactor, VisitorMut,
};

use crate::clauses::SERIES;
use crate::names::name_of;
use crate::walk::walk_statement;

/// Gives that name to the column of each such function that is called so; whether there is one.
pub(crate) fn call_column(statement: &mut ParsedStatement, name: &str) -> bool {
    let mut calling = Calling { name, found: false };
    let _ = walk_statement(statement, &mut calling);
    calling.found
}

struct Calling<'a> {
    name: &'a str,
    found: bool,
}

impl VisitorMut for Calling<'_> {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        let (function, alias) = match factor {
            TableFactor::Table {
                name,
                alias,
                args: Some(_),
                ..
            } => match name.0.as_slice() {
                [only] => (only.as_ident().map(name_of), alias),
                _ => return ControlFlow::Continue(()),
            },
            TableFactor::UNNEST {
                alias, array_exprs, ..
            } if array_exprs.len() == 1 => (Some("unnest".to_owned()), alias),
            _ => return ControlFlow::Continue(()),
        };
        let Some(function) =
            function.filter(|function| function == "unnest" || SERIES.contains(&function.as_str()))
        else {
            return ControlFlow::Continue(());
        };
        let called = alias.get_or_insert_with(|| TableAlias {
            explicit: true,
            name: Ident::new(function),
            columns: Vec::new(),
            at: None,
        });
        if called.columns.is_empty() && name_of(&called.name) == self.name {
            called.columns.push(TableAliasColumnDef {
                name: called.name.clone(),
                data_type: None,
            });
            self.found = true;
        }
        ControlFlow::Continue(())
    }
}
