"""Links of documents, as GitHub shows them, lead to files, headings and pictures that are there."""

import html
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LISTED = subprocess.run(
    ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
    cwd=ROOT, capture_output=True, text=True, check=True,
)  # fmt: skip
DOCUMENTS = sorted(LISTED.stdout.split())
LINK = re.compile(r"!?\[[^\]]*\]\((?P<path>[^)\s#]*)(?:#(?P<anchor>[^)\s]*))?\)|<img[^>]* src=\"(?P<picture>[^\"]*)\"")


def prose(document: Path) -> str:
    """The text without code, in which brackets mean something else."""
    text = re.sub(r"^(```|~~~).*?^\1$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return text


def anchors(document: Path) -> set[str]:
    """Anchors of the headings, by GitHub's rule: lower case, no punctuation, hyphens for spaces."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(document), re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", html.unescape(heading)).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
        number, first = 0, slug
        while slug in found:
            number += 1
            slug = f"{first}-{number}"
        found.add(slug)
    return found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links(name):
    document = ROOT / name
    broken = []
    for link in LINK.finditer(re.sub(r"`[^`\n]*`", "", prose(document))):
        path = link["path"] or link["picture"] or ""
        if re.match(r"\w+:", path):
            continue
        target = (document.parent / path).resolve() if path else document
        if not target.exists():
            broken.append(f"{link[0]}: {path} is not there")
        elif link["anchor"] and target.suffix == ".md" and link["anchor"] not in anchors(target):
            broken.append(f"{link[0]}: no such heading")
    assert broken == []


def test_documents_are_found():
    assert {"README.md", "CONTRIBUTING.md", "docs/guide.md", "docs/reference/settings.md"} <= set(DOCUMENTS)


def test_every_page_is_in_the_list_of_pages_and_on_the_site():
    pages = {name.removeprefix("docs/") for name in DOCUMENTS if name.startswith("docs/")}
    index = (ROOT / "docs/README.md").read_text()
    site = (ROOT / "mkdocs.yml").read_text()
    assert [page for page in sorted(pages) if f"- {page}\n" not in site] == []
    unlisted = {"README.md", "figures/parameters.md"}
    assert [page for page in sorted(pages - unlisted) if f"]({page})" not in index] == []
