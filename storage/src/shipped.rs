//! Kernels of users on the nodes of a rack: a command brings those that it calls (BlueDBM, section 4: user
//! code runs where the pages are).
//!
//! A package travels once to a node, which keeps what it was compiled to; later commands name it by its
//! digest. A node that has none of that name, as it has begun anew, says so, and the head does that part
//! itself and sends the package again the next time. A node runs what the command's capability allows, and
//! nothing else: the digest of each package, and so of each one that it calls, has to be in it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use flashmesh_pushdown::{KernelId, Program};
use parking_lot::Mutex;
use prost::Message;

use crate::accelerator::sandbox::SandboxOptions;
use crate::capability::Capability;
use crate::functions::{Compiler, FindKernel, Kernels, UserFunction, check_may_run};
use crate::kernel::{Kernel, Package, QueryCalls, for_each_kernel};
use crate::life::CommandLife;
use crate::memory::MemoryBudget;
use crate::store::NodeId;
use crate::table::digest_with_callees;
use crate::{Result, StorageError};

/// Compiled kernels that a node keeps, and so the most that one command has, with those that they call.
const KEPT: usize = 64;
/// Bytes of the packages of a command: more of them run where they are.
const PACKAGES_MAX_BYTES: u64 = 32 << 20;

/// What a head remembers of what it has sent; then it begins anew with that.
const SENT_MAX: usize = 1 << 16;

/// The digest of a package with all that it calls, by which nodes know a kernel.
type Digest = [u8; 32];

/// A kernel as a command brings it, behind those that it calls.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct KernelRecord {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bytes = "vec", tag = "2")]
    digest: Vec<u8>,
    /// Its package, for a node that is not known to have it.
    #[prost(bytes = "vec", optional, tag = "3")]
    package: Option<Vec<u8>>,
    /// Places in the command of those that it calls.
    #[prost(uint32, repeated, tag = "4")]
    callees: Vec<u32>,
}

/// The kernels that come with a command.
#[derive(Debug, Clone, Default)]
pub struct CommandKernels(pub(crate) Vec<KernelRecord>);

/// The kernels of a Program, for the commands of a scan.
#[derive(Debug)]
pub(crate) struct ToShip {
    /// Those that are called by others are in front of these.
    functions: Vec<(Arc<UserFunction>, Vec<u32>)>,
}

impl ToShip {
    /// `None` where one of them is not there as the Program names it, the holder of `capability` may not use
    /// one that another calls, or they are large: they run here, or are refused here.
    pub fn of(program: &Program, kernels: &Kernels, capability: &Capability) -> Option<Self> {
        let mut ids = Vec::new();
        for_each_kernel(program, &mut |id, _| ids.push(id.clone()));
        let mut all = Self {
            functions: Vec::new(),
        };
        for id in ids {
            let function = kernels.function(&id.name).ok()?;
            if function.entry.digest != id.digest {
                return None;
            }
            all.add(function, kernels, capability)?;
        }
        let bytes = all
            .functions
            .iter()
            .map(|(function, _)| function.entry.bytes);
        (bytes.sum::<u64>() <= PACKAGES_MAX_BYTES).then_some(all)
    }

    fn add(
        &mut self,
        function: Arc<UserFunction>,
        kernels: &Kernels,
        capability: &Capability,
    ) -> Option<u32> {
        let known = self.functions.iter();
        if let Some(place) = known
            .clone()
            .position(|(known, _)| known.entry == function.entry)
        {
            return u32::try_from(place).ok();
        }
        let may = check_may_run(&function.id(), capability).is_ok();
        if !may || self.functions.len() >= KEPT {
            return None;
        }
        let mut callees = Vec::new();
        for callee in &function.entry.callees {
            let called = kernels.function(&callee.name).ok()?;
            if called.entry.digest_with_callees() != callee.digest {
                return None;
            }
            callees.push(self.add(called, kernels, capability)?);
        }
        let place = u32::try_from(self.functions.len()).ok()?;
        self.functions.push((function, callees));
        Some(place)
    }

    /// As a command to `node` has them.
    ///
    /// # Errors
    /// Those of reading packages.
    pub fn records(&self, node: NodeId, sent: &Sent, kernels: &Kernels) -> Result<CommandKernels> {
        let record = |(function, callees): &(Arc<UserFunction>, Vec<u32>)| {
            let digest = function.entry.digest_with_callees();
            let package = match sent.has(node, &digest) {
                true => None,
                false => Some(kernels.package_bytes(&function.entry)?),
            };
            Ok(KernelRecord {
                name: function.entry.name.clone(),
                digest: digest.to_vec(),
                package,
                callees: callees.clone(),
            })
        };
        let records = self.functions.iter().map(record).collect::<Result<_>>()?;
        Ok(CommandKernels(records))
    }

    /// What a node has that has run a command with them.
    pub fn digests(&self) -> Vec<Digest> {
        let functions = self.functions.iter();
        functions
            .map(|(function, _)| function.entry.digest_with_callees())
            .collect()
    }
}

/// Which nodes have which kernels, as far as the head knows.
#[derive(Debug, Default)]
pub(crate) struct Sent(Mutex<HashSet<(NodeId, Digest)>>);

impl Sent {
    fn has(&self, node: NodeId, digest: &Digest) -> bool {
        self.0.lock().contains(&(node, *digest))
    }

