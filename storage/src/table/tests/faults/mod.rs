//! Faults at every I/O of card and catalog: what was acknowledged is there afterwards, and what
//! was not is there whole or not at all.

pub(super) mod devices;
mod groups;
mod panics;
pub(super) mod workloads;

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use self::devices::{Disks, Fault, Rig};
use self::workloads::{Step, Workload};
use super::read;
use crate::table::catalog::{Catalog, CatalogFile, FirstState};
use crate::table::commit_log::Log;
use crate::table::{AsOf, Database, DatabaseOptions, UpkeepOptions, Workspace};
use crate::{Result, StorageError};

/// So few that the log is full now and then, and too small for some edits.
pub(super) const LOG_BYTES: u64 = 48 << 10;

pub(super) fn open(rig: &Rig) -> Result<Arc<Database>> {
    // What a workload does, it does in the same order each time.
    open_with(
        rig,
        UpkeepOptions {
            in_background: false,
            ..UpkeepOptions::default()
        },
    )
}

pub(super) fn open_with(rig: &Rig, upkeep: UpkeepOptions) -> Result<Arc<Database>> {
    let path = Path::new("faulty");
    let file = CatalogFile::new(rig.catalog.clone());
    let catalog = Catalog::existing(&path.join("catalog"), path, file)?;
    let log = Log::new(&path.join("log"), rig.log.clone(), LOG_BYTES);
    let options = DatabaseOptions {
        upkeep,
        ..DatabaseOptions::default()
    };
    Database::with_parts(path.to_path_buf(), catalog, rig.card.clone(), log, &options)
}

/// The disks of a new database.
pub(super) fn new_database(seed: u64) -> Disks {
    let rig = Rig::new(Disks::blank(seed), seed);
    let path = Path::new("faulty");
    let file = CatalogFile::new(rig.catalog.clone());
    let empty = FirstState::empty();
    drop(Catalog::make(&path.join("catalog"), path, file, &empty).unwrap());
    rig.restart(seed)
}

/// All that a reader can see.
pub(super) fn state(database: &Arc<Database>) -> Result<String> {
    let mut text = present_state(database)?;
    for schema in database.schemas() {
        for table in database.tables(&schema) {
            past_of(database, &schema, &table, &mut text)?;
        }
    }
    Ok(text)
}

/// The same without the past, which is in no backup.
pub(super) fn present_state(database: &Arc<Database>) -> Result<String> {
    let mut text = String::new();
    for schema in database.schemas() {
        writeln!(text, "schema {schema}").unwrap();
        for table in database.tables(&schema) {
            let snapshot = database.snapshot(&schema, &table)?;
            writeln!(text, "table {table}").unwrap();
            for index in &snapshot.indexes {
                writeln!(text, "{:?}", index.definition).unwrap();
            }
            if snapshot.rows() > 0 {
                writeln!(text, "{:?}", read(database, snapshot)?).unwrap();
            }
        }
        for view in database.views(&schema) {
            writeln!(text, "{:?}", database.view(&schema, &view)).unwrap();
        }
    }
    for function in database.functions() {
        let package = database.function_package(&function)?;
        let (name, version) = (&function.name, function.version);
        writeln!(text, "function {name} {version} {}", package.len()).unwrap();
    }
    writeln!(text, "accounts {}", database.accounts()?.text).unwrap();
    Ok(text)
}

/// What past versions have, each that has something else than the one before it: a step may take
/// several commits of which only one changes rows.
fn past_of(database: &Arc<Database>, schema: &str, table: &str, text: &mut String) -> Result<()> {
    let workspace = Workspace::new(Arc::clone(database));
    let versions = database.versions(schema, table)?;
    let mut last = None;
    for version in &versions[..versions.len() - 1] {
        let past = workspace.as_of(schema, table, AsOf::Version(version.version))?;
        let rows = match past.rows() {
            0 => String::new(),
            _ => format!("{:?}", read(database, past)?),
        };
        if last.as_ref() != Some(&rows) {
            writeln!(text, "past {rows}").unwrap();
            last = Some(rows);
        }
    }
    Ok(())
}

