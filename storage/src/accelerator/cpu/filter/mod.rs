//! The filter: which rows of a segment survive.
//!
//! A filter is a list of tests, each of which only ever removes rows: the Program's conjuncts
//! (those on one column of integers merged into one set of values) and the runtime filters. For
//! each segment
//!
//! 1. zone maps settle whole chunks, then pages: what can't be TRUE leaves the selection, what
//!    can only be TRUE needs no reading;
//! 2. the tests run over what is left, the one that removes most for its cost first, each only on
//!    pages that still have a selected row. How much each removes is learned from segment to
//!    segment.
//!
//! On encoded pages a test is a comparison of packed offsets ([`ValueSet`]), of dictionary codes
//! (the predicate is computed once for each entry), or a search through decompressed text; only
//! what is none of these is computed row by row.

mod device;
mod runtime;
mod tests_on_pages;

use std::ops::Range;
use std::sync::Arc;

use flashmesh_pushdown::{CompareOp, RuntimeFilter};

use super::BLOCK_ROWS;
use super::bitmap::Bitmap;
use super::columns::{Columns, Rows};
use super::eval::Evaluator;
use super::eval::graph::{Graph, NodeId, Op};
use super::eval::text::TextTest;
use super::eval::vector::Kind;
use super::prune::{self, Facts, Verdict};
use super::values::ValueSet;
use crate::Result;
use crate::accelerator::device::Device;
use crate::store::PageReader;

use device::DeviceTest;
pub(super) use runtime::RuntimeTests;

/// Nodes of a conjunct up to which zone maps of single pages are asked about it.
const MAX_NODES_BY_PAGE: usize = 256;
/// Rows that a first guess about a test's selectivity weighs as much as.
const GUESS_ROWS: f64 = 65_536.0;

/// The filter of a Program.
#[derive(Debug)]
pub(super) struct Filter {
    tests: Vec<Test>,
    device: Option<Device>,
}

/// One test.
#[derive(Debug)]
pub(super) struct Test {
    pub kind: TestKind,
    /// The columns that it reads.
    pub columns: Vec<usize>,
    /// Cost of a row, in about nanoseconds.
    cost: f64,
    /// Rows seen so far, and those kept; they start with a guess.
    seen: f64,
    kept: f64,
    /// How the task's device computes it, if it can.
    device: Option<DeviceTest>,
}

/// What a test does.
#[derive(Debug)]
pub(super) enum TestKind {
    /// Conjuncts that together hold for a set of numbers of one column.
    Values { nodes: Vec<NodeId>, set: ValueSet },
    /// A test of a column of text, `LIKE` among them, or its negation.
    Text {
        node: NodeId,
        test: Arc<TextTest>,
        negated: bool,
    },
    /// Any other conjunct.
    Expression { node: NodeId, by_page: bool },
}

/// What zone maps leave of a segment.
#[derive(Debug)]
pub(super) struct ZonePlan {
    /// Rows that may survive the Program's filter.
    pub rows: Bitmap,
    /// For each test, the rows for which it has to be computed; `None`: for none.
    undecided: Vec<Option<Bitmap>>,
}

impl Filter {
    /// The filter of a Program; `device` computes what it can.
    pub fn new(graph: &Graph, device: Option<Device>) -> Self {
        let mut tests: Vec<Test> = Vec::new();
        for &node in &graph.conjuncts {
            let columns = graph.node(node).columns.clone();
            let kind = test_kind(graph, node, &columns);
            if let TestKind::Values { set, .. } = &kind
                && let Some(other) = tests.iter_mut().find(|t| t.columns == columns)
                && let TestKind::Values { nodes, set: whole } = &mut other.kind
            {
                nodes.push(node);
                *whole = whole.and(set);
                continue;
            }
            let (cost, selectivity) = expectation(graph, node, &kind);
            let guess = Test {
                kind,
                columns,
                cost,
                seen: GUESS_ROWS,
                kept: GUESS_ROWS * selectivity,
                device: None,
            };
            tests.push(guess);
        }
        if let Some(device) = &device {
            for test in &mut tests {
                test.device = DeviceTest::of(graph, test, device);
            }
        }
        Self { tests, device }
    }

