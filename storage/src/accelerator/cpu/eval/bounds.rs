//! What is known of each node's values in one segment, worked out from the chunks' zone maps:
//! it decides which representation holds them and whether an overflow has to be looked for.

use arrow::datatypes::{DataType, TimeUnit};
use flashmesh_pushdown::{ArithmeticOp, DatePart, Metric, Scalar};

use super::graph::{Graph, NodeId, Op};
use super::vector::Kind;

/// What is known of a column in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::accelerator::cpu) struct ColumnBound {
    /// Least and greatest number, for integers and decimals; `None` if not known.
    pub range: Option<(i128, i128)>,
    pub may_be_null: bool,
}

/// What is known of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::accelerator::cpu) struct Bound {
    /// Least and greatest number that the node can have, for integers and decimals.
    pub range: (i128, i128),
    /// Values are held in 128 bits.
    pub wide: bool,
    /// Operands and all that lies between them and the result fit 64 bits.
    pub narrow_kernel: bool,
    /// The result may leave its integer type and has to be wrapped back into it.
    pub wraps: bool,
    pub may_be_null: bool,
    /// This node may fail, whatever its operands do.
    pub may_overflow: bool,
    /// This node or one that it is made of may fail: it must not be computed for a row that does
    /// not ask for it.
    pub fallible: bool,
}

/// `10^(scale difference)` by which each side of a decimal operation is multiplied first; `None`
/// where that leaves 128 bits.
pub(in crate::accelerator::cpu) fn decimal_factors(
    op: ArithmeticOp,
    left: &DataType,
    right: &DataType,
) -> Option<(i128, i128)> {
    match (op, left, right) {
        (
            ArithmeticOp::Add | ArithmeticOp::Subtract,
            DataType::Decimal128(_, left_scale),
            DataType::Decimal128(_, right_scale),
        ) => {
            let scale = *left_scale.max(right_scale);
            let factor = |s: i8| 10i128.checked_pow((i32::from(scale) - i32::from(s)) as u32);
            Some((factor(*left_scale)?, factor(*right_scale)?))
        }
        _ => Some((1, 1)),
    }
}

/// What a widening cast multiplies numbers by; `None` where that leaves 128 bits.
pub(in crate::accelerator::cpu) fn cast_factor(from: &DataType, to: &DataType) -> Option<i128> {
    let per_second = |unit: &TimeUnit| match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000i128,
    };
    match (from, to) {
        (DataType::Decimal128(_, from), DataType::Decimal128(_, to)) => {
            10i128.checked_pow((i32::from(*to) - i32::from(*from)).max(0) as u32)
        }
        (DataType::Date32, DataType::Date64) => Some(86_400_000),
        (DataType::Date32, DataType::Timestamp(unit, _)) => Some(86_400 * per_second(unit)),
        (DataType::Timestamp(from, _), DataType::Timestamp(to, _)) => {
            Some(per_second(to) / per_second(from))
        }
        (_, DataType::Decimal128(_, scale)) => 10i128.checked_pow((*scale).max(0) as u32),
        _ => Some(1),
    }
}

/// The bounds of every node, operands first.
pub(in crate::accelerator::cpu) fn bind(
    graph: &Graph,
    column: impl Fn(usize) -> ColumnBound,
) -> Vec<Bound> {
    let mut bounds: Vec<Bound> = Vec::with_capacity(graph.nodes.len());
    for index in 0..graph.nodes.len() {
        let bound = bind_node(graph, NodeId(index as u32), &bounds, &column);
        bounds.push(bound);
    }
    bounds
}

