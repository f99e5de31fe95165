//! Kernels behind the genuine XRT runtime and the device model of `fpga/shell/model`.
//!
//! Without XRT or a C++ compiler the tests are skipped, with a line that says so;
//! `FLASHMESH_REQUIRE_XRT=1` makes that a failure.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flashmesh_storage::StorageError;
use flashmesh_storage::accelerator::xrt::container::{Container, ContainerKernel, EmulationBuild};
use flashmesh_storage::accelerator::xrt::{
    DeviceState, HostCommand, XrtDevice, XrtKernel, XrtMode, XrtOptions, host_main,
};
use flashmesh_storage::kernel::interface::{
    ArgumentInterface, ArgumentUse, ElementType, FunctionInterface, KernelInterface,
};
use flashmesh_storage::kernel::{Argument, CallContext, MemoryBudget, ScalarArgument, Target};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Set for the runtime's process, which is this test's binary once more.
const HOST_VARIABLE: &str = "FLASHMESH_XRT_TEST_HOST";

static NEVER: AtomicBool = AtomicBool::new(false);

/// Not a test: the entry of the runtime's process.
#[test]
#[ignore = "the entry of the runtime's process"]
fn xrt_host() {
    if std::env::var_os(HOST_VARIABLE).is_some() {
        host_main();
    }
}

/// What all tests share: the built model and the container with the kernels of `tests/xrt`.
struct Rig {
    folder: PathBuf,
    container: Container,
}

impl Rig {
    /// `None`, and a line that says why, where XRT or the compiler is missing.
    fn get() -> Option<&'static Self> {
        static RIG: OnceLock<Result<Rig, String>> = OnceLock::new();
        match RIG.get_or_init(Self::build) {
            Ok(rig) => Some(rig),
            Err(reason) if std::env::var_os("FLASHMESH_REQUIRE_XRT").is_some_and(|v| v == "1") => {
                panic!("{reason}, and FLASHMESH_REQUIRE_XRT is set")
            }
            Err(reason) => {
                eprintln!("skipped: {reason}");
                None
            }
        }
    }

    fn build() -> Result<Self, String> {
        let own = std::env::var_os("XRT_LIBRARY_FOLDER").map(PathBuf::from);
        let mut folders = [
            "/usr/lib/x86_64-linux-gnu",
            "/opt/xilinx/xrt/lib",
            "/usr/lib64",
        ]
        .map(PathBuf::from)
        .into_iter()
        .chain(own);
        if !folders.any(|folder| folder.join("libxrt_swemu.so.2").exists()) {
            return Err("XRT's software emulation is not installed (libxrt1)".into());
        }
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
        if Command::new(&compiler).arg("--version").output().is_err() {
            return Err(format!("the C++ compiler '{compiler}' is not installed"));
        }
        // From here on, what fails is a failure.
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("xrt-emulation");
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let build = Command::new(repository.join("fpga/shell/model/build"))
            .arg(&folder)
            .output()
            .expect("bash runs the model's build script");
        assert!(
            build.status.success(),
            "{}",
            String::from_utf8_lossy(&build.stderr)
        );
        let scratch = tempfile::tempdir().unwrap();
        let container = EmulationBuild {
            kernels: kernels(),
            sources: vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/xrt/kernels.cpp")],
            ..EmulationBuild::default()
        }
        .build(scratch.path())
        .unwrap();
        Ok(Self { folder, container })
    }

    fn options(&self) -> XrtOptions {
        let mut options = XrtOptions::new(XrtMode::Emulation {
            folder: self.folder.clone(),
        })
        .unwrap();
        options.host = HostCommand {
            program: std::env::current_exe().unwrap(),
            arguments: ["--exact", "xrt_host", "--ignored", "--nocapture"]
                .map(Into::into)
                .into(),
        };
        options.environment = vec![(HOST_VARIABLE.into(), "1".into())];
        options.run_timeout = Duration::from_secs(60);
        options
    }

    fn open(&self) -> Arc<XrtDevice> {
        XrtDevice::open(self.container.clone(), self.options()).unwrap()
    }

    /// Opens with one of the model's variables for tests.
    fn open_with(&self, variable: &str, value: u32, run_timeout: Duration) -> Arc<XrtDevice> {
        let mut options = self.options();
        options
            .environment
            .push((variable.into(), value.to_string().into()));
        options.run_timeout = run_timeout;
        XrtDevice::open(self.container.clone(), options).unwrap()
    }
}

