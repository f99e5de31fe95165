//! A Program's expressions as one graph, equal subexpressions shared.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::DataType;
use flashmesh_pushdown::{ArithmeticOp, CompareOp, DatePart, Expr, Output, Program, Scalar};

use super::kernel::KernelCall;
use super::text::TextTest;
use super::vector::Kind;
use crate::distance::Targets;
use crate::kernel::KernelSet;
use crate::page::{ZoneKey, zone_key};

/// Number of a node; a node's operands have smaller numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::accelerator::cpu) struct NodeId(pub u32);

impl NodeId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a node computes.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::accelerator::cpu) enum Op {
    /// Index into `Program::columns`.
    Column(usize),
    Literal(Scalar),
    Compare(CompareOp, NodeId, NodeId),
    And(Vec<NodeId>),
    Or(Vec<NodeId>),
    Not(NodeId),
    IsNull(NodeId),
    InList(NodeId, Arc<ListSet>),
    /// Whether the text passes; what is negated is a `Not` above it.
    Text(NodeId, Arc<TextTest>),
    Arithmetic(ArithmeticOp, NodeId, NodeId),
    Cast(NodeId),
    Case(Vec<(NodeId, NodeId)>, Option<NodeId>),
    DatePart(DatePart, NodeId),
    Substring(NodeId, u32, u32),
    Position(NodeId, Arc<str>),
    /// From one vector.
    Distance(NodeId, Arc<Targets>),
    /// Of a user.
    Kernel(Arc<KernelCall>, Vec<NodeId>),
}

/// One node.
#[derive(Debug)]
pub(in crate::accelerator::cpu) struct Node {
    pub op: Op,
    pub data_type: DataType,
    /// The columns that it depends on, ascending.
    pub columns: Vec<usize>,
    /// The expression as text, for errors; empty if it can't fail.
    pub text: String,
}

/// The constants of an IN list; `NOT IN` is a `Not` above it.
#[derive(Debug, PartialEq)]
pub(in crate::accelerator::cpu) struct ListSet {
    pub members: Members,
    /// The list has a NULL: what is not found is NULL instead of FALSE.
    pub has_null: bool,
    /// Zone keys of the members, ascending; `None` if one has none.
    pub keys: Option<Vec<i64>>,
    /// Equal keys mean equal values.
    pub exact_keys: bool,
}

/// Distinct values, in the form that probing wants.
#[derive(Debug, PartialEq)]
pub(in crate::accelerator::cpu) enum Members {
    /// Numbers, ascending.
    Int(Vec<i128>),
    /// Bit patterns of floats: Arrow's equality is equality of bits.
    Float(HashSet<u64>),
    Bytes(HashSet<Vec<u8>>),
    /// Whether FALSE and TRUE are in the set.
    Boolean([bool; 2]),
}

impl ListSet {
    /// Compiles constants of type `data_type`.
    pub fn new(list: &[Scalar], data_type: &DataType) -> Self {
        let has_null = list.contains(&Scalar::Null);
        let values = list.iter().filter(|s| **s != Scalar::Null);
        let mut exact_keys = true;
        let mut keys = values
            .clone()
            .map(|v| match zone_key(v, data_type) {
                ZoneKey::Exact(key) => Some(key),
                ZoneKey::Prefix(key) => {
                    exact_keys = false;
                    Some(key)
                }
                ZoneKey::Unknown => None,
            })
            .collect::<Option<Vec<_>>>();
        if let Some(keys) = &mut keys {
            keys.sort_unstable();
        }
        let members = match Kind::of(data_type) {
            Kind::Integer { .. } | Kind::Decimal | Kind::Opaque => {
                let mut ints: Vec<i128> = values
                    .filter_map(|v| {
                        if let Scalar::Int(v) = v {
                            Some(*v)
                        } else {
                            None
                        }
                    })
                    .collect();
                ints.sort_unstable();
                ints.dedup();
                Members::Int(ints)
            }
            Kind::Float { .. } => Members::Float(
                values
                    .filter_map(|v| {
                        if let Scalar::Float(v) = v {
                            Some(v.to_bits())
                        } else {
                            None
                        }
                    })
                    .collect(),
            ),
            Kind::Bytes => Members::Bytes(
                values
                    .filter_map(|v| {
                        if let Scalar::Bytes(v) = v {
                            Some(v.clone())
                        } else {
                            None
                        }
                    })
                    .collect(),
            ),
            Kind::Boolean => {
                let mut found = [false; 2];
                values.for_each(|v| found[usize::from(*v == Scalar::Boolean(true))] = true);
                Members::Boolean(found)
            }
        };
        Self {
            members,
            has_null,
            keys,
            exact_keys,
        }
    }
}

