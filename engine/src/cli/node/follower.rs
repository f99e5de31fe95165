//! A node that is not the head: it serves its cards to the head, and passes clients on to it.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use flashmesh_cluster::Node;
use flashmesh_cluster::node::{ServingNode, ServingOptions, ServingParts};
use flashmesh_storage::store::NodeId;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::super::arguments::EngineArguments;
use super::{Running, listen, of_rack, pass};
use crate::threads::cores;
use crate::{NodeWorker, Result};

/// The page cache of a node that is not the head, unless `--cache-size` says otherwise.
const CACHE_BYTES: u64 = 256 << 20;
/// Commands of the head that run at once, for each thread; those beyond wait.
const COMMANDS_PER_THREAD: usize = 2;
/// How often a node that ends says so to the head, and the rest between.
const TELLINGS: usize = 3;
const TELLING_REST: Duration = Duration::from_millis(300);

impl Running {
    /// Serves the node's cards to the head, and runs parts of its plans.
    fn serve_cards(&self, database: &EngineArguments) -> Result<(ServingNode, NodeWorker)> {
        let options = database.options()?;
        let own = self.open_cards(&self.node.cards)?;
        let cards = own.into_iter().chain(self.open_copies()?).collect();
        let threads = options.threads.map_or_else(cores, NonZeroUsize::get);
        let key = self.rack.key().map_err(of_rack)?;
        let cards = ServingNode::start(
            &self.mesh,
            &self.streams,
            ServingParts {
                node: self.node.number(),
                cards,
                all: self.rack.nodes.iter().flat_map(Node::places).collect(),
                terms: Arc::new(self.terms()),
                key: key.as_bytes(),
            },
            ServingOptions {
                cache_bytes: options.cache_bytes.unwrap_or(CACHE_BYTES),
                threads,
                commands: COMMANDS_PER_THREAD * threads,
            },
        )?;
        let nodes = self.rack.numbers();
        let (streams, own) = (self.streams.clone(), self.node.number());
        let worker = NodeWorker::start(&options, cards.storage(), streams, own, nodes)?;
        Ok((cards, worker))
    }

    /// Every other node: serves its cards to the head, and passes clients on to it, until it is told to
    /// end or `until` is there, which it then gives. `retire` is called as it is told to end.
    pub(super) async fn serve_head<T>(
        &self,
        database: &EngineArguments,
        head: watch::Receiver<Option<NodeId>>,
        until: impl Future<Output = T>,
        retire: impl FnOnce(),
    ) -> Result<Option<T>> {
        let (cards, worker) = self.serve_cards(database)?;
        let cards = Arc::new(cards);
        self.reporter.set_serving(&cards);
        let listener = match self.node.flight {
            Some(flight) => {
                self.server_options(false)?;
                Some(listen(flight).await?)
            }
            None => None,
        };
        let stopping = self.is_up()?;
        let (closing, stop) = (CancellationToken::new(), CancellationToken::new());
        let passing = listener.map(|listener| {
            let (streams, reporter) = (self.streams.clone(), Arc::clone(&self.reporter));
            tokio::spawn(pass::pass_on(
                listener,
                streams,
                head.clone(),
                reporter,
                closing.clone(),
                stop.clone(),
            ))
        });
        let ended = tokio::select! {
            () = stopping.cancelled() => {
                retire();
                None
            }
            ended = until => Some(ended),
        };
        closing.cancel();
        let mut clients = match passing {
            Some(passing) => passing.await.unwrap_or_default(),
            None => JoinSet::new(),
        };
        match &ended {
            // Who waits for a head waits for the one that this node becomes.
            Some(_) => drop(tokio::spawn(clients.join_all())),
            None => {
                let known = *head.borrow();
                let telling = async {
                    // Clients that were just connecting are told behind the others.
                    for _ in 0..TELLINGS {
                        if let Some(head) = known
                            && let Err(why) = pass::leave(&self.streams, head).await
                        {
                            tracing::warn!(
                                why,
                                "the head was not told that clients go on elsewhere"
                            );
                        }
                        tokio::time::sleep(TELLING_REST).await;
                    }
                    // And those that wait for a head wait in vain.
                    stop.cancel();
                    std::future::pending::<()>().await;
                };
                let gone = async {
                    tokio::select! {
                        biased;
                        () = async { while clients.join_next().await.is_some() {} } => {}
                        () = telling => {}
                    }
                };
                if timeout(self.drain_time, gone).await.is_err() {
                    tracing::warn!(
                        "clients that were still there after {} s are sent away",
                        self.drain_time.as_secs()
                    );
                }
            }
        }
        drop((worker, cards));
        Ok(ended)
    }
}