fn kernels() -> Vec<ContainerKernel> {
    use ArgumentUse::{In, InOut, Out, Scalar};
    use ElementType::{F32, F64, I16, I32, I64, U8, U32, U64};
    let kernel = |name: &str, compute_units, arguments: &[(&str, ArgumentUse, ElementType)]| {
        let arguments = arguments
            .iter()
            .enumerate()
            .map(|(index, (name, usage, element))| ArgumentInterface {
                name: (*name).into(),
                usage: *usage,
                element: *element,
                // Several banks, to show that buffers find theirs.
                bank: format!("DDR[{}]", index % 2),
            })
            .collect();
        ContainerKernel {
            manifest: format!("[kernel]\nname = \"{name}\"\n"),
            interface: KernelInterface {
                name: name.into(),
                compute_units,
                functions: vec![FunctionInterface {
                    name: name.into(),
                    arguments,
                }],
            },
        }
    };
    vec![
        kernel(
            "add",
            2,
            &[
                ("a", In, I32),
                ("b", In, I32),
                ("c", Out, I32),
                ("rows", Scalar, U32),
            ],
        ),
        kernel(
            "scalars",
            1,
            &[
                ("a", Scalar, U8),
                ("b", Scalar, I16),
                ("c", Scalar, I32),
                ("d", Scalar, U32),
                ("e", Scalar, I64),
                ("f", Scalar, U64),
                ("g", Scalar, F32),
                ("h", Scalar, F64),
                ("result", Out, F64),
            ],
        ),
        kernel("twice", 1, &[("values", InOut, U64), ("rows", Scalar, U32)]),
        kernel(
            "meet",
            2,
            &[("parties", Scalar, U32), ("together", Out, U32)],
        ),
        kernel("hold", 1, &[("was_released", Out, U32)]),
        kernel("release", 1, &[("done", Out, U32)]),
        kernel("crash", 1, &[("result", Out, U32)]),
    ]
}

fn bytes_of(values: &[i32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn u32_of(bytes: [u8; 4]) -> u32 {
    u32::from_le_bytes(bytes)
}

/// Adds random arrays of `rows` on the device and compares with the host's sum.
fn add(device: &XrtDevice, random: &mut StdRng, rows: usize) -> Result<(), StorageError> {
    let a: Vec<i32> = (0..rows).map(|_| random.random()).collect();
    let b: Vec<i32> = (0..rows).map(|_| random.random()).collect();
    let sum: Vec<i32> = a.iter().zip(&b).map(|(a, b)| a.wrapping_add(*b)).collect();
    let (a, b, mut c) = (bytes_of(&a), bytes_of(&b), vec![0xee; 4 * rows]);
    let mut arguments = [
        Argument::In(&a),
        Argument::In(&b),
        Argument::Out(&mut c),
        Argument::Scalar(ScalarArgument::I32(rows as i32)),
    ];
    device.submit("add", &mut arguments)?.wait(&NEVER)?;
    assert!(c == bytes_of(&sum), "{rows} rows");
    Ok(())
}

/// Checks that an error says which kernel failed and what to do, and that the device is set aside.
#[track_caller]
fn assert_set_aside(device: &XrtDevice, error: &StorageError, kernel: &str, reason: &str) {
    let text = error.to_string();
    assert!(text.contains(&format!("kernel '{kernel}'")), "{text}");
    assert!(text.contains(reason), "{text}");
    assert!(text.contains("opened again"), "{text}");
    assert!(matches!(device.state(), DeviceState::Failed { .. }));
    let mut random = StdRng::seed_from_u64(1);
    let next = add(device, &mut random, 1).unwrap_err().to_string();
    assert!(next.contains(reason), "{next}");
}

#[test]
fn random_data_give_the_sums_of_the_host() {
    let Some(rig) = Rig::get() else { return };
    let device = rig.open();
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    // Below, at and above the sizes of buffers; none at all; more than one transfer of the runtime.
    for rows in [0, 1, 1023, 1024, 1025, 4096, 100_000, 3_000_000] {
        add(&device, &mut random, rows).unwrap();
    }
    let counters = device.counters();
    assert_eq!(counters.calls.load(Ordering::Relaxed), 8);
    let from = counters.bytes_from_device.load(Ordering::Relaxed);
    assert_eq!(2 * from, counters.bytes_to_device.load(Ordering::Relaxed));
}

#[test]
fn every_type_of_argument_arrives() {
    let Some(rig) = Rig::get() else { return };
    let device = rig.open();
    let mut result = [0; 64];
    let mut arguments = [
        Argument::Scalar(ScalarArgument::I32(255)),
        Argument::Scalar(ScalarArgument::I32(-32_768)),
        Argument::Scalar(ScalarArgument::I32(-2_147_483_648)),
        Argument::Scalar(ScalarArgument::I32(-1)),
        Argument::Scalar(ScalarArgument::I64(-(1 << 52))),
        Argument::Scalar(ScalarArgument::I64((1 << 52) + 1)),
        Argument::Scalar(ScalarArgument::F32(0.1)),
        Argument::Scalar(ScalarArgument::F64(0.1)),
        Argument::Out(&mut result),
    ];
    device
        .submit("scalars", &mut arguments)
        .unwrap()
        .wait(&NEVER)
        .unwrap();
    let (words, _) = result.as_chunks::<8>();
    let values: Vec<f64> = words.iter().map(|word| f64::from_le_bytes(*word)).collect();
    let expected = [
        255.0,
        -32_768.0,
        -2_147_483_648.0,
        4_294_967_295.0,
        -((1u64 << 52) as f64),
        ((1u64 << 52) + 1) as f64,
        f64::from(0.1f32),
        0.1,
    ];
    assert_eq!(values, expected);

    let mut values: Vec<u8> = (0..1000u64).flat_map(u64::to_le_bytes).collect();
    let mut arguments = [
        Argument::InOut(&mut values),
        Argument::Scalar(ScalarArgument::I32(1000)),
    ];
    device
        .submit("twice", &mut arguments)
        .unwrap()
        .wait(&NEVER)
        .unwrap();
    assert!(
        values
            == (0..1000u64)
                .flat_map(|v| (2 * v).to_le_bytes())
                .collect::<Vec<_>>()
    );

    let error = device.submit("twice", &mut []).unwrap_err().to_string();
    assert!(error.contains("0 arguments are given, it has 2"), "{error}");
    let mut wrong = [
        Argument::In(&[0; 8]),
        Argument::Scalar(ScalarArgument::I32(1)),
    ];
    let error = device.submit("twice", &mut wrong).unwrap_err().to_string();
    assert!(
        error.contains("'values' has to be InOut of uint64_t"),
        "{error}"
    );
    assert!(device.submit("nothing", &mut []).is_err());
    assert_eq!(device.state(), DeviceState::Ready);
}

#[test]
fn many_calls_by_many_threads() {
    let Some(rig) = Rig::get() else { return };
    let device = rig.open();
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let device = &device;
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(thread);
                for _ in 0..40 {
                    let rows = random.random_range(0..5000);
                    add(device, &mut random, rows).unwrap();
                }
            });
        }
    });
}

