//! Walks over plans and expressions, all through one copy of each walk.
//!
//! DataFusion's `TreeNode` is generic over what is done to the nodes, and a walk over its plans and expressions has
//! hundreds of functions. Each of our rules had all of them for itself: most of this crate's code, and of the time
//! that it took to compile. Here what is to be done is called through a pointer, so that rules share the walk;
//! `clippy.toml` refuses DataFusion's own. Semantics are those of its methods of the same, or of a similar, name.

#![allow(clippy::disallowed_methods)]

use datafusion::common::Result;
use datafusion::common::tree_node::{
    Transformed, TreeNode, TreeNodeRecursion, TreeNodeRewriter, TreeNodeVisitor,
};
use datafusion::logical_expr::{Expr, LogicalPlan};

type Change<'a, N> = &'a mut dyn FnMut(N) -> Result<Transformed<N>>;

/// Walks of plans, logical and physical, and of expressions.
pub trait Walk: TreeNode {
    /// Changes the nodes, children first.
    ///
    /// # Errors
    /// Those of `f`; so of all walks.
    fn transform_up(
        self,
        mut f: impl FnMut(Self) -> Result<Transformed<Self>>,
    ) -> Result<Transformed<Self>> {
        TreeNode::transform_up(self, &mut f as Change<'_, Self>)
    }

    /// Changes the nodes, parents first.
    fn transform_down(
        self,
        mut f: impl FnMut(Self) -> Result<Transformed<Self>>,
    ) -> Result<Transformed<Self>> {
        TreeNode::transform_down(self, &mut f as Change<'_, Self>)
    }

    /// Changes the nodes on the way down and on the way up.
    fn transform_down_up(
        self,
        mut down: impl FnMut(Self) -> Result<Transformed<Self>>,
        mut up: impl FnMut(Self) -> Result<Transformed<Self>>,
    ) -> Result<Transformed<Self>> {
        let down = &mut down as Change<'_, Self>;
        TreeNode::transform_down_up(self, down, &mut up as Change<'_, Self>)
    }

    /// Changes the children alone.
    fn map_children(
        self,
        mut f: impl FnMut(Self) -> Result<Transformed<Self>>,
    ) -> Result<Transformed<Self>> {
        TreeNode::map_children(self, &mut f as Change<'_, Self>)
    }

    /// Looks at the nodes, parents first.
    fn apply<'n>(
        &'n self,
        mut f: impl FnMut(&'n Self) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let f = &mut f as &mut dyn FnMut(&'n Self) -> Result<TreeNodeRecursion>;
        TreeNode::apply(self, f)
    }

    /// Looks at the children alone.
    fn apply_children<'n>(
        &'n self,
        mut f: impl FnMut(&'n Self) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let f = &mut f as &mut dyn FnMut(&'n Self) -> Result<TreeNodeRecursion>;
        TreeNode::apply_children(self, f)
    }

    /// Whether some node is such a one.
    fn exists(&self, mut f: impl FnMut(&Self) -> Result<bool>) -> Result<bool> {
        TreeNode::exists(self, &mut f as &mut dyn FnMut(&Self) -> Result<bool>)
    }

    /// Changes the nodes as a rewriter does.
    fn rewrite(
        self,
        rewriter: &mut impl TreeNodeRewriter<Node = Self>,
    ) -> Result<Transformed<Self>> {
        TreeNode::rewrite(self, &mut SharedRewriter(rewriter))
    }

    /// Has a visitor look at the nodes.
    fn visit<'n>(
        &'n self,
        visitor: &mut impl TreeNodeVisitor<'n, Node = Self>,
    ) -> Result<TreeNodeRecursion> {
        TreeNode::visit(self, &mut SharedVisitor(visitor))
    }
}

impl<N: TreeNode> Walk for N {}

/// Walks of logical plans: of their expressions, and of the plans within those.
pub trait WalkPlan: Sized {
    /// Looks at the node's own expressions.
    ///
    /// # Errors
    /// Those of `f`; so of all walks.
    fn walk_expressions(
        &self,
        f: impl FnMut(&Expr) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion>;

    /// Changes the node's own expressions.
    fn change_expressions(
        self,
        f: impl FnMut(Expr) -> Result<Transformed<Expr>>,
    ) -> Result<Transformed<Self>>;

    /// Looks at the plans of the subqueries of the node's own expressions.
    fn walk_subqueries(
        &self,
        f: impl FnMut(&Self) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion>;

    /// Changes the plans of the subqueries of the node's own expressions.
    fn change_subqueries(
        self,
        f: impl FnMut(Self) -> Result<Transformed<Self>>,
    ) -> Result<Transformed<Self>>;

    /// Looks at the nodes of the plan and of its subqueries, parents first.
    fn walk_with_subqueries(
        &self,
        f: impl FnMut(&Self) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion>;

    /// Changes the nodes of the plan and of its subqueries, children first.
    fn change_up_with_subqueries(
        self,
        f: impl FnMut(Self) -> Result<Transformed<Self>>,
    ) -> Result<Transformed<Self>>;

    /// Changes the nodes of the plan and of its subqueries, parents first.
    fn change_down_with_subqueries(
        self,
        f: impl FnMut(Self) -> Result<Transformed<Self>>,
    ) -> Result<Transformed<Self>>;
}

impl WalkPlan for LogicalPlan {
    fn walk_expressions(
        &self,
        mut f: impl FnMut(&Expr) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.apply_expressions(&mut f as &mut dyn FnMut(&Expr) -> Result<TreeNodeRecursion>)
    }

    fn change_expressions(
        self,
        mut f: impl FnMut(Expr) -> Result<Transformed<Expr>>,
    ) -> Result<Transformed<Self>> {
        self.map_expressions(&mut f as Change<'_, Expr>)
    }

    fn walk_subqueries(
        &self,
        mut f: impl FnMut(&Self) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.apply_subqueries(&mut f as &mut dyn FnMut(&Self) -> Result<TreeNodeRecursion>)
    }

    fn change_subqueries(
        self,
        mut f: impl FnMut(Self) -> Result<Transformed<Self>>,
    ) -> Result<Transformed<Self>> {
        self.map_subqueries(&mut f as Change<'_, Self>)
    }

    fn walk_with_subqueries(
        &self,
        mut f: impl FnMut(&Self) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.apply_with_subqueries(&mut f as &mut dyn FnMut(&Self) -> Result<TreeNodeRecursion>)
    }

    fn change_up_with_subqueries(
        self,
        mut f: impl FnMut(Self) -> Result<Transformed<Self>>,
    ) -> Result<Transformed<Self>> {
        self.transform_up_with_subqueries(&mut f as Change<'_, Self>)
    }

    fn change_down_with_subqueries(
        self,
        mut f: impl FnMut(Self) -> Result<Transformed<Self>>,
    ) -> Result<Transformed<Self>> {
        self.transform_down_with_subqueries(&mut f as Change<'_, Self>)
    }
}

/// What a rewriter does, so that it can be called through a pointer: DataFusion's trait can't.
trait Rewrite<N> {
    fn down(&mut self, node: N) -> Result<Transformed<N>>;

    fn up(&mut self, node: N) -> Result<Transformed<N>>;
}

impl<N: TreeNode, R: TreeNodeRewriter<Node = N>> Rewrite<N> for R {
    fn down(&mut self, node: N) -> Result<Transformed<N>> {
        self.f_down(node)
    }

    fn up(&mut self, node: N) -> Result<Transformed<N>> {
        self.f_up(node)
    }
}

struct SharedRewriter<'a, N>(&'a mut dyn Rewrite<N>);

impl<N: TreeNode> TreeNodeRewriter for SharedRewriter<'_, N> {
    type Node = N;

    fn f_down(&mut self, node: N) -> Result<Transformed<N>> {
        self.0.down(node)
    }

    fn f_up(&mut self, node: N) -> Result<Transformed<N>> {
        self.0.up(node)
    }
}

/// As [`Rewrite`], of a visitor.
trait Look<'n, N> {
    fn down(&mut self, node: &'n N) -> Result<TreeNodeRecursion>;

    fn up(&mut self, node: &'n N) -> Result<TreeNodeRecursion>;
}

impl<'n, N: TreeNode, V: TreeNodeVisitor<'n, Node = N>> Look<'n, N> for V {
    fn down(&mut self, node: &'n N) -> Result<TreeNodeRecursion> {
        self.f_down(node)
    }

    fn up(&mut self, node: &'n N) -> Result<TreeNodeRecursion> {
        self.f_up(node)
    }
}

struct SharedVisitor<'a, 'n, N>(&'a mut dyn Look<'n, N>);

impl<'n, N: TreeNode> TreeNodeVisitor<'n> for SharedVisitor<'_, 'n, N> {
    type Node = N;

    fn f_down(&mut self, node: &'n N) -> Result<TreeNodeRecursion> {
        self.0.down(node)
    }

    fn f_up(&mut self, node: &'n N) -> Result<TreeNodeRecursion> {
        self.0.up(node)
    }
}
