//! Kernels in plans: when their calls begin and end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use datafusion::arrow::array::{Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use flashmesh_planner::interrupt::StopOnDrop;
use flashmesh_planner::kernels::{CancelKernels, aggregate_function, scalar_function};
use flashmesh_planner::{FlashTable, NamedTable, configure};
use flashmesh_storage::Result;
use flashmesh_storage::accelerator::cpu::CpuAccelerator;
use flashmesh_storage::accelerator::sandbox::SandboxOptions;
use flashmesh_storage::functions::Kernels;
use flashmesh_storage::kernel::Package;
use flashmesh_storage::memory::MemoryBudget;
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::table::{Database, DatabaseOptions, LoadTarget, Workspace};
use futures::StreamExt;

/// Beyond this a test waits no more, and long before a call ends by itself.
const PATIENCE: Duration = Duration::from_secs(8);

#[derive(Debug, Default)]
struct Used(AtomicUsize);

impl MemoryBudget for Used {
    fn grow(&self, bytes: usize) -> Result<()> {
        self.0.fetch_add(bytes, Ordering::SeqCst);
        Ok(())
    }

    fn shrink(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::SeqCst);
    }
}

fn section(id: u8, content: &[u8]) -> Vec<u8> {
    [&[id, content.len() as u8], content].concat()
}

/// A kernel whose functions have `parameters` of 32 bits and a body each.
fn package(name: &str, keys: &str, functions: &[(&str, u8, &[u8])]) -> Package {
    let named = |name: &str| [&[name.len() as u8], name.as_bytes()].concat();
    let count = functions.len() as u8;
    let (mut types, mut indexes) = (vec![count], vec![count]);
    let (mut exports, mut code) = (vec![count + 1], vec![count]);
    exports.extend([named("memory"), vec![2, 0]].concat());
    for (index, (suffix, parameters, body)) in functions.iter().enumerate() {
        types.extend([0x60, *parameters]);
        types.extend(vec![0x7f; usize::from(*parameters)]);
        types.push(0);
        indexes.push(index as u8);
        exports.extend(named(&format!("{name}{suffix}")));
        exports.extend([0, index as u8]);
        code.extend([body.len() as u8 + 2, 0]);
        code.extend(*body);
        code.push(0x0b);
    }
    let module = [
        b"\0asm\x01\0\0\0".to_vec(),
        section(1, &types),
        section(3, &indexes),
        section(5, &[1, 0, 1]),
        section(7, &exports),
        section(10, &code),
    ];
    let manifest = format!(
        "[kernel]\nname = \"{name}\"\nversion = \"1.0.0\"\n{keys}[limits]\ntime_per_call_ms = 10000\n"
    );
    Package::new(&manifest, &module.concat(), None, [0; 32]).unwrap()
}

const SPIN: &[u8] = &[0x03, 0x40, 0x0c, 0x00, 0x0b];

