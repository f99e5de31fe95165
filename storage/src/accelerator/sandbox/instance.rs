//! One instance of a kernel: its memory, the arena for arguments behind it, and calls.

use std::cell::Cell;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use wasmtime::{Func, Memory, ResourceLimiter, Store, StoreContextMut, Trap, UpdateDeadline, Val};

use super::MAX_DEPTH;
use super::compile::{Compiled, HEAP_BASE, INITIALIZE, WASM_PAGE_BYTES, one_line};
use crate::Result;
use crate::kernel::{Argument, CallContext, CallTime, ScalarArgument, Target};
use crate::memory::MemoryBudget;

/// Arrays begin at multiples of that, a cache line.
const ALIGNMENT: usize = 64;
/// What an instance takes of the host beside its linear memory: tables, globals, the store.
const INSTANCE_BYTES: usize = 32 << 10;

/// An instance. It belongs to one query.
pub(super) struct Instance {
    store: Store<Guest>,
    memory: Memory,
    functions: Vec<Func>,
    /// The part of the memory that arguments are laid in.
    arena: Range<usize>,
    compiled: Arc<Compiled>,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance")
            .field("kernel", &self.compiled.name)
            .field("arena", &self.arena)
            .finish_non_exhaustive()
    }
}

/// What belongs to a store: limits, and what the running call may use.
pub(super) struct Guest {
    memory: Arc<dyn MemoryBudget>,
    charged: usize,
    last_charge: usize,
    memory_bytes: usize,
    table_elements: usize,
    tables: usize,
    /// The last refusal of memory: what a trap behind it comes from.
    refused: Option<String>,
    /// When the call that runs has to end, and when the outermost of those around it began.
    deadline: Instant,
    began: Instant,
    scope: Option<Scope>,
    pub(super) callees: Arc<[Arc<dyn Target>]>,
}

impl Guest {
    /// The running call's context.
    pub(super) fn context(&self) -> Option<CallContext<'_>> {
        self.scope.as_ref().map(Scope::context)
    }

    fn charge(&mut self, bytes: usize) -> bool {
        match self.memory.grow(bytes) {
            Ok(()) => {
                self.charged += bytes;
                self.last_charge = bytes;
                true
            }
            Err(error) => {
                self.refused = Some(error.to_string());
                false
            }
        }
    }

    /// Called when the epoch has passed: whether the call may go on.
    fn check(&self) -> Result<(), Stop> {
        let now = Instant::now();
        if let Some(context) = self.context() {
            if context.time.cancelled().load(Ordering::Relaxed) {
                return Err(Stop::Cancelled);
            }
            if context.time.left() <= now - self.began {
                return Err(Stop::QueryTime);
            }
        }
        match now >= self.deadline {
            true => Err(Stop::Deadline),
            false => Ok(()),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.memory.shrink(self.charged);
    }
}

impl ResourceLimiter for Guest {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > self.memory_bytes {
            self.refused = Some(format!(
                "it asked for {desired} bytes of memory, the limit is {}",
                self.memory_bytes
            ));
            return Ok(false);
        }
        Ok(self.charge(desired.saturating_sub(current)))
    }

    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        self.refused = Some(one_line(&error));
        self.memory.shrink(self.last_charge);
        self.charged -= self.last_charge;
        self.last_charge = 0;
        Ok(())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.tables += desired.saturating_sub(current);
        Ok(self.tables <= self.table_elements && self.charge(desired.saturating_sub(current) * 8))
    }

    fn instances(&self) -> usize {
        1
    }

    fn memories(&self) -> usize {
        1
    }
}

/// Why a call was ended from outside.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stop {
    #[error("cancelled")]
    Cancelled,
    #[error("deadline")]
    Deadline,
    /// The query has no time left for kernels.
    #[error("no time left")]
    QueryTime,
    /// A call of another kernel failed.
    #[error("{0}")]
    Nested(String),
}

