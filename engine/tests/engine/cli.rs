//! The `flashmesh` command.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashmesh"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn results_are_printed_in_every_format() {
    let print = |format: &str| {
        stdout(&run(&[
            "--format",
            format,
            "-c",
            "SELECT * FROM (VALUES (1, 'x'), (2, NULL)) AS t(a, b)",
        ]))
    };
    assert_eq!(print("csv"), "a,b\n1,x\n2,\n");
    assert_eq!(print("tsv"), "a\tb\n1\tx\n2\t\n");
    assert_eq!(
        print("json"),
        "[{\"a\":1,\"b\":\"x\"},{\"a\":2,\"b\":null}]\n"
    );
    assert_eq!(
        print("nd-json"),
        "{\"a\":1,\"b\":\"x\"}\n{\"a\":2,\"b\":null}\n"
    );
    let table =
        "+---+------+\n| a | b    |\n+---+------+\n| 1 | x    |\n| 2 | NULL |\n+---+------+\n";
    assert_eq!(print("table"), table);
    assert_eq!(print("automatic"), table);
    assert_eq!(
        stdout(&run(&[
            "--format",
            "json",
            "-c",
            "SELECT 1 AS a WHERE false"
        ])),
        "[]\n"
    );
    assert_eq!(
        stdout(&run(&[
            "--format",
            "csv",
            "-c",
            "SELECT 1 AS a WHERE false"
        ])),
        "a\n"
    );
}

#[test]
fn all_rows_are_printed_unless_fewer_are_wanted() {
    let query = "SELECT value FROM generate_series(1, 100000) AS s(value)";
    let csv = stdout(&run(&["--format", "csv", "-c", query]));
    assert_eq!(csv.lines().count(), 100_001);
    let table = stdout(&run(&["-c", query]));
    assert_eq!(table.lines().count(), 100_004);
    let short = stdout(&run(&["--maxrows", "5", "-c", query]));
    assert!(
        short.lines().count() < 15 && short.contains("| 5 "),
        "{short}"
    );
}

#[test]
fn commands_files_and_pipes_run_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("script.sql");
    std::fs::write(
        &file,
        "-- a comment; with a semicolon\nINSERT INTO t\nVALUES (2);\nSELECT sum(a) AS s FROM t",
    )
    .unwrap();
    let arguments = [
        "--format",
        "csv",
        "-c",
        "CREATE TABLE t AS SELECT 1 AS a",
        "-f",
        text(&file),
        "-c",
        "SELECT count(*) AS n FROM t",
    ];
    assert_eq!(stdout(&run(&arguments)), "count\n1\ncount\n1\ns\n3\nn\n2\n");

    let mut child = command(&["--format", "csv"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"SELECT 1 AS a;\nSELECT 2\n AS b;")
        .unwrap();
    assert_eq!(stdout(&child.wait_with_output().unwrap()), "a\n1\nb\n2\n");
}

#[test]
fn a_failed_statement_ends_the_run_with_code_1() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("db");
    let output = run(&[
        "--db",
        text(&db),
        "-c",
        "CREATE TABLE t AS SELECT 1 AS a; SELECT a / 0 FROM t; DROP TABLE t",
    ]);
    assert!(stderr(&output, 1).starts_with("error: "), "{output:?}");
    assert_eq!(
        stdout(&run(&[
            "--db",
            text(&db),
            "--format",
            "csv",
            "-c",
            "SELECT a FROM t"
        ])),
        "a\n1\n"
    );
    assert!(stderr(&run(&["-f", "missing.sql"]), 1).contains("missing.sql"));
    assert!(stderr(&run(&["-c", "SELEC 1"]), 1).contains("syntax error"));
}

