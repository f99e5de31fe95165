//! Databases that the builds of all formats wrote (`storage/tests/formats/README.md`), closed and
//! as a crash leaves them: they can be read, and go on as databases of today.

#[path = "../../../tests/formats/rows.rs"]
mod rows;

use std::collections::BTreeSet;
use std::fs;

use arrow::array::{Array, UInt64Array};
use arrow::compute::{cast, sort_to_indices, take_record_batch};
use flashmesh_pushdown::{CompareOp, Literal, Metric, QueryVector, Scalar, SortKey};

use self::rows::Version;
use super::lagging::{answer_of, equals, named, neighbours_in};
use super::*;
use crate::access::{AccessPath, NearSearch};
use crate::index::{IndexDefinition, IndexKind};
use crate::segment::row_id;
use crate::store::MEMORY_CARD;
use crate::table::catalog::Catalog;
use crate::table::database::FORMAT_WITHOUT_PAST;
use crate::table::nan::with_one_nan;
use crate::table::{FORMAT_VERSION, View};

/// What a database of a format has in it.
struct Expected {
    format: u32,
    kinds: Vec<Version>,
    edges: Vec<i64>,
}

const ID: usize = 0;
const LINE: usize = 1;
const CODE: usize = 2;
const VECTOR: usize = 3;
const WORD: usize = 4;
const PRICE: usize = 5;

fn database_of(format: u32, how_it_ended: &str) -> TempDir {
    let path = format!("tests/formats/format-{format}.zst");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let archive = zstd::decode_all(fs::File::open(path).unwrap()).unwrap();
    let dir = TempDir::new().unwrap();
    let mut rest = archive.as_slice();
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = str::from_utf8(&rest[..end]).unwrap();
        let (name, length) = line.split_once(' ').unwrap();
        let (bytes, others) = rest[end + 1..].split_at(length.parse().unwrap());
        if let Some((_, name)) = name.split_once('/').filter(|(of, _)| *of == how_it_ended) {
            fs::write(dir.path().join(name), bytes).unwrap();
        }
        rest = others;
    }
    dir
}

fn opened(dir: &Path, read_only: bool) -> Arc<Database> {
    let options = DatabaseOptions {
        read_only,
        upkeep: UpkeepOptions {
            in_background: false,
            ..UpkeepOptions::default()
        },
        ..DatabaseOptions::default()
    };
    Database::open(dir, options).unwrap()
}

fn format_of(dir: &Path) -> u32 {
    Catalog::format_of(&dir.join("catalog.redb"), dir).unwrap()
}

fn contents(dir: &Path) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let mut files: Vec<_> = entries
        .map(|e| (e.file_name(), fs::read(e.path()).unwrap()))
        .collect();
    files.sort();
    files
}

/// What a crash at this moment would leave of a folder.
fn crashed(dir: &Path) -> TempDir {
    let copy = TempDir::new().unwrap();
    for (name, mut bytes) in contents(dir) {
        if name == "card0.flash" {
            let end = bytes.iter().rposition(|byte| *byte != 0);
            bytes.truncate(end.map_or(0, |end| end + 1).next_multiple_of(8192));
        }
        fs::write(copy.path().join(name), bytes).unwrap();
    }
    copy
}

fn table(database: &Database, name: &str) -> Arc<TableSnapshot> {
    database.snapshot("public", name).unwrap()
}