impl Instance {
    /// A fresh instance whose memory is charged to `memory`. The module's start function runs, and
    /// what it exports as `_initialize`.
    pub(super) fn new(
        compiled: &Arc<Compiled>,
        callees: &Arc<[Arc<dyn Target>]>,
        memory: Arc<dyn MemoryBudget>,
        context: CallContext<'_>,
    ) -> Result<Self, String> {
        let mut guest = Guest {
            memory,
            charged: 0,
            last_charge: 0,
            memory_bytes: compiled.memory_bytes,
            table_elements: compiled.table_elements,
            tables: 0,
            refused: None,
            deadline: Instant::now(),
            began: Instant::now(),
            scope: None,
            callees: Arc::clone(callees),
        };
        if !guest.charge(INSTANCE_BYTES) {
            return Err(guest.refused.take().unwrap_or_default());
        }
        let mut store = Store::new(compiled.instance.module().engine(), guest);
        store.limiter(|guest| guest);
        store.epoch_deadline_callback(|context: StoreContextMut<'_, Guest>| {
            match context.data().check() {
                Ok(()) => Ok(UpdateDeadline::Continue(1)),
                Err(stop) => Err(wasmtime::Error::new(stop)),
            }
        });
        let instance = run(compiled, &mut store, context, |store| {
            let instance = compiled.instance.instantiate(&mut *store)?;
            // What C++ constructs before anything else.
            if let Some(initialize) = instance.get_func(&mut *store, INITIALIZE) {
                initialize.call(store, &[], &mut [])?;
            }
            Ok(instance)
        })?;
        let memory = instance.get_memory(&mut store, "memory");
        let memory = memory.ok_or("the export 'memory' is gone")?;
        let end = memory.data_size(&store);
        let heap = instance.get_global(&mut store, HEAP_BASE);
        let heap = match heap.map(|heap| heap.get(&mut store)) {
            Some(Val::I32(base)) => (base as u32 as usize).next_multiple_of(ALIGNMENT),
            _ => end,
        };
        if heap > end {
            return Err(format!(
                "its {HEAP_BASE} is {heap}, beyond its memory of {end} bytes"
            ));
        }
        let functions = compiled.functions.iter();
        let functions: Option<Vec<Func>> = functions
            .map(|name| instance.get_func(&mut store, name))
            .collect();
        Ok(Self {
            store,
            memory,
            functions: functions.ok_or("an exported function is gone")?,
            arena: heap..end,
            compiled: Arc::clone(compiled),
        })
    }

    /// Calls a C function. After an error the instance must not be called again.
    pub(super) fn call(
        &mut self,
        name: &str,
        arguments: &mut [Argument<'_>],
        context: CallContext<'_>,
    ) -> Result<(), String> {
        let functions = &self.compiled.functions;
        let index = functions.iter().position(|function| function == name);
        let function = index.map(|index| self.functions[index]);
        let function = function.ok_or_else(|| format!("it has no function '{name}'"))?;
        let mut needed = 0;
        for argument in arguments.iter() {
            needed += length(argument).next_multiple_of(ALIGNMENT);
        }
        self.reserve(needed)?;
        let values = self.lay_out(arguments);
        run(&self.compiled, &mut self.store, context, |store| {
            function.call(store, &values, &mut [])
        })?;
        let memory = self.memory.data(&self.store);
        let mut at = self.arena.start;
        for argument in arguments {
            let length = length(argument);
            if let Argument::Out(bytes) | Argument::InOut(bytes) = argument {
                bytes.copy_from_slice(&memory[at..at + length]);
            }
            at += length.next_multiple_of(ALIGNMENT);
        }
        Ok(())
    }

    /// Grows the arena to `needed` bytes. Should the guest have grown its memory in the meantime,
    /// the arena moves behind that.
    fn reserve(&mut self, needed: usize) -> Result<(), String> {
        if needed <= self.arena.len() {
            return Ok(());
        }
        let end = self.memory.data_size(&self.store);
        if end != self.arena.end {
            self.arena = end..end;
        }
        let pages = (needed - self.arena.len()).div_ceil(WASM_PAGE_BYTES);
        let grown = self.memory.grow(&mut self.store, pages as u64);
        if grown.is_err() {
            let refused = self.store.data_mut().refused.take();
            return Err(format!(
                "its memory of {end} bytes can't take {needed} bytes of arguments: {}; raise \
                 limits.memory_bytes or lower limits.rows_per_call",
                refused.unwrap_or_else(|| "the module's memory has a maximum".to_owned())
            ));
        }
        self.arena.end = self.memory.data_size(&self.store);
        Ok(())
    }

    /// Copies what the function reads into the arena; gives its WebAssembly arguments.
    fn lay_out(&mut self, arguments: &[Argument<'_>]) -> Vec<Val> {
        let memory = self.memory.data_mut(&mut self.store);
        let mut at = self.arena.start;
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let length = length(argument);
            match argument {
                Argument::Scalar(value) => {
                    values.push(match *value {
                        ScalarArgument::I32(value) => Val::I32(value),
                        ScalarArgument::I64(value) => Val::I64(value),
                        ScalarArgument::F32(value) => Val::F32(value.to_bits()),
                        ScalarArgument::F64(value) => Val::F64(value.to_bits()),
                    });
                    continue;
                }
                Argument::In(bytes) => memory[at..at + length].copy_from_slice(bytes),
                Argument::InOut(bytes) => memory[at..at + length].copy_from_slice(bytes),
                Argument::Out(_) => {}
            }
            // A memory is smaller than 4 GiB.
            values.push(Val::I32(at as u32 as i32));
            at += length.next_multiple_of(ALIGNMENT);
        }
        values
    }
}

