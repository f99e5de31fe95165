//! A small store of lists in memory that keeps snapshot isolation and serialisability, or breaks one
//! rule of them: the checker finds nothing in the histories of the first, and the anomaly in those of
//! the others.

use std::collections::{BTreeMap, BTreeSet};

use rand::RngExt;
use rand::rngs::StdRng;

use super::checker::{Key, Kind, Op, Span, Transaction, check};
use crate::support::random;

/// A rule that the small store breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// Both of two that wrote the same object commit; the second's state stays.
    FirstCommitterWins,
    /// Serialisable transactions commit though what they have read has changed.
    ReadsAreChecked,
    /// A commit becomes visible in two parts.
    CommitsAreAtomic,
    /// What others write is seen before they commit.
    ReadsAreCommitted,
    /// Each read sees the newest version.
    ReadsAreOfOneVersion,
    /// What odd clients commit is seen by even ones, and the reverse, two commits late.
    OneOrderOfCommits,
    /// A commit in ten is gone.
    CommitsStay,
}

type Contents = BTreeMap<Key, Vec<u64>>;

/// What a commit left, the objects that it changed, and whose it was.
#[derive(Default)]
struct Version {
    contents: Contents,
    changed: BTreeSet<Key>,
    client: usize,
}

struct Client {
    transaction: Transaction,
    snapshot: Contents,
    base: usize,
    steps_left: u32,
}

impl Client {
    fn appended(&self, to: Key) -> impl Iterator<Item = u64> {
        self.transaction.ops.iter().filter_map(move |op| match op {
            Op::Append(key, element) if *key == to => Some(*element),
            _ => None,
        })
    }
}

/// A store of lists in memory, and the clients that take turns on it.
struct Store {
    broken: Broken,
    versions: Vec<Version>,
    /// A commit's second part.
    late: Contents,
    clients: [Option<Client>; 6],
    clock: u64,
}

impl Store {
    const KEYS: Key = 5;

    fn tick(&mut self) -> Span {
        self.clock += 2;
        Span {
            called: self.clock - 1,
            returned: self.clock,
        }
    }

    fn newest(&self) -> &Contents {
        &self.versions[self.versions.len() - 1].contents
    }

    fn snapshot(&self, client: usize) -> Contents {
        let mut snapshot = self.newest().clone();
        let oldest = self.versions.len().saturating_sub(2).max(1);
        for late in (oldest..self.versions.len()).rev() {
            let version = &self.versions[late];
            let is_seen = self.broken != Broken::OneOrderOfCommits;
            if !is_seen && version.client % 2 != client % 2 {
                for key in &version.changed {
                    let before = self.versions[late - 1].contents.get(key).cloned();
                    snapshot.insert(*key, before.unwrap_or_default());
                }
            }
        }
        snapshot
    }

    fn read(&self, client: &Client, key: Key) -> Vec<u64> {
        let seen = match self.broken {
            Broken::ReadsAreOfOneVersion => self.newest(),
            _ => &client.snapshot,
        };
        let mut list = seen.get(&key).cloned().unwrap_or_default();
        if self.broken == Broken::ReadsAreCommitted {
            let others = self.clients.iter().flatten();
            list.extend(others.flat_map(|other| other.appended(key)));
        }
        list.extend(client.appended(key));
        list
    }

    fn install(&mut self, appended: &Contents, snapshot: &Contents, client: usize) {
        let mut contents = self.newest().clone();
        for (key, elements) in appended {
            let list = contents.entry(*key).or_default();
            if self.broken == Broken::FirstCommitterWins {
                *list = snapshot.get(key).cloned().unwrap_or_default();
            }
            list.extend(elements);
        }
        self.versions.push(Version {
            contents,
            changed: appended.keys().copied().collect(),
            client,
        });
    }

