//! Elections: when a node stands for one, and when a leader is none any more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use openraft::{EmptyNode, Raft, RaftMetrics, ServerState};
use tokio::sync::watch;

use super::LOOK_EVERY;
use super::entry::Types;
use super::network::{Member, hello, node_of};
use super::role::{Lease, Role};
use super::state::Held;
use crate::mesh::Streams;
use crate::mesh::clock::{Instant, sleep};

/// The files are made durable, and the log is cut, after so many bytes.
const MOST_UNSYNCED: u64 = 64 << 20;

/// Lets the node stand for election when more than half of the group, itself included, has heard no
/// leader for the deadline. One that was cut off and is back hears from the others that there is one,
/// and does not raise the group's term. A node that is to end stands no more.
pub(super) async fn elect(member: Arc<Member>, streams: Streams) {
    while !member.is_retired() {
        let metrics = member.raft.metrics().borrow().clone();
        let mut deaf = BTreeSet::new();
        if !member.hears_leader() {
            deaf.insert(member.number);
            for voter in metrics.membership_config.voter_ids() {
                if voter == member.number {
                    continue;
                }
                let told = hello(&streams, node_of(voter)).await;
                if told.is_ok_and(|told| told.member == voter && !told.hears_leader) {
                    deaf.insert(voter);
                }
            }
        }
        let voters = metrics.membership_config.membership().get_joint_config();
        let may_stand = has_no_leader(voters, &deaf);
        member.raft.runtime_config().elect(may_stand);
        sleep(LOOK_EVERY).await;
    }
    member.raft.runtime_config().elect(false);
}

/// Whether more than half of the voters hear no leader: of each group of them, where voters are being changed, as
/// each has to elect.
fn has_no_leader(groups: &[BTreeSet<u64>], deaf: &BTreeSet<u64>) -> bool {
    let is_lost = |voters: &BTreeSet<u64>| voters.intersection(deaf).count() * 2 > voters.len();
    groups.iter().all(is_lost)
}

/// Tells what the node is, and keeps the log short.
pub(super) struct Looking {
    pub raft: Raft<Types>,
    pub held: Held,
    /// For how long after a leader was heard nobody else is elected.
    pub lasts: Duration,
    /// How often others are told that this one leads.
    pub heartbeats: Duration,
    pub lease: Arc<Lease>,
    pub role: watch::Sender<Role>,
}

impl Looking {
    /// Until when nobody else is elected, as a leader was told; `None` where it is alone.
    fn until(&self, now: &RaftMetrics<u64, EmptyNode>, told: Instant) -> Option<Instant> {
        if now.membership_config.voter_ids().count() < 2 {
            return None;
        }
        // One that was the leader before it was started is not heard yet.
        let silent = now.millis_since_quorum_ack.map(Duration::from_millis);
        Some(silent.map_or(told, |silent| told + self.lasts - silent))
    }

    pub async fn look(self) {
        let mut metrics = self.raft.metrics();
        let mut is_settling = false;
        let mut sent = Instant::now();
        // The times that it has led, and the term while it does.
        let (mut times, mut leads_in) = (0, None);
        // What is told now was so later than what was told two changes ago was seen: the process may
        // be stopped anywhere in between.
        let mut seen = [Instant::now(); 2];
        loop {
            let (before, told) = (Instant::now(), seen[0]);
            let now = metrics.borrow_and_update().clone();
            let is = match (&now.running_state, now.state) {
                (Err(error), _) => Role::Failed(error.to_string()),
                (Ok(()), ServerState::Leader) => {
                    let until = self.until(&now, told);
                    self.lease.set(until);
                    if sent.elapsed() >= self.heartbeats {
                        sent = Instant::now();
                        // It fails with the group, which is told below.
                        let _ = self.raft.trigger().heartbeat().await;
                    }
                    match self.lease.holds() {
                        true => {
                            if leads_in.replace(now.current_term) != Some(now.current_term) {
                                times += 1;
                            }
                            Role::Leads(times)
                        }
                        false => Role::Follows(None),
                    }
                }
                _ => {
                    self.lease.end();
                    Role::Follows(now.current_leader.map(node_of))
                }
            };
            if !matches!(is, Role::Leads(_)) {
                leads_in = None;
            }
            let is_over = matches!(is, Role::Failed(_));
            self.role
                .send_if_modified(|known| std::mem::replace(known, is.clone()) != is);
            if is_over {
                return;
            }
            match self.held.unsynced() > MOST_UNSYNCED {
                true if !is_settling => is_settling = self.raft.trigger().snapshot().await.is_ok(),
                true => {}
                false => is_settling = false,
            }
            tokio::select! {
                changed = metrics.changed() => match changed {
                    Ok(()) => seen = [seen[1], before],
                    Err(_) => {
                        self.role.send_replace(Role::Failed("it has ended".into()));
                        return;
                    }
                },
                () = sleep(LOOK_EVERY.min(self.heartbeats)) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_each_group_of_voters_must_hear_no_leader() {
        let set = |numbers: &[u64]| numbers.iter().copied().collect::<BTreeSet<_>>();
        let whole = [set(&[1, 2, 3, 4, 5])];
        assert!(has_no_leader(&whole, &set(&[3, 4, 5])));
        assert!(!has_no_leader(&whole, &set(&[4, 5])));
        // The leader, 2, and what comes for 1 are away, in the middle of that change.
        let changing = [set(&[1, 2, 3, 4, 5]), set(&[2, 3, 4, 5, 6])];
        assert!(has_no_leader(&changing, &set(&[3, 4, 5])));
        assert!(!has_no_leader(&changing, &set(&[1, 3, 4])));
    }
}
