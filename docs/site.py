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
    linked_files: set[Path] = set()
    waiting = pages()
    while waiting:
        file = waiting.pop()
        if file in linked_files or not file.is_file():
            continue
        linked_files.add(file)
        if file.suffix == ".md":
            waiting += [(file.parent / target).resolve() for target in links(file.read_text(encoding="utf-8"))]
    return linked_files


def links(text: str) -> list[str]:
    """Return the relative links of a page."""
    targets = [link or picture for link, picture in _LINK.findall(text)]
    return [target for target in targets if "://" not in target]


if __name__ == "__main__":
    shutil.rmtree(TARGET, ignore_errors=True)
    for file in files():
        copy = TARGET / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
