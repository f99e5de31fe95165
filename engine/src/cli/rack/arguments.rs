//! The options of `flashmesh rack`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::super::arguments::parse_time;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum RackCommand {
    /// Write DIR/rack.toml for nodes on this machine, and make a key and a folder for each
    Init(RackInitArguments),
    /// Check a rack file, its routes among it: packets must not be able to wait for each other in a
    /// circle
    Check {
        /// The rack file
        file: PathBuf,
    },
    /// Print mesh and routes of a rack file as the lines of a trace (fpga/network/README.md)
    Routes {
        /// The rack file
        file: PathBuf,
    },
    /// Start all nodes of a rack that don't run yet, as processes of this machine. Without --detach
    /// they end with this command, and what they print is shown with their names. Options of the
    /// database (--cache-size, --memory-limit, …) are the head's
    Up(RackUpArguments),
    /// End the nodes of a rack that run on this machine: the head first, which finishes what runs
    Down(RackDownArguments),
    /// Restart the nodes of a rack that run on this machine, one after the other, while clients go on: a
    /// rack with replicas answers all the time. For another version of flashmesh, or options of the
    /// database, which are given as for rack up
    Restart(RackRestartArguments),
    /// Say how each node of a rack is, and its links. Exit code 1 when one is not up
    Status(RackStatusArguments),
    /// Take a node into the rack file, with its cables, and make its folder. It is part of the rack from
    /// the next start on
    Add(RackAddArguments),
    /// Empty a node while the rack runs: nothing new goes to its cards, and what is there goes to those
    /// of others. Waits until it is empty; then it can be removed
    Drain(RackDrainArguments),
    /// Take a node that was emptied out of the rack file, with its cables. Its files stay
    Remove(RackRemoveArguments),
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RackAddArguments {
    /// The rack file
    pub file: PathBuf,
    /// The new node's name [default: n and its number]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// A node that a cable joins it to; once for each [default: all where each node has a cable to each
    /// other one, the first and the last of a ring, else the last]
    #[arg(long = "cable", value_name = "NODE")]
    pub cables: Vec<String>,
    /// Where it waits for its neighbours, e.g. tcp://10.0.0.7:7000 [default: a socket in its folder]
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<String>,
    /// Its certificate (PEM), where its address is one of TCP
    #[arg(long, value_name = "PEM", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// The key of its certificate (PEM)
    #[arg(long, value_name = "PEM", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// Where clients come in [default: the port behind those of the others, on one machine]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub flight: Option<SocketAddr>,
    /// The file or block device of its flash card [default: card0.flash in its folder]
    #[arg(long, value_name = "PATH")]
    pub card: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RackDrainArguments {
    /// The rack file
    pub file: PathBuf,
    /// The node
    pub node: String,
    /// Fill it again instead, as the others are
    #[arg(long)]
    pub undo: bool,
    /// Come back at once; the head goes on
    #[arg(long)]
    pub detach: bool,
    /// How long to wait until it is empty [default: as long as it takes]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub timeout: Option<Duration>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RackRemoveArguments {
    /// The rack file
    pub file: PathBuf,
    /// The node
    pub node: String,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RackInitArguments {
    /// The folder to make
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Its nodes
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub nodes: u16,
    /// On how many nodes each segment of a table is to lie
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub replicas: u16,
    /// How cables join them
    #[arg(long, value_enum, default_value_t = RackShape::Ring)]
    pub shape: RackShape,
    /// Where clients come in: the first node's port, the next one's is one more, and so on [default:
    /// the first ports from 50051 on that are free]
    #[arg(long, value_name = "PORT")]
    pub flight_port: Option<u16>,
    /// Also write flashmesh-node@.service, with which systemd runs a node
    #[arg(long)]
    pub systemd: bool,
    /// Also write a Containerfile for an image that runs a node
    #[arg(long)]
    pub container: bool,
}

/// How the nodes of a rack are joined.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(in crate::cli) enum RackShape {
    /// Each node with the next one
    Line,
    /// The same, and the last with the first
    Ring,
    /// Rows and columns
    Grid,
    /// The same, with their ends joined
    Torus,
    /// Each node with each other one: up to 9
    Full,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RackUpArguments {
    /// The rack file
    pub file: PathBuf,
    /// Come back when all nodes and their links are up; they run on, and log to node.log in their
    /// folders
    #[arg(long)]
    pub detach: bool,
    /// How long to wait until all nodes and their links are up
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "60s")]
    pub timeout: Duration,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RackDownArguments {
    /// The rack file
    pub file: PathBuf,
    /// How long to wait until the head, and then the others, have ended
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "120s")]
    pub timeout: Duration,
    /// End at once, by SIGKILL, what has not ended then. What is not committed is lost
    #[arg(long)]
    pub kill: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RackRestartArguments {
    /// The rack file
    pub file: PathBuf,
    /// How long each node may take to end, to be up, and to have what was written meanwhile
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "120s")]
    pub timeout: Duration,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RackStatusArguments {
    /// The rack file
    pub file: PathBuf,
    /// How it is printed
    #[arg(long, value_enum, default_value_t = StatusFormat::Table)]
    pub format: StatusFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum StatusFormat {
    /// A line a node
    Table,
    /// For scripts: {"nodes": [...]}
    Json,
}
