//! The crash test: SIGKILL the engine in the middle of statements, then hold
//! the database against a model of what was committed.
//!
//! One database lives through all rounds. In each round a child process runs a
//! script of numbered statements (loads from Parquet, inserts, drops) and says
//! `ack N` after each; the test waits for a random acknowledgement, lets a
//! random part of a statement's time pass, and kills the child. The database
//! must then pass `flashmesh fsck`, and its tables must hold exactly the rows
//! of the statements acknowledged, or of those and the one after: that one may
//! have been committed with its acknowledgement still unsaid.
//!
//! This is a crash of the process, not of the machine: what the kernel had
//! accepted stays. Loss of power is tested where the flash is modelled.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use fastrand::Rng;

use crate::checks;
use crate::run::{Error, Result, command, flashmesh_binary, shown};

/// Rows of the Parquet file that loads and inserts read.
const SOURCE_ROWS: u64 = 400_000;
/// Statements of one round's script.
const STATEMENTS: usize = 12;
/// More tables than this and the script drops one, so that the database stays small.
const MAX_TABLES: usize = 5;

/// Options of the crash test.
#[derive(Args)]
pub struct CrashArgs {
    /// How often to kill the engine
    #[arg(long, default_value_t = 100)]
    rounds: u32,
    /// Repeat the random choices of an earlier run (the instant of a kill repeats only nearly)
    #[arg(long)]
    seed: Option<u64>,
}

impl CrashArgs {
    /// This many rounds from a random seed.
    pub fn rounds(rounds: u32) -> CrashArgs {
        CrashArgs { rounds, seed: None }
    }
}

/// Rows of a table: its source row numbers, as half-open ranges. Every
/// statement is a function of them, so a count and two sums tell states apart.
type Tables = BTreeMap<String, Vec<(u64, u64)>>;

/// A statement and the state once it is committed.
struct Step {
    sql: String,
    after: Tables,
}

/// Kinds of index and the columns that they are made on.
const INDEXES: [(&str, &str); 3] = [("hash", "v"), ("ngram", "s"), ("adjacency", "id, v")];

/// Runs the crash test.
pub fn run(args: &CrashArgs) -> Result<()> {
    checks::build_programs()?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("crash: {} rounds, --seed {seed}", args.rounds);
    let mut rng = Rng::with_seed(seed);

    let folder = tempfile::Builder::new()
        .prefix("flashmesh-crash-")
        .tempdir()?;
    let source = folder.path().join("source.parquet");
    let database = folder.path().join("db");
    make_source(&source)?;

    let mut tables = Tables::new();
    let mut next_table = 0;
    let mut pace = Duration::from_millis(300);
    let (mut committed, mut unsaid) = (0, 0);
    for round in 1..=args.rounds {
        let steps = script(&mut rng, &tables, &mut next_table, &source);
        let victim = rng.usize(..steps.len());
        let delay = pace.mul_f64(rng.f64() * 1.2);
        let report = kill_during(&database, folder.path(), &steps, victim, delay)?;
        pace = report.pace.unwrap_or(pace);

        let context = |error: Error| {
            let kept = database.display();
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
                "crash: {round} rounds, {committed} statements committed, {unsaid} of them unsaid at the kill"
            );
        }
    }
    Ok(())
}

/// Writes the Parquet file that every statement reads.
fn make_source(path: &Path) -> Result<()> {
    let sql = format!(
        "COPY (SELECT value AS id, value * 7 % 1000003 AS v, 'row ' || (value * 31 % 9973) AS s \
         FROM generate_series(0, {})) TO '{}' STORED AS PARQUET",
        SOURCE_ROWS - 1,
        path.display()
    );
    run_quietly(command(flashmesh_binary()).args(["-c", &sql])).map(drop)
}

/// A random script on top of `tables`; each step with the state it leads to.
fn script(rng: &mut Rng, tables: &Tables, next_table: &mut u32, source: &Path) -> Vec<Step> {
    let mut state = tables.clone();
    let mut steps = Vec::new();
    while steps.len() < STATEMENTS {
        let from = rng.u64(..SOURCE_ROWS);
        let to = rng.u64(from..=SOURCE_ROWS);
        let select = format!(
            "SELECT * FROM '{}' WHERE id >= {from} AND id < {to}",
            source.display()
        );
        let existing = (!state.is_empty()).then(|| {
            let name = state.keys().nth(rng.usize(..state.len()));
            name.cloned().unwrap_or_default()
        });
        let sql = match (existing, rng.u32(..10)) {
            (Some(name), _) if state.len() > MAX_TABLES => drop_table(&mut state, &name),
            (Some(name), 0) => drop_table(&mut state, &name),
            (Some(name), 1..=4) => {
                state.entry(name.clone()).or_default().push((from, to));
                format!("INSERT INTO {name} {select}")
            }
            (Some(name), 5) => {
                state.insert(name.clone(), vec![(from, to)]);
                format!("CREATE OR REPLACE TABLE {name} AS {select}")
            }
            // Later statements keep it up; opening the database checks that it covers its table,
            // `fsck` its pages.
            (Some(name), 6 | 7) => {
                let (kind, columns) = INDEXES[rng.usize(..INDEXES.len())];
                format!(
                    "CREATE INDEX IF NOT EXISTS {name}_{kind} ON {name} USING {kind} ({columns})"
                )
            }
            _ => {
                let name = format!("t{next_table}");
                *next_table += 1;
                state.insert(name.clone(), vec![(from, to)]);
                format!("CREATE TABLE {name} AS {select}")
            }
        };
        steps.push(Step {
            sql,
            after: state.clone(),
        });
    }
    steps
}

fn drop_table(state: &mut Tables, name: &str) -> String {
    state.remove(name);
    format!("DROP TABLE {name}")
}

/// What the child said before it died.
struct KillReport {
    /// Statements acknowledged.
    acknowledged: usize,
    /// Mean time of a statement in this round, if one was acknowledged.
    pace: Option<Duration>,
}

/// Runs the script in a child and kills it `delay` after statement `victim` began.
fn kill_during(
    database: &Path,
    folder: &Path,
    steps: &[Step],
    victim: usize,
    delay: Duration,
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
    child.kill()?;
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
                "after {acknowledged} acknowledged statements the tables hold\n  {found:?}\nand not\n  {:?}\nnor\n  {:?}\nthe statement after: {}",
                state_after(acknowledged),
                state_after(acknowledged + 1),
                steps.get(acknowledged).map_or("none", |step| &step.sql),
            ))
        })
}

/// Count of rows, sum of `id` and sum of `v` by table.
type Summary = BTreeMap<String, (u64, u64, u64)>;

fn expected_state(tables: &Tables) -> Summary {
    let summary = |ranges: &Vec<(u64, u64)>| {
        let ids = ranges.iter().flat_map(|&(from, to)| from..to);
        ids.fold((0, 0, 0), |(count, ids, vs), id| {
            (count + 1, ids + id, vs + id * 7 % 1_000_003)
        })
    };
    tables
        .iter()
        .map(|(name, ranges)| (name.clone(), summary(ranges)))
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
