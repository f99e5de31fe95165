//! Runs users' kernels in a sandbox: WebAssembly without any import but other kernels, with limits
//! of memory, time, stack and code.
//!
//! The four mechanisms are Willow's (Seshadri et al., "Willow: A User-Programmable SSD", OSDI 2014,
//! section 2.6), for a guest that may be hostile:
//!
//! | Willow | here |
//! |---|---|
//! | the process responsible for a call is carried with it | [`CallContext`]: whose memory is charged, who cancels; calls between kernels inherit it, and its deadline |
//! | data only with the process's rights | a kernel sees the arrays that it is given and nothing else: no pages, no files, no clock |
//! | segments of code and data | one linear memory an instance, behind guard pages; an instance serves one query only |
//! | a table of who may call whom | [`Sandbox::compile`] takes the kernels that may be called |

mod compile;
mod instance;
mod loops;
mod nested;
mod structure;
mod ticker;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use wasmtime::{Config, Engine, OptLevel, RegallocAlgorithm, WasmFeatures};

use self::compile::Compiled;
use self::instance::Instance;
use self::ticker::Ticker;
use crate::kernel::{Argument, CallContext, Kernel, Package, Target};
use crate::memory::MemoryBudget;
use crate::table::FunctionQuota;
use crate::{Result, StorageError};

/// Calls between kernels that may be open at once on one thread, the outermost included.
pub const MAX_DEPTH: usize = 8;

/// The operator's limits. A manifest asks for its own; the smaller one of both holds.
#[derive(Debug, Clone)]
pub struct SandboxOptions {
    /// Linear memory of one instance.
    pub memory_bytes: usize,
    /// Longest time of one call.
    pub time_per_call: Duration,
    /// Longest time of all calls of a query together, on all threads.
    pub time_per_query: Duration,
    /// Memory of all kernels of a query together.
    pub memory_per_query: usize,
    /// Functions and bytes of packages that a user who is no admin may have in the database.
    pub quota_per_user: FunctionQuota,
    /// Stack of one call, 16 KiB to 256 KiB. Eight calls between kernels may be open on one
    /// thread, so eight times that, and what the engine needs, has to fit the thread's stack.
    pub stack_bytes: usize,
    /// Module without its custom sections.
    pub module_bytes: usize,
    /// Functions of a module.
    pub functions: usize,
    /// Bytes of one function's body.
    pub function_bytes: usize,
    /// Sum over the functions of bytes times local variables: what time and memory of the compiler
    /// grow with at worst.
    pub complexity: u64,
    /// Elements of all tables.
    pub table_elements: usize,
    /// Instances that a query keeps for its next call.
    pub idle_instances: usize,
    /// How often deadlines and cancelling are looked at.
    pub tick: Duration,
}

impl Default for SandboxOptions {
    fn default() -> Self {
        Self {
            memory_bytes: 256 << 20,
            time_per_call: Duration::from_secs(10),
            time_per_query: Duration::from_secs(3600),
            memory_per_query: 1 << 30,
            quota_per_user: FunctionQuota {
                functions: 100,
                bytes: 256 << 20,
            },
            stack_bytes: 128 << 10,
            module_bytes: 4 << 20,
            functions: 4096,
            function_bytes: 128 << 10,
            complexity: 8 << 20,
            table_elements: 64 << 10,
            idle_instances: 16,
            tick: Duration::from_millis(5),
        }
    }
}

/// Compiles and runs kernels under one set of limits. One sandbox serves all queries of a process.
#[derive(Debug)]
pub struct Sandbox {
    /// For modules that are [simple](structure::Checked::simple), and for all others.
    optimizing: Engine,
    linear: Engine,
    options: SandboxOptions,
    ticker: Arc<Ticker>,
}

impl Sandbox {
    /// A sandbox with these limits.
    ///
    /// # Errors
    /// `Invalid` when a limit is out of its range or this machine can't run WebAssembly; `Io` when
    /// no thread can be started.
    pub fn new(options: SandboxOptions) -> Result<Self> {
        if !(16 << 10..=256 << 10).contains(&options.stack_bytes) {
            return Err(StorageError::Invalid(format!(
                "sandbox: stack_bytes is {}; 16 KiB to 256 KiB are possible",
                options.stack_bytes
            )));
        }
        let mut config = Config::new();
        config
            .wasm_features(WasmFeatures::all(), false)
            .wasm_features(features(), true)
            .epoch_interruption(true)
            .max_wasm_stack(options.stack_bytes)
            .cranelift_opt_level(OptLevel::Speed)
            // Traps are told by their kind; names and addresses of a guest help nobody.
            .wasm_backtrace_max_frames(None)
            .native_unwind_info(false)
            .generate_address_map(false);
        let engine = |config: &Config| {
            Engine::new(config).map_err(|error| {
                StorageError::Invalid(format!("sandbox: this machine can't run kernels: {error}"))
            })
        };
        let optimizing = engine(&config)?;
        config.cranelift_regalloc_algorithm(RegallocAlgorithm::SinglePass);
        let linear = engine(&config)?;
        let ticker = Ticker::start([optimizing.clone(), linear.clone()], options.tick)?;
        Ok(Self {
            optimizing,
            linear,
            options,
            ticker: Arc::new(ticker),
        })
    }

