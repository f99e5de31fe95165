//! `flashmesh rack up` and `rack down`: the nodes of a rack as processes of this machine.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flashmesh_cluster::{Node, Rack};

use super::super::arguments::EngineArguments;
use super::super::node::{NodeState, NodeStatus, address, holder, of_rack, own_program};
use super::super::signals::until_signal;
use super::arguments::{RackDownArguments, RackUpArguments};
use super::status::statuses;
use crate::{Error, Result};

/// The log of a node that was started with --detach, in its folder.
const LOG: &str = "node.log";
/// Lines of it that are shown where a node has failed.
const SHOWN_LINES: usize = 12;
/// Of its end so much is read.
const SHOWN_BYTES: u64 = 16 << 10;
/// Between two looks at processes.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Between two questions how all nodes are.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// What was killed has ended within this.
const KILL_TIME: Duration = Duration::from_secs(10);

/// A node's process that was started here.
pub(super) struct Started {
    name: String,
    process: Child,
    /// The log, and where this process's part of it begins.
    log: Option<(PathBuf, u64)>,
    /// Show what it prints.
    showing: Vec<JoinHandle<()>>,
}

impl Started {
    /// What there is to say of one that has ended.
    fn failure(&self, status: ExitStatus) -> String {
        let name = &self.name;
        match &self.log {
            Some((path, from)) => format!(
                "node '{name}' has ended ({status}); the end of {}:\n{}",
                path.display(),
                end_of(path, *from)
            ),
            None => format!("node '{name}' has ended ({status})"),
        }
    }
}

pub(super) async fn up(engine: &EngineArguments, arguments: &RackUpArguments) -> Result<ExitCode> {
    engine.without_database()?;
    let (file, rack) = file_and_rack(&arguments.file)?;
    // Said once, and not by each node.
    rack.key().map_err(of_rack)?;
    let signal = match arguments.detach {
        true => None,
        false => Some(until_signal()?),
    };
    let mut started = Vec::new();
    for node in &rack.nodes {
        match holder(&node.folder)? {
            Some(process) => println!("{}  runs already (process {process})", node.name),
            None => started.push(start(&file, node, engine, arguments.detach)?),
        }
    }
    let Some(signal) = signal else {
        until_ready(&rack, &mut started, arguments.timeout)
            .await
            .map_err(|error| {
                let file = file.display();
                Error::usage(format!(
                    "{error}\nNodes that have started run on; flashmesh rack down {file} ends them"
                ))
            })?;
        announce(&rack).await?;
        return Ok(ExitCode::SUCCESS);
    };
    let ready = until_ready(&rack, &mut started, arguments.timeout);
    tokio::pin!(signal);
    let ready = tokio::select! {
        ready = ready => Some(ready),
        _ = &mut signal => None,
    };
    let ended = match ready {
        Some(Ok(())) => {
            announce(&rack).await?;
            let all_ended = tokio::select! {
                all_ended = until_ended(&mut started) => Some(all_ended),
                _ = &mut signal => None,
            };
            all_ended.unwrap_or(Ok(()))
        }
        Some(Err(error)) => Err(error),
        None => Ok(()),
    };
    let ours: Vec<&Node> = {
        let ours = rack.nodes.iter();
        ours.filter(|node| started.iter().any(|one| one.name == node.name))
            .collect()
    };
    // They have a limit of their own, and a second signal ends this process.
    let left = stop(&rack, &ours, Duration::MAX, false).await?;
    debug_assert!(left.is_empty());
    for mut node in started {
        let _ = node.process.wait();
        for showing in node.showing.drain(..) {
            let _ = showing.join();
        }
    }
    ended.map(|()| ExitCode::SUCCESS)
}

/// The whole path of a rack file, and its rack, whose nodes are all of this machine.
pub(super) fn file_and_rack(file: &Path) -> Result<(PathBuf, Rack)> {
    let failed = |e| Error::io(format!("finding {}", file.display()), e);
    let file = std::path::absolute(file).map_err(failed)?;
    let rack = Rack::load(&file).map_err(of_rack)?;
    match rack.nodes.iter().find(|node| node.is_remote()) {
        Some(node) => Err(Error::usage(format!(
            "node '{}' may be on another machine, and this command starts processes of this one; run \
             flashmesh node {} --name NODE there for each node, under systemd for one (rack init \
             --systemd writes a unit)",
            node.name,
            file.display()
        ))),
        None => Ok((file, rack)),
    }
}

