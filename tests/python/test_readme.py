"""The README's program is the first example, word for word; CI runs the example."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_program_in_the_readme_is_the_first_example():
    readme = (ROOT / "README.md").read_text()
    example = (ROOT / "examples/01_first_query.py").read_text()
    assert f"```python\n{example}```" in readme


def test_the_commands_in_the_readme_exist():
    script = (ROOT / "dev").read_text()
    for command in ("demo", "test"):
        assert f"./dev {command}" in (ROOT / "README.md").read_text()
        assert f"./dev {command}" in script
