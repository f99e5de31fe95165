//! Vectors said as Programs: what a kernel computes for arrays, a Program must say of a table with
//! the same values. The interpreter and the cpu accelerator are held against that.
//!
//! The modules below translate a kernel's calls; a call that no Program can say is passed over,
//! with the reason.

mod aggregate;
mod comparisons;
mod nearest;
mod search;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, UInt32Type};
use flashmesh_pushdown::{
    AggregateFunction, CompareOp, Expr, InputColumn, Limits, Literal, Output, Program, Scalar,
    interpreter, verify,
};

use super::common::TestTable;
use super::kernels::named;
use super::vectors::Call;

/// Compares what a Program gives with what a vector expects.
type Check = Box<dyn Fn(&RecordBatch) -> Result<(), String>>;

/// A call as a Program over a table, and what must come of it.
pub struct Statement {
    pub batch: RecordBatch,
    pub program: Program,
    pub check: Check,
}

/// A statement, or why there is none.
type Said = Result<Statement, &'static str>;

/// Says a call as Programs: most as one.
type Say = fn(&Call) -> Vec<Said>;

/// The kernels that have a Program's counterpart, and how many of their calls can be said at
/// least, so that none is passed over by mistake.
const COUNTERPARTS: [(&str, Say, usize); 7] = [
    ("fair_price", comparisons::fair_price, 8),
    ("fgrep8", search::fgrep8, 8),
    ("hamming_nearest", nearest::hamming_nearest, 23),
    ("morris_pratt", search::morris_pratt, 60),
    ("partial_aggregate", aggregate::partial_aggregate, 14),
    ("predicate_filter", comparisons::predicate_filter, 100),
    ("price_band", comparisons::price_band, 9),
];

/// The words of an array of `N` bytes each.
fn words<const N: usize>(bytes: &[u8]) -> Vec<[u8; N]> {
    bytes.as_chunks().0.to_vec()
}

fn u32s(bytes: &[u8]) -> Vec<u32> {
    words(bytes).into_iter().map(u32::from_le_bytes).collect()
}

fn u64s(bytes: &[u8]) -> Vec<u64> {
    words(bytes).into_iter().map(u64::from_le_bytes).collect()
}

fn i64s(bytes: &[u8]) -> Vec<i64> {
    words(bytes).into_iter().map(i64::from_le_bytes).collect()
}

fn f64s(bytes: &[u8]) -> Vec<f64> {
    words(bytes).into_iter().map(f64::from_le_bytes).collect()
}

fn is_set(bitmap: &[u64], row: usize) -> bool {
    bitmap[row / 64] >> (row % 64) & 1 == 1
}

/// A table of these columns, and one more that numbers the rows; a Program's columns for it.
fn table(columns: Vec<ArrayRef>, rows: u32) -> (RecordBatch, Vec<InputColumn>) {
    let row: ArrayRef = Arc::new(UInt32Array::from_iter_values(0..rows));
    let columns: Vec<ArrayRef> = columns.into_iter().chain([row]).collect();
    let input: Vec<InputColumn> = (0..)
        .zip(&columns)
        .map(|(ordinal, array)| InputColumn {
            ordinal,
            name: format!("x{ordinal}"),
            data_type: array.data_type().clone(),
            nullable: array.null_count() > 0,
        })
        .collect();
    let fields = input
        .iter()
        .map(|c| Field::new(&c.name, c.data_type.clone(), c.nullable));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let options = RecordBatchOptions::new().with_row_count(Some(rows as usize));
    let batch = RecordBatch::try_new_with_options(schema, columns, &options).unwrap();
    (batch, input)
}

fn column(index: u32) -> Box<Expr> {
    Box::new(Expr::Column(index))
}

fn literal(value: Scalar, data_type: DataType) -> Box<Expr> {
    Box::new(Expr::Literal(Literal { value, data_type }))
}

fn compare(op: CompareOp, left: Box<Expr>, right: Box<Expr>) -> Expr {
    Expr::Compare { op, left, right }
}

fn all_rows(exprs: Vec<Expr>) -> Output {
    Output::Rows {
        exprs,
        order: Vec::new(),
        limit: None,
    }
}

/// The table's rows that pass the conjuncts must be those of a bitmap.
fn selection(columns: Vec<ArrayRef>, rows: u32, filter: Vec<Expr>, selected: &[u8]) -> Statement {
    let (batch, columns) = table(columns, rows);
    let row = columns.len() as u32 - 1;
    let selected = u64s(selected);
    let expected: Vec<u32> = (0..rows)
        .filter(|row| is_set(&selected, *row as usize))
        .collect();
    Statement {
        batch,
        program: Program {
            columns,
            filter,
            output: all_rows(vec![Expr::Column(row)]),
        },
        check: Box::new(move |output| {
            let mut found = output
                .column(0)
                .as_primitive::<UInt32Type>()
                .values()
                .to_vec();
            found.sort_unstable();
            same(&found, &expected, "rows")
        }),
    }
}

fn same<T: PartialEq + std::fmt::Debug>(found: &T, expected: &T, what: &str) -> Result<(), String> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{what}: {found:?}, expected {expected:?}")),
    }
}

/// What runs a Program over a batch.
type Runner = fn(&Statement, &Program) -> Result<RecordBatch, String>;

fn on_interpreter(statement: &Statement, program: &Program) -> Result<RecordBatch, String> {
    interpreter::run(program, std::slice::from_ref(&statement.batch)).map_err(|e| e.to_string())
}