/// Says where clients come in.
async fn announce(rack: &Rack) -> Result<()> {
    for (node, status) in rack.nodes.iter().zip(statuses(rack).await?) {
        let at = node.flight.map(|flight| address(rack, flight));
        let head = match status.is_head {
            true => "  (head)",
            false => "",
        };
        println!(
            "{}  {}{head}",
            node.name,
            at.unwrap_or_else(|| "no clients".into())
        );
    }
    Ok(())
}

/// Starts the process of a node.
pub(super) fn start(
    file: &Path,
    node: &Node,
    engine: &EngineArguments,
    detach: bool,
) -> Result<Started> {
    let failed = |what: &str, e| Error::io(format!("{what} node '{}'", node.name), e);
    std::fs::create_dir_all(&node.folder).map_err(|e| failed("making the folder of", e))?;
    let mut command = Command::new(own_program()?);
    command.arg("node").arg(file).arg("--name").arg(&node.name);
    command.args(engine.to_words());
    // A terminal's Ctrl-C is for this process, which ends the nodes in their order.
    command.stdin(Stdio::null()).process_group(0);
    let mut log = None;
    match detach {
        true => {
            let path = node.folder.join(LOG);
            let opened = OpenOptions::new().append(true).create(true).open(&path);
            let opening = |e| failed("opening the log of", e);
            let output = opened.map_err(opening)?;
            let from = output.metadata().map_err(opening)?.len();
            let copy = output.try_clone().map_err(opening)?;
            command.stdout(output).stderr(copy);
            log = Some((path, from));
        }
        false => drop(command.stdout(Stdio::piped()).stderr(Stdio::piped())),
    }
    let mut process = command.spawn().map_err(|e| failed("starting", e))?;
    let output = process.stdout.take().map(|output| show(&node.name, output));
    let errors = process.stderr.take().map(|errors| show(&node.name, errors));
    Ok(Started {
        name: node.name.clone(),
        process,
        log,
        showing: output.into_iter().chain(errors).collect(),
    })
}

/// Prints lines with the name of the node that they come from.
fn show(name: &str, output: impl Read + Send + 'static) -> JoinHandle<()> {
    let name = name.to_string();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(output);
        let mut line = Vec::new();
        while reader
            .read_until(b'\n', &mut line)
            .is_ok_and(|bytes| bytes > 0)
        {
            let text = String::from_utf8_lossy(&line);
            println!("{name} | {}", text.trim_end_matches('\n'));
            line.clear();
        }
    })
}

