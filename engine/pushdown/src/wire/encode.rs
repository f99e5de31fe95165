//! Programs into protobuf messages.

use arrow::datatypes::{DataType, Field, IntervalUnit, TimeUnit};

use super::proto;
use crate::{
    Aggregate, AggregateFunction, ArithmeticOp, CompareOp, DatePart, Expr, Metric, Output, Program,
    QueryVector, RuntimeFilter, RuntimePredicate, Scalar,
};
use proto::TypeKind;
use proto::node::Instruction;

/// The lowest version that knows all runtime filters.
const RUNTIME_FILTER_VERSION: u32 = 1;

pub(super) fn program(program: &Program) -> proto::Program {
    let output = match &program.output {
        Output::Rows {
            exprs,
            order,
            limit,
        } => proto::program::Output::Rows(proto::Rows {
            exprs: exprs.iter().map(expression).collect(),
            order: order
                .iter()
                .map(|key| proto::SortKey {
                    output: key.output,
                    descending: key.descending,
                    nulls_first: key.nulls_first,
                })
                .collect(),
            limit: *limit,
        }),
        Output::Aggregate { keys, aggregates } => {
            proto::program::Output::PartialAggregates(proto::PartialAggregates {
                keys: keys.iter().map(expression).collect(),
                aggregates: aggregates.iter().map(aggregate).collect(),
            })
        }
        Output::Nearest {
            queries,
            metric: measured,
            expr,
            k,
            exprs,
        } => proto::program::Output::Nearest(proto::Nearest {
            metric: metric(*measured).into(),
            queries: queries.iter().map(vector).collect(),
            expr: Some(expression(expr)),
            k: *k,
            exprs: exprs.iter().map(expression).collect(),
        }),
    };
    proto::Program {
        version: version(program),
        columns: program
            .columns
            .iter()
            .map(|column| proto::InputColumn {
                ordinal: column.ordinal,
                name: column.name.clone(),
                data_type: Some(data_type(&column.data_type)),
                nullable: column.nullable,
            })
            .collect(),
        filter: program.filter.iter().map(expression).collect(),
        output: Some(output),
    }
}

/// The lowest version that knows everything that the Program uses.
fn version(program: &Program) -> u32 {
    fn of(expr: &Expr) -> u32 {
        let mut version = match expr {
            Expr::Position { .. }
            | Expr::Regex { .. }
            | Expr::ContainsAny { .. }
            | Expr::Distance { .. } => 2,
            Expr::Kernel { .. } => 3,
            _ => 1,
        };
        expr.for_each_child(&mut |child| version = version.max(of(child)));
        version
    }
    let output = match &program.output {
        Output::Rows { exprs, .. } => exprs.iter().map(of).max(),
        Output::Aggregate { keys, aggregates } => {
            let arguments = aggregates.iter().flat_map(Aggregate::exprs);
            keys.iter().chain(arguments).map(of).max()
        }
        Output::Nearest { expr, exprs, .. } => {
            std::iter::once(expr).chain(exprs).map(of).chain([2]).max()
        }
    };
    let filter = program.filter.iter().map(of).max();
    output.max(filter).unwrap_or(1)
}

fn metric(metric: Metric) -> proto::Metric {
    match metric {
        Metric::Hamming => proto::Metric::Hamming,
        Metric::L2 => proto::Metric::L2,
        Metric::Cosine => proto::Metric::Cosine,
        Metric::Dot => proto::Metric::Dot,
    }
}

