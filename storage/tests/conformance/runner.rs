//! Makes the calls of vectors on a target, and compares.

use std::collections::BTreeMap;
use std::time::Duration;

use flashmesh_storage::Result;
use flashmesh_storage::kernel::interface::ArgumentUse;
use flashmesh_storage::kernel::{Argument, CFunction, CallContext, CallTime, Target};
use flashmesh_storage::memory::MemoryBudget;

use super::vectors::{Call, Case, Content, Element, Vectors};

/// What stands in every byte of a result before the call.
const UNWRITTEN: u8 = 0xa5;
/// Differences of a case that are described.
const SHOWN: usize = 4;

/// Memory without a limit: vectors are small.
#[derive(Debug)]
pub struct NoLimit;

impl MemoryBudget for NoLimit {
    fn grow(&self, _: usize) -> Result<()> {
        Ok(())
    }

    fn shrink(&self, _: usize) {}
}

static TIME: CallTime = CallTime::new(Duration::MAX);

/// The context of every call here.
pub const CONTEXT: CallContext<'static> = CallContext {
    memory: &NoLimit,
    time: &TIME,
    query: 0,
};

/// What the vectors found.
#[derive(Debug, Default)]
pub struct Outcome {
    pub differences: Vec<String>,
    /// A call failed: the target may need to be opened again.
    pub has_failed: bool,
}

/// Runs all cases. The target's functions are those of the kernel with `suffix` behind their
/// names. The first call that fails ends the run.
pub fn run(
    vectors: &Vectors,
    functions: &[CFunction],
    suffix: &str,
    target: &dyn Target,
) -> Outcome {
    let mut outcome = Outcome::default();
    for case in &vectors.cases {
        run_case(
            case,
            vectors.tolerance,
            functions,
            suffix,
            target,
            &mut outcome,
        );
        if outcome.has_failed {
            break;
        }
    }
    outcome
}

/// Whether the calls have the arguments of the kernel's functions.
pub fn check(vectors: &Vectors, functions: &[CFunction]) -> Result<(), String> {
    for call in vectors.cases.iter().flat_map(|case| &case.calls) {
        let function = function(functions, &call.function)?;
        if function.arguments.len() != call.arguments.len() {
            return Err(format!(
                "`{function}` is called with {} arguments",
                call.arguments.len()
            ));
        }
        for (wanted, given) in function.arguments.iter().zip(&call.arguments) {
            let fits = match wanted.usage {
                ArgumentUse::Scalar => matches!(given.content, Content::Scalar(_)),
                ArgumentUse::In => matches!(given.content, Content::In(_) | Content::Keep { .. }),
                ArgumentUse::Out => !matches!(
                    given.content,
                    Content::Scalar(_) | Content::In(_) | Content::InOut { .. }
                ),
                ArgumentUse::InOut => {
                    matches!(given.content, Content::InOut { .. } | Content::Keep { .. })
                }
            };
            let is_same = wanted.name == given.name;
            if !fits || !is_same || wanted.element.c_name() != given.element.c_name {
                return Err(format!(
                    "`{function}` is called with {} '{}'",
                    given.element.name, given.name
                ));
            }
        }
    }
    Ok(())
}

fn function<'a>(functions: &'a [CFunction], name: &str) -> Result<&'a CFunction, String> {
    let found = functions.iter().find(|function| function.name == name);
    found.ok_or_else(|| format!("the kernel has no function '{name}'"))
}