#[test]
fn two_units_run_at_once() {
    let Some(rig) = Rig::get() else { return };
    let device = rig.open();
    // Neither ends unless both run.
    let (mut first, mut second) = ([0; 4], [0; 4]);
    let parties = Argument::Scalar(ScalarArgument::I32(2));
    let mut arguments = [parties, Argument::Out(&mut first)];
    let one = device.submit("meet", &mut arguments).unwrap();
    let parties = Argument::Scalar(ScalarArgument::I32(2));
    let mut arguments = [parties, Argument::Out(&mut second)];
    let other = device.submit("meet", &mut arguments).unwrap();
    one.wait(&NEVER).unwrap();
    other.wait(&NEVER).unwrap();
    assert_eq!((u32_of(first), u32_of(second)), (2, 2));
}

#[test]
fn transfers_and_kernels_overlap_with_a_running_kernel() {
    let Some(rig) = Rig::get() else { return };
    let device = rig.open();
    let mut random = StdRng::seed_from_u64(5);
    let (mut held, mut done) = ([0; 4], [0; 4]);
    let mut arguments = [Argument::Out(&mut held)];
    let pending = device.submit("hold", &mut arguments).unwrap();
    for rows in [100_000, 7] {
        add(&device, &mut random, rows).unwrap();
    }
    let mut arguments = [Argument::Out(&mut done)];
    device
        .submit("release", &mut arguments)
        .unwrap()
        .wait(&NEVER)
        .unwrap();
    pending.wait(&NEVER).unwrap();
    assert_eq!((u32_of(held), u32_of(done)), (1, 1));
}

