"""CSV files are read as DuckDB reads them: by what is in them, where nobody says how."""

import csv
import gzip
import random

import duckdb
import flashmesh
import pytest
from seeds import SEED

FILES = {
    "headers": "a,b\n1,x\n2,y\n",
    "no headers": "1,2\n3,4\n",
    "no headers, one of texts": "1,alice\n2,bob\n",
    "nothing but texts": "x,y\na,b\n",
    "one line": "1,2\n",
    "days": "2024-01-01,5\n2024-01-02,6\n",
    "names that are numbers beside others": "id,2024\n1,5\n",
    "only names": "a,b\n",
    "line ends in quotes": 'id,s\n1,"x\ny"\n2,"a ""quoted""\n\nline"\n3,plain\n',
    "quotes within values": 'id,s\n1,5" pipe\n2,"6"" pipe"\n',
    "carriage returns": "a,b\r\n1,x\r\n2,y\r\n",
    "no end": "a,b\n1,x",
    "semicolons": "a;b\n1;x\n2;y, z\n",
    "semicolons beside commas in numbers": "name;price\nx;1,5\ny;2,25\n",
    "semicolons without headers": "1;x\n2;y\n",
    "tabs": "a\tb\n1\tx\n",
    "bars": "a|b|c\n1|x|2.5\n2|y|3\n",
    "one column": "name\nann\nbob\n",
    "times of day": "t,s\n12:30:01,x\n01:02:03.25,\n,y\n",
    "what is not always a time of day": "t,s\n12:30:01,x\n7 pm,y\n",
    "times of day without headers": "1,12:30:01\n2,01:02:03\n",
}


@pytest.mark.parametrize("name", FILES)
def test_small_files_are_what_duckdb_reads(tmp_path, name):
    file = tmp_path / "f.csv"
    file.write_bytes(FILES[name].encode())
    query = f"SELECT * FROM '{file}' ORDER BY 1"
    expected = duckdb.sql(query).fetchall()
    with flashmesh.connect() as con:
        assert con.execute(query).fetchall() == expected
        if expected:
            con.load("t", str(file))
            assert con.execute("SELECT * FROM t ORDER BY 1").fetchall() == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,alice,5.5\n2,bob,\n", [(1, "alice", 5.5), (2, "bob", None)]),
        ("1,alice\n,bob\n", [(1, "alice"), (None, "bob")]),
        ("alice,1.5\nbob,2\n", [("alice", 1.5), ("bob", 2.0)]),
    ],
)
def test_first_rows_that_are_unlike_others_are_kept(tmp_path, text, expected):
    """DuckDB takes them for names."""
    file = tmp_path / "f.csv"
    file.write_text(text)
    with flashmesh.connect() as con:
        assert con.execute(f"SELECT * FROM '{file}' ORDER BY 1 NULLS LAST").fetchall() == expected


def test_what_is_said_of_headers_counts(tmp_path):
    file = tmp_path / "f.csv"
    file.write_text("1,2\n3,4\n")
    with flashmesh.connect() as con:
        assert con.execute(f"SELECT * FROM read_csv('{file}', header = true)").fetchall() == [(3, 4)]
        assert con.execute(f"SELECT * FROM read_csv('{file}', header = false) ORDER BY 1").fetchall() == [(1, 2), (3, 4)]
        con.execute("SET datafusion.catalog.has_header = false")
        file.write_text("a,b\n3,4\n")
        assert con.execute(f"SELECT count(*) FROM '{file}'").fetchall() == [(2,)]


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_long_files_with_line_ends_in_values(tmp_path, compression):
    rng = random.Random(SEED)
    pieces = ["plain", "line\nend", 'a "quote"', "comma, and\n\n\nmore", "ä" * 50, "\n", ";"]
    rows = [(i, rng.choice(pieces) + rng.choice(pieces) * rng.randrange(20), i / 4) for i in range(20_000)]
    file = tmp_path / ("f.csv" + (".gz" if compression else ""))
    plain = tmp_path / "plain.csv"
    with plain.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["id", "s", "x"])
        writer.writerows(rows)
    with flashmesh.connect() as con:
        if compression:
            import gzip

            file.write_bytes(gzip.compress(plain.read_bytes()))
        else:
            plain.rename(file)
        assert con.execute(f"SELECT id, s, x FROM '{file}' ORDER BY id").fetchall() == rows
        con.load("t", str(file))
        assert con.execute("SELECT * FROM t ORDER BY id").fetchall() == rows
        con.execute(f"COPY t TO '{tmp_path}/back.csv'")
        assert con.execute(f"SELECT id, s, x FROM '{tmp_path}/back.csv' ORDER BY id").fetchall() == rows


