//! The built device model, a container with the kernels of this folder, and a first use of them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flashmesh_storage::StorageError;
use flashmesh_storage::accelerator::xrt::container::{Container, ContainerKernel, EmulationBuild};
use flashmesh_storage::accelerator::xrt::{HostCommand, XrtDevice, XrtMode, XrtOptions};
use flashmesh_storage::kernel::interface::{
    ArgumentInterface, ArgumentUse, ElementType, FunctionInterface, KernelInterface,
};
use flashmesh_storage::kernel::{Argument, ScalarArgument, hexadecimal};
use rand::RngExt;
use rand::rngs::StdRng;

/// Set for the runtime's process, which is this test's binary once more.
pub const HOST_VARIABLE: &str = "FLASHMESH_XRT_TEST_HOST";

pub static NEVER: AtomicBool = AtomicBool::new(false);

/// What all tests share: the built model and the container with the kernels of `tests/xrt`.
pub struct Rig {
    pub folder: PathBuf,
    pub container: Container,
}

impl Rig {
    /// `None`, and a line that says why, where XRT or the compiler is missing.
    pub fn get() -> Option<&'static Self> {
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

    pub fn options(&self) -> XrtOptions {
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

    pub fn open(&self) -> Arc<XrtDevice> {
        XrtDevice::open(self.container.clone(), self.options()).unwrap()
    }

    /// Opens with one of the model's variables for tests.
    pub fn open_with(&self, variable: &str, value: u32, run_timeout: Duration) -> Arc<XrtDevice> {
        let mut options = self.options();
        options
            .environment
            .push((variable.into(), value.to_string().into()));
        options.run_timeout = run_timeout;
        XrtDevice::open(self.container.clone(), options).unwrap()
    }
}

/// The digest of the kernels' sources, as the container says.
pub const SOURCES: [u8; 32] = [7; 32];

pub fn manifest_of(kernel: &str) -> String {
    format!(
        "[kernel]\nname = \"{kernel}\"\nkind = \"scalar\"\nversion = \"1.0.0\"\n\
         signature = \"(x BIGINT) RETURNS BIGINT\"\n"
    )
}

pub fn kernels() -> Vec<ContainerKernel> {
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
            manifest: manifest_of(name),
            source: hexadecimal(&SOURCES),
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
        kernel("silent", 1, &[("result", Out, U8), ("rows", Scalar, U32)]),
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

pub fn bytes_of(values: &[i32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

pub fn u32_of(bytes: [u8; 4]) -> u32 {
    u32::from_le_bytes(bytes)
}

/// Adds random arrays of `rows` on the device and compares with the host's sum.
pub fn add(device: &XrtDevice, random: &mut StdRng, rows: usize) -> Result<(), StorageError> {
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
