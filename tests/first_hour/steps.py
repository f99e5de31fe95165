"""The steps of the hour: what is typed, and what the documents say comes of it.

`of_flashmesh` is typed as the documents have it; `document` says where that stands. Where DuckDB can
do the same, `of_duckdb` is what its own documents tell, checked for the same answer; where it can't,
`lacking` says why. `why` says what ours takes more words or seconds for.
"""

import math
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import data
from stage import Desk, Interrupted, Left, LeftPython, Opened, Python, Served, Several, Shell, Sql, Typed, Written, has

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct horses"

#: Looks at what was printed, with the desk at hand; fails by AssertionError.
Check = Callable[[str, Desk], None]


@dataclass
class Step:
    title: str
    document: str
    of_flashmesh: Typed
    check: Check
    of_duckdb: Typed | None = None
    #: Where the same answer is printed in another way.
    check_duckdb: Check | None = None
    lacking: str = ""
    why: str = ""
    #: Whether an error is what the documents say comes.
    fails: bool = False
    #: Why the step can't be done on this machine, if it can't.
    missing: Callable[[Desk], str | None] = field(default=lambda desk: None)


# Checks.


def says(*texts: str) -> Check:
    """Each of the texts is printed."""

    def check(printed: str, desk: Desk) -> None:
        for text in texts:
            assert text in printed, f"{text!r} is not printed"

    return check


def matches(pattern: str) -> Check:
    def check(printed: str, desk: Desk) -> None:
        assert re.search(pattern, printed, re.MULTILINE), f"nothing is printed like {pattern}"

    return check


def silent(printed: str, desk: Desk) -> None:
    """It is enough that it went well."""


def both(*checks: Check) -> Check:
    def check(printed: str, desk: Desk) -> None:
        for each in checks:
            each(printed, desk)

    return check


def file(name: str, *texts: str) -> Check:
    """The file is there, and has the texts."""

    def check(printed: str, desk: Desk) -> None:
        content = (desk.folder / name).read_bytes().decode(errors="replace").replace("\r\n", "\n")
        for text in texts or ("",):
            assert text in content, f"{name} lacks {text!r}"

    return check


def table(printed: str) -> list[list[str]]:
    """The rows of all tables that are printed; without names, types and what is said below."""
    rows: list[list[str]] = []
    header = 0
    for line in printed.splitlines():
        line = line.strip()
        if line[:1] in ("┌", "+") and header == 0:
            header = 1
        elif line[:1] in ("├", "+") and header == 1:
            header = 2
        elif line[:1] in ("└", "+"):
            header = 0
        elif line[:1] in ("│", "|") and header == 2:
            cells = [cell.strip() for cell in re.split("[│|]", line)[1:-1]]
            # DuckDB writes a large number once more, in words.
            if not all(re.fullmatch(r"\([\d.]+ (thousand|million|billion)\)|", cell) for cell in cells):
                rows.append(cells)
    return rows


def same(cell: str, value: object) -> bool:
    if isinstance(value, float):
        return math.isclose(float(cell), value, rel_tol=1e-4, abs_tol=1e-4)
    return cell == str(value)


def rows(*expected: tuple) -> Check:
    """Exactly these rows are printed, in this order."""

    def check(printed: str, desk: Desk) -> None:
        found = table(printed)
        assert len(found) == len(expected) and all(
            len(cells) == len(row) and all(map(same, cells, row)) for cells, row in zip(found, expected)
        ), f"rows are {found[:12]}, not {list(expected)[:12]}"

    return check


# Why a step can't be done here.


def module_missing(name: str) -> Callable[[Desk], str | None]:
    def missing(desk: Desk) -> str | None:
        found = subprocess.run([desk.python, "-c", f"import {name}"], capture_output=True).returncode == 0
        return None if found else f"Python has no {name}"

    return missing


def without_compiler(desk: Desk) -> str | None:
    if has("clang++", desk) and has("wasm-ld", desk):
        return None
    return "no compiler of kernels: neither ziglang nor clang++ with wasm-ld" if module_missing("ziglang")(desk) else None


def program_missing(name: str) -> Callable[[Desk], str | None]:
    return lambda desk: None if has(name, desk) else f"{name} is missing"


def without_jdbc(desk: Desk) -> str | None:
    if not has("java", desk):
        return "java is missing"
    jar = desk.folder / JDBC_JAR
    return None if jar.exists() else "the JDBC driver is missing: name its jar by FLASHMESH_JDBC_DRIVER"


JDBC_JAR = "flight-sql-jdbc-driver.jar"
NO_SERVER = "DuckDB is a library: it has no server, and so no users"
NO_RACK = "DuckDB is one process on one machine"
NO_KERNEL = "functions of one's own in C++ are an extension that is built against DuckDB's source, and is not sandboxed"
NO_INDEX = "DuckDB's core has no such index; vss and fts are extensions, which it loads from the network"