# Name, text, and how it is read.
SAID = [
    ("skipped", 'some "report\nof, 2024\n\na,b\n1,x\n2,y\n', "skip = 3"),
    ("skipped, names too", "a,b\n1,x\n2,y\n", "skip = 1, names = ['n', 's']"),
    ("skipped to the end", "a,b\n1,x\n", "skip = 1, header = true"),
    ("commas in numbers", "n;s\n1,5;x\n-2,25;y\n;z\n", "decimal_separator = ','"),
    ("commas in some numbers", "n|s\n1|x\n2,25|y\n", "decimal_separator = ',', delim = '|'"),
    ("commas in decimals", "n|s\n1,25|x\n2,5|y\n", "decimal_separator = ',', delim = '|', types = {'n': 'DECIMAL(9, 2)'}"),
    ("too few and too many", "a,b\n1,x\n2\n3,y,z\n4,w\n", "ignore_errors = true, header = true, delim = ','"),
    ("of other types", "a,b\n1,x\nzwei,y\n,z\n4,w\n", "ignore_errors = true, types = {'a': 'INT'}, delim = ','"),
    ("of other types than columns", "1,2\n3,x\n5\n7,8\n", "ignore_errors = true, columns = {'a': 'INT', 'b': 'INT'}, header = false"),
    ("quotes doubled by a sign", 'a,b\n1,"x ""y"" z"\n2,"u\nv"\n3\n', "ignore_errors = true, escape = '\"', quote = '\"', header = true, delim = ','"),
    ("lines of separators", "a\tb\tc\n1\t2\t3\n\t\n\n4\t5\t6\n", "ignore_errors = true, header = true, delim = '\t'"),
    ("beside a text for NULL", "a,b\n1,-\n-,2\nx,3\n", "ignore_errors = true, nullstr = '-', types = {'a': 'INT'}, header = true"),
]


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
@pytest.mark.parametrize(("name", "text", "options"), SAID, ids=[name for name, _, _ in SAID])
def test_files_are_read_as_is_said(tmp_path, name, text, options, ending):
    file = tmp_path / f"f.{ending}"
    file.write_bytes(gzip.compress(text.encode()) if ending == "csv.gz" else text.encode())
    query = f"SELECT * FROM read_csv('{file}', {options}) ORDER BY ALL NULLS LAST"
    expected = duckdb.sql(query).fetchall()
    with flashmesh.connect() as con:
        assert con.execute(query).fetchall() == expected
        con.execute(f"CREATE TABLE t AS {query}")
        assert con.execute("SELECT * FROM t ORDER BY ALL NULLS LAST").fetchall() == expected


def test_errors_are_ignored_wherever_parts_of_files_end(tmp_path):
    rng = random.Random(SEED)
    rows = []
    for row in range(30_000):
        value = str(row) if rng.random() < 0.9 else rng.choice(["x", "1.5x", "", "99999999999999999999"])
        text = rng.choice(["plain", '"a, ""b""\nc"', "", "ä"])
        rows.append(",".join([value, text] + ["more"] * rng.choice([0] * 20 + [1])))
        rows.extend(["alone"] * rng.choice([0] * 20 + [1]))
    file = tmp_path / "f.csv"
    file.write_text("n,s\n" + "\n".join(rows))
    query = f"SELECT count(*), count(n), sum(n), count(s), sum(length(s)) FROM read_csv('{file}', header = true, delim = ',', quote = '\"', types = {{'n': 'BIGINT', 's': 'VARCHAR'}}, ignore_errors = true)"
    with flashmesh.connect() as con:
        assert con.execute(query).fetchall() == duckdb.sql(query).fetchall()


