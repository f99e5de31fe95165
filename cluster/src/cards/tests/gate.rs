//! A device whose writes and erases wait until they are let through.

use std::sync::Arc;

use flashmesh_pages::Result;
use flashmesh_pages::flash::{
    Completion, Flash, FlashHealth, FlashOp, FlashQueue, Geometry, check_op,
};
use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
struct State {
    is_shut: bool,
    /// Changes that wait.
    held: usize,
}

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
pub(super) struct GateFlash {
    inner: Arc<dyn Flash>,
    gate: Arc<Gate>,
}

impl GateFlash {
    pub fn new(inner: Arc<dyn Flash>) -> Arc<Self> {
        let gate = Arc::default();
        Arc::new(Self { inner, gate })
    }

    pub fn shut(&self) {
        self.gate.state.lock().is_shut = true;
    }

    pub fn open(&self) {
        self.gate.state.lock().is_shut = false;
        self.gate.changed.notify_all();
    }

    /// Waits until so many changes wait.
    pub fn until_held(&self, count: usize) {
        let mut state = self.gate.state.lock();
        while state.held < count {
            self.gate.changed.wait(&mut state);
        }
    }

    pub fn held(&self) -> usize {
        self.gate.state.lock().held
    }
}

impl Flash for GateFlash {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn used_erase_blocks(&self) -> Result<u64> {
        self.inner.used_erase_blocks()
    }

    fn open_queue(&self) -> Result<Box<dyn FlashQueue>> {
        Ok(Box::new(GateQueue {
            inner: self.inner.open_queue()?,
            geometry: self.inner.geometry(),
            gate: self.gate.clone(),
            held: Vec::new(),
        }))
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn continues_blocks(&self) -> bool {
        self.inner.continues_blocks()
    }

    fn health(&self) -> Option<FlashHealth> {
        self.inner.health()
    }
}

#[derive(Debug)]
struct GateQueue {
    inner: Box<dyn FlashQueue>,
    geometry: Geometry,
    gate: Arc<Gate>,
    held: Vec<FlashOp>,
}

impl FlashQueue for GateQueue {
    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.inner.in_flight()
    }

    fn max_pages_per_op(&self) -> usize {
        self.inner.max_pages_per_op()
    }

    fn submit(&mut self, op: FlashOp) -> Result<()> {
        check_op(self, &op, self.geometry)?;
        if matches!(op, FlashOp::Read { .. }) {
            return self.inner.submit(op);
        }
        self.held.push(op);
        self.gate.state.lock().held += 1;
        self.gate.changed.notify_all();
        Ok(())
    }

    fn wait(&mut self, min: usize, completions: &mut Vec<Completion>) -> Result<()> {
        let mut state = self.gate.state.lock();
        while state.is_shut && min > self.inner.in_flight() {
            self.gate.changed.wait(&mut state);
        }
        if !state.is_shut {
            state.held -= self.held.len();
            drop(state);
            for op in self.held.drain(..) {
                self.inner.submit(op)?;
            }
        } else {
            drop(state);
        }
        self.inner.wait(min, completions)
    }

    fn cancel_reads(&mut self) {
        self.inner.cancel_reads();
    }
}