struct Rig {
    context: SessionContext,
    used: Arc<Used>,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new(options: SandboxOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::open(folder.path(), DatabaseOptions::default()).unwrap();
        let used = Arc::new(Used::default());
        let kernels = Kernels::new(&database, options, Arc::clone(&used) as _);
        let scalar =
            "kind = \"scalar\"\nsignature = \"(x BIGINT, k INTEGER CONSTANT) RETURNS BIGINT\"\n";
        let aggregate =
            "kind = \"aggregate\"\nstate_words = 1\nsignature = \"(x BIGINT) RETURNS BIGINT\"\n";
        let functions: [(&str, u8, &[u8]); 4] = [
            ("_init", 2, &[]),
            ("_update", 5, SPIN),
            ("_merge", 3, &[]),
            ("_finish", 4, &[]),
        ];
        let packages = [
            package("spin", scalar, &[("", 4, SPIN)]),
            package("zero", scalar, &[("", 4, &[])]),
            package("spin_sum", aggregate, &functions),
        ];
        let config = SessionConfig::new().with_target_partitions(2);
        let builder = SessionStateBuilder::new()
            .with_config(config)
            .with_default_features();
        let context = SessionContext::new_with_state(configure(builder).build());
        for package in packages {
            let made = kernels
                .create(package.to_bytes(), "ada", true, false, |_| true)
                .unwrap();
            if let Some(function) = scalar_function(Arc::clone(&made), Arc::clone(&kernels)) {
                context.register_udf(function);
            }
            if let Some(function) = aggregate_function(made, Arc::clone(&kernels)) {
                context.register_udaf(function);
            }
        }
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false)]));
        let target = LoadTarget::Create {
            distribution: None,
            layout: Default::default(),
            retention: Duration::ZERO,
            defaults: vec![],
            checks: vec![],
            schema: "public".into(),
            table: "t".into(),
            arrow_schema: Arc::clone(&schema),
            or_replace: false,
            indexes: vec![],
        };
        let load = database.begin_load(target).unwrap();
        let mut writer = load.writer().unwrap();
        let values = Int64Array::from_iter_values(0..100_000);
        let batch = RecordBatch::try_new(schema, vec![Arc::new(values)]).unwrap();
        writer.append(&batch).unwrap();
        writer.finish().unwrap();
        load.commit().unwrap();
        let node = StorageNode::with_parts(
            Arc::clone(database.store()),
            vec![Arc::new(CpuAccelerator::new())],
            Some(kernels),
            None,
        );
        let snapshot = database.snapshot("public", "t").unwrap();
        let table = FlashTable::new(NamedTable::new(
            Arc::new(Workspace::new(Arc::clone(&database))),
            Arc::clone(&node),
            Arc::clone(&node) as _,
            ("public".into(), "t".into()),
            snapshot,
        ));
        context.register_table("t", Arc::new(table)).unwrap();
        Self {
            context,
            used,
            _folder: folder,
        }
    }

    fn used(&self) -> usize {
        self.used.0.load(Ordering::SeqCst)
    }

    async fn rows(&self, sql: &str) -> String {
        let batches = self
            .context
            .sql(sql)
            .await
            .unwrap()
            .collect()
            .await
            .unwrap();
        pretty_format_batches(&batches).unwrap().to_string()
    }
}

impl Rig {
    fn pushdown(&self, pushdown: &str) {
        let state = self.context.state_ref();
        let mut state = state.write();
        let options = state.config_mut().options_mut();
        options.set("flashmesh.pushdown", pushdown).unwrap();
    }

