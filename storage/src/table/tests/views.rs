//! Views in the catalog.

use super::*;
use crate::table::View;

fn view(name: &str, query: &str) -> View {
    View {
        schema: "public".into(),
        name: name.into(),
        query: query.into(),
        columns: vec!["a".into(), "b".into()],
        owner: "ann".into(),
        default_schema: "public".into(),
        dialect: "postgresql".into(),
    }
}

#[test]
fn views_outlive_the_process() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    database.create_view(view("w", "SELECT 1"), false).unwrap();
    database.create_view(view("v", "SELECT 2"), false).unwrap();
    database.create_view(view("v", "SELECT 3"), true).unwrap();
    database.create_view(view("x", "SELECT 4"), true).unwrap();
    database.drop_view("public", "x").unwrap();
    drop(database);
    let database = open(dir.path());
    assert_eq!(database.views("public"), ["v", "w"]);
    let v = database.view("public", "v").unwrap();
    assert_eq!(*v, view("v", "SELECT 3"));
    assert_eq!(database.view("public", "x"), None);
    let error = database.drop_view("public", "x").unwrap_err();
    assert!(matches!(error, StorageError::NotFound { .. }), "{error}");
}

#[test]
fn a_view_and_a_table_have_different_names() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    let exists = |result: Result<()>, kind: &str| match result {
        Err(StorageError::AlreadyExists { kind: found, name }) => {
            assert_eq!((found, name.as_str()), (kind, "public.t"));
        }
        other => panic!("{other:?}"),
    };
    database.create_view(view("t", "SELECT 1"), false).unwrap();
    exists(database.create_view(view("t", "SELECT 2"), false), "view");
    exists(
        load(&database, create(false), &rows(0, 1)).map(drop),
        "view",
    );
    exists(load(&database, create(true), &rows(0, 1)).map(drop), "view");
    database.drop_view("public", "t").unwrap();
    // The name is taken while a load is on its way.
    let late = database.begin_load(create(false)).unwrap();
    database.create_view(view("t", "SELECT 1"), false).unwrap();
    exists(late.commit().map(drop), "view");
    database.drop_view("public", "t").unwrap();
    load(&database, create(false), &rows(0, 1)).unwrap();
    exists(database.create_view(view("t", "SELECT 1"), false), "table");
    exists(database.create_view(view("t", "SELECT 1"), true), "table");
}

#[test]
fn a_schema_with_views_is_not_dropped() {
    let dir = TempDir::new().unwrap();
    let database = open(dir.path());
    database.create_schema("s").unwrap();
    let mut of_s = view("v", "SELECT 1");
    of_s.schema = "s".into();
    database.create_view(of_s.clone(), false).unwrap();
    let error = database.drop_schema("s").unwrap_err().to_string();
    assert!(error.contains("has views ('v'…)"), "{error}");
    database.drop_view("s", "v").unwrap();
    database.drop_schema("s").unwrap();
    let error = database.create_view(of_s, false).unwrap_err();
    assert!(matches!(error, StorageError::NotFound { .. }), "{error}");
}
