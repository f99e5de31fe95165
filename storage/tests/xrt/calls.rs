//! Calls: right results, several at once, and what a device says of itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use flashmesh_storage::StorageError;
use flashmesh_storage::accelerator::Accelerator;
use flashmesh_storage::accelerator::xrt::{DeviceState, XrtAccelerator, XrtDevice, XrtKernel};
use flashmesh_storage::kernel::{Argument, CallContext, CallTime, Package, ScalarArgument, Target};
use flashmesh_storage::memory::MemoryBudget;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::rig::{NEVER, Rig, SOURCES, add, manifest_of, u32_of};

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
fn a_query_finds_nothing_of_another_in_the_device_s_buffers() {
    let Some(rig) = Rig::get() else { return };
    let device = rig.open();
    let leave = |query: u64| {
        let mut secret = [0x11; 8000];
        let mut arguments = [
            Argument::InOut(&mut secret),
            Argument::Scalar(ScalarArgument::I32(1000)),
        ];
        let call = device.submit_for(query, "twice", &mut arguments).unwrap();
        call.wait(&NEVER).unwrap();
    };
    let find = |query: u64| {
        let mut found = [0xee; 8192];
        let mut arguments = [
            Argument::Out(&mut found),
            Argument::Scalar(ScalarArgument::I32(8192)),
        ];
        let call = device.submit_for(query, "silent", &mut arguments).unwrap();
        call.wait(&NEVER).unwrap();
        found
    };
    // What a kernel does not write is what its own query has left there.
    leave(1);
    assert_eq!(find(1)[..8000], [0x22; 8000]);
    assert_eq!(find(2), [0; 8192]);
    leave(1);
    assert_eq!(find(3), [0; 8192]);
    // Smaller arrays lie in buffers that are as large as others.
    leave(1);
    let mut short = [1u8; 4800];
    let mut arguments = [
        Argument::InOut(&mut short),
        Argument::Scalar(ScalarArgument::I32(600)),
    ];
    let call = device.submit_for(4, "twice", &mut arguments).unwrap();
    call.wait(&NEVER).unwrap();
    let found = find(4);
    assert_eq!(
        (&found[..4800], &found[4800..]),
        (&[2; 4800][..], &[0; 3392][..])
    );
}

#[test]
fn a_function_runs_on_a_device_that_holds_its_very_sources() {
    let Some(rig) = Rig::get() else { return };
    let accelerator = XrtAccelerator::new(rig.open()).unwrap();
    let kernel = |manifest: String, source| {
        let package = Package::new(&manifest, b"\0asm\x01\0\0\0", None, source).unwrap();
        accelerator.kernel(&package)
    };
    assert!(kernel(manifest_of("twice"), SOURCES).is_some());
    assert!(kernel(manifest_of("twice"), [8; 32]).is_none(), "edited");
    let other = manifest_of("twice").replace("1.0.0", "1.0.1");
    assert!(kernel(other, SOURCES).is_none());
    assert!(kernel(manifest_of("thrice"), SOURCES).is_none());
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
        time: &CallTime::new(Duration::MAX),
        query: 1,
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
    assert_eq!(report.state.to_string(), "ready");
    let unit = report.compute_units[1].to_string();
    assert_eq!(unit, "add_2 of add, registers at 0x1810000");
    assert_eq!(report.memory_banks[0].to_string(), "DDR[0], 16384 MiB");
    let banks: Vec<_> = report.memory_banks.iter().map(|bank| &bank.name).collect();
    assert_eq!(banks, ["DDR[0]", "DDR[1]"]);
    let mut options = rig.options();
    options.device = 9;
    let error = XrtDevice::open(rig.container.clone(), options).unwrap_err();
    assert!(error.to_string().contains("no device 9"), "{error}");
}
