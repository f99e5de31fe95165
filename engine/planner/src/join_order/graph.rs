//! A tree of inner joins as relations and predicates.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::{Column, NullEquality};
use datafusion::error::Result;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    BinaryExpr, Expr, Filter, Join, JoinConstraint, JoinType, LogicalPlan, Operator,
};

/// Relations beyond this are not told apart in bit sets; such a tree stays as it is.
pub(super) const MAX_RELATIONS: usize = 64;

/// The relations and predicates of a tree of inner joins.
pub(super) struct JoinGraph {
    pub relations: Vec<Relation>,
    pub predicates: Vec<Predicate>,
    /// The order in which the plan joins them now.
    pub present: Tree,
}

pub(super) struct Relation {
    pub plan: LogicalPlan,
}

/// A conjunct of the join conditions.
pub(super) struct Predicate {
    pub kind: PredicateKind,
    /// The relations that it mentions, as a bit set.
    pub relations: u64,
}

pub(super) enum PredicateKind {
    /// `left = right`, each side of one relation.
    Equal {
        left: Expr,
        left_relation: usize,
        right: Expr,
        right_relation: usize,
    },
    /// Anything else.
    Other(Expr),
}

/// A join tree over relation numbers.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Tree {
    Leaf(usize),
    /// The left side becomes the build side.
    Join(Box<Tree>, Box<Tree>),
}

impl Tree {
    pub(super) fn relations(&self) -> u64 {
        match self {
            Self::Leaf(i) => 1 << i,
            Self::Join(left, right) => left.relations() | right.relations(),
        }
    }
}

impl JoinGraph {
    /// The graph of `plan`, if it is a tree of inner joins over at least two relations.
    pub(super) fn of(plan: &LogicalPlan) -> Option<Self> {
        let mut relations = Vec::new();
        let mut conjuncts = Vec::new();
        let present = flatten(plan, &mut relations, &mut conjuncts)?;
        if relations.len() < 2 || relations.len() > MAX_RELATIONS {
            return None;
        }
        let mut graph = Self {
            relations,
            predicates: Vec::new(),
            present,
        };
        for conjunct in conjuncts {
            let predicate = graph.classify(conjunct)?;
            graph.predicates.push(predicate);
        }
        Some(graph)
    }

    /// The relations whose columns `expr` uses, ascending.
    pub(super) fn relations_of(&self, expr: &Expr) -> Vec<usize> {
        let mut found = BTreeSet::new();
        for column in expr.column_refs() {
            match self.owner(column) {
                Some(relation) => found.insert(relation),
                // A column of an outer query or an ambiguous one: no relation alone holds it.
                None => return Vec::new(),
            };
        }
        found.into_iter().collect()
    }

    fn owner(&self, column: &Column) -> Option<usize> {
        let mut owners = (0..self.relations.len())
            .filter(|i| self.relations[*i].plan.schema().has_column(column));
        let owner = owners.next()?;
        owners.next().is_none().then_some(owner)
    }

