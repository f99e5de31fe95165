//! Tests that a device computes.
//!
//! Only rows that are still selected and undecided are read, as on the CPU. They go to the device
//! by chunks: while it computes one, the next is read and copied.

use std::collections::BTreeMap;
use std::ops::Range;

use arrow::datatypes::ToByteSlice;
use flashmesh_pushdown::{CompareOp, Scalar};

use super::{Test, TestKind};
use crate::Result;
use crate::accelerator::cpu::BLOCK_ROWS;
use crate::accelerator::cpu::bitmap::Bitmap;
use crate::accelerator::cpu::columns::{Columns, Rows};
use crate::accelerator::cpu::eval::Evaluator;
use crate::accelerator::cpu::eval::graph::{Graph, Members, NodeId, Op};
use crate::accelerator::cpu::eval::text::Search;
use crate::accelerator::cpu::eval::vector::{Kind, Values};
use crate::accelerator::device::Device;
use crate::accelerator::offload::{OffloadCall, Operation};
use crate::kernel::{Argument, ScalarArgument};
use crate::store::PageReader;

/// Rows of one call; a multiple of [`BLOCK_ROWS`].
const CHUNK_ROWS: u32 = 8 * BLOCK_ROWS;
/// Bytes of text from which on a call takes no further block.
const CHUNK_BYTES: usize = 4 << 20;
/// Limits of `fpga/hls/predicate_filter`.
const MAX_COLUMNS: usize = 16;
const MAX_INSTRUCTIONS: usize = 256;
const MAX_STACK: usize = 16;
/// Members up to which an IN list is a chain of comparisons.
const MAX_MEMBERS: usize = 32;
/// What `fpga/hls/morris_pratt` gives for a text without the pattern.
const NOT_FOUND: u32 = u32::MAX;

/// Longer texts are searched on the CPU: the kernel holds so many places of its automaton, and takes
/// time that grows with text times needle where there are more.
const MAX_NEEDLE_BYTES: usize = 64;

/// A test as the device computes it.
#[derive(Debug)]
pub(super) enum DeviceTest {
    /// Conjuncts as a program of `fpga/hls/predicate_filter`.
    Condition {
        /// Two words an instruction.
        program: Vec<u64>,
        /// The columns, in the order of their numbers in the program.
        columns: Vec<NodeId>,
    },
    /// Whether a text occurs.
    Search {
        column: NodeId,
        needle: Vec<u8>,
        negated: bool,
    },
}

impl DeviceTest {
    /// The test, if the device has the operation and it can be said in its terms.
    pub fn of(graph: &Graph, test: &Test, device: &Device) -> Option<Self> {
        let has = |operation| device.supports(operation);
        if let TestKind::Text {
            node,
            test,
            negated,
        } = &test.kind
        {
            let Search::Literal {
                finder,
                is_all: true,
            } = test.search()
            else {
                return None;
            };
            let inner = match graph.node(*node).op {
                Op::Not(inner) => inner,
                _ => *node,
            };
            let Op::Text(column, _) = graph.node(inner).op else {
                return None;
            };
            let needle = finder.needle();
            let fits = has(Operation::MorrisPratt) && needle.len() <= MAX_NEEDLE_BYTES;
            return fits.then(|| Self::Search {
                column,
                needle: needle.to_vec(),
                negated: *negated,
            });
        }
        if !has(Operation::PredicateFilter) {
            return None;
        }
        let mut compiler = Compiler::new(graph);
        compiler.all(test.nodes(), Opcode::AND)?;
        compiler.finish()
    }

    /// Removes the rows that do not pass from `selection`. FALSE: the device can't do it for this
    /// segment, or has failed; the CPU has to.
    pub fn run(
        &self,
        device: &Device,
        undecided: &Bitmap,
        columns: &mut Columns,
        evaluator: &mut Evaluator,
        selection: &mut Bitmap,
        reader: &mut PageReader,
    ) -> Result<bool> {
        let mut wanted = selection.clone();
        wanted.and(undecided);
        let mut source = Source {
            wanted,
            columns,
            evaluator,
            reader,
        };
        match self {
            Self::Condition { program, columns } => {
                filter(device, program, columns, &mut source, undecided, selection)
            }
            Self::Search {
                column,
                needle,
                negated,
            } => search(device, *column, needle, *negated, &mut source, selection),
        }
    }
}

/// Where the values come from.
struct Source<'a> {
    /// The rows that are looked at.
    wanted: Bitmap,
    columns: &'a mut Columns,
    evaluator: &'a mut Evaluator,
    reader: &'a mut PageReader,
}

/// Columns of numbers as the device takes them.
struct Numbers {
    values: Vec<i64>,
    valid: Vec<u64>,
    stride: usize,
}

