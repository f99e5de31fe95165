//! CHECK constraints, with a language of one word: what is tested, kept and refused.

use super::*;
use crate::table::{Check, CheckLanguage, RowTest};

/// Knows the condition `few`: that no id is 100 or more.
#[derive(Debug)]
struct Few;

impl CheckLanguage for Few {
    fn test(&self, table: &str, _: &SchemaRef, checks: &[Check]) -> Result<Arc<dyn RowTest>> {
        match checks.iter().all(|check| check.text == "few") {
            true => Ok(Arc::new(Few)),
            false => Err(StorageError::Invalid(format!(
                "table '{table}': no condition"
            ))),
        }
    }
}

impl RowTest for Few {
    fn test(&self, rows: &RecordBatch) -> Result<()> {
        let ids = rows.column(0).as_primitive::<Int64Type>();
        match ids.values().iter().all(|id| *id < 100) {
            true => Ok(()),
            false => Err(StorageError::Invalid("a row violates 'few'".into())),
        }
    }
}

fn speaking(dir: &Path) -> Arc<Database> {
    let options = DatabaseOptions {
        checks: Some(Arc::new(Few)),
        ..DatabaseOptions::default()
    };
    Database::open(dir, options).unwrap()
}

fn with_check(text: &str) -> LoadTarget {
    let mut target = create(false);
    if let LoadTarget::Create { checks, .. } = &mut target {
        checks.push(Check {
            name: "c".into(),
            text: text.into(),
        });
    }
    target
}

fn overwrite() -> LoadTarget {
    LoadTarget::Overwrite {
        schema: "public".into(),
        table: "t".into(),
    }
}

#[test]
fn rows_are_tested_wherever_they_come_in() {
    let dir = TempDir::new().unwrap();
    {
        let database = speaking(dir.path());
        assert!(load(&database, with_check("many"), &rows(0, 1)).is_err());
        assert!(load(&database, with_check("few"), &rows(0, 101)).is_err());
        load(&database, with_check("few"), &rows(0, 10)).unwrap();
        for target in [append(), overwrite()] {
            assert!(load(&database, target, &rows(95, 10)).is_err());
        }
        load(&database, append(), &rows(10, 5)).unwrap();
    }
    // The log and then the catalog have it, and it outlives the rows.
    for _ in 0..2 {
        let database = speaking(dir.path());
        let checks = &database.snapshot("public", "t").unwrap().checks;
        assert_eq!(checks.len(), 1);
        assert_eq!((&*checks[0].name, &*checks[0].text), ("c", "few"));
        assert!(load(&database, append(), &rows(100, 1)).is_err());
        load(&database, overwrite(), &rows(0, 10)).unwrap();
    }
    // Who does not know the language brings no rows in.
    let database = open(dir.path());
    for target in [append(), overwrite()] {
        let refused = database.begin_load(target).unwrap_err();
        assert!(refused.to_string().contains("'t'"), "{refused}");
    }
    assert_eq!(database.snapshot("public", "t").unwrap().rows(), 10);
}
