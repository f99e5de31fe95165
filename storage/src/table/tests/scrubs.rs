//! The scrub finds what went bad, wherever it is.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use super::faults::workloads::Step;
use super::*;
use crate::flash::PAGE_SIZE_BYTES;
use crate::index::IndexKind;
use crate::index::pace::Pace;
use crate::table::ScrubStatus;

/// Goes around once, in steps of so many pages.
fn go_around(database: &Database, pages: f64) -> ScrubStatus {
    let passes = database.scrubbed().passes;
    while database.scrubbed().passes == passes {
        database.scrub_pages(pages, &Pace::full()).unwrap();
    }
    database.scrubbed()
}

#[test]
fn a_page_that_went_bad_is_named() {
    let mut rng = StdRng::seed_from_u64(seed());
    let dir = TempDir::new().unwrap();
    let options = DatabaseOptions {
        upkeep: UpkeepOptions {
            in_background: false,
            ..UpkeepOptions::default()
        },
        ..DatabaseOptions::default()
    };
    let database = Database::open(dir.path(), options).unwrap();
    for step in [
        Step::Create("t", 3000, true),
        Step::CreateIndex("t", IndexKind::Ngram),
        Step::CreateIndex("t", IndexKind::Lsh),
        Step::Create("u", 400, false),
        Step::EmptyLog,
        Step::Append("t", 7),
    ] {
        step.run(&database).unwrap();
    }
    let sound = go_around(&database, f64::INFINITY);
    assert_eq!((sound.passes, sound.problems.len()), (1, 0));
    let small_steps = go_around(&database, 1.0);
    assert_eq!((small_steps.passes, small_steps.problems.len()), (2, 0));

    let card = OpenOptions::new()
        .read(true)
        .write(true)
        .open(dir.path().join("card0.flash"))
        .unwrap();
    let tables = ["t", "u"].map(|table| database.snapshot("public", table).unwrap());
    let on_card = |run: &&crate::store::PageRun| run.first.card == crate::store::CardId::default();
    let mut found = 0;
    for run in tables.iter().flat_map(|table| table.runs()).filter(on_card) {
        let page = run.first.page.0 + u64::from(rng.random_range(0..run.count));
        let at = page * PAGE_SIZE_BYTES as u64 + rng.random_range(0..PAGE_SIZE_BYTES as u64);
        let mut byte = [0];
        card.read_exact_at(&mut byte, at).unwrap();
        card.write_all_at(&[byte[0] ^ 1 << rng.random_range(0..8)], at)
            .unwrap();
        card.sync_all().unwrap();
        // The cache may have the page as it was: the scrub looks at the flash.
        let status = go_around(&database, 50.0);
        assert!(status.problems.len() > found, "page {page}");
        found = status.problems.len();
        let named = |problem: &String| problem.contains(&*run.label);
        assert!(status.problems.iter().any(named), "{:?}", status.problems);
        card.write_all_at(&byte, at).unwrap();
    }
    assert!(found >= 10, "{found}");
    // What is known is known once.
    assert_eq!(go_around(&database, 1e9).problems.len(), found);
}