impl Source<'_> {
    /// Reads columns of numbers for the wanted rows of a chunk; others are NULL. `None` if the
    /// numbers of a column need more than 64 bits in this segment.
    fn numbers(&mut self, nodes: &[NodeId], chunk: Range<u32>) -> Result<Option<Numbers>> {
        let stride = chunk.len().next_multiple_of(64);
        let mut numbers = Numbers {
            values: vec![0; nodes.len() * stride],
            valid: vec![0; nodes.len() * stride / 64],
            stride,
        };
        let mut list = Vec::new();
        for start in chunk.clone().step_by(BLOCK_ROWS as usize) {
            let block = start..(start + BLOCK_ROWS).min(chunk.end);
            list.clear();
            self.wanted.append_rows(block.clone(), &mut list);
            if list.is_empty() {
                continue;
            }
            let rows = match list.len() == block.len() {
                true => Rows::Range(block.clone()),
                false => Rows::List(&list),
            };
            self.evaluator.begin_block();
            self.columns.begin_block();
            for (place, node) in nodes.iter().enumerate() {
                let leaves = &mut self.columns.block(rows.clone(), self.reader);
                self.evaluator.eval(*node, leaves)?;
                let vector = self.evaluator.vector(*node);
                let at = |position: usize| place * stride + (list[position] - chunk.start) as usize;
                let source = |position: usize| if vector.constant { 0 } else { position };
                for position in 0..list.len() {
                    let value = match &vector.values {
                        Values::I64(values) => values[source(position)],
                        Values::F64(values) => values[source(position)].to_bits() as i64,
                        Values::Bool(values) => i64::from(values.get(source(position))),
                        _ => return Ok(None),
                    };
                    let at = at(position);
                    numbers.values[at] = value;
                    numbers.valid[at / 64] |= u64::from(vector.is_valid(position)) << (at % 64);
                }
            }
        }
        Ok(Some(numbers))
    }
}

/// A call for some rows.
type Pending<Rows> = Option<(Rows, Box<dyn OffloadCall>)>;

fn filter(
    device: &Device,
    program: &[u64],
    nodes: &[NodeId],
    source: &mut Source<'_>,
    undecided: &Bitmap,
    selection: &mut Bitmap,
) -> Result<bool> {
    let rows = selection.len() as u32;
    let mut pending: Pending<Range<u32>> = None;
    let mut finish = |pending: Pending<Range<u32>>| -> Result<()> {
        let Some((chunk, call)) = pending else {
            return Ok(());
        };
        let mut bytes = vec![0; chunk.len().div_ceil(64) * 8];
        call.finish(&mut [&mut bytes])?;
        let (words, _) = bytes.as_chunks::<8>();
        let mut settled = undecided.slice(chunk.clone());
        settled.invert();
        let passed = words.iter().zip(settled.words());
        let passed: Vec<u64> = passed
            .map(|(word, settled)| u64::from_le_bytes(*word) | settled)
            .collect();
        selection.and_range(chunk, &passed);
        Ok(())
    };
    for start in (0..rows).step_by(CHUNK_ROWS as usize) {
        let chunk = start..(start + CHUNK_ROWS).min(rows);
        if !source.wanted.any_in(chunk.clone()) {
            continue;
        }
        let Some(numbers) = source.numbers(nodes, chunk.clone())? else {
            let wide = "numbers of more than 64 bits do not go to the device";
            return device.fall_back(crate::StorageError::Invalid(wide.into()));
        };
        let scalar = |value: usize| Argument::Scalar(ScalarArgument::I32(value as i32));
        let mut result = vec![0; chunk.len().div_ceil(64) * 8];
        let started = device.start(
            Operation::PredicateFilter,
            &mut [
                Argument::In(numbers.values.to_byte_slice()),
                scalar(nodes.len()),
                Argument::In(numbers.valid.to_byte_slice()),
                scalar(numbers.stride),
                Argument::In(program.to_byte_slice()),
                scalar(program.len() / 2),
                scalar(chunk.len()),
                Argument::Out(&mut result),
            ],
        );
        let call = match started {
            Ok(call) => call,
            Err(error) => return device.fall_back(error),
        };
        if let Err(error) = finish(pending.replace((chunk, call))) {
            return device.fall_back(error);
        }
    }
    match finish(pending) {
        Ok(()) => Ok(true),
        Err(error) => device.fall_back(error),
    }
}

