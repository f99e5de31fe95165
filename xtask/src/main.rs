//! Tasks of the workspace: what CI checks, the benchmarks and the crash test.
//!
//! `./dev` installs what a fresh machine lacks and calls this; on a machine
//! that is set up, `cargo xtask <task>` is the same.

mod bench;
mod checks;
mod crash;
mod floors;
mod long;
mod package;
mod python;
mod run;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "xtask",
    bin_name = "cargo xtask",
    about = "Checks, benchmarks and the crash test of flashmesh",
    after_help = "Build output and benchmark data go to $CARGO_TARGET_DIR and \
                  $FLASHMESH_BENCH_DIR; by default both lie under \
                  ${XDG_CACHE_HOME:-$HOME/.cache}/flashmesh, outside the clone."
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Load TPC-H into flash tables and run a tour of queries with EXPLAIN ANALYZE
    Demo(DemoArgs),
    /// All that CI checks, in order, up to the first failure
    Ci,
    /// Check the formatting of the Rust sources
    Fmt,
    /// Check that no module of storage uses one that stands on it
    Floors,
    /// Lint every target of every crate, warnings denied
    Clippy,
    /// Rust unit, integration and doc tests
    Test(TestArgs),
    /// Build the Python module, install it into the venv, run the Python tests
    Pytest,
    /// The long forms of what CI runs short, and what it does not run: hours
    #[command(after_help = long::parts())]
    Long(LongArgs),
    /// Build the API documentation, warnings denied
    Doc,
    /// Run every example of examples/
    Examples,
    /// Compile the kernels of examples/kernels and compare them with their references in SQL
    Kernels,
    /// Check the HLS sources: C simulation, sanitizers, the sandbox, mutants (fpga/check)
    Fpga,
    /// Check device and network in SystemVerilog: lint, proofs, mutants, simulation (fpga/rtl)
    Rtl,
    /// Write the papers' figures as the model of the appliance gives them into docs (docs/model.md)
    Figures,
    /// Write docs/reference from the code: settings, functions, system tables, metrics, errors, commands
    Reference(ReferenceArgs),
    /// Build the site out of docs, with search; a link or picture that is not there fails
    Docs,
    /// Take the pictures of docs/tour.md anew, of the shell and of a server's page (needs Chromium)
    Pictures,
    /// Build wheel, .deb and container image with licences and SBOM, and try them in an empty Debian
    Package(PackageArgs),
    /// Measure flashmesh beside its peers on this machine
    #[command(subcommand)]
    Bench(bench::Bench),
    /// SIGKILL the engine during loads and inserts; then check what is left
    Crash(crash::CrashArgs),
}

#[derive(Args)]
struct DemoArgs {
    /// TPC-H scale factor: 1 is about 1 GB of raw data
    #[arg(long)]
    scale_factor: Option<f64>,
}

#[derive(Args)]
struct TestArgs {
    /// Only tests whose name contains this
    filter: Option<String>,
}

#[derive(Args)]
struct LongArgs {
    /// Only these parts
    parts: Vec<String>,
}

#[derive(Args)]
struct ReferenceArgs {
    /// Write nothing; fail with a diff where a page is not as the code is
    #[arg(long)]
    check: bool,
}

#[derive(Args)]
struct PackageArgs {
    /// Leave out the empty Debian, which takes root and Debian's mirrors, and so the container image
    #[arg(long)]
    no_chroot: bool,
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Demo(args) => checks::demo(args.scale_factor),
        Task::Ci => checks::ci(),
        Task::Fmt => checks::fmt(),
        Task::Floors => checks::floors(),
        Task::Clippy => checks::clippy(),
        Task::Test(args) => checks::test(args.filter.as_deref()),
        Task::Pytest => checks::pytest(),
        Task::Long(args) => long::long(&args.parts),
        Task::Doc => checks::doc(),
        Task::Examples => checks::examples(),
        Task::Kernels => checks::kernels(),
        Task::Fpga => checks::fpga(),
        Task::Rtl => checks::rtl(),
        Task::Figures => checks::figures(),
        Task::Reference(args) => package::reference(args.check),
        Task::Docs => package::docs(),
        Task::Pictures => package::pictures(),
        Task::Package(args) => package::package(args.no_chroot),
        Task::Bench(bench) => bench.run(),
        Task::Crash(args) => crash::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
