"""Damage to Spark's checkpoint: the table is the truth, so nothing is lost and nothing twice."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import oracle
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]


@pytest.fixture
def pipeline(site: Site, topic: MakeTopic) -> tuple[Site, str, Path, Path]:
    """A pipeline that has committed four batches. Returns site, topic, lake, checkpoint of run 1."""
    name = topic(2)
    lake = site.pipeline("events", [name], commit={"max_offsets": 500})
    site.fill(name, 2_000)
    site.once()
    return site, name, lake, site.root / "checkpoints" / "events" / "000001"


@pytest.mark.cell("Spark's checkpoint is deleted", "between two runs")
def test_a_deleted_checkpoint_begins_a_new_run_from_the_frontier(pipeline: tuple[Site, str, Path, Path]) -> None:
    site, name, lake, checkpoint = pipeline
    shutil.rmtree(checkpoint.parent)
    oracle.check_rows(lake, "events")
    site.fill(name, 700, seed=8)
    output = site.once()
    assert "there is no checkpoint" in output
    oracle.check(lake, "events", site.ends(name))


@pytest.mark.cell("Spark's checkpoint is old", "by three batches")
def test_a_checkpoint_of_three_batches_ago_is_replaced(pipeline: tuple[Site, str, Path, Path]) -> None:
    site, name, lake, checkpoint = pipeline
    old = site.root / "old"
    shutil.copytree(checkpoint, old)
    site.fill(name, 1_400, seed=8)
    site.once()
    shutil.rmtree(checkpoint)
    shutil.copytree(old, checkpoint)
    oracle.check_rows(lake, "events")
    site.fill(name, 300, seed=9)
    output = site.once()
    assert "run 1 is older than the table" in output
    oracle.check(lake, "events", site.ends(name))


@pytest.mark.cell("Spark's checkpoint is wrong", "five offsets ahead of the table: refused")
def test_an_offset_edited_by_five_is_refused_and_a_new_run_is_right(pipeline: tuple[Site, str, Path, Path]) -> None:
    site, name, lake, checkpoint = pipeline
    newest = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    *head, last = newest.read_text().splitlines()
    moved = json.loads(last)
    moved[name]["0"] += 5
    newest.write_text("\n".join([*head, json.dumps(moved)]))
    (newest.parent / f".{newest.name}.crc").unlink()
    site.fill(name, 300, seed=8)
    before = oracle.replay(lake)
    output = site.once(code=3)
    assert "5 offsets would be skipped" in output
    assert "headrace run --new-run" in output
    assert oracle.replay(lake).files == before.files
    oracle.check_rows(lake, "events")
    site.once("--new-run", "--yes")
    oracle.check(lake, "events", site.ends(name))


@pytest.mark.cell("Spark's checkpoint is wrong", "empty, of another version, garbage: refused")
def test_an_offset_file_that_cannot_be_read_is_refused_and_a_new_run_is_right(
    pipeline: tuple[Site, str, Path, Path],
) -> None:
    site, name, lake, checkpoint = pipeline
    for damage in (b"", b"v9\n{}\n{}", b"\x00\xff garbage"):
        newest = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        newest.write_bytes(damage)
        (newest.parent / f".{newest.name}.crc").unlink()
        assert f"offsets/{newest.name}" in site.once(code=3)
        oracle.check_rows(lake, "events")
        site.fill(name, 100)
        site.once("--new-run", "--yes")
        oracle.check(lake, "events", site.ends(name))
        checkpoint = checkpoint.with_name(f"{int(checkpoint.name) + 1:06d}")