def test_files_of_other_types_are_one_table_by_name(tmp_path):
    for number, text in enumerate(["t,d\n12:30:00,2024-01-01\n", "t,d\nlate,never\n", "d\n2024-01-02\n"]):
        (tmp_path / f"{number}.csv").write_text(text)
    with flashmesh.connect() as con:
        query = f"SELECT * FROM read_csv('{tmp_path}/*.csv', union_by_name = true, header = true) ORDER BY ALL"
        expected = [("12:30:00", "2024-01-01"), ("late", "never"), (None, "2024-01-02")]
        assert con.execute(query).fetchall() == expected


def test_errors_are_told_where_they_are_not_ignored(tmp_path):
    file = tmp_path / "f.csv"
    file.write_text("a,b\n1,x\n2\n")
    with flashmesh.connect() as con:
        for options, why in [
            ("delim = ','", "unequal lengths"),
            ("ignore_errors = true, dateformat = '%d'", "try_strptime"),
            ("skip = -1", "skip can't be -1"),
            ("skip = 'x'", "skip can't be 'x'"),
            ("decimal_separator = ''", "decimal_separator can't be ''"),
        ]:
            with pytest.raises(flashmesh.Error, match=why):
                con.execute(f"SELECT * FROM read_csv('{file}', {options})").fetchall()


def test_files_of_one_table_have_its_columns_in_one_order(tmp_path):
    (tmp_path / "a1.csv").write_text("id,x\n1,10\n")
    (tmp_path / "a2.csv").write_text("x,id\n20,2\n")
    (tmp_path / "b1.csv").write_text("id,x\n1,10\n")
    (tmp_path / "b2.csv").write_text("id,x\n2,2.5\n")
    (tmp_path / "b3.csv").write_text("id,x\n3,\n")
    with flashmesh.connect() as con:
        with pytest.raises(flashmesh.Error, match="UNION BY NAME"):
            con.execute(f"SELECT * FROM '{tmp_path}/a*.csv'")
        with pytest.raises(flashmesh.Error, match="UNION BY NAME"):
            con.load("t", f"{tmp_path}/a*.csv")
        expected = [(1, 10.0), (2, 2.5), (3, None)]
        assert con.execute(f"SELECT * FROM '{tmp_path}/b*.csv' ORDER BY id").fetchall() == expected


def test_moments_of_seconds_are_moments_in_parquet(tmp_path):
    file = tmp_path / "s.parquet"
    with flashmesh.connect() as con:
        con.execute("CREATE TABLE s AS SELECT TIMESTAMP '2024-01-05 10:00:00'::TIMESTAMP(0) AS t, '10:00:00'::TIME(0) AS h")
        con.execute(f"COPY s TO '{file}'")
        query = f"SELECT t, h FROM '{file}'"
        assert str(con.execute(query).fetchall()) == str(duckdb.sql(query).fetchall())
        con.execute("CREATE VIEW v AS SELECT h, t AS \"T\" FROM s")
        con.execute(f"COPY v TO '{file}'")
        assert str(duckdb.sql(f"SELECT \"T\" FROM '{file}'").fetchall()) == "[(datetime.datetime(2024, 1, 5, 10, 0),)]"


