//! The cheapest join tree.

use std::collections::HashMap;

use datafusion::logical_expr::Expr;

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
    /// Rows of the relations before any filter.
    base_rows: Vec<f64>,
    /// (relations that the factor needs, selectivity).
    factors: Vec<(u64, f64)>,
    /// The equalities, in the order in which they count.
    equalities: Vec<Equality>,
    /// How many sets of columns there are that equalities make equal.
    classes: usize,
    /// Pairs of relations with an equality between them.
    edges: Vec<u64>,
}

/// An equality between columns of two relations.
struct Equality {
    /// The set of equal columns that both are of.
    class: usize,
    relations: [usize; 2],
    distinct: [f64; 2],
    /// Whether the two relations have others, of other sets: together they are one key.
    is_part: bool,
}

impl Equality {
    fn pair(&self) -> u64 {
        1 << self.relations[0] | 1 << self.relations[1]
    }

    fn most_distinct(&self) -> f64 {
        self.distinct[0].max(self.distinct[1])
    }
}

impl Model {
    pub(super) fn new(graph: &JoinGraph, estimates: Vec<Estimate>) -> Self {
        let mut factors = Vec::new();
        let mut equalities = Vec::new();
        let mut classes = Classes::default();
        for predicate in &graph.predicates {
            match &predicate.kind {
                PredicateKind::Equal {
                    left,
                    left_relation,
                    right,
                    right_relation,
                } => {
                    let sides = [(*left_relation, left), (*right_relation, right)];
                    let member = classes.unite(sides);
                    let of =
                        |(relation, column): (usize, &Expr)| estimates[relation].distinct(column);
                    equalities.push((member, sides.map(|(relation, _)| relation), sides.map(of)));
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
        let equalities = equalities.into_iter();
        let equalities = equalities.map(|(member, relations, distinct)| Equality {
            class: classes.of(member),
            relations,
            distinct,
            is_part: false,
        });
        let mut equalities: Vec<_> = equalities.collect();
        let pairs: Vec<_> = equalities.iter().map(|e| (e.pair(), e.class)).collect();
        for equality in &mut equalities {
            let (pair, class) = (equality.pair(), equality.class);
            equality.is_part = pairs
                .iter()
                .any(|(of, other)| *of == pair && *other != class);
        }
        // Of equal columns of several relations all values but the fewest divide the rows, so those of many values
        // count last; but those that are one key with others first, as keys.
        equalities.sort_by(|a, b| {
            let parts = b.is_part.cmp(&a.is_part);
            parts.then(a.most_distinct().total_cmp(&b.most_distinct()))
        });
        Self {
            relations: estimates.iter().map(|e| e.rows).collect(),
            base_rows: estimates.iter().map(|e| e.base_rows).collect(),
            factors,
            classes: classes.members.len(),
            edges: equalities.iter().map(Equality::pair).collect(),
            equalities,
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
        (base * kept * self.share_of_equalities(set)).max(1.0)
    }

    /// The share of all combinations in which the equalities within a set hold. One that follows from others does not
    /// count: of `a = b AND b = c AND a = c` two do.
    fn share_of_equalities(&self, set: u64) -> f64 {
        let count = self.relations.len();
        // For each set of equal columns, which of its relations are joined by what has counted.
        let mut joined: Vec<usize> = (0..self.classes).flat_map(|_| 0..count).collect();
        // Keys of several columns: how many combinations there are on each side.
        let mut keys: Vec<(&Equality, [f64; 2], usize)> = Vec::new();
        let mut share = 1.0;
        for equality in &self.equalities {
            if equality.pair() & !set != 0 {
                continue;
            }
            let joined = &mut joined[equality.class * count..][..count];
            let [left, right] = equality.relations.map(|relation| joined[relation]);
            if left == right {
                continue;
            }
            for relation in joined.iter_mut().filter(|of| **of == right) {
                *relation = left;
            }
            // One key column: the side with more values has those of the other.
            if !equality.is_part {
                share /= equality.most_distinct().max(1.0);
                continue;
            }
            let of_pair = keys
                .iter_mut()
                .find(|(of, ..)| of.pair() == equality.pair());
            let same_way = |of: &Equality| match of.relations == equality.relations {
                true => equality.distinct,
                false => [equality.distinct[1], equality.distinct[0]],
            };
            match of_pair {
                None => keys.push((equality, equality.distinct, 1)),
                Some((of, combinations, parts)) => {
                    let distinct = same_way(of);
                    combinations[0] *= distinct[0];
                    combinations[1] *= distinct[1];
                    *parts += 1;
                }
            }
        }
        for (equality, combinations, parts) in keys {
            // Several: neither side has more combinations than base rows, and the side with
            // fewer (the one whose key it is) is contained in the other.
            let distinct = match parts {
                1 => equality.most_distinct(),
                _ => {
                    let [left, right] = equality.relations.map(|relation| self.base_rows[relation]);
                    combinations[0].min(left).min(combinations[1].min(right))
                }
            };
            share /= distinct.max(1.0);
        }
        share
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

/// Columns of relations that equalities make equal.
#[derive(Default)]
struct Classes {
    /// The number of each column.
    members: HashMap<(usize, Expr), usize>,
    /// By a column's number that of one equal to it; of one of them its own.
    equal: Vec<usize>,
}

impl Classes {
    /// Notes that two columns are equal; the number of one of them.
    fn unite(&mut self, sides: [(usize, &Expr); 2]) -> usize {
        let [left, right] = sides.map(|(relation, column)| {
            let next = self.equal.len();
            let number = *self
                .members
                .entry((relation, column.clone()))
                .or_insert(next);
            if number == next {
                self.equal.push(next);
            }
            number
        });
        let (left, right) = (self.of(left), self.of(right));
        self.equal[right] = left;
        left
    }

    /// The number that all columns have which are equal to one.
    fn of(&self, mut number: usize) -> usize {
        while self.equal[number] != number {
            number = self.equal[number];
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(rows: &[f64], equalities: Vec<Equality>) -> Model {
        Model {
            relations: rows.to_vec(),
            base_rows: rows.to_vec(),
            factors: Vec::new(),
            classes: 1 + equalities.iter().map(|e| e.class).max().unwrap_or(0),
            edges: equalities.iter().map(Equality::pair).collect(),
            equalities,
        }
    }

    fn equality(class: usize, relations: [usize; 2], distinct: [f64; 2]) -> Equality {
        Equality {
            class,
            relations,
            distinct,
            is_part: false,
        }
    }

    #[test]
    fn equalities_that_follow_from_others_do_not_count() {
        let two = vec![
            equality(0, [1, 2], [50.0, 80.0]),
            equality(0, [0, 1], [100.0, 50.0]),
        ];
        let three = vec![
            equality(0, [1, 2], [50.0, 80.0]),
            equality(0, [0, 1], [100.0, 50.0]),
            equality(0, [0, 2], [100.0, 80.0]),
        ];
        let rows = [1000.0, 2000.0, 4000.0];
        let expected = 1000.0 * 2000.0 * 4000.0 / (80.0 * 100.0);
        assert!((model(&rows, two).rows(0b111) - expected).abs() < 1e-3);
        let model = model(&rows, three);
        assert!((model.rows(0b111) - expected).abs() < 1e-3);
        assert!((model.rows(0b101) - 1000.0 * 4000.0 / 100.0).abs() < 1e-3);
    }

    #[test]
    fn several_columns_are_one_key() {
        // Of two columns with 100 values each, whose 200 combinations are the rows of one side.
        let parts = || {
            [[0, 1], [1, 0]]
                .into_iter()
                .enumerate()
                .map(|(class, of)| Equality {
                    is_part: true,
                    ..equality(class, of, [100.0, 100.0])
                })
        };
        let model = model(&[200.0, 60_000.0], parts().collect());
        assert!((model.rows(0b11) - 60_000.0).abs() < 1e-3);
    }
}
