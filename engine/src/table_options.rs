//! The options of a table: `CREATE TABLE … WITH (retention = '7 days', layout = 'pax')`.
//!
//! DataFusion knows none of them: they are taken out of the statement before it is planned, and put
//! into the plan as metadata of what the table is made of.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::compute::kernels::cast_utils::parse_interval_month_day_nano;
use datafusion::common::DFSchema;
use datafusion::logical_expr::{
    CreateMemoryTable, DdlStatement, EmptyRelation, Expr, LogicalPlan, Projection,
};
use datafusion::sql::sqlparser::ast::{self, CreateTableOptions, SqlOption, Value};
use flashmesh_storage::table::TableLayout;

use crate::error::{Error, Result};

/// What marks the plan of CREATE TABLE with a retention: microseconds.
const RETENTION: &str = "flashmesh.retention_us";
/// What marks it with a layout: its name.
const LAYOUT: &str = "flashmesh.layout";
/// What there is.
const KNOWN: &str = "retention = '7 days', layout = 'pax'";

/// What a table is created with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TableOptions {
    /// For how long its past versions stay readable.
    pub retention: Option<Duration>,
    /// How its rows lie in pages.
    pub layout: Option<TableLayout>,
}

impl TableOptions {
    /// Takes the options out of CREATE TABLE, if it has any.
    pub fn take(statement: &mut ast::Statement) -> Result<Option<Self>> {
        let ast::Statement::CreateTable(create) = statement else {
            return Ok(None);
        };
        match std::mem::take(&mut create.table_options) {
            CreateTableOptions::None => Ok(None),
            CreateTableOptions::With(options) => Self::parse(&options).map(Some),
            other => Err(Error::usage(format!(
                "CREATE TABLE takes no {other}; it takes WITH ({KNOWN})"
            ))),
        }
    }

    /// What `WITH (…)` or `SET (…)` says.
    fn parse(options: &[SqlOption]) -> Result<Self> {
        let mut all = Self::default();
        for option in options {
            let SqlOption::KeyValue { key, value } = option else {
                return Err(Error::usage(format!("table options are ({KNOWN})")));
            };
            let twice = || Error::usage(format!("the table option '{key}' is given twice"));
            match key.value.to_ascii_lowercase().as_str() {
                "retention" => {
                    let before = all.retention.replace(parsed_retention(&text_of(value))?);
                    before.map_or(Ok(()), |_| Err(twice()))?;
                }
                "layout" => {
                    let before = all.layout.replace(TableLayout::parse(&text_of(value))?);
                    before.map_or(Ok(()), |_| Err(twice()))?;
                }
                _ => {
                    return Err(Error::usage(format!(
                        "tables have no option '{key}'; they have ({KNOWN})"
                    )));
                }
            }
        }
        Ok(all)
    }

    /// The plan of CREATE TABLE with the options in it.
    pub fn put(self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) = plan else {
            return Ok(plan);
        };
        let retention = self.retention.map(|of| of.as_micros().to_string());
        let layout = self.layout.map(|layout| layout.name().to_string());
        let marks = [(RETENTION, retention), (LAYOUT, layout)];
        let marks = marks
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_string(), value?)));
        let marks: HashMap<_, _> = marks.collect();
        let schema = create.input.schema();
        let fields = schema.iter();
        let fields = fields.map(|(name, field)| (name.cloned(), Arc::clone(field)));
        let marked = Arc::new(DFSchema::new_with_metadata(fields.collect(), marks)?);
        let input = match create.input.as_ref() {
            LogicalPlan::EmptyRelation(EmptyRelation {
                produce_one_row: false,
                ..
            }) => LogicalPlan::EmptyRelation(EmptyRelation {
                produce_one_row: false,
                schema: marked,
            }),
            _ => {
                let columns = schema.columns().into_iter().map(Expr::Column).collect();
                let input = Arc::clone(&create.input);
                LogicalPlan::Projection(Projection::try_new_with_schema(columns, input, marked)?)
            }
        };
        let create = CreateMemoryTable {
            input: Arc::new(input),
            ..create
        };
        Ok(LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)))
    }

    /// The options that [`Self::put`] has put into a plan.
    pub fn of(input: &LogicalPlan) -> Self {
        let mark = |key| input.schema().metadata().get(key);
        let retention = mark(RETENTION).and_then(|mark| mark.parse().ok());
        Self {
            retention: retention.map(Duration::from_micros),
            layout: mark(LAYOUT).and_then(|mark| TableLayout::parse(mark).ok()),
        }
    }
}

/// The retention that `ALTER TABLE … SET (…)` says, the one option that changes.
pub(crate) fn new_retention(options: &[SqlOption]) -> Result<Duration> {
    match TableOptions::parse(options)? {
        TableOptions {
            retention: Some(retention),
            layout: None,
        } => Ok(retention),
        TableOptions {
            layout: Some(_), ..
        } => Err(Error::usage(
            "the layout of a table is that of its creation; CREATE TABLE … WITH (layout = …) AS SELECT * FROM it makes another",
        )),
        _ => Err(Error::usage(
            "ALTER TABLE … SET takes (retention = '7 days')",
        )),
    }
}

fn text_of(value: &ast::Expr) -> String {
    match value {
        ast::Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => text.clone(),
            Value::Number(number, _) => number.to_string(),
            other => other.to_string(),
        },
        ast::Expr::Identifier(name) => name.value.clone(),
        other => other.to_string(),
    }
}

/// The length of time that a text says.
fn parsed_retention(text: &str) -> Result<Duration> {
    let wrong = || {
        Error::usage(format!(
            "retention takes weeks, days, hours, minutes or seconds ('7 days'), or '0' for none, not '{text}'"
        ))
    };
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    let interval = parse_interval_month_day_nano(text).map_err(|_| wrong())?;
    let days = u64::try_from(interval.days).map_err(|_| wrong())?;
    let nanoseconds = u64::try_from(interval.nanoseconds).map_err(|_| wrong())?;
    if interval.months != 0 {
        // A month is not always as long.
        return Err(wrong());
    }
    let retention = Duration::from_secs(days * 24 * 3600) + Duration::from_nanos(nanoseconds);
    match retention.as_micros() {
        0 => Err(wrong()),
        _ => Ok(retention),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_is_a_length_of_time() {
        let day = 24 * 3600;
        for (text, seconds) in [
            ("0", 0),
            ("7 days", 7 * day),
            ("1 week", 7 * day),
            ("1 hour", 3600),
            ("1 day 2 minutes", day + 120),
        ] {
            let parsed = parsed_retention(text).unwrap();
            assert_eq!(parsed, Duration::from_secs(seconds), "{text}");
        }
        for text in [
            "",
            "soon",
            "-1 day",
            "1 month",
            "5",
            "1 nanosecond",
            "1 day -25 hours",
        ] {
            assert!(parsed_retention(text).is_err(), "{text}");
        }
    }
}