    /// Waits until the kernels hold memory, or hold none: as long as one runs, they do.
    async fn wait(&self, runs: bool, what: &str) {
        let wait = async {
            while (self.used() > 0) != runs {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        assert!(waited.is_ok(), "{what}: kernels run: {}", !runs);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_when_nobody_waits_for_the_rows() {
    let rig = Rig::new(SandboxOptions::default());
    for (pushdown, sql) in [
        ("always", "SELECT sum(spin(a, 2)) FROM t"),
        ("always", "SELECT a FROM t WHERE spin(a, 2) = 1"),
        ("never", "SELECT sum(spin(a, 2)) FROM t"),
        ("never", "SELECT spin(1, 2)"),
        ("never", "SELECT a, spin(a, 2) FROM t LIMIT 10"),
        ("always", "SELECT spin_sum(a) FROM t"),
        ("always", "SELECT a % 5, spin_sum(a) FROM t GROUP BY 1"),
    ] {
        rig.pushdown(pushdown);
        for way in ["dropped", "stopped", "work left"] {
            let frame = rig.context.sql(sql).await.unwrap();
            match way {
                "dropped" => {
                    let mut stream = frame.execute_stream().await.unwrap();
                    let reader = tokio::spawn(async move { stream.next().await.is_none() });
                    rig.wait(true, sql).await;
                    reader.abort();
                }
                "stopped" => {
                    let plan = frame.create_physical_plan().await.unwrap();
                    let stop = StopOnDrop::new(&plan);
                    let context = rig.context.task_ctx();
                    let rows = datafusion::physical_plan::collect(plan, context);
                    let reader = tokio::spawn(rows);
                    rig.wait(true, sql).await;
                    drop(stop);
                    let error = reader.await.unwrap().unwrap_err().to_string();
                    assert!(error.contains("cancelled"), "{error}");
                }
                _ => {
                    let left = CancelKernels::default();
                    let reader = tokio::spawn(left.of(frame.collect()));
                    rig.wait(true, sql).await;
                    // More than there are threads run, and others are answered.
                    let count = rig.rows("SELECT count(*) AS n FROM t").await;
                    assert!(count.contains("100000"), "{count}");
                    drop(left);
                    assert!(reader.await.unwrap().is_err());
                }
            }
            rig.wait(false, &format!("{way}: {sql}")).await;
        }
    }
}

#[tokio::test]
async fn no_call_is_made_while_a_query_is_planned() {
    let rig = Rig::new(SandboxOptions::default());
    for (sql, expected) in [
        ("SELECT zero(21, 3) AS n", "| 0 |"),
        ("SELECT count(*) AS n FROM t WHERE a = zero(21, 3)", "| 1 |"),
        (
            "SELECT a AS n FROM t WHERE zero(21, 3) = 0 AND a = 7",
            "| 7 |",
        ),
        ("SELECT column1 AS n FROM (VALUES (zero(21, 3)))", "| 0 |"),
        (
            "SELECT sum(column1) AS n FROM (VALUES (zero(20, 1)), (1), (1))",
            "| 2 |",
        ),
    ] {
        for pushdown in ["always", "never"] {
            rig.pushdown(pushdown);
            let found = rig.rows(sql).await;
            assert!(found.contains(expected), "{sql}: {found}");
            let plan = rig.rows(&format!("EXPLAIN {sql}")).await;
            let physical = plan.split("physical_plan").nth(1).unwrap();
            assert!(physical.contains("zero("), "{plan}");
        }
    }
    // A call of this would take ten seconds.
    let plan = tokio::time::timeout(PATIENCE, rig.rows("EXPLAIN SELECT spin(1, 1)")).await;
    assert!(plan.unwrap().contains("spin("));
}

#[tokio::test]
async fn all_calls_of_a_query_have_so_much_time_and_memory() {
    let rig = Rig::new(SandboxOptions {
        time_per_query: Duration::from_millis(100),
        ..SandboxOptions::default()
    });
    let small = Rig::new(SandboxOptions {
        memory_per_query: 64 << 10,
        ..SandboxOptions::default()
    });
    for pushdown in ["always", "never"] {
        for (rig, sql, option) in [
            (&rig, "SELECT sum(spin(a, 1)) FROM t", "--kernel-query-time"),
            (
                &small,
                "SELECT sum(zero(a, 1)) FROM t",
                "--kernel-query-memory",
            ),
        ] {
            rig.pushdown(pushdown);
            let frame = rig.context.sql(sql).await.unwrap();
            let error = frame.collect().await.unwrap_err().to_string();
            assert!(error.contains(option), "{error}");
        }
        let next = rig.rows("SELECT zero(1, 1) AS n").await;
        assert!(next.contains("| 0 |"), "{next}");
    }
}

#[tokio::test]
async fn constants_of_narrow_types_take_literals() {
    let rig = Rig::new(SandboxOptions::default());
    for good in [
        "zero(1, 2)",
        "zero(1, -2)",
        "zero(1, 2.0)",
        "zero(1::INT, 2::SMALLINT)",
    ] {
        let found = rig.rows(&format!("SELECT {good} AS n")).await;
        assert!(found.contains("| 0 |"), "{found}");
    }
    for (wrong, expected) in [
        ("zero(1, 5000000000)", "5000000000"),
        ("zero(1)", "zero is called as zero(x Int64, k Int32)"),
        ("zero('a', 1)", "zero is called as"),
    ] {
        let sql = format!("SELECT {wrong}");
        let outcome = match rig.context.sql(&sql).await {
            Ok(frame) => frame.collect().await.map(|_| ()),
            Err(error) => Err(error),
        };
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