#[test]
fn a_cancelled_call_leaves_the_device_usable() {
    let Some(rig) = Rig::get() else { return };
    let device = rig.open();
    let mut random = StdRng::seed_from_u64(6);
    let cancelled = AtomicBool::new(true);
    let (mut held, mut done) = ([0; 4], [0; 4]);
    let mut arguments = [Argument::Out(&mut held)];
    let pending = device.submit("hold", &mut arguments).unwrap();
    let error = pending.wait(&cancelled).unwrap_err().to_string();
    assert!(error.contains("cancelled"), "{error}");
    add(&device, &mut random, 100).unwrap();
    let mut arguments = [Argument::Out(&mut done)];
    device
        .submit("release", &mut arguments)
        .unwrap()
        .wait(&NEVER)
        .unwrap();
    // And one that nobody waits for.
    let mut arguments = [Argument::Out(&mut held)];
    drop(device.submit("hold", &mut arguments).unwrap());
    add(&device, &mut random, 100).unwrap();
    assert_eq!(device.state(), DeviceState::Ready);
}

#[test]
fn a_device_that_dies_in_a_call_is_an_error_and_can_be_opened_again() {
    let Some(rig) = Rig::get() else { return };
    let device = rig.open_with("FLASHMESH_MODEL_DIE_AT", 3, Duration::from_secs(60));
    let mut random = StdRng::seed_from_u64(7);
    add(&device, &mut random, 1000).unwrap();
    add(&device, &mut random, 1000).unwrap();
    let error = add(&device, &mut random, 1000).unwrap_err();
    assert_set_aside(&device, &error, "add", "dies at start 3");
    device.reopen().unwrap();
    assert_eq!(device.state(), DeviceState::Ready);
    add(&device, &mut random, 1000).unwrap();
}

#[test]
fn a_fault_of_a_kernel_is_an_error() {
    let Some(rig) = Rig::get() else { return };
    let mut random = StdRng::seed_from_u64(8);
    let device = rig.open_with("FLASHMESH_MODEL_ERROR_AT", 1, Duration::from_secs(60));
    let error = add(&device, &mut random, 10).unwrap_err();
    assert_set_aside(&device, &error, "add", "a fault at start 1");

    let device = rig.open();
    let mut result = [0; 4];
    let mut arguments = [Argument::Out(&mut result)];
    let pending = device.submit("crash", &mut arguments).unwrap();
    let error = pending.wait(&NEVER).unwrap_err();
    assert_set_aside(&device, &error, "crash", "its process has ended");
    device.reopen().unwrap();
    add(&device, &mut random, 10).unwrap();
}

#[test]
fn a_kernel_that_does_not_end_is_an_error() {
    let Some(rig) = Rig::get() else { return };
    let device = rig.open_with("FLASHMESH_MODEL_HANG_AT", 2, Duration::from_millis(300));
    let mut random = StdRng::seed_from_u64(9);
    add(&device, &mut random, 10).unwrap();
    let error = add(&device, &mut random, 10).unwrap_err();
    assert_set_aside(&device, &error, "add", "did not end within 300 ms");
    device.reopen().unwrap();
    add(&device, &mut random, 10).unwrap();
}

/// The processes that a process has started.
fn children(process: u32) -> Vec<libc::pid_t> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok())
        .flat_map(|line| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .filter_map(|number| number.parse().ok())
        .collect()
}

#[test]
fn killed_processes_are_errors_of_the_call() {
    let Some(rig) = Rig::get() else { return };
    let device = rig.open();
    let mut random = StdRng::seed_from_u64(10);
    for kill_model in [true, false] {
        let mut held = [0; 4];
        let mut arguments = [Argument::Out(&mut held)];
        let pending = device.submit("hold", &mut arguments).unwrap();
        let victim = match kill_model {
            true => children(device.process())[0],
            false => device.process() as libc::pid_t,
        };
        // SAFETY: a signal to a process that this test has started.
        assert_eq!(unsafe { libc::kill(victim, libc::SIGKILL) }, 0);
        let error = pending.wait(&NEVER).unwrap_err();
        assert_set_aside(&device, &error, "hold", "its process has ended");
        device.reopen().unwrap();
        add(&device, &mut random, 100).unwrap();
    }
}

#[test]
fn eight_devices_at_once() {
    let Some(rig) = Rig::get() else { return };
    let devices: Vec<_> = (0..8).map(|_| rig.open()).collect();
    std::thread::scope(|scope| {
        for (seed, device) in (0..).zip(&devices) {
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                for _ in 0..5 {
                    add(device, &mut random, 2000).unwrap();
                }
            });
        }
    });
    // One that dies takes no other with it.
    let dying = rig.open_with("FLASHMESH_MODEL_DIE_AT", 1, Duration::from_secs(60));
    let mut random = StdRng::seed_from_u64(20);
    add(&dying, &mut random, 10).unwrap_err();
    for device in &devices {
        add(device, &mut random, 10).unwrap();
    }
}