    /// The node has run a command with them.
    pub fn add(&self, node: NodeId, digests: Vec<Digest>) {
        if digests.is_empty() {
            return;
        }
        let mut sent = self.0.lock();
        // Those of functions that were replaced are in it, too.
        if sent.len() >= SENT_MAX {
            sent.clear();
        }
        sent.extend(digests.into_iter().map(|digest| (node, digest)));
    }

    /// The node may have begun anew.
    pub fn forget(&self, node: NodeId) {
        self.0.lock().retain(|(of, _)| *of != node);
    }
}

/// The kernels that a node has from the head.
#[derive(Debug)]
pub(crate) struct ShippedKernels {
    compiler: Compiler,
    memory: Arc<dyn MemoryBudget>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    kernels: HashMap<Digest, KeptKernel>,
    uses: u64,
}

#[derive(Debug, Clone)]
struct KeptKernel {
    /// That of its package alone.
    package: Digest,
    kernel: Arc<Kernel>,
    last_use: u64,
}

impl Kept {
    fn get(&mut self, digest: &Digest) -> Option<KeptKernel> {
        self.uses += 1;
        let kept = self.kernels.get_mut(digest)?;
        kept.last_use = self.uses;
        Some(kept.clone())
    }

    fn put(&mut self, digest: Digest, package: Digest, kernel: Arc<Kernel>) {
        if self.kernels.len() >= KEPT {
            let oldest = self.kernels.iter().min_by_key(|(_, kept)| kept.last_use);
            if let Some(oldest) = oldest.map(|(digest, _)| *digest) {
                self.kernels.remove(&oldest);
            }
        }
        self.uses += 1;
        let kept = KeptKernel {
            package,
            kernel,
            last_use: self.uses,
        };
        self.kernels.insert(digest, kept);
    }
}

impl ShippedKernels {
    /// None yet; they will run within `options`, and what they take is charged to `memory`.
    pub fn new(options: SandboxOptions, memory: Arc<dyn MemoryBudget>) -> Self {
        Self {
            compiler: Compiler::new(options),
            memory,
            kept: Mutex::default(),
        }
    }

    /// The calls of a command.
    pub fn calls(&self) -> Arc<QueryCalls> {
        self.compiler.calls(&self.memory)
    }

    /// The kernels of a command whose capability was verified.
    ///
    /// # Errors
    /// `Denied` for one that the capability does not allow; `Invalid` and `Kernel` for one that is none;
    /// `Io` where it was not sent, and is not here; `Cancelled` when nobody waits for the command.
    pub fn take(
        &self,
        kernels: CommandKernels,
        capability: &Capability,
        life: &CommandLife,
    ) -> Result<OfCommand> {
        let malformed = |name: &str, why: &str| {
            StorageError::Invalid(format!(
                "what came from another node as kernel '{name}' {why}"
            ))
        };
        let CommandKernels(records) = kernels;
        if records.len() > KEPT {
            return Err(malformed("", "is one of too many"));
        }
        let mut taken: Vec<(KernelId, Digest, Arc<Kernel>)> = Vec::with_capacity(records.len());
        for record in records {
            let KernelRecord {
                name,
                digest,
                package,
                callees,
            } = record;
            let digest = Digest::try_from(digest).map_err(|_| malformed(&name, "has no digest"))?;
            let callee = |place: &u32| taken.get(*place as usize);
            let callees: Option<Vec<_>> = callees.iter().map(callee).collect();
            let callees = callees.ok_or_else(|| malformed(&name, "calls what is not there"))?;
            let brought = match (self.kept.lock().get(&digest), package) {
                (Some(kept), _) => Ok(kept),
                (None, Some(package)) => Err(Package::parse(Bytes::from(package))?),
                (None, None) => {
                    let why = io::Error::new(io::ErrorKind::NotFound, "it is not here any more");
                    return Err(StorageError::io(format!("kernel '{name}'"), why));
                }
            };
            let id = KernelId {
                name,
                digest: match &brought {
                    Ok(kept) => kept.package,
                    Err(package) => package.digest(),
                },
            };
            check_may_run(&id, capability)?;
            // So each one that it calls was looked at, too.
            let of_callees: Vec<_> = callees.iter().map(|(_, digest, _)| digest).collect();
            if digest_with_callees(id.digest, of_callees.into_iter()) != digest {
                return Err(malformed(&id.name, "is another one"));
            }
            let kernel = match brought {
                Ok(kept) => kept.kernel,
                Err(_) if life.is_over() => return Err(StorageError::Cancelled),
                Err(package) => {
                    let callees = callees.iter().map(|(.., kernel)| kernel.as_ref().clone());
                    let callees: Vec<_> = callees.collect();
                    let kernel = self.compiler.compile(package, &callees)?;
                    self.kept.lock().put(digest, id.digest, Arc::clone(&kernel));
                    kernel
                }
            };
            taken.push((id, digest, kernel));
        }
        let kernels = taken.into_iter().map(|(id, _, kernel)| (id, kernel));
        Ok(OfCommand {
            kernels: kernels.collect(),
        })
    }
}

/// The kernels of one command.
#[derive(Debug)]
pub(crate) struct OfCommand {
    kernels: HashMap<KernelId, Arc<Kernel>>,
}

impl FindKernel for OfCommand {
    fn find(&self, id: &KernelId) -> Result<Arc<Kernel>> {
        let kernel = self.kernels.get(id).ok_or_else(|| {
            StorageError::Invalid(format!(
                "the command did not bring its function '{}'",
                id.name
            ))
        })?;
        Ok(Arc::clone(kernel))
    }
}
