//! A device behind XRT, as the database uses it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::container::{ComputeUnit, Container, MemoryBank};
use super::options::XrtOptions;
use super::session::{CallArgument, CallBuffer, Failure, Session, buffer_size};
use crate::kernel::interface::{ArgumentUse, ElementType, FunctionInterface};
use crate::kernel::{Argument, ScalarArgument};
use crate::{Result, StorageError};

/// The query number of calls that compute operations of Programs. Their kernels write all that they
/// give, so that what the last one left in a buffer does not show.
const OPERATIONS: u64 = 0;
/// The longest pause between two attempts to open a device again.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// An opened device with a loaded container.
///
/// Life: `open` ▸ `submit` and [`Pending::wait`], by many threads at once ▸ drop. A call that can't be
/// made (arrays that its memory has no room for) fails alone. When one fails that the device began,
/// the device is set aside: every call fails until it was opened again, which those calls have
/// happen, after a pause that doubles with each failure, or `reopen`.
#[derive(Debug)]
pub struct XrtDevice {
    this: Weak<Self>,
    container: Container,
    options: XrtOptions,
    session: RwLock<Arc<Session>>,
    retry: Mutex<Retry>,
    counters: DeviceCounters,
}

/// When a device that was set aside is opened again.
#[derive(Debug, Default)]
struct Retry {
    /// Failures since a call succeeded.
    failures: u32,
    /// `None`: it was not set aside, or that was not noticed yet.
    not_before: Option<Instant>,
    is_opening: bool,
}

impl Retry {
    fn pause(&mut self, first: Duration) {
        let factor = 1u32 << self.failures.min(16);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(Instant::now() + (first * factor).min(LONGEST_PAUSE));
    }
}

/// What went to a device and came back.
#[derive(Debug, Default)]
pub struct DeviceCounters {
    /// Calls that were sent.
    pub calls: AtomicU64,
    /// Bytes of arrays copied to the device.
    pub bytes_to_device: AtomicU64,
    /// Bytes of arrays copied from the device.
    pub bytes_from_device: AtomicU64,
}

/// Whether a device can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceState {
    /// It takes calls.
    Ready,
    /// It was set aside after an error.
    Failed {
        /// What happened.
        reason: String,
    },
}

impl fmt::Display for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::Failed { reason } => write!(f, "failed: {reason}"),
        }
    }
}

/// What is known of a device, for lists of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceReport {
    /// Which device, and of which platform.
    pub name: String,
    /// Whether it can be used.
    pub state: DeviceState,
    /// The names of the kernels that it holds.
    pub kernels: Vec<String>,
    /// Its compute units.
    pub compute_units: Vec<ComputeUnit>,
    /// Its memory banks.
    pub memory_banks: Vec<MemoryBank>,
}

