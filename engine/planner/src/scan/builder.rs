//! The one way into a scan.
//!
//! Whatever the planner moves into a scan (filters, columns, limits, a top-k, aggregates) is read
//! here through one [`Scope`]: what the columns that it mentions are in terms of the table. So a
//! column that is computed on the way is never taken for a stored one of its name, what has no
//! translation (volatile functions, values of subqueries) stays above, and what the scan had
//! before it still has after.

use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;
use flashmesh_pushdown::{Aggregate, Expr, Output, SortKey, VerifiedProgram};
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::page::plain::plain_schema;

use super::FlashScanExec;
use super::spec::{DynamicFilter, OutputText, PushedFilter, ScanSpec};
use crate::config::Pushdown;
use crate::translate::{Scope, program_type, text_of, translate, weaken};
use crate::{Reason, cost};

/// A scan in the making.
#[derive(Debug)]
pub struct ScanBuilder {
    node: Arc<StorageNode>,
    spec: ScanSpec,
    /// Names and types of the output.
    schema: SchemaRef,
    partitions: usize,
    /// What the columns of the next expressions are.
    scope: Scope,
    /// The Program of `spec`, until that is changed.
    program: Option<Arc<VerifiedProgram>>,
}

impl ScanBuilder {
    /// A scan that gives nothing yet; expressions come over `schema`, the table's columns.
    pub fn of_table(
        node: Arc<StorageNode>,
        spec: ScanSpec,
        schema: SchemaRef,
        partitions: usize,
    ) -> Self {
        Self {
            node,
            spec,
            schema: Arc::new(Schema::empty()),
            partitions,
            scope: Scope::of_table(schema),
            program: None,
        }
    }

    /// A scan that does more than `scan`; expressions come over its output.
    pub fn of_scan(scan: &FlashScanExec) -> Self {
        Self {
            node: Arc::clone(scan.node()),
            spec: scan.spec().clone(),
            schema: scan.schema(),
            partitions: scan.partitions(),
            scope: scope_of(scan.spec(), scan.schema()),
            program: Some(Arc::clone(scan.program())),
        }
    }

    /// What the scan does so far.
    pub fn spec(&self) -> &ScanSpec {
        &self.spec
    }

    /// What the columns of the next expressions are.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The next expressions come over what a projection of the present scope gives; it stays
    /// where it is.
    pub fn through(mut self, projection: &ProjectionExec) -> Self {
        let exprs = projection.expr().iter().map(|p| p.expr.as_ref());
        self.scope = self.scope.project(exprs, projection.schema());
        self
    }

    /// The scan.
    pub fn build(mut self) -> Result<FlashScanExec, Reason> {
        let program = match self.program.take() {
            Some(program) => program,
            None => self.spec.verified(&self.node)?,
        };
        let Self { node, spec, .. } = self;
        FlashScanExec::new(spec, node, program, self.schema, self.partitions)
    }

    /// Gives back these columns of the table.
    ///
    /// # Errors
    /// For columns that it does not have.
    pub fn columns(&mut self, ordinals: &[usize]) -> Result<()> {
        self.schema = Arc::new(self.scope.schema().project(ordinals)?);
        let names = self.schema.fields().iter().map(|field| field.name());
        let text = OutputText {
            columns: names.cloned().collect(),
            ..OutputText::default()
        };
        let output = Output::Rows {
            exprs: ordinals.iter().map(|o| Expr::Column(*o as u32)).collect(),
            order: vec![],
            limit: None,
        };
        self.set_output(output, text);
        Ok(())
    }

    /// Adds conjuncts to the filter. For each comes back why it has to stay above; where a weaker
    /// one translates, that prunes below it.
    pub fn filter(&mut self, conjuncts: &[&Arc<dyn PhysicalExpr>]) -> Vec<Option<Reason>> {
        let mut reasons = Vec::with_capacity(conjuncts.len());
        let mut candidates = Vec::new();
        for (place, conjunct) in conjuncts.iter().enumerate() {
            let (expr, reason) = self.read_filter(conjunct.as_ref());
            if let Some(expr) = expr {
                let filter = PushedFilter {
                    expr,
                    text: text_of(conjunct.as_ref()),
                    exact: reason.is_none(),
                };
                candidates.push((place, filter));
            }
            reasons.push(reason);
        }
        if candidates.is_empty() {
            return reasons;
        }
        let known = self.spec.filters.len();
        let all = candidates.iter().map(|(_, filter)| filter.clone());
        self.spec.filters.extend(all);
        if self.verify().is_ok() {
            return reasons;
        }
        // Some are refused: which?
        self.spec.filters.truncate(known);
        for (place, filter) in candidates {
            self.spec.filters.push(filter);
            if let Err(reason) = self.verify() {
                self.spec.filters.pop();
                // That a weaker one prunes less than it could is no failure.
                reasons[place].get_or_insert(reason);
            }
        }
        reasons
    }

