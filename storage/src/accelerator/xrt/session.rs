//! One life of an opened device: its process, its buffers, the calls under way.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use prost::Message;

use super::container::Container;
use super::options::{XrtMode, XrtOptions};
use super::process::{self, Scratch, Started, utf8};
use super::protocol::{
    Allocate, Array, Call, Command, Free, Function, Open, Order, Outcome, Passed, Probe, Reply,
    Value,
};
use super::shared::{Connection, SharedMemory};
use crate::{Result, StorageError};

/// Smallest buffer, and what all sizes are multiples of.
const MIN_BUFFER_BYTES: usize = 4096;
/// Largest buffer: XRT 2.13's emulation counts transfers in 32 bits.
const MAX_BUFFER_BYTES: usize = 1 << 31;
/// Bytes of buffers that are kept for later calls.
const MAX_IDLE_BYTES: usize = 256 << 20;
/// What a run may take longer than its limit before the process itself counts as dead.
const GRACE: Duration = Duration::from_secs(5);
/// How long a process may take to close its card.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How lines of the device model begin.
const MODEL_PREFIX: &str = "device model: ";
/// Bytes of the process's log that are looked at for a message.
const LOG_TAIL_BYTES: u64 = 4096;

/// A buffer of the device in shared memory.
#[derive(Debug)]
pub(super) struct PoolBuffer {
    number: u64,
    bank: String,
    /// Whose bytes it holds; `None`: nobody knows what the device has there.
    pub(super) query: Option<u64>,
    pub(super) memory: SharedMemory,
}

/// An array of a call.
#[derive(Debug)]
pub(super) struct CallBuffer {
    pub buffer: PoolBuffer,
    pub bytes_to_device: usize,
    pub bytes_from_device: usize,
    /// All of the buffer goes to the device first: what another query left there is gone then.
    pub clears: bool,
    /// The function writes it, if only no bytes of it.
    pub is_output: bool,
}

/// An argument of a call.
#[derive(Debug)]
pub(super) enum CallArgument {
    Integer(u64),
    Real(f64),
    Array(CallBuffer),
}

/// Why a call failed.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// This call can't be made; others can.
    Call(String),
    /// The device is not used any more.
    Device(String),
}

/// A call that was sent.
#[derive(Debug)]
struct CallState {
    arguments: Vec<CallArgument>,
    sent: Instant,
    outcome: Option<Result<(), Failure>>,
    /// Nobody waits for it any more; its buffers go back to the pool when it ends.
    is_abandoned: bool,
}

#[derive(Debug, Default)]
struct State {
    /// Why the device is not used any more.
    failed: Option<String>,
    opened: Option<Result<(), String>>,
    probed: Option<Result<u32, String>>,
    calls: HashMap<u64, CallState>,
    idle: Vec<PoolBuffer>,
    next_number: u64,
    last_reply: Option<Instant>,
    /// The process has closed its socket.
    has_ended: bool,
}

/// What the reading thread shares with the others.
#[derive(Debug)]
struct Link {
    connection: Connection,
    state: Mutex<State>,
    changed: Condvar,
    log: PathBuf,
    /// Of the process, which leads a process group of that number.
    process: libc::pid_t,
}

/// A running process with an opened device.
#[derive(Debug)]
pub(super) struct Session {
    link: Arc<Link>,
    child: Child,
    reader: Option<JoinHandle<()>>,
    scratch: Scratch,
    is_emulation: bool,
    run_timeout: Duration,
    /// The functions' names, in the order of their numbers.
    functions: Vec<String>,
    /// The sizes of the device's banks by their names.
    banks: HashMap<String, u64>,
}

impl Session {
    /// Starts the process; no device is open yet.
    fn start(options: &XrtOptions) -> Result<Self> {
        let Started {
            child,
            connection,
            scratch,
            log,
        } = process::start(options)?;
        let link = Arc::new(Link {
            connection,
            state: Mutex::default(),
            changed: Condvar::new(),
            log,
            process: child.id() as libc::pid_t,
        });
        let mut session = Self {
            link: Arc::clone(&link),
            child,
            reader: None,
            scratch,
            is_emulation: options.mode != XrtMode::Hardware,
            run_timeout: options.run_timeout,
            functions: Vec::new(),
            banks: HashMap::new(),
        };
        let reader = std::thread::Builder::new()
            .name("xrt-replies".into())
            .spawn(move || link.read_replies())
            .map_err(|error| StorageError::io("start a thread", error))?;
        session.reader = Some(reader);
        Ok(session)
    }

