//! Evaluates expressions over blocks of rows.
//!
//! The Program's expressions are one [`Graph`]. For each segment [`bind`](bounds::bind) works out
//! from the zone maps which numbers a node can have: whatever provably fits is computed in 64
//! bits without looking for overflow, the rest in 128 bits with checks. Within a block every node
//! is computed once, when it is first asked for.

pub(super) mod bounds;
pub(super) mod graph;
mod kernel;
pub(super) mod kernels;
pub(super) mod like;
mod nodes;
pub(super) mod text;
pub(super) mod vector;

use std::sync::Arc;

use bounds::{Bound, ColumnBound};
use graph::{Graph, NodeId, Op};
use vector::{Kind, Values, Vector};

use super::bitmap::Bitmap;
use crate::Result;
use crate::distance::Targets;

/// Where a block's columns come from.
pub(super) trait Leaves {
    /// Rows of the block.
    fn len(&self) -> usize;

    /// Loads a column for the block's rows into `out`, whose allocation may be reused. Numbers
    /// come as 128-bit values when `wide`.
    fn load(&mut self, column: usize, wide: bool, out: &mut Vector) -> Result<()>;

    /// The distances of a column's vectors from the first target, straight from the pages; FALSE
    /// if they have to be loaded for that.
    fn distances(&mut self, column: usize, targets: &Targets, out: &mut Vector) -> Result<bool>;

    /// Which of the block's rows are not NULL in a column; `None`: all.
    fn validity(&mut self, column: usize) -> Result<Option<Bitmap>>;

    /// For a column whose chunk is coded by a dictionary: the code of each row, NULL being the
    /// code after the last entry. `None` for other columns.
    fn codes(&mut self, column: usize) -> Result<Option<&[u32]>>;

    /// The entries of the column's dictionary, followed by a NULL, as a vector.
    fn dictionary(&mut self, column: usize, wide: bool) -> Result<Option<Vector>>;
}

/// A node's value for each entry of the dictionary of its only column.
#[derive(Debug)]
enum Lift {
    /// Not looked at in this segment.
    Unknown,
    /// The column has no dictionary here, or the expression can't be lifted.
    No,
    /// Value by code.
    Table(Vector),
}

/// Computes nodes of a [`Graph`].
#[derive(Debug)]
pub(super) struct Evaluator {
    graph: Arc<Graph>,
    bounds: Vec<Bound>,
    slots: Vec<Vector>,
    /// A slot holds the present block's value when this equals `block`.
    computed_for: Vec<u64>,
    block: u64,
    lifts: Vec<Lift>,
}

impl Evaluator {
    pub fn new(graph: Arc<Graph>) -> Self {
        let nodes = graph.nodes.len();
        Self {
            bounds: Vec::new(),
            slots: std::iter::repeat_with(Vector::default)
                .take(nodes)
                .collect(),
            computed_for: vec![0; nodes],
            block: 0,
            lifts: std::iter::repeat_with(|| Lift::Unknown)
                .take(nodes)
                .collect(),
            graph,
        }
    }

    /// Takes up a segment.
    pub fn bind(&mut self, column: impl Fn(usize) -> ColumnBound) {
        self.bounds = bounds::bind(&self.graph, column);
        self.lifts.iter_mut().for_each(|l| *l = Lift::Unknown);
        self.begin_block();
    }

    /// Takes up a block: all values are computed anew.
    pub fn begin_block(&mut self) {
        self.block += 1;
    }

    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// What is known of the node in this segment.
    pub fn bound(&self, node: NodeId) -> &Bound {
        &self.bounds[node.index()]
    }

    /// The node's value, after [`Self::eval`] for this block.
    pub fn vector(&self, node: NodeId) -> &Vector {
        debug_assert_eq!(self.computed_for[node.index()], self.block);
        &self.slots[node.index()]
    }

    /// Computes a node for the block.
    pub fn eval(&mut self, node: NodeId, leaves: &mut dyn Leaves) -> Result<()> {
        if self.computed_for[node.index()] == self.block {
            return Ok(());
        }
        let mut out = std::mem::take(&mut self.slots[node.index()]);
        out.constant = false;
        let result = self.compute(node, leaves, &mut out);
        self.slots[node.index()] = out;
        result?;
        self.computed_for[node.index()] = self.block;
        Ok(())
    }