/// All expressions of a Program.
#[derive(Debug, Default)]
pub(in crate::accelerator::cpu) struct Graph {
    pub nodes: Vec<Node>,
    by_fingerprint: HashMap<u64, Vec<NodeId>>,
    /// What the expressions call.
    kernels: KernelSet,
    /// The conjuncts of the filter, nested ANDs taken apart.
    pub conjuncts: Vec<NodeId>,
    /// The output columns, or the group keys.
    pub outputs: Vec<NodeId>,
    /// The vectors that a search for nearest rows compares.
    pub vectors: Option<NodeId>,
    /// Argument and filter of each aggregate.
    pub aggregates: Vec<(Option<NodeId>, Option<NodeId>)>,
}

impl Graph {
    pub fn new(program: &Program, kernels: &KernelSet) -> Self {
        let mut graph = Self {
            kernels: kernels.clone(),
            ..Self::default()
        };
        let mut conjuncts = Vec::new();
        program
            .filter
            .iter()
            .for_each(|e| split_conjuncts(e, &mut conjuncts));
        for conjunct in conjuncts {
            let node = graph.add(program, conjunct);
            if !graph.conjuncts.contains(&node) {
                graph.conjuncts.push(node);
            }
        }
        match &program.output {
            Output::Rows { exprs, .. } => {
                graph.outputs = exprs.iter().map(|e| graph.add(program, e)).collect();
            }
            Output::Aggregate { keys, aggregates } => {
                graph.outputs = keys.iter().map(|e| graph.add(program, e)).collect();
                graph.aggregates = aggregates
                    .iter()
                    .map(|a| {
                        let argument = a.argument.as_ref().map(|e| graph.add(program, e));
                        (argument, a.filter.as_ref().map(|e| graph.add(program, e)))
                    })
                    .collect();
            }
            Output::Nearest { expr, exprs, .. } => {
                graph.vectors = Some(graph.add(program, expr));
                graph.outputs = exprs.iter().map(|e| graph.add(program, e)).collect();
            }
        }
        graph
    }

    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The column that a node is, if it is nothing else.
    pub fn column(&self, id: NodeId) -> Option<usize> {
        match self.node(id).op {
            Op::Column(column) => Some(column),
            _ => None,
        }
    }

    /// The constant that a node is.
    pub fn literal(&self, id: NodeId) -> Option<&Scalar> {
        match &self.node(id).op {
            Op::Literal(value) => Some(value),
            _ => None,
        }
    }

    /// Calls `f` for each operand of a node.
    pub fn for_operands(&self, id: NodeId, mut f: impl FnMut(NodeId)) {
        match &self.node(id).op {
            Op::Column(_) | Op::Literal(_) => {}
            Op::Compare(_, a, b) | Op::Arithmetic(_, a, b) => {
                f(*a);
                f(*b);
            }
            Op::And(list) | Op::Or(list) | Op::Kernel(_, list) => {
                list.iter().for_each(|n| f(*n));
            }
            Op::Not(a)
            | Op::IsNull(a)
            | Op::InList(a, _)
            | Op::Text(a, _)
            | Op::Cast(a)
            | Op::DatePart(_, a)
            | Op::Substring(a, ..)
            | Op::Position(a, _)
            | Op::Distance(a, _) => f(*a),
            Op::Case(branches, otherwise) => {
                branches.iter().for_each(|(c, v)| {
                    f(*c);
                    f(*v);
                });
                otherwise.iter().for_each(|n| f(*n));
            }
        }
    }

