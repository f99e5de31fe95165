//! `SHOW FUNCTIONS`. DataFusion leaves out the functions that choose their types themselves, among
//! them `coalesce` and every kernel of a user; here all are listed.

use datafusion::sql::parser::{DFParser, Statement as ParsedStatement};
use datafusion::sql::sqlparser::ast::{ShowStatementFilter, Value};
use datafusion::sql::sqlparser::dialect::GenericDialect;

use crate::error::{Error, Result};

/// All functions, with the types of those that say which they take.
const FUNCTIONS: &str = "
SELECT DISTINCT
    r.routine_name AS function_name,
    coalesce(t.return_type, r.data_type) AS return_type,
    t.parameters,
    t.parameter_types,
    r.function_type,
    r.description,
    r.syntax_example
FROM information_schema.routines AS r
LEFT JOIN (
    SELECT
        result.specific_name AS name,
        result.data_type AS return_type,
        array_agg(given.parameter_name ORDER BY given.ordinal_position) AS parameters,
        array_agg(given.data_type ORDER BY given.ordinal_position) AS parameter_types
    FROM information_schema.parameters AS result
    LEFT JOIN information_schema.parameters AS given
      ON given.specific_name = result.specific_name
     AND given.rid = result.rid
     AND given.parameter_mode = 'IN'
    WHERE result.parameter_mode = 'OUT'
    GROUP BY result.specific_name, result.data_type, result.rid
) AS t ON t.name = r.routine_name AND r.function_type <> 'TABLE'
WHERE r.routine_name NOT LIKE 'flashmesh:%'";

/// The query that lists the functions.
///
/// # Errors
/// [`Error::Usage`] for filters other than `LIKE`.
pub(crate) fn query(filter: Option<&ShowStatementFilter>) -> Result<ParsedStatement> {
    let filter = match filter {
        None => String::new(),
        Some(ShowStatementFilter::Like(pattern)) => {
            let pattern = Value::SingleQuotedString(pattern.clone());
            format!("AND r.routine_name LIKE {pattern}")
        }
        Some(other) => {
            return Err(Error::usage(format!(
                "SHOW FUNCTIONS {other} is not supported; write SHOW FUNCTIONS [LIKE 'pattern']"
            )));
        }
    };
    let query = format!("{FUNCTIONS} {filter} ORDER BY 1, 2");
    let parsed = DFParser::parse_sql_with_dialect(&query, &GenericDialect {})?.pop_front();
    parsed.ok_or_else(|| Error::usage("SHOW FUNCTIONS has no query"))
}
