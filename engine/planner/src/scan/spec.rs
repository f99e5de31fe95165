//! What a scan does, before it is a Program.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::physical_expr::PhysicalExpr;
use flashmesh_pushdown::{Expr, InputColumn, Limits, Output, Program, VerifiedProgram, verify};
use flashmesh_storage::access::{AccessPath, NearSearch};
use flashmesh_storage::capability::{Capability, Right};
use flashmesh_storage::kernel::has_kernels;
use flashmesh_storage::node::{SegmentQueue, StorageNode};
use flashmesh_storage::segment::Segment;
use flashmesh_storage::table::TableSnapshot;

use crate::config::Pushdown;
use crate::join_keys::KeyFilter;
use crate::{Reason, cost, tree};

/// A conjunct of the filter that the store evaluates.
#[derive(Debug, Clone)]
pub struct PushedFilter {
    /// The predicate, over ordinals of the table.
    pub expr: Expr,
    /// As plans show it.
    pub text: String,
    /// FALSE when the predicate above the scan removes more rows: this one only prunes.
    pub exact: bool,
}

/// A filter that changes while the query runs, over what the scan gave when it was offered.
#[derive(Debug, Clone)]
pub struct DynamicFilter {
    /// The filter.
    pub expr: Arc<dyn PhysicalExpr>,
    /// Its columns.
    pub schema: SchemaRef,
    /// Their ordinals, of those that are columns of the table.
    pub ordinals: Vec<Option<u32>>,
}

/// A column of a filter on which runtime filters can act: one of the table's.
#[derive(Debug, Clone)]
pub(super) struct FilterColumn {
    /// Index in the filter's schema.
    pub place: usize,
    /// Index into `Program::columns`.
    pub program: u32,
    /// Its type.
    pub data_type: DataType,
    /// Least and greatest value in the table, for types whose values are integers.
    pub span: Option<(i64, i64)>,
    /// Estimate of its distinct values.
    pub distinct: Option<u64>,
}

/// What stayed above the scan, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotPushed {
    /// As plans show it.
    pub text: String,
    /// Why.
    pub reason: Reason,
}

/// How plans show an output that is more than columns.
#[derive(Debug, Clone, Default)]
pub struct OutputText {
    /// Each output column, or group key.
    pub columns: Vec<String>,
    /// Each aggregate as SQL has it; one may take several output columns.
    pub aggregates: Vec<String>,
    /// The order of a top-k.
    pub order: Vec<String>,
}

/// What a scan does. Columns are ordinals of the table here; [`ScanSpec::program`] numbers those
/// that are read.
#[derive(Debug, Clone)]
pub struct ScanSpec {
    /// What is scanned.
    pub table: Arc<TableSnapshot>,
    /// For whom.
    pub capability: Arc<Capability>,
    /// The session's choice when the scan was planned.
    pub mode: Pushdown,
    /// How the nearest rows are looked for.
    pub near: NearSearch,
    /// The accelerator that the session asks for.
    pub accelerator: Option<Arc<str>>,
    /// Whether it is an error when it fails at what was given to it.
    pub forbids_fallback: bool,
    /// Text leaves as plain arrays: see [`FlashScanExec::with_plain_text`](super::FlashScanExec::with_plain_text).
    pub plain_text: bool,
    /// It goes to another node with the pages of its segments that are in memory here.
    pub brings_pages: bool,
    /// Each node that runs the part of a plan in which it is reads all of its segments by itself, wherever
    /// they lie.
    pub is_whole: bool,
    /// Conjuncts.
    pub filters: Vec<PushedFilter>,
    /// Filters that change while the query runs.
    pub dynamic_filters: Vec<DynamicFilter>,
    /// Keys of joins in other parts of the plan.
    pub key_filters: Vec<KeyFilter>,
    /// What stayed above, for `EXPLAIN`.
    pub not_pushed: Vec<NotPushed>,
    /// What leaves.
    pub output: Output,
    /// Output columns where the plan above wants NULL for the Program's 0: the counts of grouped
    /// averages, by which DataFusion tells a group without values.
    pub null_for_zero: Vec<usize>,
    /// Its text.
    pub text: OutputText,
}

impl ScanSpec {
    /// A scan that gives back nothing yet.
    pub fn new(table: Arc<TableSnapshot>, capability: Arc<Capability>, mode: Pushdown) -> Self {
        Self {
            table,
            capability,
            mode,
            near: NearSearch::Exact,
            accelerator: None,
            forbids_fallback: false,
            plain_text: false,
            brings_pages: false,
            is_whole: false,
            filters: vec![],
            dynamic_filters: vec![],
            key_filters: vec![],
            not_pushed: vec![],
            output: Output::Rows {
                exprs: vec![],
                order: vec![],
                limit: None,
            },
            null_for_zero: vec![],
            text: OutputText::default(),
        }
    }

    /// Notes that something stayed above, once.
    pub fn note(&mut self, text: String, reason: Reason) {
        let note = NotPushed { text, reason };
        if !self.not_pushed.contains(&note) {
            self.not_pushed.push(note);
        }
    }

