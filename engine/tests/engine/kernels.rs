//! Functions that users add.

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use flashmesh::{
    Engine, EngineOptions, FunctionGrants, Grant, NamePattern, Principal, RightName, Session,
};
use flashmesh_storage::StorageError;
use flashmesh_storage::kernel::Package;

use crate::support::{error, rows};

/// TRUE where `low <= x <= high`.
const BAND: &str = r#"(module
  (memory (export "memory") 1)
  (func (export "NAME") (param $x i32) (param $low f64) (param $high f64) (param $rows i32) (param $selection i32)
    (local $row i32) (local $value f64) (local $word i32)
    (loop $clear
      (if (i32.lt_u (i32.shl (local.get $row) (i32.const 6)) (local.get $rows))
        (then
          (i64.store (i32.add (local.get $selection) (i32.shl (local.get $row) (i32.const 3))) (i64.const 0))
          (local.set $row (i32.add (local.get $row) (i32.const 1)))
          (br $clear))))
    (local.set $row (i32.const 0))
    (loop $rows
      (if (i32.lt_u (local.get $row) (local.get $rows))
        (then
          (local.set $value (f64.load (i32.add (local.get $x) (i32.shl (local.get $row) (i32.const 3)))))
          (local.set $word (i32.add (local.get $selection) (i32.shl (i32.shr_u (local.get $row) (i32.const 6)) (i32.const 3))))
          (i64.store (local.get $word)
            (i64.or (i64.load (local.get $word))
              (i64.shl
                (i64.extend_i32_u (i32.and
                  (f64.le (local.get $low) (local.get $value))
                  (f64.le (local.get $value) (local.get $high))))
                (i64.extend_i32_u (i32.and (local.get $row) (i32.const 63))))))
          (local.set $row (i32.add (local.get $row) (i32.const 1)))
          (br $rows))))))"#;

/// `BODY` for each call of `(x BIGINT) RETURNS BIGINT`.
const SCALAR: &str = r#"(module
  (memory (export "memory") 1)
  (func (export "NAME") (param $x i32) (param $rows i32) (param $result i32)
    (local $row i32)
    BODY
    (loop $rows
      (if (i32.lt_u (local.get $row) (local.get $rows))
        (then
          (i64.store (i32.add (local.get $result) (i32.shl (local.get $row) (i32.const 3)))
            (i64.mul (i64.load (i32.add (local.get $x) (i32.shl (local.get $row) (i32.const 3)))) (i64.const FACTOR)))
          (local.set $row (i32.add (local.get $row) (i32.const 1)))
          (br $rows))))))"#;

fn package(name: &str, kind: &str, signature: &str, module: &str) -> Package {
    let manifest = format!(
        "[kernel]\nname = \"{name}\"\nkind = \"{kind}\"\nversion = \"1.0.0\"\nsignature = \"{signature}\"\n"
    );
    let wasm = wat::parse_str(module.replace("NAME", name)).unwrap();
    Package::new(&manifest, &wasm, None, [0; 32]).unwrap()
}

/// A kernel that gives what another one of [`times`]'s kind gives.
pub fn calling(name: &str, callee: &str) -> Package {
    let caller = r#"(module
      (import "flashmesh.kernel" "helper" (func $helper (param i32 i32 i32)))
      (memory (export "memory") 1)
      (func (export "NAME") (param i32 i32 i32)
        (call $helper (local.get 0) (local.get 1) (local.get 2))))"#;
    let manifest = format!(
        "[kernel]\nname = \"{name}\"\nkind = \"scalar\"\nversion = \"1.0.0\"\n\
         signature = \"(x BIGINT) RETURNS BIGINT\"\n[calls]\nkernels = [\"{callee}\"]\n"
    );
    let module = caller.replace("NAME", name).replace("helper", callee);
    Package::new(&manifest, &wat::parse_str(module).unwrap(), None, [0; 32]).unwrap()
}

pub fn band(name: &str) -> Package {
    let signature = "(x DOUBLE, low DOUBLE CONSTANT, high DOUBLE CONSTANT) RETURNS BOOLEAN";
    package(name, "filter", signature, BAND)
}

pub fn times(name: &str, factor: i64, body: &str) -> Package {
    let module = SCALAR
        .replace("FACTOR", &factor.to_string())
        .replace("BODY", body);
    package(name, "scalar", "(x BIGINT) RETURNS BIGINT", &module)
}

pub fn create(package: &Package, replace: &str) -> String {
    let encoded = base64::engine::general_purpose::STANDARD.encode(package.to_bytes());
    format!(
        "CREATE {replace} FUNCTION {}() LANGUAGE hls AS 'data:application/wasm;base64,{encoded}'",
        package.manifest.name
    )
}