def block(document: str, beginning: str) -> str:
    """A block of a document, by how it begins: the user copies it."""
    found = re.findall(r"^```\w*\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)
    (text,) = (text for text in found if text.startswith(beginning))
    return text


def steps(truth: data.Truth, wheel: str | None) -> list[Step]:
    return [
        *(install(wheel) if wheel else []),
        *first_look(truth),
        *shell(truth),
        *changes(truth),
        *indexes(truth),
        *python(truth),
        *kernel(truth),
        *server(truth),
        *secured_server(truth),
        *backups(truth),
        *rack(truth),
    ]


def install(wheel: str) -> list[Step]:
    return [
        Step(
            "Install it",
            "docs/packages.md",
            Shell(f"python3 -m venv venv && . venv/bin/activate && pip install --quiet {wheel}"),
            silent,
            Shell("python3 -m venv venv && . venv/bin/activate && pip install --quiet duckdb duckdb-cli"),
            why="pip also brings datafusion and pyarrow",
        ),
        Step(
            "Install what goes with it: server, kernels, data frames, plots",
            "docs/python.md",
            Shell("pip install --quiet 'flashmesh[server,kernels]' pandas polars matplotlib"),
            silent,
            Shell("pip install --quiet pyarrow pandas polars matplotlib"),
            why="the compiler of kernels (ziglang) and ADBC's driver are 150 MB; DuckDB has neither",
        ),
    ]


FILES = (
    """{program} -c "SELECT count(*) FROM 'orders.parquet'" """
    """-c "SELECT sum(quantity * cents) AS spent FROM 'orders.csv' WHERE day >= DATE '2025-12-01'" """
)


def first_look(truth: data.Truth) -> list[Step]:
    return [
        Step(
            "Which version is it, and what can it do",
            "docs/guide.md",
            Shell("flashmesh --version && flashmesh --help"),
            both(matches(r"^flashmesh \d+\.\d+"), says("load", "backup", "serve", "rack", "kernel", "--connect")),
            Shell("duckdb --version && duckdb --help"),
            both(matches(r"^v\d+\.\d+"), says("-csv", "-readonly")),
        ),
        Step(
            "Ask Parquet and CSV files where they lie",
            "README.md",
            Shell(FILES.format(program="flashmesh")),
            rows((data.ORDERS,), (truth.by_month()[11],)),
            Shell(FILES.format(program="duckdb")),
        ),
        Step(
            "Load a Parquet file into a table from the command line",
            "docs/guide.md",
            Shell("flashmesh load --db shop customer customers.parquet"),
            says("50,000 rows in table 'customer'"),
            Shell("""duckdb shop.duckdb -c "CREATE TABLE customer AS FROM 'customers.parquet'" """),
            silent,
        ),
    ]


def shell(truth: data.Truth) -> list[Step]:
    top = truth.by_item()[:3]
    returned = truth.orders["status"] == data.STATUSES.index("returned")
    dear = int(((truth.orders["cents"] > 90_000) & returned).sum())
    largest: dict[int, tuple[int, int]] = {}
    for item in (0, 1, 2):
        chosen = truth.orders["item"] == item
        largest[item] = max(zip(truth.spent[chosen].tolist(), (-truth.orders["id"][chosen]).tolist()))
    window = [(f"item {item}", -order, spent) for item, (spent, order) in largest.items()]
    counts = sorted(((truth.with_status(status), status) for status in data.STATUSES), reverse=True)
    by_status = "SELECT status, count(*) AS n FROM orders GROUP BY status ORDER BY n DESC"
    return [
        Step(
            "Open the database in its shell",
            "docs/shell.md",
            Opened("flashmesh shop"),
            says("database shop; .help for help"),
            Opened("duckdb shop.duckdb"),
            says("DuckDB"),
        ),
        Step(
            "Load a CSV file into a table",
            "docs/shell.md",
            Sql(".import orders.csv orders"),
            says("added to orders:", "1000000 rows"),
            Sql("CREATE TABLE orders AS FROM 'orders.csv';"),
            silent,
        ),
        Step(
            "Make a table of a Parquet file",
            "docs/sql.md",
            Sql("CREATE TABLE document AS SELECT * FROM 'documents.parquet';"),
            rows((data.DOCUMENTS,)),
            Sql("CREATE TABLE document AS FROM 'documents.parquet';"),
            silent,
            why="DataFusion's SQL wants a SELECT before FROM",
        ),
        Step(
            "Which tables are there, and which columns have they",
            "docs/shell.md",
            Sql(".tables", "DESCRIBE orders;"),
            both(matches(r"^orders +table +1000000 rows"), says("customer_id", "Date32", "status")),
            Sql(".tables", "DESCRIBE orders;"),
            says("1.00 million rows", "customer_id", "date", "status"),
        ),
        Step(
            "What is in them",
            "docs/shell.md",
            Sql("SUMMARIZE orders;"),
            both(says("approx_unique", "null_percentage"), matches(rf"^[|│] day .*2025-01-01.*2025-12-31.*\b{data.ORDERS}\b")),
            Sql("SUMMARIZE orders;"),
        ),
        Step(
            "Group and order",
            "docs/guide.md",
            Sql("SELECT item, sum(quantity * cents) AS spent FROM orders GROUP BY item ORDER BY spent DESC LIMIT 3;"),
            rows(*top),
            Sql("SELECT item, sum(quantity * cents) AS spent FROM orders GROUP BY item ORDER BY spent DESC LIMIT 3;"),
        ),
        Step(
            "Join two tables",
            "docs/sql.md",
            Sql(JOIN),
            rows(*truth.by_country()),
            Sql(JOIN),
        ),
        Step(
            "The greatest of each group, by a window",
            "docs/sql.md",
            Sql(WINDOW),
            rows(*window),
            Sql(WINDOW),
        ),
        Step(
            "Mistype a column",
            "docs/shell.md",
            Sql("SELECT sum(cent) FROM orders;"),
            says("no column named 'cent'", "^^^^", "did you mean cents?"),
            Sql("SELECT sum(cent) FROM orders;"),
            says('Candidate bindings: "cents"', "^"),
            fails=True,
        ),
        Step(
            "Turn times off and on",
            "docs/shell.md",
            Sql(".timer off", "SELECT 40 + 2;", ".timer on", "SELECT 40 + 2;"),
            matches(r"1 row\n(.*\n)*1 row, \d+\.\d+ s"),
            Sql(".timer off", "SELECT 40 + 2;", ".timer on", "SELECT 40 + 2;"),
            matches(r"Run Time \(s\): real \d"),
        ),
        Step(
            "Show a result in Markdown",
            "docs/shell.md",
            Sql(".mode markdown", by_status + ";", ".mode automatic"),
            matches(rf"\| *status *\| *n *\|\n\|-+:?\|-+:?\|\n(\| *{counts[0][1]} *\| *{counts[0][0]} *\|)"),
            Sql(".mode markdown", by_status + ";", ".mode duckbox"),
        ),
        Step(
            "Write the next result to a CSV file",
            "docs/shell.md",
            Sql(".once status.csv", by_status + ";"),
            file("status.csv", "status,n\n" + "".join(f"{status},{n}\n" for n, status in counts)),
            Sql(".mode csv", ".once status.csv", by_status + ";", ".mode duckbox"),
        ),
        Step(
            "Draw a chart",
            "docs/shell.md",
            Sql(f".chart {by_status}"),
            matches(rf"^{counts[0][1]} +{counts[0][0]} +█+\S*\n{counts[1][1]} +{counts[1][0]} +█"),
            Sql("SELECT status, count(*) AS n, bar(n, 0, 600000, 60) FROM orders GROUP BY status ORDER BY n DESC;"),
            matches(rf"{counts[0][1]} .*{counts[0][0]} .*█.*\n.*{counts[1][1]} "),
        ),
        Step(
            "Export to Parquet",
            "docs/guide.md",
            Sql(
                "COPY (SELECT * FROM orders WHERE status = 'returned') TO 'returned.parquet';",
                "SELECT count(*) FROM 'returned.parquet';",
            ),
            both(file("returned.parquet", "PAR1"), rows((int(returned.sum()),), (int(returned.sum()),))),
            Sql(
                "COPY (SELECT * FROM orders WHERE status = 'returned') TO 'returned.parquet';",
                "SELECT count(*) FROM 'returned.parquet';",
            ),
            rows((int(returned.sum()),)),
        ),
        Step(
            "Dump a table as statements, and read them into another database",
            "docs/shell.md",
            Sql(
                ".output customer.sql",
                ".dump customer",
                ".output",
                ".open copy",
                ".read customer.sql",
                "SELECT count(*), max(name) FROM customer;",
                ".open shop",
            ),
            lambda printed, desk: rows((data.CUSTOMERS, "Eve 9999"))(last_table(printed), desk),
            Sql(
                ".output customer.sql",
                ".dump customer",
                ".output",
                ".open copy.duckdb",
                ".read customer.sql",
                "SELECT count(*), max(name) FROM customer;",
                ".open shop.duckdb",
            ),
            why="a transaction of so many INSERTs takes time with the square of their number, as each makes a segment of its own",
        ),
        Step(
            "See how a query runs, and what it cost",
            "README.md",
            Sql(f"EXPLAIN {DEAR}", f"EXPLAIN ANALYZE {DEAR}"),
            both(
                matches(r"FlashScanExec\n(.*\n)*.*aggregate=\[count\(1\)\]\n.*pushed=\[cents > 90000, status = returned\]"),
                says("bytes_to_host=", "pages_from_flash=", "pages_skipped_zone_map="),
            ),
            Sql(f"EXPLAIN {DEAR}", f"EXPLAIN ANALYZE {DEAR}"),
            says("SEQ_SCAN", "cents>90000", "Total Time"),
        ),
        Step(
            "Run it without pushdown: the same answer",
            "docs/sql.md",
            Sql(
                "SET flashmesh.pushdown = 'never';",
                "SHOW flashmesh.pushdown;",
                DEAR,
                "RESET flashmesh.pushdown;",
            ),
            rows(("flashmesh.pushdown", "never"), (dear,)),
            lacking="DuckDB has nothing of the kind: it has no store that computes",
        ),
        Step(
            "Keep a query as a view",
            "docs/sql.md",
            Sql("CREATE VIEW returned AS SELECT * FROM orders WHERE status = 'returned';", "SELECT count(*) FROM returned;"),
            rows((int(returned.sum()),)),
            Sql("CREATE VIEW returned AS SELECT * FROM orders WHERE status = 'returned';", "SELECT count(*) FROM returned;"),
        ),
    ]


DEAR = "SELECT count(*) FROM orders WHERE cents > 90000 AND status = 'returned';"

JOIN = (
    "SELECT country, sum(quantity * cents) AS spent FROM orders JOIN customer ON customer_id = customer.id "
    "GROUP BY country ORDER BY spent DESC;"
)

WINDOW = (
    "SELECT item, id, spent FROM (SELECT item, id, quantity * cents AS spent, row_number() OVER "
    "(PARTITION BY item ORDER BY quantity * cents DESC, id) AS place FROM orders) "
    "WHERE place = 1 AND item IN ('item 0', 'item 1', 'item 2') ORDER BY item;"
)


def last_table(printed: str) -> str:
    """What is printed from the beginning of the last table on."""
    starts = [at.start() for at in re.finditer(r"^(┌|\+)", printed, re.MULTILINE)]
    lines = printed.splitlines(keepends=True)
    # A table of either shell has three lines of dashes: the last but two begins it.
    places = [number for number, line in enumerate(lines) if line[:1] in "┌├└+" and line[:1]]
    assert starts and len(places) >= 3, "no table is printed"
    return "".join(lines[places[-3] :])


def changes(truth: data.Truth) -> list[Step]:
    january = truth.orders["day"] < 31
    paid = int((january & (truth.orders["status"] == data.STATUSES.index("paid"))).sum())
    returned = int((january & (truth.orders["status"] == data.STATUSES.index("returned"))).sum())
    keyed = (
        "INSERT INTO visits VALUES ('/', 1), ('/help', 1);",
        "INSERT INTO visits VALUES ('/', 1), ('/new', 1) ON CONFLICT (page) DO UPDATE SET n = visits.n + excluded.n;",
        "SELECT * FROM visits ORDER BY page;",
    )
    merge = (
        "CREATE TABLE stock AS SELECT * FROM (VALUES (1, 'cup', 10), (2, 'plate', 4), (3, 'pot', 0)) AS s(id, name, n);",
        "CREATE TABLE sold AS SELECT * FROM (VALUES (1, 3), (2, 4), (7, 1)) AS s(id, n);",
        "MERGE INTO stock USING sold ON stock.id = sold.id WHEN MATCHED AND stock.n <= sold.n THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET n = stock.n - sold.n WHEN NOT MATCHED THEN INSERT VALUES (sold.id, 'unknown', 0);",
        "SELECT * FROM stock ORDER BY id;",
    )
    changed = (
        "UPDATE orders SET status = 'sent' WHERE status = 'paid' AND day < DATE '2025-02-01';",
        "SELECT count(*) FROM orders WHERE status = 'paid' AND day < DATE '2025-02-01';",
        "DELETE FROM orders WHERE status = 'returned' AND day < DATE '2025-02-01';",
        "SELECT count(*) FROM orders;",
    )
    return [
        Step(
            "Change and delete rows",
            "docs/sql.md",
            Sql(*changed),
            rows((paid,), (0,), (returned,), (data.ORDERS - returned,)),
            Sql(*changed),
            rows((0,), (data.ORDERS - returned,)),
        ),
        Step(
            "Let keys be generated",
            "docs/sql.md",
            Sql(
                "CREATE TABLE ticket (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, title TEXT);",
                "INSERT INTO ticket (title) VALUES ('first'), ('second') RETURNING id;",
            ),
            rows((1,), (2,)),
            Sql(
                "CREATE SEQUENCE ticket_id;",
                "CREATE TABLE ticket (id BIGINT PRIMARY KEY DEFAULT nextval('ticket_id'), title TEXT);",
                "INSERT INTO ticket (title) VALUES ('first'), ('second') RETURNING id;",
            ),
        ),
        Step(
            "Insert or add up",
            "docs/sql.md",
            Sql("CREATE TABLE visits (page TEXT PRIMARY KEY, n BIGINT);", *keyed),
            rows((2,), (2,), ("/", 2), ("/help", 1), ("/new", 1)),
            Sql("CREATE TABLE visits (page TEXT PRIMARY KEY, n BIGINT);", *keyed),
            rows(("/", 2), ("/help", 1), ("/new", 1)),
        ),
        Step(
            "A key that is there already",
            "docs/key-lookups.md",
            Sql("INSERT INTO visits VALUES ('/', 7);"),
            says("two rows have the key (page) = (/)", "nothing was stored"),
            Sql("INSERT INTO visits VALUES ('/', 7);"),
            says("Duplicate key"),
            fails=True,
        ),
        Step(
            "Merge one table into another",
            "docs/sql.md",
            Sql(*merge),
            rows((3,), (3,), (3,), (1, "cup", 7), (3, "pot", 0), (7, "unknown", 0)),
            Sql(*merge),
            rows((1, "cup", 7), (3, "pot", 0), (7, "unknown", 0)),
        ),
        Step(
            "Undo a transaction",
            "docs/sql.md",
            Sql("BEGIN;", "DELETE FROM customer;", "ROLLBACK;", "SELECT count(*) FROM customer;"),
            rows((data.CUSTOMERS,), (data.CUSTOMERS,)),
            Sql("BEGIN;", "DELETE FROM customer;", "ROLLBACK;", "SELECT count(*) FROM customer;"),
            rows((data.CUSTOMERS,)),
        ),
        Step(
            "Look at a table's past, and bring a row back",
            "docs/sql.md",
            Sql(
                "CREATE TABLE price (item TEXT, cents BIGINT) WITH (retention = '7 days');",
                "INSERT INTO price VALUES ('cup', 450), ('pot', 1900);",
                "UPDATE price SET cents = 500 WHERE item = 'cup';",
                "DELETE FROM price WHERE item = 'pot';",
                "SELECT * FROM price AT (VERSION => 2) ORDER BY item;",
                "INSERT INTO price SELECT * FROM price AT (VERSION => 2) old WHERE old.item = 'pot';",
                "SELECT * FROM price ORDER BY item;",
            ),
            rows((2,), (1,), (1,), ("cup", 450), ("pot", 1900), (1,), ("cup", 500), ("pot", 1900)),
            lacking="DuckDB's files keep no past; DuckLake, an extension and another format, does",
        ),
    ]


def indexes(truth: data.Truth) -> list[Step]:
    found = len(truth.found)
    near = [(vector, distance) for vector, distance in truth.nearest]
    depths = list(enumerate(truth.reached))
    like = "SELECT count(*) FROM document WHERE body LIKE '%torn page found%';"
    cents = int(truth.orders["cents"][424_241])
    by_key = "SELECT cents FROM orders WHERE id = 424242;"
    this = f"(SELECT x FROM vector WHERE id = {data.LIKE_THIS})"
    nearest = f"SELECT id, distance FROM nearest('vector', 'x', {this}, 10) ORDER BY distance;"
    array_distance = f"SELECT id, array_distance(x, {this}) AS distance FROM vector ORDER BY distance LIMIT 10;"

    def is_near(printed: str, desk: Desk) -> None:
        ids = {row[0] for row in table(printed)}
        right = len(ids & {str(vector) for vector, _ in truth.nearest})
        assert len(ids) == 10 and right >= 8, f"{right} of the 10 nearest are found"

    return [
        Step(
            "An index on a key",
            "docs/key-lookups.md",
            Sql("CREATE INDEX orders_id ON orders (id);", by_key, f"EXPLAIN {by_key}"),
            both(says("index=orders_id (hash, 1 key)"), rows((cents,))),
            # DuckDB decides for an index when the query runs.
            Sql("CREATE INDEX orders_id ON orders (id);", by_key, f"EXPLAIN ANALYZE {by_key}"),
            both(says("Type: Index Scan"), matches(rf"│ +{cents} +│")),
        ),
        Step("Search text, without an index", "docs/text-search.md", Sql(like), rows((found,)), Sql(like)),
        Step(
            "An index on text",
            "docs/text-search.md",
            Sql("CREATE INDEX document_body ON document USING ngram (body);", like, f"EXPLAIN {like}"),
            both(says("index=document_body (ngram)", "pushed=[body LIKE %torn page found%]"), rows((found,))),
            lacking=NO_INDEX,
        ),
        Step(
            "Where in the text it is",
            "docs/text-search.md",
            Sql("SELECT count(*), min(byte_offset) > 0 FROM matches('document', 'body', 'torn page found');"),
            rows((found, "true")),
            Sql("SELECT count(*), min(instr(body, 'torn page found')) > 0 FROM document WHERE body LIKE '%torn page found%';"),
        ),
        Step(
            "The nearest vectors, exactly",
            "docs/nearest-neighbours.md",
            Sql("CREATE TABLE vector AS SELECT * FROM 'vectors.parquet';", nearest),
            rows((data.VECTORS,), *near),
            Sql("CREATE TABLE vector AS SELECT id, x::FLOAT[64] AS x FROM 'vectors.parquet';", array_distance),
            rows(*near),
        ),
        Step(
            "An index on vectors, and what it misses",
            "docs/nearest-neighbours.md",
            Sql(
                "CREATE INDEX near ON vector USING lsh (x);",
                nearest,
                "SET flashmesh.measure_recall = 'on';",
                f"EXPLAIN ANALYZE {nearest}",
                "RESET flashmesh.measure_recall;",
            ),
            both(is_near, says("index=near (lsh)"), matches(r"recall=\d+(\.\d+)?% \(\d+/10\)")),
            lacking=NO_INDEX,
        ),
        Step(
            "A graph: who is reached in how many hops",
            "docs/graphs.md",
            Sql(
                "CREATE TABLE knows AS SELECT * FROM 'knows.parquet';",
                "CREATE INDEX friends ON knows USING adjacency (a, b);",
                "SELECT depth, count(*) FROM bfs('friends', 1) GROUP BY depth ORDER BY depth;",
            ),
            rows((data.EDGES,), *depths),
            Sql(
                "CREATE TABLE knows AS FROM 'knows.parquet';",
                "WITH RECURSIVE reached(vertex, depth) USING KEY (vertex) AS (SELECT 1::BIGINT, 0 UNION ALL SELECT b, min(depth) + 1 "
                "FROM reached JOIN knows ON a = vertex WHERE b NOT IN (SELECT vertex FROM recurring.reached) GROUP BY b) "
                "SELECT depth, count(*) FROM reached GROUP BY depth ORDER BY depth;",
            ),
            rows(*depths),
        ),
        Step(
            "A shortest path",
            "docs/graphs.md",
            Sql(f"SELECT max(step) AS hops FROM shortest_path('friends', {data.FROM}, {data.TO});"),
            rows((truth.hops,)),
            Sql(
                "WITH RECURSIVE reached(vertex, depth) USING KEY (vertex) AS (SELECT 1::BIGINT, 0 UNION ALL SELECT b, min(depth) + 1 "
                "FROM reached JOIN knows ON a = vertex WHERE b NOT IN (SELECT vertex FROM recurring.reached) GROUP BY b) "
                f"SELECT depth AS hops FROM reached WHERE vertex = {data.TO};"
            ),
        ),
        Step("Leave the shell", "docs/shell.md", Left(".quit"), silent, Left(".quit")),
    ]


def python(truth: data.Truth) -> list[Step]:
    january = truth.orders["day"] < 31
    returned = truth.orders["status"] == data.STATUSES.index("returned")
    late = int((returned & ~january & (truth.orders["cents"] > 90_000)).sum())
    month = truth.by_month()[11]
    top = truth.by_item(truth.orders["day"] >= 334)[:3]
    return [
        Step(
            "Open it in Python",
            "docs/python.md",
            Several(
                [
                    Python('import flashmesh\nfrom flashmesh import col, functions as f\n\ncon = flashmesh.connect("shop")'),
                    Python('con.execute("SELECT 6 * 7").fetchall()'),
                ]
            ),
            says("[(42,)]"),
            Several(
                [Python('import duckdb\n\ncon = duckdb.connect("shop.duckdb")'), Python('con.execute("SELECT 6 * 7").fetchall()')]
            ),
            why="the DataFrames are those of the datafusion wheel, whose import takes most of it",
        ),
        Step(
            "A query with parameters",
            "docs/python.md",
            Python('con.execute("SELECT count(*) FROM orders WHERE status = ? AND cents > ?", ["returned", 90000]).fetchall()'),
            says(f"[({late},)]"),
            Python('con.execute("SELECT count(*) FROM orders WHERE status = ? AND cents > ?", ["returned", 90000]).fetchall()'),
        ),
        Step(
            "Rows as pandas, Polars and Arrow",
            "docs/python.md",
            Python(
                'question = "SELECT * FROM customer"\n'
                "pandas, polars, arrow = con.execute(question).df(), con.execute(question).pl(), con.execute(question).arrow()\n"
                "print(len(pandas), len(polars), arrow.num_rows)"
            ),
            says(f"{data.CUSTOMERS} {data.CUSTOMERS} {data.CUSTOMERS}"),
            Python(
                'question = "SELECT * FROM customer"\n'
                "pandas, polars, arrow = con.sql(question).df(), con.sql(question).pl(), con.sql(question).to_arrow_table()\n"
                "print(len(pandas), len(polars), arrow.num_rows)"
            ),
        ),
        Step(
            "A variable as a table, and data under a name",
            "docs/python.md",
            Python(VARIABLE),
            both(
                says(f"[({sum(int((truth.country == data.COUNTRIES.index(name)).sum()) for name in ('Chile', 'Ghana'))},)]"),
                says("[(2,)]"),
            ),
            Python(VARIABLE),
        ),
        Step(
            "A DataFrame in place of SQL, and how it runs",
            "docs/python.md",
            Python(
                'late = con.table("orders").filter(col("day") >= f.to_date(flashmesh.lit("2025-12-01")))\n'
                'spent = late.aggregate([col("item")], [f.sum(col("quantity") * col("cents")).alias("spent")])\n'
                'print(spent.sort(col("spent").sort(ascending=False)).limit(3).fetchall())\nprint(con.explain(spent))'
            ),
            both(says(", ".join(str(row) for row in top)), says("FlashScanExec", "pushed=[day >= 2025-12-01]")),
            Python(
                'late = con.table("orders").filter("day >= DATE \'2025-12-01\'")\n'
                'spent = late.aggregate("item, sum(quantity * cents) AS spent")\n'
                'print(spent.order("spent DESC").limit(3).fetchall())\nprint(spent.explain())'
            ),
            both(says(", ".join(str(row) for row in top)), says("Filters", "2025-12-01")),
        ),
        Step(
            "Plot",
            "docs/python.md",
            Python(PLOT.format(plot="plot()")),
            both(file("spent.png", "PNG"), says(str(month)[:6])),
            Python(PLOT.format(plot='df().plot(x="month")')),
            missing=module_missing("matplotlib"),
        ),
        Step(
            "Rows by key",
            "docs/key-lookups.md",
            Python(
                'con.execute("CREATE TABLE account (id BIGINT PRIMARY KEY, cents BIGINT)")\n'
                'con.executemany("INSERT INTO account VALUES (?, ?)", [(n, n * 7) for n in range(1000)])\n'
                'con.get_one("account", 14)'
            ),
            says("{'id': 14, 'cents': 98}"),
            Python(
                'con.execute("CREATE TABLE account (id BIGINT PRIMARY KEY, cents BIGINT)")\n'
                'con.executemany("INSERT INTO account VALUES (?, ?)", [(n, n * 7) for n in range(1000)])\n'
                'con.execute("SELECT * FROM account WHERE id = 14").fetchone()'
            ),
            says("(14, 98)"),
        ),
        Step(
            "A transaction that fails leaves nothing",
            "docs/python.md",
            Python(UNDONE),
            says("(1000,)"),
            Python(UNDONE_IN_DUCKDB),
            why="flashmesh's is a block, `with con.transaction()`",
        ),
        Step(
            "Load a data frame into a table",
            "docs/python.md",
            Python(LOADED),
            says("(1.9,)"),
            Python(LOADED_IN_DUCKDB),
        ),
        Step(
            "Python's database API; leave Python",
            "docs/python.md",
            Several([Python(block("docs/python.md", "from flashmesh import dbapi")), Python("con.close()"), LeftPython()]),
            says("[('y',)]"),
            Several(
                [
                    Python(
                        'with duckdb.connect() as db, db.cursor() as cursor:\n    cursor.execute("CREATE TABLE t (a INT, b TEXT)")\n'
                        '    cursor.executemany("INSERT INTO t VALUES (?, ?)", [(1, "x"), (2, "y")])\n    db.commit()\n'
                        '    cursor.execute("SELECT b FROM t WHERE a > ?", [1])\n    print(cursor.fetchall(), cursor.description)'
                    ),
                    Python("con.close()"),
                    LeftPython(),
                ]
            ),
            why="the API is a module of its own, which is imported",
        ),
    ]


PLOT = """\
axes = con.execute(
    "SELECT date_part('month', day) AS month, sum(quantity * cents) AS spent FROM orders GROUP BY month ORDER BY month"
).{plot}
axes.figure.savefig("spent.png")
print(axes.get_lines()[0].get_ydata()[11])
"""

UNDONE = """\
try:
    with con.transaction():
        con.execute("DELETE FROM account")
        raise ValueError
except ValueError:
    pass
con.execute("SELECT count(*) FROM account").fetchone()
"""

UNDONE_IN_DUCKDB = """\
try:
    con.begin()
    con.execute("DELETE FROM account")
    raise ValueError
except ValueError:
    con.rollback()
con.execute("SELECT count(*) FROM account").fetchone()
"""

LOADED = """\
import pandas as pd

con.load("rate", pd.DataFrame({"currency": ["EUR", "USD"], "rate": [1.0, 0.9]}))
con.execute("SELECT sum(rate) FROM rate").fetchone()
"""

LOADED_IN_DUCKDB = """\
import pandas as pd

rates = pd.DataFrame({"currency": ["EUR", "USD"], "rate": [1.0, 0.9]})
con.execute("CREATE TABLE rate AS FROM rates")
con.execute("SELECT sum(rate) FROM rate").fetchone()
"""

VARIABLE = """\
import pyarrow as pa

region = pa.table({"country": ["Chile", "Ghana"], "region": ["south", "south"]})
print(con.sql("SELECT count(*) FROM customer JOIN region USING (country)").fetchall())
con.register("south", region)
print(con.sql("SELECT count(*) FROM south").fetchall())
"""


def kernel(truth: data.Truth) -> list[Step]:
    january = truth.orders["day"] < 31
    returned = truth.orders["status"] == data.STATUSES.index("returned")
    cents = truth.orders["cents"]
    within = int(((cents >= 1000) & (cents <= 2000) & ~(january & returned)).sum())
    source = block("docs/kernels.md", "// price_band/kernel.cpp").partition("\n")[2]
    return [
        Step(
            "A kernel of one's own, tried on random data",
            "docs/kernels.md",
            Several(
                [
                    Shell("flashmesh kernel new price_band --kind filter"),
                    Written("price_band/kernel.cpp", source),
                    Shell("flashmesh kernel test price_band"),
                ]
            ),
            both(file("price_band/kernel.toml", 'kind = "filter"'), matches(r"price_band: \d+ results equal the reference")),
            lacking=NO_KERNEL,
            missing=without_compiler,
        ),
        Step(
            "Build the kernel",
            "docs/kernels.md",
            Shell("flashmesh kernel build price_band && flashmesh kernel inspect price_band/price_band.fmk"),
            both(file("price_band/price_band.fmk"), says("price_band")),
            lacking=NO_KERNEL,
            missing=without_compiler,
        ),
        Step(
            "Run the kernel beside the pages",
            "README.md",
            Shell(
                "flashmesh --db shop -c \"CREATE FUNCTION price_band() LANGUAGE hls AS 'price_band/price_band.fmk'\" "
                '-c "SELECT count(*) FROM orders WHERE price_band(cents, 1000, 2000)" '
                '-c "EXPLAIN SELECT count(*) FROM orders WHERE price_band(cents, 1000, 2000)"'
            ),
            both(matches(rf"\| {within} +\|"), matches(r"[^_]pushed=\[price_band\(")),
            lacking=NO_KERNEL,
            missing=without_compiler,
        ),
    ]


ADBC = """\
import adbc_driver_flightsql.dbapi as flight_sql
import pyarrow as pa

table = pa.table({"key": range(10), "cents": range(10)})
with flight_sql.connect("grpc://127.0.0.1:50051", autocommit=True) as connection, connection.cursor() as cursor:
    cursor.adbc_ingest("takings", table, mode="create")
    cursor.execute("SELECT * FROM takings WHERE key = ?", (7,))
    print(cursor.fetch_arrow_table().to_pylist())
"""

JAVA = """\
import java.sql.DriverManager;

public final class Client {
    public static void main(String[] arguments) throws Exception {
        String url = "jdbc:arrow-flight-sql://127.0.0.1:50051?useEncryption=false";
        try (var connection = DriverManager.getConnection(url);
                var statement = connection.prepareStatement("SELECT count(*) FROM customer WHERE id > ?")) {
            statement.setLong(1, 40000);
            try (var rows = statement.executeQuery()) {
                rows.next();
                System.out.println(rows.getLong(1) + " customers");
            }
        }
    }
}
"""

GO = """\
package main

import (
	"database/sql"
	"fmt"
	"log"

	_ "github.com/apache/arrow-adbc/go/adbc/sqldriver/flightsql"
)

func main() {
	db, err := sql.Open("flightsql", "uri=grpc://127.0.0.1:50051")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	statement, err := db.Prepare("SELECT count(*) FROM customer WHERE id > ?")
	if err != nil {
		log.Fatal(err)
	}
	var customers int64
	if err := statement.QueryRow(int64(40000)).Scan(&customers); err != nil {
		log.Fatal(err)
	}
	fmt.Println(customers, "customers")
}
"""


def server(truth: data.Truth) -> list[Step]:
    return [
        Step(
            "Serve it",
            "docs/server.md",
            Served("flashmesh serve --db shop"),
            says("Flight SQL: grpc://127.0.0.1:"),
            lacking=NO_SERVER,
        ),
        Step(
            "The shell on the server",
            "README.md",
            Several([Opened("flashmesh --connect grpc://127.0.0.1:50051"), Sql("SELECT count(*) FROM customer;"), Left(".quit")]),
            rows((data.CUSTOMERS,)),
            lacking=NO_SERVER,
        ),
        Step(
            "Python on the server",
            "docs/guide.md",
            Several(
                [
                    Python(
                        'import flashmesh\nfrom flashmesh import col, functions as f\n\nwith flashmesh.connect("grpc://127.0.0.1:50051") as con:\n'
                        '    print(con.table("orders").filter(col("day") == f.to_date(flashmesh.lit("2025-03-01"))).count())'
                    )
                ]
            ),
            matches(rf"^{int((truth.orders['day'] == 59).sum())}$"),
            lacking=NO_SERVER,
            missing=module_missing("adbc_driver_flightsql"),
        ),
        Step(
            "ADBC in Python: bulk ingest and a query with a parameter",
            "docs/server.md",
            Python(ADBC),
            says("[{'key': 7, 'cents': 7}]"),
            lacking=NO_SERVER,
            missing=module_missing("adbc_driver_flightsql"),
        ),
        Step(
            "JDBC in Java",
            "docs/server.md",
            Several(
                [
                    Written("Client.java", JAVA),
                    Shell(f"java --add-opens=java.base/java.nio=ALL-UNNAMED -cp {JDBC_JAR} Client.java"),
                ]
            ),
            says("10000 customers"),
            lacking="DuckDB's JDBC driver is the database in the program's own process: " + NO_SERVER,
            missing=without_jdbc,
        ),
        Step(
            "ADBC in Go",
            "docs/server.md",
            Several(
                [
                    Written("client/main.go", GO),
                    Shell(
                        "cd client && go mod init client && go get github.com/apache/arrow-adbc/go/adbc@v1.8.0 && go mod tidy && go run ."
                    ),
                ]
            ),
            says("10000 customers"),
            lacking="DuckDB's Go driver is the database in the program's own process: " + NO_SERVER,
            missing=program_missing("go"),
        ),
        Step(
            "What ran, metrics for Prometheus; end the server",
            "docs/server.md",
            Several(
                [
                    Shell(
                        "flashmesh --connect grpc://127.0.0.1:50051 "
                        """-c "SELECT state, count(*) > 3 AS many FROM system.queries WHERE state = 'finished' GROUP BY state" """
                    ),
                    Shell(
                        "curl --silent --fail http://127.0.0.1:50052/metrics && curl --silent --fail http://127.0.0.1:50052/healthz"
                    ),
                    Interrupted(),
                ]
            ),
            both(rows(("finished", "true")), matches(r"^flashmesh_\w+(\{.*\})? \d"), matches("^ok$"), says("stopped")),
            lacking=NO_SERVER,
            missing=program_missing("curl"),
        ),
    ]


def secured_server(truth: data.Truth) -> list[Step]:
    typed = f"{PASSWORD}\n{PASSWORD}\n"
    connect = "flashmesh --connect grpc+tls://localhost:50051 --tls-ca cert.pem --user"
    asked = 'FLASHMESH_PASSWORD="correct horses"'
    return [
        Step(
            "Users",
            "docs/server.md",
            Several(
                [
                    Shell("flashmesh user add ada --users users.toml --admin", typed),
                    Shell("flashmesh user add bob --users users.toml", typed),
                    # In an editor.
                    Shell("""sed -i 's/"[*].[*]"/"public.customer"/' users.toml"""),
                    Shell("flashmesh user list --users users.toml"),
                ]
            ),
            both(says("ada", "bob"), file("users.toml", "$argon2id$", "admin = true")),
            lacking=NO_SERVER,
        ),
        Step(
            "A certificate, and the server with users and TLS",
            "docs/server.md",
            Several(
                [
                    Shell(CERTIFICATE),
                    Served(
                        "flashmesh serve --db shop --users users.toml --listen 0.0.0.0:50051 --tls-cert cert.pem --tls-key key.pem"
                    ),
                ]
            ),
            says("Flight SQL: grpc+tls://"),
            lacking=NO_SERVER,
            missing=program_missing("openssl"),
        ),
        Step(
            "The shell, as an admin and as a user who may read one table",
            "docs/server.md",
            Several(
                [
                    Shell(f'{asked} {connect} ada -c "SELECT count(*) FROM knows"'),
                    Shell(f'{asked} {connect} bob -c "SELECT count(*) FROM customer"'),
                ]
            ),
            rows((data.EDGES,), (data.CUSTOMERS,)),
            lacking=NO_SERVER,
            missing=program_missing("openssl"),
        ),
        Step(
            "Another table looks to them like one that is not there",
            "docs/server.md",
            Several(
                [
                    Shell(f'{asked} {connect} bob -c "SELECT count(*) FROM knows"', code=1),
                    Shell(f'{asked} {connect} bob -c "SELECT count(*) FROM nowhere"', code=1),
                ]
            ),
            looks_missing,
            lacking=NO_SERVER,
            missing=program_missing("openssl"),
        ),
        Step(
            "A wrong password",
            "docs/server.md",
            Shell(f'FLASHMESH_PASSWORD=wrong {connect} bob -c "SELECT 1"'),
            says("wrong user name or password"),
            lacking=NO_SERVER,
            fails=True,
            missing=program_missing("openssl"),
        ),
        Step(
            "Python, with a password and TLS; end the server",
            "docs/python.md",
            Several(
                [
                    Python(
                        'con = flashmesh.connect("grpc+tls://localhost:50051", user="ada", password="correct horses", tls_ca="cert.pem")\n'
                        'print(con.table("customer").count())\ncon.close()'
                    ),
                    LeftPython(),
                    Interrupted(),
                ]
            ),
            both(matches(rf"^{data.CUSTOMERS}$"), says("stopped")),
            lacking=NO_SERVER,
            missing=lambda desk: program_missing("openssl")(desk) or module_missing("adbc_driver_flightsql")(desk),
        ),
    ]


def looks_missing(printed: str, desk: Desk) -> None:
    """What is told of a table without rights is what is told of one that is not there."""
    knows, nowhere = (line for line in printed.splitlines() if line.startswith("error:"))
    assert "not found" in knows and knows.replace("knows", "nowhere") == nowhere, "the errors differ"


#: docs/server.md has it.
CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 365 -keyout key.pem -out cert.pem "
    "-subj /CN=localhost -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE"
)


