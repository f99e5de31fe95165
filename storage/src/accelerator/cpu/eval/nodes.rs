//! What each kind of node does with its operands' vectors.

use arrow::array::BinaryViewArray;
use arrow::datatypes::DataType;
use flashmesh_pushdown::{ArithmeticOp, CompareOp, DatePart, ProgramError};

use super::bounds::{CALENDAR_DAYS, cast_factor, decimal_factors};
use super::graph::{ListSet, Members, NodeId, Op};
use super::kernels::{
    arithmetic_f64, arithmetic_i64, civil_from_days, compare_f64, compare_i64, holds, scale_i64,
};
use super::like::substring;
use super::text::{TextTest, position};
use super::vector::{Kind, Operand, Values, Vector, narrow_f16, widen_f32};
use super::{Evaluator, as_float, both_valid};
use crate::accelerator::cpu::bitmap::Bitmap;
use crate::distance::{FixedVectors, Positions, Targets};
use crate::{Result, StorageError};

impl Evaluator {
    /// Computes a node whose operands are computed, for a block of `len` rows.
    pub(super) fn apply(&self, id: NodeId, len: usize, out: &mut Vector) -> Result<()> {
        let graph = &self.graph;
        let mut constant = true;
        graph.for_operands(id, |n| constant &= self.slots[n.index()].constant);
        // What is made of constants is one.
        let len = if constant { 1 } else { len };
        match &graph.node(id).op {
            Op::Compare(op, left, right) => self.compare(*op, *left, *right, len, out),
            Op::And(list) => self.junction(list, len, true, out),
            Op::Or(list) => self.junction(list, len, false, out),
            Op::Not(operand) => {
                let operand = &self.slots[operand.index()];
                let mut bits = out.reuse_bool();
                bits.clone_from(operand.as_bool());
                bits.invert();
                *out = Vector::bool(bits, operand.validity.clone());
            }
            Op::IsNull(operand) => {
                let mut bits = out.reuse_bool();
                match self.slots[operand.index()].validity_of(len) {
                    None => bits.reset(len, false),
                    Some(validity) => {
                        bits = validity;
                        bits.invert();
                    }
                }
                *out = Vector::bool(bits, None);
            }
            Op::InList(operand, set) => in_list(&self.slots[operand.index()], set, len, out),
            Op::Text(operand, test) => text(&self.slots[operand.index()], test, len, out),
            Op::Position(operand, needle) => {
                positions(&self.slots[operand.index()], needle, len, out);
            }
            Op::Arithmetic(op, left, right) => self.arithmetic(id, *op, *left, *right, len, out)?,
            Op::Cast(operand) => self.cast(id, *operand, len, out)?,
            Op::DatePart(part, operand) => date_part(*part, &self.slots[operand.index()], len, out),
            Op::Substring(operand, start, length) => {
                let operand = &self.slots[operand.index()];
                *out = Vector {
                    values: Values::Bytes(substrings(operand, *start, *length, len)?),
                    validity: operand.validity_of(len),
                    constant: false,
                };
            }
            Op::Distance(operand, targets) => {
                distances(&self.slots[operand.index()], targets, len, out)?
            }
            Op::Kernel(call, arguments) => {
                let arguments = arguments
                    .iter()
                    .map(|n| (&self.slots[n.index()], &graph.node(*n).data_type))
                    .collect::<Vec<_>>();
                *out = call.run(&arguments, len, self.bounds[id.index()].wide)?;
            }
            Op::Column(_) | Op::Literal(_) | Op::Case(..) => unreachable!("computed elsewhere"),
        }
        out.constant = constant;
        Ok(())
    }

