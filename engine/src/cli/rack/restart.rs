//! `flashmesh rack restart`: the nodes of a rack one after the other, while clients go on.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use flashmesh_cluster::Rack;

use super::super::arguments::EngineArguments;
use super::super::node::{NodeStatus, holder};
use super::arguments::RackRestartArguments;
use super::processes::{file_and_rack, start, stop, until_ready};
use super::status::statuses;
use crate::{Error, Result};

/// Between two questions how the nodes are.
const ASK_EVERY: Duration = Duration::from_millis(100);

pub(super) async fn run(
    engine: &EngineArguments,
    arguments: &RackRestartArguments,
) -> Result<ExitCode> {
    engine.without_database()?;
    let (file, rack) = file_and_rack(&arguments.file)?;
    if rack.replicas < 2 {
        return Err(Error::usage(format!(
            "{} has one copy of each card (replicas = 1): queries would fail while a node restarts; use \
             flashmesh rack down and flashmesh rack up",
            file.display()
        )));
    }
    let mut left = Vec::new();
    for node in &rack.nodes {
        match holder(&node.folder)? {
            Some(_) => left.push(node),
            None => {
                return Err(Error::usage(format!(
                    "node '{}' does not run, and what it has copies of may be nowhere else; start it \
                     first: flashmesh rack up {} --detach",
                    node.name,
                    file.display()
                )));
            }
        }
    }
    while !left.is_empty() {
        let statuses = until_whole(&rack, arguments.timeout).await?;
        // The head goes last: whoever takes its place would have to restart as well.
        let is_head = |name: &str| statuses.iter().any(|one| one.is_head && one.name == name);
        let next = left.iter().position(|node| !is_head(&node.name));
        let node = left.remove(next.unwrap_or(0));
        if !stop(&rack, &[node], arguments.timeout, false)
            .await?
            .is_empty()
        {
            return Err(Error::usage(format!(
                "node '{}' has not ended after {} s; it ends when its clients are done: start it then, with \
                 flashmesh rack up {} --detach; the others were left as they are",
                node.name,
                arguments.timeout.as_secs(),
                file.display()
            )));
        }
        let mut started = [start(&file, node, engine, true)?];
        until_ready(&rack, &mut started, arguments.timeout).await?;
        println!("{}  has restarted", node.name);
    }
    until_whole(&rack, arguments.timeout).await?;
    Ok(ExitCode::SUCCESS)
}

/// Waits until all nodes are up, and each copy of each card, and of the catalog, has all.
async fn until_whole(rack: &Rack, limit: Duration) -> Result<Vec<NodeStatus>> {
    let begun = Instant::now();
    loop {
        let statuses = statuses(rack).await?;
        let is_whole = |one: &NodeStatus| one.is_whole() && one.replicas_behind == Some(0);
        let Some(lacks) = statuses.iter().find(|one| !is_whole(one)) else {
            return Ok(statuses);
        };
        if begun.elapsed() >= limit {
            return Err(Error::usage(format!(
                "after {} s, node '{}' is not up with all its links and copies: see flashmesh rack status; \
                 a node that goes now would take the last copies along",
                limit.as_secs(),
                lacks.name
            )));
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}