    /// Compiles the module of `package`. It may call the kernels of `callees` that its manifest
    /// names, and no others: they are what its owner may use.
    ///
    /// # Errors
    /// `Kernel` when the module is not what the manifest and the contract ask for, or passes a
    /// limit. No code of the module has run then.
    pub fn compile(&self, package: &Package, callees: &[Kernel]) -> Result<Arc<SandboxKernel>> {
        let failed = |reason| StorageError::Kernel {
            kernel: package.manifest.name.clone(),
            reason,
        };
        let (compiled, callees) = Compiled::new(self, package, callees).map_err(failed)?;
        Ok(Arc::new(SandboxKernel {
            compiled: Arc::new(compiled),
            callees: callees.into(),
            session: None,
        }))
    }

    /// The limits.
    pub fn options(&self) -> &SandboxOptions {
        &self.options
    }
}

/// What C++ compilers write by default and nothing beyond: no threads, no second memory, no 64-bit
/// memory, no garbage collection, no exceptions, no tail calls.
fn features() -> WasmFeatures {
    WasmFeatures::FLOATS
        | WasmFeatures::MUTABLE_GLOBAL
        | WasmFeatures::SATURATING_FLOAT_TO_INT
        | WasmFeatures::SIGN_EXTENSION
        | WasmFeatures::MULTI_VALUE
        | WasmFeatures::BULK_MEMORY
        | WasmFeatures::SIMD
}

/// A compiled kernel. Calls on it directly start from a fresh instance each; those on a
/// [session](Target::session) of it use that query's instances again.
#[derive(Debug)]
pub struct SandboxKernel {
    compiled: Arc<Compiled>,
    /// By the index of the import.
    callees: Arc<[Arc<dyn Target>]>,
    session: Option<Session>,
}

/// The instances of one query. What a kernel keeps in its memory between two calls stays among the
/// calls of this query; the contract promises nothing about it.
#[derive(Debug)]
struct Session {
    memory: Arc<dyn MemoryBudget>,
    idle: Mutex<Vec<Instance>>,
}

impl Target for SandboxKernel {
    fn name(&self) -> &'static str {
        "sandbox"
    }

    fn call(
        &self,
        function: &str,
        arguments: &mut [Argument<'_>],
        context: CallContext<'_>,
    ) -> Result<()> {
        let outcome = match &self.session {
            Some(session) => self.call_in_session(session, function, arguments, context),
            None => {
                instance::call_once(&self.compiled, &self.callees, function, arguments, context)
            }
        };
        outcome.map_err(|reason| StorageError::Kernel {
            kernel: self.compiled.name.clone(),
            reason,
        })
    }

    fn session(&self, memory: &Arc<dyn MemoryBudget>) -> Option<Arc<dyn Target>> {
        let session_of = |callee: &Arc<dyn Target>| {
            let session = callee.session(memory);
            session.unwrap_or_else(|| Arc::clone(callee))
        };
        Some(Arc::new(Self {
            compiled: Arc::clone(&self.compiled),
            callees: self.callees.iter().map(session_of).collect(),
            session: Some(Session {
                memory: Arc::clone(memory),
                idle: Mutex::default(),
            }),
        }))
    }
}

impl SandboxKernel {
    fn call_in_session(
        &self,
        session: &Session,
        function: &str,
        arguments: &mut [Argument<'_>],
        context: CallContext<'_>,
    ) -> Result<(), String> {
        let idle = session.idle.lock().pop();
        let mut instance = match idle {
            Some(instance) => instance,
            None => {
                let memory = Arc::clone(&session.memory);
                Instance::new(&self.compiled, &self.callees, memory, context)?
            }
        };
        // After an error the instance may be in any state: it ends here.
        instance.call(function, arguments, context)?;
        let mut idle = session.idle.lock();
        if idle.len() < self.compiled.idle_instances {
            idle.push(instance);
        }
        Ok(())
    }
}