    fn compare(&self, op: CompareOp, left: NodeId, right: NodeId, len: usize, out: &mut Vector) {
        let (l, r) = (&self.slots[left.index()], &self.slots[right.index()]);
        let validity = both_valid(l.validity_of(len), r.validity_of(len));
        let mut bits = out.reuse_bool();
        match (&l.values, &r.values) {
            (Values::I64(_), Values::I64(_)) => {
                compare_i64(op, l.as_i64(), r.as_i64(), len, &mut bits)
            }
            (Values::I64(_) | Values::I128(_), _) => {
                bits.fill_from_fn(len, |i| holds(op, l.int(i).cmp(&r.int(i))))
            }
            (Values::F64(_), _) => compare_f64(op, l.as_f64(), r.as_f64(), len, &mut bits),
            (Values::Bool(a), _) => {
                let b = r.as_bool();
                let get =
                    |v: &Vector, bits: &Bitmap, i: usize| bits.get(if v.constant { 0 } else { i });
                bits.fill_from_fn(len, |i| holds(op, get(l, a, i).cmp(&get(r, b, i))));
            }
            (Values::Bytes(_), _) => compare_bytes(op, l, r, len, &mut bits),
            (Values::Array(_), _) => unreachable!("the verifier refuses to compare carried types"),
        }
        *out = Vector::bool(bits, validity);
    }

    /// AND or OR: the value that decides alone (FALSE, TRUE) wins over NULL.
    fn junction(&self, list: &[NodeId], len: usize, and: bool, out: &mut Vector) {
        let mut decided = out.reuse_bool();
        decided.reset(len, false);
        let mut unknown: Option<Bitmap> = None;
        for operand in list {
            let operand = &self.slots[operand.index()];
            let bits = operand.as_bool();
            let mut deciding = if operand.constant {
                Bitmap::filled(len, bits.get(0))
            } else {
                bits.clone()
            };
            if and {
                deciding.invert();
            }
            if let Some(mut validity) = operand.validity_of(len) {
                deciding.and(&validity);
                validity.invert();
                match &mut unknown {
                    Some(unknown) => unknown.or(&validity),
                    None => unknown = Some(validity),
                }
            }
            decided.or(&deciding);
        }
        let validity = unknown.map(|mut unknown| {
            unknown.and_not(&decided);
            unknown.invert();
            unknown
        });
        if and {
            decided.invert();
        }
        *out = Vector::bool(decided, validity);
    }

    fn arithmetic(
        &self,
        id: NodeId,
        op: ArithmeticOp,
        left: NodeId,
        right: NodeId,
        len: usize,
        out: &mut Vector,
    ) -> Result<()> {
        let node = self.graph.node(id);
        let bound = &self.bounds[id.index()];
        let (left_type, right_type) = (
            &self.graph.node(left).data_type,
            &self.graph.node(right).data_type,
        );
        let (l, r) = (&self.slots[left.index()], &self.slots[right.index()]);
        let validity = both_valid(l.validity_of(len), r.validity_of(len));
        let kind = Kind::of(&node.data_type);
        if let Kind::Float { bits } = kind {
            let mut values = out.reuse_f64();
            arithmetic_f64(op, l.as_f64(), r.as_f64(), len, &mut values);
            round_floats(bits, &mut values);
            *out = Vector::f64(values, validity);
            return Ok(());
        }
        let factors = decimal_factors(op, left_type, right_type);
        if let (true, Some((left_factor, right_factor))) = (bound.narrow_kernel, factors) {
            let mut values = out.reuse_i64();
            let (mut scaled_left, mut scaled_right) = (Vec::new(), Vec::new());
            let l = scaled(l.as_i64(), left_factor, len, &mut scaled_left);
            let r = scaled(r.as_i64(), right_factor, len, &mut scaled_right);
            arithmetic_i64(op, l, r, len, &mut values);
            let wrapped = |value: i64| match kind {
                Kind::Integer { bits, signed } if bound.wraps => wrap(value.into(), bits, signed),
                _ => value.into(),
            };
            // A result of 64 bits may be one of a type that needs 128: an unsigned one that wraps.
            *out = if bound.wide {
                Vector::i128(values.into_iter().map(wrapped).collect(), validity)
            } else {
                if bound.wraps {
                    values.iter_mut().for_each(|v| *v = wrapped(*v) as i64);
                }
                Vector::i64(values, validity)
            };
            return Ok(());
        }
        let value = |row: usize| -> Option<i128> {
            let (a, b) = (l.int(row), r.int(row));
            if let Kind::Integer { bits, signed } = kind {
                let wide = match op {
                    ArithmeticOp::Add => a.wrapping_add(b),
                    ArithmeticOp::Subtract => a.wrapping_sub(b),
                    ArithmeticOp::Multiply => a.wrapping_mul(b),
                };
                return Some(wrap(wide, bits, signed));
            }
            let (left_factor, right_factor) = factors?;
            let (a, b) = (a.checked_mul(left_factor)?, b.checked_mul(right_factor)?);
            match op {
                ArithmeticOp::Add => a.checked_add(b),
                ArithmeticOp::Subtract => a.checked_sub(b),
                ArithmeticOp::Multiply => a.checked_mul(b),
            }
        };
        let problem = |row: usize| {
            format!(
                "{} and {} leave the range of {}",
                l.int(row),
                r.int(row),
                node.data_type
            )
        };
        self.checked(id, len, validity, value, problem, out)
    }

