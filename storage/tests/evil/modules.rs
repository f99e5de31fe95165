//! Modules that are not what the contract asks for, or that a compiler would choke on.

use std::sync::Arc;

use flashmesh_storage::Result;
use flashmesh_storage::kernel::Kernel;

use crate::guest::Budget;
use crate::harness::{Attack, contained, evaluate, sandbox, scalar};

fn must_not_run(_: &Kernel, _: &Arc<Budget>) -> Result<()> {
    unreachable!("the module was compiled")
}

/// A good kernel with `fields` beside it.
fn beside(name: &'static str, fields: &str, reason: &'static str) -> Attack {
    let mut attack = scalar(name, "", reason);
    attack.wat = format!("(module {fields} {}", &attack.wat["(module ".len()..]);
    attack
}

#[test]
fn imports() {
    let sandbox = sandbox();
    let wasi = "kernels may import other kernels from 'flashmesh.kernel' and nothing else";
    let function = |from: &str, name: &str| format!("(import {from:?} {name:?} (func))");
    for (name, fields, reason) in [
        (
            "environment",
            function("wasi_snapshot_preview1", "environ_get"),
            wasi,
        ),
        (
            "files",
            function("wasi_snapshot_preview1", "path_open"),
            wasi,
        ),
        (
            "sockets",
            function("wasi_snapshot_preview1", "sock_open"),
            wasi,
        ),
        (
            "exit",
            function("wasi_snapshot_preview1", "proc_exit"),
            wasi,
        ),
        (
            "standard output",
            function("wasi_snapshot_preview1", "fd_write"),
            wasi,
        ),
        (
            "clock",
            function("wasi_snapshot_preview1", "clock_time_get"),
            wasi,
        ),
        (
            "random numbers",
            function("wasi_snapshot_preview1", "random_get"),
            wasi,
        ),
        ("threads", function("wasi", "thread-spawn"), wasi),
        ("emscripten", function("env", "emscripten_memcpy_js"), wasi),
        ("nameless", function("", ""), wasi),
        (
            "odd characters",
            function("fl\u{202e}ash\u{7}", "\u{1b}[31m"),
            wasi,
        ),
        ("long names", function("env", &"n".repeat(90_000)), wasi),
        ("almost", function("flashmesh.kernel ", "other"), wasi),
        (
            "not in calls",
            function("flashmesh.kernel", "other"),
            "does not name in calls.kernels",
        ),
        (
            "foreign memory",
            "(import \"env\" \"m\" (memory 1))".into(),
            "multiple memories",
        ),
        (
            "foreign table",
            "(import \"env\" \"t\" (table 1 funcref))".into(),
            wasi,
        ),
        (
            "foreign global",
            "(import \"env\" \"g\" (global i32))".into(),
            wasi,
        ),
        (
            "a global as a kernel",
            "(import \"flashmesh.kernel\" \"other\" (global i32))".into(),
            "does not name",
        ),
        (
            "5,000 imports",
            function("env", "f").repeat(5000),
            "section 2 of the module has 5000 items",
        ),
    ] {
        contained(&sandbox, beside(name, &fields, reason), must_not_run);
    }
    let calls = |name, wasm_type: &str, reason| {
        let field = format!("(import \"flashmesh.kernel\" \"other\" (func {wasm_type}))");
        let mut attack = beside(name, &field, reason);
        attack.keys += "[calls]\nkernels = ['other']\n";
        attack
    };
    contained(
        &sandbox,
        calls("not permitted", "", "may not call 'other'"),
        must_not_run,
    );
}

