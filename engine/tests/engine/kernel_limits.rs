//! What the kernels of a query and the functions of a user may cost.

use std::sync::Arc;
use std::time::Duration;

use flashmesh::{Engine, EngineOptions, FunctionGrants, NamePattern, Principal, Session};
use flashmesh_storage::kernel::Package;
use futures::StreamExt;

use crate::kernels::{create, package, times, with_rows};
use crate::support::{error, rows};

/// A loop without an end.
const SPIN: &str = "(loop $for_ever (br $for_ever))";
/// Beyond this a test waits no more, and long before a call ends by itself.
const PATIENCE: Duration = Duration::from_secs(8);

/// `package` with calls that may take as long as calls may.
fn slow(package: &Package) -> Package {
    let manifest = format!(
        "{}[limits]\ntime_per_call_ms = 10000\n",
        package.manifest_text
    );
    Package::new(&manifest, &package.wasm, None, [0; 32]).unwrap()
}

fn slow_sum() -> Package {
    let module = format!(
        r#"(module (memory (export "memory") 1)
          (func (export "NAME_init") (param i32 i32))
          (func (export "NAME_update") (param i32 i32 i32 i32 i32) {SPIN})
          (func (export "NAME_merge") (param i32 i32 i32))
          (func (export "NAME_finish") (param i32 i32 i32 i32)))"#
    );
    let manifest = "[kernel]\nname = \"slow_sum\"\nkind = \"aggregate\"\nversion = \"1.0.0\"\n\
                    state_words = 1\nsignature = \"(x BIGINT) RETURNS BIGINT\"\n\
                    [limits]\ntime_per_call_ms = 10000\n";
    let wasm = wat::parse_str(module.replace("NAME", "slow_sum")).unwrap();
    Package::new(manifest, &wasm, None, [0; 32]).unwrap()
}

async fn with(options: EngineOptions, packages: &[Package]) -> Session {
    let session = Engine::open(options).unwrap().session().unwrap();
    with_rows(&session).await;
    for package in packages {
        session.sql(&create(package, "")).await.unwrap();
    }
    session
}

/// Waits until `holds`; the kernels of a query hold memory as long as they run.
async fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, wait).await;
    assert!(waited.is_ok(), "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn kernels_end_with_the_stream_that_nobody_reads_any_more() {
    let spinning = slow(&times("spinning", 1, SPIN));
    let session = with(EngineOptions::default(), &[spinning, slow_sum()]).await;
    for (pushdown, sql) in [
        ("always", "SELECT sum(spinning(a)) FROM t"),
        ("always", "SELECT a FROM t WHERE spinning(a) = 1"),
        ("never", "SELECT sum(spinning(a)) FROM t"),
        ("never", "SELECT a, spinning(a) FROM t LIMIT 10"),
        ("never", "SELECT spinning(1)"),
        ("always", "SELECT slow_sum(a) FROM t"),
        ("always", "SELECT n, slow_sum(a) FROM t GROUP BY n"),
    ] {
        let set = format!("SET flashmesh.pushdown = '{pushdown}'");
        session.sql(&set).await.unwrap();
        let mut stream = session
            .sql(sql)
            .await
            .unwrap()
            .execute_stream()
            .await
            .unwrap();
        let reader = tokio::spawn(async move { stream.next().await.is_none() });
        let engine = Arc::clone(session.engine());
        wait_until("the kernel does not begin", || engine.memory_used() > 0).await;
        reader.abort();
        assert!(reader.await.unwrap_err().is_cancelled(), "{sql}");
        wait_until(sql, || engine.memory_used() == 0).await;
    }
}

#[tokio::test]
async fn kernels_do_not_run_while_a_query_is_planned() {
    let session = with(EngineOptions::default(), &[times("twice", 2, "")]).await;
    for (sql, expected) in [
        ("SELECT twice(21)", "42"),
        ("SELECT twice(20 + 1) + twice(0)", "42"),
        ("SELECT count(*) FROM t WHERE a = twice(21)", "1"),
        ("SELECT a FROM t WHERE twice(21) = 42 AND a = 7", "7"),
        ("SELECT column1 FROM (VALUES (twice(21)))", "42"),
        (
            "SELECT sum(column1) FROM (VALUES (twice(20)), (1), (1))",
            "42",
        ),
    ] {
        assert_eq!(rows(&session, sql).await, [expected], "{sql}");
        let plan = rows(&session, &format!("EXPLAIN {sql}")).await;
        let physical = plan
            .iter()
            .position(|line| line.starts_with("physical"))
            .unwrap();
        assert!(plan[physical..].join("\n").contains("twice("), "{plan:?}");
    }
    session.sql("CREATE TABLE made (v BIGINT)").await.unwrap();
    let insert = "INSERT INTO made VALUES (twice(1)), (twice(2))";
    rows(&session, insert).await;
    assert_eq!(rows(&session, "SELECT sum(v) FROM made").await, ["6"]);
}