    /// Starts the process, opens the device, loads the container.
    pub(super) fn open(container: &Container, options: &XrtOptions) -> Result<Self> {
        let mut session = Self::start(options)?;
        let banks = container.memory_banks().iter();
        session.banks = banks.map(|b| (b.name.clone(), b.size_bytes)).collect();
        let file = session.scratch.path().join("container.xclbin");
        std::fs::write(&file, container.bytes())
            .map_err(|error| StorageError::io(format!("write {file:?}"), error))?;
        let mut functions = Vec::new();
        for kernel in container.kernels() {
            for function in &kernel.interface.functions {
                let units = container.compute_units().iter();
                let units = units.filter(|unit| unit.function == function.name).count();
                session.functions.push(function.name.clone());
                functions.push(Function {
                    name: function.name.clone(),
                    compute_units: units as u32,
                });
            }
        }
        let timeout_ms = options
            .run_timeout
            .as_millis()
            .clamp(1, u128::from(u32::MAX / 2));
        session.link.send(Order::Open(Open {
            library: utf8(&options.library())?,
            device: options.device,
            container: utf8(&file)?,
            functions,
            run_timeout_ms: timeout_ms as u32,
            is_emulation: session.is_emulation,
        }));
        let outcome = session
            .link
            .wait_for(options.open_timeout, |state| state.opened.take());
        outcome.map_err(|reason| {
            StorageError::Invalid(format!(
                "the XRT device {} can't be opened: {reason}",
                options.device
            ))
        })?;
        Ok(session)
    }

    /// How many devices XRT has.
    pub(super) fn probe(options: &XrtOptions) -> Result<u32> {
        let session = Self::start(options)?;
        session.link.send(Order::Probe(Probe {
            library: utf8(&options.library())?,
            is_emulation: session.is_emulation,
        }));
        let outcome = session
            .link
            .wait_for(options.open_timeout, |state| state.probed.take());
        outcome.map_err(StorageError::Invalid)
    }

    /// Why the device is not used any more.
    pub(super) fn failure(&self) -> Option<String> {
        self.link.state.lock().failed.clone()
    }

    /// The number of the runtime's process.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// A buffer of at least `bytes` in the bank of that argument, from the pool or new.
    pub(super) fn buffer(
        &self,
        function: &str,
        argument: usize,
        bank: &str,
        bytes: usize,
    ) -> Result<PoolBuffer, String> {
        let size = buffer_size(bytes).ok_or_else(|| {
            format!("an array of {bytes} bytes; at most {MAX_BUFFER_BYTES} go to a device")
        })?;
        if let Some(room) = self.banks.get(bank).filter(|room| size as u64 > **room) {
            return Err(format!(
                "an array of {bytes} bytes takes a buffer of {size}, the memory bank {bank} has {room}"
            ));
        }
        let mut state = self.link.state.lock();
        let fits = |buffer: &PoolBuffer| buffer.bank == bank && buffer.memory.len() == size;
        if let Some(place) = state.idle.iter().rposition(fits) {
            return Ok(state.idle.swap_remove(place));
        }
        let number = state.next_number;
        state.next_number += 1;
        drop(state);
        let (memory, file) =
            SharedMemory::create(size).map_err(|error| format!("shared memory: {error}"))?;
        let order = Order::Allocate(Allocate {
            buffer: number,
            bytes: size as u64,
            function: self.function_number(function)?,
            argument: argument as u32,
        });
        self.link.send_with(order, Some(file.as_fd()));
        Ok(PoolBuffer {
            number,
            bank: bank.to_owned(),
            query: None,
            memory,
        })
    }

    fn function_number(&self, function: &str) -> Result<u32, String> {
        let place = self.functions.iter().position(|name| name == function);
        place
            .map(|place| place as u32)
            .ok_or_else(|| "unknown function".to_owned())
    }

    /// Gives back buffers that no call has used.
    pub(super) fn give_back(&self, arguments: Vec<CallArgument>) {
        let mut state = self.link.state.lock();
        self.link.recycle(&mut state, arguments);
    }

    /// Sends a call; its number.
    pub(super) fn call(&self, function: &str, arguments: Vec<CallArgument>) -> Result<u64, String> {
        let function = self.function_number(function)?;
        let values = arguments.iter().map(|argument| {
            let passed = match argument {
                CallArgument::Integer(value) => Passed::Integer(*value),
                CallArgument::Real(value) => Passed::Real(*value),
                CallArgument::Array(array) => Passed::Array(Array {
                    buffer: array.buffer.number,
                    bytes_to_device: match array.clears {
                        true => array.buffer.memory.len(),
                        false => array.bytes_to_device,
                    } as u64,
                    bytes_from_device: array.bytes_from_device as u64,
                }),
            };
            Value {
                passed: Some(passed),
            }
        });
        let values = values.collect();
        let mut state = self.link.state.lock();
        if let Some(reason) = &state.failed {
            return Err(reason.clone());
        }
        let call = state.next_number;
        state.next_number += 1;
        state.calls.insert(
            call,
            CallState {
                arguments,
                sent: Instant::now(),
                outcome: None,
                is_abandoned: false,
            },
        );
        drop(state);
        self.link.send(Order::Call(Call {
            call,
            function,
            arguments: values,
        }));
        Ok(call)
    }

