//! `flashmesh rack add`, `rack drain` and `rack remove`: nodes that come and go.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use flashmesh_cluster::{Identity, NewNode, RackFile};
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget};

use super::super::node::{NodeState, NodeStatus, holder, of_rack};
use super::arguments::{RackAddArguments, RackDrainArguments, RackRemoveArguments};
use super::init::check_socket;
use super::status::statuses;
use crate::{Error, Result};

/// Between two questions what is left.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// Of a page of flash.
const PAGE_BYTES: u64 = flashmesh_storage::flash::PAGE_SIZE_BYTES as u64;

/// Takes a node in.
pub(super) fn add(arguments: &RackAddArguments) -> Result<()> {
    let mut file = RackFile::load(&arguments.file).map_err(of_rack)?;
    refuse_running(&file)?;
    // What the user wrote is a path of here, and in the file one of its folder.
    let here = |path: &PathBuf| {
        std::path::absolute(path).map_err(|e| Error::io(format!("finding {}", path.display()), e))
    };
    let certificate = arguments.certificate.as_ref().map(here).transpose()?;
    let tls = certificate.zip(arguments.key.as_ref().map(here).transpose()?);
    let new = NewNode {
        name: arguments.name.clone(),
        address: arguments.address.clone(),
        tls: tls.map(|(certificate, key)| Identity { certificate, key }),
        flight: arguments.flight,
        card: arguments.card.as_ref().map(here).transpose()?,
        neighbours: arguments.cables.clone(),
    };
    let name = file.add(&new).map_err(of_rack)?;
    let node = file.rack().node(&name).expect("it was added");
    if !node.is_remote() {
        check_socket(&node.folder)?;
        std::fs::create_dir_all(&node.folder)
            .map_err(|e| Error::io(format!("making {}", node.folder.display()), e))?;
    }
    file.store().map_err(of_rack)?;
    let clients = node.flight.map(|flight| format!(", clients at {flight}"));
    println!(
        "{name}  card {}{}",
        node.cards[0].path.display(),
        clients.unwrap_or_default()
    );
    println!(
        "It is part of the rack from the next start on (flashmesh rack up), and gets its part of what is \
         there in the background."
    );
    say_elsewhere(&file);
    Ok(())
}

/// Takes a node out that is empty.
pub(super) fn remove(arguments: &RackRemoveArguments) -> Result<()> {
    let mut file = RackFile::load(&arguments.file).map_err(of_rack)?;
    let name = &arguments.node;
    if let Some(node) = file.rack().node(name).filter(|node| !node.drained) {
        return Err(Error::usage(format!(
            "node '{}' was not emptied: flashmesh rack drain {} {name}, while the rack runs",
            node.name,
            arguments.file.display()
        )));
    }
    refuse_running(&file)?;
    let folder = file.rack().node(name).map(|node| node.folder.clone());
    file.remove(name).map_err(of_rack)?;
    file.store().map_err(of_rack)?;
    println!("{name}  is no node of the rack any more");
    if let Some(folder) = folder.filter(|folder| folder.exists()) {
        println!("Its folder is left: {}", folder.display());
    }
    say_elsewhere(&file);
    Ok(())
}

/// Has a node be emptied, and waits for it; or has it be filled again.
pub(super) async fn drain(arguments: &RackDrainArguments) -> Result<ExitCode> {
    let mut file = RackFile::load(&arguments.file).map_err(of_rack)?;
    let name = &arguments.node;
    file.set_drained(name, !arguments.undo).map_err(of_rack)?;
    file.store().map_err(of_rack)?;
    say_elsewhere(&file);
    if arguments.undo {
        println!("{name}  is filled again, as the others are");
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.detach {
        println!("{name}  is emptied; flashmesh rack status says what is left");
        return Ok(ExitCode::SUCCESS);
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.enable_steady_tick(ASK_EVERY);
    let begun = Instant::now();
    loop {
        let statuses = statuses(file.rack()).await?;
        if statuses
            .iter()
            .all(|status| status.state == NodeState::Down)
        {
            bar.finish_and_clear();
            return Err(Error::usage(format!(
                "no node runs that could empty '{name}'; the rack file says it now, and the head does it \
                 when it is there (flashmesh rack up)"
            )));
        }
        let left = left_on(&statuses, name);
        let behind = statuses.iter().filter_map(|status| status.replicas_behind);
        let behind: usize = behind.sum();
        // It may have the last whole copy of another one's card.
        if left == Some(0) && behind == 0 {
            bar.finish_and_clear();
            println!("{name}  is empty");
            return Ok(ExitCode::SUCCESS);
        }
        let text = match left {
            Some(0) => format!("{name} is empty, and waits for {behind} copies that are behind"),
            Some(pages) => format!("{} left on {name}", HumanBytes(pages * PAGE_BYTES)),
            None => format!("the head looks at the rack file every second; then it empties {name}"),
        };
        if arguments
            .timeout
            .is_some_and(|limit| begun.elapsed() >= limit)
        {
            bar.finish_and_clear();
            return Err(Error::usage(format!(
                "{text}; the head goes on with it. What readers and open transactions still use stays \
                 until they end, and damaged pages stay; the log of the head says where the others lack room"
            )));
        }
        bar.set_message(text);
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Pages on a node that the head empties.
fn left_on(statuses: &[NodeStatus], name: &str) -> Option<u64> {
    let status = statuses.iter().find(|status| status.name == name)?;
    status.pages.filter(|_| status.drained)
}

/// Nodes that run know the rack as it was when they were started.
fn refuse_running(file: &RackFile) -> Result<()> {
    for node in &file.rack().nodes {
        if holder(&node.folder)?.is_some() {
            return Err(Error::usage(format!(
                "node '{}' runs: nodes read what nodes there are when they start, so end them first \
                 (flashmesh rack down)",
                node.name
            )));
        }
    }
    Ok(())
}

fn say_elsewhere(file: &RackFile) {
    if file.rack().nodes.iter().any(|node| node.is_remote()) {
        println!(
            "Nodes on other machines read their own copies of the rack file: put this one there."
        );
    }
}
