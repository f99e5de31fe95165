//! `s.*` and `unnest(s)` of a struct in a SELECT list: its fields, called as they are in it. Which they are is asked
//! before the statement is planned.

use std::ops::ControlFlow;

use arrow::datatypes::DataType;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{
    self, Expr, Ident, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, Value,
    VisitorMut, WildcardAdditionalOptions, With,
};

use crate::Session;
use crate::asked_first::{Pending, first};
use crate::clauses::{self, argument_of_unnest, call, has_table};
use crate::columns::merged_without;
use crate::error::{Error, Result};
use crate::names::name_of;
use crate::parameters::Values;
use crate::walk::walk_statement;

impl Session {
    /// Writes fields out where a SELECT list asks for those of a struct.
    ///
    /// # Errors
    /// [`Error::Usage`] for `x.*` of what is neither a table nor a struct; those of planning FROM.
    pub(crate) async fn write_out_fields(
        &self,
        statement: &mut ParsedStatement,
        variables: &Values,
    ) -> Result<()> {
        while let Some((scopes, Asking(select))) = first(statement) {
            let with = merged_without::<Present>(&scopes);
            let mut items = Vec::with_capacity(select.projection.len());
            for item in &select.projection {
                match struct_of(item, &select) {
                    None => items.push(item.clone()),
                    Some(Asked::All(value)) => {
                        let of = self.type_in(&select, with.clone(), &value, variables).await;
                        match of {
                            Ok(DataType::Struct(fields)) => {
                                items.extend(fields.iter().map(|f| field(&value, f.name())));
                            }
                            // It is of a list, or planning tells what is wrong with it.
                            _ => items.push(named(item)),
                        }
                    }
                    Some(Asked::But(value, excluded)) => {
                        let of = self
                            .type_in(&select, with.clone(), &value, variables)
                            .await?;
                        let DataType::Struct(fields) = of else {
                            return Err(Error::usage(format!(
                                "{value}.*: '{value}' is neither a table of FROM nor a struct"
                            )));
                        };
                        let kept = fields.iter().map(|f| f.name());
                        let kept = kept.filter(|name| !excluded.contains(name));
                        items.extend(kept.map(|name| field(&value, name)));
                    }
                }
            }
            let _ = walk_statement(statement, &mut Replace(items));
        }
        Ok(())
    }

    /// The type of an expression in a SELECT.
    async fn type_in(
        &self,
        select: &Select,
        with: Option<With>,
        value: &Expr,
        variables: &Values,
    ) -> Result<DataType> {
        let parsed = self.parse("SELECT nothing FROM nothing")?.pop();
        let Some(ParsedStatement::Statement(mut statement)) = parsed else {
            return Err(Error::usage("fields without a query"));
        };
        if let ast::Statement::Query(query) = statement.as_mut()
            && let SetExpr::Select(probe) = query.body.as_mut()
        {
            probe.from.clone_from(&select.from);
            probe.projection = vec![SelectItem::UnnamedExpr(value.clone())];
            query.with = with;
        }
        let statement = ParsedStatement::Statement(statement);
        let plan = Box::pin(self.plan_in(statement, variables)).await?;
        let field = plan.schema().fields().first();
        let field = field.ok_or_else(|| Error::usage("an expression without a type"))?;
        Ok(field.data_type().clone())
    }
}

/// What an item asks for.
enum Asked {
    /// The fields of a struct, or the elements of a list.
    All(Expr),
    /// The fields of a struct but some.
    But(Expr, Vec<String>),
}

fn struct_of(item: &SelectItem, select: &Select) -> Option<Asked> {
    match item {
        SelectItem::UnnamedExpr(expr) => argument_of_unnest(expr).cloned().map(Asked::All),
        SelectItem::QualifiedWildcard(kind, options) => {
            let value = match kind {
                SelectItemQualifiedWildcardKind::Expr(value) => value.clone(),
                SelectItemQualifiedWildcardKind::ObjectName(name) => {
                    let parts = name.0.iter().map(|part| part.as_ident().cloned());
                    let mut parts: Vec<Ident> = parts.collect::<Option<_>>()?;
                    match parts.len() {
                        _ if has_table(&select.from, &parts) => return None,
                        1 => Expr::Identifier(parts.remove(0)),
                        _ => Expr::CompoundIdentifier(parts),
                    }
                }
            };
            Some(Asked::But(value, excluded(options)?))
        }
        _ => None,
    }
}

/// What EXCLUDE names; `None` where more is said.
fn excluded(options: &WildcardAdditionalOptions) -> Option<Vec<String>> {
    let known = WildcardAdditionalOptions {
        wildcard_token: options.wildcard_token.clone(),
        opt_exclude: options.opt_exclude.clone(),
        ..WildcardAdditionalOptions::default()
    };
    if known != *options {
        return None;
    }
    let names = clauses::excluded(options).iter();
    let names = names.map(|name| match name.0.as_slice() {
        [only] => only.as_ident().map(name_of),
        _ => None,
    });
    names.collect()
}

fn field(value: &Expr, name: &str) -> SelectItem {
    let key = Expr::value(Value::SingleQuotedString(name.to_owned()));
    SelectItem::ExprWithAlias {
        expr: call(Ident::new("get_field"), vec![value.clone(), key]),
        alias: Ident::with_quote('"', name),
    }
}

/// An item with its text as its name.
fn named(item: &SelectItem) -> SelectItem {
    match item {
        SelectItem::UnnamedExpr(expr) => SelectItem::ExprWithAlias {
            expr: expr.clone(),
            alias: Ident::with_quote('"', expr.to_string()),
        },
        other => other.clone(),
    }
}

fn asks(select: &Select) -> bool {
    let mut items = select.projection.iter();
    items.any(|item| struct_of(item, select).is_some())
}

/// A SELECT with such items.
struct Asking(Select);

impl Pending for Asking {
    fn in_select(select: &mut Select) -> Option<Self> {
        asks(select).then(|| Self(select.clone()))
    }
}

/// Ends where fields are asked for.
#[derive(Default)]
struct Present;

impl VisitorMut for Present {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        match asks(select) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// Puts other items into the SELECT list of the first that is [`Asking`].
struct Replace(Vec<SelectItem>);

impl VisitorMut for Replace {
    type Break = ();

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        if !asks(select) {
            return ControlFlow::Continue(());
        }
        select.projection = std::mem::take(&mut self.0);
        ControlFlow::Break(())
    }
}
