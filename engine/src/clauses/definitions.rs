//! What tables, columns and schemas are said to be.

use datafusion::sql::sqlparser::ast::{
    AlterTableOperation, ColumnOption, ColumnOptionDef, ConstraintCharacteristics,
    DeferrableInitial, Ident, NullsDistinctOption, ObjectNamePart, Statement, TableConstraint,
    UniqueConstraint,
};
use flashmesh_storage::table::{TEMPORARY_PREFIX, TEMPORARY_SCHEMA};

use super::refuse;
use crate::error::Result;
use crate::names::{is_auto_increment, name_of};

/// Puts a temporary table where they are: the planner refuses them.
pub(super) fn place_temporary(statement: &mut Statement) -> Result<()> {
    let Statement::CreateTable(create) = statement else {
        return Ok(());
    };
    if !create.temporary {
        return Ok(());
    }
    create.temporary = false;
    let temporary = Ident::with_quote('"', TEMPORARY_PREFIX);
    let parts = &mut create.name.0;
    let schema = match parts.as_slice() {
        [schema, _] => schema.as_ident().map(name_of),
        _ => None,
    };
    match (parts.len(), schema.as_deref()) {
        (1, _) => parts.insert(0, ObjectNamePart::Identifier(temporary)),
        (_, Some(TEMPORARY_SCHEMA)) => parts[0] = ObjectNamePart::Identifier(temporary),
        _ => {
            let name = parts.last().map(ToString::to_string).unwrap_or_default();
            return refuse(
                &format!("a temporary table '{}'", create.name),
                &format!("they are in the schema '{TEMPORARY_SCHEMA}': write just {name}"),
            );
        }
    }
    Ok(())
}

/// Refuses what something is said to be and would not be.
pub(super) fn check_statement(statement: &Statement) -> Result<()> {
    match statement {
        Statement::CreateTable(create) => {
            for column in &create.columns {
                check_column(&column.name, &column.options)?;
            }
            create.constraints.iter().try_for_each(check_constraint)
        }
        Statement::Drop { names, .. } if names.len() > 1 => {
            refuse("DROP of several at once", "write a DROP for each")
        }
        Statement::AlterTable(alter) => {
            alter
                .operations
                .iter()
                .try_for_each(|operation| match operation {
                    AlterTableOperation::AddColumn { column_def, .. } => {
                        check_column(&column_def.name, &column_def.options)
                    }
                    AlterTableOperation::AddConstraint { constraint, .. } => {
                        check_constraint(constraint)
                    }
                    _ => Ok(()),
                })
        }
        Statement::CreateSchema {
            schema_name: _,
            if_not_exists: _,
            with,
            options,
            default_collate_spec,
            clone,
        } => {
            let has_more = with.is_some()
                || options.is_some()
                || default_collate_spec.is_some()
                || clone.is_some();
            match has_more {
                true => refuse(&statement.to_string(), "write CREATE SCHEMA name"),
                false => Ok(()),
            }
        }
        Statement::Install { .. } | Statement::Load { .. } => refuse(
            &statement.to_string(),
            "there are no extensions: Parquet, CSV and JSON, also of HTTP and S3, are read without one",
        ),
        Statement::AttachDatabase { .. } | Statement::AttachDuckDBDatabase { .. } => refuse(
            &statement.to_string(),
            "a database is a folder; open it with a connection of its own",
        ),
        Statement::CreateType { name, .. } => refuse(
            &format!("CREATE TYPE {name}"),
            "write the type where it is used; for an ENUM, VARCHAR CHECK (x IN ('a', 'b'))",
        ),
        Statement::Drop {
            temporary: true, ..
        } => refuse(
            "DROP TEMPORARY",
            "leave it out: temporary tables are found first",
        ),
        Statement::Drop { purge: true, .. } => {
            refuse("PURGE", "leave it out, and write VACUUM afterwards")
        }
        _ => Ok(()),
    }
}

/// Refuses what a column is said to be and would not be.
pub(super) fn check_column(name: &Ident, options: &[ColumnOptionDef]) -> Result<()> {
    for ColumnOptionDef { name: _, option } in options {
        match option {
            ColumnOption::Null
            | ColumnOption::NotNull
            | ColumnOption::Default(_)
            | ColumnOption::Identity(_)
            | ColumnOption::Generated {
                generation_expr: None,
                ..
            }
            // They change no answer; all text is UTF-8.
            | ColumnOption::Comment(_)
            | ColumnOption::CharacterSet(_)
            // Kept by `constraints`, and of an external table refused by the planner.
            | ColumnOption::Check(_)
            // Refused by the planner.
            | ColumnOption::ForeignKey(_) => {}
            ColumnOption::PrimaryKey(key) => check_time(key.characteristics.as_ref())?,
            ColumnOption::Unique(unique) => check_unique(unique)?,
            ColumnOption::DialectSpecific(tokens) if is_auto_increment(tokens) => {}
            ColumnOption::Generated { .. } => {
                return refuse(
                    &format!("column {name} {option}"),
                    "make a view with the expression",
                );
            }
            other => return refuse(&format!("column {name} {other}"), "leave it out"),
        }
    }
    Ok(())
}

fn check_constraint(constraint: &TableConstraint) -> Result<()> {
    match constraint {
        TableConstraint::Unique(unique) => check_unique(unique),
        TableConstraint::PrimaryKey(key) => check_time(key.characteristics.as_ref()),
        _ => Ok(()),
    }
}

fn check_unique(unique: &UniqueConstraint) -> Result<()> {
    if matches!(unique.nulls_distinct, NullsDistinctOption::NotDistinct) {
        return refuse("UNIQUE NULLS NOT DISTINCT", "declare the column NOT NULL");
    }
    check_time(unique.characteristics.as_ref())
}

/// Keys are checked at once, and always.
fn check_time(said: Option<&ConstraintCharacteristics>) -> Result<()> {
    let Some(said) = said else {
        return Ok(());
    };
    let ConstraintCharacteristics {
        deferrable,
        initially,
        enforced,
    } = said;
    let is_later = *deferrable == Some(true)
        || matches!(initially, Some(DeferrableInitial::Deferred))
        || *enforced == Some(false);
    match is_later {
        true => refuse(&said.to_string(), "keys are checked at once, and always"),
        false => Ok(()),
    }
}
