//! `flashmesh rack`: rack files, and the nodes that they describe.

mod arguments;
mod change;
mod init;
mod processes;
mod restart;
mod status;

use std::path::Path;
use std::process::ExitCode;

use flashmesh_cluster::Rack;
use flashmesh_cluster::mesh::Network;

use super::arguments::EngineArguments;
use super::node::{address, of_rack};
use crate::{Error, Result};

pub(super) use arguments::RackCommand;

pub(super) async fn run(engine: &EngineArguments, command: RackCommand) -> Result<ExitCode> {
    match command {
        RackCommand::Init(arguments) => init::run(&arguments)?,
        RackCommand::Check { file } => check(&file)?,
        RackCommand::Routes { file } => print!("{}", network(&file)?.1.trace_header()),
        RackCommand::Up(arguments) => return processes::up(engine, &arguments).await,
        RackCommand::Down(arguments) => return processes::down(&arguments).await,
        RackCommand::Restart(arguments) => return restart::run(engine, &arguments).await,
        RackCommand::Status(arguments) => return status::run(&arguments).await,
        RackCommand::Add(arguments) => change::add(&arguments)?,
        RackCommand::Drain(arguments) => return change::drain(&arguments).await,
        RackCommand::Remove(arguments) => change::remove(&arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether `text` is the path of a rack file that is there.
pub(super) fn is_rack_file(text: &str) -> bool {
    let path = Path::new(text);
    path.extension()
        .is_some_and(|extension| extension == "toml")
        && path.is_file()
}

/// The addresses of a rack's nodes for clients, where `text` is the path of a rack file.
///
/// # Errors
/// [`Error::Usage`] for a rack file that is wrong, or of whose nodes none has such an address.
pub(super) fn addresses(text: &str) -> Result<Option<Vec<String>>> {
    if !is_rack_file(text) {
        return Ok(None);
    }
    let rack = Rack::load(Path::new(text)).map_err(of_rack)?;
    let addresses = rack.nodes.iter().filter_map(|node| node.flight);
    let addresses: Vec<_> = addresses.map(|flight| address(&rack, flight)).collect();
    match addresses.is_empty() {
        true => Err(Error::usage(format!(
            "no node of {text} has an address for clients (flight)"
        ))),
        false => Ok(Some(addresses)),
    }
}

fn network(file: &Path) -> Result<(Rack, Network)> {
    let rack = Rack::load(file).map_err(of_rack)?;
    let network = Network::new(&rack).map_err(of_rack)?;
    Ok((rack, network))
}

/// Says what a rack file describes.
fn check(file: &Path) -> Result<()> {
    let (rack, network) = network(file)?;
    let cards: usize = rack.nodes.iter().map(|node| node.cards.len()).sum();
    println!("nodes      {}, with {cards} cards", rack.nodes.len());
    let keepers = rack.keepers();
    let of_group = rack
        .nodes
        .iter()
        .filter(|node| keepers.contains(&node.number()));
    let of_group: Vec<_> = of_group.map(|node| node.name.as_str()).collect();
    match of_group.is_empty() {
        true => println!("head       {}", rack.head().name),
        false => println!(
            "catalog    {}; one of them is the head",
            of_group.join(", ")
        ),
    }
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