    fn classify(&self, conjunct: Expr) -> Option<Predicate> {
        let mentioned = self.relations_of(&conjunct);
        if mentioned.is_empty() && !conjunct.column_refs().is_empty() {
            return None;
        }
        let relations = mentioned.iter().fold(0, |set, i| set | 1u64 << i);
        if let Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Eq,
            right,
        }) = &conjunct
            && let ([left_relation], [right_relation]) = (
                self.relations_of(left).as_slice(),
                self.relations_of(right).as_slice(),
            )
            && left_relation != right_relation
        {
            let kind = PredicateKind::Equal {
                left: (**left).clone(),
                left_relation: *left_relation,
                right: (**right).clone(),
                right_relation: *right_relation,
            };
            return Some(Predicate { kind, relations });
        }
        Some(Predicate {
            kind: PredicateKind::Other(conjunct),
            relations,
        })
    }

    /// The plan that joins the relations as `tree` says; every predicate is applied at the lowest
    /// join that has all its columns.
    pub(super) fn build(&self, tree: &Tree) -> Result<LogicalPlan> {
        let (left, right) = match tree {
            Tree::Leaf(i) => {
                let own: Vec<Expr> = self
                    .predicates
                    .iter()
                    .filter(|p| p.relations == 1 << i)
                    .filter_map(|p| match &p.kind {
                        PredicateKind::Other(expr) => Some(expr.clone()),
                        PredicateKind::Equal { .. } => None,
                    })
                    .collect();
                let plan = self.relations[*i].plan.clone();
                return match conjunction(own) {
                    Some(filter) => Ok(LogicalPlan::Filter(Filter::try_new(
                        filter,
                        Arc::new(plan),
                    )?)),
                    None => Ok(plan),
                };
            }
            Tree::Join(left, right) => (left, right),
        };
        let (left_set, right_set) = (left.relations(), right.relations());
        let all = left_set | right_set;
        let is_root = all.count_ones() as usize == self.relations.len();
        let (mut on, mut others) = (Vec::new(), Vec::new());
        for predicate in &self.predicates {
            let inside = |set: u64| predicate.relations != 0 && predicate.relations & !set == 0;
            let constant = predicate.relations == 0 && is_root;
            if !constant && (!inside(all) || inside(left_set) || inside(right_set)) {
                continue;
            }
            match &predicate.kind {
                PredicateKind::Equal {
                    left,
                    left_relation,
                    right,
                    ..
                } => {
                    if left_set >> left_relation & 1 == 1 {
                        on.push((left.clone(), right.clone()));
                    } else {
                        on.push((right.clone(), left.clone()));
                    }
                }
                PredicateKind::Other(expr) => others.push(expr.clone()),
            }
        }
        Ok(LogicalPlan::Join(Join::try_new(
            Arc::new(self.build(left)?),
            Arc::new(self.build(right)?),
            on,
            conjunction(others),
            JoinType::Inner,
            JoinConstraint::On,
            NullEquality::NullEqualsNothing,
            false,
        )?))
    }
}

fn flatten(
    plan: &LogicalPlan,
    relations: &mut Vec<Relation>,
    conjuncts: &mut Vec<Expr>,
) -> Option<Tree> {
    match plan {
        LogicalPlan::Join(join) if is_plain_inner(join) => {
            let left = flatten(&join.left, relations, conjuncts)?;
            let right = flatten(&join.right, relations, conjuncts)?;
            conjuncts.extend(join.on.iter().map(|(l, r)| l.clone().eq(r.clone())));
            conjuncts.extend(
                join.filter
                    .iter()
                    .cloned()
                    .flat_map(split_conjunction_owned),
            );
            Some(Tree::Join(Box::new(left), Box::new(right)))
        }
        LogicalPlan::Filter(filter) if is_join_tree(plan) => {
            let tree = flatten(&filter.input, relations, conjuncts)?;
            conjuncts.extend(split_conjunction_owned(filter.predicate.clone()));
            Some(tree)
        }
        leaf => {
            relations.push(Relation { plan: leaf.clone() });
            Some(Tree::Leaf(relations.len() - 1))
        }
    }
}

fn is_join_tree(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Join(join) => is_plain_inner(join),
        // How often a volatile predicate is evaluated, and over which rows, shows in its answer.
        LogicalPlan::Filter(filter) => {
            !filter.predicate.is_volatile() && is_join_tree(&filter.input)
        }
        _ => false,
    }
}

fn is_plain_inner(join: &Join) -> bool {
    let volatile = |e: &Expr| e.is_volatile();
    join.join_type == JoinType::Inner
        && join.null_equality == NullEquality::NullEqualsNothing
        && !join.on.iter().any(|(l, r)| volatile(l) || volatile(r))
        && !join.filter.as_ref().is_some_and(volatile)
}
