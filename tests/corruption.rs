//! Damage on flash: whatever is flipped, zeroed or misplaced, a query gives the right answer or
//! an error that names table, column and page; and `fsck` finds it.

use std::fs;
use std::path::{Path, PathBuf};

use flashmesh::{Result, Session};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::support::{PUSHDOWN_MODES, Row, open, query, seed, set_pushdown};

const PAGE_SIZE_BYTES: usize = 8192;
const FLIPS: usize = 40;
const MAGIC: &[u8] = b"FMP";

/// Queries that between them read every page of `t`, filtered, aggregated, sorted, projected.
const QUERIES: [&str; 6] = [
    "SELECT * FROM t ORDER BY id",
    "SELECT flag, count(*), sum(price), min(name), max(at) FROM t GROUP BY flag ORDER BY flag",
    "SELECT count(*) FROM t WHERE name LIKE '%77%'",
    "SELECT id, name FROM t WHERE price > 400 ORDER BY price DESC, id LIMIT 20",
    "SELECT sum(id), sum(CAST(weight AS BIGINT)), count(note) FROM t",
    "SELECT kind, count(*) FROM t WHERE at >= DATE '2001-01-01' GROUP BY kind ORDER BY kind",
];

/// Integers, decimals, dates, floats, dictionary text, unique text, NULLs: every encoding.
const MAKE_TABLE: &str = "
    CREATE TABLE t AS SELECT
        value AS id,
        value % 3 = 0 AS flag,
        CAST(value * 37 % 50000 AS DECIMAL(15, 2)) / 100 AS price,
        DATE '2000-01-01' + CAST(value % 900 AS INT) AS at,
        CAST(value AS DOUBLE) / 7 AS weight,
        'kind ' || (value % 5) AS kind,
        'name of row ' || value || ' is ' || (value * 7919 % 10007) AS name,
        CASE WHEN value % 11 = 0 THEN 'note ' || value END AS note
    FROM generate_series(1, 70000) AS series(value)";

/// The column group of pages that hold page indexes (docs/flash-format.md, section 8).
const PAGE_INDEXES: u16 = 65_535;

/// A database with table `t`, and its answers.
struct Fixture {
    folder: tempfile::TempDir,
    answers: Vec<Vec<Row>>,
    /// The card's bytes as they were written.
    sound: Vec<u8>,
    /// Places of the pages.
    pages: Vec<usize>,
}

impl Fixture {
    async fn new() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let mut answers = Vec::new();
        {
            let engine = open(&folder.path().join("db")).unwrap();
            let session = engine.session().unwrap();
            query(&session, MAKE_TABLE).await.unwrap();
            for sql in QUERIES {
                answers.push(query(&session, sql).await.unwrap());
            }
        }
        let sound = fs::read(card(folder.path())).unwrap();
        let is_page = |at: &usize| sound[*at..].starts_with(MAGIC);
        let pages: Vec<usize> = (0..sound.len())
            .step_by(PAGE_SIZE_BYTES)
            .filter(is_page)
            .collect();
        assert!(pages.len() > 100, "{} pages", pages.len());
        Fixture {
            folder,
            answers,
            sound,
            pages,
        }
    }

    /// Whether the page at this place holds page indexes.
    fn is_page_index(&self, page: usize) -> bool {
        u16::from_le_bytes([self.sound[page + 12], self.sound[page + 13]]) == PAGE_INDEXES
    }

    /// Puts `damaged`, which differs from what is sound in `page`, in the card's place; checks what
    /// queries and `fsck` make of it.
    async fn check(&self, damaged: &[u8], page: usize, story: &str) {
        fs::write(card(self.folder.path()), damaged).unwrap();
        let engine = open(&self.folder.path().join("db")).unwrap();
        let session = engine.session().unwrap();
        let mut errors = 0;
        for mode in PUSHDOWN_MODES {
            set_pushdown(&session, mode).await;
            for (sql, answer) in QUERIES.iter().zip(&self.answers) {
                match query(&session, sql).await {
                    Ok(rows) => assert!(
                        rows == *answer,
                        "{story}: a wrong answer, pushdown {mode}: {sql}"
                    ),
                    Err(error) => {
                        errors += 1;
                        assert_names_the_place(&error.to_string(), story);
                    }
                }
            }
        }
        // The first query reads all pages, in each mode. What page indexes say is in the pages too.
        match self.is_page_index(page) {
            true => assert_eq!(errors, 0, "{story}"),
            false => assert!(
                errors >= PUSHDOWN_MODES.len(),
                "{story}: found by {errors} queries only"
            ),
        }
        let report = engine.database().fsck(&mut |_| Ok(())).unwrap();
        assert!(!report.problems.is_empty(), "{story}: fsck found nothing");
        for problem in &report.problems {
            assert_names_the_place(problem, story);
        }
    }
}

fn card(folder: &Path) -> PathBuf {
    folder.join("db/card0.flash")
}

fn assert_names_the_place(message: &str, story: &str) {
    let names = |part: &str| message.contains(part);
    let names_column = names("column '") || names("page indexes");
    assert!(
        names("table 'public.t'") && names_column && names("page "),
        "{story}: the message does not name the place: {message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_is_an_error_that_names_its_page_never_an_answer() {
    let seed = seed("corruption");
    let mut rng = SmallRng::seed_from_u64(seed);
    let fixture = Fixture::new().await;
    for _ in 0..FLIPS {
        let page = *fixture.pages.choose(&mut rng).unwrap();
        let (byte, bit) = (rng.random_range(0..PAGE_SIZE_BYTES), rng.random_range(0..8));
        let mut damaged = fixture.sound.clone();
        damaged[page + byte] ^= 1 << bit;
        let story = format!("seed {seed}: bit {bit} of byte {byte} of the page at {page}");
        fixture.check(&damaged, page, &story).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_or_misplaced_page_is_found_though_its_checksum_is_right() {
    let seed = seed("misplaced");
    let mut rng = SmallRng::seed_from_u64(seed);
    let fixture = Fixture::new().await;
    for _ in 0..FLIPS / 4 {
        let page = *fixture.pages.choose(&mut rng).unwrap();
        let other = *fixture.pages.choose(&mut rng).unwrap();
        let mut damaged = fixture.sound.clone();
        damaged[page..page + PAGE_SIZE_BYTES].fill(0);
        fixture
            .check(
                &damaged,
                page,
                &format!("seed {seed}: the page at {page} is zeroed"),
            )
            .await;
        if other != page {
            damaged[page..page + PAGE_SIZE_BYTES]
                .copy_from_slice(&fixture.sound[other..other + PAGE_SIZE_BYTES]);
            let story =
                format!("seed {seed}: the page at {page} has the contents of the one at {other}");
            fixture.check(&damaged, page, &story).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_was_cut_off_is_an_error() {
    let fixture = Fixture::new().await;
    let mut of_columns = fixture.pages.iter().rev();
    let last = of_columns.find(|page| !fixture.is_page_index(**page));
    let sound = &fixture.sound[..*last.unwrap()];
    fs::write(card(fixture.folder.path()), sound).unwrap();
    let result = async {
        let session: Session = open(&fixture.folder.path().join("db"))?.session()?;
        query(&session, QUERIES[0]).await
    };
    let result: Result<Vec<Row>> = result.await;
    let error = result
        .expect_err("a card without its last page can't answer")
        .to_string();
    assert!(
        error.contains("card0.flash") || error.contains("table 'public.t'"),
        "{error}"
    );
}