fn search(
    device: &Device,
    node: NodeId,
    needle: &[u8],
    negated: bool,
    source: &mut Source<'_>,
    selection: &mut Bitmap,
) -> Result<bool> {
    let rows = selection.len() as u32;
    let mut pending: Pending<Vec<u32>> = None;
    let finish = |pending: Pending<Vec<u32>>, selection: &mut Bitmap| -> Result<()> {
        let Some((rows, call)) = pending else {
            return Ok(());
        };
        let mut bytes = vec![0; rows.len() * 4];
        call.finish(&mut [&mut bytes])?;
        let (positions, _) = bytes.as_chunks::<4>();
        for (row, position) in rows.iter().zip(positions) {
            let is_found = u32::from_le_bytes(*position) != NOT_FOUND;
            if is_found == negated {
                selection.set(*row as usize, false);
            }
        }
        Ok(())
    };
    let mut list = Vec::new();
    let (mut texts, mut offsets, mut bytes) = (Vec::new(), vec![0u32], Vec::new());
    for start in (0..rows).step_by(BLOCK_ROWS as usize) {
        let block = start..(start + BLOCK_ROWS).min(rows);
        list.clear();
        source.wanted.append_rows(block.clone(), &mut list);
        if !list.is_empty() {
            source.evaluator.begin_block();
            source.columns.begin_block();
            let leaves = &mut source.columns.block(Rows::List(&list), source.reader);
            source.evaluator.eval(node, leaves)?;
            let vector = source.evaluator.vector(node);
            for (position, row) in list.iter().enumerate() {
                // What is NULL neither holds a text nor holds it not.
                if !vector.is_valid(position) {
                    selection.set(*row as usize, false);
                    continue;
                }
                bytes.extend_from_slice(vector.bytes(position));
                texts.push(*row);
                offsets.push(bytes.len() as u32);
            }
        }
        let is_last = block.end == rows;
        if texts.is_empty()
            || (bytes.len() < CHUNK_BYTES && block.end % CHUNK_ROWS != 0 && !is_last)
        {
            continue;
        }
        let mut positions = vec![0; texts.len() * 4];
        let started = device.start(
            Operation::MorrisPratt,
            &mut [
                Argument::In(offsets.to_byte_slice()),
                Argument::In(&bytes),
                Argument::In(needle),
                Argument::Scalar(ScalarArgument::I32(needle.len() as i32)),
                Argument::Scalar(ScalarArgument::I32(texts.len() as i32)),
                Argument::Out(&mut positions),
            ],
        );
        let call = match started {
            Ok(call) => call,
            Err(error) => return device.fall_back(error),
        };
        let before = pending.replace((std::mem::take(&mut texts), call));
        if let Err(error) = finish(before, selection) {
            return device.fall_back(error);
        }
        bytes.clear();
        offsets.truncate(1);
    }
    match finish(pending, selection) {
        Ok(()) => Ok(true),
        Err(error) => device.fall_back(error),
    }
}

/// Opcodes of `fpga/hls/predicate_filter`.
struct Opcode;

impl Opcode {
    const COMPARE_INT: u64 = 1;
    const COMPARE_FLOAT: u64 = 7;
    /// Further than those with a literal: two columns.
    const COLUMNS: u64 = 12;
    const IS_NULL: u64 = 25;
    const AND: u64 = 26;
    const OR: u64 = 27;
    const NOT: u64 = 28;
    const CONSTANT: u64 = 29;
}

/// Truth values as literals.
const FALSE: u64 = 0;
const TRUE: u64 = 1;
const NULL: u64 = 2;

/// Turns conjuncts into a program; every method gives `None` for what can't be said in it.
struct Compiler<'a> {
    graph: &'a Graph,
    program: Vec<u64>,
    height: usize,
    /// The column of the graph behind each of the program's, and its node.
    columns: BTreeMap<usize, usize>,
    nodes: Vec<NodeId>,
}

impl<'a> Compiler<'a> {
    fn new(graph: &'a Graph) -> Self {
        Self {
            graph,
            program: Vec::new(),
            height: 0,
            columns: BTreeMap::new(),
            nodes: Vec::new(),
        }
    }

    fn finish(self) -> Option<DeviceTest> {
        // A condition without a column is settled without reading.
        (self.height == 1 && !self.nodes.is_empty()).then_some(DeviceTest::Condition {
            program: self.program,
            columns: self.nodes,
        })
    }

    fn emit(&mut self, word: u64, literal: u64, pops: usize) -> Option<()> {
        self.height = self.height.checked_sub(pops)? + 1;
        self.program.extend([word, literal]);
        (self.height <= MAX_STACK && self.program.len() <= 2 * MAX_INSTRUCTIONS).then_some(())
    }

    /// Several conditions joined by AND or OR, one after another: a flat stack.
    fn all(&mut self, nodes: &[NodeId], joint: u64) -> Option<()> {
        for (index, node) in nodes.iter().enumerate() {
            self.condition(*node)?;
            if index > 0 {
                self.emit(joint, 0, 2)?;
            }
        }
        (!nodes.is_empty()).then_some(())
    }

