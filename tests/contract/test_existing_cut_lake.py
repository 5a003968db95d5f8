"""Lakes that know their logs by marks, as they were made, and lakes from before: what each says of its logs."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.config.loader import load
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.offsets.log_continuity import EarlierCommit, read_part_history
from tests.support.fixture_lakes import FIXTURES, table_of, unpack

P0, N1 = TopicPartition("clicks", 1, 0), TopicPartition("clicks", 2, 1)


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_lake_says_what_its_logs_are_known_by_and_which_one_was_cut(tmp_path: Path, form: str) -> None:
    unpack(FIXTURES / "log-1-cut.tar.xz", tmp_path)
    config = tmp_path / f"cut_{form}" / "headrace.yaml"
    table = table_of(load(config))
    snapshot = table.snapshot()
    assert snapshot.mark(P0) == LogMark(2, 2**62 + 20)
    assert snapshot.mark(N1) == LogMark(7, 2**61 + 20)
    assert snapshot.orphans() == [OffsetRange(P0, 15, 20)]
    earlier = (EarlierCommit(15, LogMark(1, 2**62 + 15)), EarlierCommit(10, LogMark(0, 2**62 + 10)))
    assert read_part_history(table.entries(-1), "clicks", P0, 20).commits == earlier
    shown = CliRunner().invoke(app, ["audit", str(config), "--json"])
    (cut,) = json.loads(shown.output)["pipelines"]["clicks"]["log_cuts"]
    assert (cut["start"], cut["end"], cut["successor"], cut["is_proven"]) == (15, 20, 2, False)


def test_a_lake_from_before_knows_no_log(tmp_path: Path) -> None:
    lakes = unpack(FIXTURES / "log-1.tar.xz", tmp_path)
    for name in lakes:
        snapshot = table_of(load(tmp_path / name / "headrace.yaml")).snapshot()
        assert snapshot.orphans() == [], name
        assert {snapshot.mark(part) for part in snapshot.parts()} <= {None}, name
