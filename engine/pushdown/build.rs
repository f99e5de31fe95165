//! Compiles `proto/program.proto`, without `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/program.proto");
    let descriptors = protox::compile(["proto/program.proto"], ["proto"])?;
    let mut config = prost_build::Config::new();
    // An expression is a long list of small nodes. Boxing the larger instructions keeps a node
    // small in memory, so that a few hostile bytes cannot claim many times their size.
    for instruction in [
        "literal",
        "in_list",
        "like",
        "arithmetic",
        "cast",
        "case",
        "substring",
        "position",
        "regex",
        "contains_any",
        "distance",
        "kernel",
    ] {
        config.boxed(format!(
            ".flashmesh.program.v1.Node.instruction.{instruction}"
        ));
    }
    config.compile_fds(descriptors)?;
    Ok(())
}