fn bind_node(
    graph: &Graph,
    id: NodeId,
    bounds: &[Bound],
    column: &impl Fn(usize) -> ColumnBound,
) -> Bound {
    let node = graph.node(id);
    let limits = Kind::of(&node.data_type).limits().unwrap_or((0, 0));
    let mut bound = Bound {
        range: limits,
        wide: false,
        narrow_kernel: true,
        wraps: false,
        may_be_null: false,
        may_overflow: false,
        fallible: false,
    };
    graph.for_operands(id, |operand| {
        let operand = &bounds[operand.index()];
        bound.may_be_null |= operand.may_be_null;
        bound.fallible |= operand.fallible;
    });
    match &node.op {
        Op::Column(index) => {
            let known = column(*index);
            bound.range = known.range.unwrap_or(limits);
            bound.may_be_null = known.may_be_null;
        }
        Op::Literal(value) => {
            bound.may_be_null = *value == Scalar::Null;
            bound.range = match value {
                Scalar::Int(v) => (*v, *v),
                _ => (0, 0),
            };
        }
        Op::Arithmetic(op, left, right) => {
            bind_arithmetic(graph, *op, *left, *right, bounds, &mut bound)
        }
        Op::Cast(operand) => {
            let from = &graph.node(*operand).data_type;
            if Kind::of(from).limits().is_some() && Kind::of(&node.data_type).limits().is_some() {
                let range = bounds[operand.index()].range;
                let scaled = cast_factor(from, &node.data_type)
                    .and_then(|f| Some((range.0.checked_mul(f)?, range.1.checked_mul(f)?)));
                bound.narrow_kernel = !bounds[operand.index()].wide && scaled.is_some_and(fits_i64);
                match scaled {
                    Some(scaled) if limits.0 <= scaled.0 && scaled.1 <= limits.1 => {
                        bound.range = scaled
                    }
                    _ => bound.may_overflow = true,
                }
            } else if *from == DataType::Boolean {
                bound.range = (0, 1);
            }
        }
        Op::Case(branches, otherwise) => {
            bound.may_be_null = otherwise.is_none();
            let values = branches.iter().map(|(_, v)| v).chain(otherwise);
            let mut range: Option<(i128, i128)> = None;
            for value in values {
                let value = &bounds[value.index()];
                bound.may_be_null |= value.may_be_null;
                range = Some(match range {
                    None => value.range,
                    Some(range) => (range.0.min(value.range.0), range.1.max(value.range.1)),
                });
            }
            bound.range = range.unwrap_or(limits);
        }
        Op::DatePart(part, operand) => {
            bound.range = match part {
                DatePart::Month => (1, 12),
                DatePart::Day => (1, 31),
                DatePart::Year => (-300_000, 300_000),
            };
            // Days beyond the calendar have no fields.
            bound.may_be_null |= !CALENDAR_DAYS.contains(&bounds[operand.index()].range.0)
                || !CALENDAR_DAYS.contains(&bounds[operand.index()].range.1);
        }
        Op::Position(..) => bound.range = (0, i32::MAX.into()),
        Op::Distance(operand, targets) => {
            if targets.metric() == Metric::Hamming {
                bound.range = (0, 8 * targets.size() as i128);
            }
            // An element of a vector may be NULL where the vector isn't.
            let vectors = &graph.node(*operand).data_type;
            bound.may_be_null |=
                matches!(vectors, DataType::FixedSizeList(child, _) if child.is_nullable());
        }
        Op::IsNull(_) => bound.may_be_null = false,
        // What a kernel does with values that no row has is its own.
        Op::Kernel(..) => {
            bound.may_be_null = true;
            bound.fallible = true;
        }
        Op::InList(_, set) => bound.may_be_null |= set.has_null,
        _ => {}
    }
    let is_number = Kind::of(&node.data_type).limits().is_some();
    bound.wide = is_number && !fits_i64(bound.range);
    bound.fallible |= bound.may_overflow;
    bound
}

/// Days since 1970-01-01 that the calendar of the interpreter has: years −262143 to 262142.
pub(in crate::accelerator::cpu) const CALENDAR_DAYS: std::ops::RangeInclusive<i128> =
    -96_465_292..=95_026_236;

fn bind_arithmetic(
    graph: &Graph,
    op: ArithmeticOp,
    left: NodeId,
    right: NodeId,
    bounds: &[Bound],
    bound: &mut Bound,
) {
    let (left_type, right_type) = (&graph.node(left).data_type, &graph.node(right).data_type);
    let kind = Kind::of(left_type);
    let Some(limits) = kind.limits() else { return };
    let (l, r) = (&bounds[left.index()], &bounds[right.index()]);
    let factors = decimal_factors(op, left_type, right_type);
    let scaled = factors.and_then(|(left_factor, right_factor)| {
        let scale =
            |range: (i128, i128), f: i128| Some((range.0.checked_mul(f)?, range.1.checked_mul(f)?));
        Some((scale(l.range, left_factor)?, scale(r.range, right_factor)?))
    });
    let result = scaled.and_then(|(l, r)| range_of(op, l, r));
    bound.narrow_kernel = !l.wide
        && !r.wide
        && match kind {
            // 64-bit arithmetic that wraps is right in its low bits, which is all that a signed or
            // a narrower type keeps.
            Kind::Integer { bits, signed } => signed || bits < 64 || result.is_some_and(fits_i64),
            _ => {
                scaled.is_some_and(|(l, r)| fits_i64(l) && fits_i64(r))
                    && result.is_some_and(fits_i64)
            }
        };
    match result {
        Some(range) if limits.0 <= range.0 && range.1 <= limits.1 => bound.range = range,
        _ => {
            bound.range = limits;
            bound.wraps = kind != Kind::Decimal;
            bound.may_overflow = kind == Kind::Decimal;
        }
    }
}

fn range_of(op: ArithmeticOp, l: (i128, i128), r: (i128, i128)) -> Option<(i128, i128)> {
    match op {
        ArithmeticOp::Add => Some((l.0.checked_add(r.0)?, l.1.checked_add(r.1)?)),
        ArithmeticOp::Subtract => Some((l.0.checked_sub(r.1)?, l.1.checked_sub(r.0)?)),
        ArithmeticOp::Multiply => {
            let corners = [
                l.0.checked_mul(r.0)?,
                l.0.checked_mul(r.1)?,
                l.1.checked_mul(r.0)?,
                l.1.checked_mul(r.1)?,
            ];
            Some((*corners.iter().min()?, *corners.iter().max()?))
        }
    }
}

/// Whether both ends fit 64 bits.
pub(in crate::accelerator::cpu) fn fits_i64(range: (i128, i128)) -> bool {
    i128::from(i64::MIN) <= range.0 && range.1 <= i128::from(i64::MAX)
}
