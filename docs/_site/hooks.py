"""What MkDocs does beyond its settings: the README as front page, links to files of the repository, and formulas.

Pages are written for the repository: their links are relative to their files. Here those to pages lead to pages, and
those to other files to copies of them.
"""

import posixpath
import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages outside `docs/`, and their names in the site."""

_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")
_FORMULA = re.compile(r'<(div|span) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', re.DOTALL)


def _place(target: str, source: str, copies: set[str]) -> str:
    """Return the address in the site, from its root, of what a page of the repository links to."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if not (ROOT / path).is_file():
        raise PluginError(f"{source} links to {target}, and there is no file {path}.")
    copies.add(path)
    return f"files/{path}.txt"


def _site_links(text: str, source: str, page: str, copies: set[str]) -> str:
    """Return a page's text with links that hold in the site."""

    def link(match: re.Match[str]) -> str:
        opening, target, anchor, closing = match.groups()
        if re.match(r"[a-z]+:", target):
            return match[0]
        place = posixpath.relpath(_place(target, source, copies), posixpath.dirname(page) or ".")
        return f"{opening}{place}{anchor or ''}{closing}"

    # Every second part is a fenced block.
    parts = _FENCED.split(text)
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    return "".join(parts)


def _navigation(given: list, found: set[str], named: set[str]) -> list:
    """Return the navigation without absent pages, and a section of one page as that page; `named` gets the pages."""
    kept = []
    for entry in given:
        # A page, or one entry with a title.
        title = None
        inside = entry
        if isinstance(entry, dict):
            ((title, inside),) = entry.items()
        if isinstance(inside, list):
            inside = _navigation(inside, found, named)
            if len(inside) == 1:
                (inside,) = inside
            if inside:
                kept.append({title: inside})
        elif inside in found:
            named.add(inside)
            kept.append(entry)
    return kept


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside `docs/`, the files that pages link to, and the pages that the navigation does not name."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))

    # Links lead to pages of the site, or to copies of files.
    sources = {page: source for source, page in PAGES.items()}
    copies: set[str] = set()
    for file in files.documentation_pages():
        page = file.src_uri
        file.content_string = _site_links(file.content_string, sources.get(page, f"docs/{page}"), page, copies)
    for path in sorted(copies):
        files.append(File.generated(config, f"files/{path}.txt", abs_src_path=str(ROOT / path)))

    # Every page has a place in the navigation.
    found = {file.src_uri for file in files.documentation_pages()}
    named: set[str] = set()
    config.nav = _navigation(config.nav, found, named)
    if found != named:
        config.nav.append({"More": sorted(found - named)})
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Write formulas as MathML, which browsers render without a script."""

    def formula(match: re.Match[str]) -> str:
        display = "block" if match[1] == "div" else "inline"
        return convert(unescape(match[2]), display=display)

    return _FORMULA.sub(formula, html)