fn engine() -> Arc<Engine> {
    Engine::open(EngineOptions::default()).unwrap()
}

async fn with_rows(session: &Session) {
    session
        .sql("CREATE TABLE t AS SELECT value AS a, CAST(value AS DOUBLE) / 4 AS x, nullif(value % 5, 0) AS n FROM generate_series(1, 100000) AS s(value)")
        .await
        .unwrap();
}

#[tokio::test]
async fn a_kernel_runs_beside_the_pages_and_above_them() {
    let session = engine().session().unwrap();
    with_rows(&session).await;
    session.sql(&create(&band("band"), "")).await.unwrap();
    session
        .sql(&create(&times("triple", 3, ""), ""))
        .await
        .unwrap();
    for (sql, expected) in [
        (
            "SELECT count(*), min(a), max(a) FROM t WHERE band(x, 10, 20)",
            "41 40 80",
        ),
        (
            "SELECT count(*) FROM t WHERE NOT band(x, 10, 20) AND a < 100",
            "58",
        ),
        (
            "SELECT sum(triple(n)), count(triple(n)) FROM t",
            "600000 80000",
        ),
        (
            "SELECT count(*) FROM t WHERE band(NULL, 1, 2) IS NULL",
            "100000",
        ),
        ("SELECT triple(14)", "42"),
        (
            "SELECT triple(a) FROM t ORDER BY triple(a) DESC LIMIT 1",
            "300000",
        ),
        ("SELECT triple(triple(a)) FROM t WHERE a = 5", "45"),
        (
            "SELECT sum(triple(t.a)) FROM t JOIN t AS u ON t.a = u.a + 1 AND triple(u.a) < 10",
            "27",
        ),
    ] {
        for pushdown in ["auto", "always", "never"] {
            let set = format!("SET flashmesh.pushdown = '{pushdown}'");
            session.sql(&set).await.unwrap();
            assert_eq!(rows(&session, sql).await, [expected], "{pushdown}: {sql}");
        }
    }
    session
        .sql("SET flashmesh.pushdown = 'always'")
        .await
        .unwrap();
    let plan = rows(
        &session,
        "EXPLAIN SELECT count(*) FROM t WHERE band(x, 10, 20)",
    )
    .await
    .join("\n");
    assert!(
        plan.contains("band(") && !plan.contains("FilterExec"),
        "{plan}"
    );
}

#[tokio::test]
async fn functions_are_kept_versioned_and_seen_by_all_sessions() {
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        path: Some(folder.path().into()),
        ..EngineOptions::default()
    };
    let file = folder.path().join("times.fmk");
    {
        let engine = Engine::open(options.clone()).unwrap();
        let (session, other) = (engine.session().unwrap(), engine.session().unwrap());
        std::fs::write(&file, times("times", 2, "").to_bytes()).unwrap();
        let path: PathBuf = file.clone();
        let sql = format!(
            "CREATE FUNCTION times(x BIGINT) RETURNS BIGINT LANGUAGE hls AS '{}'",
            path.display()
        );
        session.sql(&sql).await.unwrap();
        assert_eq!(rows(&other, "SELECT times(21)").await, ["42"]);
        let again = session.sql(&sql).await.unwrap_err();
        assert!(
            matches!(again.storage(), Some(StorageError::AlreadyExists { .. })),
            "{again}"
        );
        session
            .sql(&create(&times("times", 5, ""), "OR REPLACE"))
            .await
            .unwrap();
        assert_eq!(rows(&other, "SELECT times(21)").await, ["105"]);
        let listed = "SELECT name, kind, signature, version, owner FROM system.functions";
        assert_eq!(
            rows(&other, listed).await,
            ["times scalar (x BIGINT) RETURNS BIGINT 2 owner"]
        );
        let routines = "SELECT DISTINCT routine_name FROM information_schema.routines WHERE routine_name = 'times'";
        assert_eq!(rows(&other, routines).await, ["times"]);
        for (name, expected) in [
            ("times", "times(x BIGINT) RETURNS BIGINT"),
            // One that chooses its types itself.
            ("coalesce", "coalesce(expression"),
            ("it''s", ""),
        ] {
            let shown = rows(&other, &format!("SHOW FUNCTIONS LIKE '{name}'")).await;
            assert_eq!(shown.len(), usize::from(!expected.is_empty()), "{shown:?}");
            assert!(shown.iter().all(|row| row.contains(expected)), "{shown:?}");
        }
    }
    let engine = Engine::open(options).unwrap();
    let session = engine.session().unwrap();
    assert_eq!(rows(&session, "SELECT times(21)").await, ["105"]);
    session.sql("DROP FUNCTION times").await.unwrap();
    let gone = error(&session, "SELECT times(21)").await;
    assert!(gone.contains("times"), "{gone}");
    session.sql("DROP FUNCTION IF EXISTS times").await.unwrap();
    let gone = error(&session, "DROP FUNCTION times").await;
    assert!(gone.contains("does not exist"), "{gone}");
}

