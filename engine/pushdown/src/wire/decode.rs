//! Protobuf messages into Programs.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, IntervalUnit, TimeUnit};

use super::{MAX_DEPTH, MAX_TYPE_DEPTH, VERSION, proto};
use crate::{
    Aggregate, AggregateFunction, ArithmeticOp, CompareOp, DatePart, Expr, InputColumn, KernelId,
    Literal, Metric, Output, Program, ProgramError, QueryVector, RuntimeFilter, RuntimePredicate,
    Scalar, SortKey,
};
use proto::TypeKind;
use proto::node::Instruction;

type Result<T> = std::result::Result<T, ProgramError>;

pub(super) fn program(message: proto::Program) -> Result<Program> {
    check_version(message.version)?;
    let columns = collect(message.columns, |column| {
        Ok(InputColumn {
            ordinal: column.ordinal,
            name: column.name,
            data_type: required_type(column.data_type)?,
            nullable: column.nullable,
        })
    })?;
    let filter = collect(message.filter, expression)?;
    let output = match message.output {
        Some(proto::program::Output::Rows(rows)) => Output::Rows {
            exprs: collect(rows.exprs, expression)?,
            order: collect(rows.order, |key| {
                Ok(SortKey {
                    output: key.output,
                    descending: key.descending,
                    nulls_first: key.nulls_first,
                })
            })?,
            limit: rows.limit,
        },
        Some(proto::program::Output::PartialAggregates(output)) => Output::Aggregate {
            keys: collect(output.keys, expression)?,
            aggregates: collect(output.aggregates, aggregate)?,
        },
        Some(proto::program::Output::Nearest(output)) => {
            let metric = metric(output.metric())?;
            Output::Nearest {
                queries: collect(output.queries, |query| vector(metric, query))?,
                metric,
                expr: expression(output.expr.ok_or_else(|| missing("vectors"))?)?,
                k: output.k,
                exprs: collect(output.exprs, expression)?,
            }
        }
        None => return Err(missing("output")),
    };
    Ok(Program {
        columns,
        filter,
        output,
    })
}

pub(super) fn runtime_filter(message: proto::RuntimeFilter) -> Result<RuntimeFilter> {
    use proto::runtime_filter::Predicate;
    check_version(message.version)?;
    let predicate = match message.predicate {
        Some(Predicate::Range(range)) => RuntimePredicate::Range {
            min: range.min.map(scalar).transpose()?,
            max: range.max.map(scalar).transpose()?,
        },
        Some(Predicate::Set(set)) => RuntimePredicate::Set(collect(set.values, scalar)?),
        Some(Predicate::Bitmap(bitmap)) => {
            let (words, rest) = bitmap.bits.as_chunks();
            if !rest.is_empty() {
                return Err(ProgramError::malformed(
                    "a bitmap that isn't whole words of 64 bits",
                ));
            }
            let bits = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
            RuntimePredicate::Bitmap {
                base: bitmap.base,
                bits,
            }
        }
        None => return Err(missing("predicate of a runtime filter")),
    };
    Ok(RuntimeFilter {
        column: message.column,
        predicate,
        keep_nulls: message.keep_nulls,
    })
}

fn check_version(found: u32) -> Result<()> {
    match found {
        0 => Err(missing("version")),
        1..=VERSION => Ok(()),
        _ => Err(ProgramError::NewerVersion {
            found,
            supported: VERSION,
        }),
    }
}

fn missing(what: &str) -> ProgramError {
    ProgramError::malformed(format!(
        "the {what} is missing, or this flashmesh doesn't know it"
    ))
}

fn collect<M, T>(messages: Vec<M>, convert: impl FnMut(M) -> Result<T>) -> Result<Vec<T>> {
    messages.into_iter().map(convert).collect()
}

fn aggregate(message: proto::Aggregate) -> Result<Aggregate> {
    let function = match message.function() {
        proto::AggregateFunction::Count => AggregateFunction::Count,
        proto::AggregateFunction::Sum => AggregateFunction::Sum,
        proto::AggregateFunction::Min => AggregateFunction::Min,
        proto::AggregateFunction::Max => AggregateFunction::Max,
        proto::AggregateFunction::Unspecified => return Err(missing("aggregate function")),
    };
    Ok(Aggregate {
        function,
        argument: message.argument.map(expression).transpose()?,
        filter: message.filter.map(expression).transpose()?,
        data_type: required_type(message.data_type)?,
    })
}

