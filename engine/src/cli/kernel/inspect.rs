//! `flashmesh kernel inspect`: what a package holds.

use std::path::Path;
use std::process::ExitCode;

use crate::Result;
use flashmesh_storage::kernel::interface::ArgumentUse;
use flashmesh_storage::kernel::{Manifest, Package};

use super::super::arguments::KernelInspectArguments;
use super::files::{read, read_manifest};

pub(super) fn run(arguments: &KernelInspectArguments) -> Result<ExitCode> {
    for path in &arguments.packages {
        match path.is_dir() {
            true => describe(&read_manifest(path)?.0),
            false => describe_package(path)?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn describe_package(path: &Path) -> Result<()> {
    let bytes = read(path)?;
    let size = bytes.len();
    let package = Package::parse(bytes)?;
    describe(&package.manifest);
    let hex: String = package
        .digest()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    println!("package     {size} bytes, sha256 {hex}");
    let sources = package.source_digest.iter().map(|b| format!("{b:02x}"));
    println!("sources     sha256 {}", sources.collect::<String>());
    println!("sandbox     {} bytes of WebAssembly", package.wasm.len());
    match &package.xclbin {
        Some(xclbin) => println!("device      {} bytes of xclbin", xclbin.len()),
        None => println!("device      none"),
    }
    Ok(())
}

fn describe(manifest: &Manifest) {
    println!(
        "kernel      {} {}, {}",
        manifest.name, manifest.version, manifest.kind
    );
    if !manifest.description.is_empty() {
        println!("            {}", manifest.description);
    }
    if let Some(signature) = &manifest.signature {
        println!("SQL         {}{signature}", manifest.name);
    }
    if let Some(operation) = &manifest.operation {
        println!("operation   {operation}");
    }
    let limits = &manifest.limits;
    println!(
        "limits      {} rows and {} bytes of text a call, {} bytes of memory, {} ms a call",
        limits.rows_per_call,
        limits.bytes_per_call,
        limits.memory_bytes,
        limits.time_per_call.as_millis()
    );
    if !manifest.calls.is_empty() {
        println!("calls       {}", manifest.calls.join(", "));
    }
    let intent = &manifest.intent;
    if let Some(cycles) = intent.initiation_interval {
        println!("intent      a result every {cycles} cycles (intended, not measured)");
    }
    if let Some(bytes) = intent.bytes_per_cycle {
        println!("intent      {bytes} bytes a cycle (intended, not measured)");
    }
    for function in manifest.interface().functions {
        println!("function    {}", function.name);
        for (index, argument) in function.arguments.iter().enumerate() {
            let place = match argument.usage {
                ArgumentUse::Scalar => "by value",
                ArgumentUse::In => "reads",
                ArgumentUse::Out => "writes",
                ArgumentUse::InOut => "reads and writes",
            };
            let bank = match argument.usage.is_buffer() {
                true => format!(", {}", argument.bank),
                false => String::new(),
            };
            let (element, name) = (argument.element.c_name(), &argument.name);
            println!("  {index:>2}  {element} {name}: {place}{bank}");
        }
    }
}