fn run_case(
    case: &Case,
    tolerance: f64,
    functions: &[CFunction],
    suffix: &str,
    target: &dyn Target,
    outcome: &mut Outcome,
) {
    let mut kept: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    for call in &case.calls {
        let usage = match function(functions, &call.function) {
            Ok(function) => function.arguments.iter().map(|argument| argument.usage),
            Err(problem) => panic!("{problem}"),
        };
        let mut arrays: Vec<Vec<u8>> = call
            .arguments
            .iter()
            .map(|given| match &given.content {
                Content::Scalar(_) => Vec::new(),
                Content::In(bytes) | Content::InOut { before: bytes, .. } => bytes.clone(),
                Content::Out(expected) => vec![UNWRITTEN; expected.len()],
                Content::Any(bytes) => vec![UNWRITTEN; *bytes],
                Content::Keep { bytes, array } => kept
                    .remove(array.as_str())
                    .unwrap_or_else(|| vec![UNWRITTEN; *bytes]),
            })
            .collect();
        // What a function writes is passed as what it changes, too, so that what it leaves alone
        // is seen: arrays that are only written may hold anything before.
        let mut arguments: Vec<Argument<'_>> = call
            .arguments
            .iter()
            .zip(&mut arrays)
            .zip(usage)
            .map(|((given, array), usage)| match &given.content {
                Content::Scalar(value) => Argument::Scalar(*value),
                _ if usage == ArgumentUse::In => Argument::In(array),
                _ => Argument::InOut(array),
            })
            .collect();
        let name = format!("{}{suffix}", call.function);
        let called = target.call(&name, &mut arguments, CONTEXT);
        if let Err(error) = called {
            let difference = format!("case {}, {name}: {error}", case.title);
            outcome.differences.push(difference);
            outcome.has_failed = true;
            return;
        }
        compare(call, &case.title, &arrays, tolerance, outcome);
        for (given, array) in call.arguments.iter().zip(arrays) {
            if let Content::Keep { array: name, .. } = &given.content {
                kept.insert(name, array);
            }
        }
    }
}

fn compare(call: &Call, title: &str, arrays: &[Vec<u8>], tolerance: f64, outcome: &mut Outcome) {
    for (given, found) in call.arguments.iter().zip(arrays) {
        let (Content::Out(expected)
        | Content::InOut {
            after: expected, ..
        }) = &given.content
        else {
            continue;
        };
        let size = given.element.bytes;
        let pairs = found.chunks_exact(size).zip(expected.chunks_exact(size));
        let differing = pairs
            .enumerate()
            .filter(|(_, (found, expected))| !is_same(given.element, found, expected, tolerance));
        for (index, (found, expected)) in differing.take(SHOWN) {
            outcome.differences.push(format!(
                "case {title}, {}: {}[{index}] is {found:02x?}, expected {expected:02x?}",
                call.function, given.name
            ));
        }
    }
}

/// Whether an element is what is expected: see `tolerance` in the format.
fn is_same(element: Element, found: &[u8], expected: &[u8], tolerance: f64) -> bool {
    if found == expected || !element.is_float() {
        return found == expected;
    }
    let (a, b) = (float(found), float(expected));
    if a.is_nan() || b.is_nan() {
        return a.is_nan() && b.is_nan();
    }
    a.is_finite() && b.is_finite() && tolerance > 0.0 && (a - b).abs() <= tolerance * b.abs()
}

fn float(bytes: &[u8]) -> f64 {
    match *bytes {
        [a, b, c, d] => f64::from(f32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => panic!("a float of {} bytes", bytes.len()),
    }
}

#[test]
fn floats_are_compared_as_the_format_says() {
    let element = |name| Element {
        name,
        c_name: "",
        bytes: 8,
    };
    let same = |a: f64, b: f64, tolerance| {
        is_same(
            element("f64"),
            &a.to_le_bytes(),
            &b.to_le_bytes(),
            tolerance,
        )
    };
    let negative_nan = f64::from_bits(0xfff8_0000_0000_0001);
    assert!(same(f64::NAN, negative_nan, 0.0));
    assert!(!same(f64::NAN, 1.0, 0.5));
    assert!(!same(0.0, -0.0, 0.0));
    assert!(same(0.0, -0.0, 1e-12));
    assert!(same(100.0, 101.0, 0.01));
    assert!(!same(101.0, 99.0, 0.01));
    assert!(!same(f64::INFINITY, f64::MAX, 0.5));
    assert!(!same(f64::MAX, f64::INFINITY, 0.5));
    assert!(same(f64::INFINITY, f64::INFINITY, 0.0));
    let bits = |bits: u64| bits.to_le_bytes();
    let nan = f64::NAN.to_bits();
    assert!(!is_same(element("u64"), &bits(nan), &bits(nan | 1), 0.5));
}
