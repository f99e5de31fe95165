//! Columns of `JOIN … USING`.
//!
//! To the planner such a column is one of the two tables': NULL in rows that the other table alone has, and behind
//! `*` that of the table whose name comes first in the alphabet. In a subquery it is one of the query around it,
//! where that has a column of the name. Joined once more by the same column, it is ambiguous. So its table is
//! written out.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, Join, JoinConstraint, JoinOperator, ObjectName, OrderBy, Query,
    ReplaceSelectElement, ReplaceSelectItem, Select, SelectItem, TableAlias, TableFactor,
    TableWithJoins, VisitMut, VisitorMut, WildcardAdditionalOptions,
};

use super::joins::{constraint_of, has_join, normal};
use super::{excluded, parsed, refuse};
use crate::error::Result;
use crate::walk::walk_mut;

/// What the columns of USING are, by name.
type Keys = BTreeMap<String, Expr>;

/// Writes out what columns of USING are in a SELECT.
///
/// # Errors
/// A refusal of NATURAL RIGHT and FULL JOIN, and of parts of `*` over several, whose columns nobody knows here.
pub(crate) fn write_out_keys(select: &mut Select) -> Result<()> {
    let Some(mut joined) = Joined::of(select)? else {
        return Ok(());
    };
    let is_partial =
        |item: &SelectItem| matches!(item, SelectItem::Wildcard(options) if !is_plain(options));
    if !joined.conditions.is_empty() && select.projection.iter().any(is_partial) {
        if !joined.tables[0].replaced.is_empty() {
            return refuse(
                "* EXCLUDE, REPLACE and RENAME over several RIGHT or FULL JOIN … USING",
                "name the columns",
            );
        }
        // The planner's, which knows the columns.
        joined.conditions.clear();
    }
    for (join, condition) in &joined.conditions {
        let operator = &mut select.from[0].joins[*join].join_operator;
        if let Some(constraint) = constraint_mut(operator) {
            *constraint = JoinConstraint::On(condition.clone());
        }
    }
    let outputs = outputs(select);
    let mut projection = Vec::with_capacity(select.projection.len());
    for mut item in std::mem::take(&mut select.projection) {
        match &item {
            SelectItem::Wildcard(options) if is_plain(options) && !joined.is_planners => {
                projection.extend(joined.columns()?);
                continue;
            }
            SelectItem::Wildcard(options) if !is_plain(options) && joined.conditions.is_empty() => {
                let options = joined.replacing(options.clone());
                projection.push(SelectItem::Wildcard(options));
                continue;
            }
            // What is no column any more keeps its name.
            SelectItem::UnnamedExpr(Expr::Identifier(name)) => {
                if let Some(value @ Expr::Function(_)) = joined.keys.get(&normal(name)) {
                    item = SelectItem::ExprWithAlias {
                        expr: value.clone(),
                        alias: name.clone(),
                    };
                }
            }
            _ => {}
        }
        projection.push(item);
    }
    let mut written = Written::new(joined.keys.clone());
    written.visit(&mut projection);
    written.visit(&mut select.distinct);
    written.visit(&mut select.selection);
    written.visit(&mut select.group_by);
    written.visit(&mut select.named_window);
    // The others name columns of the SELECT first.
    let mut written = Written::new(without(joined.keys, &outputs));
    written.visit(&mut select.having);
    written.visit(&mut select.qualify);
    select.projection = projection;
    Ok(())
}

/// The same for its ORDER BY; before [`write_out_keys`].
///
/// # Errors
/// As [`write_out_keys`].
pub(super) fn write_out_ordered_keys(select: &Select, order_by: &mut OrderBy) -> Result<()> {
    if let Some(joined) = Joined::of(select)? {
        Written::new(without(joined.keys, &outputs(select))).visit(order_by);
    }
    Ok(())
}

fn without(keys: Keys, outputs: &Option<BTreeSet<String>>) -> Keys {
    match outputs {
        Some(outputs) => {
            let others = keys.into_iter().filter(|(name, _)| !outputs.contains(name));
            others.collect()
        }
        None => Keys::new(),
    }
}

/// The names of a SELECT's columns; `None` where not all are known.
fn outputs(select: &Select) -> Option<BTreeSet<String>> {
    let names = select.projection.iter().map(|item| match item {
        SelectItem::ExprWithAlias { alias, .. }
        | SelectItem::UnnamedExpr(Expr::Identifier(alias)) => Some(Some(normal(alias))),
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => Some(parts.last().map(normal)),
        SelectItem::UnnamedExpr(_) => Some(None),
        _ => None,
    });
    let names: Option<Vec<_>> = names.collect();
    Some(names?.into_iter().flatten().collect())
}

fn is_plain(options: &WildcardAdditionalOptions) -> bool {
    *options
        == WildcardAdditionalOptions {
            wildcard_token: options.wildcard_token.clone(),
            ..WildcardAdditionalOptions::default()
        }
}

