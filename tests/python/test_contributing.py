"""CONTRIBUTING.md walks through files that are there, and names in them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
#: In a kernel's folder, of which there are many.
OF_EACH_KERNEL = {"kernel.cpp", "kernel.toml", "tb.cpp"}
#: Words of SQL, values and names that are no names in files.
WORDS = {"auto", "cpu", "xrt", "hash", "match"}


def items() -> list[str]:
    """The paragraphs, and the points of lists; without blocks of code."""
    text = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    return re.split(r"\n(?=\d+\. |\* )|\n\n", text)


def quoted(item: str) -> list[str]:
    return re.findall(r"(?<!`)`([^`]+)`", item)


def is_path(name: str) -> bool:
    return "/" in name and not name.startswith("./") or re.fullmatch(r"[\w.-]+\.(md|toml|yml)", name) is not None


def test_every_file_is_there():
    names = {name for item in items() for name in quoted(item) if is_path(name) and name not in OF_EACH_KERNEL}
    assert len(names) > 50
    assert [name for name in sorted(names) if not (ROOT / name).exists()] == []


def contents(path: Path) -> str:
    if path.is_dir():
        return "\n".join(contents(inner) for inner in sorted(path.iterdir()) if inner.suffix in (".rs", ".cpp", ".toml", ""))
    return path.read_text() if path.is_file() else ""


def test_every_name_is_in_a_file_that_its_step_names():
    missing, found = [], 0
    for item in items():
        names = quoted(item)
        texts = "\n".join(contents(ROOT / name) for name in names if is_path(name) and (ROOT / name).exists())
        for name in names:
            # `Layout::parse` is `parse` somewhere in a file that also has `Layout`.
            parts = re.fullmatch(r"[A-Za-z_][\w.]*(?:::\w+)*", name)
            if is_path(name) or not parts or name in WORDS | OF_EACH_KERNEL:
                continue
            if not all(re.search(rf"\b{re.escape(part)}\b", texts) for part in name.split("::")):
                missing.append((name, item[:60]))
            found += 1
    assert missing == [] and found > 40


def test_the_tasks_of_dev_are_there():
    tasks = set(re.findall(r"\./dev ([a-z-]+)", TEXT))
    dev = (ROOT / "dev").read_text()
    source = (ROOT / "xtask/src/main.rs").read_text() + dev
    variants = {name.lower() for name in re.findall(r"^    ([A-Z]\w+)[,(]", source, re.MULTILINE)}
    # Those that `dev` hands to a script of their own.
    scripts = set(re.findall(r'"\$task" !?= ([a-z-]+) \]', dev))
    assert {task for task in tasks if task not in variants | scripts | {"help"}} == set()
