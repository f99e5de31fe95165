//! The benchmarks: Python scripts of `bench/`, run in the venv with the module
//! built from this tree and the peers from PyPI.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::checks::build_programs;
use crate::python;
use crate::run::{Result, bench_dir, cargo, flashmesh_binary, run, target_dir};

/// What to measure.
#[derive(Subcommand)]
pub enum Bench {
    /// The 22 TPC-H queries: flashmesh, DuckDB (native tables) and DataFusion
    /// (Parquet), interleaved; results compared between engines and pushdown modes
    Tpch(TpchArgs),
    /// Bytes on flash of the TPC-H tables against DuckDB's file and Parquet
    Size(ScaleArgs),
    /// Load time from Parquet against DuckDB's CREATE TABLE AS
    Load(ScaleArgs),
    /// Deletes, updates and upserts against DuckDB, and queries on the changed table
    Changes(ScaleArgs),
    /// 10,000 random rows of lineitem with all columns, warm and cold
    RandomRows(ScaleArgs),
    /// Full scan with an empty cache against fio's sequential read in the same run
    ColdScan(ColdScanArgs),
    /// TPC-H at scale factor 10 with a 512 MB cache and a 4 GB memory limit; prints peak RSS
    Tpch10(Tpch10Args),
    /// A rare text among 8 million log lines against ripgrep and DuckDB, with and without an
    /// n-gram index
    Text(RunsArgs),
    /// Nearest neighbours of codes and vectors against FAISS and Lance
    Nearest(RunsArgs),
    /// Breadth-first search and two hops on an R-MAT graph against DuckDB and Kuzu
    Graph(RunsArgs),
    /// From Python against DuckDB: import to the first answer, memory of an empty connection, one
    /// row by its key with a parameter
    FirstAnswer(RunsArgs),
    /// Rows of 1 KB by primary key against RocksDB
    Keys,
    /// Durable writes of one row each, by one client and by eight, against RocksDB, SQLite and DuckDB
    Writes(RunsArgs),
    /// YCSB's workloads A, B, C and F by eight clients against RocksDB with synced writes
    Ycsb(YcsbArgs),
    /// TPC-H with the refresh functions beside the queries, and on tables of which 1 % was deleted
    /// and 1 % updated, against clean tables, and after VACUUM
    Refresh(ScaleArgs),
    /// Racks of 1, 2, 4 and 8 nodes on this machine: what travels between nodes with pushdown on and
    /// off, what a query costs more than on one node, memory a node
    Rack(ScaleArgs),
    /// Racks: a commit where a group of nodes keeps the catalog beside a head alone, and how long nobody is
    /// answered when the head is killed
    RackCommits(RunsArgs),
    /// A rack of 4 nodes in network namespaces with links of 1 Gbit/s: bytes over them and time, with
    /// pushdown on and off, against DataFusion on the same tables as Parquet. Needs root
    RackNetwork(RackNetworkArgs),
    /// Queries of several tables on a rack of four nodes with links of 1 Gbit/s: joined by the nodes among
    /// themselves, and at the head (needs root, `ip` and `tc`)
    RackJoins(RackNetworkArgs),
    /// The server: SELECT * of lineitem over ADBC against a bare Arrow Flight server of the same
    /// batches, 200 clients at once, and what 100 clients leave that vanish mid-stream
    Server(ServerArgs),
}

