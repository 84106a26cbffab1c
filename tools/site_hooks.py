"""What mkdocs does with the pages of this repository besides rendering them.

- The home page, Contributing and Changelog are README.md, CONTRIBUTING.md and CHANGELOG.md.
- A line ``<!-- generated: cli -->`` (or ``settings``, ``checker``) is replaced by text made from the program.
- Links are written so that they work in the repository. One that leaves docs/ for a file, such as a figure in
  results/, gets a copy of that file in the site. One that leaves it for a folder becomes plain text.
- ``folder/*`` in the navigation stands for every page of that folder.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads this file by its path

from generated import GENERATED
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
WIDE = {"index.md": ["navigation"], "reference/settings.md": ["toc"]}
LINK = re.compile(
    r'(?P<before>!?\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\(|<img src=")'
    r'(?P<target>[^)\s"#:]+)(?P<after>#[^)]*)?(?P<end>\)|")'
)
MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expand ``folder/*`` in the navigation."""
    config.nav = _expand(config.nav)
    return config


def _expand(entry: Any) -> Any:
    if isinstance(entry, list):
        return [_expand(one) for one in entry]
    if isinstance(entry, dict):
        return {title: _expand(one) for title, one in entry.items()}
    if isinstance(entry, str) and entry.endswith("/*"):
        pages = sorted((DOCS / entry[:-2]).glob("*.md"), key=lambda path: (path.name != "index.md", path.name))
        return [path.relative_to(DOCS).as_posix() for path in pages]
    return entry


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Leave out the columns at the side where a page needs the room."""
    page.meta.setdefault("hide", WIDE.get(page.file.src_uri, []))
    return markdown


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make the pages that are files elsewhere, and rewrite the links of all."""
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    copies: set[str] = set()
    for file in files.documentation_pages():
        home = (ROOT / PAGES[file.src_uri]).parent if file.src_uri in PAGES else (DOCS / file.src_uri).parent
        text = MARK.sub(lambda mark: GENERATED[mark[1]](), file.content_string)
        file.content_string = LINK.sub(
            lambda link, at=home, page=file.src_uri: _relink(link, at, page, copies), text
        )
    for name in sorted(copies):
        files.append(File.generated(config, f"files/{name}", abs_src_path=str(ROOT / name)))
    return files


def _relink(link: re.Match[str], home: Path, page: str, copies: set[str]) -> str:
    """One link of a page whose text lies in the folder ``home`` of the repository."""
    target = Path(os.path.normpath(home / link["target"]))
    here = (DOCS / page).parent
    sources = {ROOT / source: DOCS / name for name, source in PAGES.items()}
    if target in sources:
        target = sources[target]
    if not target.is_relative_to(DOCS) and target.is_relative_to(ROOT):
        if target.is_dir():
            return link["text"] or ""
        if target.is_file():
            name = target.relative_to(ROOT).as_posix()
            copies.add(name)
            target = DOCS / "files" / name
    uri = Path(os.path.relpath(target, here)).as_posix()
    if link["before"].startswith("<img"):  # HTML is not rewritten by mkdocs: relative to the page's address
        uri = uri if page.endswith("index.md") else f"../{uri}"
    return f"{link['before']}{uri}{link['after'] or ''}{link['end']}"
