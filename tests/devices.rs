//! SQL on a device behind XRT: the genuine runtime, with the device model and the C simulation of
//! our own kernels in it, gives what the CPU gives.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flashmesh::Session;
use tpchgen::generators::LineItemGenerator;
use tpchgen_arrow::LineItemArrow;

use crate::support::{collect, flashmesh_binary, open, repository};
use crate::tpch::{load_table, read};

/// The kernels of the container.
const KERNELS: [&str; 5] = [
    "fpga/hls/predicate_filter",
    "fpga/hls/morris_pratt",
    "fpga/hls/hamming_nearest",
    "fpga/hls/graph_step",
    "examples/kernels/price_band",
];

const CODES: &str = "
    CREATE TABLE image AS SELECT value AS id, arrow_cast(decode(
        lpad(to_hex(value * 7919 % 1000003), 8, '0') || lpad(to_hex(value * 104729 % 999983), 8, '0'),
        'hex'), 'FixedSizeBinary(8)') AS code
    FROM generate_series(1, 80000) AS s(value)";

const EDGES: &str = "
    CREATE TABLE knows AS SELECT value % 5000 AS a, value * 7919 % 5003 AS b
    FROM generate_series(1, 30000) AS s(value);
    CREATE INDEX knows_graph ON knows USING adjacency (a, b)";

/// A database, the device model and a container, made once for all tests here.
struct Rig {
    folder: tempfile::TempDir,
}

impl Rig {
    /// `None`, and a line that says why, where XRT or a compiler is missing.
    async fn new() -> Option<Self> {
        let libraries = [
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib64",
            "/opt/xilinx/xrt/lib",
        ];
        let runtime = libraries
            .iter()
            .any(|folder| Path::new(folder).join("libxrt_swemu.so.2").exists());
        if !runtime || Command::new("g++").arg("--version").output().is_err() {
            let why = "XRT's software emulation (libxrt1) or g++ is not installed";
            let required = std::env::var_os("FLASHMESH_REQUIRE_XRT");
            assert!(required.is_none_or(|v| v != "1"), "{why}");
            eprintln!("skipped: {why}");
            return None;
        }
        let rig = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        done(
            &Command::new(repository().join("fpga/shell/model/build"))
                .arg(rig.model())
                .output()
                .unwrap(),
        );
        let kernels = KERNELS.map(|kernel| repository().join(kernel));
        done(
            &Command::new(flashmesh_binary())
                .args(["kernel", "container", "-o"])
                .arg(rig.container())
                .args(kernels)
                .output()
                .unwrap(),
        );
        let engine = open(&rig.database()).unwrap();
        let session = engine.session().unwrap();
        let generator = LineItemGenerator::new(0.02, 1, 1);
        load_table(&session, "lineitem", LineItemArrow::new(generator)).await;
        for sql in [CODES, EDGES] {
            run(&session, sql).await;
        }
        Some(rig)
    }

    fn model(&self) -> PathBuf {
        self.folder.path().join("model")
    }

    fn container(&self) -> PathBuf {
        self.folder.path().join("kernels.xclbin")
    }

    fn database(&self) -> PathBuf {
        self.folder.path().join("db")
    }

    /// Runs SQL by the binary, with the device, and gives what it printed.
    fn sql(&self, settings: &[&str], sql: &str, environment: &[(&str, &str)]) -> Output {
        let mut command = Command::new(flashmesh_binary());
        command
            .args(["--format", "csv", "--quiet", "--db"])
            .arg(self.database())
            .arg("--xclbin")
            .arg(self.container())
            .env("FLASHMESH_XRT_EMULATION", self.model())
            .envs(environment.iter().copied());
        for setting in settings {
            command.arg("-c").arg(format!("SET flashmesh.{setting}"));
        }
        command.arg("-c").arg(sql).output().unwrap()
    }
}

async fn run(session: &Session, sql: &str) {
    collect(session, sql).await.unwrap();
}

fn done(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_on_a_device_equal_those_on_the_cpu() {
    let Some(rig) = Rig::new().await else { return };
    let band = "lineitem WHERE l_quantity BETWEEN 10 AND 12 OR l_tax IS NULL";
    let queries = [
        read("queries/q06.sql"),
        "SELECT count(*), min(l_orderkey) FROM lineitem WHERE l_comment LIKE '%furious%'".into(),
        "SELECT count(*) FROM lineitem WHERE l_comment NOT LIKE '%the%'".into(),
        format!("SELECT count(*), sum(l_extendedprice) FROM {band}"),
        "SELECT hamming_distance(code, X'0123456789abcdef') AS d FROM image ORDER BY d LIMIT 10"
            .into(),
        "SELECT sum(distance) FROM nearest('image', 'code', (SELECT code FROM image WHERE id < 9), 5)".into(),
        "SELECT depth, count(*) FROM bfs('knows_graph', 1) GROUP BY depth ORDER BY depth".into(),
        "SELECT count(*), count(DISTINCT vertex) FROM expand('knows_graph', 7, 3)".into(),
    ];
    for sql in &queries {
        let on = |accelerator| {
            let accelerator = format!("accelerator = '{accelerator}'");
            let settings = [accelerator.as_str(), "pushdown = 'always'"];
            done(&rig.sql(&settings, sql, &[]))
        };
        let (cpu, xrt) = (on("cpu"), on("xrt"));
        assert_eq!(cpu, xrt, "{sql}");
        assert!(cpu.lines().count() > 1, "{sql}");
    }
    // What ran where.
    let settings = ["accelerator = 'xrt'", "pushdown = 'always'"];
    for sql in &queries {
        let plan = done(&rig.sql(&settings, &format!("EXPLAIN ANALYZE {sql}"), &[]));
        assert!(plan.contains("xrt"), "{plan}");
        assert!(plan.contains("device_calls="), "{plan}");
        assert!(plan.contains("fallbacks=0"), "{plan}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_dies_is_an_error_or_a_counted_fallback() {
    let Some(rig) = Rig::new().await else { return };
    let sql = read("queries/q06.sql");
    let dies = [("FLASHMESH_MODEL_DIE_AT", "2")];
    let allowed = [
        "accelerator = 'xrt'",
        "pushdown = 'always'",
        "fallback = 'allow'",
    ];
    let expected = done(&rig.sql(&["accelerator = 'cpu'"], &sql, &[]));
    assert_eq!(done(&rig.sql(&allowed, &sql, &dies)), expected);
    let plan = done(&rig.sql(&allowed, &format!("EXPLAIN ANALYZE {sql}"), &dies));
    assert!(
        plan.contains("fallbacks=") && !plan.contains("fallbacks=0"),
        "{plan}"
    );
    let forbidden = [
        "accelerator = 'xrt'",
        "pushdown = 'always'",
        "fallback = 'error'",
    ];
    let failed = rig.sql(&forbidden, &sql, &dies);
    let errors = String::from_utf8_lossy(&failed.stderr);
    assert!(!failed.status.success(), "{errors}");
    assert!(errors.contains("predicate_filter"), "{errors}");

    // Without a device the name is refused, and the message says what to do.
    let none = Command::new(flashmesh_binary())
        .args([
            "-c",
            "CREATE TABLE t (a INT)",
            "-c",
            "SET flashmesh.accelerator = 'xrt'",
        ])
        .args([
            "-c",
            "SET flashmesh.fallback = 'error'",
            "-c",
            "SELECT a FROM t WHERE a > 1",
        ])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&none.stderr);
    assert!(
        !none.status.success() && errors.contains("--xclbin"),
        "{errors}"
    );
}