#[test]
fn exports() {
    let sandbox = sandbox();
    let good = scalar("", "", "").wat;
    let types = "has other arguments than `void evil(const int64_t *x, uint32_t rows, int64_t \
                 *result)`";
    for (name, old, new, reason) in [
        (
            "no memory",
            "(export \"memory\")",
            "",
            "does not export 'memory'",
        ),
        (
            "memory is a function",
            "(export \"memory\")",
            "",
            "does not export 'memory'",
        ),
        (
            "other name",
            "\"evil\"",
            "\"EVIL\"",
            "does not export 'evil'",
        ),
        (
            "odd name",
            "\"evil\"",
            "\"evil\\00\"",
            "does not export 'evil'",
        ),
        ("too few", "(param $x i32)", "", types),
        (
            "too many",
            "(param $x i32)",
            "(param $x i32) (param i32)",
            types,
        ),
        ("64 bits", "(param $x i32)", "(param $x i64)", types),
        ("a float", "(param $x i32)", "(param $x f32)", types),
        (
            "a result",
            "(param $result i32) ",
            "(param $result i32) (result i32) (i32.const 0)",
            types,
        ),
        (
            "64-bit memory",
            "\"memory\") 1",
            "\"memory\") i64 1",
            "not valid",
        ),
        (
            "shared memory",
            "\"memory\") 1",
            "\"memory\") 1 2 shared",
            "not valid",
        ),
        ("two memories", "(func", "(memory 1) (func", "not valid"),
        (
            "references",
            "(func",
            "(table 1 externref) (func",
            "not valid",
        ),
        ("exceptions", "(func", "(tag) (func", "not valid"),
        (
            "tail calls",
            "(param $result i32) ",
            "(param $result i32) (return_call $evil (i32.const 0) (i32.const 0) (i32.const 0))",
            "not valid",
        ),
        (
            "atomics",
            "(param $result i32) ",
            "(param $result i32) atomic.fence",
            "not valid",
        ),
        (
            "structures",
            "(func",
            "(type (struct)) (func",
            "no function types",
        ),
        (
            "relaxed vectors",
            "(param $result i32) ",
            "(param $result i32) (drop (i8x16.relaxed_swizzle (v128.const i64x2 0 0) (v128.const i64x2 0 0)))",
            "not valid",
        ),
        (
            "invalid code",
            "(param $result i32) ",
            "(param $result i32) (drop)",
            "not valid",
        ),
    ] {
        let wat = good.replacen(old, new, 1);
        assert_ne!(wat, good, "{name}");
        let mut attack = scalar(name, "", reason);
        attack.wat = wat;
        contained(&sandbox, attack, must_not_run);
    }
    let mut attack = scalar("memory is a global", "", "no 32-bit linear memory");
    attack.wat = good.replacen(
        "(memory (export \"memory\") 1)",
        "(memory 1) (global (export \"memory\") i32 (i32.const 0))",
        1,
    );
    contained(&sandbox, attack, must_not_run);
    let mut attack = scalar("the kernel is a global", "", "is no function");
    attack.wat = good.replacen("(export \"evil\")", "", 1).replacen(
        "(memory",
        "(global (export \"evil\") i32 (i32.const 0)) (memory",
        1,
    );
    contained(&sandbox, attack, must_not_run);
}

#[test]
fn giants() {
    let sandbox = sandbox();
    let memory = |pages: &str| {
        let mut attack = scalar("a giant memory", "", "of memory, the limit is 1048576");
        attack.wat = attack
            .wat
            .replacen("\"memory\") 1", &format!("\"memory\") {pages}"), 1);
        attack
    };
    for pages in ["17", "65536", "17 65536"] {
        contained(&sandbox, memory(pages), must_not_run);
    }
    let tables = "tables begin with";
    let locals = format!("(func (local {}))", "i64 ".repeat(40_000));
    let blocks = |depth: usize, inner: &str| {
        format!(
            "(func (local i32) {} {inner} {})",
            "block ".repeat(depth),
            "end ".repeat(depth)
        )
    };
    let branches = |targets: usize| {
        let targets = "0 ".repeat(targets);
        format!("(func (block (br_table {targets} (i32.const 0))))")
    };
    for (name, fields, reason) in [
        (
            "a giant table",
            "(table 100000000 funcref)".to_owned(),
            tables,
        ),
        (
            "functions",
            "(func)".repeat(5000),
            "section 3 of the module has 5001 items",
        ),
        (
            "globals",
            "(global i32 (i32.const 0))".repeat(5000),
            "section 6",
        ),
        (
            "types",
            (0..5000).map(|_| "(type (func (param i64)))").collect(),
            "5001 types",
        ),
        (
            "exports",
            (0..5000)
                .map(|i| format!("(export \"e{i}\" (func 0))"))
                .collect(),
            "section 7",
        ),
        (
            "data segments",
            "(data (i32.const 0) \"\")".repeat(5000),
            "section 11",
        ),
        (
            "a giant data segment",
            format!("(data (i32.const 0) \"{}\")", "x".repeat(5 << 20)),
            "the limit is 4194304",
        ),
        (
            "bytes times variables",
            ladder(4000, 250).repeat(2),
            "bytes times variables",
        ),
        ("element segments", "(elem func)".repeat(5000), "section 9"),
        (
            "variables",
            locals.repeat(10),
            "local variables, the limit is 4096",
        ),
        (
            "variables by number",
            format!("(func (local {}))", "i32 ".repeat(50_001)),
            "local variables, the limit is 4096",
        ),
        (
            "a long function",
            format!("(func {})", "nop ".repeat(200_000)),
            "has 200",
        ),
        ("nested blocks", blocks(100_000, ""), "the limit is 131072"),
        (
            "nested loops",
            format!("(func {} {})", "loop ".repeat(2400), "end ".repeat(2400)),
            "nests 2400 loops",
        ),
        ("branches", branches(140_000), "the limit is 131072"),
        (
            "parameters",
            format!("(func (param {}))", "i32 ".repeat(900)),
            "900 parameters",
        ),
        (
            "results",
            format!("(type (func (result {})))", "i32 ".repeat(900)),
            "900 results",
        ),
    ] {
        contained(&sandbox, beside(name, &fields, reason), must_not_run);
    }
}

