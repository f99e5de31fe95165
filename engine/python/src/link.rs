//! What the module and the `datafusion` wheel share while a database is open.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use arrow::array::RecordBatch;
use datafusion::catalog::TableProvider;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::execution::{TaskContext, TaskContextProvider};
use datafusion::logical_expr::{AggregateUDF, LogicalPlan, ScalarUDF, WindowUDF};
use datafusion::physical_plan::ExecutionPlan;
use flashmesh::{Error, Session};
use parking_lot::Mutex;

use crate::functions::OursByName;

/// Objects that wait to be taken, at most: those that nobody takes are plans whose bytes were
/// asked for and never run.
const PARKED: usize = 16_384;

/// An object that crosses to the wheel and back as a number in the bytes of a plan. Both ends
/// are in this process, so the object itself can wait here meanwhile.
#[derive(Clone)]
pub(crate) enum Parcel {
    /// A table of either side.
    Table(Arc<dyn TableProvider>),
    /// A function that only the wheel knows, such as one in Python.
    Scalar(Arc<ScalarUDF>),
    /// See [`Parcel::Scalar`].
    Aggregate(Arc<AggregateUDF>),
    /// See [`Parcel::Scalar`].
    Window(Arc<WindowUDF>),
    /// A query that was planned for the wheel.
    Plan(Arc<dyn ExecutionPlan>),
}

#[derive(Default)]
struct Parked {
    next: u64,
    parcels: BTreeMap<u64, Parcel>,
}

/// What a query holds of the database while that is open.
pub(crate) enum Content {
    Plan(LogicalPlan),
    /// Rows that are there, which become a plan when something is to be made of them.
    Rows(Vec<RecordBatch>),
}

/// `None` once the connection is closed.
pub(crate) type Held = Mutex<Option<Content>>;

#[derive(Default)]
struct Queries {
    next: u64,
    held: BTreeMap<u64, Weak<Held>>,
}

/// An open database as both sides know it. It outlives the database: whoever still holds a
/// DataFrame then gets an error that says so.
pub(crate) struct Link {
    session: Mutex<Option<Session>>,
    /// Set when the wheel's session is made.
    functions: OnceLock<OursByName>,
    /// So that closing the database takes their snapshots from them.
    queries: Mutex<Queries>,
    parked: Mutex<Parked>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("session", &*self.session.lock())
            .finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(session: Session) -> Arc<Self> {
        Arc::new(Self {
            session: Mutex::new(Some(session)),
            functions: OnceLock::new(),
            queries: Mutex::default(),
            parked: Mutex::default(),
        })
    }

    /// The session.
    ///
    /// # Errors
    /// [`Error::Usage`] once the connection is closed.
    pub(crate) fn session(&self) -> Result<Session, Error> {
        self.session.lock().clone().ok_or_else(closed)
    }

    /// Which functions of the wheel are ours.
    ///
    /// # Errors
    /// When the wheel has no session of this connection, and so nothing to ask for.
    pub(crate) fn functions(&self) -> Result<&OursByName> {
        let functions = self.functions.get();
        functions.ok_or_else(|| exec_datafusion_err!("the connection has no DataFrames yet"))
    }

    /// See [`Link::functions`]; the first wins.
    pub(crate) fn set_functions(&self, functions: OursByName) {
        let _ = self.functions.set(functions);
    }

    /// Closes the database: what runs ends first, but nothing else can begin.
    pub(crate) fn close(&self) {
        self.session.lock().take();
        let held = std::mem::take(&mut self.queries.lock().held);
        for held in held.into_values().filter_map(|held| held.upgrade()) {
            let content = held.lock().take();
            drop(content);
        }
        let parked = std::mem::take(&mut self.parked.lock().parcels);
        drop(parked);
    }

    /// Lets [`Link::close`] know of a query; gives the number for [`Link::leave`].
    pub(crate) fn enter(&self, held: &Arc<Held>) -> u64 {
        let mut queries = self.queries.lock();
        let id = queries.next;
        queries.next += 1;
        queries.held.insert(id, Arc::downgrade(held));
        id
    }

    /// The query of this number is gone.
    pub(crate) fn leave(&self, id: u64) {
        self.queries.lock().held.remove(&id);
    }

    /// Keeps an object until its number is read, and writes the number.
    pub(crate) fn park(&self, parcel: Parcel, buf: &mut Vec<u8>) {
        let mut parked = self.parked.lock();
        let id = parked.next;
        parked.next += 1;
        let forgotten = if parked.parcels.len() == PARKED {
            parked.parcels.pop_first()
        } else {
            None
        };
        parked.parcels.insert(id, parcel);
        drop(parked);
        // Dropping it may drop the last handle on a query, which locks again.
        drop(forgotten);
        buf.extend_from_slice(&id.to_le_bytes());
    }

    /// The object whose number `buf` holds; once.
    pub(crate) fn take(&self, buf: &[u8]) -> Result<Parcel> {
        let id = <[u8; 8]>::try_from(buf).map(u64::from_le_bytes).ok();
        id.and_then(|id| self.parked.lock().parcels.remove(&id))
            .ok_or_else(|| {
                exec_datafusion_err!(
                    "these bytes of a plan were read before, or come from another connection; make them anew"
                )
            })
    }
}

impl TaskContextProvider for Link {
    fn task_ctx(&self) -> Arc<TaskContext> {
        match self.session() {
            Ok(session) => session.context().task_ctx(),
            Err(_) => Arc::default(),
        }
    }
}

/// What a closed connection says.
pub(crate) fn closed() -> Error {
    Error::usage("the connection is closed")
}
