//! The kernels of this repository: sources, manifests, vectors, mutants, and WebAssembly.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use flashmesh_storage::kernel::Manifest;
use sha2::{Digest, Sha256};

use super::runner;
use super::vectors::{self, Vectors};

/// A kernel's folder.
#[derive(Debug)]
pub struct Source {
    pub name: String,
    /// `kernel.toml`, with limits that a busy machine keeps.
    pub manifest_text: String,
    pub manifest: Manifest,
    /// The files to compile; mutants change the first.
    pub files: Vec<PathBuf>,
    pub vectors: Vectors,
}

/// A wrong version of a kernel.
#[derive(Debug)]
pub struct Mutant {
    pub kernel: String,
    pub replace: String,
    pub by: String,
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The folder of the kernels' headers.
pub fn headers() -> PathBuf {
    repository().join("fpga/hls/include")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// All kernels, by name. Each has vectors, and each vector file its kernel.
pub fn all() -> &'static [Source] {
    static ALL: OnceLock<Vec<Source>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut sources = Vec::new();
        for home in ["fpga/hls", "examples/kernels"] {
            for entry in std::fs::read_dir(repository().join(home)).unwrap() {
                let folder = entry.unwrap().path();
                if folder.join("kernel.toml").is_file() {
                    sources.push(source(&folder));
                }
            }
        }
        sources.sort_by(|a, b| a.name.cmp(&b.name));
        let files = std::fs::read_dir(repository().join("tests/vectors")).unwrap();
        let files: BTreeSet<String> = files
            .filter_map(|file| {
                let name = file.unwrap().file_name().into_string().unwrap();
                name.strip_suffix(".vec").map(str::to_owned)
            })
            .collect();
        assert!(
            files.iter().eq(sources.iter().map(|source| &source.name)),
            "vectors of {files:?}"
        );
        sources
    })
}

fn source(folder: &Path) -> Source {
    let text = read(&folder.join("kernel.toml"));
    assert!(!text.contains("[limits]"), "{folder:?} has limits");
    let manifest_text = format!("{text}\n[limits]\ntime_per_call_ms = 10000\n");
    let manifest = Manifest::parse(&manifest_text).unwrap();
    let path = repository().join(format!("tests/vectors/{}.vec", manifest.name));
    let vectors = vectors::parse(&read(&path)).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    assert_eq!(vectors.kernel, manifest.name, "{path:?}");
    runner::check(&vectors, manifest.functions()).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    Source {
        name: manifest.name.clone(),
        manifest_text,
        files: manifest.sources.iter().map(|f| folder.join(f)).collect(),
        manifest,
        vectors,
    }
}

/// The kernel of that name.
pub fn named(name: &str) -> &'static Source {
    all().iter().find(|source| source.name == name).unwrap()
}

/// The first mutant of each kernel. Those that only the device's own types show are not for the
/// targets here, nor are those of headers.
pub fn first_mutants() -> Vec<Mutant> {
    let table: toml::Table = read(&repository().join("tests/vectors/mutants.toml"))
        .parse()
        .unwrap();
    let mut mutants: Vec<Mutant> = Vec::new();
    for mutant in table["mutant"].as_array().unwrap() {
        let text = |key: &str| mutant[key].as_str().unwrap().to_owned();
        let is_known = |other: &Mutant| other.kernel == mutant["kernel"].as_str().unwrap();
        if mutant.get("step").is_none()
            && mutant.get("header").is_none()
            && !mutants.iter().any(is_known)
        {
            mutants.push(Mutant {
                kernel: text("kernel"),
                replace: text("replace"),
                by: text("by"),
            });
        }
    }
    mutants
}

impl Mutant {
    /// The text of the kernel's first file with the change.
    pub fn text(&self) -> String {
        let file = &named(&self.kernel).files[0];
        let text = read(file);
        assert_eq!(
            text.matches(&self.replace).count(),
            1,
            "'{}' in {file:?}",
            self.replace
        );
        text.replace(&self.replace, &self.by)
    }
}

/// What is compiled: files and the functions that the module exports.
pub struct Unit {
    pub label: String,
    pub files: Vec<PathBuf>,
    pub functions: Vec<String>,
}

impl Unit {
    pub fn of(source: &Source) -> Self {
        Self {
            label: source.name.clone(),
            files: source.files.clone(),
            functions: functions(source),
        }
    }

    /// The mutant, whose text is written to `folder`.
    pub fn of_mutant(mutant: &Mutant, folder: &Path) -> Self {
        let source = named(&mutant.kernel);
        let file = folder.join(format!("{}-mutant.cpp", mutant.kernel));
        std::fs::write(&file, mutant.text()).unwrap();
        let mut files = source.files.clone();
        files[0] = file;
        Self {
            label: format!("a mutant of {}", mutant.kernel),
            files,
            functions: functions(source),
        }
    }
}

