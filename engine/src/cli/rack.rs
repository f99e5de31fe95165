//! `flashmesh rack`: rack files.

use std::path::Path;
use std::process::ExitCode;

use flashmesh_cluster::mesh::Network;
use flashmesh_cluster::{Rack, RackError, Shape};

use super::arguments::{RackCommand, RackInitArguments, RackShape};
use crate::{Error, Result};

pub(super) fn run(command: RackCommand) -> Result<ExitCode> {
    match command {
        RackCommand::Init(arguments) => init(&arguments)?,
        RackCommand::Check { file } => check(&file)?,
        RackCommand::Routes { file } => print!("{}", network(&file)?.1.trace_header()),
    }
    Ok(ExitCode::SUCCESS)
}

fn usage(error: RackError) -> Error {
    Error::usage(error.to_string())
}

fn network(file: &Path) -> Result<(Rack, Network)> {
    let rack = Rack::load(file).map_err(usage)?;
    let network = Network::new(&rack).map_err(usage)?;
    Ok((rack, network))
}

/// Writes a rack file and makes the nodes' folders.
fn init(arguments: &RackInitArguments) -> Result<()> {
    let shape = match arguments.shape {
        RackShape::Line => Shape::Line,
        RackShape::Ring => Shape::Ring,
        RackShape::Grid => Shape::Grid,
        RackShape::Torus => Shape::Torus,
        RackShape::Full => Shape::Full,
    };
    let failed = |path: &Path| {
        let action = format!("making {}", path.display());
        |source| Error::io(action, source)
    };
    let folder = std::path::absolute(&arguments.folder).map_err(failed(&arguments.folder))?;
    let nodes = usize::from(arguments.nodes);
    let text = Rack::draft(&folder, nodes, shape, arguments.replicas).map_err(usage)?;
    let file = folder.join("rack.toml");
    if file.exists() {
        let file = file.display();
        return Err(Error::usage(format!(
            "{file} is there already; give another folder, or delete it"
        )));
    }
    for node in Rack::parse(&text).map_err(usage)?.nodes {
        let of_node = folder.join(node.name);
        std::fs::create_dir_all(&of_node).map_err(failed(&of_node))?;
    }
    std::fs::write(&file, text).map_err(failed(&file))?;
    println!("{}", file.display());
    Ok(())
}

/// Says what a rack file describes.
fn check(file: &Path) -> Result<()> {
    let (rack, network) = network(file)?;
    let cards: usize = rack.nodes.iter().map(|node| node.cards.len()).sum();
    println!("nodes      {}, with {cards} cards", rack.nodes.len());
    println!("cables     {}", rack.cables.len());
    let endpoints: Vec<_> = rack.endpoints.iter().map(|e| e.name.as_str()).collect();
    println!("endpoints  {}", endpoints.join(", "));
    println!("replicas   {}", rack.replicas);
    if let Some(hops) = network.hops() {
        println!(
            "routes     {:.2} hops on average, {} at most; no circle of links that wait for each other",
            hops.mean, hops.most
        );
    }
    Ok(())
}
