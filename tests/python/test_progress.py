"""Progress: what a query reports while it runs, and the bar."""

import io
import sys
import threading

import flashmesh
import pyarrow as pa
import pytest
from flashmesh import col, flight, progress


def test_a_running_query_reports(stocked):
    reported = threading.Event()
    seen = []

    def waits(values):
        assert reported.wait(60)
        return values

    def report(done, total, bytes_from_flash):
        seen.append((done, total, bytes_from_flash))
        reported.set()

    function = flashmesh.udf(waits, [pa.int64()], pa.int64(), "volatile", "waits")
    frame = stocked.table("reading").select(function(col("id")).alias("id"))
    rows = pa.table(frame._query.collect(report)).num_rows
    assert rows == 200_000
    # 200,000 rows are four segments.
    assert all(0 <= done <= total == 4 for done, total, _ in seen) and seen


def test_an_error_of_the_reporter_ends_the_query(stocked):
    reported = threading.Event()

    def waits(values):
        assert reported.wait(60)
        return values

    def report(*_):
        reported.set()
        raise RuntimeError("no more")

    function = flashmesh.udf(waits, [pa.int64()], pa.int64(), "volatile", "waits")
    frame = stocked.table("reading").select(function(col("id")))
    try:
        frame._query.collect(report)
    except RuntimeError as error:
        assert str(error) == "no more"
    else:
        raise AssertionError("it ended as if nothing had happened")


def test_the_bar_is_for_terminals(monkeypatch):
    assert progress.wanted(True) and not progress.wanted(False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not progress.wanted(None)
    sys.stderr.isatty = lambda: True
    assert progress.wanted(None)


def test_the_bar_without_tqdm(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr(progress, "DELAY", 3600)
    with progress.Bar() as bar:
        bar(1, 4, 0)
    assert not sys.stderr.getvalue(), "short queries have no bar"
    monkeypatch.setattr(progress, "DELAY", 0)
    with progress.Bar() as bar:
        bar(0, 0, 0)
        bar(1, 4, 2_000_000)
        bar(4, 4, 3_000_000)
    drawn = sys.stderr.getvalue()
    assert " 25 % |" in drawn and "100 % |" in drawn and "3 MB from flash" in drawn
    assert drawn.endswith("\r"), "the bar goes when the query ends"


def test_a_server_is_asked(serve, monkeypatch):
    told = []

    class Bar(progress.Bar):
        def __call__(self, done, total, bytes_from_flash):
            told.append((done, total, bytes_from_flash))
            if done == total > 0 and bytes_from_flash > 0:
                raise InterruptedError

    monkeypatch.setattr(progress, "Bar", Bar)
    monkeypatch.setattr(flight, "LOOK", 0.01)
    with flashmesh.connect(serve("--cache-size", "32KB").url) as con:
        con.settings.progress = True
        con.execute("CREATE TABLE t AS SELECT value AS x FROM generate_series(1, 300000) AS s(value)")
        # It reads the table and then looks at pairs for ever.
        endless = con.sql("SELECT x, y FROM t, generate_series(1, 100000000000) AS b(y) WHERE x * y < 0 AND 'it''s' <> ''")
        for query in (endless, endless.filter(col("x") > 0)):
            with pytest.raises(InterruptedError):
                query.to_arrow_table()
            assert told[-1][1] > 0
            told.clear()


def test_collecting_draws_it(stocked, monkeypatch):
    drawn = []

    class Bar(progress.Bar):
        def __enter__(self):
            drawn.append(self)
            return self

    monkeypatch.setattr(progress, "Bar", Bar)
    stocked.settings.progress = True
    try:
        assert stocked.table("sensor").to_arrow_table().num_rows == 50
    finally:
        stocked.settings.progress = None
    assert drawn
