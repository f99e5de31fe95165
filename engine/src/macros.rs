//! Macros: `CREATE MACRO f(a, b := 1) AS a + b`, or `AS TABLE SELECT …`.
//!
//! They are a session's own. A call is written out before its statement is planned, so plans, views and the
//! store know nothing of them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{
    self, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, MacroDefinition,
    ObjectName, ObjectNamePart, Query, TableAlias, TableFactor, Visit, VisitMut, Visitor,
    VisitorMut,
};
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::names::name_of;
use crate::own_statement::{Macro, MacroBody, MacroStatement};
use crate::spelling::IF_NOT_EXISTS;
use crate::walk::{visit_expressions_mut, walk, walk_statement};

/// How many calls of a statement are written out.
const MOST_CALLS: usize = 1000;
/// How deep in each other: one that calls itself has no end.
const DEEPEST: usize = 50;
/// How large all that is written out may be together: see [`Extent`].
const LARGEST: usize = 200_000;
/// How deep a statement may be with it. The parser's limits are for what was written.
const DEEPEST_TREE: usize = 1000;
/// How many levels an operator of a chain is, another expression, and a query: of stack they take as much.
const OPERATOR: usize = 1;
const EXPRESSION: usize = 10;
const QUERY: usize = 50;

/// The macros of a session, by name.
#[derive(Debug, Default)]
pub(crate) struct Macros(Mutex<BTreeMap<String, Macro>>);

/// What `CREATE MACRO` says.
///
/// # Errors
/// [`Error::Usage`] for a name with a schema, and for two parameters of one name.
pub(crate) fn parsed_macro(statement: &ast::Statement) -> Result<Option<MacroStatement>> {
    let ast::Statement::CreateMacro {
        or_replace,
        // All are.
        temporary: _,
        name,
        args,
        definition,
    } = statement
    else {
        return Ok(None);
    };
    let (name, if_not_exists) = match name.0.as_slice() {
        [ObjectNamePart::Identifier(name)] => (name, false),
        [
            ObjectNamePart::Identifier(schema),
            ObjectNamePart::Identifier(name),
        ] if schema.value == IF_NOT_EXISTS => (name, true),
        _ => {
            return Err(Error::usage(format!(
                "a macro is the session's own; leave out the schema of '{name}'"
            )));
        }
    };
    let mut parameters: Vec<(String, Option<Expr>)> = Vec::new();
    for argument in args.iter().flatten() {
        let parameter = name_of(&argument.name);
        if parameters.iter().any(|(known, _)| *known == parameter) {
            return Err(Error::usage(format!(
                "macro '{name}' has two parameters named '{parameter}'"
            )));
        }
        parameters.push((parameter, argument.default_expr.clone()));
    }
    let mut lambdas = Lambdas;
    let has_lambda = match definition {
        MacroDefinition::Expr(expr) => walk(expr, &mut lambdas).is_break(),
        MacroDefinition::Table(query) => walk(query, &mut lambdas).is_break(),
    };
    if has_lambda {
        return Err(Error::usage(format!(
            "macro '{name}' can't have lambda functions in it: their names and its parameters would be mixed up"
        )));
    }
    Ok(Some(MacroStatement::Create {
        name: name_of(name),
        or_replace: *or_replace,
        if_not_exists,
        of: Box::new(Macro {
            parameters,
            body: match definition {
                MacroDefinition::Expr(expr) => MacroBody::Value(Box::new(expr.clone())),
                MacroDefinition::Table(query) => MacroBody::Table(query.clone()),
            },
        }),
    }))
}

impl Macros {
    /// Makes or drops one.
    ///
    /// # Errors
    /// [`Error::Usage`] for one that is there, or is not.
    pub fn apply(&self, statement: MacroStatement) -> Result<()> {
        let mut all = self.0.lock();
        match statement {
            MacroStatement::Create {
                name,
                or_replace,
                if_not_exists,
                of,
            } => {
                if all.contains_key(&name) && if_not_exists {
                    return Ok(());
                }
                if all.contains_key(&name) && !or_replace {
                    return Err(Error::usage(format!(
                        "macro '{name}' is there; CREATE OR REPLACE MACRO makes it anew"
                    )));
                }
                all.insert(name, *of);
            }
            MacroStatement::Drop { name, if_exists } => {
                if all.remove(&name).is_none() && !if_exists {
                    return Err(Error::usage(format!("the session has no macro '{name}'")));
                }
            }
        }
        Ok(())
    }

