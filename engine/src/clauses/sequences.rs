//! `CREATE SEQUENCE`: a table without rows of one identity column, whose numbers `nextval` gives.

use datafusion::sql::sqlparser::ast::{SequenceOptions, Statement};

use super::{parsed, refuse};
use crate::error::Result;

/// What the column of a sequence is called.
pub(crate) const NEXT: &str = "nextval";

/// Says CREATE SEQUENCE as CREATE TABLE.
///
/// # Errors
/// A refusal of what a sequence would not do.
pub(super) fn as_table(statement: &mut Statement) -> Result<()> {
    let Statement::CreateSequence {
        temporary,
        if_not_exists,
        name,
        // All count in 64 bits.
        data_type: _,
        sequence_options,
        owned_by,
    } = &*statement
    else {
        return Ok(());
    };
    if let Some(owner) = owned_by
        .as_ref()
        .filter(|owner| owner.to_string() != "NONE")
    {
        return refuse(
            &format!("OWNED BY {owner}"),
            "leave it out, and DROP SEQUENCE when the table is gone",
        );
    }
    let falls = sequence_options.iter().any(|option| {
        matches!(option, SequenceOptions::IncrementBy(by, _) if by.to_string().starts_with('-'))
    });
    let mut options = Vec::new();
    let (mut first, mut least) = (None, None);
    for option in sequence_options {
        match option {
            // Without CYCLE it is where one begins that nobody says.
            SequenceOptions::MinValue(Some(value)) if !falls => least = Some(value.to_string()),
            SequenceOptions::MaxValue(Some(most)) if most.to_string() == i64::MAX.to_string() => {}
            SequenceOptions::MinValue(Some(_))
            | SequenceOptions::MaxValue(Some(_))
            | SequenceOptions::Cycle(false) => {
                return refuse(&format!("a sequence with{option}"), "leave it out");
            }
            SequenceOptions::StartWith(value, _) => first = Some(value.to_string()),
            SequenceOptions::IncrementBy(..) => options.push(option.to_string()),
            // As it is in any case.
            SequenceOptions::MinValue(None)
            | SequenceOptions::MaxValue(None)
            | SequenceOptions::Cache(_)
            | SequenceOptions::Cycle(true) => {}
        }
    }
    let number = |text: &Option<String>| text.as_ref()?.parse::<i64>().ok();
    if let (Some(first), Some(least)) = (number(&first), number(&least))
        && first < least
    {
        return refuse(
            &format!("a sequence that starts with {first}, below its MINVALUE {least}"),
            "leave MINVALUE out",
        );
    }
    if let Some(first) = first.or(least) {
        options.push(format!(" START WITH {first}"));
    }
    let temporary = if *temporary { "TEMPORARY " } else { "" };
    let if_not_exists = if *if_not_exists { "IF NOT EXISTS " } else { "" };
    let options = match options.concat() {
        options if options.is_empty() => options,
        options => format!(" ({options})"),
    };
    let table = format!(
        "CREATE {temporary}TABLE {if_not_exists}{name} ({NEXT} BIGINT GENERATED ALWAYS AS IDENTITY{options})"
    );
    *statement = parsed(&table, |parser| parser.parse_statement())?;
    Ok(())
}