def backups(truth: data.Truth) -> list[Step]:
    upgraded = "SELECT count(*) FROM kinds; DELETE FROM edges WHERE number < 3; CREATE TABLE today AS SELECT * FROM kinds"
    return [
        Step(
            "Back up",
            "docs/backups.md",
            Shell("flashmesh backup --db shop backups/shop"),
            matches(r"\b1\b"),
            Shell("""duckdb shop.duckdb -c "EXPORT DATABASE 'backup' (FORMAT parquet)" """),
            silent,
        ),
        Step(
            "Add a row, back up what is new, check it",
            "docs/backups.md",
            Shell(
                """flashmesh --db shop -c "INSERT INTO ticket (title) VALUES ('third')" && flashmesh backup --db shop backups/shop --keep 7 """
                "&& flashmesh backups backups/shop && flashmesh backups backups/shop --check"
            ),
            both(matches(r"^backup 2: .* all sound"), lambda printed, desk: is_incremental(desk.folder / "backups/shop")),
            lacking="DuckDB's export is always of the whole database, and has no checksums of its own",
        ),
        Step(
            "Restore the first backup",
            "docs/backups.md",
            Shell(
                "flashmesh restore backups/shop --number 1 --db shop-then && "
                """flashmesh --db shop-then -c "SELECT count(*) FROM ticket" -c "SELECT count(*) FROM knows" """
            ),
            rows((2,), (data.EDGES,)),
            Shell(
                """duckdb shop-then.duckdb -c "IMPORT DATABASE 'backup'" && """
                """duckdb shop-then.duckdb -c "SELECT count(*) FROM ticket" -c "SELECT count(*) FROM knows" """
            ),
            why="a place has several backups, so one is named by its number",
        ),
        Step(
            "Check every page of the database",
            "docs/guide.md",
            Shell("flashmesh fsck --db shop"),
            matches(r"pages"),
            lacking="DuckDB checks blocks as it reads them; it has no command for all",
        ),
        Step(
            "Open databases of all earlier formats, and go on with them",
            "CONTRIBUTING.md",
            Shell(
                f'for format in formats/*; do flashmesh $format --quiet --format csv -c "{upgraded}" && flashmesh fsck --db $format || exit 1; done'
            ),
            is_upgraded,
            lacking="not tried: no files of DuckDB's earlier versions are here",
        ),
    ]