    /// Fills `out` with 128-bit results, or their 64 bits where the bound says so. `None` is an
    /// overflow and an error unless the row is NULL anyway.
    fn checked(
        &self,
        id: NodeId,
        len: usize,
        validity: Option<Bitmap>,
        value: impl Fn(usize) -> Option<i128>,
        problem: impl Fn(usize) -> String,
        out: &mut Vector,
    ) -> Result<()> {
        let checked = |row: usize| match value(row) {
            Some(value) => Ok(value),
            None if validity.as_ref().is_some_and(|v| !v.get(row)) => Ok(0),
            None => Err(StorageError::Program(ProgramError::Arithmetic {
                expression: self.graph.node(id).text.clone(),
                problem: problem(row),
            })),
        };
        if self.bounds[id.index()].wide {
            let mut values = out.reuse_i128();
            values.reserve(len);
            for row in 0..len {
                values.push(checked(row)?);
            }
            *out = Vector::i128(values, validity);
        } else {
            let mut values = out.reuse_i64();
            values.reserve(len);
            for row in 0..len {
                values.push(checked(row)? as i64);
            }
            *out = Vector::i64(values, validity);
        }
        Ok(())
    }

    fn cast(&self, id: NodeId, operand: NodeId, len: usize, out: &mut Vector) -> Result<()> {
        let node = self.graph.node(id);
        let bound = &self.bounds[id.index()];
        let from = &self.graph.node(operand).data_type;
        let operand = &self.slots[operand.index()];
        let validity = operand.validity_of(len);
        let to_kind = Kind::of(&node.data_type);
        if let Kind::Float { .. } = to_kind {
            // Floats are held widened already.
            *out = Vector::f64(as_float(operand, len), validity);
            return Ok(());
        }
        if *from == DataType::Boolean {
            let bits = operand.as_bool();
            let mut values = out.reuse_i64();
            values.extend((0..len).map(|i| i64::from(bits.get(i))));
            *out = Vector::i64(values, validity);
            return Ok(());
        }
        let factor = cast_factor(from, &node.data_type);
        if let (true, Some(factor)) = (bound.narrow_kernel, factor) {
            let mut values = out.reuse_i64();
            scale_i64(operand.as_i64(), factor as i64, len, &mut values);
            *out = if bound.wide {
                Vector::i128(values.iter().map(|v| i128::from(*v)).collect(), validity)
            } else {
                Vector::i64(values, validity)
            };
            return Ok(());
        }
        let limits = to_kind.limits().unwrap_or((i128::MIN, i128::MAX));
        let value = |row: usize| {
            let scaled = operand.int(row).checked_mul(factor?)?;
            (limits.0..=limits.1).contains(&scaled).then_some(scaled)
        };
        let problem = |row: usize| {
            format!(
                "{} leaves the range of {}",
                operand.int(row),
                node.data_type
            )
        };
        self.checked(id, len, validity, value, problem, out)
    }
}

