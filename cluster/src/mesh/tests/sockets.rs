//! Links over Unix sockets, TCP, and TCP with TLS: each node as a process of its own would start
//! it.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::node;
use crate::Rack;
use crate::mesh::{Mesh, MeshError, StartError};

/// Longer than anything here takes, by the real clock.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test by the real clock.
fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(test)
}

/// Two nodes at `addresses`, with what else belongs to each.
fn rack(addresses: [&str; 2], of_nodes: [&str; 2], more: &str) -> Rack {
    let mut text = format!("{more}\n");
    for (at, (address, of_node)) in addresses.into_iter().zip(of_nodes).enumerate() {
        text += &format!(
            "[[node]]\nid = {at}\nname = 'n{at}'\naddress = '{address}'\n{of_node}\n\
             [[node.card]]\nid = 0\npath = 'n{at}'\n"
        );
    }
    text += "[[cable]]\nfrom = 'n0/0'\nto = 'n1/0'\n[[endpoint]]\nindex = 0\nname = 'e0'\n";
    Rack::parse(&text).unwrap()
}

fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("tcp://{}", listener.local_addr().unwrap())
}

fn certificate(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/mesh/tests/tls");
    let file = |extension: &str| folder.join(name).with_extension(extension);
    format!(
        "tls = {{ certificate = {:?}, key = {:?} }}",
        file("pem"),
        file("key")
    )
}

fn authority(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/mesh/tests/tls");
    format!(
        "tls = {{ authorities = {:?} }}",
        folder.join(name).with_extension("pem")
    )
}

/// Packets there and back, large ones too.
async fn exchange(a: &Mesh, b: &Mesh) {
    let (here, there) = (a.endpoint("e0").unwrap(), b.endpoint("e0").unwrap());
    let all = async {
        for bytes in [0, 1, 1000, 20_000, 65_536] {
            let payload: Bytes = (0..bytes).map(|at| (at % 251) as u8).collect();
            here.send(node(1), payload.clone()).await.unwrap();
            assert_eq!(there.receive().await.unwrap(), (node(0), payload.clone()));
            there.send(node(0), payload.clone()).await.unwrap();
            assert_eq!(here.receive().await.unwrap(), (node(1), payload));
        }
    };
    timeout(PATIENCE, all).await.unwrap();
}

/// Packets arrive again, after one end was restarted. The first ones may go into a connection that
/// is gone, and are lost with it.
async fn arrives_again(a: &Mesh, b: &Mesh) {
    let (here, there) = (a.endpoint("e0").unwrap(), b.endpoint("e0").unwrap());
    let all = async {
        loop {
            // The sender may be told what was lost.
            let _ = here.send(node(1), Bytes::from("again")).await;
            let received = timeout(Duration::from_millis(20), there.receive()).await;
            if let Ok(Ok((_, payload))) = received {
                assert_eq!(payload, "again");
                return;
            }
        }
    };
    timeout(PATIENCE, all).await.unwrap();
}

#[test]
fn unix_sockets() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str| format!("unix://{}/{name}", folder.path().display());
    let rack = rack([&file("0"), &file("1")], ["", ""], "");
    run(async {
        let a = Mesh::start(&rack, node(0)).await.unwrap();
        let b = Mesh::start(&rack, node(1)).await.unwrap();
        exchange(&a, &b).await;
        // Two processes can't be one node.
        let error = Mesh::start(&rack, node(1)).await.err().unwrap();
        assert!(matches!(error, StartError::Listen { .. }), "{error}");
        // Noise hurts nobody.
        let mut stranger = UnixStream::connect(folder.path().join("1")).await.unwrap();
        stranger.write_all(&[7; 100]).await.unwrap();
        let _ = stranger.read_to_end(&mut Vec::new()).await;
        exchange(&a, &b).await;
        b.close().await;
        assert!(!folder.path().join("1").exists());
        // A file that a process has left when it was killed is in nobody's way.
        drop(std::os::unix::net::UnixListener::bind(folder.path().join("1")).unwrap());
        let b = Mesh::start(&rack, node(1)).await.unwrap();
        arrives_again(&a, &b).await;
    });
}

#[test]
fn a_sender_to_a_node_that_has_restarted_is_told() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str| format!("unix://{}/{name}", folder.path().display());
    let rack = rack([&file("0"), &file("1")], ["", ""], "");
    run(async {
        let a = Mesh::start(&rack, node(0)).await.unwrap();
        let b = Mesh::start(&rack, node(1)).await.unwrap();
        exchange(&a, &b).await;
        b.close().await;
        let b = Mesh::start(&rack, node(1)).await.unwrap();
        let here = a.endpoint("e0").unwrap();
        let told = async {
            loop {
                if let Err(error) = here.send(node(1), Bytes::from("again")).await {
                    return error;
                }
                tokio::task::yield_now().await;
            }
        };
        let error = timeout(PATIENCE, told).await.unwrap().to_string();
        assert!(
            error.contains("n0/0 → n1/0 was interrupted: its far end has restarted"),
            "{error}"
        );
        arrives_again(&a, &b).await;
    });
}

