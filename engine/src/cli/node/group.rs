//! A node of the group that keeps the catalog: it follows the head until it is elected, and is the head
//! until another one is.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flashmesh_cluster::DATABASE_FOLDER;
use flashmesh_cluster::cards::TermStore;
use flashmesh_cluster::catalog::{Group, GroupParts, Role};
use flashmesh_storage::store::NodeId;

use super::super::arguments::EngineArguments;
use super::status::NodeState;
use super::{COPIES_FILE, Running};
use crate::server::Server;
use crate::{Error, Result};

/// What a node has of the catalog, in its folder.
pub(super) const FOLDER: &str = "catalog";
const NOT_HEAD: &str = "is not the head any more";

impl Running {
    /// Follows the head until it is elected, then is the head.
    pub(super) async fn serve_in_group(
        &self,
        database: &EngineArguments,
        keepers: Vec<NodeId>,
    ) -> Result<()> {
        // Any of them may become the head, and who ends as it is elected takes a vote along.
        Server::check_files(&self.server_options(true)?)?;
        let folder = &self.node.folder;
        let parts = GroupParts {
            node: self.node.number(),
            group: keepers,
            is_first: self.is_first(),
            folder: folder.join(FOLDER),
            alone: self.is_first().then(|| {
                let database = folder.join(DATABASE_FOLDER);
                (database, folder.join(COPIES_FILE))
            }),
            deadline: Duration::from_millis(self.rack.mesh.deadline_ms),
        };
        let streams = self.commit_streams();
        let group = tokio::task::spawn_blocking(move || Group::start(&streams, parts));
        let group = group
            .await
            .map_err(|error| Error::io("opening the catalog", std::io::Error::other(error)))??;
        let group = Arc::new(group);
        self.reporter.set_group(&group);
        let mut role = group.role();
        let elected = async {
            match role
                .wait_for(|role| !matches!(role, Role::Follows(_)))
                .await
            {
                Ok(role) => role.clone(),
                Err(_) => Role::Failed("it has ended".into()),
            }
        };
        // Who ends is made the head no more.
        let retire = || group.retire();
        let head = group.head();
        let ended = self.serve_head(database, head, elected, retire).await?;
        match ended {
            None => Ok(()),
            Some(Role::Failed(why)) => Err(failed(&why)),
            Some(leads) => self.lead(database, &group, leads).await,
        }
    }

    /// The head, as which it was elected, until it is told to end; then it makes another node the head. When another one is elected, this process
    /// begins anew: what the head has in memory may not be so, and nobody may be answered from it any more.
    async fn lead(&self, database: &EngineArguments, group: &Group, leads: Role) -> Result<()> {
        tracing::info!("is the head now");
        self.reporter.set(NodeState::Starting);
        self.reporter.set_head_of_group();
        let mut role = group.role();
        let lost = async {
            match role.wait_for(|role| *role != leads).await {
                Ok(role) => role.clone(),
                Err(_) => Role::Follows(None),
            }
        };
        let stopping = self.stop_by_signal()?;
        let work = async {
            let term = self.terms().load()?;
            let office = tokio::select! {
                office = group.take_office(term) => office?,
                () = stopping.cancelled() => return Ok(()),
            };
            self.serve_clients(database, Some(Arc::clone(&office)))
                .await
        };
        let served = tokio::select! {
            served = work => served,
            role = lost => match role {
                Role::Failed(why) => Err(failed(&why)),
                _ if self.is_stopping() => Ok(()),
                _ => Err(self.begin_anew(NOT_HEAD)),
            },
        };
        let is_told_to_end = served.is_ok() && self.others_go_on.load(Ordering::Relaxed);
        if is_told_to_end && *group.role().borrow() == leads {
            match group.hand_over().await {
                Ok(node) => tracing::info!(node = node.0, "another node is the head now"),
                Err(error) => tracing::warn!(%error, "the others have to elect a head"),
            }
        }
        // What failed may have failed for that, and be told before it: who ends takes a vote along.
        match &served {
            Err(error) if !self.is_stopping() && self.is_deposed(group, &leads).await => {
                tracing::warn!(%error, "as the head");
                Err(self.begin_anew(NOT_HEAD))
            }
            _ => served,
        }
    }

    /// Whether this node has another role now, or soon.
    async fn is_deposed(&self, group: &Group, leads: &Role) -> bool {
        let mut role = group.role();
        let soon = Duration::from_millis(self.rack.mesh.deadline_ms);
        let changed = tokio::time::timeout(soon, role.wait_for(|role| role != leads)).await;
        matches!(changed, Ok(Ok(role)) if !matches!(*role, Role::Failed(_)))
    }
}

fn failed(why: &str) -> Error {
    let why = std::io::Error::other(why.to_string());
    Error::io("the catalog that this node keeps with others", why)
}
