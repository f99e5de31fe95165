//! What goes wrong is an error with a way out, and never takes the database along.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use flashmesh_storage::StorageError;
use flashmesh_storage::accelerator::xrt::container::Container;
use flashmesh_storage::accelerator::xrt::{DeviceState, HostCommand, XrtDevice, XrtMode};
use flashmesh_storage::kernel::Argument;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::rig::{NEVER, Rig, add, kernels};

/// Checks that an error says which kernel failed and what to do, and that the device is set aside.
#[track_caller]
fn assert_set_aside(device: &XrtDevice, error: &StorageError, kernel: &str, reason: &str) {
    let text = error.to_string();
    assert!(text.contains(&format!("kernel '{kernel}'")), "{text}");
    assert!(text.contains(reason), "{text}");
    assert!(text.contains("opened again"), "{text}");
    assert!(matches!(device.state(), DeviceState::Failed { .. }));
    assert!(device.state().to_string().starts_with("failed: "));
    let mut random = StdRng::seed_from_u64(1);
    let next = add(device, &mut random, 1).unwrap_err().to_string();
    assert!(next.contains(reason), "{next}");
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
fn a_device_that_was_set_aside_is_opened_again_by_its_calls() {
    let Some(rig) = Rig::get() else { return };
    let mut options = rig.options();
    options
        .environment
        .push(("FLASHMESH_MODEL_DIE_AT".into(), "2".into()));
    options.reopen_after = Duration::from_millis(50);
    let device = XrtDevice::open(rig.container.clone(), options).unwrap();
    let mut random = StdRng::seed_from_u64(11);
    for _ in 0..2 {
        add(&device, &mut random, 10).unwrap();
        add(&device, &mut random, 10).unwrap_err();
        let began = Instant::now();
        while device.state() != DeviceState::Ready {
            // Whoever uses the device calls it now and then.
            std::thread::sleep(Duration::from_millis(10));
            assert!(began.elapsed() < Duration::from_secs(60));
            if device.state() != DeviceState::Ready {
                let _ = device.start("release", &[Argument::Out(&mut [0; 4])]);
            }
        }
    }
}

#[test]
fn a_call_that_a_memory_bank_has_no_room_for_fails_alone() {
    let Some(rig) = Rig::get() else { return };
    let mut bytes = rig.container.bytes().to_vec();
    let tag = b"DDR[0]\0";
    let whole = (16u64 << 30 >> 10).to_le_bytes();
    let mut banks = 0;
    // An entry of MEM_TOPOLOGY: its size in KiB, an address, its name.
    for at in 16..bytes.len() - tag.len() {
        if bytes[at..].starts_with(tag) && bytes[at - 16..at - 8] == whole {
            bytes[at - 16..at - 8].copy_from_slice(&(1u64 << 10).to_le_bytes());
            banks += 1;
        }
    }
    assert!(banks > 0);
    let container = Container::from_bytes(bytes).unwrap();
    let device = XrtDevice::open(container, rig.options()).unwrap();
    let mut random = StdRng::seed_from_u64(12);
    add(&device, &mut random, 1000).unwrap();
    let error = add(&device, &mut random, 1 << 20).unwrap_err().to_string();
    assert!(error.contains("memory bank DDR[0] has 1048576"), "{error}");
    assert!(error.contains("without the device"), "{error}");
    assert_eq!(device.state(), DeviceState::Ready);
    add(&device, &mut random, 1000).unwrap();
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

/// A request of the runtime: `call_packet_info` and the body.
fn request(function: u32, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x09];
    frame.extend((body.len() as u64).to_le_bytes());
    frame.push(0x15);
    frame.extend(function.to_le_bytes());
    frame.extend(body);
    frame
}

/// What the device model says before it ends, if a runtime sends it these bytes.
fn last_words_of_model(rig: &Rig, bytes: &[u8]) -> String {
    // Where the model looks for the runtime: /tmp/$USER/$EMULATION_SOCKETID.
    let folder = tempfile::Builder::new()
        .prefix("flashmesh-model-")
        .tempdir_in("/tmp")
        .unwrap();
    let runtime = UnixListener::bind(folder.path().join("socket")).unwrap();
    let program = "vitis/data/emulation/unified/cpu_em/generic_pcie/model/genericpciemodel";
    let model = Command::new(rig.folder.join(program))
        .env("USER", folder.path().file_name().unwrap())
        .env("EMULATION_SOCKETID", "socket")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut connection, _) = runtime.accept().unwrap();
    connection.write_all(bytes).unwrap();
    connection.shutdown(Shutdown::Write).unwrap();
    let output = model.wait_with_output().unwrap();
    // A runtime that waits for it notices a signal only.
    assert_eq!(output.status.signal(), Some(libc::SIGABRT));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_hostile_runtime_ends_the_model_with_a_message() {
    let Some(rig) = Rig::get() else { return };
    let mut huge = request(11, &[]);
    huge[1..9].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut cut = request(11, &[0x10, 0x00]);
    cut.pop();
    for (bytes, says) in [
        (huge, "a request of 18446744073709551615 bytes"),
        (cut, "the connection ended inside a request"),
        (
            request(11, &[0x12, 0xff, 0x01]),
            "255 bytes, but 0 are left",
        ),
        (request(11, &[]), "xclReadAddrKernelCtrl without field 2"),
        (
            request(99, &[]),
            "function 99 of the runtime is not modelled",
        ),
        // Field 2, an address outside of a unit's registers.
        (
            request(11, &[0x10, 0x80, 0x40]),
            "outside of the compute units' registers",
        ),
        // Copies to and from where no memory is.
        (
            request(6, &[0x18, 0x00, 0x22, 0x01, 0x61]),
            "outside of the memory banks",
        ),
        (
            request(7, &[0x20, 0x00, 0x28, 0x01]),
            "outside of the memory banks",
        ),
        // A bank (field 8) of one byte.
        (
            request(3, &[0x12, 0x00, 0x42, 0x02, 0x38, 0x01]),
            "a memory bank of 1 bytes",
        ),
    ] {
        let words = last_words_of_model(rig, &bytes);
        assert!(words.contains("device model: "), "{words}");
        assert!(words.contains(says), "{words}");
    }
}
