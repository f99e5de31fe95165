//! The long forms of what CI runs short, and what CI does not run: hours, each with a failure of its own.

use std::time::Instant;

use crate::run::{Error, Result, command, flashmesh_binary, run, workspace_root};
use crate::{checks, crash, python};

/// A part of the long form.
struct Part {
    name: &'static str,
    /// What it does.
    about: &'static str,
    work: fn() -> Result<()>,
}

const PARTS: [Part; 9] = [
    Part {
        name: "crash",
        about: "200 kills of the process between statements, 50 losses of power (as root)",
        work: || {
            crash::run(&crash::CrashArgs::rounds(200))?;
            crash::run_power_losses(50)
        },
    },
    Part {
        name: "kills",
        about: "200 kills of a process whose clients commit at once",
        work: || {
            python_tests(
                &["tests/python/test_kills.py"],
                &[("FLASHMESH_KILLS", "200")],
            )
        },
    },
    Part {
        name: "faults",
        about: "an error, a full disk or a power cut at I/Os of 100 seeds; 10,000 damages of the catalog",
        work: || {
            rust_tests("faults", &[("FLASHMESH_FAULT_ROUNDS", "100")])?;
            rust_tests("damage", &[("FLASHMESH_DAMAGE_TRIALS", "10000")])
        },
    },
    Part {
        name: "histories",
        about: "200 histories of eight clients, looked over for what their isolation forbids",
        work: || rust_tests("histories", &[("FLASHMESH_HISTORY_ROUNDS", "200")]),
    },
    Part {
        name: "mutants",
        about: "all wrong versions of the HLS and RTL sources, of which CI tries one in three",
        work: || {
            checks::fpga()?;
            checks::rtl()
        },
    },
    Part {
        name: "racks",
        about: "20,000 groups that keep a catalog, in simulated time; heads killed, stopped and ended, nodes cut off and restarted, under clients",
        work: || {
            rust_tests("simulation", &[("FLASHMESH_SIMULATIONS", "20000")])?;
            let files = [
                "tests/python/test_heads.py",
                "tests/python/test_partitions.py",
                "tests/python/test_restarting_racks.py",
            ];
            let counts = [
                ("FLASHMESH_HEAD_KILLS", "20"),
                ("FLASHMESH_HEAD_HANGS", "10"),
                ("FLASHMESH_HEAD_ENDS", "10"),
                ("FLASHMESH_CUTS", "10"),
                ("FLASHMESH_RACK_RESTARTS", "10"),
            ];
            python_tests(&files, &counts)
        },
    },
    Part {
        name: "queries",
        about: "200,000 random queries beside DuckDB",
        work: || {
            script(
                "tests/python/server/random_duckdb.py",
                &["--queries", "200000"],
            )
        },
    },
    Part {
        name: "siege",
        about: "a minute of stalled readers, silent connections and a flood of logins",
        work: || script("tests/python/server/siege.py", &["--seconds", "60"]),
    },
    Part {
        name: "first-hour",
        about: "the first hour of a new user, beside DuckDB (needs the network)",
        work: || run(command(workspace_root().join("dev")).arg("first-hour")),
    },
];

/// Names of all parts, and what each does.
pub fn parts() -> String {
    let line = |part: &Part| format!("  {:<12}{}", part.name, part.about);
    let lines: Vec<_> = PARTS.iter().map(line).collect();
    format!("Parts:\n{}", lines.join("\n"))
}

/// Runs these parts, or all; goes on after a failure, and names those that failed at the end.
pub fn long(names: &[String]) -> Result<()> {
    if let Some(name) = names
        .iter()
        .find(|name| PARTS.iter().all(|part| part.name != **name))
    {
        return Err(Error::new(format!(
            "there is no part '{name}'.\n{}",
            parts()
        )));
    }
    let is_wanted = |part: &&Part| names.is_empty() || names.iter().any(|name| name == part.name);
    let (mut summary, mut failed) = (Vec::new(), Vec::new());
    for part in PARTS.iter().filter(is_wanted) {
        eprintln!("\n== {}: {}", part.name, part.about);
        let started = Instant::now();
        let outcome = (part.work)();
        summary.push(format!(
            "{} {:.0} s",
            part.name,
            started.elapsed().as_secs_f64()
        ));
        if let Err(error) = outcome {
            eprintln!("{}: FAILED: {error}", part.name);
            failed.push(part.name);
        }
    }
    eprintln!("\nlong: {}", summary.join(", "));
    match failed.as_slice() {
        [] => Ok(()),
        failed => Err(Error::new(format!("failed: {}", failed.join(", ")))),
    }
}

fn rust_tests(filter: &str, environment: &[(&str, &str)]) -> Result<()> {
    let mut tests = checks::rust_tests(Some(filter))?;
    run(tests.envs(environment.iter().copied()))
}

fn python_tests(files: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let mut tests = checks::python_tests(files)?;
    run(tests.envs(environment.iter().copied()))
}

/// A Python program that takes a server's binary.
fn script(path: &str, arguments: &[&str]) -> Result<()> {
    checks::build_programs()?;
    let venv = python::venv()?;
    venv.install_requirements("tests/python/requirements.txt")?;
    let mut script = venv.python();
    script
        .env("FLASHMESH_BIN", flashmesh_binary())
        .arg(workspace_root().join(path))
        .args(arguments);
    run(&mut script)
}