    /// Writes out the calls of macros in a statement, but for those in a new macro, which are written out
    /// when that is called.
    ///
    /// # Errors
    /// [`Error::Usage`] for arguments that a macro does not take.
    pub fn write_out(&self, statement: &mut ParsedStatement) -> Result<()> {
        if let ParsedStatement::Statement(parsed) = &*statement
            && matches!(**parsed, ast::Statement::CreateMacro { .. })
        {
            return Ok(());
        }
        let known = self.0.lock();
        if known.is_empty() {
            return Ok(());
        }
        let mut calls = Calls {
            known: &known,
            count: 0,
            open: Vec::new(),
            depth: 0,
            place: 0,
            size: 0,
        };
        match walk_statement(statement, &mut calls) {
            ControlFlow::Break(error) => Err(error),
            ControlFlow::Continue(()) => Ok(()),
        }
    }
}

struct Calls<'a> {
    known: &'a BTreeMap<String, Macro>,
    count: usize,
    /// For each expression and table that is looked at, how many calls were written out in its place.
    open: Vec<usize>,
    /// All of these.
    depth: usize,
    /// How deep in the statement that is, in levels.
    place: usize,
    /// Of all that was written out.
    size: usize,
}

struct Lambdas;

impl Visitor for Lambdas {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::Lambda(_) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

/// How much of a statement something is.
#[derive(Debug, Default)]
struct Extent {
    /// Expressions, queries, and sixteen bytes of a literal each.
    size: usize,
    /// In levels, see [`levels_of`].
    depth: usize,
    here: usize,
    /// The names in it that stand alone: a parameter once for each time that it is there.
    names: BTreeMap<String, usize>,
}

impl Extent {
    fn of(part: &impl Visit) -> Self {
        let mut extent = Self::default();
        let _ = walk(part, &mut extent);
        extent
    }

    fn enter(&mut self, levels: usize) -> ControlFlow<()> {
        self.size += 1;
        self.here += levels;
        self.depth = self.depth.max(self.here);
        ControlFlow::Continue(())
    }
}

impl Visitor for Extent {
    type Break = ();

    fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.enter(QUERY)
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.here -= QUERY;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::Identifier(name) => *self.names.entry(name_of(name)).or_default() += 1,
            Expr::Value(value) => {
                if let ast::Value::SingleQuotedString(text) = &value.value {
                    self.size += text.len() / 16;
                }
            }
            _ => {}
        }
        self.enter(levels_of(expr))
    }

    fn post_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        self.here -= levels_of(expr);
        ControlFlow::Continue(())
    }
}

fn levels_of(expr: &Expr) -> usize {
    match expr {
        Expr::BinaryOp { .. } => OPERATOR,
        _ => EXPRESSION,
    }
}

impl VisitorMut for Calls<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
        self.place += QUERY;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
        self.place -= QUERY;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        self.open.push(0);
        let written = self.pre_visit_call(expr);
        self.place += levels_of(expr);
        written
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        self.place -= levels_of(expr);
        self.leave();
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, _: &mut TableFactor) -> ControlFlow<Error> {
        self.leave();
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        self.open.push(0);
        let TableFactor::Table {
            name,
            alias,
            args: Some(args),
            ..
        } = factor
        else {
            return ControlFlow::Continue(());
        };
        let Some((name, of)) = find(self.known, name) else {
            return ControlFlow::Continue(());
        };
        let MacroBody::Table(query) = &of.body else {
            return ControlFlow::Continue(());
        };
        let written = self.count(&name).and_then(|()| {
            let values = bound(&name, &of.parameters, &args.args)?;
            self.make_room(&name, query.as_ref(), &values)?;
            Ok(with_values(query.clone(), &values))
        });
        let called = TableAlias {
            explicit: true,
            name: Ident::with_quote('"', name),
            columns: Vec::new(),
            at: None,
        };
        match written {
            Ok(subquery) => {
                *factor = TableFactor::Derived {
                    lateral: false,
                    subquery,
                    alias: Some(alias.take().unwrap_or(called)),
                    sample: None,
                };
                ControlFlow::Continue(())
            }
            Err(error) => ControlFlow::Break(error),
        }
    }
}

impl<'a> Calls<'a> {
    /// Writes out what an expression calls; what is written out may be a call again.
    fn pre_visit_call(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        while let Some((name, of, body)) = self.of_value(expr) {
            let Expr::Function(call) = expr else {
                break;
            };
            let written = self.count(&name).and_then(|()| {
                let values = bound(&name, &of.parameters, &arguments(call)?)?;
                self.make_room(&name, body, &values)?;
                Ok(Expr::Nested(Box::new(with_values(body.clone(), &values))))
            });
            match written {
                Ok(written) => *expr = written,
                Err(error) => return ControlFlow::Break(error),
            }
        }
        ControlFlow::Continue(())
    }

