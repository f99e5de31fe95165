//! From a package to a compiled module that keeps to the contract.

use std::sync::Arc;
use std::time::Duration;

use wasmtime::{ExternType, FuncType, InstancePre, Linker, MemoryType, Module, ValType};

use super::instance::Guest;
use super::nested::{self, Callee};
use super::ticker::Ticker;
use super::{Sandbox, structure};
use crate::kernel::interface::{ArgumentUse, ElementType};
use crate::kernel::{CFunction, Kernel, Package, Target};

/// The module that imports of other kernels name.
const IMPORT_MODULE: &str = "flashmesh.kernel";
/// The function that constructs what has to be before the first call, if it is exported.
pub(super) const INITIALIZE: &str = "_initialize";
/// The address from which on memory is free for arguments, if it is exported.
pub(super) const HEAP_BASE: &str = "__heap_base";
/// The bytes of a page of linear memory.
pub(super) const WASM_PAGE_BYTES: usize = 64 << 10;

/// A compiled module with the limits that hold for it.
pub(super) struct Compiled {
    pub(super) name: String,
    pub(super) instance: InstancePre<Guest>,
    /// Names of the C functions.
    pub(super) functions: Vec<String>,
    pub(super) memory_bytes: usize,
    pub(super) table_elements: usize,
    pub(super) time_per_call: Duration,
    pub(super) stack_bytes: usize,
    pub(super) idle_instances: usize,
    pub(super) ticker: Arc<Ticker>,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled")
            .field("name", &self.name)
            .field("memory_bytes", &self.memory_bytes)
            .field("time_per_call", &self.time_per_call)
            .finish_non_exhaustive()
    }
}

impl Compiled {
    /// Compiles and checks; gives the kernels that it calls, too, by the index of the import.
    pub(super) fn new(
        sandbox: &Sandbox,
        package: &Package,
        permitted: &[Kernel],
    ) -> Result<(Self, Vec<Arc<dyn Target>>), String> {
        let (manifest, options) = (&package.manifest, &sandbox.options);
        let checked = structure::check(&package.wasm, options)?;
        let engine = match checked.simple {
            true => &sandbox.optimizing,
            false => &sandbox.linear,
        };
        let module = Module::new(engine, &checked.module)
            .map_err(|error| format!("the module is not valid: {}", one_line(&error)))?;
        let memory_bytes = manifest.limits.memory_bytes.min(options.memory_bytes);
        sizes(&module, memory_bytes, options.table_elements)?;
        exports(&module, manifest.functions())?;
        let callees = imports(&module, package, permitted)?;

        let mut linker = Linker::new(engine);
        for (index, callee) in callees.iter().enumerate() {
            let function = &callee.function;
            let callee = callee.clone();
            let wasm_type = FuncType::new(engine, wasm_types(function), []);
            linker
                .func_new(
                    IMPORT_MODULE,
                    &callee.name.clone(),
                    wasm_type,
                    move |caller, values, _| nested::call(caller, values, index, &callee),
                )
                .map_err(|error| one_line(&error))?;
        }
        let instance = linker
            .instantiate_pre(&module)
            .map_err(|error| one_line(&error))?;
        let functions = manifest.functions().iter();
        let compiled = Self {
            name: manifest.name.clone(),
            instance,
            functions: functions.map(|function| function.name.clone()).collect(),
            memory_bytes,
            table_elements: options.table_elements,
            time_per_call: manifest.limits.time_per_call.min(options.time_per_call),
            stack_bytes: options.stack_bytes,
            idle_instances: options.idle_instances,
            ticker: Arc::clone(&sandbox.ticker),
        };
        let targets = callees.into_iter().map(|callee| callee.target).collect();
        Ok((compiled, targets))
    }
}

/// The WebAssembly types of a C function's arguments: arrays are addresses.
fn wasm_types(function: &CFunction) -> Vec<ValType> {
    let of = |element| match element {
        ElementType::I64 | ElementType::U64 => ValType::I64,
        ElementType::F32 => ValType::F32,
        ElementType::F64 => ValType::F64,
        ElementType::U8 | ElementType::I16 | ElementType::I32 | ElementType::U32 => ValType::I32,
    };
    let arguments = function.arguments.iter();
    arguments
        .map(|argument| match argument.usage {
            ArgumentUse::Scalar => of(argument.element),
            _ => ValType::I32,
        })
        .collect()
}

/// Whether `found` is what `function` compiles to.
fn is_type_of(found: &FuncType, function: &CFunction) -> bool {
    let wanted = wasm_types(function);
    let same = |(a, b): (ValType, &ValType)| {
        matches!(
            (a, b),
            (ValType::I32, ValType::I32)
                | (ValType::I64, ValType::I64)
                | (ValType::F32, ValType::F32)
                | (ValType::F64, ValType::F64)
        )
    };
    found.results().len() == 0
        && found.params().len() == wanted.len()
        && found.params().zip(&wanted).all(same)
}