/// The states before the first step and after each.
fn golden(workload: &Workload, seed: u64) -> (Disks, Vec<String>) {
    let rig = Rig::new(new_database(seed), seed);
    let database = open(&rig).unwrap();
    for step in &workload.before {
        step.run(&database).unwrap();
    }
    drop(database);
    let disks = rig.restart(seed);
    let rig = Rig::new(disks.copy(seed), seed);
    let database = open(&rig).unwrap();
    let mut states = vec![state(&database).unwrap()];
    for step in &workload.steps {
        step.run(&database).unwrap();
        states.push(state(&database).unwrap());
    }
    (disks, states)
}

/// Runs the steps while the `nth` I/O goes wrong; gives whether there are as many.
fn run(
    workload: &Workload,
    disks: &Disks,
    states: &[String],
    plan: (u64, Fault),
    seed: u64,
) -> bool {
    let (nth, fault) = plan;
    let story = format!("{}, seed {seed}, I/O {nth}: {fault:?}", workload.name);
    let rig = Rig::new(disks.copy(seed), seed);
    rig.faults.plan(nth, fault);
    let mut done = 0;
    let mut in_doubt = false;
    let opened = open(&rig);
    if let Ok(database) = &opened {
        for step in &workload.steps {
            let Err(error) = step.run(database) else {
                done += 1;
                continue;
            };
            in_doubt = true;
            if rig.faults.has_power() {
                rig.faults.end();
                go_on(database, *step, &error, &states[done..], &story, &mut done);
                in_doubt = matches!(error, StorageError::NeedsReopening { .. });
            }
            break;
        }
    }
    drop(opened);
    let was_due = rig.faults.end();
    let rig = Rig::new(rig.restart(seed), seed);
    let database = open(&rig).unwrap_or_else(|error| panic!("{story}: reopening: {error}"));
    let found = state(&database).unwrap_or_else(|error| panic!("{story}: {error}"));
    let allowed = &states[done..=done + usize::from(in_doubt)];
    assert!(
        allowed.contains(&found),
        "{story}: after {done} steps\n{found}\ninstead of\n{}",
        allowed.join("\nor\n")
    );
    let problems = database.fsck(&mut |_| Ok(())).unwrap().problems;
    assert!(problems.is_empty(), "{story}: {problems:?}");
    Step::CreateSchema("last")
        .run(&database)
        .unwrap_or_else(|error| panic!("{story}: after reopening: {error}"));
    was_due
}

/// After an error the old version is there, and the step succeeds now, unless the database asks
/// to be reopened.
fn go_on(
    database: &Arc<Database>,
    step: Step,
    error: &StorageError,
    states: &[String],
    story: &str,
    done: &mut usize,
) {
    let found = state(database).unwrap_or_else(|error| panic!("{story}: {error}"));
    assert_eq!(found, states[0], "{story}: {step:?} failed ({error})");
    let again = step.run(database);
    if matches!(error, StorageError::NeedsReopening { .. }) {
        let refused = matches!(again, Err(StorageError::NeedsReopening { .. }));
        assert!(refused, "{story}: {again:?} after {error}");
    } else {
        again.unwrap_or_else(|again| panic!("{story}: {error}, and again: {again}"));
        *done += 1;
        assert_eq!(state(database).unwrap(), states[1], "{story}");
    }
}

/// Builds without optimisation take a sample.
const STRIDE: u64 = if cfg!(debug_assertions) { 29 } else { 1 };

/// Runs every I/O of every workload into every fault. `FLASHMESH_FAULT_SEED` sets the first seed,
/// `FLASHMESH_FAULT_ROUNDS` how many there are.
#[test]
fn what_was_acknowledged_survives_a_fault_at_every_io() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first: u64 = number("FLASHMESH_FAULT_SEED").unwrap_or_else(rand::random);
    let rounds: u64 = number("FLASHMESH_FAULT_ROUNDS").unwrap_or(1);
    println!("FLASHMESH_FAULT_SEED={first}");
    let mut points = 0;
    for seed in (0..rounds).map(|round| first.wrapping_add(round)) {
        for workload in workloads::all() {
            let (disks, states) = golden(&workload, seed);
            for fault in Fault::ALL {
                let mut nth = seed.checked_rem(STRIDE).unwrap_or(0);
                while run(&workload, &disks, &states, (nth, fault), seed) {
                    nth += STRIDE;
                    points += 1;
                }
            }
            println!("{points} points, done: {}", workload.name);
        }
    }
    assert!(points * STRIDE > 1000 * rounds, "{points} points");
}
