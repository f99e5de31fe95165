//! Nodes that are emptied while the rack runs: the head follows what the rack file says of that.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use flashmesh_cluster::{Node, Rack};
use parking_lot::Mutex;

use crate::Engine;
use crate::resources::FileStamp;

/// How often the head looks whether the rack file is another one.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The names of the nodes that the head empties.
pub(super) type Drained = Mutex<BTreeSet<String>>;

/// Has the database empty the nodes that the rack file says, whenever that changes, until the engine
/// has gone. All else in the file counts from the next start on.
pub(super) async fn follow(
    file: PathBuf,
    rack: Arc<Rack>,
    engine: Weak<Engine>,
    drained: Arc<Drained>,
) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    let mut seen = None;
    loop {
        ticks.tick().await;
        let Some(engine) = engine.upgrade() else {
            return;
        };
        let stamp = FileStamp::of(&file);
        if seen.as_ref() == Some(&stamp) {
            continue;
        }
        seen = Some(stamp);
        let path = file.clone();
        let read = tokio::task::spawn_blocking(move || Rack::load(&path)).await;
        let now = match read {
            Ok(Ok(now)) => now,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the rack file was changed; what it said before goes on");
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "reading the rack file");
                continue;
            }
        };
        drain(&now, &rack, &engine, &drained);
    }
}

fn drain(now: &Rack, running: &Rack, engine: &Engine, drained: &Drained) {
    let is_wanted = |node: &&Node| now.node(&node.name).is_some_and(|node| node.drained);
    let nodes: Vec<&Node> = running.nodes.iter().filter(is_wanted).collect();
    let names: BTreeSet<String> = nodes.iter().map(|node| node.name.clone()).collect();
    let mut drained = drained.lock();
    if *drained == names {
        return;
    }
    let cards = nodes.iter().flat_map(|node| node.places());
    match engine.database().drain(&cards.collect::<Vec<_>>()) {
        Ok(()) => {
            let text: Vec<_> = names.iter().map(String::as_str).collect();
            tracing::info!(nodes = text.join(", "), "these nodes are emptied");
            *drained = names;
        }
        Err(error) => tracing::warn!(%error, "emptying nodes"),
    }
}