    /// Whether rows are dropped by what is learnt while the query runs.
    pub fn learns(&self) -> bool {
        !self.dynamic_filters.is_empty() || !self.key_filters.is_empty()
    }

    /// Ordinals of the columns that are read, ascending.
    pub fn ordinals(&self) -> BTreeSet<u32> {
        let mut ordinals = BTreeSet::new();
        let exprs = self
            .filters
            .iter()
            .map(|f| &f.expr)
            .chain(tree::output_exprs(&self.output));
        for expr in exprs {
            ordinals.extend(expr.columns());
        }
        let dynamic = self.dynamic_filters.iter().flat_map(|f| &f.ordinals);
        ordinals.extend(dynamic.flatten());
        ordinals.extend(self.key_filters.iter().map(|filter| filter.ordinal));
        ordinals
    }

    /// The Program.
    pub fn program(&self) -> Program {
        let ordinals: Vec<u32> = self.ordinals().into_iter().collect();
        let number = |ordinal: u32| {
            ordinals
                .binary_search(&ordinal)
                .expect("every ordinal was collected") as u32
        };
        Program {
            columns: ordinals
                .iter()
                .map(|ordinal| self.input_column(*ordinal))
                .collect(),
            filter: self
                .filters
                .iter()
                .map(|f| tree::map_columns(&f.expr, &number))
                .collect(),
            output: tree::map_output_columns(&self.output, &number),
        }
    }

    fn input_column(&self, ordinal: u32) -> InputColumn {
        let field = self.table.scan_schema.field(ordinal as usize);
        InputColumn {
            ordinal,
            name: field.name().clone(),
            data_type: field.data_type().clone(),
            nullable: field.is_nullable(),
        }
    }

    /// The Program, checked against the verifier's limits and against what the node can run.
    pub fn verified(&self, node: &StorageNode) -> Result<Arc<VerifiedProgram>, Reason> {
        let program = self.program();
        // The node would refuse it; above the scan the function runs like any other.
        if has_kernels(&program) && !self.capability.rights.has(Right::Kernel) {
            return Err(Reason::Denied(format!(
                "user '{}' may not {} {}",
                self.capability.principal,
                Right::Kernel,
                self.table.name
            )));
        }
        node.supports(&program, self.accelerator.as_deref())
            .map_err(Reason::Accelerator)?;
        verify(program, &self.table.scan_schema, &Limits::default())
            .map(Arc::new)
            .map_err(|e| Reason::Refused(e.to_string()))
    }

    /// Segments of the table, for all streams together, and how they are to be looked at.
    pub fn work(
        &self,
        segments: Vec<Arc<Segment>>,
        access: Option<Arc<AccessPath>>,
    ) -> Arc<SegmentQueue> {
        let work = SegmentQueue::with_access(segments, access);
        if let Some(accelerator) = &self.accelerator {
            work.ask_for(Arc::clone(accelerator));
        }
        if self.forbids_fallback {
            work.forbid_fallback();
        }
        if self.mode == Pushdown::Never || self.is_whole {
            work.keep_here();
        }
        if self.plain_text {
            work.ask_for_plain_text();
        }
        work
    }

    /// Whether further filters may go below this output: not below a limit, which must see the
    /// rows it always saw, and not below aggregates but for their keys.
    pub fn output_accepts_filters(&self) -> bool {
        match &self.output {
            Output::Rows { limit, .. } => limit.is_none(),
            Output::Aggregate { keys, .. } => !keys.is_empty(),
            Output::Nearest { .. } => false,
        }
    }

    /// What each output column is in terms of the table; `None` for aggregates.
    pub fn output_columns(&self) -> Vec<Option<&Expr>> {
        match &self.output {
            Output::Rows { exprs, .. } => exprs.iter().map(Some).collect(),
            Output::Nearest { exprs, .. } => [None, None]
                .into_iter()
                .chain(exprs.iter().map(Some))
                .collect(),
            Output::Aggregate { keys, aggregates } => keys
                .iter()
                .map(Some)
                .chain(aggregates.iter().map(|_| None))
                .collect(),
        }
    }

    /// Share of the table's rows that pass the filter.
    pub fn selectivity(&self) -> f64 {
        let filters: Vec<Expr> = self.filters.iter().map(|f| f.expr.clone()).collect();
        cost::selectivity(&filters, self.table.as_ref())
    }

    /// Rows that are expected to pass the filter.
    pub fn rows_after_filter(&self) -> f64 {
        self.table.rows() as f64 * self.selectivity()
    }

    /// Bytes in memory of one row of these expressions, the columns of `schema`.
    pub fn width_bytes(&self, exprs: &[Expr], schema: &Schema) -> f64 {
        let types = schema.fields().iter().map(|field| field.data_type());
        let widths = exprs.iter().zip(types);
        widths
            .map(|(e, t)| cost::width_bytes(t, Some(e), &self.table))
            .sum()
    }
}
