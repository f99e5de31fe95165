//! Joins, and the tables of FROM.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Assignment, AssignmentTarget, Delete, Expr, FromTable, Ident, JoinConstraint, JoinOperator,
    ObjectName, Statement, TableFactor, TableWithJoins, Update, UpdateTableFromKind, Visit,
    Visitor,
};

use super::refuse;
use super::row_values::by_existence;
use super::sample::alias_of;
use crate::error::{Error, Result};
use crate::names::name_of;
use crate::walk::walk;

/// Says `a SEMI JOIN b` as `a LEFT SEMI JOIN b`, and refuses joins without a condition: that is how a
/// word that is none of ours is read (`a POSITIONAL JOIN b`: an `a` that is called POSITIONAL).
///
/// # Errors
/// A refusal, with the way out.
pub(super) fn correct_joins(table: &mut TableWithJoins) -> Result<()> {
    for join in &mut table.joins {
        let operator = &mut join.join_operator;
        *operator = match std::mem::replace(operator, JoinOperator::CrossApply) {
            JoinOperator::Semi(constraint) => JoinOperator::LeftSemi(constraint),
            JoinOperator::Anti(constraint) => JoinOperator::LeftAnti(constraint),
            other => other,
        };
        if matches!(constraint_of(operator), Some(JoinConstraint::None)) {
            return refuse(
                "a JOIN without ON or USING",
                "write its condition, or CROSS JOIN for all pairs of rows",
            );
        }
    }
    Ok(())
}

/// Gives subqueries a name that have none and stand beside other tables: columns of the same name are told apart
/// by it, as USING does.
pub(super) fn call_subqueries(from: &mut [TableWithJoins]) {
    if let [only] = from
        && only.joins.is_empty()
    {
        return;
    }
    let tables = from.iter_mut().flat_map(|table| {
        let joined = table.joins.iter_mut().map(|join| &mut join.relation);
        std::iter::once(&mut table.relation).chain(joined)
    });
    let unnamed = tables.filter_map(|table| match table {
        TableFactor::Derived { alias, .. } if alias.is_none() => Some(alias),
        _ => None,
    });
    for (number, alias) in unnamed.enumerate() {
        let number = match number {
            0 => String::new(),
            number => (number + 1).to_string(),
        };
        *alias = Some(alias_of(Ident::new(format!("unnamed_subquery{number}"))));
    }
}

pub(super) fn constraint_of(operator: &JoinOperator) -> Option<&JoinConstraint> {
    match operator {
        JoinOperator::Join(constraint)
        | JoinOperator::Inner(constraint)
        | JoinOperator::Left(constraint)
        | JoinOperator::LeftOuter(constraint)
        | JoinOperator::Right(constraint)
        | JoinOperator::RightOuter(constraint)
        | JoinOperator::FullOuter(constraint)
        | JoinOperator::LeftSemi(constraint)
        | JoinOperator::LeftAnti(constraint)
        | JoinOperator::RightSemi(constraint)
        | JoinOperator::RightAnti(constraint) => Some(constraint),
        // Those that have none, and those that the planner does not know.
        _ => None,
    }
}

/// The same for the tables beside the one that UPDATE and DELETE change.
///
/// # Errors
/// As [`correct_joins`] and [`twins`].
pub(super) fn correct_changes(statement: &mut Statement) -> Result<()> {
    let mut tables: Vec<&mut TableWithJoins> = Vec::new();
    match statement {
        Statement::Update(Update {
            table,
            from,
            assignments,
            selection,
            ..
        }) => {
            check_assigned_once(assignments)?;
            check_targets(table, assignments)?;
            selection.as_mut().map_or(Ok(()), by_existence)?;
            tables.push(table);
            if let Some(
                UpdateTableFromKind::BeforeSet(from) | UpdateTableFromKind::AfterSet(from),
            ) = from
            {
                tables.extend(from);
            }
        }
        Statement::Delete(Delete {
            from,
            using,
            selection,
            ..
        }) => {
            selection.as_mut().map_or(Ok(()), by_existence)?;
            let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = from;
            tables.extend(from);
            tables.extend(using.iter_mut().flatten());
        }
        _ => return Ok(()),
    }
    for table in &mut tables {
        correct_joins(table)?;
    }
    let twins = twins(tables.into_iter().map(|table| &*table))?;
    check_names(&twins, statement)
}

/// Refuses an UPDATE of another table's columns, of which the planner sees the last name alone, and of rows that
/// are none of its table's.
fn check_targets(table: &TableWithJoins, assignments: &[Assignment]) -> Result<()> {
    let gives_others = |operator: &JoinOperator| {
        matches!(
            operator,
            JoinOperator::Right(_)
                | JoinOperator::RightOuter(_)
                | JoinOperator::FullOuter(_)
                | JoinOperator::RightSemi(_)
                | JoinOperator::RightAnti(_)
        )
    };
    if table
        .joins
        .iter()
        .any(|join| gives_others(&join.join_operator))
    {
        return refuse(
            "UPDATE of a table behind such a JOIN",
            "its other rows have no row of the table: write FROM and a condition",
        );
    }
    let TableFactor::Table { name, alias, .. } = &table.relation else {
        return Ok(());
    };
    let own = match alias {
        Some(alias) => Some(&alias.name),
        None => name.0.last().and_then(|part| part.as_ident()),
    };
    let Some(own) = own.map(name_of) else {
        return Ok(());
    };
    for assignment in assignments {
        if let AssignmentTarget::ColumnName(column) = &assignment.target {
            check_qualifier(column, &own)?;
        }
    }
    Ok(())
}

