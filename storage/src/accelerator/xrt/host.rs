//! The process that XRT runs in.
//!
//! XRT's software emulation ends the whole process group when its device dies, waits for ever when
//! the device closes its socket, and is steered by the environment of the process. A driver may do
//! as badly. So the runtime lives in a child process that does nothing else: whatever becomes of it,
//! the database sees a closed socket and reports an error.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use prost::Message;

use super::api::{Buffer, Device, Kernel, Run, RunEnd, Runtime};
use super::protocol::{
    Allocate, Call, Command, Done, Open, Opened, Order, Outcome, Passed, Probe, Probed, Reply,
};
use super::shared::{Connection, SharedMemory};

/// Most compute units of one function that are used at once.
const MAX_UNITS: u32 = 32;
/// Exit code when the device's process has ended.
const EXIT_DEVICE_LOST: libc::c_int = 40;

/// The entry of the child process: serves the database at the other end of the socket that is the
/// standard input, and does not return.
pub fn host_main() -> ! {
    let code = match take_connection() {
        Ok(connection) => serve(connection),
        Err(error) => {
            eprintln!("flashmesh starts this command itself, for devices behind XRT ({error})");
            2
        }
    };
    // SAFETY: nothing is left to be done. XRT's destructors would wait for its device.
    unsafe { libc::_exit(code) }
}

/// Takes the socket away from descriptor 0: the device model that XRT starts must not inherit it,
/// or the database would not see this process end.
fn take_connection() -> std::io::Result<Connection> {
    // SAFETY: an all-zero stat is valid, and fstat fills it.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor belongs to this process, open or not.
    if unsafe { libc::fstat(0, &mut status) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    if status.st_mode & libc::S_IFMT != libc::S_IFSOCK {
        return Err(std::io::Error::other("no socket to serve"));
    }
    // SAFETY: descriptor 0 is open.
    let socket = unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 3) };
    if socket < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let nothing = std::fs::File::open("/dev/null")?;
    // SAFETY: both descriptors are open.
    if unsafe { libc::dup2(nothing.as_raw_fd(), 0) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(Connection::of(socket))
}

fn serve(connection: Connection) -> libc::c_int {
    let connection = Arc::new(connection);
    let mut host = None;
    let mut is_emulation = false;
    loop {
        let received = match connection.receive() {
            Ok(Some(received)) => received,
            Ok(None) => break,
            Err(error) => {
                eprintln!("the database's socket: {error}");
                break;
            }
        };
        let order = match Command::decode(received.bytes.as_slice()) {
            Ok(Command { order: Some(order) }) => order,
            _ => {
                eprintln!("the database sent a command of another version of flashmesh");
                break;
            }
        };
        match (order, &mut host) {
            (Order::Probe(probe), _) => reply(&connection, Outcome::Probed(count_devices(&probe))),
            (Order::Open(open), None) => {
                is_emulation = open.is_emulation;
                let error = match Host::open(&open, &connection) {
                    Ok(opened) => {
                        host = Some(opened);
                        String::new()
                    }
                    Err(error) => error,
                };
                reply(&connection, Outcome::Opened(Opened { error }));
            }
            (Order::Allocate(allocate), Some(host)) => {
                host.allocate(&allocate, received.descriptor);
            }
            (Order::Free(free), Some(host)) => {
                host.buffers.remove(&free.buffer);
            }
            (Order::Call(call), Some(host)) => host.call(call, &connection),
            _ => {
                eprintln!("the database sent a command at the wrong time");
                break;
            }
        }
    }
    if is_emulation {
        end_group();
    }
    if let Some(host) = host {
        host.close();
    }
    0
}

/// Ends this process and the device model that XRT has started, which are a group of their own.
fn end_group() {
    // SAFETY: these only ask and send a signal.
    unsafe {
        if libc::getpgrp() == libc::getpid() {
            libc::kill(0, libc::SIGKILL);
        }
    }
}

