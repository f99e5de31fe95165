//! `table.column` of a query around a subquery, and `table.column.field`.
//!
//! Where a table of the subquery has a column that is called like that table, the planner takes it for a field of
//! that column, though it is no struct: `EXISTS (SELECT 1 FROM orders WHERE orders.customer = customer.id)`. And it
//! takes `o.customer.name` for a column of a table `customer`, where there is one, whatever `o` is.

use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    AccessExpr, Delete, Expr, FromTable, Ident, ObjectName, Select, Statement, TableWithJoins,
    Update, UpdateTableFromKind, Value, VisitorMut,
};

use super::joins::{add_names, normal};

/// Writes the schema before such a table, which no field has: any is as good where FROM says none.
#[derive(Default)]
pub(super) struct OfOuter {
    /// The names of the tables of each query around, the nearest last, and what is before them.
    scopes: Vec<Vec<(String, Vec<Ident>)>>,
}

impl OfOuter {
    fn push<'a>(&mut self, tables: impl Iterator<Item = &'a TableWithJoins>) {
        let mut names = vec![];
        tables.for_each(|table| add_names(table, &mut names));
        let path_of = |name: &ObjectName| {
            let parts = name.0.iter().rev().skip(1).rev();
            parts.filter_map(|part| part.as_ident().cloned()).collect()
        };
        let names = names.into_iter().map(|(name, with_schema)| {
            let path = with_schema.map_or_else(|| vec![Ident::new("public")], path_of);
            (normal(name), path)
        });
        self.scopes.push(names.collect());
    }
}

impl VisitorMut for OfOuter {
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
            [table, column, _, ..] => {
                let (table, column) = (normal(table), normal(column));
                let mut names = self.scopes.iter().flatten();
                let is_schema = |(name, path): &(String, Vec<Ident>)| {
                    *name == column && path.last().map(normal).as_ref() == Some(&table)
                };
                if names.clone().any(|(name, _)| *name == table) && !names.any(is_schema) {
                    *expr = field_of(parts);
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

/// `(table.column).field`.
fn field_of(parts: &mut Vec<Ident>) -> Expr {
    let fields = parts.split_off(2).into_iter();
    let fields = fields.map(|field| {
        let name = Value::SingleQuotedString(normal(&field));
        AccessExpr::Dot(Expr::value(name))
    });
    Expr::CompoundFieldAccess {
        root: Box::new(Expr::Nested(Box::new(Expr::CompoundIdentifier(
            std::mem::take(parts),
        )))),
        access_chain: fields.collect(),
    }
}
