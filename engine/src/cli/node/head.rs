//! A node while it is the head: it opens the database on the cards of all nodes, and answers their clients.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flashmesh_cluster::cards::TermStore;
use flashmesh_cluster::catalog::Office;
use flashmesh_cluster::copies::CopyFile;
use flashmesh_cluster::node::{CopyParts, Head, HeadParts};
use flashmesh_cluster::{Card, DATABASE_FOLDER, Node};
use flashmesh_storage::StorageError;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::arguments::EngineArguments;
use super::status::Reporter;
use super::{COPIES_FILE, Running, anew, draining, listen, of_mesh, of_rack, open_card, pass};
use crate::server::Server;
use crate::{Engine, Error, Result};

/// Connections that were passed on and wait for the head's server.
const WAITING: usize = 64;
/// How long an ending head waits until its database is closed.
const CLOSE_TIME: Duration = Duration::from_secs(20);
/// How long an ending head waits, before it ends anything, for copies that are brought up to the others,
/// and for a node that only seems to be away.
const CATCH_UP_TIME: Duration = Duration::from_secs(20);
const FIND_TIME: Duration = Duration::from_secs(3);
/// Between two looks at them.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The rest of a head that can't open its database before it tries again.
const REOPEN_REST: Duration = Duration::from_secs(1);

