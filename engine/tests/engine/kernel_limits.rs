//! Whose a function is, how many a user may have, and which kernels a kernel calls.

use std::sync::Arc;

use flashmesh::{Engine, EngineOptions, FunctionGrants, NamePattern, Principal, Session};
use flashmesh_storage::kernel::Package;

use crate::kernels::{calling, create, times};
use crate::support::{error, rows};

fn user(engine: &Arc<Engine>, name: &str) -> Session {
    let functions = FunctionGrants {
        create: vec![NamePattern::try_from("*".to_string()).unwrap()],
        ..FunctionGrants::default()
    };
    let principal = Principal::user(name, vec![], functions);
    engine.session_for(Arc::new(principal)).unwrap()
}

#[tokio::test]
async fn a_function_is_its_owner_s() {
    let engine = Engine::open(EngineOptions::default()).unwrap();
    let (ada, eve, admin) = (
        user(&engine, "ada"),
        user(&engine, "eve"),
        engine.session().unwrap(),
    );
    let first = create(&times("times", 2, ""), "");
    ada.sql(&first).await.unwrap();
    let other = create(&times("times", 3, ""), "OR REPLACE");
    for sql in [other.as_str(), "DROP FUNCTION times"] {
        let error = error(&eve, sql).await;
        assert!(error.contains("is ada's"), "{error}");
    }
    assert_eq!(rows(&ada, "SELECT times(21)").await, ["42"]);
    ada.sql(&other).await.unwrap();
    assert_eq!(rows(&eve, "SELECT times(1)").await, ["3"]);
    admin.sql("DROP FUNCTION times").await.unwrap();
    eve.sql(&first).await.unwrap();
}

#[tokio::test]
async fn a_user_has_so_many_functions_and_bytes() {
    let mut options = EngineOptions::default();
    let bytes = |package: &Package| package.to_bytes().len() as u64;
    let (one, two) = (times("one", 2, ""), times("two", 2, ""));
    options.kernels.quota_per_user.functions = 2;
    options.kernels.quota_per_user.bytes = 2 * bytes(&one) + bytes(&two);
    let engine = Engine::open(options).unwrap();
    let (ada, eve) = (user(&engine, "ada"), user(&engine, "eve"));
    ada.sql(&create(&one, "")).await.unwrap();
    ada.sql(&create(&two, "")).await.unwrap();
    let third = create(&times("three", 2, ""), "");
    let many = error(&ada, &third).await;
    assert!(
        many.contains("3 functions") && many.contains("drop some"),
        "{many}"
    );
    let container = vec![0; 2 * bytes(&one) as usize];
    let large = Package::new(&two.manifest_text, &two.wasm, Some(&container), [0; 32]).unwrap();
    let large = error(&ada, &create(&large, "OR REPLACE")).await;
    assert!(large.contains("bytes of packages"), "{large}");
    ada.sql(&create(&two, "OR REPLACE")).await.unwrap();
    eve.sql(&third).await.unwrap();
    engine
        .session()
        .unwrap()
        .sql(&create(&times("four", 2, ""), ""))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_kernel_calls_the_very_one_that_was_there_when_it_was_made() {
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        path: Some(folder.path().into()),
        ..EngineOptions::default()
    };
    {
        let session = Engine::open(options.clone()).unwrap().session().unwrap();
        for package in [
            times("helper", 2, ""),
            calling("middle", "helper"),
            calling("outermost", "middle"),
        ] {
            session.sql(&create(&package, "")).await.unwrap();
        }
        assert_eq!(rows(&session, "SELECT outermost(21)").await, ["42"]);
    }
    let session = Engine::open(options).unwrap().session().unwrap();
    assert_eq!(rows(&session, "SELECT outermost(21)").await, ["42"]);
    let replace = |package: Package| create(&package, "OR REPLACE");
    session.sql(&replace(times("helper", 5, ""))).await.unwrap();
    for caller in ["outermost", "middle"] {
        let error = error(&session, &format!("SELECT {caller}(21)")).await;
        assert!(error.contains("'helper', which was replaced"), "{error}");
    }
    session
        .sql(&replace(calling("middle", "helper")))
        .await
        .unwrap();
    assert_eq!(rows(&session, "SELECT middle(21)").await, ["105"]);
    // The package of the one between is the same again, but not what it calls.
    let error = error(&session, "SELECT outermost(21)").await;
    assert!(error.contains("'middle', which was replaced"), "{error}");
    session
        .sql(&replace(calling("outermost", "middle")))
        .await
        .unwrap();
    assert_eq!(rows(&session, "SELECT outermost(21)").await, ["105"]);
}
