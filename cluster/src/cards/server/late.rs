//! A card that a node serves before it has opened it.

use std::io;
use std::sync::{Arc, OnceLock};

use flashmesh_pages::flash::{Flash, FlashHealth, FlashQueue, Geometry};
use flashmesh_pages::{Result, StorageError};

/// A card that comes later: until then, what is asked of it fails. The card of a database is opened with
/// that, for which a head needs those of other nodes.
#[derive(Debug, Default)]
pub struct LateCard(OnceLock<Arc<dyn Flash>>);

impl LateCard {
    /// It is there. The first one stays.
    pub fn set(&self, card: Arc<dyn Flash>) {
        self.0.get_or_init(|| card);
    }

    fn card(&self) -> Result<&Arc<dyn Flash>> {
        self.0.get().ok_or_else(|| {
            let why = io::Error::new(io::ErrorKind::NotConnected, "its database is not open yet");
            StorageError::io("the card", why)
        })
    }
}

impl Flash for LateCard {
    fn name(&self) -> String {
        let card = self.0.get();
        card.map_or_else(|| "a card that is not open yet".into(), |card| card.name())
    }

    /// Of no pages until the card is there.
    fn geometry(&self) -> Geometry {
        let nothing = Geometry {
            pages_per_erase_block: 0,
            erase_blocks: 0,
        };
        self.0.get().map_or(nothing, |card| card.geometry())
    }

    fn used_erase_blocks(&self) -> Result<u64> {
        self.card()?.used_erase_blocks()
    }

    fn open_queue(&self) -> Result<Box<dyn FlashQueue>> {
        self.card()?.open_queue()
    }

    fn sync(&self) -> Result<()> {
        self.card()?.sync()
    }

    fn continues_blocks(&self) -> bool {
        self.0.get().is_some_and(|card| card.continues_blocks())
    }

    fn health(&self) -> Option<FlashHealth> {
        self.0.get()?.health()
    }
}