    /// The task's device.
    pub fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// Asks the zone maps of the chunks, then of the pages. `None`: no row of the segment can
    /// survive.
    pub fn plan(
        &self,
        graph: &Graph,
        columns: &mut Columns,
        rows: u32,
        reader: &mut PageReader,
    ) -> Result<Option<ZonePlan>> {
        let Some(verdicts) = self.chunk_verdicts(graph, columns) else {
            return Ok(None);
        };
        columns.read_page_indexes(reader)?;
        let mut plan = ZonePlan {
            rows: Bitmap::filled(rows as usize, true),
            undecided: Vec::new(),
        };
        for (test, verdict) in self.tests.iter().zip(verdicts) {
            let undecided = match verdict {
                Verdict::Look => test.ask_pages(graph, columns, &mut plan.rows),
                _ => None,
            };
            plan.undecided.push(undecided);
        }
        Ok(plan.rows.any().then_some(plan))
    }

    /// What the zone maps of the chunks say of each test. `None`: no row of the segment can survive.
    pub fn chunk_verdicts(&self, graph: &Graph, columns: &Columns) -> Option<Vec<Verdict>> {
        let verdicts = self.tests.iter().map(|test| {
            let verdict = test.verdict(graph, &|column| columns.facts(column));
            (verdict != Verdict::Drop).then_some(verdict)
        });
        verdicts.collect()
    }

    /// Calls `f` with each column that is read, and for which of `rows`.
    pub fn for_columns(
        &self,
        plan: &ZonePlan,
        rows: &Bitmap,
        mut f: impl FnMut(usize, &Bitmap) -> Result<()>,
    ) -> Result<()> {
        for (index, test) in self.tests.iter().enumerate() {
            if let Some(undecided) = &plan.undecided[index] {
                let mut rows = rows.clone();
                rows.and(undecided);
                for column in &test.columns {
                    f(*column, &rows)?;
                }
            }
        }
        Ok(())
    }

    /// Removes the rows that do not survive from `selection`.
    pub fn run(
        &mut self,
        plan: &ZonePlan,
        runtime: &mut RuntimeTests,
        columns: &mut Columns,
        evaluator: &mut Evaluator,
        selection: &mut Bitmap,
        reader: &mut PageReader,
    ) -> Result<()> {
        // Tests of both kinds in one order: (rank, is a runtime filter, which).
        let mut order: Vec<(f64, bool, usize)> = Vec::new();
        for (index, test) in self.tests.iter().enumerate() {
            if plan.undecided[index].is_some() {
                order.push((test.rank(columns), false, index));
            }
        }
        order.extend(runtime.pending().map(|(rank, index)| (rank, true, index)));
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (_, is_runtime, index) in order {
            if !selection.any() {
                break;
            }
            if is_runtime {
                runtime.run(index, columns, selection, reader)?;
                continue;
            }
            let (test, Some(undecided)) = (&mut self.tests[index], &plan.undecided[index]) else {
                continue;
            };
            let before = selection.count();
            let is_done = match (&self.device, &test.device) {
                (Some(device), Some(on_device)) if device.is_usable() => {
                    on_device.run(device, undecided, columns, evaluator, selection, reader)?
                }
                _ => false,
            };
            if !is_done {
                test.run(undecided, columns, evaluator, selection, reader)?;
            }
            test.seen += before as f64;
            test.kept += selection.count() as f64;
        }
        Ok(())
    }
}

impl Test {
    /// What is known of the test where its columns' values are as `facts` says.
    fn verdict(&self, graph: &Graph, facts: &dyn Fn(usize) -> Facts) -> Verdict {
        match &self.kind {
            TestKind::Values { set, .. } => set.verdict(facts(self.columns[0])),
            TestKind::Text { node, .. } | TestKind::Expression { node, .. } => {
                prune::truth(graph, *node, facts).verdict()
            }
        }
    }

