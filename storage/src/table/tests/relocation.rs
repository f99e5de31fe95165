//! Cards that are emptied, and filled, while the database is used.

use std::path::Path;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};

use super::*;
use crate::flash::{Geometry, MemoryFlash};
use crate::index::pace::Pace;
use crate::index::{IndexDefinition, IndexKind};
use crate::store::{CardId, NodeId, StoreCard};
use crate::table::{AsOf, Workspace};

/// Cards of two nodes besides the database's own.
pub(super) const OTHERS: [(NodeId, CardId); 2] = [(NodeId(1), CardId(0)), (NodeId(2), CardId(1))];
/// So many that their pages are not left in memory.
pub(super) const ROWS: usize = 40_000;

pub(super) struct Rack {
    folder: TempDir,
    pub(super) cards: Vec<StoreCard>,
}

impl Rack {
    pub(super) fn new(blocks: u64) -> Self {
        let geometry = |erase_blocks| Geometry {
            pages_per_erase_block: 256,
            erase_blocks,
        };
        let card = |(node, card): (NodeId, CardId)| StoreCard {
            node,
            card,
            flash: Arc::new(MemoryFlash::new(geometry(blocks), 7)),
        };
        Self {
            folder: TempDir::new().unwrap(),
            cards: OTHERS.map(card).to_vec(),
        }
    }

