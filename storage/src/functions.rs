//! The functions that users added to a database: from a name in the catalog to a kernel that runs.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use flashmesh_pushdown::{KernelId, Program};
use parking_lot::Mutex;

use crate::accelerator::Accelerator;
use crate::accelerator::sandbox::{Sandbox, SandboxOptions};
use crate::capability::{Capability, Right};
use crate::kernel::{
    Kernel, KernelSet, Manifest, Package, QueryCalls, check_call, for_each_kernel,
};
use crate::memory::MemoryBudget;
use crate::table::{Callee, Database, Function, NewFunction};
use crate::{Result, StorageError};

/// Kernels call others this deep at most, over all of a chain.
const MAX_CALL_DEPTH: usize = 8;

/// The kernels of a database: which there are, and those that were compiled.
///
/// Kernels may call others. As in Willow's table of calls between applications, the store decides
/// whether they may: the owner of the caller needs the right to use the other when the caller is
/// made, and the call goes through the store.
#[derive(Debug)]
pub struct Kernels {
    /// Plans have the kernels by their node, and some plans live on when nobody runs them any more: none
    /// of them keeps the database open.
    database: Weak<Database>,
    compiler: Compiler,
    memory: Arc<dyn MemoryBudget>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// [`Database::functions_version`] that the rest is of.
    version: Option<u64>,
    functions: Arc<[Arc<UserFunction>]>,
}

/// A function in the catalog whose package can be read.
#[derive(Debug)]
pub struct UserFunction {
    /// Its entry in the catalog.
    pub entry: Arc<Function>,
    manifest: Manifest,
    /// Compiled by one thread, for which others wait.
    kernel: Mutex<Option<Arc<Kernel>>>,
}

impl UserFunction {
    /// The manifest of its package.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// How a Program names it.
    pub fn id(&self) -> KernelId {
        KernelId {
            name: self.entry.name.clone(),
            digest: self.entry.digest,
        }
    }
}

impl Kernels {
    /// The kernels of `database`, which they don't keep open, run within `options`; what they take is
    /// charged to `memory`.
    pub fn new(
        database: &Arc<Database>,
        options: SandboxOptions,
        memory: Arc<dyn MemoryBudget>,
    ) -> Arc<Self> {
        Arc::new(Self {
            database: Arc::downgrade(database),
            compiler: Compiler::new(options),
            memory,
            state: Mutex::default(),
        })
    }

    fn database(&self) -> Result<Arc<Database>> {
        let database = self.database.upgrade();
        database
            .ok_or_else(|| StorageError::Invalid("the database is closed; open it again".into()))
    }

    /// The calls of a new query.
    pub fn calls(&self) -> Arc<QueryCalls> {
        self.compiler.calls(&self.memory)
    }

    /// The functions, in the order of their names. One whose package can't be read is left out
    /// and logged: it must not keep the others from running.
    pub fn functions(&self) -> Arc<[Arc<UserFunction>]> {
        let Some(database) = self.database.upgrade() else {
            return Arc::clone(&self.state.lock().functions);
        };
        let version = database.functions_version();
        let known = {
            let state = self.state.lock();
            if state.version == Some(version) {
                return Arc::clone(&state.functions);
            }
            Arc::clone(&state.functions)
        };
        let before: HashMap<[u8; 32], &Arc<UserFunction>> = known
            .iter()
            .map(|function| (function.entry.digest, function))
            .collect();
        let entries = database.functions();
        let functions = entries.into_iter().filter_map(|entry| {
            if let Some(known) = before.get(&entry.digest)
                && known.entry == entry
            {
                return Some(Arc::clone(known));
            }
            match self.package(&entry) {
                Ok(package) => Some(Arc::new(UserFunction {
                    entry,
                    manifest: package.manifest,
                    kernel: Mutex::default(),
                })),
                Err(error) => {
                    log::warn!("function '{}' can't be used: {error}", entry.name);
                    None
                }
            }
        });
        // Reading takes a while; other queries ask meanwhile.
        let functions: Arc<[_]> = functions.collect();
        let mut state = self.state.lock();
        if state.version < Some(version) {
            state.functions = Arc::clone(&functions);
            state.version = Some(version);
        }
        functions
    }

    fn package(&self, entry: &Function) -> Result<Package> {
        Package::parse(Bytes::from(self.package_bytes(entry)?))
    }

    /// The package of a function.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Io`.
    pub(crate) fn package_bytes(&self, entry: &Function) -> Result<Vec<u8>> {
        self.database()?.function_package(entry)
    }