/// A FROM of tables that are joined by USING, and perhaps otherwise, too.
struct Joined {
    tables: Vec<Table>,
    keys: Keys,
    /// What is to stand in the place of USING, by the join's place: where the left side's column is already one of
    /// several tables.
    conditions: Vec<(usize, Expr)>,
    /// Whether the planner's `*` gives the same columns.
    is_planners: bool,
}

/// One table of a FROM, and what `*` gives of it.
struct Table {
    name: String,
    /// Columns that tables before it have.
    merged: Vec<Ident>,
    /// Of the first table: columns that the others are joined by.
    shared: Vec<String>,
    /// Those of `shared` whose values are not the table's own, since it lacks rows.
    replaced: Vec<Ident>,
}

impl Table {
    fn new(name: String) -> Self {
        Self {
            name,
            merged: Vec::new(),
            shared: Vec::new(),
            replaced: Vec::new(),
        }
    }

    /// Notes that a column's values are not the table's own; `false` where it is none of the table's columns.
    fn replace(&mut self, name: &Ident) -> bool {
        if !self.shared.contains(&normal(name)) {
            return false;
        }
        if !self
            .replaced
            .iter()
            .any(|other| normal(other) == normal(name))
        {
            self.replaced.push(name.clone());
        }
        true
    }
}

impl Joined {
    fn of(select: &Select) -> Result<Option<Self>> {
        for join in select.from.iter().flat_map(|table| &table.joins) {
            let constraint = constraint_of(&join.join_operator);
            if constraint == Some(&JoinConstraint::Natural) && keeps_right(&join.join_operator) {
                return refuse(
                    "NATURAL RIGHT and FULL JOIN",
                    "write the columns, as in RIGHT JOIN … USING (id)",
                );
            }
        }
        let [table] = select.from.as_slice() else {
            return Ok(None);
        };
        let Some(left) = name_of(&table.relation) else {
            return Ok(None);
        };
        let mut joined = Self {
            tables: vec![Table::new(left)],
            keys: Keys::new(),
            conditions: Vec::new(),
            is_planners: false,
        };
        for (place, join) in table.joins.iter().enumerate() {
            if joined.add(place, join)?.is_none() {
                return Ok(None);
            }
        }
        if joined.keys.is_empty() {
            return Ok(None);
        }
        joined.is_planners = match joined.tables.as_slice() {
            [left, right] => {
                left.replaced.is_empty() && left.name.to_lowercase() < right.name.to_lowercase()
            }
            tables => tables.len() == 1,
        };
        Ok(Some(joined))
    }

    /// Joins one more table; `None` where it is not known here what its columns are.
    fn add(&mut self, place: usize, join: &Join) -> Result<Option<()>> {
        let operator = &join.join_operator;
        let Some(right) = name_of(&join.relation) else {
            return Ok(None);
        };
        let mut table = Table::new(right);
        match constraint_of(operator) {
            Some(JoinConstraint::Natural) => return Ok(None),
            Some(JoinConstraint::Using(columns)) => {
                let mut conditions = Vec::with_capacity(columns.len());
                let mut has_merged = false;
                for column in columns {
                    let Some(name) = column.0.last().and_then(|part| part.as_ident()) else {
                        return Ok(None);
                    };
                    let known = self.keys.get(&normal(name));
                    has_merged |= known.is_some();
                    let left = match (known, self.tables.as_slice()) {
                        (Some(value), _) => Some(value.to_string()),
                        (None, [only]) => Some(format!("{}.{name}", only.name)),
                        // Of one of several tables; of which, the planner knows.
                        (None, _) => None,
                    };
                    let right = format!("{}.{name}", table.name);
                    conditions.push(left.as_ref().map(|left| format!("{left} = {right}")));
                    table.merged.push(name.clone());
                    if let [first] = self.tables.as_mut_slice() {
                        first.shared.push(normal(name));
                    }
                    if keeps_right(operator) && !self.tables[0].replace(name) {
                        return Ok(None);
                    }
                    let value = match (operator, left) {
                        (JoinOperator::FullOuter(_), Some(left)) => {
                            format!("coalesce({left}, {right})")
                        }
                        (operator, _) if keeps_right(operator) => right,
                        (_, Some(left)) => left,
                        (JoinOperator::Join(_) | JoinOperator::Inner(_), None) => right,
                        (_, None) => continue,
                    };
                    let value = parsed(&value, |parser| parser.parse_expr())?;
                    self.keys.insert(normal(name), value);
                }
                if has_merged {
                    let Some(conditions) = conditions.into_iter().collect::<Option<Vec<_>>>()
                    else {
                        return Ok(None);
                    };
                    let condition =
                        parsed(&conditions.join(" AND "), |parser| parser.parse_expr())?;
                    self.conditions.push((place, condition));
                }
            }
            _ => {}
        }
        match operator {
            JoinOperator::LeftSemi(_) | JoinOperator::LeftAnti(_) => {}
            JoinOperator::RightSemi(_) | JoinOperator::RightAnti(_) => return Ok(None),
            _ => self.tables.push(table),
        }
        Ok(Some(()))
    }

