//! The check that every Program passes before it runs.
//!
//! A [`VerifiedProgram`] only uses columns that the table has, every operand has the type that
//! its operator asks for, every constant fits its type, and all is within [`Limits`]. An
//! accelerator takes nothing else, and so has no type errors at run time.

use std::ops::Deref;

use arrow::datatypes::{DataType, Schema, SchemaRef};

use crate::types::{
    arithmetic_type, is_integer_like, is_known, is_widening_cast, physical, sum_type,
};
use crate::{
    Aggregate, AggregateFunction, Expr, InputColumn, Metric, Output, Program, ProgramError,
    QueryVector, RuntimeFilter, RuntimePredicate, Scalar,
};

/// What a Program may ask for at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Levels of nesting of an expression.
    pub depth: u32,
    /// Expression nodes in the whole Program.
    pub nodes: u32,
    /// Columns read.
    pub columns: u32,
    /// Output columns: expressions, or group keys and aggregates together.
    pub outputs: u32,
    /// Constants in all `IN` lists together.
    pub in_list_values: u32,
    /// Bytes of one `LIKE` pattern, regular expression or needle.
    pub pattern_bytes: u32,
    /// Regular expressions: each is compiled into as much as [`Limits::regex_bytes`].
    pub regexes: u32,
    /// Bytes of one compiled regular expression.
    pub regex_bytes: u32,
    /// Needles of one search for several.
    pub needles: u32,
    /// Group keys.
    pub group_keys: u32,
    /// Aggregates.
    pub aggregates: u32,
    /// Rows that a top-k holds: the `limit` of an ordered output, `k` × the queries of a search
    /// for nearest rows.
    pub top_k_rows: u64,
    /// Queries of a search for nearest rows.
    pub queries: u32,
    /// Bytes of all constants, patterns, names and time zones together.
    pub bytes: u64,
    /// Bytes of one runtime filter's values or bits.
    pub runtime_filter_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            depth: 128,
            nodes: 65_536,
            columns: 4_096,
            outputs: 4_096,
            in_list_values: 65_536,
            pattern_bytes: 4_096,
            regexes: 64,
            regex_bytes: 2 << 20,
            needles: 4_096,
            group_keys: 64,
            aggregates: 1_024,
            top_k_rows: 1 << 20,
            queries: 65_536,
            bytes: 4 << 20,
            runtime_filter_bytes: 16 << 20,
        }
    }
}

/// A Program that passed [`verify()`], with the schema of its output.
#[derive(Debug, Clone, PartialEq)]
pub struct VerifiedProgram {
    program: Program,
    output_schema: SchemaRef,
}

impl VerifiedProgram {
    /// [`Program::output_schema`], computed once.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.output_schema
    }

    /// The Program.
    pub fn into_inner(self) -> Program {
        self.program
    }
}

