//! C++ to WebAssembly, by whichever compiler the machine has.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Error, Result};
use bytes::Bytes;
use flashmesh_storage::kernel::Manifest;

/// The headers that kernels include, so that an installed flashmesh needs no sources of its own.
const HEADERS: &[(&str, &str)] = &[
    (
        "flashmesh/kernel.hpp",
        include_str!("../../../../fpga/hls/include/flashmesh/kernel.hpp"),
    ),
    (
        "flashmesh/bits.hpp",
        include_str!("../../../../fpga/hls/include/flashmesh/bits.hpp"),
    ),
    (
        "flashmesh/page.hpp",
        include_str!("../../../../fpga/hls/include/flashmesh/page.hpp"),
    ),
    (
        "flashmesh/stream.hpp",
        include_str!("../../../../fpga/hls/include/flashmesh/stream.hpp"),
    ),
    (
        "flashmesh/beat.hpp",
        include_str!("../../../../fpga/hls/include/flashmesh/beat.hpp"),
    ),
    (
        "flashmesh/text.hpp",
        include_str!("../../../../fpga/hls/include/flashmesh/text.hpp"),
    ),
    (
        "flashmesh/rows.hpp",
        include_str!("../../../../fpga/hls/include/flashmesh/rows.hpp"),
    ),
    (
        "flashmesh/decode.hpp",
        include_str!("../../../../fpga/hls/include/flashmesh/decode.hpp"),
    ),
    (
        "flashmesh/fsst.hpp",
        include_str!("../../../../fpga/hls/include/flashmesh/fsst.hpp"),
    ),
    (
        "flashmesh/pack.hpp",
        include_str!("../../../../fpga/hls/include/flashmesh/pack.hpp"),
    ),
    (
        "flashmesh/text_page.hpp",
        include_str!("../../../../fpga/hls/include/flashmesh/text_page.hpp"),
    ),
];

/// Names another compiler than those that are looked for.
const COMPILER_VARIABLE: &str = "FLASHMESH_CXX";

/// A C++ compiler that makes WebAssembly.
#[derive(Debug)]
struct Compiler {
    program: OsString,
    before: Vec<OsString>,
}

impl Compiler {
    /// `$FLASHMESH_CXX`, clang++ with wasm-ld, or the PyPI package ziglang.
    fn find() -> Result<Self> {
        if let Some(program) = std::env::var_os(COMPILER_VARIABLE).filter(|p| !p.is_empty()) {
            return Ok(Self::clang(program));
        }
        for python in pythons() {
            let zig = Self {
                program: python.into(),
                before: [
                    "-m",
                    "ziglang",
                    "c++",
                    "-target",
                    "wasm32-wasi",
                    "-mexec-model=reactor",
                ]
                .map(Into::into)
                .to_vec(),
            };
            let version = Command::new(&zig.program)
                .args(["-m", "ziglang", "version"])
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .output();
            if version.is_ok_and(|output| output.status.success()) {
                return Ok(zig);
            }
        }
        let targets = Command::new("clang++").arg("--print-targets").output();
        let has_wasm = targets.is_ok_and(|output| {
            output.status.success() && String::from_utf8_lossy(&output.stdout).contains("wasm32")
        });
        if has_wasm && is_there("wasm-ld") {
            return Ok(Self::clang("clang++".into()));
        }
        Err(Error::usage(format!(
            "no compiler makes WebAssembly here: pip install 'flashmesh[kernels]' (or ziglang) brings one, clang++ with wasm-ld is one, and ${COMPILER_VARIABLE} names one"
        )))
    }

    /// A clang, which has no C library for the target: kernels that include <math.h> need zig.
    fn clang(program: OsString) -> Self {
        Self {
            program,
            before: ["--target=wasm32-unknown-unknown", "-nostdlib"]
                .map(Into::into)
                .to_vec(),
        }
    }
}

