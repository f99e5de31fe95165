//! The cheapest join tree.

use std::collections::HashMap;

use super::graph::{JoinGraph, PredicateKind, Tree};
use crate::cost::{Estimate, default_share};

/// Up to this many relations all trees are compared (3^n splits); above, a greedy search.
const EXHAUSTIVE_RELATIONS: usize = 10;

// Cost of a hash join per row. Building hashes, copies and links a row; a probe row is hashed and
// looked up, and many never leave the scan, because the build side's keys filter it there; an
// output row is gathered from both sides.
const BUILD_ROW: f64 = 2.0;
const PROBE_ROW: f64 = 0.5;
const OUTPUT_ROW: f64 = 1.0;

/// Sizes of all sub-joins of a graph.
pub(super) struct Model {
    relations: Vec<f64>,
    /// (relations that the factor needs, selectivity).
    factors: Vec<(u64, f64)>,
    /// Pairs of relations with an equality between them.
    edges: Vec<u64>,
}

impl Model {
    pub(super) fn new(graph: &JoinGraph, estimates: Vec<Estimate>) -> Self {
        let mut factors = Vec::new();
        // Equalities between the same two relations form one key.
        let mut keys: HashMap<u64, Vec<(usize, usize, f64, f64)>> = HashMap::new();
        for predicate in &graph.predicates {
            match &predicate.kind {
                PredicateKind::Equal {
                    left,
                    left_relation,
                    right,
                    right_relation,
                } => {
                    let distinct = (
                        estimates[*left_relation].distinct(left),
                        estimates[*right_relation].distinct(right),
                    );
                    keys.entry(predicate.relations).or_default().push(
                        if left_relation < right_relation {
                            (*left_relation, *right_relation, distinct.0, distinct.1)
                        } else {
                            (*right_relation, *left_relation, distinct.1, distinct.0)
                        },
                    );
                }
                // A condition over several relations; nothing is known of it.
                PredicateKind::Other(_) if predicate.relations.count_ones() > 1 => {
                    factors.push((predicate.relations, default_share::OTHER));
                }
                PredicateKind::Other(expr) => {
                    let relation = predicate.relations.trailing_zeros() as usize;
                    if let Some(estimate) = estimates.get(relation) {
                        factors.push((predicate.relations, estimate.selectivity(expr)));
                    }
                }
            }
        }
        let edges = keys.keys().copied().collect();
        for (pair, parts) in keys {
            let distinct = match parts.as_slice() {
                // One key column: the side with more values has those of the other.
                [(_, _, left, right)] => left.max(*right),
                // Several: neither side has more combinations than base rows, and the side with
                // fewer (the one whose key it is) is contained in the other.
                parts => {
                    let (left, right) = (parts[0].0, parts[0].1);
                    let combinations =
                        |relation: usize, each: f64| each.min(estimates[relation].base_rows);
                    let left = combinations(left, parts.iter().map(|p| p.2).product());
                    let right = combinations(right, parts.iter().map(|p| p.3).product());
                    left.min(right)
                }
            };
            factors.push((pair, 1.0 / distinct.max(1.0)));
        }
        Self {
            relations: estimates.iter().map(|e| e.rows).collect(),
            factors,
            edges,
        }
    }

    fn rows(&self, set: u64) -> f64 {
        let base: f64 = (0..self.relations.len())
            .filter(|i| set >> i & 1 == 1)
            .map(|i| self.relations[i].max(1.0))
            .product();
        let kept: f64 = self
            .factors
            .iter()
            .filter(|(needs, _)| needs & !set == 0)
            .map(|(_, s)| s)
            .product();
        (base * kept).max(1.0)
    }

    fn connected(&self, left: u64, right: u64) -> bool {
        self.edges
            .iter()
            .any(|edge| edge & left != 0 && edge & right != 0 && edge & !(left | right) == 0)
    }

    fn join_cost(&self, left: f64, right: f64, output: f64) -> f64 {
        BUILD_ROW * left.min(right) + PROBE_ROW * left.max(right) + OUTPUT_ROW * output
    }