fn reply(connection: &Connection, outcome: Outcome) {
    let reply = Reply {
        outcome: Some(outcome),
    };
    // If the database is gone, the next `receive` ends this process.
    let _ = connection.send(&reply.encode_to_vec(), None);
}

fn count_devices(probe: &Probe) -> Probed {
    let library = Path::new(&probe.library);
    let count = Runtime::load(library, probe.is_emulation).and_then(|xrt| xrt.count_devices());
    match count {
        Ok(devices) => Probed {
            devices,
            error: String::new(),
        },
        Err(error) => Probed { devices: 0, error },
    }
}

/// When the device model ends, this process ends: the runtime itself would read from the closed
/// socket for ever, or end its process group by a handler that takes locks.
fn end_with_device_model() {
    extern "C" fn lost(_: libc::c_int) {
        // SAFETY: `_exit` may be called from a signal handler.
        unsafe { libc::_exit(EXIT_DEVICE_LOST) }
    }
    let handler: extern "C" fn(libc::c_int) = lost;
    // SAFETY: the handler only calls what a handler may call. The others go back to what they were
    // before XRT took them.
    unsafe {
        libc::signal(libc::SIGCHLD, handler as libc::sighandler_t);
        for number in [libc::SIGSEGV, libc::SIGABRT, libc::SIGFPE, libc::SIGUSR1] {
            libc::signal(number, libc::SIG_DFL);
        }
    }
}

/// The opened device.
struct Host {
    kernels: Vec<Arc<Kernel>>,
    queues: Vec<Sender<Work>>,
    threads: Vec<JoinHandle<()>>,
    buffers: HashMap<u64, Result<Arc<Buffer>, String>>,
}

/// A call whose buffers were looked up.
struct Work {
    call: u64,
    arguments: Vec<Argument>,
}

enum Argument {
    Integer(u64),
    Real(f64),
    Array {
        buffer: Arc<Buffer>,
        bytes_to_device: usize,
        bytes_from_device: usize,
    },
}

impl Host {
    fn open(open: &Open, connection: &Arc<Connection>) -> Result<Self, String> {
        let runtime = Runtime::load(Path::new(&open.library), open.is_emulation)?;
        let mut device = runtime.open_device(open.device)?;
        device.load(Path::new(&open.container))?;
        if open.is_emulation {
            end_with_device_model();
        }
        let device: Arc<Device> = Arc::new(device);
        let mut host = Self {
            kernels: Vec::new(),
            queues: Vec::new(),
            threads: Vec::new(),
            buffers: HashMap::new(),
        };
        for function in &open.functions {
            let name = CString::new(function.name.as_str()).map_err(|error| error.to_string())?;
            let kernel = Arc::new(Kernel::open(&device, &name)?);
            let (queue, work) = mpsc::channel();
            let units = function.compute_units.clamp(1, MAX_UNITS);
            let shared = Arc::new(Units {
                queue: Mutex::new(work),
                free: Mutex::new(units),
                freed: Condvar::new(),
                run_timeout_ms: open.run_timeout_ms,
            });
            // One for a call that runs and one for a call whose data are moved.
            for _ in 0..2 * units {
                let run = Run::open(&kernel)?;
                let (shared, connection) = (Arc::clone(&shared), Arc::clone(connection));
                let thread = std::thread::Builder::new()
                    .name(function.name.clone())
                    .spawn(move || work_off(&shared, run, &connection))
                    .map_err(|error| format!("no thread for a compute unit: {error}"))?;
                host.threads.push(thread);
            }
            host.kernels.push(kernel);
            host.queues.push(queue);
        }
        Ok(host)
    }

    /// Waits for the calls under way, and closes the kernels and the device, so that the next
    /// process finds it free. The database kills this process if that takes too long.
    fn close(self) {
        drop(self.queues);
        for thread in self.threads {
            let _ = thread.join();
        }
    }

