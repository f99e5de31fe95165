//! The kernels in the sandbox.

use std::sync::Arc;

use flashmesh_storage::accelerator::sandbox::{Sandbox, SandboxOptions};
use flashmesh_storage::kernel::{Kernel, Package};
use flashmesh_storage::memory::MemoryBudget;

use super::kernels::{Compiler, Source, Unit, all, first_mutants, named};
use super::runner::{NoLimit, run};

/// The kernel of `source` from its module.
fn kernel(sandbox: &Sandbox, source: &Source, wasm: &[u8], callees: &[Kernel]) -> Kernel {
    let package = Package::new(&source.manifest_text, wasm, None, [0; 32]).unwrap();
    let target = sandbox
        .compile(&package, callees)
        .unwrap_or_else(|error| panic!("{}: {error}", source.name));
    Kernel::new(package, target)
}

/// The kernels that others call.
fn callees(sandbox: &Sandbox, compiler: &Compiler) -> Vec<Kernel> {
    let called: Vec<&Source> = all()
        .iter()
        .flat_map(|source| &source.manifest.calls)
        .map(|name| named(name))
        .collect();
    let units: Vec<Unit> = called.iter().map(|source| Unit::of(source)).collect();
    let modules = compiler.compile(&units);
    let pairs = called.into_iter().zip(modules);
    pairs
        .map(|(source, wasm)| kernel(sandbox, source, &wasm, &[]))
        .collect()
}

/// The kernel of that name, or `None` where there is no compiler.
pub fn compiled(name: &str) -> Option<Kernel> {
    let compiler = Compiler::find()?;
    let sandbox = Sandbox::new(SandboxOptions::default()).unwrap();
    let wasm = compiler.compile(&[Unit::of(named(name))]);
    Some(kernel(&sandbox, named(name), &wasm[0], &[]))
}

#[test]
fn vectors_pass_in_the_sandbox() {
    let Some(compiler) = Compiler::find() else {
        return;
    };
    let sandbox = Sandbox::new(SandboxOptions::default()).unwrap();
    let callees = callees(&sandbox, &compiler);
    let units: Vec<Unit> = all().iter().map(Unit::of).collect();
    let mut problems = Vec::new();
    for (source, wasm) in all().iter().zip(compiler.compile(&units)) {
        let kernel = kernel(&sandbox, source, &wasm, &callees);
        // Once with an instance for each call, once with one for all of a query.
        let memory: Arc<dyn MemoryBudget> = Arc::new(NoLimit);
        for kernel in [&kernel, &kernel.for_query(&memory)] {
            let functions = source.manifest.functions();
            let outcome = run(&source.vectors, functions, "", kernel.target().as_ref());
            problems.extend(outcome.differences);
        }
        println!("{}: {} cases", source.name, source.vectors.cases.len());
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn mutants_fail_in_the_sandbox() {
    let Some(compiler) = Compiler::find() else {
        return;
    };
    let sandbox = Sandbox::new(SandboxOptions::default()).unwrap();
    let callees = callees(&sandbox, &compiler);
    let folder = tempfile::tempdir().unwrap();
    let mutants = first_mutants();
    assert_eq!(mutants.len(), all().len(), "each kernel has a mutant");
    let units: Vec<Unit> = mutants
        .iter()
        .map(|mutant| Unit::of_mutant(mutant, folder.path()))
        .collect();
    for (mutant, wasm) in mutants.iter().zip(compiler.compile(&units)) {
        let source = named(&mutant.kernel);
        let kernel = kernel(&sandbox, source, &wasm, &callees);
        let functions = source.manifest.functions();
        let outcome = run(&source.vectors, functions, "", kernel.target().as_ref());
        let first = outcome.differences.first();
        let first = first.unwrap_or_else(|| panic!("{mutant:?} survives the vectors"));
        println!("{}: {first}", mutant.kernel);
    }
}
