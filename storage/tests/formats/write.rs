//! Writes the database of a format, with the build that had it: README.md says how. A build takes
//! the lines without a comment `since` of a later format.

#[path = "../tests/formats/rows.rs"]
mod rows;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::*;
use flashmesh_storage::index::{IndexDefinition, IndexKind}; // since 2
use flashmesh_storage::segment::row_id; // since 5
use flashmesh_storage::table::*;

fn main() {
    let folder = std::env::args().nth(1).unwrap();
    let folder = Path::new(&folder);
    let options = DatabaseOptions {
        upkeep: UpkeepOptions { in_background: false, ..UpkeepOptions::default() }, // since 3
        ..DatabaseOptions::default()
    };
    let path = folder.join("database");
    let database = Database::open(&path, options).unwrap();
    fill(&database);
    let mut out = fs::File::create(folder.join(format!("format-{FORMAT_VERSION}"))).unwrap();
    archive(&path, "crashed", &mut out);
    drop(database);
    archive(&path, "closed", &mut out);
}

fn fill(database: &Arc<Database>) {
    let mut next = 0;
    for (number, count) in rows::LOADS.into_iter().enumerate() {
        let versions: Vec<_> = (next..next + count).map(|id| (id, 0)).collect();
        let batch = rows::kinds(FORMAT_VERSION, &versions);
        let target = match number {
            0 => create("public", "kinds", &batch),
            _ => append("kinds"),
        };
        load(database, target, &[batch]);
        next += count;
    }
    let edges: Vec<i64> = (0..rows::EDGES).collect();
    let (few, more) = edges.split_at(rows::EDGES as usize / 3);
    let batch = rows::edges(few);
    load(database, create("public", "edges", &batch), &[batch]);
    load(database, append("edges"), &[rows::edges(more)]);
    database.create_schema("other").unwrap();
    let wide = rows::wide();
    load(database, create("other", "wide", &wide), &[wide.clone()]);
    load(database, create("other", "empty", &wide), &[]);
    // What it had is free, and not zero.
    load(database, create("other", "gone", &wide), &[wide.slice(0, 100)]);
    database.drop_table("other", "gone").unwrap();
    let index = |name: &str, table: &str, kind, columns: &[u32], options: &[(&str, &str)]| { // since 2
        let options = options.iter().map(|(a, b)| (a.to_string(), b.to_string())); // since 2
        let columns = columns.to_vec(); // since 2
        let definition = IndexDefinition { name: name.into(), kind, columns, unique: false, primary: false, options: options.collect() }; // since 2
        database.create_index("public", table, definition).unwrap(); // since 2
    }; // since 2
    index("by_line", "kinds", IndexKind::Ngram, &[1], &[]); // since 2
    index("by_code", "kinds", IndexKind::Lsh, &[2], &[("bits", "0")]); // since 2
    index("by_vector", "kinds", IndexKind::Lsh, &[3], &[("bits", "0"), ("tables", "10")]); // since 2
    index("by_word", "kinds", IndexKind::Hash, &[4, 5], &[]); // since 2
    index("by_edge", "edges", IndexKind::Adjacency, &[1, 2, 3], &[]); // since 2
    function(database); // since 2
    view(database); // since 3
    keep_past(database); // since 8
    change(database); // since 5
    database.compact("public", "kinds").unwrap(); // since 6
    change_late(database); // since 5
}

fn function(database: &Arc<Database>) { // since 2
    let new = NewFunction { // since 2
        name: "f", // since 2
        owner: "ann", // since 2
        package: b"a package", // since 2
        or_replace: false, // since 2
        callees: vec![], // since 3
        quota: None, // since 3
    }; // since 2
    database.create_function(new).unwrap(); // since 2
} // since 2

fn view(database: &Arc<Database>) { // since 3
    let view = View { // since 3
        schema: "public".into(), // since 3
        name: "v".into(), // since 3
        query: "SELECT id AS a, line AS b FROM kinds".into(), // since 3
        columns: vec!["a".into(), "b".into()], // since 3
        owner: "ann".into(), // since 3
        default_schema: "public".into(), // since 3
        dialect: "postgresql".into(), // since 3
    }; // since 3
    database.create_view(view, false).unwrap(); // since 3
} // since 3

/// From now on past versions of a table are kept. // since 8
fn keep_past(database: &Arc<Database>) { // since 8
    let century = std::time::Duration::from_secs(100 * 365 * 86_400); // since 8
    Workspace::new(Arc::clone(database)).set_retention("public", "edges", century).unwrap(); // since 8
} // since 8