/// Waits until no copy of a card lacks something: the only whole ones may be this head's, and the next
/// head would wait for them. One of a node that is away is not waited for for long.
async fn until_copies_are_whole(reporter: &Reporter) {
    let begun = Instant::now();
    let _ = timeout(CATCH_UP_TIME, reporter.ask_after_copies()).await;
    loop {
        let copies = reporter.copies();
        let (are_whole, are_found) = copies.iter().fold((true, true), |(whole, found), copy| {
            let is_whole = copy.is_there && !copy.is_behind;
            (whole && is_whole, found && copy.is_there)
        });
        let patience = match are_found {
            true => CATCH_UP_TIME,
            false => FIND_TIME,
        };
        if are_whole || begun.elapsed() >= patience {
            if !are_whole {
                tracing::warn!("the head ends while copies lack something");
            }
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl Running {
    /// The head: opens the catalog and answers clients of all nodes.
    pub(super) async fn serve_clients(
        &self,
        database: &EngineArguments,
        office: Option<Arc<Office>>,
    ) -> Result<()> {
        let mut options = self.server_options(true)?;
        // Other nodes are waited for: what is wrong here is said before.
        drop(listen(options.listen).await?);
        // From now on they wait.
        let passed = self.streams.listen(pass::SERVICE).map_err(of_mesh)?;
        let Some(engine) = self.open_engine(database, office).await? else {
            return Ok(());
        };
        let closed = engine.database().closed();
        self.reporter.set_engine(&engine);
        let needs_reopening =
            anew::until_it_needs_reopening(Arc::downgrade(&engine), &self.reporter);
        let (file, rack) = (self.file.clone(), Arc::clone(&self.rack));
        let (weak, drained) = (Arc::downgrade(&engine), Arc::clone(&self.reporter.drained));
        let draining = tokio::spawn(draining::follow(file, rack, weak, drained));
        // The head before this one may hang, and hold the page's port on the same machine.
        let page = options.http.take();
        let server = Server::bind(engine, options).await?;
        let server = match page {
            Some(address) => server.with_page(address).await?,
            None => server,
        };
        if !server.asks_for_logins() {
            tracing::warn!("there are no users: everybody who can connect may do everything");
        }
        let (sender, receiver) = mpsc::channel(WAITING);
        let server = server.with_passed(receiver).of_rack(self.reporter.clone());
        let departures = server.departures();
        let rack = Arc::clone(&self.rack);
        let taking = tokio::spawn(pass::take_passed(rack, passed, sender, departures));
        if let Some(page) = server.http_address()? {
            println!("Page: http://{page}");
        }
        let (stopping, reporter) = (self.is_up()?, Arc::clone(&self.reporter));
        let served = server.run(async move {
            stopping.cancelled().await;
            until_copies_are_whole(&reporter).await;
        });
        let needs_reopening = async {
            let why = needs_reopening.await;
            if self.is_stopping() {
                std::future::pending::<()>().await;
            }
            why
        };
        let served = tokio::select! {
            served = served => served,
            why = needs_reopening => return Err(self.reopen(&why)),
        };
        taking.abort();
        draining.abort();
        // What it writes last goes to other nodes, which are reached as long as this one is there.
        let is_closed = tokio::task::spawn_blocking(move || closed.wait_for(CLOSE_TIME));
        if !is_closed.await.unwrap_or_default() {
            let seconds = CLOSE_TIME.as_secs();
            tracing::warn!("the database was not closed within {seconds} s");
        }
        served
    }

    /// The engine of the head. Waits until each card has a copy that can be used: nobody starts a node
    /// again that has ended, and one of the catalog's group would take its vote along. `None` where it is
    /// told to end meanwhile.
    async fn open_engine(
        &self,
        database: &EngineArguments,
        office: Option<Arc<Office>>,
    ) -> Result<Option<Arc<Engine>>> {
        let stopping = self.stop_by_signal()?;
        let mut said = None;
        loop {
            match self.try_to_open(database, office.clone()).await {
                Err(error) if error.storage().is_some_and(StorageError::is_gone) => {
                    let why = Some(error.to_string());
                    if said != why {
                        tracing::warn!(%error, "the head waits for other nodes");
                        self.reporter.waits_for(why.clone());
                        said = why;
                    }
                }
                opened => {
                    self.reporter.waits_for(None);
                    return opened.map(Some);
                }
            }
            tokio::select! {
                () = tokio::time::sleep(REOPEN_REST) => {}
                () = stopping.cancelled() => return Ok(None),
            }
        }
    }

    /// Opens the engine on the cards of all nodes, for which it waits as long as the mesh does.
    async fn try_to_open(
        &self,
        database: &EngineArguments,
        office: Option<Arc<Office>>,
    ) -> Result<Arc<Engine>> {
        let mut options = database.options()?;
        let node = &self.node;
        let folder = node.folder.join(DATABASE_FOLDER);
        let (first, more) = node.cards.split_first().expect("a node has a card");
        let has_copies = self.rack.replicas > 1;
        // A rack has its cards by name; the one that a database keeps in its folder is opened with it.
        if first.path != folder.join("card0.flash") && !has_copies {
            options.card = Some(Arc::new(open_card(node, &first.path)?));
        }
        let own = match has_copies {
            true => self.open_cards(&node.cards)?,
            false => self.open_cards(more)?,
        };
        let copies = match has_copies {
            true => Some(CopyParts {
                replicas: self.rack.replicas,
                held: self.open_copies()?,
                file: match &office {
                    Some(office) => office.copies_behind()?,
                    None => CopyFile::open(node.folder.join(COPIES_FILE))?,
                },
                catalog: office.clone(),
            }),
            false => {
                let cards = self.rack.nodes.iter().flat_map(Node::places);
                let file = node.folder.join(COPIES_FILE);
                CopyFile::without_copies(&file, &cards.collect::<Vec<_>>())?;
                None
            }
        };
        options.path = Some(folder);
        let key = self.rack.key().map_err(of_rack)?;
        let others = self.rack.nodes.iter().filter(|other| other.id != node.id);
        let others = others.map(|other| {
            let cards = other.cards.iter().map(Card::number).collect();
            (other.number(), cards)
        });
        let others: Vec<_> = others.collect();
        let (mesh, streams) = (Arc::clone(&self.mesh), self.streams.clone());
        let (number, terms) = (node.number(), self.terms());
        let reporter = Arc::clone(&self.reporter);
        // It waits for answers of other nodes.
        let opened = tokio::task::spawn_blocking(move || {
            let own = HeadParts {
                node: number,
                cards: own,
                term: match &office {
                    Some(office) => office.term(),
                    None => terms.load()? + 1,
                },
                copies,
            };
            terms.store(own.term)?;
            let head = Head::connect(
                &mesh,
                &streams,
                own,
                &others,
                Arc::new(terms),
                key.as_bytes(),
            )?;
            let head = Arc::new(head);
            reporter.set_head(&head);
            options.card = head.home().or(options.card);
            options.rack = Some(head);
            Engine::open(options)
        });
        opened
            .await
            .map_err(|error| Error::io("opening the database", std::io::Error::other(error)))?
    }
}