    /// The cost of a given tree.
    pub(super) fn cost_of(&self, tree: &Tree) -> Option<f64> {
        match tree {
            Tree::Leaf(_) => Some(0.0),
            Tree::Join(left, right) => {
                let (l, r) = (left.relations(), right.relations());
                let own = self.join_cost(self.rows(l), self.rows(r), self.rows(l | r));
                Some(self.cost_of(left)? + self.cost_of(right)? + own)
            }
        }
    }

    /// The cheapest tree without cross products, and its cost; `None` when the predicates leave
    /// the relations unconnected.
    pub(super) fn best(&self) -> Option<(Tree, f64)> {
        if self.relations.len() <= EXHAUSTIVE_RELATIONS {
            self.exhaustive()
        } else {
            self.greedy()
        }
    }

    fn exhaustive(&self) -> Option<(Tree, f64)> {
        let all = (1u64 << self.relations.len()) - 1;
        let mut rows = vec![0.0; all as usize + 1];
        // For each subset its cost and the left part of its best split.
        let mut best: Vec<Option<(f64, u64)>> = vec![None; all as usize + 1];
        for set in 1..=all {
            rows[set as usize] = self.rows(set);
            if set.count_ones() == 1 {
                best[set as usize] = Some((0.0, 0));
                continue;
            }
            // All proper subsets, each split seen once: the part with the lowest relation.
            let lowest = set & set.wrapping_neg();
            let mut part = (set - 1) & set;
            while part != 0 {
                let rest = set & !part;
                if part & lowest != 0
                    && let (Some((a, _)), Some((b, _))) = (best[part as usize], best[rest as usize])
                    && self.connected(part, rest)
                {
                    let cost = a
                        + b
                        + self.join_cost(
                            rows[part as usize],
                            rows[rest as usize],
                            rows[set as usize],
                        );
                    if best[set as usize].is_none_or(|(known, _)| cost < known) {
                        best[set as usize] = Some((cost, part));
                    }
                }
                part = (part - 1) & set;
            }
        }
        let (cost, _) = best[all as usize]?;
        Some((Self::unfold(&best, &rows, all), cost))
    }

    fn unfold(best: &[Option<(f64, u64)>], rows: &[f64], set: u64) -> Tree {
        match best[set as usize] {
            Some((_, part)) if part != 0 => {
                let rest = set & !part;
                let (small, large) = if rows[part as usize] <= rows[rest as usize] {
                    (part, rest)
                } else {
                    (rest, part)
                };
                Tree::Join(
                    Box::new(Self::unfold(best, rows, small)),
                    Box::new(Self::unfold(best, rows, large)),
                )
            }
            _ => Tree::Leaf(set.trailing_zeros() as usize),
        }
    }

    /// Joins the pair with the cheapest join until one tree is left.
    fn greedy(&self) -> Option<(Tree, f64)> {
        let mut trees: Vec<(Tree, f64)> = (0..self.relations.len())
            .map(|i| (Tree::Leaf(i), self.rows(1 << i)))
            .collect();
        let mut total = 0.0;
        while trees.len() > 1 {
            let mut choice: Option<(usize, usize, f64, f64)> = None;
            for i in 0..trees.len() {
                for j in i + 1..trees.len() {
                    let (a, b) = (trees[i].0.relations(), trees[j].0.relations());
                    if !self.connected(a, b) {
                        continue;
                    }
                    let output = self.rows(a | b);
                    let cost = self.join_cost(trees[i].1, trees[j].1, output);
                    if choice.is_none_or(|c| cost < c.2) {
                        choice = Some((i, j, cost, output));
                    }
                }
            }
            let (i, j, cost, output) = choice?;
            let (right, right_rows) = trees.swap_remove(j);
            let (left, left_rows) = std::mem::replace(&mut trees[i], (Tree::Leaf(0), 0.0));
            let (small, large) = if left_rows <= right_rows {
                (left, right)
            } else {
                (right, left)
            };
            trees[i] = (Tree::Join(Box::new(small), Box::new(large)), output);
            total += cost;
        }
        trees.pop().map(|(tree, _)| (tree, total))
    }
}
