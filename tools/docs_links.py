"""A hook of mkdocs: links out of docs/, to sources and examples, lead to the repository on the site.

On GitHub they are relative and work as they are. A link to what is not there ends the build.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\((?P<path>\.\./[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    folder = Path(page.file.abs_src_path).parent
    docs = Path(config.docs_dir)

    def lead(link: re.Match[str]) -> str:
        target = (folder / link["path"]).resolve()
        if target.is_relative_to(docs):
            return link[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri}: {link['path']} is not there")
        kind = "tree" if target.is_dir() else "blob"
        return f"]({config.repo_url}/{kind}/main/{target.relative_to(ROOT)}{link['anchor'] or ''})"

    return LINK.sub(lead, markdown)
