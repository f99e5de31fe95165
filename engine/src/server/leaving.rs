//! Clients whose connection is to end although they would go on: the server ends, or the node of a rack
//! that they come through does.
//!
//! HTTP/2 has a word for that (GOAWAY; RFC 9113, section 6.8). A client that gets it sends what it asks
//! next over another connection, and what it has asked is answered on this one. It gets it when nothing
//! that it has begun needs the connection, and with it the session: no transaction, no result that it
//! has not fetched, no statement that it has prepared and not run, or run once just now and not closed. What it asks in spite of that, because
//! both have crossed, is refused with gRPC's UNAVAILABLE, and nothing of it was done.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tonic::codegen::http::HeaderMap;
use tonic::{Extensions, Status};

use super::identity::session_key;
use super::listen::{Link, Peer};
use super::sessions::TransactionMark;
use super::state::State;

/// Between two looks at who can go: what somebody has begun may be forgotten.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Of a connection, whose requests belong to a session each; those that have ended are forgotten then.
const MOST_SESSIONS: usize = 256;

/// Has clients of a server go on elsewhere.
#[derive(Debug, Clone, Default)]
pub struct Departures(pub(super) Weak<State>);

impl Departures {
    /// Has those do it that come through this node of the rack, each as soon as it can. Returns at once.
    pub fn leave_via(&self, node: &str) {
        let Some(state) = self.0.upgrade() else {
            return;
        };
        let is_one = |link: &Link| link.via() == Some(node);
        if state.leave(is_one) > 0 {
            let (state, node) = (self.0.clone(), node.to_string());
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(LOOK_EVERY).await;
                    let Some(state) = state.upgrade() else {
                        return;
                    };
                    if state.leave(|link| link.via() == Some(&node)) == 0 {
                        return;
                    }
                }
            });
        }
    }
}

impl State {
    /// Has these clients go on elsewhere, each as soon as it can; how many have not been told so.
    fn leave(&self, which: impl Fn(&Link) -> bool) -> usize {
        let links = self.connections.links();
        let links = links.iter().filter(|link| which(link));
        let stay = |link: &&Arc<Link>| {
            link.leave.lock().is_due = true;
            !self.tell(link)
        };
        links.filter(stay).count()
    }

    /// Has all go on elsewhere, for as long as this is polled.
    pub(super) async fn leave_all(&self) {
        loop {
            self.leave(|_| true);
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Tells a client to go on elsewhere, if it is to and can; whether it was told.
    fn tell(&self, link: &Link) -> bool {
        let mut leave = link.leave.lock();
        if !leave.is_told && leave.is_due && leave.running == 0 {
            let mut sessions = leave.sessions.iter();
            leave.is_told = sessions.all(|key| self.sessions.may_go(key, leave.changed));
            if leave.is_told {
                link.tell();
            }
        }
        leave.is_told
    }

    /// A request that was admitted comes; `begins`: it may begin something that needs its session.
    ///
    /// # Errors
    /// UNAVAILABLE: the client was told to go on elsewhere.
    pub(super) fn begin(
        self: &Arc<Self>,
        extensions: &Extensions,
        begins: bool,
    ) -> Result<Beginning, Status> {
        let link = Peer::of(extensions).link().cloned();
        if let Some(link) = &link {
            let mut leave = link.leave.lock();
            if begins && leave.is_told {
                return Err(Status::unavailable(
                    "the node ends, and nothing of this was done: ask again, of another node if this one is gone",
                ));
            }
            if let Some(key) = session_key(extensions)
                && !leave.sessions.contains(key)
            {
                if leave.sessions.len() >= MOST_SESSIONS {
                    leave.sessions.retain(|key| self.sessions.is_open(key));
                }
                leave.sessions.insert(key.to_string());
            }
            leave.running += 1;
            if begins {
                leave.changed = None;
            }
        }
        let session = session_key(extensions).map(str::to_string);
        if let Some(session) = &session {
            self.sessions.begin(session);
        }
        Ok(Beginning {
            state: Arc::clone(self),
            link,
            session,
        })
    }
}

/// Notes that a request has changed something, with the number of its answer.
pub(super) fn note_change(extensions: &Extensions, statement: u64) {
    if let Some(link) = Peer::of(extensions).link() {
        link.leave.lock().changed = Some(statement);
    }
}

/// A request, until it was answered to its end.
pub(super) struct Beginning {
    state: Arc<State>,
    link: Option<Arc<Link>>,
    session: Option<String>,
}

impl Beginning {
    /// Tells its client with the answer which transaction it is in, which was said to be `believed`.
    pub fn tell_transaction(&self, believed: Option<TransactionMark>, headers: &mut HeaderMap) {
        if let Some(session) = &self.session {
            self.state.tell_transaction(session, believed, headers);
        }
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        // What it was busy with, its client has not forgotten.
        if let Some(session) = &self.session {
            self.state.sessions.end(session);
        }
        if let Some(link) = &self.link {
            link.leave.lock().running -= 1;
            self.state.tell(link);
        }
    }
}
