//! What the server is and can do, in the words of Flight SQL's `SqlInfo` and XDBC's type table.

use std::collections::HashMap;
use std::sync::LazyLock;

use arrow::compute::can_cast_types;
use arrow::datatypes::{DataType, TimeUnit};
use arrow_flight::sql::metadata::{
    SqlInfoData, SqlInfoDataBuilder, XdbcTypeInfo, XdbcTypeInfoData, XdbcTypeInfoDataBuilder,
};
use arrow_flight::sql::{
    Nullable, Searchable, SqlInfo, SqlNullOrdering, SqlOuterJoinsSupportLevel,
    SqlSupportedCaseSensitivity, SqlSupportedElementActions, SqlSupportedGroupBy,
    SqlSupportedResultSetConcurrency, SqlSupportedResultSetType, SqlSupportedSubqueries,
    SqlSupportedTransaction, SqlSupportedUnions, SqlSupportsConvert, SqlTransactionIsolationLevel,
    SupportedSqlGrammar, XdbcDataType, XdbcDatetimeSubcode,
};
use datafusion::execution::FunctionRegistry;

use crate::Session;

/// Milliseconds; 0 in Flight SQL: a statement has no time limit of its own.
const NO_TIMEOUT: i32 = 0;

/// The answers to `GetSqlInfo`.
pub(super) fn sql_info(
    session: &Session,
    read_only: bool,
) -> arrow_flight::error::Result<SqlInfoData> {
    let mut info = SqlInfoDataBuilder::new();
    info.append(SqlInfo::FlightSqlServerName, "flashmesh");
    info.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
    info.append(SqlInfo::FlightSqlServerArrowVersion, "59.3");
    info.append(SqlInfo::FlightSqlServerReadOnly, read_only);
    info.append(SqlInfo::FlightSqlServerSql, true);
    info.append(
        SqlInfo::FlightSqlServerSubstrait,
        cfg!(feature = "substrait"),
    );
    info.append(
        SqlInfo::FlightSqlServerTransaction,
        SqlSupportedTransaction::Savepoint as i32,
    );
    info.append(SqlInfo::FlightSqlServerCancel, true);
    info.append(SqlInfo::FlightSqlServerBulkIngestion, true);
    info.append(SqlInfo::FlightSqlServerIngestTransactionsSupported, true);
    info.append(SqlInfo::FlightSqlServerStatementTimeout, NO_TIMEOUT);
    info.append(SqlInfo::FlightSqlServerTransactionTimeout, NO_TIMEOUT);
    for (name, value) in [
        (SqlInfo::SqlDdlCatalog, false),
        (SqlInfo::SqlDdlSchema, true),
        (SqlInfo::SqlDdlTable, true),
        (SqlInfo::SqlAllTablesAreSelectable, true),
        (SqlInfo::SqlSupportsColumnAliasing, true),
        (SqlInfo::SqlNullPlusNullIsNull, true),
        (SqlInfo::SqlSupportsTableCorrelationNames, true),
        (SqlInfo::SqlSupportsDifferentTableCorrelationNames, false),
        (SqlInfo::SqlSupportsExpressionsInOrderBy, true),
        (SqlInfo::SqlSupportsOrderByUnrelated, true),
        (SqlInfo::SqlSupportsLikeEscapeClause, true),
        (SqlInfo::SqlSupportsNonNullableColumns, true),
        (SqlInfo::SqlSupportsIntegrityEnhancementFacility, false),
        (SqlInfo::SqlCatalogAtStart, true),
        (SqlInfo::SqlSelectForUpdateSupported, false),
        (SqlInfo::SqlStoredProceduresSupported, false),
        (SqlInfo::SqlCorrelatedSubqueriesSupported, true),
        // Asked by the JDBC driver alone, whose commit and rollback do nothing (18.3): who relies on
        // them must not be told that they work.
        (SqlInfo::SqlTransactionsSupported, false),
        (SqlInfo::SqlDataDefinitionCausesTransactionCommit, false),
        (SqlInfo::SqlDataDefinitionsInTransactionsIgnored, false),
        (SqlInfo::SqlBatchUpdatesSupported, true),
        (SqlInfo::SqlSavepointsSupported, false),
        (SqlInfo::SqlNamedParametersSupported, false),
        (SqlInfo::SqlLocatorsUpdateCopy, true),
        (SqlInfo::SqlStoredFunctionsUsingCallSyntaxSupported, false),
        (SqlInfo::SqlMaxRowSizeIncludesBlobs, true),
    ] {
        info.append(name, value);
    }
    for (name, value) in [
        (SqlInfo::SqlIdentifierQuoteChar, "\""),
        (SqlInfo::SqlSearchStringEscape, "\\"),
        (SqlInfo::SqlExtraNameCharacters, ""),
        (SqlInfo::SqlSchemaTerm, "schema"),
        (SqlInfo::SqlCatalogTerm, "catalog"),
        (SqlInfo::SqlProcedureTerm, "procedure"),
    ] {
        info.append(name, value);
    }
    for (name, value) in [
        (
            SqlInfo::SqlIdentifierCase,
            SqlSupportedCaseSensitivity::SqlCaseSensitivityLowercase as i32,
        ),
        (
            SqlInfo::SqlQuotedIdentifierCase,
            SqlSupportedCaseSensitivity::SqlCaseSensitivityCaseInsensitive as i32,
        ),
        (
            SqlInfo::SqlNullOrdering,
            SqlNullOrdering::SqlNullsSortedHigh as i32,
        ),
        // What follows are sets of bits.
        (
            SqlInfo::SqlSupportedGroupBy,
            1 << SqlSupportedGroupBy::SqlGroupByUnrelated as i32
                | 1 << SqlSupportedGroupBy::SqlGroupByBeyondSelect as i32,
        ),
        (
            SqlInfo::SqlSupportedGrammar,
            1 << SupportedSqlGrammar::SqlMinimumGrammar as i32
                | 1 << SupportedSqlGrammar::SqlCoreGrammar as i32,
        ),
        (
            SqlInfo::SqlOuterJoinsSupportLevel,
            1 << SqlOuterJoinsSupportLevel::SqlFullOuterJoins as i32,
        ),
        (
            SqlInfo::SqlSupportedSubqueries,
            1 << SqlSupportedSubqueries::SqlSubqueriesInComparisons as i32
                | 1 << SqlSupportedSubqueries::SqlSubqueriesInExists as i32
                | 1 << SqlSupportedSubqueries::SqlSubqueriesInIns as i32,
        ),
        (
            SqlInfo::SqlSupportedUnions,
            1 << SqlSupportedUnions::SqlUnion as i32 | 1 << SqlSupportedUnions::SqlUnionAll as i32,
        ),
        (SqlInfo::SqlAnsi92SupportedLevel, ANSI92_ENTRY_LEVEL),
        (SqlInfo::SqlSchemasSupportedActions, IN_INDEXES),
        (SqlInfo::SqlCatalogsSupportedActions, IN_INDEXES),
        (SqlInfo::SqlSupportedPositionedCommands, NONE),
        (
            SqlInfo::SqlSupportedTransactionsIsolationLevels,
            1 << SqlTransactionIsolationLevel::SqlTransactionNone as i32,
        ),
        (
            SqlInfo::SqlSupportedResultSetTypes,
            1 << SqlSupportedResultSetType::SqlResultSetTypeForwardOnly as i32,
        ),
        (
            SqlInfo::SqlSupportedConcurrenciesForResultSetUnspecified,
            NONE,
        ),
        (
            SqlInfo::SqlSupportedConcurrenciesForResultSetForwardOnly,
            1 << SqlSupportedResultSetConcurrency::SqlResultSetConcurrencyReadOnly as i32,
        ),
        (
            SqlInfo::SqlSupportedConcurrenciesForResultSetScrollSensitive,
            NONE,
        ),
        (
            SqlInfo::SqlSupportedConcurrenciesForResultSetScrollInsensitive,
            NONE,
        ),
    ] {
        info.append(name, value);
    }
    // Drivers read it as a long number.
    info.append(
        SqlInfo::SqlDefaultTransactionIsolation,
        SqlTransactionIsolationLevel::SqlTransactionNone as i64,
    );
    for name in WITHOUT_LIMIT {
        info.append(name, UNKNOWN_LIMIT);
    }
    info.append(SqlInfo::SqlSupportsConvert, conversions());
    for (name, functions) in functions(session) {
        info.append(name, functions);
    }
    info.append(SqlInfo::SqlKeywords, &KEYWORDS[..]);
    info.build()
}