#[derive(Debug)]
struct Budget {
    free: AtomicUsize,
}

impl MemoryBudget for Budget {
    fn grow(&self, bytes: usize) -> Result<(), StorageError> {
        let taken = self
            .free
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
                free.checked_sub(bytes)
            });
        taken.map(|_| ()).map_err(|free| {
            StorageError::Invalid(format!("{bytes} bytes of memory, {free} are free"))
        })
    }

    fn shrink(&self, bytes: usize) {
        self.free.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[test]
fn a_kernel_is_a_target() {
    let Some(rig) = Rig::get() else { return };
    let device = rig.open();
    assert!(XrtKernel::new(Arc::clone(&device), "nothing").is_err());
    let kernel = XrtKernel::new(Arc::clone(&device), "twice").unwrap();
    assert_eq!(kernel.name(), "xrt");
    let budget = Budget {
        free: AtomicUsize::new(8192),
    };
    let context = CallContext {
        memory: &budget,
        cancelled: &NEVER,
    };
    let call = |rows: usize| {
        let mut values = vec![1; 8 * rows];
        let mut arguments = [
            Argument::InOut(&mut values),
            Argument::Scalar(ScalarArgument::I32(rows as i32)),
        ];
        kernel.call("twice", &mut arguments, context)?;
        assert!(values.iter().all(|byte| *byte == 2));
        Ok::<(), StorageError>(())
    };
    call(1024).unwrap();
    let error = call(1025).unwrap_err().to_string();
    assert!(error.contains("16384 bytes of memory"), "{error}");
    assert_eq!(budget.free.load(Ordering::Relaxed), 8192);
    // Functions of other kernels are not this one's.
    assert!(kernel.call("add", &mut [], context).is_err());
}

#[test]
fn a_device_says_what_it_is() {
    let Some(rig) = Rig::get() else { return };
    assert_eq!(XrtDevice::count(&rig.options()).unwrap(), 1);
    let report = rig.open().report();
    assert_eq!(report.state, DeviceState::Ready);
    assert_eq!(report.kernels[..2], ["add", "scalars"]);
    assert_eq!(report.compute_units[1].instance, "add_2");
    let banks: Vec<_> = report.memory_banks.iter().map(|bank| &bank.name).collect();
    assert_eq!(banks, ["DDR[0]", "DDR[1]"]);
    let mut options = rig.options();
    options.device = 9;
    let error = XrtDevice::open(rig.container.clone(), options).unwrap_err();
    assert!(error.to_string().contains("no device 9"), "{error}");
}

#[test]
fn what_is_missing_is_named() {
    let Some(rig) = Rig::get() else { return };
    let mut options = rig.options();
    options.library = Some("/nowhere/libxrt_coreutil.so.2".into());
    let error = XrtDevice::open(rig.container.clone(), options)
        .unwrap_err()
        .to_string();
    assert!(error.contains("apt-get install libxrt1"), "{error}");
    assert!(error.contains("/nowhere/libxrt_coreutil.so.2"), "{error}");

    let mut options = rig.options();
    options.mode = XrtMode::Emulation {
        folder: "/nowhere".into(),
    };
    let error = XrtDevice::open(rig.container.clone(), options)
        .unwrap_err()
        .to_string();
    assert!(error.contains("fpga/shell/model/build"), "{error}");

    let mut options = rig.options();
    options.host.program = "/nowhere/flashmesh".into();
    let error = XrtDevice::open(rig.container.clone(), options)
        .unwrap_err()
        .to_string();
    assert!(error.contains("/nowhere/flashmesh"), "{error}");

    // A program that is no host ends, and its last words are shown.
    let mut options = rig.options();
    options.host = HostCommand {
        program: "/bin/sh".into(),
        arguments: vec!["-c".into(), "echo no such command >&2; exit 2".into()],
    };
    let error = XrtDevice::open(rig.container.clone(), options)
        .unwrap_err()
        .to_string();
    assert!(error.contains("no such command"), "{error}");
}

#[test]
fn a_container_without_kernels_in_it_is_refused_by_the_device() {
    let Some(rig) = Rig::get() else { return };
    for library in [&b""[..], b"no shared object"] {
        let container = Container::for_emulation(kernels(), library).unwrap();
        let error = XrtDevice::open(container, rig.options())
            .unwrap_err()
            .to_string();
        assert!(error.contains("can't be opened"), "{error}");
        assert!(error.contains("device model"), "{error}");
    }
}
