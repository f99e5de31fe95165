//! The crash test: SIGKILL the engine in the middle of statements, then hold
//! the database against a model of what was committed.
//!
//! One database lives through all rounds. In each round a child process runs a
//! script of numbered steps and says `ack N` after each: loads from Parquet,
//! inserts, upserts, updates and deletes of many rows and of few, definitions,
//! VACUUM, and transactions of several of these; indexes and tables are kept up
//! in the background. The test waits for a random acknowledgement, lets a
//! random part of a statement's time pass, and kills the child. The database
//! must then pass `flashmesh fsck`, and its tables must hold exactly the rows
//! of the steps acknowledged, or of those and the one after: that one may
//! have been committed with its acknowledgement still unsaid.
//!
//! This is a crash of the process, not of the machine: what the kernel had
//! accepted stays. With `--power-loss` the file system goes down before the
//! child ([`power`]); the same with torn writes is tested where the flash is
//! modelled. What several clients commit at once is killed by
//! `tests/python/test_kills.py`.

mod power;
mod script;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use fastrand::Rng;

use self::power::PowerRig;
use self::script::{SOURCE_ROWS, Scripts, Step, Tables, VALUE_OF_ID};
use crate::checks;
use crate::run::{Error, Result, command, flashmesh_binary, shown};

/// Options of the crash test.
#[derive(Args)]
pub struct CrashArgs {
    /// How often to kill the engine
    #[arg(long, default_value_t = 100)]
    rounds: u32,
    /// Repeat the random choices of an earlier run (the instant of a kill repeats only nearly)
    #[arg(long)]
    seed: Option<u64>,
    /// Lose power instead of the process: an ext4 on a loop device shuts down (needs root)
    #[arg(long)]
    power_loss: bool,
}

impl CrashArgs {
    /// This many rounds from a random seed.
    pub fn rounds(rounds: u32) -> CrashArgs {
        CrashArgs {
            rounds,
            seed: None,
            power_loss: false,
        }
    }
}

/// Power losses, so many; without root, loop devices or ext4 none, and a line that says so.
pub fn run_power_losses(rounds: u32) -> Result<()> {
    let folder = tempfile::tempdir()?;
    if let Err(error) = PowerRig::new(folder.path()) {
        eprintln!("crash: WARNING: no power losses: {error}");
        return Ok(());
    }
    run(&CrashArgs {
        power_loss: true,
        ..CrashArgs::rounds(rounds)
    })
}

/// Runs the crash test.
pub fn run(args: &CrashArgs) -> Result<()> {
    checks::build_programs()?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("crash: {} rounds, --seed {seed}", args.rounds);
    let folder = tempfile::Builder::new()
        .prefix("flashmesh-crash-")
        .tempdir()?;
    let source = folder.path().join("source.parquet");
    let power = match args.power_loss {
        true => Some(PowerRig::new(folder.path())?),
        false => None,
    };
    let place = power.as_ref().map_or(folder.path(), PowerRig::folder);
    let database = place.join("db");
    make_source(&source)?;

    let mut tables = Tables::new();
    let mut scripts = Scripts::new(Rng::with_seed(seed), &source);
    let mut pace = Duration::from_millis(300);
    let (mut committed, mut unsaid) = (0, 0);
    for round in 1..=args.rounds {
        let steps = scripts.next(&tables);
        let victim = scripts.rng.usize(..steps.len());
        let delay = pace.mul_f64(scripts.rng.f64() * 1.2);
        let after = Duration::from_millis(scripts.rng.u64(..30));
        let kill = |child: &mut Child| {
            if let Some(power) = &power {
                power.fail()?;
                // For a while it runs on with a file system that fails: a part of the random moment.
                thread::sleep(after);
            }
            Ok(child.kill()?)
        };
        let report = kill_during(&database, folder.path(), &steps, victim, delay, kill)?;
        if let Some(power) = &power {
            power.restore()?;
        }
        pace = report.pace.unwrap_or(pace);

        let context = |error: Error| {
            let kept = power
                .as_ref()
                .map_or(&database, |power| &power.image)
                .display();
            Error::new(format!(
                "round {round} of --seed {seed}: {error} (database: {kept})"
            ))
        };
        let outcome = check(&database, &tables, &steps, report.acknowledged);
        match outcome {
            Ok(found) => {
                committed += found;
                unsaid += usize::from(found > report.acknowledged);
                if found > 0 {
                    tables = steps[found - 1].after.clone();
                }
            }
            Err(error) => {
                let error = context(error);
                let _ = folder.keep();
                return Err(error);
            }
        }
        if round % 10 == 0 || round == args.rounds {
            eprintln!(
                "crash: {round} rounds, {committed} steps committed, {unsaid} of them unsaid at the kill"
            );
        }
    }
    Ok(())
}

/// Writes the Parquet file that every statement reads.
fn make_source(path: &Path) -> Result<()> {
    let sql = format!(
        "COPY (SELECT value AS id, {VALUE_OF_ID} AS v, 'row ' || (value * 31 % 9973) AS s \
         FROM generate_series(0, {})) TO '{}' STORED AS PARQUET",
        SOURCE_ROWS - 1,
        path.display()
    );
    run_quietly(command(flashmesh_binary()).args(["-c", &sql])).map(drop)
}