/// Deletes and updates rows of the first loads. // since 5
fn change(database: &Arc<Database>) { // since 5
    let ids = ids_of(database, "kinds"); // since 5
    let gone = (0..rows::first_rows()).filter(|id| rows::is_deleted(*id)); // since 5
    let gone: ArrayRef = Arc::new(UInt64Array::from_iter_values(gone.map(|id| ids[id as usize]))); // since 5
    let gone = RecordBatch::try_from_iter([("row_id", gone)]).unwrap(); // since 5
    let updated: Vec<_> = (0..rows::first_rows()).filter(|id| rows::is_updated(*id)).collect(); // since 5
    let old = UInt64Array::from_iter_values(updated.iter().map(|id| ids[*id as usize])); // since 5
    let versions: Vec<_> = updated.iter().map(|id| (*id, 1)).collect(); // since 5
    let new = rows::kinds(FORMAT_VERSION, &versions); // since 5
    let mut fields = new.schema().fields().to_vec(); // since 5
    fields.push(Arc::new(Field::new("row_id", DataType::UInt64, true))); // since 5
    let mut columns = new.columns().to_vec(); // since 5
    columns.push(Arc::new(old)); // since 5
    let new = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap(); // since 5
    load(database, change_of(database, "kinds"), &[gone, new]); // since 5
    delete(database, "edges", |row| rows::is_deleted_edge(row)); // since 5
} // since 5

/// Adds rows, of which some go. // since 5
fn change_late(database: &Arc<Database>) { // since 5
    let before = ids_of(database, "kinds").len() as i64; // since 5
    let late: Vec<_> = (0..rows::LATE).map(|row| (rows::first_rows() + row, 0)).collect(); // since 5
    load(database, append("kinds"), &[rows::kinds(FORMAT_VERSION, &late)]); // since 5
    delete(database, "kinds", |row| row >= before && rows::is_deleted(rows::first_rows() + row - before)); // since 5
} // since 5

fn delete(database: &Arc<Database>, table: &str, is_gone: impl Fn(i64) -> bool) { // since 5
    let ids = (0..).zip(ids_of(database, table)); // since 5
    let gone = ids.filter(|(row, _)| is_gone(*row)).map(|(_, id)| id); // since 5
    let gone: ArrayRef = Arc::new(UInt64Array::from_iter_values(gone)); // since 5
    let batch = RecordBatch::try_from_iter([("row_id", gone)]).unwrap(); // since 5
    load(database, change_of(database, table), &[batch]); // since 5
} // since 5

fn change_of(database: &Arc<Database>, table: &str) -> LoadTarget { // since 5
    let version = database.snapshot("public", table).unwrap(); // since 5
    LoadTarget::Change { schema: "public".into(), table: table.into(), version } // since 5
} // since 5

/// Ids of all rows that its segments have, deleted ones too. // since 5
fn ids_of(database: &Database, table: &str) -> Vec<u64> { // since 5
    let table = database.snapshot("public", table).unwrap(); // since 5
    let segments = table.segments.iter(); // since 5
    segments.flat_map(|s| (0..s.rows).map(|row| row_id(s.id, row))).collect() // since 5
} // since 5

fn create(schema: &str, table: &str, like: &RecordBatch) -> LoadTarget {
    LoadTarget::Create {
        layout: match table { "edges" => TableLayout::Pax, _ => TableLayout::default() }, // since 8
        retention: std::time::Duration::ZERO, // since 8
        schema: schema.into(),
        table: table.into(),
        arrow_schema: like.schema(),
        or_replace: false,
        indexes: primary_key(table), // since 2
        defaults: match table { "kinds" => defaults(like), _ => vec![] }, // since 6
    }
}

/// Each table has a number for a key. // since 2
fn primary_key(table: &str) -> Vec<IndexDefinition> { // since 2
    vec![IndexDefinition { name: format!("{table}_key"), kind: IndexKind::Hash, columns: vec![0], unique: true, primary: true, options: Default::default() }] // since 2
} // since 2

fn defaults(like: &RecordBatch) -> Vec<Option<String>> { // since 6
    let mut defaults = vec![None; like.num_columns()]; // since 6
    defaults[1] = Some("'amber' || 1".into()); // since 6
    defaults // since 6
} // since 6

fn append(table: &str) -> LoadTarget {
    LoadTarget::Append { schema: "public".into(), table: table.into() }
}

fn load(database: &Arc<Database>, target: LoadTarget, batches: &[RecordBatch]) {
    let load = database.begin_load(target).unwrap();
    for batch in batches {
        let mut writer = load.writer().unwrap();
        writer.append(batch).unwrap();
        writer.finish().unwrap();
    }
    load.commit().unwrap();
}

/// Adds the files of a folder: for each a line of name and length, then the bytes, of the card
/// without the zeros at its end.
fn archive(folder: &Path, name_there: &str, out: &mut fs::File) {
    for name in ["catalog.redb", "card0.flash", "commits.log"] {
        let Ok(mut bytes) = fs::read(folder.join(name)) else { continue };
        if name == "card0.flash" {
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            bytes.truncate(end.next_multiple_of(8192));
        }
        writeln!(out, "{name_there}/{name} {}", bytes.len()).unwrap();
        out.write_all(&bytes).unwrap();
    }
}