/// What has no limit of its own.
const WITHOUT_LIMIT: [SqlInfo; 20] = [
    SqlInfo::SqlMaxBinaryLiteralLength,
    SqlInfo::SqlMaxCharLiteralLength,
    SqlInfo::SqlMaxColumnNameLength,
    SqlInfo::SqlMaxColumnsInGroupBy,
    SqlInfo::SqlMaxColumnsInIndex,
    SqlInfo::SqlMaxColumnsInOrderBy,
    SqlInfo::SqlMaxColumnsInSelect,
    SqlInfo::SqlMaxColumnsInTable,
    SqlInfo::SqlMaxConnections,
    SqlInfo::SqlMaxCursorNameLength,
    SqlInfo::SqlMaxIndexLength,
    SqlInfo::SqlDbSchemaNameLength,
    SqlInfo::SqlMaxProcedureNameLength,
    SqlInfo::SqlMaxCatalogNameLength,
    SqlInfo::SqlMaxRowSize,
    SqlInfo::SqlMaxStatementLength,
    SqlInfo::SqlMaxStatements,
    SqlInfo::SqlMaxTableNameLength,
    SqlInfo::SqlMaxTablesInSelect,
    SqlInfo::SqlMaxUsernameLength,
];
/// There is none, or it is not known, in the words of JDBC and ODBC.
const UNKNOWN_LIMIT: i64 = 0;
/// The set of no bits.
const NONE: i32 = 0;
/// The bit of SQL-92's entry level.
const ANSI92_ENTRY_LEVEL: i32 = 1;
/// Where names of schemas and catalogs may stand: in definitions of indexes, and nowhere where
/// there is nothing to name (calls of procedures, GRANT).
const IN_INDEXES: i32 = 1 << SqlSupportedElementActions::SqlElementInIndexDefinitions as i32;