    fn add(&mut self, program: &Program, expr: &Expr) -> NodeId {
        let boolean = DataType::Boolean;
        let (op, data_type) = match expr {
            Expr::Column(i) => {
                let data_type = program.columns[*i as usize].data_type.clone();
                (Op::Column(*i as usize), data_type)
            }
            Expr::Literal(literal) => (
                Op::Literal(literal.value.clone()),
                literal.data_type.clone(),
            ),
            Expr::Compare { op, left, right } => {
                if let Some((text, needle, negated)) = presence(*op, left, right) {
                    let test = TextTest::contains_any(std::slice::from_ref(needle));
                    return self.text(program, text, test, negated, expr);
                }
                let (left, right) = (self.add(program, left), self.add(program, right));
                // The constant goes to the right, where the fast paths look for it.
                if self.literal(left).is_some() && self.literal(right).is_none() {
                    (Op::Compare(mirrored(*op), right, left), boolean)
                } else {
                    (Op::Compare(*op, left, right), boolean)
                }
            }
            Expr::And(list) => (
                Op::And(list.iter().map(|e| self.add(program, e)).collect()),
                boolean,
            ),
            Expr::Or(list) => (
                Op::Or(list.iter().map(|e| self.add(program, e)).collect()),
                boolean,
            ),
            Expr::Not(expr) => (Op::Not(self.add(program, expr)), boolean),
            Expr::IsNull(expr) => (Op::IsNull(self.add(program, expr)), boolean),
            Expr::InList {
                expr: probe,
                list,
                negated,
            } => {
                let node = self.add(program, probe);
                let set = Arc::new(ListSet::new(list, &self.node(node).data_type));
                let found = self.intern(program, Op::InList(node, set), boolean.clone(), expr);
                if !negated {
                    return found;
                }
                (Op::Not(found), boolean)
            }
            Expr::Like {
                expr: text,
                pattern,
                negated,
                case_insensitive,
            } => {
                let test = TextTest::like(pattern, *case_insensitive);
                return self.text(program, text, test, *negated, expr);
            }
            Expr::Regex {
                expr: text,
                pattern,
                negated,
                case_insensitive,
            } => {
                let test = TextTest::regex(pattern, *case_insensitive);
                return self.text(program, text, test, *negated, expr);
            }
            Expr::ContainsAny {
                expr: text,
                needles,
            } => {
                let test = TextTest::contains_any(needles);
                return self.text(program, text, test, false, expr);
            }
            Expr::Position { expr, needle } => (
                Op::Position(self.add(program, expr), Arc::from(needle.as_str())),
                DataType::Int32,
            ),
            Expr::Arithmetic {
                op,
                left,
                right,
                data_type,
            } => {
                let (left, right) = (self.add(program, left), self.add(program, right));
                (Op::Arithmetic(*op, left, right), data_type.clone())
            }
            Expr::Cast { expr, data_type } => {
                let node = self.add(program, expr);
                if self.node(node).data_type == *data_type {
                    return node;
                }
                (Op::Cast(node), data_type.clone())
            }
            Expr::Case {
                branches,
                otherwise,
                data_type,
            } => {
                let branches = branches
                    .iter()
                    .map(|(c, v)| (self.add(program, c), self.add(program, v)))
                    .collect();
                let otherwise = otherwise.as_ref().map(|e| self.add(program, e));
                (Op::Case(branches, otherwise), data_type.clone())
            }
            Expr::DatePart { part, expr } => (
                Op::DatePart(*part, self.add(program, expr)),
                DataType::Int32,
            ),
            Expr::Substring {
                expr,
                start,
                length,
            } => (
                Op::Substring(self.add(program, expr), *start, *length),
                DataType::Utf8View,
            ),
            Expr::Distance {
                metric,
                expr,
                query,
            } => {
                let targets = Targets::new(*metric, query.len(), [query]);
                (
                    Op::Distance(self.add(program, expr), Arc::new(targets)),
                    metric.data_type(),
                )
            }
            Expr::Kernel {
                kernel,
                arguments,
                query,
                data_type,
            } => {
                let call = KernelCall::new(&self.kernels, kernel, query.as_ref());
                let arguments = arguments.iter().map(|a| self.add(program, a)).collect();
                (Op::Kernel(Arc::new(call), arguments), data_type.clone())
            }
        };
        self.intern(program, op, data_type, expr)
    }

    fn text(
        &mut self,
        program: &Program,
        text: &Expr,
        test: TextTest,
        negated: bool,
        expr: &Expr,
    ) -> NodeId {
        let node = self.add(program, text);
        let found = Op::Text(node, Arc::new(test));
        let found = self.intern(program, found, DataType::Boolean, expr);
        match negated {
            true => self.intern(program, Op::Not(found), DataType::Boolean, expr),
            false => found,
        }
    }

