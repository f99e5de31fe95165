//! Which anomalies a history of transactions has, in the manner of Elle (Kingsbury and Alvaro,
//! VLDB 2020), from what clients have seen alone.
//!
//! *Objects* are rows and groups of rows whose state tells how it came about:
//! * a **list** grows by elements of which each is appended once in a history; a read gives all of
//!   them, so the longest read gives the order of the writers;
//! * a **register** has a version that each write makes one greater, and the transaction that wrote
//!   it;
//! * a **set** gets elements in no order, by writes that do not conflict.
//!
//! From these follow the dependencies of Adya: *ww* (wrote the version after), *wr* (read what the
//! other wrote), *rw* (read what the other then wrote over). Time adds that what had returned before
//! something else was called came first. Instead of looking for those cycles that an isolation level
//! forbids, each dependency is written as an order of points: a transaction has one where it begins
//! and one where it commits (`graph.rs`). Under snapshot isolation
//!
//! | dependency of T and U | order |
//! |---|---|
//! | ww, wr | T commits before U begins (first committer wins, reads are of what was committed) |
//! | rw | T begins before U commits |
//! | rw, and T is serialisable and writes | T commits before U does |
//!
//! and a history is of its isolation levels if these orders have no cycle: without the last row that
//! says that no cycle of dependencies lacks two rw in succession, with it alone that there is none.
//! Transactions of both levels may be in one history. What a transaction has read must be of one
//! version also where its commit is refused, which Elle does not ask for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use super::graph::{Dependency, Graph};

/// The number of an object.
pub type Key = u32;
/// The number of a transaction, by which registers name it.
pub type Id = u64;

/// What a transaction did, and what it saw.
#[derive(Debug, Clone)]
pub enum Op {
    Append(Key, u64),
    ReadList(Key, Vec<u64>),
    Add(Key, u64),
    ReadSet(Key, BTreeSet<u64>),
    /// A register's version that the transaction made.
    Write(Key, u64),
    /// A register's version and who wrote it.
    ReadRegister(Key, Option<(u64, Id)>),
    /// A sum that no transaction changes: as found, as it must be.
    Sum(i64, i64),
}

/// When something was called and when it had returned, by a clock that gives no time twice.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    pub called: u64,
    pub returned: u64,
}

/// A transaction as its client saw it.
#[derive(Debug, Clone)]
pub struct Transaction {
    pub id: Id,
    pub is_serializable: bool,
    pub is_committed: bool,
    pub begin: Span,
    pub end: Span,
    pub ops: Vec<Op>,
}

impl Transaction {
    /// Whether it wrote anything.
    pub fn has_writes(&self) -> bool {
        self.writes().next().is_some()
    }

    fn writes(&self) -> impl Iterator<Item = (Key, u64)> {
        self.ops.iter().filter_map(|op| match op {
            Op::Append(key, value) | Op::Add(key, value) | Op::Write(key, value) => {
                Some((*key, *value))
            }
            _ => None,
        })
    }
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Reads of a transaction that contradict each other or its own writes.
    Internal,
    /// A sum that is another.
    WrongSum,
    /// A value that nobody wrote.
    Garbage,
    /// An element that is there twice.
    Duplicate,
    /// Lists of which neither is the other's beginning.
    IncompatibleOrder,
    /// Two transactions wrote over the same version, having read it.
    LostUpdate,
    /// A read of what was rolled back.
    G1a,
    /// A read of what its writer has written over itself.
    G1b,
    /// A cycle of ww.
    G0,
    /// A cycle of ww and wr.
    G1c,
    /// A cycle with one rw.
    GSingle,
    /// A cycle with several rw, of which no two follow each other.
    GNonadjacent,
    /// A cycle with rw after rw: what only serialisable transactions may not have.
    G2,
}

/// What is wrong, and with which transactions.
#[derive(Debug, Clone)]
pub struct Anomaly {
    pub kind: Kind,
    /// Whether it takes the order in time to see it.
    pub is_of_time: bool,
    pub why: String,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = if self.is_of_time { ", in time" } else { "" };
        write!(f, "{:?}{time}: {}", self.kind, self.why)
    }
}

