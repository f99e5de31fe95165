"""JSON texts and options of `read_csv`, beside DuckDB's answers."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import duckdb
import flashmesh
import pytest
from seeds import SEED

PATHS = [
    "$",
    "$.a",
    "$.a.b",
    "$.list[0]",
    "$.list[1].x",
    "$.list[#-1]",
    "$.list[9]",
    '$."k k"',
    "/a",
    "/list/0",
    "/list/1/x",
    "/",
    "/list/00",
    "/list/+1",
    "$.list.0",
    "0",
    "",
    "a",
    "k k",
    "nothing",
]
KEYS = ["a", "b", "x", "list", "k k", "é", 'q"q']


def document(chance: random.Random, depth: int = 0):
    kind = chance.randrange(9 if depth < 4 else 6)
    if kind >= 7:
        return {key: document(chance, depth + 1) for key in chance.sample(KEYS, chance.randrange(6))}
    if kind == 6:
        return [document(chance, depth + 1) for _ in range(chance.randrange(4))]
    numbers = [0, -3, 17, 2**63, -(2**40), 2.5]
    texts = ["", "text", 'a "b" \\ c', "line\nend", "é€", "null"]
    return [None, True, False, chance.choice(numbers), chance.choice(texts), chance.choice(texts)][kind]


@pytest.fixture(scope="module")
def engines():
    chance = random.Random(SEED)
    rows: list[tuple] = [(0, None, "$.a")]
    for number in range(1, 600):
        value = {key: document(chance, 1) for key in chance.sample(KEYS, chance.randrange(1, 7))}
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        rows.append((number, text, chance.choice(PATHS)))
    own, peer = flashmesh.connect(), duckdb.connect()
    for connection in (own, peer):
        connection.execute("CREATE TABLE t (id BIGINT, doc VARCHAR, path VARCHAR)")
        for row in rows:
            connection.execute("INSERT INTO t VALUES (?, ?, ?)", list(row))
    return own, peer


def same(engines, query: str) -> None:
    own, peer = (connection.execute(query).fetchall() for connection in engines)
    assert own == peer, query


@pytest.mark.parametrize("pushdown", ["always", "never"])
def test_parts_of_documents_are_duckdbs(engines, pushdown: str) -> None:
    engines[0].execute(f"SET flashmesh.pushdown = '{pushdown}'")
    for path in PATHS:
        path = path.replace("'", "''")
        same(
            engines,
            f"""SELECT id, json_extract(doc, '{path}')::VARCHAR, json_extract_string(doc, '{path}'), doc ->> '{path}',
                (doc -> '{path}')::VARCHAR, json_array_length(doc, '{path}'), json_keys(doc, '{path}'),
                json_type(doc, '{path}'), json_exists(doc, '{path}') FROM t ORDER BY id""",
        )
        same(engines, f"SELECT id FROM t WHERE (doc ->> '{path}') = 'text' ORDER BY id")
        same(engines, f"SELECT doc ->> '{path}' AS k, count(*) FROM t GROUP BY k ORDER BY k NULLS LAST")
    same(engines, "SELECT id, json_extract_string(doc, path), json_type(doc, path) FROM t ORDER BY id")
    same(engines, "SELECT id, (doc -> 'list') ->> 0, (doc -> 'list') ->> -1 FROM t ORDER BY id")
    same(engines, "SELECT id, json_valid(doc), json_type(doc), json_keys(doc) FROM t ORDER BY id")


def test_values_become_documents(engines) -> None:
    same(
        engines,
        """SELECT id, to_json(id)::VARCHAR, to_json(path)::VARCHAR, to_json([id, NULL])::VARCHAR, json_array(id, path, NULL, 1.5, true)::VARCHAR,
           json_object('id', id, 'p', path, 'n', NULL)::VARCHAR, to_json({'a': id, 'b': [path]})::VARCHAR FROM t ORDER BY id""",
    )
    same(engines, "SELECT json_group_array(id)::VARCHAR FROM (SELECT id FROM t ORDER BY id LIMIT 9)")
    # JSON within JSON is no text, nor is what is taken out of a document.
    same(
        engines,
        """SELECT id, json_object('a', json_array(id, json_object('b', path)), 'n', json_array())::VARCHAR,
           json_array(doc -> 'a', doc ->> 'a', json(doc), json_extract(doc, 'list'))::VARCHAR FROM t ORDER BY id""",
    )
    same(engines, "SELECT json_group_array(json_object('i', id))::VARCHAR FROM (SELECT id FROM t ORDER BY id LIMIT 9)")
    own = engines[0]
    own.execute("CREATE VIEW made AS SELECT json_object('a', json_array(1, doc -> 'a')) AS made FROM t WHERE id = 0")
    assert own.execute("SELECT made FROM made").fetchall() == [('{"a":[1,null]}',)]
    encoded = "SELECT to_json(arrow_cast(NULL, 'Dictionary(Int32, Utf8)')), to_json(arrow_cast('a', 'Dictionary(Int32, Utf8)'))"
    assert own.execute(encoded).fetchall() == [(None, '"a"')]
    assert own.execute("SELECT json_valid(arrow_cast('{}', 'Dictionary(Int32, Utf8)'))").fetchall() == [(True,)]


def test_arrows_are_stronger_than_comparisons(engines) -> None:
    own = engines[0]
    for loose, grouped in [
        ("doc ->> 'a' = 'text'", "(doc ->> 'a') = 'text'"),
        ("'text' = doc ->> 'a'", "'text' = (doc ->> 'a')"),
        ("doc -> 'a' ->> 'b' <> 'text' AND id > 3", "((doc -> 'a') ->> 'b') <> 'text' AND id > 3"),
        ("doc ->> 'a' IN ('text', '17')", "(doc ->> 'a') IN ('text', '17')"),
        ("doc ->> 'a' LIKE '%e%' OR id = 1", "(doc ->> 'a') LIKE '%e%' OR id = 1"),
        ("NOT doc ->> 'a' IS NULL", "NOT ((doc ->> 'a') IS NULL)"),
        ("doc ->> 'a' BETWEEN '1' AND 'z'", "(doc ->> 'a') BETWEEN '1' AND 'z'"),
        ("doc ->> 'a' = doc ->> 'b'", "(doc ->> 'a') = (doc ->> 'b')"),
        ("doc ->> 'a' IS NOT DISTINCT FROM doc ->> 'x'", "(doc ->> 'a') IS NOT DISTINCT FROM (doc ->> 'x')"),
        ("doc ->> 'a' = 'text' IS TRUE", "((doc ->> 'a') = 'text') IS TRUE"),
        ("'text' = doc ->> 'a' IS TRUE", "('text' = (doc ->> 'a')) IS TRUE"),
        ("doc ->> 'a' = 'text' IS UNKNOWN", "((doc ->> 'a') = 'text') IS UNKNOWN"),
        ("doc ->> 'a' || '!' = 'text!'", "((doc ->> 'a') || '!') = 'text!'"),
        ("doc ->> 'a' ~ 't$'", "(doc ->> 'a') ~ 't$'"),
        ("doc ->> 'a' = ANY(['text', '17'])", "(doc ->> 'a') = ANY(['text', '17'])"),
        ("'b' BETWEEN 'a' AND doc ->> 'a'", "'b' BETWEEN 'a' AND (doc ->> 'a')"),
    ]:
        found = own.execute(f"SELECT id FROM t WHERE {loose} ORDER BY id").fetchall()
        assert found, loose
        assert found == own.execute(f"SELECT id FROM t WHERE {grouped} ORDER BY id").fetchall(), loose
    # Names of columns with places and fields behind them are those of columns.
    own.execute("CREATE TABLE st AS SELECT {'a': [9, 8]} AS s, [5, 6] AS a")
    asked = "SELECT st.a[1], st.s.a[1], (st.s).a[2], ({'Q': 7}).\"Q\", a[2], (s).a[1] + 1 FROM st WHERE st.a[1] = 5"
    assert own.execute(asked).fetchall() == [(5, 9, 8, 7, 6, 10)]


def test_what_is_no_json_has_nothing_in_it() -> None:
    con = flashmesh.connect()
    for text in ["", "{", '{"a":1', '{"a":1}}', "{'a':1}", "[1,]", "nul", '{"a":1} x', "[" * 100_000]:
        asked = "SELECT json_valid($1), json_extract($1, 'a'), $1 ->> '$[0]', json_type($1), json_keys($1)"
        assert con.execute(asked, [text]).fetchall() == [(False, None, None, None, None)], text[:20]
    for path in ["$a", "$.", "$[", "$[x]", "$[*]", "$.*", "$..a", "$[#2]", '$."a']:
        with pytest.raises(Exception, match="is no path of JSON"):
            con.execute("SELECT json_extract('{}', $1)", [path]).fetchall()
    for kind, step in ((("[", "]"), "[0]"), (('{"a":', "}"), ".a")):
        deep = kind[0] * 20_000 + "1" + kind[1] * 20_000
        for steps, found in ((900, True), (0, True)):
            asked = "SELECT json_exists($1, $2), json_valid($1)"
            assert con.execute(asked, [deep, "$" + step * steps]).fetchall() == [(found, True)]
        with pytest.raises(Exception, match="at most 1000 steps"):
            con.execute("SELECT json_exists($1, $2)", [deep, "$" + step * 20_000]).fetchall()
        with pytest.raises(Exception, match="at most 1000 steps"):
            con.execute("SELECT json_exists($1, $2)", [deep, "/0" * 20_000]).fetchall()
    con = flashmesh.connect(memory_limit="64M")
    made = "repeat('\"', 1000000)"
    for _ in range(6):
        made = f"json_array(lower({made}))"
    with pytest.raises(Exception, match="bytes at once"):
        con.execute(f"SELECT length({made})").fetchall()


FILES = {
    "plain.csv": "a,b,c\n1,x,2020-01-02\n2,,2021-02-03\n",
    "bare.txt": "1;x y;007\n2;z;008\n",
    "bare2.txt": "1;x y\n2;z\n",
    "quoted.csv": "a|b\n'x|y'|1\n'it''s'|2\n",
    "more.csv": "a,b,c\n5,y,2022-03-04\n",
    "noted.csv": "a,b\n# a note\n1,NA\nNA,2\n",
}
READ = [
    "'{}/plain.csv', header = true",
    "'{}/plain.csv', auto_detect = true",
    "'{}/plain.csv', all_varchar = true",
    "'{}/bare2.txt', header = false, delim = ';', names = ['n', 'word'], sample_size = 1",
    "'{}/bare.txt', header => false, sep => ';', columns => {{'n': 'BIGINT', 'w': 'VARCHAR', 'code': 'VARCHAR'}}",
    "'{}/bare.txt', header := false, delim := ';', names := ['n', 'w', 'code'], types := {{'code': 'VARCHAR'}}",
    "'{}/quoted.csv', delim = '|', quote = '''', escape = '''', header = true",
    "'{}/noted.csv', comment = '#', nullstr = 'NA', header = true",
    "['{0}/plain.csv', '{0}/more.csv'], header = true",
]


@pytest.mark.parametrize("arguments", READ)
def test_csv_files_are_read_as_it_is_said(tmp_path: Path, arguments: str) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    own, peer = flashmesh.connect(), duckdb.connect()
    source = f"read_csv({arguments.format(tmp_path)})"
    column = "n" if "bare" in source else "b"
    for query in (f"SELECT * FROM {source} ORDER BY 1", f"SELECT f.{column} FROM {source} AS f WHERE f.{column} IS NOT NULL ORDER BY 1"):
        mine, theirs = own.execute(query), peer.execute(query)
        assert [column[0] for column in mine.description] == [column[0] for column in theirs.description]
        assert mine.fetchall() == theirs.fetchall(), query
    # As a table that others name, too.
    own.execute(f"CREATE VIEW v AS SELECT * FROM {source}")
    [(text,)] = own.execute("SELECT definition FROM information_schema.views WHERE table_name = 'v'").fetchall()
    assert str(tmp_path) in text and "flashmesh:" not in text, text
    assert ("read_csv(" in text) == ("auto_detect" not in arguments), text
    assert own.execute("SELECT count(*) FROM v").fetchall() == peer.execute(f"SELECT count(*) FROM {source}").fetchall()


def test_folders_and_compressed_files(tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    for name in "ab":
        (tmp_path / "packed" / f"{name}.csv.gz").write_bytes(gzip.compress(b"n;w\n1;x\n"))
    (tmp_path / "bare").write_text("n;w\n2;y\n")
    con = flashmesh.connect()
    for arguments, found in [
        (f"'{tmp_path}/packed/', delim = ';'", [(1, "x")] * 2),
        (f"'{tmp_path}/packed', delim = ';', compression = 'gzip'", [(1, "x")] * 2),
        (f"'{tmp_path}/packed/*.gz', delim = ';'", [(1, "x")] * 2),
        (f"'{tmp_path}/bare', delim = ';', compression = 'none'", [(2, "y")]),
        (f"'file://{tmp_path}/bare', delim = ';'", [(2, "y")]),
    ]:
        assert con.execute(f"SELECT * FROM read_csv({arguments})").fetchall() == found, arguments


def test_what_a_file_is_not_read_by_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("b,a,c\n1,2,3\n")
    (tmp_path / "plain.csv").write_text(FILES["plain.csv"])
    con = flashmesh.connect()
    for arguments, said in [
        ("", "takes a path in quotes"),
        ("1", "takes a path in quotes"),
        ("'{}/plain.csv', 'y'", "takes options with their names"),
        ("'{}/plain.csv', skip_rows = 2", "has no option 'skip_rows'; there are: filename, all_varchar"),
        ("'{}/plain.csv', header = 'yes'", "header can't be 'yes'"),
        ("'{}/plain.csv', delim = ';;'", "delim can't be ';;'"),
        ("'{}/plain.csv', types = {{'q': 'INT'}}", "has no column 'q'; there are: a, b, c"),
        ("'{}/plain.csv', types = {{'a': 'NUMBERS'}}", "'NUMBERS' is no type"),
        ("'{}/plain.csv', names = ['x', 'y', 'z', 'w']", "4 names for 3 columns"),
        ("'{}/none.csv', header = true", "does not exist"),
        ("['{0}/plain.csv', '{0}/other.csv']", "CSV files of one table have the same columns"),
        ("'{}/plain.csv', union_by_name = 'yes'", "union_by_name can't be 'yes'"),
        ("'{}/plain.csv', compression = 'rar'", "compression can't be 'rar'"),
    ]:
        with pytest.raises(Exception, match=said):
            con.execute(f"SELECT * FROM read_csv({arguments.format(tmp_path)})")
    with pytest.raises(Exception, match="has no option 'header'"):
        con.execute("SELECT * FROM read_parquet('x.parquet', header = true)")


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_arrays_are_read_as_their_elements(tmp_path: Path, ending: str) -> None:
    chance = random.Random(SEED)
    rows = [
        {"a": row, **({"b": chance.choice(["x", "y z", "[", None])} if row % 3 else {}), "c": [row % 5, {"d": 1}][:1]}
        for row in range(20_000)
    ]
    file = tmp_path / f"rows.{ending}"
    text = "\n  " + json.dumps(rows, indent=chance.choice([None, 1]))
    file.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    empty = tmp_path / "empty.json"
    empty.write_text("[]")
    query = f"SELECT count(*), count(b), sum(a), max(b), sum(list_sum(c)) FROM '{file}'"
    with flashmesh.connect() as con:
        # Several threads would read parts of a file of lines.
        con.execute("SET datafusion.optimizer.repartition_file_min_size = 1")
        expected = duckdb.sql(query).fetchall()
        assert con.execute(query).fetchall() == expected
        assert con.execute(query.replace(f"'{file}'", f"read_json('{file}')")).fetchall() == expected
        con.load("t", str(file))
        assert con.execute(query.replace(f"'{file}'", "t")).fetchall() == expected
        for number, (wrong, why) in enumerate(
            [(text[: len(text) // 2], "no end"), ('[{"a": 1}]\n[{"a": 2}]', "more than an array"), ('[{"a": 1},]', "missing")]
        ):
            bad = tmp_path / f"bad{number}.json"
            bad.write_text(wrong)
            with pytest.raises(flashmesh.Error, match=why):
                con.execute(f"SELECT sum(a) FROM '{bad}'").fetchall()
