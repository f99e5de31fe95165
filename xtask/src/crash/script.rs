//! Random statements, and the rows that each leaves.

use std::collections::BTreeMap;
use std::path::Path;

use fastrand::Rng;

/// Rows of the Parquet file that statements read.
pub const SOURCE_ROWS: u64 = 400_000;
/// Steps of one round's script.
const STEPS: usize = 24;
/// More tables than this and the script drops one, so that the database stays small.
const MAX_TABLES: usize = 5;
/// Kinds of index and the columns that they are made on.
const INDEXES: [(&str, &str); 3] = [("hash", "v"), ("ngram", "s"), ("adjacency", "id, v")];

/// What a row of the source has in column `v`.
pub const VALUE_OF_ID: &str = "value * 7 % 1000003";

fn value_of(id: u64) -> u64 {
    id * 7 % 1_000_003
}

/// A statement, or a transaction, and the state once it is committed.
pub struct Step {
    pub sql: String,
    pub after: Tables,
}

/// Tables by their names.
pub type Tables = BTreeMap<String, Rows>;

/// First id, the one after the last, and by how much `v` has been raised between them.
type Range = (u64, u64, u64);

/// Rows of the source that a table holds. Every statement is a function of them, so a count and two
/// sums tell states apart.
#[derive(Clone, Default)]
pub struct Rows {
    ranges: Vec<Range>,
    /// `id` is the primary key.
    is_keyed: bool,
}

impl Rows {
    /// Count of rows, sum of `id` and sum of `v`.
    pub fn summary(&self) -> (u64, u64, u64) {
        let mut summary = (0, 0, 0);
        for (from, to, raised) in &self.ranges {
            summary.0 += to - from;
            summary.1 += (*from..*to).sum::<u64>();
            summary.2 += (*from..*to).map(value_of).sum::<u64>() + raised * (to - from);
        }
        summary
    }

    /// The ranges within `from..to` and those outside of it.
    fn cut(&mut self, from: u64, to: u64) -> (Vec<Range>, Vec<Range>) {
        let (mut within, mut outside) = (Vec::new(), Vec::new());
        for (start, end, raised) in self.ranges.drain(..) {
            outside.push((start, end.min(from), raised));
            within.push((start.max(from), end.min(to), raised));
            outside.push((start.max(to), end, raised));
        }
        for ranges in [&mut within, &mut outside] {
            ranges.retain(|(start, end, _)| start < end);
        }
        (within, outside)
    }

    fn delete(&mut self, from: u64, to: u64) {
        self.ranges = self.cut(from, to).1;
    }

    fn raise(&mut self, from: u64, to: u64) {
        let (mut within, outside) = self.cut(from, to);
        within.iter_mut().for_each(|(_, _, raised)| *raised += 1);
        self.ranges = [within, outside].concat();
    }

    /// Of a table with a key: ids that are there stay, others are added.
    fn fill(&mut self, from: u64, to: u64) {
        let (mut within, outside) = self.cut(from, to);
        within.sort_unstable();
        let ends = within.iter().map(|(_, end, _)| *end);
        let starts = within.iter().map(|(start, _, _)| *start);
        let gaps = [from].into_iter().chain(ends).zip(starts.chain([to]));
        let gaps: Vec<_> = gaps.map(|(start, end)| (start, end, 0)).collect();
        self.ranges = [within, outside, gaps].concat();
        self.ranges.retain(|(start, end, _)| start < end);
    }
}

/// Makes scripts; names of tables come once.
pub struct Scripts<'a> {
    pub rng: Rng,
    pub source: &'a Path,
    next_table: u32,
}

impl<'a> Scripts<'a> {
    pub fn new(rng: Rng, source: &'a Path) -> Self {
        Self {
            rng,
            source,
            next_table: 0,
        }
    }

    /// A random script on top of `tables`; each step with the state it leads to.
    pub fn next(&mut self, tables: &Tables) -> Vec<Step> {
        let mut state = tables.clone();
        let mut step = || {
            let sql = match self.rng.u32(..8) {
                0 | 1 => self.transaction(&mut state),
                2 => match self.any(&state) {
                    Some(name) => format!("VACUUM {name}"),
                    None => self.statement(&mut state),
                },
                _ => self.statement(&mut state),
            };
            Step {
                sql,
                after: state.clone(),
            }
        };
        (0..STEPS).map(|_| step()).collect()
    }