/// Through the store: encoded pages, in two segments.
fn on_cpu(statement: &Statement, program: &Program) -> Result<RecordBatch, String> {
    let rows = statement.batch.num_rows();
    let half = rows / 2;
    let parts = [
        statement.batch.slice(0, half),
        statement.batch.slice(half, rows - half),
    ];
    let table = TestTable::new(parts.into());
    let verified = verify(program.clone(), &table.snapshot.schema, &LIMITS)
        .map_err(|error| error.to_string())?;
    let output = table
        .run(Arc::new(verified), &[], 1, 8192)
        .map_err(|error| error.to_string())?;
    concat_batches(&program.output_schema(), &output).map_err(|error| error.to_string())
}

/// A predicate_filter of 256 instructions is as deep as that.
const LIMITS: Limits = Limits {
    depth: 300,
    nodes: 1 << 16,
    columns: 64,
    outputs: 64,
    in_list_values: 0,
    pattern_bytes: 1 << 10,
    regexes: 0,
    regex_bytes: 0,
    needles: 8,
    group_keys: 1,
    aggregates: 8,
    top_k_rows: 1 << 12,
    queries: 1,
    bytes: 1 << 20,
    runtime_filter_bytes: 0,
};

/// The statements of a kernel's calls.
fn statements(kernel: &str, say: Say) -> Vec<(String, Statement)> {
    let mut statements = Vec::new();
    let mut passed_over: BTreeMap<&str, usize> = BTreeMap::new();
    for case in &named(kernel).vectors.cases {
        for said in case.calls.iter().flat_map(say) {
            match said {
                Ok(statement) => {
                    let schema = statement.batch.schema();
                    verify(statement.program.clone(), &schema, &LIMITS)
                        .unwrap_or_else(|e| panic!("{kernel}, case {}: {e}", case.title));
                    statements.push((case.title.clone(), statement));
                }
                Err(reason) => *passed_over.entry(reason).or_default() += 1,
            }
        }
    }
    println!(
        "{kernel}: {} Programs; not said: {passed_over:?}",
        statements.len()
    );
    statements
}

fn programs_give_what_vectors_expect(run: Runner) {
    let mut problems = Vec::new();
    for (kernel, say, at_least) in COUNTERPARTS {
        let statements = statements(kernel, say);
        assert!(statements.len() >= at_least, "{kernel}");
        for (title, statement) in &statements {
            let outcome = run(statement, &statement.program).and_then(|o| (statement.check)(&o));
            if let Err(problem) = outcome {
                problems.push(format!("{kernel}, case {title}: {problem}"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// A Program that is wrong in one place must not give what the vectors expect.
fn changed_programs_fail(run: Runner) {
    for (kernel, say, _) in COUNTERPARTS {
        let (mut changed, mut caught) = (0, 0);
        for (_, statement) in statements(kernel, say) {
            let mut program = statement.program.clone();
            if change(&mut program) {
                changed += 1;
                let outcome = run(&statement, &program).and_then(|o| (statement.check)(&o));
                caught += usize::from(outcome.is_err());
            }
        }
        println!("{kernel}: {caught} of {changed} changed Programs are caught");
        assert!(caught > 0, "{kernel}: no changed Program is caught");
    }
}

#[test]
fn the_interpreter_gives_what_vectors_expect() {
    programs_give_what_vectors_expect(on_interpreter);
}

#[test]
fn the_cpu_accelerator_gives_what_vectors_expect() {
    programs_give_what_vectors_expect(on_cpu);
}

#[test]
fn changed_programs_fail_on_the_interpreter() {
    changed_programs_fail(on_interpreter);
}

#[test]
fn changed_programs_fail_on_the_cpu_accelerator() {
    changed_programs_fail(on_cpu);
}

/// Makes a Program wrong in the first place that there is: `<=` becomes `<`, a needle has another
/// byte, a search for k rows gives one less, a minimum is a maximum.
fn change(program: &mut Program) -> bool {
    if let Output::Nearest { k, .. } = &mut program.output
        && *k > 1
    {
        *k -= 1;
        return true;
    }
    if let Output::Aggregate { aggregates, .. } = &mut program.output {
        let mut functions = aggregates
            .iter_mut()
            .map(|aggregate| &mut aggregate.function);
        let minimum = functions.find(|function| **function == AggregateFunction::Min);
        return minimum.is_some_and(|function| {
            *function = AggregateFunction::Max;
            true
        });
    }
    let outputs: &mut [Expr] = match &mut program.output {
        Output::Rows { exprs, .. } => exprs,
        Output::Aggregate { .. } | Output::Nearest { .. } => &mut [],
    };
    program.filter.iter_mut().chain(outputs).any(change_expr)
}

fn change_expr(expr: &mut Expr) -> bool {
    match expr {
        Expr::Compare { op, .. } => {
            *op = match op {
                CompareOp::Eq => CompareOp::NotEq,
                CompareOp::NotEq => CompareOp::Eq,
                CompareOp::Lt => CompareOp::LtEq,
                CompareOp::LtEq => CompareOp::Lt,
                CompareOp::Gt => CompareOp::GtEq,
                CompareOp::GtEq => CompareOp::Gt,
            };
            true
        }
        Expr::Position { needle, .. } => change_needle(needle),
        Expr::ContainsAny { needles, .. } => needles.iter_mut().any(change_needle),
        _ => {
            let mut is_changed = false;
            expr.for_each_child_mut(&mut |child| is_changed = is_changed || change_expr(child));
            is_changed
        }
    }
}

fn change_needle(needle: &mut String) -> bool {
    let Some(last) = needle.pop() else {
        return false;
    };
    needle.push(if last == 'a' { 'b' } else { 'a' });
    true
}