    /// Whether the transaction is committed.
    fn commit(&mut self, client: &Client, turn: usize, is_lost: bool) -> bool {
        let late = std::mem::take(&mut self.late);
        if !late.is_empty() {
            self.install(&late, &Contents::new(), turn);
        }
        let mut appended: Contents = (0..Self::KEYS)
            .map(|key| (key, client.appended(key).collect::<Vec<_>>()))
            .collect();
        appended.retain(|_, elements| !elements.is_empty());
        let since = &self.versions[client.base..];
        let changed = |key: &Key| since.iter().any(|version| version.changed.contains(key));
        let is_stale = client.transaction.ops.iter().any(|op| match op {
            Op::ReadList(key, _) => changed(key),
            _ => false,
        });
        let is_checked = client.transaction.is_serializable && !appended.is_empty();
        let conflicts = appended.keys().any(changed) && self.broken != Broken::FirstCommitterWins
            || is_stale && is_checked && self.broken != Broken::ReadsAreChecked;
        if !conflicts && !is_lost {
            if self.broken == Broken::CommitsAreAtomic && appended.len() > 1 {
                self.late.extend(appended.pop_first());
            }
            self.install(&appended, &client.snapshot, turn);
        }
        !conflicts
    }
}

/// A history of lists.
fn simulated(rng: &mut StdRng, broken: Broken, serializable: f64) -> Vec<Transaction> {
    let mut store = Store {
        broken,
        versions: vec![Version::default()],
        late: Contents::new(),
        clients: Default::default(),
        clock: 0,
    };
    let mut history = Vec::new();
    for id in 0.. {
        if history.len() == 400 {
            break;
        }
        let turn = rng.random_range(0..store.clients.len());
        let Some(mut client) = store.clients[turn].take() else {
            store.clients[turn] = Some(Client {
                snapshot: store.snapshot(turn),
                base: store.versions.len(),
                steps_left: rng.random_range(1..6),
                transaction: Transaction {
                    id,
                    is_serializable: rng.random_bool(serializable),
                    is_committed: false,
                    begin: store.tick(),
                    end: Span {
                        called: 0,
                        returned: 0,
                    },
                    ops: Vec::new(),
                },
            });
            continue;
        };
        if client.steps_left == 0 {
            let is_lost = broken == Broken::CommitsStay && rng.random_bool(0.1);
            client.transaction.is_committed = store.commit(&client, turn, is_lost);
            client.transaction.end = store.tick();
            history.push(client.transaction);
            continue;
        }
        client.steps_left -= 1;
        let key = rng.random_range(0..Store::KEYS);
        let op = match rng.random_bool(0.4) {
            true => Op::Append(key, id),
            false => Op::ReadList(key, store.read(&client, key)),
        };
        client.transaction.ops.push(op);
        store.clients[turn] = Some(client);
    }
    history
}

#[test]
fn a_store_that_keeps_the_rules_has_no_anomalies_and_one_that_breaks_them_has() {
    let mut rng = random();
    for serializable in [0.0, 0.5, 1.0] {
        for _ in 0..10 {
            let history = simulated(&mut rng, Broken::Nothing, serializable);
            let found = check(&history);
            assert!(found.is_empty(), "{serializable}: {found:#?}");
            let committed = history.iter().filter(|t| t.is_committed).count();
            assert!((100..400).contains(&committed), "{committed}");
        }
    }
    use Kind::{G1a, G2, GNonadjacent, GSingle, Internal, LostUpdate};
    for (broken, serializable, expected) in [
        (Broken::FirstCommitterWins, 0.0, LostUpdate),
        (Broken::ReadsAreChecked, 1.0, G2),
        (Broken::CommitsAreAtomic, 0.0, GSingle),
        (Broken::ReadsAreCommitted, 0.0, G1a),
        (Broken::ReadsAreOfOneVersion, 0.0, Internal),
        (Broken::OneOrderOfCommits, 0.0, GNonadjacent),
        (Broken::CommitsStay, 0.0, GSingle),
    ] {
        let mut all = BTreeSet::new();
        // How soon a rule that is broken shows is left to chance.
        for _ in 0..200 {
            if all.contains(&expected) {
                break;
            }
            all.extend(
                check(&simulated(&mut rng, broken, serializable))
                    .iter()
                    .map(|anomaly| anomaly.kind),
            );
        }
        assert!(all.contains(&expected), "{broken:?}: {all:?}");
    }
}