#[tokio::test]
async fn what_is_no_function_is_refused() {
    let session = engine().session().unwrap();
    let good = create(&band("band"), "");
    for (sql, expected) in [
        (good.replace("band()", "bond()"), "kernel 'band'"),
        (good.replace("LANGUAGE hls", "LANGUAGE sql"), "language hls"),
        (
            good.replace(
                "band()",
                "band(x BIGINT, low DOUBLE, high DOUBLE) RETURNS BOOLEAN",
            ),
            "the package says",
        ),
        (good.replace("base64,", "base64,!"), "base64"),
        (good.replace("base64,", "base64,AAAA"), "package"),
        (
            "CREATE FUNCTION f() LANGUAGE hls AS '/no/such.fmk'".into(),
            "/no/such.fmk",
        ),
        (create(&times("abs", 1, ""), ""), "choose another name"),
        (create(&times("nearest", 1, ""), ""), "choose another name"),
    ] {
        let error = error(&session, &sql).await;
        assert!(error.contains(expected), "{expected}: {error}");
    }
    assert_eq!(
        rows(&session, "SELECT count(*) FROM system.functions").await,
        ["0"]
    );
}

#[tokio::test]
async fn a_kernel_that_fails_ends_its_query_and_nothing_else() {
    let session = engine().session().unwrap();
    with_rows(&session).await;
    let trap = "(unreachable)";
    let spin = "(loop $for_ever (br $for_ever))";
    let bomb = "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) (unreachable)";
    for (name, body) in [("trapping", trap), ("spinning", spin), ("growing", bomb)] {
        session
            .sql(&create(&times(name, 1, body), ""))
            .await
            .unwrap();
        for pushdown in ["always", "never"] {
            let set = format!("SET flashmesh.pushdown = '{pushdown}'");
            session.sql(&set).await.unwrap();
            let error = error(&session, &format!("SELECT sum({name}(a)) FROM t")).await;
            assert!(error.contains(name), "{error}");
            assert_eq!(rows(&session, "SELECT count(*) FROM t").await, ["100000"]);
        }
    }
    assert_eq!(session.engine().memory_used(), 0);
}

#[tokio::test]
async fn users_run_what_is_granted() {
    let engine = engine();
    let owner = engine.session().unwrap();
    with_rows(&owner).await;
    owner.sql(&create(&band("price_band"), "")).await.unwrap();
    owner.sql(&create(&band("secret_band"), "")).await.unwrap();
    let user = |rights: &[RightName], usable: &str, create: &str| {
        let patterns = |text: &str| -> Vec<NamePattern> {
            let names = text.split_whitespace().map(|name| name.to_string());
            names.map(|name| name.try_into().unwrap()).collect()
        };
        let grant = Grant {
            tables: "public.*".to_string().try_into().unwrap(),
            rights: rights.to_vec(),
        };
        let functions = FunctionGrants {
            usable: patterns(usable),
            create: patterns(create),
        };
        let principal = Principal::user("ada", vec![grant], functions);
        engine.session_for(Arc::new(principal)).unwrap()
    };
    let sql = "SELECT count(*) FROM t WHERE price_band(x, 10, 20)";
    let both = user(&[RightName::Read, RightName::Kernel], "price_*", "");
    both.sql("SET flashmesh.pushdown = 'always'").await.unwrap();
    assert_eq!(rows(&both, sql).await, ["41"]);
    let hidden = error(&both, "SELECT secret_band(1.0, 1, 2)").await;
    assert!(hidden.contains("secret_band"), "{hidden}");
    let mine = error(&both, &create(&band("mine"), "")).await;
    assert!(mine.contains("may not create"), "{mine}");

    // Without the right to run kernels over the table, it runs above the scan.
    let above = user(&[RightName::Read], "price_*", "mine");
    above
        .sql("SET flashmesh.pushdown = 'always'")
        .await
        .unwrap();
    assert_eq!(rows(&above, sql).await, ["41"]);
    let plan = rows(&above, &format!("EXPLAIN {sql}")).await.join("\n");
    assert!(plan.contains("denied"), "{plan}");
    above.sql(&create(&band("mine"), "")).await.unwrap();
    assert_eq!(rows(&above, "SELECT mine(1.0, 1, 2)").await, ["true"]);
    let files = error(
        &above,
        "CREATE OR REPLACE FUNCTION mine() LANGUAGE hls AS '/etc/passwd'",
    )
    .await;
    assert!(files.contains("may not read files"), "{files}");
}
