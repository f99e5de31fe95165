//! `flashmesh kernel test`: a kernel against its reference, on random data.
//!
//! The kernel is registered in a temporary database and called in SQL, beside the pages and above
//! the scan, and on the device model where that is built; `test.reference` of its manifest is the SQL expression that it has to equal.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use crate::{Engine, EngineOptions, Error, Result, Session};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Float64Type, Schema};
use arrow::util::display::array_value_to_string;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, ScalarValue};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::{Expr, col, lit, when};
use flashmesh_planner::walk::Walk as _;
use flashmesh_storage::accelerator::xrt::emulation_folder;
use flashmesh_storage::kernel::{Kind, Manifest, Nulls, Signature};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

use super::super::arguments::{
    KernelBuildArguments, KernelContainerArguments, KernelTestArguments,
};
use super::build::compile;
use super::device;
use super::files::read_manifest;

/// Numbers of rows that are tried: the borders of bitmaps' words, of calls, and more than one call.
const ROWS: [usize; 7] = [0, 1, 63, 64, 65, 8192, 20_000];
/// Share of NULL among the values of columns.
const NULL_SHARE: f64 = 0.1;
/// The column by which aggregates are grouped.
const GROUP: &str = "group_of_the_test";
/// The table that the kernel is called over.
const TABLE: &str = "rows_of_the_test";