#[tokio::test]
async fn the_kernels_of_a_query_have_so_much_time_and_memory() {
    let mut options = EngineOptions::default();
    options.kernels.time_per_query = Duration::from_millis(100);
    options.kernels.memory_per_query = 1 << 20;
    let spinning = slow(&times("spinning", 1, SPIN));
    let module = r#"(module (memory (export "memory") 32)
      (func (export "NAME") (param i32 i32 i32)))"#;
    let large = package("large", "scalar", "(x BIGINT) RETURNS BIGINT", module);
    let session = with(options, &[spinning, large, times("fine", 1, "")]).await;
    for pushdown in ["always", "never"] {
        let set = format!("SET flashmesh.pushdown = '{pushdown}'");
        session.sql(&set).await.unwrap();
        for (function, option) in [
            ("spinning", "--kernel-query-time"),
            ("large", "--kernel-query-memory"),
        ] {
            let error = error(&session, &format!("SELECT sum({function}(a)) FROM t")).await;
            assert!(error.contains(option), "{error}");
        }
        let sum = rows(&session, "SELECT sum(fine(a)) FROM t WHERE a <= 10").await;
        assert_eq!(sum, ["55"], "the next query has its own");
    }
}

#[tokio::test]
async fn parameters_take_literals() {
    let module = r#"(module (memory (export "memory") 1)
      (func (export "NAME") (param $x i32) (param $k i32) (param $s f32) (param $rows i32) (param $result i32)
        (local $row i32)
        (loop $rows
          (if (i32.lt_u (local.get $row) (local.get $rows))
            (then
              (i32.store (i32.add (local.get $result) (i32.shl (local.get $row) (i32.const 2)))
                (i32.add
                  (i32.mul (i32.load (i32.add (local.get $x) (i32.shl (local.get $row) (i32.const 2)))) (local.get $k))
                  (i32.trunc_f32_s (local.get $s))))
              (local.set $row (i32.add (local.get $row) (i32.const 1)))
              (br $rows))))))"#;
    let signature = "(x INTEGER, k INTEGER CONSTANT, s REAL CONSTANT) RETURNS INTEGER";
    let function = package("affine", "scalar", signature, module);
    let session = with(EngineOptions::default(), &[function]).await;
    for pushdown in ["always", "never"] {
        let set = format!("SET flashmesh.pushdown = '{pushdown}'");
        session.sql(&set).await.unwrap();
        assert_eq!(rows(&session, "SELECT affine(5, 3, 4.5)").await, ["19"]);
        assert_eq!(rows(&session, "SELECT affine(5, -3, 4)").await, ["-11"]);
        let sum = "SELECT sum(affine(a, 2, 0.0)) FROM t WHERE a <= 4";
        assert_eq!(rows(&session, sum).await, ["20"]);
        let large = error(&session, "SELECT affine(1, 5000000000, 1.0)").await;
        assert!(large.contains("5000000000"), "{large}");
    }
    for wrong in ["affine('a', 1, 1.0)", "affine(1)", "affine(1.5, 1, 1.0)"] {
        let error = error(&session, &format!("SELECT {wrong}")).await;
        assert!(
            error.contains("affine is called as affine(x Int32, k Int32"),
            "{error}"
        );
    }
}

fn user(engine: &Arc<Engine>, name: &str) -> Session {
    let functions = FunctionGrants {
        create: vec![NamePattern::try_from("*".to_string()).unwrap()],
        ..FunctionGrants::default()
    };
    let principal = Principal::user(name, vec![], functions);
    engine.session_for(Arc::new(principal)).unwrap()
}