/// Compiles the sources of the kernel in `folder`.
pub(super) fn to_wasm(folder: &Path, manifest: &Manifest, include: &[PathBuf]) -> Result<Bytes> {
    let compiler = Compiler::find()?;
    let work = tempfile::tempdir().map_err(|e| Error::io("making a temporary folder", e))?;
    let headers = write_headers(work.path())?;
    let output = work.path().join("kernel.wasm");
    let mut command = Command::new(&compiler.program);
    command
        .args(&compiler.before)
        // Every machine that runs a kernel has 128-bit vectors in its sandbox.
        .args(["-std=c++17", "-O3", "-msimd128", "-Wall", "-Wextra"])
        .args(["-Wno-unknown-pragmas", "-fno-exceptions", "-fno-rtti"])
        // Labels name loops in the reports of Vitis HLS.
        .args(["-Wno-unused-label", "-fvisibility=hidden", "-Wl,--no-entry"])
        .args(["-Wl,--gc-sections", "-Wl,--strip-all"])
        .args(["-Wl,--export=__heap_base", "-Wl,-z,stack-size=1048576"])
        .arg("-I")
        .arg(headers)
        .stdin(Stdio::null());
    for folder in include.iter().cloned().chain(published_headers()) {
        command.arg("-isystem").arg(folder);
    }
    for function in manifest.functions() {
        command.arg(format!("-Wl,--export={}", function.name));
    }
    command.args(manifest.sources.iter().map(|source| folder.join(source)));
    command.arg("-o").arg(&output);
    let done = command.output().map_err(|e| {
        Error::io(
            format!("starting {}", Path::new(&compiler.program).display()),
            e,
        )
    })?;
    let messages = String::from_utf8_lossy(&done.stderr);
    if !done.status.success() {
        return Err(Error::usage(format!(
            "compiling kernel '{}' failed:\n{}",
            manifest.name,
            messages.trim_end()
        )));
    }
    // Warnings.
    eprint!("{messages}");
    super::files::read(&output)
}

/// Writes the headers that kernels include below `folder`, and gives the folder to include.
pub(super) fn write_headers(folder: &Path) -> Result<PathBuf> {
    let include = folder.join("include");
    for (name, text) in HEADERS {
        let path = include.join(name);
        let written = std::fs::create_dir_all(path.parent().unwrap_or(folder))
            .and_then(|()| std::fs::write(&path, text));
        written.map_err(|e| Error::io(format!("writing {}", path.display()), e))?;
    }
    Ok(include)
}

/// Folders with `ap_int.h` and `hls_stream.h`: of Vitis, or of the PyPI package hls4ml, which has
/// them under their own licence.
pub(super) fn published_headers() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for variable in ["XILINX_HLS", "XILINX_VITIS_HLS"] {
        if let Some(folder) = std::env::var_os(variable) {
            folders.push(Path::new(&folder).join("include"));
        }
    }
    const FIND: &str = "import importlib.util as u; s = u.find_spec('hls4ml'); print(s.submodule_search_locations[0] if s else '')";
    for python in pythons() {
        let found = Command::new(python)
            .args(["-c", FIND])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        if let Ok(found) = found {
            let text = String::from_utf8_lossy(&found.stdout);
            if found.status.success() && !text.trim().is_empty() {
                folders.push(Path::new(text.trim()).join("templates/vivado/ap_types"));
                break;
            }
        }
    }
    folders.retain(|folder| folder.is_dir());
    folders
}

/// Pythons that may have packages: that of the active environment, then those of the path.
fn pythons() -> Vec<PathBuf> {
    let mut pythons = Vec::new();
    if let Some(environment) = std::env::var_os("VIRTUAL_ENV") {
        pythons.push(Path::new(&environment).join("bin/python"));
    }
    // An environment whose binary runs has its Python beside it.
    if let Ok(own) = std::env::current_exe()
        && let Some(beside) = own.parent().map(|folder| folder.join("python"))
        && beside.is_file()
    {
        pythons.push(beside);
    }
    pythons.push("python3".into());
    pythons.push("python".into());
    pythons
}

fn is_there(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    found.is_ok_and(|output| output.status.success())
}