/// The functions by kind, as their documentation has it.
fn functions(session: &Session) -> [(SqlInfo, Vec<String>); 4] {
    let state = session.context().state();
    let (mut numeric, mut string, mut datetime) = (vec![], vec![], vec![]);
    let mut system: Vec<String> = state.udafs().into_iter().collect();
    for (name, function) in state.scalar_functions() {
        let section = function.documentation().map(|d| d.doc_section.label);
        let kind = match section {
            Some("Math Functions") => &mut numeric,
            Some(
                "String Functions" | "Binary String Functions" | "Regular Expression Functions",
            ) => &mut string,
            Some("Time and Date Functions") => &mut datetime,
            _ => &mut system,
        };
        kind.push(name.clone());
    }
    let kinds = [
        (SqlInfo::SqlNumericFunctions, numeric),
        (SqlInfo::SqlStringFunctions, string),
        (SqlInfo::SqlDatetimeFunctions, datetime),
        (SqlInfo::SqlSystemFunctions, system),
    ];
    kinds.map(|(name, mut functions)| {
        functions.sort_unstable();
        (name, functions)
    })
}

/// What CAST can make of what.
fn conversions() -> HashMap<i32, Vec<i32>> {
    use SqlSupportsConvert as Sql;
    let types = [
        (Sql::SqlConvertBigint, DataType::Int64),
        (Sql::SqlConvertBit, DataType::Boolean),
        (Sql::SqlConvertDate, DataType::Date32),
        (Sql::SqlConvertDecimal, DataType::Decimal128(38, 10)),
        (Sql::SqlConvertFloat, DataType::Float64),
        (Sql::SqlConvertInteger, DataType::Int32),
        (Sql::SqlConvertReal, DataType::Float32),
        (Sql::SqlConvertSmallint, DataType::Int16),
        (Sql::SqlConvertTime, DataType::Time64(TimeUnit::Nanosecond)),
        (
            Sql::SqlConvertTimestamp,
            DataType::Timestamp(TimeUnit::Nanosecond, None),
        ),
        (Sql::SqlConvertTinyint, DataType::Int8),
        (Sql::SqlConvertVarbinary, DataType::Binary),
        (Sql::SqlConvertVarchar, DataType::Utf8),
    ];
    let of = |from: &DataType| {
        let to = types.iter().filter(|(_, to)| can_cast_types(from, to));
        to.map(|(name, _)| *name as i32).collect()
    };
    let conversions = types.iter().map(|(name, from)| (*name as i32, of(from)));
    conversions.collect()
}