/// `operand * factor`, in `buffer` if there is something to do.
fn scaled<'a>(
    operand: Operand<'a, i64>,
    factor: i128,
    len: usize,
    buffer: &'a mut Vec<i64>,
) -> Operand<'a, i64> {
    match operand {
        operand if factor == 1 => operand,
        Operand::All(value) => Operand::All(value.wrapping_mul(factor as i64)),
        operand => {
            scale_i64(operand, factor as i64, len, buffer);
            Operand::Each(buffer)
        }
    }
}

/// The number that an integer type keeps of a result.
fn wrap(value: i128, bits: u8, signed: bool) -> i128 {
    match (bits, signed) {
        (8, true) => (value as i8).into(),
        (16, true) => (value as i16).into(),
        (32, true) => (value as i32).into(),
        (64, true) => (value as i64).into(),
        (8, false) => (value as u8).into(),
        (16, false) => (value as u16).into(),
        (32, false) => (value as u32).into(),
        _ => (value as u64).into(),
    }
}

/// Rounds results to the type's precision. A 64-bit float holds sum, difference and product of
/// narrower ones closely enough that rounding twice gives what rounding once does.
fn round_floats(bits: u8, values: &mut [f64]) {
    match bits {
        16 => values.iter_mut().for_each(|v| *v = narrow_f16(*v).to_f64()),
        32 => values.iter_mut().for_each(|v| *v = f64::from(*v as f32)),
        _ => {}
    }
}

fn compare_bytes(op: CompareOp, left: &Vector, right: &Vector, len: usize, bits: &mut Bitmap) {
    let equality = matches!(op, CompareOp::Eq | CompareOp::NotEq);
    // The first 8 bytes of a view are length and prefix: most unequal values differ there, and
    // two values of up to 12 bytes are equal when their views are.
    if equality && !left.constant && right.constant && right.bytes(0).len() <= 12 {
        let wanted = right.as_bytes().views()[0];
        let views = left.as_bytes().views();
        bits.fill_from_fn(len, |i| (views[i] == wanted) == (op == CompareOp::Eq));
        return;
    }
    bits.fill_from_fn(len, |i| holds(op, left.bytes(i).cmp(right.bytes(i))));
}

fn in_list(operand: &Vector, set: &ListSet, len: usize, out: &mut Vector) {
    let mut bits = out.reuse_bool();
    match (&set.members, &operand.values) {
        (Members::Int(members), Values::I64(values)) => {
            let members: Vec<i64> = members
                .iter()
                .filter_map(|m| i64::try_from(*m).ok())
                .collect();
            if members.len() <= 8 {
                bits.fill_from_fn(len, |i| {
                    members
                        .iter()
                        .fold(false, |found, m| found | (*m == values[i]))
                });
            } else {
                bits.fill_from_fn(len, |i| members.binary_search(&values[i]).is_ok());
            }
        }
        (Members::Int(members), _) => {
            bits.fill_from_fn(len, |i| members.binary_search(&operand.int(i)).is_ok())
        }
        (Members::Float(members), Values::F64(values)) => {
            bits.fill_from_fn(len, |i| members.contains(&values[i].to_bits()));
        }
        (Members::Bytes(members), _) => {
            bits.fill_from_fn(len, |i| members.contains(operand.bytes(i)))
        }
        (Members::Boolean(found), Values::Bool(values)) => {
            bits.fill_from_fn(len, |i| found[usize::from(values.get(i))]);
        }
        _ => unreachable!("the list was compiled for the operand's type"),
    }
    let mut validity = operand.validity_of(len);
    if set.has_null {
        // Found is TRUE; not found is NULL, for the NULL in the list might be it.
        let mut known = bits.clone();
        if let Some(validity) = &validity {
            known.and(validity);
        }
        validity = Some(known);
    }
    *out = Vector::bool(bits, validity);
}