/// Waits until all nodes are up, with all their links.
pub(super) async fn until_ready(
    rack: &Rack,
    started: &mut [Started],
    limit: Duration,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        for node in &mut *started {
            let ended = node.process.try_wait();
            let ended =
                ended.map_err(|e| Error::io(format!("looking at node '{}'", node.name), e))?;
            if let Some(status) = ended {
                return Err(Error::usage(node.failure(status)));
            }
        }
        let statuses = statuses(rack).await?;
        let waited_for = statuses.iter().find(|status| !status.is_whole());
        let has_head = statuses.iter().any(|status| status.is_head);
        let status = match waited_for {
            Some(status) => status,
            None if has_head => return Ok(()),
            // Of all that are up, none was elected.
            None => &statuses[0],
        };
        let gone = statuses
            .iter()
            .find(|status| status.state == NodeState::Down);
        if let Some(gone) = gone.filter(|gone| started.iter().all(|one| one.name != gone.name)) {
            let name = &gone.name;
            return Err(Error::usage(format!(
                "node '{name}' ran when this command began, and has ended since; run it again"
            )));
        }
        if Instant::now() >= deadline {
            let seconds = limit.as_secs();
            let name = &status.name;
            let lacks = match status.state {
                NodeState::Up if status.is_whole() => "has no head".into(),
                NodeState::Up => {
                    let down = status.links.iter().filter(|link| !link.is_up());
                    let down: Vec<_> = down.map(|link| link.link.as_str()).collect();
                    format!("has no link {}", down.join(", "))
                }
                state => format!("is {}", state.name()),
            };
            let why = status.problem.as_ref();
            let why = why.map_or_else(String::new, |why| format!(" ({why})"));
            return Err(Error::usage(format!(
                "after {seconds} s, node '{name}' {lacks}{why}"
            )));
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Waits until the nodes have ended by themselves; says so of each.
async fn until_ended(started: &mut [Started]) -> Result<()> {
    let mut failed = Vec::new();
    let mut running: Vec<&mut Started> = started.iter_mut().collect();
    while !running.is_empty() {
        running.retain_mut(|node| match node.process.try_wait() {
            Ok(Some(status)) => {
                println!("{} | ended ({status})", node.name);
                if !status.success() {
                    failed.push(node.name.clone());
                }
                false
            }
            Ok(None) | Err(_) => true,
        });
        tokio::time::sleep(ASK_EVERY).await;
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Error::usage(format!(
            "these nodes failed: {}",
            failed.join(", ")
        ))),
    }
}

pub(super) async fn down(arguments: &RackDownArguments) -> Result<ExitCode> {
    let rack = Rack::load(&arguments.file).map_err(of_rack)?;
    let mut running = Vec::new();
    for node in &rack.nodes {
        match holder(&node.folder)? {
            Some(_) => running.push(node),
            None => println!("{}  does not run here", node.name),
        }
    }
    let left = stop(&rack, &running, arguments.timeout, arguments.kill).await?;
    for node in &running {
        if !left.iter().any(|one| one.id == node.id) {
            println!("{}  has ended", node.name);
        }
    }
    if left.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let names: Vec<_> = left.iter().map(|node| node.name.as_str()).collect();
    Err(Error::usage(format!(
        "after {} s, these nodes have not ended: {}; wait longer (--timeout), or end them at once \
         (--kill)",
        arguments.timeout.as_secs(),
        names.join(", ")
    )))
}

/// Ends nodes; those that still run when the time is over. The head goes first: it finishes what
/// clients of all nodes ask, and that travels over the others. These stay where it does. It makes
/// another node the head, unless none is left.
pub(super) async fn stop<'a>(
    rack: &Rack,
    nodes: &[&'a Node],
    limit: Duration,
    kill: bool,
) -> Result<Vec<&'a Node>> {
    let statuses = statuses(rack).await?;
    let is_head = |node: &&Node| {
        let mut statuses = statuses.iter();
        statuses.any(|status| status.is_head && status.name == node.name)
    };
    let is_left = |status: &NodeStatus| {
        let goes = nodes.iter().any(|node| node.name == status.name);
        !goes && status.state == NodeState::Up
    };
    let hands_over = rack.keepers().is_empty() || statuses.iter().any(is_left);
    let to_heads = match hands_over {
        true => libc::SIGTERM,
        false => libc::SIGINT,
    };
    let (heads, others): (Vec<&Node>, Vec<&Node>) = nodes.iter().copied().partition(is_head);
    for (group, signal) in [(heads, to_heads), (others, libc::SIGTERM)] {
        for node in &group {
            send(node, signal)?;
        }
        let mut left = until_gone(group, limit).await?;
        if kill && !left.is_empty() {
            for node in &left {
                send(node, libc::SIGKILL)?;
                println!("{}  is killed", node.name);
            }
            left = until_gone(left, KILL_TIME).await?;
        }
        if !left.is_empty() {
            return nodes_that_run(nodes);
        }
    }
    Ok(Vec::new())
}

/// Waits until no process is one of these nodes; gives those of which one still is.
async fn until_gone(mut nodes: Vec<&Node>, limit: Duration) -> Result<Vec<&Node>> {
    let begun = Instant::now();
    loop {
        nodes = nodes_that_run(&nodes)?;
        if nodes.is_empty() || begun.elapsed() >= limit {
            return Ok(nodes);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn nodes_that_run<'a>(nodes: &[&'a Node]) -> Result<Vec<&'a Node>> {
    let mut running = Vec::new();
    for node in nodes {
        if holder(&node.folder)?.is_some() {
            running.push(*node);
        }
    }
    Ok(running)
}

/// Sends a signal to the process of a node, if there is one.
fn send(node: &Node, signal: i32) -> Result<()> {
    let Some(process) = holder(&node.folder)?.and_then(|id| i32::try_from(id).ok()) else {
        return Ok(());
    };
    // SAFETY: kill only takes numbers; this process holds the node's lock, so it is positive.
    if unsafe { libc::kill(process, signal) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ESRCH) => Ok(()),
        _ => Err(Error::io(
            format!("ending node '{}' (process {process})", node.name),
            error,
        )),
    }
}

/// The last lines of a log, of what was written from some byte on.
fn end_of(path: &Path, from: u64) -> String {
    let read = || {
        let mut file = File::open(path)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(from.max(end.saturating_sub(SHOWN_BYTES))))?;
        let mut bytes = Vec::new();
        file.take(SHOWN_BYTES).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_else(|error| format!("it can't be read: {error}"));
    let lines: Vec<&str> = text.lines().collect();
    let shown = lines.len().saturating_sub(SHOWN_LINES);
    let lines: Vec<_> = lines[shown..]
        .iter()
        .map(|line| format!("  {line}"))
        .collect();
    lines.join("\n")
}
