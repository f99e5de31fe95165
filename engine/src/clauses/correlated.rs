//! `table.column` of a query around a subquery, and `table.column.field`.
//!
//! Where a table of the subquery has a column that is called like that table, the planner takes it for a field of
//! that column, though it is no struct: `EXISTS (SELECT 1 FROM orders WHERE orders.customer = customer.id)`. And it
//! takes `o.customer.name` for a column of a table `customer`, where there is one, whatever `o` is, be it nothing. In
//! `[a, b]` it knows no columns of a query around it, no queries of WITH and no types of parameters; in a call it does.

use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    AccessExpr, Delete, Expr, FromTable, Ident, ObjectName, Select, Statement, TableWithJoins,
    Update, UpdateTableFromKind, Value, VisitorMut,
};

use flashmesh_storage::table::TEMPORARY_SCHEMA;

use super::call;
use super::joins::{add_names, normal};
use crate::names::CATALOG;
use crate::walk::visit_expressions;

/// Writes the schema before such a table, which no field has.
pub(crate) struct OfOuter<'a> {
    /// That of tables for which FROM says none.
    schema: &'a str,
    /// The names of the tables of each query around, the nearest last, and what is before them.
    scopes: Vec<Vec<(String, Vec<Ident>)>>,
}

impl<'a> OfOuter<'a> {
    /// Where names without a schema are of `schema`.
    pub fn new(schema: &'a str) -> Self {
        Self {
            schema,
            scopes: Vec::new(),
        }
    }

    fn push<'t>(&mut self, tables: impl Iterator<Item = &'t TableWithJoins>) {
        let mut names = vec![];
        tables.for_each(|table| add_names(table, &mut names));
        let path_of = |name: &ObjectName| {
            let parts = name.0.iter().rev().skip(1).rev();
            parts.filter_map(|part| part.as_ident().cloned()).collect()
        };
        let unsaid = Ident::with_quote('"', self.schema);
        let names = names.into_iter().map(|(name, with_schema)| {
            let path = with_schema.map_or_else(|| vec![unsaid.clone()], path_of);
            (normal(name), path)
        });
        self.scopes.push(names.collect());
    }

    /// How many parts of a name are a column's, where the planner would take a later one for a table, whatever is
    /// before it.
    fn fields_are_behind(&self, parts: &[Ident]) -> Option<usize> {
        let parts: Vec<String> = parts.iter().map(normal).collect();
        let tables = || self.scopes.iter().flatten();
        let is_table = |name: &str| tables().any(|(table, _)| table == name);
        let is_of = |schema: &str, table: &str| {
            tables().any(|(name, path)| {
                let of = path.last().map(normal);
                // Where FROM says none it may be one of the session's.
                let may_be_temporary = of.as_deref() == Some(self.schema);
                name == table
                    && (of.as_deref() == Some(schema)
                        || may_be_temporary && schema == TEMPORARY_SCHEMA)
            })
        };
        match parts.as_slice() {
            [schema, table, _, ..] if is_of(schema, table) => None,
            [catalog, schema, table, _, ..] if catalog == CATALOG && is_of(schema, table) => None,
            [table, _, _, ..] if is_table(table) => Some(2),
            // A column, or nothing that there is: the planner says so then.
            [_, table, _, ..] | [_, _, table, _, ..] if is_table(table) => Some(1),
            _ => None,
        }
    }
}

impl VisitorMut for OfOuter<'_> {
    type Break = Infallible;

    fn pre_visit_statement(&mut self, statement: &mut Statement) -> ControlFlow<Self::Break> {
        match statement {
            Statement::Update(Update { table, from, .. }) => {
                let from = match from {
                    Some(
                        UpdateTableFromKind::BeforeSet(from) | UpdateTableFromKind::AfterSet(from),
                    ) => from.as_slice(),
                    None => &[],
                };
                self.push(std::iter::once(&*table).chain(from));
            }
            Statement::Delete(Delete { from, using, .. }) => {
                let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = from;
                self.push(from.iter().chain(using.iter().flatten()));
            }
            _ => self.push(std::iter::empty()),
        }
        ControlFlow::Continue(())
    }

    fn post_visit_statement(&mut self, _: &mut Statement) -> ControlFlow<Self::Break> {
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Self::Break> {
        self.push(select.from.iter());
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, _: &mut Select) -> ControlFlow<Self::Break> {
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Self::Break> {
        let Expr::CompoundIdentifier(parts) = expr else {
            return ControlFlow::Continue(());
        };
        let table = match parts.as_slice() {
            [table, _] => normal(table),
            [_, _, _, ..] => {
                if let Some(of_column) = self.fields_are_behind(parts) {
                    *expr = field_of(parts, of_column);
                }
                return ControlFlow::Continue(());
            }
            _ => return ControlFlow::Continue(()),
        };
        let mut scopes = self.scopes.iter().rev().enumerate();
        let found = scopes.find_map(|(depth, names)| {
            let found = names.iter().find(|(name, _)| *name == table);
            found.map(|(_, path)| (depth, path))
        });
        if let Some((1.., path)) = found {
            parts.splice(0..0, path.iter().cloned());
        }
        ControlFlow::Continue(())
    }
}

/// Writes a list of anything else than constants as a call.
pub(super) fn call_lists(expr: &mut Expr) {
    let Expr::Array(list) = expr else {
        return;
    };
    let is_constant = list.elem.iter().all(|element| {
        let named = visit_expressions(element, |part| match part {
            Expr::Identifier(_)
            | Expr::CompoundIdentifier(_)
            | Expr::Subquery(_)
            | Expr::Exists { .. }
            | Expr::InSubquery { .. } => ControlFlow::Break(()),
            Expr::Value(value) => match value.value {
                Value::Placeholder(_) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            },
            _ => ControlFlow::Continue(()),
        });
        named.is_continue()
    });
    if !is_constant {
        *expr = call(Ident::new("make_array"), std::mem::take(&mut list.elem));
    }
}

/// `(table.column).field`, or `(column).field`: the first parts are the column's.
fn field_of(parts: &mut Vec<Ident>, of_column: usize) -> Expr {
    let fields = parts.split_off(of_column).into_iter();
    let fields = fields.map(|field| {
        let name = Value::SingleQuotedString(normal(&field));
        AccessExpr::Dot(Expr::value(name))
    });
    let column = match parts.as_slice() {
        [column] => Expr::Identifier(column.clone()),
        _ => Expr::CompoundIdentifier(std::mem::take(parts)),
    };
    Expr::CompoundFieldAccess {
        root: Box::new(Expr::Nested(Box::new(column))),
        access_chain: fields.collect(),
    }
}
