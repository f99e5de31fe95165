//! Damage of the catalog: right answers or clear errors, whatever its bytes.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::faults::devices::{Disks, Rig};
use super::faults::workloads::Step;
use super::faults::{new_database, open};
use super::*;
use crate::index::IndexKind;
use crate::table::catalog::{Catalog, Contents};

const PAGE_BYTES: usize = 4096;

#[derive(Debug, Clone, Copy)]
enum Damage {
    Flip,
    Zero,
    Swap,
    Truncate,
}

const KINDS: [Damage; 4] = [Damage::Flip, Damage::Zero, Damage::Swap, Damage::Truncate];

impl Damage {
    fn apply(self, catalog: &mut Vec<u8>, rng: &mut StdRng) {
        let is_used = |page: &usize| catalog[*page..page + PAGE_BYTES].iter().any(|b| *b != 0);
        let pages = (0..catalog.len()).step_by(PAGE_BYTES);
        let pages: Vec<usize> = pages.filter(is_used).collect();
        let page = *pages.choose(rng).unwrap();
        match self {
            Self::Flip => {
                let used: Vec<usize> = (page..page + PAGE_BYTES)
                    .filter(|at| catalog[*at] != 0)
                    .collect();
                catalog[*used.choose(rng).unwrap()] ^= 1 << rng.random_range(0..8);
            }
            Self::Zero => catalog[page..page + PAGE_BYTES].fill(0),
            Self::Swap => {
                let other = *pages.choose(rng).unwrap();
                let copy = catalog[page..page + PAGE_BYTES].to_vec();
                catalog.copy_within(other..other + PAGE_BYTES, page);
                catalog[other..other + PAGE_BYTES].copy_from_slice(&copy);
            }
            Self::Truncate => catalog.truncate(page + rng.random_range(0..PAGE_BYTES)),
        }
    }
}

/// A database with a bit of everything: as its process closed it, and as a crash left it.
fn images(seed: u64) -> [Disks; 2] {
    let rig = Rig::new(new_database(seed), seed);
    let database = open(&rig).unwrap();
    let mut steps = vec![
        Step::CreateSchema("s"),
        Step::Create("t", 900, true),
        Step::CreateIndex("t", IndexKind::Ngram),
        Step::Function("f", 3),
        Step::View("v", "SELECT 1"),
        Step::Create("u", 40, false),
    ];
    steps.extend([Step::Append("t", 30); 5]);
    steps.extend((0..40).map(|_| Step::Append("u", 2)));
    for name in ["w1", "w2", "w3"] {
        steps.push(Step::Create(name, 20, true));
    }
    for step in steps {
        step.run(&database).unwrap();
    }
    let crashed = rig.restart(seed);
    drop(database);
    [rig.restart(seed), crashed]
}

/// What each object is, as far as it can be told.
fn answers(database: &Arc<Database>) -> BTreeMap<String, std::result::Result<String, String>> {
    let mut answers = BTreeMap::new();
    for table in ["t", "u", "w1", "w2", "w3"] {
        let answer = database.snapshot("public", table).and_then(|snapshot| {
            let indexes: Vec<_> = snapshot.indexes.iter().map(|i| &i.definition).collect();
            let indexes = format!("{indexes:?}");
            Ok(format!("{indexes} {:?}", read(database, snapshot)?))
        });
        answers.insert(table.to_string(), answer.map_err(|error| error.to_string()));
    }
    let listed = format!(
        "{:?} {:?} {:?}",
        database.schemas(),
        database.tables("public"),
        database.view("public", "v")
    );
    let packages = database.functions().into_iter().map(|function| {
        let package = database.function_package(&function)?;
        Ok(format!("{} {}", function.name, package.len()))
    });
    let packages = packages.collect::<Result<Vec<_>>>();
    let packages = packages.map(|packages| packages.join(","));
    answers.insert("function".into(), packages.map_err(|e| e.to_string()));
    answers.insert("lists".into(), Ok(listed));
    answers
}

