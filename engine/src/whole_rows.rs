//! The name of a table of FROM in a SELECT list, `SELECT t FROM t` or `to_json(t)`: its row, as a struct of its columns.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{
    AccessExpr, Expr, Ident, ObjectName, Query, Select, SelectItem, TableFactor, TableWithJoins,
    Value, VisitorMut, With,
};

use crate::Session;
use crate::asked_first::{Pending, first};
use crate::clauses::call;
use crate::columns::{Column, Wanted, merged_without};
use crate::error::{Error, Result};
use crate::names::name_of;
use crate::parameters::Values;
use crate::walk::{visit_relations, walk_mut, walk_statement};

impl Session {
    /// Writes structs where a SELECT list names tables of its FROM, but for columns that are called so.
    ///
    /// # Errors
    /// None: what is no row is left to the planner.
    pub(crate) async fn write_out_rows(
        &self,
        statement: &mut ParsedStatement,
        variables: &Values,
    ) -> Result<()> {
        while let Some((scopes, NamesTable(mut select))) = first(statement) {
            // Queries of WITH that are to be written out themselves are no tables yet.
            let known: Vec<With> = merged_without::<Present>(&scopes).into_iter().collect();
            let is_known = names_only(&select.from, &scopes, &known);
            for name in named(&mut select) {
                let all = Wanted::All(Vec::new());
                let all = match is_known {
                    true => self.columns_of(&known, &select, &all, variables).await,
                    false => Err(Error::usage("a query of WITH names itself")),
                };
                let column = match &all {
                    Ok(all) => all.iter().find(|column| column.is_named(&name, all)),
                    Err(_) => None,
                };
                // In quotes it is not looked at again.
                let quoted = |name| Expr::Identifier(Ident::with_quote('"', name));
                let row = match (column, &all) {
                    (Some(column), _) => quoted(column.name.clone()),
                    (None, Err(_)) => quoted(name_of(&name)),
                    (None, Ok(_)) => {
                        let of = Wanted::Of(ObjectName::from(vec![name.clone()]), Vec::new());
                        let columns = self.columns_of(&known, &select, &of, variables).await;
                        columns.map_or_else(|_| quoted(name_of(&name)), |of| row_of(&of))
                    }
                };
                put(&mut select, &name, &row);
            }
            let mut select = Some(select);
            let _ = walk_statement(statement, &mut Replace(&mut select));
        }
        Ok(())
    }
}

/// Whether a FROM names no queries of these scopes but those that are known.
fn names_only(from: &Vec<TableWithJoins>, scopes: &[With], known: &[With]) -> bool {
    let tables = |scopes: &[With]| -> Vec<String> {
        let tables = scopes.iter().flat_map(|with| &with.cte_tables);
        tables.map(|table| name_of(&table.alias.name)).collect()
    };
    let (all, known) = (tables(scopes), tables(known));
    let is_unknown = |name: &ObjectName| {
        let name = match name.0.as_slice() {
            [part] => part.as_ident().map(name_of),
            _ => None,
        };
        name.is_some_and(|name| all.contains(&name) && !known.contains(&name))
    };
    visit_relations(from, |name| match is_unknown(name) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    })
    .is_continue()
}

/// A row of these columns.
fn row_of(columns: &[Column]) -> Expr {
    let text = |name: &String| Expr::value(Value::SingleQuotedString(name.clone()));
    let fields = columns.iter();
    let fields = fields.flat_map(|column| [text(&column.name), column.expr.clone()]);
    call(Ident::new("named_struct"), fields.collect())
}

/// The tables that a SELECT list names as if they were columns.
fn named(select: &mut Select) -> Vec<Ident> {
    let mut names: Vec<Ident> = Vec::new();
    let from = std::mem::take(&mut select.from);
    let mut tables = Vec::new();
    from.iter().for_each(|table| add_tables(table, &mut tables));
    let _ = each_name(select, |expr| {
        if let Expr::Identifier(name) = expr
            && tables.contains(&name_of(name))
            && !names.contains(name)
        {
            names.push(name.clone());
        }
    });
    select.from = from;
    names
}

/// The names of tables and queries. That of a function is what it gives, where it gives one column.
fn add_tables(from: &TableWithJoins, names: &mut Vec<String>) {
    let factors = std::iter::once(&from.relation);
    for factor in factors.chain(from.joins.iter().map(|join| &join.relation)) {
        match factor {
            TableFactor::Table {
                name,
                alias,
                args: None,
                ..
            } => {
                let last = name.0.last().and_then(|part| part.as_ident());
                let called = alias.as_ref().map(|alias| &alias.name).or(last);
                names.extend(called.map(name_of));
            }
            TableFactor::Derived { alias, .. } => {
                names.extend(alias.iter().map(|alias| name_of(&alias.name)));
            }
            TableFactor::NestedJoin {
                table_with_joins,
                alias: None,
            } => add_tables(table_with_joins, names),
            _ => {}
        }
    }
}

/// Puts a row, or a column, where a SELECT list names a table.
fn put(select: &mut Select, name: &Ident, row: &Expr) {
    for item in &mut select.projection {
        if let SelectItem::UnnamedExpr(expr) = item
            && *expr == Expr::Identifier(name.clone())
        {
            *item = SelectItem::ExprWithAlias {
                expr: row.clone(),
                alias: Ident::with_quote('"', name_of(name)),
            };
        }
    }
    let _ = each_name(select, |expr| {
        if matches!(expr, Expr::Identifier(of) if of == name) {
            *expr = row.clone();
        }
    });
}

/// Goes through the names of columns in a SELECT list: not those in quotes, of lambda functions, and of queries within.
fn each_name(select: &mut Select, each: impl FnMut(&mut Expr)) -> ControlFlow<()> {
    let mut names = Names { depth: 0, each };
    walk_mut(&mut select.projection, &mut names)
}

struct Names<F> {
    depth: usize,
    each: F,
}

impl<F: FnMut(&mut Expr)> VisitorMut for Names<F> {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        self.depth += usize::from(has_own_names(expr));
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        self.depth -= usize::from(has_own_names(expr));
        match expr {
            Expr::Identifier(name) if self.depth == 0 && name.quote_style.is_none() => {
                (self.each)(expr);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Whether names in an expression are no columns': of a lambda function its parameters, and before a column and its places,
/// `t.list[1]`, a table.
fn has_own_names(expr: &Expr) -> bool {
    match expr {
        Expr::Lambda(_) => true,
        Expr::CompoundFieldAccess { root, access_chain } => {
            matches!(**root, Expr::Identifier(_))
                && matches!(access_chain.first(), Some(AccessExpr::Dot(_)))
        }
        _ => false,
    }
}

/// A SELECT whose list names tables.
struct NamesTable(Select);

impl Pending for NamesTable {
    fn in_select(select: &mut Select) -> Option<Self> {
        (!named(select).is_empty()).then(|| Self(select.clone()))
    }
}

/// Ends where a SELECT list names tables.
#[derive(Default)]
struct Present;

impl VisitorMut for Present {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        match named(select).is_empty() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }
}

/// Puts a SELECT in the place of the first that names tables.
struct Replace<'a>(&'a mut Option<Select>);

impl VisitorMut for Replace<'_> {
    type Break = ();

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        if named(select).is_empty() {
            return ControlFlow::Continue(());
        }
        if let Some(written) = self.0.take() {
            *select = written;
        }
        ControlFlow::Break(())
    }
}