#[test]
fn wrong_arguments_end_with_code_2() {
    assert!(stderr(&run(&["--memory-limit", "much"]), 2).contains("4GB"));
    assert!(stderr(&run(&["--cache-size", "0"]), 2).contains("more than 0"));
    assert!(stderr(&run(&["-c", "SELECT 1", "demo"]), 2).contains("-c and -f"));
    assert!(stderr(&run(&["demo", "--scale-factor", "0"]), 2).contains("0.001"));
    assert!(stderr(&run(&["load", "--db", "d", "t"]), 2).contains("FILES"));
    assert!(stderr(&run(&["--read-only", "-c", "SELECT 1"]), 1).contains("--db"));
    assert!(stderr(&run(&["load", "t", "x.csv"]), 1).contains("--db"));
    assert!(stderr(&run(&["fsck"]), 1).contains("--db"));
    assert!(stdout(&run(&["--help"])).contains("flashmesh load --db"));
}

#[test]
fn files_load_and_databases_check_out() {
    let folder = tempfile::tempdir().unwrap();
    let (db, csv) = (folder.path().join("db"), folder.path().join("x.csv"));
    std::fs::write(&csv, "a,b\n1,x\n2,\n").unwrap();
    let load = |more: &[&str]| run(&[&["load", "--db", text(&db), "t", text(&csv)], more].concat());
    let report = stderr(&load(&[]), 0);
    assert!(report.contains("2 rows in table 't'"), "{report}");
    let refused = stderr(&load(&[]), 1);
    assert!(refused.contains("already exists"), "{refused}");
    assert_eq!(stderr(&load(&["--append", "--quiet"]), 0), "");
    assert_eq!(stderr(&load(&["--append", "--quiet"]), 0), "");
    let sum = [
        "--db",
        text(&db),
        "--format",
        "csv",
        "-c",
        "SELECT count(*) AS n, count(b) AS b, sum(a) AS s FROM t",
    ];
    assert_eq!(stdout(&run(&sum)), "n,b,s\n6,3,9\n");

    let checked = stdout(&run(&["fsck", "--db", text(&db)]));
    assert!(
        checked.contains("1 tables") && checked.contains("all sound"),
        "{checked}"
    );
    // Flip a bit in the payload of the first page of every erase block that is used.
    let card = db.join("card0.flash");
    let mut bytes = std::fs::read(&card).unwrap();
    let page = bytes
        .chunks(8192)
        .position(|page| page.starts_with(b"FMP"))
        .unwrap();
    bytes[page * 8192 + 100] ^= 4;
    std::fs::write(&card, bytes).unwrap();
    let output = run(&["fsck", "--db", text(&db)]);
    let report = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        report.contains("table 'public.t', column '") && report.contains("1 problem"),
        "{report}"
    );
}

#[test]
fn the_temporary_database_goes_with_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    stdout(
        &command(&["-c", "CREATE TABLE t AS SELECT 1 AS a"])
            .env("TMPDIR", folder.path())
            .output()
            .unwrap(),
    );
    assert_eq!(files(), 0);

    // Ended from outside, in the middle of a statement that never ends by itself.
    let mut child = command(&[
        "-c",
        "SELECT 'runs' AS it",
        "-c",
        "SELECT count(*) FROM generate_series(1, 10000000000) AS s(v) WHERE v % 3 = 7",
    ])
    .env("TMPDIR", folder.path())
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("runs") {
        assert!(
            std::io::BufRead::read_line(&mut output, &mut line).unwrap() > 0,
            "it ended too soon: {line}"
        );
    }
    assert_eq!(files(), 2, "the database and the spill files");
    assert!(
        Command::new("kill")
            .arg(child.id().to_string())
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(files(), 0);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut child = command(&[
        "--format",
        "csv",
        "-c",
        "SELECT value FROM generate_series(1, 3000000) AS s(value)",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    drop(output);
    let output = child.wait_with_output().unwrap();
    assert_eq!(stderr(&output, 0), "");
}

#[test]
fn the_demo_runs_through() {
    let output = stdout(&run(&["demo", "--scale-factor", "0.01"]));
    for part in [
        "TPC-H Q6",
        "60,175 rows",
        "FlashScanExec",
        "read from flash",
        "What pushdown saved",
    ] {
        assert!(output.contains(part), "{part:?} is not in: {output}");
    }
}