    /// A function.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn function(&self, name: &str) -> Result<Arc<UserFunction>> {
        let functions = self.functions();
        let found = functions.iter().find(|f| f.entry.name == name);
        found.cloned().ok_or_else(|| StorageError::NotFound {
            kind: "function",
            name: name.into(),
        })
    }

    /// Makes a function of a package: compiles it, which says what is wrong with it, and commits
    /// it. `may_use` says whether `owner` may use another function. An admin may replace functions
    /// of others, and has no quota.
    ///
    /// # Errors
    /// `Invalid` or `Kernel` for a package that can't run; `Denied` for one that calls what its
    /// owner may not; `NotFound` for one that calls what is not there; what
    /// [`Database::create_function`] says.
    pub fn create(
        &self,
        package: Bytes,
        owner: &str,
        is_admin: bool,
        or_replace: bool,
        may_use: impl Fn(&str) -> bool,
    ) -> Result<Arc<UserFunction>> {
        let parsed = Package::parse(package.clone())?;
        let name = parsed.manifest.name.clone();
        let mut callees = Vec::new();
        for callee in &parsed.manifest.calls {
            if !may_use(callee) {
                return Err(StorageError::Denied(format!(
                    "'{owner}' may not use the function '{callee}', which kernel '{name}' calls"
                )));
            }
            callees.push(Callee {
                digest: self.function(callee)?.entry.digest_with_callees(),
                name: callee.clone(),
            });
        }
        let compiled = self.callees(&name, &callees, &mut vec![name.clone()])?;
        let kernel = self.compiler.compile(parsed, &compiled)?;
        let entry = self.database()?.create_function(NewFunction {
            name: &name,
            owner,
            package: &package,
            callees,
            or_replace,
            quota: (!is_admin).then_some(self.compiler.options.quota_per_user),
        })?;
        let function = self.function(&name)?;
        if function.entry == entry {
            function.kernel.lock().get_or_insert(kernel);
        }
        Ok(function)
    }

    /// The kernel of a function, compiled when it is first asked for.
    ///
    /// # Errors
    /// `Kernel` or `Invalid` with what is wrong with it, or with one that it calls.
    pub fn kernel(&self, function: &UserFunction) -> Result<Arc<Kernel>> {
        self.kernel_in(function, &mut Vec::new())
    }

    fn kernel_in(&self, function: &UserFunction, chain: &mut Vec<String>) -> Result<Arc<Kernel>> {
        let name = &function.entry.name;
        let refused = |reason: String| {
            Err(StorageError::Kernel {
                kernel: name.clone(),
                reason,
            })
        };
        if chain.contains(name) {
            return refused(format!(
                "it calls itself ({} ▸ {name}); kernels may not",
                chain.join(" ▸ ")
            ));
        }
        if chain.len() >= MAX_CALL_DEPTH {
            return refused(format!(
                "kernels call each other more than {MAX_CALL_DEPTH} deep ({})",
                chain.join(" ▸ ")
            ));
        }
        chain.push(name.clone());
        let callees = self.callees(name, &function.entry.callees, chain);
        chain.pop();
        let callees = callees?;
        let mut kernel = function.kernel.lock();
        if let Some(kernel) = &*kernel {
            return Ok(Arc::clone(kernel));
        }
        let package = self.package(&function.entry)?;
        let compiled = self.compiler.compile(package, &callees)?;
        Ok(Arc::clone(kernel.insert(compiled)))
    }

    /// The kernels that a kernel calls: the very ones that were there when it was made.
    fn callees(
        &self,
        caller: &str,
        callees: &[Callee],
        chain: &mut Vec<String>,
    ) -> Result<Vec<Kernel>> {
        let mut kernel = |callee: &Callee| {
            let function = self.function(&callee.name)?;
            if function.entry.digest_with_callees() != callee.digest {
                return Err(StorageError::Kernel {
                    kernel: caller.to_owned(),
                    reason: format!(
                        "it calls '{}', which was replaced since; create '{caller}' again",
                        callee.name
                    ),
                });
            }
            Ok(self.kernel_in(&function, chain)?.as_ref().clone())
        };
        callees.iter().map(&mut kernel).collect()
    }

    /// The kernel of a function for one query: see [`Kernel::for_query`].
    ///
    /// # Errors
    /// As [`kernel`](Self::kernel).
    pub fn for_query(
        &self,
        function: &UserFunction,
        calls: &Arc<QueryCalls>,
    ) -> Result<Arc<Kernel>> {
        Ok(of_query(&*self.kernel(function)?, calls))
    }
}

