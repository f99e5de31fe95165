//! A card of another node that is only read here, and only now and then.

use std::sync::Arc;

use flashmesh_pages::flash::{Flash, FlashHealth, FlashQueue, Geometry};
use flashmesh_pages::store::{CARD_PAGES_MAX, CardId};
use flashmesh_pages::{Result, StorageError};

use super::super::{Node, READING};
use super::remote::RemoteCard;

/// The term of those who write nothing.
const NO_TERM: u64 = 0;

/// A card of another node for reading alone: [`Cards::far`](crate::cards::Cards::far). Its node is asked
/// for it by each queue that is opened, so that it may start later than this one.
#[derive(Debug)]
pub struct FarCard {
    node: Arc<Node>,
    peer: usize,
    card: CardId,
    /// As long as addresses allow: how long it is its node knows.
    geometry: Geometry,
}

impl FarCard {
    pub(in crate::cards) fn new(
        node: &Arc<Node>,
        peer: usize,
        card: CardId,
        pages_per_erase_block: u32,
    ) -> Self {
        Self {
            node: Arc::clone(node),
            peer,
            card: CardId(card.0 | READING),
            geometry: Geometry {
                pages_per_erase_block,
                erase_blocks: CARD_PAGES_MAX / u64::from(pages_per_erase_block.max(1)),
            },
        }
    }

    fn open(&self) -> Result<RemoteCard> {
        let card = RemoteCard::open(&self.node, self.peer, self.card, NO_TERM, false)?;
        let (own, expected) = (card.geometry(), self.geometry);
        if own.pages_per_erase_block != expected.pages_per_erase_block {
            return Err(StorageError::Invalid(format!(
                "{} has erase blocks of {} pages, the cards of this node of {}",
                card.name(),
                own.pages_per_erase_block,
                expected.pages_per_erase_block
            )));
        }
        Ok(card)
    }
}

impl Flash for FarCard {
    fn name(&self) -> String {
        RemoteCard::name_of(&self.node, self.peer, self.card)
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// None is for this node to write.
    fn used_erase_blocks(&self) -> Result<u64> {
        Ok(0)
    }

    fn open_queue(&self) -> Result<Box<dyn FlashQueue>> {
        self.open()?.open_queue()
    }

    /// There is nothing to make durable.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn continues_blocks(&self) -> bool {
        true
    }

    fn health(&self) -> Option<FlashHealth> {
        None
    }
}
