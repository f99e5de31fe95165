"""docs/reference is what the code has: each setting, function, system table, metric, error and command."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
from conftest import binary

ROOT = Path(__file__).resolve().parent.parent.parent

specification = importlib.util.spec_from_file_location("reference", ROOT / "tools/reference.py")
reference = importlib.util.module_from_spec(specification)
specification.loader.exec_module(reference)


def test_the_pages_are_as_the_code_is():
    changes = reference.differences(binary())
    assert not changes, f"docs/reference is not as the code is: run ./dev reference\n{changes}"


def test_the_dashboard_asks_for_metrics_that_there_are():
    text = (ROOT / "docs/grafana.json").read_text()
    expressions = [target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"]]
    asked = {name for expression in expressions for name in re.findall(r"flashmesh_\w+", expression)}
    there = set(re.findall(r"`(flashmesh_\w+)", (ROOT / "docs/reference/metrics.md").read_text()))
    assert len(expressions) > 15 and asked <= there, asked - there


def test_what_has_no_text_is_named():
    with pytest.raises(reference.Missing, match="what these are: hits$"):
        reference.described({"path": "…"}, ["path", "hits"], "columns")
    with pytest.raises(reference.Missing, match=r"not there .*: gone$"):
        reference.described({"path": "…", "gone": "…"}, ["path"], "columns")


def test_a_page_that_differs_is_shown(monkeypatch, tmp_path):
    """The comparison sees a line that a page lacks, and a page that nothing writes."""
    for name in reference.PAGES:
        text = (ROOT / "docs/reference" / name).read_text()
        (tmp_path / name).write_text(text.replace("flashmesh.pushdown", "flashmesh.pushup"))
    (tmp_path / "other.md").touch()
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    changes = reference.differences(binary())
    assert "+| `flashmesh.pushdown`" in changes and "-| `flashmesh.pushup`" in changes
    assert changes.endswith("docs/reference/other.md: nothing writes it")


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("settings.md", ["flashmesh.pushdown", "datafusion.execution.batch_size"]),
        ("functions.md", ["nearest", "l2_distance", "sum", "row_number", "abs"]),
        ("system-tables.md", ["system.queries", "bytes_from_flash"]),
        ("metrics.md", ["flashmesh_queries_total{state}", "flashmesh_uptime_seconds"]),
        ("errors.md", ["Corrupt", "DataLoss", "IntegrityError", "ResourcesExhausted"]),
        ("command-line.md", ["flashmesh rack init", "--memory-limit"]),
    ],
)
def test_the_generator_finds_what_is_known_to_be_there(name, least):
    """So a pattern over the sources that finds nothing any more does not leave an empty page."""
    text = (ROOT / "docs/reference" / name).read_text()
    assert [item for item in least if item not in text] == []
