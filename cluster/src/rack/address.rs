//! Where a node waits for its neighbours.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::Deserialize;

/// The address of a node's mesh: `unix:///path` or `tcp://host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub enum Address {
    /// A Unix socket, for nodes of one machine. Who may open the file may be a neighbour.
    Unix(PathBuf),
    /// TCP; with TLS, unless the host is a loopback address.
    Tcp {
        /// A name or number. An IPv6 number is written in brackets.
        host: String,
        /// The port.
        port: u16,
    },
}

impl Address {
    /// Whether peers at this address must show certificates: bytes may leave the machine.
    pub fn needs_tls(&self) -> bool {
        match self {
            Self::Unix(_) => false,
            Self::Tcp { host, .. } => {
                let number = host.trim_matches(['[', ']']).parse::<IpAddr>();
                !number.is_ok_and(|number| number.is_loopback())
            }
        }
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix://")
            && path.starts_with('/')
        {
            return Ok(Self::Unix(path.into()));
        }
        let tcp = text.strip_prefix("tcp://").and_then(|rest| {
            let (host, port) = rest.rsplit_once(':')?;
            let is_number = host.starts_with('[') && host.ends_with(']');
            let is_host = !host.is_empty() && (is_number || !host.contains([':', '/']));
            let port = port.parse().ok().filter(|&port| port != 0)?;
            is_host.then(|| Self::Tcp {
                host: host.into(),
                port,
            })
        });
        tcp.ok_or_else(|| {
            format!("'{text}' is not an address; write unix:///path or tcp://host:port")
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
        }
    }
}