/// Reads a postfix list. The stack holds the operands that the nodes so far left, each with its
/// depth.
fn expression(message: proto::Expression) -> Result<Expr> {
    let mut stack: Vec<(Expr, u32)> = Vec::new();
    for node in message.nodes {
        let instruction = node.instruction.ok_or_else(|| missing("instruction"))?;
        let Some(rest) = stack.len().checked_sub(operand_count(&instruction)) else {
            return Err(lacks_operands());
        };
        let depth = 1 + stack[rest..]
            .iter()
            .map(|(_, depth)| *depth)
            .max()
            .unwrap_or(0);
        if depth > MAX_DEPTH {
            let (found, allowed) = (depth.into(), MAX_DEPTH.into());
            return Err(ProgramError::OverLimit {
                limit: "depth",
                found,
                allowed,
            });
        }
        let expr = apply(instruction, stack.drain(rest..).map(|(operand, _)| operand))?;
        stack.push((expr, depth));
    }
    match (stack.pop(), stack.is_empty()) {
        (Some((expr, _)), true) => Ok(expr),
        (None, _) => Err(ProgramError::malformed(
            "an expression without instructions",
        )),
        (Some(_), false) => Err(ProgramError::malformed(
            "an expression that leaves two values",
        )),
    }
}

fn lacks_operands() -> ProgramError {
    ProgramError::malformed("an instruction lacks operands")
}

/// How many operands the instruction takes from the stack.
fn operand_count(instruction: &Instruction) -> usize {
    match instruction {
        Instruction::Column(_) | Instruction::Literal(_) => 0,
        Instruction::Compare(_) | Instruction::Arithmetic(_) => 2,
        Instruction::And(count) | Instruction::Or(count) => *count as usize,
        Instruction::Kernel(kernel) => kernel.arguments as usize,
        Instruction::Case(case) => (case.branches as usize)
            .saturating_mul(2)
            .saturating_add(case.has_otherwise.into()),
        Instruction::Not(_)
        | Instruction::IsNull(_)
        | Instruction::InList(_)
        | Instruction::Like(_)
        | Instruction::Cast(_)
        | Instruction::DatePart(_)
        | Instruction::Substring(_)
        | Instruction::Position(_)
        | Instruction::Regex(_)
        | Instruction::ContainsAny(_)
        | Instruction::Distance(_) => 1,
    }
}