#[test]
fn the_slowest_modules_that_are_let_through_compile_in_time() {
    let sandbox = sandbox();
    let blocks = |depth: usize, inner: &str| {
        let (open, close) = ("block ".repeat(depth), "end ".repeat(depth));
        format!("(func (local i32) {open} {inner} {close})")
    };
    // Loops that each bring all variables to their heads.
    let loops = |depth: usize, locals: usize| {
        let reads: String = (0..locals)
            .map(|i| format!("(local.set {i} (i64.add (local.get {i}) (i64.const 1)))"))
            .collect();
        format!(
            "(func (local {}) {} {reads} {})",
            "i64 ".repeat(locals),
            "loop ".repeat(depth),
            "(br_if 0 (i32.const 1)) end ".repeat(depth),
        )
    };
    let branches: String = (0..20_000).map(|i| format!("{} ", i % 50)).collect();
    let branches = blocks(50, &format!("(br_table {branches} (local.get 0))"));
    let straight = format!(
        "(func (local i64) {})",
        "(local.set 0 (i64.mul (local.get 0) (i64.const 7)))".repeat(10_000)
    );
    for (name, fields) in [
        (
            "4,000 functions",
            "(func (drop (i32.const 1)))".repeat(4000),
        ),
        ("20,000 nested blocks", blocks(20_000, "")),
        ("loops over variables", loops(16, 100)),
        ("small functions of loops", loops(16, 10).repeat(60)),
        ("deep loops over many variables", loops(64, 300).repeat(9)),
        ("deep loops over few variables", loops(64, 20).repeat(150)),
        (
            "variables that nobody uses",
            format!("(func (local {}))", "i64 ".repeat(4000)).repeat(300),
        ),
        ("conditions", ladder(1000, 20)),
        ("many conditions", ladder(8000, 40)),
        ("20,000 branches", branches),
        ("straight code", straight.repeat(3)),
        (
            "a full table",
            "(table 65536 funcref) (elem (i32.const 65535) 0)".to_owned(),
        ),
        (
            "memory that begins at its end",
            "(data (i32.const 65535) \"x\")".to_owned(),
        ),
    ] {
        contained(&sandbox, beside(name, &fields, ""), evaluate);
    }
    for (name, fields, reason) in [
        (
            "data outside",
            "(data (i32.const 65536) \"x\")",
            "beyond its memory",
        ),
        (
            "elements outside",
            "(table 1 funcref) (elem (i32.const 1) 0)",
            "table",
        ),
    ] {
        contained(&sandbox, beside(name, fields, reason), evaluate);
    }
}

/// A function of variables that are set under a condition each.
fn ladder(conditions: usize, locals: usize) -> String {
    let sets: String = (0..conditions)
        .map(|i| {
            let local = 1 + i % locals;
            format!("(if (local.get 0) (then (local.set {local} (i64.const {i}))))")
        })
        .collect();
    let stores: String = (1..=locals)
        .map(|i| format!("(i64.store (local.get 0) (local.get {i}))"))
        .collect();
    format!(
        "(func (param i32) (local {}) {sets} {stores})",
        "i64 ".repeat(locals)
    )
}