/// The anomalies of a history, a few of each kind at most; none if it is what the isolation levels
/// of its transactions allow.
pub fn check(history: &[Transaction]) -> Vec<Anomaly> {
    let mut checker = Checker {
        history,
        places: history.iter().enumerate().map(|(n, t)| (t.id, n)).collect(),
        anomalies: Vec::new(),
    };
    assert_eq!(checker.places.len(), history.len(), "a number came twice");
    let reads: Vec<_> = (0..history.len()).map(|n| checker.reads_of(n)).collect();
    let mut graph = Graph::new(history);
    checker.lists(&reads, &mut graph);
    checker.registers(&reads, &mut graph);
    checker.sets(&reads, &mut graph);
    checker.anomalies.extend(graph.anomalies());
    checker.anomalies
}

/// A state of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    List(Vec<u64>),
    Set(BTreeSet<u64>),
    Register(Option<(u64, Id)>),
}

/// What a transaction has read of objects, without what it wrote itself.
type Reads = BTreeMap<Key, State>;

/// Which transaction wrote a value, by its place in the history.
type Writers = HashMap<(Key, u64), usize>;

struct Checker<'a> {
    history: &'a [Transaction],
    places: HashMap<Id, usize>,
    anomalies: Vec<Anomaly>,
}

impl Checker<'_> {
    fn report(&mut self, kind: Kind, why: String) {
        const MAX_OF_A_KIND: usize = 5;
        if self.anomalies.iter().filter(|a| a.kind == kind).count() < MAX_OF_A_KIND {
            self.anomalies.push(Anomaly {
                kind,
                is_of_time: false,
                why,
            });
        }
    }

    /// What a transaction has read; its own writes, and what it has read before, must be there.
    fn reads_of(&mut self, place: usize) -> Reads {
        let transaction = &self.history[place];
        let id = transaction.id;
        let mut reads = Reads::new();
        let mut own: BTreeMap<Key, Vec<u64>> = BTreeMap::new();
        for op in &transaction.ops {
            let (key, state) = match op {
                Op::Append(key, value) | Op::Add(key, value) | Op::Write(key, value) => {
                    own.entry(*key).or_default().push(*value);
                    continue;
                }
                Op::Sum(found, expected) => {
                    if found != expected {
                        let why = format!("T{id} read a sum of {found}, which is {expected}");
                        self.report(Kind::WrongSum, why);
                    }
                    continue;
                }
                Op::ReadList(key, list) => {
                    let own = own.get(key).map_or(&[][..], Vec::as_slice);
                    let others = list.strip_suffix(own).map(|l| State::List(l.to_vec()));
                    (*key, others)
                }
                Op::ReadSet(key, set) => {
                    let own: BTreeSet<_> = own.get(key).into_iter().flatten().copied().collect();
                    let others = set.difference(&own).copied().collect();
                    (*key, own.is_subset(set).then_some(State::Set(others)))
                }
                Op::ReadRegister(key, found) => match own.get(key).and_then(|own| own.last()) {
                    Some(version) if *found == Some((*version, id)) => continue,
                    Some(_) => (*key, None),
                    None => (*key, Some(State::Register(*found))),
                },
            };
            let Some(state) = state else {
                let why = format!("T{id} did not see its own writes of {key}: {op:?}");
                self.report(Kind::Internal, why);
                continue;
            };
            let before = reads.entry(key).or_insert_with(|| state.clone());
            if *before != state {
                let why = format!("T{id} read {key} as {before:?}, then as {state:?}");
                self.report(Kind::Internal, why);
            }
        }
        reads
    }

    /// Who wrote which value.
    fn writers(&self, of: impl Fn(&Op) -> bool) -> Writers {
        let mut writers = Writers::new();
        for (place, transaction) in self.history.iter().enumerate() {
            for op in transaction.ops.iter().filter(|op| of(op)) {
                if let Op::Append(key, value) | Op::Add(key, value) = op {
                    let before = writers.insert((*key, *value), place);
                    assert!(before.is_none(), "{value} is written to {key} twice");
                }
            }
        }
        writers
    }

    /// Who wrote a value that was read, unless nobody did or it was rolled back.
    fn writer(&mut self, writers: &Writers, key: Key, value: u64, reader: usize) -> Option<usize> {
        let id = self.history[reader].id;
        let Some(place) = writers.get(&(key, value)) else {
            let why = format!("T{id} read {value} of {key}, which nobody wrote");
            self.report(Kind::Garbage, why);
            return None;
        };
        let writer = &self.history[*place];
        if !writer.is_committed {
            let why = format!(
                "T{id} read {value} of {key}, of T{}, which was refused",
                writer.id
            );
            self.report(Kind::G1a, why);
            return None;
        }
        Some(*place)
    }

    /// A read of a version of which its writer has made a later one.
    fn check_final(&mut self, key: Key, value: u64, writer: usize, reader: usize) {
        let (writer, reader) = (&self.history[writer], &self.history[reader]);
        let last = writer.writes().filter(|(of, _)| *of == key).last();
        if last.is_some_and(|(_, last)| last != value) {
            let why = format!(
                "T{} read {value} of {key}, over which T{} wrote",
                reader.id, writer.id
            );
            self.report(Kind::G1b, why);
        }
    }

    /// Several that have read a version and made the next one.
    fn lost_updates(&mut self, key: Key, updates: &BTreeMap<u64, BTreeSet<usize>>) {
        for (version, places) in updates {
            if places.len() > 1 {
                let ids: Vec<_> = places.iter().map(|place| self.history[*place].id).collect();
                let why = format!("{ids:?} have each changed version {version} of {key}");
                self.report(Kind::LostUpdate, why);
            }
        }
    }

    fn is_changed_by(&self, key: Key, place: usize) -> bool {
        let transaction = &self.history[place];
        transaction.is_committed && transaction.writes().any(|(of, _)| of == key)
    }

    fn lists(&mut self, reads: &[Reads], graph: &mut Graph<'_>) {
        let writers = self.writers(|op| matches!(op, Op::Append(..)));
        let mut of_key: BTreeMap<Key, Vec<(usize, &[u64])>> = BTreeMap::new();
        for (place, reads) in reads.iter().enumerate() {
            for (key, state) in reads {
                if let State::List(list) = state {
                    of_key.entry(*key).or_default().push((place, list));
                }
            }
        }
        let mut unread: BTreeMap<Key, BTreeSet<(u64, usize)>> = BTreeMap::new();
        for ((key, value), place) in &writers {
            if self.history[*place].is_committed {
                unread.entry(*key).or_default().insert((*value, *place));
                of_key.entry(*key).or_default();
            }
        }
        for (key, reads) in of_key {
            let longest = reads.iter().max_by_key(|(_, list)| list.len());
            let (reader, order) = longest.copied().unwrap_or((0, &[]));
            if order.iter().collect::<BTreeSet<_>>().len() < order.len() {
                let why = format!("{key} is {order:?}");
                self.report(Kind::Duplicate, why);
                continue;
            }
            let order: Vec<_> = order
                .iter()
                .map(|value| (*value, self.writer(&writers, key, *value, reader)))
                .collect();
            // What nobody has read comes after what was.
            let mut unread = unread.remove(&key).unwrap_or_default();
            unread.retain(|(value, writer)| !order.contains(&(*value, Some(*writer))));
            let unread: Vec<_> = unread.into_iter().map(|(_, place)| place).collect();
            let next = |length: usize| match order.get(length) {
                Some((_, writer)) => writer.as_slice().to_vec(),
                None => unread.clone(),
            };
            for (length, (_, writer)) in order.iter().enumerate() {
                for next in next(length + 1) {
                    writer.inspect(|writer| graph.depends(*writer, next, Dependency::Ww, key));
                }
            }
            let mut updates: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
            for (reader, list) in reads {
                let known = order.iter().map(|(value, _)| value).take(list.len());
                if !known.eq(list) {
                    let why = format!(
                        "T{} read {key} as {list:?}, another one as {order:?}",
                        self.history[reader].id
                    );
                    self.report(Kind::IncompatibleOrder, why);
                    continue;
                }
                if let Some(last) = list.last()
                    && let Some(writer) = self.writer(&writers, key, *last, reader)
                {
                    self.check_final(key, *last, writer, reader);
                    graph.depends(writer, reader, Dependency::Wr, key);
                }
                for next in next(list.len()) {
                    graph.depends(reader, next, Dependency::Rw, key);
                }
                if self.is_changed_by(key, reader) {
                    updates.entry(list.len() as u64).or_default().insert(reader);
                }
            }
            self.lost_updates(key, &updates);
        }
    }

    fn registers(&mut self, reads: &[Reads], graph: &mut Graph<'_>) {
        let mut orders: BTreeMap<Key, BTreeMap<u64, usize>> = BTreeMap::new();
        let mut updates: BTreeMap<Key, BTreeMap<u64, BTreeSet<usize>>> = BTreeMap::new();
        for (place, transaction) in self.history.iter().enumerate() {
            for op in transaction.ops.iter().filter(|_| transaction.is_committed) {
                if let Op::Write(key, version) = op {
                    orders.entry(*key).or_default().insert(*version, place);
                    let of_key = updates.entry(*key).or_default();
                    of_key.entry(*version - 1).or_default().insert(place);
                }
            }
        }
        for (key, order) in &orders {
            for (writer, next) in order.values().zip(order.values().skip(1)) {
                graph.depends(*writer, *next, Dependency::Ww, *key);
            }
        }
        for (reader, reads) in reads.iter().enumerate() {
            for (key, state) in reads {
                let State::Register(found) = state else {
                    continue;
                };
                let version = found.map_or(0, |(version, _)| version);
                if let Some((version, id)) = found {
                    let writer = self.places.get(id).copied();
                    let wrote = |place: &usize| {
                        let mut writes = self.history[*place].ops.iter();
                        writes.any(|op| matches!(op, Op::Write(k, v) if (k, v) == (key, version)))
                    };
                    let writers = writer.filter(wrote).map(|place| ((*key, *version), place));
                    let writers: Writers = writers.into_iter().collect();
                    if let Some(writer) = self.writer(&writers, *key, *version, reader) {
                        self.check_final(*key, *version, writer, reader);
                        graph.depends(writer, reader, Dependency::Wr, *key);
                    }
                }
                let mut next = orders
                    .get(key)
                    .into_iter()
                    .flat_map(|o| o.range(version + 1..));
                if let Some((_, next)) = next.next() {
                    graph.depends(reader, *next, Dependency::Rw, *key);
                }
                if self.is_changed_by(*key, reader) {
                    let of_key = updates.entry(*key).or_default();
                    of_key.entry(version).or_default().insert(reader);
                }
            }
        }
        for (key, updates) in &updates {
            self.lost_updates(*key, updates);
        }
    }

    fn sets(&mut self, reads: &[Reads], graph: &mut Graph<'_>) {
        let writers = self.writers(|op| matches!(op, Op::Add(..)));
        let mut of_key: BTreeMap<Key, BTreeMap<u64, usize>> = BTreeMap::new();
        for ((key, value), place) in &writers {
            if self.history[*place].is_committed {
                of_key.entry(*key).or_default().insert(*value, *place);
            }
        }
        for (reader, reads) in reads.iter().enumerate() {
            for (key, state) in reads {
                let State::Set(set) = state else {
                    continue;
                };
                for value in set {
                    if let Some(writer) = self.writer(&writers, *key, *value, reader) {
                        graph.depends(writer, reader, Dependency::Wr, *key);
                    }
                }
                for (value, writer) in of_key.get(key).into_iter().flatten() {
                    if !set.contains(value) {
                        graph.depends(reader, *writer, Dependency::Rw, *key);
                    }
                }
            }
        }
    }
}