/// Refuses to set `other.column`; `table` is the one whose columns are set.
///
/// # Errors
/// [`Error::Usage`].
pub(crate) fn check_qualifier(column: &ObjectName, table: &str) -> Result<()> {
    let parts = column.0.len();
    let qualifier = parts
        .checked_sub(2)
        .and_then(|place| column.0[place].as_ident());
    match qualifier {
        Some(qualifier) if name_of(qualifier) != table => Err(Error::usage(format!(
            "SET {column}: only columns of the table that is changed, '{table}', can be set"
        ))),
        _ => Ok(()),
    }
}

/// Refuses a column that is set twice: the planner takes the last of its values.
fn check_assigned_once(assignments: &[Assignment]) -> Result<()> {
    let names = assignments.iter().map(|one| match &one.target {
        AssignmentTarget::ColumnName(name) => name.0.last().and_then(|part| part.as_ident()),
        AssignmentTarget::Tuple(_) => None,
    });
    let mut seen = HashSet::new();
    let twice = names.flatten().find(|name| !seen.insert(normal(name)));
    match twice {
        Some(name) => Err(Error::usage(format!("UPDATE sets column {name} twice"))),
        None => Ok(()),
    }
}

/// Two tables of one name, of different schemas.
pub(super) struct Twins {
    name: Ident,
    tables: [ObjectName; 2],
}

/// The tables of one name in a FROM, all of which are written with their schemas.
///
/// # Errors
/// A refusal where one of them is not: to the planner `t` is a name of both `t` and `s.t`, and it takes
/// the first.
pub(super) fn twins<'a>(from: impl IntoIterator<Item = &'a TableWithJoins>) -> Result<Vec<Twins>> {
    let mut tables = Vec::new();
    for table in from {
        add_names(table, &mut tables);
    }
    let mut twins = Vec::new();
    for (place, (name, table)) in tables.iter().enumerate() {
        for (other_name, other) in &tables[..place] {
            if normal(name) != normal(other_name) {
                continue;
            }
            match (table, other) {
                (Some(table), Some(other)) if table.to_string() != other.to_string() => {
                    twins.push(Twins {
                        name: (*name).clone(),
                        tables: [(*other).clone(), (*table).clone()],
                    });
                }
                (Some(table), None) | (None, Some(table)) => {
                    return refuse(
                        &format!("{name} and {table} in one FROM"),
                        "write the schemas of both, or give one another name with AS",
                    );
                }
                _ => {}
            }
        }
    }
    Ok(twins)
}

/// Whether one of the joins of a table, within parentheses too, is such a one.
pub(crate) fn has_join(table: &TableWithJoins, is_one: &impl Fn(&JoinOperator) -> bool) -> bool {
    let within = |factor: &TableFactor| match factor {
        TableFactor::NestedJoin {
            table_with_joins, ..
        } => has_join(table_with_joins, is_one),
        _ => false,
    };
    let mut joins = table.joins.iter();
    within(&table.relation)
        || joins.any(|join| is_one(&join.join_operator) || within(&join.relation))
}

/// Whether a FROM has a table of that name, whose last part counts.
pub(crate) fn has_table(from: &[TableWithJoins], name: &[Ident]) -> bool {
    let mut names = Vec::new();
    for table in from {
        add_names(table, &mut names);
    }
    let last = name.last().map(normal);
    names.iter().any(|(known, _)| Some(normal(known)) == last)
}

/// What the tables of a FROM are called, and as what they are written, where that is with a schema.
pub(super) fn add_names<'a>(
    from: &'a TableWithJoins,
    names: &mut Vec<(&'a Ident, Option<&'a ObjectName>)>,
) {
    let factors = std::iter::once(&from.relation);
    for factor in factors.chain(from.joins.iter().map(|join| &join.relation)) {
        match factor {
            TableFactor::Table {
                name, alias: None, ..
            } => {
                let with_schema = (name.0.len() > 1).then_some(name);
                let last = name.0.last().and_then(|part| part.as_ident());
                names.extend(last.map(|last| (last, with_schema)));
            }
            TableFactor::NestedJoin {
                table_with_joins,
                alias: None,
            } => add_names(table_with_joins, names),
            TableFactor::Table { alias, .. }
            | TableFactor::Derived { alias, .. }
            | TableFactor::TableFunction { alias, .. }
            | TableFactor::Function { alias, .. }
            | TableFactor::UNNEST { alias, .. }
            | TableFactor::NestedJoin { alias, .. } => {
                names.extend(alias.iter().map(|alias| (&alias.name, None)));
            }
            _ => {}
        }
    }
}

/// A name as the planner has it.
pub(super) fn normal(name: &Ident) -> String {
    match name.quote_style {
        None => name.value.to_lowercase(),
        Some(_) => name.value.clone(),
    }
}

/// Refuses columns of such tables that are written without the schema.
///
/// # Errors
/// A refusal, with the way out.
pub(super) fn check_names(twins: &[Twins], written: &impl Visit) -> Result<()> {
    struct Named<'a>(&'a Ident);
    impl Visitor for Named<'_> {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            match expr {
                Expr::CompoundIdentifier(parts)
                    if parts.first().map(normal) == Some(normal(self.0)) =>
                {
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            }
        }
    }
    for Twins { name, tables } in twins {
        if walk(written, &mut Named(name)).is_break() {
            let [one, other] = tables;
            return refuse(
                &format!("{name} as the name of a table where there are {one} and {other}"),
                "write the schema before it",
            );
        }
    }
    Ok(())
}
