//! Windows with names: `OVER w`, `OVER (w ORDER BY …)`.
//!
//! DataFusion knows `OVER w` in the SELECT list alone: it makes a plain aggregate of one in QUALIFY and
//! ORDER BY, and passes over the name in `OVER (w …)`. So what a name stands for is written in its place.
//! And bounds of frames in another form.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, Ident, NamedWindowDefinition, NamedWindowExpr, OrderBy, Query, Select, Value,
    VisitorMut, WindowFrameBound, WindowSpec, WindowType,
};

use super::refuse;
use crate::error::{Error, Result};
use crate::names::name_of;
use crate::walk::walk_mut;

/// Writes the windows of a query in the place of their names, in its SELECT and in its ORDER BY.
pub(super) fn write_out(select: &mut Select, order_by: Option<&mut OrderBy>) -> Result<()> {
    let mut known = Named::default();
    for NamedWindowDefinition(name, expr) in std::mem::take(&mut select.named_window) {
        let window = match expr {
            NamedWindowExpr::NamedWindow(other) => known.find(&other)?.clone(),
            NamedWindowExpr::WindowSpec(window) => known.completed(window)?,
        };
        let name = name_of(&name);
        if known.windows.iter().any(|(other, _)| *other == name) {
            return Err(Error::usage(format!("window '{name}' is defined twice")));
        }
        known.windows.push((name, window));
    }
    let mut flow = walk_mut(&mut select.projection, &mut known);
    if flow.is_continue() {
        flow = walk_mut(&mut select.qualify, &mut known);
    }
    if let Some(order_by) = order_by
        && flow.is_continue()
    {
        flow = walk_mut(order_by, &mut known);
    }
    match flow {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// Writes `INTERVAL 3 DAYS PRECEDING` as `INTERVAL '3' DAYS PRECEDING`: of a frame the planner takes no other.
pub(super) fn quote_bounds(function: &mut Function) {
    let Some(WindowType::WindowSpec(window)) = &mut function.over else {
        return;
    };
    let Some(frame) = &mut window.window_frame else {
        return;
    };
    for bound in std::iter::once(&mut frame.start_bound).chain(&mut frame.end_bound) {
        if let WindowFrameBound::Preceding(Some(distance))
        | WindowFrameBound::Following(Some(distance)) = bound
            && let Expr::Interval(interval) = distance.as_mut()
            && let Expr::Value(value) = interval.value.as_mut()
            && let Value::Number(number, _) = &value.value
        {
            value.value = Value::SingleQuotedString(number.to_string());
        }
    }
}

/// The windows that have been defined so far.
#[derive(Default)]
struct Named {
    windows: Vec<(String, WindowSpec)>,
    /// How many queries within the SELECT are being visited: they have windows of their own.
    depth: usize,
}

impl Named {
    fn find(&self, name: &Ident) -> Result<&WindowSpec> {
        let called = name_of(name);
        let found = self.windows.iter().find(|(other, _)| *other == called);
        let found = found.map(|(_, window)| window);
        found.ok_or_else(|| Error::usage(format!("window '{called}' is not defined")))
    }

    /// A window with what the one that it names says.
    fn completed(&self, mut window: WindowSpec) -> Result<WindowSpec> {
        let Some(name) = window.window_name.take() else {
            return Ok(window);
        };
        let base = self.find(&name)?;
        if !window.partition_by.is_empty() {
            return refuse(
                &format!("PARTITION BY beside window '{name}'"),
                "leave one of them out",
            );
        }
        if base.window_frame.is_some() {
            return refuse(
                &format!("more than the name of window '{name}', which has a frame"),
                "write the window out",
            );
        }
        window.partition_by.clone_from(&base.partition_by);
        match (base.order_by.is_empty(), window.order_by.is_empty()) {
            (false, false) => {
                return refuse(
                    &format!("ORDER BY beside window '{name}', which has one"),
                    "leave one of them out",
                );
            }
            (false, true) => window.order_by.clone_from(&base.order_by),
            (true, _) => {}
        }
        Ok(window)
    }
}

impl VisitorMut for Named {
    type Break = Error;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        let Expr::Function(function) = expr else {
            return ControlFlow::Continue(());
        };
        if self.depth > 0 {
            return ControlFlow::Continue(());
        }
        let window = match function.over.take() {
            None => return ControlFlow::Continue(()),
            Some(WindowType::NamedWindow(name)) => self.find(&name).cloned(),
            Some(WindowType::WindowSpec(window)) => self.completed(window),
        };
        match window {
            Ok(window) => {
                function.over = Some(WindowType::WindowSpec(window));
                ControlFlow::Continue(())
            }
            Err(error) => ControlFlow::Break(error),
        }
    }
}
