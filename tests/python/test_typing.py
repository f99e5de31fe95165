"""The package's types hold, in itself and for those who use it: the examples."""

from pathlib import Path

import flashmesh
from mypy import api

EXAMPLES = sorted((Path(__file__).parent.parent.parent / "examples").glob("*.py"))


def test_types():
    assert len(EXAMPLES) > 10
    package = Path(flashmesh.__file__).parent
    # pyarrow, pandas and some that they bring have no types.
    options = ["--strict", "--ignore-missing-imports", "--scripts-are-modules", "--cache-dir=/dev/null"]
    output, errors, status = api.run([*options, str(package), *map(str, EXAMPLES)])
    assert status == 0, output + errors