fn positions(operand: &Vector, needle: &str, len: usize, out: &mut Vector) {
    let finder = memchr::memmem::Finder::new(needle);
    let mut values = out.reuse_i64();
    values.extend((0..len).map(|i| match operand.is_valid(i) {
        true => position(&finder, operand.bytes(i)),
        false => 0,
    }));
    *out = Vector::i64(values, operand.validity_of(len));
}

fn text(operand: &Vector, test: &TextTest, len: usize, out: &mut Vector) {
    let mut bits = out.reuse_bool();
    bits.fill_from_fn(len, |i| {
        operand.is_valid(i) && test.matches(operand.bytes(i))
    });
    *out = Vector::bool(bits, operand.validity_of(len));
}

fn date_part(part: DatePart, operand: &Vector, len: usize, out: &mut Vector) {
    let days = operand.as_i64();
    let mut values = out.reuse_i64();
    values.extend((0..len).map(|i| {
        let (year, month, day) = civil_from_days(days.get(i));
        match part {
            DatePart::Year => year,
            DatePart::Month => month,
            DatePart::Day => day,
        }
    }));
    let on_calendar = |i: usize| CALENDAR_DAYS.contains(&i128::from(days.get(i)));
    let mut validity = operand.validity_of(len);
    if (0..len).any(|i| !on_calendar(i)) {
        validity = both_valid(validity, Some(Bitmap::from_fn(len, on_calendar)));
    }
    *out = Vector::i64(values, validity);
}

/// Substrings as views into the operand's buffers, or inline when short: nothing is copied.
fn substrings(operand: &Vector, start: u32, length: u32, len: usize) -> Result<BinaryViewArray> {
    let source = operand.as_bytes();
    let views: Vec<u128> = (0..len)
        .map(|row| {
            if !operand.is_valid(row) {
                return 0;
            }
            let view = source.views()[row];
            let text = source.value(row);
            let (from, to) = substring(text, start, length);
            if to - from <= 12 {
                return arrow::array::make_view(&text[from..to], 0, 0);
            }
            let (buffer, offset) = ((view >> 64) as u32, (view >> 96) as u32);
            arrow::array::make_view(&text[from..to], buffer, offset + from as u32)
        })
        .collect();
    Ok(BinaryViewArray::try_new(
        views.into(),
        source.data_buffers().to_vec(),
        None,
    )?)
}

/// Distances of vectors that were loaded from the first target.
fn distances(vectors: &Vector, targets: &Targets, len: usize, out: &mut Vector) -> Result<()> {
    let mut validity = vectors.validity_of(len);
    if let Values::Array(array) = &vectors.values {
        let vectors = FixedVectors::of(array)?;
        if vectors.has_nulls() {
            let valid = Bitmap::from_fn(len, |row| vectors.is_valid(row));
            validity = both_valid(validity, Some(valid));
        }
        let mut distances = Vec::new();
        targets.floats(0, vectors.values(), Positions::All(len), &mut distances);
        let mut values = out.reuse_f64();
        values.extend(distances.into_iter().map(widen_f32));
        *out = Vector::f64(values, validity);
        return Ok(());
    }
    let mut counts = Vec::with_capacity(len);
    for row in 0..len {
        // What stands in the place of a NULL may have any length.
        match vectors.bytes(row) {
            bytes if bytes.len() == targets.size() => {
                targets.hamming(0, bytes, Positions::All(1), &mut counts)
            }
            _ => counts.push(0),
        }
    }
    let mut values = out.reuse_i64();
    values.extend(counts.into_iter().map(i64::from));
    *out = Vector::i64(values, validity);
    Ok(())
}