    fn intern(&mut self, program: &Program, op: Op, data_type: DataType, expr: &Expr) -> NodeId {
        // Bits, not `==`, decide whether float literals are the same: 0.0 and -0.0 are not.
        let same = |n: &Node| {
            n.data_type == data_type
                && match (&n.op, &op) {
                    (Op::Literal(Scalar::Float(a)), Op::Literal(Scalar::Float(b))) => {
                        a.to_bits() == b.to_bits()
                    }
                    (a, b) => a == b,
                }
        };
        let alike = self.by_fingerprint.entry(fingerprint(&op)).or_default();
        if let Some(found) = alike.iter().find(|id| same(&self.nodes[id.index()])) {
            return *found;
        }
        let id = NodeId(self.nodes.len() as u32);
        alike.push(id);
        // Only these fail; long trees are not printed at every level for nothing.
        let text = match op {
            Op::Arithmetic(..) | Op::Cast(_) | Op::Kernel(..) => {
                expr.display(&program.columns).to_string()
            }
            _ => String::new(),
        };
        self.nodes.push(Node {
            op,
            data_type,
            columns: Vec::new(),
            text,
        });
        let mut columns = Vec::new();
        self.for_operands(id, |n| columns.extend_from_slice(&self.node(n).columns));
        columns.extend(self.column(id));
        columns.sort_unstable();
        columns.dedup();
        self.nodes[id.index()].columns = columns;
        id
    }
}

/// Text, needle and negation where a comparison of a position asks only whether the needle is
/// there: that takes no counting of characters, and pages are searched as a whole.
fn presence<'a>(
    op: CompareOp,
    left: &'a Expr,
    right: &'a Expr,
) -> Option<(&'a Expr, &'a String, bool)> {
    let (Expr::Position { expr, needle }, Expr::Literal(literal)) = (left, right) else {
        return None;
    };
    let negated = match (op, &literal.value) {
        (CompareOp::Gt | CompareOp::NotEq, Scalar::Int(0)) => false,
        (CompareOp::GtEq, Scalar::Int(1)) => false,
        (CompareOp::Eq | CompareOp::LtEq, Scalar::Int(0)) => true,
        (CompareOp::Lt, Scalar::Int(1)) => true,
        _ => return None,
    };
    Some((expr, needle, negated))
}

/// A hash that equal operations share.
fn fingerprint(op: &Op) -> u64 {
    let mut hasher = DefaultHasher::new();
    std::mem::discriminant(op).hash(&mut hasher);
    match op {
        Op::Column(column) => column.hash(&mut hasher),
        Op::Literal(value) => match value {
            Scalar::Null => {}
            Scalar::Boolean(v) => v.hash(&mut hasher),
            Scalar::Int(v) => v.hash(&mut hasher),
            Scalar::Float(v) => v.to_bits().hash(&mut hasher),
            Scalar::Bytes(v) => v.hash(&mut hasher),
        },
        Op::Compare(op, a, b) => (op, a, b).hash(&mut hasher),
        Op::And(list) | Op::Or(list) => list.hash(&mut hasher),
        Op::Arithmetic(_, a, b) => (a, b).hash(&mut hasher),
        Op::Not(a)
        | Op::IsNull(a)
        | Op::InList(a, _)
        | Op::Text(a, _)
        | Op::Cast(a)
        | Op::DatePart(_, a)
        | Op::Distance(a, _) => {
            a.hash(&mut hasher);
        }
        Op::Case(branches, otherwise) => (branches, otherwise).hash(&mut hasher),
        Op::Substring(a, start, length) => (a, start, length).hash(&mut hasher),
        Op::Position(a, needle) => (a, needle).hash(&mut hasher),
        Op::Kernel(call, list) => (&call.id, list).hash(&mut hasher),
    }
    hasher.finish()
}

fn split_conjuncts<'a>(expr: &'a Expr, conjuncts: &mut Vec<&'a Expr>) {
    match expr {
        Expr::And(list) => list.iter().for_each(|e| split_conjuncts(e, conjuncts)),
        _ => conjuncts.push(expr),
    }
}

/// The operator with its sides exchanged.
pub(in crate::accelerator::cpu) fn mirrored(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Eq | CompareOp::NotEq => op,
        CompareOp::Lt => CompareOp::Gt,
        CompareOp::LtEq => CompareOp::GtEq,
        CompareOp::Gt => CompareOp::Lt,
        CompareOp::GtEq => CompareOp::LtEq,
    }
}
