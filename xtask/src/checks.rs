//! The steps of CI, each also a task of its own.

use std::env;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::run::{
    Beside, Error, Result, cargo, command, flashmesh_binary, run, run_within, target_dir,
    workspace_root,
};
use crate::{crash, floors, package, python};

/// Rounds of the crash test in CI; `cargo xtask crash --rounds 100` is the long form, also with `--power-loss`.
const CI_CRASH_ROUNDS: u32 = 6;
/// When tests that are built already are stopped: several times what they take on two cores.
const TESTS_END_WITHIN: Duration = Duration::from_secs(35 * 60);

/// The variable that gives random tests their seed.
const SEED: &str = "FLASHMESH_TEST_SEED";

/// When the checks of the hardware are stopped, from when all else is done but the crash test.
const HARDWARE_ENDS_WITHIN: Duration = Duration::from_secs(30 * 60);

/// Runs every step, prints how long each took, stops at the first failure.
pub fn ci() -> Result<()> {
    type Step = (&'static str, Box<dyn FnOnce() -> Result<()>>);
    let started = Instant::now();
    // They need nothing that cargo builds, whose longest stretches keep one processor busy.
    // `./dev long mutants` tries all of the wrong versions.
    let hardware = Beside::start("fpga/check --one-in 3 && fpga/rtl --one-in 3")?;
    let steps: [Step; 11] = [
        ("fmt", Box::new(fmt)),
        ("floors", Box::new(floors)),
        ("clippy", Box::new(clippy)),
        ("test", Box::new(|| test(None))),
        ("doc", Box::new(doc)),
        ("docs", Box::new(package::docs)),
        ("pytest", Box::new(pytest)),
        ("examples", Box::new(examples)),
        ("kernels", Box::new(kernels)),
        (
            "fpga, rtl",
            Box::new(|| hardware.finish(HARDWARE_ENDS_WITHIN)),
        ),
        (
            "crash",
            Box::new(|| {
                crash::run(&crash::CrashArgs::rounds(CI_CRASH_ROUNDS))?;
                crash::run_power_losses(CI_CRASH_ROUNDS)
            }),
        ),
    ];
    let mut summary = Vec::new();
    for (name, step) in steps {
        eprintln!("\n== {name}");
        let step_started = Instant::now();
        let outcome = step();
        let seconds = step_started.elapsed().as_secs_f64();
        summary.push(format!("{name} {seconds:.0} s"));
        if let Err(error) = outcome {
            eprintln!("\nci: FAILED at {name} ({})", summary.join(", "));
            return Err(error);
        }
    }
    eprintln!(
        "\nci: all passed in {:.0} s ({})",
        started.elapsed().as_secs_f64(),
        summary.join(", ")
    );
    Ok(())
}

/// `rustfmt` leaves nothing to change.
pub fn fmt() -> Result<()> {
    run(&mut cargo(&["fmt", "--all", "--check"]))
}

/// No module of the storage crates and of the engine uses one that does not stand below it.
pub fn floors() -> Result<()> {
    floors::check(&workspace_root())
}

/// Clippy on every target and feature, warnings denied.
pub fn clippy() -> Result<()> {
    run(&mut cargo(&[
        "clippy",
        "--release",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ]))
}

/// All Rust tests and doc tests.
///
/// The whole-system tests run the `flashmesh` binary of another package, which
/// `cargo test` alone would not build; building binaries and tests in one
/// command keeps one set of dependency features.
pub fn test(filter: Option<&str>) -> Result<()> {
    run_within(&mut rust_tests(filter)?, TESTS_END_WITHIN)
}

/// The command that runs them, with all that it needs in place.
pub fn rust_tests(filter: Option<&str>) -> Result<Command> {
    run(&mut cargo(&[
        "build",
        "--release",
        "--workspace",
        "--bins",
        "--tests",
    ]))?;
    // The compiler of kernels is a Python package.
    let venv = python::venv()?;
    venv.install_requirements("tests/python/requirements.txt")?;
    // One run tells of every test that fails.
    let mut test = cargo(&["test", "--release", "--workspace", "--no-fail-fast"]);
    test.args(filter)
        // A release build has no lines to trace back to: the seed that a test prints is what counts.
        .env("RUST_BACKTRACE", "0")
        .env("FLASHMESH_KERNEL_PYTHON", venv.root().join("bin/python"))
        .env("FLASHMESH_REQUIRE_KERNELS", "1");
    Ok(test)
}

/// The Python tests against the module and the binary built from this tree.
pub fn pytest() -> Result<()> {
    // Files side by side: many tests wait for servers, or keep one processor busy.
    let side_by_side = ["-n", "2", "--dist", "loadfile", "tests/python"];
    run_within(&mut python_tests(&side_by_side)?, TESTS_END_WITHIN)
}

/// The command that runs those of some files or folders, with all that it needs in place.
pub fn python_tests(files: &[&str]) -> Result<Command> {
    build_programs()?;
    let venv = python::venv()?;
    venv.install_requirements("tests/python/requirements.txt")?;
    venv.install_flashmesh()?;
    let mut tests = venv.python();
    if env::var_os(SEED).is_none()
        && let Some(seed) = seed_of_commit()
    {
        tests.env(SEED, seed);
    }
    tests
        .env("FLASHMESH_BIN", flashmesh_binary())
        // What is skipped, for want of Chromium or Java, is named with the reason; and where a test
        // stands still, it is said.
        .args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"])
        .args(["-o", "faulthandler_timeout=600"])
        .args(files);
    Ok(tests)
}

/// What the Python tests draw their random inputs from: every commit tries others, and whoever looks into a
/// failure tries those of CI. None where there is no repository: then they draw one.
fn seed_of_commit() -> Option<String> {
    let output = command("git")
        .args(["rev-parse", "--short=8", "HEAD"])
        .output()
        .ok()?;
    let commit = String::from_utf8(output.stdout).ok()?;
    let seed = u32::from_str_radix(commit.trim().get(..8)?, 16).ok()?;
    Some(seed.to_string())
}

/// The API documentation builds without warnings.
pub fn doc() -> Result<()> {
    run(
        cargo(&["doc", "--release", "--workspace", "--no-deps"]).env(
            "RUSTDOCFLAGS",
            "-D warnings -A rustdoc::private_intra_doc_links",
        ),
    )
}

/// The kernels under `examples/kernels` compile and equal their references in SQL.
pub fn kernels() -> Result<()> {
    build_programs()?;
    let venv = python::venv()?;
    venv.install_requirements("tests/python/requirements.txt")?;
    let folder = workspace_root().join("examples/kernels");
    let mut kernels: Vec<_> = fs::read_dir(&folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("kernel.toml").is_file())
        .collect();
    kernels.sort();
    run(command(flashmesh_binary())
        // Where the compiler is.
        .env("VIRTUAL_ENV", venv.root())
        .args(["kernel", "test"])
        .args(kernels))
}

/// The HLS sources: C simulation, sanitizers, the sandbox, mutants. `fpga/check --help` says more.
pub fn fpga() -> Result<()> {
    run(&mut command(workspace_root().join("fpga/check")))
}

/// The RTL: lint, proofs, mutants, simulation, resources. `fpga/rtl --help` says more.
pub fn rtl() -> Result<()> {
    run(&mut command(workspace_root().join("fpga/rtl")))
}

/// Runs `examples/*.sql`, `*.rs` and `*.py` in the order of their names.
pub fn examples() -> Result<()> {
    let folder = workspace_root().join("examples");
    let mut names: Vec<String> = fs::read_dir(&folder)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(|first: char| first.is_ascii_digit()))
        .collect();
    names.sort();
    if names.is_empty() {
        return Err(Error::new(format!("no examples in {}", folder.display())));
    }
    build_programs()?;
    let venv = python::venv()?;
    venv.install_requirements("tests/python/requirements.txt")?;
    venv.install_flashmesh()?;
    // Examples that write files write them here.
    let scratch = tempfile::tempdir()?;
    for name in &names {
        let path = folder.join(name);
        let mut example;
        match name.rsplit_once('.') {
            Some((stem, "rs")) => {
                example = command(target_dir().join("release/examples").join(stem));
            }
            Some((_, "py")) => {
                example = venv.python();
                example.arg(path);
            }
            Some((_, "sql")) => {
                example = command(flashmesh_binary());
                example.arg("-f").arg(path);
            }
            _ => return Err(Error::new(format!("{name}: not a .rs, .py or .sql file"))),
        }
        example
            .current_dir(&scratch)
            .env("FLASHMESH_BIN", flashmesh_binary())
            // Where the compiler of kernels is.
            .env("VIRTUAL_ENV", venv.root());
        run(&mut example)?;
    }
    Ok(())
}

/// Builds the binary and the examples, once in a run of this program, with the features that the
/// tests are built with.
pub fn build_programs() -> Result<()> {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    run(&mut cargo(&[
        "build",
        "--release",
        "--workspace",
        "--bins",
        "--examples",
    ]))
}

/// Writes what the model of the appliance gives into docs.
pub fn figures() -> Result<()> {
    // Of the whole workspace, so that dependencies are built with the same features as ever.
    run(&mut cargo(&[
        "build",
        "--release",
        "--workspace",
        "--example",
        "figures",
    ]))?;
    run(command(target_dir().join("release/examples/figures")).arg("docs"))
}

/// `flashmesh demo`.
pub fn demo(scale_factor: Option<f64>) -> Result<()> {
    eprintln!("Building flashmesh; the first build compiles DataFusion and takes a while.");
    build_programs()?;
    let mut demo = command(flashmesh_binary());
    demo.arg("demo");
    if let Some(scale_factor) = scale_factor {
        demo.args(["--scale-factor", &scale_factor.to_string()]);
    }
    run(&mut demo)
}