/// What the child said before it died.
struct KillReport {
    /// Steps acknowledged.
    acknowledged: usize,
    /// Mean time of a step in this round, if one was acknowledged.
    pace: Option<Duration>,
}

/// Runs the script in a child and kills it `delay` after step `victim` began.
fn kill_during(
    database: &Path,
    folder: &Path,
    steps: &[Step],
    victim: usize,
    delay: Duration,
    kill: impl FnOnce(&mut Child) -> Result<()>,
) -> Result<KillReport> {
    let mut text = String::from("SELECT 'ack 0';\n");
    for (index, step) in steps.iter().enumerate() {
        let _ = writeln!(text, "{};\nSELECT 'ack {}';", step.sql, index + 1);
    }
    let file = folder.join("round.sql");
    fs::write(&file, text)?;

    let mut child = on_database(database)
        .arg("-f")
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut acknowledgements = BufReader::new(child.stdout.take().ok_or_else(broken_pipe)?)
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| {
            line.trim_matches('"')
                .strip_prefix("ack ")?
                .parse::<usize>()
                .ok()
        });

    let mut acknowledged = None;
    let mut first_ack_at = None;
    while acknowledged.is_none_or(|count| count < victim) {
        let Some(count) = acknowledgements.next() else {
            break;
        };
        first_ack_at.get_or_insert_with(Instant::now);
        acknowledged = Some(count);
    }
    let pace = first_ack_at
        .zip(acknowledged)
        .and_then(|(since, count)| since.elapsed().checked_div(u32::try_from(count).ok()?));
    if acknowledged == Some(victim) {
        // Not a wait for anything: this is the random moment.
        thread::sleep(delay);
    }
    let early = child.try_wait()?;
    kill(&mut child)?;
    if let Some(last) = acknowledgements.last() {
        acknowledged = Some(last);
    }
    let output = child.wait_with_output()?;
    match acknowledged {
        Some(count) if early.is_none() || count == steps.len() => Ok(KillReport {
            acknowledged: count,
            pace,
        }),
        _ => Err(Error::new(format!(
            "the script ended by itself ({}) after {acknowledged:?}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ))),
    }
}

/// Checks the database against the model; returns how many steps are committed.
fn check(database: &Path, before: &Tables, steps: &[Step], acknowledged: usize) -> Result<usize> {
    run_quietly(
        command(flashmesh_binary())
            .arg("fsck")
            .arg("--db")
            .arg(database),
    )?;
    let found = read_state(database)?;
    let state_after = |count: usize| match count {
        0 => Some(expected_state(before)),
        _ => steps.get(count - 1).map(|step| expected_state(&step.after)),
    };
    [acknowledged, acknowledged + 1]
        .into_iter()
        .find(|&count| state_after(count).is_some_and(|state| state == found))
        .ok_or_else(|| {
            Error::new(format!(
                "after {acknowledged} acknowledged steps the tables hold\n  {found:?}\nand not\n  {:?}\nnor\n  {:?}\nthe step after: {}",
                state_after(acknowledged),
                state_after(acknowledged + 1),
                steps.get(acknowledged).map_or("none", |step| &step.sql),
            ))
        })
}

/// Count of rows, sum of `id` and sum of `v` by table.
type Summary = BTreeMap<String, (u64, u64, u64)>;

fn expected_state(tables: &Tables) -> Summary {
    let summaries = tables.iter();
    summaries
        .map(|(name, rows)| (name.clone(), rows.summary()))
        .collect()
}

/// Reads the tables there are and what they hold, by SQL.
fn read_state(database: &Path) -> Result<Summary> {
    let names = query(
        database,
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'",
    )?;
    if names.is_empty() {
        return Ok(Summary::new());
    }
    let sql: Vec<String> = names
        .iter()
        .map(|name| {
            format!(
                "SELECT '{name}', count(*), coalesce(sum(id), 0), coalesce(sum(v), 0), \
                 count(s) FROM {name}"
            )
        })
        .collect();
    query(database, &sql.join(" UNION ALL "))?
        .iter()
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
            (|| {
                let (count, strings) = (number(1)?, number(4)?);
                (count == strings)
                    .then_some((fields[0].to_owned(), (count, number(2)?, number(3)?)))
            })()
            .ok_or_else(|| Error::new(format!("unexpected row: {line}")))
        })
        .collect()
}

/// The rows of a query, as CSV lines without the header.
fn query(database: &Path, sql: &str) -> Result<Vec<String>> {
    let output = run_quietly(on_database(database).args(["-c", sql]))?;
    Ok(output.lines().skip(1).map(str::to_owned).collect())
}

fn on_database(database: &Path) -> Command {
    let mut flashmesh = command(flashmesh_binary());
    flashmesh
        .args(["--format", "csv", "--quiet"])
        .arg("--db")
        .arg(database);
    flashmesh
}

/// Runs a command that must succeed; returns what it printed.
fn run_quietly(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(Error::new(format!(
            "`{}` failed: {}\n{}{}",
            shown(command),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )))
    }
}

fn broken_pipe() -> Error {
    Error::new("the child's output is not piped")
}