/// Words of ours that SQL does not have.
const KEYWORDS: [&str; 6] = ["adjacency", "analyze", "explain", "lsh", "ngram", "show"];

/// The answers to `GetXdbcTypeInfo`.
pub(super) fn type_info() -> &'static XdbcTypeInfoData {
    static TYPES: LazyLock<XdbcTypeInfoData> = LazyLock::new(|| {
        let mut types = XdbcTypeInfoDataBuilder::new();
        for (name, data_type, size) in [
            ("BOOLEAN", XdbcDataType::XdbcBit, 1),
            ("TINYINT", XdbcDataType::XdbcTinyint, 3),
            ("SMALLINT", XdbcDataType::XdbcSmallint, 5),
            ("INTEGER", XdbcDataType::XdbcInteger, 10),
            ("BIGINT", XdbcDataType::XdbcBigint, 19),
            ("REAL", XdbcDataType::XdbcReal, 24),
            ("DOUBLE", XdbcDataType::XdbcDouble, 53),
            ("DECIMAL", XdbcDataType::XdbcDecimal, 76),
            ("VARCHAR", XdbcDataType::XdbcVarchar, i32::MAX),
            ("BYTEA", XdbcDataType::XdbcVarbinary, i32::MAX),
            ("DATE", XdbcDataType::XdbcDate, 10),
            ("TIME", XdbcDataType::XdbcTime, 18),
            ("TIMESTAMP", XdbcDataType::XdbcTimestamp, 29),
            ("INTERVAL", XdbcDataType::XdbcInterval, 16),
        ] {
            types.append(describe(name, data_type, size));
        }
        // The rows above all have the same columns.
        types.build().expect("types of one shape")
    });
    &TYPES
}

fn describe(name: &str, data_type: XdbcDataType, size: i32) -> XdbcTypeInfo {
    use XdbcDataType as T;
    let quoted = matches!(
        data_type,
        T::XdbcVarchar | T::XdbcVarbinary | T::XdbcDate | T::XdbcTime | T::XdbcTimestamp
    );
    let is_number = matches!(
        data_type,
        T::XdbcTinyint
            | T::XdbcSmallint
            | T::XdbcInteger
            | T::XdbcBigint
            | T::XdbcReal
            | T::XdbcDouble
            | T::XdbcDecimal
    );
    let is_float = matches!(data_type, T::XdbcReal | T::XdbcDouble);
    let quote = quoted.then(|| "'".to_string());
    let parameters = match data_type {
        T::XdbcDecimal => Some(vec!["precision".into(), "scale".into()]),
        _ => None,
    };
    let (sql_data_type, datetime_subcode) = match data_type {
        T::XdbcDate => (
            T::XdbcDatetime, // The protocol gives year and date the same number.
            Some(XdbcDatetimeSubcode::XdbcSubcodeYear),
        ),
        T::XdbcTime => (T::XdbcDatetime, Some(XdbcDatetimeSubcode::XdbcSubcodeTime)),
        T::XdbcTimestamp => (
            T::XdbcDatetime,
            Some(XdbcDatetimeSubcode::XdbcSubcodeTimestamp),
        ),
        other => (other, None),
    };
    XdbcTypeInfo {
        type_name: name.into(),
        data_type,
        column_size: Some(size),
        literal_prefix: quote.clone(),
        literal_suffix: quote,
        create_params: parameters,
        nullable: Nullable::NullabilityNullable,
        case_sensitive: data_type == T::XdbcVarchar,
        searchable: match data_type {
            T::XdbcVarchar => Searchable::Full,
            _ => Searchable::Basic,
        },
        unsigned_attribute: is_number.then_some(false),
        fixed_prec_scale: false,
        auto_increment: is_number.then_some(false),
        local_type_name: Some(name.into()),
        minimum_scale: (data_type == T::XdbcDecimal).then_some(0),
        maximum_scale: (data_type == T::XdbcDecimal).then_some(size),
        sql_data_type,
        datetime_subcode,
        num_prec_radix: is_number.then_some(if is_float { 2 } else { 10 }),
        interval_precision: None,
    }
}
