//! The Program's types.

use arrow::datatypes::DataType;

use crate::{Metric, QueryVector};

/// What one scan does beside the pages.
///
/// Columns are read, rows for which every conjunct of `filter` is TRUE survive (FALSE and NULL
/// do not), and `output` says what leaves.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// The table columns that are read; [`Expr::Column`] numbers this list.
    pub columns: Vec<InputColumn>,
    /// Conjuncts of the filter, each of type Boolean. Empty: every row survives.
    pub filter: Vec<Expr>,
    /// What is made of the surviving rows.
    pub output: Output,
}

/// A column of the table, as a Program reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputColumn {
    /// Position of the column in the table's schema.
    pub ordinal: u32,
    /// Its name, for messages and plans; it has no meaning beyond them.
    pub name: String,
    /// Its type. Strings are `Utf8View` and bytes `BinaryView` throughout: see `types.rs` for
    /// the closed list of types that a Program knows.
    pub data_type: DataType,
    /// Whether NULLs may occur.
    pub nullable: bool,
}

/// What leaves the scan.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// One output row for each surviving row.
    Rows {
        /// The output columns.
        exprs: Vec<Expr>,
        /// Order by these of the output columns, first key first; empty: any order.
        order: Vec<SortKey>,
        /// At most this many rows. With `order`: the first `limit` rows in that order (top-k;
        /// rows equal in all keys may be chosen freely). `order` without `limit` is refused.
        limit: Option<u64>,
    },
    /// Partial aggregates: one output row for each group, `keys` first, then `aggregates`.
    ///
    /// *Partial*: a group may appear in several output rows (one for each stream, or each time
    /// the table of groups was full); the receiver merges them. Without keys exactly one row
    /// leaves each stream, also when no row survived.
    Aggregate {
        /// Group keys; NULL is a group of its own.
        keys: Vec<Expr>,
        /// The aggregates.
        aggregates: Vec<Aggregate>,
    },
    /// The nearest rows to each of several vectors: one output row for each query and neighbour.
    /// One command serves many small requests (Minerva section III), and each page is read once
    /// for all of them.
    ///
    /// Columns: the query's place in `queries` (UInt32), the distance (the metric's type), then
    /// `exprs`. A row whose distance is NULL is nobody's neighbour. *Partial*: each stream gives
    /// its own `k` nearest for each query, ordered by query, then by
    /// [`distance::rank`](crate::distance::rank); the receiver merges them. Among rows that are
    /// equally far, any.
    Nearest {
        /// The vectors that are looked for, all of the column's length.
        queries: Vec<QueryVector>,
        /// What near means.
        metric: Metric,
        /// The vectors: an expression of the metric's operand type.
        expr: Expr,
        /// Rows for each query at most.
        k: u64,
        /// Further output columns, over the neighbours.
        exprs: Vec<Expr>,
    },
}

/// One key of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SortKey {
    /// Index into `Output::Rows::exprs`.
    pub output: u32,
    /// Largest first.
    pub descending: bool,
    /// NULLs before all values.
    pub nulls_first: bool,
}

/// One partial aggregate.
#[derive(Debug, Clone, PartialEq)]
pub struct Aggregate {
    /// The function.
    pub function: AggregateFunction,
    /// Its argument; `None` only for `Count`, which then counts rows.
    pub argument: Option<Expr>,
    /// Rows count only where this is TRUE (`FILTER (WHERE …)`).
    pub filter: Option<Expr>,
    /// Type of the result: `Int64` or `UInt64` for `Count`; for `Sum` `Int64`, `UInt64`,
    /// `Float64` or a `Decimal128` of the argument's scale; for `Min` and `Max` the argument's.
    pub data_type: DataType,
}

/// Aggregate functions; averages are a `Sum` and a `Count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AggregateFunction {
    /// Number of rows, or of rows whose argument is not NULL.
    Count,
    /// Sum of the non-NULL values; NULL when there is none. Integers and decimals wrap.
    Sum,
    /// Least non-NULL value in the order of `ORDER BY`; NULL when there is none.
    Min,
    /// Greatest non-NULL value.
    Max,
}

/// A typed constant.
#[derive(Debug, Clone, PartialEq)]
pub struct Literal {
    /// The value, or `Scalar::Null`.
    pub value: Scalar,
    /// Its type.
    pub data_type: DataType,
}

/// A value without its type: the physical form that all types share.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    /// SQL NULL.
    Null,
    /// Boolean.
    Boolean(bool),
    /// All integers, dates (days), times and timestamps (in the type's unit) and the unscaled
    /// value of decimals.
    Int(i128),
    /// Float16, Float32 and Float64, the narrow ones widened exactly.
    Float(f64),
    /// UTF-8 text or binary.
    Bytes(Vec<u8>),
}

/// The very kernel that is meant: the store refuses a Program whose kernel was replaced since.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KernelId {
    /// Its SQL name.
    pub name: String,
    /// SHA-256 of its package.
    pub digest: [u8; 32],
}