def test_folders_keys_have_the_types_that_all_of_them_are_written_as(tmp_path):
    for number, (year, month, day) in enumerate(
        [(2020, "1", "2020-01-31"), (2021, "02", "2021-02-28"), (2021, "12", "2021-12-01")]
    ):
        folder = tmp_path / f"year={year}" / f"month={month}" / f"day={day}"
        folder.mkdir(parents=True)
        (folder / "part.csv").write_text(f"v\n{number}\n{number + 10}\n")
    files = tmp_path / "*/*/*/*.csv"
    for query in (
        f"SELECT year + 1, month, day + 1, sum(v) FROM '{files}' GROUP BY ALL ORDER BY ALL",
        f"SELECT typeof(year), typeof(month), typeof(day) FROM '{files}' LIMIT 1",
        f"SELECT v FROM '{files}' WHERE year > 2020 AND month = '02' AND day < DATE '2021-03-01' ORDER BY v",
    ):
        with flashmesh.connect() as con:
            assert con.execute(query).fetchall() == duckdb.sql(query).fetchall(), query


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("f.csv.gz", "read_csv('{}')"),
        ("f.csv.zst", "read_csv('{}')"),
        ("f.tsv", "read_csv('{}')"),
        ("f.tsv.gz", "read_csv('{}', delim = '\t')"),
        ("f.jsonl", "read_json('{}')"),
        ("f.ndjson", "read_json('{}')"),
        ("f.json.gz", "read_json('{}')"),
        ("f.pq", "read_parquet('{}')"),
    ],
)
def test_files_are_written_as_their_names_say(tmp_path, name, reader):
    file = tmp_path / name
    with flashmesh.connect() as con:
        con.execute(f"COPY (SELECT value AS a, 'x, ' || value AS b FROM range(1000) ORDER BY a) TO '{file}'")
        expected = duckdb.sql(f"SELECT * FROM {reader.format(file)} ORDER BY a").fetchall()
        assert expected == [(row, f"x, {row}") for row in range(1000)]
        assert con.execute(f"SELECT * FROM '{file}' ORDER BY a").fetchall() == expected


def test_what_copy_is_told_is_done_or_refused(tmp_path):
    with flashmesh.connect() as con:
        con.execute("CREATE TABLE t AS SELECT value AS a, 'x' AS b FROM range(100)")
        con.execute(f"COPY t TO '{tmp_path}/f.csv.gz' (FORMAT csv, HEADER)")
        assert duckdb.sql(f"SELECT sum(a) FROM read_csv('{tmp_path}/f.csv.gz')").fetchall() == [(4950,)]
        con.execute(f"COPY (SELECT 1 AS a, NULL::INT AS k UNION ALL SELECT 2, 7) TO '{tmp_path}/k' (FORMAT csv, PARTITION_BY (k))")
        keys = duckdb.sql(f"SELECT a, k FROM read_csv('{tmp_path}/k/*/*.csv') ORDER BY a").fetchall()
        assert keys == [(1, None), (2, 7)]
        con.execute(f"COPY t TO '{tmp_path}/f.parquet' (FORMAT parquet, ROW_GROUP_SIZE 10, COMPRESSION zstd)")
        groups = duckdb.sql(f"SELECT count(DISTINCT row_group_id) FROM parquet_metadata('{tmp_path}/f.parquet')")
        assert groups.fetchall() == [(10,)]
        con.execute(f"COPY t TO '{tmp_path}/p' (FORMAT parquet, PARTITION_BY (b), OVERWRITE_OR_IGNORE)")
        assert con.execute(f"SELECT b, sum(a) FROM '{tmp_path}/p/*/*.parquet' GROUP BY b").fetchall() == [("x", 4950)]
        for options, why in (
            ("FORMAT json, ARRAY", "a row in each line"),
            ("FORMAT parquet, PARTITION_BY (b), OVERWRITE", "remove them before"),
            ("FORMAT parquet, ROW_GROUP_SIZE 0", "1 at least"),
            ("FORMAT parquet, WRITE_BATCH_SIZE 0", "from 1 to"),
        ):
            with pytest.raises(flashmesh.Error, match=why):
                con.execute(f"COPY t TO '{tmp_path}/q' ({options})")