    /// The validity of a node that is a column and was not loaded for the block yet.
    #[allow(
        clippy::option_option,
        reason = "no column; a column without NULLs; one with some"
    )]
    pub fn validity(&self, id: NodeId, leaves: &mut dyn Leaves) -> Result<Option<Option<Bitmap>>> {
        match self.graph.column(id) {
            Some(column) if self.computed_for[id.index()] != self.block => {
                leaves.validity(column).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn compute(&mut self, id: NodeId, leaves: &mut dyn Leaves, out: &mut Vector) -> Result<()> {
        let graph = Arc::clone(&self.graph);
        let node = graph.node(id);
        match &node.op {
            Op::Column(column) => return leaves.load(*column, self.bounds[id.index()].wide, out),
            Op::Literal(value) => {
                *out = Vector::constant(value, &node.data_type, self.bounds[id.index()].wide);
                return Ok(());
            }
            _ => {}
        }
        // NULLs can be told without decoding what is not NULL.
        if let Op::IsNull(operand) = node.op
            && let Some(validity) = self.validity(operand, leaves)?
        {
            let mut bits = validity.unwrap_or_else(|| Bitmap::filled(leaves.len(), true));
            bits.invert();
            *out = Vector::bool(bits, None);
            return Ok(());
        }
        if let [column] = node.columns[..]
            && self.try_lift(id, column, leaves)?
        {
            return self.look_up(id, column, leaves, out);
        }
        if let Op::Distance(operand, targets) = &node.op
            && let Some(column) = graph.column(*operand)
            && leaves.distances(column, targets, out)?
        {
            return Ok(());
        }
        if let Op::Case(branches, otherwise) = &node.op {
            return self.case(id, branches, *otherwise, leaves, out);
        }
        let mut operands = Vec::new();
        graph.for_operands(id, |n| operands.push(n));
        for operand in operands {
            self.eval(operand, leaves)?;
        }
        self.apply(id, leaves.len(), out)
    }

    /// Computes the node over its column's dictionary, if it has one; TRUE if that was done.
    fn try_lift(&mut self, id: NodeId, column: usize, leaves: &mut dyn Leaves) -> Result<bool> {
        match self.lifts[id.index()] {
            Lift::Table(_) => return Ok(true),
            Lift::No => return Ok(false),
            Lift::Unknown => {}
        }
        // An entry that no surviving row has must not fail the query.
        if self.bounds[id.index()].fallible {
            self.lifts[id.index()] = Lift::No;
            return Ok(false);
        }
        let leaf = self
            .graph
            .nodes
            .iter()
            .position(|n| n.op == Op::Column(column))
            .map(|n| NodeId(n as u32));
        let leaf = leaf.expect("a node's columns are nodes");
        let Some(entries) = leaves.dictionary(column, self.bounds[leaf.index()].wide)? else {
            self.lifts[id.index()] = Lift::No;
            return Ok(false);
        };
        let len = entries.len();
        let table = self.nested(|inner| {
            inner.slots[leaf.index()] = entries;
            inner.computed_for[leaf.index()] = inner.block;
            // What lies below is computed here, not lifted once more.
            let lifts = inner
                .lifts
                .iter_mut()
                .map(|l| std::mem::replace(l, Lift::No))
                .collect();
            let result = inner.eval(id, &mut NoLeaves { len });
            inner.lifts = lifts;
            result.map(|()| std::mem::take(&mut inner.slots[id.index()]))
        })?;
        self.lifts[id.index()] = Lift::Table(table);
        Ok(true)
    }

    /// The node's value for each entry of the dictionary of its only column and, last, for NULL;
    /// `None` where it has no dictionary.
    pub fn over_dictionary(
        &mut self,
        id: NodeId,
        column: usize,
        leaves: &mut dyn Leaves,
    ) -> Result<Option<&Vector>> {
        if !self.try_lift(id, column, leaves)? {
            return Ok(None);
        }
        match &self.lifts[id.index()] {
            Lift::Table(table) => Ok(Some(table)),
            _ => Ok(None),
        }
    }

    /// Fills `out` from a lifted node's table.
    fn look_up(
        &mut self,
        id: NodeId,
        column: usize,
        leaves: &mut dyn Leaves,
        out: &mut Vector,
    ) -> Result<()> {
        let Lift::Table(table) = &self.lifts[id.index()] else {
            unreachable!("try_lift said so")
        };
        let len = leaves.len();
        let codes = leaves
            .codes(column)?
            .expect("a column with a dictionary has codes");
        if table.constant {
            *out = table.clone();
            return Ok(());
        }
        let validity = table.validity.as_ref().map(|v| v.gather(&codes[..len]));
        match &table.values {
            Values::I64(values) => {
                let mut reused = out.reuse_i64();
                reused.extend(codes[..len].iter().map(|c| values[*c as usize]));
                *out = Vector::i64(reused, validity);
            }
            Values::Bool(bits) => {
                let mut reused = out.reuse_bool();
                let bytes: Vec<u8> = (0..bits.len()).map(|i| u8::from(bits.get(i))).collect();
                reused.fill_from_fn(len, |i| bytes[codes[i] as usize] == 1);
                *out = Vector::bool(reused, validity);
            }
            _ => *out = table.take(&codes[..len])?,
        }
        Ok(())
    }

    /// Runs `f` on an evaluator for other rows, with the same bounds and no node computed yet.
    fn nested<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let nodes = self.slots.len();
        let slots = std::iter::repeat_with(Vector::default)
            .take(nodes)
            .collect();
        let slots = std::mem::replace(&mut self.slots, slots);
        let computed_for = std::mem::replace(&mut self.computed_for, vec![0; nodes]);
        let result = f(self);
        self.slots = slots;
        self.computed_for = computed_for;
        result
    }

    /// Computes a node for some of the block's rows only, because it may fail for others.
    fn eval_for(&mut self, id: NodeId, rows: &[u32], leaves: &mut dyn Leaves) -> Result<Vector> {
        let graph = Arc::clone(&self.graph);
        let mut loaded = Vec::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            if let Op::Column(column) = node.op
                && graph.node(id).columns.contains(&column)
            {
                self.eval(NodeId(index as u32), leaves)?;
                loaded.push((index, self.slots[index].take(rows)?));
            }
        }
        self.nested(|inner| {
            for (index, vector) in loaded {
                inner.slots[index] = vector;
                inner.computed_for[index] = inner.block;
            }
            let lifts = inner
                .lifts
                .iter_mut()
                .map(|l| std::mem::replace(l, Lift::No))
                .collect();
            let result = inner.eval(id, &mut NoLeaves { len: rows.len() });
            inner.lifts = lifts;
            result.map(|()| std::mem::take(&mut inner.slots[id.index()]))
        })
    }

    /// CASE: each branch gets the rows that no earlier one took. A branch that can't fail is
    /// computed for the whole block, one that can for its rows only.
    fn case(
        &mut self,
        id: NodeId,
        branches: &[(NodeId, NodeId)],
        otherwise: Option<NodeId>,
        leaves: &mut dyn Leaves,
        out: &mut Vector,
    ) -> Result<()> {
        let len = leaves.len();
        let mut left = Bitmap::filled(len, true);
        // For each value: the rows that take it, and it, either for all rows or for just those.
        let mut parts: Vec<(Bitmap, Part)> = Vec::with_capacity(branches.len() + 1);
        for (condition, value) in branches {
            if !left.any() {
                break;
            }
            let mut taken = if self.bounds[condition.index()].fallible {
                let mut rows = Vec::new();
                left.append_rows(0..len as u32, &mut rows);
                let truth = self
                    .eval_for(*condition, &rows, leaves)?
                    .is_true(rows.len());
                let mut taken = Bitmap::filled(len, false);
                rows.iter()
                    .enumerate()
                    .filter(|(i, _)| truth.get(*i))
                    .for_each(|(_, r)| taken.set(*r as usize, true));
                taken
            } else {
                self.eval(*condition, leaves)?;
                self.slots[condition.index()].is_true(len)
            };
            taken.and(&left);
            left.and_not(&taken);
            let part = self.part(*value, &taken, leaves)?;
            parts.push((taken, part));
        }
        if let Some(value) = otherwise
            && left.any()
        {
            let part = self.part(value, &left, leaves)?;
            parts.push((left, part));
        }
        self.assemble(id, len, &parts, out)
    }

    fn part(&mut self, value: NodeId, taken: &Bitmap, leaves: &mut dyn Leaves) -> Result<Part> {
        if self.bounds[value.index()].fallible {
            let mut rows = Vec::new();
            taken.append_rows(0..taken.len() as u32, &mut rows);
            Ok(Part::Taken(self.eval_for(value, &rows, leaves)?))
        } else {
            self.eval(value, leaves)?;
            Ok(Part::All(value))
        }
    }

    /// Puts the values of a CASE together; rows that no part takes are NULL.
    fn assemble(
        &self,
        id: NodeId,
        len: usize,
        parts: &[(Bitmap, Part)],
        out: &mut Vector,
    ) -> Result<()> {
        let mut validity = Bitmap::filled(len, false);
        for (taken, part) in parts {
            let (vector, dense) = self.part_vector(part);
            each_taken(taken, dense, |row, index| {
                if vector.is_valid(index) {
                    validity.set(row, true);
                }
            });
        }
        let validity = (validity.count() < len).then_some(validity);
        let data_type = &self.graph.node(id).data_type;
        match Kind::of(data_type) {
            Kind::Integer { .. } | Kind::Decimal if self.bounds[id.index()].wide => {
                let mut values = out.reuse_i128();
                values.resize(len, 0);
                for (taken, part) in parts {
                    let (vector, dense) = self.part_vector(part);
                    each_taken(taken, dense, |row, index| values[row] = vector.int(index));
                }
                *out = Vector::i128(values, validity);
            }
            Kind::Integer { .. } | Kind::Decimal => {
                let mut values = out.reuse_i64();
                values.resize(len, 0);
                for (taken, part) in parts {
                    let (vector, dense) = self.part_vector(part);
                    let source = vector.as_i64();
                    each_taken(taken, dense, |row, index| values[row] = source.get(index));
                }
                *out = Vector::i64(values, validity);
            }
            Kind::Float { .. } => {
                let mut values = out.reuse_f64();
                values.resize(len, 0.0);
                for (taken, part) in parts {
                    let (vector, dense) = self.part_vector(part);
                    let source = vector.as_f64();
                    each_taken(taken, dense, |row, index| values[row] = source.get(index));
                }
                *out = Vector::f64(values, validity);
            }
            Kind::Boolean => {
                let mut values = out.reuse_bool();
                values.reset(len, false);
                for (taken, part) in parts {
                    let (vector, dense) = self.part_vector(part);
                    let bits = vector.as_bool();
                    each_taken(taken, dense, |row, index| {
                        if bits.get(if vector.constant { 0 } else { index }) {
                            values.set(row, true);
                        }
                    });
                }
                *out = Vector::bool(values, validity);
            }
            Kind::Bytes | Kind::Opaque => {
                let mut sources = vec![arrow::array::new_null_array(data_type, 1)];
                let mut indices = vec![(0, 0); len];
                for (taken, part) in parts {
                    let (vector, dense) = self.part_vector(part);
                    let source = sources.len();
                    each_taken(taken, dense, |row, index| {
                        indices[row] = (source, if vector.constant { 0 } else { index });
                    });
                    sources.push(vector.to_arrow(data_type, vector.len())?);
                }
                let sources: Vec<_> = sources.iter().map(|s| s.as_ref()).collect();
                *out = Vector::from_arrow(&arrow::compute::interleave(&sources, &indices)?, false)?;
            }
        }
        Ok(())
    }

    fn part_vector<'a>(&'a self, part: &'a Part) -> (&'a Vector, bool) {
        match part {
            Part::All(node) => (&self.slots[node.index()], true),
            Part::Taken(vector) => (vector, false),
        }
    }
}