impl XrtDevice {
    /// Opens the device and loads the container.
    ///
    /// # Errors
    /// `Invalid` with what is missing (XRT, the device model, the device) or with XRT's refusal; `Io`
    /// if the runtime's process can't be started.
    pub fn open(container: Container, options: XrtOptions) -> Result<Arc<Self>> {
        let session = Session::open(&container, &options)?;
        Ok(Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            container,
            options,
            session: RwLock::new(Arc::new(session)),
            retry: Mutex::default(),
            counters: DeviceCounters::default(),
        }))
    }

    /// How many devices XRT finds.
    ///
    /// # Errors
    /// As [`XrtDevice::open`].
    pub fn count(options: &XrtOptions) -> Result<u32> {
        Session::probe(options)
    }

    /// Opens the device anew and loads its container, whatever state it was in. Calls under way
    /// keep to the old life of the device; if that is well, they end there.
    ///
    /// # Errors
    /// As [`XrtDevice::open`]; the device then stays as it was.
    pub fn reopen(&self) -> Result<()> {
        let session = Session::open(&self.container, &self.options)?;
        *self.session.write() = Arc::new(session);
        self.retry.lock().not_before = None;
        Ok(())
    }

    /// Has a device that was set aside opened again, once its pause is over, by a thread of its own.
    fn reopen_later(&self) {
        let mut retry = self.retry.lock();
        match retry.not_before {
            None => return retry.pause(self.options.reopen_after),
            Some(time) if retry.is_opening || Instant::now() < time => return,
            Some(_) => {}
        }
        let this = Weak::clone(&self.this);
        let reopen = move || {
            let Some(device) = this.upgrade() else { return };
            let opened = device.reopen();
            let mut retry = device.retry.lock();
            retry.is_opening = false;
            if let Err(error) = opened {
                log::warn!("the device stays set aside: {error}");
                retry.pause(device.options.reopen_after);
            }
        };
        let thread = std::thread::Builder::new().name("xrt-reopen".into());
        match thread.spawn(reopen) {
            Ok(_) => retry.is_opening = true,
            Err(error) => log::warn!("no thread opens the device again: {error}"),
        }
    }

    /// What is loaded.
    pub fn container(&self) -> &Container {
        &self.container
    }

    /// What went to it and came back, since it was first opened.
    pub fn counters(&self) -> &DeviceCounters {
        &self.counters
    }

    /// Whether it can be used.
    pub fn state(&self) -> DeviceState {
        match self.session.read().failure() {
            None => DeviceState::Ready,
            Some(reason) => DeviceState::Failed { reason },
        }
    }

    /// The number of the process that the runtime runs in.
    pub fn process(&self) -> u32 {
        self.session.read().process()
    }

    /// What a list of devices shows of it.
    pub fn report(&self) -> DeviceReport {
        let kernels = self.container.kernels().iter();
        DeviceReport {
            name: format!(
                "xrt:{} ({})",
                self.options.device,
                self.container.platform()
            ),
            state: self.state(),
            kernels: kernels
                .map(|kernel| kernel.interface.name.clone())
                .collect(),
            compute_units: self.container.compute_units().to_vec(),
            memory_banks: self.container.memory_banks().to_vec(),
        }
    }

    /// Starts a call of the C function `function`: its arrays are copied to buffers of the device,
    /// and it runs on the first of its compute units that is free. Calls may be submitted while
    /// others run; the transfers of one overlap with the kernels of the others.
    ///
    /// # Errors
    /// `Invalid` if the arguments are not the function's; `Kernel` if the device is set aside.
    pub fn submit<'c, 'a>(
        &self,
        function: &str,
        arguments: &'c mut [Argument<'a>],
    ) -> Result<Pending<'c, 'a>> {
        self.submit_for(OPERATIONS, function, arguments)
    }

    /// As [`XrtDevice::submit`], for the kernel of a user: it finds nothing in the device's buffers
    /// but what `query` has put there.
    ///
    /// # Errors
    /// As [`XrtDevice::submit`].
    pub fn submit_for<'c, 'a>(
        &self,
        query: u64,
        function: &str,
        arguments: &'c mut [Argument<'a>],
    ) -> Result<Pending<'c, 'a>> {
        let started = self.start_for(query, function, arguments)?;
        Ok(Pending { started, arguments })
    }

    /// As [`XrtDevice::submit`], but the results are asked for when it has ended: nothing is
    /// borrowed in between.
    ///
    /// # Errors
    /// As [`XrtDevice::submit`].
    pub fn start(&self, function: &str, arguments: &[Argument<'_>]) -> Result<StartedCall> {
        self.start_for(OPERATIONS, function, arguments)
    }

    fn start_for(
        &self,
        query: u64,
        function: &str,
        arguments: &[Argument<'_>],
    ) -> Result<StartedCall> {
        let interface =
            self.container
                .function(function)
                .ok_or_else(|| StorageError::NotFound {
                    kind: "device function",
                    name: function.to_owned(),
                })?;
        check_arguments(interface, arguments)?;
        let session = Arc::clone(&self.session.read());
        if let Some(reason) = session.failure() {
            self.reopen_later();
            return Err(device_error(function, &reason));
        }
        let mut prepared = Vec::with_capacity(arguments.len());
        for (index, argument) in arguments.iter().enumerate() {
            match prepare(&session, query, interface, index, argument) {
                Ok(argument) => prepared.push(argument),
                Err(reason) => {
                    for argument in &mut prepared {
                        if let CallArgument::Array(array) = argument {
                            // What was cleared here was not cleared there.
                            array.buffer.query = None;
                        }
                    }
                    session.give_back(prepared);
                    return Err(call_error(function, &reason));
                }
            }
        }
        let mut bytes_to_device = 0;
        let mut bytes_from_device = 0;
        for argument in &prepared {
            if let CallArgument::Array(array) = argument {
                bytes_to_device += array.bytes_to_device as u64;
                bytes_from_device += array.bytes_from_device as u64;
            }
        }
        let call = session
            .call(function, prepared)
            .map_err(|reason| device_error(function, &reason))?;
        let counters = &self.counters;
        counters.calls.fetch_add(1, Ordering::Relaxed);
        for (counter, bytes) in [
            (&counters.bytes_to_device, bytes_to_device),
            (&counters.bytes_from_device, bytes_from_device),
        ] {
            counter.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(StartedCall {
            device: Weak::clone(&self.this),
            session,
            call: Some(call),
            function: function.to_owned(),
            bytes_to_device,
            bytes_from_device,
        })
    }
}

/// Bytes of device buffers that a call with these arguments holds.
pub(super) fn call_bytes(arguments: &[Argument<'_>]) -> usize {
    let sizes = arguments.iter().map(|argument| match argument {
        Argument::Scalar(_) => 0,
        Argument::In(bytes) => buffer_size(bytes.len()).unwrap_or(bytes.len()),
        Argument::Out(bytes) | Argument::InOut(bytes) => {
            buffer_size(bytes.len()).unwrap_or(bytes.len())
        }
    });
    sizes.sum()
}

/// The error of a device that failed, with the way out.
fn device_error(function: &str, reason: &str) -> StorageError {
    StorageError::Kernel {
        kernel: function.to_owned(),
        reason: format!(
            "the device failed: {reason}. It is set aside until it is opened again, after a while; \
             until then run without it"
        ),
    }
}

/// The error of a call that a device can't make.
fn call_error(function: &str, reason: &str) -> StorageError {
    StorageError::Kernel {
        kernel: function.to_owned(),
        reason: format!("the device can't make this call: {reason}; run it without the device"),
    }
}

/// A call that was submitted. Dropped without waiting, it runs to its end, and its results are lost.
#[derive(Debug)]
#[must_use = "its results come with `wait`"]
pub struct Pending<'c, 'a> {
    started: StartedCall,
    arguments: &'c mut [Argument<'a>],
}

impl Pending<'_, '_> {
    /// Waits for the call's end and copies what it wrote to its arguments.
    ///
    /// # Errors
    /// `Kernel` if the device failed or the call did not end in time: the device is set aside then.
    /// `Kernel` too if `cancelled` became TRUE (the device ends the run by itself) or it can't make
    /// this call: it stays usable.
    pub fn wait(self, cancelled: &AtomicBool) -> Result<()> {
        let mut outputs: Vec<&mut [u8]> = Vec::new();
        for argument in self.arguments {
            if let Argument::Out(bytes) | Argument::InOut(bytes) = argument {
                outputs.push(bytes);
            }
        }
        self.started.wait(&mut outputs, cancelled)
    }
}

/// A call under way that borrows nothing. Dropped without waiting, it runs to its end, and its
/// results are lost.
#[derive(Debug)]
#[must_use = "its results come with `wait`"]
pub struct StartedCall {
    device: Weak<XrtDevice>,
    session: Arc<Session>,
    /// `None` once it was waited for.
    call: Option<u64>,
    function: String,
    bytes_to_device: u64,
    bytes_from_device: u64,
}

impl StartedCall {
    /// Bytes of arrays that went to the device.
    pub fn bytes_to_device(&self) -> u64 {
        self.bytes_to_device
    }

    /// Bytes of arrays that come back.
    pub fn bytes_from_device(&self) -> u64 {
        self.bytes_from_device
    }

    /// Waits for the call's end and copies what it wrote to `outputs`, in C's order; they are as
    /// long as when it was started.
    ///
    /// # Errors
    /// As [`Pending::wait`]; `Invalid` if the outputs are others.
    pub fn wait(mut self, outputs: &mut [&mut [u8]], cancelled: &AtomicBool) -> Result<()> {
        let Some(call) = self.call.take() else {
            return Ok(());
        };
        let is_cancelled = || cancelled.load(Ordering::Relaxed);
        match self.session.wait(call, &is_cancelled) {
            Ok(Some(mut results)) => {
                let copied = copy_outputs(&mut results, outputs);
                self.session.give_back(results);
                if let Some(device) = self.device.upgrade() {
                    device.retry.lock().failures = 0;
                }
                match copied {
                    true => Ok(()),
                    false => Err(StorageError::Invalid(format!(
                        "device function '{}': the outputs are not those that it was started with",
                        self.function
                    ))),
                }
            }
            Ok(None) => Err(StorageError::Kernel {
                kernel: self.function.clone(),
                reason: "cancelled".into(),
            }),
            Err(Failure::Device(reason)) => Err(device_error(&self.function, &reason)),
            Err(Failure::Call(reason)) => Err(call_error(&self.function, &reason)),
        }
    }
}

/// Copies what a call wrote; FALSE if `outputs` are not its arrays.
fn copy_outputs(results: &mut [CallArgument], outputs: &mut [&mut [u8]]) -> bool {
    let mut outputs = outputs.iter_mut();
    for result in results {
        if let CallArgument::Array(array) = result
            && array.is_output
        {
            match outputs.next() {
                Some(bytes) if bytes.len() == array.bytes_from_device => {
                    array.buffer.memory.read(bytes);
                }
                _ => return false,
            }
        }
    }
    outputs.next().is_none()
}

impl Drop for StartedCall {
    fn drop(&mut self) {
        if let Some(call) = self.call {
            self.session.abandon(call);
        }
    }
}

/// Copies an argument to where the device takes it from.
fn prepare(
    session: &Session,
    query: u64,
    function: &FunctionInterface,
    index: usize,
    argument: &Argument<'_>,
) -> Result<CallArgument, String> {
    let is_output = !matches!(argument, Argument::In(_));
    let (input, bytes_from_device) = match argument {
        Argument::Scalar(scalar) => {
            return Ok(match *scalar {
                // Registers take the low bits of what is passed.
                ScalarArgument::I32(value) => CallArgument::Integer(u64::from(value as u32)),
                ScalarArgument::I64(value) => CallArgument::Integer(value as u64),
                ScalarArgument::F32(value) => CallArgument::Real(f64::from(value)),
                ScalarArgument::F64(value) => CallArgument::Real(value),
            });
        }
        Argument::In(bytes) => (*bytes, 0),
        Argument::Out(bytes) => (&[][..], bytes.len()),
        Argument::InOut(bytes) => (&**bytes, bytes.len()),
    };
    let bank = &function.arguments[index].bank;
    let bytes = input.len().max(bytes_from_device);
    let mut buffer = session.buffer(&function.name, index, bank, bytes)?;
    let clears = buffer.query.replace(query) != Some(query);
    if clears {
        buffer.memory.clear_behind(input.len());
    }
    buffer.memory.write(input);
    Ok(CallArgument::Array(CallBuffer {
        buffer,
        bytes_to_device: input.len(),
        bytes_from_device,
        clears,
        is_output,
    }))
}

/// Checks the arguments of a call against the function's.
fn check_arguments(function: &FunctionInterface, arguments: &[Argument<'_>]) -> Result<()> {
    let refuse = |what: String| {
        Err(StorageError::Invalid(format!(
            "device function '{}': {what}",
            function.name
        )))
    };
    if arguments.len() != function.arguments.len() {
        return refuse(format!(
            "{} arguments are given, it has {}",
            arguments.len(),
            function.arguments.len()
        ));
    }
    for (given, wanted) in arguments.iter().zip(&function.arguments) {
        let scalar_fits = |scalar: &ScalarArgument| match scalar {
            ScalarArgument::I32(_) => matches!(
                wanted.element,
                ElementType::U8 | ElementType::I16 | ElementType::I32 | ElementType::U32
            ),
            ScalarArgument::I64(_) => {
                matches!(wanted.element, ElementType::I64 | ElementType::U64)
            }
            ScalarArgument::F32(_) => wanted.element == ElementType::F32,
            ScalarArgument::F64(_) => wanted.element == ElementType::F64,
        };
        let whole = |bytes: usize| bytes.is_multiple_of(wanted.element.size_bytes());
        let fits = match (given, wanted.usage) {
            (Argument::Scalar(scalar), ArgumentUse::Scalar) => scalar_fits(scalar),
            (Argument::In(bytes), ArgumentUse::In) => whole(bytes.len()),
            (Argument::Out(bytes), ArgumentUse::Out)
            | (Argument::InOut(bytes), ArgumentUse::InOut) => whole(bytes.len()),
            _ => false,
        };
        if !fits {
            return refuse(format!(
                "argument '{}' has to be {:?} of {}",
                wanted.name,
                wanted.usage,
                wanted.element.c_name()
            ));
        }
    }
    Ok(())
}
