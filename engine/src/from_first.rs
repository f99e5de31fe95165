//! `FROM orders`, without SELECT: all of its columns, where DataFusion would give none. Where more follows,
//! [`crate::spelling`] writes the SELECT.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Query, Select, SelectFlavor, SelectItem, SetExpr, VisitorMut, WildcardAdditionalOptions,
};

/// Has every FROM without SELECT give all columns.
pub(crate) struct Correct;

impl VisitorMut for Correct {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        correct_body(&mut query.body);
        ControlFlow::Continue(())
    }
}

/// The parts of a set operation are no queries of their own.
fn correct_body(body: &mut SetExpr) {
    match body {
        SetExpr::Select(select) => correct_select(select),
        SetExpr::SetOperation { left, right, .. } => {
            correct_body(left);
            correct_body(right);
        }
        _ => {}
    }
}

fn correct_select(select: &mut Select) {
    if select.flavor == SelectFlavor::FromFirstNoSelect {
        select.flavor = SelectFlavor::Standard;
        let options = WildcardAdditionalOptions::default();
        select.projection = vec![SelectItem::Wildcard(options)];
    }
}
