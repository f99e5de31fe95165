//! Who votes: the leader takes up the nodes that are to vote, as the members that they are now. A node
//! that lost its disk comes back as another member; it gets what the group has, and then takes the
//! place of the one that it was.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flashmesh_pages::store::NodeId;
use openraft::{ChangeMembers, EmptyNode, Raft, RaftMetrics, ServerState};

use super::entry::Types;
use super::network::{hello, node_of};
use super::role::Lease;
use super::state::Held;
use crate::mesh::Streams;
use crate::mesh::clock::sleep;

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
    pub lease: Arc<Lease>,
}

impl Voters {
    /// Looks after the group whenever this node leads it.
    pub async fn tend(self) {
        loop {
            sleep(LOOK_EVERY).await;
            let metrics = self.raft.metrics().borrow().clone();
            // Before the first head has taken office, the others would get half of a catalog.
            if metrics.state != ServerState::Leader || self.held.term() == 0 {
                continue;
            }
            // Who is to lead next must have all that this one has.
            if self.lease.is_given_up() {
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
    let reached = reached(member, metrics).unwrap_or(0);
    member == own || reached + MOST_LACKED >= metrics.last_log_index.unwrap_or(0)
}

/// The last entry that a member has, as the leader knows.
fn reached(member: u64, metrics: &RaftMetrics<u64, EmptyNode>) -> Option<u64> {
    let last = metrics
        .replication
        .as_ref()?
        .get(&member)
        .copied()
        .flatten();
    last.map(|last| last.index)
}

/// Whether a member has every entry that the leader, whose metrics these are, has.
pub(super) fn lacks_nothing(member: u64, metrics: &RaftMetrics<u64, EmptyNode>) -> bool {
    let last = metrics.last_log_index;
    last.is_some() && reached(member, metrics) == last
}

/// Whether the group is on its way from some voters to others (Ongaro's joint consensus): until that
/// is done, it needs more than half of either, and those that are gone count among the former.
fn is_changing(metrics: &RaftMetrics<u64, EmptyNode>) -> bool {
    let membership = metrics.membership_config.membership();
    membership.get_joint_config().len() > 1
}

/// Whether a member votes, as one of the voters that the group has come to.
pub(super) fn votes(member: u64, metrics: &RaftMetrics<u64, EmptyNode>) -> bool {
    let mut voters = metrics.membership_config.voter_ids();
    !is_changing(metrics) && voters.any(|voter| voter == member)
}

/// How many vote, once the group has come to them for good.
pub(super) fn count(metrics: &RaftMetrics<u64, EmptyNode>) -> usize {
    let applied = metrics.last_applied.map(|entry| entry.index);
    let changed = metrics.membership_config.log_id().map(|entry| entry.index);
    match is_changing(metrics) || applied < changed {
        true => 0,
        false => metrics.membership_config.voter_ids().count(),
    }
}

/// Whether a node votes and has what the leader, `own`, has; who votes it must have as well.
pub(super) fn has_all(own: u64, node: NodeId, metrics: &RaftMetrics<u64, EmptyNode>) -> bool {
    let mut voters = metrics.membership_config.voter_ids();
    let member = voters.find(|voter| node_of(*voter) == node);
    let changed = metrics.membership_config.log_id().map(|entry| entry.index);
    let knows = |member| member == own || reached(member, metrics) >= changed;
    member.is_some_and(|member| {
        votes(member, metrics) && knows(member) && has_reached(own, member, metrics)
    })
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
    // A leader may have ended between the two steps of a change: the next one takes the second.
    if (next != voters || is_changing(metrics)) && !next.is_empty() {
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

#[cfg(test)]
mod tests {
    use openraft::{CommittedLeaderId, LogId, Membership, StoredMembership};

    use super::*;

    const WANTED: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];

    fn entry(index: u64) -> LogId<u64> {
        LogId::new(CommittedLeaderId::new(1, 0), index)
    }

    /// What the leader, member 0, knows: who votes since entry 7, and how far the others are.
    fn of_voters(voters: &[&[u64]], reached: [u64; 2]) -> RaftMetrics<u64, EmptyNode> {
        let mut metrics = RaftMetrics::new_initial(0);
        let configs = voters.iter().map(|of| of.iter().copied().collect());
        let membership = Membership::<u64, EmptyNode>::new(configs.collect(), ());
        metrics.membership_config = StoredMembership::new(Some(entry(7)), membership).into();
        metrics.last_log_index = Some(7);
        let reached = reached.into_iter().zip(1..);
        let reached = reached.map(|(index, member)| (member, Some(entry(index))));
        metrics.replication = Some(reached.collect());
        metrics
    }

    #[test]
    fn a_change_of_voters_that_a_leader_left_half_done_is_ended_by_the_next() {
        let there: BTreeMap<_, _> = WANTED.map(|node| (node, u64::from(node.0))).into();
        let all = || BTreeSet::from([0, 1, 2]);
        let half_done = of_voters(&[&[0, 1], &[0, 1, 2]], [7, 7]);
        assert_eq!(
            changes(0, &WANTED, &there, &half_done),
            [Change::Vote(all())]
        );
        let done = of_voters(&[&[0, 1, 2]], [7, 7]);
        assert_eq!(changes(0, &WANTED, &there, &done), []);
    }

    #[test]
    fn voters_count_when_the_group_has_come_to_them() {
        let mut metrics = of_voters(&[&[0], &[0, 1, 2]], [7, 7]);
        metrics.last_applied = Some(entry(7));
        assert_eq!(count(&metrics), 0);
        let mut metrics = of_voters(&[&[0, 1, 2]], [7, 7]);
        metrics.last_applied = Some(entry(6));
        assert_eq!(count(&metrics), 0);
        metrics.last_applied = Some(entry(7));
        assert_eq!(count(&metrics), 3);
    }

    #[test]
    fn no_node_is_whole_while_the_group_changes_or_before_it_knows_that_it_has() {
        let whole = |metrics: &RaftMetrics<_, _>| WANTED.map(|node| has_all(0, node, metrics));
        let half_done = of_voters(&[&[0, 1], &[0, 1, 2]], [7, 7]);
        assert_eq!(whole(&half_done), [false; 3]);
        assert!(!votes(1, &half_done));
        // Node 2 would ask those who voted before.
        let is_behind = of_voters(&[&[0, 1, 2]], [7, 6]);
        assert_eq!(whole(&is_behind), [true, true, false]);
        assert!(votes(1, &is_behind));
    }
}