/// The expression that the instruction makes of its operands.
fn apply(instruction: Instruction, mut operands: impl Iterator<Item = Expr>) -> Result<Expr> {
    let mut next = || operands.next().map(Box::new).ok_or_else(lacks_operands);
    Ok(match instruction {
        Instruction::Column(index) => Expr::Column(index),
        Instruction::Literal(literal) => Expr::Literal(Literal {
            value: scalar(
                literal
                    .value
                    .ok_or_else(|| missing("value of a constant"))?,
            )?,
            data_type: required_type(literal.data_type)?,
        }),
        Instruction::Compare(op) => {
            let op = match proto::CompareOp::try_from(op) {
                Ok(proto::CompareOp::Eq) => CompareOp::Eq,
                Ok(proto::CompareOp::NotEq) => CompareOp::NotEq,
                Ok(proto::CompareOp::Lt) => CompareOp::Lt,
                Ok(proto::CompareOp::LtEq) => CompareOp::LtEq,
                Ok(proto::CompareOp::Gt) => CompareOp::Gt,
                Ok(proto::CompareOp::GtEq) => CompareOp::GtEq,
                Ok(proto::CompareOp::Unspecified) | Err(_) => {
                    return Err(missing("comparison operator"));
                }
            };
            Expr::Compare {
                op,
                left: next()?,
                right: next()?,
            }
        }
        Instruction::And(_) => Expr::And(operands.collect()),
        Instruction::Or(_) => Expr::Or(operands.collect()),
        Instruction::Not(_) => Expr::Not(next()?),
        Instruction::IsNull(_) => Expr::IsNull(next()?),
        Instruction::InList(message) => Expr::InList {
            expr: next()?,
            list: collect(message.list, scalar)?,
            negated: message.negated,
        },
        Instruction::Like(message) => Expr::Like {
            expr: next()?,
            pattern: message.pattern,
            negated: message.negated,
            case_insensitive: message.case_insensitive,
        },
        Instruction::Arithmetic(message) => {
            let op = match message.op() {
                proto::ArithmeticOp::Add => ArithmeticOp::Add,
                proto::ArithmeticOp::Subtract => ArithmeticOp::Subtract,
                proto::ArithmeticOp::Multiply => ArithmeticOp::Multiply,
                proto::ArithmeticOp::Unspecified => return Err(missing("arithmetic operator")),
            };
            let data_type = required_type(message.data_type)?;
            Expr::Arithmetic {
                op,
                left: next()?,
                right: next()?,
                data_type,
            }
        }
        Instruction::Cast(to) => Expr::Cast {
            expr: next()?,
            data_type: data_type(*to, 0)?,
        },
        Instruction::Case(message) => {
            let mut branches = Vec::new();
            for _ in 0..message.branches {
                branches.push((*next()?, *next()?));
            }
            let otherwise = if message.has_otherwise {
                Some(next()?)
            } else {
                None
            };
            Expr::Case {
                branches,
                otherwise,
                data_type: required_type(message.data_type)?,
            }
        }
        Instruction::DatePart(part) => {
            let part = match proto::DatePart::try_from(part) {
                Ok(proto::DatePart::Year) => DatePart::Year,
                Ok(proto::DatePart::Month) => DatePart::Month,
                Ok(proto::DatePart::Day) => DatePart::Day,
                Ok(proto::DatePart::Unspecified) | Err(_) => return Err(missing("calendar field")),
            };
            Expr::DatePart {
                part,
                expr: next()?,
            }
        }
        Instruction::Substring(message) => Expr::Substring {
            expr: next()?,
            start: message.start,
            length: message.length,
        },
        Instruction::Position(message) => Expr::Position {
            expr: next()?,
            needle: message.needle,
        },
        Instruction::Regex(message) => Expr::Regex {
            expr: next()?,
            pattern: message.pattern,
            negated: message.negated,
            case_insensitive: message.case_insensitive,
        },
        Instruction::ContainsAny(message) => Expr::ContainsAny {
            expr: next()?,
            needles: message.needles,
        },
        Instruction::Distance(message) => {
            let metric = metric(message.metric())?;
            Expr::Distance {
                metric,
                expr: next()?,
                query: vector(metric, message.query)?,
            }
        }
        Instruction::Kernel(message) => {
            use proto::kernel::Query;
            let digest = <[u8; 32]>::try_from(message.digest.as_slice())
                .map_err(|_| ProgramError::malformed("a kernel's digest that isn't 32 bytes"))?;
            let query = match message.query {
                None => None,
                Some(Query::Bits(bits)) => Some(QueryVector::Bits(bits)),
                Some(Query::Floats(bytes)) => Some(QueryVector::Floats(floats(&bytes)?)),
            };
            Expr::Kernel {
                kernel: KernelId {
                    name: message.name,
                    digest,
                },
                arguments: operands.collect(),
                query,
                data_type: required_type(message.data_type)?,
            }
        }
    })
}

fn metric(metric: proto::Metric) -> Result<Metric> {
    Ok(match metric {
        proto::Metric::Hamming => Metric::Hamming,
        proto::Metric::L2 => Metric::L2,
        proto::Metric::Cosine => Metric::Cosine,
        proto::Metric::Dot => Metric::Dot,
        proto::Metric::Unspecified => return Err(missing("metric")),
    })
}

fn vector(metric: Metric, bytes: Vec<u8>) -> Result<QueryVector> {
    if metric == Metric::Hamming {
        return Ok(QueryVector::Bits(bytes));
    }
    Ok(QueryVector::Floats(floats(&bytes)?))
}

fn floats(bytes: &[u8]) -> Result<Vec<f32>> {
    let (values, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(ProgramError::malformed(
            "a vector that isn't whole floats of 32 bits",
        ));
    }
    let values = values.iter().map(|value| f32::from_le_bytes(*value));
    Ok(values.collect())
}

fn scalar(message: proto::Scalar) -> Result<Scalar> {
    use proto::scalar::Value;
    Ok(match message.value {
        Some(Value::Null(_)) => Scalar::Null,
        Some(Value::Boolean(value)) => Scalar::Boolean(value),
        Some(Value::Int(value)) => Scalar::Int(value.into()),
        Some(Value::WideInt(bytes)) => match <[u8; 16]>::try_from(bytes.as_slice()) {
            Ok(bytes) => Scalar::Int(i128::from_le_bytes(bytes)),
            Err(_) => {
                return Err(ProgramError::malformed(
                    "a wide integer that isn't 16 bytes",
                ));
            }
        },
        Some(Value::Float(value)) => Scalar::Float(value),
        Some(Value::Bytes(bytes)) => Scalar::Bytes(bytes),
        None => return Err(missing("value of a constant")),
    })
}

fn required_type(message: Option<proto::DataType>) -> Result<DataType> {
    data_type(message.ok_or_else(|| missing("type"))?, 0)
}

