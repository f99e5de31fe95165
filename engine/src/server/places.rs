//! Places among what runs at once.

use std::sync::Arc;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use super::sessions::ClientSession;
use super::state::State;
use crate::queries::{QueryKind, RunningQuery};

/// Statements that are planned at once, each on a thread of its own.
pub(super) const PLANNING: usize = 32;

/// A place among the queries that may run at once: of the user's, and of all.
pub(super) type Place = Vec<OwnedSemaphorePermit>;

/// Places of one kind: a user's, and all.
struct Places<'a> {
    of_user: &'a Arc<Semaphore>,
    quota: usize,
    of_all: &'a Arc<Semaphore>,
    limit: usize,
    /// What is done there.
    does: &'a str,
}

impl State {
    /// Waits for a place among the queries that may run at once. A look needs none of all, and
    /// has one of the user's looks.
    pub(super) async fn place(
        &self,
        session: &ClientSession,
        query: &RunningQuery,
        kind: QueryKind,
    ) -> Result<Place, Status> {
        let share = &session.share;
        if kind == QueryKind::Look {
            let looks = Arc::clone(&share.looks).acquire_owned();
            let place = async { Ok(vec![looks.await?]) };
            return self
                .in_time(query, place, || "the user looks at system as often".into())
                .await;
        }
        let places = Places {
            of_user: &share.running,
            quota: self.shares.quota().queries,
            of_all: &self.running,
            limit: self.limits.queries,
            does: "runs",
        };
        self.take(query, places).await
    }

    /// Waits for a place among the statements that may be planned at once.
    pub(super) async fn planning_place(
        &self,
        session: &ClientSession,
        query: &RunningQuery,
    ) -> Result<Place, Status> {
        let places = Places {
            of_user: &session.share.planning,
            quota: self.shares.quota().planning,
            of_all: &self.planning,
            limit: PLANNING,
            does: "plans",
        };
        self.take(query, places).await
    }

    async fn take(&self, query: &RunningQuery, places: Places<'_>) -> Result<Place, Status> {
        let Places {
            of_user,
            quota,
            of_all,
            limit,
            does,
        } = places;
        let taken = async {
            let of_user = Arc::clone(of_user).acquire_owned().await?;
            Ok(vec![of_user, Arc::clone(of_all).acquire_owned().await?])
        };
        let full = || match of_user.available_permits() == 0 && quota < limit {
            true => format!("user '{}' {does} {quota} queries", query.user),
            false => format!("the server {does} {limit} queries"),
        };
        self.in_time(query, taken, full).await
    }

    async fn in_time(
        &self,
        query: &RunningQuery,
        place: impl Future<Output = Result<Place, AcquireError>>,
        full: impl FnOnce() -> String,
    ) -> Result<Place, Status> {
        tokio::select! {
            place = place => place.map_err(|_| Status::unavailable("the server is stopping")),
            () = query.cancelled() => Err(Status::cancelled("the query was cancelled")),
            () = tokio::time::sleep(self.limits.queue_time) => {
                Err(Status::resource_exhausted(format!(
                    "{}, which is its limit, and none ended in {} s; try again later",
                    full(),
                    self.limits.queue_time.as_secs()
                )))
            }
        }
    }
}
