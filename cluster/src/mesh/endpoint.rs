//! An endpoint, as those who send and receive have it.

use std::sync::Arc;

use bytes::Bytes;
use flashmesh_pages::store::NodeId;
use tokio::sync::oneshot;

use super::error::MeshError;
use super::network::Network;
use super::node::Shared;
use super::switch::Sent;

/// An endpoint of a node: sends packets to that endpoint of other nodes, and receives from them.
/// Packets from one node to another arrive in the order in which they were sent, none twice; none
/// is lost unless a link is given up, which both are told.
#[derive(Clone)]
pub struct Endpoint {
    shared: Arc<Shared>,
    slot: usize,
}

impl Endpoint {
    pub(crate) fn new(shared: Arc<Shared>, slot: usize) -> Self {
        Self { shared, slot }
    }

    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Sends a packet of at most `mesh.packet_bytes`. Waits while there is no place for it: on the
    /// first link or, with end-to-end flow control, at the destination. When it returns, the packet
    /// is on its way. When it is dropped before, the packet is sent or is not, as a whole.
    ///
    /// # Errors
    /// `Unreachable` while a link on the way is given up, and once after one was and packets of
    /// this sender may be lost.
    pub async fn send(&self, destination: NodeId, payload: Bytes) -> Result<(), MeshError> {
        let most = self.shared.network.settings.packet_bytes as usize;
        if payload.len() > most {
            let bytes = payload.len();
            return Err(MeshError::TooLarge { bytes, most });
        }
        let node = self.shared.network.node_of(destination);
        let unknown = || MeshError::Unknown(format!("node of number {}", destination.0));
        self.send_to(node.ok_or_else(unknown)?, payload).await
    }

    pub(crate) async fn send_to(&self, to: usize, payload: Bytes) -> Result<(), MeshError> {
        match self.begin_send(to, payload)? {
            None => Ok(()),
            Some(sending) => sending.finish().await,
        }
    }

    /// Sends a packet, or has it wait for a place, without waiting itself.
    pub(crate) fn begin_send(
        &self,
        to: usize,
        payload: Bytes,
    ) -> Result<Option<Sending>, MeshError> {
        let sent = self.shared.switch.lock().send(self.slot, to, payload)?;
        let Sent::Waits(id, waiting) = sent else {
            return Ok(None);
        };
        let place = Place {
            endpoint: self.clone(),
            destination: to,
            id: Some(id),
        };
        Ok(Some(Sending { waiting, place }))
    }

    /// The next packet, and which node sent it. Several may wait; each packet goes to one of them.
    /// When it is dropped before it returns, nothing is lost.
    ///
    /// # Errors
    /// `Interrupted` in the place of packets that are lost; what follows is received by the next
    /// call.
    pub async fn receive(&self) -> Result<(NodeId, Bytes), MeshError> {
        let (node, payload) = self.receive_from().await?;
        match payload {
            Some(payload) => Ok((self.shared.network.ids[node], payload)),
            None => Err(MeshError::Interrupted {
                node: self.shared.network.names[node].clone(),
            }),
        }
    }

    pub(crate) async fn receive_from(&self) -> Result<(usize, Option<Bytes>), MeshError> {
        let wake = self.shared.switch.lock().endpoints[self.slot].wake.clone();
        loop {
            {
                let mut switch = self.shared.switch.lock();
                if let Some(received) = switch.receive(self.slot) {
                    return Ok(received);
                }
                if switch.is_closed {
                    // For the next one that waits.
                    wake.notify_one();
                    return Err(MeshError::Closed);
                }
            }
            wake.notified().await;
        }
    }

    pub(crate) fn network(&self) -> &Network {
        &self.shared.network
    }

    /// Senders to that node have heard of what was lost.
    pub(crate) fn forgive(&self, node: usize) {
        self.shared.switch.lock().endpoints[self.slot].flows[node].failed = None;
    }
}

/// A packet that waits to be sent. Dropped, it is sent or is not, as a whole.
pub(crate) struct Sending {
    waiting: oneshot::Receiver<Result<(), MeshError>>,
    place: Place,
}

impl Sending {
    pub(crate) async fn finish(mut self) -> Result<(), MeshError> {
        let outcome = (&mut self.waiting).await;
        self.place.id = None;
        outcome.unwrap_or(Err(MeshError::Closed))
    }
}

/// Someone's place in a queue of senders.
struct Place {
    endpoint: Endpoint,
    destination: usize,
    id: Option<u64>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let mut switch = self.endpoint.shared.switch.lock();
            switch.cancel(self.endpoint.slot, self.destination, id);
        }
    }
}