    fn condition(&mut self, node: NodeId) -> Option<()> {
        let graph = self.graph;
        match &graph.node(node).op {
            Op::And(nodes) => self.all(nodes, Opcode::AND),
            Op::Or(nodes) => self.all(nodes, Opcode::OR),
            Op::Not(inner) => {
                self.condition(*inner)?;
                self.emit(Opcode::NOT, 0, 1)
            }
            Op::IsNull(inner) => {
                let (column, _) = self.column(*inner)?;
                self.emit(Opcode::IS_NULL | column << 8, 0, 0)
            }
            Op::Literal(value) => {
                let truth = match value {
                    Scalar::Boolean(false) => FALSE,
                    Scalar::Boolean(true) => TRUE,
                    Scalar::Null => NULL,
                    _ => return None,
                };
                self.emit(Opcode::CONSTANT, truth, 0)
            }
            Op::Column(_) => {
                let (column, kind) = self.column(node)?;
                let is_true = Opcode::COMPARE_INT | column << 8;
                (kind == Kind::Boolean).then_some(())?;
                self.emit(is_true, 1, 0)
            }
            Op::Compare(op, left, right) => self.compare(*op, *left, *right),
            Op::InList(inner, list) => {
                let (column, kind) = self.column(*inner)?;
                let Members::Int(members) = &list.members else {
                    return None;
                };
                let is_number = matches!(kind, Kind::Integer { .. } | Kind::Decimal);
                if !is_number || members.is_empty() || members.len() > MAX_MEMBERS {
                    return None;
                }
                for (index, member) in members.iter().enumerate() {
                    let literal = i64::try_from(*member).ok()? as u64;
                    self.emit(Opcode::COMPARE_INT | column << 8, literal, 0)?;
                    if index > 0 {
                        self.emit(Opcode::OR, 0, 2)?;
                    }
                }
                if list.has_null {
                    self.emit(Opcode::CONSTANT, NULL, 0)?;
                    self.emit(Opcode::OR, 0, 2)?;
                }
                Some(())
            }
            _ => None,
        }
    }

    fn compare(&mut self, op: CompareOp, left: NodeId, right: NodeId) -> Option<()> {
        let graph = self.graph;
        let (op, left, right) = match graph.literal(left) {
            Some(_) => (mirrored(op), right, left),
            None => (op, left, right),
        };
        let (column, kind) = self.column(left)?;
        let comparison = match op {
            CompareOp::Eq => 0,
            CompareOp::NotEq => 1,
            CompareOp::Lt => 2,
            CompareOp::LtEq => 3,
            CompareOp::Gt => 4,
            CompareOp::GtEq => 5,
        };
        let opcode = comparison
            + match kind {
                Kind::Float { .. } => Opcode::COMPARE_FLOAT,
                _ => Opcode::COMPARE_INT,
            };
        let Some(literal) = graph.literal(right) else {
            let (other, other_kind) = self.column(right)?;
            let is_same = std::mem::discriminant(&kind) == std::mem::discriminant(&other_kind);
            is_same.then_some(())?;
            return self.emit((opcode + Opcode::COLUMNS) | column << 8 | other << 16, 0, 0);
        };
        let literal = match (literal, kind) {
            (Scalar::Int(value), Kind::Integer { .. } | Kind::Decimal) => {
                i64::try_from(*value).ok()? as u64
            }
            (Scalar::Float(value), Kind::Float { .. }) => value.to_bits(),
            (Scalar::Boolean(value), Kind::Boolean) => u64::from(*value),
            (Scalar::Null, _) => return self.emit(Opcode::CONSTANT, NULL, 0),
            _ => return None,
        };
        self.emit(opcode | column << 8, literal, 0)
    }

    /// A column of numbers: its number in the program.
    fn column(&mut self, node: NodeId) -> Option<(u64, Kind)> {
        let column = self.graph.column(node)?;
        let kind = Kind::of(&self.graph.node(node).data_type);
        let is_number = matches!(
            kind,
            Kind::Integer { .. } | Kind::Decimal | Kind::Float { .. } | Kind::Boolean
        );
        is_number.then_some(())?;
        let next = self.columns.len();
        let place = *self.columns.entry(column).or_insert(next);
        if place == next {
            self.nodes.push(node);
        }
        (place < MAX_COLUMNS).then_some((place as u64, kind))
    }
}

/// The comparison with its sides exchanged.
fn mirrored(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Eq | CompareOp::NotEq => op,
        CompareOp::Lt => CompareOp::Gt,
        CompareOp::LtEq => CompareOp::GtEq,
        CompareOp::Gt => CompareOp::Lt,
        CompareOp::GtEq => CompareOp::LtEq,
    }
}
