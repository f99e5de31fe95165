//! The kernels behind the genuine XRT runtime, as the device model runs them: C simulation of the
//! HLS sources, reached through the runtime's buffers, registers and queues.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flashmesh_storage::accelerator::xrt::container::{Container, ContainerKernel, EmulationBuild};
use flashmesh_storage::accelerator::xrt::{
    HostCommand, XrtDevice, XrtKernel, XrtMode, XrtOptions, host_main,
};
use flashmesh_storage::kernel::interface::{ArgumentUse, KernelInterface};

use super::kernels::{Source, all, first_mutants, headers, named};
use super::runner::run;

/// Set for the runtime's process, which is this test's binary once more.
const HOST_VARIABLE: &str = "FLASHMESH_XRT_TEST_HOST";
/// Behind the names of a mutant's functions.
const MUTANT: &str = "_mutant";

/// Not a test: the entry of the runtime's process.
#[test]
#[ignore = "the entry of the runtime's process"]
fn xrt_host() {
    if std::env::var_os(HOST_VARIABLE).is_some() {
        host_main();
    }
}

/// Why XRT or the compiler is missing.
fn missing() -> Option<String> {
    let own = std::env::var_os("XRT_LIBRARY_FOLDER").map(Into::into);
    let mut folders = [
        "/usr/lib/x86_64-linux-gnu",
        "/opt/xilinx/xrt/lib",
        "/usr/lib64",
    ]
    .map(std::path::PathBuf::from)
    .into_iter()
    .chain(own);
    if !folders.any(|folder| folder.join("libxrt_swemu.so.2").exists()) {
        return Some("XRT's software emulation is not installed (libxrt1)".into());
    }
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
    let version = std::process::Command::new(&compiler)
        .arg("--version")
        .output();
    match version {
        Ok(_) => None,
        Err(_) => Some(format!("the C++ compiler '{compiler}' is not installed")),
    }
}

/// Whether the tests here are skipped, with a line that says so.
fn is_skipped() -> bool {
    let Some(reason) = missing() else {
        return false;
    };
    if std::env::var_os("FLASHMESH_REQUIRE_XRT").is_some_and(|v| v == "1") {
        panic!("{reason}, and FLASHMESH_REQUIRE_XRT is set");
    }
    eprintln!("skipped: {reason}");
    true
}

/// How the device sees a kernel: what it writes is said to be what it changes, so that what it
/// leaves alone is seen.
fn interface(source: &Source, suffix: &str) -> KernelInterface {
    let mut interface = source.manifest.interface();
    interface.name += suffix;
    for function in &mut interface.functions {
        function.name += suffix;
        for argument in &mut function.arguments {
            if argument.usage == ArgumentUse::Out {
                argument.usage = ArgumentUse::InOut;
            }
        }
    }
    interface
}

/// One container for all tests.
fn container() -> &'static Container {
    static CONTAINER: OnceLock<Container> = OnceLock::new();
    CONTAINER.get_or_init(build)
}

/// All kernels, and a mutant of each beside it.
fn build() -> Container {
    let scratch = tempfile::tempdir().unwrap();
    let mut build = EmulationBuild {
        include: vec![headers()],
        ..EmulationBuild::default()
    };
    for source in all() {
        build.kernels.push(ContainerKernel {
            manifest: source.manifest_text.clone(),
            source: String::new(),
            interface: interface(source, ""),
        });
        build.sources.extend(source.files.iter().cloned());
    }
    for mutant in first_mutants() {
        let source = named(&mutant.kernel);
        build.kernels.push(ContainerKernel {
            manifest: String::new(),
            source: String::new(),
            interface: interface(source, MUTANT),
        });
        // Its functions have other names than those of the kernel beside it.
        let functions = source.manifest.functions().iter();
        let renamed = functions.map(|f| format!("#define {0} {0}{MUTANT}\n", f.name));
        let file = scratch.path().join(format!("{}.cpp", mutant.kernel));
        let text = renamed.collect::<String>() + &mutant.text();
        std::fs::write(&file, text).unwrap();
        build.sources.push(file);
        build.sources.extend(source.files[1..].iter().cloned());
    }
    build.build(scratch.path()).unwrap()
}

/// The kernel of that name on a device of its own, or `None` where XRT is missing.
pub fn kernel(name: &str) -> Option<XrtKernel> {
    let is_there = !is_skipped();
    is_there.then(|| XrtKernel::new(open(), name).unwrap())
}

fn open() -> Arc<XrtDevice> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance-model");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fpga/shell/model/build");
    let built = std::process::Command::new(script)
        .arg(&folder)
        .output()
        .expect("bash runs the model's build script");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let mut options = XrtOptions::new(XrtMode::Emulation { folder }).unwrap();
    options.host = HostCommand {
        program: std::env::current_exe().unwrap(),
        arguments: ["--exact", "xrt::xrt_host", "--ignored", "--nocapture"]
            .map(Into::into)
            .into(),
    };
    options.environment = vec![(HOST_VARIABLE.into(), "1".into())];
    options.run_timeout = Duration::from_secs(20);
    XrtDevice::open(container().clone(), options).unwrap()
}

#[test]
fn vectors_pass_and_mutants_fail_in_xrt_emulation() {
    if is_skipped() {
        return;
    }
    let device = open();
    let mut problems = Vec::new();
    for source in all() {
        let kernel = XrtKernel::new(Arc::clone(&device), &source.name).unwrap();
        let outcome = run(&source.vectors, source.manifest.functions(), "", &kernel);
        problems.extend(outcome.differences);
        println!("{}: {} cases", source.name, source.vectors.cases.len());
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));

    for mutant in first_mutants() {
        let source = named(&mutant.kernel);
        let name = format!("{}{MUTANT}", source.name);
        let kernel = XrtKernel::new(Arc::clone(&device), &name).unwrap();
        let functions = source.manifest.functions();
        let outcome = run(&source.vectors, functions, MUTANT, &kernel);
        let first = outcome.differences.first();
        let first = first.unwrap_or_else(|| panic!("{mutant:?} survives the vectors"));
        println!("{name}: {first}");
        if outcome.has_failed {
            device.reopen().unwrap();
        }
    }
}
