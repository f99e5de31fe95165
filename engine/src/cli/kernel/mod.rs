//! `flashmesh kernel`: makes, compiles, tests and shows kernels.

mod build;
mod compiler;
mod device;
mod files;
mod inspect;
mod template;
mod test;

use std::process::ExitCode;

use crate::Result;

use super::arguments::KernelCommand;

pub(super) async fn run(command: KernelCommand) -> Result<ExitCode> {
    match command {
        KernelCommand::New(new) => template::write(&new),
        KernelCommand::Build(build) => {
            for folder in &build.folders {
                let package = build::build(folder, &build)?;
                println!("{}", package.display());
            }
            Ok(ExitCode::SUCCESS)
        }
        KernelCommand::Test(test) => test::run(&test).await,
        KernelCommand::Container(arguments) => {
            device::container(&arguments)?;
            println!("{}", arguments.output.display());
            Ok(ExitCode::SUCCESS)
        }
        KernelCommand::Vitis(arguments) => device::vitis(&arguments),
        KernelCommand::Inspect(inspect) => inspect::run(&inspect),
    }
}
