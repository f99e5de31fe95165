"""The package's types hold, in itself and for those who use it: the examples."""

from pathlib import Path

import pytest
from mypy import api

EXAMPLES = sorted((Path(__file__).parent.parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("what", [["-p", "flashmesh"], [str(example) for example in EXAMPLES]], ids=["package", "examples"])
def test_types(what):
    assert len(EXAMPLES) > 10
    # pyarrow, pandas and some that they bring have no types.
    options = ["--strict", "--ignore-missing-imports", "--scripts-are-modules", "--cache-dir=/dev/null"]
    output, errors, status = api.run([*options, *what])
    assert status == 0, output + errors