    fn allocate(&mut self, allocate: &Allocate, file: Option<OwnedFd>) {
        let buffer = (|| {
            let kernel = self
                .kernels
                .get(allocate.function as usize)
                .ok_or("a buffer for an unknown function")?;
            let file = file.ok_or("a buffer without memory")?;
            let memory = SharedMemory::map(file.as_fd(), allocate.bytes as usize)
                .map_err(|error| format!("shared memory: {error}"))?;
            Buffer::open(kernel, allocate.argument, memory).map(Arc::new)
        })();
        self.buffers.insert(allocate.buffer, buffer);
    }

    fn call(&self, call: Call, connection: &Connection) {
        let number = call.call;
        let queued = self.look_up(call).and_then(|(function, work)| {
            let queue = self.queues.get(function).ok_or("unknown function")?;
            queue
                .send(work)
                .map_err(|_| "no thread serves it".to_owned())
        });
        if let Err(error) = queued {
            reply(
                connection,
                Outcome::Done(Done {
                    call: number,
                    error,
                    is_refused: true,
                }),
            );
        }
    }

    fn look_up(&self, call: Call) -> Result<(usize, Work), String> {
        let mut arguments = Vec::with_capacity(call.arguments.len());
        for value in call.arguments {
            arguments.push(match value.passed {
                Some(Passed::Integer(value)) => Argument::Integer(value),
                Some(Passed::Real(value)) => Argument::Real(value),
                Some(Passed::Array(array)) => {
                    let buffer = self.buffers.get(&array.buffer).ok_or("unknown buffer")?;
                    Argument::Array {
                        buffer: Arc::clone(buffer.as_ref().map_err(Clone::clone)?),
                        bytes_to_device: array.bytes_to_device as usize,
                        bytes_from_device: array.bytes_from_device as usize,
                    }
                }
                None => return Err("an argument of another version of flashmesh".into()),
            });
        }
        let work = Work {
            call: call.call,
            arguments,
        };
        Ok((call.function as usize, work))
    }
}

/// What the threads of one function share.
struct Units {
    queue: Mutex<Receiver<Work>>,
    /// Compute units that run nothing. A call takes one before it starts, so that its time counts
    /// from when it runs.
    free: Mutex<u32>,
    freed: Condvar,
    run_timeout_ms: u32,
}

/// A thread's life: one call after another.
fn work_off(units: &Units, mut run: Run, connection: &Connection) {
    loop {
        let Ok(work) = units.queue.lock().recv() else {
            return;
        };
        let error = execute(&work, &mut run, units).err().unwrap_or_default();
        let call = work.call;
        // The buffers are free before the database hears of it.
        drop(work);
        let done = Done {
            call,
            error,
            is_refused: false,
        };
        reply(connection, Outcome::Done(done));
    }
}

fn execute(work: &Work, run: &mut Run, units: &Units) -> Result<(), String> {
    for (index, argument) in work.arguments.iter().enumerate() {
        let index = index as u32;
        match argument {
            Argument::Integer(value) => run.set_integer(index, *value)?,
            Argument::Real(value) => run.set_real(index, *value)?,
            Argument::Array {
                buffer,
                bytes_to_device,
                ..
            } => {
                buffer.sync_to_device(*bytes_to_device)?;
                run.set_buffer(index, buffer)?;
            }
        }
    }
    let mut free = units.free.lock();
    while *free == 0 {
        units.freed.wait(&mut free);
    }
    *free -= 1;
    drop(free);
    let end = run.run(units.run_timeout_ms);
    // After a failure the unit may still run; the database ends this process then.
    if matches!(end, Ok(RunEnd::Completed)) {
        *units.free.lock() += 1;
        units.freed.notify_one();
    }
    match end? {
        RunEnd::Completed => {}
        RunEnd::TimedOut => {
            return Err(format!("it did not end within {} ms", units.run_timeout_ms));
        }
        RunEnd::Failed(state) => return Err(format!("XRT reports the command state {state}")),
    }
    for argument in &work.arguments {
        if let Argument::Array {
            buffer,
            bytes_from_device,
            ..
        } = argument
        {
            buffer.sync_from_device(*bytes_from_device)?;
        }
    }
    Ok(())
}
