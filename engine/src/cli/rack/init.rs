//! `flashmesh rack init`: a rack to begin with.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use flashmesh_cluster::{Rack, RackKey, Shape};

use super::super::node::own_program;
use super::super::node::{SOCKET, of_rack};
use super::arguments::{RackInitArguments, RackShape};
use crate::{Error, Result};

/// Where ports for clients are looked for.
const FIRST_PORT: u16 = 50051;

/// Writes a rack file and the rack's key, and makes the nodes' folders.
pub(super) fn run(arguments: &RackInitArguments) -> Result<()> {
    let shape = match arguments.shape {
        RackShape::Line => Shape::Line,
        RackShape::Ring => Shape::Ring,
        RackShape::Grid => Shape::Grid,
        RackShape::Torus => Shape::Torus,
        RackShape::Full => Shape::Full,
    };
    let folder = std::path::absolute(&arguments.folder);
    let folder = folder.map_err(|e| failed(&arguments.folder, e))?;
    let nodes = usize::from(arguments.nodes);
    let port = match arguments.flight_port {
        Some(port) => port,
        None => free_ports(arguments.nodes),
    };
    let text = Rack::draft(&folder, nodes, shape, arguments.replicas, port).map_err(of_rack)?;
    let file = folder.join("rack.toml");
    if file.exists() {
        let file = file.display();
        return Err(Error::usage(format!(
            "{file} is there already; give another folder, or delete it"
        )));
    }
    for node in Rack::parse(&text).map_err(of_rack)?.nodes {
        let of_node = folder.join(&node.name);
        check_socket(&of_node)?;
        std::fs::create_dir_all(&of_node).map_err(|e| failed(&of_node, e))?;
    }
    let key = folder.join("rack.key");
    // One that is there may have been used: with it goes what it has sealed.
    if !key.exists() {
        RackKey::new(rand::random()).write(&key).map_err(of_rack)?;
    }
    let write = |path: &Path, text: String| std::fs::write(path, text).map_err(|e| failed(path, e));
    let mut written: Vec<PathBuf> = Vec::new();
    if arguments.systemd {
        let unit = folder.join("flashmesh-node@.service");
        write(&unit, systemd_unit(&own_program()?, &file))?;
        written.push(unit);
    }
    if arguments.container {
        let container = folder.join("Containerfile");
        write(&container, containerfile(&folder))?;
        written.push(container);
    }
    write(&file, text)?;
    println!("{}", file.display());
    for path in written {
        println!("{}", path.display());
    }
    Ok(())
}

fn failed(path: &Path, source: std::io::Error) -> Error {
    Error::io(format!("making {}", path.display()), source)
}

/// Refuses folders that are too deep for a socket.
pub(super) fn check_socket(folder: &Path) -> Result<()> {
    let path = folder.join(SOCKET);
    match std::os::unix::net::SocketAddr::from_pathname(&path) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::usage(format!(
            "{} is longer than a socket's path may be (107 bytes); give a folder with a shorter path",
            path.display()
        ))),
    }
}

/// The first of as many ports of this machine that nobody listens on. Somebody may take one before
/// the nodes do; then they say so.
fn free_ports(nodes: u16) -> u16 {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let mut first = FIRST_PORT;
    for port in FIRST_PORT..u16::MAX {
        if port - first == nodes {
            return first;
        }
        if !is_free(port) {
            first = port + 1;
        }
    }
    // Not so many: the draft says whether there are.
    FIRST_PORT
}

fn systemd_unit(program: &Path, file: &Path) -> String {
    let (program, file) = (program.display(), file.display());
    format!(
        "# A node of a rack of flashmesh, under systemd. Copy it to /etc/systemd/system, and there\n\
         #   systemctl enable --now flashmesh-node@n00 flashmesh-node@n01 …\n\
         # on each machine for its nodes. Where nodes are on several machines, all read the same rack\n\
         # file and key.\n\
         [Unit]\n\
         Description=flashmesh node %i\n\
         After=network-online.target\n\
         Wants=network-online.target\n\
         \n\
         [Service]\n\
         ExecStart=\"{program}\" node \"{file}\" --name %i\n\
         # A node finishes what runs and catches up, for 100 seconds at most.\n\
         KillSignal=SIGTERM\n\
         TimeoutStopSec=120\n\
         Restart=on-failure\n\
         RestartSec=2\n\
         # Many files, and io_uring's memory.\n\
         LimitNOFILE=65536\n\
         LimitMEMLOCK=infinity\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n"
    )
}

fn containerfile(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "# An image that runs a node of a rack. Put the binary `flashmesh` beside this file, and there\n\
         #   podman build -t flashmesh-node .\n\
         #   podman run -d --network host --user $(id -u) --userns keep-id -v {folder}:{folder} \\\n\
         #     flashmesh-node {folder}/rack.toml --name n00\n\
         # once for each node. The folder has the same path inside as outside: nodes meet at its sockets.\n\
         FROM debian:stable-slim\n\
         RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && \\\n    \
             rm -rf /var/lib/apt/lists/*\n\
         COPY flashmesh /usr/local/bin/flashmesh\n\
         STOPSIGNAL SIGTERM\n\
         ENTRYPOINT [\"/usr/local/bin/flashmesh\", \"node\"]\n"
    )
}
