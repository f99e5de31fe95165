//! XRT's C API, bound at run time: nothing of XRT is needed to build flashmesh, or to run it without
//! a device. Signatures are those of `xrt/xrt_device.h`, `xrt_bo.h` and `xrt_kernel.h` of XRT 2.13;
//! later versions keep them.

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libloading::Library;

use super::shared::SharedMemory;

/// A handle of the runtime, NULL if it could not be made.
type Handle = *mut c_void;

/// The library's name, where the dynamic linker finds it.
pub(super) const LIBRARY: &str = "libxrt_coreutil.so.2";

/// `enum xclBOSyncDirection`.
const SYNC_TO_DEVICE: c_int = 0;
const SYNC_FROM_DEVICE: c_int = 1;
/// `ERT_CMD_STATE_COMPLETED` of `ert.h`.
const STATE_COMPLETED: c_int = 4;
/// States in which a run has not ended: new, queued, running, submitted.
const STATES_UNFINISHED: [c_int; 4] = [1, 2, 3, 7];

macro_rules! functions {
    ($($field:ident = $symbol:literal: $type:ty;)*) => {
        /// The functions that flashmesh uses. The library stays loaded as long as this lives.
        struct Functions {
            $($field: $type,)*
            _library: Library,
        }

        impl Functions {
            fn of(library: Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the types are those of XRT's headers.
                    $($field: unsafe { *library.get::<$type>($symbol)? },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    device_open = b"xrtDeviceOpen\0": unsafe extern "C" fn(c_uint) -> Handle;
    device_close = b"xrtDeviceClose\0": unsafe extern "C" fn(Handle) -> c_int;
    load_container = b"xrtDeviceLoadXclbinFile\0":
        unsafe extern "C" fn(Handle, *const std::ffi::c_char) -> c_int;
    container_uuid = b"xrtDeviceGetXclbinUUID\0": unsafe extern "C" fn(Handle, *mut u8) -> c_int;
    kernel_open = b"xrtPLKernelOpen\0":
        unsafe extern "C" fn(Handle, *const u8, *const std::ffi::c_char) -> Handle;
    kernel_close = b"xrtKernelClose\0": unsafe extern "C" fn(Handle) -> c_int;
    argument_group = b"xrtKernelArgGroupId\0": unsafe extern "C" fn(Handle, c_int) -> c_int;
    buffer_of_memory = b"xrtBOAllocUserPtr\0":
        unsafe extern "C" fn(Handle, *mut c_void, usize, u64, c_uint) -> Handle;
    buffer_free = b"xrtBOFree\0": unsafe extern "C" fn(Handle) -> c_int;
    buffer_sync = b"xrtBOSync\0": unsafe extern "C" fn(Handle, c_int, usize, usize) -> c_int;
    run_open = b"xrtRunOpen\0": unsafe extern "C" fn(Handle) -> Handle;
    run_close = b"xrtRunClose\0": unsafe extern "C" fn(Handle) -> c_int;
    run_set_argument = b"xrtRunSetArg\0": unsafe extern "C" fn(Handle, c_int, ...) -> c_int;
    run_start = b"xrtRunStart\0": unsafe extern "C" fn(Handle) -> c_int;
    run_state = b"xrtRunState\0": unsafe extern "C" fn(Handle) -> c_int;
    run_wait = b"xrtRunWaitFor\0": unsafe extern "C" fn(Handle, c_uint) -> c_int;
}

/// A handle that several threads use.
struct Shared(Handle);

// SAFETY: XRT's objects may be used by any thread; only a run belongs to one thread at a time, which
// `Run`'s methods ask for by `&mut self`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// The loaded runtime.
pub(super) struct Runtime {
    functions: Functions,
    library: PathBuf,
    is_emulation: bool,
}

impl Runtime {
    /// Loads the library.
    ///
    /// # Errors
    /// What to install.
    pub(super) fn load(library: &Path, is_emulation: bool) -> Result<Arc<Self>, String> {
        // SAFETY: loading runs XRT's initialisers; this is done in a process of its own.
        unsafe { Library::new(library) }
            .and_then(Functions::of)
            .map(|functions| {
                Arc::new(Self {
                    functions,
                    library: library.to_owned(),
                    is_emulation,
                })
            })
            .map_err(|error| {
                format!(
                    "XRT's library {} can't be loaded ({error}). Install XRT 2.13 or later: on \
                     Debian 'apt-get install libxrt1', elsewhere AMD's package for the card",
                    library.display()
                )
            })
    }

    /// How many devices there are.
    pub(super) fn count_devices(&self) -> Result<u32, String> {
        let name = match self.is_emulation {
            true => "libxrt_swemu.so.2",
            false => "libxrt_core.so.2",
        };
        let library = self.library.with_file_name(name);
        // SAFETY: as in `load`; the function's type is that of `xrt.h`.
        let count = unsafe {
            Library::new(&library).and_then(|library| {
                let probe = library.get::<unsafe extern "C" fn() -> c_uint>(b"xclProbe\0")?;
                let count = probe();
                // Its threads and handlers stay.
                std::mem::forget(library);
                Ok(count)
            })
        };
        count.map_err(|error| {
            format!(
                "XRT's library {} can't be used ({error})",
                library.display()
            )
        })
    }

    /// Opens a device by its number, from 0.
    pub(super) fn open_device(self: &Arc<Self>, index: u32) -> Result<Device, String> {
        // The emulation would open devices that do not exist.
        let count = self.count_devices()?;
        if index >= count {
            return Err(format!(
                "XRT has no device {index}; it has {count}, counted from 0"
            ));
        }
        // SAFETY: the runtime checks the number.
        let handle = unsafe { (self.functions.device_open)(index) };
        if handle.is_null() {
            return Err(format!("XRT has no device {index}"));
        }
        Ok(Device {
            runtime: Arc::clone(self),
            handle: Shared(handle),
            uuid: [0; 16],
        })
    }
}

/// An open device.
pub(super) struct Device {
    runtime: Arc<Runtime>,
    handle: Shared,
    uuid: [u8; 16],
}

impl Device {
    /// Loads a container.
    pub(super) fn load(&mut self, container: &Path) -> Result<(), String> {
        use std::os::unix::ffi::OsStrExt;
        let path = CString::new(container.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
        let functions = &self.runtime.functions;
        // SAFETY: the handle is open, the path ends with a zero.
        if unsafe { (functions.load_container)(self.handle.0, path.as_ptr()) } != 0 {
            return Err("XRT refuses the container".into());
        }
        // SAFETY: the handle is open; a UUID has 16 bytes.
        if unsafe { (functions.container_uuid)(self.handle.0, self.uuid.as_mut_ptr()) } != 0 {
            return Err("XRT does not name the loaded container".into());
        }
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and nobody else holds it.
        unsafe { (self.runtime.functions.device_close)(self.handle.0) };
    }
}

/// A function of the loaded container, on all of its compute units.
pub(super) struct Kernel {
    device: Arc<Device>,
    handle: Shared,
}

impl Kernel {
    pub(super) fn open(device: &Arc<Device>, name: &CStr) -> Result<Self, String> {
        let open = device.runtime.functions.kernel_open;
        // SAFETY: the handle is open; a UUID has 16 bytes; the name ends with a zero.
        let handle = unsafe { open(device.handle.0, device.uuid.as_ptr(), name.as_ptr()) };
        if handle.is_null() {
            return Err(format!("XRT does not open the kernel {name:?}"));
        }
        Ok(Self {
            device: Arc::clone(device),
            handle: Shared(handle),
        })
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and nobody else holds it.
        unsafe { (self.device.runtime.functions.kernel_close)(self.handle.0) };
    }
}

/// Memory of the device behind shared memory of the host.
pub(super) struct Buffer {
    device: Arc<Device>,
    handle: Shared,
    /// Unmapped after the buffer is freed.
    memory: SharedMemory,
}

impl Buffer {
    /// A buffer in the memory bank that the kernel's argument is connected to.
    pub(super) fn open(
        kernel: &Kernel,
        argument: u32,
        memory: SharedMemory,
    ) -> Result<Self, String> {
        let device = &kernel.device;
        let functions = &device.runtime.functions;
        // SAFETY: the handle is open; the runtime checks the number.
        let group = unsafe { (functions.argument_group)(kernel.handle.0, argument as c_int) };
        let Ok(group) = c_uint::try_from(group) else {
            return Err(format!("argument {argument} has no memory bank"));
        };
        // SAFETY: the memory is aligned to pages and outlives the buffer.
        let handle = unsafe {
            (functions.buffer_of_memory)(
                device.handle.0,
                memory.as_mut_ptr().cast(),
                memory.len(),
                0,
                group,
            )
        };
        if handle.is_null() {
            return Err(format!(
                "the device has no room for a buffer of {} bytes in bank {group}",
                memory.len()
            ));
        }
        Ok(Self {
            device: Arc::clone(device),
            handle: Shared(handle),
            memory,
        })
    }

    /// Copies the first `bytes` to the device.
    pub(super) fn sync_to_device(&self, bytes: usize) -> Result<(), String> {
        self.sync(SYNC_TO_DEVICE, bytes, "to")
    }

    /// Copies the first `bytes` from the device.
    pub(super) fn sync_from_device(&self, bytes: usize) -> Result<(), String> {
        self.sync(SYNC_FROM_DEVICE, bytes, "from")
    }

    fn sync(&self, direction: c_int, bytes: usize, way: &str) -> Result<(), String> {
        if bytes == 0 {
            return Ok(());
        }
        if bytes > self.memory.len() {
            return Err(format!("{bytes} bytes are more than the buffer has"));
        }
        let sync = self.device.runtime.functions.buffer_sync;
        // SAFETY: the handle is open and the range lies inside the buffer.
        match unsafe { sync(self.handle.0, direction, bytes, 0) } {
            0 => Ok(()),
            _ => Err(format!("the transfer {way} the device failed")),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and nobody else holds it.
        unsafe { (self.device.runtime.functions.buffer_free)(self.handle.0) };
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunEnd {
    Completed,
    /// It has not ended in the time that it had.
    TimedOut,
    /// The runtime's state of the command.
    Failed(c_int),
}

/// One call of a kernel after another; started runs of one kernel go to its free compute units.
pub(super) struct Run {
    kernel: Arc<Kernel>,
    handle: Shared,
}

impl Run {
    pub(super) fn open(kernel: &Arc<Kernel>) -> Result<Self, String> {
        // SAFETY: the handle is open.
        let handle = unsafe { (kernel.device.runtime.functions.run_open)(kernel.handle.0) };
        if handle.is_null() {
            return Err("XRT opens no run".into());
        }
        Ok(Self {
            kernel: Arc::clone(kernel),
            handle: Shared(handle),
        })
    }

    fn check(&self, index: u32, code: c_int) -> Result<(), String> {
        match code {
            0 => Ok(()),
            _ => Err(format!("XRT refuses argument {index}")),
        }
    }

    /// Passes an integer of any width.
    pub(super) fn set_integer(&mut self, index: u32, value: u64) -> Result<(), String> {
        let set = self.kernel.device.runtime.functions.run_set_argument;
        // SAFETY: the runtime takes an integer of at most 64 bits from where C passes it.
        self.check(index, unsafe { set(self.handle.0, index as c_int, value) })
    }

    /// Passes a `float` or a `double`: C passes both as `double` here.
    pub(super) fn set_real(&mut self, index: u32, value: f64) -> Result<(), String> {
        let set = self.kernel.device.runtime.functions.run_set_argument;
        // SAFETY: the runtime takes a double for these two types.
        self.check(index, unsafe { set(self.handle.0, index as c_int, value) })
    }

    /// Passes an array.
    pub(super) fn set_buffer(&mut self, index: u32, buffer: &Buffer) -> Result<(), String> {
        let set = self.kernel.device.runtime.functions.run_set_argument;
        // SAFETY: the buffer is open; the caller keeps it until the run has ended.
        self.check(index, unsafe {
            set(self.handle.0, index as c_int, buffer.handle.0)
        })
    }

    /// Starts it and waits for its end.
    pub(super) fn run(&mut self, timeout_ms: u32) -> Result<RunEnd, String> {
        let runtime = &self.kernel.device.runtime;
        // SAFETY: the handle is open.
        if unsafe { (runtime.functions.run_start)(self.handle.0) } != 0 {
            return Err("XRT does not start the kernel".into());
        }
        let state = match runtime.is_emulation {
            true => self.look_until_end(timeout_ms),
            // SAFETY: as above.
            false => unsafe { (runtime.functions.run_wait)(self.handle.0, timeout_ms) },
        };
        Ok(match state {
            STATE_COMPLETED => RunEnd::Completed,
            state if STATES_UNFINISHED.contains(&state) => RunEnd::TimedOut,
            state => RunEnd::Failed(state),
        })
    }

    /// The software emulation's own waiting takes a whole core and knows no time-out.
    fn look_until_end(&self, timeout_ms: u32) -> c_int {
        let until = Instant::now() + Duration::from_millis(timeout_ms.into());
        let mut pause = Duration::from_micros(20);
        loop {
            // SAFETY: the handle is open.
            let state = unsafe { (self.kernel.device.runtime.functions.run_state)(self.handle.0) };
            if !STATES_UNFINISHED.contains(&state) || Instant::now() > until {
                return state;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and nobody else holds it.
        unsafe { (self.kernel.device.runtime.functions.run_close)(self.handle.0) };
    }
}
