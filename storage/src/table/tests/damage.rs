//! Damage of the catalog: right answers or clear errors, whatever its bytes.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::faults::devices::{Disks, Rig};
use super::faults::workloads::Step;
use super::faults::{LOG_BYTES, new_database, open};
use super::*;
use crate::index::IndexKind;
use crate::table::catalog::Catalog;
use crate::table::commit_log::Log;

const PAGE_BYTES: usize = 4096;
/// Those of the header that `redb` uses.
const HEADER_BYTES: usize = 320;

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

/// A database with a bit of everything: as its process closed it, as a crash left it with a log, and
/// as one left it when the catalog had just taken over what the log held, and more.
fn images(seed: u64) -> [Disks; 3] {
    let rig = Rig::new(new_database(seed), seed);
    let database = open(&rig).unwrap();
    let mut steps = vec![
        Step::CreateSchema("s"),
        Step::Create("t", 900, true),
        Step::CreateIndex("t", IndexKind::Ngram),
        Step::Function("f", 3),
        Step::View("v", "SELECT 1"),
        Step::Accounts("ann"),
        Step::Accounts("ann, bob"),
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
    assert!(crashed.log.len() > 8 * PAGE_BYTES);
    Step::Append("w3", 2000).run(&database).unwrap();
    let without_log = rig.restart(seed);
    drop(database);
    [rig.restart(seed), crashed, without_log]
}

type Answers = BTreeMap<String, std::result::Result<String, String>>;

/// What each object is, as far as it can be told.
fn answers(database: &Arc<Database>) -> Answers {
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
    let accounts = database.accounts();
    let accounts = accounts.map(|accounts| format!("{} {}", accounts.version, accounts.text));
    answers.insert("accounts".into(), accounts.map_err(|e| e.to_string()));
    answers.insert("lists".into(), Ok(listed));
    answers
}

/// Checks what becomes of a damaged database; gives whether it was noticed.
fn check(disks: Disks, sound: &Answers, story: &str) -> bool {
    let rig = Rig::new(disks, 1);
    let Some(database) = check_answers(open(&rig), sound, story) else {
        return true;
    };
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

/// What becomes of it when it is opened for reading only, with its catalog in the file `path`.
fn check_reading(path: &Path, disks: Disks, sound: &Answers, story: &str) {
    std::fs::write(path, &disks.catalog).unwrap();
    let rig = Rig::new(disks, 1);
    let log = Log::new(path, rig.log.clone(), LOG_BYTES);
    let options = DatabaseOptions {
        read_only: true,
        ..DatabaseOptions::default()
    };
    let opened = Catalog::open(path, path, true).and_then(|catalog| {
        Database::with_parts(path.to_path_buf(), catalog, rig.card, log, &options)
    });
    check_answers(opened, sound, &format!("{story}, read only"));
}

/// Checks what a damaged database says of itself, if it opens.
fn check_answers(
    opened: Result<Arc<Database>>,
    sound: &Answers,
    story: &str,
) -> Option<Arc<Database>> {
    let database = match opened {
        Ok(database) => database,
        Err(error) => {
            let is_clear = matches!(
                error,
                StorageError::Corrupt { .. } | StorageError::NewerFormat { .. }
            );
            assert!(is_clear, "{story}: {error:?}");
            return None;
        }
    };
    let problems = database.fsck(&mut |_| Ok(())).unwrap().problems;
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
    Some(database)
}

/// `redb` commits when it is closed; over damaged bytes that wrote where others' pages are, and with
/// some of them it ended the process.
#[test]
fn a_catalog_that_is_damaged_is_closed_as_it_is() {
    let image = images(1).into_iter().next().unwrap();
    let pages = (PAGE_BYTES..image.catalog.len()).step_by(PAGE_BYTES);
    let mut noticed = 0;
    for page in pages {
        let mut disks = image.copy(1);
        if disks.catalog[page..page + PAGE_BYTES]
            .iter()
            .all(|b| *b == 0)
        {
            continue;
        }
        disks.catalog[page..page + PAGE_BYTES].fill(0);
        let damaged = disks.catalog[PAGE_BYTES..].to_vec();
        let rig = Rig::new(disks, 1);
        let is_noticed = open(&rig).map_or(true, |database| database.damage().is_some());
        if is_noticed {
            noticed += 1;
            let left = rig.restart(1).catalog;
            // The header says that it was not closed.
            let left = &left[PAGE_BYTES..];
            assert!(left == damaged, "page {} was damaged", page / PAGE_BYTES);
        }
    }
    assert!(noticed > 0);
}

/// `FLASHMESH_DAMAGE_SEED` sets the seed, `FLASHMESH_DAMAGE_TRIALS` how many there are.
#[test]
fn a_damaged_catalog_gives_right_answers_or_clear_errors() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed: u64 = number("FLASHMESH_DAMAGE_SEED").unwrap_or_else(rand::random);
    let usual = if cfg!(debug_assertions) { 40 } else { 4_000 };
    let trials = number("FLASHMESH_DAMAGE_TRIALS").unwrap_or(usual);
    println!("FLASHMESH_DAMAGE_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let images = images(seed);
    let sound = images.each_ref().map(|image| {
        let sound = answers(&open(&Rig::new(image.copy(seed), seed)).unwrap());
        assert!(sound.values().all(|answer| answer.is_ok()), "{sound:?}");
        sound
    });
    let mut noticed = 0;
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("catalog.redb");
    // What there is, and which commit is the last one, hangs on bits of this page: each is flipped.
    let bits = if cfg!(debug_assertions) {
        72..80
    } else {
        0..HEADER_BYTES * 8
    };
    for bit in bits {
        for (image, sound) in images.iter().zip(&sound) {
            let mut disks = image.copy(seed);
            disks.catalog[bit / 8] ^= 1 << (bit % 8);
            let story = format!("seed {seed}, bit {bit} of the header");
            check_reading(&path, disks.copy(seed), sound, &story);
            check(disks, sound, &story);
        }
    }
    for trial in 0..trials {
        let kind = KINDS[trial as usize % KINDS.len()];
        let place = rng.random_range(0..images.len());
        let mut disks = images[place].copy(seed);
        kind.apply(&mut disks.catalog, &mut rng);
        let story = format!("seed {seed}, trial {trial}: {kind:?}");
        check_reading(&path, disks.copy(seed), &sound[place], &story);
        noticed += u64::from(check(disks, &sound[place], &story));
    }
    println!("{noticed} of {trials} were noticed");
    assert!(noticed > trials / 10, "{noticed} of {trials} were noticed");
}