/// A typed expression over one row.
///
/// NULL in, NULL out, but for `And`, `Or` (Kleene logic), `IsNull` and `Case`.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    /// The value of `Program::columns[i]`.
    Column(u32),
    /// A constant.
    Literal(Literal),
    /// Comparison of two values of one type.
    Compare {
        /// The operator.
        op: CompareOp,
        /// Left side.
        left: Box<Expr>,
        /// Right side, of the same type.
        right: Box<Expr>,
    },
    /// Kleene AND; FALSE wins over NULL. At least one operand.
    And(Vec<Expr>),
    /// Kleene OR; TRUE wins over NULL. At least one operand.
    Or(Vec<Expr>),
    /// Kleene NOT.
    Not(Box<Expr>),
    /// TRUE where the operand is NULL, otherwise FALSE.
    IsNull(Box<Expr>),
    /// `expr [NOT] IN (list)` with SQL's meaning of NULL: not found in a list that has a NULL is
    /// NULL. Floats are found by their bits, so that 0.0 is not −0.0: as DataFusion does, though
    /// its `=` differs.
    InList {
        /// What is looked for.
        expr: Box<Expr>,
        /// Constants of `expr`'s type.
        list: Vec<Scalar>,
        /// NOT IN.
        negated: bool,
    },
    /// `expr [NOT] [I]LIKE pattern`: `%` any run of characters, `_` one character, backslash
    /// escapes.
    Like {
        /// A `Utf8View` expression.
        expr: Box<Expr>,
        /// The pattern.
        pattern: String,
        /// NOT LIKE.
        negated: bool,
        /// ILIKE.
        case_insensitive: bool,
    },
    /// Arithmetic on numbers; the result type is explicit (Arrow's rules, see `types.rs`).
    Arithmetic {
        /// The operator.
        op: ArithmeticOp,
        /// Left side.
        left: Box<Expr>,
        /// Right side.
        right: Box<Expr>,
        /// Result type.
        data_type: DataType,
    },
    /// An exact widening: see `types.rs` for the pairs.
    Cast {
        /// The operand.
        expr: Box<Expr>,
        /// The wider type.
        data_type: DataType,
    },
    /// The value of the first branch whose condition is TRUE, else `otherwise`, else NULL.
    Case {
        /// Condition and value.
        branches: Vec<(Expr, Expr)>,
        /// Value when no condition is TRUE.
        otherwise: Option<Box<Expr>>,
        /// Type of all values.
        data_type: DataType,
    },
    /// A calendar field of a `Date32` as `Int32`.
    DatePart {
        /// Which field.
        part: DatePart,
        /// A `Date32` expression.
        expr: Box<Expr>,
    },
    /// `substring(expr from start for length)` in characters, for `start` ≥ 1.
    Substring {
        /// A `Utf8View` expression.
        expr: Box<Expr>,
        /// First character, from 1.
        start: u32,
        /// Number of characters.
        length: u32,
    },
    /// Where `needle` first occurs in the text, in characters from 1, or 0 where it does not; an
    /// empty needle is found at 1. Of type `Int32`.
    Position {
        /// A `Utf8View` expression.
        expr: Box<Expr>,
        /// What is looked for.
        needle: String,
    },
    /// Whether the regular expression matches somewhere in the text, in syntax and meaning of
    /// the `regex` crate (linear time, Unicode, neither look-around nor back references).
    Regex {
        /// A `Utf8View` expression.
        expr: Box<Expr>,
        /// The regular expression.
        pattern: String,
        /// Does not match.
        negated: bool,
        /// As with the flag `i`.
        case_insensitive: bool,
    },
    /// Whether the text holds at least one of the needles. No needle: FALSE; an empty needle is
    /// in every text.
    ContainsAny {
        /// A `Utf8View` expression.
        expr: Box<Expr>,
        /// What is looked for.
        needles: Vec<String>,
    },
    /// The distance between a vector and a constant one: see [`distance`](crate::distance). NULL
    /// where the vector or one of its elements is NULL.
    Distance {
        /// What is measured.
        metric: Metric,
        /// `FixedSizeBinary(n)` for Hamming, otherwise a column of `FixedSizeList(Float32, n)`.
        expr: Box<Expr>,
        /// The constant, of length `n`.
        query: QueryVector,
    },
    /// A kernel that a user added: its own code says what it means. NULL where the kernel says
    /// so; a `strict` one is NULL where an argument is.
    Kernel {
        /// Which one.
        kernel: KernelId,
        /// Its arguments; those that its signature calls constant are literals.
        arguments: Vec<Expr>,
        /// The vector that a distance kernel measures from: its last argument.
        query: Option<QueryVector>,
        /// The type of its result.
        data_type: DataType,
    },
}

/// Comparison operators. Integers, dates, timestamps and decimals compare by value, text and
/// binary by bytes, booleans FALSE < TRUE.
///
/// Floats compare as DataFusion does it: −0.0 equals 0.0, otherwise IEEE 754's total order, in
/// which a NaN equals a NaN of the same bits and positive ones are beyond infinity. Arrow's
/// comparison kernels differ in the zeros, which DataFusion folds beforehand; `ORDER BY`, `min`
/// and `max` have Arrow's order, −0.0 before 0.0, and group keys are folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CompareOp {
    /// `=`
    Eq,
    /// `<>`
    NotEq,
    /// `<`
    Lt,
    /// `<=`
    LtEq,
    /// `>`
    Gt,
    /// `>=`
    GtEq,
}

/// Arithmetic operators. Integers wrap on overflow, floats follow IEEE 754, decimals that leave
/// 128 bits are an error: what DataFusion does above the scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ArithmeticOp {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
}

/// Calendar fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DatePart {
    /// Year.
    Year,
    /// Month, 1 to 12.
    Month,
    /// Day of the month, 1 to 31.
    Day,
}