    /// A conjunct, or a weaker one together with the reason.
    fn read_filter(&self, conjunct: &dyn PhysicalExpr) -> (Option<Expr>, Option<Reason>) {
        if self.spec.mode == Pushdown::Never {
            return (None, Some(Reason::Off));
        }
        if !self.spec.output_accepts_filters() {
            let what = "it filters what a limit or an aggregate gives";
            return (None, Some(Reason::Blocked(what.into())));
        }
        match translate(conjunct, &self.scope) {
            Ok(exact) => (Some(exact), None),
            Err(reason) => {
                let weaker = weaken(conjunct, &self.scope);
                // The optimizer offers a filter that stayed above again.
                let is_new = |expr: &Expr| self.spec.filters.iter().all(|f| f.expr != *expr);
                (weaker.filter(is_new), Some(reason))
            }
        }
    }

    /// Adds a filter that changes while the query runs, if runtime filters of the store can do
    /// anything with it. It has to stay above too: they may come late and let more rows pass.
    pub fn dynamic_filter(&mut self, expr: &Arc<dyn PhysicalExpr>) {
        let columns = (0..self.scope.schema().fields().len()).map(|i| self.scope.ordinal(i));
        let ordinals: Vec<Option<u32>> = columns.collect();
        let mut read = collect_columns(expr).into_iter();
        if self.spec.mode != Pushdown::Never
            && self.spec.output_accepts_filters()
            && read.any(|column| matches!(ordinals.get(column.index()), Some(Some(_))))
        {
            self.spec.dynamic_filters.push(DynamicFilter {
                expr: Arc::clone(expr),
                schema: Arc::clone(self.scope.schema()),
                ordinals,
            });
        }
    }

    /// Gives back what a projection of the output computes, unless that is expected to make the
    /// rows wider.
    pub fn project(&mut self, projection: &ProjectionExec) -> Result<(), Reason> {
        let Output::Rows {
            exprs: known,
            order,
            limit,
        } = &self.spec.output
        else {
            return Err(Reason::Blocked("the scan gives aggregates".into()));
        };
        let schema = projection.schema();
        let mut exprs = Vec::with_capacity(projection.expr().len());
        let mut columns = Vec::with_capacity(projection.expr().len());
        for (projected, field) in projection.expr().iter().zip(schema.fields()) {
            let expr = translate(projected.expr.as_ref(), &self.scope)?;
            is_program_type(field)?;
            let (text, name) = (text_of(projected.expr.as_ref()), &projected.alias);
            columns.push(match &expr {
                Expr::Column(_) => name.clone(),
                _ => format!("{text} as {name}"),
            });
            exprs.push(expr);
        }
        if exprs.iter().any(|e| !matches!(e, Expr::Column(_))) {
            match self.spec.mode {
                Pushdown::Never => return Err(Reason::Off),
                Pushdown::Auto
                    if self.spec.width_bytes(&exprs, &schema)
                        > self.spec.width_bytes(known, &self.schema) =>
                {
                    return Err(Reason::Cost("the rows would be wider".into()));
                }
                _ => {}
            }
        }
        // The keys of a top-k must still be there.
        let place_of = |key: &SortKey| {
            let place = exprs.iter().position(|e| *e == known[key.output as usize]);
            let place =
                place.ok_or_else(|| Reason::Blocked("it drops a key of the order".into()))?;
            Ok(SortKey {
                output: place as u32,
                ..*key
            })
        };
        let order = order.iter().map(place_of).collect::<Result<_, Reason>>()?;
        let limit = *limit;
        let text = OutputText {
            columns,
            ..self.spec.text.clone()
        };
        let output = Output::Rows {
            exprs,
            order,
            limit,
        };
        self.set_output(output, text);
        self.schema = schema;
        self.scope = scope_of(&self.spec, Arc::clone(&self.schema));
        Ok(())
    }

