//! Scalar functions that are written in SQL: those of other databases that are said by what DataFusion has.
//!
//! A call stays a call until plans are simplified, so that its column is called as it was written. Then its
//! body stands in its place, which filters of scans, zone maps and the store know. Where that would compute
//! an argument more than once, it stays a call, which computes the body over the arguments' values.

mod list;

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock, OnceLock};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchema, DFSchemaRef, Result, plan_err};
use datafusion::execution::{SessionState, SessionStateBuilder, SessionStateDefaults};
use datafusion::functions::utils::make_scalar_function;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ExprSchemable, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::PhysicalExpr;
use parking_lot::Mutex;

use self::list::{FUNCTIONS, Text};
use crate::failing::Failing;
use crate::functions::scalar_functions;
use crate::hidden;
use crate::rules::date_part;
use crate::walk::Walk as _;

/// Bodies that a function keeps.
const MOST_BODIES: usize = 256;

/// The functions, to stand beside DataFusion's.
pub fn functions() -> Vec<Arc<ScalarUDF>> {
    static ALL: LazyLock<Vec<Arc<ScalarUDF>>> = LazyLock::new(|| {
        let all = FUNCTIONS.iter();
        let all = all.map(|text| ScalarUDF::from(Written::new(text)));
        let failing = ScalarUDF::from(Failing::new());
        all.chain([failing]).map(Arc::new).collect()
    });
    ALL.clone()
}

/// What bodies are planned with: scalar functions, themselves among them, and no more.
static PLANNER: LazyLock<SessionState> = LazyLock::new(|| {
    let mut known = SessionStateDefaults::default_scalar_functions();
    known.extend(functions().into_iter().chain(scalar_functions()));
    known.extend(hidden::functions());
    known.push(date_part());
    SessionStateBuilder::new()
        .with_scalar_functions(known)
        .with_expr_planners(SessionStateDefaults::default_expr_planners())
        .build()
});

/// A function.
#[derive(Debug)]
struct Written {
    text: &'static Text,
    aliases: Vec<String>,
    signature: Signature,
    documentation: Documentation,
    /// Its bodies by the types of the arguments that were asked for.
    bodies: Mutex<HashMap<Vec<DataType>, Arc<Body>>>,
}

/// A body for arguments of certain types, all operands of the types that its functions take.
#[derive(Debug)]
struct Body {
    /// The parameters as columns.
    parameters: DFSchemaRef,
    expr: Expr,
    /// What computes it.
    operator: OnceLock<Arc<dyn PhysicalExpr>>,
}

impl PartialEq for Written {
    fn eq(&self, other: &Self) -> bool {
        self.text.name == other.text.name
    }
}

impl Eq for Written {}

impl Hash for Written {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.name.hash(state);
    }
}

impl Written {
    fn new(text: &'static Text) -> Self {
        let calls = text.bodies.iter().map(|(parameters, _)| {
            let parameters = parameters.join(", ");
            format!("{}({parameters})", text.name)
        });
        let calls: Vec<_> = calls.collect();
        let bodies = text.bodies.iter().map(|(_, body)| format!("`{body}`"));
        let says = format!("{}: {}", text.says, bodies.collect::<Vec<_>>().join(", "));
        let section = datafusion::logical_expr::DocSection::default();
        let documentation = Documentation::builder(section, says, calls.join(", "));
        Self {
            text,
            aliases: text.aliases.iter().map(ToString::to_string).collect(),
            signature: Signature::user_defined(Volatility::Immutable),
            documentation: documentation.build(),
            bodies: Mutex::default(),
        }
    }

    /// The body for arguments of these types.
    fn body(&self, types: &[DataType]) -> Result<Arc<Body>> {
        if let Some(body) = self.bodies.lock().get(types) {
            return Ok(Arc::clone(body));
        }
        let Some((parameters, text)) = self.text.body(types) else {
            let call = &self.documentation.syntax_example;
            return plan_err!("{} takes: {call}", self.text.name);
        };
        for (parameter, given) in parameters.iter().zip(types) {
            if !self.text.takes.has(given) {
                return plan_err!(
                    "{}: {parameter} is {}, not {given}",
                    self.text.name,
                    self.text.takes.says()
                );
            }
        }
        let fields = parameters.iter().zip(types);
        let fields = fields.map(|(name, of)| Field::new(*name, of.clone(), true));
        let schema = Schema::new(fields.collect::<Vec<_>>());
        let parameters = Arc::new(DFSchema::try_from(schema)?);
        let expr = PLANNER.create_logical_expr(text, &parameters)?;
        let simplifier = simplifier(&parameters);
        let expr = simplifier.coerce(expr, &parameters)?;
        // Functions that only stand for an expression are that.
        let expr = simplifier.simplify(expr)?;
        let body = Arc::new(Body {
            parameters,
            expr,
            operator: OnceLock::new(),
        });
        let mut bodies = self.bodies.lock();
        // Types may have names in them that users choose.
        if bodies.len() >= MOST_BODIES {
            bodies.clear();
        }
        bodies.insert(types.to_vec(), Arc::clone(&body));
        Ok(body)
    }
}

fn simplifier(schema: &DFSchemaRef) -> ExprSimplifier {
    let context = SimplifyContext::builder().with_schema(Arc::clone(schema));
    ExprSimplifier::new(context.build())
}

impl Body {
    fn operator(&self) -> Result<&Arc<dyn PhysicalExpr>> {
        if let Some(operator) = self.operator.get() {
            return Ok(operator);
        }
        let operator = PLANNER.create_physical_expr(self.expr.clone(), &self.parameters)?;
        Ok(self.operator.get_or_init(|| operator))
    }

