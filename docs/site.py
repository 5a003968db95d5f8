"""Copies the pages, and each file that they link to, to build/docs in the layout of the repository. `make docs`.

MkDocs reads one folder; links between pages of several folders then need no change, and `mkdocs build --strict` checks
them.
"""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "build" / "docs"
_LINK = re.compile(r"\]\(([^)#\s]+)|(?:src|srcset)=\"([^\"#]+)\"")


def pages() -> list[Path]:
    """Return the pages from which the site starts."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def files() -> set[Path]:
    """Return the pages and all files that they link to, directly or through other pages."""
    found: set[Path] = set()
    waiting = pages()
    while waiting:
        one = waiting.pop()
        if one in found or not one.is_file():
            continue
        found.add(one)
        if one.suffix == ".md":
            waiting += [(one.parent / target).resolve() for target in links(one.read_text(encoding="utf-8"))]
    return found


def links(text: str) -> list[str]:
    """Return the relative links of a page."""
    found = [link or picture for link, picture in _LINK.findall(text)]
    return [target for target in found if "://" not in target]


if __name__ == "__main__":
    shutil.rmtree(TARGET, ignore_errors=True)
    for file in files():
        copy = TARGET / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
