//! `flashmesh devices`: the devices behind XRT.

use std::path::Path;
use std::process::ExitCode;

use crate::Result;
use flashmesh_storage::accelerator::xrt::{
    XrtAccelerator, XrtDevice, XrtMode, XrtOptions, emulation_folder,
};

pub(super) fn run(container: Option<&Path>) -> Result<ExitCode> {
    match container {
        Some(container) => show(container)?,
        None => list()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What a container's device holds.
fn show(container: &Path) -> Result<()> {
    let accelerator = XrtAccelerator::open(container)?;
    let report = accelerator.device().report();
    println!("device      {}, {}", report.name, report.state);
    let operations: Vec<_> = accelerator.operations().iter().map(|o| o.name()).collect();
    println!("operations  {}", operations.join(", "));
    println!("kernels     {}", report.kernels.join(", "));
    for unit in &report.compute_units {
        println!("unit        {unit}");
    }
    for bank in &report.memory_banks {
        println!("memory      {bank}");
    }
    Ok(())
}

/// How many there are of each kind; one that can't be asked is no error, but says why.
fn list() -> Result<()> {
    let count = |name: &str, mode| -> Result<()> {
        match XrtDevice::count(&XrtOptions::new(mode)?) {
            Ok(count) => println!("{name}: {count}"),
            Err(error) => println!("{name}: none ({error})"),
        }
        Ok(())
    };
    count("cards", XrtMode::Hardware)?;
    let folder = emulation_folder()?;
    count("device model", XrtMode::Emulation { folder })
}