    /// Waits until the call has ended or `is_cancelled`, and gives its arguments. The device fails
    /// when a call that it began fails, or when it gives no sign of life for longer than a run may
    /// take.
    pub(super) fn wait(
        &self,
        call: u64,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<CallArgument>>, Failure> {
        // Nobody signals a cancellation: it is looked at now and then.
        const LOOK: Duration = Duration::from_millis(10);
        let mut state = self.link.state.lock();
        loop {
            let Some(entry) = state.calls.get_mut(&call) else {
                return Err(Failure::Call("the call is not known".into()));
            };
            if let Some(outcome) = entry.outcome.take() {
                let entry = state.calls.remove(&call);
                return outcome.map(|()| entry.map(|entry| entry.arguments));
            }
            if is_cancelled() {
                entry.is_abandoned = true;
                return Ok(None);
            }
            let sign = state
                .last_reply
                .max(state.calls.get(&call).map(|call| call.sent));
            let limit = self.run_timeout + GRACE;
            if sign.is_some_and(|sign| sign.elapsed() > limit) {
                let reason = format!("it gave no sign of life for {} ms", limit.as_millis());
                self.link.fail(&mut state, reason);
                continue;
            }
            self.link.changed.wait_for(&mut state, LOOK);
        }
    }

    /// Nobody will wait for the call any more.
    pub(super) fn abandon(&self, call: u64) {
        let mut state = self.link.state.lock();
        match state.calls.get_mut(&call) {
            Some(entry) if entry.outcome.is_none() => entry.is_abandoned = true,
            _ => {
                if let Some(entry) = state.calls.remove(&call) {
                    self.link.recycle(&mut state, entry.arguments);
                }
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A card is closed by its process, so that it is free afterwards. The model is no card.
        self.link.connection.close_sending();
        if !self.is_emulation {
            let mut state = self.link.state.lock();
            let until = Instant::now() + CLOSE_TIMEOUT;
            while !state.has_ended && Instant::now() < until {
                self.link.changed.wait_until(&mut state, until);
            }
        }
        self.link.kill();
        // The reader may kill too: the process is reaped, and its number free, only after it ended.
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        let _ = self.child.wait();
    }
}

impl Link {
    fn send(&self, order: Order) {
        self.send_with(order, None);
    }

    fn send_with(&self, order: Order, file: Option<std::os::fd::BorrowedFd<'_>>) {
        let command = Command { order: Some(order) };
        if let Err(error) = self.connection.send(&command.encode_to_vec(), file) {
            let mut state = self.state.lock();
            // What the process said before it ended says more, once its end has been seen.
            if error.kind() != std::io::ErrorKind::BrokenPipe {
                self.fail(&mut state, format!("its process does not answer ({error})"));
            }
        }
    }

    /// Waits for what `take` finds; the process is killed if it takes longer.
    fn wait_for<T>(
        &self,
        timeout: Duration,
        mut take: impl FnMut(&mut State) -> Option<Result<T, String>>,
    ) -> Result<T, String> {
        let until = Instant::now() + timeout;
        let mut state = self.state.lock();
        loop {
            if let Some(outcome) = take(&mut state) {
                return outcome;
            }
            if let Some(reason) = &state.failed {
                return Err(reason.clone());
            }
            if self.changed.wait_until(&mut state, until).timed_out() {
                let reason = format!("it did not answer within {} ms", timeout.as_millis());
                self.fail(&mut state, reason);
            }
        }
    }

    /// The reading thread's life.
    fn read_replies(&self) {
        while let Ok(Some(received)) = self.connection.receive() {
            let Ok(Reply {
                outcome: Some(outcome),
            }) = Reply::decode(received.bytes.as_slice())
            else {
                let reason = "its process is of another version of flashmesh".to_owned();
                self.fail(&mut self.state.lock(), reason);
                break;
            };
            let state = &mut *self.state.lock();
            state.last_reply = Some(Instant::now());
            let as_result = |error: String| match error.is_empty() {
                true => Ok(()),
                false => Err(error),
            };
            match outcome {
                Outcome::Probed(probed) => {
                    state.probed = Some(as_result(probed.error).map(|()| probed.devices));
                }
                Outcome::Opened(opened) => {
                    state.opened =
                        Some(as_result(opened.error).map_err(|error| self.with_log(error)));
                }
                Outcome::Done(done) => {
                    let outcome = as_result(done.error).map_err(|error| match done.is_refused {
                        true => Failure::Call(error),
                        false => Failure::Device(self.with_log(error)),
                    });
                    self.end_call(state, done.call, outcome);
                }
            }
            self.changed.notify_all();
        }
        let mut state = self.state.lock();
        state.has_ended = true;
        let reason = self.with_log("its process has ended".into());
        self.fail(&mut state, reason);
    }

    fn end_call(&self, state: &mut State, call: u64, outcome: Result<(), Failure>) {
        if let Err(Failure::Device(reason)) = &outcome {
            // What a kernel that did not end still does to the device's memory is not known.
            self.fail_calls(state, call, reason);
        }
        if let (Err(Failure::Call(_)), Some(entry)) = (&outcome, state.calls.get_mut(&call)) {
            // One of its buffers may be none.
            for argument in std::mem::take(&mut entry.arguments) {
                if let CallArgument::Array(array) = argument {
                    self.give_up(array.buffer);
                }
            }
        }
        if let Some(entry) = state.calls.get_mut(&call) {
            if entry.is_abandoned {
                if let Some(entry) = state.calls.remove(&call) {
                    self.recycle(state, entry.arguments);
                }
            } else {
                entry.outcome.get_or_insert(outcome);
            }
        }
    }

    fn fail_calls(&self, state: &mut State, call: u64, reason: &str) {
        if let Some(entry) = state.calls.get_mut(&call) {
            let failure = Failure::Device(reason.to_owned());
            entry.outcome.get_or_insert(Err(failure));
        }
        self.fail(state, reason.to_owned());
    }

    /// Sets the device aside: every call under way fails, and the process ends.
    fn fail(&self, state: &mut State, reason: String) {
        let first = state.failed.get_or_insert(reason).clone();
        for call in state.calls.values_mut() {
            let failure = || Err(Failure::Device(first.clone()));
            call.outcome.get_or_insert_with(failure);
        }
        state.calls.retain(|_, call| !call.is_abandoned);
        state.idle.clear();
        self.changed.notify_all();
        self.kill();
    }

    /// Ends the process and what it has started.
    fn kill(&self) {
        // SAFETY: a signal to a process group that was made for this process, which is not reaped
        // before the session is dropped.
        unsafe { libc::kill(-self.process, libc::SIGKILL) };
    }

    /// Puts a call's buffers into the pool, and gives up what is too much.
    fn recycle(&self, state: &mut State, arguments: Vec<CallArgument>) {
        if state.failed.is_some() {
            return;
        }
        for argument in arguments {
            if let CallArgument::Array(array) = argument {
                state.idle.push(array.buffer);
            }
        }
        let mut bytes: usize = state.idle.iter().map(|buffer| buffer.memory.len()).sum();
        while bytes > MAX_IDLE_BYTES && !state.idle.is_empty() {
            let oldest = state.idle.remove(0);
            bytes -= oldest.memory.len();
            self.give_up(oldest);
        }
    }

    /// The other process has its own mapping, and frees it when no call uses it.
    fn give_up(&self, buffer: PoolBuffer) {
        let order = Order::Free(Free {
            buffer: buffer.number,
        });
        let command = Command { order: Some(order) };
        // If it can't be sent, the process has ended.
        let _ = self.connection.send(&command.encode_to_vec(), None);
    }

    /// A reason with the last words of the process.
    fn with_log(&self, reason: String) -> String {
        let tail = (|| {
            let mut file = std::fs::File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
            let mut bytes = Vec::new();
            file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
            std::io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
        })();
        let tail = tail.unwrap_or_default();
        // XRT's banner and its hints are no reasons.
        let says_why = |line: &&str| line.contains("ERROR") || line.starts_with(MODEL_PREFIX);
        let mut lines: Vec<&str> = tail.lines().map(str::trim).filter(says_why).collect();
        if lines.is_empty() {
            lines = tail
                .lines()
                .map(str::trim)
                .filter(|line| !line.is_empty())
                .collect();
        }
        match &lines[lines.len().saturating_sub(4)..] {
            [] => reason,
            last => format!("{reason} (its last words: {})", last.join("; ")),
        }
    }
}

/// The size of a buffer for so many bytes: sizes are few, so that buffers fit later calls.
pub(super) fn buffer_size(bytes: usize) -> Option<usize> {
    let size = bytes.max(MIN_BUFFER_BYTES).checked_next_power_of_two()?;
    (size <= MAX_BUFFER_BYTES).then_some(size)
}