    /// Several statements that are one commit, or none at all.
    fn transaction(&mut self, state: &mut Tables) -> String {
        let mut after = state.clone();
        let count = self.rng.usize(2..6);
        let mut statements: Vec<_> = (0..count).map(|_| self.statement(&mut after)).collect();
        if let Some(name) = self.any(&after).filter(|_| self.rng.u32(..4) == 0) {
            // Each rewrites the rows.
            statements.push(format!(
                "ALTER TABLE {name} ADD COLUMN note TEXT DEFAULT 'new';\n\
                 ALTER TABLE {name} DROP COLUMN note"
            ));
        }
        let end = match self.rng.u32(..6) {
            0 => "ROLLBACK",
            _ => {
                *state = after;
                "COMMIT"
            }
        };
        format!("BEGIN;\n{};\n{end}", statements.join(";\n"))
    }

    fn any(&mut self, state: &Tables) -> Option<String> {
        let count = state.len();
        let name = (count > 0).then(|| state.keys().nth(self.rng.usize(..count)));
        name.flatten().cloned()
    }

    fn new_name(&mut self) -> String {
        self.next_table += 1;
        format!("t{}", self.next_table)
    }

    /// Half of the statements are about a few rows, which are committed through the log.
    fn range(&mut self) -> (u64, u64) {
        let from = self.rng.u64(..SOURCE_ROWS);
        let most = match self.rng.bool() {
            true => SOURCE_ROWS.min(from + 40),
            false => SOURCE_ROWS,
        };
        (from, self.rng.u64(from..=most))
    }

    fn statement(&mut self, state: &mut Tables) -> String {
        let (from, to) = self.range();
        let within = format!("id >= {from} AND id < {to}");
        let select = format!("SELECT * FROM '{}' WHERE {within}", self.source.display());
        let Some(name) = self.any(state) else {
            return self.new_table(state, (from, to), &select);
        };
        let choice = match state.len() > MAX_TABLES {
            true => 0,
            false => self.rng.u32(..13),
        };
        let Some(rows) = state.get_mut(&name) else {
            unreachable!("{name} is one of them");
        };
        match choice {
            0 => {
                state.remove(&name);
                format!("DROP TABLE {name}")
            }
            1..=3 if rows.is_keyed => {
                rows.raise(from, to);
                rows.fill(from, to);
                format!(
                    "INSERT INTO {name} {select} ON CONFLICT (id) DO UPDATE SET v = {name}.v + 1"
                )
            }
            4 if rows.is_keyed => {
                rows.fill(from, to);
                format!("INSERT INTO {name} {select} ON CONFLICT DO NOTHING")
            }
            1..=4 => {
                rows.ranges.push((from, to, 0));
                format!("INSERT INTO {name} {select}")
            }
            5 => {
                let ranges = vec![(from, to, 0)];
                let is_keyed = false;
                state.insert(name.clone(), Rows { ranges, is_keyed });
                format!("CREATE OR REPLACE TABLE {name} AS {select}")
            }
            // Later statements keep it up; opening the database checks that it covers its table,
            // `fsck` its pages.
            6 => {
                let (kind, columns) = INDEXES[self.rng.usize(..INDEXES.len())];
                format!(
                    "CREATE INDEX IF NOT EXISTS {name}_{kind} ON {name} USING {kind} ({columns})"
                )
            }
            7 | 8 => {
                rows.delete(from, to);
                format!("DELETE FROM {name} WHERE {within}")
            }
            9 | 10 => {
                rows.raise(from, to);
                format!("UPDATE {name} SET v = v + 1 WHERE {within}")
            }
            11 => {
                let rows = state.remove(&name).unwrap_or_default();
                let other = self.new_name();
                state.insert(other.clone(), rows);
                format!("ALTER TABLE {name} RENAME TO {other}")
            }
            _ => self.new_table(state, (from, to), &select),
        }
    }

    fn new_table(&mut self, state: &mut Tables, (from, to): (u64, u64), select: &str) -> String {
        let name = self.new_name();
        let is_keyed = self.rng.bool();
        let ranges = match is_keyed {
            true => vec![],
            false => vec![(from, to, 0)],
        };
        state.insert(name.clone(), Rows { ranges, is_keyed });
        match is_keyed {
            true => format!("CREATE TABLE {name} (id BIGINT PRIMARY KEY, v BIGINT, s TEXT)"),
            false => format!("CREATE TABLE {name} AS {select}"),
        }
    }
}
