//! Who votes: the leader takes up the nodes that are to vote, as the members that they are now. A node
//! that lost its disk comes back as another member; it gets what the group has, and then takes the
//! place of the one that it was.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flashmesh_pages::store::NodeId;
use openraft::{ChangeMembers, EmptyNode, Raft, RaftMetrics, ServerState};

use super::entry::Types;
use super::network::{hello, node_of};
use super::state::Held;
use crate::mesh::Streams;

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A member that lacks no more entries than these may vote.
const MOST_LACKED: u64 = 64;

/// What keeps the group as the rack file says.
pub(super) struct Voters {
    pub own: u64,
    /// The nodes that are to vote.
    pub wanted: Vec<NodeId>,
    pub streams: Streams,
    pub raft: Raft<Types>,
    pub held: Held,
}

impl Voters {
    /// Looks after the group whenever this node leads it.
    pub async fn tend(self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let metrics = self.raft.metrics().borrow().clone();
            // Before the first head has taken office, the others would get half of a catalog.
            if metrics.state != ServerState::Leader || self.held.term() == 0 {
                continue;
            }
            let there = self.who_is_there().await;
            for change in changes(self.own, &self.wanted, &there, &metrics) {
                match change {
                    Change::Teach(member) => {
                        log::info!("node {} gets the catalog", node_of(member).0);
                        let taught = self.raft.add_learner(member, EmptyNode {}, false).await;
                        if let Err(error) = taught {
                            log::warn!("node {}: {error}", node_of(member).0);
                        }
                    }
                    Change::Vote(members) => {
                        let nodes: Vec<_> = members.iter().map(|one| node_of(*one).0).collect();
                        log::info!("nodes {nodes:?} keep the catalog");
                        if let Err(error) = self.raft.change_membership(members, false).await {
                            log::warn!("who keeps the catalog: {error}");
                        }
                    }
                    Change::Forget(members) => {
                        let change = ChangeMembers::RemoveNodes(members);
                        if let Err(error) = self.raft.change_membership(change, false).await {
                            log::warn!("who keeps the catalog: {error}");
                        }
                    }
                }
            }
        }
    }

    /// The members that nodes say they are now.
    async fn who_is_there(&self) -> BTreeMap<NodeId, u64> {
        let mut there = BTreeMap::from([(node_of(self.own), self.own)]);
        for node in &self.wanted {
            if *node != node_of(self.own)
                && let Ok(introduction) = hello(&self.streams, *node).await
            {
                there.insert(*node, introduction.member);
            }
        }
        there
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Change {
    /// Gets the catalog, and has no vote.
    Teach(u64),
    /// These vote.
    Vote(BTreeSet<u64>),
    /// Nobody is that any more.
    Forget(BTreeSet<u64>),
}

/// Whether a member has what the leader has, or will soon.
fn has_reached(own: u64, member: u64, metrics: &RaftMetrics<u64, EmptyNode>) -> bool {
    let reached = metrics.replication.as_ref();
    let reached = reached.and_then(|of| of.get(&member).copied().flatten());
    let reached = reached.map_or(0, |last| last.index);
    member == own || reached + MOST_LACKED >= metrics.last_log_index.unwrap_or(0)
}

/// Whether a node votes and has what the leader, `own`, has.
pub(super) fn has_all(own: u64, node: NodeId, metrics: &RaftMetrics<u64, EmptyNode>) -> bool {
    let mut voters = metrics.membership_config.voter_ids();
    let member = voters.find(|voter| node_of(*voter) == node);
    member.is_some_and(|member| has_reached(own, member, metrics))
}

/// What is to change now.
fn changes(
    own: u64,
    wanted: &[NodeId],
    there: &BTreeMap<NodeId, u64>,
    metrics: &RaftMetrics<u64, EmptyNode>,
) -> Vec<Change> {
    let membership = metrics.membership_config.membership();
    let voters: BTreeSet<u64> = membership.voter_ids().collect();
    let members: BTreeSet<u64> = membership.nodes().map(|(member, _)| *member).collect();
    let place = |node: &NodeId| {
        let now = there.get(node).copied();
        let before = voters
            .iter()
            .copied()
            .find(|voter| node_of(*voter) == *node);
        let able = now.filter(|now| {
            voters.contains(now) || (members.contains(now) && has_reached(own, *now, metrics))
        });
        able.or(before)
    };
    let mut changes: Vec<_> = {
        let new = wanted.iter().filter_map(|node| there.get(node));
        let new = new.filter(|member| !members.contains(member));
        new.map(|member| Change::Teach(*member)).collect()
    };
    let next: BTreeSet<u64> = wanted.iter().filter_map(place).collect();
    if next != voters && !next.is_empty() {
        changes.push(Change::Vote(next));
    } else {
        let is_gone = |member: &u64| {
            let now = there.get(&node_of(*member));
            !voters.contains(member) && now.is_some_and(|now| now != member)
        };
        let gone: BTreeSet<u64> = members.into_iter().filter(is_gone).collect();
        if !gone.is_empty() {
            changes.push(Change::Forget(gone));
        }
    }
    changes
}