    /// Gives back no more than so many rows in each stream.
    pub fn limit(&mut self, rows: usize) -> Result<(), Reason> {
        if self.spec.mode == Pushdown::Never {
            return Err(Reason::Off);
        }
        let Output::Rows { limit, .. } = &mut self.spec.output else {
            return Err(Reason::Blocked("the scan gives aggregates".into()));
        };
        let rows = rows as u64;
        *limit = Some(limit.map_or(rows, |known| known.min(rows)));
        self.program = None;
        Ok(())
    }

    /// Gives back the first `limit` rows of an order over the scope, in each stream. A key that
    /// is no column of the output comes behind those that are.
    pub fn top_k(&mut self, keys: &LexOrdering, limit: usize) -> Result<(), Reason> {
        if self.spec.mode == Pushdown::Never {
            return Err(Reason::Off);
        }
        if self.spec.mode == Pushdown::Auto && limit > cost::TOP_K_LIMIT {
            return Err(Reason::Cost(format!(
                "{limit} rows would be held beside the pages"
            )));
        }
        let Output::Rows { exprs, .. } = &self.spec.output else {
            return Err(Reason::Blocked("the scan gives aggregates".into()));
        };
        let mut exprs = exprs.clone();
        let mut fields: Vec<FieldRef> = self.schema.fields().iter().cloned().collect();
        let mut text = self.spec.text.clone();
        let mut order = Vec::with_capacity(keys.len());
        for key in keys.iter() {
            let expr = translate(key.expr.as_ref(), &self.scope)?;
            let place = match exprs.iter().position(|known| *known == expr) {
                Some(place) => place,
                None => {
                    let field = key.expr.return_field(self.scope.schema());
                    let field = field.map_err(|e| Reason::Operator(e.strip_backtrace()))?;
                    is_program_type(&field)?;
                    let name = text_of(key.expr.as_ref());
                    fields.push(Arc::new(field.as_ref().clone().with_name(&name)));
                    text.columns.push(name);
                    exprs.push(expr);
                    exprs.len() - 1
                }
            };
            order.push(SortKey {
                output: place as u32,
                descending: key.options.descending,
                nulls_first: key.options.nulls_first,
            });
            text.order.push(key.to_string());
        }
        let limit = Some(limit as u64);
        let output = Output::Rows {
            exprs,
            order,
            limit,
        };
        self.set_output(output, text);
        self.schema = Arc::new(Schema::new(fields));
        Ok(())
    }

    /// Gives back partial states of aggregates, in columns that `schema` names.
    pub fn aggregate(
        &mut self,
        keys: Vec<Expr>,
        aggregates: Vec<Aggregate>,
        null_for_zero: Vec<usize>,
        text: OutputText,
        schema: SchemaRef,
    ) {
        self.set_output(Output::Aggregate { keys, aggregates }, text);
        self.spec.null_for_zero = null_for_zero;
        self.schema = schema;
    }

    /// Gives back text in plain arrays.
    pub fn plain_text(&mut self) {
        self.spec.plain_text = true;
        self.schema = plain_schema(&self.schema);
    }

    /// Notes what stayed above, and why.
    pub fn note(&mut self, text: String, reason: Reason) {
        self.spec.note(text, reason);
    }

    fn set_output(&mut self, output: Output, text: OutputText) {
        self.spec.output = output;
        self.spec.text = text;
        self.program = None;
    }

    fn verify(&mut self) -> Result<(), Reason> {
        self.program = Some(self.spec.verified(&self.node)?);
        Ok(())
    }
}

/// What the columns of a scan's output are.
fn scope_of(spec: &ScanSpec, schema: SchemaRef) -> Scope {
    let columns = spec.output_columns().into_iter().map(|expr| {
        let aggregate = || Reason::Blocked("it reads an aggregate".into());
        expr.cloned().ok_or_else(aggregate)
    });
    Scope::new(schema, columns.collect())
}

fn is_program_type(field: &FieldRef) -> Result<(), Reason> {
    match field.data_type() {
        data_type if program_type(data_type) == *data_type => Ok(()),
        data_type => Err(Reason::Type(data_type.clone())),
    }
}