fn length(argument: &Argument<'_>) -> usize {
    match argument {
        Argument::Scalar(_) => 0,
        Argument::In(bytes) => bytes.len(),
        Argument::Out(bytes) | Argument::InOut(bytes) => bytes.len(),
    }
}

/// Runs code of the guest: with a deadline, a place in the nesting, and a sentence for what ended
/// it.
fn run<R>(
    compiled: &Compiled,
    store: &mut Store<Guest>,
    context: CallContext<'_>,
    code: impl FnOnce(&mut Store<Guest>) -> wasmtime::Result<R>,
) -> Result<R, String> {
    let time = context.time;
    if time.cancelled().load(Ordering::Relaxed) {
        return Err("cancelled".to_owned());
    }
    if time.left().is_zero() {
        return Err(no_time_left(time));
    }
    let nesting = Nesting::enter(compiled.time_per_call)?;
    let running = compiled.ticker.running();
    let guest = store.data_mut();
    guest.deadline = nesting.deadline;
    guest.began = nesting.began;
    guest.refused = None;
    // SAFETY: the scope is taken out of the store when the code is through. Should that panic, no
    // code of the guest runs in this store again, and nothing else looks at the scope.
    guest.scope = Some(unsafe { Scope::new(&context) });
    store.set_epoch_deadline(1);
    let outcome = code(store);
    store.data_mut().scope = None;
    drop(running);
    if nesting.is_outermost() {
        time.spend(nesting.began.elapsed());
    }
    outcome.map_err(|error| match error.downcast_ref::<Stop>() {
        Some(Stop::QueryTime) => no_time_left(time),
        _ => {
            let refused = store.data_mut().refused.take();
            reason(compiled, &error, refused, nesting.inherited)
        }
    })
}

fn no_time_left(time: &CallTime) -> String {
    format!(
        "the kernels of the query have run for {} ms, all that those of one query may \
         (--kernel-query-time)",
        time.limit().as_millis()
    )
}