pub(super) async fn run(arguments: &KernelTestArguments) -> Result<ExitCode> {
    let mut failed = false;
    for folder in &arguments.folders {
        let (manifest, text) = read_manifest(folder)?;
        let options = KernelBuildArguments::default();
        let package = compile(folder, &manifest, text, &options)?;
        let seed = arguments.seed.unwrap_or_else(|| rand::rng().random());
        let work = tempfile::tempdir().map_err(|e| Error::io("making a temporary folder", e))?;
        let device = device_container(folder, &manifest, work.path())?;
        let places = match device {
            Some(_) => "beside the pages, above the scan and on the device model",
            None => "beside the pages and above the scan",
        };
        let package = package.to_bytes();
        match test(folder, &manifest, &package, device.as_deref(), seed).await? {
            None => println!(
                "{}: no test.reference in its manifest; it compiles and loads",
                manifest.name
            ),
            Some(Ok(rows)) => println!(
                "{}: {rows} results equal the reference, {places} (seed {seed})",
                manifest.name
            ),
            Some(Err(difference)) => {
                failed = true;
                println!("{}: DIFFERS (seed {seed}): {difference}", manifest.name);
            }
        }
    }
    Ok(match failed {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// The number of results compared, or the first difference; `None` without a reference.
async fn test(
    folder: &Path,
    manifest: &Manifest,
    package: &[u8],
    device: Option<&Path>,
    seed: u64,
) -> Result<Option<std::result::Result<usize, String>>> {
    let engine = Engine::open(EngineOptions {
        container: device.map(Path::to_path_buf),
        ..EngineOptions::default()
    })?;
    let session = engine.session()?;
    for callee in &manifest.calls {
        // Kernels that it calls stand beside it.
        let beside = folder.join("..").join(callee);
        let (called, text) = read_manifest(&beside)?;
        let package = compile(&beside, &called, text, &KernelBuildArguments::default())?;
        register(&session, callee, &package.to_bytes()).await?;
    }
    register(&session, &manifest.name, package).await?;
    let (Some(test), Some(signature)) = (&manifest.test, &manifest.signature) else {
        return Ok(None);
    };
    let mut random = StdRng::seed_from_u64(seed);
    let mut compared = 0;
    for rows in ROWS {
        let batch = random_rows(signature, rows, &mut random)?;
        let constants = random_constants(signature, &mut random)?;
        session.context().register_batch("made", batch)?;
        let sql = format!("CREATE OR REPLACE TABLE {TABLE} AS SELECT * FROM made");
        session.sql(&sql).await?;
        session.context().deregister_table("made")?;
        let places = [("always", "cpu"), ("never", "cpu"), ("always", "xrt")];
        for (pushdown, accelerator) in &places[..if device.is_some() { 3 } else { 2 }] {
            for setting in [
                format!("SET flashmesh.pushdown = '{pushdown}'"),
                format!("SET flashmesh.accelerator = '{accelerator}'"),
            ] {
                session.sql(&setting).await?;
            }
            let results = results(&session, manifest, &test.reference, &constants).await?;
            match difference(&results, test.tolerance) {
                Some(difference) => {
                    return Ok(Some(Err(format!(
                        "{rows} rows, pushdown = {pushdown}, accelerator = {accelerator}: {difference}"
                    ))));
                }
                None => compared += results.iter().map(RecordBatch::num_rows).sum::<usize>(),
            }
        }
    }
    Ok(Some(Ok(compared)))
}

/// The kernel in a container for the device model, where the model is there and the kernel can be
/// pushed to it.
fn device_container(folder: &Path, manifest: &Manifest, work: &Path) -> Result<Option<PathBuf>> {
    let is_pushed = matches!(
        manifest.kind,
        Kind::Scalar | Kind::Filter | Kind::Search | Kind::Distance
    );
    let has_model = emulation_folder().is_ok_and(|folder| folder.is_dir());
    if !is_pushed || !has_model {
        return Ok(None);
    }
    let called = manifest
        .calls
        .iter()
        .map(|callee| folder.join("..").join(callee));
    let output = work.join(format!("{}.xclbin", manifest.name));
    device::container(&KernelContainerArguments {
        folders: std::iter::once(folder.to_path_buf())
            .chain(called)
            .collect(),
        output: output.clone(),
        include: Vec::new(),
    })?;
    Ok(Some(output))
}

async fn register(session: &Session, name: &str, package: &[u8]) -> Result<()> {
    let package = BASE64.encode(package);
    let sql = format!(
        "CREATE FUNCTION {name}() LANGUAGE hls AS 'data:application/wasm;base64,{package}'"
    );
    session.sql(&sql).await.map(|_| ())
}

/// The kernel's values and the reference's, in two columns.
async fn results(
    session: &Session,
    manifest: &Manifest,
    reference: &str,
    constants: &[(String, ScalarValue)],
) -> Result<Vec<RecordBatch>> {
    let context = session.context();
    let table = context.table(TABLE).await?;
    let constant = |name: &str| {
        let found = constants.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| lit(value.clone()))
    };
    let parameters = manifest.signature.iter().flat_map(|s| &s.parameters);
    let arguments = parameters
        .map(|parameter| {
            constant(&parameter.name)
                .unwrap_or_else(|| Expr::Column(Column::new_unqualified(&parameter.name)))
        })
        .collect::<Vec<_>>();
    // Constants are columns too, so that the reference can be parsed with their names.
    let mut named = table.clone();
    for (name, value) in constants {
        named = named.with_column(name, lit(value.clone()))?;
    }
    let reference = named.parse_sql_expr(reference)?;
    let reference = reference
        .transform_up(|expr| {
            Ok(match &expr {
                Expr::Column(column) => match constant(&column.name) {
                    Some(value) => Transformed::yes(value),
                    None => Transformed::no(expr),
                },
                _ => Transformed::no(expr),
            })
        })?
        .data;
    let state = context.state();
    let frame = match manifest.kind {
        Kind::Aggregate => {
            let kernel = state.udaf(&manifest.name)?.call(arguments);
            let group = || vec![col(GROUP)];
            let both = vec![kernel.alias("kernel"), reference.alias("reference")];
            let frame = table.aggregate(group(), both)?;
            frame.select(vec![col("kernel"), col("reference")])?
        }
        _ => {
            let columns = arguments.iter().filter(|a| matches!(a, Expr::Column(_)));
            let is_null = columns.map(|column| column.clone().is_null());
            let reference = match is_null.reduce(Expr::or) {
                Some(is_null) if manifest.nulls == Nulls::Strict => {
                    when(is_null, lit(ScalarValue::Null)).otherwise(reference)?
                }
                _ => reference,
            };
            let kernel = state.udf(&manifest.name)?.call(arguments);
            table.select(vec![kernel.alias("kernel"), reference.alias("reference")])?
        }
    };
    Ok(frame.collect().await?)
}

/// The first row in which the two columns differ.
fn difference(results: &[RecordBatch], tolerance: f64) -> Option<String> {
    for batch in results {
        let (kernel, reference) = (batch.column(0), batch.column(1));
        let reference = match arrow::compute::cast(reference, kernel.data_type()) {
            Ok(reference) => reference,
            Err(error) => return Some(format!("the reference has another type: {error}")),
        };
        for row in 0..batch.num_rows() {
            if !same(kernel, &reference, row, tolerance) {
                let show = |array: &ArrayRef| match array.is_null(row) {
                    true => "NULL".to_string(),
                    false => array_value_to_string(array, row).unwrap_or_default(),
                };
                return Some(format!(
                    "row {row}: the kernel gives {}, the reference {}",
                    show(kernel),
                    show(&reference)
                ));
            }
        }
    }
    None
}

fn same(left: &ArrayRef, right: &ArrayRef, row: usize, tolerance: f64) -> bool {
    if left.is_null(row) || right.is_null(row) {
        return left.is_null(row) && right.is_null(row);
    }
    if left.data_type().is_floating() {
        let as_f64 = |array: &ArrayRef| {
            let wide = arrow::compute::cast(&array.slice(row, 1), &DataType::Float64);
            wide.map_or(f64::NAN, |wide| wide.as_primitive::<Float64Type>().value(0))
        };
        let (left, right) = (as_f64(left), as_f64(right));
        return left == right
            || (left.is_nan() && right.is_nan())
            || (left - right).abs() <= tolerance * left.abs().max(right.abs());
    }
    left.slice(row, 1).to_data() == right.slice(row, 1).to_data()
}

/// Rows for the parameters that are not constant, with a group for aggregates.
fn random_rows(signature: &Signature, rows: usize, random: &mut StdRng) -> Result<RecordBatch> {
    let mut fields = Vec::new();
    let mut columns: Vec<ArrayRef> = Vec::new();
    for parameter in signature.parameters.iter().filter(|p| !p.constant) {
        fields.push(Field::new(
            &parameter.name,
            any_length(&parameter.data_type),
            true,
        ));
        columns.push(random_array(
            &any_length(&parameter.data_type),
            rows,
            NULL_SHARE,
            random,
        )?);
    }
    fields.push(Field::new(GROUP, DataType::UInt32, false));
    let groups = (0..rows).map(|_| random.random_range(0..7));
    columns.push(Arc::new(groups.collect::<UInt32Array>()));
    Ok(RecordBatch::try_new(
        Arc::new(Schema::new(fields)),
        columns,
    )?)
}

fn random_constants(
    signature: &Signature,
    random: &mut StdRng,
) -> Result<Vec<(String, ScalarValue)>> {
    let constants = signature.parameters.iter().filter(|p| p.constant);
    constants
        .map(|parameter| {
            let array = random_array(&any_length(&parameter.data_type), 1, 0.0, random)?;
            Ok((
                parameter.name.clone(),
                ScalarValue::try_from_array(&array, 0)?,
            ))
        })
        .collect()
}

/// Vectors of any length get one.
fn any_length(data_type: &DataType) -> DataType {
    match data_type {
        DataType::FixedSizeList(child, 0) => DataType::FixedSizeList(Arc::clone(child), 48),
        DataType::FixedSizeBinary(0) => DataType::FixedSizeBinary(24),
        other => other.clone(),
    }
}

/// Values of a type: small ones that meet often, and now and then anything.
fn random_array(
    data_type: &DataType,
    rows: usize,
    null_share: f64,
    random: &mut StdRng,
) -> Result<ArrayRef> {
    use arrow::array::*;
    let dense: ArrayRef = match data_type {
        DataType::Utf8View => Arc::new(
            (0..rows)
                .map(|_| Some(random_text(random)))
                .collect::<StringViewArray>(),
        ),
        DataType::BinaryView => Arc::new(
            (0..rows)
                .map(|_| Some(random_text(random).into_bytes()))
                .collect::<BinaryViewArray>(),
        ),
        DataType::FixedSizeBinary(size) => {
            let mut builder = FixedSizeBinaryBuilder::with_capacity(rows, *size);
            let mut bytes = vec![0; usize::try_from(*size).unwrap_or(0)];
            for _ in 0..rows {
                random.fill_bytes(&mut bytes);
                builder.append_value(&bytes)?;
            }
            Arc::new(builder.finish())
        }
        DataType::FixedSizeList(child, size) => {
            let values = rows * usize::try_from(*size).unwrap_or(0);
            let values: Float32Array = (0..values)
                .map(|_| Some(random.random_range(-1.0f32..1.0)))
                .collect();
            let values = Arc::new(values);
            Arc::new(FixedSizeListArray::try_new(
                Arc::clone(child),
                *size,
                values,
                None,
            )?)
        }
        DataType::Boolean => Arc::new(
            (0..rows)
                .map(|_| Some(random.random_bool(0.5)))
                .collect::<BooleanArray>(),
        ),
        DataType::Float32 | DataType::Float64 => {
            let values: Float64Array = (0..rows)
                .map(|_| {
                    Some(match random.random_range(0..20) {
                        0 => f64::from(random.random::<f32>()) * 1e9,
                        1 => 0.0,
                        _ => f64::from(random.random_range(-1000i32..1000)) / 8.0,
                    })
                })
                .collect();
            arrow::compute::cast(&values, data_type)?
        }
        _ => {
            // All others are whole numbers underneath.
            let values: Int64Array = (0..rows)
                .map(|_| {
                    Some(match random.random_range(0..20) {
                        0 => i64::from(random.random::<i16>()),
                        _ => random.random_range(-20..20),
                    })
                })
                .collect();
            match data_type {
                DataType::Date32 => arrow::compute::cast(
                    &arrow::compute::cast(&values, &DataType::Int32)?,
                    data_type,
                )?,
                _ => arrow::compute::cast(&values, data_type)?,
            }
        }
    };
    let kept: UInt32Array = (0..rows as u32)
        .map(|row| (!random.random_bool(null_share)).then_some(row))
        .collect();
    Ok(take(&dense, &kept, None)?)
}

fn random_text(random: &mut StdRng) -> String {
    let length = match random.random_range(0..20) {
        0 => random.random_range(0..200),
        _ => random.random_range(0..12),
    };
    let letters = ['a', 'b', 'A', 'C', 'G', 'T', ' ', 'é', '%'];
    (0..length)
        .map(|_| letters[random.random_range(0..letters.len())])
        .collect()
}