fn data_type(message: proto::DataType, depth: u32) -> Result<DataType> {
    if depth > MAX_TYPE_DEPTH {
        return Err(ProgramError::malformed(format!(
            "a column type nested more than {MAX_TYPE_DEPTH} levels deep"
        )));
    }
    Ok(match message.kind() {
        TypeKind::Unspecified => return Err(missing("type")),
        TypeKind::Boolean => DataType::Boolean,
        TypeKind::Int8 => DataType::Int8,
        TypeKind::Int16 => DataType::Int16,
        TypeKind::Int32 => DataType::Int32,
        TypeKind::Int64 => DataType::Int64,
        TypeKind::Uint8 => DataType::UInt8,
        TypeKind::Uint16 => DataType::UInt16,
        TypeKind::Uint32 => DataType::UInt32,
        TypeKind::Uint64 => DataType::UInt64,
        TypeKind::Float16 => DataType::Float16,
        TypeKind::Float32 => DataType::Float32,
        TypeKind::Float64 => DataType::Float64,
        TypeKind::Decimal128 => {
            let (precision, scale) = digits(&message)?;
            DataType::Decimal128(precision, scale)
        }
        TypeKind::Decimal256 => {
            let (precision, scale) = digits(&message)?;
            DataType::Decimal256(precision, scale)
        }
        TypeKind::Map => {
            let sorted = message.sorted;
            DataType::Map(only_child(message, depth)?, sorted)
        }
        TypeKind::Date32 => DataType::Date32,
        TypeKind::Date64 => DataType::Date64,
        TypeKind::Time32 => DataType::Time32(time_unit(&message)?),
        TypeKind::Time64 => DataType::Time64(time_unit(&message)?),
        TypeKind::Timestamp => {
            DataType::Timestamp(time_unit(&message)?, message.timezone.map(Arc::from))
        }
        TypeKind::Duration => DataType::Duration(time_unit(&message)?),
        TypeKind::IntervalYearMonth => DataType::Interval(IntervalUnit::YearMonth),
        TypeKind::IntervalDayTime => DataType::Interval(IntervalUnit::DayTime),
        TypeKind::IntervalMonthDayNano => DataType::Interval(IntervalUnit::MonthDayNano),
        TypeKind::Utf8View => DataType::Utf8View,
        TypeKind::BinaryView => DataType::BinaryView,
        TypeKind::FixedSizeBinary => DataType::FixedSizeBinary(message.size),
        TypeKind::List => DataType::List(only_child(message, depth)?),
        TypeKind::LargeList => DataType::LargeList(only_child(message, depth)?),
        TypeKind::FixedSizeList => {
            let size = message.size;
            DataType::FixedSizeList(only_child(message, depth)?, size)
        }
        TypeKind::Struct => {
            let children = collect(message.children, |child| field(child, depth))?;
            DataType::Struct(children.into())
        }
        TypeKind::Utf8 => DataType::Utf8,
        TypeKind::LargeUtf8 => DataType::LargeUtf8,
        TypeKind::Binary => DataType::Binary,
        TypeKind::LargeBinary => DataType::LargeBinary,
    })
}

fn digits(message: &proto::DataType) -> Result<(u8, i8)> {
    match (u8::try_from(message.precision), i8::try_from(message.scale)) {
        (Ok(precision), Ok(scale)) => Ok((precision, scale)),
        _ => Err(ProgramError::malformed(format!(
            "a decimal of precision {} and scale {}",
            message.precision, message.scale
        ))),
    }
}

fn field(message: proto::Field, depth: u32) -> Result<Field> {
    let data_type = data_type(message.data_type.ok_or_else(|| missing("type"))?, depth + 1)?;
    Ok(Field::new(message.name, data_type, message.nullable))
}

fn only_child(message: proto::DataType, depth: u32) -> Result<Arc<Field>> {
    match <[proto::Field; 1]>::try_from(message.children) {
        Ok([child]) => Ok(Arc::new(field(child, depth)?)),
        Err(children) => Err(ProgramError::malformed(format!(
            "a list type with {} element types in place of one",
            children.len()
        ))),
    }
}

fn time_unit(message: &proto::DataType) -> Result<TimeUnit> {
    Ok(match message.unit() {
        proto::TimeUnit::Second => TimeUnit::Second,
        proto::TimeUnit::Millisecond => TimeUnit::Millisecond,
        proto::TimeUnit::Microsecond => TimeUnit::Microsecond,
        proto::TimeUnit::Nanosecond => TimeUnit::Nanosecond,
        proto::TimeUnit::Unspecified => return Err(missing("time unit")),
    })
}