/// Checks what becomes of a damaged database; gives whether it was noticed.
fn check(
    disks: Disks,
    sound: &BTreeMap<String, std::result::Result<String, String>>,
    story: &str,
) -> bool {
    let rig = Rig::new(disks, 1);
    let database = match open(&rig) {
        Ok(database) => database,
        Err(error) => {
            let is_clear = matches!(
                error,
                StorageError::Corrupt { .. } | StorageError::NewerFormat { .. }
            );
            assert!(is_clear, "{story}: {error:?}");
            return true;
        }
    };
    let problems = database.fsck(&mut |_| ()).unwrap().problems;
    let found = answers(&database);
    for (what, answer) in &found {
        match answer {
            Ok(answer) if sound[what].as_ref() == Ok(answer) => {}
            // Lists have no errors of their own.
            Ok(answer) => assert!(
                (what == "lists" || what == "function") && database.damage().is_some(),
                "{story}: {what} is {answer}, and {problems:?}"
            ),
            Err(error) => assert!(
                error.starts_with("corrupt: ")
                    && error.contains(what.as_str())
                    && !problems.is_empty(),
                "{story}: {what}: {error}, and {problems:?}"
            ),
        }
    }
    let written = Step::Append("u", 1).run(&database);
    match &written {
        Ok(()) => assert_eq!(database.damage(), None, "{story}"),
        Err(error) => assert!(
            matches!(error, StorageError::Corrupt { .. }),
            "{story}: {error}"
        ),
    }
    written.is_err()
}

/// What becomes of a damaged catalog that is opened for reading only.
fn check_reading(path: &Path, damaged: &[u8], sound: &Contents, story: &str) {
    std::fs::write(path, damaged).unwrap();
    let opened = Catalog::open(path, path, true).and_then(|catalog| catalog.contents());
    let found = match opened {
        Ok(found) => found,
        Err(error) => {
            let is_clear = matches!(
                error,
                StorageError::Corrupt { .. } | StorageError::NewerFormat { .. }
            );
            assert!(is_clear, "{story}: {error:?}");
            return;
        }
    };
    for table in &found.tables {
        assert!(sound.tables.contains(table), "{story}: {table:?}");
    }
    for function in &found.functions {
        assert!(sound.functions.contains(function), "{story}: {function:?}");
    }
    let is_whole = found.tables.len() == sound.tables.len()
        && found.functions == sound.functions
        && found.views == sound.views
        && found.schemas == sound.schemas;
    let is_told = !found.damaged.is_empty() || !found.problems.is_empty();
    assert!(is_whole || is_told, "{story}: something is missing");
}

/// `FLASHMESH_DAMAGE_SEED` sets the seed, `FLASHMESH_DAMAGE_TRIALS` how many there are.
#[test]
fn a_damaged_catalog_gives_right_answers_or_clear_errors() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed: u64 = number("FLASHMESH_DAMAGE_SEED").unwrap_or_else(rand::random);
    let usual = if cfg!(debug_assertions) { 40 } else { 10_000 };
    let trials = number("FLASHMESH_DAMAGE_TRIALS").unwrap_or(usual);
    println!("FLASHMESH_DAMAGE_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let images = images(seed);
    let sound = answers(&open(&Rig::new(images[0].copy(seed), seed)).unwrap());
    assert!(sound.values().all(|answer| answer.is_ok()), "{sound:?}");
    // Which commit is the last one hangs on a bit of this byte.
    for bit in 0..8 {
        let mut disks = images[0].copy(seed);
        disks.catalog[9] ^= 1 << bit;
        check(disks, &sound, &format!("bit {bit} of byte 9"));
    }
    let mut noticed = 0;
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("catalog.redb");
    let readable = images.each_ref().map(|disks| {
        std::fs::write(&path, &disks.catalog).unwrap();
        let catalog = Catalog::open(&path, &path, true).unwrap();
        catalog.contents().unwrap()
    });
    // The other one has some in its log.
    assert_eq!(readable[0].tables.len(), 5);
    for trial in 0..trials {
        let kind = KINDS[trial as usize % KINDS.len()];
        let place = rng.random_range(0..images.len());
        let mut disks = images[place].copy(seed);
        kind.apply(&mut disks.catalog, &mut rng);
        let story = format!("seed {seed}, trial {trial}: {kind:?}");
        check_reading(&path, &disks.catalog, &readable[place], &story);
        noticed += u64::from(check(disks, &sound, &story));
    }
    println!("{noticed} of {trials} were noticed");
    assert!(noticed > trials / 10, "{noticed} of {trials} were noticed");
}