fn sizes(module: &Module, memory_bytes: usize, table_elements: usize) -> Result<(), String> {
    let needed = module.resources_required();
    let pages = needed.max_initial_memory_size.unwrap_or(0);
    let bytes = pages.saturating_mul(WASM_PAGE_BYTES as u64);
    if bytes > memory_bytes as u64 {
        return Err(format!(
            "the module begins with {bytes} bytes of memory, the limit is {memory_bytes}; raise \
             limits.memory_bytes, or link with a smaller stack and less static data"
        ));
    }
    let elements = needed.max_initial_table_size.unwrap_or(0);
    let elements = elements.saturating_mul(u64::from(needed.num_tables));
    if elements > table_elements as u64 {
        return Err(format!(
            "the module's tables begin with {elements} elements, the limit is {table_elements}"
        ));
    }
    Ok(())
}

fn exports(module: &Module, functions: &[CFunction]) -> Result<(), String> {
    match module.get_export("memory") {
        Some(ExternType::Memory(memory)) if is_plain(&memory) => {}
        Some(_) => return Err("the export 'memory' is no 32-bit linear memory".to_owned()),
        None => {
            return Err("the module does not export 'memory'; link it with --export-memory".into());
        }
    }
    match module.get_export(INITIALIZE) {
        None => {}
        Some(ExternType::Func(found)) if found.params().len() + found.results().len() == 0 => {}
        Some(_) => {
            return Err(format!(
                "the export '{INITIALIZE}' is no function without arguments and results"
            ));
        }
    }
    match module.get_export(HEAP_BASE) {
        None => {}
        Some(ExternType::Global(heap)) if matches!(heap.content(), ValType::I32) => {}
        Some(_) => return Err(format!("the export '{HEAP_BASE}' is no 32-bit number")),
    }
    for function in functions {
        let name = &function.name;
        match module.get_export(name) {
            Some(ExternType::Func(found)) if is_type_of(&found, function) => {}
            Some(ExternType::Func(_)) => {
                return Err(format!(
                    "the export '{name}' has other arguments than `{function}`"
                ));
            }
            Some(_) => return Err(format!("the export '{name}' is no function")),
            None => {
                return Err(format!(
                    "the module does not export '{name}'; write FLASHMESH_KERNEL before `{function}`"
                ));
            }
        }
    }
    Ok(())
}

fn is_plain(memory: &MemoryType) -> bool {
    !memory.is_64() && !memory.is_shared() && memory.page_size() == WASM_PAGE_BYTES as u64
}

/// The kernels that the module calls, in the order of its imports.
fn imports(
    module: &Module,
    package: &Package,
    permitted: &[Kernel],
) -> Result<Vec<Callee>, String> {
    let mut callees: Vec<Callee> = Vec::new();
    for import in module.imports() {
        let (from, name) = (import.module(), import.name());
        if from != IMPORT_MODULE {
            return Err(format!(
                "the module imports {} from {}; kernels may import other kernels from \
                 '{IMPORT_MODULE}' and nothing else",
                shown(name),
                shown(from)
            ));
        }
        if !package.manifest.calls.iter().any(|call| call == name) {
            return Err(format!(
                "the module calls {}, which its manifest does not name in calls.kernels",
                shown(name)
            ));
        }
        if callees.iter().any(|callee| callee.name == name) {
            return Err(format!("the module imports {} twice", shown(name)));
        }
        let kernel = permitted.iter().find(|k| k.manifest().name == name);
        let kernel = kernel.ok_or_else(|| {
            format!("may not call '{name}': it does not exist, or its owner may not use it")
        })?;
        let callee = Callee::new(kernel)?;
        let ExternType::Func(found) = import.ty() else {
            return Err(format!("the import '{name}' is no function"));
        };
        if !is_type_of(&found, &callee.function) {
            return Err(format!(
                "the import '{name}' has other arguments than `{}`",
                callee.function
            ));
        }
        callees.push(callee);
    }
    Ok(callees)
}

/// A guest's name for a message: nothing in it that a terminal would obey, and not long.
fn shown(name: &str) -> String {
    let short: String = name.chars().take(80).collect();
    format!("'{}'", short.escape_debug())
}

/// What wasmtime says, on one line.
pub(super) fn one_line(error: &wasmtime::Error) -> String {
    let text = format!("{error:#}");
    let short: String = text.chars().take(300).collect();
    short
        .lines()
        .map(|line| line.trim().escape_debug().to_string())
        .collect::<Vec<_>>()
        .join("; ")
}
