//! `flashmesh rack status`: how the nodes of a rack are.

use std::process::ExitCode;

use flashmesh_cluster::{Node, Rack};
use futures::future::join_all;

use super::super::node::{NodeState, NodeStatus, ask, holder, of_rack, tell_of_head};
use super::arguments::{RackStatusArguments, StatusFormat};
use crate::{Error, Result};

pub(super) async fn run(arguments: &RackStatusArguments) -> Result<ExitCode> {
    let rack = Rack::load(&arguments.file).map_err(of_rack)?;
    let statuses = statuses(&rack).await?;
    match arguments.format {
        StatusFormat::Table => print!("{}", table(&statuses)),
        StatusFormat::Json => {
            let answer = serde_json::json!({ "nodes": statuses });
            let answer = serde_json::to_string_pretty(&answer);
            println!("{}", answer.map_err(|e| Error::usage(e.to_string()))?);
        }
    }
    let all_up = statuses.iter().all(|status| status.state == NodeState::Up);
    Ok(match all_up {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// How each node is, in the order of the rack file. Processes of this machine are asked themselves;
/// of other machines, one of these asks over the mesh.
pub(super) async fn statuses(rack: &Rack) -> Result<Vec<NodeStatus>> {
    let mut here = Vec::new();
    for node in &rack.nodes {
        here.push(holder(&node.folder)?);
    }
    let asked = rack
        .nodes
        .iter()
        .zip(&here)
        .map(|(node, &process)| async move {
            match process {
                Some(process) => of_process(rack, node, process).await,
                None => NodeStatus::silent(rack, node, NodeState::Down),
            }
        });
    let mut statuses: Vec<NodeStatus> = join_all(asked).await;
    let known = |status: &&NodeStatus| status.state == NodeState::Up;
    let by = statuses
        .iter()
        .find(known)
        .and_then(|status| rack.node(&status.name));
    let elsewhere = rack.nodes.iter().zip(here).enumerate();
    let elsewhere = elsewhere.filter(|(_, (node, process))| process.is_none() && node.is_remote());
    let asked = elsewhere.map(|(at, (node, _))| async move {
        let unknown = |problem: String| {
            let mut status = NodeStatus::silent(rack, node, NodeState::Unknown);
            status.problem = Some(problem);
            status
        };
        let status = match by {
            Some(by) => ask(by, &node.name).await.unwrap_or_else(unknown),
            None => unknown("it is not on this machine, and no node that is can ask it".into()),
        };
        (at, status)
    });
    for (at, status) in join_all(asked).await {
        statuses[at] = status;
    }
    tell_of_head(&mut statuses);
    Ok(statuses)
}

/// What the process of a node says. One that does not answer is about to start, or stuck.
async fn of_process(rack: &Rack, node: &Node, process: u32) -> NodeStatus {
    match ask(node, "").await {
        Ok(status) => status,
        Err(problem) => {
            let mut status = NodeStatus::silent(rack, node, NodeState::Starting);
            status.pid = Some(process);
            status.problem = Some(problem);
            status
        }
    }
}

fn table(statuses: &[NodeStatus]) -> String {
    let mut lines = vec![["node", "state", "process", "clients at", "links", ""].map(String::from)];
    for status in statuses {
        let links = status.links.iter();
        let links: Vec<_> = links
            .map(|link| format!("{} {}", link.neighbour, link.state.name()))
            .collect();
        let head = match (status.is_head, status.tables, status.segments) {
            (true, Some(tables), Some(segments)) => {
                format!("head: {tables} tables, {segments} segments")
            }
            (true, ..) => "head".into(),
            (false, ..) => String::new(),
        };
        let behind = status.replicas_behind.filter(|behind| *behind > 0);
        let behind = behind.map(|behind| format!("{behind} replicas behind"));
        let drained = status.pages.filter(|_| status.drained);
        let drained = drained.map(|pages| match pages {
            0 => "is drained, and empty".into(),
            pages => format!("is drained: {pages} pages left"),
        });
        let notes = [Some(head), drained, behind, status.problem.clone()];
        let notes: Vec<_> = notes
            .into_iter()
            .flatten()
            .filter(|note| !note.is_empty())
            .collect();
        let pid = status.pid.map_or("-".into(), |pid| pid.to_string());
        let flight = status.flight.clone().unwrap_or_else(|| "-".into());
        let state = status.state.name().to_string();
        let links = match links.is_empty() {
            true => "-".into(),
            false => links.join(", "),
        };
        lines.push([
            status.name.clone(),
            state,
            pid,
            flight,
            links,
            notes.join("; "),
        ]);
    }
    let widths: Vec<usize> = (0..lines[0].len())
        .map(|column| {
            lines
                .iter()
                .map(|line| line[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths);
        let cells: Vec<_> = cells
            .map(|(cell, &width)| format!("{cell:width$}"))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}
