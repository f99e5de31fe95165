//! Handing the lead over: a head that is told to end has another member elected at once.
//!
//! Whoever has heard a leader grants nobody a vote for the deadline, which is what that leader's lease
//! stands on. So a leader gives its lease up before it tells anybody, and so that nothing brings it back:
//! it leaves its own vote, durably, for one that is nobody's. With that vote alone it was the leader, and
//! would be again after a restart. Then it has the member that lacks nothing stand for election. Who is
//! asked for a vote is shown the one that was given up, and where it is still bound by it leaves it as
//! well, and answers by what its log has, as in any election.
//!
//! What is shown late, twice or to the wrong one does no harm: a vote that was left for good binds nobody
//! to anybody who leads.

use std::time::Duration;

use flashmesh_pages::store::NodeId;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use openraft::{LeaderId, LogId, Raft, RaftMetrics, ServerState, Vote};

use super::entry::Types;
use super::network::{Member, ask_to_lead, node_of};
use super::{LOOK_EVERY, voters};
use crate::mesh::Streams;
use crate::mesh::clock::{sleep, timeout};

type Metrics = RaftMetrics<u64, openraft::EmptyNode>;

/// Has this node leave a vote, durably, unless it has left it for a greater one already: it neither leads
/// by it nor grants its leader anything any more. Whether it had not.
///
/// # Errors
/// A text, where the node can't go on.
pub(super) async fn leave(raft: &Raft<Types>, vote: &Vote<u64>) -> Result<bool, String> {
    let LeaderId { term, node_id } = vote.leader_id;
    // The next one above it in openraft's order (term, member, whether it was elected), so that no other
    // leader is left. It is no member's: who draws a number draws 48 bits of it.
    let next = Vote::new(term, node_id.wrapping_add(1));
    // Openraft takes votes with each message of a leader. This one is behind entries that nobody has, so
    // that it brings nothing else, and is answered when the vote is durable.
    let nowhere = LogId::new(next.leader_id, u64::MAX);
    let request = AppendEntriesRequest {
        vote: next,
        prev_log_id: Some(nowhere),
        entries: Vec::new(),
        leader_commit: None,
    };
    match raft.append_entries(request).await {
        Ok(AppendEntriesResponse::HigherVote(_)) => Ok(false),
        Ok(_) => Ok(true),
        Err(error) => Err(error.to_string()),
    }
}

/// The members that vote and have all that this one has, which leads.
fn successors(own: u64, metrics: &Metrics) -> Vec<u64> {
    let has_all = |member: &u64| voters::lacks_nothing(*member, metrics);
    let voters = metrics.membership_config.voter_ids();
    voters
        .filter(|member| *member != own)
        .filter(has_all)
        .collect()
}

/// Gives up the lead, for as long as this process is there, and has another member elected; gives its
/// node when it leads. Nothing may be asked of the group here any more. `patience`: how long a member
/// that lacks nothing is waited for, and then its election.
///
/// # Errors
/// A text that says what is missing: then the others elect somebody as if this node had gone away.
pub(super) async fn hand_over(
    member: &Member,
    streams: &Streams,
    patience: Duration,
) -> Result<NodeId, String> {
    let raft = &member.raft;
    member.retire();
    // From here on nobody is answered, whatever becomes of the rest.
    member.lease.give_up();
    let mut metrics = raft.metrics();
    let found = async {
        loop {
            let now = metrics.borrow_and_update().clone();
            if now.state != ServerState::Leader {
                return Err("another node was elected".to_string());
            }
            let successors = successors(member.number, &now);
            let is_own = now.vote.leader_id.node_id == member.number && now.vote.is_committed();
            if is_own && !successors.is_empty() {
                return Ok((now.vote, successors));
            }
            tokio::select! {
                _ = metrics.changed() => {}
                () = sleep(LOOK_EVERY) => {}
            }
        }
    };
    let (vote, successors) = timeout(patience, found)
        .await
        .map_err(|_| "no other node that keeps the catalog has all of it".to_string())??;
    if !leave(raft, &vote).await? {
        return Err("another node was elected".into());
    }
    let mut problem = String::new();
    for successor in successors {
        let node = node_of(successor);
        match ask_to_lead(streams, successor, vote).await {
            Ok(()) => {
                // This node may be needed to elect it.
                let is_other =
                    |now: &Metrics| now.current_leader.is_some_and(|one| one != member.number);
                match timeout(patience, metrics.wait_for(is_other)).await {
                    Ok(Ok(now)) => return Ok(now.current_leader.map_or(node, node_of)),
                    _ => problem = format!("node {} was not elected", node.0),
                }
            }
            Err(error) => problem = format!("node {}: {error}", node.0),
        }
    }
    Err(problem)
}

/// Stands for election, as the leader asks who gave up this vote.
///
/// # Errors
/// A text, where this node is to end as well, follows another leader by now, or can't go on.
pub(super) async fn stand(member: &Member, given_up: Vote<u64>) -> Result<(), String> {
    if member.is_retired() {
        return Err("it ends, too".into());
    }
    let now = member.raft.metrics().borrow().vote;
    if now != given_up {
        return Err("it has heard of another leader".into());
    }
    *member.given_up.lock() = Some(given_up);
    member.forget_leader();
    let stood = member.raft.trigger().elect().await;
    stood.map_err(|error| error.to_string())
}
