//! Steps: what statements do to a database, each made anew over the state that there is when it is
//! committed. A statement by itself commits one; a transaction commits those of all its statements,
//! in order, as one [`TableEdit`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::index::IndexDefinition;
use crate::segment::{TableId, Unnamed};
use crate::table::TableSnapshot;
use crate::table::change::{TableChange, conflict, settle};
use crate::table::database::Core;
use crate::table::edit::{DropTable, ObjectName, Operation, TableEdit};
use crate::table::indexing::{NewParts, index_added, index_dropped};
use crate::table::state::{State, TableState};
use crate::{Result, StorageError};

/// What one statement does.
#[derive(Debug)]
pub(super) enum Step {
    /// A table is made, or its rows change.
    Rows(Box<TableChange>),
    /// A table is dropped: whatever it is by then, or if it has the rows and the definition of a
    /// version alone.
    DropTable {
        name: ObjectName,
        table: TableId,
        only: Option<Arc<TableSnapshot>>,
    },
    /// What is kept of a table beside its rows changes.
    Edit {
        name: ObjectName,
        table: TableId,
        make: Make,
    },
    /// An index is made.
    Index(Box<NewIndex>),
    /// An index is dropped.
    DropIndex {
        name: ObjectName,
        table: TableId,
        index: String,
    },
    /// Schemas and views come or go.
    Define(TableEdit),
}

type MakeEdit = dyn Fn(&TableState) -> Result<TableEdit> + Send;

/// Makes the edit from a version of the table.
pub(super) struct Make(Box<MakeEdit>);

impl fmt::Debug for Make {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an edit of a table")
    }
}

/// An index on its way to a commit.
#[derive(Debug)]
pub(super) struct NewIndex {
    pub name: ObjectName,
    pub table: TableId,
    pub definition: IndexDefinition,
    pub parts: NewParts,
}

impl Step {
    /// A change of what is kept of a table beside its rows.
    pub fn edit_of(
        name: ObjectName,
        table: TableId,
        make: impl Fn(&TableState) -> Result<TableEdit> + Send + 'static,
    ) -> Self {
        let make = Make(Box::new(make));
        Self::Edit { name, table, make }
    }

    /// The table that the step is about.
    pub fn table(&self) -> Option<(&ObjectName, TableId)> {
        Some(match self {
            Self::Rows(change) => (&change.name, change.table),
            Self::DropTable { name, table, .. }
            | Self::Edit { name, table, .. }
            | Self::DropIndex { name, table, .. } => (name, *table),
            Self::Index(index) => (&index.name, index.table),
            Self::Define(_) => return None,
        })
    }

    fn is_of(&self, table: TableId) -> bool {
        self.table().is_some_and(|(_, id)| id == table)
    }

    /// What a table is changed in.
    pub fn rows(&self) -> Option<&TableChange> {
        match self {
            Self::Rows(change) => Some(change),
            _ => None,
        }
    }

    fn rows_mut(&mut self) -> Option<&mut TableChange> {
        match self {
            Self::Rows(change) => Some(change),
            _ => None,
        }
    }

    /// The parts of indexes that it brings.
    pub fn parts(&self) -> Option<&NewParts> {
        match self {
            Self::Rows(change) => Some(&change.parts),
            Self::Index(index) => Some(&index.parts),
            _ => None,
        }
    }

    fn parts_mut(&mut self) -> Option<&mut NewParts> {
        match self {
            Self::Rows(change) => Some(&mut change.parts),
            Self::Index(index) => Some(&mut index.parts),
            _ => None,
        }
    }

    /// Rows that go shall be those that were seen: of the table as others see it.
    fn check_seen(&self, present: Option<&TableState>) -> Result<()> {
        match self.rows() {
            Some(change) => change.check_seen(present),
            None => Ok(()),
        }
    }

