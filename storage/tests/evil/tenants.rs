//! Other queries, other kernels: what is not a guest's own.

use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, AsArray, Int64Array, StringViewArray};
use arrow::datatypes::Int64Type;
use flashmesh_storage::Result;
use flashmesh_storage::accelerator::sandbox::Sandbox;
use flashmesh_storage::kernel::{Argument, CallContext, Kernel, Target};
use flashmesh_storage::memory::MemoryBudget;

use crate::guest::{Budget, context, package};
use crate::harness::{
    LIMITS, QUERY_BYTES, assert_alive, assert_given_back, assert_reason, sandbox, scalar, watched,
};

/// Compiles a scalar kernel of 64-bit numbers with this module.
fn kernel(sandbox: &Sandbox, name: &str, keys: &str, wat: &str, callees: &[Kernel]) -> Kernel {
    let keys = format!(
        "name = '{name}'\nkind = 'scalar'\nsignature = '(x BIGINT) RETURNS BIGINT'\n{keys}{LIMITS}"
    );
    let package = package(&keys, wat);
    let target = sandbox.compile(&package, callees).unwrap();
    Kernel::new(package, target)
}

fn value(kernel: &Kernel, budget: &Arc<Budget>, value: i64) -> Result<i64> {
    let arguments = [Arc::new(Int64Array::from(vec![value])) as ArrayRef];
    let found = kernel.evaluate(&arguments, 1, context(budget))?;
    Ok(found.as_primitive::<Int64Type>().value(0))
}

/// Sums all bytes of its memory that are not its arguments, and leaves a secret in them.
const SPY: &str = "(module (memory (export \"memory\") 1) (global $secret (mut i64) (i64.const 0))
  (func (export \"evil\") (param $x i32) (param $rows i32) (param $result i32)
    (local $at i32) (local $sum i64)
    (local.set $sum (global.get $secret))
    (loop $next
      (if (i32.ne (local.get $at) (local.get $x))
        (then
          (local.set $sum (i64.or (local.get $sum) (i64.load (local.get $at))))
          (i64.store (local.get $at) (i64.load (local.get $x)))))
      (local.set $at (i32.add (local.get $at) (i32.const 8)))
      (br_if $next (i32.lt_u (local.get $at) (i32.shl (memory.size) (i32.const 16)))))
    (global.set $secret (i64.load (local.get $x)))
    (i64.store (local.get $result) (local.get $sum))))";

#[test]
fn nothing_is_left_for_the_next_query() {
    let sandbox = sandbox();
    let kernel = kernel(&sandbox, "evil", "", SPY, &[]);
    let budget = Budget::new(QUERY_BYTES);
    let memory: Arc<dyn MemoryBudget> = budget.clone();
    // Calls outside of a query are queries of their own.
    for _ in 0..3 {
        assert_eq!(value(&kernel, &budget, 0x5ec7e7).unwrap(), 0);
    }
    let first = kernel.for_query(&memory);
    let second = kernel.for_query(&memory);
    assert_eq!(value(&first, &budget, 0x5ec7e7).unwrap(), 0);
    assert_ne!(
        value(&first, &budget, 0x5ec7e7).unwrap(),
        0,
        "the spy spies"
    );
    assert_eq!(value(&second, &budget, 7).unwrap(), 0);
    let clone = first.clone();
    drop(first);
    assert_ne!(
        value(&clone, &budget, 1).unwrap(),
        0,
        "a clone is the same query"
    );
    drop((clone, second));
    for _ in 0..20 {
        assert_eq!(value(&kernel.for_query(&memory), &budget, 9).unwrap(), 0);
    }
    assert_given_back("spy", &budget);
}

