//! The engine on a modelled card of raw NAND (`docs/flash-management.md`).

use std::path::Path;
use std::sync::Arc;

use flashmesh::{Engine, EngineOptions, Session};
use flashmesh_storage::flash::{NandFlash, NandOptions, NandShape, WearRate};

use crate::support::{Row, collect, open, query};
use crate::tpch::{load_tpch, wrong_answers};

/// A card of 384 MiB with 5 % bad blocks, more of them in time, and a raw bit error rate of 1e-5.
fn card(seed: u64) -> Arc<NandFlash> {
    let options = NandOptions {
        seed,
        shape: NandShape {
            blocks_per_chip: 24,
            ..NandShape::default()
        },
        reserve: 0.15,
        bad_at_birth: 0.05,
        bit_errors: WearRate::always(1e-5),
        program_failures: WearRate::always(1e-5),
        erase_failures: WearRate::always(1e-4),
        ..NandOptions::default()
    };
    Arc::new(NandFlash::new(options).unwrap())
}

fn open_on(folder: &Path, card: &Arc<NandFlash>) -> Arc<Engine> {
    let options = EngineOptions {
        path: Some(folder.to_path_buf()),
        card: Some(card.clone()),
        ..EngineOptions::default()
    };
    Engine::open(options).unwrap()
}

async fn flash(session: &Session, columns: &str) -> Row {
    let sql = format!("SELECT {columns} FROM system.flash");
    query(session, &sql).await.unwrap().remove(0)
}

fn number(row: &Row, column: usize) -> f64 {
    row[column].as_ref().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn tpch_is_loaded_updated_and_answered_on_raw_nand() {
    let seed = rand::random();
    println!("seed {seed}");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("db");
    let card = card(seed);
    let engine = open_on(&folder, &card);
    let session = engine.session().unwrap();
    load_tpch(&session).await;
    // What is changed is as before in the end.
    for sql in [
        "CREATE TABLE kept AS SELECT * FROM orders WHERE o_orderkey % 32 = 1",
        "DELETE FROM orders WHERE o_orderkey % 32 = 1",
        "INSERT INTO orders SELECT * FROM kept",
        "DROP TABLE kept",
        "UPDATE lineitem SET l_quantity = l_quantity + 1 WHERE l_orderkey % 100 < 3",
        "UPDATE lineitem SET l_quantity = l_quantity - 1 WHERE l_orderkey % 100 < 3",
    ] {
        collect(&session, sql).await.unwrap();
    }
    engine.database().compact("public", "lineitem").unwrap();
    drop((session, engine));

    let card = Arc::new(card.restart().unwrap());
    let engine = open_on(&folder, &card);
    let session = engine.session().unwrap();
    let wrong = wrong_answers(&session, "auto").await;
    assert!(wrong.is_empty(), "seed {seed}\n{}", wrong.join("\n"));

    let columns = "bad_blocks, corrected_bits, uncorrectable_pages, wear_spread, \
                   modelled_busy_ms, modelled_elapsed_ms, live_bytes, capacity_bytes";
    let row = flash(&session, columns).await;
    println!("{columns}: {row:?}");
    assert!(number(&row, 0) > 0.0 && number(&row, 1) > 0.0, "{row:?}");
    assert_eq!(row[2].as_deref(), Some("0"));
    assert!(number(&row, 4) > number(&row, 5), "chips work side by side");
    assert!(number(&row, 6) < number(&row, 7), "{row:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_hides_its_chips_shows_what_the_store_knows() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(&folder.path().join("db")).unwrap();
    let session = engine.session().unwrap();
    let create = "CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 300000)";
    collect(&session, create).await.unwrap();
    let columns = "card, live_bytes + memory_bytes, collected_pages, write_amplification, \
                   erase_count_max, bad_blocks, modelled_busy_ms";
    let row = flash(&session, columns).await;
    assert_eq!(row[0].as_deref(), Some("0"));
    assert!(number(&row, 1) > 0.0, "{row:?}");
    assert_eq!(row[2].as_deref(), Some("0"));
    assert!(row[3..].iter().all(Option::is_none), "{row:?}");
}