impl Deref for VerifiedProgram {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

/// Checks a Program against the table's schema and the limits.
///
/// Columns must have the table's types; for nested types, whose child names and metadata do not
/// travel with a Program in full, the result has the table's.
pub fn verify(
    mut program: Program,
    schema: &Schema,
    limits: &Limits,
) -> Result<VerifiedProgram, ProgramError> {
    let mut used = Used::default();
    over("columns", program.columns.len() as u64, limits.columns)?;
    check_columns(&mut program.columns, schema, &mut used)?;
    over("bytes", used.bytes, limits.bytes)?;

    let mut checker = Checker {
        columns: &program.columns,
        limits,
        used,
    };
    for conjunct in &program.filter {
        checker.boolean(conjunct, 1)?;
    }
    match &program.output {
        Output::Rows {
            exprs,
            order,
            limit,
        } => {
            over("outputs", exprs.len() as u64, limits.outputs)?;
            let mut types = Vec::with_capacity(exprs.len());
            for expr in exprs {
                types.push(checker.any(expr, 1)?);
            }
            over("outputs", order.len() as u64, limits.outputs)?;
            for key in order {
                let Some(data_type) = types.get(key.output as usize) else {
                    return Err(ProgramError::invalid(
                        format!("order by output {}", key.output),
                        format!("there are {} outputs, counted from 0", types.len()),
                    ));
                };
                if physical(data_type).is_none() {
                    return Err(ProgramError::invalid(
                        format!("order by output {}", key.output),
                        format!("{data_type} has no order; sort above the scan"),
                    ));
                }
            }
            match limit {
                None if !order.is_empty() => {
                    return Err(ProgramError::invalid(
                        "order by without limit",
                        "a scan gives whole orders to nobody; set a limit, or sort above the scan",
                    ));
                }
                Some(limit) if !order.is_empty() => {
                    over("top_k_rows", *limit, limits.top_k_rows)?;
                }
                _ => {}
            }
        }
        Output::Aggregate { keys, aggregates } => {
            over("group_keys", keys.len() as u64, limits.group_keys)?;
            over("aggregates", aggregates.len() as u64, limits.aggregates)?;
            over(
                "outputs",
                (keys.len() + aggregates.len()) as u64,
                limits.outputs,
            )?;
            for key in keys {
                checker.computed(key, 1)?;
            }
            for aggregate in aggregates {
                checker.aggregate(aggregate)?;
            }
        }
        Output::Nearest {
            queries,
            metric,
            expr,
            k,
            exprs,
        } => {
            over("outputs", 2 + exprs.len() as u64, limits.outputs)?;
            over("queries", queries.len() as u64, limits.queries)?;
            let rows = k.saturating_mul(queries.len() as u64);
            over("top_k_rows", rows, limits.top_k_rows)?;
            let vectors = checker.any(expr, 1)?;
            for query in queries {
                checker.vectors(expr, *metric, &vectors, query)?;
            }
            for expr in exprs {
                checker.any(expr, 1)?;
            }
        }
    }
    let output_schema = program.output_schema();
    Ok(VerifiedProgram {
        program,
        output_schema,
    })
}

/// Checks a runtime filter against the columns of the Program that it is for.
pub fn verify_runtime_filter(
    filter: &RuntimeFilter,
    columns: &[InputColumn],
    limits: &Limits,
) -> Result<(), ProgramError> {
    let name = || format!("runtime filter on column {}", filter.column);
    let Some(column) = columns.get(filter.column as usize) else {
        return Err(ProgramError::invalid(
            name(),
            format!("the program has {} columns, counted from 0", columns.len()),
        ));
    };
    let data_type = &column.data_type;
    if physical(data_type).is_none() {
        return Err(ProgramError::invalid(
            name(),
            format!("{data_type} can't be compared; drop the filter"),
        ));
    }
    let values: &[&Scalar] = match &filter.predicate {
        RuntimePredicate::Range { min, max } => &min.iter().chain(max).collect::<Vec<_>>(),
        RuntimePredicate::Set(values) => &values.iter().collect::<Vec<_>>(),
        RuntimePredicate::Bitmap { bits, .. } => {
            if !is_integer_like(data_type) {
                return Err(ProgramError::invalid(
                    name(),
                    format!("a bitmap needs integers, the column is {data_type}; send a set"),
                ));
            }
            return over(
                "runtime_filter_bytes",
                bits.len() as u64 * 8,
                limits.runtime_filter_bytes,
            );
        }
    };
    let mut bytes = 0;
    for value in values {
        if value.is_null() || !value.fits(data_type) {
            return Err(ProgramError::invalid(
                name(),
                format!("{value:?} is no value of the column's type {data_type}"),
            ));
        }
        bytes += scalar_bytes(value);
    }
    over("runtime_filter_bytes", bytes, limits.runtime_filter_bytes)
}

/// What a Program used of its limits so far.
#[derive(Debug, Default)]
struct Used {
    nodes: u64,
    regexes: u64,
    in_list_values: u64,
    bytes: u64,
}

/// Compiles the pattern of an [`Expr::Regex`] as what it means; both what is compiled and the
/// automaton that is built while matching stay within about `size_limit_bytes`.
///
/// # Errors
/// `regex`'s own, for a pattern that is none or whose compiled form is larger.
pub fn compile_regex(
    pattern: &str,
    case_insensitive: bool,
    size_limit_bytes: u32,
) -> Result<regex::Regex, regex::Error> {
    regex::RegexBuilder::new(pattern)
        .case_insensitive(case_insensitive)
        .size_limit(size_limit_bytes as usize)
        .build()
}

/// An error when `found` is more than `allowed`.
fn over(limit: &'static str, found: u64, allowed: impl Into<u64>) -> Result<(), ProgramError> {
    let allowed = allowed.into();
    if found > allowed {
        return Err(ProgramError::OverLimit {
            limit,
            found,
            allowed,
        });
    }
    Ok(())
}

fn scalar_bytes(value: &Scalar) -> u64 {
    match value {
        Scalar::Bytes(bytes) => bytes.len() as u64,
        _ => size_of::<Scalar>() as u64,
    }
}

/// Bytes of a type's time zone, the one part of it that can be long.
fn zone_bytes(data_type: &DataType) -> u64 {
    match data_type {
        DataType::Timestamp(_, Some(zone)) => zone.len() as u64,
        _ => 0,
    }
}

fn check_columns(
    columns: &mut [InputColumn],
    schema: &Schema,
    used: &mut Used,
) -> Result<(), ProgramError> {
    let mut seen = vec![false; schema.fields().len()];
    for column in columns {
        used.bytes += column.name.len() as u64;
        let refused = |problem: String| {
            Err(ProgramError::invalid(
                format!("column '{}'", column.name),
                problem,
            ))
        };
        let Some(field) = schema.fields().get(column.ordinal as usize) else {
            return refused(format!(
                "ordinal {} is beyond the table's {} columns; plan the query again",
                column.ordinal,
                schema.fields().len()
            ));
        };
        if std::mem::replace(&mut seen[column.ordinal as usize], true) {
            return refused(format!(
                "ordinal {} is listed twice; list it once",
                column.ordinal
            ));
        }
        if !field.data_type().equals_datatype(&column.data_type) {
            return refused(format!(
                "the table's column '{}' has type {}, not {}; plan the query again",
                field.name(),
                field.data_type(),
                column.data_type
            ));
        }
        if !is_known(&column.data_type) {
            return refused(format!(
                "type {} is unknown to programs; read the column above the scan",
                column.data_type
            ));
        }
        if field.is_nullable() && !column.nullable {
            return refused("the table's column may be NULL; say so".to_owned());
        }
        column.data_type = field.data_type().clone();
    }
    Ok(())
}

/// Walks expressions. Operands are checked before their operator, so that the expression that an
/// error prints is never deeper than the limit.
struct Checker<'a> {
    columns: &'a [InputColumn],
    limits: &'a Limits,
    used: Used,
}