    pub(super) fn open(&self, cards: &[StoreCard]) -> Result<Arc<Database>> {
        let options = DatabaseOptions {
            cards: cards.to_vec(),
            upkeep: UpkeepOptions {
                in_background: false,
                even_from_bytes: 1 << 20,
                ..UpkeepOptions::default()
            },
            ..DatabaseOptions::default()
        };
        Database::open(self.path(), options)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Rows whose texts can't be made smaller.
pub(super) fn noise(rng: &mut StdRng, first: i64) -> RecordBatch {
    let ids = Int64Array::from_iter_values(first..first + ROWS as i64);
    let mut text = || {
        (0..60)
            .map(|_| rng.random_range('!'..'~'))
            .collect::<String>()
    };
    let texts = StringArray::from_iter_values((0..ROWS).map(|_| text()));
    let columns: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(texts)];
    RecordBatch::try_new(schema(), columns).unwrap()
}

fn create_with_past() -> LoadTarget {
    let LoadTarget::Create {
        schema,
        table,
        arrow_schema,
        layout,
        ..
    } = create(false)
    else {
        unreachable!()
    };
    LoadTarget::Create {
        layout,
        distribution: None,
        retention: Duration::from_secs(3600),
        defaults: vec![],
        checks: vec![],
        schema,
        table,
        arrow_schema,
        or_replace: false,
        indexes: vec![IndexDefinition {
            name: "by_text".into(),
            kind: IndexKind::Ngram,
            columns: vec![1],
            unique: false,
            primary: false,
            options: Default::default(),
        }],
    }
}

/// What every version of the table has.
fn contents(database: &Arc<Database>) -> Vec<RecordBatch> {
    let workspace = Workspace::new(Arc::clone(database));
    let versions = database.versions("public", "t").unwrap();
    let version = |version: &crate::table::TableVersion| {
        let table = workspace.as_of("public", "t", AsOf::Version(version.version));
        read(database, table.unwrap())
    };
    // Versions without rows have no batch.
    versions
        .iter()
        .filter_map(|one| version(one).ok())
        .collect()
}

pub(super) fn pages_on(database: &Database, cards: &[(NodeId, CardId)]) -> u64 {
    let live = database.live_pages().into_iter();
    let on = live.filter(|(node, card, _)| cards.contains(&(*node, *card)));
    on.map(|(_, _, pages)| pages).sum()
}

/// Segments, the past and indexes leave, and readers go on; a rack without the card has all of it.
#[test]
fn what_a_drained_card_has_goes_to_the_others() {
    let mut rng = StdRng::seed_from_u64(seed());
    let rack = Rack::new(400);
    let database = rack.open(&rack.cards).unwrap();
    load(&database, create_with_past(), &noise(&mut rng, 0)).unwrap();
    for part in 1..4 {
        load(&database, append(), &noise(&mut rng, part * ROWS as i64)).unwrap();
    }
    database.settle_indexes().unwrap();
    let overwrite = LoadTarget::Overwrite {
        schema: "public".into(),
        table: "t".into(),
    };
    load(&database, overwrite, &noise(&mut rng, 0)).unwrap();
    for part in 1..6 {
        load(&database, append(), &noise(&mut rng, part * ROWS as i64)).unwrap();
    }
    database.settle_indexes().unwrap();
    let before = contents(&database);
    for card in OTHERS {
        assert!(pages_on(&database, &[card]) > 0, "nothing is on {card:?}");
    }

    let reader = database.snapshot("public", "t").unwrap();
    database.drain(&OTHERS[..1]).unwrap();
    let text = load(&database, append(), &noise(&mut rng, 0));
    assert_eq!(text.unwrap(), ROWS as u64);
    let held = pages_on(&database, &OTHERS[..1]);
    while database.relocate(&Pace::full()).unwrap() {}
    assert!(
        pages_on(&database, &OTHERS[..1]) > 0,
        "of the reader, {held} before"
    );
    assert_eq!(
        read(&database, reader.clone()).unwrap(),
        *before.last().unwrap()
    );
    drop(reader);
    assert_eq!(pages_on(&database, &OTHERS[..1]), 0);
    let with_last = contents(&database);
    assert_eq!(with_last[..before.len()], before);
    for segment in &database.snapshot("public", "t").unwrap().segments {
        assert!(segment.node().is_some(), "a segment is on one node");
    }

    // The other one is filled again, then emptied as well; a card of which nothing is known is refused.
    database.drain(&OTHERS[1..]).unwrap();
    load(&database, append(), &noise(&mut rng, 0)).unwrap();
    while database.relocate(&Pace::full()).unwrap() {}
    assert_eq!(pages_on(&database, &OTHERS[1..]), 0);
    let own = (NodeId(0), CardId(0));
    assert!(
        database
            .drain(&[own])
            .unwrap_err()
            .to_string()
            .contains("that of the database")
    );
    assert!(database.drain(&[(NodeId(9), CardId(0))]).is_err());
    database.drain(&OTHERS).unwrap();
    while database.relocate(&Pace::full()).unwrap() {}
    let all = contents(&database);
    assert_eq!(pages_on(&database, &OTHERS), 0);
    drop(database);
    let alone = rack.open(&[]).unwrap();
    assert_eq!(contents(&alone), all);
}

/// What the other cards have no room for stays, and the database goes on.
#[test]
fn a_card_is_not_drained_onto_full_ones() {
    let mut rng = StdRng::seed_from_u64(seed());
    let rack = Rack::new(400);
    let options = DatabaseOptions {
        cards: rack.cards[..1].to_vec(),
        card: Some(Arc::new(MemoryFlash::new(
            Geometry {
                pages_per_erase_block: 256,
                erase_blocks: 16,
            },
            7,
        ))),
        upkeep: UpkeepOptions {
            in_background: false,
            ..UpkeepOptions::default()
        },
        ..DatabaseOptions::default()
    };
    let database = Database::open(rack.path(), options).unwrap();
    load(&database, create(false), &noise(&mut rng, 0)).unwrap();
    for part in 1..12 {
        load(&database, append(), &noise(&mut rng, part * ROWS as i64)).unwrap();
    }
    let before = ids(&database);
    database.drain(&OTHERS[..1]).unwrap();
    while database.relocate(&Pace::full()).unwrap() {}
    assert!(pages_on(&database, &OTHERS[..1]) > 0, "it all had room");
    assert_eq!(ids(&database), before);
    // Filled again, it takes more.
    database.drain(&[]).unwrap();
    load(&database, append(), &noise(&mut rng, 12 * ROWS as i64)).unwrap();
    assert_eq!(ids(&database).len(), 13 * ROWS);
}

/// Segments of all tables go to cards that came, each as a whole, and what is even stays.
#[test]
fn cards_that_come_get_their_part() {
    let mut rng = StdRng::seed_from_u64(seed());
    let rack = Rack::new(400);
    let database = rack.open(&[]).unwrap();
    load(&database, create_with_past(), &noise(&mut rng, 0)).unwrap();
    for part in 1..15 {
        load(&database, append(), &noise(&mut rng, part * ROWS as i64)).unwrap();
    }
    database.settle_indexes().unwrap();
    let before = contents(&database);
    assert!(
        !database.relocate(&Pace::full()).unwrap(),
        "there is one card"
    );
    drop(database);
    let database = rack.open(&rack.cards).unwrap();
    assert_eq!(pages_on(&database, &OTHERS), 0);
    // What it holds counts nowhere.
    let reader = database.snapshot("public", "t").unwrap();
    let mut steps = 0;
    while database.relocate(&Pace::full()).unwrap() {
        steps += 1;
        assert!(steps < 100, "it goes round in circles");
    }
    assert_eq!(read(&database, reader).unwrap(), *before.last().unwrap());
    let live: Vec<u64> = database.live_pages().iter().map(|card| card.2).collect();
    let average = live.iter().sum::<u64>() / 3;
    // A segment is a fifth of what a card gets.
    assert!(
        live.iter().all(|pages| pages * 10 > average * 7),
        "{live:?}"
    );
    assert_eq!(contents(&database), before);
    for segment in &database.snapshot("public", "t").unwrap().segments {
        assert!(segment.node().is_some(), "a segment is on one node");
    }
    assert!(!database.relocate(&Pace::full()).unwrap());
    drop(database);
    assert_eq!(contents(&rack.open(&rack.cards).unwrap()), before);
}

/// An empty device where pages were is none that anything may be written to.
#[test]
fn a_card_that_was_emptied_is_told_before_anything_is_written() {
    let mut rng = StdRng::seed_from_u64(seed());
    let rack = Rack::new(400);
    let database = rack.open(&rack.cards).unwrap();
    // One segment a load, and cards take turns.
    load(&database, create(false), &noise(&mut rng, 0)).unwrap();
    for part in 1..3 {
        load(&database, append(), &noise(&mut rng, part * ROWS as i64)).unwrap();
    }
    let before = contents(&database);
    assert!(pages_on(&database, &OTHERS[1..]) > 0);
    drop(database);
    let emptied = MemoryFlash::new(rack.cards[1].flash.geometry(), 7);
    let mut cards = rack.cards.clone();
    cards[1].flash = Arc::new(emptied);
    // Without copies there is nothing to wait for: the other tables are there.
    drop(rack.open(&cards).unwrap());
    let options = DatabaseOptions {
        cards,
        cards_have_copies: true,
        ..DatabaseOptions::default()
    };
    let error = Database::open(rack.path(), options).unwrap_err();
    assert!(error.is_gone(), "{error}");
    assert!(
        error.to_string().contains("pages of tables are on it"),
        "{error}"
    );
    assert_eq!(contents(&rack.open(&rack.cards).unwrap()), before);
}
