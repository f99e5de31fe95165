//! Traps, spins, exhausted stacks and memory, in every entry point.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array};
use flashmesh_storage::Result;
use flashmesh_storage::kernel::{CallContext, CallTime, Kernel};
use flashmesh_storage::memory::MemoryBudget;

use crate::guest::{Budget, context, package};
use crate::harness::{
    Attack, LIMITS, assert_alive, assert_given_back, assert_reason, contained, evaluate, sandbox,
    scalar, watched,
};

/// What a body can do at any entry point.
const BODIES: [(&str, &str, &str); 4] = [
    ("spin", "(loop $l (br $l))", "took longer than 100 ms"),
    ("abort", "unreachable", "stopped itself"),
    (
        "stack",
        "(call $down (i64.const 0))",
        "more than 131072 bytes of stack",
    ),
    (
        "memory bomb",
        "(loop $l
           (br_if $l (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
         unreachable",
        "the limit is 1048576",
    ),
];

/// A function that calls itself until the stack ends. What it adds afterwards keeps the call from
/// being the last.
const DOWN: &str = "(func $down (param $n i64) (result i64)
    (i64.add (call $down (i64.add (local.get $n) (i64.const 1))) (local.get $n)))";

fn with_drop(body: &str) -> String {
    match body.contains("$down") {
        true => format!("(drop {body})"),
        false => body.to_owned(),
    }
}

#[test]
fn the_function_of_a_scalar() {
    let sandbox = sandbox();
    for (name, body, reason) in BODIES {
        let mut attack = scalar(name, &with_drop(body), reason);
        attack.wat.truncate(attack.wat.len() - 1);
        attack.wat += &format!("{DOWN})");
        contained(&sandbox, attack, evaluate);
    }
}

#[test]
fn the_start_function() {
    let sandbox = sandbox();
    for (name, body, reason) in BODIES {
        let mut attack = scalar(name, "", reason);
        attack.wat.truncate(attack.wat.len() - 1);
        let body = with_drop(body);
        attack.wat += &format!("{DOWN} (func $start {body}) (start $start))");
        contained(&sandbox, attack, evaluate);
    }
}

#[test]
fn the_function_that_constructs() {
    let sandbox = sandbox();
    for (name, body, reason) in BODIES {
        let mut attack = scalar(name, "", reason);
        attack.wat.truncate(attack.wat.len() - 1);
        let body = with_drop(body);
        attack.wat += &format!("{DOWN} (func (export \"_initialize\") {body}))");
        contained(&sandbox, attack, evaluate);
    }
}

#[test]
fn a_heap_that_begins_beyond_the_memory() {
    let sandbox = sandbox();
    for (base, reason) in [
        (65_536, ""),
        (65_537, "beyond its memory"),
        (-1, "beyond its memory"),
    ] {
        let mut attack = scalar("heap", "", reason);
        attack.wat.truncate(attack.wat.len() - 1);
        attack.wat += &format!("(global (export \"__heap_base\") i32 (i32.const {base})))");
        contained(&sandbox, attack, evaluate);
    }
}

#[test]
fn the_four_functions_of_an_aggregate() {
    let sandbox = sandbox();
    for entry in ["init", "update", "merge", "finish"] {
        for (name, body, reason) in BODIES {
            let body = with_drop(body);
            let of = |function: &str| if function == entry { body.as_str() } else { "" };
            let attack = Attack {
                name,
                keys: "kind = 'aggregate'\nstate_words = 1\n\
                       signature = '(x BIGINT) RETURNS BIGINT'\n"
                    .to_owned(),
                wat: format!(
                    "(module (memory (export \"memory\") 1) {DOWN}
                      (func (export \"evil_init\") (param i32 i32) {})
                      (func (export \"evil_update\") (param i32 i32 i32 i32 i32) {})
                      (func (export \"evil_merge\") (param i32 i32 i32) {})
                      (func (export \"evil_finish\") (param i32 i32 i32 i32) {}))",
                    of("init"),
                    of("update"),
                    of("merge"),
                    of("finish")
                ),
                reason,
            };
            contained(&sandbox, attack, aggregate);
        }
    }
}

fn aggregate(kernel: &Kernel, budget: &Arc<Budget>) -> Result<()> {
    let mut states = kernel.states()?;
    states.init(3, context(budget))?;
    let arguments = [Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef];
    states.update(&arguments, 2, &[0, 2], context(budget))?;
    let others = states.to_array()?;
    states.merge(&others, &[2, 1, 0], context(budget))?;
    states.finish(context(budget)).map(|_| ())
}

#[test]
fn traps_of_each_kind() {
    let sandbox = sandbox();
    let oob = "beyond its memory";
    for (name, body, reason) in [
        (
            "division by zero",
            "(drop (i32.div_u (i32.const 1) (i32.const 0)))",
            "divide by zero",
        ),
        (
            "division overflow",
            "(drop (i32.div_s (i32.const 0x80000000) (i32.const -1)))",
            "integer overflow",
        ),
        (
            "conversion",
            "(drop (i32.trunc_f64_s (f64.const nan)))",
            "conversion to integer",
        ),
        (
            "largest address, read",
            "(drop (i64.load offset=0xffffffff (i32.const -1)))",
            oob,
        ),
        (
            "largest address, written",
            "(i32.store8 (i32.const -1) (i32.const 42))",
            oob,
        ),
        (
            "vector over the end",
            "(drop (v128.load (i32.sub (i32.shl (memory.size) (i32.const 16)) (i32.const 8))))",
            oob,
        ),
        (
            "fill over the end",
            "(memory.fill (i32.const 0) (i32.const 7) (i32.const -1))",
            oob,
        ),
        (
            "copy over the end",
            "(memory.copy (i32.const 0) (i32.const 8) (i32.const -4))",
            oob,
        ),
        // Address 0 is the guest's own.
        (
            "null pointer",
            "(i32.store (i32.const 0) (i32.const 42))",
            "",
        ),
        (
            "all of its memory overwritten",
            "(memory.fill (i32.const 0) (i32.const 255) (i32.shl (memory.size) (i32.const 16)))",
            "",
        ),
        (
            "arguments overwritten",
            "(memory.fill (local.get $x) (i32.const 255) (i32.const 800))",
            "",
        ),
        (
            "twice as many results",
            "(memory.fill (local.get $result) (i32.const 1) (i32.const 1600))",
            "",
        ),
        ("passes", "", ""),
    ] {
        contained(&sandbox, scalar(name, body, reason), evaluate);
    }
    for (name, call, reason) in [
        ("call of nothing", "(i32.const 0)", "uninitialized element"),
        (
            "call of another type",
            "(i32.const 1)",
            "indirect call type",
        ),
        ("call beyond the table", "(i32.const 9)", "out of bounds"),
    ] {
        let mut attack = scalar(name, &format!("(call_indirect {call})"), reason);
        attack.wat.truncate(attack.wat.len() - 1);
        attack.wat += "(table 4 funcref) (elem (i32.const 1) $evil))";
        contained(&sandbox, attack, evaluate);
    }
}

#[test]
fn slow_instructions_and_hidden_loops_end_in_time() {
    let sandbox = sandbox();
    let slow = "took longer than 100 ms";
    for (name, body) in [
        (
            "filling without end",
            "(loop $l (memory.fill (i32.const 0) (i32.const 0) (i32.const 65536)) (br $l))",
        ),
        // Ackermann's function does not end and its stack stays low for long.
        (
            "two functions that call each other in loops",
            "(loop $l (call $leaf) (br $l))",
        ),
        (
            "exponential recursion",
            "(drop (call $fibonacci (i32.const 60)))",
        ),
        (
            "doubling loops",
            "(loop $a (loop $b (loop $c (br_if $c (i32.const 0))) (br_if $b (i32.const 0))) (br $a))",
        ),
        (
            "memory.grow by nothing",
            "(loop $l (drop (memory.grow (i32.const 0))) (br $l))",
        ),
        (
            "growing that is refused, again and again",
            "(loop $l (drop (memory.grow (i32.const 65535))) (br $l))",
        ),
    ] {
        let mut attack = scalar(name, body, slow);
        attack.wat.truncate(attack.wat.len() - 1);
        attack.wat += "(func $leaf)
            (func $fibonacci (param $n i32) (result i32)
              (if (result i32) (i32.lt_u (local.get $n) (i32.const 2))
                (then (local.get $n))
                (else
                  (i32.add
                    (call $fibonacci (i32.sub (local.get $n) (i32.const 1)))
                    (call $fibonacci (i32.sub (local.get $n) (i32.const 2))))))))";
        contained(&sandbox, attack, evaluate);
    }
}

#[test]
fn a_query_that_is_cancelled_ends_its_calls() {
    let sandbox = sandbox();
    let keys = "name = 'evil'\nkind = 'scalar'\nsignature = '(x BIGINT) RETURNS BIGINT'\n\
                [limits]\ntime_per_call_ms = 60000\n";
    let attack = scalar("cancelled", "(loop $l (br $l))", "");
    let package = package(keys, &attack.wat);
    let target = sandbox.compile(&package, &[]).unwrap();
    let kernel = Kernel::new(package, target);
    let budget = Budget::new(32 << 20);
    let its_budget = Arc::clone(&budget);
    let (error, late) = watched("cancelled", move || {
        static TIME: CallTime = CallTime::new(Duration::MAX);
        let cancel = std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            TIME.cancel();
            Instant::now()
        });
        let context = CallContext {
            memory: its_budget.as_ref(),
            time: &TIME,
            query: 1,
        };
        let arguments = [Arc::new(Int64Array::from(vec![1])) as ArrayRef];
        let error = kernel.evaluate(&arguments, 1, context).unwrap_err();
        (error, cancel.join().unwrap().elapsed())
    });
    assert_reason("cancelled", &error, "cancelled");
    // The kernel itself may take a minute.
    assert!(late < Duration::from_secs(20), "{late:?}");
    assert_given_back("cancelled", &budget);
    assert_alive("cancelled", &sandbox);
}

#[test]
fn the_calls_of_a_query_have_so_much_time_together() {
    let sandbox = sandbox();
    let keys = "name = 'evil'\nkind = 'scalar'\nsignature = '(x BIGINT) RETURNS BIGINT'\n\
                [limits]\ntime_per_call_ms = 60000\n";
    let budget = Budget::new(32 << 20);
    let call = |body: &str, time: &CallTime| {
        let package = package(keys, &scalar("time", body, "").wat);
        let kernel = Kernel::new(package.clone(), sandbox.compile(&package, &[]).unwrap());
        let arguments = [Arc::new(Int64Array::from(vec![1])) as ArrayRef];
        let context = CallContext {
            time,
            ..context(&budget)
        };
        kernel.evaluate(&arguments, 1, context).map(|_| ())
    };
    let time = CallTime::new(Duration::from_secs(2));
    call("", &time).unwrap();
    // One call that goes on ends, and none follows.
    for body in ["(loop $l (br $l))", ""] {
        let error = call(body, &time).unwrap_err();
        assert_reason("time", &error, "have run for 2000 ms");
        assert!(time.left().is_zero());
    }
    call("", &CallTime::new(Duration::from_secs(2))).unwrap();
    assert_given_back("time", &budget);
}

#[test]
fn memory_that_the_query_does_not_have_is_refused() {
    let sandbox = sandbox();
    let grow = "(drop (memory.grow (i32.const 8))) (i32.store (i32.const 600000) (i32.const 1))";
    let attack = scalar("budget", grow, "");
    let keys = format!("name = 'evil'\n{}{LIMITS}", attack.keys);
    let package = package(&keys, &attack.wat);
    let target = sandbox.compile(&package, &[]).unwrap();
    let kernel = Kernel::new(package, target);
    // For an instance, for its first page, for its arguments, for what the guest takes.
    for limit in [10_000, 80_000, 150_000, 300_000] {
        let budget = Budget::new(limit);
        let memory: Arc<dyn MemoryBudget> = budget.clone();
        for kernel in [kernel.clone(), kernel.for_query(&memory)] {
            let error = evaluate(&kernel, &budget).unwrap_err();
            assert_reason("budget", &error, "memory limit of");
        }
        assert_given_back("budget", &budget);
    }
    assert_alive("budget", &sandbox);
}

#[test]
fn arguments_that_the_memory_has_no_room_for() {
    let sandbox = sandbox();
    let keys = "kind = 'scalar'\nsignature = '(x BIGINT) RETURNS BIGINT'\n\
                [limits]\nmemory_bytes = 65536\n";
    let mut attack = scalar("no room", "", "can't take");
    attack.keys = keys.to_owned();
    contained(&sandbox, attack, evaluate);
    let mut attack = scalar("a memory with a maximum", "", "maximum size exceeded");
    attack.wat = attack.wat.replace("\"memory\") 1", "\"memory\") 1 1");
    contained(&sandbox, attack, evaluate);
}