    /// Counts a call that is written out in the place of what is looked at.
    fn count(&mut self, name: &str) -> Result<()> {
        self.count += 1;
        self.depth += 1;
        if let Some(here) = self.open.last_mut() {
            *here += 1;
        }
        match self.count > MOST_CALLS || self.depth > DEEPEST {
            true => Err(Error::usage(format!(
                "macro '{name}' calls itself, or is one of more than {DEEPEST} in each other, or {MOST_CALLS} in one statement"
            ))),
            false => Ok(()),
        }
    }

    /// Checks that a body with these values is neither too large nor too deep where it is to stand.
    fn make_room(
        &mut self,
        name: &str,
        body: &impl Visit,
        values: &BTreeMap<String, Expr>,
    ) -> Result<()> {
        let body = Extent::of(body);
        let (mut size, mut depth) = (body.size, 0);
        for (parameter, value) in values {
            let uses = body.names.get(parameter).copied().unwrap_or(0);
            let value = Extent::of(value);
            size = size.saturating_add(value.size.saturating_mul(uses));
            depth = depth.max(value.depth);
        }
        self.size = self.size.saturating_add(size);
        let depth = self.place + body.depth + depth;
        match self.size > LARGEST || depth > DEEPEST_TREE {
            true => Err(Error::usage(format!(
                "macro '{name}' makes the statement too large or too deep; call it less often, or within fewer others"
            ))),
            false => Ok(()),
        }
    }

    fn leave(&mut self) {
        self.depth -= self.open.pop().unwrap_or(0);
    }

    /// The macro of a value that an expression calls, and its body.
    fn of_value(&self, expr: &Expr) -> Option<(String, &'a Macro, &'a Expr)> {
        let Expr::Function(call) = expr else {
            return None;
        };
        let (name, of) = find(self.known, &call.name)?;
        match &of.body {
            MacroBody::Value(body) => Some((name, of, body.as_ref())),
            MacroBody::Table(_) => None,
        }
    }
}

fn find<'a>(known: &'a BTreeMap<String, Macro>, name: &ObjectName) -> Option<(String, &'a Macro)> {
    let [ObjectNamePart::Identifier(name)] = name.0.as_slice() else {
        return None;
    };
    let name = name_of(name);
    let of = known.get(&name)?;
    Some((name, of))
}

/// The arguments of a call of which nothing else is said.
fn arguments(call: &Function) -> Result<Vec<FunctionArg>> {
    let is_plain = call.filter.is_none() && call.over.is_none() && call.within_group.is_empty();
    match &call.args {
        FunctionArguments::List(list)
            if is_plain && list.clauses.is_empty() && list.duplicate_treatment.is_none() =>
        {
            Ok(list.args.clone())
        }
        _ => Err(Error::usage(format!(
            "macro '{}' takes arguments alone, no DISTINCT, ORDER BY, FILTER or OVER",
            call.name
        ))),
    }
}

/// The values of parameters, by their names.
fn bound(
    name: &str,
    parameters: &[(String, Option<Expr>)],
    given: &[FunctionArg],
) -> Result<BTreeMap<String, Expr>> {
    let takes = || {
        let names: Vec<_> = parameters.iter().map(|(name, _)| name.as_str()).collect();
        format!("macro '{name}' takes ({})", names.join(", "))
    };
    let mut values = BTreeMap::new();
    for (place, argument) in given.iter().enumerate() {
        let (parameter, value) = match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => {
                let parameter = parameters.get(place).map(|(name, _)| name.clone());
                (parameter, value)
            }
            FunctionArg::Named {
                name,
                arg: FunctionArgExpr::Expr(value),
                ..
            } => {
                let name = name_of(name);
                let mut known = parameters.iter();
                (
                    known.any(|(known, _)| *known == name).then_some(name),
                    value,
                )
            }
            _ => (None, &Expr::Value(ast::Value::Null.into())),
        };
        let is_new = parameter.is_some_and(|name| values.insert(name, value.clone()).is_none());
        if !is_new {
            return Err(Error::usage(format!("{}, not {argument}", takes())));
        }
    }
    for (parameter, default) in parameters {
        if values.contains_key(parameter) {
            continue;
        }
        let Some(default) = default else {
            return Err(Error::usage(format!(
                "{}; '{parameter}' is missing",
                takes()
            )));
        };
        values.insert(parameter.clone(), default.clone());
    }
    Ok(values)
}

/// A body with values in the places of parameters. They are put there on the way up, so that names within them
/// are not taken for those of the body.
fn with_values<T: VisitMut>(mut body: T, values: &BTreeMap<String, Expr>) -> T {
    let _ = visit_expressions_mut(&mut body, |part| {
        if let Expr::Identifier(name) = part
            && let Some(value) = values.get(&name_of(name))
        {
            *part = match value {
                // ORDER BY takes it for the place of a column.
                Expr::Value(_) => value.clone(),
                _ => Expr::Nested(Box::new(value.clone())),
            };
        }
        ControlFlow::<()>::Continue(())
    });
    body
}
