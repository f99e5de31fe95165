//! The loops over vectors. Those that the compiler can vectorise are compiled for several
//! instruction sets; the choice falls at their first call.

use flashmesh_pushdown::{ArithmeticOp, CompareOp};
use multiversion::multiversion;

use super::vector::Operand;
use crate::accelerator::cpu::bitmap::Bitmap;

/// `out[i] = f(left[i], right[i])`, with a loop of its own for each kind of operands.
#[inline(always)]
fn map2<T: Copy, U>(
    left: Operand<'_, T>,
    right: Operand<'_, T>,
    len: usize,
    out: &mut Vec<U>,
    f: impl Fn(T, T) -> U,
) {
    out.clear();
    match (left, right) {
        (Operand::Each(l), Operand::Each(r)) => {
            out.extend(l[..len].iter().zip(&r[..len]).map(|(l, r)| f(*l, *r)))
        }
        (Operand::Each(l), Operand::All(r)) => out.extend(l[..len].iter().map(|l| f(*l, r))),
        (Operand::All(l), Operand::Each(r)) => out.extend(r[..len].iter().map(|r| f(l, *r))),
        (Operand::All(l), Operand::All(r)) => out.extend((0..len).map(|_| f(l, r))),
    }
}

/// 64-bit arithmetic; what overflows wraps.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
pub(super) fn arithmetic_i64(
    op: ArithmeticOp,
    left: Operand<'_, i64>,
    right: Operand<'_, i64>,
    len: usize,
    out: &mut Vec<i64>,
) {
    match op {
        ArithmeticOp::Add => map2(left, right, len, out, i64::wrapping_add),
        ArithmeticOp::Subtract => map2(left, right, len, out, i64::wrapping_sub),
        ArithmeticOp::Multiply => map2(left, right, len, out, i64::wrapping_mul),
    }
}

/// Float arithmetic; the caller rounds results of narrow types.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
pub(super) fn arithmetic_f64(
    op: ArithmeticOp,
    left: Operand<'_, f64>,
    right: Operand<'_, f64>,
    len: usize,
    out: &mut Vec<f64>,
) {
    match op {
        ArithmeticOp::Add => map2(left, right, len, out, |l, r| l + r),
        ArithmeticOp::Subtract => map2(left, right, len, out, |l, r| l - r),
        ArithmeticOp::Multiply => map2(left, right, len, out, |l, r| l * r),
    }
}

/// `out[i] = values[i] * factor`, which the caller knows to fit.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
pub(super) fn scale_i64(values: Operand<'_, i64>, factor: i64, len: usize, out: &mut Vec<i64>) {
    map2(values, Operand::All(factor), len, out, i64::wrapping_mul);
}

/// Bit `i` of the result is `f(left[i], right[i])`.
#[inline(always)]
fn compare2<T: Copy>(
    left: Operand<'_, T>,
    right: Operand<'_, T>,
    len: usize,
    out: &mut Bitmap,
    f: impl Fn(T, T) -> bool,
) {
    match (left, right) {
        (Operand::Each(l), Operand::Each(r)) => {
            let (l, r) = (&l[..len], &r[..len]);
            out.fill_from_fn(len, |i| f(l[i], r[i]));
        }
        (Operand::Each(l), Operand::All(r)) => {
            let l = &l[..len];
            out.fill_from_fn(len, |i| f(l[i], r));
        }
        (Operand::All(l), Operand::Each(r)) => {
            let r = &r[..len];
            out.fill_from_fn(len, |i| f(l, r[i]));
        }
        (Operand::All(l), Operand::All(r)) => out.reset(len, f(l, r)),
    }
}

/// Compares numbers.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
pub(super) fn compare_i64(
    op: CompareOp,
    left: Operand<'_, i64>,
    right: Operand<'_, i64>,
    len: usize,
    out: &mut Bitmap,
) {
    match op {
        CompareOp::Eq => compare2(left, right, len, out, |l, r| l == r),
        CompareOp::NotEq => compare2(left, right, len, out, |l, r| l != r),
        CompareOp::Lt => compare2(left, right, len, out, |l, r| l < r),
        CompareOp::LtEq => compare2(left, right, len, out, |l, r| l <= r),
        CompareOp::Gt => compare2(left, right, len, out, |l, r| l > r),
        CompareOp::GtEq => compare2(left, right, len, out, |l, r| l >= r),
    }
}

/// A number that is ordered as the float is by IEEE 754's total order, with −0.0 as 0.0.
#[inline(always)]
pub(in crate::accelerator::cpu) fn folded_key(value: f64) -> i64 {
    total_key(if value == 0.0 { 0.0 } else { value })
}

/// A number that is ordered as the float is by IEEE 754's total order.
#[inline(always)]
pub(in crate::accelerator::cpu) fn total_key(value: f64) -> i64 {
    let bits = value.to_bits() as i64;
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

/// The float of a [`total_key`].
#[inline(always)]
pub(in crate::accelerator::cpu) fn from_total_key(key: i64) -> f64 {
    f64::from_bits((key ^ ((key >> 63) as u64 >> 1) as i64) as u64)
}

/// Compares floats as [`CompareOp`] has it.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
pub(super) fn compare_f64(
    op: CompareOp,
    left: Operand<'_, f64>,
    right: Operand<'_, f64>,
    len: usize,
    out: &mut Bitmap,
) {
    match op {
        CompareOp::Eq => compare2(left, right, len, out, |l, r| folded_key(l) == folded_key(r)),
        CompareOp::NotEq => compare2(left, right, len, out, |l, r| folded_key(l) != folded_key(r)),
        CompareOp::Lt => compare2(left, right, len, out, |l, r| folded_key(l) < folded_key(r)),
        CompareOp::LtEq => compare2(left, right, len, out, |l, r| folded_key(l) <= folded_key(r)),
        CompareOp::Gt => compare2(left, right, len, out, |l, r| folded_key(l) > folded_key(r)),
        CompareOp::GtEq => compare2(left, right, len, out, |l, r| folded_key(l) >= folded_key(r)),
    }
}

/// Whether an ordering satisfies the operator.
#[inline]
pub(super) fn holds(op: CompareOp, order: std::cmp::Ordering) -> bool {
    match op {
        CompareOp::Eq => order.is_eq(),
        CompareOp::NotEq => order.is_ne(),
        CompareOp::Lt => order.is_lt(),
        CompareOp::LtEq => order.is_le(),
        CompareOp::Gt => order.is_gt(),
        CompareOp::GtEq => order.is_ge(),
    }
}

/// Year, month and day of days since 1970-01-01 in the proleptic Gregorian calendar
/// (Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`).
#[inline(always)]
pub(in crate::accelerator::cpu) fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}
