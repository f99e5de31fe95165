//! The rack file.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use flashmesh_pages::store::{CardId, NodeId};
use serde::Deserialize;

/// A rack: its nodes and their flash cards.
///
/// ```
/// let rack = flashmesh_cluster::Rack::parse(r#"
///     [[node]]
///     id = 0
///     name = "alone"
///
///     [[node.card]]
///     id = 0
///     path = "/data/card0.flash"
/// "#)?;
/// assert_eq!(rack.nodes[0].cards.len(), 1);
/// # Ok::<(), flashmesh_cluster::RackError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rack {
    /// The nodes, each with a number of its own.
    #[serde(rename = "node")]
    pub nodes: Vec<Node>,
}

/// One machine of the rack.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its number in page addresses.
    pub id: u16,
    /// Its name in messages.
    pub name: String,
    /// Its flash cards, each with a number of its own within the node.
    #[serde(rename = "card")]
    pub cards: Vec<Card>,
}

/// One flash card of a node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Its number in page addresses.
    pub id: u16,
    /// The file or block device that holds its pages.
    pub path: PathBuf,
}

/// Why a rack file was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RackError {
    /// It could not be read.
    #[error("rack file {path:?}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// It is not TOML of the right shape; the message names line and key.
    #[error("rack file: {0}")]
    Syntax(#[from] toml::de::Error),
    /// It contradicts itself, or asks for what this version has not.
    #[error("rack file: {0}")]
    Invalid(String),
}

impl Rack {
    /// Reads a rack file.
    pub fn load(path: &Path) -> Result<Self, RackError> {
        let text = std::fs::read_to_string(path).map_err(|source| RackError::Io {
            path: path.to_path_buf(),
            source,
        })?;
        Self::parse(&text)
    }

    /// The rack that `text` (TOML) describes.
    ///
    /// # Errors
    /// `Syntax`; `Invalid` for no node, a node without cards, a number or path used twice, and
    /// (as yet) more than one node.
    pub fn parse(text: &str) -> Result<Self, RackError> {
        let rack: Self = toml::from_str(text)?;
        rack.check()?;
        Ok(rack)
    }

    /// The rack of an embedded database: this machine and one card.
    pub fn single(card: PathBuf) -> Self {
        let cards = vec![Card {
            id: CardId::default().0,
            path: card,
        }];
        Self {
            nodes: vec![Node {
                id: NodeId::default().0,
                name: "local".into(),
                cards,
            }],
        }
    }

    fn check(&self) -> Result<(), RackError> {
        let invalid = |why: String| Err(RackError::Invalid(why));
        if self.nodes.len() != 1 {
            return invalid(format!(
                "{} nodes; this version runs racks of exactly one [[node]]",
                self.nodes.len()
            ));
        }
        let mut paths = HashSet::new();
        for node in &self.nodes {
            if node.cards.is_empty() {
                return invalid(format!("node '{}' has no [[node.card]]", node.name));
            }
            let mut ids = HashSet::new();
            for card in &node.cards {
                if !ids.insert(card.id) {
                    return invalid(format!(
                        "node '{}' has two cards of number {}",
                        node.name, card.id
                    ));
                }
                if !paths.insert(&card.path) {
                    return invalid(format!(
                        "two cards use {:?}; each needs a file of its own",
                        card.path
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Rack::parse(text)
            .expect_err("the rack file should be refused")
            .to_string()
    }

    #[test]
    fn a_single_node_reads_back() {
        let text = "[[node]]\nid = 0\nname = 'local'\n[[node.card]]\nid = 0\npath = 'a.flash'\n";
        assert_eq!(Rack::parse(text).unwrap(), Rack::single("a.flash".into()));
    }

    #[test]
    fn contradictions_are_named() {
        assert!(refused("node = []").contains("0 nodes"));
        assert!(refused("[[node]]\nid = 0\nname = 'a'\ncard = []").contains("no [[node.card]]"));
        let card = "[[node.card]]\nid = 3\npath = 'a'\n";
        let twice = format!("[[node]]\nid = 0\nname = 'a'\n{card}{card}");
        assert!(refused(&twice).contains("two cards of number 3"));
        assert!(refused("[[node]]\nid = 0\nname = 'a'\ncolour = 1\ncard = []").contains("colour"));
    }
}