#[test]
fn tcp_without_tls_on_one_machine() {
    let rack = rack([&free_address(), &free_address()], ["", ""], "");
    run(async {
        let (a, b) = (
            Mesh::start(&rack, node(0)).await,
            Mesh::start(&rack, node(1)).await,
        );
        exchange(&a.unwrap(), &b.unwrap()).await;
    });
}

#[test]
fn tcp_with_tls() {
    let certificates = [certificate("n0"), certificate("n1")];
    let [n0, n1] = [&*certificates[0], &*certificates[1]];
    let rack = rack(
        [&free_address(), &free_address()],
        [n0, n1],
        &authority("authority"),
    );
    run(async {
        let (a, b) = (
            Mesh::start(&rack, node(0)).await,
            Mesh::start(&rack, node(1)).await,
        );
        exchange(&a.unwrap(), &b.unwrap()).await;
    });
}

/// Runs n0 and n1, whose rack files say different things about certificates: there is no link.
fn no_link(of_n0: [&str; 3], of_n1: [&str; 3]) {
    let addresses = [free_address(), free_address()];
    let addresses = [&*addresses[0], &*addresses[1]];
    let bounds = "[mesh]\ndeadline_ms = 300";
    let [a, b] = [of_n0, of_n1]
        .map(|[n0, n1, authority]| rack(addresses, [n0, n1], &format!("{authority}\n{bounds}")));
    run(async {
        let a = Mesh::start(&a, node(0)).await.unwrap();
        let b = Mesh::start(&b, node(1)).await.unwrap();
        let endpoint = a.endpoint("e0").unwrap();
        let refused = async {
            loop {
                if let Err(error) = endpoint.send(node(1), Bytes::new()).await {
                    return error;
                }
                tokio::task::yield_now().await;
            }
        };
        let error = timeout(PATIENCE, refused).await.unwrap();
        assert!(matches!(error, MeshError::Unreachable { .. }), "{error}");
        for mesh in [&a, &b] {
            assert_eq!(mesh.links()[0].connections, 0);
        }
    });
}

#[test]
fn certificates_of_others_are_refused() {
    let [n0, n1, strange] = ["n0", "n1", "strange-n1"].map(certificate);
    let (ours, theirs) = (authority("authority"), authority("stranger"));
    // n1 shows a certificate that a stranger has signed.
    no_link([&n0, &n1, &ours], [&n0, &strange, &ours]);
    // n0 does, and n1 does not take it.
    no_link([&strange, &n1, &ours], [&n0, &n1, &ours]);
    // n1 shows that of n0; n0 that of n1. Both are of this rack.
    no_link([&n0, &n1, &ours], [&n0, &n0, &ours]);
    no_link([&n1, &n1, &ours], [&n0, &n1, &ours]);
    // n0 trusts others.
    no_link([&n0, &n1, &theirs], [&n0, &n1, &ours]);
    // One of them speaks without TLS.
    no_link(["", "", ""], [&n0, &n1, &ours]);
    no_link([&n0, &n1, &ours], ["", "", ""]);
}

#[test]
fn files_of_certificates_that_can_not_be_used_are_named() {
    let authority = authority("authority");
    let cases = [
        "tls = { certificate = '/nowhere.pem', key = '/nowhere.key' }".to_string(),
        certificate("n0").replace("n0.key", "n1.key"),
    ];
    for of_node in &cases {
        let addresses = [free_address(), free_address()];
        let addresses = [&*addresses[0], &*addresses[1]];
        let rack = rack(addresses, [of_node, of_node], &authority);
        let error = run(Mesh::start(&rack, node(0))).err().unwrap().to_string();
        assert!(error.starts_with("TLS of node 'n0'"), "{error}");
        assert!(
            error.contains("nowhere.pem") || error.contains("n1.key"),
            "{error}"
        );
    }
}

/// Strangers at a TLS port hold up nobody.
#[test]
fn a_stranger_at_the_port_of_tls_is_survived() {
    let certificates = [certificate("n0"), certificate("n1")];
    let [n0, n1] = [&*certificates[0], &*certificates[1]];
    let addresses = [free_address(), free_address()];
    let rack = rack(
        [&addresses[0], &addresses[1]],
        [n0, n1],
        &authority("authority"),
    );
    run(async {
        let b = Mesh::start(&rack, node(1)).await.unwrap();
        let address = addresses[1].trim_start_matches("tcp://");
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut stranger = TcpStream::connect(address).await.unwrap();
        stranger.write_all(&[7; 1000]).await.unwrap();
        let _ = stranger.read_to_end(&mut Vec::new()).await;
        let a = Mesh::start(&rack, node(0)).await.unwrap();
        exchange(&a, &b).await;
    });
}
