//! `PREPARE` and `EXECUTE`.

use crate::support::{error, rows, run, session};

#[tokio::test]
async fn each_execution_sees_the_tables_of_its_time() {
    let session = session();
    session
        .sql(
            "CREATE TABLE t (id INT);
             PREPARE add AS INSERT INTO t VALUES ($1);
             PREPARE how_many AS SELECT count(*) FROM t WHERE id > $1",
        )
        .await
        .unwrap();
    for expected in ["0", "1", "2"] {
        assert_eq!(rows(&session, "EXECUTE how_many(0)").await, [expected]);
        assert_eq!(rows(&session, "EXECUTE add(7)").await, ["1"]);
    }
    session.sql("DROP TABLE t").await.unwrap();
    let message = error(&session, "EXECUTE how_many(0)").await;
    assert!(
        message.contains("'t'") || message.contains(".t"),
        "{message}"
    );
    session
        .sql("CREATE TABLE t AS SELECT 'x' AS name, 5 AS id")
        .await
        .unwrap();
    assert_eq!(rows(&session, "EXECUTE how_many(0)").await, ["1"]);
    session.sql("DEALLOCATE ALL").await.unwrap();
    let message = error(&session, "EXECUTE how_many(0)").await;
    assert!(message.contains("no prepared statement"), "{message}");
}

#[tokio::test]
async fn a_value_means_what_its_literal_means() {
    let session = session();
    session
        .sql(
            "CREATE TABLE t AS SELECT arrow_cast(3, 'Int32') AS qty;
             PREPARE at_least AS SELECT count(*) FROM t WHERE qty >= $1;
             PREPARE typed(INT) AS SELECT count(*) FROM t WHERE qty >= $1;
             PREPARE sum AS SELECT $1 + $2;
             PREPARE first AS SELECT qty FROM t LIMIT $1",
        )
        .await
        .unwrap();
    assert_eq!(rows(&session, "EXECUTE at_least(3.5)").await, ["0"]);
    assert_eq!(rows(&session, "EXECUTE at_least(1 + 2)").await, ["1"]);
    assert_eq!(rows(&session, "EXECUTE sum(1, 0.5)").await, ["1.5"]);
    assert_eq!(rows(&session, "EXECUTE first(1)").await, ["3"]);
    // What is declared to be whole is not cut to be.
    let message = error(&session, "EXECUTE typed(3.5)").await;
    assert!(
        message.contains("$1") && message.contains("3.5"),
        "{message}"
    );
    assert_eq!(rows(&session, "EXECUTE typed(3)").await, ["1"]);
    let message = error(&session, "EXECUTE typed").await;
    assert!(message.contains("1 parameters, 0 were given"), "{message}");
}

#[tokio::test]
async fn prepared_statements_are_bounded_by_their_text() {
    let session = session();
    let long = "x".repeat(4 << 20);
    for number in 0..3 {
        run(
            &session,
            &format!("PREPARE p{number} AS SELECT length('{long}') AS n"),
        )
        .await;
    }
    let last = format!("PREPARE p AS SELECT length('{long}') AS n");
    let message = error(&session, &last).await;
    assert!(message.contains("DEALLOCATE"), "{message}");
    run(&session, "DEALLOCATE p1").await;
    run(&session, &last).await;
    assert_eq!(rows(&session, "EXECUTE p").await, [(4 << 20).to_string()]);
}
