//! `SELECT Quarter FROM 'flights.csv'`: names without quotes are in lower case here, and those of files mostly have
//! capitals. Where no column has the name, and one has it with capitals, that one is meant; but not where another
//! query of the statement has a column of the name.

use std::ops::ControlFlow;

use arrow::datatypes::Schema;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, TableReference};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{Expr, Ident, VisitorMut};
use flashmesh_planner::walk::WalkPlan as _;

use crate::names::name_of;
use crate::reused_aliases::not_found;
use crate::walk::walk_statement;

/// Writes a column's name as it is made where a statement could not be planned for that; the name that was written.
pub(crate) fn write_capitals(
    statement: &mut ParsedStatement,
    error: &DataFusionError,
) -> Option<String> {
    let (written, made) = meant(error)?;
    let mut names = Names {
        written,
        made,
        found: false,
    };
    let _ = walk_statement(statement, &mut names);
    names.found.then_some(names.written.name)
}

/// Whether some part of a plan has a column of such a name: which one was meant where is not known then.
///
/// # Errors
/// None.
pub(crate) fn has_any(plan: &LogicalPlan, names: &[String]) -> Result<bool> {
    let mut has_any = false;
    plan.walk_with_subqueries(|node| {
        let has_name = |schema: &Schema| schema.fields().iter().any(|f| names.contains(f.name()));
        has_any = match node {
            LogicalPlan::TableScan(scan) => has_name(&scan.source.schema()),
            node => node
                .inputs()
                .iter()
                .any(|input| has_name(input.schema().inner())),
        };
        Ok(match has_any {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(has_any)
}

/// The name that no column has, and that of the columns which have it with capitals.
fn meant(error: &DataFusionError) -> Option<(Column, String)> {
    not_found(error, &|field, there| {
        let mut meant = there.iter().filter(|made| {
            let is_of_table = match (&field.relation, &made.relation) {
                (Some(asked), Some(made)) => asked.table() == made.table(),
                (asked, _) => asked.is_none(),
            };
            is_of_table && made.name.to_lowercase() == field.name
        });
        let made = meant.next()?.name.clone();
        let is_certain = meant.all(|other| other.name == made);
        (made != field.name && is_certain).then(|| (field.clone(), made))
    })
}

struct Names {
    written: Column,
    made: String,
    found: bool,
}

impl Names {
    fn write(&mut self, name: &mut Ident) {
        if name.quote_style.is_none() && name.value.to_lowercase() == self.written.name {
            *name = Ident::with_quote('"', &self.made);
            self.found = true;
        }
    }
}

impl VisitorMut for Names {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Identifier(name) if self.written.relation.is_none() => self.write(name),
            Expr::CompoundIdentifier(parts) => {
                let table = self.written.relation.as_ref().map(TableReference::table);
                if let [.., of, name] = parts.as_mut_slice()
                    && table == Some(name_of(of).as_str())
                {
                    self.write(name);
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}