def is_incremental(place: Path) -> None:
    sizes = {number: sum(file.stat().st_size for file in place.glob(f"pages-{number:06}-*")) for number in (1, 2)}
    assert 0 < sizes[2] < sizes[1] / 10, f"the backups wrote {sizes} bytes of pages"


def is_upgraded(printed: str, desk: Desk) -> None:
    """Of each format: the rows that it has, three that were deleted, a new table of as many, all sound."""
    formats = len(list((desk.folder / "formats").iterdir()))
    counts = [int(line) for line in printed.splitlines() if re.fullmatch(r"\d+", line)]
    assert formats > 6 and len(counts) == 3 * formats, f"{formats} formats, and counts {counts}"
    for kinds, deleted, new in zip(counts[::3], counts[1::3], counts[2::3]):
        assert kinds == new > 500 and deleted == 3, f"counts {counts}"
    assert printed.count("all sound") == formats


def rack(truth: data.Truth) -> list[Step]:
    top = truth.by_item()[:3]
    best = "SELECT item, sum(quantity * cents) AS spent FROM orders GROUP BY item ORDER BY spent DESC LIMIT 3;"
    up = "flashmesh rack up lab/rack.toml --detach"
    return [
        Step(
            "A rack of three nodes with copies, on this machine",
            "docs/rack.md",
            Shell(f"flashmesh rack init lab --nodes 3 --replicas 2 && {up} && flashmesh rack status lab/rack.toml"),
            both(
                file("lab/rack.toml", "replicas = 2"),
                matches(r"^n00 +up +\d+ .*head"),
                matches(r"^n01 +up "),
                matches(r"^n02 +up "),
            ),
            lacking=NO_RACK,
        ),
        Step(
            "Load into the rack and ask it",
            "docs/rack.md",
            Several([Opened("flashmesh --connect lab/rack.toml"), Sql(".import orders.parquet orders", best), Left(".quit")]),
            both(says("1000000 rows"), rows(*top)),
            lacking=NO_RACK,
        ),
        Step(
            "Python on the rack",
            "docs/rack.md",
            Several(
                [
                    Python(
                        'import flashmesh\n\nwith flashmesh.connect("lab/rack.toml") as con:\n    print(con.table("orders").count())'
                    ),
                    LeftPython(),
                ]
            ),
            matches(rf"^{data.ORDERS}$"),
            lacking=NO_RACK,
            missing=module_missing("adbc_driver_flightsql"),
        ),
        Step(
            "Kill a node: the status names it, queries and changes go on",
            "docs/rack.md",
            Several(
                [
                    Shell("kill -9 $(cat lab/n02/node.pid)"),
                    Shell("flashmesh rack status lab/rack.toml", code=1),
                    Shell(f'flashmesh --connect lab/rack.toml -c "{best}" -c "DELETE FROM orders WHERE id = 1"'),
                ]
            ),
            both(matches(r"^n02 +down"), matches(r"^n00 +up"), rows(*top, (1,))),
            lacking=NO_RACK,
        ),
        Step(
            "Start it again; it catches up; end the rack",
            "docs/rack.md",
            Shell(
                f"{up} && until flashmesh rack status lab/rack.toml > status && ! grep -q behind status; do sleep 0.2; done; "
                "cat status && flashmesh rack down lab/rack.toml"
            ),
            both(matches(r"^n02 +up "), matches(r"^n02 +has ended")),
            lacking=NO_RACK,
        ),
    ]