    /// The edit that does this to the present table of its name.
    ///
    /// # Errors
    /// As [`commit`].
    pub fn edit(&mut self, present: Option<&TableState>) -> Result<TableEdit> {
        let of = |name: &ObjectName, id: TableId| {
            let present = present.filter(|present| present.snapshot.id == id);
            present.ok_or_else(|| conflict(name))
        };
        match self {
            Self::Rows(change) => {
                let mut edit = TableEdit::default();
                change.add_to(&mut edit, present)?;
                Ok(edit)
            }
            Self::DropTable { name, table, only } => {
                let present = of(name, *table)?;
                let is_other = |only: &Arc<TableSnapshot>| {
                    !present.snapshot.has_rows_of(only) || !present.snapshot.is_defined_as(only)
                };
                if only.as_ref().is_some_and(is_other) {
                    return Err(conflict(name));
                }
                let mut edit = TableEdit::default();
                edit.require(present.version());
                edit.push(Operation::DropTable(DropTable {
                    name: name.clone(),
                    table: table.0,
                }));
                Ok(edit)
            }
            Self::Edit { name, table, make } => make.0(of(name, *table)?),
            Self::Index(index) => {
                let present = of(&index.name, index.table)?;
                index_added(&index.name, present, &index.definition, &mut index.parts)
            }
            Self::DropIndex { name, table, index } => index_dropped(name, of(name, *table)?, index),
            Self::Define(edit) => Ok(edit.clone()),
        }
    }

    /// The pages that it wrote and its edit names.
    fn into_reservations(self) -> Vec<Unnamed> {
        match self {
            Self::Rows(change) => {
                let of_parts = change.parts.into_reservations();
                change.reservations.into_iter().chain(of_parts).collect()
            }
            Self::Index(index) => index.parts.into_reservations().collect(),
            _ => Vec::new(),
        }
    }
}

/// Commits steps, in order: all or none.
///
/// # Errors
/// `AlreadyExists` or `NotFound` when something came or went meanwhile, `Conflict` when a table or
/// rows to delete did; `DuplicateKey`; `Full` and `Io`; `NeedsReopening`. After any but the last
/// nothing has changed, and the pages are given back.
pub(super) fn commit(core: &Core, steps: Vec<Step>) -> Result<()> {
    commit_and(core, steps, |_| Ok(()), |_| ())
}

/// The same. `check` says what else must hold of the present state; it is asked again whenever that has
/// changed. `hold` is shown what the steps have made of it, as [`Core::decide_and`] does.
///
/// # Errors
/// As [`commit`]; those of `check`.
pub(super) fn commit_and(
    core: &Core,
    mut steps: Vec<Step>,
    check: impl Fn(&mut TableEdit) -> Result<()>,
    hold: impl Fn(&State),
) -> Result<()> {
    let committed = try_commit(core, &mut steps, check, hold);
    let reservations = steps.into_iter().flat_map(Step::into_reservations);
    core.settle_refused(settle(committed, reservations))
}

