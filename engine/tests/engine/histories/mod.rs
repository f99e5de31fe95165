//! Concurrent histories: clients do random transactions at once, and what they have seen must be
//! what the isolation levels of their transactions allow.
//!
//! `FLASHMESH_HISTORY_ROUNDS` sets how many histories there are (the long form: 200),
//! `FLASHMESH_HISTORY_TRANSACTIONS` how many transactions each of the eight clients does in one, and
//! `FLASHMESH_TEST_SEED` the first one's seed; those after it have the numbers after it. A seed gives
//! the same choices again, not the same turns.

mod checker;
mod graph;
mod planted;
mod rows;
mod simulated;
mod workload;

use std::path::Path;
use std::sync::{Arc, mpsc};

use flashmesh::{Engine, EngineOptions};
use rand::SeedableRng;
use rand::rngs::StdRng;

use self::checker::{Transaction, check};
use self::workload::{Client, Clock, TABLES, upkeep};
use crate::support::{run, seed};

const CLIENTS: u64 = 8;
/// So many transactions of clients go between two statements of upkeep.
const UPKEEP_EVERY: usize = 12;

fn setting(name: &str, usual: usize) -> usize {
    let set = std::env::var(name).ok();
    set.map_or(usual, |set| {
        set.parse()
            .unwrap_or_else(|_| panic!("{name}={set} is no number"))
    })
}

#[test]
fn concurrent_histories_are_of_their_isolation_levels() {
    // Builds without optimisation take a sample.
    let transactions = if cfg!(debug_assertions) { 25 } else { 150 };
    let transactions = setting("FLASHMESH_HISTORY_TRANSACTIONS", transactions);
    let first = seed();
    for round in 0..setting("FLASHMESH_HISTORY_ROUNDS", 3) {
        let seed = first.wrapping_add(round as u64);
        // Which share of the transactions is serialisable.
        let serializable = [0.0, 0.5, 1.0][(seed % 3) as usize];
        let history = history(seed, transactions, serializable);
        let anomalies = check(&history);
        let committed = |t: &&Transaction| t.is_committed;
        println!(
            "FLASHMESH_TEST_SEED={seed}: {} transactions, {} of them committed, {} that are \
             serialisable and wrote",
            history.len(),
            history.iter().filter(committed).count(),
            history
                .iter()
                .filter(committed)
                .filter(|t| t.is_serializable && t.has_writes())
                .count(),
        );
        if !anomalies.is_empty() {
            let file = std::env::temp_dir().join(format!("flashmesh-history-{seed}.txt"));
            std::fs::write(&file, format!("{history:#?}")).unwrap();
            let all: Vec<_> = anomalies.iter().map(ToString::to_string).collect();
            panic!("{}\nthe history: {}", all.join("\n"), file.display());
        }
        let wrote = history.iter().filter(committed).filter(|t| t.has_writes());
        assert!(wrote.count() > transactions / 2, "hardly any was committed");
    }
}

/// What the clients saw, and at last what was there, before and after the database was reopened.
fn history(seed: u64, transactions: usize, serializable: f64) -> Vec<Transaction> {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(Clock::default());
    let mut rng = StdRng::seed_from_u64(seed);
    let engine = open(folder.path());
    let mut client = |number: u64, engine: &Arc<Engine>| {
        let rng = StdRng::from_rng(&mut rng);
        Client::new(number, engine.session().unwrap(), &clock, rng, serializable)
    };
    let mut before = client(0, &engine);
    let mut history = vec![runtime().block_on(async {
        run(&engine.session().unwrap(), TABLES).await;
        before.fill().await
    })];
    let clients: Vec<_> = (1..=CLIENTS)
        .map(|number| client(number, &engine))
        .collect();
    let mut after = client(CLIENTS + 1, &engine);
    let mut upkeep_rng = StdRng::seed_from_u64(!seed);
    let (done, transactions_done) = mpsc::channel();
    std::thread::scope(|scope| {
        let clients: Vec<_> = clients
            .into_iter()
            .map(|mut client| {
                let done = done.clone();
                let act = async move {
                    let mut own = Vec::new();
                    for _ in 0..transactions {
                        own.push(client.act().await);
                        done.send(()).unwrap();
                    }
                    own
                };
                scope.spawn(|| runtime().block_on(act))
            })
            .collect();
        drop(done);
        let session = engine.session().unwrap();
        runtime().block_on(async {
            for turn in 1.. {
                if transactions_done.recv().is_err() {
                    break;
                }
                if turn % UPKEEP_EVERY == 0 {
                    upkeep(&session, &mut upkeep_rng).await;
                }
            }
        });
        history.extend(
            clients
                .into_iter()
                .flat_map(|client| client.join().unwrap()),
        );
    });
    history.push(runtime().block_on(after.read_all()));
    drop((before, after, engine));
    let engine = open(folder.path());
    let mut reopened = Client::new(
        CLIENTS + 2,
        engine.session().unwrap(),
        &clock,
        StdRng::seed_from_u64(seed),
        serializable,
    );
    history.push(runtime().block_on(reopened.read_all()));
    history
}

fn open(folder: &Path) -> Arc<Engine> {
    let options = EngineOptions {
        path: Some(folder.into()),
        ..EngineOptions::default()
    };
    Engine::open(options).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}