impl FindKernel for Kernels {
    fn find(&self, id: &KernelId) -> Result<Arc<Kernel>> {
        let function = self.function(&id.name)?;
        if function.entry.digest != id.digest {
            return Err(StorageError::Invalid(format!(
                "function '{}' was replaced after the query was planned; run it again",
                id.name
            )));
        }
        self.kernel(&function)
    }
}

/// Where kernels are found by how Programs name them.
pub(crate) trait FindKernel {
    /// The very kernel that `id` names.
    ///
    /// # Errors
    /// `NotFound` when it is gone, `Invalid` when another took its place, or it was not brought; what is
    /// wrong with it.
    fn find(&self, id: &KernelId) -> Result<Arc<Kernel>>;
}

/// The very kernel that `id` names, for one query of whoever holds `capability`, which was verified.
///
/// # Errors
/// `Denied` when the principal may not run it; those of [`FindKernel::find`].
pub(crate) fn kernel_for(
    kernels: &dyn FindKernel,
    id: &KernelId,
    capability: &Capability,
    calls: &Arc<QueryCalls>,
) -> Result<Arc<Kernel>> {
    check_may_run(id, capability)?;
    Ok(of_query(&*kernels.find(id)?, calls))
}

/// See [`Kernel::for_query`].
fn of_query(kernel: &Kernel, calls: &Arc<QueryCalls>) -> Arc<Kernel> {
    let memory: Arc<dyn MemoryBudget> = Arc::clone(calls) as _;
    Arc::new(kernel.for_query(&memory))
}

/// # Errors
/// `Denied` when the holder of a capability may not run a kernel.
pub(crate) fn check_may_run(id: &KernelId, capability: &Capability) -> Result<()> {
    let principal = &capability.principal;
    if !capability.rights.has(Right::Kernel) {
        return Err(StorageError::Denied(format!(
            "'{principal}' may not {} {}",
            Right::Kernel,
            capability.of
        )));
    }
    match capability.kernels.has(&id.digest) {
        true => Ok(()),
        false => Err(StorageError::Denied(format!(
            "'{principal}' may not use the function '{}'",
            id.name
        ))),
    }
}

/// Gets the kernels of a Program ready for a query, after `capability` was verified.
///
/// # Errors
/// Those of [`kernel_for`]; `Invalid` for one that does not take what the Program gives it.
pub(crate) fn bind(
    kernels: &dyn FindKernel,
    program: &Program,
    capability: &Capability,
    accelerator: &dyn Accelerator,
    calls: &Arc<QueryCalls>,
) -> Result<KernelSet> {
    let mut set = KernelSet::new(Arc::clone(calls));
    let mut bound = |id: &KernelId| {
        if let Some(kernel) = set.get(id) {
            return Ok(Arc::clone(kernel));
        }
        let mut kernel = kernel_for(kernels, id, capability, calls)?;
        if let Some(device) = accelerator.kernel(kernel.package()) {
            kernel = Arc::new(Kernel::new(Arc::clone(kernel.package()), device));
        }
        set.insert(id.clone(), Arc::clone(&kernel));
        Ok(kernel)
    };
    let mut result = Ok(());
    for_each_kernel(program, &mut |id, expr| {
        if result.is_ok() {
            result = bound(id).and_then(|kernel| check_call(&kernel, expr, program));
        }
    });
    result.map(|()| set)
}

/// Makes kernels of packages.
#[derive(Debug)]
pub(crate) struct Compiler {
    options: SandboxOptions,
    /// Made when the first kernel is compiled: most databases have none.
    sandbox: OnceLock<Sandbox>,
}

impl Compiler {
    /// Of kernels that run within `options`.
    pub fn new(options: SandboxOptions) -> Self {
        Self {
            options,
            sandbox: OnceLock::new(),
        }
    }

    /// The calls of a new query, which take `memory`.
    pub fn calls(&self, memory: &Arc<dyn MemoryBudget>) -> Arc<QueryCalls> {
        let options = &self.options;
        let memory = Arc::clone(memory);
        QueryCalls::new(memory, options.memory_per_query, options.time_per_query)
    }

    /// The kernel of a package, which calls these, in the order of its manifest.
    ///
    /// # Errors
    /// `Kernel` or `Invalid` with what is wrong with it.
    pub fn compile(&self, package: Package, callees: &[Kernel]) -> Result<Arc<Kernel>> {
        let sandbox = match self.sandbox.get() {
            Some(sandbox) => sandbox,
            None => {
                let made = Sandbox::new(self.options.clone())?;
                self.sandbox.get_or_init(|| made)
            }
        };
        let target = sandbox.compile(&package, callees)?;
        Ok(Arc::new(Kernel::new(package.without_code(), target)))
    }
}