fn try_commit(
    core: &Core,
    steps: &mut [Step],
    check: impl Fn(&mut TableEdit) -> Result<()>,
    hold: impl Fn(&State),
) -> Result<()> {
    // Parts of unique indexes are built before others are kept waiting; what has changed
    // meanwhile is made up for below.
    let (_, mut locks) = edit_of(core, steps)?;
    loop {
        // The pages first; only then may the manifest name them.
        sync(core, steps)?;
        let editing = locks;
        let held: Vec<_> = editing.values().map(|lock| lock.lock()).collect();
        let mut edit = TableEdit::default();
        check(&mut edit)?;
        let made = edit_of(core, steps)?;
        edit.then(made.0);
        locks = made.1;
        sync(core, steps)?;
        match core.decide_and(edit, &hold) {
            Ok(Some(decided)) => {
                // The next ones are made from it while it is written.
                drop(held);
                return core.wait(decided);
            }
            Ok(None) => {}
            // It came just now, and is to be replaced.
            Err(StorageError::AlreadyExists { kind: "table", .. })
                if steps
                    .iter()
                    .filter_map(Step::rows)
                    .any(TableChange::replaces) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Locks of tables. Who takes several takes them in the order of the tables' numbers.
type Locks = BTreeMap<TableId, Arc<Mutex<()>>>;

/// The edit that the steps make of what is decided on, and the locks of the tables that are there.
fn edit_of(core: &Core, steps: &mut [Step]) -> Result<(TableEdit, Locks)> {
    let mut locks = Locks::new();
    let mut lock = |table: &TableState| {
        locks.insert(table.snapshot.id, Arc::clone(&table.editing));
    };
    if let [step] = steps {
        let name = step.table().map(|(name, _)| name);
        let present = name
            .map(|name| core.head_table(name))
            .transpose()?
            .flatten();
        present.iter().for_each(&mut lock);
        step.check_seen(present.as_ref())?;
        return Ok((step.edit(present.as_ref())?, locks));
    }
    // Each goes on from what those before it have made.
    let mut state = core.head_state()?;
    for (name, _) in steps.iter().filter_map(Step::table) {
        state.tables.get(name).into_iter().for_each(&mut lock);
    }
    for step in steps.iter() {
        let mut tables = state.tables.values();
        let present = tables.find(|table| step.is_of(table.snapshot.id));
        step.check_seen(present)?;
    }
    let mut edit = TableEdit::default();
    for step in steps {
        let name = step.table().map(|(name, _)| name);
        let present = name.and_then(|name| state.tables.get(name)).cloned();
        let made = step.edit(present.as_ref())?;
        apply(&mut state, step, &made)?;
        edit.then(made);
    }
    Ok((edit, locks))
}

/// Applies the edit of a step to a state that is nobody else's.
pub(super) fn apply(state: &mut State, step: &Step, edit: &TableEdit) -> Result<()> {
    let change = state.change(edit)?;
    // Nothing is retired: others still have it.
    drop(state.install(edit, change));
    if let Some(change) = step.rows()
        && let Some(table) = state.tables.get_mut(&change.name)
    {
        // Of a new table: what is added to it takes its numbers from there.
        table.next_segment = Arc::clone(&change.next_segment);
    }
    Ok(())
}

/// Makes pages durable that are not yet.
fn sync(core: &Core, steps: &mut [Step]) -> Result<()> {
    let mut parts = steps.iter().filter_map(Step::parts);
    if parts.any(|parts| !parts.is_synced()) {
        core.store().sync()?;
        let parts = steps.iter_mut().filter_map(Step::parts_mut);
        parts.for_each(NewParts::set_synced);
    }
    Ok(())
}

/// Makes fewer steps of those of several statements: one of changes to a table's rows that follow each
/// other, and none of what came and went again. `before` gives the name that others see a table by.
///
/// # Errors
/// `Conflict` when rows are deleted twice.
pub(super) fn merged(
    steps: Vec<Step>,
    before: impl Fn(TableId) -> Option<ObjectName>,
) -> Result<Vec<Step>> {
    let mut merged: Vec<Step> = Vec::new();
    for step in steps {
        match step {
            Step::Rows(change) => {
                let of_table = |step: &Step| step.is_of(change.table);
                if change.overwrites() {
                    // Those rows are not there in the end; what they let be done was done.
                    let earlier = merged.iter_mut().filter(|step| of_table(step));
                    earlier
                        .filter_map(Step::rows_mut)
                        .for_each(TableChange::empty);
                }
                let last = merged.iter().rposition(of_table);
                let earlier = last.filter(|last| merged[*last].rows().is_some());
                match earlier.map(|place| (place, merged.remove(place))) {
                    Some((place, Step::Rows(earlier))) => {
                        let both = Box::new(earlier.then(*change)?);
                        merged.insert(place, Step::Rows(both));
                    }
                    _ => merged.push(Step::Rows(change)),
                }
            }
            Step::DropTable { table, only, .. } => {
                // Where it had another name, that may have been taken since.
                let first = merged.iter().position(|step| step.is_of(table));
                merged.retain(|step| !step.is_of(table));
                if let Some(name) = before(table) {
                    let place = first.unwrap_or(merged.len());
                    merged.insert(place, Step::DropTable { name, table, only });
                }
            }
            Step::DropIndex { name, table, index } => {
                let is_it = |step: &Step| match step {
                    Step::Index(new) => new.table == table && new.definition.name == index,
                    _ => false,
                };
                match merged.iter().rposition(is_it) {
                    Some(place) => drop(merged.remove(place)),
                    None => merged.push(Step::DropIndex { name, table, index }),
                }
            }
            other => merged.push(other),
        }
    }
    Ok(merged)
}