/// A branch's value in a CASE.
enum Part {
    /// In the slot, for all rows of the block.
    All(NodeId),
    /// For the taken rows only, in their order.
    Taken(Vector),
}

/// Calls `f` with each taken row and where its value is.
fn each_taken(taken: &Bitmap, dense: bool, mut f: impl FnMut(usize, usize)) {
    let mut rows = Vec::new();
    taken.append_rows(0..taken.len() as u32, &mut rows);
    for (position, row) in rows.into_iter().enumerate() {
        f(row as usize, if dense { row as usize } else { position });
    }
}

/// Leaves of a nested evaluation, whose columns were put in place beforehand.
struct NoLeaves {
    len: usize,
}

impl Leaves for NoLeaves {
    fn len(&self) -> usize {
        self.len
    }

    fn load(&mut self, column: usize, _: bool, _: &mut Vector) -> Result<()> {
        unreachable!("column {column} was put in place")
    }

    fn distances(&mut self, _: usize, _: &Targets, _: &mut Vector) -> Result<bool> {
        Ok(false)
    }

    fn validity(&mut self, column: usize) -> Result<Option<Bitmap>> {
        unreachable!("column {column} was put in place")
    }

    fn codes(&mut self, _: usize) -> Result<Option<&[u32]>> {
        Ok(None)
    }

    fn dictionary(&mut self, _: usize, _: bool) -> Result<Option<Vector>> {
        Ok(None)
    }
}

/// AND of two validities.
fn both_valid(left: Option<Bitmap>, right: Option<Bitmap>) -> Option<Bitmap> {
    match (left, right) {
        (Some(mut left), Some(right)) => {
            left.and(&right);
            Some(left)
        }
        (left, right) => left.or(right),
    }
}

/// The operand's values as floats, whatever number they are.
fn as_float(vector: &Vector, len: usize) -> Vec<f64> {
    match &vector.values {
        Values::I64(v) => v.iter().take(len).map(|v| *v as f64).collect(),
        Values::I128(v) => v.iter().take(len).map(|v| *v as f64).collect(),
        Values::F64(v) => v.clone(),
        _ => unreachable!("only numbers are cast to floats"),
    }
}