    /// Removes the rows of pages that are ruled out, and gives those that have to be looked at.
    fn ask_pages(&self, graph: &Graph, columns: &Columns, rows: &mut Bitmap) -> Option<Bitmap> {
        let len = rows.len() as u32;
        let mut undecided = Bitmap::filled(rows.len(), false);
        let mut apply = |verdict, range: Range<u32>| match verdict {
            Verdict::Drop => rows.clear_range(range),
            Verdict::Look => undecided.set_range(range),
            Verdict::Keep => {}
        };
        match (self.columns.as_slice(), &self.kind) {
            (_, TestKind::Expression { by_page: false, .. }) => apply(Verdict::Look, 0..len),
            (&[column], _) => {
                let kind = columns.kind(column);
                for zone in columns.zones(column) {
                    let facts = Facts::of_zone(zone, kind);
                    apply(
                        self.verdict(graph, &|_| facts),
                        zone.first_row..zone.first_row + zone.row_count,
                    );
                }
            }
            (several, _) => {
                // Pages of different columns have different boundaries: between two of any column
                // all zone maps stay the same.
                let mut starts: Vec<u32> = several
                    .iter()
                    .flat_map(|c| columns.zones(*c))
                    .map(|zone| zone.first_row)
                    .collect();
                // An expression without columns has the same value everywhere.
                starts.push(0);
                starts.sort_unstable();
                starts.dedup();
                starts.push(len);
                for pair in starts.windows(2) {
                    let facts =
                        |c: usize| Facts::of_zone(columns.zone_of(c, pair[0]), columns.kind(c));
                    apply(self.verdict(graph, &facts), pair[0]..pair[1]);
                }
            }
        }
        undecided.and(rows);
        undecided.any().then_some(undecided)
    }

    /// Cost for each row that it removes: the least comes first.
    fn rank(&self, columns: &Columns) -> f64 {
        // Where values are spread evenly, the zone map tells how many a set keeps.
        let kept = match &self.kind {
            TestKind::Values { set, .. } if self.seen <= GUESS_ROWS => {
                set.share(columns.facts(self.columns[0]))
            }
            _ => None,
        };
        let kept = kept.unwrap_or(self.kept / self.seen);
        self.cost / (1.0 - kept).max(1e-3)
    }

    fn run(
        &self,
        undecided: &Bitmap,
        columns: &mut Columns,
        evaluator: &mut Evaluator,
        selection: &mut Bitmap,
        reader: &mut PageReader,
    ) -> Result<()> {
        match (&self.kind, self.columns.as_slice()) {
            (TestKind::Expression { node, .. }, [] | [_, _, ..]) => by_block(
                &[*node],
                Some(undecided),
                columns,
                evaluator,
                selection,
                reader,
            ),
            _ => tests_on_pages::run(self, undecided, columns, evaluator, selection, reader),
        }
    }

    /// The conjuncts that it stands for.
    fn nodes(&self) -> &[NodeId] {
        match &self.kind {
            TestKind::Values { nodes, .. } => nodes,
            TestKind::Text { node, .. } | TestKind::Expression { node, .. } => {
                std::slice::from_ref(node)
            }
        }
    }
}