#[test]
fn one_query_s_failure_is_its_own() {
    let sandbox = sandbox();
    // Well-behaved twice, then in ways that have to be noticed.
    let flips = "(module (memory (export \"memory\") 1) (global $calls (mut i32) (i32.const 0))
      (func (export \"evil\") (param $x i32) (param $rows i32) (param $result i32)
        (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
        (if (i32.gt_u (global.get $calls) (i32.const 2)) (then unreachable))
        (i64.store (local.get $result) (i64.load (local.get $x)))))";
    let kernel = kernel(&sandbox, "evil", "", flips, &[]);
    let budget = Budget::new(QUERY_BYTES);
    let memory: Arc<dyn MemoryBudget> = budget.clone();
    let other = kernel.for_query(&memory);
    assert_eq!(value(&other, &budget, 1).unwrap(), 1);
    let query = kernel.for_query(&memory);
    for round in 0..3 {
        assert_eq!(value(&query, &budget, 5).unwrap(), 5, "{round}");
        assert_eq!(value(&query, &budget, 6).unwrap(), 6);
        let error = value(&query, &budget, 7).unwrap_err();
        assert_reason("flips", &error, "stopped itself");
    }
    assert_eq!(value(&other, &budget, 2).unwrap(), 2);
    drop((query, other));
    assert_given_back("flips", &budget);
    assert_alive("flips", &sandbox);
}

#[test]
fn many_queries_at_once_do_not_meet() {
    let sandbox = sandbox();
    let kernel = kernel(&sandbox, "evil", "", SPY, &[]);
    watched("many", move || {
        std::thread::scope(|scope| {
            for thread in 1..=4 {
                let kernel = &kernel;
                scope.spawn(move || {
                    let budget = Budget::new(QUERY_BYTES);
                    let memory: Arc<dyn MemoryBudget> = budget.clone();
                    for _ in 0..20 {
                        let query = kernel.for_query(&memory);
                        assert_eq!(value(&query, &budget, thread).unwrap(), 0);
                        let seen = value(&query, &budget, thread).unwrap();
                        assert_eq!(seen & 0xff, thread, "its own secret only");
                    }
                    assert_given_back("many", &budget);
                });
            }
        });
    });
}

/// A target that is known only after its caller was compiled: so that calls can go in a circle.
#[derive(Debug, Default)]
struct Late(OnceLock<Arc<dyn Target>>);

impl Target for Late {
    fn name(&self) -> &'static str {
        "late"
    }

    fn call(
        &self,
        _function: &str,
        arguments: &mut [Argument<'_>],
        context: CallContext<'_>,
    ) -> Result<()> {
        self.0.get().unwrap().call("evil", arguments, context)
    }
}

#[test]
fn kernels_that_call_each_other_without_end() {
    let sandbox = sandbox();
    let wat = |body: &str| {
        format!(
            "(module (import \"flashmesh.kernel\" \"other\" (func $other (param i32 i32 i32)))
              (memory (export \"memory\") 1)
              (func (export \"evil\") (param $x i32) (param $rows i32) (param $result i32)
                {body} (call $other (local.get $x) (local.get $rows) (local.get $result))))"
        )
    };
    // Deep in calls, with and without the stack that each may use, and spinning at the bottom.
    let deep = "(if (i32.eqz (global.get $deep))
                  (then (global.set $deep (i32.const 1)) (drop (call $down (i32.const 800)))))";
    let functions = "(global $deep (mut i32) (i32.const 0))
        (func $down (param $n i32) (result i32)
          (if (result i32) (local.get $n)
            (then (i32.add (call $down (i32.sub (local.get $n) (i32.const 1))) (i32.const 1)))
            (else (i32.const 0))))";
    for body in ["", deep] {
        let mut wat = wat(body);
        wat.truncate(wat.len() - 1);
        wat += &format!("{functions})");
        let late = Arc::new(Late::default());
        let one = package(
            "name = 'other'\nkind = 'scalar'\nsignature = '(x BIGINT) RETURNS BIGINT'\n",
            include_str!("../sandbox/add_one.wat"),
        );
        let callee = Kernel::new(one, Arc::clone(&late) as Arc<dyn Target>);
        let calls = "[calls]\nkernels = ['other']\n";
        let kernel = kernel(&sandbox, "evil", calls, &wat, &[callee]);
        late.0.set(Arc::clone(kernel.target())).unwrap();
        let budget = Budget::new(QUERY_BYTES);
        let memory: Arc<dyn MemoryBudget> = budget.clone();
        for kernel in [kernel.clone(), kernel.for_query(&memory)] {
            let its_budget = Arc::clone(&budget);
            let error = watched("circle", move || {
                value(&kernel, &its_budget, 1).unwrap_err()
            });
            let text = error.to_string();
            assert!(text.contains("deeper than 8"), "{text}");
        }
        assert_given_back("circle", &budget);
        assert_alive("circle", &sandbox);
    }
}

#[test]
fn lies_to_a_callee() {
    let sandbox = sandbox();
    let search = package(
        "name = 'find_byte'\nkind = 'search'\nsignature = '(t TEXT, p TEXT CONSTANT) RETURNS INTEGER'\n",
        include_str!("../sandbox/find_byte.wat"),
    );
    let search = Kernel::new(search.clone(), sandbox.compile(&search, &[]).unwrap());
    // Offsets at 0, text at 64, pattern at 128, positions at 256.
    for (name, offsets, arguments, reason) in [
        (
            "rows",
            "0 1 2",
            "0 64 128 1 -1 256",
            "4294967295 rows, the callee takes 8192",
        ),
        (
            "rows without memory",
            "0 1 2",
            "0 64 128 1 8192 65536",
            "do not rise",
        ),
        (
            "offsets outside",
            "0 1 2",
            "-4 64 128 1 2 256",
            "'t_offsets' of 3 elements",
        ),
        (
            "text outside",
            "0 1 2",
            "0 -1 128 1 2 256",
            "'t_bytes' of 2 elements",
        ),
        (
            "text over the end",
            "0 1 0x20000",
            "0 64 128 1 2 256",
            "'t_bytes' of 131072",
        ),
        (
            "more text than a call",
            "0 1 0x200000",
            "0 64 128 1 2 256",
            "2097152 bytes of text",
        ),
        (
            "pattern outside",
            "0 1 2",
            "0 64 -1 1 2 256",
            "'p' of 1 elements",
        ),
        (
            "pattern's length",
            "0 1 2",
            "0 64 128 -1 2 256",
            "4294967295 bytes of text",
        ),
        (
            "positions outside",
            "0 1 2",
            "0 64 128 1 2 -8",
            "'positions' of 2",
        ),
        (
            "positions over the end",
            "0 1 2",
            "0 64 128 1 2 1048572",
            "beyond its memory",
        ),
        (
            "offsets that go back",
            "0 9 2",
            "0 64 128 1 2 256",
            "do not rise",
        ),
        ("first offset", "1 1 2", "0 64 128 1 2 256", "do not rise"),
        ("results over arguments", "0 1 2", "0 0 0 1 2 0", ""),
        ("no rows", "0 1 2", "0 64 128 1 0 256", ""),
        ("as it should be", "0 1 2", "0 64 128 1 2 256", ""),
    ] {
        let stores: String = offsets
            .split(' ')
            .enumerate()
            .map(|(i, offset)| format!("(i32.store (i32.const {}) (i32.const {offset}))", i * 4))
            .collect();
        let values: String = arguments
            .split(' ')
            .map(|value| format!("(i32.const {value})"))
            .collect();
        let wat = format!(
            "(module
              (import \"flashmesh.kernel\" \"find_byte\"
                (func $find (param i32 i32 i32 i32 i32 i32)))
              (memory (export \"memory\") 1)
              (func (export \"evil\") (param $x i32) (param $rows i32) (param $result i32)
                {stores} (call $find {values})))"
        );
        let calls = "[calls]\nkernels = ['find_byte']\n";
        let kernel = kernel(&sandbox, "evil", calls, &wat, std::slice::from_ref(&search));
        let budget = Budget::new(QUERY_BYTES);
        let its_budget = Arc::clone(&budget);
        let outcome = watched(name, move || value(&kernel, &its_budget, 1));
        match (outcome, reason) {
            (Ok(_), "") => {}
            (Err(error), reason) if !reason.is_empty() => assert_reason(name, &error, reason),
            (outcome, _) => panic!("{name}: {outcome:?}"),
        }
        assert_given_back(name, &budget);
    }
    assert_alive("lies", &sandbox);
}

#[test]
fn a_callee_s_failure_ends_the_caller_and_its_time_is_the_caller_s() {
    let sandbox = sandbox();
    let body = "(call $other (local.get $x) (local.get $rows) (local.get $result))";
    let mut caller = scalar("calls", &format!("(loop $l {body} (br $l))"), "").wat;
    caller = caller.replacen(
        "(module ",
        "(module (import \"flashmesh.kernel\" \"other\" (func $other (param i32 i32 i32))) ",
        1,
    );
    for (callee, reason) in [
        (
            "unreachable",
            "its call of 'other' failed: kernel 'other': it stopped itself",
        ),
        // 60 seconds are the callee's own limit, 100 ms the caller's.
        ("(loop $l (br $l))", "its call of 'other' failed"),
        ("", "took longer than"),
    ] {
        let wat = scalar("callee", callee, "")
            .wat
            .replace("\"evil\"", "\"other\"");
        let other = package(
            "name = 'other'\nkind = 'scalar'\nsignature = '(x BIGINT) RETURNS BIGINT'\n\
             [limits]\ntime_per_call_ms = 60000\n",
            &wat,
        );
        let other = Kernel::new(other.clone(), sandbox.compile(&other, &[]).unwrap());
        let calls = "[calls]\nkernels = ['other']\n";
        let kernel = kernel(&sandbox, "evil", calls, &caller, &[other]);
        let budget = Budget::new(QUERY_BYTES);
        let memory: Arc<dyn MemoryBudget> = budget.clone();
        for kernel in [kernel.clone(), kernel.for_query(&memory)] {
            let its_budget = Arc::clone(&budget);
            let error = watched("callee", move || {
                value(&kernel, &its_budget, 1).unwrap_err()
            });
            assert_reason("callee", &error, reason);
        }
        assert_given_back("callee", &budget);
    }
    assert_alive("callee", &sandbox);
}

#[test]
fn text_given_to_a_kernel_is_only_the_rows_of_its_call() {
    let sandbox = sandbox();
    // Gives the length of what its text's offsets say, and reads on behind it.
    let package = package(
        "name = 'evil'\nkind = 'scalar'\nsignature = '(t TEXT) RETURNS BIGINT'\n\
         [limits]\nrows_per_call = 64\n",
        "(module (memory (export \"memory\") 1)
          (func (export \"evil\") (param $offsets i32) (param $bytes i32) (param $rows i32)
            (param $result i32)
            (i64.store (local.get $result)
              (i64.load8_u
                (i32.add (local.get $bytes)
                  (i32.load (i32.add (local.get $offsets)
                    (i32.shl (local.get $rows) (i32.const 2)))))))))",
    );
    let kernel = Kernel::new(package.clone(), sandbox.compile(&package, &[]).unwrap());
    let budget = Budget::new(QUERY_BYTES);
    let mut rows = vec!["a"; 64];
    rows.push("secret");
    let texts = StringViewArray::from(rows);
    let arguments = [Arc::new(texts.slice(0, 63)) as ArrayRef];
    let found = kernel.evaluate(&arguments, 63, context(&budget)).unwrap();
    assert_eq!(found.as_primitive::<Int64Type>().value(0), 0);
}