impl Checker<'_> {
    fn refused<T>(&self, expr: &Expr, problem: impl Into<String>) -> Result<T, ProgramError> {
        Err(ProgramError::invalid(expr.brief(self.columns), problem))
    }

    fn use_bytes(&mut self, bytes: u64) -> Result<(), ProgramError> {
        self.used.bytes += bytes;
        over("bytes", self.used.bytes, self.limits.bytes)
    }

    /// Counts a pattern or needle.
    fn pattern(&mut self, pattern: &str) -> Result<(), ProgramError> {
        let bytes = pattern.len() as u64;
        over("pattern_bytes", bytes, self.limits.pattern_bytes)?;
        self.use_bytes(bytes)
    }

    /// Checks an expression that must be a condition.
    fn boolean(&mut self, expr: &Expr, depth: u32) -> Result<(), ProgramError> {
        match self.any(expr, depth)? {
            DataType::Boolean => Ok(()),
            other => self.refused(expr, format!("must be Boolean here, but is {other}")),
        }
    }

    /// Checks an expression whose value is computed with.
    fn computed(&mut self, expr: &Expr, depth: u32) -> Result<DataType, ProgramError> {
        let data_type = self.any(expr, depth)?;
        if physical(&data_type).is_none() {
            return self.refused(
                expr,
                format!("{data_type} can only be an output, counted, or tested with IS NULL"),
            );
        }
        Ok(data_type)
    }

    /// Checks a text expression.
    fn text(&mut self, expr: &Expr, depth: u32) -> Result<(), ProgramError> {
        match self.any(expr, depth)? {
            DataType::Utf8View => Ok(()),
            other => self.refused(expr, format!("must be Utf8View here, but is {other}")),
        }
    }

    /// Checks any expression and returns its type, which is known, though perhaps carried only.
    fn any(&mut self, expr: &Expr, depth: u32) -> Result<DataType, ProgramError> {
        over("depth", depth.into(), self.limits.depth)?;
        self.used.nodes += 1;
        over("nodes", self.used.nodes, self.limits.nodes)?;
        let below = depth + 1;
        match expr {
            Expr::Column(index) => match self.columns.get(*index as usize) {
                Some(column) => Ok(column.data_type.clone()),
                None => self.refused(
                    expr,
                    format!(
                        "the program reads {} columns, counted from 0",
                        self.columns.len()
                    ),
                ),
            },
            Expr::Literal(literal) => {
                let bytes = scalar_bytes(&literal.value) + zone_bytes(&literal.data_type);
                self.use_bytes(bytes)?;
                if physical(&literal.data_type).is_none() {
                    let problem = format!("there are no constants of type {}", literal.data_type);
                    return self.refused(expr, problem);
                }
                if !literal.value.fits(&literal.data_type) {
                    let problem = format!("is no value of type {}", literal.data_type);
                    return self.refused(expr, problem);
                }
                Ok(literal.data_type.clone())
            }
            Expr::Compare { left, right, .. } => {
                let left_type = self.computed(left, below)?;
                let right_type = self.computed(right, below)?;
                if left_type != right_type {
                    return self.refused(
                        expr,
                        format!("compares {left_type} with {right_type}; cast one side"),
                    );
                }
                Ok(DataType::Boolean)
            }
            Expr::And(operands) | Expr::Or(operands) => {
                for operand in operands {
                    self.boolean(operand, below)?;
                }
                if operands.is_empty() {
                    return self.refused(expr, "needs at least one operand");
                }
                Ok(DataType::Boolean)
            }
            Expr::Not(operand) => {
                self.boolean(operand, below)?;
                Ok(DataType::Boolean)
            }
            Expr::IsNull(operand) => {
                self.any(operand, below)?;
                Ok(DataType::Boolean)
            }
            Expr::InList {
                expr: operand,
                list,
                ..
            } => {
                let data_type = self.computed(operand, below)?;
                self.used.in_list_values += list.len() as u64;
                over(
                    "in_list_values",
                    self.used.in_list_values,
                    self.limits.in_list_values,
                )?;
                self.use_bytes(list.iter().map(scalar_bytes).sum())?;
                if list.is_empty() {
                    return self.refused(expr, "needs at least one value in the list");
                }
                if let Some(value) = list.iter().find(|value| !value.fits(&data_type)) {
                    return self
                        .refused(expr, format!("{value:?} is no value of type {data_type}"));
                }
                Ok(DataType::Boolean)
            }
            Expr::Like {
                expr: operand,
                pattern,
                ..
            } => {
                self.text(operand, below)?;
                self.pattern(pattern)?;
                Ok(DataType::Boolean)
            }
            Expr::Arithmetic {
                op,
                left,
                right,
                data_type,
            } => {
                let left_type = self.computed(left, below)?;
                let right_type = self.computed(right, below)?;
                match arithmetic_type(*op, &left_type, &right_type) {
                    Some(result) if result == *data_type => Ok(result),
                    Some(result) => self.refused(
                        expr,
                        format!("{left_type} and {right_type} give {result}, not {data_type}"),
                    ),
                    None => self.refused(
                        expr,
                        format!("is not defined for {left_type} and {right_type}; cast one side"),
                    ),
                }
            }
            Expr::Cast {
                expr: operand,
                data_type,
            } => {
                let from = self.computed(operand, below)?;
                self.use_bytes(zone_bytes(data_type))?;
                if !is_widening_cast(&from, data_type) {
                    return self.refused(
                        expr,
                        format!("{from} to {data_type} is no exact widening; cast above the scan"),
                    );
                }
                Ok(data_type.clone())
            }
            Expr::Case {
                branches,
                otherwise,
                data_type,
            } => {
                let mut types = Vec::with_capacity(branches.len() + 1);
                for (condition, value) in branches {
                    self.boolean(condition, below)?;
                    types.push(self.computed(value, below)?);
                }
                if let Some(otherwise) = otherwise {
                    types.push(self.computed(otherwise, below)?);
                }
                self.use_bytes(zone_bytes(data_type))?;
                if branches.is_empty() {
                    return self.refused(expr, "needs at least one branch");
                }
                if let Some(other) = types.iter().find(|other| *other != data_type) {
                    return self.refused(
                        expr,
                        format!("has values of type {data_type}, but one is {other}; cast it"),
                    );
                }
                Ok(data_type.clone())
            }
            Expr::DatePart { expr: operand, .. } => match self.any(operand, below)? {
                DataType::Date32 => Ok(DataType::Int32),
                other => self.refused(expr, format!("needs a Date32, not {other}")),
            },
            Expr::Substring {
                expr: operand,
                start,
                ..
            } => {
                self.text(operand, below)?;
                if *start == 0 {
                    return self.refused(expr, "characters are counted from 1");
                }
                Ok(DataType::Utf8View)
            }
            Expr::Position {
                expr: operand,
                needle,
            } => {
                self.text(operand, below)?;
                self.pattern(needle)?;
                Ok(DataType::Int32)
            }
            Expr::Regex {
                expr: operand,
                pattern,
                case_insensitive,
                ..
            } => {
                self.text(operand, below)?;
                self.pattern(pattern)?;
                self.used.regexes += 1;
                over("regexes", self.used.regexes, self.limits.regexes)?;
                match compile_regex(pattern, *case_insensitive, self.limits.regex_bytes) {
                    Ok(_) => Ok(DataType::Boolean),
                    Err(error) => self.refused(expr, error.to_string()),
                }
            }
            Expr::ContainsAny {
                expr: operand,
                needles,
            } => {
                self.text(operand, below)?;
                over("needles", needles.len() as u64, self.limits.needles)?;
                for needle in needles {
                    self.pattern(needle)?;
                }
                Ok(DataType::Boolean)
            }
            Expr::Distance {
                metric,
                expr: operand,
                query,
            } => {
                let vectors = self.any(operand, below)?;
                self.vectors(expr, *metric, &vectors, query)?;
                Ok(metric.data_type())
            }
            // Whether the kernel takes these types, its signature says, which only the store knows.
            Expr::Kernel {
                kernel,
                arguments,
                query,
                data_type,
            } => {
                self.use_bytes(kernel.name.len() as u64)?;
                if let Some(query) = query {
                    self.use_bytes(query.size_bytes() as u64)?;
                }
                for argument in arguments {
                    self.any(argument, below)?;
                }
                if physical(data_type).is_none() {
                    return self
                        .refused(expr, format!("{data_type} is no type that a kernel gives"));
                }
                Ok(data_type.clone())
            }
        }
    }

    /// Checks that a metric can measure from vectors of this type to a constant one.
    fn vectors(
        &mut self,
        expr: &Expr,
        metric: Metric,
        vectors: &DataType,
        query: &QueryVector,
    ) -> Result<(), ProgramError> {
        self.use_bytes(query.size_bytes() as u64)?;
        let (operand, unit) = match metric {
            Metric::Hamming => ("FixedSizeBinary", "bytes"),
            _ => ("FixedSizeList of Float32", "elements"),
        };
        let Some(length) = metric.length_of(vectors) else {
            return self.refused(expr, format!("{metric} needs a {operand}, not {vectors}"));
        };
        if !metric.takes(query) {
            return self.refused(expr, format!("{metric} needs a query of {operand}"));
        }
        if query.len() != length {
            return self.refused(
                expr,
                format!(
                    "the query has {} {unit}, the vectors have {length}; give it their length",
                    query.len()
                ),
            );
        }
        Ok(())
    }

    fn aggregate(&mut self, aggregate: &Aggregate) -> Result<(), ProgramError> {
        if let Some(filter) = &aggregate.filter {
            self.boolean(filter, 1)?;
        }
        let result = &aggregate.data_type;
        let argument = match (&aggregate.argument, aggregate.function) {
            (Some(argument), AggregateFunction::Count) => Some(self.any(argument, 1)?),
            (Some(argument), _) => Some(self.computed(argument, 1)?),
            (None, _) => None,
        };
        let expected = match (aggregate.function, argument) {
            (AggregateFunction::Count, _) => {
                if matches!(result, DataType::Int64 | DataType::UInt64) {
                    return Ok(());
                }
                "Int64 or UInt64".to_owned()
            }
            (_, None) => {
                return Err(ProgramError::invalid(
                    aggregate.brief(self.columns),
                    "only count works without an argument",
                ));
            }
            (AggregateFunction::Sum, Some(argument)) => {
                let Some(sum) = sum_type(&argument) else {
                    return Err(ProgramError::invalid(
                        aggregate.brief(self.columns),
                        format!("{argument} has no sum"),
                    ));
                };
                match (&argument, result) {
                    // A wider decimal is as good: the sum itself wraps at 128 bits only.
                    (DataType::Decimal128(p, s), DataType::Decimal128(result_p, result_s))
                        if is_known(result) && s == result_s && result_p >= p =>
                    {
                        return Ok(());
                    }
                    _ if *result == sum => return Ok(()),
                    _ => sum.to_string(),
                }
            }
            (AggregateFunction::Min | AggregateFunction::Max, Some(argument)) => {
                if *result == argument {
                    return Ok(());
                }
                argument.to_string()
            }
        };
        Err(ProgramError::invalid(
            aggregate.brief(self.columns),
            format!("gives {expected}, not {result}"),
        ))
    }
}