/// Computes conjuncts for the selected rows (of `within`, if given), block by block, and keeps
/// those for which all are TRUE.
fn by_block(
    nodes: &[NodeId],
    within: Option<&Bitmap>,
    columns: &mut Columns,
    evaluator: &mut Evaluator,
    selection: &mut Bitmap,
    reader: &mut PageReader,
) -> Result<()> {
    let rows = selection.len() as u32;
    let mut truth = Bitmap::default();
    let mut list = Vec::new();
    for start in (0..rows).step_by(BLOCK_ROWS as usize) {
        let range = start..(start + BLOCK_ROWS).min(rows);
        let mut wanted = selection.slice(range.clone());
        if let Some(within) = within {
            wanted.and(&within.slice(range.clone()));
        }
        let count = wanted.count();
        if count == 0 {
            continue;
        }
        evaluator.begin_block();
        columns.begin_block();
        // Most rows: compute all and mask. Few, or an expression that may fail: only those.
        let fallible = nodes.iter().any(|n| evaluator.bound(*n).fallible);
        if count == range.len() || (count * 4 >= range.len() && !fallible) {
            for node in nodes {
                evaluator.eval(
                    *node,
                    &mut columns.block(Rows::Range(range.clone()), reader),
                )?;
                evaluator
                    .vector(*node)
                    .is_true_into(range.len(), &mut truth);
                if let Some(within) = within {
                    let mut settled = within.slice(range.clone());
                    settled.invert();
                    truth.or(&settled);
                }
                selection.and_range(range.clone(), truth.words());
            }
        } else {
            list.clear();
            wanted.append_rows(0..range.len() as u32, &mut list);
            list.iter_mut().for_each(|row| *row += range.start);
            for node in nodes {
                evaluator.eval(*node, &mut columns.block(Rows::List(&list), reader))?;
                evaluator.vector(*node).is_true_into(list.len(), &mut truth);
                list.iter()
                    .enumerate()
                    .filter(|(i, _)| !truth.get(*i))
                    .for_each(|(_, r)| selection.set(*r as usize, false));
            }
        }
    }
    Ok(())
}

fn test_kind(graph: &Graph, node: NodeId, columns: &[usize]) -> TestKind {
    if let [column] = *columns {
        let values = match column_kind(graph, column) {
            Some(Kind::Integer { .. } | Kind::Decimal | Kind::Boolean) => {
                ValueSet::of(graph, node, column)
            }
            _ => None,
        };
        if let Some(set) = values {
            return TestKind::Values {
                nodes: vec![node],
                set,
            };
        }
        let (inner, negated) = match graph.node(node).op {
            Op::Not(inner) => (inner, true),
            _ => (node, false),
        };
        if let Op::Text(operand, test) = &graph.node(inner).op
            && graph.column(*operand) == Some(column)
        {
            return TestKind::Text {
                node,
                test: Arc::clone(test),
                negated,
            };
        }
    }
    TestKind::Expression {
        node,
        by_page: count_nodes(graph, node, MAX_NODES_BY_PAGE) <= MAX_NODES_BY_PAGE,
    }
}

fn column_kind(graph: &Graph, column: usize) -> Option<Kind> {
    let node = graph.nodes.iter().find(|n| n.op == Op::Column(column))?;
    Some(Kind::of(&node.data_type))
}

/// Nodes of an expression, counted no further than just beyond `most`.
fn count_nodes(graph: &Graph, id: NodeId, most: usize) -> usize {
    let mut count = 1;
    graph.for_operands(id, |operand| {
        if count <= most {
            count += count_nodes(graph, operand, most - count);
        }
    });
    count
}

/// Cost of a row and share of rows kept, before anything is known.
fn expectation(graph: &Graph, node: NodeId, kind: &TestKind) -> (f64, f64) {
    match kind {
        TestKind::Values { .. } => (0.1, 0.3),
        TestKind::Text { negated, .. } => (20.0, if *negated { 0.9 } else { 0.1 }),
        TestKind::Expression { .. } => {
            let columns = &graph.node(node).columns;
            let text = columns
                .iter()
                .any(|c| column_kind(graph, *c) == Some(Kind::Bytes));
            let cost = if text { 8.0 } else { 2.0 } * columns.len() as f64;
            let kept = match graph.node(node).op {
                Op::Compare(CompareOp::Eq, ..) | Op::InList(..) => 0.1,
                _ => 0.5,
            };
            (cost, kept)
        }
    }
}

/// Whether a runtime filter and its facts are worth a look at pages.
pub(super) fn chunk_verdict(filter: &RuntimeFilter, columns: &Columns) -> Verdict {
    let column = filter.column as usize;
    prune::runtime_verdict(filter, columns.facts(column), columns.data_type(column))
}