    /// Which parameter an expression is.
    fn parameter(&self, expr: &Expr) -> Option<usize> {
        match expr {
            Expr::Column(column) => self.parameters.maybe_index_of_column(column),
            _ => None,
        }
    }

    /// The body with arguments in the places of its parameters, unless one that is computed would be so
    /// more than once.
    fn with(&self, args: &[Expr]) -> Result<Option<Expr>> {
        // Constants first: they may decide between the branches of a CASE.
        let is_constant = |arg: &Expr| matches!(arg, Expr::Literal(..));
        let with_constants = self.replaced(self.expr.clone(), args, is_constant)?;
        let expr = simplifier(&self.parameters).simplify(with_constants)?;
        let mut uses = vec![0; args.len()];
        expr.apply(|part| {
            if let Some(at) = self.parameter(part) {
                uses[at] += 1;
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        let is_free = |arg: &Expr| matches!(arg, Expr::Column(_) | Expr::Literal(..));
        let mut all = args.iter().zip(&uses);
        match all.all(|(arg, uses)| *uses == 1 || is_free(arg)) {
            true => self.replaced(expr, args, |_| true).map(Some),
            false => Ok(None),
        }
    }

    fn replaced(&self, expr: Expr, args: &[Expr], which: impl Fn(&Expr) -> bool) -> Result<Expr> {
        let expr = expr.transform_up(|part| {
            let arg = self.parameter(&part).map(|at| &args[at]);
            Ok(match arg.filter(|arg| which(arg)) {
                Some(arg) => Transformed::yes(arg.clone()),
                None => Transformed::no(part),
            })
        })?;
        Ok(expr.data)
    }
}

impl ScalarUDFImpl for Written {
    fn name(&self) -> &str {
        self.text.name
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    // Which types it takes `return_type` says, whose errors are not wrapped.
    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        Ok(types.to_vec())
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        let body = self.body(types)?;
        body.expr.get_type(&body.parameters)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let types = args
            .arg_fields
            .iter()
            .map(|field| field.data_type().clone());
        let types: Vec<_> = types.collect();
        Ok(Arc::new(Field::new(
            self.name(),
            self.return_type(&types)?,
            true,
        )))
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let types = args.iter().map(|arg| info.get_data_type(arg));
        let types = types.collect::<Result<Vec<_>>>()?;
        Ok(match self.body(&types)?.with(&args)? {
            Some(expr) => ExprSimplifyResult::Simplified(expr),
            None => ExprSimplifyResult::Original(args),
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let types = args
            .arg_fields
            .iter()
            .map(|field| field.data_type().clone());
        let types: Vec<_> = types.collect();
        let body = self.body(&types)?;
        let operator = body.operator()?;
        let computed = |columns: &[ArrayRef]| {
            let schema = Arc::clone(body.parameters.inner());
            let batch = RecordBatch::try_new(schema, columns.to_vec())?;
            operator.evaluate(&batch)?.into_array(batch.num_rows())
        };
        make_scalar_function(computed, Vec::new())(&args.args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types of each kind that functions take.
    fn kinds() -> Vec<DataType> {
        use arrow::datatypes::IntervalUnit;
        use arrow::datatypes::TimeUnit::*;
        let list = Field::new_list_field(DataType::Int64, true);
        let entry = [("keys", false), ("values", true)];
        let entry = entry.map(|(name, nullable)| Field::new(name, DataType::Int64, nullable));
        let entry = Field::new_struct("entries", entry.to_vec(), false);
        vec![
            DataType::Timestamp(Nanosecond, None),
            DataType::Timestamp(Microsecond, None),
            DataType::Timestamp(Second, None),
            DataType::Interval(IntervalUnit::MonthDayNano),
            DataType::Date32,
            DataType::Utf8,
            DataType::Float64,
            DataType::Int64,
            DataType::List(Arc::new(list)),
            DataType::Map(Arc::new(entry), false),
        ]
    }

    #[test]
    fn each_body_can_be_planned_for_some_types() {
        for function in functions() {
            let Some(function) = function.inner().downcast_ref::<Written>() else {
                continue;
            };
            let kinds = kinds();
            let bodies = function.text.bodies.iter().copied();
            let special = function.text.special.iter();
            let bodies = bodies.chain(special.map(|(_, parameters, body)| (*parameters, *body)));
            for (parameters, body) in bodies {
                let count = kinds.len().pow(parameters.len().min(4) as u32);
                let planned = (0..count).any(|choice| {
                    let kind = |at: usize| {
                        kinds[choice / kinds.len().pow(at.min(3) as u32) % kinds.len()].clone()
                    };
                    let types: Vec<_> = (0..parameters.len()).map(kind).collect();
                    function
                        .text
                        .body(&types)
                        .is_some_and(|(_, chosen)| chosen == body)
                        && function.return_type(&types).is_ok()
                });
                assert!(planned, "{}: {body}", function.text.name);
            }
        }
    }

    #[test]
    fn no_name_is_one_of_datafusions() {
        let known = SessionStateBuilder::new().with_default_features().build();
        for function in functions() {
            for name in
                std::iter::once(function.name().to_string()).chain(function.aliases().to_vec())
            {
                assert!(!known.scalar_functions().contains_key(&name), "{name}");
                assert!(!known.aggregate_functions().contains_key(&name), "{name}");
                assert!(!known.window_functions().contains_key(&name), "{name}");
            }
        }
    }
}
