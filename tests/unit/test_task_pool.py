"""How many tasks a command runs at once, and what it says of a process that ended."""

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.recovery.backfill.archive_source import cut_tables
from headrace.writer.maintenance.task_pool import explain_end, quota_cores, usable_cores


@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000\n", None), ("200000 100000\n", 2), ("150000 100000\n", 1), ("50000 100000\n", 1), ("", None)],
)
def test_a_quota_is_enough_for_whole_cores_and_for_one_at_least(text: str, cores: int | None) -> None:
    assert quota_cores(text) == cores


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("200000", 2),
        ("200000\n", 2),
        ("max", None),
        ("200000 max\n", None),
        ("200000 0\n", None),
        ("-1 100000\n", None),
        ("200000 100000 5000\n", None),
        ("²00000 100000\n", None),
        ("200000  100000\n", 2),
    ],
)
def test_a_quota_with_a_word_missing_or_strange_stops_no_command(text: str, cores: int | None) -> None:
    assert quota_cores(text) == cores


def test_a_quota_that_is_no_text_is_no_limit(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_bytes(b"\xff\xfe")
    assert usable_cores(quota) == usable_cores(tmp_path / "none")


def test_a_quota_limits_the_cores_and_none_does_not(tmp_path: Path) -> None:
    without_quota = usable_cores(tmp_path / "none")
    quota = tmp_path / "cpu.max"
    quota.write_text("100000 100000\n")
    assert usable_cores(quota) == 1
    quota.write_text(f"{100_000 * (without_quota + 5)} 100000\n")
    assert usable_cores(quota) == without_quota


def test_a_process_that_ended_is_named_with_the_way_it_ended_and_what_to_do():
    assert "process 7, which carried a part of the records of this command, was ended by SIGKILL" in explain_end(7, -9)
    assert "memory.buffer" in explain_end(7, -9)
    assert "ended with code 3; what it wrote on standard error says why" in explain_end(7, 3)
    assert explain_end(7, 3).endswith("Run the command again.")


@pytest.mark.parametrize("parts", range(1, 9))
def test_rows_are_cut_into_equal_parts_in_their_order(parts: int) -> None:
    tables = [pa.table({"n": [0, 1, 2, 3, 4]}), pa.table({"n": [5]}), pa.table({"n": [6, 7]})]
    groups = [[n for table in group for n in table.column("n").to_pylist()] for group in cut_tables(tables, parts)]
    assert [n for group in groups for n in group] == list(range(8))
    assert len(groups) <= parts
    assert max(map(len, groups)) == -(-8 // parts)
    assert cut_tables([], parts) == []