/// A sentence for what ended a call.
fn reason(
    compiled: &Compiled,
    error: &wasmtime::Error,
    refused: Option<String>,
    nested: bool,
) -> String {
    let reason = if let Some(stop) = error.downcast_ref::<Stop>() {
        match stop {
            Stop::Cancelled | Stop::QueryTime => return "cancelled".to_owned(),
            Stop::Deadline if nested => {
                return "it took longer than its caller had time left".to_owned();
            }
            Stop::Deadline => {
                return format!(
                    "a call took longer than {} ms; raise limits.time_per_call_ms or lower \
                     limits.rows_per_call",
                    compiled.time_per_call.as_millis()
                );
            }
            Stop::Nested(reason) => reason.clone(),
        }
    } else if let Some(trap) = error.downcast_ref::<Trap>() {
        match trap {
            Trap::StackOverflow => format!(
                "it needs more than {} bytes of stack; bound its recursion",
                compiled.stack_bytes
            ),
            Trap::MemoryOutOfBounds => "it reads or writes beyond its memory".to_owned(),
            Trap::UnreachableCodeReached => {
                "it stopped itself (abort, a failed assertion, or a path without return)".to_owned()
            }
            other => format!("it trapped: {other}"),
        }
    } else {
        one_line(error)
    };
    match refused {
        Some(refused) => format!("{reason} ({refused})"),
        None => reason,
    }
}

thread_local! {
    /// The calls that are open on this thread.
    static OPEN: Cell<Option<Open>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Open {
    depth: usize,
    /// When the outermost began.
    began: Instant,
    /// When the innermost has to end.
    deadline: Instant,
}

/// A call's place among the calls that are open on this thread.
struct Nesting {
    deadline: Instant,
    /// The deadline is a caller's.
    inherited: bool,
    began: Instant,
    outer: Option<Open>,
}

impl Nesting {
    fn enter(time: Duration) -> Result<Self, String> {
        let outer = OPEN.get();
        let depth = outer.map_or(0, |outer| outer.depth);
        if depth == MAX_DEPTH {
            return Err(format!(
                "calls between kernels are nested deeper than {MAX_DEPTH}"
            ));
        }
        let now = Instant::now();
        let began = outer.map_or(now, |outer| outer.began);
        let own = now + time;
        let deadline = outer.map_or(own, |outer| outer.deadline.min(own));
        OPEN.set(Some(Open {
            depth: depth + 1,
            began,
            deadline,
        }));
        Ok(Self {
            deadline,
            inherited: deadline < own,
            began,
            outer,
        })
    }

    /// No other call is open on this thread.
    fn is_outermost(&self) -> bool {
        self.outer.is_none()
    }
}

impl Drop for Nesting {
    fn drop(&mut self) {
        OPEN.set(self.outer);
    }
}

/// The context of the call that runs, for code that wasmtime calls back.
struct Scope(NonNull<CallContext<'static>>);

// SAFETY: the context is only reached while a call runs, by the thread that runs it, and what it
// refers to is `Sync`.
unsafe impl Send for Scope {}
// SAFETY: as above; a shared `Scope` gives shared references to a `Sync` value.
unsafe impl Sync for Scope {}

impl Scope {
    /// # Safety
    /// The scope must be gone before `context` ends.
    unsafe fn new(context: &CallContext<'_>) -> Self {
        Self(NonNull::from(context).cast())
    }

    fn context(&self) -> CallContext<'_> {
        // SAFETY: whoever made the scope sees to it that the context outlives it; the copy's
        // lifetime is shortened to the borrow.
        unsafe { *self.0.as_ref() }
    }
}

/// A call's budget for an instance that lives no longer than the call.
struct Borrowed(Scope);

impl std::fmt::Debug for Borrowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.context().memory.fmt(f)
    }
}

impl MemoryBudget for Borrowed {
    fn grow(&self, bytes: usize) -> Result<()> {
        self.0.context().memory.grow(bytes)
    }

    fn shrink(&self, bytes: usize) {
        self.0.context().memory.shrink(bytes);
    }
}

/// Calls a function of an instance that is made for this call and ends with it.
pub(super) fn call_once(
    compiled: &Arc<Compiled>,
    callees: &Arc<[Arc<dyn Target>]>,
    function: &str,
    arguments: &mut [Argument<'_>],
    context: CallContext<'_>,
) -> Result<(), String> {
    // SAFETY: the budget is held by the instance alone, which ends in this function.
    let scope = unsafe { Scope::new(&context) };
    let memory = Arc::new(Borrowed(scope));
    let mut instance = Instance::new(compiled, callees, memory, context)?;
    instance.call(function, arguments, context)
}