fn vector(vector: &QueryVector) -> Vec<u8> {
    match vector {
        QueryVector::Bits(bytes) => bytes.clone(),
        QueryVector::Floats(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

pub(super) fn runtime_filter(filter: &RuntimeFilter) -> proto::RuntimeFilter {
    use proto::runtime_filter::Predicate;
    let predicate = match &filter.predicate {
        RuntimePredicate::Range { min, max } => Predicate::Range(proto::Range {
            min: min.as_ref().map(scalar),
            max: max.as_ref().map(scalar),
        }),
        RuntimePredicate::Set(values) => Predicate::Set(proto::Set {
            values: values.iter().map(scalar).collect(),
        }),
        RuntimePredicate::Bitmap { base, bits } => Predicate::Bitmap(proto::Bitmap {
            base: *base,
            bits: bits.iter().flat_map(|word| word.to_le_bytes()).collect(),
        }),
    };
    proto::RuntimeFilter {
        version: RUNTIME_FILTER_VERSION,
        column: filter.column,
        keep_nulls: filter.keep_nulls,
        predicate: Some(predicate),
    }
}

fn aggregate(aggregate: &Aggregate) -> proto::Aggregate {
    let function = match aggregate.function {
        AggregateFunction::Count => proto::AggregateFunction::Count,
        AggregateFunction::Sum => proto::AggregateFunction::Sum,
        AggregateFunction::Min => proto::AggregateFunction::Min,
        AggregateFunction::Max => proto::AggregateFunction::Max,
    };
    proto::Aggregate {
        function: function.into(),
        argument: aggregate.argument.as_ref().map(expression),
        filter: aggregate.filter.as_ref().map(expression),
        data_type: Some(data_type(&aggregate.data_type)),
    }
}

fn expression(expr: &Expr) -> proto::Expression {
    let mut nodes = Vec::new();
    push(expr, &mut nodes);
    proto::Expression { nodes }
}

/// Appends the operands, then the node itself.
fn push(expr: &Expr, nodes: &mut Vec<proto::Node>) {
    expr.for_each_child(&mut |child| push(child, nodes));
    let unit = proto::Unit {};
    let instruction = match expr {
        Expr::Column(index) => Instruction::Column(*index),
        Expr::Literal(literal) => Instruction::Literal(Box::new(proto::Literal {
            value: Some(scalar(&literal.value)),
            data_type: Some(data_type(&literal.data_type)),
        })),
        Expr::Compare { op, .. } => Instruction::Compare(compare_op(*op).into()),
        Expr::And(operands) => Instruction::And(operands.len() as u32),
        Expr::Or(operands) => Instruction::Or(operands.len() as u32),
        Expr::Not(_) => Instruction::Not(unit),
        Expr::IsNull(_) => Instruction::IsNull(unit),
        Expr::InList { list, negated, .. } => Instruction::InList(Box::new(proto::InList {
            list: list.iter().map(scalar).collect(),
            negated: *negated,
        })),
        Expr::Like {
            pattern,
            negated,
            case_insensitive,
            ..
        } => Instruction::Like(Box::new(proto::Like {
            pattern: pattern.clone(),
            negated: *negated,
            case_insensitive: *case_insensitive,
        })),
        Expr::Arithmetic {
            op,
            data_type: result,
            ..
        } => {
            let op = match op {
                ArithmeticOp::Add => proto::ArithmeticOp::Add,
                ArithmeticOp::Subtract => proto::ArithmeticOp::Subtract,
                ArithmeticOp::Multiply => proto::ArithmeticOp::Multiply,
            };
            Instruction::Arithmetic(Box::new(proto::Arithmetic {
                op: op.into(),
                data_type: Some(data_type(result)),
            }))
        }
        Expr::Cast { data_type: to, .. } => Instruction::Cast(Box::new(data_type(to))),
        Expr::Case {
            branches,
            otherwise,
            data_type: result,
        } => Instruction::Case(Box::new(proto::Case {
            branches: branches.len() as u32,
            has_otherwise: otherwise.is_some(),
            data_type: Some(data_type(result)),
        })),
        Expr::DatePart { part, .. } => {
            let part = match part {
                DatePart::Year => proto::DatePart::Year,
                DatePart::Month => proto::DatePart::Month,
                DatePart::Day => proto::DatePart::Day,
            };
            Instruction::DatePart(part.into())
        }
        Expr::Substring { start, length, .. } => {
            Instruction::Substring(Box::new(proto::Substring {
                start: *start,
                length: *length,
            }))
        }
        Expr::Position { needle, .. } => Instruction::Position(Box::new(proto::Position {
            needle: needle.clone(),
        })),
        Expr::Regex {
            pattern,
            negated,
            case_insensitive,
            ..
        } => Instruction::Regex(Box::new(proto::Regex {
            pattern: pattern.clone(),
            negated: *negated,
            case_insensitive: *case_insensitive,
        })),
        Expr::ContainsAny { needles, .. } => {
            Instruction::ContainsAny(Box::new(proto::ContainsAny {
                needles: needles.clone(),
            }))
        }
        Expr::Distance {
            metric: measured,
            query,
            ..
        } => Instruction::Distance(Box::new(proto::Distance {
            metric: metric(*measured).into(),
            query: vector(query),
        })),
        Expr::Kernel {
            kernel,
            arguments,
            query,
            data_type: result,
        } => {
            use proto::kernel::Query;
            Instruction::Kernel(Box::new(proto::Kernel {
                name: kernel.name.clone(),
                digest: kernel.digest.to_vec(),
                arguments: arguments.len() as u32,
                query: query.as_ref().map(|query| match query {
                    QueryVector::Bits(_) => Query::Bits(vector(query)),
                    QueryVector::Floats(_) => Query::Floats(vector(query)),
                }),
                data_type: Some(data_type(result)),
            }))
        }
    };
    nodes.push(proto::Node {
        instruction: Some(instruction),
    });
}

fn compare_op(op: CompareOp) -> proto::CompareOp {
    match op {
        CompareOp::Eq => proto::CompareOp::Eq,
        CompareOp::NotEq => proto::CompareOp::NotEq,
        CompareOp::Lt => proto::CompareOp::Lt,
        CompareOp::LtEq => proto::CompareOp::LtEq,
        CompareOp::Gt => proto::CompareOp::Gt,
        CompareOp::GtEq => proto::CompareOp::GtEq,
    }
}

fn scalar(value: &Scalar) -> proto::Scalar {
    use proto::scalar::Value;
    let value = match value {
        Scalar::Null => Value::Null(proto::Unit {}),
        Scalar::Boolean(value) => Value::Boolean(*value),
        Scalar::Int(value) => match i64::try_from(*value) {
            Ok(value) => Value::Int(value),
            Err(_) => Value::WideInt(value.to_le_bytes().to_vec()),
        },
        Scalar::Float(value) => Value::Float(*value),
        Scalar::Bytes(bytes) => Value::Bytes(bytes.clone()),
    };
    proto::Scalar { value: Some(value) }
}

/// A type that no Program may have becomes `TYPE_KIND_UNSPECIFIED`, which is refused when read.
fn data_type(data_type: &DataType) -> proto::DataType {
    let mut message = proto::DataType::default();
    let kind = match data_type {
        DataType::Boolean => TypeKind::Boolean,
        DataType::Int8 => TypeKind::Int8,
        DataType::Int16 => TypeKind::Int16,
        DataType::Int32 => TypeKind::Int32,
        DataType::Int64 => TypeKind::Int64,
        DataType::UInt8 => TypeKind::Uint8,
        DataType::UInt16 => TypeKind::Uint16,
        DataType::UInt32 => TypeKind::Uint32,
        DataType::UInt64 => TypeKind::Uint64,
        DataType::Float16 => TypeKind::Float16,
        DataType::Float32 => TypeKind::Float32,
        DataType::Float64 => TypeKind::Float64,
        DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale) => {
            message.precision = (*precision).into();
            message.scale = (*scale).into();
            match data_type {
                DataType::Decimal128(..) => TypeKind::Decimal128,
                _ => TypeKind::Decimal256,
            }
        }
        DataType::Date32 => TypeKind::Date32,
        DataType::Date64 => TypeKind::Date64,
        DataType::Time32(unit) => {
            message.unit = time_unit(unit).into();
            TypeKind::Time32
        }
        DataType::Time64(unit) => {
            message.unit = time_unit(unit).into();
            TypeKind::Time64
        }
        DataType::Timestamp(unit, zone) => {
            message.unit = time_unit(unit).into();
            message.timezone = zone.as_ref().map(|zone| zone.to_string());
            TypeKind::Timestamp
        }
        DataType::Duration(unit) => {
            message.unit = time_unit(unit).into();
            TypeKind::Duration
        }
        DataType::Interval(IntervalUnit::YearMonth) => TypeKind::IntervalYearMonth,
        DataType::Interval(IntervalUnit::DayTime) => TypeKind::IntervalDayTime,
        DataType::Interval(IntervalUnit::MonthDayNano) => TypeKind::IntervalMonthDayNano,
        DataType::Utf8View => TypeKind::Utf8View,
        DataType::BinaryView => TypeKind::BinaryView,
        DataType::FixedSizeBinary(size) => {
            message.size = *size;
            TypeKind::FixedSizeBinary
        }
        DataType::List(child) => {
            message.children = vec![field(child)];
            TypeKind::List
        }
        DataType::LargeList(child) => {
            message.children = vec![field(child)];
            TypeKind::LargeList
        }
        DataType::FixedSizeList(child, size) => {
            message.size = *size;
            message.children = vec![field(child)];
            TypeKind::FixedSizeList
        }
        DataType::Map(entries, sorted) => {
            message.sorted = *sorted;
            message.children = vec![field(entries)];
            TypeKind::Map
        }
        DataType::Struct(fields) => {
            message.children = fields.iter().map(|child| field(child)).collect();
            TypeKind::Struct
        }
        DataType::Utf8 => TypeKind::Utf8,
        DataType::LargeUtf8 => TypeKind::LargeUtf8,
        DataType::Binary => TypeKind::Binary,
        DataType::LargeBinary => TypeKind::LargeBinary,
        _ => TypeKind::Unspecified,
    };
    message.kind = kind.into();
    message
}

fn field(field: &Field) -> proto::Field {
    proto::Field {
        name: field.name().clone(),
        data_type: Some(data_type(field.data_type())),
        nullable: field.is_nullable(),
    }
}

fn time_unit(unit: &TimeUnit) -> proto::TimeUnit {
    match unit {
        TimeUnit::Second => proto::TimeUnit::Second,
        TimeUnit::Millisecond => proto::TimeUnit::Millisecond,
        TimeUnit::Microsecond => proto::TimeUnit::Microsecond,
        TimeUnit::Nanosecond => proto::TimeUnit::Nanosecond,
    }
}
