"""The documentation site: its navigation has every page, and it holds all that pages link to. `make docs` builds it."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "adr"


def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_navigation_has_every_page_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"([\w./-]+\.md)$", navigation, re.MULTILINE)
    linked = (page for page in site().files() if page.suffix == ".md")
    pages = {str(page.relative_to(ROOT)) for page in linked if not page.match("docs/adr/0*.md")}
    assert len(listed) == len(set(listed))
    assert pages <= set(listed)


def test_the_site_holds_what_its_pages_link_to() -> None:
    held = {str(file.relative_to(ROOT)) for file in site().files()}
    assert {
        "README.md",
        "bench/README.md",
        "tests/INVARIANTS.md",
        "docs/images/demo.svg",
        "recovery/alerts.yaml",
    } <= held


def test_no_link_leads_to_a_folder() -> None:
    pages = [page for page in site().files() if page.suffix == ".md"]
    folders = [
        (page.name, to) for page in pages for to in site().links(page.read_text()) if (page.parent / to).is_dir()
    ]
    assert not folders, "name a file in it: the site has no pages for folders"


def test_a_page_names_its_links_and_pictures() -> None:
    text = '[a](B.md#c) [d](https://e) ![f](g.png) <img src="h.png" alt="i"> [j](#k)'
    assert site().links(text) == ["B.md", "g.png", "h.png"]


def test_the_index_of_decisions_has_their_titles() -> None:
    rows = re.findall(r"^\| \[\d+\]\((.+?)\) \| (.+) \|$", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    titles = [(page.name, page.read_text().splitlines()[0].partition(". ")[2]) for page in DECISIONS.glob("0*.md")]
    assert rows == sorted(titles)
