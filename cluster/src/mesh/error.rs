//! What can go wrong on the mesh.

/// Why the mesh did not do what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MeshError {
    /// The rack file has no such node or endpoint.
    #[error("the rack file has no {0}")]
    Unknown(String),
    /// A packet is larger than `mesh.packet_bytes`. Streams cut messages up.
    #[error("a packet of {bytes} bytes; mesh.packet_bytes is {most}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// What the rack file allows.
        most: usize,
    },
    /// A link on the way was given up: its neighbour could not be connected to until the deadline,
    /// or has restarted. Packets that are under way there are lost.
    #[error("'{node}' can't be reached: the link {link} {why}")]
    Unreachable {
        /// The node that was to receive.
        node: String,
        /// The link that is broken, by its ends.
        link: String,
        /// What happened to it.
        why: String,
    },
    /// Packets of a sender may have been lost before the next one: a link on their way was given
    /// up, or the sender restarted.
    #[error(
        "packets from '{node}' may be lost: it has restarted, or a link on the way was given up"
    )]
    Interrupted {
        /// The sender.
        node: String,
    },
    /// A node did not accept a stream.
    #[error("'{node}' did not accept the stream: {why}")]
    Refused {
        /// The node.
        node: String,
        /// Its reason.
        why: String,
    },
    /// A stream was broken off.
    #[error("the stream was broken off: {0}")]
    Broken(String),
    /// An endpoint is used for streams, or the other way round; or a service has its listener.
    #[error("{0} is in use already")]
    Taken(String),
    /// The mesh was dropped, or closed.
    #[error("the mesh of this node is closed")]
    Closed,
}

/// Why a link's connection was ended. The next one goes on where it stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("the peer sent {0}")]
    Frame(String),
    #[error("{0}")]
    Refused(String),
    #[error("the peer closed the connection")]
    Ended,
    #[error("nothing was heard for {0} ms")]
    Silent(u64),
    #[error("another connection took its place")]
    Replaced,
}