fn functions(source: &Source) -> Vec<String> {
    let functions = source.manifest.functions().iter();
    functions.map(|function| function.name.clone()).collect()
}

/// The compiler for WebAssembly: the PyPI package ziglang of some Python.
pub struct Compiler {
    python: PathBuf,
    version: Vec<u8>,
    folder: PathBuf,
}

impl Compiler {
    /// `None`, and a line that says why, where it is not installed; `FLASHMESH_REQUIRE_KERNELS=1`
    /// makes that a failure.
    pub fn find() -> Option<Self> {
        let named = std::env::var_os("FLASHMESH_KERNEL_PYTHON").map(PathBuf::from);
        let active = std::env::var_os("VIRTUAL_ENV").map(|v| Path::new(&v).join("bin/python"));
        for python in named.into_iter().chain(active).chain(["python3".into()]) {
            let asked = Command::new(&python)
                .args(["-m", "ziglang", "version"])
                .output();
            if let Ok(output) = asked
                && output.status.success()
            {
                let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance");
                std::fs::create_dir_all(&folder).unwrap();
                return Some(Self {
                    python,
                    version: output.stdout,
                    folder,
                });
            }
        }
        let reason = "no Python has the package ziglang, which compiles kernels: pip install \
                      ziglang, or name another Python in FLASHMESH_KERNEL_PYTHON";
        if std::env::var_os("FLASHMESH_REQUIRE_KERNELS").is_some_and(|v| v == "1") {
            panic!("{reason}, and FLASHMESH_REQUIRE_KERNELS is set");
        }
        eprintln!("skipped: {reason}");
        None
    }

    /// Compiles each unit, two at a time, however many tests ask.
    pub fn compile(&self, units: &[Unit]) -> Vec<Vec<u8>> {
        static ONE_TEST: Mutex<()> = Mutex::new(());
        // What is behind the lock can't be left half done, so a test that failed is no matter.
        let _one_test = ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner);
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(unit) = units.get(index) else {
                    return done;
                };
                done.push((index, self.compile_one(unit)));
            }
        };
        let mut done = std::thread::scope(|scope| {
            let other = scope.spawn(work);
            let mut done = work();
            done.extend(other.join().expect("compiles"));
            done
        });
        done.sort_by_key(|(index, _)| *index);
        done.into_iter().map(|(_, wasm)| wasm).collect()
    }

    /// What the compiler made of the same files before is taken again.
    fn compile_one(&self, unit: &Unit) -> Vec<u8> {
        // As `fpga/check` and `flashmesh kernel build` compile.
        let mut words: Vec<String> = "-m ziglang c++ -target wasm32-wasi -mexec-model=reactor \
            -std=c++17 -O3 -msimd128 -fno-exceptions -fno-rtti -fvisibility=hidden \
            -Wno-unknown-pragmas -Wl,--no-entry -Wl,--export=__heap_base \
            -Wl,-z,stack-size=1048576 -Wl,--gc-sections -Wl,--strip-all"
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        let exports = unit.functions.iter();
        words.extend(exports.map(|name| format!("-Wl,--export={name}")));

        let mut digest = Sha256::new();
        let mut part = |bytes: &[u8]| {
            digest.update((bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        };
        part(&self.version);
        part(words.join(" ").as_bytes());
        let mut files: Vec<PathBuf> = std::fs::read_dir(headers().join("flashmesh"))
            .unwrap()
            .map(|file| file.unwrap().path())
            .collect();
        files.sort();
        files.extend(unit.files.iter().cloned());
        for file in &files {
            part(file.file_name().unwrap().as_encoded_bytes());
            part(&std::fs::read(file).unwrap());
        }
        let name: String = digest
            .finalize()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let made = self.folder.join(format!("{name}.wasm"));
        if let Ok(wasm) = std::fs::read(&made) {
            return wasm;
        }
        // A compiler that is ended in the middle leaves nothing under the final name.
        let scratch = tempfile::tempdir_in(&self.folder).unwrap();
        let own = scratch.path().join("kernel.wasm");
        let output = Command::new(&self.python)
            .args(&words)
            .arg("-I")
            .arg(headers())
            .args(&unit.files)
            .arg("-o")
            .arg(&own)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{} does not compile:\n{}",
            unit.label,
            String::from_utf8_lossy(&output.stderr)
        );
        let wasm = std::fs::read(&own).unwrap();
        std::fs::rename(&own, &made).unwrap();
        wasm
    }
}