/// Options of `bench server`.
#[derive(Args)]
pub struct ServerArgs {
    #[command(flatten)]
    scale: ScaleArgs,
    /// Clients at once
    #[arg(long, default_value_t = 200)]
    clients: u32,
    /// How long they ask
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

/// Options of the benchmarks whose data has one size.
#[derive(Args)]
pub struct RunsArgs {
    /// Measured runs; the median is printed
    #[arg(long, default_value_t = 7)]
    runs: u32,
}

/// Options of `bench ycsb`.
#[derive(Args)]
pub struct YcsbArgs {
    /// Measured runs; the median is printed
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// Records of 1 KB
    #[arg(long, default_value_t = 1_000_000)]
    records: u32,
    /// Operations of each workload in a run
    #[arg(long, default_value_t = 20_000)]
    operations: u32,
}

/// Options of the benchmarks that repeat one measurement at one scale.
#[derive(Args)]
pub struct ScaleArgs {
    /// TPC-H scale factor: 1 is about 1 GB of raw data
    #[arg(long, default_value = "1")]
    scale_factor: String,
    /// Measured runs; the median is printed
    #[arg(long, default_value_t = 5)]
    runs: u32,
}

/// Options of `bench rack-network`.
#[derive(Args)]
pub struct RackNetworkArgs {
    #[command(flatten)]
    scale: ScaleArgs,
    /// Mbit/s of each link, each way
    #[arg(long, default_value_t = 1000)]
    mbits: u32,
}

/// Options of `bench cold-scan`: the tables must be larger than the cache.
#[derive(Args)]
pub struct ColdScanArgs {
    /// TPC-H scale factor: 1 is about 1 GB of raw data
    #[arg(long, default_value = "5")]
    scale_factor: String,
    /// Measured runs; the median is printed
    #[arg(long, default_value_t = 5)]
    runs: u32,
}

/// Options of `bench tpch`.
#[derive(Args)]
pub struct TpchArgs {
    #[command(flatten)]
    scale: ScaleArgs,
    /// Only these queries, for example 1,6,14
    #[arg(long, value_delimiter = ',')]
    queries: Vec<u32>,
    /// Also measure DataFusion on Vortex files (builds some 500 crates more, once)
    #[arg(long)]
    vortex: bool,
    /// Leave out comparing the pushdown modes auto, always and never
    #[arg(long)]
    skip_modes: bool,
    /// Also write the figures to this file, as JSON
    #[arg(long)]
    json: Option<String>,
}

/// Options of `bench tpch10`.
#[derive(Args)]
pub struct Tpch10Args {
    /// TPC-H scale factor, to try the benchmark on less
    #[arg(long, default_value = "10")]
    scale_factor: String,
    /// Page cache of flashmesh
    #[arg(long, default_value = "512MB")]
    cache_size: String,
    /// Memory that DataFusion's operators may hold before they spill
    #[arg(long, default_value = "4GB")]
    memory_limit: String,
}

impl Bench {
    /// Prepares venv, module and data folder; runs the script.
    pub fn run(&self) -> Result<()> {
        let venv = python::venv()?;
        venv.install_requirements("bench/requirements.txt")?;
        if matches!(
            self,
            Bench::Text(_)
                | Bench::Nearest(_)
                | Bench::Graph(_)
                | Bench::Keys
                | Bench::Writes(_)
                | Bench::Ycsb(_)
        ) {
            venv.install_requirements("bench/requirements-search.txt")?;
        }
        venv.install_flashmesh()?;
        let folder = bench_dir();
        fs::create_dir_all(&folder)?;

        let mut script = venv.python();
        let scaled = |script: &mut std::process::Command, name: &str, scale: &ScaleArgs| {
            script
                .arg(format!("bench/{name}.py"))
                .args(["--scale-factor", &scale.scale_factor])
                .args(["--runs", &scale.runs.to_string()]);
        };
        let searched = |script: &mut std::process::Command, name: &str, args: &RunsArgs| {
            script
                .arg(format!("bench/{name}.py"))
                .args(["--runs", &args.runs.to_string()]);
        };
        match self {
            Bench::Tpch(args) => {
                scaled(&mut script, "tpch", &args.scale);
                for query in &args.queries {
                    script.args(["--query", &query.to_string()]);
                }
                if args.vortex {
                    script
                        .arg("--vortex")
                        .env("FLASHMESH_VORTEX_RIVAL", build_vortex_rival(&venv)?);
                }
                if args.skip_modes {
                    script.arg("--skip-modes");
                }
                if let Some(path) = &args.json {
                    script.args(["--json", path]);
                }
            }
            Bench::Size(args) => scaled(&mut script, "size", args),
            Bench::Load(args) => scaled(&mut script, "load", args),
            Bench::Changes(args) => scaled(&mut script, "changes", args),
            Bench::RandomRows(args) => scaled(&mut script, "random_rows", args),
            Bench::ColdScan(args) => {
                script
                    .arg("bench/cold_scan.py")
                    .args(["--scale-factor", &args.scale_factor])
                    .args(["--runs", &args.runs.to_string()]);
            }
            Bench::FirstAnswer(args) => searched(&mut script, "first_answer", args),
            Bench::Text(args) => searched(&mut script, "text", args),
            Bench::Nearest(args) => searched(&mut script, "nearest", args),
            Bench::Graph(args) => searched(&mut script, "graph", args),
            Bench::Writes(args) => searched(&mut script, "writes", args),
            Bench::Ycsb(args) => {
                script
                    .arg("bench/ycsb.py")
                    .args(["--runs", &args.runs.to_string()])
                    .args(["--records", &args.records.to_string()])
                    .args(["--operations", &args.operations.to_string()]);
            }
            Bench::Refresh(args) => {
                build_programs()?;
                scaled(&mut script, "refresh", args);
                script.env("FLASHMESH_BIN", flashmesh_binary());
            }
            Bench::Rack(args) => {
                build_programs()?;
                scaled(&mut script, "rack", args);
                script.env("FLASHMESH_BIN", flashmesh_binary());
            }
            Bench::RackCommits(args) => {
                build_programs()?;
                searched(&mut script, "rack_commits", args);
                script.env("FLASHMESH_BIN", flashmesh_binary());
            }
            Bench::RackNetwork(args) | Bench::RackJoins(args) => {
                build_programs()?;
                let name = match &self {
                    Bench::RackJoins(_) => "rack_joins",
                    _ => "rack_network",
                };
                scaled(&mut script, name, &args.scale);
                script
                    .args(["--mbits", &args.mbits.to_string()])
                    .env("FLASHMESH_BIN", flashmesh_binary());
            }
            Bench::Keys => {
                script.arg("bench/keys.py");
            }
            Bench::Server(args) => {
                build_programs()?;
                scaled(&mut script, "server", &args.scale);
                script
                    .args(["--clients", &args.clients.to_string()])
                    .args(["--seconds", &args.seconds.to_string()])
                    .env("FLASHMESH_BIN", flashmesh_binary())
                    .env(
                        "FLASHMESH_BARE_FLIGHT",
                        target_dir().join("release/examples/bare_flight"),
                    );
            }
            Bench::Tpch10(args) => {
                script
                    .arg("bench/tpch10.py")
                    .args(["--scale-factor", &args.scale_factor])
                    .args(["--cache-size", &args.cache_size])
                    .args(["--memory-limit", &args.memory_limit]);
            }
        }
        run(script.env("FLASHMESH_BENCH_DIR", folder))
    }
}

/// Builds `bench/vortex`, which is no member of the workspace, and gives its binary.
fn build_vortex_rival(venv: &python::Venv) -> Result<PathBuf> {
    venv.install_requirements("bench/vortex/requirements.txt")?;
    let libclang = venv
        .python()
        .args([
            "-c",
            "import clang, os; print(os.path.dirname(clang.__file__))",
        ])
        .output()?;
    let libclang = String::from_utf8_lossy(&libclang.stdout);
    let manifest = "bench/vortex/Cargo.toml";
    let mut build = cargo(&["build", "--release", "--manifest-path", manifest]);
    run(build.env("LIBCLANG_PATH", format!("{}/native", libclang.trim())))?;
    Ok(target_dir().join("release/vortex-rival"))
}
