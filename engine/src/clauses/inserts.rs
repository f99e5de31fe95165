//! `WITH a AS (…) INSERT INTO t SELECT … FROM a`, which the parser takes for a query.

use datafusion::sql::sqlparser::ast::{SetExpr, Statement};

/// Makes it an INSERT whose query has the tables of WITH.
pub(super) fn with_its_tables(statement: &mut Statement) {
    let Statement::Query(query) = &mut *statement else {
        return;
    };
    let SetExpr::Insert(Statement::Insert(insert)) = query.body.as_mut() else {
        return;
    };
    let Some(source) = &mut insert.source else {
        return;
    };
    if let Some(mut with) = query.with.take() {
        if let Some(inner) = source.with.take() {
            with.recursive |= inner.recursive;
            with.cte_tables.extend(inner.cte_tables);
        }
        source.with = Some(with);
    }
    let insert = Statement::Insert(insert.clone());
    *statement = insert;
}