    /// What is said of `*`, with the values of the keys beside it.
    fn replacing(&self, mut options: WildcardAdditionalOptions) -> WildcardAdditionalOptions {
        let excluded = excluded(&options).iter();
        let excluded = excluded.filter_map(|name| name.0.last()?.as_ident().map(normal));
        let excluded: Vec<_> = excluded.collect();
        let mut items = options
            .opt_replace
            .take()
            .map_or_else(Vec::new, |replaced| replaced.items);
        for name in &self.tables[0].replaced {
            let is_said = excluded.contains(&normal(name))
                || items
                    .iter()
                    .any(|item| normal(&item.column_name) == normal(name));
            if !is_said {
                items.push(Box::new(ReplaceSelectElement {
                    expr: self.keys[&normal(name)].clone(),
                    column_name: Ident::new(normal(name)),
                    as_keyword: true,
                }));
            }
        }
        options.opt_replace = (!items.is_empty()).then_some(ReplaceSelectItem { items });
        options
    }

    /// All columns: those of the first table, with the values of the keys, then the others of the next ones.
    fn columns(&self) -> Result<Vec<SelectItem>> {
        let tables = self.tables.iter().map(|table| {
            let mut columns = format!("{}.*", table.name);
            if !table.merged.is_empty() {
                let names = table.merged.iter().map(ToString::to_string);
                columns += &format!(" EXCLUDE ({})", names.collect::<Vec<_>>().join(", "));
            }
            if !table.replaced.is_empty() {
                let values = table.replaced.iter();
                let values = values.map(|name| format!("{} AS {name}", self.keys[&normal(name)]));
                columns += &format!(" REPLACE ({})", values.collect::<Vec<_>>().join(", "));
            }
            columns
        });
        let text = tables.collect::<Vec<_>>().join(", ");
        parsed(&text, |parser| parser.parse_projection())
    }
}

/// Whether tables are joined by columns of the same names.
pub(crate) fn joins_by_keys(from: &TableWithJoins) -> bool {
    has_join(from, &|operator| {
        matches!(
            constraint_of(operator),
            Some(JoinConstraint::Using(_) | JoinConstraint::Natural)
        )
    })
}

fn constraint_mut(operator: &mut JoinOperator) -> Option<&mut JoinConstraint> {
    match operator {
        JoinOperator::Join(constraint)
        | JoinOperator::Inner(constraint)
        | JoinOperator::Left(constraint)
        | JoinOperator::LeftOuter(constraint)
        | JoinOperator::Right(constraint)
        | JoinOperator::RightOuter(constraint)
        | JoinOperator::FullOuter(constraint)
        | JoinOperator::LeftSemi(constraint)
        | JoinOperator::LeftAnti(constraint) => Some(constraint),
        _ => None,
    }
}

fn keeps_right(operator: &JoinOperator) -> bool {
    matches!(
        operator,
        JoinOperator::Right(_) | JoinOperator::RightOuter(_) | JoinOperator::FullOuter(_)
    )
}

/// What stands before a table's columns; `None` for a function and for a file.
fn name_of(factor: &TableFactor) -> Option<String> {
    let of_alias = |alias: &TableAlias| alias.name.to_string();
    match factor {
        TableFactor::Table {
            alias: Some(alias), ..
        }
        | TableFactor::Derived {
            alias: Some(alias), ..
        } => Some(of_alias(alias)),
        TableFactor::Table {
            name: ObjectName(parts),
            alias: None,
            args: None,
            sample: None,
            ..
        } => {
            let parts = parts.iter().map(|part| {
                let part = part.as_ident()?;
                (part.quote_style != Some('\'')).then(|| part.to_string())
            });
            Some(parts.collect::<Option<Vec<_>>>()?.join("."))
        }
        _ => None,
    }
}

/// Puts values in the place of names.
struct Written {
    keys: Keys,
    /// Of queries within: their names are their own.
    depth: usize,
}

impl Written {
    fn new(keys: Keys) -> Self {
        Self { keys, depth: 0 }
    }

    fn visit(&mut self, part: &mut impl VisitMut) {
        // It goes to the end.
        let _ = walk_mut(part, self);
    }
}

impl VisitorMut for Written {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.depth == 0
            && let Expr::Identifier(name) = expr
            && let Some(value) = self.keys.get(&normal(name))
        {
            *expr = value.clone();
        }
        ControlFlow::Continue(())
    }
}