#[tokio::test]
async fn a_function_is_its_owner_s() {
    let engine = Engine::open(EngineOptions::default()).unwrap();
    let (ada, eve, admin) = (
        user(&engine, "ada"),
        user(&engine, "eve"),
        engine.session().unwrap(),
    );
    let first = create(&times("times", 2, ""), "");
    ada.sql(&first).await.unwrap();
    let other = create(&times("times", 3, ""), "OR REPLACE");
    for sql in [&other, "DROP FUNCTION times"] {
        let error = error(&eve, sql).await;
        assert!(error.contains("is ada's"), "{error}");
    }
    assert_eq!(rows(&ada, "SELECT times(21)").await, ["42"]);
    ada.sql(&other).await.unwrap();
    assert_eq!(rows(&eve, "SELECT times(1)").await, ["3"]);
    admin.sql("DROP FUNCTION times").await.unwrap();
    eve.sql(&first).await.unwrap();
}

#[tokio::test]
async fn a_user_has_so_many_functions_and_bytes() {
    let mut options = EngineOptions::default();
    let bytes = |package: &Package| package.to_bytes().len() as u64;
    let (one, two) = (times("one", 2, ""), times("two", 2, ""));
    options.kernels.quota_per_user.functions = 2;
    options.kernels.quota_per_user.bytes = 2 * bytes(&one) + bytes(&two);
    let engine = Engine::open(options).unwrap();
    let (ada, eve) = (user(&engine, "ada"), user(&engine, "eve"));
    ada.sql(&create(&one, "")).await.unwrap();
    ada.sql(&create(&two, "")).await.unwrap();
    let third = create(&times("three", 2, ""), "");
    let many = error(&ada, &third).await;
    assert!(
        many.contains("3 functions") && many.contains("drop some"),
        "{many}"
    );
    let container = vec![0; 2 * bytes(&one) as usize];
    let large = Package::new(&two.manifest_text, &two.wasm, Some(&container), [0; 32]).unwrap();
    let large = error(&ada, &create(&large, "OR REPLACE")).await;
    assert!(large.contains("bytes of packages"), "{large}");
    ada.sql(&create(&two, "OR REPLACE")).await.unwrap();
    eve.sql(&third).await.unwrap();
    engine
        .session()
        .unwrap()
        .sql(&create(&times("four", 2, ""), ""))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_kernel_calls_the_very_one_that_was_there_when_it_was_made() {
    let caller = r#"(module
      (import "flashmesh.kernel" "helper" (func $helper (param i32 i32 i32)))
      (memory (export "memory") 1)
      (func (export "NAME") (param i32 i32 i32)
        (call $helper (local.get 0) (local.get 1) (local.get 2))))"#;
    let of = |name: &str, callee: &str| {
        let manifest = format!(
            "[kernel]\nname = \"{name}\"\nkind = \"scalar\"\nversion = \"1.0.0\"\n\
             signature = \"(x BIGINT) RETURNS BIGINT\"\n[calls]\nkernels = [\"{callee}\"]\n"
        );
        let module = caller.replace("NAME", name).replace("helper", callee);
        Package::new(&manifest, &wat::parse_str(module).unwrap(), None, [0; 32]).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        path: Some(folder.path().into()),
        ..EngineOptions::default()
    };
    {
        let session = Engine::open(options.clone()).unwrap().session().unwrap();
        for package in [
            times("helper", 2, ""),
            of("middle", "helper"),
            of("outer", "middle"),
        ] {
            session.sql(&create(&package, "")).await.unwrap();
        }
        assert_eq!(rows(&session, "SELECT outer(21)").await, ["42"]);
    }
    let session = Engine::open(options).unwrap().session().unwrap();
    assert_eq!(rows(&session, "SELECT outer(21)").await, ["42"]);
    let replace = |package: Package| create(&package, "OR REPLACE");
    session.sql(&replace(times("helper", 5, ""))).await.unwrap();
    for caller in ["outer", "middle"] {
        let error = error(&session, &format!("SELECT {caller}(21)")).await;
        assert!(error.contains("'helper', which was replaced"), "{error}");
    }
    session.sql(&replace(of("middle", "helper"))).await.unwrap();
    assert_eq!(rows(&session, "SELECT middle(21)").await, ["105"]);
    // The package of the one between is the same again.
    assert_eq!(rows(&session, "SELECT outer(21)").await, ["105"]);
}