/// Compares all values of a table, in the order of its first column.
fn check_rows(database: &Database, schema: &str, name: &str, expected: &RecordBatch) {
    let table = database.snapshot(schema, name).unwrap();
    assert_eq!(table.rows(), expected.num_rows() as u64, "{name}");
    let found = read(database, table).unwrap();
    let order = sort_to_indices(found.column(0), None, None).unwrap();
    let found = take_record_batch(&found, &order).unwrap();
    let (fields, columns) = (expected.schema(), expected.columns());
    assert_eq!(found.num_columns(), columns.len());
    for (number, (field, column)) in fields.fields().iter().zip(columns).enumerate() {
        // Earlier builds kept each NaN as it came.
        let found = with_one_nan(Arc::clone(found.column(number)));
        assert_eq!(found.len(), column.len());
        let column = with_one_nan(cast(column, found.data_type()).unwrap());
        let differs = (0..column.len()).find(|row| found.slice(*row, 1) != column.slice(*row, 1));
        if let Some(row) = differs {
            let (found, column) = (found.slice(row, 1), column.slice(row, 1));
            panic!("{name}, column {field}, row {row}: {found:?} for {column:?}");
        }
    }
}

fn hash_index(name: &str, columns: &[usize], unique: bool) -> IndexDefinition {
    definition(name, IndexKind::Hash, columns, unique, &[])
}

fn definition(
    name: &str,
    kind: IndexKind,
    columns: &[usize],
    unique: bool,
    options: &[(&str, &str)],
) -> IndexDefinition {
    let options = options.iter();
    IndexDefinition {
        name: name.into(),
        kind,
        columns: columns.iter().map(|column| *column as u32).collect(),
        unique,
        primary: unique,
        options: options
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect(),
    }
}

