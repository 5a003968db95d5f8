"""Outcomes of the fault suite: of one product and all its shards, or no report."""

import json
from pathlib import Path

import pytest

from tests.fault import outcomes


def written(path: Path, **tables: dict[str, str]) -> Path:
    """Write outcomes: table, what was tried, and the product, whose commit has the same name."""
    text = {
        table: {key: {"commit": f"at-{product}", "product": product} for key, product in found.items()}
        for table, found in tables.items()
    }
    path.write_text(json.dumps(text))
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(outcomes, "WANTED", True)
    monkeypatch.setenv("HEADRACE_OUTCOMES", str(tmp_path / "outcomes.json"))
    monkeypatch.setenv("HEADRACE_COMMIT", "at-new")
    monkeypatch.setenv("HEADRACE_PRODUCT", "new")
    return tmp_path / "outcomes.json"


def test_outcomes_of_two_products_are_refused(path: Path) -> None:
    written(path, faults={"a": "old", "b": "new"}, shards={"1/1": "new"})
    with pytest.raises(outcomes.MixedProductsError, match=r"of 2 products \(new, old\)"):
        outcomes.read(path)


@pytest.mark.parametrize(
    ("shards", "missing"),
    [(["2/3"], "1/3, 3/3"), ([], "1/1"), (["1/2", "2/2", "1/3"], "1/3, 2/3, 3/3")],
)
def test_a_run_that_lacks_a_shard_is_refused(path: Path, shards: list[str], missing: str) -> None:
    written(path, faults={"a": "new"}, shards=dict.fromkeys(shards, "new"))
    with pytest.raises(outcomes.MissingShardsError, match=f"not passed: {missing}"):
        outcomes.read(path)


def test_a_run_in_shards_forgets_what_another_product_found(path: Path) -> None:
    written(path, faults={"a": "old", "b": "new"}, shards={"1/2": "old"})
    for shard in ("1/2", "2/2"):
        outcomes.main("begin")
        outcomes.put("faults", f"of {shard}", {"lost": 0})
        outcomes.main("passed", shard)
    found = outcomes.read(path)
    assert list(found["faults"]) == ["b", "of 1/2", "of 2/2"]
    assert outcomes.commits(found) == "Commit: at-new"


def test_two_commits_of_one_product_make_one_report(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(path, faults={"a": "new"}, shards={"1/2": "new"})
    monkeypatch.setenv("HEADRACE_COMMIT", "mended-test")
    outcomes.main("begin")
    outcomes.main("passed", "2/2")
    assert outcomes.commits(outcomes.read(path)) == "Commits of one product: at-new, mended-test"
    assert outcomes.commits(outcomes.read(path), 4) == "Commits of one product: at-n, mend"


def test_no_outcome_is_written_unless_it_is_wanted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "WANTED", False)
    outcomes.put("faults", "a", {})
    assert not path.exists()