/// The indexes of `kinds` and `edges`.
fn definitions() -> [(&'static str, Vec<IndexDefinition>); 2] {
    let one_bucket = ("bits", "0");
    let kinds = vec![
        hash_index("kinds_key", &[ID], true),
        definition("by_line", IndexKind::Ngram, &[LINE], false, &[]),
        definition("by_code", IndexKind::Lsh, &[CODE], false, &[one_bucket]),
        definition(
            "by_vector",
            IndexKind::Lsh,
            &[VECTOR],
            false,
            &[one_bucket, ("tables", "10")],
        ),
        hash_index("by_word", &[WORD, PRICE], false),
    ];
    let edges = vec![
        hash_index("edges_key", &[ID], true),
        definition("by_edge", IndexKind::Adjacency, &[1, 2, 3], false, &[]),
    ];
    [("kinds", kinds), ("edges", edges)]
}

/// That a database as it was written has what its format brought.
fn check_what_is_special(database: &Database, format: u32, how_it_ended: &str) {
    let (kinds, edges) = (table(database, "kinds"), table(database, "edges"));
    for (table, expected) in definitions() {
        let table = self::table(database, table);
        let found: Vec<_> = table.indexes.iter().map(|i| i.definition.clone()).collect();
        match format {
            1 => assert_eq!(found, []),
            _ => assert_eq!(found, expected),
        }
    }
    // Wide segments and parts have their page indexes in pages.
    let wide = database.snapshot("other", "wide").unwrap();
    let parts = kinds.index("by_vector").into_iter();
    let chunks = parts.flat_map(|index| index.parts[0].chunks());
    for chunk in wide.segments[0].chunks.iter().chain(chunks) {
        assert_eq!(chunk.resident_index().is_none(), format >= 4);
    }
    assert_eq!(kinds.has_deleted_rows(), format >= 5);
    assert_eq!(edges.has_deleted_rows(), format >= 5);
    let segments = match format {
        ..5 => 3,
        5 => 5,
        _ => 2,
    };
    assert_eq!(kinds.segments.len(), segments);
    assert_eq!(kinds.defaults.iter().any(Option::is_some), format >= 6);
    if format >= 6 {
        assert_eq!(kinds.defaults[LINE].as_deref(), Some("'amber' || 1"));
    }
    let is_in_log = kinds.runs().any(|run| run.first.card == MEMORY_CARD);
    assert_eq!(is_in_log, format >= 7 && how_it_ended == "crashed");
    if format >= 8 {
        assert_eq!(edges.layout, TableLayout::Pax);
        let versions = database.versions("public", "edges").unwrap();
        let rows: Vec<u64> = versions.iter().map(|version| version.rows).collect();
        let [before, .., after] = rows.as_slice() else {
            panic!("{rows:?}");
        };
        assert_eq!((*before, *after), (rows::EDGES as u64, edges.rows()));
    }
    if kinds.has_exact_statistics() {
        let statistics = &kinds.statistics;
        assert_eq!(statistics[ID].min, Some(Scalar::Int(0)));
        let last = i128::from(rows::first_rows() - 1);
        assert_eq!(statistics[ID].max, Some(Scalar::Int(last)));
        let nulls = (0..rows::first_rows()).filter(|row| rows::line(*row).is_none());
        assert_eq!(statistics[LINE].null_count, nulls.count() as u64);
    }
}

/// That a database has what is expected, and nothing wrong with it.
fn check(database: &Arc<Database>, expected: &Expected) {
    assert_eq!(database.schemas(), ["other", "public"]);
    assert_eq!(database.tables("public"), ["edges", "kinds"]);
    assert_eq!(database.tables("other"), ["empty", "wide"]);
    let kinds = rows::kinds(expected.format, &expected.kinds);
    check_rows(database, "public", "kinds", &kinds);
    check_rows(database, "public", "edges", &rows::edges(&expected.edges));
    check_rows(database, "other", "wide", &rows::wide());
    check_rows(database, "other", "empty", &rows::wide().slice(0, 0));
    let problems = database.fsck(&mut |_| Ok(())).unwrap().problems;
    assert_eq!(problems, Vec::<String>::new());
    if expected.format >= 2 {
        let function = database.function("f").unwrap();
        assert_eq!((function.owner.as_str(), function.version), ("ann", 1));
        assert_eq!(database.function_package(&function).unwrap(), b"a package");
    }
    if expected.format >= 3 {
        let view = View {
            schema: "public".into(),
            name: "v".into(),
            query: "SELECT id AS a, line AS b FROM kinds".into(),
            columns: vec!["a".into(), "b".into()],
            owner: "ann".into(),
            default_schema: "public".into(),
            dialect: "postgresql".into(),
        };
        assert_eq!(*database.view("public", "v").unwrap(), view);
    }
    if table(database, "kinds").index("by_line").is_some() {
        check_indexes(database, expected, &kinds);
    }
}

/// Ids of the rows of `kinds` that pass a filter, ascending, by an index of that name.
fn ids_by(database: &Database, filter: Expr, index: &str) -> Vec<i64> {
    let output = Output::Rows {
        exprs: vec![Expr::Column(ID as u32)],
        order: vec![],
        limit: None,
    };
    let kinds = table(database, "kinds");
    let (batch, path) = answer_of(database, kinds, vec![filter], output, |program, table| {
        AccessPath::choose(program, table, NearSearch::Exact)
    });
    named(path, index);
    sorted_ids(&batch)
}

fn sorted_ids(batch: &RecordBatch) -> Vec<i64> {
    let ids = batch.column(0).as_primitive::<Int64Type>().values();
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids
}

/// Distances of the nearest rows of `kinds`, ascending, by an index of that name.
fn distances_by(
    database: &Database,
    column: usize,
    query: QueryVector,
    metric: Metric,
    index: &str,
) -> ArrayRef {
    let output = Output::Rows {
        exprs: vec![Expr::Distance {
            metric,
            expr: Box::new(Expr::Column(column as u32)),
            query,
        }],
        order: vec![SortKey {
            output: 0,
            descending: false,
            nulls_first: false,
        }],
        limit: Some(5),
    };
    let kinds = table(database, "kinds");
    let (batch, path) = answer_of(database, kinds, vec![], output, |program, table| {
        AccessPath::choose(program, table, NearSearch::Approximate)
    });
    named(path, index);
    let order = sort_to_indices(batch.column(0), None, Some(5)).unwrap();
    let nearest = take_record_batch(&batch, &order).unwrap();
    cast(nearest.column(0), &DataType::Float64).unwrap()
}

/// Compares what the indexes answer with a look at every row.
fn check_indexes(database: &Database, expected: &Expected, kinds: &RecordBatch) {
    let stored = |(id, revision): &Version| id + 10_000 * i64::from(*revision);
    let last = expected.kinds.len() - 1;
    let of = |wanted: &dyn Fn(usize) -> bool| -> Vec<i64> {
        let rows = (0..=last).filter(|row| wanted(*row));
        rows.map(|row| expected.kinds[row].0).collect()
    };
    for id in [0, 3, 50, expected.kinds[last].0, -1] {
        let found = ids_by(database, equals(ID, id), "kinds_key");
        assert_eq!(found, of(&|row| expected.kinds[row].0 == id));
    }
    for text in ["amber 12", "dune 3 ", "no such word"] {
        let like = Expr::Like {
            expr: Box::new(Expr::Column(LINE as u32)),
            pattern: format!("%{text}%"),
            negated: false,
            case_insensitive: false,
        };
        let has = |row: usize| {
            let line = rows::line(stored(&expected.kinds[row]));
            line.is_some_and(|line| line.contains(text))
        };
        assert_eq!(ids_by(database, like, "by_line"), of(&has), "{text}");
    }
    for row in [7, last / 2, last] {
        let query = stored(&expected.kinds[row]);
        let mut codes: Vec<u32> = Vec::new();
        let mut vectors: Vec<f32> = Vec::new();
        for version in &expected.kinds {
            let (a, b) = (rows::code(stored(version)), rows::code(query));
            codes.push(flashmesh_pushdown::distance::hamming(&a, &b));
            let (a, b) = (rows::vector(stored(version)), rows::vector(query));
            vectors.push(flashmesh_pushdown::distance::l2(&a, &b));
        }
        codes.sort_unstable();
        vectors.sort_unstable_by(f32::total_cmp);
        let bits = QueryVector::Bits(rows::code(query).to_vec());
        let found = distances_by(database, CODE, bits, Metric::Hamming, "by_code");
        let codes = codes[..5].iter().map(|code| f64::from(*code));
        assert!(
            found
                .as_primitive::<arrow::datatypes::Float64Type>()
                .values()
                .iter()
                .copied()
                .eq(codes)
        );
        let floats = QueryVector::Floats(rows::vector(query).to_vec());
        let found = distances_by(database, VECTOR, floats, Metric::L2, "by_vector");
        let found = found.as_primitive::<arrow::datatypes::Float64Type>();
        for (found, expected) in found.values().iter().zip(&vectors[..5]) {
            assert!(
                (found - f64::from(*expected)).abs() < 1e-3,
                "{found} for {expected}"
            );
        }
        assert_eq!(found.len(), 5);
        // Two columns, text and a decimal; a NULL is equal to nothing.
        check_words(database, kinds, row, &of);
    }
    let edges: Vec<_> = expected
        .edges
        .iter()
        .map(|number| rows::edge(*number))
        .collect();
    for vertex in 0..rows::VERTICES {
        let edges = edges
            .iter()
            .filter(|edge| edge.0 == vertex && edge.1 != vertex);
        let targets: BTreeSet<i64> = edges.map(|edge| edge.1).collect();
        let found = neighbours_in(database, &table(database, "edges"), vertex);
        assert_eq!(found, Some(targets), "vertex {vertex}");
    }
}

/// The ids of the rows that a test of their numbers picks.
type Wanted<'a> = dyn Fn(&dyn Fn(usize) -> bool) -> Vec<i64> + 'a;

fn check_words(database: &Database, kinds: &RecordBatch, row: usize, of: &Wanted<'_>) {
    let snapshot = table(database, "kinds");
    let columns = [WORD, PRICE].map(|column| {
        let data_type = snapshot.schema.field(column).data_type();
        cast(kinds.column(column), data_type).unwrap()
    });
    let has_key = |row: &usize| columns.iter().all(|column| column.is_valid(*row));
    let row = (0..=row).rfind(has_key).unwrap();
    let keys = [columns[0].slice(row, 1), columns[1].slice(row, 1)];
    let equal = [WORD, PRICE].into_iter().zip(&keys);
    let equal = equal.map(|(column, key)| Expr::Compare {
        op: CompareOp::Eq,
        left: Box::new(Expr::Column(column as u32)),
        right: Box::new(Expr::Literal(Literal {
            value: Scalar::from_array(key, 0).unwrap(),
            data_type: key.data_type().clone(),
        })),
    });
    let equal = equal.collect();
    let output = Output::Rows {
        exprs: vec![Expr::Column(ID as u32)],
        order: vec![],
        limit: None,
    };
    let index = Arc::clone(snapshot.index("by_word").unwrap());
    let (batch, _) = answer_of(database, snapshot, equal, output, |_, _| {
        Some(AccessPath::by_keys(&index, &keys).unwrap())
    });
    let is_equal = |other: usize| {
        let columns = columns.iter().zip(&keys);
        columns
            .into_iter()
            .all(|(column, key)| column.slice(other, 1).as_ref() == key.as_ref())
    };
    assert_eq!(sorted_ids(&batch), of(&is_equal));
}

/// Ids of the rows of a table, by the values in its first column.
fn row_ids(database: &Database, name: &str) -> Vec<(i64, u64)> {
    let table = table(database, name);
    let live = table.segments.iter().flat_map(|segment| {
        let rows = (0..segment.rows).filter(|row| segment.has_row(*row));
        rows.map(|row| row_id(segment.id, row))
    });
    let live: Vec<u64> = live.collect();
    let batch = read(database, table).unwrap();
    let values = batch.column(0).as_primitive::<Int64Type>().values();
    values.iter().copied().zip(live).collect()
}

fn change(database: &Arc<Database>, name: &str, batch: &RecordBatch) -> Result<u64> {
    let target = LoadTarget::Change {
        schema: "public".into(),
        table: name.into(),
        version: table(database, name),
    };
    load(database, target, batch)
}

fn delete(database: &Arc<Database>, name: &str, is_gone: impl Fn(i64) -> bool) {
    let ids = row_ids(database, name).into_iter();
    let gone = ids.filter(|(value, _)| is_gone(*value)).map(|(_, id)| id);
    let gone: ArrayRef = Arc::new(UInt64Array::from_iter_values(gone));
    let batch = RecordBatch::try_from_iter([("row_id", gone)]).unwrap();
    change(database, name, &batch).unwrap();
}

fn append_to(database: &Arc<Database>, name: &str, batch: &RecordBatch) -> Result<u64> {
    let target = LoadTarget::Append {
        schema: "public".into(),
        table: name.into(),
    };
    load(database, target, batch)
}

/// Adds, updates and deletes rows.
fn write(database: &Arc<Database>, expected: &mut Expected) {
    let format = expected.format;
    let twice = append_to(database, "kinds", &rows::kinds(format, &[(0, 0)])).unwrap_err();
    assert!(
        matches!(twice, StorageError::DuplicateKey { .. }),
        "{twice}"
    );

    let new: Vec<Version> = (2000..2040).map(|id| (id, 0)).collect();
    append_to(database, "kinds", &rows::kinds(format, &new)).unwrap();
    expected.kinds.extend(new);
    delete(database, "kinds", |id| id % 10 == 9);
    expected.kinds.retain(|(id, _)| id % 10 != 9);

    let is_updated = |id: i64| id % 25 == 1;
    let old = row_ids(database, "kinds").into_iter();
    let (ids, old): (Vec<i64>, Vec<u64>) = old.filter(|(id, _)| is_updated(*id)).unzip();
    let versions: Vec<Version> = ids.iter().map(|id| (*id, 2)).collect();
    let batch = rows::kinds(format, &versions);
    let mut fields = batch.schema().fields().to_vec();
    fields.push(Arc::new(Field::new("row_id", DataType::UInt64, false)));
    let mut columns = batch.columns().to_vec();
    columns.push(Arc::new(UInt64Array::from(old)));
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
    change(database, "kinds", &batch).unwrap();
    for version in &mut expected.kinds {
        if is_updated(version.0) {
            version.1 = 2;
        }
    }

    let new: Vec<i64> = (5000..5100).collect();
    append_to(database, "edges", &rows::edges(&new)).unwrap();
    expected.edges.extend(new);
    delete(database, "edges", |number| number % 5 == 2);
    expected.edges.retain(|number| number % 5 != 2);
}

fn open_all(format: u32, how_it_ended: &str) {
    let dir = database_of(format, how_it_ended);
    let dir = dir.path();
    // What is of format 8 was still in the log.
    let in_catalog = match (format, how_it_ended) {
        (8, "crashed") => FORMAT_WITHOUT_PAST,
        _ => format,
    };
    assert_eq!(format_of(dir), in_catalog);
    let mut expected = Expected {
        format,
        kinds: rows::kinds_of(format),
        edges: rows::edges_of(format),
    };
    let before = contents(dir);
    let database = opened(dir, true);
    check_what_is_special(&database, format, how_it_ended);
    check(&database, &expected);
    drop(database);
    assert!(contents(dir) == before, "reading changed the files");

    let database = opened(dir, false);
    check_what_is_special(&database, format, how_it_ended);
    check(&database, &expected);
    if format == 1 {
        for (table, definitions) in definitions() {
            for definition in definitions {
                database.create_index("public", table, definition).unwrap();
            }
        }
        check(&database, &expected);
    }
    let only_opened = crashed(dir);
    assert_eq!(
        format_of(only_opened.path()),
        in_catalog.max(FORMAT_WITHOUT_PAST)
    );
    check(&opened(only_opened.path(), false), &expected);
    write(&database, &mut expected);
    check(&database, &expected);
    go_on(crashed(dir).path(), &expected);
    drop(database);
    go_on(dir, &expected);
}

/// Opens what is a database of today by now.
fn go_on(dir: &Path, expected: &Expected) {
    // What is of format 8 may be in the log still.
    let formats = FORMAT_WITHOUT_PAST..=expected.format.max(FORMAT_WITHOUT_PAST);
    assert!(formats.contains(&format_of(dir)));
    let database = opened(dir, false);
    check(&database, expected);
    for name in ["kinds", "edges"] {
        database.compact("public", name).unwrap();
        let table = table(&database, name);
        assert!(table.segments.len() == 1 && !table.has_deleted_rows());
    }
    database.settle_indexes().unwrap();
    check(&database, expected);
    drop(database);
    check(&opened(dir, true), expected);
}

macro_rules! formats {
    ($($name:ident: $format:literal,)*) => {
        $(
            #[test]
            fn $name() {
                for how_it_ended in ["closed", "crashed"] {
                    println!("format {}, {how_it_ended}", $format);
                    open_all($format, how_it_ended);
                }
            }
        )*

        #[test]
        fn each_format_has_its_database() {
            // That of format 9 is written by the last build that has it.
            assert!([$($format),*].into_iter().eq(1..FORMAT_VERSION));
        }
    };
}

formats! {
    format_1_is_read_and_goes_on: 1,
    format_2_is_read_and_goes_on: 2,
    format_3_is_read_and_goes_on: 3,
    format_4_is_read_and_goes_on: 4,
    format_5_is_read_and_goes_on: 5,
    format_6_is_read_and_goes_on: 6,
    format_7_is_read_and_goes_on: 7,
    format_8_is_read_and_goes_on: 8,
}
